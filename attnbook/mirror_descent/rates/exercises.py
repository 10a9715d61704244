"""Checks of the exercises on rates. Each returns None for a right answer, else the likely mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.core.feedback import likely_mistake
from attnbook.core.rng import stream
from attnbook.mirror_descent.rates import one_step


def bound_in_norm(answer: Callable[..., Any]) -> str | None:
    """Check the three cases of the rate."""
    norm = np.array([7.0, 50.0])
    for p in (1.3, 2.0, 3.5):
        right = one_step.rate_bound(norm, p)
        got = np.asarray(answer(norm.copy(), p), dtype=float)
        if np.allclose(got, right):
            continue
        likely = {"this power is p, not p - 1: the norm enters through its power p - 1": norm**-p}
        if p < 2:
            likely["below p = 2 the integral converges: no logarithm is left"] = np.log(norm) / norm ** (p - 1)
            likely["the case p < 2 has the power p - 1"] = 1 / norm
        else:
            likely["this keeps the power p - 1 above p = 2, where it cannot pass 1"] = norm ** (1 - p)
            likely["at p = 2 the logarithm is squared"] = np.log(norm) / norm
            likely["only p = 2 has the logarithm squared"] = np.log(norm) ** 2 / norm
            likely["a factor log N is missing"] = 1 / norm
        return f"p = {p:g}: {likely_mistake(got, right, likely)}"
    return None


def log_of_time(answer: Callable[..., Any]) -> str | None:
    """Check the log of a running sum of step sizes that no float can hold."""
    few = 3 * stream(1, "exercise", "MD-8").random((2, 4))
    log_steps = np.concatenate([few[0], 900 + few[1]])
    right = np.logaddexp.accumulate(log_steps)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        got = np.asarray(answer(log_steps.copy()), dtype=float)
    if got.shape != right.shape:
        return f"one number per step is wanted, shape {right.shape}, got {got.shape}"
    if np.allclose(got, right, rtol=0, atol=1e-9):
        return None
    if not np.isfinite(got).all():
        return "a step size of exp(900) is infinite in double precision: stay with logarithms throughout"
    likely = {
        "this is the sum of the logarithms, the log of the product": np.cumsum(log_steps),
        "this is the largest step so far; the smaller ones count too": np.maximum.accumulate(log_steps),
        "these are the steps themselves, not their running sum": log_steps,
    }
    return likely_mistake(got, right, likely)


CHECKS = {"MD-7": bound_in_norm, "MD-8": log_of_time}
