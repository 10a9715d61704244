"""The experiments of the chapter. Replace this one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr

from attnbook.core.experiment import Arrays, Experiment
from attnbook.core.runtime import Progress
from attnbook.paper_name.means import mean_errors

__all__ = ["First"]


@dataclass(frozen=True, kw_only=True)
class First(Experiment):
    """How far a mean is off, against how many numbers it is of."""

    id = "paper_name.first"
    summary = "How far a mean is off, against how many numbers it is of"
    needs = "cpu"  # what it draws; one that trains needs "any" device or one with "float64"
    smoke = {"n_repeats": 10, "seeds": (0, 1), "chunk": 1}

    sizes: tuple[int, ...] = (10, 30, 100, 300)  # numbers in a mean
    n_repeats: int = 200  # means of each size
    seeds: tuple[int, ...] = tuple(range(10))
    chunk: int = 10

    def coordinates(self) -> dict[str, Any]:
        """Name the sizes."""
        return {"size": list(self.sizes)}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Draw; what trains goes to the device, and tells how far it is."""
        errors = [[mean_errors(size, self.n_repeats, seed).mean() for seed in seeds] for size in self.sizes]
        if progress:
            progress(1, 1)
        return {"error": (("size", "seed"), np.array(errors))}

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off the slope between the smallest and the largest size, a value for each seed."""
        logs = np.log(data.error)
        fall = logs.isel(size=-1) - logs.isel(size=0)
        return {"XX-T1": {"slope": fall / np.log(self.sizes[-1] / self.sizes[0])}}
