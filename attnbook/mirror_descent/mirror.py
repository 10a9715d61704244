r"""The potential, its mirror map, the Bregman divergence, and how sparse a matrix is.

================================  ==========================  ======================================
paper                             name here                   shape
================================  ==========================  ======================================
$W$                               ``weights``                 ``(..., rows, columns)``
$p$, $q=p/(p-1)$                  ``p``, :func:`conjugate`    one number, or one per matrix ``(...)``
$\|W\|_{p,p}$                     :func:`entrywise_norm`      ``(...)``
$\nabla\psi(W)$, its inverse      :func:`mirror_map`, ...     as ``weights``
$D_\psi(U,V)$                     :func:`bregman_divergence`  ``(...)``
$W_{mm}$ of one constraint        :func:`single_constraint`   as the constraint
================================  ==========================  ======================================

The text available to us has no equations; the formulas are reconstructed from the words of its proofs. Everything is
float64 and batched over all leading axes: matrices, here and where they are called $U$ and $V$, may have any. Where an
exponent is not a finite number above 1 all functions raise a ``ValueError``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

__all__ = [
    "Exponents",
    "best_constant",
    "bregman_divergence",
    "check_exponents",
    "conjugate",
    "direction_divergence",
    "effective_dimension",
    "entrywise_norm",
    "extreme_change",
    "inverse_mirror_map",
    "mirror_map",
    "normalised",
    "share_above",
    "single_constraint",
]

Exponents: TypeAlias = float | Sequence[float] | np.ndarray
"""One exponent, or an array of them that broadcasts against the leading axes."""


def check_exponents(p: Exponents) -> np.ndarray:
    """Return exponents as an array of float64.

    Raises:
        ValueError: If an exponent is not a finite number above 1.
    """
    exponents = np.asarray(p, dtype=np.float64)
    if not ((exponents > 1) & np.isfinite(exponents)).all():
        raise ValueError(f"p: expected finite numbers above 1, got {p!r}")
    return exponents


def conjugate(p: Exponents) -> np.ndarray:
    """Return the conjugate exponent ``q = p / (p - 1)``.

    Example:
        >>> float(conjugate(3.0))
        1.5
    """
    exponents = check_exponents(p)
    return exponents / (exponents - 1)


def entrywise_norm(weights: Float[np.ndarray, "*batch rows columns"], p: Exponents) -> Float[np.ndarray, "*batch"]:
    r"""Return $\|W\|_{p,p}=(\sum_{ab}|W_{ab}|^p)^{1/p}$, without overflow."""
    r = check_exponents(p)
    largest = np.maximum(np.abs(weights).max(axis=(-2, -1)), np.finfo(float).tiny)
    scaled = np.abs(weights / largest[..., None, None]) ** r[..., None, None]
    return np.asarray(largest * scaled.sum(axis=(-2, -1)) ** (1 / r))


def normalised(weights: Float[np.ndarray, "*batch rows columns"], p: Exponents) -> np.ndarray:
    r"""Return the direction $\bar W=W/\|W\|_{p,p}$; zero stays zero."""
    return weights / np.maximum(entrywise_norm(weights, p), np.finfo(float).tiny)[..., None, None]


def mirror_map(weights: Float[np.ndarray, "*batch rows columns"], p: Exponents) -> np.ndarray:
    r"""Return $\nabla\psi(W)=\mathrm{sign}(W)|W|^{p-1}$, entry by entry.

    Example:
        >>> mirror_map(np.array([[-2.0, 3.0]]), p=3.0).tolist()
        [[-4.0, 9.0]]
    """
    return _signed_power(weights, check_exponents(p) - 1)


def inverse_mirror_map(mirrored: Float[np.ndarray, "*batch rows columns"], p: Exponents) -> np.ndarray:
    r"""Return $W=\mathrm{sign}(\theta)|\theta|^{q-1}$, the weights whose mirror image is $\theta$."""
    return _signed_power(mirrored, conjugate(p) - 1)


def bregman_divergence(
    u: Float[np.ndarray, "*#batch rows columns"], v: Float[np.ndarray, "*#batch rows columns"], p: Exponents
) -> Float[np.ndarray, "*#batch"]:
    r"""Return $D_\psi(U,V)=\psi(U)-\psi(V)-\langle\nabla\psi(V),U-V\rangle$ (Definition 1).

    Entry by entry the terms are non-negative; they are summed as such, so that tiny divergences keep their digits. On
    the unit sphere it is $1-\langle\nabla\psi(V),U\rangle$, for $p=2$ one minus the cosine.
    """
    r = check_exponents(p)[..., None, None]
    terms = (np.abs(u) ** r - np.abs(v) ** r) / r - _signed_power(v, check_exponents(p) - 1) * (u - v)
    return np.asarray(np.maximum(terms, 0.0).sum(axis=(-2, -1)))


def direction_divergence(
    u: Float[np.ndarray, "*#batch rows columns"], v: Float[np.ndarray, "*#batch rows columns"], p: Exponents
) -> Float[np.ndarray, "*#batch"]:
    r"""Return $D_\psi(\bar U,\bar V)$, the divergence of the directions of two matrices."""
    one, other = np.broadcast_arrays(normalised(u, p), normalised(v, p))
    return bregman_divergence(one, other, p)


def single_constraint(constraint: Float[np.ndarray, "*batch rows columns"], p: Exponents) -> np.ndarray:
    r"""Return the smallest $W$ with $\langle A,W\rangle\ge1$: $\mathrm{sign}(A)|A|^{q-1}/\|A\|_{q,q}^q$.

    These are max-margin solutions in closed form, for matrices $A$ that are not zero.

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


def best_constant(p: float) -> float:
    r"""Return $c_p^\star$, the largest $c$ with $D_\psi(U,V)\ge c\|U-V\|_{p,p}^p$ for all matrices, $p\ge2$.

    Entry by entry the inequality is homogeneous, so $c_p^\star=\min_s\big(\frac1p|1-s|^p-\frac1p+s\big)/|s|^p$. Setting
    the derivative to zero gives $(s-1)^{p-1}+1=(p-1)s$, $s>1$, and there $c_p^\star=\frac{p-1}p\,s^{2-p}$ (this
    book's; the proof text suggests $1/(p2^p)$).

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

    It is the largest root of $(s-1)^{p-1}+1=(p-1)s$; 2 for p = 2, where every change attains the constant.

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


def effective_dimension(weights: Float[np.ndarray, "*batch rows columns"]) -> Float[np.ndarray, "*batch"]:
    r"""Return $\|W\|_1^2/(N\|W\|_2^2)$ for $N$ entries: 1 for entries of equal size, $1/N$ for a single one."""
    count = weights.shape[-1] * weights.shape[-2]
    size = np.abs(weights)
    return np.asarray(size.sum(axis=(-2, -1)) ** 2 / (count * np.square(size).sum(axis=(-2, -1))))


def share_above(weights: Float[np.ndarray, "*batch rows columns"]) -> Float[np.ndarray, "*batch"]:
    """Return the share of entries larger in size than one per cent of the largest, a convention of this book."""
    size = np.abs(weights)
    return np.asarray((size > 0.01 * size.max(axis=(-2, -1), keepdims=True)).mean(axis=(-2, -1)))


def _signed_power(values: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    return np.sign(values) * np.abs(values) ** exponent[..., None, None]
