"""What the experiments of this part read off their training curves."""

from __future__ import annotations

import numpy as np

__all__ = ["NEAR", "first_time"]

NEAR = 1.25
"""A loss counts as near-optimal up to this multiple of the best one."""


def first_time(steps: np.ndarray, ratios: np.ndarray, level: float = NEAR) -> np.ndarray:
    """Return the first recorded step at which each member's ratio is at most ``level``.

    Args:
        steps: Recorded steps, increasing, ``(records,)``.
        ratios: $L/L^*$, ``(records, ...)``.
        level: What to reach; default 1.25.

    Returns:
        Steps, ``(...)``; infinite for members that never get there.

    Example:
        >>> first_time(np.array([0.0, 10.0, 20.0]), np.array([[9.0, 9.0], [1.2, 8.0], [1.1, 7.0]]))
        array([10., inf])
    """
    reached = ratios <= level
    return np.where(reached.any(axis=0), steps[reached.argmax(axis=0)], np.inf)
