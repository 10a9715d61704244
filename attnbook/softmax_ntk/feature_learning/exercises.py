"""Checks of the exercises on feature learning. Each returns None for a right answer, else the likely mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.core.feedback import likely_mistake
from attnbook.core.rng import stream
from attnbook.softmax_ntk.data import sphere


def same_path(answer: Callable[..., Any]) -> str | None:
    """Check step size and labels with which a network without an output scale takes the same path."""
    for step_size, scale in ((0.3, 4.0), (2.0, 10.0)):
        labels = np.array([1.0, -0.5])
        got = np.concatenate([np.ravel(part) for part in answer(step_size, labels.copy(), scale)])
        right = [step_size / scale**2, *scale * labels]
        likely = {
            "the gradient of F / s has one factor 1 / s, and the residual another": [
                step_size / scale,
                *scale * labels,
            ],
            "the labels grow: F is s times the output": [step_size / scale**2, *labels / scale],
        }
        if got.shape != (3,) or not np.allclose(got, right):
            return f"s = {scale:g}: {likely_mistake(got, right, likely)}"
    return None


def two_neurons(answer: Callable[..., Any]) -> str | None:
    """Check two neurons that compute the step."""
    for n_inputs in (3, 7):
        index, *inputs = sphere(20, n_inputs, rng=stream(0, "two neurons", n_inputs))
        weights, z = np.asarray(answer(index.copy()), dtype=float), np.sqrt(n_inputs) * np.array(inputs) @ index
        if weights.shape != (n_inputs, 2):
            return f"weights of shape ({n_inputs}, 2) are wanted, got {weights.shape}"
        got = np.tanh(np.array(inputs) @ (weights[:, 0] - weights[:, 1]) / 2)
        likely = {"half as steep": np.tanh(z), "twice as steep": np.tanh(4 * z), "signs exchanged": -np.tanh(2 * z)}
        if not np.allclose(got, np.tanh(2 * z)):
            return f"{n_inputs} inputs: {likely_mistake(got, np.tanh(2 * z), likely)}"
    return None


CHECKS = {"SN-19": same_path, "SN-20": two_neurons}
