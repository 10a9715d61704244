r"""The bound (3) in the one-sided norm $\mathrm{tr}(\theta^\top\bar\Sigma\theta)^{1/2}$, where conditioning costs.

The inner product of gradient and displacement is the same in all coordinates; only the norm changes. In whitened
coordinates the one-sided norm is $\mathrm{tr}(H\Sigma^{-1}H^\top)$.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.rng import to_tensor
from attnbook.preconditioning.theory import landscape
from attnbook.preconditioning.theory.manifold import minimum, sideways

__all__ = ["one_sided_ratio"]


def one_sided_ratio(
    singular_values: Float[Tensor, " dimension"],
    n_outputs: int,
    condition_number: float,
    directions: int,
    rng: np.random.Generator,
) -> float:
    r"""Return the smallest $\langle\nabla,H\rangle/(s_d\lambda_d\|H\|^2)$ that was found, $\|H\|$ the one-sided norm.

    Within the radius $s_d/(3\sqrt{2s_1\lambda_1})$, over all minima $Z_*Q$. Random ones come with random displacements;
    the least favourable one has its weakest column along the eigenvector of $\lambda_d(\Sigma)$, and is displaced along
    the flattest direction there.

    Args:
        singular_values: Of $A\Sigma^{1/2}$, largest first.
        n_outputs: Number of outputs $m$, at least the dimension.
        condition_number: $\kappa(\Sigma)$.
        directions: Number of random minima, each with its own displacement.
        rng: Source of randomness.

    Returns:
        The ratio; the bound says at least one half.
    """
    dimension, like = len(singular_values), {"device": singular_values.device, "dtype": singular_values.dtype}
    # Without loss of generality the covariance is diagonal.
    eigenvalues = torch.logspace(0.5, -0.5, dimension, base=condition_number, **like)
    whitened_map = torch.cat([singular_values.diag(), torch.zeros(n_outputs - dimension, dimension, **like)])
    start = minimum(whitened_map)
    # The canonical minimum has its weakest column last, where the smallest eigenvalue is.
    draws = rng.standard_normal((directions, dimension, dimension))
    rotations = torch.linalg.qr(to_tensor(draws, device=like["device"], dtype=torch.float64)).Q
    base = torch.cat([start.expand(1, -1, -1), start @ rotations])
    flat = landscape.worst_direction(start, 1e-6).unsqueeze(0)
    random = to_tensor(
        rng.standard_normal((directions, len(start), dimension)), device=like["device"], dtype=torch.float64
    )
    away = sideways(torch.cat([flat, random]), base)
    norm = (away.square() / eigenvalues).sum((-2, -1)).sqrt()
    radius = singular_values[-1] / (3 * (2 * singular_values[0] * eigenvalues[0]).sqrt())
    shares = torch.cat([torch.ones(1, **like), torch.linspace(0.05, 1, directions, **like)])
    displacement = away * (shares * radius / norm)[:, None, None]
    slope = landscape.gradient(base + displacement, whitened_map)
    products = (slope * displacement).sum((-2, -1))
    squares = (displacement.square() / eigenvalues).sum((-2, -1))
    return float((products / (singular_values[-1] * eigenvalues[-1] * squares)).min())
