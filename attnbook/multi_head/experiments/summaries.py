"""Summaries of measured arrays whose first axis runs over seeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from attnbook.core.results import Measurement, over_seeds

__all__ = ["log_slopes", "means_over_seeds"]


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
