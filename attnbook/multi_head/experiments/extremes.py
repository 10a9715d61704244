"""Measurements that are extremes: a bound must hold everywhere, so the worst value decides."""

from __future__ import annotations

import numpy as np

from attnbook.core.results import Measurement

__all__ = ["extremes"]


def extremes(**values: np.ndarray) -> Measurement:
    """Return the largest of each name over everything, or the smallest if the name begins with that word.

    Args:
        **values: Name to values, the first axis over seeds.

    Returns:
        The extremes, with the range over seeds of each seed's own.

    Example:
        >>> extremes(largest_ratio=np.array([[0.1, 0.3], [0.2, 0.1]])).spread
        {'largest_ratio': (0.2, 0.3)}
    """
    of = {name: np.min if name.startswith("smallest") else np.max for name in values}
    per_seed = {name: of[name](array.reshape(len(array), -1), axis=1) for name, array in values.items()}
    found = {name: float(of[name](array)) for name, array in per_seed.items()}
    spread = {name: (float(array.min()), float(array.max())) for name, array in per_seed.items()}
    return Measurement(found, spread, len(next(iter(per_seed.values()))))
