r"""The training loss, its gradient and their bounds, and how many token choices attention can make.

===================================  ============================  ================================
paper                                name here                     shape
===================================  ============================  ================================
$\ell$, $\ell'$, $M_1$               :class:`Loss`                 functions of margins, one number
$s_i=\sigma(X_iWz_i)$                :func:`attention`             ``(problems, samples, tokens)``
$\mathcal L(W)$                      :func:`training_loss`         ``(problems,)``
$\nabla\mathcal L(W)$ (Lemma 17)     :func:`loss_gradient`         as ``weights``
$\gamma_{i,opt}-\gamma_{it}$         :func:`score_deficits`        ``(problems, samples, tokens)``
===================================  ============================  ================================

The text available to us has no equations; the formulas are reconstructed from the words of its proofs. They are written
as they read; :mod:`attnbook.mirror_descent.attention` has the gradient that keeps its digits when
attention saturates. Everything is float64 and batched over problems.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import comb
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from attnbook.mirror_descent import mirror
from attnbook.mirror_descent.data import Problems

__all__ = [
    "LOSSES",
    "Loss",
    "attention",
    "covariance_error",
    "excess_bounds",
    "gradient_bound",
    "loss_bounds",
    "loss_gradient",
    "score_deficits",
    "selecting_radius",
    "share_of_choices",
    "training_loss",
]


def _sigmoid(x: np.ndarray | float) -> np.ndarray:
    return np.exp(-np.logaddexp(0, -np.asarray(x)))


def _softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


class Loss(NamedTuple):
    r"""A decreasing loss of the margin $y f$.

    Attributes:
        value: $\ell$, entry by entry.
        slope: $\ell'$, entry by entry.
        steepest: $M_1$, the largest $|\ell'|$ on margins that are at least a given number.
    """

    value: Callable[[np.ndarray], np.ndarray]
    slope: Callable[[np.ndarray], np.ndarray]
    steepest: Callable[[np.ndarray], np.ndarray]


LOSSES: Mapping[str, Loss] = {
    "logistic": Loss(lambda m: np.logaddexp(0, -m), lambda m: -_sigmoid(-m), lambda low: _sigmoid(-low)),
    "exponential": Loss(lambda m: np.exp(-m), lambda m: -np.exp(-m), lambda low: np.exp(-low)),
    "linear": Loss(lambda m: -m, lambda m: -np.ones_like(m), lambda low: np.ones_like(low)),
}
"""Losses that satisfy Assumption A, strictly decreasing, with derivatives bounded and Lipschitz on intervals."""


def attention(
    weights: Float[np.ndarray, "problems dimension dimension"], problems: Problems
) -> Float[np.ndarray, "problems samples tokens"]:
    r"""Return $\sigma(X_iWz_i)$ of each sample.

    Args:
        weights: One key-query matrix per problem.
        problems: The problems.

    Returns:
        Attention weights; each row sums to one.
    """
    keys = np.einsum("pab,pnb->pna", weights, problems.queries)
    return np.asarray(_softmax(np.einsum("pnta,pna->pnt", problems.tokens, keys)))


def training_loss(
    weights: Float[np.ndarray, "problems dimension dimension"], problems: Problems, loss: Loss
) -> Float[np.ndarray, " problems"]:
    r"""Return $\mathcal L(W)=\frac1n\sum_i\ell(\gamma_i^\top s_i)$.

    Args:
        weights: One key-query matrix per problem.
        problems: The problems.
        loss: The loss.

    Returns:
        Training losses.
    """
    margins = (attention(weights, problems) * problems.token_scores).sum(-1)
    return np.asarray(loss.value(margins).mean(-1))


def loss_bounds(problems: Problems, loss: Loss) -> tuple[np.ndarray, np.ndarray]:
    r"""Return the sides of Lemma 16, $\frac1n\sum_i\ell(\max_t\gamma_{it})$ and $\frac1n\sum_i\ell(\min_t\gamma_{it})$.

    Args:
        problems: The problems.
        loss: The loss.

    Returns:
        Losses of always attending to the best token, and to the worst, each ``(problems,)``.
    """
    scores = problems.token_scores
    return loss.value(scores.max(-1)).mean(-1), loss.value(scores.min(-1)).mean(-1)


def loss_gradient(
    weights: Float[np.ndarray, "problems dimension dimension"], problems: Problems, loss: Loss
) -> Float[np.ndarray, "problems dimension dimension"]:
    r"""Return $\frac1n\sum_i\ell'(\gamma_i^\top s_i)\,X_i^\top\sigma'(X_iWz_i)\gamma_iz_i^\top$ as it reads (Lemma 17).

    Args:
        weights: One key-query matrix per problem.
        problems: The problems.
        loss: The loss.

    Returns:
        Gradients. Where attention is saturated rounding leaves no correct digit.
    """
    scores, s = problems.token_scores, attention(weights, problems)
    margins = (s * scores).sum(-1)
    coefficients = s * (scores - margins[..., None]) * loss.slope(margins)[..., None] / scores.shape[1]
    return np.einsum("pnt,pnta,pnb->pab", coefficients, problems.tokens, problems.queries)


def gradient_bound(problems: Problems, p: float, loss: Loss) -> Float[np.ndarray, " problems"]:
    r"""Return an explicit bound of the gradient's norm, for Lemma 18.

    It is $\frac1n\sum_iM_1\frac{\max\gamma_i-\min\gamma_i}2\max_t\|X_{it}z_i^\top\|_{q,q}$. The lemma only needs some
    bound; the constant is this book's. $M_1$ is taken on margins of at least $\min_t\gamma_{it}$, sample by sample.

    Args:
        problems: The problems.
        p: Exponent above 1; the gradient is measured in the conjugate norm.
        loss: The loss.

    Returns:
        Bounds of $\|\nabla\mathcal L(W)\|_{q,q}$ for every $W$.

    Raises:
        ValueError: If the exponent is not a finite number above 1.
    """
    q, scores = float(mirror.conjugate(p)), problems.token_scores
    low, high = scores.min(-1), scores.max(-1)
    # The norm of an outer product is the product of the norms.
    longest = np.linalg.norm(problems.tokens, ord=q, axis=-1).max(-1) * np.linalg.norm(problems.queries, ord=q, axis=-1)
    return np.asarray((loss.steepest(low) * (high - low) / 2 * longest).mean(-1))


def covariance_error(
    logits: Float[np.ndarray, "*batch tokens"],
    direction: Float[np.ndarray, "*batch tokens"],
    scores: Float[np.ndarray, "*batch tokens"],
) -> tuple[Float[np.ndarray, "*batch"], Float[np.ndarray, "*batch"]]:
    r"""Return both sides of the covariance lemma, token 0 being the selected one.

    $|a^\top\sigma'(h)\gamma-\sum_{t\ge1}(a_0-a_t)s_t(\gamma_0-\gamma_t)|\le\mathrm{range}(a)\,\mathrm{range}(\gamma)(1-s_0)^2$.

    Args:
        logits: $h$.
        direction: $a$.
        scores: $\gamma$.

    Returns:
        Left and right side.
    """
    s = _softmax(logits)
    a, g = direction[..., 0, None] - direction, scores[..., 0, None] - scores
    # Covariances do not change with the origin; measured from token 0 no digits cancel.
    exact = (s * a * g).sum(-1) - (s * a).sum(-1) * (s * g).sum(-1)
    approximate = (s[..., 1:] * a[..., 1:] * g[..., 1:]).sum(-1)
    others = s[..., 1:].sum(-1)
    bound = np.ptp(direction, axis=-1) * np.ptp(scores, axis=-1) * others**2
    return np.asarray(np.abs(exact - approximate)), np.asarray(bound)


def share_of_choices(n_samples: int, dimension: int) -> float:
    r"""Return the share of all choices of one of two tokens per sample that some matrix can make.

    With two tokens in general position per sample, a choice is a sign per sample, and Cover's count of linearly
    separable signs in $d^2$ dimensions applies: $2^{1-n}\sum_{k<d^2}\binom{n-1}k$. It is one up to $n=d^2$ and one
    half at $n=2d^2$.

    Args:
        n_samples: Number of samples $n$, at least 1.
        dimension: Dimension $d$ of a token, at least 1.

    Returns:
        A share between 0 and 1.

    Raises:
        ValueError: If a number is below 1.

    Example:
        >>> share_of_choices(8, 2), share_of_choices(4, 2)
        (0.5, 1.0)
    """
    for name, value in (("n_samples", n_samples), ("dimension", dimension)):
        if value < 1:
            raise ValueError(f"{name}: expected at least 1, got {value}")
    if n_samples <= dimension**2:
        return 1.0
    return sum(comb(n_samples - 1, k) for k in range(dimension**2)) / 2 ** (n_samples - 1)


def score_deficits(problems: Problems) -> Float[np.ndarray, "problems samples tokens"]:
    r"""Return by how much each token's score is below the best of its sample, $\gamma_{i,opt}-\gamma_{it}$.

    Args:
        problems: The problems.

    Returns:
        Numbers of at least zero; zero at the best token.
    """
    scores = problems.token_scores
    return np.asarray(scores.max(-1, keepdims=True) - scores)


def excess_bounds(problems: Problems, relative_norm: float) -> tuple[np.ndarray, np.ndarray]:
    r"""Return bounds of the logistic loss above $\mathcal L_{opt}$ that the ball of a given radius allows; this book's.

    At relative norm $\rho$ the max-margin direction of the best tokens leaves an excess of at most
    $e^{-\rho}\frac1n\sum_{i,t}\Delta_{it}$ with $\Delta_{it}=\gamma_{i,opt}-\gamma_{it}$. No matrix of that norm has
    all margins above $\rho$, so none does better than
    $\frac{1}{1+e^\rho}\frac1n\min_i\big(|\ell'(\gamma_{i,opt})|\min_{t\ne opt}\Delta_{it}\big)$.

    Args:
        problems: The problems; best tokens without ties.
        relative_norm: Radius over the norm of the max-margin solution of the best tokens, above 0.

    Returns:
        Lower and upper bounds of the smallest excess, ``(problems,)``.

    Raises:
        ValueError: If the relative norm is not above 0.
    """
    if not relative_norm > 0:
        raise ValueError(f"relative_norm: expected a number above 0, got {relative_norm}")
    least, total = _deficit_terms(problems)
    return least * _sigmoid(-relative_norm), total * np.exp(-relative_norm)


def selecting_radius(problems: Problems) -> Float[np.ndarray, " problems"]:
    r"""Return a relative norm beyond which every global minimiser attends most to the best tokens; this book's.

    A matrix that gives the best token of sample $j$ at most half of the attention has an excess loss of at least
    $\frac1{2n}|\ell'(\gamma_{j,opt})|\min_{t\ne opt}(\gamma_{j,opt}-\gamma_{jt})$; beyond this radius the max-margin
    direction does better. For the logistic loss, and the ball or the sphere alike.

    Args:
        problems: The problems; best tokens without ties.

    Returns:
        Radii over the norm of the max-margin solution, ``(problems,)``.
    """
    least, total = _deficit_terms(problems)
    return np.log(2 * total / least)


def _deficit_terms(problems: Problems) -> tuple[np.ndarray, np.ndarray]:
    """The least price of one sample's wrong token, and the price of all wrong tokens, both over n."""
    deficits = score_deficits(problems)
    runner_up = np.sort(deficits, axis=-1)[..., 1]
    slope = -LOSSES["logistic"].slope(problems.token_scores.max(-1))
    return (slope * runner_up).min(-1) / deficits.shape[1], deficits.sum((-2, -1)) / deficits.shape[1]
