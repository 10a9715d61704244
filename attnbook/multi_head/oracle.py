r"""Parameters that solve the tokenised mixture, and their margins (the paper's Sections 5.2, 5.3 and 7).

Also how strongly attention must be scaled, and when the order of the three margins flips. A ``leak`` is the share
$\epsilon$ of its attention that a query gives to irrelevant tokens. Numbers outside their range are a ValueError.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from attnbook.multi_head.checks import at_least, between_zero_and_one
from attnbook.multi_head.data import Mixture, Patterns

__all__ = [
    "attention_margin",
    "crossing",
    "decoder",
    "first_phase_margin",
    "key_query",
    "linear_margin",
    "stated_scale",
    "step_crossing",
    "value_direction",
    "worst_gap",
]


def value_direction(patterns: Patterns) -> Float[np.ndarray, " dimension"]:
    r"""Return $u_\star=\mu_+-\mu_-$, of norm $S\sqrt2$."""
    return np.asarray(patterns.label[0] - patterns.label[1])


def decoder(patterns: Patterns, n_tokens: int) -> Float[np.ndarray, "tokens dimension"]:
    r"""Return $U_\star=\mathbb 1_Tu_\star^\top$, of norm $S\sqrt{2T}$."""
    return np.tile(value_direction(patterns), (n_tokens, 1))


def key_query(patterns: Patterns) -> Float[np.ndarray, "dimension dimension"]:
    r"""Return $W_\star=\mu_+\mu_+^\top+\mu_-\mu_-^\top+\sum_\ell\nu_\ell(\mu_++\mu_-)^\top$.

    Its norm is $S^2\sqrt{2(M+1)}$; its rows are queries.
    """
    return np.asarray(patterns.label.T @ patterns.label + np.outer(patterns.other.sum(0), patterns.label.sum(0)))


def linear_margin(mixture: Mixture) -> float:
    r"""Return $\gamma_{lin}=S\sqrt{T/2}\,(\zeta-2(1-\zeta)Z_\mu/S^2)$, at most the margin of uniform attention.

    Negative when the noise is large.
    """
    s, zeta = mixture.pattern_norm, mixture.relevant_fraction
    return s * math.sqrt(mixture.n_tokens / 2) * (zeta - 2 * (1 - zeta) * mixture.label_noise / s**2)


def attention_margin(mixture: Mixture, *, leak: float = 0.0) -> float:
    r"""Return $\gamma_{attn}(\epsilon)=\frac{\sqrt T}{\sqrt2S}(S^2(1-\epsilon)-2\epsilon Z_\mu)$, eq. (11), $\|U\|=1$.

    The leak $\epsilon$ is at least 0 and at most 1; default 0, the limit $\gamma_{attn}=S\sqrt{T/2}$.

    Raises:
        ValueError: If the leak is outside its range.
    """
    if not 0 <= leak <= 1:
        raise ValueError(f"leak: expected a number between 0 and 1, got {leak}")
    s = mixture.pattern_norm
    return math.sqrt(mixture.n_tokens / 2) / s * (s**2 * (1 - leak) - 2 * leak * mixture.label_noise)


def first_phase_margin(mixture: Mixture, *, residual: float = 0.0) -> float:
    r"""Return $\gamma_\star$ of eq. (7), the stated tangent-kernel margin after the first phase.

    .. math:: \frac{T(1-\zeta)\zeta(\zeta S^4-7\bar ZS^2-12\bar Z^2-16\bar Z^3/S^2)}{4\sqrt{2(M+1)}}
              -PT^{5/2}(S+Z)^3+\gamma_{lin},\qquad\bar Z=\max(Z_\mu,Z_\nu).

    The ``residual`` $P$ is at least 0. Negative values of the margin say nothing.
    """
    at_least(0, residual=residual)
    t, s, zeta = mixture.n_tokens, mixture.pattern_norm, mixture.relevant_fraction
    noise = max(mixture.label_noise, mixture.other_noise)
    signal = zeta * s**4 - 7 * noise * s**2 - 12 * noise**2 - 16 * noise**3 / s**2
    attention = t * (1 - zeta) * zeta * signal / (4 * math.sqrt(2 * (mixture.n_patterns + 1)))
    return attention - residual * t**2.5 * (s + mixture.noise_norm) ** 3 + linear_margin(mixture)


def stated_scale(mixture: Mixture, leak: float) -> float:
    r"""Return $\Gamma_\epsilon=\frac{8\sqrt{2(M+1)}}{3S^2}\log\frac{\zeta^{-1}-1}\epsilon$ of Proposition 3, or 0.

    A norm of the key-query matrix $\Gamma W_\star/\|W_\star\|$ that suffices for a leak $\epsilon$ between 0 and 1. The
    proposition asks for noise $Z_\mu=Z_\nu\le S^2/8$, which is not checked here.
    """
    between_zero_and_one(leak=leak)
    odds = max(1 / mixture.relevant_fraction - 1, leak) / leak
    return 8 / 3 * math.sqrt(2 * (mixture.n_patterns + 1)) / mixture.pattern_norm**2 * max(0.0, math.log(odds))


def worst_gap(mixture: Mixture) -> float:
    r"""Return the smallest gap between a relevant and an irrelevant logit that the noise bounds allow (ours).

    Under $W_\star$ it is $S^4-S^2(3Z_\mu+Z_\nu)+2Z_\mu Z_\nu$, attained by the worst query with the worst key; not
    positive when the noise is so large that a query may look away. The constant of Proposition 3 needs $\frac38S^4$ at
    $Z_\mu=Z_\nu=S^2/8$, where this is $\frac{17}{32}S^4$.

    Raises:
        ValueError: If the noise is too large for the formula: it needs $Z_\mu+Z_\nu\le S^2$ and $2Z_\mu\le S^2$.
    """
    square, label, other = mixture.pattern_norm**2, mixture.label_noise, mixture.other_noise
    if label + other > square or 2 * label > square:
        raise ValueError(f"mixture: noise {label} and {other} is too large for S^2 = {square}")
    return square**2 - square * (3 * label + other) + 2 * label * other


def crossing(mixture: Mixture) -> float:
    r"""Return the pattern norm above which $\gamma_\star>\gamma_{attn}$ without noise and residual.

    From $\sqrt T\zeta^2S^3=4\sqrt{M+1}$; the mixture's own pattern norm plays no part.
    """
    root = math.sqrt(mixture.n_tokens)
    return (4 * math.sqrt(mixture.n_patterns + 1) / (root * mixture.relevant_fraction**2)) ** (1 / 3)


def step_crossing(mixture: Mixture) -> float:
    r"""Return the step of the first phase, in units of the paper's, above which $\gamma_\star>\gamma_{attn}$ (ours).

    Without noise and residual. A step $c$ times as long multiplies $U^{(1)}$ by $c$, hence the attention part of
    $\gamma_\star$ and nothing else: $c=(\gamma_{attn}-\gamma_{lin})/(\gamma_\star-\gamma_{lin})$.

    Raises:
        ValueError: If every token is relevant, where all margins are equal.
    """
    if mixture.n_relevant == mixture.n_tokens:
        raise ValueError("mixture: expected an irrelevant token, got only relevant ones")
    quiet = replace(mixture, label_noise=0.0, other_noise=0.0, free_noise=0.0)
    linear = linear_margin(quiet)
    return (attention_margin(quiet) - linear) / (first_phase_margin(quiet) - linear)
