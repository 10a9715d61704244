r"""The potential, its mirror map, the Bregman divergence, and the inequalities that the proofs rest on.

=======================================  ==========================  ====================================================
paper                                    name here                   shape
=======================================  ==========================  ====================================================
$W$                                      ``weights``                 ``(..., rows, columns)``
$p$, $q=p/(p-1)$                         ``p``, :func:`conjugate`    one number, or one per matrix ``(...)``
$\|W\|_{p,p}$                            :func:`entrywise_norm`      ``(...)``
$\psi(W)=\frac1p\|W\|_{p,p}^p$           :func:`potential`           ``(...)``
$\nabla\psi(W)$, its inverse             :func:`mirror_map`, ...     as ``weights``
$D_\psi(U,V)$                            :func:`bregman_divergence`  ``(...)``
$W_{mm}$ of one constraint               :func:`single_constraint`   as the constraint
=======================================  ==========================  ====================================================

The text available to us has no equations; the formulas are reconstructed from the words of its proofs. Everything is float64
and batched over all leading axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

__all__ = [
    "best_constant",
    "bregman_divergence",
    "conjugate",
    "divergence_bound",
    "effective_dimension",
    "entrywise_norm",
    "inverse_mirror_map",
    "mirror_map",
    "normalised",
    "norm_bounds",
    "potential",
    "power_bounds",
    "share_above",
    "single_constraint",
    "slope_bounds",
    "three_point_error",
]

Exponents: TypeAlias = float | Sequence[float] | np.ndarray
"""One exponent, or an array of them that broadcasts against the leading axes."""


def conjugate(p: Exponents) -> np.ndarray:
    """Return the conjugate exponent ``q = p / (p - 1)``.

    Args:
        p: Exponents above 1.

    Returns:
        Exponents above 1, as an array.

    Raises:
        ValueError: If an exponent is not a finite number above 1.

    Example:
        >>> float(conjugate(3.0))
        1.5
    """
    exponents = _exponents(p)
    return exponents / (exponents - 1)


def entrywise_norm(weights: Float[np.ndarray, "*batch rows columns"], p: Exponents) -> Float[np.ndarray, "*batch"]:
    r"""Return $\|W\|_{p,p}=(\sum_{ab}|W_{ab}|^p)^{1/p}$, without overflow.

    Args:
        weights: Matrices.
        p: Exponents above 1.

    Returns:
        Norms.

    Raises:
        ValueError: If an exponent is not a finite number above 1.
    """
    r = _exponents(p)
    largest = np.maximum(np.abs(weights).max(axis=(-2, -1)), np.finfo(float).tiny)
    scaled = np.abs(weights / largest[..., None, None]) ** r[..., None, None]
    return largest * scaled.sum(axis=(-2, -1)) ** (1 / r)


def normalised(weights: Float[np.ndarray, "*batch rows columns"], p: Exponents) -> np.ndarray:
    r"""Return the direction $\bar W=W/\|W\|_{p,p}$; zero stays zero.

    Args:
        weights: Matrices.
        p: Exponents above 1.

    Returns:
        Matrices on the unit sphere of the norm.

    Raises:
        ValueError: If an exponent is not a finite number above 1.
    """
    return weights / np.maximum(entrywise_norm(weights, p), np.finfo(float).tiny)[..., None, None]


def potential(weights: Float[np.ndarray, "*batch rows columns"], p: Exponents) -> Float[np.ndarray, "*batch"]:
    r"""Return $\psi(W)=\frac1p\|W\|_{p,p}^p$.

    Args:
        weights: Matrices.
        p: Exponents above 1.

    Returns:
        Values of the potential.

    Raises:
        ValueError: If an exponent is not a finite number above 1.
    """
    r = _exponents(p)
    return (np.abs(weights) ** r[..., None, None]).sum(axis=(-2, -1)) / r


def mirror_map(weights: Float[np.ndarray, "*batch rows columns"], p: Exponents) -> np.ndarray:
    r"""Return $\nabla\psi(W)=\mathrm{sign}(W)|W|^{p-1}$, entry by entry.

    Args:
        weights: Matrices.
        p: Exponents above 1.

    Returns:
        Matrices of the mirror space.

    Raises:
        ValueError: If an exponent is not a finite number above 1.

    Example:
        >>> mirror_map(np.array([[-2.0, 3.0]]), p=3.0).tolist()
        [[-4.0, 9.0]]
    """
    return _signed_power(weights, _exponents(p) - 1)


def inverse_mirror_map(mirrored: Float[np.ndarray, "*batch rows columns"], p: Exponents) -> np.ndarray:
    r"""Return $W=\mathrm{sign}(\theta)|\theta|^{q-1}$, the weights whose mirror image is $\theta$.

    Args:
        mirrored: Matrices of the mirror space.
        p: Exponents above 1.

    Returns:
        Weights.

    Raises:
        ValueError: If an exponent is not a finite number above 1.
    """
    return _signed_power(mirrored, conjugate(p) - 1)


def bregman_divergence(
    u: Float[np.ndarray, "*batch rows columns"], v: Float[np.ndarray, "*#batch rows columns"], p: Exponents
) -> np.ndarray:
    r"""Return $D_\psi(U,V)=\psi(U)-\psi(V)-\langle\nabla\psi(V),U-V\rangle$ (Definition 1).

    Entry by entry the terms are non-negative; they are summed as such, so that tiny divergences keep their digits. On
    the unit sphere it is $1-\langle\nabla\psi(V),U\rangle$, for $p=2$ one minus the cosine.

    Args:
        u: Matrices, for example the max-margin direction.
        v: Matrices, for example the direction of the iterate.
        p: Exponents above 1.

    Returns:
        Divergences, not negative.

    Raises:
        ValueError: If an exponent is not a finite number above 1.
    """
    r = _exponents(p)[..., None, None]
    terms = (np.abs(u) ** r - np.abs(v) ** r) / r - _signed_power(v, _exponents(p) - 1) * (u - v)
    return np.maximum(terms, 0.0).sum(axis=(-2, -1))


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
    return left - bregman_divergence(u, w, p) - bregman_divergence(w, v, p) - product


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
    other = float(weights.shape[-1]) ** (2 / _exponents(p) - 1) * euclidean
    return np.minimum(euclidean, other), np.maximum(euclidean, other)


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
    _exponents(p)
    if p <= 2:
        return (p - 1) / 2 * entrywise_norm(u - v, p if sharp else 2.0) ** 2
    return (best_constant(p) if sharp else 1 / (p * 2**p)) * entrywise_norm(u - v, p) ** p


def best_constant(p: float) -> float:
    r"""Return $c_p^\star$, the largest $c$ with $D_\psi(U,V)\ge c\|U-V\|_{p,p}^p$ for all matrices, $p\ge2$.

    Entry by entry the inequality is homogeneous, so $c_p^\star=\min_s\big(\frac1p|1-s|^p-\frac1p+s\big)/|s|^p$. Setting the derivative to zero
    gives $(s-1)^{p-1}+1=(p-1)s$ and there $c_p^\star=\frac{p-1}p\,s^{2-p}$ (this book's; the proof text suggests
    $1/(p2^p)$).

    Args:
        p: Exponent, at least 2.

    Returns:
        The constant: 1/2 for p = 2, falling with p.

    Raises:
        ValueError: If the exponent is not a finite number of at least 2.

    Example:
        >>> best_constant(2.0), round(best_constant(3.0), 4)
        (0.5, 0.1953)
    """
    if not 2 <= p < np.inf:
        raise ValueError(f"p: expected a finite number of at least 2, got {p!r}")
    if p == 2:
        return 0.5
    # Bisection in log(s - 1): the convex left side starts below the right one and ends above it.
    low, high = -60.0, 60.0
    for _ in range(200):
        middle = (low + high) / 2
        below = np.exp((p - 1) * middle) + 1 < (p - 1) * (1 + np.exp(middle))
        low, high = (middle, high) if below else (low, middle)
    return float((p - 1) / p * (1 + np.exp(low)) ** (2 - p))


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
    r = _exponents(p)
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
    r = _exponents(p)
    ends = x ** (r - 2), y ** (r - 2)
    left, right = ((r - 1) * end * (x - y) for end in (np.minimum(*ends), np.maximum(*ends)))
    return left, x ** (r - 1) - y ** (r - 1), right


def single_constraint(constraint: Float[np.ndarray, "*batch rows columns"], p: Exponents) -> np.ndarray:
    r"""Return the smallest $W$ with $\langle A,W\rangle\ge1$: $\mathrm{sign}(A)|A|^{q-1}/\|A\|_{q,q}^q$.

    Args:
        constraint: Matrices $A$, not zero.
        p: Exponents above 1.

    Returns:
        Max-margin solutions in closed form.

    Raises:
        ValueError: If an exponent is not a finite number above 1, or a constraint is zero.

    Example:
        >>> single_constraint(np.array([[3.0], [4.0]]), p=2.0).round(4).tolist()
        [[0.12], [0.16]]
    """
    q = conjugate(p)
    length = entrywise_norm(constraint, q)
    if not (length > np.finfo(float).tiny).all():
        raise ValueError("constraint: expected matrices that are not zero, got a zero matrix")
    return _signed_power(constraint / length[..., None, None], q - 1) / length[..., None, None]


def effective_dimension(weights: Float[np.ndarray, "*batch rows columns"]) -> Float[np.ndarray, "*batch"]:
    r"""Return $\|W\|_1^2/(N\|W\|_2^2)$ for $N$ entries: 1 for entries of equal size, $1/N$ for a single one.

    Args:
        weights: Matrices, not zero.

    Returns:
        Shares between 0 and 1: how many entries count, a measure of density without a threshold.
    """
    count = weights.shape[-1] * weights.shape[-2]
    size = np.abs(weights)
    return size.sum(axis=(-2, -1)) ** 2 / (count * np.square(size).sum(axis=(-2, -1)))


def share_above(weights: Float[np.ndarray, "*batch rows columns"], share: float = 0.01) -> np.ndarray:
    """Return the share of entries larger in size than a share of the largest.

    Args:
        weights: Matrices.
        share: The share of the largest entry; default one per cent, a convention of this book.

    Returns:
        Shares between 0 and 1.
    """
    size = np.abs(weights)
    return (size > share * size.max(axis=(-2, -1), keepdims=True)).mean(axis=(-2, -1))


def _signed_power(values: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    return np.sign(values) * np.abs(values) ** exponent[..., None, None]


def _exponents(p: Exponents) -> np.ndarray:
    exponents = np.asarray(p, dtype=np.float64)
    if not ((exponents > 1) & np.isfinite(exponents)).all():
        raise ValueError(f"p: expected finite numbers above 1, got {p!r}")
    return exponents
