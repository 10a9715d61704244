r"""Parameters that solve the tokenised mixture, and their margins (the paper's Sections 5.2 and 5.3).

===================  ============================  ==================================================================
paper                name here                     meaning
===================  ============================  ==================================================================
$u_\star$            ``value_direction``           $\mu_+-\mu_-$
$U_\star$            ``decoder``                   $\mathbb 1_Tu_\star^\top$, norm $S\sqrt{2T}$
$W_\star$            ``key_query``                 see the function; norm $S^2\sqrt{2(M+1)}$
$\gamma_{lin}$       ``linear_margin``             margin of $U_\star/\|U_\star\|$ with uniform attention
$\gamma_\star$       ``first_phase_margin``        eq. (7): tangent-kernel margin after the first phase
$\gamma_{attn}$      ``attention_margin``          limit of the margin with saturated attention
$P$                  ``residual``                  norm of the part of $m$ that is not signal
===================  ============================  ==================================================================
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float

from attnbook.multi_head.data import Mixture, Patterns

__all__ = [
    "attention_margin",
    "decoder",
    "first_phase_margin",
    "key_query",
    "linear_margin",
    "value_direction",
]


def value_direction(patterns: Patterns) -> Float[np.ndarray, " dimension"]:
    r"""Return $u_\star=\mu_+-\mu_-$.

    Args:
        patterns: Patterns of the mixture.

    Returns:
        The direction, of norm $S\sqrt2$.
    """
    return np.asarray(patterns.label[0] - patterns.label[1])


def decoder(patterns: Patterns, n_tokens: int) -> Float[np.ndarray, "tokens dimension"]:
    r"""Return $U_\star=\mathbb 1_Tu_\star^\top$.

    Args:
        patterns: Patterns of the mixture.
        n_tokens: Tokens of a sample.

    Returns:
        The value matrix, of norm $S\sqrt{2T}$.
    """
    return np.tile(value_direction(patterns), (n_tokens, 1))


def key_query(patterns: Patterns) -> Float[np.ndarray, "dimension dimension"]:
    r"""Return $W_\star=\mu_+\mu_+^\top+\mu_-\mu_-^\top+\sum_\ell\nu_\ell(\mu_++\mu_-)^\top$.

    Args:
        patterns: Patterns of the mixture.

    Returns:
        The key-query matrix, of norm $S^2\sqrt{2(M+1)}$; its rows are queries.
    """
    return np.asarray(patterns.label.T @ patterns.label + np.outer(patterns.other.sum(0), patterns.label.sum(0)))


def linear_margin(mixture: Mixture) -> float:
    r"""Return $\gamma_{lin}=S\sqrt{T/2}\,(\zeta-2(1-\zeta)Z_\mu/S^2)$, at most the margin of uniform attention.

    Args:
        mixture: Sizes and noise.

    Returns:
        The bound; negative when the noise is large.
    """
    s, zeta = mixture.pattern_norm, mixture.relevant_fraction
    return s * math.sqrt(mixture.n_tokens / 2) * (zeta - 2 * (1 - zeta) * mixture.label_noise / s**2)


def attention_margin(mixture: Mixture, *, leak: float = 0.0) -> float:
    r"""Return $\gamma_{attn}(\epsilon)=\frac{\sqrt T}{\sqrt2S}(S^2(1-\epsilon)-2\epsilon Z_\mu)$, eq. (11).

    Args:
        mixture: Sizes and noise.
        leak: The attention $\epsilon$ on irrelevant tokens, at least 0 and at most 1; default 0, the limit
            $\gamma_{attn}=S\sqrt{T/2}$.

    Returns:
        The margin of a network with $\|U\|=1$.

    Raises:
        ValueError: If the leak is outside its range.

    Example:
        >>> attention_margin(Mixture(n_tokens=8, dimension=7, n_patterns=3, relevant_fraction=0.25))
        2.0
    """
    if not 0 <= leak <= 1:
        raise ValueError(f"leak: expected a number between 0 and 1, got {leak}")
    s = mixture.pattern_norm
    return math.sqrt(mixture.n_tokens / 2) / s * (s**2 * (1 - leak) - 2 * leak * mixture.label_noise)


def first_phase_margin(mixture: Mixture, *, residual: float = 0.0) -> float:
    r"""Return $\gamma_\star$ of eq. (7), the stated tangent-kernel margin after the first phase.

    .. math:: \frac{T(1-\zeta)\zeta(\zeta S^4-7\bar ZS^2-12\bar Z^2-16\bar Z^3/S^2)}{4\sqrt{2(M+1)}}
              -PT^{5/2}(S+Z)^3+\gamma_{lin},\qquad\bar Z=\max(Z_\mu,Z_\nu).

    Args:
        mixture: Sizes and noise.
        residual: The norm bound $P$, at least 0; default 0.

    Returns:
        The formula's value; negative values say nothing.

    Raises:
        ValueError: If the residual is negative.
    """
    if not 0 <= residual < math.inf:
        raise ValueError(f"residual: expected a finite number of at least 0, got {residual}")
    t, s, zeta = mixture.n_tokens, mixture.pattern_norm, mixture.relevant_fraction
    noise = max(mixture.label_noise, mixture.other_noise)
    signal = zeta * s**4 - 7 * noise * s**2 - 12 * noise**2 - 16 * noise**3 / s**2
    attention = t * (1 - zeta) * zeta * signal / (4 * math.sqrt(2 * (mixture.n_patterns + 1)))
    return attention - residual * t**2.5 * (s + mixture.noise_norm) ** 3 + linear_margin(mixture)
