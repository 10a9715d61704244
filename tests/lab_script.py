"""The script of a made-up chapter, for the tests of experiments."""

import os
import time
from pathlib import Path

import numpy as np
import xarray as xr
from pydantic import PositiveFloat, PositiveInt

from attnbook.lab import Increasing, Seeds, experiment, highest, lowest, sweep


@experiment("toy.walk", group=2, smoke={"steps": 3}, full={"steps": 50})
def walk(
    seeds: Seeds = (0, 1, 2, 3, 4),
    scales: Increasing = (1.0, 2.0),  # of the noise
    steps: PositiveInt = 7,  #: of each walk
    rate: PositiveFloat = 0.5,
    trouble: str = "",  # a file; the third seed makes it and comes to grief, once
) -> xr.Dataset:
    """Walk at random.

    From zero.
    """
    if trouble and 2 in seeds and not Path(trouble).exists():
        Path(trouble).touch()
        if trouble.endswith("kill"):
            os.kill(os.getpid(), 9)
        raise KeyboardInterrupt

    def one(seed: int, scale: float) -> dict:
        path = scale * rate * np.random.default_rng(seed).standard_normal(steps).cumsum()
        return {"path": ("step", path), "end": path[-1]}

    return sweep(one, seed=seeds, scale=scales)


@walk.measures
def _(data: xr.Dataset) -> dict:
    end = data.end.sel(scale=1)
    twice = {"TOY-twice": {"ratio": data.end.sel(scale=2) / end}} if 2 in data.settings["scales"] else {}
    return {"TOY-end": {"end": end, "low": lowest(data.path), "high": highest(data.path)}, **twice}


@experiment("toy.still", smoke={})
def still(seeds: Seeds = (0,), wait: float = 0.0) -> xr.Dataset:
    """Stay."""
    time.sleep(wait)
    return sweep(lambda seed: {"x": 0.0}, seed=seeds)
