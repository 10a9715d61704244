"""The experiments of the chapter: what samples, keys per batch and steps are worth. Inputs are whitened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnbook.core import runtime
from attnbook.core.experiment import Arrays, Experiment, highest, lowest, stacked
from attnbook.core.runtime import Progress, share
from attnbook.preconditioning.attention_output import scalar_bias
from attnbook.preconditioning.data import Setup
from attnbook.preconditioning.law_constants import heavy_tail_exponent, spectral_start_constant
from attnbook.preconditioning.scaling_law import finite_keys
from attnbook.preconditioning.scaling_law.descents import COUNTS, exact_fixed_points, on_data_sets, with_the_oracle
from attnbook.preconditioning.training import Training, Variant, train_variants

LARGE = 400  # samples from which on the start and the exact fixed points are held against their leading orders
SIGNALS = (0.1, 0.2, 0.25, 0.3, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7, 0.75, 0.85, 1.0, 1.15, 1.5, 2.0)
BATCHES = (50, 100, 200, 400)  # keys per batch
LIGHT = (0.1, 0.25)  # signals well below the threshold
BELOW, ABOVE = 0.45, (0.55, 0.75, 1.15, 2.0)  # those that nobody had looked at when the rule for large n was written


@dataclass(frozen=True, kw_only=True)
class FiniteKeys(Experiment):
    r"""Lemmas 8 to 23, Theorems 4 and 5, and the coefficient of $1/n$ in loss and gradient.

    Moments are exact: a seed chooses problem and queries. Only Theorem 5 and two variances are averaged over draws.
    """

    id = "preconditioning.finite_keys"
    summary = "Lemmas 8 to 23 and the coefficient of 1/n, with exact expectations over keys"
    needs = "cpu"
    budget_seconds = 20
    smoke = {"per_axis": 4, "queries": 5, "penalty_draws": 50, "variance_draws": 20, "seeds": (0, 1)}

    dimension: int = 2  # inputs d
    n_outputs: int = 3  # outputs m
    largest: float = 0.15  # s_1
    smallest: float = 0.08  # s_d
    condition_number: float = 3.0  # of the covariance; enters through the regulariser alone
    perturbation: float = 0.1  # standard deviation of what each entry of the layers is off, away from the optimum
    per_axis: int = 12  # quadrature nodes per input for the mean over queries
    queries: int = 60  # random queries per seed in Lemmas 8 to 11
    variance_draws: int = 2000  # of all keys, for the variances of Lemmas 19 and 23
    penalty_draws: int = 20_000  # sample covariances drawn for each number of samples
    chunk: int = 1

    def coordinates(self) -> dict[str, Any]:
        """Name keys, powers, weights, statistics and points."""
        return finite_keys.COORDINATES

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Compare exact expectations over keys with bounds and leading coefficients."""
        parts = finite_keys.weights, finite_keys.outputs, finite_keys.losses
        return _each(seeds, lambda seed: {name: found for part in parts for name, found in part(self, seed).items()})

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off ratios to bounds, slopes, and ratios to leading orders."""
        both = ("itself", "another")
        bias, spread = slope(data.squared_bias, "output_n"), slope(data.variance, "output_n")
        scaled = (data.loss_bias / data.coefficient).isel(point=0)
        gradient = data.gradient_bias * data.n.astype(float) ** 2 / data.gradient_coefficient
        away = data.loss_bias.sel(n=512).median("seed") / data.coefficient.median("seed")  # each over its own range
        return {
            "PC-L8": {"largest_error": highest(data.derivative_error)},
            "PC-L9": {name: highest(data.weight_ratio.sel(weight=name)) for name in both},
            "PC-L10": {name: highest(data.variance_ratio.sel(weight=name)) for name in both},
            "PC-L11": {"largest_ratio": highest(data.shift_ratio), "slope": bias.sel(statistic="s")},
            "PC-L14": {"slope": spread.sel(statistic="s")},
            "PC-L15": {"slope": bias.sel(statistic="s s'")},
            "PC-L19": {"slope": spread.sel(statistic="s s'")},
            "PC-L20": {"slope": bias.sel(statistic="keys")},
            "PC-L23": {"slope": spread.sel(statistic="keys")},
            "PC-S1": {
                "loss_128": scaled.sel(n=128), "loss_512": scaled.sel(n=512), "away_512": away.isel(point=1),
                "gradient_512": gradient.isel(point=0).sel(n=512),
                "output_bias_error": data.shift_error.sel(output_n=200),
                "output_covariance_error": data.covariance_error.sel(output_n=200),
            },
            "PC-T4": {
                "slope": slope(data.gradient_bias.isel(point=0).sel(n=slice(512)), "n"),
                "slope_away": slope(data.gradient_bias.isel(point=1).sel(n=slice(128, None)), "n"),
            },
            "PC-T5": {"slope": slope(data.penalty_bias, "penalty_n")},
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ScalingLaw(Experiment):
    """One data set: how spectral start and full-batch training improve with samples, and what steps are worth.

    "Excess" is the population loss above its smallest value, in closed form with the true map.
    """

    id = "preconditioning.scaling_law"
    summary = "One data set: start, training and steps against the number of samples"
    needs = "cpu"
    budget_seconds = 25
    smoke = {"data_sets": ((50, 2, 2), (400, 1, 1)), "start_sets": 3, "steps": 2, "cold_steps": 3, "seeds": (0, 1)}

    dimension: int = 4  # inputs d
    n_outputs: int = 6  # outputs m
    largest: float = 0.12  # s_1
    smallest: float = 0.08  # s_d
    noise: float = 0.1  # standard deviation
    start_sets: int = 60  # data sets per seed and n whose spectral start is looked at
    data_sets: tuple[tuple[int, int, int], ...] = (  # n, increasing; how many sets are trained on; also from cold start
        (100, 20, 10), (200, 12, 5), (400, 8, 3), (800, 4, 2), (1600, 2, 1),
    )  # fmt: skip
    step_size: float = 4.0  # from the spectral start; with as many steps the runs end at convergence
    steps: int = 16
    shrink: float = 0.5  # the cold start is a minimum with both layers shrunk by this factor
    cold_step_size: float = 1.0  # small enough to see the steps
    cold_steps: int = 36
    chunk: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        counts, sets = [n for n, *_ in self.data_sets], [number for _, *row in self.data_sets for number in row]
        if len(counts) < 2 or counts != sorted(set(counts)) or counts[-1] < LARGE:
            raise ValueError(f"data_sets: expected increasing numbers of samples up to {LARGE} or more, got {counts}")
        if not 1 <= min(sets) <= max(sets) <= self.start_sets:
            raise ValueError(f"data_sets: expected 1 to start_sets {self.start_sets} to be trained on, got {sets}")

    def target(self, seed: int) -> Tensor:
        r"""Return $\tilde A$ of a seed: inputs are white, so that it is $A$ itself."""
        sizes = self.dimension, self.n_outputs, 1.0, self.largest, self.smallest
        return torch.from_numpy(Setup(*sizes, self.noise, n_samples=1).problem(seed).true_map)

    def coordinates(self) -> dict[str, Any]:
        """Name numbers of samples and steps."""
        counts = [n for n, *_ in self.data_sets]
        return {"n": counts, "step": range(self.steps + 1), "cold_step": range(self.cold_steps + 1)}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Start and train Algorithm 1 on data sets of many sizes."""
        found = _each(seeds, lambda s: stacked("n", [on_data_sets(self, s, *row) for row in self.data_sets]))
        values = np.linspace(self.largest, self.smallest, self.dimension)
        return found | {"limit": ((), spectral_start_constant(values, self.n_outputs, self.noise))}

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off slopes, constants and the worth of training."""
        path = pooled_path(data)
        error = abs(data.n * data.start / data.limit - 1).sel(n=slice(LARGE, None))
        return {
            "PC-L3": {"near_most": data.near.isel(n=-1), "slope_inverse": slope(data.inverse, "n")},
            "PC-L5": {"slope_distance": slope(data.distance, "n")},
            "PC-L6": {"slope_regression": slope(data.regression, "n")},
            "PC-L5-constant": {"largest_relative_error": error.max("n")},
            "PC-T2b": {
                "slope_start": slope(data.start, "n"), "slope_trained": slope(data.path.isel(step=-1), "n"),
                "smallest_ratio": path.isel(step=-1).min(), "largest_ratio": path.isel(step=-1).max(),
                "smallest_on_the_way": path.min(),
            },
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class GradientOracle(Experiment):
    r"""The bias left by $n$ keys when gradients are averaged over unlimited fresh batches; problem of ScalingLaw.

    Three fixed points: the minimum of the expansion $L+\mathcal R+\mathcal B/n$; the exact one, where the expected
    gradient vanishes, by quadrature and in a smaller problem; the measured one, the mean of the last layers of
    Algorithm 1 on gradients of many fresh batches with noisy labels. The regulariser has the true covariance.
    """

    id = "preconditioning.gradient_oracle"
    summary = "Theorem 2 with expected gradients: the bias of the fixed point, and the way there"
    needs = "cpu"
    budget_seconds = 20
    smoke = {"per_axis": 2, "iterations": 1, "batches": 2, "steps": 2, "kept": 1, "cold_steps": 3, "seeds": (0, 1)}

    batches: int = 100  # averaged in each step
    step_size: float = 6.0  # of these runs
    steps: int = 16  # from an optimum
    kept: int = 8  # last steps whose layers are averaged
    exact_sizes: tuple[int, int] = (2, 3)  # inputs and outputs where fixed points are exact; quadrature needs few
    per_axis: int = 8  # quadrature nodes per input there
    iterations: int = 4  # towards each exact fixed point
    cold_steps: int = 48  # from the cold start of ScalingLaw
    chunk: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.kept <= self.steps:
            raise ValueError(f"kept: expected 1 to steps {self.steps}, got {self.kept}")

    def coordinates(self) -> dict[str, Any]:
        """Name numbers of samples and steps."""
        return COUNTS | {"cold_step": range(self.cold_steps + 1)}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Find the oracle's fixed points, predicted, exact and measured, and follow it from a cold start."""
        problem, small = ScalingLaw(), ScalingLaw(dimension=self.exact_sizes[0], n_outputs=self.exact_sizes[1])
        return _each(seeds, lambda s: with_the_oracle(self, problem, s) | exact_fixed_points(self, small.target(s)))

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off slopes, ratios to the expansion, and how far runs rise above the sum of both terms."""
        problem, far = ScalingLaw(), {"exact_n": slice(LARGE, None)}
        ratio = (data.measured / data.expansion.rename(n="measured_n")).sel(measured_n=slice(100, None))
        population, end = data.surface.isel(surface_n=-1), data.exact.isel(exact_n=-1)
        finite = data.surface.isel(surface_n=slice(-1))
        over_the_sum = finite / (population + finite.isel(cold_step=-1))  # of the population's and its own last value
        rate = np.log(population.isel(cold_step=-1) / population.isel(cold_step=-2))
        return {
            "PC-T2": {
                "largest_over_sum": highest(over_the_sum),
                "rate_over_predicted": rate / (2 * np.log(1 - 2 * problem.cold_step_size * problem.smallest)),
            },
            "PC-T2a": {
                "slope": slope(data.exact.sel(far), "exact_n"),
                "over_leading": end * end.exact_n.astype(float) ** 2 / data.exact_limit,
                "smallest_run_over_expansion": lowest(ratio), "largest_run_over_expansion": highest(ratio),
                "bound_over_truth": data.bound / data.limit,
            },
            "PC-T2-remark": {"slope": slope(data.exact_regularised.sel(far), "exact_n")},
            "PC-T3": {"largest_pull": highest(data.pull)},
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class MinibatchFloor(Experiment):
    """What minibatches do to a spectral start: the loss rises to a floor set by the number of keys per batch."""

    id = "preconditioning.minibatch_floor"
    summary = "What minibatches do to a spectral start, by batch size"
    budget_seconds = 15
    smoke = {"n_samples": 400, "steps": 6, "seeds": (0, 1), "chunk": 1}

    n_samples: int = 2000  # size n of the data set; the problem is that of the figures at condition number 10
    step_size: float = 0.05
    steps: int = 300

    def coordinates(self) -> dict[str, Any]:
        """Name batch sizes and about thirty recorded steps; with decay all but the largest batches are tried."""
        step = range(0, self.steps + 1, max(1, self.steps // 30))
        return {"b": list(BATCHES), "decayed_b": list(BATCHES[:-1]), "step": step}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train from the spectral start with constant and decaying step size."""
        variant = Variant(self.step_size, "two", 1.0, "spectral")
        setup = Setup(5, 8, 10.0, largest=0.4, smallest=0.2, noise=0.1, n_samples=self.n_samples)
        record_at, found = tuple(self.coordinates()["step"]), []
        trainings = [Training(self.steps, size, record_at) for size in BATCHES]
        trainings += [replace(training, decay=True) for training in trainings[:-1]]
        for number, training in enumerate(trainings):
            told = share(progress, number, len(trainings))
            history = train_variants([variant], seeds, setup, training, device=device, progress=told)
            found.append(history.records["excess_loss"])
        axes, split = ("step", "seed"), len(BATCHES)
        return {"constant": (("b", *axes), found[:split]), "decayed": (("decayed_b", *axes), found[split:])}

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Hold the floors against the start and against smaller steps."""
        floors = floor(data.constant)
        decayed = (data.decayed.isel(step=-1).rename(decayed_b="b") / floors).median("seed")
        levels = {f"floor_{b}": floors.sel(b=b) for b in BATCHES}
        start = data.constant.isel(b=0, step=0)
        return {"PC-X2": {"initial_excess": start, **levels, "smallest_decayed_over_floor": decayed.min()}}


@dataclass(frozen=True, kw_only=True)
class HeavyTails(Experiment):
    r"""How fast $\mathbb EL_n-L^*$ falls at the optimum when the signal is strong, in one dimension, by quadrature.

    Outside the assumptions of the paper's theorem. Nothing is drawn, so that seeds change nothing.
    """

    id = "preconditioning.heavy_tails"
    summary = "The bias of the loss across the heavy-tail threshold, exactly"
    needs = "cpu"
    budget_seconds = 15
    smoke = {"last": 14, "per_unit": 1, "seeds": (0, 1)}

    last: int = 32  # largest number of samples, as an even power of two; the smallest is 2^7
    per_unit: int = 5  # queries per unit of x in the sum over queries
    seeds: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.last < 14 or self.last % 2:
            raise ValueError(f"last: expected an even number of at least 14, got {self.last}")

    def coordinates(self) -> dict[str, Any]:
        """Name signals and numbers of samples: every power of two that slopes are fitted to, then every other one."""
        return {"signal": list(SIGNALS), "n": [2.0**k for k in (*range(7, 13), *range(14, self.last + 1, 2))]}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Compute the bias at every signal and number of samples."""
        n = [int(count) for count in self.coordinates()["n"]]
        with runtime.threads(1):
            return {"bias": (("signal", "n"), [scalar_bias(s, n, per_unit=self.per_unit) for s in SIGNALS])}

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Hold slopes against the random-energy argument; exact, so no seed enters."""
        near, far = bias_slopes(data)
        exponent = xr.DataArray(heavy_tail_exponent(data.signal.values), {"signal": data.signal})
        return {
            "PC-H1": {
                "largest_error_light": abs(near + exponent).sel(signal=list(LIGHT)).max(),
                "largest_error_far": abs(far + exponent).sel(signal=list(ABOVE)).max(),
                "slope_near": near.sel(signal=BELOW), "slope_far": far.sel(signal=BELOW),
            }
        }  # fmt: skip


def slope(values: xr.DataArray, along: str) -> xr.DataArray:
    """Return the slope against one dimension, on log axes."""
    logs = values.assign_coords({along: np.log(values[along])})
    return xr.DataArray(np.log(logs)).polyfit(along, 1).polyfit_coefficients.sel(degree=1, drop=True)


def bias_slopes(tails: xr.Dataset) -> tuple[xr.DataArray, xr.DataArray]:
    """Return the slope of the bias at feasible numbers of samples and that between the last two numbers."""
    return slope(tails.bias.sel(n=slice(2**12)), "n"), slope(tails.bias.isel(n=slice(-2, None)), "n")


def pooled_path(data: xr.Dataset) -> xr.DataArray:
    """Return the excess along training over that of the start, both averaged over data sets and seeds."""
    path = data.path.mean("seed")
    return path / path.isel(step=0)


def floor(curves: xr.DataArray) -> xr.DataArray:
    """Return the mean over the last third of the records."""
    return curves.isel(step=slice(-((curves.sizes["step"] - 1) // 3), None)).mean("step")


def _each(seeds: tuple[int, ...], one: Callable[[int], Arrays]) -> Arrays:
    """Return the arrays of all seeds, on one thread of the CPU: matrices are small."""
    with runtime.threads(1):
        return stacked("seed", [one(seed) for seed in seeds])
