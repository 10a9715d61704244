"""A fair race: Algorithm 1 against tuned rivals (this book's)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
import xarray as xr

from attnbook.core.experiment import Arrays, Experiment
from attnbook.core.runtime import Progress
from attnbook.preconditioning.curves import NEAR, first_time, stage
from attnbook.preconditioning.data import Setup
from attnbook.preconditioning.population import Preconditioner
from attnbook.preconditioning.training import Optimizer, Training, Variant, train_variants

METHODS: dict[str, tuple[Optimizer, Preconditioner, float, float]] = {  # penalty, and largest step size of the grid
    "algorithm_1": ("sgd", "two", 1.0, 0.4),
    "left": ("sgd", "left", 1.0, 0.4),
    "sgd": ("sgd", "none", 0.0, 0.4),
    "sgd_regularised": ("sgd", "none", 1.0, 0.4),
    "adam": ("adam", "none", 0.0, 0.8),
    "adam_regularised": ("adam", "none", 1.0, 0.8),
    "muon": ("muon", "none", 0.0, 0.4),
    "muon_regularised": ("muon", "none", 1.0, 0.4),
    "shampoo": ("shampoo", "none", 0.0, 6.4),
    "shampoo_regularised": ("shampoo", "none", 1.0, 6.4),
}
SCHEDULES = (False, True)  # whether step sizes fall to zero along a cosine
AIMS = ("lowest", "fastest")


@dataclass(frozen=True, kw_only=True)
class OptimizerRace(Experiment):
    """A fair race: Algorithm 1 against tuned rivals, each with and without the regulariser; $L/L^*$ throughout.

    Every method gets the same effort: as many step sizes, a factor two apart, each constant and along a cosine, tuned
    on seeds of their own. Two configurations of each method then run on fresh seeds: the one with the lowest median
    final loss and the one that is near the optimum first, among those at which no tuning seed diverges.
    """

    id = "preconditioning.optimizer_race"
    summary = "A fair race with tuned SGD, Adam, Muon-like and Shampoo-like updates; two problems"
    budget_seconds = 60
    smoke = {
        "n_samples": 200, "batch_size": 10, "steps": (10, 10), "records": 10, "n_step_sizes": 2, "seeds": (0, 1),
    }  # fmt: skip
    large = {
        "steps": (1500, 600), "tuning_seeds": (100, 101, 102, 103, 104), "seeds": tuple(range(10)), "chunk": 10,
        "full": True,
    }  # fmt: skip

    dimension: int = 5  # inputs d
    n_outputs: int = 8  # outputs m
    n_samples: int = 1000  # size n of the data set
    batch_size: int = 100
    condition_numbers: tuple[float, ...] = (3.0, 10.0)  # of the covariance, an entry for each problem, as below
    largest: tuple[float, ...] = (0.06, 0.4)  # singular value of the map on whitened inputs; the smallest is half of it
    noise: tuple[float, ...] = (0.02, 0.1)  # standard deviation of the label noise
    steps: tuple[int, ...] = (150, 75)
    records: int = 75  # losses recorded after the first, evenly spaced
    n_step_sizes: int = 7  # step sizes tried for each method, a factor two apart
    tuning_seeds: tuple[int, ...] = (100,)  # on which step size and schedule are chosen; each group tunes again
    full: bool = False  # whether the race is long enough for the claims to be read off it

    def __post_init__(self) -> None:
        super().__post_init__()
        check_records(self.records, self.steps)
        if self.n_step_sizes < 1:
            raise ValueError(f"n_step_sizes: expected at least 1, got {self.n_step_sizes}")
        if set(self.seeds) & set(self.tuning_seeds) or not self.tuning_seeds:
            raise ValueError(f"tuning_seeds: expected some, none of the reported {self.seeds}, got {self.tuning_seeds}")

    def coordinates(self) -> dict[str, Any]:
        """Name problems, methods, step sizes and steps."""
        powers = 2.0 ** np.arange(1 - self.n_step_sizes, 1)
        return {
            "kappa": ("problem", list(self.condition_numbers)),
            "racer": list(METHODS),
            "decay": ("schedule", list(SCHEDULES)),
            "aim": list(AIMS),
            "step_size": (("racer", "size"), np.array([largest * powers for *_, largest in METHODS.values()])),
            "step": (("problem", "record"), np.array([np.linspace(0, s, self.records + 1) for s in self.steps])),
        }

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Tune every method on every problem, then race it on these seeds."""
        problems, number = range(len(self.steps)), len(self.steps) * len(METHODS)
        found = [
            self._method(problem, name, seeds, device, stage(progress, at, number))
            for at, (problem, name) in enumerate(product(problems, METHODS))
        ]
        axes = {"curves": ("aim", "record", "seed")}
        return {
            key: (
                ("problem", "racer", *axes.get(key, ("schedule", "size"))),
                np.stack([one[key] for one in found]).reshape(len(problems), len(METHODS), *found[0][key].shape),
            )
            for key in found[0]
        }

    def _method(
        self, problem: int, name: str, seeds: tuple[int, ...], device: torch.device, progress: Progress | None
    ) -> dict[str, np.ndarray]:
        """Medians over the tuning seeds and how many diverged; the curves of both configurations on these seeds."""
        at = self.coordinates()
        sizes, steps = at["step_size"][1][list(METHODS).index(name)], at["step"][1][problem]
        train = partial(self._train, problem, name, device)
        tuning = [train(sizes, decay, self.tuning_seeds, stage(progress, n, 2)) for n, decay in enumerate(SCHEDULES)]
        end, time, lost = (
            np.stack([summary(one) for one in tuning])
            for summary in (
                lambda one: np.median(one[-1], axis=-1),
                lambda one: np.median(first_time(steps, one), axis=-1),
                lambda one: (~np.isfinite(one[-1])).sum(axis=-1),
            )
        )
        chosen = [choose(aim, end, time, lost) for aim in AIMS]
        curves = [train(sizes[size : size + 1], SCHEDULES[schedule], seeds, None)[:, 0] for schedule, size in chosen]
        tuned = {"tuned_end": end, "tuned_time": time, "tuned_lost": lost}
        return {**tuned, "curves": np.stack(curves)}

    def _train(
        self, problem: int, name: str, device: torch.device, sizes: np.ndarray, decay: bool, seeds: tuple[int, ...],
        progress: Progress | None,
    ) -> np.ndarray:  # fmt: skip
        """Ratios ``(records, step_sizes, seeds)``."""
        optimizer, kind, penalty, _ = METHODS[name]
        largest, steps = self.largest[problem], self.steps[problem]
        setup = Setup(self.dimension, self.n_outputs, self.condition_numbers[problem], largest, largest / 2,
                      self.noise[problem], self.n_samples)  # fmt: skip
        training = Training(steps, self.batch_size, tuple(range(0, steps + 1, steps // self.records)), optimizer, decay)
        variants = [Variant(float(size), kind, penalty) for size in sizes]
        records = train_variants(variants, seeds, setup, training, device=device, progress=progress).records
        return 1 + records["excess_loss"].reshape(-1, len(sizes), len(seeds)) / setup.best_loss

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Say who won; a race that is too short says nothing."""
        if not self.full:
            return {}
        ends, times = race_ends(data), race_times(data)
        soon, low = ("adam_regularised", "algorithm_1"), ("muon_regularised", "algorithm_1")
        return {
            "PC-F7": {f"time_{name}_{p + 1}": times[p].sel(racer=name) for name in soon for p in (0, 1)},
            "PC-F8": {f"end_{name}_{p + 1}": ends[p].sel(racer=name) for name in low for p in (0, 1)},
        }


def check_records(records: int, steps: Iterable[int]) -> None:
    """Refuse a number of records that does not divide the steps of every problem."""
    steps = tuple(steps)
    if records < 1 or any(length % records for length in steps):
        raise ValueError(f"records: expected a positive divisor of steps {steps}, got {records}")


def choose(aim: str, end: np.ndarray, time: np.ndarray, lost: np.ndarray) -> tuple[int, int]:
    """Return the positions of schedule and step size that tuning chooses among those that lose the fewest seeds.

    Where none of them comes near the optimum, the lowest is the fastest.
    """
    stable = lost == lost.min()
    scores = [np.where(stable, values, np.inf) for values in (time, end)]
    score = scores[0] if aim == "fastest" and np.isfinite(scores[0]).any() else scores[1]
    schedule, size = np.unravel_index(int(score.argmin()), score.shape)
    return int(schedule), int(size)


def near_at(ratios: xr.DataArray, steps: xr.DataArray) -> xr.DataArray:
    """Return the first recorded step at which $L/L^*$ is near-optimal; infinite where it never is."""
    return steps.where(ratios <= NEAR, np.inf).min("record")


def race_ends(data: xr.Dataset) -> xr.DataArray:
    """Return the final ratios of methods tuned for the lowest one."""
    return data.curves.sel(aim="lowest").isel(record=-1)


def race_times(data: xr.Dataset) -> xr.DataArray:
    """Return the first steps near the optimum of methods tuned for speed."""
    return near_at(data.curves.sel(aim="fastest"), data.step)
