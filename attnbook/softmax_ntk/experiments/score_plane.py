"""Score learning in the plane: three modes, early stopping again, and samples of a network trained by Adam."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core import runtime
from attnbook.core.results import Clock, Measurement, Result
from attnbook.core.resuming import check_seeds, seed_by_seed
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress
from attnbook.softmax_ntk.experiments.runs import place, ratio_over_seeds
from attnbook.softmax_ntk.experiments.score_tasks import IN_THE_PLANE, KernelMachine, ScoreTask
from attnbook.softmax_ntk.reverse_sde import sample
from attnbook.softmax_ntk.score_matching import diffuse
from attnbook.softmax_ntk.two_layer import Networks

__all__ = ["ScorePlane", "Settings", "run"]

# Particles whose places are kept for the picture.
SHOWN = 500


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment.

    Attributes:
        n_samples: Training points with noisy labels, of the kernel machine.
        width: Its neurons.
        scale: Standard deviation of its initial weights.
        last: Its last step.
        per_decade: Recorded steps per factor of ten.
        n_test: Fresh points on which errors are measured.
        adam_width: Neurons of the network trained by Adam on fresh noise.
        adam_scale: Standard deviation of its initial weights.
        batch: Fresh samples per iteration.
        iterations: Iterations of Adam.
        step_size: Its first step size, falling linearly to zero.
        n_particles: Particles of the backward process.
        n_sde_steps: Its steps.
        seeds: Seeds of data, weights and noise.
        chunk: Seeds kept together.
    """

    n_samples: int = 400
    width: int = 1024
    scale: float = 3.0
    last: int = 10_000_000
    per_decade: int = 6
    n_test: int = 1000
    adam_width: int = 512
    adam_scale: float = 4.0
    batch: int = 512
    iterations: int = 600
    step_size: float = 1e-2
    n_particles: int = 600
    n_sde_steps: int = 100
    seeds: tuple[int, ...] = (0,)
    chunk: int = 1

    def __post_init__(self) -> None:
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(
            n_samples=23, width=32, last=1000, per_decade=2, n_test=31, adam_width=16, batch=16, iterations=10,
            n_particles=20, n_sde_steps=10, seeds=(0, 1),
        )  # fmt: skip

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return the full size of this book's experiment; the paper has none."""
        return cls(
            per_decade=8, n_test=2000, iterations=4000, n_particles=2000, n_sde_steps=150, seeds=(0, 1, 2)
        )  # fmt: skip

    @property
    def steps(self) -> tuple[int, ...]:
        """Recorded steps of the kernel machine."""
        count = round(self.per_decade * np.log10(self.last)) + 1
        return tuple(sorted(set(np.round(np.geomspace(1, self.last, count)).astype(int).tolist())))


@dataclass(frozen=True)
class ScorePlane(Result):
    r"""Errors and samples in the plane, ``(seeds, ...)`` unless stated.

    Attributes:
        error: Error $E\|f-f_*\|^2$ of the kernel machine at the recorded steps.
        train_loss: Its mean squared residual on the noisy labels.
        signal: $E\|f_*\|^2$ on the test points.
        adam_error: Error of the network trained by Adam.
        shares: Share of samples nearest to each mode, for the data at the first time and the network's samples,
            ``(seeds, 2, modes)``.
        spread: Root mean square distance of a sample from its nearest mode (of the diffused data), ``(seeds, 2)``.
        points: Some of these points, first seed, ``(2, points, 2)``.
    """

    experiment: ClassVar[str] = "softmax_ntk.score_plane"
    settings_type: ClassVar[type] = Settings
    digits: ClassVar[int | None] = 6

    error: Float[np.ndarray, "seeds steps"]
    train_loss: Float[np.ndarray, "seeds steps"]
    signal: Float[np.ndarray, " seeds"]
    adam_error: Float[np.ndarray, " seeds"]
    shares: Float[np.ndarray, "seeds 2 modes"]
    spread: Float[np.ndarray, "seeds 2"]
    points: Float[np.ndarray, "2 points 2"]

    def measurements(self) -> dict[str, Measurement]:
        """Return how far the error rises in the plane, by claim id."""
        best, last = self.error.min(axis=1), self.error[:, -1]
        return {"SN-6.ES-2d": ratio_over_seeds("late_over_best_error", last, best)}


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> ScorePlane:
    """Train kernel machines on noisy labels, and networks by Adam on fresh noise; draw samples with the latter.

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

    def measure(seed: int) -> dict[str, np.ndarray]:
        return _machine(settings, seed, where) | _network(settings, seed, where)

    with runtime.threads(1):
        arrays = seed_by_seed(settings, measure, clock=clock, workdir=workdir, progress=progress)
    points = arrays.pop("points")[0]
    return ScorePlane(settings=settings, provenance=clock.provenance(where), points=points, **arrays)


def _machine(s: Settings, seed: int, device: torch.device) -> dict[str, np.ndarray]:
    task = IN_THE_PLANE
    drawn, test = (task.draw(n, rng=stream(seed, name)) for n, name in ((s.n_samples, "train"), (s.n_test, "test")))
    start, truth = task.start(s.width, s.scale, seed=seed, device=device), task.true_labels(test).T
    machine = KernelMachine(start, task.inputs(drawn.times, drawn.points, start.signs))
    labels = to_tensor(drawn.clean.T.reshape(1, -1), device=device, dtype=torch.float64)
    coefficients = machine.after(labels, s.steps)
    predicted = machine.predict(coefficients, task.inputs(test.times, test.points, start.signs)).cpu().numpy()
    fitted = machine.predict(coefficients).cpu().numpy()
    return {
        "error": ((predicted - truth) ** 2).sum(axis=1).mean(axis=1),
        "train_loss": ((fitted - drawn.clean.T) ** 2).sum(axis=1).mean(axis=1),
        "signal": (truth**2).sum(axis=0).mean(),
    }


def _network(s: Settings, seed: int, device: torch.device) -> dict[str, np.ndarray]:
    task, first = IN_THE_PLANE, IN_THE_PLANE.schedule.first
    start = task.start(s.adam_width, s.adam_scale, seed=seed, device=device, dtype=torch.float32)
    trained = task.train_on_fresh_noise(
        start, batch=s.batch, iterations=s.iterations, step_size=s.step_size, rng=stream(seed, "fresh noise")
    )
    rng = stream(seed, "particles")
    made = _draw(task, trained, s, rng)
    real = diffuse(task.mixture.draw(s.n_particles, rng=rng), np.full(s.n_particles, first), rng=rng,
                   schedule=task.schedule)  # fmt: skip
    test = task.draw(s.n_test, rng=stream(seed, "test"))
    modes = task.schedule.signal(first) * np.array(task.mixture.means)
    distances = [np.linalg.norm(x[:, None] - modes, axis=2) for x in (real, made)]
    return {
        "adam_error": ((task.answers(trained, test) - task.true_labels(test)) ** 2).sum(axis=1).mean(),
        "shares": np.array([np.bincount(d.argmin(axis=1), minlength=len(modes)) / len(d) for d in distances]),
        "spread": np.array([np.sqrt((d.min(axis=1) ** 2).mean()) for d in distances]),
        "points": np.stack([real[:SHOWN], made[:SHOWN]]),
    }


def _draw(task: ScoreTask, trained: Networks, s: Settings, rng: np.random.Generator) -> np.ndarray:
    return sample(
        task.network(trained), s.n_particles, dimension=2, rng=rng, schedule=task.schedule, n_steps=s.n_sde_steps
    )[0]
