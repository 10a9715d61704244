"""Checks of the exercises of this part. Each returns None for a right answer, else the likely mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.core.feedback import likely_mistake
from attnbook.core.rng import stream
from attnbook.mirror_descent import mirror

__all__ = ["CHECKS"]


def mirror_step(answer: Callable[..., Any]) -> str | None:
    """Check one step of mirror descent."""
    rng = stream(1, "exercise", "MD-1")
    weights, gradient = rng.standard_normal((3, 5)), rng.standard_normal((3, 5))
    lr, p = 0.7, 1.6
    mirrored = mirror.mirror_map(weights, p)
    right = mirror.inverse_mirror_map(mirrored - lr * gradient, p)
    got = np.asarray(answer(weights.copy(), gradient.copy(), lr, p), dtype=float)
    if got.shape != right.shape:
        return f"the new weights have the shape of the old ones, {right.shape}, got {got.shape}"
    if np.allclose(got, right):
        return None
    plain = mirrored - lr * gradient
    if np.isnan(got).any():
        return "a power of a negative number is not defined (nan): take the power of the size, and put the sign back"
    with np.errstate(invalid="ignore"):
        unsigned = np.abs(plain) ** (1 / (p - 1))
        lost = mirror.inverse_mirror_map(np.abs(weights) ** (p - 1) - lr * gradient, p)
    return likely_mistake(
        got,
        right,
        {
            "this is the point in the mirror space: map it back to the weights": plain,
            "the step was taken in the weights, not in the mirror space: that is gradient descent": weights
            - lr * gradient,
            "the sign is reversed: descent subtracts the gradient": mirror.inverse_mirror_map(
                mirrored + lr * gradient, p
            ),
            "the signs are lost on the way back": unsigned,
            "the signs are lost on the way there": lost,
            "the way back has the exponent 1 / (p - 1), not p - 1": mirror.mirror_map(plain, p),
        },
    )


def one_constraint(answer: Callable[..., Any]) -> str | None:
    """Check the smallest vector that meets one constraint."""
    rng = stream(1, "exercise", "MD-2")
    constraint, p = rng.standard_normal(6), 1.4
    q = p / (p - 1)
    right = mirror.single_constraint(constraint[:, None], p)[:, 0]
    got = np.asarray(answer(constraint.copy(), p), dtype=float)
    if got.shape != right.shape:
        return f"one number per entry is wanted, shape {right.shape}, got {got.shape}"
    if np.allclose(got, right):
        return None
    direction = np.sign(constraint) * np.abs(constraint) ** (q - 1)
    likely = {
        "the direction is right, but the product with the constraint must be 1": direction,
        "this is the Euclidean solution: the norm is the p-norm": constraint / (constraint @ constraint),
        "the exponent is q - 1, not p - 1": np.sign(constraint)
        * np.abs(constraint) ** (p - 1)
        / (np.abs(constraint) ** p).sum(),
        "the signs are lost": np.abs(right),
    }
    if np.isclose(got @ constraint, 1.0):
        mistake = likely_mistake(got, right, likely)
        return mistake if "different" not in mistake else "it meets the constraint, but a shorter vector does so too"
    return likely_mistake(got, right, likely)


def divergence_of_directions(answer: Callable[..., Any]) -> str | None:
    """Check the Bregman divergence of two directions."""
    rng = stream(1, "exercise", "MD-3")
    u, v, p = rng.standard_normal((4, 3)), rng.standard_normal((4, 3)), 3.0
    unit_u, unit_v = mirror.normalised(u, p), mirror.normalised(v, p)
    right = mirror.bregman_divergence(unit_u, unit_v, p)
    got = np.asarray(answer(u.copy(), v.copy(), p), dtype=float)
    if np.allclose(got, right):
        return None

    def short(u: np.ndarray, v: np.ndarray) -> float:
        return float(1 - (mirror.mirror_map(v, p) * u).sum())

    euclidean = mirror.normalised(u, 2.0), mirror.normalised(v, 2.0)
    likely = {
        "the arguments are exchanged: the mirror map belongs to the second one": mirror.bregman_divergence(
            unit_v, unit_u, p
        ),
        "the matrices are not normalised: divide each by its p-norm first": mirror.bregman_divergence(u, v, p),
        "this is one minus the cosine, the divergence for p = 2": 1
        - (mirror.normalised(u, 2.0) * mirror.normalised(v, 2.0)).sum(),
        "this is the product; the divergence is one minus it": 1 - right,
        "the short formula holds on the unit sphere only: divide each matrix by its p-norm first": short(u, v),
        "the matrices are divided by their 2-norms: the sphere is that of the p-norm": short(*euclidean),
        "the matrices are divided by their 2-norms, and the sphere is that of the p-norm": mirror.bregman_divergence(
            *euclidean, p
        ),
    }
    return likely_mistake(got, right, likely)


def last_change(answer: Callable[..., Any]) -> str | None:
    """Check the step of the last change of a token."""
    tokens = np.array([[2, 0], [2, 1], [0, 1], [2, 1], [2, 1], [2, 1]])
    right = 4
    got = np.asarray(answer(tokens.copy()), dtype=float)
    if got.shape != ():
        return f"one number is wanted, got shape {got.shape}"
    if got == right:
        return None
    return likely_mistake(
        got,
        right,
        {
            "row k is the state after k + 1 steps: this number is one too small": 3.0,
            "this is the first change, or is two too small: row k is the state after k + 1 steps": 2.0,
            "this is the number of steps": 6.0,
        },
    )


CHECKS: dict[str, Callable[[Callable[..., Any]], str | None]] = {
    "MD-1": mirror_step,
    "MD-2": one_constraint,
    "MD-3": divergence_of_directions,
    "MD-4": last_change,
}
