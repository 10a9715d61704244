"""Checks of the exercises on token selection. Each returns None for a right answer, else the likely mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.core.feedback import likely_mistake, verdict
from attnbook.core.rng import stream


def loss_gradient(answer: Callable[..., Any]) -> str | None:
    """Check the gradient of the logistic loss of one sample."""
    rng = stream(1, "exercise", "MD-TS-1")
    weights, tokens = rng.standard_normal((3, 3)), rng.standard_normal((5, 3))
    query, scores = rng.standard_normal(3), rng.standard_normal(5)
    powers = np.exp(tokens @ weights @ query)
    s = powers / powers.sum()
    margin = s @ scores
    slope = -1 / (1 + np.exp(margin))
    no_derivative = slope * np.outer(tokens.T @ (s * scores), query)
    right = slope * np.outer(tokens.T @ (s * (scores - margin)), query)
    likely = {
        "the sign is reversed: the slope of the loss is negative": -right,
        "it is transposed: tokens give the rows, the query the columns": right.T,
        "the slope of the loss is missing": right / slope,
        "softmax has a derivative: diag(s) - s s^T, not diag(s) alone": no_derivative,
    }
    got = answer(weights.copy(), tokens.copy(), query.copy(), scores.copy())
    return verdict(got, right, likely, "one number per entry of the matrix")


def local_optimality(answer: Callable[..., Any]) -> str | None:
    """Check Definition 3 on two samples of three tokens."""
    infinite = np.inf
    cases = (
        ([[2.0, 1.0, 3.0], [0.0, 1.0, 2.0]], [0, 2], [[infinite, 1.0, 1.4], [1.0, 1.0, infinite]], True),
        ([[2.0, 1.0, 3.0], [0.0, 1.0, 2.0]], [0, 2], [[infinite, 1.4, 1.0], [1.0, 1.0, infinite]], False),
        ([[2.0, 1.0, 3.0], [4.0, 1.0, 2.0]], [2, 2], [[1.0, 1.0, infinite], [1.0, 2.0, infinite]], False),
    )
    found = [bool(answer(*map(np.array, case[:3]))) for case in cases]
    right = [expected for *_, expected in cases]
    if found == right:
        return None
    likely: dict[str, Any] = {
        "the chosen token must beat its support tokens only, not all tokens": [False, False, False],
        "every sample counts, and every support token": [True, True, True],
        "all samples must pass, not just one": [True, True, False],
        "it is reversed": ~np.array(right),
    }
    return likely_mistake(np.array(found), right, likely)


CHECKS = {"MD-TS-1": loss_gradient, "MD-TS-3": local_optimality}
