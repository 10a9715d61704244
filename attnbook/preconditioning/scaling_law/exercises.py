"""Checks of the exercises on the scaling law. Each returns None for a right answer, else the likely mistake."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from attnbook.core.feedback import likely_mistake
from attnbook.core.rng import stream
from attnbook.preconditioning.law_constants import best_split, bias_coefficient, heavy_tail_exponent

__all__ = ["CHECKS"]


def coefficient_at_optimum(answer: Callable[..., Any]) -> str | None:
    """Check the coefficient of 1/n where the layers fit the target."""
    rng = stream(1, "exercise", "PC-7")
    value, key_query = 0.3 * rng.standard_normal((5, 3)), 0.15 * rng.standard_normal((3, 3))
    right = np.asarray(
        float(
            bias_coefficient(
                torch.as_tensor(value), torch.as_tensor(key_query), target=torch.as_tensor(value @ key_query)
            )
        )
    )
    got = np.asarray(answer(value.copy(), key_query.copy()), dtype=float)
    if got.shape != ():
        return f"one number is wanted, got shape {got.shape}"
    product, one = value @ key_query, np.eye(3)

    def formula(gram: np.ndarray, factor: float = 2.0, half: float = 0.5, root: float = 0.5) -> np.ndarray:
        weight = np.linalg.inv(one - factor * gram)
        return half * np.linalg.det(weight) ** root * ((value**2).sum() + np.trace(product.T @ product @ weight))

    gram = key_query.T @ key_query
    if np.allclose(got, right):
        return None
    likely = {
        "S has V^T V, not V V^T: the mean over x tilts along the right singular vectors": formula(
            key_query @ key_query.T
        ),
        "the factor 2 in S is missing: the covariance grows like e^q, and E e^q tilts by 2": formula(gram, 1.0),
        "the factor 1/2 of the loss is missing": formula(gram, half=1.0),
        "the Gaussian integral gives the root of det S": formula(gram, root=1.0),
        "the factor sqrt(det S) is missing": formula(gram, root=0.0),
        "the second term is missing: keys also spread along mu": (
            0.5 * np.linalg.det(np.linalg.inv(one - 2 * gram)) ** 0.5 * (value**2).sum()
        ),
    }
    return likely_mistake(got, right, likely)


def heavy_tail_slope(answer: Callable[..., Any]) -> str | None:
    """Check the exponent on both sides of the threshold."""
    for signal in (0.2, 0.8, 2.0):
        right = heavy_tail_exponent(signal)
        got = np.asarray(answer(signal), dtype=float)
        if np.allclose(got, right, atol=1e-3):
            continue
        root = math.sqrt(1 / signal + 0.25)
        likely = {
            "up to one half nothing is gained by a rare query: the exponent is one": root - 0.5,
            "the sign is wrong: gamma is the decay": -float(right),
            "this uses the first formula beyond 2/3, where one key already has all the weight": max(
                0.0, min(1.0, 1 / 3 + 1 / (3 * signal))
            ),
            "the last 1/2 is missing": root,
            "from one half on it falls": 1.0,
        }
        return f"s = {signal:g}: {likely_mistake(got, right, likely, rtol=1e-3)}"
    return None


def split_of_compute(answer: Callable[..., Any]) -> str | None:
    """Check the best number of steps for a budget."""
    for bias, power, start, rate, compute in ((0.2, 1.0, 0.05, 0.3, 1e8), (3.0, 2.0, 0.05, 0.3, 1e7)):
        samples, steps, _ = best_split(bias, power, start, rate, compute)
        got = np.asarray(answer(bias, power, start, rate, compute), dtype=float)
        if got.shape != ():
            return f"one number, the steps, is wanted, got shape {got.shape}"
        if np.isclose(got, steps, rtol=0.02):
            continue
        if np.isclose(got, samples, rtol=0.02):
            return f"power {power:g}: this is the number of samples; the steps are wanted"
        error = bias * (compute / max(float(got), 1e-9)) ** (-power / 2) + start * math.exp(-rate * float(got))
        better = bias * (compute / steps) ** (-power / 2) + start * math.exp(-rate * steps)
        return f"power {power:g}: {float(got):.4g} steps leave an error of {error:.4g}; {better:.4g} can be reached"
    return None


CHECKS: dict[str, Callable[[Callable[..., Any]], str | None]] = {
    "PC-7": coefficient_at_optimum,
    "PC-8": heavy_tail_slope,
    "PC-9": split_of_compute,
}
