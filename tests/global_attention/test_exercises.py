"""The checks of the exercises accept right answers and name likely mistakes."""

from functools import partial

import numpy as np
import pytest

import attnbook


def gradient(x, y, mask, hidden, decoder, *, forget=""):
    before = (x * mask) @ hidden.T
    residual = np.maximum(before, 0) @ decoder - y
    on = np.ones_like(before) if forget == "relu" else (before > 0)
    through = (on * (1.0 if forget == "decoder" else decoder)) @ hidden
    terms = residual[:, None] * x * through
    return {"mean": terms.sum(0), "sign": -terms.mean(0), "factor": 2 * terms.mean(0)}.get(forget, terms.mean(0))


def in_place(mask, hidden, decoder):
    """A wrong answer that would pass if the check compared with the arrays it handed out."""
    mask /= mask.sum()
    return mask, hidden, decoder


def residual(scores, labels, *, forget=""):
    axis = 0 if forget == "axis" else 1
    share = np.exp(scores - (0.0 if forget == "overflow" else scores.max(axis=axis, keepdims=True)))
    share = share / share.sum(axis=axis, keepdims=True)
    right = share - (forget != "label") * np.eye(scores.shape[1])[labels]
    return right / {"sign": -len(labels), "mean": 1}.get(forget, len(labels))


RIGHT = {
    "GA-D1": residual,
    "GA-1": gradient,
    "GA-2": lambda a, w, v: (a / a.sum(), w * a.sum(), v),
}
WRONG = [
    *(
        ("GA-D1", partial(residual, forget=what), message)
        for what, message in {
            "sign": "sign",
            "mean": "divide by their number",
            "label": "label",
            "axis": "over the classes",
            "overflow": "overflows",
        }.items()
    ),
    ("GA-D1", lambda z, y: z[0], "shape"),
    ("GA-1", lambda *a: gradient(*a, forget="relu"), "derivative of ReLU"),
    ("GA-1", lambda *a: gradient(*a, forget="decoder"), "second layer"),
    ("GA-1", lambda *a: gradient(*a, forget="mean"), "divide by their number"),
    ("GA-1", lambda *a: gradient(*a, forget="sign"), "sign"),
    ("GA-1", lambda *a: gradient(*a, forget="factor"), "factor 2"),
    ("GA-1", lambda x, y, a, w, v: gradient(x, y, a, w, v) * a, "masked once too often"),
    ("GA-1", lambda *a: np.zeros(3), "shape"),
    ("GA-1", lambda *a: np.zeros(5), "different"),
    ("GA-1", lambda x: x, "raised TypeError"),
    ("GA-2", lambda a, w, v: (a, w, v), "sums to"),
    ("GA-2", in_place, "function changed"),
    ("GA-2", lambda a, w, v: (a / a.sum(), w), "of shapes"),
    ("GA-2", lambda a, w, v: (a / a.sum(), w, v), "function changed"),
]


@pytest.mark.parametrize("exercise", RIGHT)
def test_right_answers_pass(exercise):
    assert attnbook.check(exercise, RIGHT[exercise]).right


def test_the_second_layer_may_pay_for_the_simplex():
    """Any network with the same function is right."""
    assert attnbook.check("GA-2", lambda a, w, v: (a / a.sum(), w, v * a.sum())).right


@pytest.mark.parametrize(("exercise", "answer", "message"), WRONG)
def test_wrong_answers_get_the_likely_mistake(exercise, answer, message):
    feedback = attnbook.check(exercise, answer)
    assert not feedback.right
    assert message in repr(feedback)


def test_unknown_exercises_and_answers_that_are_no_functions_are_refused():
    with pytest.raises(ValueError, match="GA-1"):
        attnbook.check("GA-99", len)
    with pytest.raises(TypeError, match="function"):
        attnbook.check("GA-1", 3)
