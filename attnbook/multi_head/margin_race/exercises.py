"""Checks of the exercises on the margin race. Each returns None for a right answer, else the likely mistake."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

from attnbook.core.feedback import verdict
from attnbook.core.rng import stream
from attnbook.multi_head import oracle
from attnbook.multi_head.data import Mixture

MIXTURE = Mixture(n_tokens=2, dimension=3, n_patterns=1, relevant_fraction=0.5, label_noise=0.2, other_noise=0.2)


def sample_weights(answer: Callable[..., Any]) -> str | None:
    """Check the weight of each sample in the gradient of the normalised loss."""
    for margins in (np.array([0.3, 1.2, -0.5]), np.array([2000.0, 1001.0, 1000.0])):
        right = np.exp(margins.min() - margins)
        right /= right.sum()
        with np.errstate(all="ignore"):
            got = np.asarray(answer(margins.copy()), dtype=float)
        if not np.isfinite(got).all():
            return f"margins {margins}: 0 / 0; subtract the smallest margin before you take exponentials"
        slopes, opposite = 1 / (1 + np.exp(np.minimum(margins, 700))), np.exp(margins - margins.max())
        likely = {
            "the sign: a sample with a large margin weighs little": opposite / opposite.sum(),
            "these are the slopes of the logistic loss; divide by the loss": slopes,
            "these are shares of the logistic slopes; this loss is the exponential one": slopes / slopes.sum(),
        }
        found = verdict(got, right, likely, "one weight for each of 3 samples", rtol=1e-6)
        if found:
            return f"margins {margins}: {found}"
    return None


def two_samples(seed: int = 0) -> tuple[Float[np.ndarray, "2 2 3"], Float[np.ndarray, " 2"]]:
    """Return two samples of a relevant and another token with three entries, and their labels; patterns have norm 1."""
    basis = np.linalg.qr(stream(seed, "exercise", "two samples").standard_normal((3, 3)))[0]
    plus, minus, other = basis
    noise = MIXTURE.other_noise * other - MIXTURE.label_noise * plus
    return np.array([[plus, other], [minus, other + noise]]), np.array([1.0, -1.0])


def beyond_the_attention_margin(answer: Callable[..., Any]) -> str | None:
    """Check a head whose margin per norm of its value matrix exceeds the attention margin on two samples."""
    limit = oracle.attention_margin(MIXTURE)
    for seed in (1, 2):
        tokens, labels = two_samples(seed)
        decoder, key_query = (np.asarray(part, dtype=float) for part in answer(tokens.copy(), labels.copy()))
        if decoder.shape != (2, 3) or key_query.shape != (3, 3):
            return f"U of shape (2, 3) and W of shape (3, 3) are wanted, got {decoder.shape} and {key_query.shape}"
        if not (np.isfinite(decoder).all() and np.isfinite(key_query).all() and decoder.any()):
            return "U and W need finite entries, and U must not be zero"
        logits = tokens @ key_query @ tokens.swapaxes(1, 2)
        weights = np.exp(logits - logits.max(2, keepdims=True))
        weights /= weights.sum(2, keepdims=True)
        margin = (labels * (decoder * (weights @ tokens)).sum((1, 2))).min() / np.linalg.norm(decoder)
        if margin <= limit:
            return _reason(margin / limit, weights)
    return None


def _reason(share: float, weights: np.ndarray) -> str:
    if share <= 0:
        return "a sample is on the wrong side: its label times the output is not positive"
    if weights.max(2).min() < 0.99:
        return f"{share:.2f} of the attention margin, and attention is not saturated yet: make W larger"
    if math.isclose(share, 1, abs_tol=0.02) and weights[:, :, 0].min() > 0.99:
        return "all attention on the relevant tokens gives the attention margin itself; which token could be better?"
    return f"{share:.2f} of the attention margin; with attention fixed, which U has the largest margin?"


CHECKS = {"MH-RACE": beyond_the_attention_margin, "MH-WEIGHTS": sample_weights}
