r"""When to stop? Error and sample quality of the kernel machine against the number of steps.

The stopping time that is best for the weighted error need not be the best for samples. This book's experiment, on
other seeds than those on which that was first looked at.
"""

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
from attnbook.softmax_ntk.experiments.runs import place
from attnbook.softmax_ntk.experiments.score_tasks import ON_A_LINE, KernelMachine, sample_quality
from attnbook.softmax_ntk.linearised import change_of_weights

__all__ = ["ScoreStopping", "Settings", "run"]


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment.

    Attributes:
        n_samples: Training points with noisy labels.
        width: Neurons.
        scale: Standard deviation of the initial weights.
        per_decade: Recorded steps per factor of ten.
        sampled_per_decade: How many of them are sampled with; divides ``per_decade``.
        decades: Factors of ten between the first step and the last.
        longer: How many times longer than best the late machine trains.
        early: Bounds of time between which an error counts as one at small times.
        n_test: Fresh points on which errors are measured.
        n_particles: Particles of the backward process.
        n_sde_steps: Its steps.
        seeds: Seeds of data, weights and noise.
        chunk: Seeds kept together.
    """

    n_samples: int = 400
    width: int = 1024
    scale: float = 3.0
    per_decade: int = 8
    sampled_per_decade: int = 1
    decades: int = 7
    longer: int = 1000
    early: tuple[float, float] = (0.05, 0.2)
    n_test: int = 2000
    n_particles: int = 2000
    n_sde_steps: int = 150
    seeds: tuple[int, ...] = tuple(range(20, 30))
    chunk: int = 1

    def __post_init__(self) -> None:
        if self.per_decade % self.sampled_per_decade:
            wrong = f"got {self.sampled_per_decade} and {self.per_decade}"
            raise ValueError(f"sampled_per_decade: expected a divisor of per_decade, {wrong}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(
            n_samples=23, width=32, per_decade=2, sampled_per_decade=1, decades=3, longer=10, n_test=31, n_particles=50,
            n_sde_steps=20, seeds=(0, 1),
        )  # fmt: skip

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a larger run of this book's experiment; the paper has none."""
        return cls(
            n_samples=1600, width=4096, sampled_per_decade=4, n_test=10_000, n_particles=10_000,
            seeds=tuple(range(20, 40)),
        )  # fmt: skip

    @property
    def steps(self) -> tuple[int, ...]:
        """Recorded steps, evenly spaced on a log axis."""
        powers = np.arange(self.decades * self.per_decade + 1) / self.per_decade
        return tuple(np.round(10**powers).astype(int).tolist())

    @property
    def sampled(self) -> tuple[int, ...]:
        """Those of them at which samples are drawn for every seed."""
        return self.steps[:: self.per_decade // self.sampled_per_decade]


@dataclass(frozen=True)
class ScoreStopping(Result):
    r"""Errors and sample quality along the training, ``(seeds, ...)``.

    Attributes:
        error: Error $E\|f-f_*\|^2$ on fresh points at the recorded steps.
        early_error: The same for points at small times only.
        wasserstein: Distance of samples from the data at the first time, at the sampled steps.
        gap: Share of samples between the modes, at the sampled steps.
        wasserstein_best: The distance at the step with the smallest error, ``(seeds,)``.
        wasserstein_longer: The same after many times more steps, ``(seeds,)``.
        error_longer: The error there, ``(seeds,)``.
    """

    experiment: ClassVar[str] = "softmax_ntk.score_stopping"
    settings_type: ClassVar[type] = Settings
    digits: ClassVar[int | None] = 6

    error: Float[np.ndarray, "seeds steps"]
    early_error: Float[np.ndarray, "seeds steps"]
    wasserstein: Float[np.ndarray, "seeds sampled"]
    gap: Float[np.ndarray, "seeds sampled"]
    wasserstein_best: Float[np.ndarray, " seeds"]
    wasserstein_longer: Float[np.ndarray, " seeds"]
    error_longer: Float[np.ndarray, " seeds"]

    def measurements(self) -> dict[str, Measurement]:
        """Return error and sample quality at the best step and long after it, by claim id."""
        return {
            "SN-6.STOP-longer": over_seeds(
                error_best=self.error.min(axis=1),
                error_longer=self.error_longer,
                wasserstein_best=self.wasserstein_best,
                wasserstein_longer=self.wasserstein_longer,
            )
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> ScoreStopping:
    """Train kernel machines, and draw samples after many numbers of steps.

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
    return ScoreStopping(settings=settings, provenance=clock.provenance(where), **arrays)


def _measure(s: Settings, seed: int, device: torch.device) -> dict[str, np.ndarray]:
    task = ON_A_LINE
    drawn, test = (task.draw(n, rng=stream(seed, name)) for n, name in ((s.n_samples, "train"), (s.n_test, "test")))
    start = task.start(s.width, s.scale, seed=seed, device=device)
    inputs, points = (task.inputs(d.times, d.points, start.signs) for d in (drawn, test))
    machine = KernelMachine(start, inputs)
    labels = to_tensor(drawn.clean.T, device=device, dtype=torch.float64)
    coefficients = machine.after(labels, s.steps)
    squares = (machine.predict(coefficients, points)[:, 0].cpu().numpy() - task.true_labels(test)[:, 0]) ** 2
    error, early = squares.mean(axis=1), (test.times >= s.early[0]) & (test.times <= s.early[1])
    best = int(error.argmin())
    longer = machine.after(labels, [s.longer * s.steps[best]])
    chosen = torch.cat([coefficients[:: s.per_decade // s.sampled_per_decade], coefficients[best : best + 1], longer])
    moved = torch.cat([change_of_weights(start, inputs, one[:, None]) for one in chosen])
    quality = [
        sample_quality(task, denoiser, count=s.n_particles, n_steps=s.n_sde_steps, rng=stream(seed, "samples"))
        for denoiser in task.linear(start, moved, task.times(s.n_sde_steps))
    ]
    distances, gaps = (np.array([q[name] for q in quality]) for name in ("wasserstein", "gap"))
    late = machine.predict(longer, points)[0, 0].cpu().numpy()
    return {
        "error": error,
        "early_error": squares[:, early].mean(axis=1),
        "wasserstein": distances[:-2],
        "gap": gaps[:-2],
        "wasserstein_best": distances[-2],
        "wasserstein_longer": distances[-1],
        "error_longer": np.mean((late - task.true_labels(test)[:, 0]) ** 2),
    }
