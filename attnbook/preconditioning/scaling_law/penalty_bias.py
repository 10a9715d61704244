r"""The bias of the regulariser's gradient when the covariance is estimated (Theorem 5)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.preconditioning.population import penalty_gradient

__all__ = ["draw_covariances", "penalty_bias"]


def penalty_bias(
    layers: tuple[Float[Tensor, "outputs dimension"], Float[Tensor, "dimension dimension"]],
    covariance: Float[Tensor, "dimension dimension"],
    n_samples: Sequence[int],
    *,
    draws: int,
    rng: np.random.Generator,
) -> Float[np.ndarray, " counts"]:
    r"""Return $\|\mathbb E\nabla\hat{\mathcal R}-\nabla\mathcal R\|_F^2$ by Monte Carlo.

    The part of the gradient that is linear in $\hat\Sigma-\Sigma$ has mean zero and is left out of the average; it
    would be most of the noise.

    Args:
        layers: $U$ and $V$.
        covariance: $\Sigma$; float64.
        n_samples: Numbers of samples behind each estimate, each at least the dimension.
        draws: Estimates drawn for each.
        rng: Source of randomness.

    Returns:
        One number per number of samples.
    """
    root = torch.linalg.cholesky(covariance)

    def gradient(estimate: Tensor) -> Tensor:
        return torch.cat(penalty_gradient(*layers, covariance=estimate), dim=-2)

    found = []
    for n in n_samples:
        drawn = torch.as_tensor(draw_covariances(draws, n, len(covariance), rng))
        error = root @ drawn @ root.mT - covariance
        one, two = (gradient(covariance + k * error) - gradient(covariance - k * error) for k in (1, 2))
        linear = (8 * one - two) / 12  # exact, as the gradient is of degree four in the estimate
        change = gradient(covariance + error) - gradient(covariance) - linear
        found.append(float(change.mean(0).square().sum()))
    return np.array(found)


def draw_covariances(
    draws: int, n_samples: int, dimension: int, rng: np.random.Generator
) -> Float[np.ndarray, "draws dimension dimension"]:
    """Draw sample covariances of standard Gaussian inputs without the inputs, by Bartlett's decomposition.

    Args:
        draws: How many.
        n_samples: Samples behind each, at least ``dimension``.
        dimension: Number of inputs.
        rng: Source of randomness.

    Returns:
        The estimates, not centred.

    Raises:
        ValueError: If there are fewer samples than dimensions.

    Example:
        >>> many = draw_covariances(10_000, 50, 2, np.random.default_rng(0))
        >>> bool(np.allclose(many.mean(axis=0), np.eye(2), atol=0.02))
        True
    """
    if n_samples < dimension:
        raise ValueError(f"n_samples: expected at least the dimension {dimension}, got {n_samples}")
    lower = np.tril(rng.standard_normal((draws, dimension, dimension)), -1)
    degrees = n_samples - np.arange(dimension)
    lower[:, range(dimension), range(dimension)] = np.sqrt(rng.chisquare(degrees, (draws, dimension)))
    return lower @ lower.swapaxes(-1, -2) / n_samples
