"""Near the minima, with the population gradient: conditioning, rates, and what balance costs (this book's)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import xarray as xr

from attnbook.core.experiment import Arrays, Experiment, highest, lowest
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress, threads
from attnbook.preconditioning.curves import first_time, stage
from attnbook.preconditioning.data import Setup, draw_problem
from attnbook.preconditioning.manifold import minimum
from attnbook.preconditioning.metric import POWERS, condition_number, preconditioned_spectrum
from attnbook.preconditioning.population import Preconditioner, square_roots
from attnbook.preconditioning.structure_aware_descent import descents
from attnbook.preconditioning.structure_aware_descent.factorisation import Factorisation
from attnbook.preconditioning.structure_aware_descent.reading import fit, log_slope

COMPARED = 10.0  # condition number at which two programs are compared, and from which slopes are fitted
ACCURACY = 1e-6  # share of the initial excess loss that counts as arrived, in Conditioning
ARRIVED = 1e-10  # excess loss that counts as arrived, in Balance
RATED = 3.0  # scale at which the rate without regulariser is compared with its prediction


@dataclass(frozen=True, kw_only=True)
class Conditioning(Experiment):
    """Both readings of the preconditioner on an ill-conditioned covariance: curvature at the minima, steps needed."""

    id = "preconditioning.conditioning"
    summary = "Both readings of the preconditioner: curvature at the minima and steps against kappa"
    budget_seconds = 15
    smoke = {
        "dimension": 2, "n_outputs": 3, "condition_numbers": (1.0, 10.0, 20.0), "descended": 3, "max_steps": 200,
        "records": 5, "compared": 20, "seeds": (0, 1), "chunk": 1,
    }  # fmt: skip
    large = {"dimension": 10, "n_outputs": 15, "max_steps": 60_000, "seeds": tuple(range(20))}

    dimension: int = 4  # inputs d
    n_outputs: int = 6  # outputs m, more than inputs
    largest: float = 0.3  # singular value of the map on whitened inputs; the smallest is half of it
    condition_numbers: tuple[float, ...] = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0)  # for the Hessians; 10 among them
    descended: int = 5  # how many of them, from the first, are descended on as well
    displacement: float = 0.02  # standard deviation of a start's entries around a minimum, in whitened coordinates
    max_steps: int = 30_000  # where a descent gives up
    records: int = 25  # losses kept per descent, the start included
    compared: int = 200  # steps over which two programs are compared
    compared_displacement: float = 0.3  # as displacement, there

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_outputs <= self.dimension:
            raise ValueError(f"n_outputs: expected more than the dimension, {self.dimension}, got {self.n_outputs}")
        kappas = self.condition_numbers
        if list(kappas) != sorted(set(kappas)) or COMPARED not in kappas or kappas[-1] == COMPARED:
            raise ValueError(f"condition_numbers: expected increasing, 10 among them and not last, got {kappas}")
        if not kappas.index(COMPARED) + 2 <= self.descended <= len(kappas):
            raise ValueError(f"descended: expected to reach beyond 10 and at most {len(kappas)}, got {self.descended}")
        if self.records < 2 or self.max_steps < self.records or self.compared < 1:
            raise ValueError(
                f"records, max_steps, compared: expected at least 2, as many steps as records, and 1; "
                f"got {self.records}, {self.max_steps}, {self.compared}"
            )

    @property
    def recorded(self) -> tuple[int, ...]:
        """Steps at which losses are kept, the start, then evenly spaced on a log axis."""
        spaced = np.geomspace(1, self.max_steps, self.records - 1)
        return (0, *(int(step) for step in np.unique(np.round(spaced))))

    def coordinates(self) -> dict[str, Any]:
        """Name preconditioners, condition numbers and steps."""
        kappas = list(self.condition_numbers)
        return {
            "kind": list(POWERS),
            "kappa": kappas,
            "descended": kappas[: self.descended],
            "step": ("record", list(self.recorded)),
        }

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Compute all Hessians, descend from near the minima, and compare the two programs."""
        with threads(1):
            found = [
                self._kind(kind, seeds, descents.exact(device), stage(progress, number, len(POWERS)))
                for number, kind in enumerate(POWERS)
            ]
        axes = {"spectrum": ("kappa", "eigenvalue"), "condition": ("kappa",), "steps": ("descended",),
                "excess": ("descended", "record"), "difference": ()}  # fmt: skip
        return {name: (("kind", "seed", *dims), np.stack([one[name] for one in found])) for name, dims in axes.items()}

    def _kind(
        self, kind: Preconditioner, seeds: tuple[int, ...], device: torch.device, progress: Progress | None
    ) -> dict[str, np.ndarray]:
        """Everything about one preconditioner; all condition numbers share the axes and the start of a seed."""
        to = partial(to_tensor, device=device, dtype=torch.float64)
        values = np.linspace(self.largest, self.largest / 2, self.dimension)
        draw = partial(draw_problem, self.dimension, self.n_outputs, singular_values=values, noise=0.0)
        kappas = self.condition_numbers
        drawn = [[draw(condition_number=kappa, rng=stream(seed, "problem")) for kappa in kappas] for seed in seeds]
        covariance = to(np.array([[p.covariance for p in row] for row in drawn]))
        whitened_map = to(np.array([[p.true_map for p in row] for row in drawn])) @ square_roots(covariance)[0]
        base = minimum(whitened_map)
        away = to(np.array([stream(seed, "start").standard_normal(base.shape[-2:]) for seed in seeds]))
        spectrum = preconditioned_spectrum(base, whitened_map, covariance=covariance, kind=kind)
        near = base + self.displacement * away.unsqueeze(1)
        runs = []
        for number in range(self.descended):
            maps, sizes = whitened_map[:, number], 1 / spectrum[:, number, -1]
            descent = Factorisation.preconditioned(maps, sizes, covariance[:, number], kind)
            runs.append(descents.arrival(descent, near[:, number], self.max_steps, self.recorded, ACCURACY))
            if progress:
                progress(number + 1, self.descended)
        steps, excess = (np.stack(each, axis=1) for each in zip(*runs, strict=True))
        at = self.condition_numbers.index(COMPARED)
        far, size = base[:, at] + self.compared_displacement * away, 0.5 / float(spectrum[:, at, -1].max())
        difference = descents.trajectory_difference(
            far, whitened_map[:, at], covariance[:, at], kind, size, self.compared
        )
        found = {"spectrum": spectrum.cpu(), "condition": condition_number(spectrum, self.dimension).cpu()}
        return {name: tensor.numpy() for name, tensor in found.items()} | {
            "steps": steps, "excess": excess, "difference": difference
        }  # fmt: skip

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Hold condition numbers and steps against their predictions."""
        two, left, none = (data.condition.sel(kind=kind) for kind in POWERS)
        condition = data.condition.isel(kappa=slice(self.descended)).rename(kappa="descended")
        share = data.steps / predicted_steps(condition)
        steps_two, steps_left = data.steps.sel(kind="two"), data.steps.sel(kind="left")
        return {
            "PC-A7": {"largest_trajectory_difference": highest(data.difference.sel(kind="two"))},
            "PC-A7-metric": {"largest_trajectory_difference": highest(data.difference.sel(kind=["left", "none"]))},
            "PC-C1": {"largest_error": highest(abs(two - 4))},  # 2 s_1 / s_d
            "PC-C1-left": {"slope_left": log_slope(left, "kappa")},
            "PC-C1-none": {"slope_none": log_slope(none.sel(kappa=slice(COMPARED, None)), "kappa")},
            "PC-C1-bound": {
                "largest_share_left": highest(left / (two * data.kappa)),
                "largest_share_none": highest(none / (two * data.kappa**2)),
            },
            "PC-C2": {"largest_iterations_two": highest(steps_two), "smallest_iterations_two": lowest(steps_two)},
            "PC-C2-left": {
                "slope_iterations_left": log_slope(steps_left.sel(descended=slice(COMPARED, None)), "descended")
            },
            "PC-C2-predicted": {"smallest_share": lowest(share), "largest_share": highest(share)},
        }


def predicted_steps(condition: xr.DataArray) -> xr.DataArray:
    r"""Return the steps that the slowest direction needs at step size $1/\lambda_{\max}$.

    Per step the loss in that direction shrinks by $(1-1/c)^2$, $c$ the condition number of the Hessian, so that
    $\log10^{-6}/(2\log(1-1/c))$ steps are needed.
    """
    return np.log(ACCURACY) / (2 * np.log1p(-1 / condition))


@dataclass(frozen=True, kw_only=True)
class Convergence(Experiment):
    """How fast Algorithm 1 is near the minima, and up to which step size; in whitened coordinates."""

    id = "preconditioning.convergence"
    summary = "The rate near the minima, and the largest stable step size"
    budget_seconds = 10
    smoke = {
        "dimension": 2, "outputs": (3, 2), "step_sizes": (0.2, 0.5), "records": 10, "limit_steps": 20, "seeds": (0, 1),
        "chunk": 1,
    }  # fmt: skip
    large = {"dimension": 10, "outputs": (15, 10), "limit_steps": 10_000, "seeds": tuple(range(20))}

    dimension: int = 5  # inputs d
    outputs: tuple[int, ...] = (8, 5)  # numbers of outputs m: one larger than the dimension, and one equal to it
    largest: float = 0.4  # singular value s_1 of the map; the smallest, s_d, is half of it
    displacement: float = 0.1  # standard deviation of a start's entries around a minimum
    step_sizes: tuple[float, ...] = (0.05, 0.2, 0.5)  # of the runs whose rate is fitted
    folds: int = 12  # length of a run, in units of 1 / (step size s_d) steps
    records: int = 60  # losses and distances kept per run after the start; the second half is fitted
    shares: tuple[float, ...] = (0.5, 0.9, 0.99, 1.01, 1.1, 1.3)  # step size times s_1 where the limit 1 is tested
    limit_steps: int = 2000  # their number of steps

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_outputs(self.outputs, self.dimension)
        if not {0.9, 0.99, 1.01, 1.1} <= set(self.shares):
            raise ValueError(f"shares: expected 0.9, 0.99, 1.01 and 1.1 among them, got {self.shares}")
        if not self.step_sizes or not all(0 < size < 1 / self.largest for size in self.step_sizes):
            raise ValueError(f"step_sizes: expected numbers between 0 and 1 / largest, got {self.step_sizes}")
        if self.records < 4 or any(self.steps(size) % self.records for size in self.step_sizes):
            raise ValueError(f"records: expected a divisor of the steps of every run, at least 4, got {self.records}")

    def steps(self, step_size: float) -> int:
        """Return the length of a run."""
        return round(self.folds / (step_size * self.largest / 2))

    def coordinates(self) -> dict[str, Any]:
        """Name numbers of outputs, step sizes and steps; predict the slopes of the log excess, per step."""
        sizes, smallest = np.array(self.step_sizes), self.largest / 2
        after = 2 * smallest + smallest / (self.dimension - 1)  # second smallest curvature for m = d, s_d + s_(d-1)
        recorded = [np.linspace(0, self.steps(size), self.records + 1) for size in self.step_sizes]
        return {
            "outputs": list(self.outputs),
            "step_size": list(self.step_sizes),
            "share": list(self.shares),
            "step": (("step_size", "record"), np.array(recorded)),
            "predicted": (("outputs", "step_size"), 2 * np.log1p([-sizes * smallest, -2 * sizes * smallest])),
            "following": ("step_size", 2 * np.log1p(-sizes * after)),
        }

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Descend from near the minima with several step sizes."""
        values, found = np.linspace(self.largest, self.largest / 2, self.dimension), []
        limits = [share / self.largest for share in self.shares]
        with threads(1):
            for number, outputs in enumerate(self.outputs, 1):
                near = descents.near_minimum(values, outputs, self.displacement, seeds, descents.exact(device))
                steps = [self.steps(size) for size in self.step_sizes]
                kept = [range(0, last + 1, last // self.records) for last in steps]
                runs = [descents.rate(*near, size, at) for size, at in zip(self.step_sizes, kept, strict=True)]
                excess, distance = (np.stack(each) for each in zip(*runs, strict=True))
                found.append((excess, distance, descents.limit(*near, limits, self.limit_steps)))
                if progress:
                    progress(number, len(self.outputs))
        excess, distance, limit = (np.stack(each) for each in zip(*found, strict=True))
        axes = ("outputs", "step_size", "seed", "record")
        return {"excess": (axes, excess), "distance": (axes, distance), "limit": (("outputs", "seed", "share"), limit)}

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Hold fitted slopes against predicted ones, and look on both sides of the limit."""
        slopes, explained = fit(data.excess, data.step)
        error, square = abs(slopes / data.predicted - 1), slopes[{"outputs": 1}]
        far, explained_far = fit(data.distance, data.step)
        ends = {share: data.limit.sel(share=share) for share in (0.9, 0.99, 1.01, 1.1)}
        rates = [
            {"largest_slope_error": highest(error[at]), "smallest_r_squared": lowest(explained[at])}
            for at in ({"outputs": 0}, {"outputs": 1})
        ]
        return {
            "PC-R1": rates[0],
            "PC-R1-square": rates[1],
            "PC-R1-square-next": {
                "smallest_over_slowest": lowest(square / data.predicted[1]),
                "largest_over_next": highest(square / data.following),
            },
            "PC-R1-distance": {
                "largest_slope_error": highest(abs(far / data.predicted - 1)),
                "smallest_r_squared": lowest(explained_far),
            },
            "PC-R2": {
                "largest_excess_below": highest(ends[0.9]),
                "diverged_fraction_above": np.isinf(ends[1.1]).mean(),
            },
            "PC-R2-divergence": {
                "largest_excess_below": highest(ends[0.99]),
                "smallest_excess_above": lowest(ends[1.01]),
            },
        }


@dataclass(frozen=True, kw_only=True)
class Balance(Experiment):
    """What balance costs and what it saves: descents from unbalanced minima, with and without the regulariser."""

    id = "preconditioning.balance"
    summary = "What balance costs and saves, and the level that a regulariser from data leaves"
    budget_seconds = 15
    smoke = {
        "dimension": 2, "outputs": (3, 2), "steps": 40, "records": 5, "n_samples": (20, 40), "noisy_steps": 20,
        "seeds": (0, 1), "chunk": 1,
    }  # fmt: skip
    large = {"dimension": 10, "outputs": (15, 10), "steps": 20_000, "seeds": tuple(range(20))}

    dimension: int = 5  # inputs d
    outputs: tuple[int, ...] = (8, 5)  # numbers of outputs m: one larger than the dimension, and one equal to it
    largest: float = 0.4  # singular value s_1 of the map; the smallest, s_d, is half of it
    displacement: float = 0.02  # standard deviation of a start's entries around a minimum, before layers are scaled
    scalings: tuple[float, ...] = (0.1, 1 / 3, 1.0, 3.0, 10.0, 30.0)  # c: the value layer times c, the other over c
    steps: int = 5000  # of size 1 / (2 s_1 (c^2 + 1 / c^2))
    records: int = 31  # losses and imbalances kept, the start and then evenly spaced on a log axis
    n_samples: tuple[int, ...] = (100, 200, 400, 800, 1600)  # of the data that the regulariser is built from
    noisy_steps: int = 150  # steps there, of size 1 / (2 s_1)
    condition_number: float = 10.0  # of the covariance there and for the spectral start
    noise: float = 0.1  # standard deviation of the label noise, for the spectral start
    seeds: tuple[int, ...] = tuple(range(10))
    chunk: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_outputs(self.outputs, self.dimension)
        if not {0.1, 1 / 3, 1.0, 3.0, 10.0, 30.0} <= set(self.scalings):
            raise ValueError(f"scalings: expected 1/10, 1/3, 1, 3, 10 and 30 among them, got {self.scalings}")
        if not 3 <= self.records <= self.steps:
            raise ValueError(f"records: expected at least 3 and at most steps, {self.steps}, got {self.records}")
        if len(self.n_samples) < 2 or min(self.n_samples) < self.dimension:
            raise ValueError(f"n_samples: expected several, each at least {self.dimension}, got {self.n_samples}")

    @property
    def recorded(self) -> list[int]:
        """Recorded steps."""
        return [0, *np.unique(np.geomspace(1, self.steps, self.records - 1).round().astype(int)).tolist()]

    @property
    def step_sizes(self) -> np.ndarray:
        """The step size of each scale, half of one over the largest curvature of the loss at the start."""
        squares = np.array(self.scalings) ** 2
        return 0.5 / (self.largest * (squares + 1 / squares))

    def coordinates(self) -> dict[str, Any]:
        """Name numbers of outputs, weights of the regulariser, scales and steps."""
        return {
            "outputs": list(self.outputs),
            "penalty": [0.0, 1.0],
            "scale": list(self.scalings),
            "step": ("record", self.recorded),
            "n_samples": list(self.n_samples),
            "residual": ["product", "balance"],
        }

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Descend from unbalanced minima, and with a regulariser from data; check the spectral start."""
        rated = range(self.steps // 2, self.steps + 1)
        found: dict[str, list[np.ndarray]] = {"iterations": [], "excess": [], "imbalance": []}
        values = np.linspace(self.largest, self.largest / 2, self.dimension)
        with threads(1):
            for number, outputs in enumerate(self.outputs, 1):
                near = descents.near_minimum(values, outputs, self.displacement, seeds, descents.exact(device))
                losses, unequal = descents.unbalanced(*near, self.scalings, self.step_sizes, self.recorded)
                times = first_time(np.arange(len(losses)), losses, ARRIVED)
                for name, each in zip(found, (times, losses[self.recorded], unequal), strict=True):
                    found[name].append(each)
                if number == 1:
                    rates = np.log(losses[rated.start :, :, 0, self.scalings.index(RATED)])
                if progress:
                    progress(number, 3)
            setups = [
                Setup(self.dimension, self.outputs[0], self.condition_number, self.largest, self.largest / 2,
                      self.noise, n)
                for n in self.n_samples
            ]  # fmt: skip
            noisy = descents.noisy_balance(setups, seeds, 0.5 / self.largest, self.noisy_steps)
        axes, levels = ("seed", "penalty", "scale"), ("seed", "n_samples")
        return {
            "iterations": (("outputs", *axes), np.stack(found["iterations"])),
            "excess": (("outputs", "record", *axes), np.stack(found["excess"])),
            "imbalance": (("outputs", "record", *axes), np.stack(found["imbalance"])),
            "spare_slopes": (("seed",), np.nan_to_num(np.polyfit(np.array(rated), rates, 1)[0], nan=np.inf)),
            "noisy": (levels, noisy[0]),
            "closed_form": (levels, noisy[1]),
            "start_residuals": (("seed", "residual"), noisy[2]),
        }

    @property
    def spare_slope(self) -> float:
        """The predicted slope of the log excess for outputs to spare, 2 log(1 - step size s_d / c^2), at c = 3."""
        flattest = self.largest / 2 / RATED**2
        return float(2 * np.log1p(-self.step_sizes[self.scalings.index(RATED)] * flattest))

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off balance and steps, without and with the regulariser."""
        kept = data.imbalance.sel(penalty=0, scale=[3, 10, 30])
        change = abs(kept / kept.isel(record=0) - 1)
        spare = _iterations(data.iterations[0], {3: 3.0, 10: 10.0})
        residual = data.start_residuals
        return {
            "PC-A10": {
                f"largest_{name}_residual": highest(residual.sel(residual=name)) for name in ("product", "balance")
            },
            "PC-C3": {"largest_imbalance": highest(data.imbalance.isel(record=-1).sel(penalty=1, scale=[1, 3]))},
            "PC-C3-conserved": {"largest_relative_change": highest(change)},
            "PC-C3-noise": {"slope": log_slope(data.noisy, "n_samples")},
            "PC-C3-noise-level": {"largest_relative_error": highest(abs(data.noisy / data.closed_form - 1))},
            "PC-C4": spare,
            "PC-C4-square": _iterations(data.iterations[1], {3: 3.0, 10: 10.0}),
            "PC-C4-keys": _iterations(data.iterations[0], {3: 1 / 3, 10: 0.1}),
            "PC-C4-spare": spare,
            "PC-C4-rate": {"largest_slope_error": highest(abs(data.spare_slopes / self.spare_slope - 1))},
        }


def _iterations(iterations: xr.DataArray, scales: dict[int, float]) -> dict[str, xr.DataArray]:
    """Steps without and with the regulariser, by name of the scale."""
    names = {"iterations_unregularised": 0, "iterations_regularised": 1}
    return {f"{name}_{number}": iterations.sel(penalty=penalty, scale=scale)
            for name, penalty in names.items() for number, scale in scales.items()}  # fmt: skip


def _check_outputs(outputs: tuple[int, ...], dimension: int) -> None:
    if len(outputs) != 2 or not outputs[0] > outputs[1] == dimension:
        raise ValueError(f"outputs: expected a larger number and the dimension, {dimension}, got {outputs}")
