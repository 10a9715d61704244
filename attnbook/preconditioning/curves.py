"""What the experiments of this part read off their training curves."""

from __future__ import annotations

import numpy as np

from attnbook.core.runtime import Progress

__all__ = ["NEAR", "first_time", "stage"]

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


def stage(progress: Progress | None, number: int, stages: int) -> Progress | None:
    """Return what one of several stages of equal weight reports its progress to.

    Args:
        progress: What the stages report to together; None for nothing.
        number: Stages before this one.
        stages: Number of stages.

    Returns:
        A function for the stage, or None.
    """
    if progress is None:
        return None
    return lambda done, total: progress(round(1000 * (number + done / total)), 1000 * stages)
