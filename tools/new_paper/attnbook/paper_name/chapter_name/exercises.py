"""Checks of the exercises of the chapter. Each returns None for a right answer, else the likely mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.core.feedback import likely_mistake


def numbers_needed(answer: Callable[..., Any]) -> str | None:
    """Check how many numbers a mean needs for a given error, if means of one number are off by one."""
    errors = np.array([0.1, 0.03, 0.5])
    got, right = np.array([float(answer(error)) for error in errors]), errors**-2.0
    if np.allclose(got, right):
        return None
    return likely_mistake(got, right, {"the error falls like the root of the size": 1 / errors})


CHECKS = {"XX-1": numbers_needed}
