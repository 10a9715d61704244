r"""Near the minima, with the population gradient: conditioning, rates, and what balance costs.

In whitened coordinates the loss is a factorisation of $\tilde A$, and a preconditioner is a metric: see
:mod:`~attnbook.preconditioning.metric`. All in float64 on the CPU, for many problems and metrics at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from attnbook.core.experiment import Arrays, Experiment, highest, lowest, stacked
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress, threads
from attnbook.preconditioning.curves import first_time
from attnbook.preconditioning.data import Problem, draw_problem
from attnbook.preconditioning.landscape import regularised_loss
from attnbook.preconditioning.manifold import Point, minimum, nearest, split, stack, unstack
from attnbook.preconditioning.metric import POWERS, condition_number, metric, preconditioned_spectrum
from attnbook.preconditioning.optimizer import StructureAwareGD
from attnbook.preconditioning.population import Preconditioner, excess_loss, imbalance, square_roots

COMPARED = 10.0  # condition number at which two programs are compared, and from which slopes are fitted
ACCURACY = 1e-6  # share of the initial excess loss that counts as arrived, in Conditioning
ARRIVED = 1e-10  # excess loss that counts as arrived, in Balance


@dataclass(frozen=True)
class Factorisation:
    r"""Descent $Z\leftarrow Z-\eta\,\Lambda\,\nabla\,\Sigma'$ on the excess loss plus a multiple of the regulariser."""

    whitened_map: Tensor  # (..., m, d)
    step_size: Tensor  # with the batch axes of the map or fewer
    penalty: Tensor  # weight of the regulariser, likewise
    metric: tuple[Tensor, Tensor] | None = None  # Lambda, (..., m + d, m + d), and Sigma', (..., d, d); or identities

    def step(self, point: Point) -> tuple[Float[Tensor, "*batch"], Point]:
        """Return the excess loss (without the regulariser) before a step, and the point after it."""
        value, key_query = split(point)
        error = value @ key_query.mT - self.whitened_map
        balance = 0.5 * self.penalty[..., None, None] * (value.mT @ value - key_query.mT @ key_query)
        slope = torch.cat([error @ key_query + value @ balance, error.mT @ value - key_query @ balance], dim=-2)
        if self.metric is not None:
            slope = self.metric[0] @ slope @ self.metric[1]
        return error.square().sum((-2, -1)) / 2, point - self.step_size[..., None, None] * slope

    @torch.no_grad()
    def descend(
        self, start: Point, max_steps: int, *, keep: Sequence[int] = (), until: Float[Tensor, "*#batch"] | None = None
    ) -> tuple[Float[Tensor, " times *batch"], list[Point]]:
        """Return the excess loss at every step, all problems together, and the points at the increasing steps to keep.

        Divergence is a result, not an error: losses are infinite from there on. Stop once every excess loss has been at
        or below its threshold, each at some step.
        """
        point, losses, points, wanted = start, [], [], set(keep)
        below = torch.zeros(start.shape[:-2], dtype=torch.bool, device=start.device)
        for number in range(max_steps + 1):
            if number in wanted:
                points.append(point)
            excess, point = self.step(point)
            losses.append(excess)
            if until is not None:
                below |= excess <= until
                if bool(below.all()):
                    break
        return torch.stack(losses).nan_to_num(nan=torch.inf, posinf=torch.inf), points


@dataclass(frozen=True, kw_only=True)
class Conditioning(Experiment):
    """Both readings of the preconditioner on an ill-conditioned covariance: curvature at the minima, steps needed."""

    id = "preconditioning.conditioning"
    summary = "Both readings of the preconditioner: curvature at the minima and steps against kappa"
    needs = "cpu"
    budget_seconds = 15
    smoke = {
        "dimension": 2, "n_outputs": 3, "condition_numbers": (1.0, 10.0, 20.0), "max_steps": 200, "compared": 20,
        "seeds": (0, 1), "chunk": 1,
    }  # fmt: skip

    dimension: int = 4  # inputs d
    n_outputs: int = 6  # outputs m, more than inputs
    largest: float = 0.3  # singular value of the map on whitened inputs; the smallest is half of it
    condition_numbers: tuple[float, ...] = (1.0, 3.0, 10.0, 30.0, 100.0)  # of the covariance, 10 among them
    displacement: float = 0.02  # standard deviation of a start's entries around a minimum, in whitened coordinates
    max_steps: int = 30_000  # where a descent gives up
    compared: int = 200  # steps over which two programs are compared
    compared_displacement: float = 0.3  # as displacement, there

    def __post_init__(self) -> None:
        super().__post_init__()
        kappas = self.condition_numbers
        if self.n_outputs <= self.dimension:
            raise ValueError(f"n_outputs: expected more than the dimension, {self.dimension}, got {self.n_outputs}")
        if list(kappas) != sorted(set(kappas)) or COMPARED not in kappas[:-1]:
            raise ValueError(f"condition_numbers: expected increasing, 10 among them and not last, got {kappas}")

    def coordinates(self) -> dict[str, Any]:
        """Name preconditioners and condition numbers."""
        return {"kind": list(POWERS), "kappa": list(self.condition_numbers)}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Compute all Hessians, descend from near the minima, and compare the two programs."""
        with threads(1):
            return stacked("kind", (self._kind(kind, seeds) for kind in POWERS))

    def _kind(self, kind: Preconditioner, seeds: tuple[int, ...]) -> Arrays:
        """Everything about one preconditioner; all condition numbers share the axes and the start of a seed."""
        kappas = self.condition_numbers
        drawn = [[_problem(self, self.n_outputs, stream(seed, "problem"), kappa) for kappa in kappas] for seed in seeds]
        covariance = torch.from_numpy(np.array([[p.covariance for p in row] for row in drawn]))
        true_map = torch.from_numpy(np.array([[p.true_map for p in row] for row in drawn]))
        whitened_map = true_map @ square_roots(covariance)[0]
        base = minimum(whitened_map)
        away = torch.from_numpy(np.array([stream(seed, "start").standard_normal(base.shape[-2:]) for seed in seeds]))
        spectrum = preconditioned_spectrum(base, whitened_map, covariance=covariance, kind=kind)
        (before, after), steps = metric(covariance, self.n_outputs, kind), []
        for at in range(len(kappas)):
            start, size = base[:, at] + self.displacement * away, 1 / spectrum[:, at, -1]
            descent = Factorisation(whitened_map[:, at], size, torch.ones_like(size), (before[:, at], after[:, at]))
            initial, _ = descent.step(start)
            shares = descent.descend(start, self.max_steps, until=ACCURACY * initial)[0] / initial
            steps.append(first_time(np.arange(len(shares)), shares.numpy(), ACCURACY))
        at = kappas.index(COMPARED)
        far, half = base[:, at] + self.compared_displacement * away, 0.5 / float(spectrum[:, at, -1].max())
        difference = trajectory_difference(far, whitened_map[:, at], covariance[:, at], kind, half, self.compared)
        return {
            "condition": (("seed", "kappa"), condition_number(spectrum, self.dimension).numpy()),
            "steps": (("seed", "kappa"), np.stack(steps, axis=1)),
            "difference": (("seed",), difference),
        }

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Compare the two programs, and see how steps and condition numbers grow."""
        steps, far = data.steps.sel(kind="two"), slice(COMPARED, None)
        left, none = data.steps.sel(kind="left", kappa=far), data.condition.sel(kind="none", kappa=far)
        return {
            "PC-A7": {
                "difference_two": highest(data.difference.sel(kind="two")),
                "difference_others": highest(data.difference.sel(kind=["left", "none"])),
            },
            "PC-C2": {
                "most_steps_two": highest(steps),
                "fewest_steps_two": lowest(steps),
                "steps_slope_left": log_line(left, np.log(left.kappa), "kappa")[0],
                "condition_slope_none": log_line(none, np.log(none.kappa), "kappa")[0],
            },
        }


def trajectory_difference(
    start: Tensor, whitened_map: Tensor, covariance: Tensor, kind: Preconditioner, step_size: float, steps: int
) -> np.ndarray:
    """Return the largest difference along a run between the optimiser and descent in whitened coordinates.

    The optimiser takes automatic gradients in the original coordinates; infinite if one of the two diverges.
    """
    point, sizes = start, start.new_full(start.shape[:1], step_size)
    factors = metric(covariance, whitened_map.shape[-2], kind)
    descent = Factorisation(whitened_map, sizes, torch.ones_like(sizes), factors)
    value, key_query = (layer.clone().requires_grad_() for layer in unstack(start, covariance=covariance))
    true_map = whitened_map @ square_roots(covariance)[1]
    optimizer = StructureAwareGD(value, key_query, covariance=covariance, step_size=step_size, preconditioner=kind)
    largest = torch.zeros_like(sizes)
    for _ in range(steps + 1):
        at = stack(value.detach(), key_query.detach(), covariance=covariance)
        largest = torch.maximum(largest, (at - point).abs().amax((-2, -1)))
        optimizer.zero_grad()
        excess_loss(value, key_query, covariance=covariance, true_map=true_map).sum().backward()
        optimizer.step()
        _, point = descent.step(point)
    return largest.nan_to_num(nan=torch.inf).numpy()


@dataclass(frozen=True, kw_only=True)
class NearMinima(Experiment):
    """Descents in whitened coordinates that start around a minimum, with outputs to spare and without."""

    dimension: int = 5  # inputs d
    outputs: tuple[int, ...] = (8, 5)  # numbers of outputs m: one larger than the dimension, and one equal to it
    largest: float = 0.4  # singular value s_1 of the map; the smallest, s_d, is half of it
    displacement: float  # standard deviation of a start's entries around a minimum

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.outputs) != 2 or not self.outputs[0] > self.outputs[1] == self.dimension:
            raise ValueError(f"outputs: expected a larger one and the dimension, {self.dimension}, got {self.outputs}")

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Descend from near the minima, for both numbers of outputs."""
        with threads(1):
            return stacked("outputs", (self._near(outputs, seeds) for outputs in self.outputs))

    def _near(self, outputs: int, seeds: tuple[int, ...]) -> Arrays:
        """Start around one of the minima of each problem, a seed each."""
        drawn = [_problem(self, outputs, stream(seed, "problem", outputs), 1.0) for seed in seeds]
        whitened_map = torch.from_numpy(np.array([problem.true_map for problem in drawn]))
        base = minimum(whitened_map)
        away = np.array([stream(seed, "start", outputs).standard_normal(base.shape[1:]) for seed in seeds])
        return self.descend(whitened_map, base + self.displacement * torch.from_numpy(away))

    def descend(self, whitened_map: Tensor, start: Tensor) -> Arrays:
        """Descend from these starts, one for each seed and map; each experiment says how."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Convergence(NearMinima):
    """How fast Algorithm 1 is near the minima, and up to which step size; in whitened coordinates."""

    id = "preconditioning.convergence"
    summary = "The rate near the minima, and the largest stable step size"
    needs = "cpu"
    budget_seconds = 10
    smoke = {
        "dimension": 2, "outputs": (3, 2), "step_sizes": (0.2, 0.5), "records": 10, "limit_steps": 20, "seeds": (0, 1),
        "chunk": 1,
    }  # fmt: skip

    displacement: float = 0.1  # standard deviation of a start's entries around a minimum
    step_sizes: tuple[float, ...] = (0.05, 0.2, 0.5)  # of the runs whose rate is fitted
    folds: int = 12  # length of a run, in units of 1 / (step size s_d) steps
    records: int = 60  # losses and distances kept per run after the start; the second half is fitted
    shares: tuple[float, ...] = (0.5, 0.9, 0.99, 1.01, 1.1, 1.3)  # step size times s_1 where the limit 1 is tested
    limit_steps: int = 2000  # their number of steps

    def __post_init__(self) -> None:
        super().__post_init__()
        if not min(self.shares) < 1 < max(self.shares):
            raise ValueError(f"shares: expected numbers on both sides of 1, got {self.shares}")
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

    def descend(self, whitened_map: Tensor, start: Tensor) -> Arrays:
        """Descend with several step sizes, each alone, then on both sides of the limit."""
        found = stacked("step_size", (self._run(whitened_map, start, size) for size in self.step_sizes))
        sizes = start.new_tensor(self.shares) / self.largest
        descent = Factorisation(whitened_map.unsqueeze(1), sizes, torch.ones_like(sizes))
        ends = descent.descend(start.unsqueeze(1).expand(-1, len(sizes), -1, -1), self.limit_steps)[0][-1]
        return found | {"limit": (("seed", "share"), ends.numpy())}

    def _run(self, whitened_map: Tensor, start: Tensor, step_size: float) -> Arrays:
        """Excess without and with the regulariser, and squared distances to the nearest minimum, per seed."""
        one, steps = whitened_map.new_ones(len(start)), self.steps(step_size)
        kept = range(0, steps + 1, steps // self.records)
        losses, points = Factorisation(whitened_map, step_size * one, one).descend(start, steps, keep=kept)
        path = torch.stack(points)
        finite = path.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)
        away = path - nearest(torch.where(finite, path, minimum(whitened_map)), whitened_map)
        regularised, distance = regularised_loss(path, whitened_map), away.square().sum((-2, -1))
        curves = {"excess": losses[list(kept)], "regularised": regularised, "distance": distance}
        return {name: (("seed", "record"), curve.nan_to_num(nan=torch.inf).T.numpy()) for name, curve in curves.items()}

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Fit lines to the logarithms, compare slopes with the predicted ones, and look on both sides of the limit."""
        late = data.isel(record=slice(data.sizes["record"] // 2, None))
        curves = late.excess, late.distance, late.regularised
        (loss, loss_fit), (far, far_fit), (whole, whole_fit) = (log_line(one, late.step, "record") for one in curves)
        square = loss.isel(outputs=1)
        return {
            "PC-R1": {
                "r_squared_loss": lowest(loss_fit),
                "r_squared_distance": lowest(far_fit),
                "largest_slope": highest(loss.where(loss > far, far)),
            },
            "PC-REM2": {"r_squared": lowest(whole_fit), "largest_slope": highest(whole)},
            "PC-R1-square": {
                "slope_error": highest(abs(loss / data.predicted - 1).isel(outputs=0)),
                "over_slowest": lowest(square / data.predicted.isel(outputs=1)),
                "over_next": highest(square / data.following),
            },
            "PC-R2": {
                "excess_below": highest(data.limit[..., data.share < 1]),
                "excess_above": lowest(data.limit[..., data.share > 1]),
            },
        }


@dataclass(frozen=True, kw_only=True)
class Balance(NearMinima):
    """What balance costs and what it saves: descents from unbalanced minima, with and without the regulariser."""

    id = "preconditioning.balance"
    summary = "What balance costs and saves: descents from unbalanced minima, with and without the regulariser"
    needs = "cpu"
    budget_seconds = 15
    smoke = {"dimension": 2, "outputs": (3, 2), "steps": 40, "records": 5, "seeds": (0, 1), "chunk": 1}

    displacement: float = 0.02  # standard deviation of a start's entries around a minimum, before layers are scaled
    scalings: tuple[float, ...] = (0.1, 1 / 3, 1.0, 3.0, 10.0, 30.0)  # c: the value layer times c, the other over c
    steps: int = 5000  # of size 1 / (2 s_1 (c^2 + 1 / c^2))
    records: int = 31  # losses kept, the start and then evenly spaced on a log axis
    seeds: tuple[int, ...] = tuple(range(10))
    chunk: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if not {1 / 3, 1.0, 3.0} <= set(self.scalings):
            raise ValueError(f"scalings: expected 1/3, 1 and 3 among them, got {self.scalings}")
        if not 3 <= self.records <= self.steps:
            raise ValueError(f"records: expected at least 3 and at most steps, {self.steps}, got {self.records}")

    def coordinates(self) -> dict[str, Any]:
        """Name numbers of outputs, weights of the regulariser, scales and steps."""
        later = np.unique(np.geomspace(1, self.steps, self.records - 1).round().astype(int))
        return {
            "outputs": list(self.outputs),
            "penalty": [0.0, 1.0],
            "scale": list(self.scalings),
            "step": ("record", [0, *later.tolist()]),
        }

    def descend(self, whitened_map: Tensor, start: Tensor) -> Arrays:
        """Descend from unbalanced minima, without and with the regulariser, all together."""
        value, key_query = split(start[:, None, None])
        factors, squares = start.new_tensor(self.scalings)[:, None, None], np.square(self.scalings)
        scaled = torch.cat([value * factors, key_query / factors], dim=-2).expand(-1, 2, -1, -1, -1)
        # half of one over the largest curvature
        sizes = torch.from_numpy(0.5 / (self.largest * (squares + 1 / squares)))
        descent = Factorisation(whitened_map[:, None, None], sizes, sizes.new_tensor([[0.0], [1.0]]))
        losses, (end,) = descent.descend(scaled, self.steps, keep=(self.steps,))
        outer, inner = split(end)
        unequal = imbalance(outer, inner.mT, covariance=start.new_ones(self.dimension).diag()).nan_to_num(nan=torch.inf)
        excess, axes = losses.numpy(), ("seed", "penalty", "scale")
        return {
            "iterations": (axes, first_time(np.arange(len(excess)), excess, ARRIVED)),
            "excess": (("record", *axes), excess[self.coordinates()["step"][1]]),
            "imbalance": (axes, unequal.numpy()),
        }

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off balance at the end, and the factor by which the regulariser changes the number of steps."""
        without, with_it = (data.iterations.sel(penalty=penalty) for penalty in (0, 1))
        mild = {"penalty": 1, "scale": [1, 3]}
        return {
            "PC-C3": {
                "largest_imbalance": highest(data.imbalance.sel(mild)),
                "largest_excess": highest(data.excess.isel(record=-1).sel(mild)),
                "smallest_imbalance_without": lowest(data.imbalance.sel(penalty=0, scale=3)),
            },
            "PC-C4": {
                "square_costs": _factor(with_it[1], without[1], 3.0),
                "large_keys_cost": _factor(with_it[0], without[0], 1 / 3),
                "large_values_save": _factor(without[0], with_it[0], 3.0),
            },
        }


def _problem(sizes: Conditioning | NearMinima, outputs: int, rng: np.random.Generator, condition: float) -> Problem:
    """Draw a problem with singular values from the largest down to half of it, without noise."""
    values = np.linspace(sizes.largest, sizes.largest / 2, sizes.dimension)
    return draw_problem(
        sizes.dimension, outputs, condition_number=condition, singular_values=values, noise=0.0, rng=rng
    )


def _factor(steps: xr.DataArray, others: xr.DataArray, scale: float) -> xr.DataArray:
    """Return how many times as many steps are needed; 0, which passes no rule, where neither descent arrives."""
    return (steps / others).sel(scale=scale).fillna(0.0)


def log_line(values: xr.DataArray, x: xr.DataArray, axis: str) -> tuple[xr.DataArray, xr.DataArray]:
    """Return slopes of the logarithm along an axis, and what share lines explain; infinite and 0 if values are lost."""
    x = x - x.mean(axis)
    with np.errstate(invalid="ignore"):  # infinite values have no slope
        logs = xr.apply_ufunc(np.log, values)
        centred = logs - logs.mean(axis, skipna=False)
        slopes = (x * centred).sum(axis, skipna=False) / (x**2).sum(axis)
        residual = ((centred - slopes * x) ** 2).sum(axis, skipna=False)
        explained = 1 - residual / (centred**2).sum(axis, skipna=False)
    return slopes.fillna(np.inf), explained.fillna(0.0)
