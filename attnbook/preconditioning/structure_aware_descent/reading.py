"""What the experiments of the chapter read off their data sets."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import xarray as xr

from attnbook.preconditioning.curves import NEAR

__all__ = [
    "algorithm_1",
    "at_best_size",
    "best",
    "check_records",
    "choose",
    "fit",
    "log_slope",
    "near_at",
    "others",
    "worst",
]


def near_at(ratios: xr.DataArray, steps: xr.DataArray, level: float = NEAR) -> xr.DataArray:
    """Return the first recorded step at which $L/L^*$ is at most a level; infinite where it never is."""
    return steps.where(ratios <= level, np.inf).min("record")


def at_best_size(curves: xr.DataArray) -> xr.DataArray:
    """Keep each variant's curve at the step size with the lowest median final ratio."""
    return curves.isel(size=curves.isel(record=-1).median("seed").argmin("size"))


def algorithm_1(ends: xr.DataArray) -> xr.DataArray:
    """Return the variant with two-sided preconditioner and regulariser."""
    return ends.sel(penalty=1, kind="two")


def others(ends: xr.DataArray) -> xr.DataArray:
    """Return all variants, with Algorithm 1 infinitely bad."""
    return ends.where(~((ends.penalty == 1) & (ends.kind == "two")), np.inf)


def best(ends: xr.DataArray) -> xr.DataArray:
    """Return the values over seeds of the variant with the lowest median."""
    flat = ends.stack(variant=("penalty", "kind"))
    return flat.isel(variant=flat.median("seed").argmin("variant"))


def worst(ends: xr.DataArray) -> xr.DataArray:
    """Return the values over seeds of the variant with the highest median."""
    flat = ends.stack(variant=("penalty", "kind"))
    return flat.isel(variant=flat.median("seed").argmax("variant"))


def choose(aim: str, end: np.ndarray, time: np.ndarray, lost: np.ndarray) -> tuple[int, int]:
    """Return the positions of schedule and step size that tuning chooses among those that lose the fewest seeds.

    Where none of them comes near the optimum, the lowest is the fastest.
    """
    stable = lost == lost.min()
    scores = [np.where(stable, values, np.inf) for values in (time, end)]
    score = scores[0] if aim == "fastest" and np.isfinite(scores[0]).any() else scores[1]
    schedule, size = np.unravel_index(int(score.argmin()), score.shape)
    return int(schedule), int(size)


def fit(values: xr.DataArray, steps: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray]:
    """Fit lines to the logarithm over the second half of the records.

    Args:
        values: Losses or distances.
        steps: The recorded steps.

    Returns:
        Slopes per step and shares of the variance that the lines explain; infinite and 0 after a divergence.
    """
    late = slice(values.sizes["record"] // 2, None)
    times = steps.isel(record=late)
    times = times - times.mean("record")
    with np.errstate(invalid="ignore"):  # infinite losses have no slope
        logs = xr.apply_ufunc(np.log, values.isel(record=late))
        centred = logs - logs.mean("record", skipna=False)
        slopes = (times * centred).sum("record", skipna=False) / (times**2).sum("record")
        residual = ((centred - slopes * times) ** 2).sum("record", skipna=False)
        explained = 1 - residual / (centred**2).sum("record", skipna=False)
    return slopes.fillna(np.inf), explained.fillna(0.0)


def log_slope(values: xr.DataArray, along: str) -> xr.DataArray:
    """Return the slope on log axes along a dimension, for each seed; infinite where a value is."""
    rows = values.transpose("seed", along).values
    slopes = np.full(len(rows), np.inf)
    finite = np.isfinite(rows).all(axis=1)
    if finite.any():
        slopes[finite] = np.polyfit(np.log(values[along].values), np.log(rows[finite]).T, 1)[0]
    return xr.DataArray(slopes, dims="seed")


def check_records(records: int, steps: Iterable[int]) -> None:
    """Refuse a number of records that does not divide the steps of every problem."""
    steps = tuple(steps)
    if records < 1 or any(length % records for length in steps):
        raise ValueError(f"records: expected a positive divisor of steps {steps}, got {records}")
