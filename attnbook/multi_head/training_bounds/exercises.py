"""Checks of the exercises on training bounds. Each returns None for a right answer, else the likely mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.core.feedback import verdict
from attnbook.core.rng import stream


def _step_of_groups(answer: Callable[..., Any]) -> str | None:
    """One step of gradient descent on groups of equal linear heads."""
    rng = stream(1, "exercise", "MH-TB2")
    u, x = rng.standard_normal((3, 4)), rng.standard_normal((7, 4))
    y, counts, eta = rng.choice([-1.0, 1.0], 7), np.array([2.0, 5.0, 9.0]), 0.7
    root = counts.sum() ** 0.5

    def step(outputs: np.ndarray, factor: np.ndarray | float) -> np.ndarray:
        slopes = -y / (1 + np.exp(y * outputs)) / len(y)
        return u - eta * factor * np.broadcast_to(slopes @ x, u.shape)

    outputs = counts @ (u @ x.T) / root
    right = step(outputs, 1 / root)
    likely = {
        "a group moves like ONE of its heads: no factor m_g": step(outputs, counts[:, None] / root),
        "the gradient of a head carries 1/sqrt(H) too": step(outputs, 1.0),
        "each group counts as often as it has heads in the output": step(u.sum(0) @ x.T / root, 1 / root),
        "the loss is a mean over the samples": u - len(y) * (u - right),
        "the sign: descent subtracts the gradient": 2 * u - right,
    }
    got = answer(u.copy(), counts.copy(), x.copy(), y.copy(), eta)
    return verdict(got, right, likely, "an array of the new groups, like u,")


def _rise_from_nearer_end(answer: Callable[..., Any]) -> str | None:
    """The factor by which the loss can rise above the nearer end of a segment, 16/15 at the condition."""
    excesses = np.array([0.0, 0.5, 1.0, 3.0])
    got, right = [float(answer(excess)) for excess in excesses], 1 / (1 - excesses / 16)
    likely = {
        "this is the paper's factor: the nearer end is at most HALF the segment away": 1 / (1 - excesses / 4),
        "half the distance enters squared, and Taylor's formula has another 1/2": 1 / (1 - excesses / 8),
        "the largest loss M is on both sides: solve for M": 1 + excesses / 16,
        "the second derivative is at least -(e/2) M: mind the 2 in condition (18)": 1 / (1 - excesses / 32),
    }
    return verdict(got, right, likely, "one number")


CHECKS = {"MH-TB2": _step_of_groups, "MH-TB3": _rise_from_nearer_end}
