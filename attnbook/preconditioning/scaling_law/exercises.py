"""Checks of the exercises on the scaling law. Each returns None for a right answer, else the likely mistake."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.core.feedback import likely_mistake
from attnbook.preconditioning.law_constants import heavy_tail_exponent


def heavy_tail_slope(answer: Callable[..., Any]) -> str | None:
    """Check the exponent on both sides of the threshold."""
    for signal in (0.2, 0.8, 2.0):
        right = heavy_tail_exponent(signal)
        got = np.asarray(answer(signal), dtype=float)
        if np.allclose(got, right, atol=1e-3):
            continue
        root, frozen = math.sqrt(1 / signal + 0.25), min(1.0, 1 / 3 + 1 / (3 * signal))
        likely = {
            "up to one half nothing is gained by a rare query: the exponent is one": root - 0.5,
            "the sign is wrong: gamma is the decay": -float(right),
            "this uses the first formula beyond 2/3, where one key already has all the weight": frozen,
            "the last 1/2 is missing": root,
            "from one half on it falls": 1.0,
        }
        return f"s = {signal:g}: {likely_mistake(got, right, likely, rtol=1e-3)}"
    return None


def split_of_compute(answer: Callable[..., Any]) -> str | None:
    """Check the best number of steps for a budget."""
    for bias, power, start, rate, compute in ((0.2, 1.0, 0.05, 0.3, 1e8), (3.0, 2.0, 0.05, 0.3, 1e7)):
        t = np.geomspace(1e-2, 1e3, 100_001) / rate
        error = bias * (compute / t) ** (-power / 2) + start * np.exp(-rate * t)
        steps = t[error.argmin()]
        got = np.asarray(answer(bias, power, start, rate, compute), dtype=float)
        if got.shape != ():
            return f"one number, the steps, is wanted, got shape {got.shape}"
        if np.isclose(got, steps, rtol=0.02):
            continue
        if np.isclose(got, math.sqrt(compute / steps), rtol=0.02):
            return f"power {power:g}: this is the number of samples; the steps are wanted"
        there = np.interp(float(got), t, error)
        return f"power {power:g}: {got:.4g} steps leave an error of {there:.4g}; {error.min():.4g} can be reached"
    return None


CHECKS = {"PC-8": heavy_tail_slope, "PC-9": split_of_compute}
