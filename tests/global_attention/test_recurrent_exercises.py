"""The checks of the exercises on recurrent attention accept right answers and name likely mistakes."""

import numpy as np
import pytest

import attnbook
from attnbook.global_attention.recurrent_networks import Recurrence, initial_parameters


def softmax(logits):
    powers = np.exp(logits)
    return powers / powers.sum()


def entropy(logits):
    a = softmax(logits)
    return -a * (np.log(a) - a @ np.log(a))


RIGHT = {
    "GA-R2": lambda s, a, t, d: t * d + d + a * (s + t + 1) + s * (s + t),
    "GA-R3": entropy,
}
WRONG = [
    ("GA-R2", lambda s, a, t, d: t * d + d + a * (s + t + 1), "recurrence is missing"),
    ("GA-R2", lambda s, a, t, d: t * d + d + s * (s + t), "score is missing"),
    ("GA-R2", lambda s, a, t, d: t * d + d + a * (s + t) + s * (s + t), "vector v"),
    ("GA-R2", lambda s, a, t, d: a * (s + t + 1) + s * (s + t), "two layers are missing"),
    ("GA-R2", lambda s, a, t, d: t * d + d + 3 * (a * (s + t + 1) + s * (s + t)), "shared between steps"),
    ("GA-R2", lambda *a: np.zeros(2), "one number"),
    ("GA-R3", lambda e: -(np.log(softmax(e)) + 1), "through the softmax"),
    ("GA-R3", lambda e: -softmax(e) * np.log(softmax(e)), "entropy itself is missing"),
    ("GA-R3", lambda e: -softmax(e) * (np.log(softmax(e)) + 1), "weighted mean"),
    ("GA-R3", lambda e: -entropy(e), "sign"),
    ("GA-R3", lambda e: 0.0, "shape"),
]


def test_the_dimension_of_the_bound_is_the_number_of_weights():
    drawn = initial_parameters(Recurrence(3, 5, 7), 11, 13, rng=np.random.default_rng(0))
    assert RIGHT["GA-R2"](5, 7, 11, 13) == sum(array.size for array in drawn.values())


@pytest.mark.parametrize("exercise", RIGHT)
def test_right_answers_pass(exercise):
    assert attnbook.check(exercise, RIGHT[exercise]).right


@pytest.mark.parametrize(("exercise", "answer", "message"), WRONG)
def test_wrong_answers_get_the_likely_mistake(exercise, answer, message):
    feedback = attnbook.check(exercise, answer)
    assert not feedback.right
    assert message in repr(feedback)
