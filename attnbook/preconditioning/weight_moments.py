r"""Exact moments of softmax weights over Gaussian keys, for any number of keys.

A query with score scale $r$ sees $n$ keys: itself, with the score $c=x^\top Vx$, and $n-1$ others whose scores $rg_j$
are independent Gaussian. Every weight is a ratio with the denominator $D=e^c+\sum_je^{rg_j}$. The Laplace transform
$D^{-p}=\frac1{\Gamma(p)}\int_0^\infty u^{p-1}e^{-uD}\,du$ turns the mean of a ratio into the mean of a product of
independent factors, so that every moment is one integral over $u$ of means over one Gaussian:

=====================  ==============================================================
$\phi(u)$              $\mathbb E\,e^{-uw}$ with $w=e^{rg}$
$\psi_{pk}(u)$         $\mathbb E\,w^p(g-r)^ke^{-uw}$
$\mathbb E\,\alpha_1$  $\int_0^\infty e^ce^{-ue^c}\,\phi(u)^{n-1}\,du$, and so on
=====================  ==============================================================

Both integrals are trapezoidal sums, exponentially accurate for such integrands. This is this book's tool; the paper
bounds these moments (Lemmas 9 to 14).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["WeightMoments", "weight_moments", "weight_power_bounds", "weight_powers"]

Scores: TypeAlias = Float[Tensor, " queries"]
Moments: TypeAlias = Float[Tensor, "counts queries"]

SPACING = 0.3  # of the grid in log u; the error is about exp(-pi^2 / spacing)
STEP = 0.6  # largest spacing of the grid in g; finer where the scores vary more
MARGIN = 26.0  # how far left of the leftmost peak the grid in log u begins; the error is about exp(-margin)
ALMOST = 1 - 1e-14  # largest probability that is told apart from one
TOGETHER = 16  # queries of similar score scale that share a grid


@dataclass(frozen=True)
class WeightMoments:
    r"""Moments of the weights of one query; all ``(counts, queries)``.

    With the shift $a=\sum_{j\ge2}\alpha_j(g_j-r)$ of the attended score from its limit.
    """

    self_weight: Moments  #: $\mathbb E\,\alpha_1$, the weight of the query on itself
    self_square: Moments  #: $\mathbb E\,\alpha_1^2$
    shift: Moments  #: $\mathbb E\,a$
    shift_square: Moments  #: $\mathbb E\,a^2$
    self_shift: Moments  #: $\mathbb E\,\alpha_1a$
    others_square: Moments  #: $\mathbb E\sum_{j\ge2}\alpha_j^2$
    spread: Moments  #: $\mathbb E\sum_{j\ge2}\alpha_j(g_j-r)^2$


def weight_moments(score_scale: Scores, self_score: Scores, n_keys: Sequence[int]) -> WeightMoments:
    r"""Return first and second moments of the weights, exact at every number of keys.

    Args:
        score_scale: $r\ge0$, standard deviation of the scores of the other keys; float64.
        self_score: $c$, score of the query with itself.
        n_keys: Numbers of keys $n$, the query among them; each at least 3.

    Returns:
        The moments, one row per number of keys.

    Raises:
        ValueError: If a number of keys is below 3 or the arguments do not fit.

    Example:
        >>> zero = torch.zeros(1, dtype=torch.float64)
        >>> round(float(weight_moments(zero, zero, [4]).self_weight), 9)  # uniform attention
        0.25
    """
    _check(score_scale, self_score, n_keys)
    order = torch.argsort(score_scale.detach())
    pieces = [_moments(score_scale[some], self_score[some], n_keys) for some in order.split(TOGETHER)]
    back = torch.argsort(order)
    return WeightMoments(*(torch.cat(parts, dim=1)[:, back] for parts in zip(*pieces, strict=True)))


def weight_powers(score_scale: Scores, self_score: Scores, n_keys: int, power: int) -> tuple[Scores, Scores]:
    r"""Return $\mathbb E\,\alpha_1^p$ and $\mathbb E\,\alpha_j^p$, $j\ne1$: what Lemma 9 bounds.

    Args:
        score_scale: $r$, as for :func:`weight_moments`.
        self_score: $c$.
        n_keys: Number of keys $n$, at least 3.
        power: $p$, at least 1.

    Returns:
        The moment of the weight of the query on itself, and on another key.

    Raises:
        ValueError: As :func:`weight_moments`.
    """
    _check(score_scale, self_score, [n_keys])
    log_u, draws, masses = _grid(score_scale, self_score, [n_keys])
    scores = score_scale[:, None] * draws
    exponent = torch.exp(log_u[:, None] + scores[:, None, :])
    log_rest = torch.log1p(-(-torch.expm1(-exponent) @ masses).clamp(max=ALMOST))
    tilted = torch.exp(power * (scores[:, None, :] + log_u[:, None]) - exponent) @ masses
    itself = log_u + self_score[:, None]
    on_self = torch.exp(power * itself - itself.exp() + (n_keys - 1) * log_rest)
    on_other = tilted * torch.exp(-itself.exp() + (n_keys - 2) * log_rest)
    scale = SPACING / math.gamma(power)
    return scale * on_self.sum(-1), scale * on_other.sum(-1)


def weight_power_bounds(score_scale: Scores, self_score: Scores, n_keys: int, power: int) -> tuple[Scores, Scores]:
    r"""Return the upper bounds of Lemma 9 on :func:`weight_powers`, as its proof gives them.

    They are $n^{-p}\exp\big(p(1-\frac1n)c+\frac{p^2(n-1)}{2n^2}q\big)$ for the weight of the query on itself and
    $n^{-p}\exp\big(-\frac pnc+\frac{p^2}2\frac{n^2-n-1}{n^2}q\big)$ for another key, with $q=r^2$.

    Args:
        score_scale: $r$, as for :func:`weight_moments`.
        self_score: $c$.
        n_keys: Number of keys $n$.
        power: $p$, at least 1.

    Returns:
        The bound for the query itself, and for another key.

    Example:
        >>> zero = torch.zeros(1, dtype=torch.float64)
        >>> [float(bound) for bound in weight_power_bounds(zero, zero, 4, 2)]  # uniform attention attains them
        [0.0625, 0.0625]
    """
    n, p, q = n_keys, power, score_scale.square()
    on_self = torch.exp(-p * math.log(n) + p * (1 - 1 / n) * self_score + p**2 * (n - 1) / (2 * n**2) * q)
    return on_self, torch.exp(-p * math.log(n) - p / n * self_score + p**2 / 2 * (n**2 - n - 1) / n**2 * q)


def _moments(scale: Tensor, self_score: Tensor, n_keys: Sequence[int]) -> tuple[Tensor, ...]:
    """The moments of some queries; everything is times u to the power of the weights that it multiplies."""
    log_u, draws, masses = _grid(scale, self_score, n_keys)
    scores, off = scale[:, None] * draws, draws - scale[:, None]
    log_exponent = log_u[:, None] + scores[:, None, :]
    exponent = log_exponent.exp()
    gone = -torch.expm1(-exponent)
    log_rest = torch.log1p(-(gone @ masses).clamp(max=ALMOST))
    first, second = (torch.exp(power * log_exponent - exponent) for power in (1, 2))
    # E w (g - r) = 0, so that only what the exponential takes away is left.
    drift = -((exponent * gone) @ (off * masses).unsqueeze(-1)).squeeze(-1)
    wide, spread = ((tilted @ (off.square() * masses).unsqueeze(-1)).squeeze(-1) for tilted in (first, second))
    squares = second @ masses
    itself = log_u + self_score[:, None]
    rows = []
    for n in n_keys:
        others = float(n - 1)
        one, two = (torch.exp((others - k) * log_rest - itself.exp()) for k in (1, 2))
        alone = itself - itself.exp() + others * log_rest
        found = (
            torch.exp(alone),
            torch.exp(alone + itself),
            others * drift * one,
            others * spread * one + others * (others - 1) * drift.square() * two,
            others * drift * one * itself.exp(),
            others * squares * one,
            others * wide * one,
        )
        rows.append(torch.stack([SPACING * integrand.sum(-1) for integrand in found]))
    return torch.stack(rows, dim=1).unbind(0)


def _grid(score_scale: Tensor, self_score: Tensor, n_keys: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Nodes in log u, nodes in g, and the Gaussian mass of the latter."""
    widest = float(score_scale.detach().max())
    peak = max(math.log(max(n_keys)) + widest**2 / 2, float(self_score.detach().max()))
    log_u = torch.arange(-peak - MARGIN, 3 * widest + 6, SPACING, device="cpu", dtype=torch.float64)
    step = min(STEP, STEP / 1.5 / widest) if widest else STEP
    draws = torch.arange(-8.0, 8.0 + 2 * widest, step, device="cpu", dtype=torch.float64)
    return log_u, draws, step * torch.exp(-draws.square() / 2) / math.sqrt(2 * math.pi)


def _check(score_scale: Tensor, self_score: Tensor, n_keys: Sequence[int]) -> None:
    if score_scale.shape != self_score.shape or score_scale.ndim != 1 or not len(score_scale):
        raise ValueError(
            "score_scale, self_score: expected one number per query in each, got shapes "
            f"{tuple(score_scale.shape)} and {tuple(self_score.shape)}"
        )
    if score_scale.dtype != torch.float64 or (score_scale < 0).any():
        raise ValueError(f"score_scale: expected float64 numbers of at least 0, got {score_scale.dtype}")
    if not n_keys or min(n_keys) < 3:
        raise ValueError(f"n_keys: expected at least one number, each at least 3, got {tuple(n_keys)}")
