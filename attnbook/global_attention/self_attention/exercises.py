"""Checks of the exercises on self-attention. Each returns None for a right answer, else the likely mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.core.feedback import verdict
from attnbook.core.rng import stream


def padding_with_biases(answer: Callable[..., Any]) -> str | None:
    """Check the outputs at the words of a padded review when keys and values have biases."""
    rng = stream(1, "exercise", "GA-S1")
    queries, keys, values = rng.standard_normal((3, 4)), rng.standard_normal((3, 4)), rng.standard_normal((3, 2))
    key_bias, value_bias, n_positions = rng.standard_normal(4), rng.standard_normal(2), 11
    powers, pads = np.exp(queries @ keys.T), np.exp(queries @ key_bias)[:, None]

    def outputs(count: float = n_positions - 3, empty: np.ndarray = pads, bias: np.ndarray = value_bias) -> np.ndarray:
        return (powers @ values + count * empty * bias) / (powers.sum(1, keepdims=True) + count * empty)

    right, given = outputs(), (queries, keys, values, key_bias, value_bias)
    likely = {
        "padding is missing: its key is the bias of the keys, its value that of the values": outputs(count=0),
        "the score of padding is not 0 any more: it is the query times the bias of the keys": outputs(empty=pads**0),
        "padding has a value now, the bias: it belongs into the numerator as well": outputs(bias=0 * value_bias),
        "there are n_positions minus the number of words padded positions, not n_positions": outputs(count=n_positions),
        "every padded position counts, not one in all": outputs(count=1),
    }
    return verdict(answer(*(array.copy() for array in given), n_positions), right, likely, "one output per word")


def bag_of_words_step(answer: Callable[..., Any]) -> str | None:
    """Check how one step of a flattened layer moves the sum of its matrices when all its inputs are equal."""
    rng = stream(1, "exercise", "GA-S3")
    pooled, delta = rng.standard_normal((6, 4)), rng.standard_normal((6, 3))
    n_positions, step_size = 11, 0.1
    gradient = pooled.T @ delta
    alone = -step_size * np.sign(gradient)
    right = n_positions * alone
    likely = {
        "this is how one of the matrices moves; their sum moves n_positions times as far": alone,
        "the step goes against the gradient: the sign is reversed": -right,
        "the first step of Adam is the step size in every entry: take the sign of the gradient": right * abs(gradient),
        "this is the gradient of one matrix, not a step": gradient,
    }
    got = answer(pooled.copy(), delta.copy(), n_positions, step_size)
    return verdict(got, right, likely, "the change of the sum")


CHECKS = {"GA-S1": padding_with_biases, "GA-S3": bag_of_words_step}
