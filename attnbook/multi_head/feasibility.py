r"""Section 5.3: can the training theorem reach the margin of attention from a zero start?

The target is $H$ equal heads with $\|U_h\|=\frac{\log n}{\gamma\sqrt H}$, so that the loss is small, and $\|W_h\|\ge
S^{-2}$, so that attention saturates. The head condition (12) asks for $\sqrt H\ge S^5\|\tilde\theta\|^3$. All hidden
constants are set to 1 here, and $\gamma=\gamma_{attn}$ to $S$.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

__all__ = ["allowed_constant", "constant_limits", "largest_allowed_constant", "target_norm"]


def target_norm(
    pattern_norm: Float[np.ndarray, "*#sizes"],
    n_heads: Float[np.ndarray, "*#sizes"],
    n_samples: float,
    *,
    scaling: float = 0.5,
) -> Float[np.ndarray, "*#sizes"]:
    r"""Return $\|\tilde\theta\|=\sqrt{(\frac{\log n}SH^{c-1/2})^2+H/S^4}$ of the smallest saturating target.

    With heads summed as $H^{-c}\sum_h\Phi_h$ the loss stays small for $\|U_h\|=\frac{\log n}S H^{c-1}$.

    Args:
        pattern_norm: $S$, positive.
        n_heads: $H$, at least 1.
        n_samples: $n$, above 1.
        scaling: The power $c$; default 1/2, as in the paper.

    Returns:
        The norm of all heads together.

    Raises:
        ValueError: If an argument is outside its range.
    """
    s, heads = _check(pattern_norm, n_heads, n_samples)
    return np.asarray(np.sqrt((np.log(n_samples) / s * heads ** (scaling - 0.5)) ** 2 + heads / s**4))


def allowed_constant(
    pattern_norm: Float[np.ndarray, "*#sizes"],
    n_heads: Float[np.ndarray, "*#sizes"],
    n_samples: float,
    *,
    literal: bool = False,
    scaling: float = 0.5,
    target_scaling: float | None = None,
) -> Float[np.ndarray, "*#sizes"]:
    r"""Return the largest $k$ for which $H^c\ge k\,S^5\|\tilde\theta\|^3$ holds; (12) holds where it is at least 1.

    Args:
        pattern_norm: $S$, positive.
        n_heads: $H$, at least 1.
        n_samples: $n$, above 1.
        literal: Whether the factor $\|\tilde\theta\|_{2,\infty}$ of condition (3), the norm of one head, is kept also
            below 1; default no, as in (12).
        scaling: The power $c$ of the heads' scaling $H^{-c}$; default 1/2, as in the paper.
        target_scaling: The power for which the target's loss is small; default the same. 1/2 leaves the target of
            Section 5.3 as it is printed.

    Returns:
        The constant, in each place.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> float(allowed_constant(np.array(1.0), np.array(1.0), np.e).round(3))
        0.354
    """
    norm = target_norm(pattern_norm, n_heads, n_samples, scaling=scaling if target_scaling is None else target_scaling)
    needed = np.asarray(pattern_norm) ** 5 * norm**3
    if literal:
        needed = needed * norm / np.sqrt(n_heads)
    return np.asarray(np.asarray(n_heads) ** scaling / needed)


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
    s, _ = _check(pattern_norm, np.ones(()), float(np.min(n_samples)))
    return np.asarray(2 / (3 * np.sqrt(3)) / (s * np.log(n_samples) ** 2))


def constant_limits(power: float, n_heads: float, n_samples: float) -> tuple[float, float]:
    r"""Return the largest and the smallest $C$ that the two conditions of Section 5.3 leave to $\|W_h\|=CH^{-p}$.

    The case $\|\tilde W\|\ge\|\tilde U\|$, where $\|\tilde\theta\|$ counts as $\|\tilde W\|=CH^{1/2-p}$. Two lower
    bounds on $S$ go into (12): saturation, $S\ge C^{-1/2}H^{p/2}$, and the case itself, $S\ge\frac{\log n}CH^{p-1/2}$.
    Where (12) is an equality is found by bisection, so that no algebra of the paper enters.

    Args:
        power: $p$.
        n_heads: $H$, at least 1.
        n_samples: $n$, above 1.

    Returns:
        The largest $C$ by saturation, the smallest by the case.

    Raises:
        ValueError: If an argument is outside its range.
    """
    from scipy.optimize import brentq  # loaded where an equation is solved: it takes a second

    _check(np.ones(()), np.asarray(n_heads), n_samples)
    log_h = np.log(n_heads)

    def spare(log_c: float, log_s: float) -> float:
        return float(log_h / 2 - 5 * log_s - 3 * (log_c + (0.5 - power) * log_h))

    def saturation(log_c: float) -> float:
        return spare(log_c, (power * log_h - log_c) / 2)

    def case(log_c: float) -> float:
        return spare(log_c, float(np.log(np.log(n_samples))) - log_c + (power - 0.5) * log_h)

    largest, smallest = (brentq(condition, -1e3, 1e3, xtol=1e-12) for condition in (saturation, case))
    return float(np.exp(largest)), float(np.exp(smallest))


def _check(pattern_norm: np.ndarray, n_heads: np.ndarray, n_samples: float) -> tuple[np.ndarray, np.ndarray]:
    s, heads = np.asarray(pattern_norm, dtype=np.float64), np.asarray(n_heads, dtype=np.float64)
    if not (s > 0).all():
        raise ValueError(f"pattern_norm: expected positive numbers, got {s.min()}")
    if not (heads >= 1).all():
        raise ValueError(f"n_heads: expected numbers of at least 1, got {heads.min()}")
    if not n_samples > 1:
        raise ValueError(f"n_samples: expected above 1, got {n_samples}")
    return s, heads
