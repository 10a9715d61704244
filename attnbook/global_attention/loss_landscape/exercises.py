"""Checks of the exercises of this chapter. Each returns None for a right answer, else the likely mistake."""

from __future__ import annotations

from collections.abc import Callable
from math import comb
from typing import Any

import numpy as np

from attnbook.core.feedback import verdict
from attnbook.core.rng import stream
from attnbook.global_attention.regions import region_bound
from attnbook.global_attention.rescaling import hessian_scaling


def first_failure(answer: Callable[..., Any]) -> str | None:
    """Check the smallest width at which Theorem 3's bound exceeds what is possible without biases."""
    sizes, widths = (2, 3, 4, 5), np.arange(1, 400)
    # Hyperplanes through the origin in general position; the others cut one of them as if it were shifted off it.
    most = [[2 * sum(comb(int(n) - 1, k) for k in range(s)) for n in widths] for s in sizes]
    excess = np.array([[region_bound(int(n), s) if n > s else 0 for n in widths] for s in sizes]) - most
    right = widths[(excess > 0).argmax(1)]
    likely = {
        "equal is no failure: the bound must be larger": widths[(excess >= 0).argmax(1)],
        "from there on it always fails; it fails for the first time earlier": 400 - (excess[:, ::-1] <= 0).argmax(1),
        "this is the width before": right - 1,
    }
    return verdict([answer(size) for size in sizes], right, likely, "a width for each number of inputs")


def flattest(answer: Callable[..., Any]) -> str | None:
    """Check the smallest largest eigenvalue over the orbit of rescalings."""
    p, d = 3, 2
    half = stream(1, "exercise", "GA-L2").standard_normal((11, 11))
    hessian = half @ half.T
    factors = np.exp(np.linspace(-1.5, 1.5, 61))
    scalings = np.array([[hessian_scaling(p, d, a, b) for b in factors] for a in factors])
    tops = np.linalg.eigvalsh(hessian * scalings[..., None] * scalings[..., None, :])[..., -1]
    middle = len(factors) // 2
    likely = {
        "this is the largest eigenvalue at the start; other points of the orbit are flatter": tops[middle, middle],
        "only the mask's factor moves; the first layer has one, too": tops[:, middle].min(),
        "only the first layer's factor moves; the mask has one, too": tops[middle].min(),
        "this is its logarithm": np.log(tops.min()),
    }
    wanted = "one number, the largest eigenvalue at the flattest point,"
    return verdict(answer(hessian.copy(), p, d), tops.min(), likely, wanted, rtol=0.01)


CHECKS = {"GA-L1": first_failure, "GA-L2": flattest}
