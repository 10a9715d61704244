"""What the experiments, pictures and tables of the chapter read off data sets."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import xarray as xr

FITTED = (2**7, 2**12)  # numbers of samples that the slopes of the claims on strong signals are fitted to


def slope(values: xr.DataArray, along: str) -> xr.DataArray:
    """Return the slope against one dimension, on log axes."""
    logs = values.assign_coords({along: np.log(values[along])})
    return xr.DataArray(np.log(logs)).polyfit(along, 1).polyfit_coefficients.sel(degree=1, drop=True)


def fitted_slope(tails: xr.Dataset) -> xr.DataArray:
    """Return the slope over the range of samples that the claims name."""
    return slope(tails.bias.sel(n=slice(*FITTED)), "n")


def local_slopes(tails: xr.Dataset) -> xr.DataArray:
    """Return the slope of the bias between neighbouring numbers of samples, on log axes."""
    return np.log(tails.bias).diff("n") / np.log(tails.n).diff("n")


def pooled_path(data: xr.Dataset) -> xr.DataArray:
    """Return the excess along training over that of the start, both averaged over data sets and seeds."""
    path = data.path.mean("seed")
    return path / path.isel(step=0)


def floor(curves: xr.DataArray) -> xr.DataArray:
    """Return the mean over the last third of the records."""
    return curves.isel(step=slice(-((curves.sizes["step"] - 1) // 3), None)).mean("step")


def initial(batches: xr.Dataset) -> xr.DataArray:
    """Return the excess of the spectral start."""
    return batches.constant.isel(b=0, step=0)


def decay_ratio(batches: xr.Dataset) -> xr.DataArray:
    """Return the excess at the end of the decayed runs over the floor."""
    return batches.decayed.isel(step=-1).rename(decayed_b="b") / floor(batches.constant)


def lowest_median(values: xr.DataArray, along: str) -> xr.DataArray:
    """Return the values over seeds where their median is lowest."""
    return values.isel({along: values.median("seed").argmin(along)})


class Surface(NamedTuple):
    r"""Excess loss over numbers of samples and steps from the cold start; medians over problems."""

    name: str  # which gradient
    samples: np.ndarray  # increasing
    excess: np.ndarray  # by number of samples and step
    bias: float  # constant of the statistical error, bias times n to the minus power
    power: float


def surfaces(data: xr.Dataset, oracle: xr.Dataset) -> tuple[Surface, Surface]:
    """Return those of one data set and of the oracle, whose price of n squared pairs a step is nominal."""
    one, fresh = data.cold.median("seed"), oracle.surface.median("seed").isel(surface_n=slice(-1))
    return (
        Surface("one data set", data.n.values.astype(float), one.values, float(data.limit), 1.0),
        Surface("gradient oracle", fresh.surface_n.values, fresh.values, float(oracle.limit.median()), 2.0),
    )


def population(oracle: xr.Dataset) -> np.ndarray:
    """Return the excess along descent on the population loss from the cold start, the median over problems."""
    return oracle.surface.isel(surface_n=-1).median("seed").values


def over_the_sum(surface: Surface, oracle: xr.Dataset) -> np.ndarray:
    """Return curves over the sum of the population's and their own last value."""
    return surface.excess / (population(oracle)[: surface.excess.shape[1]] + surface.excess[:, -1:])


def late_decay(data: xr.Dataset, oracle: xr.Dataset) -> tuple[float, float]:
    """Return height and rate of the optimisation error: the end of the population's curve, carried back."""
    settings, curve = data.attrs["settings"], population(oracle)
    rate = -2 * float(np.log(1 - 2 * settings["cold_step_size"] * settings["smallest"]))
    return float(curve[-1] * np.exp(rate * (len(curve) - 1))), rate


class AlongBudget(NamedTuple):
    """Errors along the curve of equal compute, at the steps whose number of samples lies inside the surface."""

    steps: np.ndarray
    samples: np.ndarray
    excess: np.ndarray  # interpolated between numbers of samples on log axes

    @property
    def best(self) -> int:
        """Position of the smallest excess."""
        return int(self.excess.argmin())

    def penalty(self, factor: float) -> float:
        """Return how much larger the excess is with so many times the best steps; NaN outside the surface."""
        found = np.flatnonzero(self.steps == round(factor * self.steps[self.best]))
        return float(self.excess[found[0]] / self.excess[self.best]) if len(found) else float("nan")


def along_budget(surface: Surface, compute: float) -> AlongBudget:
    """Return the errors of all splits of a budget of so many pairs of samples that the surface covers."""
    counts, steps = surface.samples, np.arange(1, surface.excess.shape[1])
    samples = np.sqrt(compute / steps)
    inside = (samples >= counts[0] * (1 - 1e-12)) & (samples <= counts[-1] * (1 + 1e-12))
    if not inside.any():
        least, most = counts[0] ** 2, counts[-1] ** 2 * steps[-1]
        raise ValueError(f"compute: expected a budget between {least:.3g} and {most:.3g}, got {compute:.3g}")
    values = [np.exp(np.interp(np.log(n), np.log(counts), np.log(surface.excess[:, t])))
              for n, t in zip(samples[inside], steps[inside], strict=True)]  # fmt: skip
    return AlongBudget(steps[inside].astype(float), samples[inside], np.array(values))
