"""Checks of the exercises on curvature. Each returns None for a right answer, else the likely mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.core.feedback import likely_mistake
from attnbook.core.rng import stream
from attnbook.multi_head import derivatives as theory

__all__ = ["CHECKS"]


def attention_gradient(answer: Callable[..., Any]) -> str | None:
    """Check the gradient of one head's output with respect to its key-query matrix."""
    rng = stream(1, "exercise", "MH-1")
    tokens, decoder, key_query = rng.standard_normal((5, 3)), rng.standard_normal((5, 3)), rng.standard_normal((3, 3))
    got = np.asarray(answer(tokens.copy(), decoder.copy(), key_query.copy()), dtype=float)
    if got.shape != (3, 3):
        return f"the gradient has the shape of W, (3, 3), got {got.shape}"
    right = theory.key_query_gradient(tokens, decoder, key_query)
    if np.allclose(got, right):
        return None
    weights, values = theory.attention(tokens, key_query), decoder @ tokens.T
    swapped = theory.attention(tokens, key_query.T)
    pulled = swapped * (values - (swapped * values).sum(1, keepdims=True))
    likely = {
        "it is the transpose: the query token stands on the left": right.T,
        "subtract from each row its mean under attention: softmax does not change when all logits grow": (
            tokens.T @ (weights * values) @ tokens
        ),
        "the mean to subtract is weighted by attention; this one is not": (
            tokens.T @ (weights * (values - values.mean(1, keepdims=True))) @ tokens
        ),
        "queries and keys are swapped: the logits are X W X^T": tokens.T @ pulled @ tokens,
    }
    return likely_mistake(got, right, likely)


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
    before = np.sum(decoder * theory.decoder_gradient(tokens, key_query))
    outputs = [np.sum(u * theory.decoder_gradient(tokens, w)) for u, w in zip(decoders, key_queries, strict=True)]
    after = np.sum(outputs) / np.sqrt(7)
    if np.allclose(before, after):
        return None
    if not np.allclose(key_queries[0], key_query):
        return "the softmax is not linear: leave W as it is and rescale U"
    return f"the output is now {after / before:.3g} times what it was; count the heads and the factor in front of them"


CHECKS = {"MH-1": attention_gradient, "MH-3": spread_over_heads}
