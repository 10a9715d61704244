r"""How fast the direction settles: the rate of Lemma 29 as a function.

The proof bounds $D_k\,N_k^{p-1}$ by $1+\int^{N_k}\frac{\log r}r\,d(r^{p-1})$, where $N_k=\|W(k)\|_{p,p}$; the three
cases of the theorem are the three cases of this integral. Constants are left out: the text available to us has none.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from attnbook.mirror_descent.mirror import check_exponents

__all__ = ["bound"]


def bound(norm: Float[np.ndarray, "*batch"], p: float) -> Float[np.ndarray, "*batch"]:
    r"""Return the rate of Lemma 29 without its constant.

    $\log N/N$ for $p>2$, $(\log N)^2/N$ for $p=2$, $N^{-(p-1)}$ for $p<2$. With $\log k$ in place of $N$ it is the rate
    in the number of steps.

    Args:
        norm: $N$, above 1.
        p: One exponent above 1.

    Returns:
        The rate, up to a constant.

    Raises:
        ValueError: If the exponent is not a finite number above 1, or a norm is not above 1.

    Example:
        >>> float(bound(np.array(16.0), 1.5))
        0.25
    """
    check_exponents(p)
    if not (np.asarray(norm) > 1).all():
        raise ValueError(f"norm: expected numbers above 1, got {np.min(norm)}")
    if p < 2:
        return np.asarray(norm ** (1 - p))
    return np.asarray(np.log(norm) ** (2 if p == 2 else 1) / norm)
