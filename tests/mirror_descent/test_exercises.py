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


def divergence(u, v, p, *, unit=True):
    if unit:
        u, v = (w / (np.abs(w) ** p).sum() ** (1 / p) for w in (u, v))
    power = np.sign(v) * np.abs(v) ** (p - 1)
    return ((np.abs(u) ** p - np.abs(v) ** p) / p - power * (u - v)).sum()


def bare(weights, gradient, lr, p):
    with np.errstate(invalid="ignore"):
        return (np.sign(weights) * np.abs(weights) ** (p - 1) - lr * gradient) ** (1 / (p - 1))


def one_sided(weights, gradient, lr, p):
    moved = np.abs(weights) ** (p - 1) - lr * gradient
    return np.sign(moved) * np.abs(moved) ** (1 / (p - 1))


def short(u, v, p):
    return 1 - (np.sign(v) * np.abs(v) ** (p - 1) * u).sum()


def sample_gradient(weights, tokens, query, scores, *, derivative=True):
    powers = np.exp(tokens @ weights @ query)
    s = powers / powers.sum()
    centred = scores - s @ scores if derivative else scores
    return -np.outer(tokens.T @ (s * centred), query) / (1 + np.exp(s @ scores))


def support(solution, tokens, query, chosen):
    return np.isclose((tokens[chosen] - tokens) @ solution @ query, 1)


def local(scores, chosen, margins):
    own = scores[np.arange(len(chosen)), chosen]
    return ((own[:, None] > scores) | (margins > 1)).all()


def last_change(tokens):
    return int((tokens[1:] != tokens[:-1]).any(axis=1).nonzero()[0][-1]) + 2


def folded(tokens, key, query):
    return tokens @ (key @ query) / np.sqrt(key.shape[1])


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
    "MD-3": divergence,
    "MD-4": last_change,
    "MD-TS-1": sample_gradient,
    "MD-TS-2": support,
    "MD-TS-3": local,
    "MD-13": folded,
    "MD-14": counting,
    "MD-15": fair,
}
WRONG = [
    ("MD-1", lambda w, g, lr, p: w - lr * g, "gradient descent"),
    ("MD-1", lambda w, g, lr, p: step(w, -g, lr, p), "sign"),
    ("MD-1", lambda w, g, lr, p: np.abs(step(w, g, lr, p)), "on the way back"),
    ("MD-1", lambda w, g, lr, p: step(w, g, lr, p, back=lambda p: p - 1), "exponent"),
    ("MD-1", lambda w, g, lr, p: np.sign(w) * np.abs(w) ** (p - 1) - lr * g, "map it back"),
    ("MD-1", one_sided, "on the way there"),
    ("MD-1", bare, "nan"),
    ("MD-1", lambda w, g, lr, p: w[0], "shape"),
    ("MD-1", lambda w, g, lr, p: 0 * w, "different"),
    ("MD-2", lambda a, p: a / (a @ a), "Euclidean"),
    ("MD-2", lambda a, p: np.abs(shortest(a, p)), "signs"),
    ("MD-2", lambda a, p: 2 * shortest(a, p), "2 times the right numbers"),
    ("MD-2", lambda a, p: shortest(a, p) * (np.abs(a) ** 3.5).sum(), "must be 1"),
    ("MD-2", lambda a, p: np.eye(6)[0] / a[0], "shorter"),
    ("MD-2", lambda a, p: a[:2], "shape"),
    ("MD-3", lambda u, v, p: divergence(v, u, p), "exchanged"),
    ("MD-3", lambda u, v, p: divergence(u, v, p, unit=False), "normalised"),
    ("MD-3", lambda u, v, p: divergence(u, v, 2.0), "cosine"),
    ("MD-3", lambda u, v, p: 1 - divergence(u, v, p), "one minus"),
    ("MD-3", short, "unit sphere only"),
    ("MD-3", lambda u, v, p: short(u / np.linalg.norm(u), v / np.linalg.norm(v), p), "2-norms"),
    ("MD-3", lambda u, v, p: divergence(u / np.linalg.norm(u), v / np.linalg.norm(v), p, unit=False), "2-norms"),
    ("MD-3", lambda u: u, "raised TypeError"),
    ("MD-4", lambda tokens: last_change(tokens) - 1, "one too small"),
    ("MD-4", lambda tokens: 2, "first change"),
    ("MD-4", len, "number of steps"),
    ("MD-4", lambda tokens: 5, "different"),
    ("MD-4", lambda tokens: tokens[0], "shape"),
    ("MD-TS-1", lambda w, x, z, g: -sample_gradient(w, x, z, g), "sign"),
    ("MD-TS-1", lambda w, x, z, g: sample_gradient(w, x, z, g).T, "transposed"),
    ("MD-TS-1", lambda w, x, z, g: sample_gradient(w, x, z, g, derivative=False), "derivative"),
    ("MD-TS-1", lambda w, x, z, g: w[0], "shape"),
    ("MD-TS-2", lambda w, x, z, a: support(w, x, z, a) | (np.arange(5) == a), "itself"),
    ("MD-TS-2", lambda w, x, z, a: ~support(w, x, z, a), "others"),
    ("MD-TS-2", lambda w, x, z, a: np.isclose(x @ w @ z, 1), "logit"),
    ("MD-TS-2", lambda w, x, z, a: [1, 2], "shape"),
    ("MD-TS-2", lambda w, x, z, a: np.zeros(5, dtype=bool), "different"),
    ("MD-TS-3", lambda g, a, m: not local(g, a, m), "reversed"),
    ("MD-TS-3", lambda g, a, m: True, "every sample"),
    ("MD-TS-3", lambda g, a, m: (g[np.arange(2), a] >= g.max(1)).all(), "not all tokens"),
    ("MD-13", lambda x, k, q: x @ k @ q, "is missing"),
    ("MD-13", lambda x, k, q: x @ k @ q / np.sqrt(5), "not of the stream"),
    ("MD-13", lambda x, k, q: x @ k @ q / 3, "not by the size"),
    ("MD-13", lambda x, k, q: k @ q, "shape"),
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
