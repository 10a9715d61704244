"""The two problems of the figures, and a fair race on them: Algorithm 1 against tuned rivals (this book's)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr

from attnbook.core.experiment import Arrays, Experiment, stacked
from attnbook.core.runtime import Progress, share
from attnbook.preconditioning.curves import NEAR, first_time
from attnbook.preconditioning.data import Setup
from attnbook.preconditioning.population import Preconditioner
from attnbook.preconditioning.training import Optimizer, Training, Variant, train_variants

PAIRS = ("condition_numbers", "largest", "noise", "steps", "n_samples", "step_sizes")  # an entry for each problem
RIVALS: dict[Optimizer, float] = {"sgd": 0.4, "adam": 0.8, "muon": 0.4, "shampoo": 6.4}  # largest step size tried
METHODS: dict[str, tuple[Optimizer, Preconditioner, float, float]] = {  # penalty, and largest step size tried
    "algorithm_1": ("sgd", "two", 1.0, 0.4), "left": ("sgd", "left", 1.0, 0.4),
    **{f"{name}{word}": (name, "none", penalty, largest) for name, largest in RIVALS.items()
       for word, penalty in (("", 0.0), ("_regularised", 1.0))},
}  # fmt: skip
SCHEDULES = (False, True)  # whether step sizes fall to zero along a cosine
AIMS = ("lowest", "fastest")


@dataclass(frozen=True, kw_only=True)
class TwoProblems(Experiment):
    """Two problems on which several ways to train are compared."""

    dimension: int = 5  # inputs d
    n_outputs: int = 8  # outputs m
    n_samples: int | tuple[int, ...] = 1000  # size n of the data set; one for both problems, or one for each
    batch_size: int = 100  # samples per minibatch, drawn without replacement
    condition_numbers: tuple[float, ...] = (3.0, 10.0)  # of the covariance, an entry for each problem, as below
    largest: tuple[float, ...] = (0.06, 0.4)  # singular value of the map on whitened inputs; the smallest is half of it
    noise: tuple[float, ...] = (0.02, 0.1)  # standard deviation of the label noise
    steps: tuple[int, ...]  # of training
    records: int  # losses recorded after the first, evenly spaced

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, each in vars(self).items():
            if name in PAIRS and isinstance(each, tuple) and len(each) != 2:
                raise ValueError(f"{name}: expected an entry for each of two problems, got {each}")
        check_records(self.records, self.steps)

    def setup(self, problem: int) -> Setup:
        """Return the sizes of one problem."""
        n_samples = self.n_samples if isinstance(self.n_samples, int) else self.n_samples[problem]
        largest = self.largest[problem]
        return Setup(self.dimension, self.n_outputs, self.condition_numbers[problem], largest, largest / 2,
                     self.noise[problem], n_samples)  # fmt: skip

    def training(self, problem: int, **options: Any) -> Training:
        """Return how long to train on one problem, recorded at evenly spaced steps."""
        steps = self.steps[problem]
        return Training(steps, self.batch_size, tuple(range(0, steps + 1, steps // self.records)), **options)

    def coordinates(self) -> dict[str, Any]:
        """Name problems and steps."""
        steps = np.array([np.linspace(0, length, self.records + 1) for length in self.steps])
        return {"kappa": ("problem", list(self.condition_numbers)), "step": (("problem", "record"), steps)}


def check_records(records: int, steps: Sequence[int]) -> None:
    """Refuse a number of records that does not divide the steps of every problem."""
    if records < 1 or any(length % records for length in steps):
        raise ValueError(f"records: expected a positive divisor of steps {steps}, got {records}")


@dataclass(frozen=True, kw_only=True)
class OptimizerRace(TwoProblems):
    """A fair race: Algorithm 1 against tuned rivals, each with and without the regulariser; $L/L^*$ throughout.

    Every method gets the same effort: as many step sizes, a factor two apart, each constant and along a cosine, tuned
    on seeds of their own. Two configurations of each method then run on fresh seeds: the one with the lowest median
    final loss and the one that is near the optimum first, among those at which no tuning seed diverges.
    """

    id = "preconditioning.optimizer_race"
    summary = "A fair race with tuned SGD, Adam, Muon-like and Shampoo-like updates; two problems"
    budget_seconds = 60
    smoke = {
        "n_samples": 200, "batch_size": 10, "steps": (4, 4), "records": 4, "n_step_sizes": 2, "seeds": (0, 1),
    }  # fmt: skip
    full = {
        "steps": (1500, 600), "tuning_seeds": (100, 101, 102, 103, 104), "seeds": tuple(range(10)), "chunk": 10,
        "long": True,
    }  # fmt: skip

    steps: tuple[int, ...] = (150, 75)  # of training
    records: int = 75  # losses recorded after the first, evenly spaced
    n_step_sizes: int = 7  # step sizes tried for each method, a factor two apart
    tuning_seeds: tuple[int, ...] = (100,)  # on which step size and schedule are chosen; each group tunes again
    long: bool = False  # whether the race is long enough for the claims to be read off it

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_step_sizes < 1:
            raise ValueError(f"n_step_sizes: expected at least 1, got {self.n_step_sizes}")
        if set(self.seeds) & set(self.tuning_seeds) or not self.tuning_seeds:
            raise ValueError(f"tuning_seeds: expected some, none of the reported {self.seeds}, got {self.tuning_seeds}")

    def sizes(self, method: str) -> np.ndarray:
        """Return the step sizes that are tried for one method."""
        return METHODS[method][-1] * 2.0 ** np.arange(1 - self.n_step_sizes, 1)

    def coordinates(self) -> dict[str, Any]:
        """Name problems, methods, step sizes and steps."""
        return super().coordinates() | {
            "racer": list(METHODS),
            "decay": ("schedule", list(SCHEDULES)),
            "aim": list(AIMS),
            "step_size": (("racer", "size"), np.array([self.sizes(method) for method in METHODS])),
        }

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Tune every method on every problem, then race it on these seeds."""
        found = ((self._method(problem, name, seeds, device, progress) for name in METHODS) for problem in (0, 1))
        return stacked("problem", (stacked("racer", row) for row in found))

    def _method(
        self, problem: int, name: str, seeds: tuple[int, ...], device: torch.device, progress: Progress | None
    ) -> Arrays:
        """Medians over the tuning seeds and how many diverged; the curves of both configurations on these seeds."""
        (optimizer, kind, penalty, _), setup = METHODS[name], self.setup(problem)

        def run(sizes: np.ndarray, decay: bool, seeds: tuple[int, ...], progress: Progress | None) -> np.ndarray:
            variants = [Variant(float(size), kind, penalty) for size in sizes]
            training = self.training(problem, optimizer=optimizer, decay=decay)
            history = train_variants(variants, seeds, setup, training, device=device, progress=progress)
            return 1 + history.records["excess_loss"].reshape(-1, len(sizes), len(seeds)) / setup.best_loss

        sizes, steps = self.sizes(name), self.coordinates()["step"][1][problem]
        mine = share(progress, problem * len(METHODS) + list(METHODS).index(name), 2 * len(METHODS))
        tuning = [run(sizes, decay, self.tuning_seeds, share(mine, n, 2)) for n, decay in enumerate(SCHEDULES)]
        ratios, axes = np.stack(tuning, axis=1), ("schedule", "size")
        end, lost = np.median(ratios[-1], axis=-1), (~np.isfinite(ratios[-1])).sum(axis=-1)
        time = np.median(first_time(steps, ratios), axis=-1)
        chosen = [choose(aim, end, time, lost) for aim in AIMS]
        curves = [run(sizes[[size]], SCHEDULES[schedule], seeds, None)[:, 0] for schedule, size in chosen]
        tuned = {"tuned_end": (axes, end), "tuned_time": (axes, time), "tuned_lost": (axes, lost)}
        return tuned | {"curves": (("aim", "record", "seed"), np.stack(curves))}

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Say who won; a race that is too short says nothing."""
        if not self.long:
            return {}
        ends, times = outcomes(data)
        soon, low = ("adam_regularised", "algorithm_1"), ("muon_regularised", "algorithm_1")
        return {
            "PC-F7": {f"time_{name}_{p + 1}": times[p].sel(racer=name) for name in soon for p in (0, 1)},
            "PC-F8": {f"end_{name}_{p + 1}": ends[p].sel(racer=name) for name in low for p in (0, 1)},
        }


def choose(aim: str, end: np.ndarray, time: np.ndarray, lost: np.ndarray) -> tuple[int, int]:
    """Return the positions of schedule and step size that tuning chooses among those that lose the fewest seeds.

    Where none of them comes near the optimum, the lowest is the fastest.
    """
    low, soon = (np.where(lost == lost.min(), values, np.inf) for values in (end, time))
    score = soon if aim == "fastest" and np.isfinite(soon).any() else low
    schedule, size = np.unravel_index(int(score.argmin()), score.shape)
    return int(schedule), int(size)


def near_at(ratios: xr.DataArray, steps: xr.DataArray) -> xr.DataArray:
    """Return the first recorded step at which $L/L^*$ is near-optimal; infinite where it never is."""
    return steps.where(ratios <= NEAR, np.inf).min("record")


def outcomes(data: xr.Dataset) -> tuple[xr.DataArray, xr.DataArray]:
    """Return final ratios of methods tuned for low ones, and first steps near the optimum of those tuned for speed."""
    return data.curves.sel(aim="lowest").isel(record=-1), near_at(data.curves.sel(aim="fastest"), data.step)
