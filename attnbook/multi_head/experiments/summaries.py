"""Summaries over seeds that the experiments on the number of heads share."""

from __future__ import annotations

import numpy as np

from attnbook.core.results import Measurement, over_seeds

__all__ = ["extremes", "means_over_seeds"]


def means_over_seeds(**samples: np.ndarray) -> Measurement:
    """Summarise one number per seed by the mean and the range.

    Args:
        **samples: Name to values over seeds.

    Returns:
        The measurement.

    Example:
        >>> means_over_seeds(loss=np.array([1.0, 2.0, 6.0])).values
        {'loss': 3.0}
    """
    found = over_seeds(**samples)
    return Measurement({name: float(np.mean(sample)) for name, sample in samples.items()}, found.spread, found.n_seeds)


def extremes(**samples: np.ndarray) -> Measurement:
    """Summarise arrays by the smallest or largest of all their entries, as the name says.

    Args:
        **samples: Name, which begins with ``smallest`` or ``largest``, to values with seeds on the first axis.

    Returns:
        The extremes, with the range over seeds of each seed's own.

    Example:
        >>> extremes(largest_ratio=np.array([[1.0, 2.0], [0.5, 0.1]])).spread
        {'largest_ratio': (0.5, 2.0)}
    """
    values, spread, seeds = {}, {}, 0
    for name, array in samples.items():
        of = np.min if name.startswith("smallest") else np.max
        each = of(array.reshape(len(array), -1), axis=1)
        values[name], spread[name], seeds = float(of(each)), (float(each.min()), float(each.max())), len(each)
    return Measurement(values, spread, seeds)
