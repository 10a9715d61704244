"""Checks of the exercises of this chapter. Each returns None for a right answer, else the likely mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.core.feedback import likely_mistake
from attnbook.core.rng import stream
from attnbook.softmax_ntk.denominator import effective_width
from attnbook.softmax_ntk.kernels import infinite_width_kernel

__all__ = ["CHECKS"]


def kernel_at_infinite_width(answer: Callable[..., Any]) -> str | None:
    """Check the kernel of the softmax network at infinite width."""
    rng = stream(1, "exercise", "SN-5")
    x, scale = rng.standard_normal((5, 3)), 0.7
    got = np.asarray(answer(x.copy(), scale), dtype=float)
    if got.shape != (5, 5):
        return f"one number per pair of samples is wanted, shape (5, 5), got {got.shape}"
    right = infinite_width_kernel("softmax", x, scale=scale)
    if np.allclose(got, right):
        return None
    products = x @ x.T
    likely = {
        "this is the kernel of exp: the denominators are still to be divided out": infinite_width_kernel(
            "exp", x, scale=scale
        ),
        "the inner product in front is missing: every derivative is a number times x": np.exp(scale**2 * products),
        "the variance of a logit is the square of the scale": products * np.exp(scale * products),
        "the exponent has no 1/2: the squares of the norms cancel, twice half the product is left": products
        * np.exp(scale**2 * products / 2),
        "the exponent is positive: inputs that agree share their neurons": products * np.exp(-(scale**2) * products),
    }
    return likely_mistake(got, right, likely)


def counted_neurons(answer: Callable[..., Any]) -> str | None:
    """Check the effective number of neurons, also for logits that overflow."""
    rng = stream(1, "exercise", "SN-6")
    logits = 2 * rng.standard_normal((5, 7))
    got = np.asarray(answer(logits.copy()), dtype=float)
    if got.shape != (5,):
        return f"one number per row is wanted, shape (5,), got {got.shape}"
    right = effective_width(logits)
    if not np.allclose(got, right):
        shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        likely = {
            "this is its inverse": 1 / right,
            "this is the sum of squares over the width": right / 7,
            "this is the exponential of the entropy, another way to count": np.exp(-(shares * np.log(shares)).sum(1)),
            "this is one over the largest weight, another way to count": 1 / shares.max(1),
            "the weights have to sum to one first": 1 / np.square(np.exp(logits)).sum(1),
        }
        return likely_mistake(got, right, likely)
    with np.errstate(all="ignore"):
        large = np.asarray(answer(1000 + 500 * logits), dtype=float)
    if not np.allclose(large, effective_width(1000 + 500 * logits)):
        return "right for small logits, but exp overflows at large ones: subtract the largest of each row first"
    return None


CHECKS = {"SN-5": kernel_at_infinite_width, "SN-6": counted_neurons}
