"""Checks of the exercises on curvature. Each returns None for a right answer, else the likely mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.core.feedback import verdict
from attnbook.core.rng import stream


def attention_gradient(answer: Callable[..., Any]) -> str | None:
    """Check the gradient of one head's output with respect to its key-query matrix."""
    rng = stream(1, "exercise", "MH-1")
    tokens, decoder, key_query = rng.standard_normal((5, 3)), rng.standard_normal((5, 3)), rng.standard_normal((3, 3))
    weights, swapped, values = _attention(tokens, key_query), _attention(tokens, key_query.T), decoder @ tokens.T
    pulled = [a * (values - (a * values).sum(1, keepdims=True)) for a in (weights, swapped)]
    right, turned = (tokens.T @ one @ tokens for one in pulled)
    likely = {
        "it is the transpose: the query token stands on the left": right.T,
        "subtract from each row its mean under attention: softmax does not change when all logits grow": (
            tokens.T @ (weights * values) @ tokens
        ),
        "the mean to subtract is weighted by attention; this one is not": (
            tokens.T @ (weights * (values - values.mean(1, keepdims=True))) @ tokens
        ),
        "queries and keys are swapped: the logits are X W X^T": turned,
    }
    got = answer(tokens.copy(), decoder.copy(), key_query.copy())
    return verdict(got, right, likely, "the gradient in W")


def spread_over_heads(answer: Callable[..., Any]) -> str | None:
    """Check a network of equal heads that computes what one head does."""
    rng = stream(1, "exercise", "MH-3")
    tokens, decoder, key_query = rng.standard_normal((5, 3)), rng.standard_normal((5, 3)), rng.standard_normal((3, 3))
    parts = answer(decoder.copy(), key_query.copy(), 7)
    shapes = [np.shape(part) for part in parts]
    if shapes != [(7, 5, 3), (7, 3, 3)]:
        return f"decoders and key-query matrices are wanted, of shapes (7, 5, 3) and (7, 3, 3), got {shapes}"
    decoders, key_queries = (np.asarray(part, dtype=float) for part in parts)
    if not np.allclose(decoders, decoders[0]) or not np.allclose(key_queries, key_queries[0]):
        return "all heads should be equal"
    before = np.sum(decoder * (_attention(tokens, key_query) @ tokens))
    outputs = [np.sum(u * (_attention(tokens, w) @ tokens)) for u, w in zip(decoders, key_queries, strict=True)]
    after = np.sum(outputs) / np.sqrt(7)
    if np.allclose(before, after):
        return None
    if not np.allclose(key_queries[0], key_query):
        return "the softmax is not linear: leave W as it is and rescale U"
    return f"the output is now {after / before:.3g} times what it was; count the heads and the factor in front of them"


def _attention(tokens: np.ndarray, key_query: np.ndarray) -> np.ndarray:
    weights = np.exp(tokens @ key_query @ tokens.T)
    return weights / weights.sum(1, keepdims=True)


CHECKS = {"MH-1": attention_gradient, "MH-3": spread_over_heads}
