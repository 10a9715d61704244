"""What experiments share: networks of many kinds, arrays side by side, and slopes of what they give."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnbook.core.experiment import Arrays, Experiment, stacked
from attnbook.core.runtime import Progress, threads
from attnbook.softmax_ntk.kernels import Activation
from attnbook.softmax_ntk.training import Problem, Trained, train
from attnbook.softmax_ntk.two_layer import Networks

__all__ = ["ROUNDING", "Sweep", "each", "measured_exponent", "over", "slope"]

ROUNDING = 1e-16  # stands for zero on logarithmic axes


@dataclass(frozen=True, kw_only=True)
class Sweep(Experiment):
    """Sizes that experiments on training share, with the book's as defaults."""

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
        return train(problem, seeds, device=device, **({"max_steps": self.max_steps, "target": self.target} | others))


def each(values: Iterable[Any], dimension: str, one: Callable[[Any], Arrays], progress: Progress | None) -> Arrays:
    """Return what a function gives for every value, seeds for example, side by side along a new first dimension."""
    chosen, found = list(values), []
    with threads(1):
        for done, value in enumerate(chosen, 1):
            found.append(one(value))
            if progress:
                progress(done, len(chosen))
    return stacked(dimension, found)


def over(
    names: Sequence[str],
    axes: Mapping[str, Sequence[Any]],
    one: Callable[..., dict[str, np.ndarray]],
    seeds: tuple[int, ...],
    progress: Progress | None,
    rest: tuple[str, ...] = (),
) -> Arrays:
    """Return what a function gives for every combination of values, the last name fastest: ``seed``, names, rest.

    The function is called with one value of each; the first axis of what it returns runs over the seeds.
    """
    groups, found = list(itertools.product(*(axes[name] for name in names))), []
    with threads(1):
        for done, group in enumerate(groups, 1):
            found.append(one(*group))
            if progress:
                progress(done, len(groups))
    shape = (len(seeds), *(len(axes[name]) for name in names))
    joined = {name: np.stack([f[name] for f in found], axis=1) for name in found[0]}
    return {
        name: (("seed", *names, *rest[: v.ndim - 2]), v.reshape(*shape, *v.shape[2:])) for name, v in joined.items()
    }


def slope(values: xr.DataArray, dimension: str) -> xr.DataArray:
    """Return the slope of a line on log axes along a dimension; NaN where a value is not positive."""
    logs = xr.DataArray(np.log(values.where(values > 0)))
    logs = logs.assign_coords({dimension: np.log(values[dimension].astype(float))})
    return logs.polyfit(dimension, 1, skipna=False).polyfit_coefficients.sel(degree=1, drop=True)


def measured_exponent(networks: Networks, inputs: Tensor) -> np.ndarray:
    """Return the measured B of each network: the largest size of a logit, at least 1."""
    return torch.bmm(inputs, networks.first_layer).abs().amax((1, 2)).clamp(min=1.0).cpu().numpy()
