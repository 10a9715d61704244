"""The experiments of the chapter on training data: Figures 1 and 2, and which part of Algorithm 1 does what."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr

from attnbook.core.experiment import Arrays, Experiment, stacked
from attnbook.core.runtime import Progress, share
from attnbook.preconditioning.curves import NEAR
from attnbook.preconditioning.data import Setup
from attnbook.preconditioning.population import Preconditioner
from attnbook.preconditioning.structure_aware_descent.near_minima import Balance, Conditioning, Convergence
from attnbook.preconditioning.structure_aware_descent.race import OptimizerRace, TwoProblems, check_records, near_at
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


@dataclass(frozen=True, kw_only=True)
class StructureAwareDescent(TwoProblems):
    """Figures 1 and 2: Algorithm 1 from two starts, beside gradient descent without structure.

    All variants of a seed see the same data, minibatches and random start, and take steps of the same size, as in the
    paper. Sizes are this book's: the paper's are missing in the text available to us. Losses are infinite from a
    divergence on.
    """

    id = "preconditioning.structure_aware_descent"
    summary = "Figures 1 and 2: Algorithm 1 from two starts, beside gradient descent"
    budget_seconds = 35
    smoke = {"n_samples": 200, "batch_size": 20, "steps": (40, 40), "records": 10, "seeds": (0, 1), "chunk": 1}
    full = {
        "dimension": 10, "n_outputs": 15, "n_samples": (10_000, 100_000), "batch_size": 1000, "chunk": 1,
        "condition_numbers": (3.0, 3.0), "largest": (0.06, 0.06), "noise": (0.02, 0.02), "step_sizes": (0.02, 0.02),
        "steps": (2000, 2000),
    }  # fmt: skip

    step_sizes: tuple[float, ...] = (0.05, 0.02)  # the same for all variants
    steps: tuple[int, ...] = (2000, 1000)  # of training
    records: int = 100  # losses recorded after the first, evenly spaced
    seeds: tuple[int, ...] = tuple(range(10))
    chunk: int = 10

    def coordinates(self) -> dict[str, Any]:
        """Name problems, their best losses, variants and steps."""
        return super().coordinates() | {
            "best_loss": ("problem", [self.setup(problem).best_loss for problem in (0, 1)]),
            "descent": list(DESCENTS),
            "trained": list(POPULATION),
        }

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train all variants on both problems, some on the population loss of the second one, too."""

        def train(names: Iterable[str], problem: int, progress: Progress | None) -> Arrays:
            variants = [Variant(self.step_sizes[problem], *DESCENTS[name]) for name in names]
            exact, setup = names is POPULATION, self.setup(problem)
            training = self.training(problem, population=exact, keys=not exact)
            found = train_variants(variants, seeds, setup, training, device=device, progress=progress).records
            shape = (self.records + 1, len(variants), len(seeds), -1)  # the last of the queries, if any
            return {name: (("record", "descent", "seed"), v.reshape(shape).mean(-1)) for name, v in found.items()}

        found = stacked("problem", (train(DESCENTS, problem, share(progress, problem, 3)) for problem in (0, 1)))
        _, population = train(POPULATION, 1, share(progress, 2, 3))["excess_loss"]
        return found | {"population": (("record", "trained", "seed"), population)}

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off the figures, a value for each problem; the larger run compares two sizes of the data set."""
        ratio = ratios(data)
        spectral, ours, sgd = (ratio.sel(descent=name) for name in ("spectral", "algorithm_1", "sgd"))
        found = {
            "PC-F1": _each(start=spectral.isel(record=0), highest=spectral.max("record")),
            "PC-F1-sgd-start": _each(orders=xr.apply_ufunc(np.log10, sgd.isel(record=0))),
            "PC-F1-sgd-end": _at_the_end(sgd),
            "PC-F2": _at_the_end(ours) | _each(time=near_at(ours, data.step)),
        }
        if isinstance(self.n_samples, int):
            return found | self._mechanism(data)
        # the larger run has ten times the samples in its second problem
        ends, start = ours.isel(record=-1), spectral.isel(record=0) - 1
        times_ten = {"start_shrinks_by": start[0] / start[1], "random_end_over_end": ends[1] / ends[0]}
        return found | {"PC-F1p-samples-start": times_ten}

    def _mechanism(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Why it is slow without the regulariser, on the second problem."""
        early, late = (self.position(1, step) for step in (100, 1000))
        found: dict[str, xr.DataArray] = {}
        for prefix, name in (("", "algorithm_1"), ("sgd_", "sgd")):
            run = data.sel(descent=name).isel(problem=1)
            found |= {f"{prefix}keys_100": run.effective_keys[early], f"{prefix}keys_1000": run.effective_keys[late],
                      f"{prefix}imbalance": run.imbalance[-1]}  # fmt: skip
        exact = data.population[late] / data.best_loss[1]
        ends = {f"excess_{name}": exact.sel(trained=name) for name in ("algorithm_1", "unregularised")}
        lost = 1 - np.isfinite(exact.sel(trained="sgd")).mean()
        return {"PC-F10": found, "PC-F11": ends | {"share_diverged_sgd": lost}}

    def position(self, problem: int, step: int) -> int:
        """Return the position of the first record from a step on; the last one if training is shorter."""
        return min(-(-step * self.records // self.steps[problem]), self.records)


def ratios(data: xr.Dataset) -> xr.DataArray:
    """Return $L/L^*$ along training, of all descents."""
    return 1 + data.excess_loss / data.best_loss


def _each(**values: xr.DataArray) -> dict[str, xr.DataArray]:
    """Name the values of the two problems."""
    return {f"{name}_{problem + 1}": value[problem] for name, value in values.items() for problem in (0, 1)}


def _at_the_end(ratio: xr.DataArray) -> dict[str, xr.DataArray]:
    """Final ratios, and the share of the seeds that end near the optimum."""
    end = ratio.isel(record=-1)
    return _each(end=end, share_near=(end <= NEAR).mean("seed"))


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
    full = {"strong_conditions": (3.0, 10.0, 30.0, 100.0), "seeds": tuple(range(20)), "chunk": 5}

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
    hard: float = 30.0  # the one that the claim on the preconditioner speaks of
    spectral_conditions: tuple[float, ...] = (3.0, 10.0, 30.0)  # of problems trained from the spectral start
    spectral_size: float = 0.01  # step size from the spectral start
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4, 5)
    chunk: int = 6

    def __post_init__(self) -> None:
        super().__post_init__()
        check_records(self.records, (self.weak_steps, self.strong_steps))
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
        weak, strong = (0.06, 0.02, self.weak_steps), (0.4, 0.1, self.strong_steps)
        programs = [
            *(("weak", condition, *weak, _grid(sizes)) for condition, sizes in self.weak_sizes),
            *(("strong", condition, *strong, _grid(self.strong_sizes)) for condition in self.strong_conditions),
            *(("spectral", condition, *strong, _grid((self.spectral_size,), "spectral"))
              for condition in self.spectral_conditions),
        ]  # fmt: skip
        found: dict[str, list[np.ndarray]] = {"weak": [], "strong": [], "spectral": []}
        for number, (name, condition, largest, noise, steps, variants) in enumerate(programs):
            setup = Setup(self.dimension, self.n_outputs, condition, largest, largest / 2, noise, self.n_samples)
            training = Training(steps, self.batch_size, tuple(range(0, steps + 1, steps // self.records)))
            told = share(progress, number, len(programs))
            run = train_variants(variants, seeds, setup, training, device=device, progress=told).records
            ratio = 1 + run["excess_loss"] / setup.best_loss
            found[name].append(ratio.reshape(self.records + 1, -1, len(PENALTIES), len(KINDS), len(seeds)))
        axes = ("record", "size", "penalty", "kind", "seed")
        return {
            "weak": (("problem", *axes), np.stack(found["weak"])),
            "strong": (("condition", *axes), np.stack(found["strong"])),
            "spectral": (("spectral_condition", "record", *axes[2:]), np.stack(found["spectral"])[:, :, 0]),
        }

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Judge each variant at its own best step size."""
        weak = at_best_size(data.weak).isel(record=-1)
        easy, second = (weak.isel(problem=number) for number in (0, 1))
        hard = at_best_size(data.strong.sel(condition=self.hard)).isel(record=-1) - 1
        full, others = {"penalty": 1, "kind": "two"}, (data.penalty != 1) | (data.kind != "two")
        return {
            "PC-F3": {
                "without": _extreme(easy.sel(penalty=[0])),
                "with_it": _extreme(easy.sel(penalty=[1]), worst=True),
            },
            "PC-F4": {
                "weak_full": second.sel(full), "weak_others": _extreme(second.where(others, np.inf)),
                "strong_full": hard.sel(full), "strong_others": _extreme(hard.where(others, np.inf)),
            },
            "PC-F6": {"largest_ratio": data.spectral.median("seed").max()},
        }  # fmt: skip


def at_best_size(curves: xr.DataArray) -> xr.DataArray:
    """Keep each variant's curve at its best step size."""
    return curves.isel(size=best_size(curves))


def best_size(curves: xr.DataArray) -> xr.DataArray:
    """Return the position of the step size with the lowest median final ratio, for each variant."""
    return curves.isel(record=-1).median("seed").argmin("size")


def _extreme(ends: xr.DataArray, *, worst: bool = False) -> xr.DataArray:
    """Return the values over seeds of the variant with the lowest, or the highest, median."""
    flat = ends.stack(variant=("penalty", "kind"))
    medians = flat.median("seed")
    return flat.isel(variant=medians.argmax("variant") if worst else medians.argmin("variant"))


def _grid(sizes: Iterable[float], start: Start = "random") -> list[Variant]:
    """Return all variants at all step sizes, in the order of the arrays' axes."""
    return [Variant(size, kind, penalty, start) for size in sizes for penalty in PENALTIES for kind in KINDS]
