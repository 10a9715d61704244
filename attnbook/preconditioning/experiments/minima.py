r"""The set of minima: whitened coordinates, orbit, projection, Hessian, nearest saddle; degrees of the regulariser."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core import runtime
from attnbook.core.results import Clock, Measurement, Result, extremes_over_seeds, over_seeds
from attnbook.core.resuming import check_seeds, seed_by_seed
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress
from attnbook.preconditioning.data import draw_problem
from attnbook.preconditioning.experiments.degrees import penalty_degrees
from attnbook.preconditioning.theory import landscape, manifold
from attnbook.preconditioning.theory.population import (
    balance_penalty,
    excess_loss,
    excess_loss_gradient,
    penalty_gradient,
    square_roots,
)

__all__ = ["Minima", "Settings", "run"]

# How far the small rotations turn; the change of the squared distance is then far above rounding.
SMALL_ANGLE = 1e-3


@dataclass(frozen=True)
class Settings:
    r"""Sizes of the experiment.

    Attributes:
        dimension: Number of inputs $d$.
        n_outputs: Number of outputs $m$.
        condition_number: $\kappa(\Sigma)$.
        largest: Largest singular value of $A\Sigma^{1/2}$; the smallest is half of it.
        rotations: Random $Q$ per problem.
        points: Random points per problem, for the projection.
        hessian_dimension: Dimension of the problems whose Hessians automatic differentiation computes.
        hessian_outputs: Their numbers of outputs.
        seeds: One problem per seed.
        chunk: Seeds kept together.
    """

    dimension: int = 5
    n_outputs: int = 8
    condition_number: float = 10.0
    largest: float = 0.4
    rotations: int = 20
    points: int = 5000
    hessian_dimension: int = 3
    hessian_outputs: tuple[int, ...] = (5, 3)
    seeds: tuple[int, ...] = tuple(range(10))
    chunk: int = 10

    def __post_init__(self) -> None:
        for name, size in {"n_outputs": self.n_outputs, "hessian_outputs": min(self.hessian_outputs)}.items():
            least = self.dimension if name == "n_outputs" else self.hessian_dimension
            if size < least:
                raise ValueError(f"{name}: expected at least the dimension, {least} (Assumption 2), got {size}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(dimension=2, n_outputs=3, rotations=2, points=10, hessian_dimension=2, hessian_outputs=(3, 2),
                   seeds=(0, 1), chunk=1)  # fmt: skip

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return larger problems and more points."""
        return cls(dimension=10, n_outputs=15, points=50_000, hessian_outputs=(8, 5, 3), seeds=tuple(range(20)))


@dataclass(frozen=True)
class Minima(Result):
    r"""What was found for every seed.

    Attributes:
        gradient_error: Largest difference between $\frac12ZZ^\top Z-MZ$ and automatic differentiation through the
            original coordinates, ``(seeds,)``.
        product_residual: Largest entry of $U\Sigma V-A$ on the orbit, ``(seeds,)``.
        balance_residual: Largest entry of $U^\top U-V\Sigma V^\top$ there, ``(seeds,)``.
        minimum_gradient: Largest entry of the gradient there, in the original coordinates, ``(seeds,)``.
        asymmetry: Largest entry of $Z^\top\Pi(Z)-\Pi(Z)^\top Z$ over random points, ``(seeds,)``.
        nearer: Smallest distance from a random point to a random minimum over that to the projection, ``(seeds,)``.
        smallest_eigenvalue: Of $Z^\top\Pi(Z)$ over random points, ``(seeds,)``.
        change: Smallest change of the squared distance when the projection is turned a little, over the square of the
            angle, ``(seeds,)``.
        eigenvalue_error: Largest error of the spectrum of the Hessian, ``(seeds, outputs)``.
        saddle_gradient: Largest entry of the gradient where the weakest column is gone, ``(seeds,)``.
        saddle_distance: Square of its distance from the minima over $s_d$, ``(seeds,)``.
        degrees: Degree in $\Sigma$ of the gradients for $U$ and $V$, by weight, ``(seeds, weights, 2)``.
    """

    digits: ClassVar[int | None] = None
    experiment: ClassVar[str] = "preconditioning.minima"
    settings_type: ClassVar[type] = Settings

    gradient_error: Float[np.ndarray, " seeds"]
    product_residual: Float[np.ndarray, " seeds"]
    balance_residual: Float[np.ndarray, " seeds"]
    minimum_gradient: Float[np.ndarray, " seeds"]
    asymmetry: Float[np.ndarray, " seeds"]
    nearer: Float[np.ndarray, " seeds"]
    smallest_eigenvalue: Float[np.ndarray, " seeds"]
    change: Float[np.ndarray, " seeds"]
    eigenvalue_error: Float[np.ndarray, "seeds outputs"]
    saddle_gradient: Float[np.ndarray, " seeds"]
    saddle_distance: Float[np.ndarray, " seeds"]
    degrees: Float[np.ndarray, "seeds weights layers"]

    def measurements(self) -> dict[str, Measurement]:
        """Return what was measured, by claim id."""
        names = ("", "_one_sided", "_unweighted")
        degrees = {
            f"degree_{layer}{name}": self.degrees[:, weight, at]
            for weight, name in enumerate(names)
            for at, layer in enumerate(("value", "key_query"))
        }
        return {
            "PC-A5": extremes_over_seeds(largest_error=self.gradient_error),
            "PC-REG": over_seeds(**degrees),
            "PC-T1.1": extremes_over_seeds(
                largest_product_residual=self.product_residual, largest_balance_residual=self.balance_residual
            ),
            "PC-T1.1-gradient": extremes_over_seeds(largest_gradient=self.minimum_gradient),
            "PC-T1.2": extremes_over_seeds(largest_asymmetry=self.asymmetry),
            "PC-T1.2-nearest": extremes_over_seeds(smallest_ratio_of_distances=self.nearer),
            "PC-T1.2-positive": extremes_over_seeds(
                smallest_eigenvalue=self.smallest_eigenvalue, smallest_change=self.change
            ),
            "PC-T1.5": extremes_over_seeds(largest_eigenvalue_error=self.eigenvalue_error),
            "PC-T1.3-saddle": extremes_over_seeds(
                largest_gradient=self.saddle_gradient, largest_distance_error=np.abs(self.saddle_distance - 2)
            ),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> Minima:
    """Check the geometry of the minima at random problems and points, in float64.

    Args:
        settings: Sizes and seeds.
        device: Checked, and not used: problems this small are solved on the CPU.
        progress: Told (seeds done, seeds in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
    """
    clock = Clock()
    runtime.device(device)
    found = seed_by_seed(settings, partial(_of_seed, settings), clock=clock, workdir=workdir, progress=progress)
    return Minima(settings=settings, provenance=clock.provenance(torch.device("cpu")), **found)


def _of_seed(settings: Settings, seed: int) -> dict[str, np.ndarray]:
    rng = stream(seed, "minima")
    covariance, true_map, values = _problem(settings, settings.dimension, settings.n_outputs, seed)
    root, _ = square_roots(covariance)
    whitened_map = true_map @ root

    def draw(*shape: int) -> Tensor:
        return to_tensor(rng.standard_normal(shape), dtype=torch.float64)

    start = manifold.minimum(whitened_map)
    size = start.shape
    turns = torch.linalg.qr(draw(settings.rotations, size[1], size[1])).Q
    orbit = start @ turns
    points = draw(settings.points, *size)
    closest = manifold.nearest(points, whitened_map)
    others = torch.linalg.matrix_norm(points[:, None] - orbit).amin(1)
    product = points.mT @ closest
    saddle = start * (torch.arange(size[1]) < size[1] - 1)
    found = {
        "gradient_error": _gradient_error(draw(*size), covariance, true_map),
        **_residuals(orbit, covariance, true_map),
        "asymmetry": (product - product.mT).abs().max(),
        "nearer": (others / torch.linalg.matrix_norm(points - closest)).min(),
        "smallest_eigenvalue": torch.linalg.eigvalsh((product + product.mT) / 2).min(),
        "change": _change(points, closest, stream(seed, "small rotations")),
        "saddle_gradient": landscape.gradient(saddle, whitened_map).abs().max(),
        "saddle_distance": (saddle - manifold.nearest(saddle, whitened_map)).square().sum() / values[-1],
    }
    scalars = {name: np.array(float(value)) for name, value in found.items()}
    spectra = [_spectrum_error(settings, outputs, seed) for outputs in settings.hessian_outputs]
    value, key_query = manifold.split(draw(*size))
    return {**scalars, "eigenvalue_error": np.array(spectra), "degrees": penalty_degrees(value, key_query, covariance)}


def _problem(settings: Settings, dimension: int, n_outputs: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Covariance, true map and singular values of a random problem."""
    values = np.linspace(settings.largest, settings.largest / 2, dimension)
    drawn = draw_problem(dimension, n_outputs, condition_number=settings.condition_number, singular_values=values,
                         noise=0.0, rng=stream(seed, "problem", dimension, n_outputs))  # fmt: skip
    covariance, true_map, singular_values = (
        to_tensor(array, dtype=torch.float64) for array in (drawn.covariance, drawn.true_map, values)
    )
    return (covariance + covariance.mT) / 2, true_map, singular_values


def _gradient_error(point: Tensor, covariance: Tensor, true_map: Tensor) -> Tensor:
    """The gradient in whitened coordinates against automatic differentiation through the original ones."""
    point = point.requires_grad_()
    layers = manifold.unstack(point, covariance=covariance)
    loss = excess_loss(*layers, covariance=covariance, true_map=true_map)
    (automatic,) = torch.autograd.grad(loss + balance_penalty(*layers, covariance=covariance), point)
    root, _ = square_roots(covariance)
    return (automatic - landscape.gradient(point.detach(), true_map @ root)).abs().max()


def _change(points: Tensor, closest: Tensor, rng: np.random.Generator) -> Tensor:
    """Smallest change of the squared distance when the nearest minimum is turned a little, over the squared angle."""
    count, _, dimension = points.shape
    turn = to_tensor(rng.standard_normal((count, dimension, dimension)), dtype=torch.float64)
    skew = turn - turn.mT
    skew = skew / torch.linalg.matrix_norm(skew)[:, None, None]
    turned = closest @ torch.linalg.matrix_exp(SMALL_ANGLE * skew)
    # The difference of two squares, without their cancellation.
    return ((closest - turned) * (2 * points - closest - turned)).sum((-2, -1)).min() / SMALL_ANGLE**2


def _residuals(orbit: Tensor, covariance: Tensor, true_map: Tensor) -> Mapping[str, Tensor]:
    """How far the orbit is from fitting, from balance and from a zero gradient, in the original coordinates."""
    value, key_query = manifold.unstack(orbit, covariance=covariance)
    losses = excess_loss_gradient(value, key_query, covariance=covariance, true_map=true_map)
    penalties = penalty_gradient(value, key_query, covariance=covariance)
    both = [(loss + penalty).abs().max() for loss, penalty in zip(losses, penalties, strict=True)]
    return {
        "product_residual": (value @ covariance @ key_query - true_map).abs().max(),
        "balance_residual": (value.mT @ value - key_query @ covariance @ key_query.mT).abs().max(),
        "minimum_gradient": torch.stack(both).max(),
    }


def _spectrum_error(settings: Settings, outputs: int, seed: int) -> float:
    """Predicted eigenvalues of the Hessian at a random minimum against automatic differentiation."""
    covariance, true_map, values = _problem(settings, settings.hessian_dimension, outputs, seed)
    root, _ = square_roots(covariance)
    turn = np.linalg.qr(stream(seed, "turn", outputs).standard_normal((len(values), len(values))))[0]
    point = manifold.minimum(true_map @ root) @ to_tensor(turn, dtype=torch.float64)
    target, shape = true_map @ root, point.shape
    hessian = torch.autograd.functional.hessian(
        lambda z: landscape.regularised_loss(z.view(shape), target), point.flatten()
    )
    eigenvalues = torch.linalg.eigvalsh(hessian)
    return float((eigenvalues - landscape.hessian_spectrum(values, outputs)).abs().max())
