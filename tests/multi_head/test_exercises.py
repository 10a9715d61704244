"""The checks of the exercises accept right answers and name likely mistakes."""

import math

import numpy as np
import pytest

import attnbook


def gradient(x, u, w, *, forget=""):
    logits = x @ (w.T if forget == "swap" else w) @ x.T
    weights = np.exp(logits - logits.max())
    weights /= weights.sum(0 if forget == "columns" else 1, keepdims=forget != "columns")
    values = u @ x.T
    mean = (weights * values).sum(1, keepdims=True)
    if forget == "mean":
        mean = 0.0
    if forget == "plain mean":
        mean = values.mean(1, keepdims=True)
    result = x.T @ (weights * (values - mean)) @ x
    return result.T if forget == "transpose" else result


def heads(beta, loss, curvature):
    return max(1, math.ceil((beta * loss / curvature) ** 2))


def spread(u, w, n):
    return np.repeat(u[None] / n**0.5, n, 0), np.repeat(w[None], n, 0)


def left_out(full, reduced):
    return np.diag(reduced).mean() - full.mean()


def unrolled(alpha, forcing, *, start=1.0):
    found = [0.0]
    for a, g in zip(alpha, forcing, strict=True):
        found.append((start + a) * found[-1] + g)
    return found


def samples(steps, eta, margin, level):
    return math.ceil(17 * (2 + math.log(steps)) ** 2 / (margin**2 * eta * level))


RIGHT = {
    "MH-1": gradient,
    "MH-2": heads,
    "MH-3": spread,
    "MH-GEN-1": left_out,
    "MH-GEN-2": unrolled,
    "MH-GEN-3": samples,
}
WRONG = [
    ("MH-1", lambda *a: gradient(*a, forget="mean"), "subtract from each row"),
    ("MH-1", lambda *a: gradient(*a, forget="plain mean"), "weighted by attention"),
    ("MH-1", lambda *a: gradient(*a, forget="swap"), "swapped"),
    ("MH-1", lambda *a: gradient(*a, forget="columns"), "along columns"),
    ("MH-1", lambda *a: gradient(*a, forget="transpose"), "transpose"),
    ("MH-1", lambda x, u, w: x, "shape"),
    ("MH-1", lambda x, u, w: np.zeros((3, 3)), "different"),
    ("MH-2", lambda beta, loss, e: math.ceil(beta * loss / e), "root of H"),
    ("MH-2", lambda beta, loss, e: (beta * loss / e) ** 2, "whole"),
    ("MH-2", lambda beta, loss, e: math.floor((beta * loss / e) ** 2), "one head fewer"),
    ("MH-2", lambda beta, loss, e: math.ceil((beta / e) ** 2), "loss is missing"),
    ("MH-3", lambda u, w, n: (np.repeat(u[None], n, 0), np.repeat(w[None], n, 0)), "times what it was"),
    ("MH-3", lambda u, w, n: (np.repeat(u[None], n, 0), np.repeat(w[None] / n, n, 0)), "not linear"),
    ("MH-3", lambda u, w, n: (u, w), "of shapes"),
    ("MH-3", lambda u, w, n: (np.arange(n)[:, None, None] * u, np.repeat(w[None], n, 0)), "equal"),
    ("MH-GEN-1", lambda full, reduced: -left_out(full, reduced), "way round"),
    ("MH-GEN-1", lambda full, reduced: reduced.mean() - full.mean(), "diagonal"),
    ("MH-GEN-1", lambda full, reduced: np.diag(reduced).mean(), "subtracted"),
    ("MH-GEN-1", lambda full, reduced: np.abs(np.diag(reduced) - full).mean(), "cancel"),
    ("MH-GEN-2", lambda alpha, forcing: unrolled(alpha, forcing, start=0.0), "1 + alpha"),
    ("MH-GEN-2", lambda alpha, forcing: unrolled(alpha, forcing)[1:], "6 values"),
    ("MH-GEN-2", lambda alpha, forcing: [0.0, *np.cumsum(forcing)], "with the factors"),
    ("MH-GEN-3", lambda k, e, m, x: 17 * (2 + math.log(k)) ** 2 / (m**2 * e * x), "whole"),
    ("MH-GEN-3", lambda k, e, m, x: samples(k, e, m, x) - 1, "one sample fewer"),
    ("MH-GEN-3", lambda k, e, m, x: samples(k, 1.0, m, x), "step size"),
    ("MH-GEN-3", lambda k, e, m, x: samples(k, e, m**0.5, x), "margin enters squared"),
]


@pytest.mark.parametrize("exercise", RIGHT)
def test_right_answers_pass(exercise):
    assert attnbook.check(exercise, RIGHT[exercise]).right


@pytest.mark.parametrize(("exercise", "answer", "message"), WRONG)
def test_wrong_answers_get_the_likely_mistake(exercise, answer, message):
    feedback = attnbook.check(exercise, answer)
    assert not feedback.right
    assert message in repr(feedback)
