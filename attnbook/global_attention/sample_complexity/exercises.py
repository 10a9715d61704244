"""Checks of the exercises of the chapter: None for a right answer, else the likely mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.core.feedback import verdict
from attnbook.core.rng import stream


def mask_gradient(answer: Callable[..., Any]) -> str | None:
    """Check the gradient of the mean squared error over two with respect to the mask."""
    rng = stream(1, "exercise", "GA-1")
    x, y = rng.standard_normal((7, 5)), rng.standard_normal(7)
    mask, hidden, decoder = rng.random(5) + 0.5, rng.standard_normal((3, 5)), rng.standard_normal(3)
    pre = (x * mask) @ hidden.T
    residual = np.maximum(pre, 0) @ decoder - y
    terms = residual[:, None] * x * (((pre > 0) * decoder) @ hidden)
    right = terms.mean(0)
    likely = {
        "it is the sum over samples, divide by their number": terms.sum(0),
        "a factor 2 too many: the loss has 1/2 in front": 2 * right,
        "the derivative of ReLU is missing: units that are off pass nothing back": (
            residual[:, None] * x * (decoder @ hidden)
        ).mean(0),
        "the weights of the second layer are missing": (residual[:, None] * x * ((pre > 0) @ hidden)).mean(0),
        "the inputs are masked once too often: x enters, not x times a": right * mask,
        "the sign is reversed: the residual is prediction minus label": -right,
    }
    got = answer(*(a.copy() for a in (x, y, mask, hidden, decoder)))
    return verdict(got, right, likely, "one number per input")


def on_the_simplex(answer: Callable[..., Any]) -> str | None:
    """Check a network rewritten so that its mask sums to one."""
    rng = stream(1, "exercise", "GA-2")
    mask, hidden, decoder = rng.random(5) + 0.5, rng.standard_normal((3, 5)), rng.standard_normal(3)
    inputs = rng.standard_normal((20, 5))

    def function(a: np.ndarray, w: np.ndarray, v: np.ndarray) -> np.ndarray:
        return np.maximum((inputs * a) @ w.T, 0) @ v

    parts = answer(mask.copy(), hidden.copy(), decoder.copy())
    shapes = [np.shape(part) for part in parts]
    if shapes != [(5,), (3, 5), (3,)]:
        return f"mask, hidden and decoder are wanted, of shapes (5,), (3, 5), (3,), got {shapes}"
    new_mask, new_hidden, new_decoder = (np.asarray(part, dtype=float) for part in parts)
    if not np.isclose(new_mask.sum(), 1.0):
        return f"the new mask sums to {new_mask.sum():.3g}, not to 1"
    before, after = function(mask, hidden, decoder), function(new_mask, new_hidden, new_decoder)
    if np.allclose(before, after):
        return None
    ratio = np.linalg.norm(after) / np.linalg.norm(before)
    return f"the function changed: its values are now {ratio:.3g} times what they were; some layer must make up for it"


CHECKS = {"GA-1": mask_gradient, "GA-2": on_the_simplex}
