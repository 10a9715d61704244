r"""Bounds on curvature (Proposition 1, Corollary 1), and how far they let the loss rise between two networks.

The last is Proposition 4, generalised local quasi-convexity.

=====================================  ========================  ==================================================
paper                                  name here                 meaning, shape
=====================================  ========================  ==================================================
$X=[x_1,\dots,x_T]^\top$               ``tokens``                one sample, ``(tokens, dimension)``
$U$, $u_t$                             ``decoder``               one head's decoder and its rows, as ``tokens``
$\Vert X\Vert_{2,\infty}$, $R$         ``token_norm``            largest norm of a token (of all samples; at least 1)
$\Vert X\Vert_{1,\infty}$              --                        largest entry in absolute value
$\Vert\tilde\theta\Vert_{2,\infty}$    ``largest_head_norm``     largest norm of a head $(U_h,W_h)$
$\beta_1,\beta_2,\beta_3$              ``gradient``, ...         constants of Corollary 1, see :class:`LossConstants`
$H$, $T$, $d$                          ``n_heads``, ...          numbers of heads and tokens, dimension of a token
=====================================  ========================  ==================================================

Everything is float64 on the CPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

__all__ = [
    "LARGEST_CUMULANT",
    "LossConstants",
    "allowed_distance",
    "condition_excess",
    "dimension_free_hessian_bound",
    "gradient_bound",
    "hessian_bound",
    "loss_constants",
    "nearer_end_rise",
]

LARGEST_CUMULANT = 4 / (3 * math.sqrt(3))
r"""The number $4/(3\sqrt3)$, the largest $E(p-\bar p)(s-\bar s)^2$ over all laws of $(p,s)$ on the square $[-1,1]^2$.

For fixed $s$ it is linear in $p$, so $p=\pm1$; let $p=1$ have probability $a$. With conditional means $m_\pm$ and
variances $V_\pm$ of $s$ it is $2a(1-a)\,[V_+-V_-+(1-2a)(m_+-m_-)^2]$, where $V_-\ge0$ and $V_+\le1-m_+^2$. For
$a\ge\frac12$ that is at most $2a(1-a)\le\frac12$. For $a<\frac12$ it is convex in $m_-$, so $m_-=-1$ up to a sign of
$s$, and the bracket is $2(1+m_+)(1-a-am_+)$. For $a\ge\frac14$ its maximum over $m_+$ gives $1-a\le\frac34$ in all. For
$a<\frac14$ it lies at $m_+=1$ and gives $8a(1-a)(1-2a)\le4/(3\sqrt3)$, with equality at $1-2a=1/\sqrt3$.
"""


def gradient_bound(
    tokens: Float[np.ndarray, "tokens dimension"], decoder: Float[np.ndarray, "tokens dimension"]
) -> float:
    r"""Return the bound of Proposition 1 on $\|\nabla_\theta\Phi\|$, whatever the key-query matrix is.

    $2\|X\|_{2,\infty}^2\sum_t\|Xu_t\|_\infty+\sqrt T\,\|X\|_{2,\infty}$, for ``tokens`` $X$ and ``decoder`` $U$; raises
    ValueError if an entry is NaN or infinite.
    """
    norm, values = _norm_and_values(tokens, decoder)
    return 2 * norm**2 * values + math.sqrt(len(tokens)) * norm


def hessian_bound(
    tokens: Float[np.ndarray, "tokens dimension"], decoder: Float[np.ndarray, "tokens dimension"]
) -> float:
    r"""Return the bound of Proposition 1 on $\|\nabla^2_\theta\Phi\|$, whatever the key-query matrix is.

    $6d\,\|X\|_{2,\infty}^2\|X\|_{1,\infty}^2\sum_t\|Xu_t\|_\infty+2\sqrt{Td}\,\|X\|_{2,\infty}^2\|X\|_{1,\infty}$;
    arguments and errors as for :func:`gradient_bound`.
    """
    norm, values = _norm_and_values(tokens, decoder)
    n_tokens, dimension = tokens.shape
    entry = float(np.abs(tokens).max())
    return 6 * dimension * norm**2 * entry**2 * values + 2 * math.sqrt(n_tokens * dimension) * norm**2 * entry


def dimension_free_hessian_bound(
    tokens: Float[np.ndarray, "tokens dimension"], decoder: Float[np.ndarray, "tokens dimension"]
) -> float:
    r"""Return this book's bound on $\|\nabla^2_\theta\Phi\|$, which has no factor $d$.

    $cR^4\sum_t\|Xu_t\|_\infty+\sqrt T\,R^3$ with $R=\|X\|_{2,\infty}$ and $c$ of :data:`LARGEST_CUMULANT`; arguments
    and errors as for :func:`gradient_bound`. Each term is attained. At most half of :func:`hessian_bound`, since
    $R^2\le d\,\|X\|_{1,\infty}^2$.

    Example:
        >>> x = np.array([[1.0, 0.0], [-1.0, 0.0]])
        >>> round(dimension_free_hessian_bound(x, x), 6), hessian_bound(x, x)
        (2.953814, 28.0)
    """
    norm, values = _norm_and_values(tokens, decoder)
    return LARGEST_CUMULANT * norm**4 * values + math.sqrt(len(tokens)) * norm**3


@dataclass(frozen=True)
class LossConstants:
    r"""The constants of Corollary 1, for logistic loss.

    Attributes:
        gradient: $\beta_1$: $\|\nabla\hat L\|\le\beta_1\hat L$.
        smoothness: $\beta_2=\beta_3/\sqrt H+\beta_1^2/4$: $\|\nabla^2\hat L\|\le\beta_2$.
        curvature: $\beta_3$: $\lambda_{\min}(\nabla^2\hat L)\ge-\beta_3\hat L/\sqrt H$.
        dimension_free_curvature: $\beta_3'$, this book's smaller constant in the place of $\beta_3$.
    """

    gradient: float
    smoothness: float
    curvature: float
    dimension_free_curvature: float


def loss_constants(
    *, n_tokens: int, dimension: int, n_heads: int, token_norm: float, largest_head_norm: float
) -> LossConstants:
    r"""Return the constants of Corollary 1.

    With $B=\|\tilde\theta\|_{2,\infty}$: $\beta_1=\sqrt TR(2R^2B+1)$,
    $\beta_3=2\sqrt{Td}\,R^3(3\sqrt d\,R^2B+1)$, $\beta_2=\beta_3/\sqrt H+\beta_1^2/4$, and ours
    $\beta_3'=\sqrt TR^3(cR^2B+1)$ with $c$ of :data:`LARGEST_CUMULANT`.

    Args:
        n_tokens: $T$, at least 1.
        dimension: $d$, at least 1.
        n_heads: $H$, at least 1.
        token_norm: $R$, at least 1 (Assumption 1).
        largest_head_norm: $B$, at least 0; the largest norm of a decoder $U_h$ will do (a footnote of the paper).

    Returns:
        The constants.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> loss_constants(n_tokens=1, dimension=1, n_heads=4, token_norm=1.0, largest_head_norm=0.0)
        LossConstants(gradient=1.0, smoothness=1.25, curvature=2.0, dimension_free_curvature=1.0)
    """
    for name, size in {"n_tokens": n_tokens, "dimension": dimension, "n_heads": n_heads}.items():
        if not size >= 1:
            raise ValueError(f"{name}: expected at least 1, got {size}")
    if not 1 <= token_norm < math.inf:
        raise ValueError(f"token_norm: Assumption 1 asks for a finite number of at least 1, got {token_norm}")
    if not 0 <= largest_head_norm < math.inf:
        raise ValueError(f"largest_head_norm: expected a finite number of at least 0, got {largest_head_norm}")
    root, r, reach = math.sqrt(n_tokens), token_norm, token_norm**2 * largest_head_norm
    beta_1 = root * r * (2 * reach + 1)
    beta_3 = 2 * root * math.sqrt(dimension) * r**3 * (3 * math.sqrt(dimension) * reach + 1)
    smoothness = beta_3 / math.sqrt(n_heads) + beta_1**2 / 4
    return LossConstants(beta_1, smoothness, beta_3, root * r**3 * (LARGEST_CUMULANT * reach + 1))


def nearer_end_rise(excess: float) -> float:
    r"""Return $1/(1-e/16)$, how far the loss can rise above the larger end (this book).

    On the segment the second derivative is at least $-\frac e2$ times the largest loss $M$, where $e$ is
    :func:`condition_excess`. At an interior maximum the slope is zero, and the *nearer* end is at most half the segment
    away, so its loss is at least $M(1-\frac12\cdot\frac e2\cdot\frac14)$. With either end, at most the whole segment
    away, it would be $M(1-\frac e4)$: the paper's $\frac43$ at $e=1$, in the place of $\frac{16}{15}$.

    Args:
        excess: $e$, at least 0 and below 16.

    Returns:
        The factor.

    Raises:
        ValueError: If the excess is outside its range.

    Example:
        >>> nearer_end_rise(1.0) == 16 / 15
        True
    """
    if not 0 <= excess < 16:
        raise ValueError(f"excess: expected a number of at least 0 and below 16, got {excess}")
    return 1 / (1 - excess / 16)


def condition_excess(
    *, n_tokens: int, dimension: int, n_heads: int, token_norm: float, head_norm: float, distance: float
) -> float:
    r"""Return $2\beta_3\|\theta_1-\theta_2\|^2/\sqrt H$ for two networks: condition (18) asks for at most 1.

    Sizes as for :func:`loss_constants`, ``head_norm`` the largest norm of a head in either network.

    Raises:
        ValueError: If the distance is negative or not finite, or another argument is outside its range.
    """
    if not 0 <= distance < math.inf:
        raise ValueError(f"distance: expected a finite number of at least 0, got {distance}")
    unit = allowed_distance(
        n_tokens=n_tokens, dimension=dimension, n_heads=n_heads, token_norm=token_norm, head_norm=head_norm
    )
    return (distance / unit) ** 2


def allowed_distance(*, n_tokens: int, dimension: int, n_heads: int, token_norm: float, head_norm: float) -> float:
    r"""Return $(\sqrt H/(2\beta_3))^{1/2}$, the distance at which condition (18) holds with equality.

    Arguments and errors as for :func:`condition_excess`.
    """
    constants = loss_constants(
        n_tokens=n_tokens, dimension=dimension, n_heads=n_heads, token_norm=token_norm, largest_head_norm=head_norm
    )
    return math.sqrt(math.sqrt(n_heads) / (2 * constants.curvature))


def _norm_and_values(tokens: np.ndarray, decoder: np.ndarray) -> tuple[float, float]:
    r"""The largest token norm, and $\sum_t\|Xu_t\|_\infty$."""
    for name, array in {"tokens": tokens, "decoder": decoder}.items():
        if not np.isfinite(array).all():
            raise ValueError(f"{name}: {int((~np.isfinite(array)).sum())} of {array.size} entries are NaN or infinite")
    return float(np.linalg.norm(tokens, axis=1).max()), float(np.abs(decoder @ tokens.T).max(axis=1).sum())
