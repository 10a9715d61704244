"""The experiments of the chapter: Figures 1 and 2, and what this book asks of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import xarray as xr

from attnbook.core.ensemble import log_spaced
from attnbook.core.experiment import Arrays, Experiment, highest, lowest
from attnbook.core.runtime import Progress
from attnbook.preconditioning.curves import loss_ratio, stage
from attnbook.preconditioning.data import Setup
from attnbook.preconditioning.population import Preconditioner
from attnbook.preconditioning.structure_aware_descent.closed_forms import LOSSES, gradient_errors
from attnbook.preconditioning.structure_aware_descent.near_minima import Balance, Conditioning, Convergence
from attnbook.preconditioning.structure_aware_descent.race import OptimizerRace
from attnbook.preconditioning.structure_aware_descent.reading import (
    algorithm_1,
    at_best_size,
    best,
    check_records,
    near_at,
    others,
    worst,
)
from attnbook.preconditioning.training import Start, Training, Variant, train_variants

__all__ = ["Ablation", "Balance", "Conditioning", "Convergence", "OptimizerRace", "StructureAwareDescent"]

DESCENTS: dict[str, tuple[Preconditioner, float, Start]] = {
    "spectral": ("two", 1.0, "spectral"),
    "algorithm_1": ("two", 1.0, "random"),
    "left": ("left", 1.0, "random"),
    "unregularised": ("two", 0.0, "random"),
    "sgd": ("none", 0.0, "random"),
}
POPULATION = ("algorithm_1", "unregularised", "sgd")  # trained on the population loss, too
FILM = ("sgd", "unregularised", "algorithm_1")  # whose queries are counted by the number of keys they attend to
BINS, SNAPSHOTS = 24, 8  # between how many numbers of keys, and at how many steps after the first


@dataclass(frozen=True, kw_only=True)
class StructureAwareDescent(Experiment):
    """Figures 1 and 2: Algorithm 1 from two starts, beside gradient descent without structure.

    All variants of a seed see the same data, minibatches and random start, and take steps of the same size, as in the
    paper. Sizes are this book's: the paper's are missing in the text available to us. Losses are infinite from a
    divergence on.
    """

    id = "preconditioning.structure_aware_descent"
    summary = "Figures 1 and 2: Algorithm 1 from two starts, beside gradient descent"
    budget_seconds = 25
    smoke = {"n_samples": 200, "batch_size": 20, "steps": (40, 40), "records": 10, "seeds": (0, 1), "chunk": 1}
    large = {
        "dimension": 10, "n_outputs": 15, "n_samples": (10_000, 100_000), "batch_size": 1000, "chunk": 1,
        "condition_numbers": (3.0, 3.0), "largest": (0.06, 0.06), "noise": (0.02, 0.02), "step_sizes": (0.02, 0.02),
        "steps": (2000, 2000),
    }  # fmt: skip

    dimension: int = 5  # inputs d
    n_outputs: int = 8  # outputs m
    n_samples: int | tuple[int, ...] = 1000  # size n of the data set; one for all problems, or one for each
    batch_size: int = 100  # samples per minibatch, drawn without replacement
    condition_numbers: tuple[float, ...] = (3.0, 10.0)  # of the covariance, an entry for each problem, as below
    largest: tuple[float, ...] = (0.06, 0.4)  # singular value of the map on whitened inputs; the smallest is half of it
    noise: tuple[float, ...] = (0.02, 0.1)  # standard deviation of the label noise
    step_sizes: tuple[float, ...] = (0.05, 0.02)  # the same for all variants
    steps: tuple[int, ...] = (2000, 1000)  # of training
    records: int = 100  # losses recorded after the first, evenly spaced
    seeds: tuple[int, ...] = tuple(range(10))
    chunk: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("largest", "noise", "step_sizes", "steps", "n_samples"):
            each, problems = getattr(self, name), len(self.condition_numbers)
            if isinstance(each, tuple) and len(each) != problems:
                raise ValueError(f"{name}: expected one entry for each of {problems} condition_numbers, got {each}")
        check_records(self.records, self.steps)

    def setup(self, problem: int) -> Setup:
        """Return the sizes of one problem."""
        n_samples = self.n_samples if isinstance(self.n_samples, int) else self.n_samples[problem]
        largest = self.largest[problem]
        return Setup(self.dimension, self.n_outputs, self.condition_numbers[problem], largest, largest / 2,
                     self.noise[problem], n_samples)  # fmt: skip

    def recorded(self, problem: int) -> tuple[int, ...]:
        """Return the recorded steps of a problem."""
        return tuple(range(0, self.steps[problem] + 1, self.steps[problem] // self.records))

    def position(self, problem: int, step: int) -> int:
        """Return the position of the first record from a step on; the last one if training is shorter."""
        return int(np.searchsorted(self.recorded(problem), min(step, self.steps[problem])))

    @property
    def snapshots(self) -> tuple[int, ...]:
        """Records of the last problem, the first and log-spaced others, at which queries are counted."""
        return log_spaced(self.records, SNAPSHOTS)

    def coordinates(self) -> dict[str, Any]:
        """Name problems, their sizes, variants and steps."""
        setups = [self.setup(problem) for problem in range(len(self.steps))]
        return {
            "kappa": ("problem", list(self.condition_numbers)),
            "n_samples": ("problem", [setup.n_samples for setup in setups]),
            "best_loss": ("problem", [setup.best_loss for setup in setups]),
            "step": (("problem", "record"), np.array([self.recorded(p) for p in range(len(setups))], dtype=float)),
            "descent": list(DESCENTS),
            "trained": list(POPULATION),
            "filmed": list(FILM),
            "loss": list(LOSSES),
            "snapshot": [self.recorded(-1)[record] for record in self.snapshots],
            "edge": np.geomspace(1, self.batch_size, BINS + 1),  # of the bins, in keys that a query attends to
        }

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train all variants on all problems, some on the population loss of the last one, too."""
        problems = range(len(self.condition_numbers))
        train = partial(self._curves, seeds, device)
        found = [train(p, tuple(DESCENTS), stage(progress, p, len(problems) + 1)) for p in problems]
        population = train(problems[-1], POPULATION, stage(progress, len(problems), len(problems) + 1), population=True)
        keys, axes = found[-1]["effective_keys"], ("problem", "record", "descent", "seed")
        for records in found:
            records["effective_keys"] = records["effective_keys"].mean(-1)
        return {name: (axes, np.stack([records[name] for records in found])) for name in found[0]} | {
            "key_counts": (("snapshot", "filmed", "bin", "seed"), self._key_counts(keys)),
            "population": (("record", "trained", "seed"), population["excess_loss"]),
            "gradient_errors": (("loss",), gradient_errors(self.n_outputs, self.dimension)),
        }

    def _curves(
        self,
        seeds: tuple[int, ...],
        device: torch.device,
        problem: int,
        names: tuple[str, ...],
        progress: Progress | None,
        *,
        population: bool = False,
    ) -> dict[str, np.ndarray]:
        variants = [Variant(self.step_sizes[problem], *DESCENTS[name]) for name in names]
        training = Training(self.steps[problem], self.batch_size, self.recorded(problem), population=population,
                            keys=not population)  # fmt: skip
        setup = self.setup(problem)
        records = train_variants(variants, seeds, setup, training, device=device, progress=progress).records
        return {name: v.reshape(len(v), len(names), len(seeds), *v.shape[2:]) for name, v in records.items()}

    def _key_counts(self, keys: np.ndarray) -> np.ndarray:
        """Count queries by the number of keys they attend to; from ``(records, descents, seeds, queries)``."""
        filmed = keys[np.ix_(self.snapshots, [list(DESCENTS).index(name) for name in FILM])]
        edges = self.coordinates()["edge"]
        bins = np.searchsorted(edges[1:-1], filmed, side="right")  # rounding stays in the outer bins
        counted = np.where(np.isfinite(filmed), bins, -1)  # not those of members that have diverged
        return np.stack([(counted == b).sum(-1) for b in range(BINS)], axis=2)

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off the figures; a run of one problem, at any sizes, is of the larger problem."""
        claims = {"PC-A3": "empirical", "PC-A3-population": "population", "PC-A3-regulariser": "regulariser"}
        found = {claim: {"largest_error": data.gradient_errors.sel(loss=name)} for claim, name in claims.items()}
        if len({dataclasses.replace(self.setup(p), n_samples=1) for p in range(len(self.steps))}) == 1:
            return found | self._larger(ratios(data))
        return found | self._figures(data) | self._population(data) | self._mechanism(data)

    def _larger(self, ratio: xr.DataArray) -> dict[str, dict[str, xr.DataArray]]:
        spectral, ends = ratio.sel(descent="spectral"), ratio.isel(record=-1)
        start = spectral.isel(record=0)
        found = {
            "PC-F1p": {"ratio_spectral_start": start[0], "largest_ratio_spectral": spectral[0].max("record")},
            "PC-F1p-random": {"ratio_random_end": ends[0].sel(descent="algorithm_1")},
            "PC-F1p-sgd": {"ratio_sgd_end": ends[0].sel(descent="sgd")},
        }
        if len(ratio.problem) == 1:
            return found
        few, many = start[0] - 1, start[1] - 1
        finish = ends.sel(descent="algorithm_1")
        return found | {  # what the second size of the data set changes, and what it does not
            "PC-F1p-samples-start": {"excess_shrinks_by": few / many},
            "PC-F1p-samples-rise": {"excess_grows_by": (ends[1].sel(descent="spectral") - 1) / many},
            "PC-F1p-samples-end": {"end_over_end": finish[1] / finish[0]},
        }

    def _figures(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        first, second = ratios(data)
        spectral, ours, left, sgd = (first.sel(descent=name) for name in ("spectral", "algorithm_1", "left", "sgd"))
        early, late = self.position(0, 100), slice(self.position(0, 300), None)
        relative = ours[late].median("seed") / sgd[late].median("seed")
        time, never = (near_at(curve, data.step[0]) for curve in (ours, sgd))
        end, end_2 = ours[-1], second.isel(record=-1)
        return {
            "PC-F1": {"ratio_spectral_start": spectral[0]},
            "PC-F1-stays": {"largest_ratio_spectral": highest(spectral)},
            "PC-F1-sgd-start": {"ratio_sgd_start": sgd[0]},
            "PC-F1-sgd-end": {"smallest_ratio_sgd_end": lowest(sgd[-1])},
            "PC-F2": {"ratio_end": end, "largest_ratio_end": highest(end)},
            "PC-F2-below": {"largest_ratio_to_sgd": relative.max(skipna=False)},
            "PC-F2-time": {"hitting_time": time, "sgd_hits": np.isfinite(never).sum()},
            "PC-F2-early": {"ratio_100": ours[early], "sgd_ratio_100": sgd[early]},
            "PC-F2-left": {"ratio_end": end, "ratio_end_left": left[-1]},
            "PC-F2b": {"largest_ratio_end": highest(end_2.sel(descent="algorithm_1"))},
            "PC-F2b-sgd": {"smallest_ratio_sgd_end": lowest(end_2.sel(descent="sgd"))},
        }

    def _population(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        ours, without, sgd = (data.population[self.position(1, 1000)] / data.best_loss[1]).transpose("trained", "seed")
        return {
            "PC-F11": {"excess_over_best_algorithm_1": ours},
            "PC-F11-sgd": {"diverged_fraction_sgd": 1 - np.isfinite(sgd).mean()},
            "PC-F11-unregularised": {"excess_over_best_unregularised": without},
        }

    def _mechanism(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        median = data.imbalance.median("seed")
        late = {f"from_500_kappa_{kappa:g}": median[p, self.position(p, 500) :].sel(descent="algorithm_1").max()
                for p, kappa in enumerate(self.condition_numbers)}  # fmt: skip
        keys = {step: data.effective_keys[1, self.position(1, step)] for step in (100, 1000)}
        ours, sgd = ({step: at.sel(descent=name) for step, at in keys.items()} for name in ("algorithm_1", "sgd"))
        return {
            "PC-F9": {"largest_imbalance_from_500": xr.concat(late.values(), "problem").max(), **late},
            "PC-F9-sgd": {"smallest_imbalance_sgd_end": median.isel(record=-1).sel(descent="sgd").min()},
            "PC-F10": {"effective_keys_1000": ours[1000], "effective_keys_sgd_1000": sgd[1000]},
            "PC-F10-early": {"effective_keys_100": ours[100], "effective_keys_sgd_100": sgd[100]},
        }


def ratios(data: xr.Dataset) -> xr.DataArray:
    """Return $L/L^*$ along training, of all descents."""
    return 1 + data.excess_loss / data.best_loss


KINDS: tuple[Preconditioner, ...] = ("none", "left", "two")
PENALTIES = (0.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class Ablation(Experiment):
    """$L/L^*$ along training with start, preconditioner and regulariser left out in turn, diverged members infinite.

    Every combination runs at every step size of a grid on the same seeds and is judged at its own best step size.
    """

    id = "preconditioning.ablation"
    summary = "Which part of Algorithm 1 does what: start, preconditioner, regulariser; six problems"
    budget_seconds = 60
    smoke = {
        "n_samples": 200, "batch_size": 10, "weak_steps": 20, "strong_steps": 10, "records": 10, "seeds": (0, 1),
        "chunk": 1,
    }  # fmt: skip
    large = {"strong_conditions": (3.0, 10.0, 30.0, 100.0), "seeds": tuple(range(20)), "chunk": 5}

    dimension: int = 5  # inputs d
    n_outputs: int = 8  # outputs m
    n_samples: int = 1000  # size n of the data set
    batch_size: int = 100  # samples of a minibatch
    records: int = 50  # losses recorded after the first, evenly spaced
    weak_sizes: tuple[tuple[float, tuple[float, ...]], ...] = (  # condition number of a weak signal, step sizes tried
        (3.0, (0.02, 0.05, 0.1, 0.2)),
        (10.0, (0.01, 0.02, 0.05, 0.1)),
    )
    weak_steps: int = 1500  # of training on a weak signal
    strong_conditions: tuple[float, ...] = (30.0,)  # condition numbers of a strong signal
    strong_sizes: tuple[float, ...] = (0.005, 0.01, 0.02, 0.04)  # step sizes tried on a strong signal
    strong_steps: int = 600  # of training on a strong signal
    hard: float = 30.0  # the one that PC-F5 speaks of
    spectral_conditions: tuple[float, ...] = (3.0, 10.0, 30.0)  # of problems trained from the spectral start
    spectral_size: float = 0.01  # step size from the spectral start
    seeds: tuple[int, ...] = (0, 1, 2)
    chunk: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("weak_steps", "strong_steps"):
            if self.records < 1 or getattr(self, name) % self.records:
                raise ValueError(f"records: expected a divisor of {name} {getattr(self, name)}, got {self.records}")
        if self.hard not in self.strong_conditions:
            raise ValueError(f"hard: expected one of strong_conditions {self.strong_conditions}, got {self.hard}")

    def coordinates(self) -> dict[str, Any]:
        """Name problems, variants, steps and step sizes."""
        return {
            "problem": [condition for condition, _ in self.weak_sizes],
            "condition": list(self.strong_conditions),
            "spectral_condition": list(self.spectral_conditions),
            "penalty": list(PENALTIES),
            "kind": list(KINDS),
            "weak_step": ("record", np.linspace(0, self.weak_steps, self.records + 1)),
            "strong_step": ("record", np.linspace(0, self.strong_steps, self.records + 1)),
            "weak_size": (("problem", "size"), np.array([sizes for _, sizes in self.weak_sizes])),
            "strong_size": ("size", list(self.strong_sizes)),
        }

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train all variants at all step sizes on all problems of these seeds."""
        strong_conditions = sorted({*self.strong_conditions, *self.spectral_conditions})
        stages = len(self.weak_sizes) + len(strong_conditions)
        weak, strong, spectral = [], {}, {}
        for number, (condition, sizes) in enumerate(self.weak_sizes):
            problem, inner = self._problem(condition, largest=0.06, noise=0.02), stage(progress, number, stages)
            weak.append(self._curves(problem, _grid(sizes), self.weak_steps, seeds, device, inner))
        for number, condition in enumerate(strong_conditions, len(weak)):
            problem, inner = self._problem(condition, largest=0.4, noise=0.1), stage(progress, number, stages)
            extra = _grid((self.spectral_size,), "spectral") if condition in self.spectral_conditions else []
            variants = extra + _grid(self.strong_sizes if condition in self.strong_conditions else ())
            curves = self._curves(problem, variants, self.strong_steps, seeds, device, inner)
            first = 1 if extra else 0  # one program; the spectral starts come first
            spectral[condition], strong[condition] = curves[:, :first], curves[:, first:]
        axes = ("record", "size", "penalty", "kind", "seed")
        return {
            "weak": (("problem", *axes), np.stack(weak)),
            "strong": (("condition", *axes), np.stack([strong[c] for c in self.strong_conditions])),
            "spectral": (
                ("spectral_condition", "record", "penalty", "kind", "seed"),
                np.stack([spectral[c][:, 0] for c in self.spectral_conditions]),
            ),
        }

    def _problem(self, condition: float, *, largest: float, noise: float) -> Setup:
        sizes = {"dimension": self.dimension, "n_outputs": self.n_outputs, "n_samples": self.n_samples}
        return Setup(**sizes, condition_number=condition, largest=largest, smallest=largest / 2, noise=noise)

    def _curves(
        self,
        problem: Setup,
        variants: list[Variant],
        steps: int,
        seeds: tuple[int, ...],
        device: torch.device,
        progress: Progress | None,
    ) -> np.ndarray:
        training = Training(steps, self.batch_size, tuple(range(0, steps + 1, steps // self.records)))
        found = train_variants(variants, seeds, problem, training, device=device, progress=progress).records
        ratio = loss_ratio(found["excess_loss"], problem.best_loss)
        return ratio.reshape(self.records + 1, -1, len(PENALTIES), len(KINDS), len(seeds))

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Judge each variant at its own best step size."""
        weak = at_best_size(data.weak).isel(record=-1)
        easy, second = weak.isel(problem=0), weak.isel(problem=1)
        hard = at_best_size(data.strong.sel(condition=self.hard)).isel(record=-1) - 1
        times = near_at(data.weak.isel(problem=0), data.weak_step).median("seed").min("size").sel(penalty=1)
        return {
            "PC-F3": {"smallest_ratio_unregularised": best(easy.sel(penalty=[0]))},
            "PC-F3-regularised": {"largest_ratio_regularised": worst(easy.sel(penalty=[1]))},
            "PC-F3-speed": {f"hitting_time_{kind}": times.sel(kind=kind) for kind in KINDS},
            "PC-F4": {"ratio_two_regularised": algorithm_1(second), "smallest_ratio_others": best(others(second))},
            "PC-F5": {
                "excess_over_best_two_regularised": algorithm_1(hard),
                "smallest_excess_over_best_others": best(others(hard)),
            },
            "PC-F6": {"largest_ratio": data.spectral.median("seed").max()},
        }


def _grid(sizes: Iterable[float], start: Start = "random") -> list[Variant]:
    """Return all variants at all step sizes, in the order of the arrays' axes."""
    return [Variant(size, kind, penalty, start) for size in sizes for penalty in PENALTIES for kind in KINDS]
