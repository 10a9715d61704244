r"""Bounds on curvature (Proposition 1, Corollary 1), and how far they let the loss rise (Proposition 4).

``tokens`` are one sample $X=[x_1,\dots,x_T]^\top$ and ``decoder`` is one head's $U$ with the rows $u_t$, both
``(tokens, dimension)``. $\|X\|_{2,\infty}$ is the largest norm of a token, $\|X\|_{1,\infty}$ the largest entry in
absolute value. Numbers outside their range, and entries that are NaN or infinite, are a ValueError.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float

from attnbook.multi_head.checks import at_least

__all__ = [
    "LARGEST_CUMULANT",
    "LossConstants",
    "allowed_distance",
    "dimension_free_hessian_bound",
    "gradient_bound",
    "hessian_bound",
    "loss_constants",
]

Sample: TypeAlias = Float[np.ndarray, "tokens dimension"]
Numbers: TypeAlias = Any
"""A number, or an array of any library that NumPy's functions work on."""

LARGEST_CUMULANT = 4 / (3 * math.sqrt(3))
r"""The number $4/(3\sqrt3)$, the largest $E(p-\bar p)(s-\bar s)^2$ over all laws of $(p,s)$ on the square $[-1,1]^2$.

Proved in the chapter on curvature. Attained where $p=1$ with a probability $a$ such that $1-2a=1/\sqrt3$.
"""


def gradient_bound(tokens: Sample, decoder: Sample) -> float:
    r"""Return the bound of Proposition 1 on $\|\nabla_\theta\Phi\|$, whatever the key-query matrix is.

    $2\|X\|_{2,\infty}^2\sum_t\|Xu_t\|_\infty+\sqrt T\,\|X\|_{2,\infty}$.
    """
    norm, values = _norm_and_values(tokens, decoder)
    return 2 * norm**2 * values + math.sqrt(len(tokens)) * norm


def hessian_bound(tokens: Sample, decoder: Sample) -> float:
    r"""Return the bound of Proposition 1 on $\|\nabla^2_\theta\Phi\|$, whatever the key-query matrix is.

    $6d\,\|X\|_{2,\infty}^2\|X\|_{1,\infty}^2\sum_t\|Xu_t\|_\infty+2\sqrt{Td}\,\|X\|_{2,\infty}^2\|X\|_{1,\infty}$.
    """
    norm, values = _norm_and_values(tokens, decoder)
    n_tokens, dimension = tokens.shape
    entry = float(np.abs(tokens).max())
    return 6 * dimension * norm**2 * entry**2 * values + 2 * math.sqrt(n_tokens * dimension) * norm**2 * entry


def dimension_free_hessian_bound(tokens: Sample, decoder: Sample) -> float:
    r"""Return this book's bound on $\|\nabla^2_\theta\Phi\|$, which has no factor $d$.

    $cR^4\sum_t\|Xu_t\|_\infty+\sqrt T\,R^3$ with $R=\|X\|_{2,\infty}$ and $c$ of :data:`LARGEST_CUMULANT`. Each term is
    attained. At most half of :func:`hessian_bound`, since $R^2\le d\,\|X\|_{1,\infty}^2$.
    """
    norm, values = _norm_and_values(tokens, decoder)
    return LARGEST_CUMULANT * norm**4 * values + math.sqrt(len(tokens)) * norm**3


class LossConstants(NamedTuple):
    r"""The constants of Corollary 1, for logistic loss.

    Attributes:
        gradient: $\beta_1$: $\|\nabla\hat L\|\le\beta_1\hat L$.
        smoothness: $\beta_2=\beta_3/\sqrt H+\beta_1^2/4$: $\|\nabla^2\hat L\|\le\beta_2$.
        curvature: $\beta_3$: $\lambda_{\min}(\nabla^2\hat L)\ge-\beta_3\hat L/\sqrt H$.
        dimension_free_curvature: $\beta_3'$, this book's smaller constant in the place of $\beta_3$.
    """

    gradient: Numbers
    smoothness: Numbers
    curvature: Numbers
    dimension_free_curvature: Numbers


def loss_constants(
    *, n_tokens: int, dimension: int, n_heads: Numbers, token_norm: Numbers, largest_head_norm: Numbers
) -> LossConstants:
    r"""Return the constants of Corollary 1, for numbers or for arrays.

    With $B=\|\tilde\theta\|_{2,\infty}$: $\beta_1=\sqrt TR(2R^2B+1)$,
    $\beta_3=2\sqrt{Td}\,R^3(3\sqrt d\,R^2B+1)$, $\beta_2=\beta_3/\sqrt H+\beta_1^2/4$, and ours
    $\beta_3'=\sqrt TR^3(cR^2B+1)$ with $c$ of :data:`LARGEST_CUMULANT`.

    For $T$, $d$, $H$ and $R$ (Assumption 1), all at least 1, and $B$, at least 0; in its place the largest norm of a
    decoder $U_h$ will do (a footnote of the paper).
    """
    at_least(1, n_tokens=n_tokens, dimension=dimension, n_heads=n_heads, token_norm=token_norm)
    at_least(0, largest_head_norm=largest_head_norm)
    root, r, reach = math.sqrt(n_tokens), token_norm, token_norm**2 * largest_head_norm
    beta_1 = root * r * (2 * reach + 1)
    beta_3 = 2 * root * math.sqrt(dimension) * r**3 * (3 * math.sqrt(dimension) * reach + 1)
    smoothness = beta_3 / n_heads**0.5 + beta_1**2 / 4
    return LossConstants(beta_1, smoothness, beta_3, root * r**3 * (LARGEST_CUMULANT * reach + 1))


def allowed_distance(*, n_tokens: int, dimension: int, n_heads: int, token_norm: float, head_norm: float) -> float:
    r"""Return $(\sqrt H/(2\beta_3))^{1/2}$, the distance at which condition (18) holds with equality.

    Sizes as for :func:`loss_constants`, ``head_norm`` the largest norm of a head in either network.
    """
    sizes: dict[str, Any] = {"n_tokens": n_tokens, "dimension": dimension, "n_heads": n_heads, "token_norm": token_norm}
    return math.sqrt(math.sqrt(n_heads) / (2 * loss_constants(**sizes, largest_head_norm=head_norm).curvature))


def _norm_and_values(tokens: np.ndarray, decoder: np.ndarray) -> tuple[float, float]:
    r"""The largest token norm, and $\sum_t\|Xu_t\|_\infty$."""
    for name, array in {"tokens": tokens, "decoder": decoder}.items():
        if not np.isfinite(array).all():
            raise ValueError(f"{name}: {int((~np.isfinite(array)).sum())} of {array.size} entries are NaN or infinite")
    return float(np.linalg.norm(tokens, axis=1).max()), float(np.abs(decoder @ tokens.T).max(axis=1).sum())
