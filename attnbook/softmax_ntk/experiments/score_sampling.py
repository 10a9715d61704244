"""Sampling on the line: true score, none, a network trained by Adam on fresh noise, best linear denoiser.

The samples of networks trained on a fixed sample belong to :mod:`attnbook.softmax_ntk.experiments.score_learning`.
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
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress
from attnbook.softmax_ntk.experiments.runs import over_runs, place
from attnbook.softmax_ntk.experiments.score_baselines import best_linear, best_linear_factor
from attnbook.softmax_ntk.experiments.score_tasks import ON_A_LINE, sample_quality

__all__ = ["SAMPLERS", "ScoreSampling", "Settings", "run"]

SAMPLERS = ("exact", "zero", "adam", "linear")


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment.

    Attributes:
        width: Neurons of the network trained by Adam.
        scale: Standard deviation of its initial weights.
        batch: Fresh samples per iteration.
        iterations: Iterations of Adam.
        step_size: Its first step size, falling linearly to zero.
        n_test: Fresh points on which its error is measured.
        n_particles: Particles of the backward process.
        n_sde_steps: Its steps.
        n_frames: Times at which the particles of the first seed are kept.
        seeds: Seeds of weights, data and noise.
        chunk: Seeds kept together.
    """

    width: int = 512
    scale: float = 3.0
    batch: int = 512
    iterations: int = 1500
    step_size: float = 1e-2
    n_test: int = 2000
    n_particles: int = 2000
    n_sde_steps: int = 150
    n_frames: int = 11
    seeds: tuple[int, ...] = (0, 1, 2)
    chunk: int = 1

    def __post_init__(self) -> None:
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(width=16, batch=16, iterations=10, n_test=31, n_particles=50, n_sde_steps=20, n_frames=3,
                   seeds=(0, 1))  # fmt: skip

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a larger run of this book's experiment; the paper has none."""
        return cls(
            width=2048, iterations=6000, n_test=10_000, n_particles=10_000, n_sde_steps=400, seeds=tuple(range(5))
        )

    @property
    def frames(self) -> tuple[int, ...]:
        """Steps of the backward process at which particles are kept."""
        return tuple(np.unique(np.round(np.linspace(0, self.n_sde_steps, self.n_frames)).astype(int)).tolist())


@dataclass(frozen=True)
class ScoreSampling(Result):
    r"""Sample quality with the exact denoiser, one that always answers zero, the network's and the best linear one.

    Attributes:
        wasserstein: Distance of samples from the data at the first time, ``(seeds, samplers)``.
        gap: Share of samples between the modes, ``(seeds, samplers)``.
        ideal_gap: The same share in the data at the first time.
        error: Error $E\|f-f_*\|^2$ of the network on fresh points, ``(seeds,)``.
        linear_error: Error of the best linear denoiser there, ``(seeds,)``.
        signal: $E\|f_*\|^2$ there, ``(seeds,)``.
        histogram: Histograms of samples, ``(seeds, samplers, bins)``.
        history: Histograms of particles on their way, first seed, ``(samplers, frames, bins)``.
        paths: Some of these particles, ``(samplers, frames, particles)``.
    """

    experiment: ClassVar[str] = "softmax_ntk.score_sampling"
    settings_type: ClassVar[type] = Settings
    digits: ClassVar[int | None] = 6

    wasserstein: Float[np.ndarray, "seeds samplers"]
    gap: Float[np.ndarray, "seeds samplers"]
    ideal_gap: Float[np.ndarray, " seeds"]
    error: Float[np.ndarray, " seeds"]
    linear_error: Float[np.ndarray, " seeds"]
    signal: Float[np.ndarray, " seeds"]
    histogram: Float[np.ndarray, "seeds samplers bins"]
    history: Float[np.ndarray, "samplers frames bins"]
    paths: Float[np.ndarray, "samplers frames particles"]

    def measurements(self) -> dict[str, Measurement]:
        """Return the quality of samples, by claim id."""
        exact, adam = (
            over_seeds(wasserstein_distance=self.wasserstein[:, i], gap_fraction=self.gap[:, i])
            for i in (SAMPLERS.index("exact"), SAMPLERS.index("adam"))
        )
        line = over_runs(
            len(self.error), np.max, max_error_over_linear=self.error / self.linear_error,
            max_gap_over_linear=self.gap[:, SAMPLERS.index("adam")] / self.gap[:, SAMPLERS.index("linear")],
        )  # fmt: skip
        return {"SN-6.SDE": exact, "SN-6.GEN-adam": adam, "SN-6.FIT-adam": line}


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> ScoreSampling:
    """Train one network per seed by Adam and draw samples with four scores.

    Args:
        settings: Sizes and seeds.
        device: Where to train; default the first of cuda, mps and cpu.
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
    first = {name: arrays.pop(name)[0] for name in ("history", "paths")}
    return ScoreSampling(settings=settings, provenance=clock.provenance(where), **arrays, **first)


def _measure(s: Settings, seed: int, device: torch.device) -> dict[str, np.ndarray]:
    task = ON_A_LINE
    start = task.start(s.width, s.scale, seed=seed, device=device, dtype=torch.float32)
    trained = task.train_on_fresh_noise(
        start, batch=s.batch, iterations=s.iterations, step_size=s.step_size, rng=stream(seed, "fresh noise")
    )
    test = task.draw(s.n_test, rng=stream(seed, "test"))
    truth = task.true_labels(test)
    answers = task.answers(trained, test)
    denoisers = {
        "exact": task.exact(),
        "zero": lambda _, x: np.zeros_like(x),
        "adam": task.table(trained, s.n_sde_steps),
        "linear": best_linear(),
    }
    found = [
        sample_quality(
            task, denoisers[name], count=s.n_particles, n_steps=s.n_sde_steps, rng=stream(seed, "particles"),
            keep=s.frames,
        )
        for name in SAMPLERS
    ]  # fmt: skip
    return {name: np.stack([f[name] for f in found]) for name in found[0]} | {
        "ideal_gap": np.array(task.ideal_gap()),
        "error": ((answers - truth) ** 2).sum(axis=1).mean(),
        "linear_error": ((best_linear_factor(test.times)[:, None] * test.points - truth) ** 2).sum(axis=1).mean(),
        "signal": (truth**2).sum(axis=1).mean(),
    }
