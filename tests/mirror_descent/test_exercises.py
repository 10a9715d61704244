"""The checks of the exercises accept right answers and name likely mistakes."""

import numpy as np
import pytest

import attnbook


def step(weights, gradient, lr, p, *, back=None):
    mirrored = np.sign(weights) * np.abs(weights) ** (p - 1) - lr * gradient
    return np.sign(mirrored) * np.abs(mirrored) ** (1 / (p - 1) if back is None else back(p))


def shortest(a, p):
    q = p / (p - 1)
    return np.sign(a) * np.abs(a) ** (q - 1) / (np.abs(a) ** q).sum()


def bare(weights, gradient, lr, p):
    with np.errstate(invalid="ignore"):
        return (np.sign(weights) * np.abs(weights) ** (p - 1) - lr * gradient) ** (1 / (p - 1))


def counting(matrices, *, scale=True, pool=True, share=True, size=np.abs):
    scaled = [m / np.abs(m).max() if scale else m for m in matrices]
    groups = [np.stack(scaled)] if pool else scaled
    of = [size(g).sum() ** 2 / (g**2).sum() / (g.size if share else 1) for g in groups]
    return np.mean(of)


def fair(val_a, val_b, test_a, test_b, *, ddof=1, root=True):
    gain = test_a[val_a.mean(1).argmax()] - test_b[val_b.mean(1).argmax()]
    return gain.mean(), gain.std(ddof=ddof) / (len(gain) ** 0.5 if root else 1)


def unpaired(val_a, val_b, test_a, test_b):
    a, b = test_a[val_a.mean(1).argmax()], test_b[val_b.mean(1).argmax()]
    return a.mean() - b.mean(), np.sqrt((a.var(ddof=1) + b.var(ddof=1)) / len(a))


def each_seed(val_a, val_b, test_a, test_b):
    seeds = np.arange(val_a.shape[1])
    gain = test_a[val_a.argmax(0), seeds] - test_b[val_b.argmax(0), seeds]
    return gain.mean(), gain.std(ddof=1) / np.sqrt(len(gain))


RIGHT = {
    "MD-1": step,
    "MD-2": shortest,
    "MD-14": counting,
    "MD-15": fair,
}
WRONG = [
    ("MD-1", lambda w, g, lr, p: w - lr * g, "gradient descent"),
    ("MD-1", lambda w, g, lr, p: step(w, -g, lr, p), "sign"),
    ("MD-1", lambda w, g, lr, p: np.abs(step(w, g, lr, p)), "on the way back"),
    ("MD-1", lambda w, g, lr, p: step(w, g, lr, p, back=lambda p: p - 1), "exponent"),
    ("MD-1", lambda w, g, lr, p: np.sign(w) * np.abs(w) ** (p - 1) - lr * g, "map it back"),
    ("MD-1", bare, "nan"),
    ("MD-1", lambda w, g, lr, p: w[0], "shape"),
    ("MD-1", lambda w, g, lr, p: 0 * w, "different"),
    ("MD-2", lambda a, p: a / (a @ a), "Euclidean"),
    ("MD-2", lambda a, p: np.abs(shortest(a, p)), "signs"),
    ("MD-2", lambda a, p: 2 * shortest(a, p), "2 times the right numbers"),
    ("MD-2", lambda a, p: shortest(a, p) * (np.abs(a) ** 3.5).sum(), "must be 1"),
    ("MD-2", lambda a, p: np.eye(6)[0] / a[0], "shorter"),
    ("MD-2", lambda a, p: a[:2], "shape"),
    ("MD-14", lambda m: counting(m, scale=False), "largest entry first"),
    ("MD-14", lambda m: counting(m, share=False), "is a share"),
    ("MD-14", lambda m: counting(m, pool=False), "do not average"),
    ("MD-14", lambda m: counting(m, size=np.asarray), "absolute"),
    ("MD-14", lambda m: [1.0, 2.0], "one number"),
    ("MD-15", lambda a, b, c, d: fair(c, d, c, d), "not on test"),
    ("MD-15", each_seed, "one step size for all seeds"),
    ("MD-15", lambda *a: fair(*a, root=False), "divide by the root"),
    ("MD-15", lambda *a: fair(*a, ddof=0), "ddof=1"),
    ("MD-15", unpaired, "paired"),
    ("MD-15", lambda *a: 1.0, "shape"),
]


@pytest.mark.parametrize("exercise", RIGHT)
def test_right_answers_pass(exercise):
    assert attnbook.check(exercise, RIGHT[exercise]).right


@pytest.mark.parametrize(("exercise", "answer", "mistake"), WRONG)
def test_likely_mistakes_are_named(exercise, answer, mistake):
    feedback = attnbook.check(exercise, answer)
    assert not feedback.right
    assert mistake in feedback.message
