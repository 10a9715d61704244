"""The experiments of the chapter: attention simulated, the set of minima, and Theorem 1 at random and at worst.

The text of the paper available to us has no equations: all formulas are this book's reconstruction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnbook.core.experiment import Arrays, Experiment, highest, lowest
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress
from attnbook.preconditioning import landscape, manifold
from attnbook.preconditioning.data import draw_problem
from attnbook.preconditioning.population import square_roots
from attnbook.preconditioning.population_loss import checks, contraction, simulation

LAYERS = ("value", "key_query")
INSIDE = (
    1 - 1e-9
)  # points lie this much inside their distance, so that rounding cannot decide where a bound is attained
BEYOND = 0.81  # just outside the radius of Theorem 1


@dataclass(frozen=True, kw_only=True)
class PopulationLoss(Experiment):
    r"""Tilted mean, $E L_n-L$ and moments by drawing keys; nothing here uses the closed forms it tests."""

    id = "preconditioning.population_loss"
    summary = "Softmax attention on Gaussian keys by simulation: tilted mean, loss and moments"
    budget_seconds = 25
    smoke = {"tilt_draws": 20_000, "moment_draws": 20_000, "loss_draws": 500, "seeds": (0, 1)}
    large = {
        "tilt_draws": 20_000_000, "moment_draws": 40_000_000, "sample_sizes": (8, 32, 128, 512, 2048),
        "loss_draws": 40_000, "seeds": tuple(range(10)),
    }  # fmt: skip

    dimension: int = 4  # inputs d of the moments
    condition_number: float = 3.0  # of the covariance
    tilt: float = 0.5  # norm of the whitened V for the tilted mean; its smallest singular value is half of it
    n_queries: int = 3  # of the tilted mean, each of length two in whitened coordinates
    tilt_draws: int = 2_000_000
    moment_tilt: float = 0.3  # norm of the whitened V for the moments
    moment_draws: int = 4_000_000
    loss_dimension: int = 2  # inputs d of the loss
    loss_outputs: int = 3  # outputs m
    loss_singular_values: tuple[float, ...] = (0.15, 0.08)  # of the map on whitened inputs, largest first
    away: float = 0.1  # standard deviation of an entry of the other point around the minimum, whitened
    sample_sizes: tuple[int, ...] = (8, 32, 128, 512)  # keys n
    loss_draws: int = 6000  # data sets per number of keys, with one query each
    chunk: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = self.sample_sizes
        if {32, 512} - set(sizes) or list(sizes) != sorted(set(sizes)):
            raise ValueError(f"sample_sizes: expected increasing numbers, 32 and 512 among them, got {sizes}")
        if len(self.loss_singular_values) != self.loss_dimension:
            raise ValueError(
                f"loss_singular_values: expected {self.loss_dimension} numbers, got {self.loss_singular_values}"
            )
        for name in ("tilt_draws", "moment_draws", "loss_draws"):
            if getattr(self, name) < 10:
                raise ValueError(f"{name}: expected at least 10, got {getattr(self, name)}")

    def coordinates(self) -> dict[str, Any]:
        """Name moments, points and numbers of keys."""
        return {
            "moment": list(simulation.MOMENTS),
            "point": list(simulation.POINTS),
            "n": list(self.sample_sizes),
        }

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Draw keys on the CPU, whatever the device: the draws are the work."""
        found = []
        for number, seed in enumerate(seeds, 1):
            found.append(self._of_seed(seed))
            if progress:
                progress(number, len(seeds))
        errors, moments, gaps = map(np.array, zip(*found, strict=True))
        return {
            "tilt_error": (("seed",), errors),
            "moments": (("seed", "moment"), moments[:, 0]),
            "closed_moments": (("seed", "moment"), moments[:, 1]),
            "finite_variance": (("seed", "moment"), moments[:, 2]),
            "loss_gap": (("seed", "point", "n"), gaps),
        }

    def _of_seed(self, seed: int) -> tuple[float, np.ndarray, np.ndarray]:
        tilted = draw_problem(self.dimension, self.dimension, condition_number=self.condition_number, noise=0.0,
                              singular_values=np.ones(self.dimension), rng=stream(seed, "covariance"))  # fmt: skip
        # Without noise, which adds the same to both losses
        fitted = draw_problem(self.loss_dimension, self.loss_outputs, condition_number=self.condition_number, noise=0.0,
                              singular_values=np.array(self.loss_singular_values),
                              rng=stream(seed, "loss problem"))  # fmt: skip
        error = simulation.tilt_error(
            tilted.covariance, self.tilt, self.tilt_draws, n_queries=self.n_queries, rng=stream(seed, "tilt")
        )
        moments = simulation.simulated_moments(
            self.dimension, self.moment_tilt, self.moment_draws, rng=stream(seed, "moments")
        )
        gaps = simulation.loss_gaps(
            fitted, self.sample_sizes, self.loss_draws, away=self.away, rng=stream(seed, "loss")
        )
        return error, np.array(moments), gaps

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Compare with the closed forms; the gaps at 512 keys with those at 32."""
        gap = {n: data.loss_gap.sel(n=n) for n in (32, 512)}
        errors = np.abs(data.moments / data.closed_moments - 1)
        named = {
            f"loss_gap_{n}{name}": gap[n].sel(point=point)
            for point, name in zip(simulation.POINTS, ("_minimum", ""), strict=True)
            for n in (512, 32)
        }
        return {
            "PC-A1": {"largest_error": highest(data.tilt_error)},
            "PC-A2": named,
            "PC-A2-points": {
                "largest_ratio": highest(np.abs(gap[512] / gap[32])),
                "smallest_gap": lowest(data.loss_gap),
            },
            "PC-A4": {"relative_error": highest(errors.isel(moment=[0, 1]))},
            "PC-A4-score": {"relative_error": highest(errors.isel(moment=[2, 3]))},
            "PC-A4-self": {"relative_error": highest(errors.isel(moment=[4]))},
        }


@dataclass(frozen=True, kw_only=True)
class Minima(Experiment):
    """Whitened coordinates, orbit, projection, Hessian, nearest saddle; degrees of the regulariser. All in float64."""

    id = "preconditioning.minima"
    summary = "The set of minima: projection, Hessian, saddle, and the weight of the regulariser"
    budget_seconds = 15
    smoke = {
        "dimension": 2, "n_outputs": 3, "rotations": 2, "points": 10, "hessian_dimension": 2,
        "hessian_outputs": (3, 2), "seeds": (0, 1), "chunk": 1,
    }  # fmt: skip
    large = {
        "dimension": 10, "n_outputs": 15, "points": 50_000, "hessian_outputs": (8, 5, 3), "seeds": tuple(range(20)),
    }  # fmt: skip

    dimension: int = 5  # inputs d
    n_outputs: int = 8  # outputs m
    condition_number: float = 10.0  # of the covariance
    largest: float = 0.4  # largest singular value of the map on whitened inputs; the smallest is half of it
    rotations: int = 20  # random Q per problem
    points: int = 5000  # random points per problem, for the projection
    hessian_dimension: int = 3  # of the problems whose Hessians automatic differentiation computes
    hessian_outputs: tuple[int, ...] = (5, 3)
    seeds: tuple[int, ...] = tuple(range(10))
    chunk: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = {"n_outputs": (self.n_outputs, self.dimension)}
        sizes["hessian_outputs"] = (min(self.hessian_outputs), self.hessian_dimension)
        for name, (outputs, least) in sizes.items():
            if outputs < least:
                raise ValueError(f"{name}: expected at least the dimension, {least} (Assumption 2), got {outputs}")

    def coordinates(self) -> dict[str, Any]:
        """Name the weights of the regulariser, the layers and the numbers of outputs."""
        return {"weight": list(checks.WEIGHTS), "layer": list(LAYERS), "outputs": list(self.hessian_outputs)}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Check random problems and points on the CPU, whatever the device: the problems are small."""
        found = []
        for number, seed in enumerate(seeds, 1):
            found.append(self._of_seed(seed))
            if progress:
                progress(number, len(seeds))
        dims = {"eigenvalue_error": ("seed", "outputs"), "degrees": ("seed", "weight", "layer")}
        return {name: (dims.get(name, ("seed",)), np.array([one[name] for one in found])) for name in found[0]}

    def _of_seed(self, seed: int) -> dict[str, Any]:
        rng = stream(seed, "minima")
        covariance, true_map, values = self._problem(self.dimension, self.n_outputs, seed)
        root, _ = square_roots(covariance)
        whitened_map = true_map @ root

        def draw(*shape: int) -> Tensor:
            return to_tensor(rng.standard_normal(shape), dtype=torch.float64)

        start = manifold.minimum(whitened_map)
        turns = torch.linalg.qr(draw(self.rotations, self.dimension, self.dimension)).Q
        orbit = start @ turns
        points = draw(self.points, *start.shape)
        closest = manifold.nearest(points, whitened_map)
        others = torch.linalg.matrix_norm(points[:, None] - orbit).amin(1)
        product = points.mT @ closest
        saddle = start * (torch.arange(self.dimension) < self.dimension - 1)
        scalars = {
            "gradient_error": checks.gradient_error(draw(*start.shape), covariance, true_map),
            **checks.residuals(orbit, covariance, true_map),
            "asymmetry": (product - product.mT).abs().max(),
            "nearer": (others / torch.linalg.matrix_norm(points - closest)).min(),
            "smallest_eigenvalue": torch.linalg.eigvalsh((product + product.mT) / 2).min(),
            "change": checks.change(points, closest, stream(seed, "small rotations")),
            "saddle_gradient": landscape.gradient(saddle, whitened_map).abs().max(),
            "saddle_distance": (saddle - manifold.nearest(saddle, whitened_map)).square().sum() / values[-1],
        }
        value, key_query = manifold.split(draw(*start.shape))
        return {
            **{name: float(number) for name, number in scalars.items()},
            "eigenvalue_error": [
                checks.spectrum_error(
                    *self._problem(self.hessian_dimension, outputs, seed), stream(seed, "turn", outputs)
                )
                for outputs in self.hessian_outputs
            ],
            "degrees": checks.penalty_degrees(value, key_query, covariance),
        }

    def _problem(self, dimension: int, n_outputs: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        """Covariance, true map and singular values of a random problem."""
        values = np.linspace(self.largest, self.largest / 2, dimension)
        drawn = draw_problem(dimension, n_outputs, condition_number=self.condition_number, singular_values=values,
                             noise=0.0, rng=stream(seed, "problem", dimension, n_outputs))  # fmt: skip
        covariance, true_map, singular_values = (
            to_tensor(array, dtype=torch.float64) for array in (drawn.covariance, drawn.true_map, values)
        )
        return (covariance + covariance.mT) / 2, true_map, singular_values

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Take the worst over seeds of what must be zero, one or two; the degrees as they are."""
        degrees = {
            f"degree_{layer}{name}": data.degrees.sel(weight=weight, layer=layer)
            for weight, name in zip(checks.WEIGHTS, ("", "_one_sided", "_unweighted"), strict=True)
            for layer in LAYERS
        }
        return {
            "PC-A5": {"largest_error": highest(data.gradient_error)},
            "PC-REG": degrees,
            "PC-T1.1": {
                "largest_product_residual": highest(data.product_residual),
                "largest_balance_residual": highest(data.balance_residual),
            },
            "PC-T1.1-gradient": {"largest_gradient": highest(data.minimum_gradient)},
            "PC-T1.2": {"largest_asymmetry": highest(data.asymmetry)},
            "PC-T1.2-nearest": {"smallest_ratio_of_distances": lowest(data.nearer)},
            "PC-T1.2-positive": {
                "smallest_eigenvalue": lowest(data.smallest_eigenvalue),
                "smallest_change": lowest(data.change),
            },
            "PC-T1.5": {"largest_eigenvalue_error": highest(data.eigenvalue_error)},
            "PC-T1.3-saddle": {
                "largest_gradient": highest(data.saddle_gradient),
                "largest_distance_error": highest(np.abs(data.saddle_distance - landscape.SADDLE)),
            },
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
    large = {
        "dimension": 10, "outputs": (10, 15), "directions": 2000, "starts": 16, "search_steps": 400,
        "seeds": tuple(range(20)),
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
        if len(self.outputs) != 2 or self.outputs[0] != self.dimension or self.outputs[1] <= self.dimension:
            raise ValueError(
                f"outputs: expected the dimension, {self.dimension}, and a larger number, got {self.outputs}"
            )
        if not all(0 < spread <= 1 for spread in self.spreads):
            raise ValueError(f"spreads: expected numbers above 0 and at most 1, got {self.spreads}")
        distances = self.squared_distances
        if landscape.RADIUS not in distances or not 0 < min(distances) <= max(distances) < landscape.SADDLE:
            raise ValueError(
                f"squared_distances: expected numbers between 0 and 2 with 0.8 among them, got {distances}"
            )

    def coordinates(self) -> dict[str, Any]:
        """Name problems and distances."""
        return {
            "outputs": ["m = d", "m > d"],
            "spread": list(self.spreads),
            "distance": list(self.squared_distances),
        }

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Try displacements from the minima in float64, which mps lacks; one number of outputs after the other."""
        where = torch.device("cpu") if device.type == "mps" else device
        found = []
        for number, outputs in enumerate(self.outputs, 1):
            found.append(self._of_outputs(where, seeds, outputs))
            if progress:
                progress(number, len(self.outputs))
        axes = ("outputs", "seed", "spread", "distance")
        stacked = {name: np.stack([one[name] for one in found]) for name in found[0]}
        return {name: (axes[: array.ndim], array) for name, array in stacked.items()}

    def _of_outputs(self, where: torch.device, seeds: tuple[int, ...], outputs: int) -> dict[str, np.ndarray]:
        """All ratios for one number of outputs, ``(seeds, spreads, ...)``; displacements add ``(distances, draws)``."""
        streams = [[stream(seed, "landscape", outputs, str(spread)) for spread in self.spreads] for seed in seeds]
        drawn = [[self._draw(outputs, *pair) for pair in zip(row, self.spreads, strict=True)] for row in streams]
        values, maps, draws = (
            to_tensor(np.array([[one[i] for one in row] for row in drawn]), device=where, dtype=torch.float64)
            for i in range(3)
        )
        bases = manifold.minimum(maps)
        whitened_map, base, spectrum = maps[:, :, None, None], bases[:, :, None, None], values[:, :, None, None]
        distances = np.array(self.squared_distances) * INSIDE
        lengths = (to_tensor(distances, device=where, dtype=torch.float64)[:, None] * spectrum[..., -1]).sqrt()

        def ratios(displacement: Tensor) -> tuple[Tensor, Tensor]:
            return contraction.ratios(displacement, base, whitened_map, spectrum)

        def search(*, convex: bool) -> tuple[Tensor, Tensor]:
            starts = draws[..., : self.starts, :, :]
            return ratios(contraction.search(starts, base, lengths, whitened_map, self.search_steps, convex=convex))

        convex, smooth = ratios(contraction.of_length(draws[..., self.starts :, :, :], base, lengths))
        reached = [*distances, BEYOND]
        directions = [torch.stack([landscape.worst_direction(one, r) for r in reached]) for one in bases.flatten(0, 1)]
        worst = ratios(torch.stack(directions).unflatten(0, bases.shape[:2]).unsqueeze(3))[0][..., 0]
        pairs = zip(values.flatten(0, 1), [rng for row in streams for rng in row], strict=True)
        cost = [
            contraction.one_sided_ratio(v, outputs, self.condition_number, self.directions, rng) for v, rng in pairs
        ]
        found = {
            "random_smallest": convex.amin(-1),
            "random_largest": smooth.amax(-1),
            "found_smallest": search(convex=True)[0].amin(-1),
            "found_largest": search(convex=False)[1].amax(-1),
            "worst": worst[..., :-1],  # where the bound is an equality, for an output to spare
            "beyond": worst[..., -1],
            "one_sided": torch.tensor(cost, dtype=torch.float64).reshape(bases.shape[:2]),
        }
        return {name: ratio.cpu().numpy() for name, ratio in found.items()}

    def _draw(self, outputs: int, rng: np.random.Generator, spread: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Singular values, whitened map, and directions for searches and for chance, of one problem."""
        d = self.dimension
        between = np.sort(rng.uniform(spread, 1, d))[::-1]
        between[0], between[-1] = 1.0, spread
        left, right = (np.linalg.qr(rng.standard_normal((size, d)))[0] for size in (outputs, d))
        singular_values, count = self.largest * between, (len(self.squared_distances), self.starts + self.directions)
        return singular_values, (left * singular_values) @ right.T, rng.standard_normal((*count, outputs + d, d))

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Hold the worst that was found against the bounds and their sharp forms."""
        smallest = np.minimum(np.minimum(data.random_smallest, data.found_smallest), data.worst)
        largest = np.maximum(data.random_largest, data.found_largest)
        near = within(data)
        inside, worst = (ratio.sel(distance=near) for ratio in (smallest, data.worst.sel(outputs="m > d")))
        square, found = (ratio.sel(outputs="m = d") for ratio in (smallest, data.found_smallest))
        reached = torch.tensor(data.distance.values * INSIDE)
        bound = xr.DataArray(landscape.one_point_bound(torch.tensor(near)).numpy(), coords={"distance": near})
        shrinking = xr.DataArray(landscape.shrinking_ratio(reached).numpy(), coords={"distance": data.distance})
        growing = xr.DataArray(
            np.stack([landscape.growing_ratio(reached, spread).numpy() for spread in self.spreads]),
            coords={"spread": data.spread, "distance": data.distance},
        )
        ratio, cost = {"smallest_ratio": lowest(inside)}, {"smallest_ratio": lowest(data.one_sided)}
        return {
            "PC-T1.3": ratio,
            "PC-T1.3-tight": ratio,
            "PC-T1.3-sharp": {
                "smallest_margin": lowest(inside - bound),
                "largest_gap": highest(np.abs(worst - bound)),
                "largest_ratio_beyond": highest(data.beyond.sel(outputs="m > d")),
            },
            "PC-T1.3-square": {
                "smallest_margin": lowest(square - shrinking),
                "largest_gap": highest(np.abs(found - shrinking)),
            },
            "PC-T1.3-left": cost,
            "PC-T1.3-left-sharp": cost,
            "PC-T1.4": {"largest_ratio": highest(largest.sel(distance=near))},
            "PC-T1.4-sharp": {
                "largest_excess": highest(largest - growing),
                "largest_gap": highest(np.abs(data.found_largest - growing)),
            },
        }


def within(data: xr.Dataset) -> np.ndarray:
    """Return the squared distances up to the radius of Theorem 1."""
    return data.distance.values[data.distance.values <= landscape.RADIUS]
