"""Checks of the exercises on recurrent attention. Each returns None for a right answer, else the likely mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.core.feedback import verdict
from attnbook.core.rng import stream
from attnbook.global_attention.word_teachers import softmax


def count_weights(answer: Callable[..., Any]) -> str | None:
    """Check the dimension in the bound of Theorem 6 for the additive score."""
    n_steps, state, units, dimension, width = 3, 5, 7, 11, 13
    layers, score = width * dimension + width, units * (state + dimension + 1)
    recurrence = state * (state + dimension)
    right = layers + score + recurrence
    likely = {
        "the recurrence is missing": layers + score,
        "the score is missing": layers + recurrence,
        "the last vector v of the score is missing": right - units,
        "the two layers are missing": score + recurrence,
        "weights are shared between steps: count them once": layers + n_steps * (score + recurrence),
    }
    return verdict(answer(state, units, dimension, width), right, likely, "one number")


def entropy_gradient(answer: Callable[..., Any]) -> str | None:
    """Check the gradient of the entropy of attention with respect to the scores."""
    logits = stream(1, "exercise", "GA-R3").standard_normal(7)
    weights = softmax(logits)
    logs = np.log(weights)
    entropy = -(weights * logs).sum()
    right = -weights * (logs + entropy)
    likely = {
        "this is the gradient with respect to the weights; go on through the softmax": -(logs + 1),
        "the entropy itself is missing in the bracket": -weights * logs,
        "the softmax keeps the sum of the weights: subtract the weighted mean": -weights * (logs + 1),
        "the sign is reversed: entropy is minus the sum": -right,
    }
    return verdict(answer(logits.copy()), right, likely, "one number per word")


CHECKS = {"GA-R2": count_weights, "GA-R3": entropy_gradient}
