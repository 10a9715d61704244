"""Does more data help? Best error, error at the end of long training, and best step against the sample size."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core import runtime
from attnbook.core.results import Clock, Measurement, Result, over_seeds
from attnbook.core.resuming import check_seeds, seed_by_seed
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress
from attnbook.softmax_ntk.experiments.runs import place, slope_over_seeds
from attnbook.softmax_ntk.experiments.score_tasks import ON_A_LINE, KernelMachine

__all__ = ["ScoreSizes", "Settings", "run"]


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment.

    Attributes:
        sizes: Numbers of training points, increasing, at least two.
        width: Neurons.
        scale: Standard deviation of the initial weights.
        last: Last step of the kernel machine, the end of long training.
        per_decade: Recorded steps per factor of ten.
        n_test: Fresh points on which errors are measured.
        seeds: Seeds of data and weights.
        chunk: Seeds kept together.
    """

    sizes: tuple[int, ...] = (50, 100, 200, 400, 800)
    width: int = 1024
    scale: float = 3.0
    last: int = 10_000_000
    per_decade: int = 8
    n_test: int = 2000
    seeds: tuple[int, ...] = (10, 11, 12, 13, 14, 15)
    chunk: int = 1

    def __post_init__(self) -> None:
        if len(self.sizes) < 2 or sorted(set(self.sizes)) != list(self.sizes):
            raise ValueError(f"sizes: expected at least two increasing numbers, got {self.sizes}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(sizes=(11, 23), width=32, last=1000, per_decade=2, n_test=31, seeds=(0, 1))

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a larger run of this book's experiment; the paper has none."""
        return cls(sizes=(50, 100, 200, 400, 800, 1600, 3200), width=4096, seeds=tuple(range(10, 20)))

    @property
    def steps(self) -> tuple[int, ...]:
        """Recorded steps."""
        count = round(self.per_decade * np.log10(self.last)) + 1
        return tuple(sorted(set(np.round(np.geomspace(1, self.last, count)).astype(int).tolist())))


@dataclass(frozen=True)
class ScoreSizes(Result):
    """Errors by sample size, ``(seeds, sizes)``.

    Attributes:
        best_error: Smallest error over all steps.
        end_error: Error after the last step.
        best_step: Step of the smallest error.
        rises: 1 where the error at the end is above the smallest by more than half, else 0.
        smallest_eigenvalue: Smallest eigenvalue of the kernel on the training points, as far as float64 resolves it.
    """

    experiment: ClassVar[str] = "softmax_ntk.score_sizes"
    settings_type: ClassVar[type] = Settings

    best_error: Float[np.ndarray, "seeds sizes"]
    end_error: Float[np.ndarray, "seeds sizes"]
    best_step: Float[np.ndarray, "seeds sizes"]
    rises: Float[np.ndarray, "seeds sizes"]
    smallest_eigenvalue: Float[np.ndarray, "seeds sizes"]

    def measurements(self) -> dict[str, Measurement]:
        """Return slopes against the sample size and best steps, by claim id."""
        sizes = self.settings.sizes
        best, end = (slope_over_seeds(sizes, errors) for errors in (self.best_error, self.end_error))
        n = len(self.best_error)
        steps = over_seeds(best_step_n50=self.best_step[:, 0], best_step_n800=self.best_step[:, -1])
        return {
            "SN-6.N": Measurement({"slope": best[0]}, {"slope": best[1]}, n),
            "SN-6.N-end": Measurement(
                {"slope_best": best[0], "slope_end": end[0]}, {"slope_best": best[1], "slope_end": end[1]}, n
            ),
            "SN-6.N-step": steps,
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> ScoreSizes:
    """Train kernel machines on samples of several sizes.

    Args:
        settings: Sizes and seeds.
        device: Where to compute; default the first of cuda, mps and cpu.
        progress: Told (seeds done, seeds in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
    """
    clock, where = Clock(), place(device)
    with runtime.threads(1):
        arrays = seed_by_seed(
            settings, lambda seed: _measure(settings, seed, where), clock=clock, workdir=workdir, progress=progress
        )
    return ScoreSizes(settings=settings, provenance=clock.provenance(where), **arrays)


def _measure(s: Settings, seed: int, device: torch.device) -> dict[str, np.ndarray]:
    task = ON_A_LINE
    start = task.start(s.width, s.scale, seed=seed, device=device)
    test = task.draw(s.n_test, rng=stream(seed, "test"))
    points, truth = task.inputs(test.times, test.points, start.signs), task.true_labels(test)[:, 0]
    found = []
    for size in s.sizes:
        drawn = task.draw(size, rng=stream(seed, "train", size))
        machine = KernelMachine(start, task.inputs(drawn.times, drawn.points, start.signs))
        labels = to_tensor(drawn.clean.T, device=device, dtype=torch.float64)
        predicted = machine.predict(machine.after(labels, s.steps), points)[:, 0].cpu().numpy()
        errors = ((predicted - truth) ** 2).mean(axis=1)
        best = int(errors.argmin())
        found.append((errors[best], errors[-1], s.steps[best], errors[-1] > 1.5 * errors[best], machine.smallest))
    names = ("best_error", "end_error", "best_step", "rises", "smallest_eigenvalue")
    return dict(zip(names, np.array(found, dtype=float).T, strict=True))
