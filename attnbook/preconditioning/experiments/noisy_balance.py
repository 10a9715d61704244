"""The imbalance that a regulariser built from data leaves behind: by descent, and in closed form."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.preconditioning.theory.population import (
    excess_loss_gradient,
    imbalance,
    penalty_gradient,
    precondition,
    spectral_factors,
    square_roots,
)

__all__ = ["closed_form_imbalance", "settled_imbalance"]

Square = Float[Tensor, "*#batch dimension dimension"]
Map = Float[Tensor, "*#batch outputs dimension"]


def settled_imbalance(
    covariance: Square, true_map: Map, estimate: Square, step_size: float, steps: int
) -> Float[np.ndarray, "*batch"]:
    r"""Return where the imbalance settles: descent on $L+\hat{\mathcal R}$, preconditioned on both sides.

    The loss is the population's; the regulariser and the preconditioner are made from $\hat\Sigma$, as in Algorithm 1.
    It starts at the minimum that is balanced for the true covariance.

    Args:
        covariance: $\Sigma$.
        true_map: $A$.
        estimate: $\hat\Sigma$.
        step_size: $\eta$.
        steps: Number of steps.

    Returns:
        The imbalance at the end, measured with $\Sigma$.
    """
    value, key_query, _ = spectral_factors(true_map, covariance)
    inverse = torch.linalg.inv(estimate)
    for _ in range(steps):
        losses = excess_loss_gradient(value, key_query, covariance=covariance, true_map=true_map)
        penalties = penalty_gradient(value, key_query, covariance=estimate)
        sums = (losses[0] + penalties[0], losses[1] + penalties[1])
        for_value, for_key_query = precondition(sums, inverse, "two")
        value, key_query = value - step_size * for_value, key_query - step_size * for_key_query
    return imbalance(value, key_query, covariance=covariance).numpy()


def closed_form_imbalance(covariance: Square, true_map: Map, estimate: Square) -> Float[np.ndarray, "*batch"]:
    r"""Return the imbalance, measured with $\Sigma$, of the layers that fit $A$ and are balanced for $\hat\Sigma$.

    From $U\Sigma V=A$ and $U^\top U=V\hat\Sigma V^\top$ the factors $U\Sigma^{1/2}$ and $\Sigma^{1/2}V\hat\Sigma^{1/2}$
    are a balanced factorisation of $A\hat\Sigma^{1/2}$.

    Args:
        covariance: $\Sigma$.
        true_map: $A$.
        estimate: $\hat\Sigma$.

    Returns:
        The imbalance; zero if the estimate is exact.
    """
    _, inverse_root = square_roots(covariance)
    estimated_root, inverse_estimated_root = square_roots(estimate)
    one = torch.eye(covariance.shape[-1], dtype=covariance.dtype)
    outer, inner, _ = spectral_factors(true_map @ estimated_root, one)
    value, key_query = outer @ inverse_root, inverse_root @ inner @ inverse_estimated_root
    return imbalance(value, key_query, covariance=covariance).numpy()
