r"""The set of global minima of the regularised population loss, and the projection onto it.

In whitened coordinates a pair of layers is one matrix, a *point*.

==========================  ====================  ====================================================================
paper                       name here             meaning, shape
==========================  ====================  ====================================================================
$Z$                         ``point``             $\tilde U=U\Sigma^{1/2}$ above $\tilde V^\top$, ``(..., m + d, d)``
$\tilde A=A\Sigma^{1/2}$    ``whitened_map``      the linear teacher, ``(..., m, d)``
$Z_*$                       ``minimum``           a global minimum; all others are $Z_*Q$ with $Q$ orthogonal
$\Pi(Z)$                    ``nearest``           the global minimum nearest to $Z$
$H=Z-\Pi(Z)$                ``displacement``      from the nearest minimum, ``(..., m + d, d)``
$s_1\ge\dots\ge s_d$        ``singular_values``   of $\tilde A$
==========================  ====================  ====================================================================

All functions take leading batch axes. The formulas are this book's reconstruction: the text available to us has none.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.preconditioning.population import spectral_factors, square_roots, whiten

__all__ = ["minimum", "nearest", "sideways", "split", "stack", "unstack"]

Point = Float[Tensor, "*#batch stacked dimension"]
Map = Float[Tensor, "*#batch outputs dimension"]
Square = Float[Tensor, "*#batch dimension dimension"]


def stack(value: Map, key_query: Square, *, covariance: Square) -> Point:
    r"""Return the point $Z$ of two layers: $U\Sigma^{1/2}$ above the transpose of $\Sigma^{1/2}V\Sigma^{1/2}$.

    Args:
        value: $U$.
        key_query: $V$.
        covariance: $\Sigma$.

    Returns:
        The point.

    Raises:
        ValueError: If the covariance is not symmetric and positive definite.
    """
    whitened_value, whitened_key_query = whiten(value, key_query, covariance=covariance)
    return torch.cat([whitened_value, whitened_key_query.mT], dim=-2)


def unstack(point: Point, *, covariance: Square) -> tuple[Map, Square]:
    r"""Return the layers of a point: the inverse of :func:`stack`.

    Args:
        point: $Z$.
        covariance: $\Sigma$.

    Returns:
        ``value`` and ``key_query``.

    Raises:
        ValueError: If the covariance is not symmetric and positive definite.
    """
    _, inverse = square_roots(covariance)
    value, key_query = split(point)
    return value @ inverse, inverse @ key_query.mT @ inverse


def split(point: Point) -> tuple[Map, Square]:
    r"""Return the two blocks of a point, $\tilde U$ and $\tilde V^\top$.

    Args:
        point: $Z$.

    Returns:
        The upper and the lower block.
    """
    dimension = point.shape[-1]
    return point[..., :-dimension, :], point[..., -dimension:, :]


def minimum(whitened_map: Map) -> Point:
    r"""Return one global minimum, $Z_*=[PD^{1/2};\,RD^{1/2}]$ with $\tilde A=PDR^\top$; all others are $Z_*Q$.

    Args:
        whitened_map: $\tilde A$.

    Returns:
        The point; of lower rank if there are fewer outputs than inputs.
    """
    one = torch.eye(whitened_map.shape[-1], dtype=whitened_map.dtype, device=whitened_map.device)
    value, key_query, _ = spectral_factors(whitened_map, one)
    return torch.cat([value, key_query.mT], dim=-2)


def nearest(point: Point, whitened_map: Map) -> Point:
    r"""Return $\Pi(Z)$, the global minimum nearest to a point, by orthogonal Procrustes.

    With the singular value decomposition $Z_*^\top Z=W\Lambda T^\top$ it is $Z_*WT^\top$.

    Args:
        point: $Z$.
        whitened_map: $\tilde A$.

    Returns:
        The nearest minimum; one of them, where several are equally near.

    Example:
        >>> nearest(torch.tensor([[-5.0], [1.0]]), torch.tensor([[4.0]]))
        tensor([[-2.],
                [-2.]])
    """
    start = minimum(whitened_map)
    left, _, right = torch.linalg.svd(start.mT @ point)
    return start @ left @ right


def sideways(direction: Point, base: Point) -> Point:
    r"""Return the part of a direction that leads away from the set of minima: without its part along the orbit.

    The orbit of a minimum under $Q$ has the tangents $Z_*\Omega$ with $\Omega$ skew. A direction $H$ without them has a
    symmetric $Z_*^\top H$, and for $\|H\|^2\le2s_d$ the minimum nearest to $Z_*+H$ is then $Z_*$ itself.

    Args:
        direction: Any direction.
        base: A global minimum $Z_*$ of full rank.

    Returns:
        The direction less its tangential part.
    """
    eigenvalues, axes = torch.linalg.eigh(base.mT @ base)
    product = base.mT @ direction
    twisted = axes.mT @ (product - product.mT) @ axes
    skew = twisted / (eigenvalues.unsqueeze(-1) + eigenvalues.unsqueeze(-2))
    return direction - base @ (axes @ skew @ axes.mT)
