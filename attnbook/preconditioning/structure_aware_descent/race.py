"""A fair race: Algorithm 1 against tuned rivals (this book's)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import xarray as xr

from attnbook.core.experiment import Arrays
from attnbook.core.runtime import Progress
from attnbook.preconditioning.curves import first_time, stage
from attnbook.preconditioning.population import Preconditioner
from attnbook.preconditioning.structure_aware_descent.problems import TwoProblems, near_at, stacked, train
from attnbook.preconditioning.training import Optimizer, Variant

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
        "n_samples": 200, "batch_size": 10, "steps": (10, 10), "records": 10, "n_step_sizes": 2, "seeds": (0, 1),
    }  # fmt: skip
    large = {
        "steps": (1500, 600), "tuning_seeds": (100, 101, 102, 103, 104), "seeds": tuple(range(10)), "chunk": 10,
        "full": True,
    }  # fmt: skip

    steps: tuple[int, ...] = (150, 75)  # of training
    records: int = 75  # losses recorded after the first, evenly spaced
    n_step_sizes: int = 7  # step sizes tried for each method, a factor two apart
    tuning_seeds: tuple[int, ...] = (100,)  # on which step size and schedule are chosen; each group tunes again
    full: bool = False  # whether the race is long enough for the claims to be read off it

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_step_sizes < 1:
            raise ValueError(f"n_step_sizes: expected at least 1, got {self.n_step_sizes}")
        if set(self.seeds) & set(self.tuning_seeds) or not self.tuning_seeds:
            raise ValueError(f"tuning_seeds: expected some, none of the reported {self.seeds}, got {self.tuning_seeds}")

    def coordinates(self) -> dict[str, Any]:
        """Name problems, methods, step sizes and steps."""
        powers = 2.0 ** np.arange(1 - self.n_step_sizes, 1)
        return super().coordinates() | {
            "racer": list(METHODS),
            "decay": ("schedule", list(SCHEDULES)),
            "aim": list(AIMS),
            "step_size": (("racer", "size"), np.array([largest * powers for *_, largest in METHODS.values()])),
        }

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Tune every method on every problem, then race it on these seeds."""

        def on(problem: int, progress: Progress | None) -> Arrays:
            return stacked("racer", METHODS, partial(self._method, problem, seeds, device), progress)

        return stacked("problem", (0, 1), on, progress)

    def _method(
        self, problem: int, seeds: tuple[int, ...], device: torch.device, name: str, progress: Progress | None
    ) -> Arrays:
        """Medians over the tuning seeds and how many diverged; the curves of both configurations on these seeds."""
        at, (optimizer, kind, penalty, _) = self.coordinates(), METHODS[name]
        sizes, steps = at["step_size"][1][list(METHODS).index(name)], at["step"][1][problem]
        setup, length = self.setup(problem), self.steps[problem]

        def run(sizes: np.ndarray, decay: bool, seeds: tuple[int, ...], progress: Progress | None) -> np.ndarray:
            variants = [Variant(float(size), kind, penalty) for size in sizes]
            found = train(variants, seeds, setup, device, progress, steps=length, records=self.records,
                          batch_size=self.batch_size, optimizer=optimizer, decay=decay)  # fmt: skip
            return 1 + found["excess_loss"] / setup.best_loss

        tuning = [run(sizes, decay, self.tuning_seeds, stage(progress, n, 2)) for n, decay in enumerate(SCHEDULES)]
        ratios = np.stack(tuning, axis=1)
        end, lost = np.median(ratios[-1], axis=-1), (~np.isfinite(ratios[-1])).sum(axis=-1)
        time = np.median(first_time(steps, ratios), axis=-1)
        chosen = [choose(aim, end, time, lost) for aim in AIMS]
        curves = [run(sizes[size : size + 1], SCHEDULES[schedule], seeds, None)[:, 0] for schedule, size in chosen]
        tuned = {"tuned_end": end, "tuned_time": time, "tuned_lost": lost}
        axes = ("schedule", "size")
        return {name: (axes, v) for name, v in tuned.items()} | {
            "curves": (("aim", "record", "seed"), np.stack(curves))
        }

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


def choose(aim: str, end: np.ndarray, time: np.ndarray, lost: np.ndarray) -> tuple[int, int]:
    """Return the positions of schedule and step size that tuning chooses among those that lose the fewest seeds.

    Where none of them comes near the optimum, the lowest is the fastest.
    """
    stable = lost == lost.min()
    scores = [np.where(stable, values, np.inf) for values in (time, end)]
    score = scores[0] if aim == "fastest" and np.isfinite(scores[0]).any() else scores[1]
    schedule, size = np.unravel_index(int(score.argmin()), score.shape)
    return int(schedule), int(size)


def race_ends(data: xr.Dataset) -> xr.DataArray:
    """Return the final ratios of methods tuned for the lowest one."""
    return data.curves.sel(aim="lowest").isel(record=-1)


def race_times(data: xr.Dataset) -> xr.DataArray:
    """Return the first steps near the optimum of methods tuned for speed."""
    return near_at(data.curves.sel(aim="fastest"), data.step)
