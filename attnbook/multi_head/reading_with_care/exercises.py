"""Check of the exercise on places to read with care: None for a right answer, else the likely mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.core.feedback import verdict


def smallest_constant(answer: Callable[..., Any]) -> str | None:
    r"""Check the smallest $C$ for which heads of norm $C/H^p$ satisfy $\sqrt H\sum_h\|W_h\|^2\ge\log^5n$."""
    cases = [(16.0, 1.0, 100.0), (1000.0, 0.5, 20.0), (7.0, 2.5, 1e6)]
    heads, p, n = (np.array(column) for column in zip(*cases, strict=True))
    logs = np.log(n)
    right = logs**2.5 * heads ** (p - 0.75)
    likely = {
        "there are H heads, and their squared norms add up: this is the norm of one": logs**2.5 * heads ** (p - 0.25),
        "this is C squared: take the root at the end": right**2,
        "the squared norm of a head is (C / H^p)^2; this is without the square": logs**5 * heads ** (p - 1.5),
        "the logarithm comes under the root too": logs**5 * heads ** (p - 0.75),
        "the factor in front of the sum is the root of H": logs**2.5 * heads ** (p - 1),
        "the factor in front of the sum, the root of H, is missing": logs**2.5 * heads ** (p - 0.5),
        "the logarithm of the number of samples is missing": heads ** (p - 0.75),
        "the sign of the exponent: more weight on H^p means a larger C": logs**2.5 * heads ** (0.75 - p),
    }
    return verdict([float(answer(*case)) for case in cases], right, likely, "one number")


CHECKS = {"MH-CARE": smallest_constant}
