r"""Score learning from noisy labels: early stopping, and the decomposition of the error into four.

A two-layer softmax network is trained by gradient descent on the noisy labels $x_0$; beside it stands gradient descent
on its kernel at the start. The paper has no experiments; this one is the book's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core import runtime
from attnbook.core.results import Clock, Measurement, Result, over_seeds
from attnbook.core.resuming import check_seeds, seed_by_seed
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress
from attnbook.softmax_ntk.descent import gradient_descent
from attnbook.softmax_ntk.experiments.runs import over_runs, place
from attnbook.softmax_ntk.experiments.score_baselines import four_terms, gap_of_one_heap, linear_answers
from attnbook.softmax_ntk.experiments.score_tasks import ON_A_LINE, KernelMachine, sample_quality
from attnbook.softmax_ntk.linearised import change_of_weights
from attnbook.softmax_ntk.reverse_sde import Denoiser
from attnbook.softmax_ntk.score_matching import NoisySample
from attnbook.softmax_ntk.two_layer import Networks, predict

__all__ = ["SAMPLERS", "ScoreLearning", "Settings", "run"]

SAMPLERS = ("network", "best", "late")


@dataclass(frozen=True)
class Settings:
    r"""Sizes of the experiment.

    Attributes:
        n_samples: Training points with noisy labels.
        width: Neurons.
        scale: Standard deviation of the initial weights; large, since it is the bandwidth of the kernel.
        checkpoints: Steps at which network and kernel machine are compared; the network stops at the last.
        late: Steps of the kernel machine that trains far too long for its error; its samples are looked at too.
        last: Last step of the kernel machine.
        per_decade: Recorded steps per factor of ten.
        n_test: Fresh points on which errors are measured.
        class_factor: Fresh points, in units of ``n_samples``, whose true labels define the function of the class.
        ridge: Ridge of that fit, added to the kernel's diagonal.
        n_particles: Particles of the backward process.
        n_sde_steps: Its steps.
        n_grid: Points of the line on which learned denoisers are kept.
        grid_times: Times at which they are kept.
        n_frames: Times at which the particles of the first seed are kept.
        seeds: Seeds of data, weights and noise.
        chunk: Seeds kept together.
    """

    n_samples: int = 400
    width: int = 1024
    scale: float = 3.0
    checkpoints: tuple[int, ...] = (1, 5, 20, 50, 100, 200, 300, 400, 500)
    late: int = 1_000_000
    last: int = 10_000_000
    per_decade: int = 8
    n_test: int = 2000
    class_factor: int = 3
    ridge: float = 1e-4
    n_particles: int = 2000
    n_sde_steps: int = 150
    n_grid: int = 101
    grid_times: tuple[float, ...] = (0.1, 0.3, 0.8)
    n_frames: int = 11
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    chunk: int = 1

    def __post_init__(self) -> None:
        steps = [*self.checkpoints, self.late, self.last]
        if sorted(set(steps)) != steps:
            raise ValueError(f"checkpoints, late, last: expected increasing steps, got {steps}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(
            n_samples=23, width=32, checkpoints=(1, 5, 20), late=1000, last=10_000, per_decade=2, n_test=31,
            n_particles=50, n_sde_steps=20, n_grid=11, n_frames=3, seeds=(0, 1),
        )  # fmt: skip

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a larger run of this book's experiment; the paper has none."""
        return cls(n_samples=1600, width=4096, n_test=10_000, n_particles=10_000, seeds=tuple(range(10)))

    @property
    def steps(self) -> tuple[int, ...]:
        """Recorded steps of the kernel machine."""
        count = round(self.per_decade * np.log10(self.last)) + 1
        spaced = np.round(np.geomspace(1, self.last, count)).astype(int).tolist()
        return tuple(sorted({*spaced, *self.checkpoints, self.late}))

    @property
    def frames(self) -> tuple[int, ...]:
        """Steps of the backward process at which particles are kept."""
        return tuple(np.unique(np.round(np.linspace(0, self.n_sde_steps, self.n_frames)).astype(int)).tolist())


@dataclass(frozen=True)
class ScoreLearning(Result):
    r"""Errors, terms of the decomposition and samples, ``(seeds, ...)`` unless stated.

    Attributes:
        error: Error $E\|f-f_*\|^2$ of the kernel machine on fresh points, the weighted score error, at all steps.
        train_loss: Its mean squared residual on the noisy labels.
        network_error: Error of the network at the checkpoints.
        coupling: Mean squared distance of network and machine at the checkpoints.
        terms: Coupling, label mismatch, early stopping and approximation at the last checkpoint, ``(seeds, 4)``.
        signal: $E\|f_*\|^2$ on the test points.
        linear_error: Error of the best linear denoiser and of one fitted to the noisy labels, ``(seeds, 2)``.
        train_noise: Mean of $\|x_0-f_*\|^2$ on the training points: the loss of the true labels.
        wasserstein: Distance of samples from the data at the first time, ``(seeds, samplers)``.
        gap: Share of samples between the modes, ``(seeds, samplers)``.
        histogram: Histograms of samples, ``(seeds, samplers, bins)``.
        curves: Denoisers of the first seed at ``grid_times``: truth, network, late machine, ``(3, times, grid)``.
        drawn: Training points of the first seed: time, noisy point, label, ``(3, samples)``.
        history: Histograms of the network's particles on their way, first seed, ``(frames, bins)``.
    """

    experiment: ClassVar[str] = "softmax_ntk.score_learning"
    settings_type: ClassVar[type] = Settings
    digits: ClassVar[int | None] = 6

    error: Float[np.ndarray, "seeds steps"]
    train_loss: Float[np.ndarray, "seeds steps"]
    network_error: Float[np.ndarray, "seeds checkpoints"]
    coupling: Float[np.ndarray, "seeds checkpoints"]
    terms: Float[np.ndarray, "seeds 4"]
    signal: Float[np.ndarray, " seeds"]
    linear_error: Float[np.ndarray, "seeds 2"]
    train_noise: Float[np.ndarray, " seeds"]
    wasserstein: Float[np.ndarray, "seeds samplers"]
    gap: Float[np.ndarray, "seeds samplers"]
    histogram: Float[np.ndarray, "seeds samplers bins"]
    curves: Float[np.ndarray, "3 times grid"]
    drawn: Float[np.ndarray, "3 samples"]
    history: Float[np.ndarray, "frames bins"]

    def best_step(self) -> Float[np.ndarray, " seeds"]:
        """Return the number of steps with the smallest error, per seed."""
        return np.array(self.settings.steps, dtype=float)[self.error.argmin(axis=1)]

    def measurements(self) -> dict[str, Measurement]:
        """Return errors, terms and sample quality, by claim id."""
        s, n = self.settings, len(self.settings.seeds)
        each = np.arange(n), self.error.argmin(axis=1)
        best_error, total = self.error[each], self.network_error[:, -1]
        fallen = self.train_loss[each] - self.train_loss[:, -1]
        steps = self.best_step()
        rise = over_runs(n, np.min, min_late_over_best_error=self.error[:, -1] / best_error, min_loss_decrease=fallen)
        late = self.error[:, s.steps.index(s.late)]
        w = self.wasserstein
        return {
            "SN-6.FIT": over_seeds(relative_error=total / self.signal),
            "SN-6.FIT-line": over_seeds(
                relative_error=total / self.signal, relative_error_linear=self.linear_error[:, 0] / self.signal
            ),
            "SN-6.ES": rise,
            "SN-6.ES-step": Measurement(
                {"min_best_step": float(steps.min()), "max_best_step": float(steps.max())}, n_seeds=n
            ),
            "SN-6.Z": over_runs(n, np.min, min_bound_over_total=4 * self.terms.sum(axis=1) / total),
            "SN-6.Z-order": over_runs(n, np.min, min_share_early_stopping=self.terms[:, 2] / self.terms.sum(axis=1)),
            "SN-6.Z-coupling": over_runs(n, np.max, max_coupling_error=self.terms[:, 0]),
            "SN-6.Z-mismatch": over_runs(n, np.max, max_label_mismatch=self.terms[:, 1]),
            "SN-6.CPL": over_runs(n, np.max, max_mean_square_gap=self.coupling),
            "SN-6.GEN": over_seeds(wasserstein_distance=w[:, 0], gap_fraction=self.gap[:, 0]),
            "SN-6.GEN-gap": over_runs(
                n, np.max, max_gap_fraction=self.gap[:, 0], gap_fraction_one_heap=np.full(n, gap_of_one_heap())
            ),
            "SN-6.STOP": over_seeds(
                error_best=best_error, error_late=late, wasserstein_best=w[:, 1], wasserstein_late=w[:, 2]
            ),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> ScoreLearning:
    """Train networks and kernel machines on noisy labels, split their errors and draw samples.

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
            settings, lambda seed: _learn(settings, seed, where), clock=clock, workdir=workdir, progress=progress
        )
    first = {name: arrays.pop(name)[0] for name in ("curves", "drawn", "history")}
    return ScoreLearning(settings=settings, provenance=clock.provenance(where), **arrays, **first)


def _learn(s: Settings, seed: int, device: torch.device) -> dict[str, np.ndarray]:
    task = ON_A_LINE
    drawn, test = (task.draw(n, rng=stream(seed, name)) for n, name in ((s.n_samples, "train"), (s.n_test, "test")))
    start = task.start(s.width, s.scale, seed=seed, device=device)
    inputs, points = (task.inputs(d.times, d.points, start.signs) for d in (drawn, test))
    labels = to_tensor(drawn.clean.T, device=device, dtype=torch.float64)
    machine = KernelMachine(start, inputs)
    coefficients = machine.after(labels, s.steps)
    predicted = machine.predict(coefficients, points)[:, 0].cpu().numpy()
    fitted = machine.predict(coefficients)[:, 0]
    truth = task.true_labels(test)[:, 0]
    networks = _descend(machine, labels, s.checkpoints)
    outputs = np.stack([predict(one, points)[0, 0].cpu().numpy() for one in networks])
    at = [s.steps.index(step) for step in s.checkpoints]
    error = ((predicted - truth) ** 2).mean(axis=1)
    numbers = {
        "error": error,
        "train_loss": (fitted - labels).square().mean(1).cpu().numpy(),
        "network_error": ((outputs - truth) ** 2).mean(axis=1),
        "coupling": ((outputs - predicted[at]) ** 2).mean(axis=1),
        "terms": four_terms(
            machine,
            drawn,
            test,
            outputs[-1],
            ridge=s.ridge,
            steps=s.checkpoints[-1],
            fresh=task.draw(s.class_factor * s.n_samples, rng=stream(seed, "function of the class")),
        ),
        "linear_error": ((linear_answers(drawn, test) - truth) ** 2).mean(axis=1),
        "train_noise": np.mean((drawn.clean - task.true_labels(drawn)) ** 2),
        "signal": np.mean(truth**2),
    }
    chosen = [int(error.argmin()), s.steps.index(s.late)]
    moved = torch.cat([change_of_weights(start, inputs, coefficients[i][:, None]) for i in chosen])
    best, late = task.linear(start, moved, np.union1d(task.times(s.n_sde_steps), s.grid_times))
    network = task.network(networks[-1])
    denoisers = {"network": task.table(networks[-1], s.n_sde_steps), "best": best, "late": late}
    return numbers | _samples(s, seed, denoisers) | _picture(s, drawn, (task.exact(), network, late))


def _descend(machine: KernelMachine, labels: Tensor, checkpoints: tuple[int, ...]) -> list[Networks]:
    """The network at each checkpoint of gradient descent, with the machine's step size."""
    found, now, before = [], machine.networks, 0
    for step in checkpoints:
        descent = gradient_descent(now, machine.inputs, labels[None], machine.step_size, max_steps=step - before)
        now, before = descent.networks, step
        found.append(now)
    return found


def _samples(s: Settings, seed: int, denoisers: dict[str, Denoiser]) -> dict[str, np.ndarray]:
    found = [
        sample_quality(
            ON_A_LINE, denoisers[name], count=s.n_particles, n_steps=s.n_sde_steps, rng=stream(seed, "samples"),
            keep=s.frames,
        )
        for name in SAMPLERS
    ]  # fmt: skip
    return {name: np.stack([f[name] for f in found]) for name in ("wasserstein", "gap", "histogram")} | {
        "history": found[0]["history"]
    }


def _picture(s: Settings, drawn: NoisySample, shown: Sequence[Denoiser]) -> dict[str, np.ndarray]:
    grid = np.linspace(-ON_A_LINE.radius, ON_A_LINE.radius, s.n_grid)[:, None]
    return {
        "curves": np.array([[denoiser(t, grid)[:, 0] for t in s.grid_times] for denoiser in shown]),
        "drawn": np.stack([drawn.times, drawn.points[:, 0], drawn.clean[:, 0]]),
    }
