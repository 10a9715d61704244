"""Checks of the exercises of this chapter. Each returns None for a right answer, else the likely mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.core.feedback import verdict
from attnbook.core.rng import stream
from attnbook.softmax_ntk.denominator import effective_width
from attnbook.softmax_ntk.kernels import infinite_width_kernel


def kernel_at_infinite_width(answer: Callable[..., Any]) -> str | None:
    """Check the kernel of the softmax network at infinite width."""
    x, s = stream(1, "exercise", "SN-5").standard_normal((5, 3)), 0.7  # inputs and scale
    products = x @ x.T
    exp, right = (infinite_width_kernel(name, x, scale=s) for name in ("exp", "softmax"))
    likely = {
        "this is the kernel of exp: the denominators are still to be divided out": exp,
        "the inner product in front is missing: every derivative is a number times x": np.exp(s**2 * products),
        "the variance of a logit is the square of the scale": products * np.exp(s * products),
        "the exponent has no 1/2: the squares of the norms cancel, twice half the product is left": products
        * np.exp(s**2 * products / 2),
        "the exponent is positive: inputs that agree share their neurons": products * np.exp(-(s**2) * products),
    }
    return verdict(answer(x.copy(), s), right, likely, "one number per pair of samples")


def counted_neurons(answer: Callable[..., Any]) -> str | None:
    """Check the effective number of neurons, also for logits that overflow."""
    logits = 2 * stream(1, "exercise", "SN-6").standard_normal((5, 7))
    right, shares = effective_width(logits), np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    likely = {
        "this is its inverse": 1 / right,
        "this is the sum of squares over the width": right / 7,
        "this is the exponential of the entropy, another way to count": np.exp(-(shares * np.log(shares)).sum(1)),
        "this is one over the largest weight, another way to count": 1 / shares.max(1),
        "the weights have to sum to one first": 1 / np.square(np.exp(logits)).sum(1),
    }
    mistake = verdict(answer(logits.copy()), right, likely, "one number per row")
    if mistake:
        return mistake
    with np.errstate(all="ignore"):
        large = np.asarray(answer(1000 + 500 * logits), dtype=float)
    if np.allclose(large, effective_width(1000 + 500 * logits)):
        return None
    return "right for small logits, but exp overflows at large ones: subtract the largest of each row first"


CHECKS = {"SN-5": kernel_at_infinite_width, "SN-6": counted_neurons}
