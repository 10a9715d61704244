r"""Section 5.3: can the theory reach the margin of attention from a zero start?

The target is $H$ equal heads with $\|U_h\|=\frac{\log n}{\gamma\sqrt H}$, so that the loss is small, and $\|W_h\|\ge
S^{-2}$, so that attention saturates. The head condition (12) asks for $\sqrt H\ge S^5\|\tilde\theta\|^3$. All hidden
constants are set to 1 here, and $\gamma=\gamma_{attn}$ to $S$.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

__all__ = ["allowed_constant", "boundaries", "largest_allowed_constant", "largest_head", "target_norm"]


def target_norm(
    pattern_norm: Float[np.ndarray, "*#sizes"], n_heads: Float[np.ndarray, "*#sizes"], n_samples: float
) -> Float[np.ndarray, "*#sizes"]:
    r"""Return $\|\tilde\theta\|=\sqrt{(\log n/S)^2+H/S^4}$ of the smallest saturating target.

    Args:
        pattern_norm: $S$, positive.
        n_heads: $H$, at least 1.
        n_samples: $n$, above 1.

    Returns:
        The norm of all heads together.

    Raises:
        ValueError: If an argument is outside its range.
    """
    s, heads = _check(pattern_norm, n_heads, n_samples)
    return np.asarray(np.sqrt((np.log(n_samples) / s) ** 2 + heads / s**4))


def largest_head(
    pattern_norm: Float[np.ndarray, "*#sizes"], n_heads: Float[np.ndarray, "*#sizes"], n_samples: float
) -> Float[np.ndarray, "*#sizes"]:
    r"""Return $\|\tilde\theta\|_{2,\infty}=\|\tilde\theta\|/\sqrt H$ of the same target, whose heads are equal.

    Args:
        pattern_norm: $S$, positive.
        n_heads: $H$, at least 1.
        n_samples: $n$, above 1.

    Returns:
        The norm of one head.

    Raises:
        ValueError: If an argument is outside its range.
    """
    return np.asarray(target_norm(pattern_norm, n_heads, n_samples) / np.sqrt(n_heads))


def allowed_constant(
    pattern_norm: Float[np.ndarray, "*#sizes"],
    n_heads: Float[np.ndarray, "*#sizes"],
    n_samples: float,
    *,
    literal: bool = False,
) -> Float[np.ndarray, "*#sizes"]:
    r"""Return the largest $c$ for which $\sqrt H\ge c\,S^5\|\tilde\theta\|^3$ holds; (12) holds where it is at least 1.

    Args:
        pattern_norm: $S$, positive.
        n_heads: $H$, at least 1.
        n_samples: $n$, above 1.
        literal: Whether the factor $\|\tilde\theta\|_{2,\infty}$ of condition (3) is kept also below 1; default no, as
            in (12).

    Returns:
        The constant, in each place.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> float(allowed_constant(np.array(1.0), np.array(1.0), np.e).round(3))
        0.354
    """
    needed = np.asarray(pattern_norm) ** 5 * target_norm(pattern_norm, n_heads, n_samples) ** 3
    if literal:
        needed = needed * largest_head(pattern_norm, n_heads, n_samples)
    return np.asarray(np.sqrt(n_heads) / needed)


def largest_allowed_constant(
    pattern_norm: Float[np.ndarray, "*#sizes"], n_samples: Float[np.ndarray, "*#sizes"]
) -> Float[np.ndarray, "*#sizes"]:
    r"""Return $\frac2{3\sqrt3}\frac1{S\log^2n}$, the largest :func:`allowed_constant` over all $H$ (ours).

    Written with $x=H/(S\log n)^2$ the allowed constant is $\sqrt x\,(1+x)^{-3/2}/(S\log^2n)$, largest at $x=\frac12$.

    Args:
        pattern_norm: $S$, positive.
        n_samples: $n$, above 1; the shapes broadcast.

    Returns:
        The constant; below 1 for every $S\ge1$ and $n\ge3$, so (12) then holds for no $H$.

    Raises:
        ValueError: If an argument is outside its range.
    """
    if not np.min(n_samples) > 1:
        raise ValueError(f"n_samples: expected above 1, got {np.min(n_samples)}")
    s, _ = _check(pattern_norm, np.ones(()), float(np.min(n_samples)))
    return np.asarray(2 / (3 * np.sqrt(3)) / (s * np.log(n_samples) ** 2))


def boundaries(
    pattern_norm: Float[np.ndarray, " norms"], n_samples: float
) -> tuple[Float[np.ndarray, " norms"], Float[np.ndarray, " norms"]]:
    r"""Return the fewest heads that the value matrices need, and the most that the key-query matrices allow.

    From (12) with one of the two parts of $\|\tilde\theta\|$ at a time: $H\ge S^4\log^6n$ and $H\le S$.

    Args:
        pattern_norm: $S$, positive.
        n_samples: $n$, above 1.

    Returns:
        The two boundaries.

    Raises:
        ValueError: If an argument is outside its range.
    """
    s, _ = _check(pattern_norm, np.ones(()), n_samples)
    return np.asarray(s**4 * np.log(n_samples) ** 6), s.copy()


def _check(pattern_norm: np.ndarray, n_heads: np.ndarray, n_samples: float) -> tuple[np.ndarray, np.ndarray]:
    s, heads = np.asarray(pattern_norm, dtype=np.float64), np.asarray(n_heads, dtype=np.float64)
    if not (s > 0).all():
        raise ValueError(f"pattern_norm: expected positive numbers, got {s.min()}")
    if not (heads >= 1).all():
        raise ValueError(f"n_heads: expected numbers of at least 1, got {heads.min()}")
    if not n_samples > 1:
        raise ValueError(f"n_samples: expected above 1, got {n_samples}")
    return s, heads
