"""Checks of the exercises on mirror descent. Each returns None for a right answer, else the likely mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.core.feedback import verdict
from attnbook.core.rng import stream
from attnbook.mirror_descent import mirror


def mirror_step(answer: Callable[..., Any]) -> str | None:
    """Check one step of mirror descent."""
    weights, gradient = stream(1, "exercise", "MD-1").standard_normal((2, 3, 5))
    lr, p = 0.7, 1.6
    moved, wrong = (mirror.mirror_map(weights, p) + sign * lr * gradient for sign in (-1, 1))
    right, got = mirror.inverse_mirror_map(moved, p), np.asarray(answer(weights.copy(), gradient.copy(), lr, p), float)
    if np.isnan(got).any():
        return "a power of a negative number is not defined (nan): take the power of the size, and put the sign back"
    likely = {
        "this is the point in the mirror space: map it back to the weights": moved,
        "the step was taken in the weights, not in the mirror space: that is gradient descent": weights - lr * gradient,
        "the sign is reversed: descent subtracts the gradient": mirror.inverse_mirror_map(wrong, p),
        "the signs are lost on the way back": np.abs(right),
        "the way back has the exponent 1 / (p - 1), not p - 1": mirror.mirror_map(moved, p),
    }
    return verdict(got, right, likely, "one new weight per old one")


def one_constraint(answer: Callable[..., Any]) -> str | None:
    """Check the smallest vector that meets one constraint."""
    a, p = stream(1, "exercise", "MD-2").standard_normal(6), 1.4
    right, size = mirror.single_constraint(a[:, None], p)[:, 0], np.abs(a)
    got = np.asarray(answer(a.copy(), p), dtype=float)
    likely = {
        "the direction is right, but the product with the constraint must be 1": np.sign(a) * size ** (1 / (p - 1)),
        "this is the Euclidean solution: the norm is the p-norm": a / (a @ a),
        "the exponent is q - 1, not p - 1": np.sign(a) * size ** (p - 1) / (size**p).sum(),
        "the signs are lost": np.abs(right),
    }
    known = got.shape != right.shape or any(np.allclose(got, wrong) for wrong in likely.values())
    if not known and np.isclose(got @ a, 1.0):
        likely = {"it meets the constraint, but a shorter vector does so too": got}
    return verdict(got, right, likely, "one number per entry")


CHECKS = {"MD-1": mirror_step, "MD-2": one_constraint}
