"""Checks of the exercises on noisy digits. Each returns None for a right answer, else the likely mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.core.feedback import verdict
from attnbook.core.rng import stream


def softmax_residual(answer: Callable[..., Any]) -> str | None:
    """Check the gradient of the cross-entropy with respect to the scores."""
    rng = stream(1, "exercise", "GA-D1")
    scores, labels = 3 * rng.standard_normal((6, 4)) + 1000.0, np.array([0, 3, 1, 1, 2, 0])
    share = np.exp(scores - scores.max(axis=1, keepdims=True))
    share /= share.sum(axis=1, keepdims=True)
    right = (share - np.eye(4)[labels]) / 6
    with np.errstate(all="ignore"):
        got = np.asarray(answer(scores.copy(), labels.copy()), dtype=float)
    if np.isnan(got).any():
        return "the exponential of a large score overflows: subtract the largest score of the sample first"
    columns = np.exp(scores - scores.max(axis=0))
    over_samples = columns / columns.sum(axis=0) - np.eye(4)[labels]
    likely = {
        "it is the sum over samples, divide by their number": 6 * right,
        "the sign is reversed: share minus one-hot": -right,
        "the label is missing: subtract 1 at the right class": share / 6,
        "softmax runs over the classes of a sample, not over samples": over_samples / 6,
    }
    return verdict(got, right, likely, "one number per sample and class")


def what_is_conserved(answer: Callable[..., Any]) -> str | None:
    """Check the quantity, one per input, that gradient flow without a penalty leaves as it was."""
    rng = stream(1, "exercise", "GA-D3")
    mask, hidden, gradient = rng.random(5) + 0.5, rng.standard_normal((3, 5)), rng.standard_normal((3, 5))
    slope = (gradient * hidden).sum(0), gradient * mask

    def at(time: float) -> np.ndarray:
        return np.asarray(answer(mask - time * slope[0], hidden - time * slope[1]), dtype=float)

    here, small = at(0.0), 1e-6
    if here.shape != (5,):
        return f"one number per input is wanted, shape (5,), got {here.shape}"
    if np.allclose(here, answer(2 * mask, hidden)) and np.allclose(here, answer(mask, 2 * hidden)):
        return "a constant is conserved, but says nothing: it should depend on mask and weights"
    drift = (at(small) - at(-small)) / (2 * small)
    if np.allclose(drift, 0.0, atol=1e-6):
        return None
    plus = 4 * (-mask * slope[0])
    if np.allclose(drift, plus, atol=1e-6):
        return "the sum grows: mask and weights of an input move in the same direction; take the difference"
    return f"it changes along the flow, at rates {np.round(drift, 3)}"


CHECKS = {"GA-D1": softmax_residual, "GA-D3": what_is_conserved}
