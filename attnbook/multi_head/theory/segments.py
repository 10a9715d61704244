r"""Proposition 4: how large the loss can be between two networks (generalised local quasi-convexity)."""

from __future__ import annotations

import math

from attnbook.multi_head.theory.curvature import loss_constants

__all__ = ["LARGEST_RISE", "allowed_distance", "condition_excess", "nearer_end_rise"]

LARGEST_RISE = 4 / 3
"""The factor of Proposition 4 on the larger loss of the two ends."""


def nearer_end_rise(excess: float) -> float:
    r"""Return $1/(1-e/16)$, how far the loss can rise above the larger end (this book).

    On the segment the second derivative is at least $-\frac e2$ times the largest loss $M$, where $e$ is
    :func:`condition_excess`. At an interior maximum the slope is zero, and the *nearer* end is at most half the segment
    away, so its loss is at least $M(1-\frac12\cdot\frac e2\cdot\frac14)$. With either end, at most the whole segment
    away, it would be $M(1-\frac e4)$: the paper's $\frac43$ at $e=1$, in the place of $\frac{16}{15}$.

    Args:
        excess: $e$, at least 0 and below 16.

    Returns:
        The factor.

    Raises:
        ValueError: If the excess is outside its range.

    Example:
        >>> nearer_end_rise(1.0) == 16 / 15
        True
    """
    if not 0 <= excess < 16:
        raise ValueError(f"excess: expected a number of at least 0 and below 16, got {excess}")
    return 1 / (1 - excess / 16)


def condition_excess(
    *, n_tokens: int, dimension: int, n_heads: int, token_norm: float, head_norm: float, distance: float
) -> float:
    r"""Return $2\beta_3\|\theta_1-\theta_2\|^2/\sqrt H$: condition (18) asks for at most 1.

    Args:
        n_tokens: $T$, at least 1.
        dimension: $d$, at least 1.
        n_heads: $H$, at least 1.
        token_norm: $R$, at least 1.
        head_norm: The largest norm of a head in either network.
        distance: Distance of the two networks, at least 0.

    Returns:
        The excess $e$.

    Raises:
        ValueError: If an argument is outside its range.
    """
    if not 0 <= distance < math.inf:
        raise ValueError(f"distance: expected a finite number of at least 0, got {distance}")
    constants = loss_constants(
        n_tokens=n_tokens, dimension=dimension, n_heads=n_heads, token_norm=token_norm, largest_head_norm=head_norm
    )
    return 2 * constants.curvature * distance**2 / math.sqrt(n_heads)


def allowed_distance(*, n_tokens: int, dimension: int, n_heads: int, token_norm: float, head_norm: float) -> float:
    r"""Return $(\sqrt H/(2\beta_3))^{1/2}$, the distance at which condition (18) holds with equality.

    Args:
        n_tokens: $T$, at least 1.
        dimension: $d$, at least 1.
        n_heads: $H$, at least 1.
        token_norm: $R$, at least 1.
        head_norm: The largest norm of a head in either network.

    Returns:
        The distance.

    Raises:
        ValueError: If an argument is outside its range.
    """
    constants = loss_constants(
        n_tokens=n_tokens, dimension=dimension, n_heads=n_heads, token_norm=token_norm, largest_head_norm=head_norm
    )
    return math.sqrt(math.sqrt(n_heads) / (2 * constants.curvature))
