"""The checks of the exercises. Each returns None for a right answer, else the likely mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.core.feedback import likely_mistake
from attnbook.core.rng import stream


def tilted_mean(answer: Callable[..., Any]) -> str | None:
    """Check what attention computes when all keys are plus or minus one in each entry."""
    rng = stream(1, "exercise", "PC-4")
    query, key_query = rng.standard_normal(3), rng.standard_normal((3, 3))
    score = key_query @ query
    right, got = np.tanh(score), np.asarray(answer(query.copy(), key_query.copy()), dtype=float)
    if got.shape != right.shape:
        return f"expected one number per entry of the key, shape {right.shape}, got {got.shape}"
    likely = {
        "that is the answer for Gaussian keys of covariance one: redo the two expectations for signs": score,
        "the score of key x' for query z is x'^T V z: V stands untransposed": np.tanh(key_query.T @ query),
        "that is the numerator of a single entry; divide by cosh": np.sinh(score),
        "you stopped at the logarithm of the mean of exp: differentiate it": np.log(np.cosh(score)),
    }
    return None if np.allclose(got, right) else likely_mistake(got, right, likely)


def extreme_curvatures(answer: Callable[..., Any]) -> str | None:
    """Check the smallest positive and the largest eigenvalue of the Hessian at the minima."""
    for values, outputs in (([0.5, 0.3, 0.2], 7), ([0.5, 0.3, 0.2], 3), ([0.9, 0.1], 3)):
        largest, smallest, spare = max(values), min(values), outputs > len(values)
        right = np.array([smallest if spare else 2 * smallest, 2 * largest])
        got = np.asarray(answer(np.array(values), outputs), dtype=float)
        if got.shape != (2,):
            return f"expected two numbers, the smallest positive eigenvalue and the largest, got shape {got.shape}"
        if np.allclose(got, right):
            continue
        forgotten = ("a spare output gives eigenvalues s_j alone" if spare
                     else "without spare outputs there is no eigenvalue s_d: the smallest is s_d + s_d")  # fmt: skip
        likely = {
            forgotten: np.array([2 * smallest if spare else smallest, 2 * largest]),
            "the largest is s_1 + s_1": np.array([right[0], largest]),
            "zero is an eigenvalue, but along the rotations nothing changes: leave it out": np.array([0, 2 * largest]),
            "the order is smallest, largest": right[::-1],
        }
        return f"m = {outputs}, d = {len(values)}: {likely_mistake(got, right, likely)}"
    return None


CHECKS = {"PC-4": tilted_mean, "PC-6": extreme_curvatures}
