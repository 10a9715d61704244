"""How many steps do more samples cost? The number of steps against the number of samples, beside the theorem's.

This book's experiment; the paper has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core import runtime
from attnbook.core.results import Clock, Measurement, Result
from attnbook.core.resuming import by_seeds, check_seeds, concatenate
from attnbook.core.runtime import Progress
from attnbook.softmax_ntk.experiments.runs import ACTIVATIONS, Problem, place, slope, train

__all__ = ["Samples", "Settings", "run"]


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment.

    Attributes:
        sizes: Numbers of samples, increasing.
        n_inputs: Number of inputs.
        width: Number of neurons.
        target: Fraction of the first loss to stop at.
        max_steps: Steps after which to give up.
        seeds: Seeds of data and weights.
        chunk: Seeds trained together.
    """

    sizes: tuple[int, ...] = (4, 8, 16, 32, 48)
    n_inputs: int = 16
    width: int = 1024
    target: float = 1e-3
    max_steps: int = 3000
    seeds: tuple[int, ...] = tuple(range(10))
    chunk: int = 10

    def __post_init__(self) -> None:
        if len(self.sizes) < 2 or sorted(set(self.sizes)) != list(self.sizes):
            raise ValueError(f"sizes: expected at least two increasing numbers, got {self.sizes}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(sizes=(2, 3, 5), n_inputs=7, width=32, max_steps=200, seeds=(0, 1), chunk=1)

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a larger run of this book's experiment; the paper has none."""
        return cls(sizes=(8, 16, 32, 64, 128, 192), n_inputs=64, width=8192, chunk=1)


@dataclass(frozen=True)
class Samples(Result):
    """Steps and eigenvalues, ``(seeds, sizes, networks)``.

    Attributes:
        steps: Steps to the target.
        smallest_eigenvalue: Smallest eigenvalue of the kernel at the start.
        largest_eigenvalue: Largest one.
    """

    experiment: ClassVar[str] = "softmax_ntk.samples"
    settings_type: ClassVar[type] = Settings

    steps: Float[np.ndarray, "seeds sizes networks"]
    smallest_eigenvalue: Float[np.ndarray, "seeds sizes networks"]
    largest_eigenvalue: Float[np.ndarray, "seeds sizes networks"]

    def measurements(self) -> dict[str, Measurement]:
        """Return the slopes of the mean number of steps, by claim id."""
        sizes, values, spread = self.settings.sizes, {}, {}
        for j, name in enumerate(ACTIVATIONS):
            each = [slope(sizes, row) for row in self.steps[:, :, j]]
            values[f"slope_of_means_{name}"] = slope(sizes, self.steps[:, :, j].mean(axis=0))
            spread[f"slope_of_means_{name}"] = (min(each), max(each))
        return {"SN-TN": Measurement(values, spread, len(self.steps))}


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> Samples:
    """Train networks on samples of several sizes.

    Args:
        settings: Sizes and seeds.
        device: Where to train; default the first of cuda, mps and cpu.
        progress: Told (groups of networks done, groups in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
    """
    clock, where, s = Clock(), place(device), settings

    def part(seeds: tuple[int, ...], inner: Progress | None) -> dict[str, np.ndarray]:
        groups = [Problem(a, s.width, n, s.n_inputs) for n in s.sizes for a in ACTIVATIONS]
        runs = []
        with runtime.threads(1):
            for done, problem in enumerate(groups, 1):
                runs.append(train(problem, seeds, device=where, max_steps=s.max_steps, target=s.target))
                if inner:
                    inner(done, len(groups))
        shape = (len(seeds), len(s.sizes), len(ACTIVATIONS))
        return {
            "steps": np.stack([r.descent.steps for r in runs], axis=1).reshape(shape).astype(float),
            "smallest_eigenvalue": np.stack([r.eigenvalues[:, 0] for r in runs], axis=1).reshape(shape),
            "largest_eigenvalue": np.stack([r.eigenvalues[:, -1] for r in runs], axis=1).reshape(shape),
        }

    parts = by_seeds(s, part, clock=clock, workdir=workdir, progress=progress)
    arrays = concatenate(parts)
    return Samples(settings=s, provenance=clock.provenance(where), **arrays)
