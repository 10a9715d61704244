r"""The shape of the regularised population loss near its minima: gradient, Hessian and the two bounds of Theorem 1.

In the whitened coordinates of :mod:`~attnbook.preconditioning.manifold`, with $H=Z-\Pi(Z)$ and $r=\|H\|^2/s_d$:

* (3) one-point convexity: $\langle\nabla L_{\mathcal R},H\rangle\ge(1-\frac58r)\,s_d\|H\|^2$, hence at least
  $\frac12s_d\|H\|^2$ for $r\le\frac45$;
* (4) smoothness: $\|\nabla L_{\mathcal R}\|\le5.3\,s_1\|H\|$ there; the sharp form is :func:`growing_ratio`.

The constants are this book's, in the two-sided geometry; those of the paper are missing in the text available to us.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.preconditioning.manifold import Map, Point, split

__all__ = [
    "RADIUS",
    "SADDLE",
    "SMOOTHNESS",
    "curvature",
    "gradient",
    "growing_ratio",
    "hessian_spectrum",
    "one_point_bound",
    "regularised_loss",
    "shrinking_ratio",
]

RADIUS = 0.8
r"""Theorem 1 holds for $\|H\|^2\le\frac45s_d$."""
SMOOTHNESS = 5.3
r"""The constant of (4), $\|\nabla L_{\mathcal R}\|\le5.3\,s_1\|H\|$."""
SADDLE = 2.0
r"""Square of the distance from the minima to the nearest saddle, over $s_d$."""


def regularised_loss(point: Point, whitened_map: Map, penalty: float = 1.0) -> Float[Tensor, "*batch"]:
    r"""Return $\frac12\|\tilde U\tilde V-\tilde A\|_F^2+\frac18\|\tilde U^\top\tilde U-\tilde V\tilde V^\top\|_F^2$.

    Args:
        point: $Z$.
        whitened_map: $\tilde A$.
        penalty: Weight of the regulariser; default 1.

    Returns:
        $L_{\mathcal R}-L^*$.
    """
    value, key_query = split(point)
    error, unbalanced = value @ key_query.mT - whitened_map, value.mT @ value - key_query.mT @ key_query
    return error.square().sum((-2, -1)) / 2 + penalty * unbalanced.square().sum((-2, -1)) / 8


def gradient(point: Point, whitened_map: Map) -> Point:
    r"""Return $\nabla L_{\mathcal R}=\frac12ZZ^\top Z-MZ$, where $M$ holds $\tilde A$ and $\tilde A^\top$.

    Args:
        point: $Z$.
        whitened_map: $\tilde A$.

    Returns:
        The gradient, a point.

    Example:
        >>> gradient(torch.tensor([[1.0], [1.0]]), torch.tensor([[4.0]]))
        tensor([[-3.],
                [-3.]])
    """
    return point @ (point.mT @ point) / 2 - _swap(point, whitened_map)


def curvature(point: Point, direction: Point, whitened_map: Map) -> Point:
    r"""Return the Hessian of $L_{\mathcal R}$ at a point, applied to a direction $K$.

    It is $\frac12(KZ^\top Z+ZK^\top Z+ZZ^\top K)-MK$.

    Args:
        point: $Z$.
        direction: $K$.
        whitened_map: $\tilde A$.

    Returns:
        The product, a point.
    """
    cubic = direction @ (point.mT @ point) + point @ (direction.mT @ point) + point @ (point.mT @ direction)
    return cubic / 2 - _swap(direction, whitened_map)


def hessian_spectrum(
    singular_values: Float[Tensor, " dimension"], n_outputs: int, penalty: float = 1.0
) -> Float[Tensor, " stacked_times_dimension"]:
    r"""Return all eigenvalues of the Hessian of $L_{\mathcal R}$ at a global minimum, smallest first.

    The loss gives $s_i+s_j$ for all ordered pairs and each $s_j$ another $m-d$ times. The regulariser gives $s_i+s_j$,
    times its weight, for $i\le j$. Zero remains for the $d(d-1)/2$ rotations.

    Args:
        singular_values: Of $\tilde A$, positive.
        n_outputs: Number of outputs $m$, at least the dimension $d$.
        penalty: Weight of the regulariser, at least 0; default 1.

    Returns:
        The eigenvalues, $(m+d)d$ of them.

    Raises:
        ValueError: If there are fewer outputs than singular values.

    Example:
        >>> hessian_spectrum(torch.tensor([0.5]), 2)
        tensor([0.5000, 1.0000, 1.0000])
    """
    dimension = len(singular_values)
    if n_outputs < dimension:
        raise ValueError(f"n_outputs: expected at least the number of singular values, {dimension}, got {n_outputs}")
    sums = singular_values.unsqueeze(0) + singular_values.unsqueeze(1)
    balance = penalty * sums.triu()  # below the diagonal: the zeros of the rotations
    return torch.cat([balance.flatten(), sums.flatten(), singular_values.repeat(n_outputs - dimension)]).sort().values


def one_point_bound(squared_distance: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    r"""Return the lower bound $1-\frac58r$ on $\langle\nabla L_{\mathcal R},H\rangle/(s_d\|H\|^2)$, $r=\|H\|^2/s_d$.

    Args:
        squared_distance: $r$, at most 2: the nearest saddle is there.

    Returns:
        The bound; one half at $r=0.8$, which is (3).
    """
    return 1 - 5 * squared_distance / 8


def shrinking_ratio(squared_distance: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    r"""Return $\langle\nabla L_{\mathcal R},H\rangle/(s_d\|H\|^2)$ when the weakest column of a minimum is shrunk.

    Args:
        squared_distance: $r=\|H\|^2/s_d$.

    Returns:
        $(1-t)(2-t)$ with $t=\sqrt{r/2}$, which is zero at $r=2$, where the column is gone and the point is a saddle.
    """
    t = (squared_distance / SADDLE).sqrt()
    return (1 - t) * (2 - t)


def growing_ratio(squared_distance: Float[Tensor, "*batch"], spread: float) -> Float[Tensor, "*batch"]:
    r"""Return $\|\nabla L_{\mathcal R}\|/(s_1\|H\|)$ when the strongest column of a minimum grows, its largest value.

    Args:
        squared_distance: $r=\|H\|^2/s_d$.
        spread: $s_d/s_1$.

    Returns:
        $(1+g)(2+g)$ with $g=\|H\|/\sqrt{2s_1}$; for a spread of one it is 4.30 at $r=0.8$.
    """
    grown = (squared_distance * spread / 2).sqrt()
    return (1 + grown) * (2 + grown)


def _swap(point: Tensor, whitened_map: Tensor) -> Tensor:
    r"""$MZ$: $\tilde A\tilde V^\top$ above $\tilde A^\top\tilde U$."""
    value, key_query = split(point)
    return torch.cat([whitened_map @ key_query, whitened_map.mT @ value], dim=-2)
