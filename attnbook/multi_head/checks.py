"""Numbers are checked where they enter; messages name the argument."""

from __future__ import annotations

import numpy as np
from torch import Tensor

__all__ = ["at_least", "between_zero_and_one", "plus_or_minus_one", "positive", "whole"]


def at_least(least: float, **numbers: float | np.ndarray) -> None:
    """Raise ValueError for a number, or an array with one, that is below ``least`` or not finite."""
    for name, number in numbers.items():
        array = np.asarray(number, dtype=np.float64)
        if not (np.isfinite(array) & (array >= least)).all():
            raise ValueError(f"{name}: expected a finite number of at least {least:g}, got {number}")


def positive(**numbers: float | np.ndarray) -> None:
    """Raise ValueError for a number, or an array with one, that is not positive or not finite."""
    for name, number in numbers.items():
        array = np.asarray(number, dtype=np.float64)
        if not (np.isfinite(array) & (array > 0)).all():
            raise ValueError(f"{name}: expected a finite positive number, got {number}")


def between_zero_and_one(**numbers: float) -> None:
    """Raise ValueError for a number that is not above 0 and below 1."""
    for name, number in numbers.items():
        if not 0 < number < 1:
            raise ValueError(f"{name}: expected a number above 0 and below 1, got {number}")


def whole(**numbers: float) -> None:
    """Raise ValueError for a number that is not whole or below 1."""
    for name, number in numbers.items():
        if isinstance(number, bool) or not number >= 1 or number % 1 != 0:
            raise ValueError(f"{name}: expected a whole number of at least 1, got {number!r}")


def plus_or_minus_one(labels: Tensor) -> None:
    """Raise ValueError for a label that is not 1 or -1."""
    if not (labels.abs() == 1).all():
        raise ValueError(f"labels: expected 1 or -1, got {labels[labels.abs() != 1][0].item():g}")
