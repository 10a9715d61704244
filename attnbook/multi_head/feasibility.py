r"""Section 5.3: may the oracle be the target of the training theorem, from a zero start?

The target is $H$ equal heads with $\|U_h\|=\frac{\log n}SH^{c-1}$, as long as a small loss needs if heads are summed as
$H^{-c}\sum_h\Phi_h$, and with $\|W_h\|=S^{-2}$, so that attention saturates. All hidden constants are set to 1, and
$\gamma_{attn}$ to $S$.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Float

from attnbook.multi_head.checks import at_least, positive

__all__ = ["allowed_constant"]

Sizes: TypeAlias = Float[np.ndarray, "*#sizes"]


def allowed_constant(
    pattern_norm: Sizes,
    n_heads: Sizes,
    n_samples: float,
    *,
    condition: Literal["distance", "product", "sum"] = "distance",
    scaling: float = 0.5,
    target_scaling: float | None = None,
) -> Sizes:
    r"""Return the largest $k$ for which the target satisfies a condition on the number of heads.

    Args:
        pattern_norm: $S$, positive.
        n_heads: $H$, at least 1.
        n_samples: $n$, above 1.
        condition: With $D=\|\tilde\theta\|$ and $b$ the norm of a head: ``distance`` for $H^c\ge k\,S^5D^3$, eq. (12);
            ``product`` for $k\,S^5bD^3$, (3) as printed; ``sum`` for $k\,S^5(b+D)D^2$, what its proof gives.
        scaling: $c$; default the paper's 1/2.
        target_scaling: $c$ in $\|U_h\|$; default the same, 1/2 leaves the target as it is printed.

    Returns:
        The constants; the condition with constant 1 holds where they are at least 1.

    Raises:
        ValueError: If a number is outside its range.
    """
    positive(pattern_norm=pattern_norm)
    at_least(1, n_heads=n_heads)
    if not n_samples > 1:
        raise ValueError(f"n_samples: expected above 1, got {n_samples}")
    power = scaling if target_scaling is None else target_scaling
    head = np.hypot(np.log(n_samples) / pattern_norm * n_heads ** (power - 1), pattern_norm**-2.0)
    distance = head * np.sqrt(n_heads)
    needed = {"distance": distance, "product": head * distance, "sum": head + distance}[condition]
    return np.asarray(n_heads**scaling / (pattern_norm**5 * needed * distance**2))
