r"""The bound (3) in the one-sided norm $\mathrm{tr}(\theta^\top\bar\Sigma\theta)^{1/2}$, where conditioning costs.

The inner product of gradient and displacement is the same in all coordinates; only the norm changes. In whitened
coordinates the one-sided norm is $\mathrm{tr}(H\Sigma^{-1}H^\top)$.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

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
    values, dimension = singular_values.cpu().double(), len(singular_values)
    # Without loss of generality the covariance is diagonal.
    eigenvalues = torch.tensor(np.geomspace(condition_number**0.5, condition_number**-0.5, dimension))
    whitened_map = torch.cat([values.diag(), values.new_zeros(n_outputs - dimension, dimension)])
    start = minimum(whitened_map)
    # This minimum has its weakest column last, where the smallest eigenvalue is.
    turns = torch.linalg.qr(torch.tensor(rng.standard_normal((directions, dimension, dimension)))).Q
    base = torch.cat([start.unsqueeze(0), start @ turns])
    flat = landscape.worst_direction(start, 1e-6).unsqueeze(0)
    random = torch.tensor(rng.standard_normal((directions, *start.shape)))
    away = sideways(torch.cat([flat, random]), base)
    norm = (away.square() / eigenvalues).sum((-2, -1)).sqrt()
    radius = values[-1] / (3 * (2 * values[0] * eigenvalues[0]).sqrt())
    shares = torch.tensor([1.0, *np.linspace(0.05, 1, directions)], dtype=torch.float64)
    displacement = away * (shares * radius / norm)[:, None, None]
    products = (landscape.gradient(base + displacement, whitened_map) * displacement).sum((-2, -1))
    squares = (displacement.square() / eigenvalues).sum((-2, -1))
    return float((products / (values[-1] * eigenvalues[-1] * squares)).min())
