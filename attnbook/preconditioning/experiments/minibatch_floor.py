r"""What minibatches do to a spectral start: the loss rises to a floor set by the number of keys per batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core import runtime
from attnbook.core.results import Clock, Measurement, Result, over_seeds
from attnbook.core.resuming import by_seeds, check_seeds, concatenate
from attnbook.core.runtime import Progress
from attnbook.preconditioning.data import Setup
from attnbook.preconditioning.experiments.curves import stage
from attnbook.preconditioning.training import Training, Variant, train_variants

__all__ = ["MinibatchFloor", "Settings", "run"]

# The batch sizes that the claims name.
NAMED = (50, 100, 200, 400)
# The one that is also trained with half the step size.
HALVED = 100


@dataclass(frozen=True)
class Settings:
    r"""Sizes of the experiment: the problem of the figures at condition number 10.

    Attributes:
        n_samples: Size $n$ of the data set.
        batch_sizes: Keys per batch, increasing; the claims name 50, 100, 200 and 400.
        step_size: Step size.
        steps: Number of steps.
        records: Losses recorded after the first, evenly spaced.
        seeds: Seeds of problem, data and batches.
        chunk: Seeds trained together as one program.
    """

    n_samples: int = 2000
    batch_sizes: tuple[int, ...] = NAMED
    step_size: float = 0.05
    steps: int = 300
    records: int = 30
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    chunk: int = 5

    def __post_init__(self) -> None:
        if set(NAMED) - set(self.batch_sizes) or list(self.batch_sizes) != sorted(set(self.batch_sizes)):
            raise ValueError(f"batch_sizes: expected increasing numbers, {NAMED} among them, got {self.batch_sizes}")
        if self.records < 3 or self.steps % self.records:
            raise ValueError(f"records: expected a divisor of steps {self.steps}, at least 3, got {self.records}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(n_samples=400, steps=6, records=6, seeds=(0, 1), chunk=1)

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return longer runs on more data; the paper has no such experiment."""
        return cls(n_samples=4000, batch_sizes=(*NAMED, 800), steps=1500, seeds=tuple(range(10)))

    def setup(self) -> Setup:
        """Return the sizes of the problem."""
        return Setup(
            dimension=5,
            n_outputs=8,
            condition_number=10.0,
            largest=0.4,
            smallest=0.2,
            noise=0.1,
            n_samples=self.n_samples,
        )

    @property
    def record_at(self) -> tuple[int, ...]:
        """Recorded steps."""
        return tuple(range(0, self.steps + 1, self.steps // self.records))


@dataclass(frozen=True)
class MinibatchFloor(Result):
    """Excess losses from the spectral start.

    Attributes:
        constant: With a constant step size, ``(batch_sizes, records, seeds)``.
        decayed: With a step size that falls to zero along a cosine; all batch sizes but the largest.
        halved: Batches of 100 with half the step size and twice the steps, ``(records, seeds)``.
    """

    experiment: ClassVar[str] = "preconditioning.minibatch_floor"
    settings_type: ClassVar[type] = Settings

    constant: Float[np.ndarray, "batch_sizes records seeds"]
    decayed: Float[np.ndarray, "smaller records seeds"]
    halved: Float[np.ndarray, "records seeds"]

    @property
    def initial(self) -> Float[np.ndarray, " seeds"]:
        """Excess of the spectral start."""
        return self.constant[0, 0]

    @property
    def floor(self) -> Float[np.ndarray, "batch_sizes seeds"]:
        """Mean over the last third of the records, at a constant step size."""
        return self.constant[:, -(self.settings.records // 3) :].mean(axis=1)

    @property
    def floor_halved(self) -> Float[np.ndarray, " seeds"]:
        """The same with half the step size, for batches of 100."""
        return self.halved[-(self.settings.records // 3) :].mean(axis=0)

    @property
    def decay_ratio(self) -> Float[np.ndarray, "smaller seeds"]:
        """Excess at the end of the decayed run over the floor."""
        return self.decayed[:, -1] / self.floor[:-1]

    def measurements(self) -> dict[str, Measurement]:
        """Return the floors beside the start, by claim id."""
        floors = {f"floor_{b}": self.floor[self.settings.batch_sizes.index(b)] for b in NAMED}
        lowest = self.floor[np.median(self.floor, axis=1).argmin()]
        return {
            "PC-X2": over_seeds(smallest_floor=lowest, initial_excess=self.initial),
            "PC-X2-batch": over_seeds(**floors),
            "PC-X2-bias": over_seeds(
                smallest_decayed_over_floor=self.decay_ratio[np.median(self.decay_ratio, axis=1).argmin()],
                halved_over_floor=self.floor_halved / self.floor[self.settings.batch_sizes.index(HALVED)],
            ),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> MinibatchFloor:
    """Train from the spectral start with batches of several sizes.

    Args:
        settings: Sizes, batch sizes and seeds.
        device: Where to train; default the first of cuda, mps and cpu.
        progress: Told (steps done, steps in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available or a batch is larger than the data set.
    """
    clock, where = Clock(), runtime.device(device)

    def train(seeds: tuple[int, ...], inner: Progress | None) -> dict[str, np.ndarray]:
        trainings = [Training(settings.steps, size, settings.record_at) for size in settings.batch_sizes]
        trainings += [replace(training, decay=True) for training in trainings[:-1]]
        twice = tuple(2 * step for step in settings.record_at)
        trainings.append(Training(2 * settings.steps, HALVED, twice))
        found = []
        for number, training in enumerate(trainings):
            step_size = settings.step_size * settings.steps / training.steps
            variants = [Variant(step_size, "two", 1.0, "spectral")]
            told = stage(inner, number, len(trainings))
            history = train_variants(variants, seeds, settings.setup(), training, device=where, progress=told)
            found.append(history.records["excess_loss"])
        constant = len(settings.batch_sizes)
        return {"constant": np.stack(found[:constant]), "decayed": np.stack(found[constant:-1]), "halved": found[-1]}

    parts = by_seeds(settings, train, clock=clock, workdir=workdir, progress=progress)
    return MinibatchFloor(settings=settings, provenance=clock.provenance(where), **concatenate(parts, axis=-1))
