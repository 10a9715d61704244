"""Checks of the exercises on one good step. Each returns None for a right answer, else the likely mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.core.feedback import verdict
from attnbook.core.rng import stream


def _first_direction(answer: Callable[..., Any]) -> str | None:
    """What the first step writes into every row of a decoder, per unit of the random sign, for any loss."""
    rng = stream(1, "exercise", "MH-7")
    tokens, labels, slope = rng.standard_normal((6, 5, 3)), np.array([1.0, -1.0, 1.0, 1.0, 1.0, -1.0]), -0.7
    right = -slope * (labels[:, None] * tokens.mean(1)).mean(0)
    likely = {
        "the half was the slope of the logistic loss; here the slope is given": right / -slope / 2,
        "the slope of the loss is missing": right / -slope,
        "descent goes against the gradient: the sign is wrong": -right,
        "uniform attention gives the mean of the tokens, not their sum": 5 * right,
        "the labels are missing": -slope * tokens.mean((0, 1)),
    }
    return verdict(answer(tokens.copy(), labels.copy(), slope), right, likely, "one direction in token space")


def _guarantee(answer: Callable[..., Any]) -> str | None:
    """The smallest attention part of a sample's margin over all residuals of a norm."""
    rng = stream(1, "exercise", "MH-8")
    tokens, key_query, m = rng.standard_normal((5, 3)), rng.standard_normal((3, 3)), rng.standard_normal(3)
    length = 0.3

    def formula(centred: np.ndarray, matrix: np.ndarray, label: float = -1.0, length: float = length) -> np.ndarray:
        pull = label * np.asarray(centred.T @ (tokens @ (tokens.mean(0) @ matrix)))
        return np.asarray(m @ pull - length * np.linalg.norm(pull))

    centred = tokens - tokens.mean(0)
    right = formula(centred, key_query)
    likely = {
        "the residual is missing": formula(centred, key_query, length=0.0),
        "the worst residual lowers the margin; this one raises it": formula(centred, key_query, length=-length),
        "softmax subtracts the mean: only how a token differs from the mean token counts": formula(tokens, key_query),
        "the label is missing": formula(centred, key_query, label=1.0),
        "queries stand on the left of W, keys on the right; this is the transpose": formula(centred, key_query.T),
        "the sum over queries turns 1/T times the sum of the queries into their mean: a factor T too many": 5 * right,
    }
    got = answer(tokens.copy(), -1.0, m.copy(), key_query.copy(), length)
    return verdict(got, right, likely, "one number")


CHECKS = {"MH-7": _first_direction, "MH-8": _guarantee}
