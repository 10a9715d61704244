r"""Where one sample's queries look as the oracle key-query matrix is scaled up; for a slider, no claim rests on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core.rng import stream
from attnbook.multi_head import layer, oracle
from attnbook.multi_head.data import Mixture, Patterns, Samples, draw_patterns, draw_samples
from attnbook.multi_head.hard_samples import against_attention
from attnbook.multi_head.measures import leak_and_margin

__all__ = ["AttentionMap", "Settings", "attention_map"]


@dataclass(frozen=True)
class Settings:
    r"""Sizes of the picture.

    Attributes:
        n_tokens: Tokens of the sample.
        dimension: Dimension of a token.
        n_patterns: Number $M$ of patterns that say nothing.
        relevant_fraction: Share $\zeta$ of relevant tokens.
        leak: The $\epsilon$ of $\Gamma_\epsilon$.
        seed: Seed of the drawn sample.
    """

    n_tokens: int = 10
    dimension: int = 7
    n_patterns: int = 4
    relevant_fraction: float = 0.2
    leak: float = 0.1
    seed: int = 0


class AttentionMap(NamedTuple):
    r"""One picture.

    Attributes:
        weights: How much each query (row) attends to each token, the relevant ones first.
        n_relevant: How many these are.
        leak: Largest attention of a query on irrelevant tokens.
        margin: Margin of the value direction on the sample, as a share of $\gamma_{attn}$.
    """

    weights: Float[np.ndarray, "tokens tokens"]
    n_relevant: int
    leak: float
    margin: float


def attention_map(settings: Settings, share: float, noise_share: float, *, hard: bool = False) -> AttentionMap:
    r"""Return the attention of one sample with label 1 at some share of $\Gamma_\epsilon$.

    Args:
        settings: Sizes.
        share: $\Gamma/\Gamma_\epsilon$, at least 0.
        noise_share: $Z_\mu/S^2=Z_\nu/S^2$, at least 0.
        hard: Whether noise is chosen against attention; default drawn.

    Returns:
        The picture.
    """
    mixture = Mixture(
        settings.n_tokens,
        settings.dimension,
        settings.n_patterns,
        relevant_fraction=settings.relevant_fraction,
        label_noise=noise_share,
        other_noise=noise_share,
    )
    patterns = draw_patterns(mixture, rng=stream(settings.seed, "patterns"))
    sample = _sample(mixture, patterns, settings.seed, hard=hard)
    u, w = oracle.decoder(patterns, mixture.n_tokens), oracle.key_query(patterns)
    w = w / np.linalg.norm(w) * share * oracle.stated_scale(mixture, settings.leak)
    parameters = {"decoder": torch.from_numpy(u)[None, None], "key_query": torch.from_numpy(w)[None, None]}
    weights = layer.attention_weights(parameters, torch.from_numpy(sample.tokens)[None])[0, 0, 0].numpy()
    leak, margin = leak_and_margin(sample, u / np.linalg.norm(u), w)
    return AttentionMap(weights, mixture.n_relevant, leak, margin / oracle.attention_margin(mixture))


def _sample(mixture: Mixture, patterns: Patterns, seed: int, *, hard: bool) -> Samples:
    """One sample with label 1, its relevant tokens first."""
    if hard:
        made = against_attention(mixture, patterns)
        return Samples(made.tokens[:1], made.labels[:1], made.relevant[:1])
    drawn = draw_samples(mixture, patterns, 50, rng=stream(seed, "map"))
    first = int((drawn.labels > 0).argmax())
    order = np.argsort(~drawn.relevant[first], kind="stable")
    tokens, relevant = drawn.tokens[[first]][:, order], drawn.relevant[[first]][:, order]
    return Samples(tokens, drawn.labels[[first]], relevant)
