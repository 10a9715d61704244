"""Checks of the exercises on rates. Each returns None for a right answer, else the likely mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.core.feedback import likely_mistake
from attnbook.core.rng import stream
from attnbook.mirror_descent import cone, rate_bounds

__all__ = ["CHECKS"]


def bound_in_norm(answer: Callable[..., Any]) -> str | None:
    """Check the three cases of the rate."""
    norm = np.array([7.0, 50.0])
    for p in (1.3, 2.0, 3.5):
        right = rate_bounds.bound(norm, p)
        got = np.asarray(answer(norm.copy(), p), dtype=float)
        if np.allclose(got, right):
            continue
        likely = {
            "this power is p, not p - 1: the norm enters through its power p - 1": norm**-p,
            "this keeps the power p - 1 above p = 2, where it cannot pass 1": norm ** (1 - p),
            "below p = 2 the integral converges: no logarithm is left": np.log(norm) / norm ** (p - 1),
            "at p = 2 the logarithm is squared": np.log(norm) / norm,
            "only p = 2 has the logarithm squared": np.log(norm) ** 2 / norm,
            "the case p < 2 has the power p - 1": 1 / norm,
            "a factor log N is missing": 1 / norm,
        }
        if p >= 2:
            likely.pop("the case p < 2 has the power p - 1")
        return f"p = {p:g}: {likely_mistake(got, right, likely)}"
    return None


def log_of_time(answer: Callable[..., Any]) -> str | None:
    """Check the log of a running sum of step sizes that no float can hold."""
    log_steps = 300 * np.sort(stream(1, "exercise", "MD-8").random(7)) + np.linspace(0, 2500, 7)
    right = np.logaddexp.accumulate(log_steps)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        got = np.asarray(answer(log_steps.copy()), dtype=float)
    if got.shape != right.shape:
        return f"one number per step is wanted, shape {right.shape}, got {got.shape}"
    if np.allclose(got, right, rtol=0, atol=1e-9):
        return None
    if not np.isfinite(got).all():
        return "a step size of exp(800) is infinite in double precision: stay with logarithms throughout"
    likely = {
        "this is the sum of the logarithms, the log of the product": np.cumsum(log_steps),
        "this is the largest step so far; the smaller ones count too": np.maximum.accumulate(log_steps),
        "these are the steps themselves, not their running sum": log_steps,
    }
    return likely_mistake(got, right, likely)


def literal_cone(answer: Callable[..., Any]) -> str | None:
    """Check the guaranteed divergence of (4a)."""
    for delta, p in ((0.03, 3.0), (0.03, 1.5), (2.0, 2.0)):
        pair, dimension = 5.0, 10
        right = cone.guaranteed_divergence(np.array(delta), np.array(pair), dimension, p)
        got = np.asarray(answer(delta, pair, dimension, p), dtype=float)
        if np.allclose(got, right, rtol=1e-9, atol=0):
            continue
        least = min(delta, 0.5)
        likely = {
            "the smaller of one half and delta counts": cone.guaranteed_divergence(
                np.array(0.5), np.array(pair / 2 / delta), dimension, p
            ),
            "the factor 1 / p is missing": (least / 4 / pair) ** p,
            "above p = 2 the power is p, not 2": (least / 4 / pair) ** 2 / p,
            "below p = 2 the dimension enters as d to the power 2 / p - 1": (p - 1) / 2 * (least / 2 / pair) ** 2,
            "this is the case p >= 2": (least / 4 / pair) ** p / p,
        }
        return f"delta = {delta:g}, p = {p:g}: {likely_mistake(got, right, likely, rtol=1e-9)}"
    return None


CHECKS: dict[str, Callable[[Callable[..., Any]], str | None]] = {
    "MD-7": bound_in_norm,
    "MD-8": log_of_time,
    "MD-9": literal_cone,
}
