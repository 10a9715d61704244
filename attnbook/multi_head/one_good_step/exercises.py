"""Checks of the exercises on one good step. Each returns None for a right answer, else the likely mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.core.feedback import likely_mistake
from attnbook.core.rng import stream

__all__ = ["CHECKS"]


def first_direction(answer: Callable[..., Any]) -> str | None:
    """Check what the first step writes into every row of a decoder, per unit of the random sign, for any loss."""
    rng = stream(1, "exercise", "MH-7")
    tokens, labels, slope = rng.standard_normal((6, 5, 3)), np.array([1.0, -1.0, 1.0, 1.0, 1.0, -1.0]), -0.7
    got = np.asarray(answer(tokens.copy(), labels.copy(), slope), dtype=float)
    if got.shape != (3,):
        return f"one direction in token space is wanted, of shape (3,), got {got.shape}"
    right = -slope * (labels[:, None] * tokens.mean(1)).mean(0)
    if np.allclose(got, right):
        return None
    likely = {
        "the half was the slope of the logistic loss; here the slope is given": right / -slope / 2,
        "the slope of the loss is missing": right / -slope,
        "slope and half: the half of the logistic loss was its slope": right / 2,
        "descent goes against the gradient: the sign is wrong": -right,
        "uniform attention gives the mean of the tokens, not their sum": 5 * right,
        "the labels are missing": -slope * tokens.mean((0, 1)),
        "the loss is a mean over samples, not a sum": 6 * right,
    }
    return likely_mistake(got, right, likely)


def guarantee(answer: Callable[..., Any]) -> str | None:
    """Check the smallest attention part of a sample's margin over all residuals of a norm."""
    rng = stream(1, "exercise", "MH-8")
    tokens, key_query, m = rng.standard_normal((5, 3)), rng.standard_normal((3, 3)), rng.standard_normal(3)
    length = 0.3
    got = np.asarray(answer(tokens.copy(), -1.0, m.copy(), key_query.copy(), length), dtype=float)
    if got.shape != ():
        return f"one number is wanted, got the shape {got.shape}"

    def formula(centred: np.ndarray, matrix: np.ndarray, *, label: float = -1.0) -> np.ndarray:
        pull = label * np.asarray(centred.T @ (tokens @ (tokens.mean(0) @ matrix)))
        return np.asarray(m @ pull - length * np.linalg.norm(pull))

    centred = tokens - tokens.mean(0)
    right = formula(centred, key_query)
    if np.allclose(got, right):
        return None
    without = formula(centred, key_query) + length * np.linalg.norm(centred.T @ (tokens @ (tokens.mean(0) @ key_query)))
    likely = {
        "the residual is missing": without,
        "the worst residual lowers the margin; this one raises it": 2 * without - right,
        "softmax subtracts the mean: only how a token differs from the mean token counts": formula(tokens, key_query),
        "the label is missing": formula(centred, key_query, label=1.0),
        "queries stand on the left of W, keys on the right; this is the transpose": formula(centred, key_query.T),
        "the sum over queries turns 1/T times the sum of the queries into their mean: a factor T too many": 5 * right,
        "there is a sum over keys and not a mean: the 1/T is used up by the mean query": right / 5,
    }
    return likely_mistake(got, right, likely)


CHECKS = {"MH-7": first_direction, "MH-8": guarantee}
