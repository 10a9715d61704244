"""Summaries of measured arrays whose first axis runs over seeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from attnbook.core.results import Measurement

__all__ = ["largest", "log_slopes", "smallest"]


def largest(**values: np.ndarray) -> Measurement:
    """Return the largest over everything, with the range over seeds of each seed's own largest.

    Args:
        **values: Name to values, the first axis over seeds.

    Returns:
        The measurement.

    Example:
        >>> largest(ratio=np.array([[0.1, 0.2], [0.4, 0.3]])).spread
        {'ratio': (0.2, 0.4)}
    """
    own = {name: array.reshape(len(array), -1).max(1) for name, array in values.items()}
    spread = {name: (float(array.min()), float(array.max())) for name, array in own.items()}
    return Measurement({name: high for name, (_, high) in spread.items()}, spread, len(next(iter(own.values()))))


def smallest(**values: np.ndarray) -> Measurement:
    """Return the smallest over everything, with the range over seeds of each seed's own smallest.

    Args:
        **values: Name to values, the first axis over seeds.

    Returns:
        The measurement.

    Example:
        >>> smallest(margin=np.array([[0.1, 0.2], [0.4, 0.3]])).values
        {'margin': 0.1}
    """
    own = {name: array.reshape(len(array), -1).min(1) for name, array in values.items()}
    spread = {name: (float(array.min()), float(array.max())) for name, array in own.items()}
    return Measurement({name: low for name, (low, _) in spread.items()}, spread, len(next(iter(own.values()))))


def log_slopes(sizes: Sequence[int], values: Float[np.ndarray, "seeds sizes"]) -> Float[np.ndarray, " seeds"]:
    """Return the slopes of the logarithm of positive values in the logarithm of the sizes, by least squares.

    Args:
        sizes: Abscissae, positive, at least two different ones.
        values: Values at them.

    Returns:
        One slope for each seed.

    Example:
        >>> log_slopes([1, 2, 4], np.array([[1.0, 2.0, 4.0]])).round(9)
        array([1.])
    """
    centred = np.log(sizes) - np.mean(np.log(sizes))
    return np.asarray(np.log(values) @ centred / (centred @ centred))
