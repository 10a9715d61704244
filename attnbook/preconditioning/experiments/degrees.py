"""Degrees in the covariance of the gradients of three regularisers, held against the words of Theorem 5."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from attnbook.preconditioning.theory.population import balance_penalty

__all__ = ["WEIGHTS", "penalty_degrees", "polynomial_degree"]

WEIGHTS = ("two-sided", "one-sided", "none")
"""Weights of the regulariser whose gradients are compared with the words of Theorem 5."""


def polynomial_degree(function: Callable[[float], Tensor], most: int = 6) -> int:
    """Return the degree of a polynomial of one variable, from its finite differences.

    Args:
        function: The polynomial; its values may be matrices.
        most: Largest degree it can have.

    Returns:
        The order of the last finite difference that is not rounding.

    Example:
        >>> polynomial_degree(lambda c: torch.tensor([c**3 - c, 1.0], dtype=torch.float64))
        3
    """
    values = torch.stack([function(float(c)) for c in range(most + 2)])
    size, degree = values.abs().max(), 0
    for order in range(1, most + 2):
        values = values.diff(dim=0)
        if values.abs().max() > 1e-9 * size:
            degree = order
    return degree


def penalty_degrees(value: Tensor, key_query: Tensor, covariance: Tensor) -> np.ndarray:
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

        def gradients(scale: float, weight: str = weight) -> tuple[Tensor, ...]:
            outer, inner = value.clone().requires_grad_(), key_query.clone().requires_grad_()
            return torch.autograd.grad(_weighted(outer, inner, scale * covariance, weight), (outer, inner))

        found.append([polynomial_degree(lambda c, at=at, of=gradients: of(c)[at]) for at in (0, 1)])  # type: ignore[misc]  # mypy infers no type for this lambda
    return np.array(found, dtype=np.float64)


def _weighted(value: Tensor, key_query: Tensor, covariance: Tensor, weight: str) -> Tensor:
    r"""$\|\Sigma^{1/2}B\Sigma^{1/2}\|_F^2$, $\|\Sigma B\|_F^2$ or $\|B\|_F^2$."""
    if weight == "two-sided":
        return balance_penalty(value, key_query, covariance=covariance)
    unbalanced = value.mT @ value - key_query @ covariance @ key_query.mT
    return (covariance @ unbalanced if weight == "one-sided" else unbalanced).square().sum()
