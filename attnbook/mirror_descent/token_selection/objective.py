r"""The training loss, its gradient and their bounds, and how far out a choice of tokens holds.

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
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from attnbook.mirror_descent import mirror
from attnbook.mirror_descent.data import Problems


def _sigmoid(x: np.ndarray | float) -> np.ndarray:
    return np.exp(-np.logaddexp(0, -np.asarray(x)))


def _softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


class Loss(NamedTuple):
    """A decreasing loss of the margin, and its derivative, entry by entry."""

    value: Callable[[np.ndarray], np.ndarray]
    slope: Callable[[np.ndarray], np.ndarray]
    steepest: Callable[[np.ndarray], np.ndarray]  # the largest size of the derivative on margins of at least a number


# They satisfy Assumption A: strictly decreasing, with derivatives bounded and Lipschitz on intervals.
LOSSES: Mapping[str, Loss] = {
    "logistic": Loss(lambda m: np.logaddexp(0, -m), lambda m: -_sigmoid(-m), lambda low: _sigmoid(-low)),
    "exponential": Loss(lambda m: np.exp(-m), lambda m: -np.exp(-m), lambda low: np.exp(-low)),
    "linear": Loss(lambda m: -m, lambda m: -np.ones_like(m), lambda low: np.ones_like(low)),
}


def attention(
    weights: Float[np.ndarray, "problems dimension dimension"], problems: Problems
) -> Float[np.ndarray, "problems samples tokens"]:
    r"""Return $\sigma(X_iWz_i)$ of each sample."""
    keys = np.einsum("pab,pnb->pna", weights, problems.queries)
    return np.asarray(_softmax(np.einsum("pnta,pna->pnt", problems.tokens, keys)))


def training_loss(
    weights: Float[np.ndarray, "problems dimension dimension"], problems: Problems, loss: Loss
) -> Float[np.ndarray, " problems"]:
    r"""Return $\mathcal L(W)=\frac1n\sum_i\ell(\gamma_i^\top s_i)$."""
    margins = (attention(weights, problems) * problems.token_scores).sum(-1)
    return np.asarray(loss.value(margins).mean(-1))


def loss_bounds(problems: Problems, loss: Loss) -> tuple[np.ndarray, np.ndarray]:
    r"""Return the sides of Lemma 16: $\frac1n\sum_i\ell(\max_t\gamma_{it})$, and the same with the minimum."""
    scores = problems.token_scores
    return loss.value(scores.max(-1)).mean(-1), loss.value(scores.min(-1)).mean(-1)


def loss_gradient(
    weights: Float[np.ndarray, "problems dimension dimension"], problems: Problems, loss: Loss
) -> Float[np.ndarray, "problems dimension dimension"]:
    r"""Return $\frac1n\sum_i\ell'(\gamma_i^\top s_i)X_i^\top\sigma'(X_iWz_i)\gamma_iz_i^\top$ as it reads, Lemma 17."""
    scores, s = problems.token_scores, attention(weights, problems)
    margins = (s * scores).sum(-1)
    coefficients = s * (scores - margins[..., None]) * loss.slope(margins)[..., None] / scores.shape[1]
    return np.einsum("pnt,pnta,pnb->pab", coefficients, problems.tokens, problems.queries)


def gradient_bound(problems: Problems, p: float, loss: Loss) -> Float[np.ndarray, " problems"]:
    r"""Return an explicit bound of the gradient's norm, for Lemma 18.

    It is $\frac1n\sum_iM_1\frac{\max\gamma_i-\min\gamma_i}2\max_t\|X_{it}z_i^\top\|_{q,q}$. The lemma only needs some
    bound; the constant is this book's. $M_1$ is taken on margins of at least $\min_t\gamma_{it}$, sample by sample.
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
    """
    s = _softmax(logits)
    a, g = direction[..., 0, None] - direction, scores[..., 0, None] - scores
    # Covariances do not change with the origin; measured from token 0 no digits cancel.
    exact = (s * a * g).sum(-1) - (s * a).sum(-1) * (s * g).sum(-1)
    approximate = (s[..., 1:] * a[..., 1:] * g[..., 1:]).sum(-1)
    others = s[..., 1:].sum(-1)
    bound = np.ptp(direction, axis=-1) * np.ptp(scores, axis=-1) * others**2
    return np.asarray(np.abs(exact - approximate)), np.asarray(bound)


def score_deficits(problems: Problems) -> Float[np.ndarray, "problems samples tokens"]:
    r"""Return by how much each token's score is below the best of its sample, $\gamma_{i,opt}-\gamma_{it}$."""
    scores = problems.token_scores
    return np.asarray(scores.max(-1, keepdims=True) - scores)


def excess_bounds(problems: Problems, relative_norm: float) -> tuple[np.ndarray, np.ndarray]:
    r"""Return bounds of the logistic loss above $\mathcal L_{opt}$ that the ball of a given radius allows; this book's.

    At relative norm $\rho$ the max-margin direction of the best tokens leaves an excess of at most
    $e^{-\rho}\frac1n\sum_{i,t}\Delta_{it}$ with $\Delta_{it}=\gamma_{i,opt}-\gamma_{it}$. No matrix of that norm has
    all margins above $\rho$, so none does better than
    $\frac{1}{1+e^\rho}\frac1n\min_i\big(|\ell'(\gamma_{i,opt})|\min_{t\ne opt}\Delta_{it}\big)$.
    """
    least, total = _deficit_terms(problems)
    return least * _sigmoid(-relative_norm), total * np.exp(-relative_norm)


def selecting_radius(problems: Problems) -> Float[np.ndarray, " problems"]:
    r"""Return a relative norm beyond which every global minimiser attends most to the best tokens; this book's.

    A matrix that gives the best token of sample $j$ at most half of the attention has an excess loss of at least
    $\frac1{2n}|\ell'(\gamma_{j,opt})|\min_{t\ne opt}(\gamma_{j,opt}-\gamma_{jt})$; beyond this radius the max-margin
    direction does better. For the logistic loss, and the ball or the sphere alike.
    """
    least, total = _deficit_terms(problems)
    return np.log(2 * total / least)


def certified_divergence(
    relative_norm: float, log_ratio: Float[np.ndarray, " problems"]
) -> Float[np.ndarray, " problems"]:
    r"""Return the largest $D_\psi(\bar W,\bar W_{mm})$ that a global minimiser of this norm can have; this book's.

    One way only: every minimiser is within it, but a search that ends within it need not be one. A minimiser has no
    more excess than the ray, so that no rival gets more attention than $\frac1{1+e^\rho}$ times upper over lower bound
    of :func:`excess_bounds` (``log_ratio`` is the logarithm): all its margins are at least some $m$. The mirror image
    of $\bar W_{mm}$ is a sum of constraints with weights that sum to $\|W_{mm}\|_{p,p}$; hence
    $\langle\nabla\psi(\bar W_{mm}),\bar W\rangle\ge m/\rho$, and the divergence is at most $1-m/\rho$, of order
    $1/\rho$. Infinite where no positive margin is certified. For $p=2$ the order of both matrices does not matter.
    """
    log_share = log_ratio - np.logaddexp(0, relative_norm)  # of the attention to a rival
    known = np.minimum(log_share, -np.log(2))
    return np.where(log_share < -np.log(2), 1 - (np.log1p(-np.exp(known)) - known) / relative_norm, np.inf)


def _deficit_terms(problems: Problems) -> tuple[np.ndarray, np.ndarray]:
    """The least price of one sample's wrong token, and the price of all wrong tokens, both over n."""
    deficits = score_deficits(problems)
    runner_up = np.sort(deficits, axis=-1)[..., 1]
    slope = -LOSSES["logistic"].slope(problems.token_scores.max(-1))
    return (slope * runner_up).min(-1) / deficits.shape[1], deficits.sum((-2, -1)) / deficits.shape[1]


def break_even(problem: Problems, selected: int, support: int, better: int) -> tuple[float, float]:
    r"""Return the slack of the better token and the extra lead at which the drift of that lead is zero; this book's.

    One sample with a query of length one, $p=2$. Let $a$ be the selected token minus its support token, $b$ the
    selected token minus the nearest one of higher score, $g_s$ and $g_r$ by how much the scores rise from support to
    selected and from selected to better. Far out the weights move along $g_s\,a-g_r\,e^{-\xi}\,b$, where $\xi$ is the
    lead over the better token minus that over the support token: one rival holds the token, one draws it away.
    On the ray of the max-margin solution the extra lead $\xi$ is relative norm times slack; its drift is zero at
    $\log\frac{g_r(\|b\|^2-a^\top b)}{g_s(a^\top b-\|a\|^2)}$. Below, the better token catches up; above, it falls
    behind for ever.

    Example:
        >>> from attnbook.mirror_descent.data import plane_tokens
        >>> [round(number, 3) for number in break_even(plane_tokens(), 4, 3, 0)]
        [0.049, 4.74]

    Raises:
        ValueError: If the scores do not rise from support to selected to better.
    """
    tokens, scores = problem.tokens[0, 0], problem.token_scores[0, 0]
    holds, draws = float(scores[selected] - scores[support]), float(scores[better] - scores[selected])
    if holds <= 0 or draws <= 0:
        raise ValueError(f"better: expected scores that rise from support to selected to better, got {holds, draws}")
    a, b = tokens[selected] - tokens[support], tokens[selected] - tokens[better]
    lead = np.log(draws * (b @ b - a @ b) / (holds * (a @ b - a @ a)))
    return float(a @ b / (a @ a)) - 1, float(lead)
