"""The paper as a library. Replace this: how far the mean of normal numbers is from zero."""

from __future__ import annotations

import numpy as np

from attnbook.core.rng import stream

__all__ = ["mean_errors"]


def mean_errors(n_samples: int, n_repeats: int, seed: int) -> np.ndarray:
    """Return how far means of standard normal numbers are from zero.

    Args:
        n_samples: Numbers in each mean, at least 1.
        n_repeats: Number of means.
        seed: Of the draws.

    Returns:
        Distances, ``(n_repeats,)``.

    Raises:
        ValueError: If there are no numbers.
    """
    if n_samples < 1:
        raise ValueError(f"n_samples: expected at least 1, got {n_samples}")
    return np.abs(stream(seed, "means", n_samples).standard_normal((n_repeats, n_samples)).mean(axis=1))
