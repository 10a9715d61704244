"""A fair race: Algorithm 1 against tuned rivals, each with and without the regulariser.

This book's experiment. Every method gets the same effort: as many step sizes, a factor two apart, each constant and
along a cosine, tuned on seeds of their own. Two configurations of each method then run on fresh seeds: the one with the
lowest median final loss and the one that is near the optimum first, among those at which no tuning seed diverges.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core import runtime
from attnbook.core.results import Clock, Measurement, Result
from attnbook.core.resuming import check_seeds, resumable
from attnbook.core.runtime import Progress
from attnbook.preconditioning.data import Setup
from attnbook.preconditioning.experiments.curves import first_time, loss_ratio
from attnbook.preconditioning.theory.population import Preconditioner
from attnbook.preconditioning.training import Optimizer, Training, Variant, train_variants

__all__ = ["METHODS", "Method", "OptimizerRace", "Settings", "run"]


@dataclass(frozen=True)
class Method:
    """A method of the race.

    Attributes:
        optimizer: Rule.
        preconditioner: Made from the sample covariance; Algorithm 1 only.
        penalty: Weight of the balance penalty.
        largest: Largest step size of its grid.
    """

    optimizer: Optimizer
    preconditioner: Preconditioner = "none"
    penalty: float = 0.0
    largest: float = 0.4


METHODS: dict[str, Method] = {
    "algorithm_1": Method("sgd", "two", 1.0),
    "left": Method("sgd", "left", 1.0),
    "sgd": Method("sgd"),
    "sgd_regularised": Method("sgd", penalty=1.0),
    "adam": Method("adam", largest=0.8),
    "adam_regularised": Method("adam", penalty=1.0, largest=0.8),
    "muon": Method("muon"),
    "muon_regularised": Method("muon", penalty=1.0),
    "shampoo": Method("shampoo", largest=6.4),
    "shampoo_regularised": Method("shampoo", penalty=1.0, largest=6.4),
}
SCHEDULES = (False, True)
AIMS = ("lowest", "fastest")


@dataclass(frozen=True)
class Settings:
    r"""Sizes of the experiment.

    Attributes:
        dimension: Number of inputs $d$.
        n_outputs: Number of outputs $m$.
        n_samples: Size $n$ of the data set.
        batch_size: Samples per minibatch.
        condition_numbers: $\kappa(\Sigma)$ of the problems.
        largest: Largest singular value of $A\Sigma^{1/2}$; the smallest is half of it.
        noise: Standard deviation of the label noise.
        steps: Number of steps.
        records: Losses recorded after the first, evenly spaced.
        n_step_sizes: Step sizes tried for each method, a factor two apart.
        tuning_seeds: Seeds on which step size and schedule are chosen.
        seeds: Seeds that are reported.
        full: Whether the race is long enough for the claims to be read off it.
    """

    dimension: int = 5
    n_outputs: int = 8
    n_samples: int = 1000
    batch_size: int = 100
    condition_numbers: tuple[float, ...] = (3.0, 10.0)
    largest: tuple[float, ...] = (0.06, 0.4)
    noise: tuple[float, ...] = (0.02, 0.1)
    steps: tuple[int, ...] = (150, 75)
    records: int = 75
    n_step_sizes: int = 7
    tuning_seeds: tuple[int, ...] = (100,)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    full: bool = False

    def __post_init__(self) -> None:
        if self.records < 1 or any(steps % self.records for steps in self.steps):
            raise ValueError(f"records: expected a positive divisor of steps {self.steps}, got {self.records}")
        if self.n_step_sizes < 1:
            raise ValueError(f"n_step_sizes: expected at least 1, got {self.n_step_sizes}")
        if set(self.seeds) & set(self.tuning_seeds):
            raise ValueError(f"tuning_seeds: expected none of the reported {self.seeds}, got {self.tuning_seeds}")
        check_seeds(self.seeds, 1)
        check_seeds(self.tuning_seeds, 1)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(n_samples=200, batch_size=10, steps=(10, 10), records=10, n_step_sizes=2, seeds=(0, 1))

    @classmethod
    def book(cls) -> Self:
        """Return a short race for a first look: too few steps for any claim, and one tuning seed."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return the race that the book quotes; the paper has none."""
        return cls(steps=(1500, 600), tuning_seeds=(100, 101, 102, 103, 104), seeds=tuple(range(10)), full=True)

    def setup(self, problem: int) -> Setup:
        """Return the sizes of one problem."""
        return Setup(
            dimension=self.dimension,
            n_outputs=self.n_outputs,
            condition_number=self.condition_numbers[problem],
            largest=self.largest[problem],
            smallest=self.largest[problem] / 2,
            noise=self.noise[problem],
            n_samples=self.n_samples,
        )

    def step_sizes(self, name: str) -> np.ndarray:
        """Return the step sizes tried for a method, increasing."""
        return METHODS[name].largest * 2.0 ** np.arange(1 - self.n_step_sizes, 1)

    def recorded(self, problem: int) -> np.ndarray:
        """Return the recorded steps of a problem."""
        return np.linspace(0, self.steps[problem], self.records + 1)


@dataclass(frozen=True)
class OptimizerRace(Result):
    """What tuning found, and the curves on fresh seeds; $L/L^*$ throughout, infinite where a member diverged.

    Attributes:
        tuned_end: Median final ratio on the tuning seeds, ``(problems, methods, schedules, step_sizes)``.
        tuned_lowest: Lowest median ratio at any recorded step, same shape.
        tuned_time: Median first step near the optimum, same shape.
        tuned_lost: Number of tuning seeds that diverged, same shape.
        curves: Ratios on the reported seeds, ``(problems, aims, records, methods, seeds)``.
    """

    experiment: ClassVar[str] = "preconditioning.optimizer_race"
    settings_type: ClassVar[type] = Settings

    tuned_end: Float[np.ndarray, "problems methods schedules step_sizes"]
    tuned_lowest: Float[np.ndarray, "problems methods schedules step_sizes"]
    tuned_time: Float[np.ndarray, "problems methods schedules step_sizes"]
    tuned_lost: Float[np.ndarray, "problems methods schedules step_sizes"]
    curves: Float[np.ndarray, "problems aims records methods seeds"]

    def chosen(self, problem: int, aim: str, name: str) -> tuple[bool, float]:
        """Return schedule (whether along a cosine) and step size that tuning chose for a method.

        Args:
            problem: Position of the problem.
            aim: ``lowest`` or ``fastest``.
            name: One of :data:`METHODS`.

        Returns:
            The schedule and the step size.
        """
        schedule, size = self._position(problem, aim, name)
        return SCHEDULES[schedule], float(self.settings.step_sizes(name)[size])

    def at_step_size(self, problem: int, name: str, size: float) -> tuple[float, float, int] | None:
        """Return how a method did at one constant step size, on the tuning seeds.

        Args:
            problem: Position of the problem.
            name: One of :data:`METHODS`.
            size: Step size.

        Returns:
            Median final ratio, median first step near the optimum and number of seeds that diverged; None for a step
            size that was not tried.
        """
        (tried,) = np.nonzero(np.isclose(self.settings.step_sizes(name), size))
        if not tried.size:
            return None
        at = (problem, list(METHODS).index(name), SCHEDULES.index(False), int(tried[0]))
        return float(self.tuned_end[at]), float(self.tuned_time[at]), int(self.tuned_lost[at])

    def at_edge(self, problem: int, name: str) -> bool:
        """Return whether the step size with the lowest final loss is the smallest or largest one tried."""
        return self._position(problem, "lowest", name)[1] in (0, self.tuned_end.shape[-1] - 1)

    def _position(self, problem: int, aim: str, name: str) -> tuple[int, int]:
        at = (problem, list(METHODS).index(name))
        return _choose(aim, self.tuned_end[at], self.tuned_time[at], self.tuned_lost[at])

    def ends(self, problem: int, name: str) -> Float[np.ndarray, " seeds"]:
        """Return the final ratios of a method tuned for the lowest one, on the reported seeds."""
        return self.curves[problem, 0, -1, list(METHODS).index(name)]

    def times(self, problem: int, name: str) -> Float[np.ndarray, " seeds"]:
        """Return the first steps near the optimum of a method tuned for speed, on the reported seeds."""
        return first_time(self.settings.recorded(problem), self.curves[problem, 1, :, list(METHODS).index(name)])

    def measurements(self) -> dict[str, Measurement]:
        """Return who won, by claim id; a race that is too short says nothing."""
        if not self.settings.full:
            return {}
        end = [{n: float(np.median(self.ends(p, n))) for n in METHODS} for p in (0, 1)]
        time = [{n: float(np.median(self.times(p, n))) for n in METHODS} for p in (0, 1)]
        plain = [list(METHODS).index(name) for name in ("sgd", "adam", "shampoo")]
        fair = np.median(self.curves[0, :, :, plain], axis=-1).min()
        never = min(float(self.tuned_lowest[0, plain].min()), float(fair))
        values = {
            "PC-F7": {
                "hitting_time_algorithm_1": time[0]["algorithm_1"],
                "smallest_hitting_time_others": _best_other(time[0]),
            },
            "PC-F7-never": {"smallest_ratio_never": never},
            "PC-F7-muon": {"ratio_end_muon": end[0]["muon"], "ratio_end_algorithm_1": end[0]["algorithm_1"]},
            "PC-F8": {"ratio_end_algorithm_1": end[1]["algorithm_1"], "smallest_ratio_end_others": _best_other(end[1])},
            "PC-F8-adam": {
                "hitting_time_adam_regularised": time[1]["adam_regularised"],
                "hitting_time_algorithm_1": time[1]["algorithm_1"],
            },
        }
        spread = {
            "PC-F7": {"hitting_time_algorithm_1": _range(self.times(0, "algorithm_1"))},
            "PC-F7-muon": {
                "ratio_end_muon": _range(self.ends(0, "muon")),
                "ratio_end_algorithm_1": _range(self.ends(0, "algorithm_1")),
            },
            "PC-F8": {"ratio_end_algorithm_1": _range(self.ends(1, "algorithm_1"))},
            "PC-F8-adam": {
                "hitting_time_adam_regularised": _range(self.times(1, "adam_regularised")),
                "hitting_time_algorithm_1": _range(self.times(1, "algorithm_1")),
            },
        }
        seeds = len(self.settings.seeds)
        return {claim: Measurement(found, spread.get(claim, {}), seeds) for claim, found in values.items()}


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> OptimizerRace:
    """Tune every method on every problem, then race them on fresh seeds.

    Args:
        settings: Sizes, grids, seeds and steps.
        device: Where to train; default the first of cuda, mps and cpu.
        progress: Told (steps done, steps in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available or a batch is larger than the data set.
    """
    clock, where = Clock(), runtime.device(device)
    problems = range(len(settings.condition_numbers))
    tuning = {f"tune-{p}-{name}": (p, name) for p, name in product(problems, METHODS)}
    keep = partial(resumable, settings=settings, clock=clock, workdir=workdir)
    half = (lambda done, total: progress(done, 2 * total)) if progress else None
    found = keep(list(tuning), lambda part, inner: _tune(settings, *tuning[part], where, inner), progress=half)
    tuned = {
        f"tuned_{key}": np.stack([np.stack([found[f"tune-{p}-{name}"][key] for name in METHODS]) for p in problems])
        for key in ("end", "lowest", "time", "lost")
    }
    racing = {f"race-{p}-{name}": (p, name) for p, name in product(problems, METHODS)}

    def race(part: str, inner: Progress | None) -> dict[str, np.ndarray]:
        p, name = racing[part]
        seen = found[f"tune-{p}-{name}"]
        choices = [_choose(aim, seen["end"], seen["time"], seen["lost"]) for aim in AIMS]
        return {"curves": np.stack([_race(settings, p, name, choice, where) for choice in choices])}

    half = (lambda done, total: progress(total + done, 2 * total)) if progress else None
    raced = keep(list(racing), race, progress=half)
    if progress:
        progress(1, 1)
    curves = np.stack([np.stack([raced[f"race-{p}-{name}"]["curves"] for name in METHODS], axis=2) for p in problems])
    return OptimizerRace(settings=settings, provenance=clock.provenance(where), **tuned, curves=curves)


def _tune(
    settings: Settings, problem: int, name: str, device: torch.device, progress: Progress | None
) -> dict[str, np.ndarray]:
    """Medians over the tuning seeds and how many diverged, ``(schedules, step_sizes)``."""
    recorded = settings.recorded(problem)
    sizes = settings.step_sizes(name)
    summaries: dict[str, list[np.ndarray]] = {"end": [], "lowest": [], "time": [], "lost": []}
    for decay in SCHEDULES:
        ratios = _train(settings, problem, name, sizes, settings.tuning_seeds, decay, device, progress)
        summaries["end"].append(np.median(ratios[-1], axis=-1))
        summaries["lowest"].append(np.median(ratios, axis=-1).min(axis=0))
        summaries["time"].append(np.median(first_time(recorded, ratios), axis=-1))
        summaries["lost"].append((~np.isfinite(ratios[-1])).sum(axis=-1))
    return {key: np.stack(rows) for key, rows in summaries.items()}


def _race(settings: Settings, problem: int, name: str, choice: tuple[int, int], device: torch.device) -> np.ndarray:
    """Ratios of one configuration on the reported seeds, ``(records, seeds)``."""
    size = settings.step_sizes(name)[choice[1] : choice[1] + 1]
    return _train(settings, problem, name, size, settings.seeds, SCHEDULES[choice[0]], device, None)[:, 0]


def _train(
    settings: Settings,
    problem: int,
    name: str,
    sizes: np.ndarray,
    seeds: tuple[int, ...],
    decay: bool,
    device: torch.device,
    progress: Progress | None,
) -> np.ndarray:
    """Ratios ``(records, step_sizes, seeds)``."""
    method, setup = METHODS[name], settings.setup(problem)
    record_at = tuple(settings.recorded(problem).astype(int).tolist())
    training = Training(settings.steps[problem], settings.batch_size, record_at, method.optimizer, decay)
    variants = [Variant(float(size), method.preconditioner, method.penalty) for size in sizes]
    records = train_variants(variants, seeds, setup, training, device=device, progress=progress).records
    return loss_ratio(records["excess_loss"].reshape(-1, len(sizes), len(seeds)), setup.best_loss)


def _choose(aim: str, end: np.ndarray, time: np.ndarray, lost: np.ndarray) -> tuple[int, int]:
    """Positions of schedule and step size; where no stable one comes near the optimum, the lowest is the fastest."""
    stable = lost == lost.min()
    scores = [np.where(stable, values, np.inf) for values in (time, end)]
    score = scores[0] if aim == "fastest" and np.isfinite(scores[0]).any() else scores[1]
    schedule, size = np.unravel_index(int(score.argmin()), score.shape)
    return int(schedule), int(size)


def _best_other(values: dict[str, float]) -> float:
    return min(value for name, value in values.items() if name != "algorithm_1")


def _range(samples: np.ndarray) -> tuple[float, float]:
    return float(samples.min()), float(samples.max())
