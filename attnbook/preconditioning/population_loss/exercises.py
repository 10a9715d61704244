"""The checks of the exercises. Each returns None for a right answer, else the likely mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.core.feedback import likely_mistake
from attnbook.core.rng import stream

__all__ = ["CHECKS"]


def tilted_mean(answer: Callable[..., Any]) -> str | None:
    """Check what attention computes when all keys are plus or minus one in each entry."""
    rng = stream(1, "exercise", "PC-4")
    query, key_query = rng.standard_normal(3), rng.standard_normal((3, 3))
    right = np.tanh(key_query @ query)
    got = np.asarray(answer(query.copy(), key_query.copy()), dtype=float)
    if got.shape != right.shape:
        return f"expected one number per entry of the key, shape {right.shape}, got {got.shape}"
    if np.allclose(got, right):
        return None
    score = key_query @ query
    likely = {
        "that is the answer for Gaussian keys of covariance one: redo the two expectations for signs": score,
        "the score of key x' for query z is x'^T V z: V stands untransposed": np.tanh(key_query.T @ query),
        "that is the numerator; divide by the mean of the weights": np.sinh(score) * np.cosh(score).prod()
        / np.cosh(score),
        "that is the numerator of a single entry; divide by cosh": np.sinh(score),
        "the mean of exp is cosh, and its logarithm is what one differentiates; you stopped at the logarithm": np.log(
            np.cosh(score)
        ),
    }  # fmt: skip
    return likely_mistake(got, right, likely)


def nearest_minimum(answer: Callable[..., Any]) -> str | None:
    """Check the orthogonal Procrustes problem."""
    rng = stream(2, "exercise", "PC-5")
    minimum, point = rng.standard_normal((2, 7, 3))
    left, values, right = np.linalg.svd(minimum.T @ point)
    nearest = minimum @ left @ right
    got = np.asarray(answer(point.copy(), minimum.copy()), dtype=float)
    if got.shape != nearest.shape:
        return f"expected a point of shape {nearest.shape}, got {got.shape}"
    if np.allclose(got, nearest):
        return None
    likely = {
        "that is the minimum itself: it still has to be rotated": minimum,
        "this is the best matrix of any kind, from least squares; only orthogonal ones lead to minima": minimum
        @ np.linalg.lstsq(minimum, point, rcond=None)[0],
        "this is the inverse rotation: it takes the point to the minimum": minimum @ right.T @ left.T,
        "keep the rotation, drop the singular values": minimum @ (left * values) @ right,
        "numpy.linalg.svd returns the last factor transposed already": minimum @ left @ right.T,
    }
    mistake = likely_mistake(got, nearest, likely)
    turned = np.linalg.lstsq(minimum, got, rcond=None)[0]
    if mistake.startswith("the numbers") and not np.allclose(turned.T @ turned, np.eye(3)):
        return "this is no minimum: a minimum is the given one times an orthogonal matrix"
    return mistake


def extreme_curvatures(answer: Callable[..., Any]) -> str | None:
    """Check the smallest positive and the largest eigenvalue of the Hessian at the minima."""
    for singular_values, n_outputs in (([0.5, 0.3, 0.2], 7), ([0.5, 0.3, 0.2], 3), ([0.9, 0.1], 3)):
        largest, smallest = max(singular_values), min(singular_values)
        right = np.array([smallest if n_outputs > len(singular_values) else 2 * smallest, 2 * largest])
        got = np.asarray(answer(np.array(singular_values), n_outputs), dtype=float)
        if got.shape != (2,):
            return f"expected two numbers, the smallest positive eigenvalue and the largest, got shape {got.shape}"
        if np.allclose(got, right):
            continue
        likely = {
            "without spare outputs there is no eigenvalue s_d: the smallest is s_d + s_d": np.array(
                [smallest, 2 * largest]
            ),
            "a spare output gives eigenvalues s_j alone": np.array([2 * smallest, 2 * largest]),
            "the largest is s_1 + s_1": np.array([right[0], largest]),
            "zero is an eigenvalue, but along the rotations nothing changes: leave it out": np.array([0, 2 * largest]),
            "the order is smallest, largest": right[::-1],
        }
        if n_outputs == len(singular_values):
            likely.pop("a spare output gives eigenvalues s_j alone")
        return f"m = {n_outputs}, d = {len(singular_values)}: {likely_mistake(got, right, likely)}"
    return None


CHECKS: dict[str, Callable[[Callable[..., Any]], str | None]] = {
    "PC-4": tilted_mean,
    "PC-5": nearest_minimum,
    "PC-6": extreme_curvatures,
}
