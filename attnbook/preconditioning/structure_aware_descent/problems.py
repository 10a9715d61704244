"""What the experiments of the chapter share: two problems, how variants are trained on one, how results are stacked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr

from attnbook.core.experiment import Arrays, Experiment
from attnbook.core.runtime import Progress
from attnbook.preconditioning.curves import NEAR, stage
from attnbook.preconditioning.data import Setup
from attnbook.preconditioning.training import Training, Variant, train_variants

PAIRS = ("condition_numbers", "largest", "noise", "steps", "n_samples", "step_sizes")  # an entry for each problem


@dataclass(frozen=True, kw_only=True)
class TwoProblems(Experiment):
    """Two problems on which several ways to train are compared."""

    dimension: int = 5  # inputs d
    n_outputs: int = 8  # outputs m
    n_samples: int | tuple[int, ...] = 1000  # size n of the data set; one for both problems, or one for each
    batch_size: int = 100  # samples per minibatch, drawn without replacement
    condition_numbers: tuple[float, ...] = (3.0, 10.0)  # of the covariance, an entry for each problem, as below
    largest: tuple[float, ...] = (0.06, 0.4)  # singular value of the map on whitened inputs; the smallest is half of it
    noise: tuple[float, ...] = (0.02, 0.1)  # standard deviation of the label noise
    steps: tuple[int, ...]  # of training
    records: int  # losses recorded after the first, evenly spaced

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, each in vars(self).items():
            if name in PAIRS and isinstance(each, tuple) and len(each) != 2:
                raise ValueError(f"{name}: expected an entry for each of two problems, got {each}")
        check_records(self.records, self.steps)

    def setup(self, problem: int) -> Setup:
        """Return the sizes of one problem."""
        n_samples = self.n_samples if isinstance(self.n_samples, int) else self.n_samples[problem]
        largest = self.largest[problem]
        return Setup(self.dimension, self.n_outputs, self.condition_numbers[problem], largest, largest / 2,
                     self.noise[problem], n_samples)  # fmt: skip

    def coordinates(self) -> dict[str, Any]:
        """Name problems and steps."""
        steps = np.array([np.linspace(0, length, self.records + 1) for length in self.steps])
        return {"kappa": ("problem", list(self.condition_numbers)), "step": (("problem", "record"), steps)}


def check_records(records: int, steps: Sequence[int]) -> None:
    """Refuse a number of records that does not divide the steps of every problem."""
    if records < 1 or any(length % records for length in steps):
        raise ValueError(f"records: expected a positive divisor of steps {steps}, got {records}")


def train(
    variants: Sequence[Variant],
    seeds: tuple[int, ...],
    setup: Setup,
    device: torch.device,
    progress: Progress | None,
    *,
    steps: int,
    records: int,
    batch_size: int,
    **options: Any,
) -> dict[str, np.ndarray]:
    """Return what training recorded, evenly spaced, each ``(records + 1, variants, seeds, ...)``."""
    training = Training(steps, batch_size, tuple(range(0, steps + 1, steps // records)), **options)
    found = train_variants(variants, seeds, setup, training, device=device, progress=progress).records
    return {name: v.reshape(records + 1, len(variants), len(seeds), *v.shape[2:]) for name, v in found.items()}


def near_at(ratios: xr.DataArray, steps: xr.DataArray) -> xr.DataArray:
    """Return the first recorded step at which $L/L^*$ is near-optimal; infinite where it never is."""
    return steps.where(ratios <= NEAR, np.inf).min("record")


def stacked(
    axis: str, entries: Iterable[Any], simulate: Callable[[Any, Progress | None], Arrays], progress: Progress | None
) -> Arrays:
    """Return what was simulated for each entry, along a new first axis."""
    entries, found = list(entries), []
    for number, entry in enumerate(entries):
        inner = stage(progress, number, len(entries))
        found.append(simulate(entry, inner))
        if inner:
            inner(1, 1)
    return {name: ((axis, *dims), np.stack([one[name][1] for one in found])) for name, (dims, _) in found[0].items()}
