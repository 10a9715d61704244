"""The checks of the exercises accept right answers and name likely mistakes."""

import numpy as np
import pytest

import attnbook


def gradient(x, y, value, key_query, *, forget=""):
    scores = np.exp(x @ key_query.T @ x.T)
    weights = scores / scores.sum(1, keepdims=True)
    attended = weights @ x
    back = (attended @ value.T - y) @ value / (1 if forget == "mean" else len(x))
    second = (weights * (back @ x.T)) @ x
    along = 0 if forget == "covariance" else (attended * back).sum(1, keepdims=True)
    right = (second - attended * along).T @ x
    return {"transpose": right.T, "factor": 2 * right, "sign": -right}.get(forget, right)


def start(x, y, *, forget=""):
    eigenvalues, axes = np.linalg.eigh(x.T @ x / len(x))
    root, inverse = (axes * eigenvalues**power @ axes.T for power in (0.5, -0.5))
    least_squares = np.linalg.lstsq(x, y, rcond=None)[0].T
    p, d, r = np.linalg.svd(least_squares @ root, full_matrices=False)
    if forget == "balance":
        return p * d @ inverse, inverse @ r @ inverse
    if forget == "whitening":
        p, d, r = np.linalg.svd(least_squares, full_matrices=False)
        return p * d**0.5, d[:, None] ** 0.5 * r
    return p * d**0.5 @ inverse, inverse @ (d[:, None] ** 0.5 * r) @ inverse


RIGHT = {"PC-1": gradient, "PC-2": start}
WRONG = [
    ("PC-1", "covariance", "subtract s s^T"),
    ("PC-1", "mean", "divide by their number"),
    ("PC-1", "transpose", "transpose"),
    ("PC-1", "factor", "1/2"),
    ("PC-1", "sign", "sign"),
    ("PC-2", "balance", "split D evenly"),
    ("PC-2", "whitening", "U V is the least squares map"),
]


@pytest.mark.parametrize("exercise", RIGHT)
def test_right_answers_pass(exercise):
    assert attnbook.check(exercise, RIGHT[exercise]).right


@pytest.mark.parametrize(("exercise", "forget", "message"), WRONG)
def test_wrong_answers_get_the_likely_mistake(exercise, forget, message):
    feedback = attnbook.check(exercise, lambda *a: RIGHT[exercise](*a, forget=forget))
    assert not feedback.right
    assert message in repr(feedback)


@pytest.mark.parametrize("exercise", RIGHT)
def test_answers_of_the_wrong_shape_or_that_raise_are_told_so(exercise):
    assert "shape" in repr(attnbook.check(exercise, lambda *a: (np.zeros(2), np.zeros(2))))
    assert "raised TypeError" in repr(attnbook.check(exercise, lambda: None))


def test_any_balanced_factorisation_is_right():
    """The rotation between the layers is free."""
    turn = np.linalg.qr(np.random.default_rng(0).standard_normal((3, 3)))[0]

    def turned(x, y):
        value, key_query = start(x, y)
        eigenvalues, axes = np.linalg.eigh(x.T @ x / len(x))
        root, inverse = (axes * eigenvalues**power @ axes.T for power in (0.5, -0.5))
        return value @ root @ turn @ inverse, inverse @ turn.T @ root @ key_query

    assert attnbook.check("PC-2", turned).right
