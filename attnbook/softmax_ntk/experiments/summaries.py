"""Slopes, ratios and ranges over seeds, under names that the rules of the ledger use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from attnbook.core.results import Measurement
from attnbook.softmax_ntk.experiments.runs import slope, slope_over_seeds

__all__ = ["extent", "range_of", "ratios", "slopes_named"]


def slopes_named(x: Sequence[float], **samples: np.ndarray) -> Measurement:
    """Return log-log slopes of the medians over seeds, with the range of single seeds.

    Args:
        x: Abscissae, ``(points,)``.
        **samples: Name to positive values, ``(seeds, points)``.

    Returns:
        The measurement.
    """
    found = {name: slope_over_seeds(x, values) for name, values in samples.items()}
    n_seeds = len(next(iter(samples.values())))
    return Measurement({k: v[0] for k, v in found.items()}, {k: v[1] for k, v in found.items()}, n_seeds)


def extent(name: str, x: Sequence[float], samples: Iterable[np.ndarray]) -> Measurement:
    """Return the smallest and the largest of several such slopes, with their ranges over seeds.

    Where a seed has zeros (a ReLU network of which no neuron switched) its own slope is that of its other points.

    Args:
        name: What follows ``min_`` and ``max_`` in the names of the values.
        x: Abscissae, ``(points,)``.
        samples: One array of positive values, ``(seeds, points)``, per slope.

    Returns:
        The measurement.
    """
    of_medians = np.array([slope_over_seeds(x, values)[0] for values in samples])
    of_seeds = np.array([[_slope_of_positive(np.asarray(x), row) for row in values] for values in samples])
    return Measurement(
        {f"min_{name}": float(of_medians.min()), f"max_{name}": float(of_medians.max())},
        {
            f"min_{name}": range_of(np.min(of_seeds, axis=0)),
            f"max_{name}": range_of(np.max(of_seeds, axis=0)),
        },
        of_seeds.shape[1],
    )


def ratios(**pairs: tuple[np.ndarray, np.ndarray]) -> Measurement:
    """Return ratios of medians over seeds, with their ranges seed by seed.

    Args:
        **pairs: Name to numerators and denominators, one of each per seed.

    Returns:
        The measurement.
    """
    return Measurement(
        {name: float(np.median(above) / np.median(below)) for name, (above, below) in pairs.items()},
        {name: range_of(above / below) for name, (above, below) in pairs.items()},
        len(next(iter(pairs.values()))[0]),
    )


def _slope_of_positive(x: np.ndarray, row: np.ndarray) -> float:
    moved = row > 0
    return slope(x[moved], row[moved]) if moved.sum() > 1 else slope(x, row)


def range_of(values: np.ndarray) -> tuple[float, float]:
    """Return the smallest and the largest number."""
    return float(values.min()), float(values.max())
