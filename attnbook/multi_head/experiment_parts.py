"""What the experiments of several chapters share: cells of a grid, slopes on log axes, and random networks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import xarray as xr

from attnbook.core.experiment import Arrays, Experiment
from attnbook.core.runtime import Progress
from attnbook.multi_head.checks import increasing
from attnbook.multi_head.network import random_networks

__all__ = ["Gridded", "random_networks", "slope"]


@dataclass(frozen=True, kw_only=True)
class Gridded(Experiment):
    """Base of experiments with settings that list the entries along a dimension, in increasing order.

    Attributes:
        axes: Names of dimensions, to the settings that list their entries.
        labels: Names of further dimensions, to their entries.
        falling: Settings among ``axes`` that need not increase.
    """

    axes: ClassVar[Mapping[str, str]] = {}
    labels: ClassVar[Mapping[str, Sequence[Any]]] = {}
    falling: ClassVar[Sequence[str]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        increasing(-math.inf, **{name: getattr(self, name) for name in self.axes.values() if name not in self.falling})

    def coordinates(self) -> dict[str, Any]:
        """Return what the entries along a dimension stand for."""
        listed = {axis: getattr(self, name) for axis, name in self.axes.items()} | dict(self.labels)
        return {axis: list(entries) for axis, entries in listed.items()}

    def grid(
        self,
        axes: Sequence[str],
        of: Callable[..., Arrays],
        *,
        also: Mapping[str, Sequence[Any]] | None = None,
        progress: Progress | None = None,
    ) -> Arrays:
        """Return what a function of one entry along each of some dimensions measures in every cell of their grid.

        The function gives arrays of the same names and shapes for all cells; the dimensions of the grid come before
        their own. Entries along dimensions that are no coordinates, such as ``seed``, are in ``also``.
        """
        at = [{**self.coordinates(), **(also or {})}[name] for name in axes]
        cells, found = list(itertools.product(*at)), []
        for number, cell in enumerate(cells, 1):
            found.append(of(*cell))
            if progress:
                progress(number, len(cells))
        return {
            name: ((*axes, *dims), np.reshape([one[name][1] for one in found], (*map(len, at), *np.shape(first))))
            for name, (dims, first) in found[0].items()
        }

    def stated(self, axes: Sequence[str], of: Callable[..., float]) -> xr.DataArray:
        """Return a quantity of theory, a function of one entry along each of some dimensions, in every cell."""
        _, values = self.grid(axes, lambda *cell: {"stated": ((), of(*cell))})["stated"]
        return xr.DataArray(values, {name: self.coordinates()[name] for name in axes})


def slope(values: xr.DataArray, along: str = "heads") -> xr.DataArray:
    """Return the least-squares slope along a dimension, on log axes; NaN where a value is not positive."""
    x = values[along].copy(data=np.log(values[along].astype(float)))
    x = x - x.mean()
    y = values.copy(data=np.log(values.where(values > 0)))
    return (y * x).sum(along, skipna=False) / (x**2).sum()
