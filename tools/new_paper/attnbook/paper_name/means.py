"""The paper as a library. Replace this: numbers whose means the chapter looks at."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from attnbook.core.rng import stream

__all__ = ["draw_numbers"]


def draw_numbers(n_numbers: int, n_means: int, seed: int) -> Float[np.ndarray, "means numbers"]:
    """Draw standard normal numbers, a row for each mean.

    Args:
        n_numbers: Numbers in each mean, at least 1.
        n_means: Number of means, at least 1.
        seed: Of the draws.

    Returns:
        The numbers.

    Raises:
        ValueError: If a number is outside its range.
    """
    if n_numbers < 1 or n_means < 1:
        raise ValueError(f"n_numbers, n_means: expected at least 1, got {n_numbers} and {n_means}")
    return stream(seed, "means", n_numbers).standard_normal((n_means, n_numbers))
