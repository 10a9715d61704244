"""The experiments of the chapter: attention simulated, the set of minima, and Theorem 1 at random and at worst."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnbook.core.experiment import Arrays, Experiment, highest, lowest
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress, double_device
from attnbook.core.settings import check_increasing
from attnbook.preconditioning import landscape, manifold
from attnbook.preconditioning.data import draw_problem
from attnbook.preconditioning.population import square_roots
from attnbook.preconditioning.population_loss import geometry, simulation

INSIDE = 1 - 1e-9  # points lie this much inside their distance: rounding must not decide where a bound is attained
BEYOND = 0.81  # just outside the radius of Theorem 1


@dataclass(frozen=True, kw_only=True)
class PopulationLoss(Experiment):
    r"""Tilted mean, $E L_n-L$ and moments by drawing keys; nothing here uses the closed forms it tests."""

    id = "preconditioning.population_loss"
    summary = "Softmax attention on Gaussian keys by simulation: tilted mean, loss and moments"
    budget_seconds = 25
    smoke = {"tilt_draws": 20_000, "moment_draws": 20_000, "loss_draws": 500, "seeds": (0, 1)}

    dimension: int = 4  # inputs d of the tilted mean and of the moments
    condition_number: float = 3.0  # of the covariance
    tilt: float = 0.5  # norm of the whitened V for the tilted mean; its smallest singular value is half of it
    n_queries: int = 3  # of the tilted mean, each of length two in whitened coordinates
    tilt_draws: int = 2_000_000
    moment_tilt: float = 0.3  # norm of the whitened V for the moments
    moment_draws: int = 4_000_000
    loss_outputs: int = 3  # outputs m of the loss
    loss_singular_values: tuple[float, ...] = (0.15, 0.08)  # of the map on its d whitened inputs, largest first
    away: float = 0.1  # standard deviation of an entry of the other point around the minimum, whitened
    sample_sizes: tuple[int, ...] = (8, 32, 128, 512)  # keys n
    loss_draws: int = 6000  # data sets per number of keys, with one query each
    chunk: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_increasing(self, "sample_sizes")

    def coordinates(self) -> dict[str, Any]:
        """Name moments, points and numbers of keys."""
        return {"moment": list(simulation.MOMENTS), "point": list(simulation.POINTS), "n": list(self.sample_sizes)}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Draw keys on the CPU, whatever the device: the draws are the work."""
        errors, moments, gaps = map(np.array, zip(*map(self._of_seed, seeds), strict=True))
        return {
            "tilt_error": (("seed",), errors),
            "moments": (("seed", "moment"), moments[:, 0]),
            "closed_moments": (("seed", "moment"), moments[:, 1]),
            "loss_gap": (("seed", "point", "n"), gaps),
        }

    def _of_seed(self, seed: int) -> tuple[float, np.ndarray, np.ndarray]:
        # Without noise, which adds the same to both losses
        draw = partial(draw_problem, condition_number=self.condition_number, noise=0.0)
        values, d = np.array(self.loss_singular_values), self.dimension
        covariance = draw(d, d, singular_values=np.ones(d), rng=stream(seed, "covariance")).covariance
        fitted = draw(len(values), self.loss_outputs, singular_values=values, rng=stream(seed, "loss problem"))
        return (
            simulation.tilt_error(covariance, self.tilt, self.tilt_draws, self.n_queries, stream(seed, "tilt")),
            simulation.moments(self.dimension, self.moment_tilt, self.moment_draws, stream(seed, "moments")),
            simulation.loss_gaps(fitted, self.sample_sizes, self.loss_draws, self.away, stream(seed, "loss")),
        )

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Compare with the closed forms; the gaps at 512 keys with those at 32."""
        errors = np.abs(data.moments / data.closed_moments - 1)
        ends = dict(zip(simulation.POINTS, ("_minimum", ""), strict=True))
        gaps = {f"loss_gap_{n}{ends[at]}": data.loss_gap.sel(n=n, point=at) for at in ends for n in (512, 32)}
        kinds = {"normaliser": [0, 1], "score": [2, 3], "self": [4]}
        return {
            "PC-A1": _extremes(largest_error=data.tilt_error),
            "PC-A2": gaps,
            "PC-A2-finite": _extremes(smallest_gap=data.loss_gap),
            "PC-A4": {f"error_{kind}": highest(errors.isel(moment=which)) for kind, which in kinds.items()},
        }


@dataclass(frozen=True, kw_only=True)
class Minima(Experiment):
    """Whitened coordinates, the set of minima, projection, convexity, Hessian, nearest saddle. All in float64."""

    id = "preconditioning.minima"
    summary = "The set of minima: how many pieces, projection, convexity, Hessian and nearest saddle"
    budget_seconds = 15
    smoke = {
        "dimension": 2, "n_outputs": 3, "rotations": 2, "points": 10, "hessian_dimension": 2,
        "hessian_outputs": (3, 2), "seeds": (0, 1), "chunk": 1,
    }  # fmt: skip

    dimension: int = 5  # inputs d
    n_outputs: int = 8  # outputs m
    condition_number: float = 10.0  # of the covariance
    largest: float = 0.4  # largest singular value of the map on whitened inputs; the smallest is half of it
    rotations: int = 20  # random Q per problem; and random points per problem, for convexity
    points: int = 5000  # random points per problem, for the projection
    hessian_dimension: int = 3  # of the problems whose Hessians automatic differentiation computes
    hessian_outputs: tuple[int, ...] = (5, 3)
    seeds: tuple[int, ...] = tuple(range(10))
    chunk: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, dimension in (("n_outputs", self.dimension), ("hessian_outputs", self.hessian_dimension)):
            if np.min(getattr(self, name)) < dimension:
                raise ValueError(f"{name}: expected at least the dimension, {dimension} (Assumption 2)")

    def coordinates(self) -> dict[str, Any]:
        """Name the numbers of outputs of the Hessians."""
        return {"outputs": list(self.hessian_outputs)}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Check random problems and points on the CPU, whatever the device: the problems are small."""
        return _stacked([self._of_seed(seed) | self._hessians(seed) for seed in seeds], "seed", "outputs")

    def _of_seed(self, seed: int) -> dict[str, Any]:
        rng, d = stream(seed, "minima"), self.dimension
        covariance, true_map, values = self._drawn(d, self.n_outputs, seed)
        root, inverse = square_roots(covariance)
        whitened_map = true_map @ root
        start = manifold.minimum(whitened_map)
        turns = torch.linalg.qr(torch.tensor(rng.standard_normal((self.rotations, d, d)))).Q
        orbit, points = start @ turns, torch.tensor(rng.standard_normal((self.points, *start.shape)))
        product = points.mT @ manifold.nearest(points, whitened_map)
        saddle, other = start * (torch.arange(d) < d - 1), torch.tensor(rng.standard_normal(start.shape))
        stretched = torch.linalg.svdvals(orbit @ inverse).square() / 2  # of minima in the paper's norm
        eigenvalues = torch.linalg.eigvalsh(covariance)
        return {
            "gradient_error": geometry.gradient_error(other, covariance, true_map),
            **geometry.residuals(orbit, covariance, true_map),
            "barrier": geometry.barrier(start, turns, whitened_map) / (values[-1].square() / 2),
            "asymmetry": (product - product.mT).abs().max(),
            "smallest_eigenvalue": torch.linalg.eigvalsh((product + product.mT) / 2).min(),
            "weakest": stretched.min() * eigenvalues[-1] / values[-1],
            "strongest": stretched.max() * eigenvalues[0] / values[0],
            "saddle_gradient": landscape.gradient(saddle, whitened_map).abs().max(),
            "saddle_distance": (saddle - manifold.nearest(saddle, whitened_map)).square().sum() / values[-1],
        }

    def _hessians(self, seed: int) -> dict[str, Any]:
        maps, errors = [], []
        for outputs in self.hessian_outputs:
            covariance, true_map, values = self._drawn(self.hessian_dimension, outputs, seed)
            maps.append(true_map @ square_roots(covariance)[0])
            errors.append(geometry.spectrum_error(maps[-1], values, stream(seed, "turn", outputs)))
        shape = (self.rotations, *manifold.minimum(maps[0]).shape)
        points = torch.tensor(stream(seed, "convexity").standard_normal(shape))
        alone, bent = geometry.convexity(points, maps[0])
        return {"eigenvalue_error": errors, "convexity_error": alone, "bent": bent}

    def _drawn(self, dimension: int, n_outputs: int, seed: int) -> tuple[Tensor, ...]:
        """Covariance, true map and singular values of a random problem."""
        values = np.linspace(self.largest, self.largest / 2, dimension)
        drawn = draw_problem(dimension, n_outputs, condition_number=self.condition_number, singular_values=values,
                             noise=0.0, rng=stream(seed, "problem", dimension, n_outputs))  # fmt: skip
        return tuple(map(torch.tensor, (drawn.covariance, drawn.true_map, values)))

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Take the worst over seeds of what must be zero, one or two."""
        too_far = np.abs(data.saddle_distance - landscape.SADDLE)
        return {
            "PC-A5": _extremes(largest_error=data.gradient_error),
            "PC-T1-convex": _extremes(largest_error=data.convexity_error, share_bent=data.bent),
            "PC-T1.1": _extremes(
                largest_product_residual=data.product_residual,
                largest_balance_residual=data.balance_residual,
                largest_gradient=data.minimum_gradient,
            ),
            "PC-T1.1-connected": _extremes(lowest_barrier=data.barrier),
            "PC-T1.2": _extremes(largest_asymmetry=data.asymmetry, smallest_eigenvalue=data.smallest_eigenvalue),
            "PC-T1.2-singular": _extremes(smallest_ratio=data.weakest, largest_ratio=data.strongest),
            "PC-T1.3-saddle": _extremes(largest_gradient=data.saddle_gradient, largest_distance_error=too_far),
            "PC-T1.5": _extremes(largest_eigenvalue_error=data.eigenvalue_error),
        }


@dataclass(frozen=True, kw_only=True)
class Landscape(Experiment):
    r"""$\langle\nabla,H\rangle/(s_d\|H\|^2)$ of (3) and $\|\nabla\|/(s_1\|H\|)$ of (4), at random and at worst.

    Random directions see little of a worst case. So for each problem and distance one search goes down the first ratio,
    and another up the second, over all displacements of that length; both gradients are closed forms.
    """

    id = "preconditioning.landscape"
    summary = "Theorem 1: one-point convexity and smoothness, at random and at worst"
    budget_seconds = 25
    smoke = {
        "dimension": 2, "outputs": (2, 3), "spreads": (1.0, 0.5), "squared_distances": (0.4, 0.8), "directions": 20,
        "starts": 2, "search_steps": 80, "seeds": (0, 1), "chunk": 1,
    }  # fmt: skip

    dimension: int = 5  # inputs d
    outputs: tuple[int, ...] = (5, 8)  # outputs m: one number equal to the dimension, one larger
    largest: float = 0.4  # largest singular value s_1 of the map on whitened inputs
    spreads: tuple[float, ...] = (1.0, 0.5, 0.25)  # s_d/s_1; the other singular values are drawn between
    squared_distances: tuple[float, ...] = (0.05, 0.2, 0.4, 0.6, 0.8, 1.0, 1.4, 1.9)  # over s_d; the radius 0.8 in it
    directions: int = 300  # random ones per distance
    starts: int = 4  # searches per distance
    search_steps: int = 120
    condition_number: float = 10.0  # of the covariance, for the one-sided norm

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.outputs) != 2 or not self.outputs[0] == self.dimension < self.outputs[1]:
            raise ValueError(f"outputs: expected the dimension ({self.dimension}) and a larger one, got {self.outputs}")
        if not all(0 < spread <= 1 for spread in self.spreads):
            raise ValueError(f"spreads: expected numbers above 0 and at most 1, got {self.spreads}")
        reach = self.squared_distances
        if not 0 < min(reach) <= max(reach) < landscape.SADDLE:
            raise ValueError(f"squared_distances: expected numbers between 0 and 2, got {reach}")

    def coordinates(self) -> dict[str, Any]:
        """Name problems and distances."""
        return {"outputs": ["m = d", "m > d"], "spread": list(self.spreads), "distance": list(self.squared_distances)}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Try displacements from the minima in float64; one number of outputs after the other."""
        where = double_device(device)
        found = [self._of_outputs(where, seeds, outputs) for outputs in self.outputs]
        return _stacked(found, "outputs", "seed", "spread", "distance")

    def _of_outputs(self, where: torch.device, seeds: tuple[int, ...], outputs: int) -> dict[str, np.ndarray]:
        """All ratios for one number of outputs, ``(seeds, spreads, ...)``; displacements add ``(distances, draws)``."""
        pairs = [(stream(seed, "landscape", outputs, str(spread)), spread) for seed in seeds for spread in self.spreads]
        values, maps, draws = (
            torch.tensor(np.array(arrays), device=where)
            for arrays in zip(*(self._draw(outputs, *pair) for pair in pairs), strict=True)
        )
        bases = manifold.minimum(maps)
        whitened_map, base, spectrum = (array[:, None, None] for array in (maps, bases, values))
        reached = np.array(self.squared_distances) * INSIDE
        lengths = (torch.tensor(reached, device=where)[:, None] * spectrum[..., -1]).sqrt()

        ratios = partial(geometry.ratios, base=base, whitened_map=whitened_map, values=spectrum)
        search = partial(geometry.search, draws[:, :, : self.starts], base, lengths, whitened_map, self.search_steps)
        convex, smooth, loss = ratios(geometry.of_length(draws[:, :, self.starts :], base, lengths))
        flattest, steepest = (ratios(search(convex=which)) for which in (True, False))
        known = [torch.stack([geometry.worst_direction(one, r) for r in [*reached, BEYOND]]) for one in bases]
        attained = ratios(torch.stack(known).unsqueeze(2))[0][..., 0]
        cost = partial(geometry.one_sided_ratio, condition_number=self.condition_number, directions=self.directions)
        one_sided = [cost(one, outputs, rng=rng) for one, (rng, _) in zip(values, pairs, strict=True)]
        found = {
            "random_smallest": convex.amin(-1),
            "random_largest": smooth.amax(-1),
            "found_smallest": flattest[0].amin(-1),
            "found_largest": steepest[1].amax(-1),
            "largest_loss": torch.cat([loss, steepest[2]], -1).amax(-1),
            "worst": attained[:, :-1],  # where the bound is an equality, for an output to spare
            "beyond": attained[:, -1],
            "one_sided": torch.tensor(one_sided, dtype=torch.float64),
        }
        return {name: ratio.cpu().unflatten(0, (len(seeds), -1)).numpy() for name, ratio in found.items()}

    def _draw(self, outputs: int, rng: np.random.Generator, spread: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Singular values, whitened map, and directions for searches and for chance, of one problem."""
        d, count = self.dimension, (len(self.squared_distances), self.starts + self.directions)
        between = np.sort(rng.uniform(spread, 1, d))[::-1]
        between[0], between[-1] = 1.0, spread
        left, right = (np.linalg.qr(rng.standard_normal((size, d)))[0] for size in (outputs, d))
        values = self.largest * between
        return values, (left * values) @ right.T, rng.standard_normal((*count, outputs + d, d))

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Hold the worst that was found against the bounds and their sharp forms."""
        smallest = np.minimum(np.minimum(data.random_smallest, data.found_smallest), data.worst)
        largest = np.maximum(data.random_largest, data.found_largest)
        near = data.distance.values[data.distance.values <= landscape.RADIUS]
        inside, worst = (ratio.sel(distance=near) for ratio in (smallest, data.worst.sel(outputs="m > d")))
        square, found = (ratio.sel(outputs="m = d") for ratio in (smallest, data.found_smallest))
        reached = torch.tensor(data.distance.values * INSIDE)  # distance is the last dimension, after spread
        bound = landscape.one_point_bound(torch.tensor(near)).numpy()
        shrinking = landscape.shrinking_ratio(reached).numpy()
        growing = np.stack([landscape.growing_ratio(reached, spread).numpy() for spread in self.spreads])
        beyond, steepest = data.beyond.sel(outputs="m > d"), np.abs(data.found_largest - growing)
        return {
            "PC-T1.3": _extremes(smallest_ratio=inside, smallest_ratio_one_sided=data.one_sided),
            "PC-T1.3-sharp": _extremes(
                smallest_margin=inside - bound, largest_gap=np.abs(worst - bound), largest_ratio_beyond=beyond
            ),
            "PC-T1.3-square": _extremes(smallest_margin=square - shrinking, largest_gap=np.abs(found - shrinking)),
            "PC-T1.3-left-sharp": _extremes(smallest_ratio=data.one_sided),
            "PC-T1.4": _extremes(largest_ratio=largest.sel(distance=near)),
            "PC-L2": _extremes(largest_ratio=data.largest_loss.sel(distance=near)),
            "PC-T1.4-sharp": _extremes(largest_excess=largest - growing, largest_gap=steepest),
        }


def _extremes(**values: xr.DataArray) -> dict[str, xr.DataArray]:
    """Each seed's largest value where the name says so, else its smallest."""
    return {name: (highest if name.startswith("largest") else lowest)(value) for name, value in values.items()}


def _stacked(found: list[dict[str, Any]], *axes: str) -> Arrays:
    arrays = {name: np.array([one[name] for one in found], dtype=float) for name in found[0]}
    return {name: (axes[: array.ndim], array) for name, array in arrays.items()}
