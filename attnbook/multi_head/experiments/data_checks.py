"""Whether drawn samples keep what the paper assumes of them (its data model and Assumption 3)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from attnbook.core.rng import stream
from attnbook.multi_head.data import Mixture, Patterns, Samples, draw_patterns, draw_samples

__all__ = ["violations"]


def violations(mixture: Mixture, n_samples: int, seeds: Sequence[int]) -> dict[str, Float[np.ndarray, " seeds"]]:
    r"""Measure the bounds on the noise, the norms of tokens and patterns, and the relevant tokens.

    Args:
        mixture: Sizes and noise.
        n_samples: Samples of each seed, at least 1.
        seeds: Seeds.

    Returns:
        ``violation``: the largest excess over $Z_\mu$, $Z_\nu/M$, $Z$ or $R$, negative if there is none;
        ``gram_error``: of the inner products of patterns; ``relevant_error``: of the relevant tokens.
    """
    found = []
    for seed in seeds:
        patterns = draw_patterns(mixture, rng=stream(seed, "patterns"))
        drawn = draw_samples(mixture, patterns, n_samples, rng=stream(seed, "data checks"))
        everything = np.concatenate([patterns.label, patterns.other])
        gram = everything @ everything.T - mixture.pattern_norm**2 * np.eye(len(everything))
        expected = np.where(drawn.labels[:, None] > 0, patterns.label[0], patterns.label[1])[:, None]
        apart = np.abs(drawn.tokens - expected)[drawn.relevant]
        found.append((_excess(mixture, patterns, drawn), np.abs(gram).max(), apart.max()))
    names = ("violation", "gram_error", "relevant_error")
    return {name: np.array(values) for name, values in zip(names, zip(*found, strict=True), strict=True)}


def _excess(mixture: Mixture, patterns: Patterns, drawn: Samples) -> float:
    """Return the largest excess over a bound; the pattern of a token is the one it is nearest to."""
    tokens = drawn.tokens[~drawn.relevant]
    nearest = patterns.other[(tokens @ patterns.other.T).argmax(1)] if len(tokens) else tokens
    noise = tokens - nearest
    parts = {
        "label": (np.abs(noise @ patterns.label.T), mixture.label_noise),
        "other": (np.abs(noise @ patterns.other.T), mixture.other_noise / mixture.n_patterns),
        "norm": (np.linalg.norm(noise, axis=1), mixture.noise_norm),
        "token": (np.linalg.norm(drawn.tokens, axis=2), mixture.token_norm),
    }
    return max(float(values.max(initial=0.0)) - bound for values, bound in parts.values())
