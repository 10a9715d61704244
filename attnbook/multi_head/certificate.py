r"""Theorem 1 with explicit constants, tracking each head by itself (this book).

The proof bounds the norm of the largest head by the distance that *all* heads travel together. But the gradient of one
head carries a factor $1/\sqrt H$, so no head travels far. Keeping track of that:

Let all heads at the start have norm at most $B_0$, put $B=B_0+\frac58$, and let the target have heads of norm at most
$B$ and distance $D$. With $\beta_1$ and $\beta_3'$ of :func:`~attnbook.multi_head.curvature_bounds.loss_constants` at
$B$ and $\beta_2'=\beta_3'/\sqrt H+\beta_1^2/4$, the conclusions of Theorem 1 hold if

.. math:: \sqrt H\ge18\,\beta_3'D^2,\quad\eta\le\frac1{\beta_2'},\quad\eta\hat L(\tilde\theta^{(0)})\le D^2,\quad
          \eta K\hat L(\tilde\theta)\le D^2.

Why: as long as the heads stay below $B$ the paper's proof gives $\eta\sum_{j<k}\hat L(\tilde\theta_j)\le4.25D^2$. A
head moves at most $\eta\beta_1/\sqrt H$ times that sum of losses, so at most $\frac{4.25}{18}\,\beta_1/\beta_3'$. Since
$\beta_1/\beta_3'\le2/c$ with $c=4/(3\sqrt3)$, this is below $\frac58$: the heads stay below $B$.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from attnbook.multi_head.curvature_bounds import loss_constants

__all__ = ["ROOM", "TrackedHeads", "heads_for", "tracked_heads"]

ROOM = 5 / 8
"""How far a single head may move; above $(4.25/18)(2/c)$, about 0.61."""


@dataclass(frozen=True)
class TrackedHeads:
    r"""What is allowed when every head is tracked by itself.

    Attributes:
        step_size: Largest step size $1/\beta_2'$.
        distance: Largest distance $D$ of a target.
        head_norm: The bound $B$ on the norm of every head.
        curvature: $\beta_3'$ at $B$.
    """

    step_size: float
    distance: float
    head_norm: float
    curvature: float


def tracked_heads(
    *, n_tokens: int, dimension: int, n_heads: float, token_norm: float, start_head_norm: float
) -> TrackedHeads:
    r"""Return the step size and the distance of a target for which Theorem 1 holds, all constants included.

    Args:
        n_tokens: $T$, at least 1.
        dimension: $d$, at least 1; nothing depends on it.
        n_heads: $H$, at least 1.
        token_norm: $R$, at least 1.
        start_head_norm: $B_0$, at least 0.

    Returns:
        What is allowed.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> allowed = tracked_heads(n_tokens=4, dimension=6, n_heads=1e8, token_norm=1.0, start_head_norm=0.375)
        >>> round(allowed.step_size, 3), round(allowed.distance, 1), allowed.head_norm
        (0.111, 12.5, 1.0)
    """
    if not n_heads >= 1:
        raise ValueError(f"n_heads: expected at least 1, got {n_heads}")
    constants = loss_constants(
        n_tokens=n_tokens,
        dimension=dimension,
        n_heads=1,
        token_norm=token_norm,
        largest_head_norm=start_head_norm + ROOM,
    )
    curvature, root = constants.dimension_free_curvature, math.sqrt(n_heads)
    smoothness = curvature / root + constants.gradient**2 / 4
    return TrackedHeads(1 / smoothness, math.sqrt(root / (18 * curvature)), start_head_norm + ROOM, curvature)


def heads_for(distance: float, *, n_tokens: int, dimension: int, token_norm: float, start_head_norm: float) -> float:
    r"""Return $(18\,\beta_3'D^2)^2$, the heads for which a target at this distance is allowed.

    Args:
        distance: $D$, at least 0.
        n_tokens: $T$, at least 1.
        dimension: $d$, at least 1; nothing depends on it.
        token_norm: $R$, at least 1.
        start_head_norm: $B_0$, at least 0.

    Returns:
        A number of heads, at least 1.

    Raises:
        ValueError: If an argument is outside its range.
    """
    if not 0 <= distance < math.inf:
        raise ValueError(f"distance: expected a finite number of at least 0, got {distance}")
    allowed = tracked_heads(
        n_tokens=n_tokens, dimension=dimension, n_heads=1, token_norm=token_norm, start_head_norm=start_head_norm
    )
    return max(1.0, (18 * allowed.curvature * distance**2) ** 2)
