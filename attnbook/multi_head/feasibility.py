r"""Section 5.3: can the training theorem reach the margin of attention from a zero start?

The target is $H$ equal heads with $\|U_h\|=\frac{\log n}{\gamma\sqrt H}$, so that the loss is small, and $\|W_h\|\ge
S^{-2}$, so that attention saturates. The head condition (12) asks for $\sqrt H\ge S^5\|\tilde\theta\|^3$. All hidden
constants are set to 1 here, and $\gamma=\gamma_{attn}$ to $S$. Everywhere $S$ is positive, $H$ at least 1 and $n$ above
1; other numbers are a ValueError that names them.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from jaxtyping import Float

from attnbook.multi_head.checks import at_least, positive

__all__ = ["allowed_constant", "constant_limits"]


Sizes: TypeAlias = Float[np.ndarray, "*#sizes"]


def allowed_constant(
    pattern_norm: Sizes, n_heads: Sizes, n_samples: float, *, scaling: float = 0.5, target_scaling: float | None = None
) -> Sizes:
    r"""Return the largest $k$ for which $H^c\ge k\,S^5\|\tilde\theta\|^3$ holds; (12) holds where it is at least 1.

    With heads summed as $H^{-c}\sum_h\Phi_h$ the loss stays small for $\|U_h\|=\frac{\log n}S H^{c-1}$; then
    $\|\tilde\theta\|=\sqrt{(\frac{\log n}SH^{c-1/2})^2+H/S^4}$ for the smallest saturating target, all heads together.

    Here $c$ is ``scaling`` (default the paper's 1/2), and in $\|U_h\|$ ``target_scaling`` (default the same; 1/2
    leaves the target of Section 5.3 as it is printed).
    """
    _check(pattern_norm, n_samples, n_heads)
    power = scaling if target_scaling is None else target_scaling
    decoders = np.log(n_samples) / pattern_norm * n_heads ** (power - 0.5)
    norm = np.sqrt(decoders**2 + n_heads / pattern_norm**4)
    return np.asarray(n_heads**scaling / (pattern_norm**5 * norm**3))


def constant_limits(power: float, n_heads: float, n_samples: float) -> tuple[float, float]:
    r"""Return the largest and the smallest $C$ that the two conditions of Section 5.3 leave to $\|W_h\|=CH^{-p}$.

    The case $\|\tilde W\|\ge\|\tilde U\|$, where $\|\tilde\theta\|$ counts as $\|\tilde W\|=CH^{1/2-p}$. Two lower
    bounds on $S$ go into (12): saturation, $S\ge C^{-1/2}H^{p/2}$, gives the largest $C$, and the case itself,
    $S\ge\frac{\log n}CH^{p-1/2}$, the smallest. Where (12) is an equality is found by bisection, so that no
    algebra of the paper enters.
    """
    from scipy.optimize import brentq  # loaded where an equation is solved: it takes a second

    _check(1.0, n_samples, n_heads)
    log_h, log_log_n = np.log(n_heads), np.log(np.log(n_samples))

    def spare(log_c: float, log_s: float) -> float:
        return float(log_h / 2 - 5 * log_s - 3 * (log_c + (0.5 - power) * log_h))

    def saturation(log_c: float) -> float:
        return spare(log_c, (power * log_h - log_c) / 2)

    def case(log_c: float) -> float:
        return spare(log_c, log_log_n - log_c + (power - 0.5) * log_h)

    largest, smallest = (brentq(condition, -1e3, 1e3, xtol=1e-12) for condition in (saturation, case))
    return float(np.exp(largest)), float(np.exp(smallest))


def _check(pattern_norm: float | np.ndarray, n_samples: float, n_heads: float | np.ndarray) -> None:
    positive(pattern_norm=pattern_norm)
    at_least(1, n_heads=n_heads)
    if not n_samples > 1:
        raise ValueError(f"n_samples: expected above 1, got {n_samples}")
