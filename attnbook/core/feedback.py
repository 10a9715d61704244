"""Naming the mistake that a reader's wrong answer to an exercise looks like."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

__all__ = ["likely_mistake"]


def likely_mistake(got: np.ndarray, likely: Mapping[str, np.ndarray]) -> str:
    """Say which known mistake produces these numbers.

    Args:
        got: What the reader's function returned.
        likely: What a mistake is called to the numbers it produces, the likeliest first.

    Returns:
        The name of the first mistake that fits, or the numbers themselves when none does.

    Example:
        >>> likely_mistake(np.array([2.0]), {"the sign is wrong": np.array([-1.0]), "a factor 2": np.array([2.0])})
        'a factor 2'
    """
    for mistake, wrong in likely.items():
        if np.shape(got) == np.shape(wrong) and np.allclose(got, wrong):
            return mistake
    return f"the numbers are different: got {np.round(got, 4)}"
