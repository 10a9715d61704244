"""The inequalities and the identity that the proofs rest on: Lemmas 12 to 15 and 26.

Notation as in :mod:`attnbook.mirror_descent.mirror`. Two bounds are sharper than the form of the lemma that we
reconstructed; their docstrings say so.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from attnbook.mirror_descent.mirror import (
    Exponents,
    best_constant,
    bregman_divergence,
    check_exponents,
    entrywise_norm,
    mirror_map,
)


def norm_bounds(weights: Float[np.ndarray, "*batch d d"], p: Exponents) -> tuple[np.ndarray, np.ndarray]:
    r"""Return the bounds of $\|W\|_{p,p}$ by $\|W\|_{2,2}$ (Lemma 12).

    For $p\ge2$ they are $d^{2/p-1}\|W\|_{2,2}$ and $\|W\|_{2,2}$; for $p\le2$ they change places.
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
    $\frac{p-1}2\|U-V\|_{p,p}^2$ (classical) and $c_p^\star\|U-V\|_{p,p}^p$ with
    :func:`~attnbook.mirror_descent.mirror.best_constant`.
    """
    check_exponents(p)
    if p <= 2:
        return np.asarray((p - 1) / 2 * entrywise_norm(u - v, p if sharp else 2.0) ** 2)
    return np.asarray((best_constant(p) if sharp else 1 / (p * 2**p)) * entrywise_norm(u - v, p) ** p)


def power_bounds(
    x: Float[np.ndarray, "*batch"], y: Float[np.ndarray, "*batch"], p: Exponents
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    r"""Return the three sides of Lemma 14, in increasing order for $x\ge y\ge0$.

    $(x^{p-1}-y^{p-1})y\le\frac{p-1}p(x^p-y^p)\le(x^{p-1}-y^{p-1})x$.
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
    """
    r = check_exponents(p)
    ends = x ** (r - 2), y ** (r - 2)
    left, right = ((r - 1) * end * (x - y) for end in (np.minimum(*ends), np.maximum(*ends)))
    return left, x ** (r - 1) - y ** (r - 1), right


def three_point_error(u: np.ndarray, v: np.ndarray, w: np.ndarray, p: Exponents) -> np.ndarray:
    r"""Return by how much Lemma 26 fails: left minus right of the three-point identity.

    $D_\psi(U,V)=D_\psi(U,W)+D_\psi(W,V)+\langle\nabla\psi(W)-\nabla\psi(V),U-W\rangle$.
    """
    product = ((mirror_map(w, p) - mirror_map(v, p)) * (u - w)).sum(axis=(-2, -1))
    left = bregman_divergence(u, v, p)
    return np.asarray(left - bregman_divergence(u, w, p) - bregman_divergence(w, v, p) - product)
