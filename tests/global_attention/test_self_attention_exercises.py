"""The checks of the exercises on self-attention accept right answers and name likely mistakes."""

import numpy as np
import pytest

import attnbook


def attend(queries, keys, values, key_bias, value_bias, n_positions, *, count=None, empty=None):
    powers = np.exp(queries @ keys.T)
    count = n_positions - len(keys) if count is None else count
    empty = count * (np.exp(queries @ key_bias)[:, None] if empty is None else empty)
    return (powers @ values + empty * value_bias) / (powers.sum(1, keepdims=True) + empty)


def step(pooled, delta, n_positions, step_size):
    return -step_size * n_positions * np.sign(pooled.T @ delta)


RIGHT = {"GA-S1": attend, "GA-S3": step}
WRONG = [
    ("GA-S1", lambda *a: attend(*a, count=0), "padding is missing"),
    ("GA-S1", lambda *a: attend(*a, empty=1.0), "not 0 any more"),
    ("GA-S1", lambda q, k, v, kb, vb, n: attend(q, k, v, kb, 0 * vb, n), "into the numerator"),
    ("GA-S1", lambda *a: attend(*a, count=a[-1]), "not n_positions"),
    ("GA-S1", lambda *a: attend(*a, count=1), "not one in all"),
    ("GA-S1", lambda *a: attend(*a)[:1], "shape"),
    ("GA-S1", lambda *a: 2 * attend(*a), "2 times the right numbers"),
    ("GA-S3", lambda p, d, n, s: step(p, d, 1, s), "one of the matrices"),
    ("GA-S3", lambda *a: -step(*a), "sign"),
    ("GA-S3", lambda p, d, n, s: -s * n * p.T @ d, "take the sign"),
    ("GA-S3", lambda p, d, n, s: p.T @ d, "gradient of one matrix"),
    ("GA-S3", lambda p, d, n, s: np.zeros(3), "shape"),
]


@pytest.mark.parametrize("exercise", RIGHT)
def test_right_answers_pass(exercise):
    assert attnbook.check(exercise, RIGHT[exercise]).right


@pytest.mark.parametrize(("exercise", "answer", "message"), WRONG)
def test_wrong_answers_get_the_likely_mistake(exercise, answer, message):
    feedback = attnbook.check(exercise, answer)
    assert not feedback.right
    assert message in repr(feedback)
