"""Checks of the exercises on self-attention. Each returns None for a right answer, else the likely mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.core.feedback import likely_mistake, verdict
from attnbook.core.rng import stream
from attnbook.softmax_ntk.self_attention import row_as_network


def row_network(answer: Callable[..., Any]) -> str | None:
    """Check the first layer of the network that one row of self-attention is."""
    rng = stream(1, "exercise", "SN-16")
    tokens, query, key = rng.standard_normal((7, 5)), rng.standard_normal((5, 2)), rng.standard_normal((5, 2))
    right = row_as_network(tokens, query @ key.T, np.eye(5)).first_layer
    likely = {
        "queries and keys are exchanged: the query is the input, the keys are in the weights": key @ query.T @ tokens.T,
        "the sign is reversed": -right,
        "a scale is in: the paper's layer has none": right / np.sqrt(2),
    }
    return verdict(answer(tokens.copy(), query.copy(), key.copy()), right, likely, "one column per neuron")


def best_values(answer: Callable[..., Any]) -> str | None:
    """Check the values that fit best, also where the problem is singular."""
    rng = stream(1, "exercise", "SN-18")
    for many, what in ((7, "many sequences"), (2, "fewer sequences than entries of a token, at uniform attention")):
        tokens, labels = rng.standard_normal((many, 4, 5)), rng.standard_normal((many, 4, 3))
        weights = rng.random((many, 4, 4)) if many == 7 else np.ones((many, 4, 4))
        weights /= weights.sum(axis=2, keepdims=True)
        flat = labels.reshape(-1, 3)
        right = np.linalg.lstsq((weights @ tokens).reshape(-1, 5), flat, rcond=1e-9)[0]
        plain = np.linalg.lstsq(tokens.reshape(-1, 5), flat)[0]
        each = np.mean([np.linalg.lstsq(w @ x, y)[0] for w, x, y in zip(weights, tokens, labels, strict=True)], 0)
        got = np.asarray(answer(weights.copy(), tokens.copy(), labels.copy()), dtype=float)
        if got.shape != right.shape:
            return f"one row per entry of a token is wanted, shape {right.shape}, got {got.shape}"
        if not np.allclose(got, right, atol=1e-6):
            likely = {
                "attention is missing: the values act on the weighted means of the tokens": plain,
                "this solves sequence by sequence and averages; one set of values serves all": each,
            }
            return f"with {what}: {likely_mistake(got, right, likely)}"
    return None


CHECKS = {"SN-16": row_network, "SN-18": best_values}
