"""Experiments that train networks of many kinds, and slopes of what they give."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr

from attnbook.core.experiment import Arrays, Experiment
from attnbook.core.runtime import Progress, threads
from attnbook.softmax_ntk.kernels import Activation
from attnbook.softmax_ntk.training import Problem, Trained, double_device, train

__all__ = ["ROUNDING", "Sweep", "over", "slope"]

ROUNDING = 1e-16  # stands for zero on logarithmic axes


@dataclass(frozen=True, kw_only=True)
class Sweep(Experiment):
    """Sizes that such experiments share, with the book's as defaults."""

    n_samples: int = 16  # on unit spheres, inputs and labels
    n_inputs: int = 16  # as many as samples, so that all three kernels are well conditioned
    target: float = 1e-3  # part of the first loss to stop at
    max_steps: int = 3000  # after which to give up

    def axes(self) -> Mapping[str, Sequence[Any]]:
        """Return what is varied, by dimension."""
        raise NotImplementedError

    def coordinates(self) -> dict[str, Any]:
        """Name what is varied."""
        return {name: list(values) for name, values in self.axes().items()}

    def problem(self, activation: Activation, width: int, **others: Any) -> Problem:
        """Return what networks of one kind have in common."""
        return Problem(activation, width, self.n_samples, self.n_inputs, **others)

    def trained(self, problem: Problem, seeds: tuple[int, ...], device: torch.device, **others: Any) -> Trained:
        """Train one network for each seed."""
        options = {"max_steps": self.max_steps, "target": self.target} | others
        return train(problem, seeds, device=double_device(device), **options)


def over(
    names: Sequence[str],
    axes: Mapping[str, Sequence[Any]],
    one: Callable[..., dict[str, np.ndarray]],
    seeds: tuple[int, ...],
    progress: Progress | None,
    rest: tuple[str, ...] = (),
) -> Arrays:
    """Call a function for every combination of values, and name the dimensions of what it gives.

    Args:
        names: Axes to go along, the last one fastest.
        axes: Their values.
        one: Called with one value of each; returns arrays whose first axis runs over the seeds.
        seeds: The seeds of the group.
        progress: Told (combinations done, combinations in all); may be None.
        rest: Names of further axes of the arrays, in order.

    Returns:
        Each array with the dimensions ``seed``, ``names`` and those of ``rest`` that it has.
    """
    groups, found = list(itertools.product(*(axes[name] for name in names))), []
    with threads(1):
        for done, group in enumerate(groups, 1):
            found.append(one(*group))
            if progress:
                progress(done, len(groups))
    shape = (len(seeds), *(len(axes[name]) for name in names))
    stacked = {name: np.stack([f[name] for f in found], axis=1) for name in found[0]}
    return {
        name: (("seed", *names, *rest[: v.ndim - 2]), v.reshape(*shape, *v.shape[2:])) for name, v in stacked.items()
    }


def slope(values: xr.DataArray, dimension: str) -> xr.DataArray:
    """Return the slope of a line on log axes; zeros count as the smallest rounding error.

    Args:
        values: Not negative.
        dimension: Along which, with positive coordinates.

    Returns:
        One slope for each index of the other dimensions.
    """
    logs = xr.DataArray(np.log(values.clip(min=ROUNDING))).assign_coords(
        {dimension: np.log(values[dimension].astype(float))}
    )
    return logs.polyfit(dimension, 1).polyfit_coefficients.sel(degree=1, drop=True)
