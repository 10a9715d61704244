"""The checks of the exercises on self-attention accept right answers and name likely mistakes."""

import numpy as np
import pytest

import attnbook


def attend(x, key_query, value, n_positions, *, padding=None):
    powers = np.exp(x @ key_query @ x.T)
    empty = n_positions - len(x) if padding is None else padding
    return powers @ (x @ value.T) / (powers.sum(1, keepdims=True) + empty)


def score(n_positions, length, share):
    return np.log(share / (1 - share) * (n_positions - length) / length)


def step(pooled, delta, n_positions, step_size):
    return -step_size * n_positions * np.sign(pooled.T @ delta)


RIGHT = {"GA-S1": attend, "GA-S2": score, "GA-S3": step}
WRONG = [
    ("GA-S1", lambda *a: attend(*a, padding=0), "missing from the denominator"),
    ("GA-S1", lambda *a: attend(*a, padding=a[3]), "not n_positions"),
    ("GA-S1", lambda *a: attend(*a, padding=1), "not one in all"),
    ("GA-S1", lambda x, m, v, n: attend(x, m.T, v, n), "transposed"),
    ("GA-S1", lambda *a: attend(*a)[:1], "shape"),
    ("GA-S1", lambda *a: 2 * attend(*a), "different"),
    ("GA-S2", lambda n, length, share: np.log((n - length) / length), "odds"),
    ("GA-S2", lambda n, length, share: np.log(n / length), "minus length"),
    ("GA-S2", lambda n, length, share: (n - length) / length, "logarithm"),
    ("GA-S2", lambda n, length, share: np.log(n - length), "single word"),
    ("GA-S2", lambda *a: -score(*a), "sign"),
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
