"""Samples of the mixture whose noise is chosen against a rule; every bound of the mixture holds on them."""

from __future__ import annotations

import numpy as np

from attnbook.multi_head.data import Mixture, Patterns, Samples

__all__ = ["against_attention", "against_linear_rules"]


def against_linear_rules(mixture: Mixture, patterns: Patterns, *, sign: float = 1.0) -> Samples:
    r"""Return $2T$ samples, on which no linear rule has a larger margin than $\gamma_{lin}$.

    The noise of every irrelevant token points from the own label's pattern to the other's, as far as $Z_\mu$ allows.
    There is one sample for each label and each cyclic shift of the positions. Proved in the chapter on margins.

    With ``sign`` -1 the noise helps instead. Label 1 comes first; there is no free noise.
    """
    t, s = mixture.n_tokens, mixture.pattern_norm
    shifts = (np.arange(t)[None, :] - np.arange(t)[:, None]) % t < mixture.n_relevant
    relevant, labels = np.concatenate([shifts, shifts]), np.repeat([1.0, -1.0], t)
    apart = sign * mixture.label_noise / s**2 * (patterns.label[1] - patterns.label[0])
    own = np.where(labels[:, None] > 0, patterns.label[0], patterns.label[1])
    irrelevant = patterns.other[0] + labels[:, None] * apart
    tokens = np.where(relevant[..., None], own[:, None], irrelevant[:, None])
    return Samples(tokens, labels, relevant)


def against_attention(mixture: Mixture, patterns: Patterns) -> Samples:
    r"""Return one sample for each label with the query that $W_\star$ serves worst.

    The first irrelevant token is that query: its noise is $-Z_\mu$ on its label's pattern, $Z_\mu$ on the other's and
    $-Z_\nu/M$ on every $\nu_\ell$. All other irrelevant tokens are the worst keys, with noise $Z_\mu$ on both label
    patterns.

    Label 1 comes first; the relevant tokens lead, then comes the query; there is no free noise.

    Raises:
        ValueError: If every token is relevant.
    """
    if mixture.n_relevant == mixture.n_tokens:
        raise ValueError(f"mixture: expected an irrelevant token, got {mixture.n_tokens} tokens, all relevant")
    square, k = mixture.pattern_norm**2, mixture.n_relevant
    samples = []
    for own, other in ((0, 1), (1, 0)):
        tokens = np.empty((mixture.n_tokens, mixture.dimension))
        tokens[:k] = patterns.label[own]
        tokens[k:] = patterns.other[0] + mixture.label_noise / square * patterns.label.sum(0)
        tokens[k] = patterns.other[0] + mixture.label_noise / square * (patterns.label[other] - patterns.label[own])
        tokens[k] -= mixture.other_noise / mixture.n_patterns / square * patterns.other.sum(0)
        samples.append(tokens)
    relevant = np.tile(np.arange(mixture.n_tokens) < k, (2, 1))
    return Samples(np.stack(samples), np.array([1.0, -1.0]), relevant)
