"""The experiments of the chapter: what samples, keys per batch and steps are worth. Inputs are whitened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnbook.core import runtime
from attnbook.core.experiment import Arrays, Experiment, highest, lowest
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress
from attnbook.preconditioning.attention_output import scalar_bias
from attnbook.preconditioning.data import Setup
from attnbook.preconditioning.law_constants import heavy_tail_exponent, scalar_bias_coefficient
from attnbook.preconditioning.scaling_law import finite_keys, readings, runs
from attnbook.preconditioning.scaling_law.readings import FITTED, slope
from attnbook.preconditioning.scaling_law.three_gradients import Layers, whitened_minimum

KEYS = (32, 128, 512)  # numbers of keys that the claims on loss and gradient name
OUTPUT_KEYS = (50, 200, 800)  # those of the claims on the output of attention
LARGE = 400  # samples from which on the start is held against its leading order
RUN = 100  # samples from which on runs are held against the prediction
FAR = 400  # samples from which on the exact fixed points are fitted
LIGHT, NEAR, HEAVY = (0.1, 0.25), (0.4, 0.5), (0.7, 1.0, 1.5)  # signals that the claims name
BELOW, ABOVE = 0.45, (0.55, 0.75, 1.15, 2.0)  # those that nobody had looked at when the claims on large n were written
BATCHES = (50, 100, 200, 400)  # batch sizes that the claims name


@dataclass(frozen=True, kw_only=True)
class FiniteKeys(Experiment):
    r"""Lemmas 8 to 14, the coefficient of $1/n$ in loss and gradient, Theorem 5.

    Moments are exact: a seed chooses problem and queries. Only Theorem 5 is averaged over draws, of sample covariances.
    """

    id = "preconditioning.finite_keys"
    summary = "Lemmas 8 to 14 and the coefficient of 1/n, with exact expectations over keys"
    budget_seconds = 15
    smoke = {"loss_keys": KEYS, "per_axis": 4, "queries": 5, "penalty_draws": 50, "seeds": (0, 1)}
    large = {"per_axis": 24, "queries": 2000, "penalty_draws": 200_000, "seeds": tuple(range(20))}

    dimension: int = 2  # inputs d
    n_outputs: int = 3  # outputs m
    largest: float = 0.15  # s_1
    smallest: float = 0.08  # s_d
    condition_number: float = 3.0  # of the covariance; enters through the regulariser alone
    perturbation: float = 0.1  # standard deviation of what each entry of the layers is off, away from the optimum
    loss_keys: tuple[int, ...] = (*KEYS, 2048)  # samples n for loss and gradient
    per_axis: int = 12  # quadrature nodes per input for the mean over queries
    weight_keys: int = 30  # keys in Lemmas 8 to 10
    queries: int = 60  # random queries per seed there
    output_keys: tuple[int, ...] = OUTPUT_KEYS  # keys for bias and covariance of the output
    penalty_keys: tuple[int, ...] = (50, 200, 800)  # samples behind the regulariser, increasing
    penalty_draws: int = 20_000  # sample covariances drawn for each
    chunk: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, needed in (("loss_keys", KEYS), ("output_keys", OUTPUT_KEYS)):
            if set(needed) - set(getattr(self, name)):
                raise ValueError(f"{name}: expected {needed} among them, got {getattr(self, name)}")
        runs.check_increasing("penalty_keys", self.penalty_keys)
        if self.penalty_keys[0] < self.dimension:
            raise ValueError(f"penalty_keys: expected at least the dimension {self.dimension}, got {self.penalty_keys}")

    def problem(self) -> Setup:
        """Return the sizes of the problem; noise and samples play no part here."""
        return runs.problem(self, self.condition_number, 0.1)

    def coordinates(self) -> dict[str, Any]:
        """Name keys, powers, strengths of scores, points and terms."""
        return {
            "n": list(self.loss_keys), "output_n": list(self.output_keys), "penalty_n": list(self.penalty_keys),
            "power": list(finite_keys.POWERS), "tilt": list(finite_keys.TILTS), "weight": ["itself", "another"],
            "point": ["at an optimum", "away from it"],
            "term": ["self-interaction", "ratio bias", "attention variance"],
        }  # fmt: skip

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Compare exact expectations over keys with bounds and leading coefficients."""

        def one(seed: int) -> Arrays:
            return {
                **finite_keys.weights(self.dimension, self.weight_keys, self.queries, stream(seed, "weights")),
                **finite_keys.outputs(self.dimension, self.output_keys, stream(seed, "outputs")),
                **finite_keys.losses(
                    self.problem().problem(seed), self.loss_keys, self.penalty_keys, per_axis=self.per_axis,
                    perturbation=self.perturbation, draws=self.penalty_draws, rng=stream(seed, "perturbation"),
                ),
            }  # fmt: skip

        return runs.each(seeds, one, progress)

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off errors, ratios and slopes."""
        gradient, weak, strong = data.gradient_bias.sel(n=list(KEYS)), *finite_keys.TILTS

        def scaled(point: int, *counts: int) -> dict[str, xr.DataArray]:
            values = {f"scaled_bias_{n}": data.loss_bias.isel(point=point).sel(n=n) for n in counts}
            return {**values, "coefficient": data.terms.sum("term").isel(point=point)}

        return {
            "PC-L8": {"largest_error": highest(data.derivative_error)},
            "PC-L9": {"largest_ratio": highest(data.weight_ratio.sel(weight="itself"))},
            "PC-L9-other": {"largest_ratio": highest(data.weight_ratio.sel(weight="another"))},
            "PC-L10": {"largest_ratio": highest(data.variance_ratio)},
            "PC-L11": {"relative_error_200": data.shift_error.sel(tilt=weak, output_n=200)},
            "PC-L14": {"relative_error_200": data.covariance_error.sel(tilt=weak, output_n=200)},
            "PC-L14-slow": {"relative_error_800": data.covariance_error.sel(tilt=strong, output_n=800)},
            "PC-S1": scaled(0, 32, 128),
            "PC-S1-512": scaled(0, 512),
            "PC-S1-perturbed": scaled(1, 512),
            "PC-T4": {"slope": slope(gradient, "n")},
            "PC-T4-constant": {"measured_over_predicted_512": gradient.sel(n=512) * 512**2 / data.gradient_coefficient},
            "PC-T5": {"slope": slope(data.penalty_bias, "penalty_n")},
        }


@dataclass(frozen=True, kw_only=True)
class ScalingLaw(Experiment):
    """One data set: how spectral start and full-batch training improve with samples, and what steps are worth.

    "Excess" is the population loss above its smallest value, in closed form with the true map.
    """

    id = "preconditioning.scaling_law"
    summary = "Theorem 2 on one data set: start, training and steps against the number of samples"
    budget_seconds = 25
    smoke = {
        "n_samples": (50, 400), "start_sets": 3, "trained_sets": (2, 1), "cold_sets": (2, 1), "steps": 2,
        "cold_steps": 3, "strong_samples": 50, "strong_sets": 2, "seeds": (0, 1),
    }  # fmt: skip
    large = {
        "n_samples": (100, 200, 400, 800, 1600, 3200), "start_sets": 400, "trained_sets": (200, 100, 60, 40, 20, 8),
        "cold_sets": (60, 40, 20, 10, 6, 4), "strong_sets": 200, "seeds": tuple(range(10)),
    }  # fmt: skip

    dimension: int = 4  # inputs d
    n_outputs: int = 6  # outputs m
    largest: float = 0.12  # s_1
    smallest: float = 0.08  # s_d
    noise: float = 0.1  # standard deviation
    n_samples: tuple[int, ...] = (100, 200, 400, 800, 1600)  # n, increasing
    start_sets: int = 60  # data sets per seed and n whose spectral start is looked at
    trained_sets: tuple[int, ...] = (20, 12, 8, 4, 2)  # how many of them are trained on from there, for each n
    step_size: float = 4.0  # from the spectral start; with as many steps the runs end at convergence
    steps: int = 16
    cold_sets: tuple[int, ...] = (10, 5, 3, 2, 1)  # how many are trained on from the cold start, for each n
    shrink: float = 0.5  # the cold start is a minimum with both layers shrunk by this factor
    cold_step_size: float = 1.0  # small enough to see the steps
    cold_steps: int = 36
    strong_samples: int = 1000  # n of the problem with a larger signal, that of the figures
    strong_sets: int = 40  # data sets per seed there
    chunk: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("trained_sets", "cold_sets"):
            sets = getattr(self, name)
            if len(sets) != len(self.n_samples) or not 1 <= min(sets) <= max(sets) <= self.start_sets:
                raise ValueError(
                    f"{name}: expected one number of 1 to start_sets {self.start_sets} for each of the "
                    f"{len(self.n_samples)} n_samples, got {sets}"
                )
        runs.check_increasing("n_samples", self.n_samples, LARGE)

    def problem(self) -> Setup:
        """Return the sizes of the problem."""
        return runs.problem(self, 1.0, self.noise)

    def target(self, seed: int) -> Tensor:
        r"""Return $\tilde A$ of a seed: inputs are white, so that it is $A$ itself."""
        return torch.as_tensor(self.problem().problem(seed).true_map)

    def cold_start(self, target: Tensor) -> Layers:
        """Return the balanced minimum with both layers shrunk."""
        value, key_query = whitened_minimum(target)
        return self.shrink * value, self.shrink * key_query

    def coordinates(self) -> dict[str, Any]:
        """Name numbers of samples and steps."""
        return {"n": list(self.n_samples), "step": range(self.steps + 1), "cold_step": range(self.cold_steps + 1)}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Start and train Algorithm 1 on data sets of many sizes."""
        strong = runs.figure_problem(self.strong_samples)

        def one(seed: int) -> Arrays:
            found = [runs.on_data_sets(self, seed, number) for number in range(len(self.n_samples))]
            return runs.stack("n", found) | {"strong": ((), runs.start_excess(strong, seed, self.strong_sets))}

        problems = {"limit": self.problem(), "strong_limit": strong}
        limits = {name: ((), runs.start_limit(problem)) for name, problem in problems.items()}
        return runs.each(seeds, one, progress) | limits

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off slopes, constants and the worth of training."""
        path = readings.pooled_path(data)
        error = abs(data.n * data.start / data.limit - 1).sel(n=slice(LARGE, None))
        predicted = data.strong_limit / self.strong_samples
        return {
            "PC-L5": {"slope_distance": slope(data.distance, "n")},
            "PC-L5-regression": {"slope_regression": slope(data.regression, "n")},
            "PC-L5-excess": {"slope_excess": slope(data.start, "n")},
            "PC-L5-constant": {"largest_relative_error": error.max("n")},
            "PC-L5-larger-signal": {"excess": data.strong, "predicted": predicted},
            "PC-T2b": {"slope": slope(data.path.isel(step=-1), "n")},
            "PC-X1": {"smallest_ratio": path.isel(step=-1).min(), "largest_ratio": path.isel(step=-1).max()},
            "PC-X1-path": {"smallest_on_the_way": path.min()},
        }


@dataclass(frozen=True, kw_only=True)
class GradientOracle(Experiment):
    r"""The bias left by $n$ keys when gradients are averaged over unlimited fresh batches; problem of ScalingLaw.

    Three fixed points: the predicted one minimises $L+\mathcal R+\mathcal B/n$; the exact one is where the expected
    gradient vanishes, by quadrature and in a smaller problem; the measured one is the mean of the last layers of
    Algorithm 1 on gradients averaged over many fresh batches with noisy labels.
    """

    id = "preconditioning.gradient_oracle"
    summary = "Theorem 2 with expected gradients: the bias of the fixed point, predicted and run"
    budget_seconds = 20
    smoke = {
        "measured_samples": (25, 100), "exact_samples": (25, 400, 800), "per_axis": 2, "iterations": 1, "batches": 2,
        "steps": 2, "kept": 1, "cold_steps": 3, "seeds": (0, 1),
    }  # fmt: skip
    large = {
        "measured_samples": (25, 50, 100, 200, 400, 800, 1600), "per_axis": 12, "iterations": 8, "batches": 400,
        "steps": 24, "kept": 16,
    }  # fmt: skip

    predicted_samples: tuple[int, ...] = (400, 1000, 2500, 10_000)  # n for the slope of the prediction
    measured_samples: tuple[int, ...] = (25, 50, 100, 200)  # n of the runs with fresh batches
    batches: int = 100  # averaged in each step
    step_size: float = 6.0  # of these runs
    steps: int = 16  # from an optimum
    kept: int = 8  # last steps whose layers are averaged
    exact_samples: tuple[int, ...] = (25, 50, 100, 400, 1600, 6400)  # n of the exact fixed points
    exact_sizes: tuple[int, int] = (2, 3)  # inputs and outputs of the problem there; quadrature needs few inputs
    per_axis: int = 8  # quadrature nodes per input there
    iterations: int = 4  # towards each exact fixed point
    surface_samples: tuple[int, ...] = (100, 200, 400, 800, 1600)  # n of the runs from the cold start of ScalingLaw
    cold_steps: int = 48
    chunk: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        runs.check_increasing("predicted_samples", self.predicted_samples)
        runs.check_increasing("measured_samples", self.measured_samples, RUN)
        runs.check_increasing("exact_samples", self.exact_samples)
        if sum(n >= FAR for n in self.exact_samples) < 2:
            raise ValueError(f"exact_samples: expected at least two of at least {FAR}, got {self.exact_samples}")
        if not 1 <= self.kept <= self.steps:
            raise ValueError(f"kept: expected 1 to steps {self.steps}, got {self.kept}")

    def coordinates(self) -> dict[str, Any]:
        """Name numbers of samples; the last run from the cold start is on the population loss."""
        return {
            "predicted_n": list(self.predicted_samples), "measured_n": list(self.measured_samples),
            "exact_n": list(self.exact_samples), "surface_n": [*map(float, self.surface_samples), np.inf],
            "cold_step": range(self.cold_steps + 1),
        }  # fmt: skip

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Find the oracle's fixed points, predicted, exact and measured, and follow it from a cold start."""
        problem, small = ScalingLaw(), ScalingLaw(dimension=self.exact_sizes[0], n_outputs=self.exact_sizes[1])

        def one(seed: int) -> Arrays:
            exact = runs.exact_fixed_points(self, small.target(seed))
            return {**runs.with_the_oracle(self, problem, seed), **exact}

        return runs.each(seeds, one, progress)

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off slopes, and how near fixed points and runs come to the prediction."""
        ratio = (data.measured / data.beside).sel(measured_n=slice(RUN, None))
        end = data.exact.isel(exact_n=-1)
        return {
            "PC-T2a": {"slope_predicted": slope(data.predicted, "predicted_n")},
            "PC-T2a-exact": {"slope_exact": slope(data.exact.sel(exact_n=slice(FAR, None)), "exact_n")},
            "PC-T2a-exact-constant": {"exact_over_leading": end * end.exact_n.astype(float) ** 2 / data.exact_limit},
            "PC-T2a-fresh-slope": {
                "slope_measured": slope(data.measured, "measured_n"), "slope_beside": slope(data.beside, "measured_n")
            },
            "PC-T2-path": {"largest_pull": highest(data.pull)},
            "PC-T2a-measured": {
                "smallest_measured_over_predicted": lowest(ratio), "largest_measured_over_predicted": highest(ratio)
            },
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class MinibatchFloor(Experiment):
    """What minibatches do to a spectral start: the loss rises to a floor set by the number of keys per batch."""

    id = "preconditioning.minibatch_floor"
    summary = "What minibatches do to a spectral start, by batch size"
    budget_seconds = 15
    smoke = {"n_samples": 400, "steps": 6, "records": 6, "seeds": (0, 1), "chunk": 1}
    large = {"n_samples": 4000, "batch_sizes": (*BATCHES, 800), "steps": 1500, "seeds": tuple(range(10))}

    n_samples: int = 2000  # size n of the data set; the problem is that of the figures at condition number 10
    batch_sizes: tuple[int, ...] = BATCHES  # keys per batch, increasing
    step_size: float = 0.05
    steps: int = 300
    records: int = 30  # losses recorded after the first, evenly spaced

    def __post_init__(self) -> None:
        super().__post_init__()
        runs.check_increasing("batch_sizes", self.batch_sizes)
        if set(BATCHES) - set(self.batch_sizes):
            raise ValueError(f"batch_sizes: expected {BATCHES} among them, got {self.batch_sizes}")
        if self.records < 3 or self.steps % self.records:
            raise ValueError(f"records: expected a divisor of steps {self.steps}, at least 3, got {self.records}")

    @property
    def record_at(self) -> tuple[int, ...]:
        """Recorded steps."""
        return tuple(range(0, self.steps + 1, self.steps // self.records))

    def coordinates(self) -> dict[str, Any]:
        """Name batch sizes and steps; with decay all but the largest batches are tried."""
        return {"b": list(self.batch_sizes), "decayed_b": list(self.batch_sizes[:-1]), "step": list(self.record_at)}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train from the spectral start with constant, decaying and halved step size."""
        found = runs.from_the_start(self, seeds, device, progress)
        split = len(self.batch_sizes)
        return {
            "constant": (("b", "step", "seed"), np.stack(found[:split])),
            "decayed": (("decayed_b", "step", "seed"), np.stack(found[split:-1])),
            "halved": (("step", "seed"), found[-1]),
        }

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Hold the floors against the start and against smaller steps."""
        floors, ratio = readings.floor(data.constant), readings.decay_ratio(data)
        return {
            "PC-X2": {"smallest_floor": readings.lowest_median(floors, "b"), "initial_excess": readings.initial(data)},
            "PC-X2-batch": {f"floor_{b}": floors.sel(b=b) for b in BATCHES},
            "PC-X2-bias": {
                "smallest_decayed_over_floor": readings.lowest_median(ratio, "b"),
                "halved_over_floor": readings.floor(data.halved) / floors.sel(b=runs.HALVED),
            },
        }


@dataclass(frozen=True, kw_only=True)
class HeavyTails(Experiment):
    r"""How fast $\mathbb EL_n-L^*$ falls at the optimum when the signal is strong, in one dimension, by quadrature.

    Outside the assumptions of the paper's theorem. A simulation at the smallest number of samples checks it; only there
    does a seed enter.
    """

    id = "preconditioning.heavy_tails"
    summary = "The bias of the loss across the heavy-tail threshold, exactly"
    budget_seconds = 15
    smoke = {"signals": tuple(sorted({*LIGHT, *NEAR, *HEAVY, BELOW, *ABOVE})), "last": 12, "draws": 20, "seeds": (0, 1)}
    large = {"last": 40, "per_unit": 20, "draws": 50_000}

    signals: tuple[float, ...] = (  # largest singular values s_1, increasing; the claims name twelve of them
        0.1, 0.2, 0.25, 0.3, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7, 0.75, 0.85, 1.0, 1.15, 1.5, 2.0,
    )  # fmt: skip
    first: int = 7  # smallest number of samples, as a power of two
    last: int = 32  # largest one
    per_unit: int = 5  # queries per unit of x in the sum over queries
    draws: int = 1000  # of a whole batch of keys and one query, for each seed and signal

    def __post_init__(self) -> None:
        super().__post_init__()
        needed = {*LIGHT, *NEAR, *HEAVY, BELOW, *ABOVE}
        if needed - set(self.signals) or list(self.signals) != sorted(set(self.signals)):
            raise ValueError(f"signals: expected increasing numbers, {sorted(needed)} among them, got {self.signals}")
        if not 2 <= self.first <= 7 or self.last < 12:
            raise ValueError(f"first, last: expected 2 to 7, and at least 12, got {self.first} and {self.last}")
        if self.per_unit < 1 or self.draws < 1:
            raise ValueError(f"per_unit, draws: expected at least one, got {self.per_unit} and {self.draws}")

    @property
    def n_samples(self) -> tuple[int, ...]:
        """Every power of two that slopes are fitted to, and every other one beyond."""
        fitted = range(self.first, FITTED[1].bit_length())
        return tuple(2**k for k in (*fitted, *range(fitted.stop + 1, self.last + 1, 2)))

    def coordinates(self) -> dict[str, Any]:
        """Name signals and numbers of samples."""
        return {"signal": list(self.signals), "n": list(map(float, self.n_samples))}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Compute the bias at every signal and number of samples, and simulate it at the smallest number."""
        n, bias, simulated = self.n_samples, [], []
        with runtime.threads(1):
            for number, signal in enumerate(self.signals, 1):
                bias.append(scalar_bias(signal, n, per_unit=self.per_unit))
                simulated.append([runs.simulated_bias(signal, n[0], self.draws, seed) for seed in seeds])
                if progress:
                    progress(number, len(self.signals))
        return {"bias": (("signal", "n"), np.stack(bias)), "simulated": (("signal", "seed"), np.array(simulated))}

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Hold slopes against the random-energy argument; exact, so no seed enters."""
        fitted, far = readings.fitted_slope(data), readings.local_slopes(data).isel(n=-1)
        exponent = xr.DataArray(heavy_tail_exponent(data.signal.values), {"signal": data.signal})
        error, error_far = abs(fitted + exponent), abs(far + exponent)
        near = fitted.sel(signal=list(NEAR))
        scaled = FITTED[1] * data.bias.sel(signal=LIGHT[0], n=FITTED[1])
        return {
            "PC-H1": {"largest_slope_error": error.sel(signal=list(LIGHT)).max()},
            "PC-H1-heavy": {"largest_slope_error": error.sel(signal=list(HEAVY)).max()},
            "PC-H1-transition": {"smallest_slope": near.min(), "largest_slope": near.max()},
            "PC-H1-transition-flat": {"smallest_slope": near.min()},
            "PC-H1-heavy-far": {"largest_slope_error": error_far.sel(signal=list(ABOVE)).max()},
            "PC-H1-transition-far": {"slope_small": fitted.sel(signal=BELOW), "slope_large": far.sel(signal=BELOW)},
            "PC-H1-constant": {
                "scaled_bias": scaled, "coefficient": xr.DataArray(scalar_bias_coefficient(LIGHT[0]))
            },
        }  # fmt: skip
