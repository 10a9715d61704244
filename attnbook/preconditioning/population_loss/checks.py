r"""The set of minima by other means: automatic differentiation, small rotations, degrees of polynomials."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.rng import to_tensor
from attnbook.preconditioning import landscape
from attnbook.preconditioning.manifold import Point, minimum, unstack
from attnbook.preconditioning.population import (
    balance_penalty,
    excess_loss,
    excess_loss_gradient,
    penalty_gradient,
    square_roots,
)

__all__ = [
    "WEIGHTS",
    "change",
    "gradient_error",
    "penalty_degrees",
    "polynomial_degree",
    "residuals",
    "spectrum_error",
]

Covariance = Float[Tensor, "dimension dimension"]
TrueMap = Float[Tensor, "outputs dimension"]

WEIGHTS = ("two-sided", "one-sided", "none")
"""Weights of the regulariser whose gradients are compared with the words of Theorem 5."""
# Of the small rotations; the change of the squared distance is then far above rounding.
SMALL_ANGLE = 1e-3


def gradient_error(point: Point, covariance: Covariance, true_map: TrueMap) -> float:
    r"""Return the error of the gradient in whitened coordinates against automatic differentiation in the original ones.

    Args:
        point: $Z$.
        covariance: $\Sigma$.
        true_map: $A$.

    Returns:
        Largest difference of entries.
    """
    point = point.requires_grad_()
    layers = unstack(point, covariance=covariance)
    loss = excess_loss(*layers, covariance=covariance, true_map=true_map)
    (automatic,) = torch.autograd.grad(loss + balance_penalty(*layers, covariance=covariance), point)
    root, _ = square_roots(covariance)
    return float((automatic - landscape.gradient(point.detach(), true_map @ root)).abs().max())


def residuals(orbit: Point, covariance: Covariance, true_map: TrueMap) -> dict[str, float]:
    r"""Return how far minima are from fitting, from balance and from a zero gradient, in the original coordinates.

    Args:
        orbit: Minima $Z_*Q$.
        covariance: $\Sigma$.
        true_map: $A$.

    Returns:
        Name to largest entry.
    """
    value, key_query = unstack(orbit, covariance=covariance)
    losses = excess_loss_gradient(value, key_query, covariance=covariance, true_map=true_map)
    penalties = penalty_gradient(value, key_query, covariance=covariance)
    return {
        "product_residual": float((value @ covariance @ key_query - true_map).abs().max()),
        "balance_residual": float((value.mT @ value - key_query @ covariance @ key_query.mT).abs().max()),
        "minimum_gradient": max(
            float((loss + penalty).abs().max()) for loss, penalty in zip(losses, penalties, strict=True)
        ),
    }


def change(
    points: Float[Tensor, "points stacked dimension"],
    closest: Float[Tensor, "points stacked dimension"],
    rng: np.random.Generator,
) -> float:
    """Return the smallest change of the squared distance when the nearest minimum is turned a little.

    Args:
        points: $Z$.
        closest: The minima nearest to them.
        rng: Source of the rotations.

    Returns:
        The change over the square of the angle.
    """
    count, _, dimension = points.shape
    turn = to_tensor(rng.standard_normal((count, dimension, dimension)), dtype=torch.float64)
    skew = turn - turn.mT
    skew = skew / torch.linalg.matrix_norm(skew)[:, None, None]
    turned = closest @ torch.linalg.matrix_exp(SMALL_ANGLE * skew)
    # The difference of two squares, without their cancellation.
    return float(((closest - turned) * (2 * points - closest - turned)).sum((-2, -1)).min() / SMALL_ANGLE**2)


def spectrum_error(
    covariance: Covariance, true_map: TrueMap, singular_values: Float[Tensor, " dimension"], rng: np.random.Generator
) -> float:
    r"""Return the error of the predicted eigenvalues of the Hessian at a random minimum, by automatic differentiation.

    Args:
        covariance: $\Sigma$.
        true_map: $A$.
        singular_values: Of $A\Sigma^{1/2}$.
        rng: Source of the rotation $Q$.

    Returns:
        Largest difference.
    """
    target = true_map @ square_roots(covariance)[0]
    turn = np.linalg.qr(rng.standard_normal((len(singular_values), len(singular_values))))[0]
    point = minimum(target) @ to_tensor(turn, dtype=torch.float64)
    hessian = torch.autograd.functional.hessian(lambda z: landscape.regularised_loss(z, target), point)
    eigenvalues = torch.linalg.eigvalsh(hessian.reshape(point.numel(), -1))
    return float((eigenvalues - landscape.hessian_spectrum(singular_values, len(true_map))).abs().max())


def polynomial_degree(values: Float[Tensor, "*values"]) -> int:
    """Return the degree of a polynomial of one variable, from its finite differences.

    Args:
        values: At 0, 1, 2 and so on; numbers, or matrices.

    Returns:
        The order of the last finite difference that is not rounding.

    Example:
        >>> polynomial_degree(torch.tensor([0.0, 0.0, 6.0, 24.0, 60.0, 120.0]))
        3
    """
    size, degree = values.abs().max(), 0
    for order in range(1, len(values)):
        values = values.diff(dim=0)
        if values.abs().max() > 1e-9 * size:
            degree = order
    return degree


def penalty_degrees(value: Tensor, key_query: Tensor, covariance: Tensor) -> list[list[int]]:
    r"""Return the degrees in the covariance of the gradients of three regularisers, by automatic differentiation.

    Args:
        value: $U$.
        key_query: $V$.
        covariance: $\Sigma$.

    Returns:
        Degrees of the gradients for both layers, a row for each of :data:`WEIGHTS`.
    """
    found = []
    for weight in WEIGHTS:
        gradients = []
        for scale in range(8):
            outer, inner = (layer.clone().requires_grad_() for layer in (value, key_query))
            gradients.append(torch.autograd.grad(_weighted(outer, inner, scale * covariance, weight), (outer, inner)))
        found.append([polynomial_degree(torch.stack(one)) for one in zip(*gradients, strict=True)])
    return found


def _weighted(value: Tensor, key_query: Tensor, covariance: Tensor, weight: str) -> Tensor:
    r"""$\|\Sigma^{1/2}B\Sigma^{1/2}\|_F^2$, $\|\Sigma B\|_F^2$ or $\|B\|_F^2$."""
    if weight == "two-sided":
        return balance_penalty(value, key_query, covariance=covariance)
    unbalanced = value.mT @ value - key_query @ covariance @ key_query.mT
    return (covariance @ unbalanced if weight == "one-sided" else unbalanced).square().sum()
