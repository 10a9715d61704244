"""Naming the mistake that a reader's wrong answer to an exercise looks like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

__all__ = ["likely_mistake", "verdict"]


def verdict(
    got: Any, right: ArrayLike, likely: Mapping[str, ArrayLike], wanted: str, *, rtol: float = 1e-5
) -> str | None:
    """Return what the check of an exercise says of numbers.

    Args:
        got: What the reader's function returned.
        right: What it should have returned.
        likely: As for :func:`likely_mistake`.
        wanted: What is wanted, in words, for an answer of another shape.
        rtol: Relative tolerance of all comparisons; default one part in a hundred thousand.

    Returns:
        None for a right answer, which shape is wanted for one of another shape, else the likely mistake.

    Example:
        >>> verdict([1.0, 2.0], 1.0, {}, "one number")
        'one number is wanted, shape (), got (2,)'
    """
    found, expected = np.asarray(got, dtype=float), np.asarray(right, dtype=float)
    if found.shape != expected.shape:
        return f"{wanted} is wanted, shape {expected.shape}, got {found.shape}"
    return None if np.allclose(found, expected, rtol=rtol) else likely_mistake(found, expected, likely, rtol=rtol)


def likely_mistake(
    got: np.ndarray, right: ArrayLike, likely: Mapping[str, ArrayLike] | None = None, *, rtol: float = 1e-5
) -> str:
    """Say which known mistake produces these numbers, or which constant factor they are off by.

    Args:
        got: What the reader's function returned.
        right: What it should have returned.
        likely: What a mistake is called to the numbers it produces, the likeliest first; none by default.
        rtol: Relative tolerance of the comparisons; default one part in a hundred thousand.

    Returns:
        The name of the first mistake that fits, else the factor if all numbers are the right ones times one constant,
        else the numbers themselves. Any single number is the right one times something, so there only a whole number,
        or one over it, counts as a factor.

    Example:
        >>> likely_mistake(np.array([2.0, 4.0]), [1.0, 3.0], {"the mean is missing": [2.0, 4.0]})
        'the mean is missing'
        >>> likely_mistake(np.array([2.0, 6.0]), [1.0, 3.0])
        'right up to a constant factor: these are 2 times the right numbers'
    """
    for mistake, wrong in (likely or {}).items():
        if _close(got, wrong, rtol):
            return mistake
    factor = _constant_factor(np.asarray(got), np.asarray(right, dtype=float), rtol)
    if factor is not None:
        return f"right up to a constant factor: these are {factor:.4g} times the right numbers"
    return f"the numbers are different: got {np.array2string(np.asarray(got), precision=4)}"


def _constant_factor(got: np.ndarray, right: np.ndarray, rtol: float) -> float | None:
    if got.shape != right.shape or not np.isfinite(got).all() or not right.any():
        return None
    factor = float((got * right).sum() / (right**2).sum())
    if factor == 0 or _close(factor, 1.0, rtol) or not _close(got, factor * right, rtol):
        return None
    larger = max(abs(factor), 1 / abs(factor))
    return factor if got.size > 1 or abs(larger - round(larger)) <= rtol else None


def _close(got: ArrayLike, wanted: ArrayLike, rtol: float) -> bool:
    # A number next to zero may be off by rounding errors of the largest one beside it.
    atol = 1e-3 * rtol * np.abs(wanted).max(initial=0.0)
    return np.shape(got) == np.shape(wanted) and np.allclose(got, wanted, rtol=rtol, atol=atol)
