"""The inequalities and the identity that the proofs rest on: Lemmas 12 to 15 and 26.

Notation as in :mod:`attnbook.mirror_descent.mirror`. Two bounds are sharper than the form of the lemma that we
reconstructed; their docstrings say so.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from attnbook.mirror_descent.mirror import (
    Exponents,
    bregman_divergence,
    check_exponents,
    entrywise_norm,
    mirror_map,
)

__all__ = [
    "best_constant",
    "divergence_bound",
    "extreme_change",
    "norm_bounds",
    "power_bounds",
    "slope_bounds",
    "three_point_error",
]


def norm_bounds(weights: Float[np.ndarray, "*batch d d"], p: Exponents) -> tuple[np.ndarray, np.ndarray]:
    r"""Return the bounds of $\|W\|_{p,p}$ by $\|W\|_{2,2}$ (Lemma 12).

    For $p\ge2$ they are $d^{2/p-1}\|W\|_{2,2}$ and $\|W\|_{2,2}$; for $p\le2$ they change places.

    Args:
        weights: Square matrices.
        p: Exponents above 1.

    Returns:
        Lower and upper bounds.

    Raises:
        ValueError: If an exponent is not a finite number above 1.
    """
    euclidean = entrywise_norm(weights, 2.0)
    other = float(weights.shape[-1]) ** (2 / check_exponents(p) - 1) * euclidean
    return np.asarray(np.minimum(euclidean, other)), np.asarray(np.maximum(euclidean, other))


def divergence_bound(
    u: Float[np.ndarray, "*batch rows columns"],
    v: Float[np.ndarray, "*#batch rows columns"],
    p: float,
    *,
    sharp: bool = False,
) -> np.ndarray:
    r"""Return the lower bound of Lemma 13 on $D_\psi(U,V)$ for matrices on the unit $p$-sphere.

    For $p\le2$: $\frac{p-1}2\|U-V\|_{2,2}^2$; for $p>2$: $\frac1{p2^p}\|U-V\|_{p,p}^p$. The sharper forms are
    $\frac{p-1}2\|U-V\|_{p,p}^2$ (classical) and $c_p^\star\|U-V\|_{p,p}^p$ with :func:`best_constant`.

    Args:
        u: Matrices of norm one.
        v: Matrices of norm one.
        p: One exponent above 1.
        sharp: Whether to return the sharper form; default the lemma's.

    Returns:
        Lower bounds.

    Raises:
        ValueError: If the exponent is not a finite number above 1.
    """
    check_exponents(p)
    if p <= 2:
        return np.asarray((p - 1) / 2 * entrywise_norm(u - v, p if sharp else 2.0) ** 2)
    return np.asarray((best_constant(p) if sharp else 1 / (p * 2**p)) * entrywise_norm(u - v, p) ** p)


def best_constant(p: float) -> float:
    r"""Return $c_p^\star$, the largest $c$ with $D_\psi(U,V)\ge c\|U-V\|_{p,p}^p$ for all matrices, $p\ge2$.

    Entry by entry the inequality is homogeneous, so $c_p^\star=\min_s\big(\frac1p|1-s|^p-\frac1p+s\big)/|s|^p$. Setting
    the derivative to zero gives $(s-1)^{p-1}+1=(p-1)s$, $s>1$, and there $c_p^\star=\frac{p-1}p\,s^{2-p}$ (this
    book's; the proof text suggests $1/(p2^p)$).

    Args:
        p: Exponent, at least 2.

    Returns:
        The constant, 1/2 for p = 2 and falling with p.

    Raises:
        ValueError: If the exponent is not a finite number of at least 2.

    Example:
        >>> best_constant(2.0), round(best_constant(3.0), 4)
        (0.5, 0.1953)
    """
    change = extreme_change(p)
    return float((p - 1) / p * change ** (2 - p))


def extreme_change(p: float) -> float:
    r"""Return the $s>1$ at which :func:`best_constant` is attained: an entry $v$ changed to $(1-s)v$.

    It is the largest root of $(s-1)^{p-1}+1=(p-1)s$.

    Args:
        p: Exponent, at least 2.

    Returns:
        The change, 2 for p = 2 (where every change attains the constant).

    Raises:
        ValueError: If the exponent is not a finite number of at least 2.
    """
    if not 2 <= p < np.inf:
        raise ValueError(f"p: expected a finite number of at least 2, got {p!r}")
    if p == 2:
        return 2.0
    # Bisection in log(s - 1): the convex left side starts below the right one and ends above it.
    low, high = -60.0, 60.0
    for _ in range(200):
        middle = (low + high) / 2
        below = np.exp((p - 1) * middle) + 1 < (p - 1) * (1 + np.exp(middle))
        low, high = (middle, high) if below else (low, middle)
    return float(1 + np.exp(low))


def power_bounds(
    x: Float[np.ndarray, "*batch"], y: Float[np.ndarray, "*batch"], p: Exponents
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    r"""Return the three sides of Lemma 14, in increasing order for $x\ge y\ge0$.

    $(x^{p-1}-y^{p-1})y\le\frac{p-1}p(x^p-y^p)\le(x^{p-1}-y^{p-1})x$.

    Args:
        x: Numbers.
        y: Numbers between 0 and ``x``.
        p: Exponents above 1.

    Returns:
        Left, middle and right side.

    Raises:
        ValueError: If an exponent is not a finite number above 1.
    """
    r = check_exponents(p)
    difference = x ** (r - 1) - y ** (r - 1)
    return difference * y, (r - 1) / r * (x**r - y**r), difference * x


def slope_bounds(
    x: Float[np.ndarray, "*batch"], y: Float[np.ndarray, "*batch"], p: Exponents
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    r"""Return the three sides of Lemma 15, in increasing order for $x\ge y>0$.

    $(p-1)m(x-y)\le x^{p-1}-y^{p-1}\le(p-1)M(x-y)$, where $m$ and $M$ are the smaller and the larger of $x^{p-2}$ and
    $y^{p-2}$. Of the lemma only the case distinction at $p=2$ survives; this mean-value pair is what later lemmas need.

    Args:
        x: Numbers.
        y: Numbers between 0 and ``x``, positive.
        p: Exponents above 1.

    Returns:
        Left, middle and right side.

    Raises:
        ValueError: If an exponent is not a finite number above 1.
    """
    r = check_exponents(p)
    ends = x ** (r - 2), y ** (r - 2)
    left, right = ((r - 1) * end * (x - y) for end in (np.minimum(*ends), np.maximum(*ends)))
    return left, x ** (r - 1) - y ** (r - 1), right


def three_point_error(u: np.ndarray, v: np.ndarray, w: np.ndarray, p: Exponents) -> np.ndarray:
    r"""Return by how much Lemma 26 fails: left minus right of the three-point identity.

    $D_\psi(U,V)=D_\psi(U,W)+D_\psi(W,V)+\langle\nabla\psi(W)-\nabla\psi(V),U-W\rangle$.

    Args:
        u: Matrices, ``(..., rows, columns)``.
        v: Matrices of the same shape.
        w: Matrices of the same shape.
        p: Exponents above 1.

    Returns:
        Differences; zero up to rounding.

    Raises:
        ValueError: If an exponent is not a finite number above 1.
    """
    product = ((mirror_map(w, p) - mirror_map(v, p)) * (u - w)).sum(axis=(-2, -1))
    left = bregman_divergence(u, v, p)
    return np.asarray(left - bregman_divergence(u, w, p) - bregman_divergence(w, v, p) - product)
