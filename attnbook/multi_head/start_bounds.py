r"""What the paper states on the first phase and the start it leaves (Lemma 2, Definition 1, Proposition 2), and ours.

==============  ======================  =======================================================
paper           name here               meaning, range
==============  ======================  =======================================================
$p$, $P$        ``residual``            what the first step wrote besides signal; its norm, at least 0
$n_1$, $n$      ``n_samples``           samples of the first phase, and for training; at least 1
$\delta$        ``failure``             probability with which a bound may fail; here 0.05
$B_2$           ``head_norm_bound``     P1: norm of every head at the start
$B_\Phi$        ``output_bound``        P2: outputs at the start
$\gamma_\star$  ``first_phase_margin``  P3: margin of the target, eq. (7), in ``oracle``
==============  ======================  =======================================================

Hidden constants are one. The exact size of the residual, its price $TR^3$, the bound :func:`margin_bound` and what the
functions give with ``sharper=True`` are this book's. Numbers outside their range are a ValueError that names them.
"""

from __future__ import annotations

import math

import numpy as np

from attnbook.multi_head import oracle
from attnbook.multi_head.checks import at_least, between_zero_and_one, whole
from attnbook.multi_head.data import Mixture

__all__ = [
    "head_norm_bound",
    "margin_bound",
    "output_bound",
    "residual_bound",
    "residual_price",
    "residual_size",
    "sign_quantile",
]


def residual_size(mixture: Mixture, n_samples: int) -> float:
    r"""Return the root mean square of $\|p\|$ after the first phase (this book's, exact for its noise).

    .. math:: \mathbb E\|p\|^2=\frac1{4n_1}\Big[\frac{\zeta^2S^2}2
              +\frac{1-\zeta}T\Big(S^2\frac{M+K-1}M+\mathbb E\|z\|^2\Big)\Big]

    with $K=(1-\zeta)T$ irrelevant tokens and $\mathbb E\|z\|^2=\frac{2Z_\mu^2+Z_\nu^2/M}{3S^2}+Z_\perp^2$.
    The dimension of the tokens does not enter.
    """
    at_least(1, n_samples=n_samples)
    s, zeta, m, t = mixture.pattern_norm, mixture.relevant_fraction, mixture.n_patterns, mixture.n_tokens
    on_patterns = 2 * mixture.label_noise**2 + mixture.other_noise**2 / m
    noise = on_patterns / (3 * s**2) + mixture.free_noise**2
    others = t - mixture.n_relevant
    of_others = others / t**2 * (s**2 * (m + others - 1) / m + noise)
    return math.sqrt((zeta**2 * s**2 / 2 + of_others) / (4 * n_samples))


def residual_bound(mixture: Mixture, n_samples: int, *, failure: float = 0.05) -> float:
    r"""Return eq. (6), the bound on $\|p\|$, with $C=1$: $(2S+Z)(\sqrt{d/n_1}+\sqrt{\log(1/\delta)/n_1})$."""
    at_least(1, n_samples=n_samples)
    between_zero_and_one(failure=failure)
    spread = math.sqrt(mixture.dimension) + math.sqrt(math.log(1 / failure))
    return (2 * mixture.pattern_norm + mixture.noise_norm) * spread / math.sqrt(n_samples)


def head_norm_bound(mixture: Mixture, residual: float, *, sharper: bool = False) -> float:
    r"""Return $B_2=\max(1,\sqrt T(S+P))$ of property P1, or ours, $\sqrt T(\frac{\sqrt2}4\zeta S+P)$.

    Ours is attained without residual.
    """
    at_least(0, residual=residual)
    if sharper:
        return math.sqrt(mixture.n_tokens) * _row_norm(mixture, residual)
    return max(1.0, math.sqrt(mixture.n_tokens) * (mixture.pattern_norm + residual))


def output_bound(
    mixture: Mixture, residual: float, *, n_samples: int, failure: float = 0.05, sharper: bool = False
) -> float:
    r"""Return $B_\Phi=\max(1,TR(S+P)\sqrt{2\log(n/\delta)})$ of property P2, or ours.

    Ours is $TR(\frac{\sqrt2}4\zeta S+P)\sqrt{2\log(2/\delta)}$: all samples share one random sum of signs, so their
    number does not enter.
    """
    at_least(0, residual=residual)
    at_least(1, n_samples=n_samples)
    between_zero_and_one(failure=failure)
    reach = mixture.n_tokens * mixture.token_norm
    if sharper:
        return reach * _row_norm(mixture, residual) * math.sqrt(2 * math.log(2 / failure))
    return max(1.0, reach * (mixture.pattern_norm + residual) * math.sqrt(2 * math.log(n_samples / failure)))


def residual_price(mixture: Mixture, *, sharper: bool = False) -> float:
    """Return $T^{5/2}(S+Z)^3$, what eq. (7) takes off the margin for each unit of the residual, or ours, $TR^3$.

    Ours is the most that a residual of norm one can take off.
    """
    if sharper:
        return float(mixture.n_tokens * mixture.token_norm**3)
    return float(mixture.n_tokens**2.5 * (mixture.pattern_norm + mixture.noise_norm) ** 3)


def margin_bound(mixture: Mixture, *, residual: float = 0.0) -> float:
    r"""Return this book's lower bound on the margin of the target after the first phase.

    In the place of eq. (7), with its leading term and $\gamma_{lin}$ the same:

    .. math:: \frac{T\zeta}{4S^2\sqrt{2(M+1)}}\Big[\zeta(1-\zeta)(S^2-2Z_\mu)(S^2B-b)-2(1-\zeta)Z_\mu b\Big]
              +\gamma_{lin}-TR^3P,

    where $B=S^2-(1-\zeta)(Z_\mu+Z_\nu)$ and $b=Z_\mu(\zeta S^2+2(1-\zeta)(Z_\mu+S^2+Z_\nu))$.

    Raises:
        ValueError: If $Z_\mu$ or $Z_\nu$ is above $S^2/8$, or the residual negative.

    Example:
        >>> quiet = Mixture(10, 6, 4, pattern_norm=2.0, relevant_fraction=0.4)
        >>> abs(margin_bound(quiet) - oracle.first_phase_margin(quiet)) < 1e-12
        True
    """
    at_least(0, residual=residual)
    t, s, zeta = mixture.n_tokens, mixture.pattern_norm, mixture.relevant_fraction
    z_mu, z_nu = mixture.label_noise, mixture.other_noise
    for name, noise in {"label_noise": z_mu, "other_noise": z_nu}.items():
        if noise > s**2 / 8 * (1 + 1e-12):
            raise ValueError(f"{name}: this bound needs at most pattern_norm**2 / 8 = {s**2 / 8:g}, got {noise:g}")
    relevant = s**2 * (s**2 - (1 - zeta) * (z_mu + z_nu))
    other = z_mu * (zeta * s**2 + 2 * (1 - zeta) * (z_mu + s**2 + z_nu))
    covariance = zeta * (1 - zeta) * (s**2 - 2 * z_mu) * (relevant - other) - 2 * (1 - zeta) * z_mu * other
    attention = t * zeta * covariance / (4 * s**2 * math.sqrt(2 * (mixture.n_patterns + 1)))
    return attention + oracle.linear_margin(mixture) - residual_price(mixture, sharper=True) * residual


def sign_quantile(n_heads: int, failure: float) -> float:
    r"""Return what $\big|\frac1{\sqrt H}\sum_h\alpha_h\big|$ stays within with probability $1-\delta$.

    Exactly, for random signs; it scales all outputs at the start.

    Example:
        >>> sign_quantile(4, 0.2), sign_quantile(4, 0.05)
        (1.0, 2.0)
    """
    whole(n_heads=n_heads)
    between_zero_and_one(failure=failure)
    sums = np.abs(2 * np.arange(n_heads + 1) - n_heads) / math.sqrt(n_heads)
    order = sums.argsort()
    chances = np.array([math.comb(n_heads, k) / 2**n_heads for k in order.tolist()])
    return float(sums[order][(chances.cumsum() >= 1 - failure - 1e-12).argmax()])


def _row_norm(mixture: Mixture, residual: float) -> float:
    return math.sqrt(2) / 4 * mixture.relevant_fraction * mixture.pattern_norm + residual
