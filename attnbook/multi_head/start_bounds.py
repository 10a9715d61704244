r"""What the paper states on one step from zero (Lemma 2, Proposition 2), and what this book proves in its place.

==============  ======================  =======================================================
paper           name here               meaning, range
==============  ======================  =======================================================
$p$, $P$        ``residual``            what the step wrote besides the signal; its norm, at least 0
$n_1$, $n$      ``n_samples``           samples of the step, and for training; at least 1
$\delta$        ``failure``             probability with which a bound may fail; default 0.05
==============  ======================  =======================================================

The margin that the paper states, eq. (7), is in :mod:`~attnbook.multi_head.oracle`. Constants that the paper leaves
open are one. The functions :func:`residual_size` and :func:`margin_bound` are this book's. A number outside
its range is a ValueError that names it.
"""

from __future__ import annotations

import math

from attnbook.multi_head import oracle
from attnbook.multi_head.checks import at_least, between_zero_and_one
from attnbook.multi_head.data import Mixture

__all__ = ["margin_bound", "output_bound", "residual_size"]


def residual_size(mixture: Mixture, n_samples: int) -> float:
    r"""Return the root mean square of $\|p\|$, exact for noise of mean zero as this book draws it.

    .. math:: \mathbb E\|p\|^2=\frac1{4n_1}\Big[\frac{\zeta^2S^2}2
              +\frac{1-\zeta}T\Big(S^2\frac{M+K-1}M+\mathbb E\|z\|^2\Big)\Big]

    with $K=(1-\zeta)T$ irrelevant tokens and $\mathbb E\|z\|^2=\frac{2Z_\mu^2+Z_\nu^2/M}{3S^2}+Z_\perp^2$.
    """
    at_least(1, n_samples=n_samples)
    square, m, t = mixture.pattern_norm**2, mixture.n_patterns, mixture.n_tokens
    others = t - mixture.n_relevant
    noise = (mixture.noise_norm**2 + 2 * mixture.free_noise**2) / 3  # uniform along patterns: a third of the bound
    rest = others / t**2 * (square * (m + others - 1) / m + noise)
    return math.sqrt((mixture.relevant_fraction**2 * square / 2 + rest) / 4 / n_samples)


def output_bound(mixture: Mixture, residual: float, *, n_samples: int, failure: float = 0.05) -> float:
    r"""Return $B_\Phi=\max(1,TR(S+P)\sqrt{2\log(n/\delta)})$ of property P2."""
    at_least(0, residual=residual)
    at_least(1, n_samples=n_samples)
    between_zero_and_one(failure=failure)
    reach = mixture.n_tokens * mixture.token_norm * (mixture.pattern_norm + residual)
    return max(1.0, reach * math.sqrt(2 * math.log(n_samples / failure)))


def margin_bound(mixture: Mixture, *, residual: float = 0.0) -> float:
    r"""Return this book's lower bound on the margin of the target after the step, in place of eq. (7).

    .. math:: \frac{T\zeta}{4S^2\sqrt{2(M+1)}}\Big[\zeta(1-\zeta)(S^2-2Z_\mu)(S^2B-b)-2(1-\zeta)Z_\mu b\Big]
              +\gamma_{lin}-TR^3P,

    where $B=S^2-(1-\zeta)(Z_\mu+Z_\nu)$ and $b=Z_\mu(\zeta S^2+2(1-\zeta)(Z_\mu+S^2+Z_\nu))$.

    Raises:
        ValueError: If $Z_\mu$ or $Z_\nu$ is above $S^2/8$, or the residual negative.
    """
    at_least(0, residual=residual)
    t, square, zeta = mixture.n_tokens, mixture.pattern_norm**2, mixture.relevant_fraction
    z_mu, z_nu, rest = mixture.label_noise, mixture.other_noise, 1 - zeta
    if (noise := max(z_mu, z_nu)) > square / 8 + 1e-9:
        raise ValueError(f"mixture: expected noise of at most S^2 / 8 = {square / 8:g}, got {noise:g}")
    relevant = square * (square - rest * (z_mu + z_nu))
    other = z_mu * (zeta * square + 2 * rest * (z_mu + square + z_nu))
    covariance = zeta * rest * (square - 2 * z_mu) * (relevant - other) - 2 * rest * z_mu * other
    attention = t * zeta * covariance / (4 * square * math.sqrt(2 * (mixture.n_patterns + 1)))
    return attention + oracle.linear_margin(mixture) - t * mixture.token_norm**3 * residual
