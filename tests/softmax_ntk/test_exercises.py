"""The checks of the exercises accept right answers and name likely mistakes."""

import numpy as np
import pytest

import attnbook


def gradient(weights, signs, x, y, *, forget=""):
    logits = x @ weights
    neurons = len(signs) * np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    output = neurons @ signs
    centred = signs - (0 if forget == "centre" else output[:, None] / len(signs))
    return x.T @ ((output - y)[:, None] * neurons * centred)


def kernel(weights, x):
    on = (x @ weights > 0).astype(float)
    return on @ on.T / weights.shape[1] * (x @ x.T)


def outputs_after(kernel, labels, step_size, steps):
    eigenvalues, vectors = np.linalg.eigh(kernel)
    return labels - vectors @ ((1 - step_size * eigenvalues) ** steps * (vectors.T @ labels))


def flow(kernel, labels, step_size, steps):
    eigenvalues, vectors = np.linalg.eigh(kernel)
    return labels - vectors @ (np.exp(-step_size * steps * eigenvalues) * (vectors.T @ labels))


def values(weights, x):
    neurons = np.maximum(x @ weights, 0)
    return neurons @ neurons.T / weights.shape[1]


RIGHT = {"SN-1": gradient, "SN-2": kernel, "SN-3": outputs_after}
WRONG = [
    ("SN-1", lambda *a: gradient(*a, forget="centre"), "centring is missing"),
    ("SN-1", lambda *a: 2 * gradient(*a), "factor 2"),
    ("SN-1", lambda w, a, x, y: gradient(w, a, x, y) / len(x), "not the mean"),
    ("SN-1", lambda *a: -gradient(*a), "sign"),
    ("SN-1", lambda w, a, x, y: gradient(w, a, x, y) / len(a), "factor m"),
    ("SN-1", lambda *a: np.zeros(3), "shape"),
    ("SN-1", lambda w, a, x, y: np.zeros_like(w), "different"),
    ("SN-2", lambda w, x: kernel(w, x) * w.shape[1], "divide"),
    ("SN-2", lambda w, x: (lambda on: on @ on.T / 8)((x @ w > 0).astype(float)), "inner products"),
    ("SN-2", lambda w, x: values(w, x) * (x @ x.T), "made of derivatives"),
    ("SN-2", values, "second layer were trained"),
    ("SN-2", lambda w, x: x, "shape"),
    ("SN-3", lambda k, y, eta, t: y - outputs_after(k, y, eta, t), "left to learn"),
    ("SN-3", lambda k, y, eta, t: outputs_after(k, y, eta, t - 1), "too few"),
    ("SN-3", lambda k, y, eta, t: outputs_after(k, y, eta, t + 1), "too many"),
    ("SN-3", lambda k, y, eta, t: y, "limit"),
    ("SN-3", lambda k, y, eta, t: outputs_after(k, y, 2 * eta, t), "factor 2"),
    ("SN-3", flow, "gradient flow"),
    ("SN-3", lambda k, y, eta, t: k, "shape"),
]


@pytest.mark.parametrize("exercise", RIGHT)
def test_right_answers_pass(exercise):
    assert attnbook.check(exercise, RIGHT[exercise]).right


@pytest.mark.parametrize(("exercise", "answer", "message"), WRONG)
def test_wrong_answers_get_the_likely_mistake(exercise, answer, message):
    feedback = attnbook.check(exercise, answer)
    assert not feedback.right
    assert message in repr(feedback)
