"""Checks of the exercises on joint training. Each returns None for a right answer, else the likely mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.core.feedback import likely_mistake
from attnbook.core.rng import stream
from attnbook.mirror_descent.joint_training.experiments import common_step_growth


def newton(answer: Callable[..., Any]) -> str | None:
    """Check Newton's step for the ratio, the norm's derivative taken from the multipliers."""
    draw = stream(11, "exercise", "newton")
    margins, multipliers = 1 + draw.random(4), draw.random((4, 3))
    for kappa, ratio, norm in ((0.0, 0.4, 2.5), (0.7, 1.3, 1.7)):
        fall, gap = float((multipliers * (margins - 1)[:, None]).sum()) / norm, ratio * norm - kappa
        right = np.asarray(kappa + gap / (1 + ratio * fall))
        got = np.asarray(answer(kappa, ratio, norm, margins.copy(), multipliers.copy()), dtype=float)
        if got.shape == right.shape and np.allclose(got, right):
            continue
        whole = float((multipliers * margins[:, None]).sum()) / norm
        likely = {
            "this is the plain repetition; Newton divides by a slope": ratio * norm,
            "the norm falls as the ratio grows: mind the sign of its slope": kappa + gap / (1 - ratio * fall),
            "the multipliers are those of half the squared norm: divide by the norm": kappa
            + gap / (1 + ratio * fall * norm),
            "the right-hand side falls at the rate m - 1, not m": kappa + gap / (1 + ratio * whole),
            "the slope of the equation has the ratio in front of that of the norm": kappa + gap / (1 + fall),
        }
        return f"kappa = {kappa:g}: {likely_mistake(got, right, likely)}"
    return None


def growth(answer: Callable[..., Any]) -> str | None:
    """Check the slope of the matrix's relative norm with one step size."""
    norm = np.array([3.0, 8.0])
    for p in (1.5, 2.0, 3.0):
        right = common_step_growth(norm, p)
        got = np.asarray(answer(norm.copy(), p), dtype=float)
        if got.shape == right.shape and np.allclose(got, right):
            continue
        likely = {
            "this is the limit far out; at finite norm the power of the norm counts": np.full(2, p),
            "the norm enters as its power p - 2 times its exponential, so its slope is 1 + (p - 2) / norm": p
            / (1 + (p - 1) / norm),
            "p = 2 in the numerator: the head's power is p": 2 / (1 + (p - 2) / norm),
            "the slopes multiply the wrong way round: divide by 1 + (p - 2) / norm": p * (1 + (p - 2) / norm),
        }
        return f"p = {p:g}: {likely_mistake(got, right, likely)}"
    return None


CHECKS: dict[str, Callable[[Callable[..., Any]], str | None]] = {"MD-11": newton, "MD-12": growth}
