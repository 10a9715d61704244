r"""A picture of lazy training: five points on a circle, networks of growing width, and the kernel machine beside them.

Inputs are $(\cos\theta, \sin\theta, 1)/\sqrt2$. Without the constant coordinate the ReLU network could not fit every
pattern of labels. This book's experiment.
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
from attnbook.core.resuming import by_seeds, check_seeds
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress
from attnbook.softmax_ntk.data import Sample
from attnbook.softmax_ntk.experiments.runs import ACTIVATIONS, Problem, Run, place, slopes, train
from attnbook.softmax_ntk.ntk import kernel_gradient_flow, ntk_gram
from attnbook.softmax_ntk.two_layer import predict

__all__ = ["Circle", "Settings", "run"]


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment.

    Attributes:
        n_samples: Points on the circle.
        widths: Numbers of neurons, increasing and even.
        slope_from: Smallest width in the slope of the gap; at the narrowest not every network can fit.
        scale: Standard deviation of the initial weights.
        target: Fraction of the first loss to stop at.
        max_steps: Steps after which to give up.
        n_angles: Angles at which predictions are compared.
        shown: Neurons that the picture shows, at most.
        seeds: Seeds of data and weights; others than those of the trial in which the claim was formed.
        chunk: Seeds trained together; the picture shows the first seed.
    """

    n_samples: int = 5
    widths: tuple[int, ...] = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
    slope_from: int = 8
    scale: float = 1.5
    target: float = 1e-3
    max_steps: int = 3000
    n_angles: int = 121
    shown: int = 64
    seeds: tuple[int, ...] = tuple(range(10, 20))
    chunk: int = 10

    def __post_init__(self) -> None:
        if sorted(set(self.widths)) != list(self.widths):
            raise ValueError(f"widths: expected increasing numbers, got {self.widths}")
        if sum(m >= self.slope_from for m in self.widths) < 2:
            raise ValueError(f"slope_from: expected at least two widths from there on, got {self.slope_from}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(widths=(8, 16), target=0.1, max_steps=100, n_angles=13, seeds=(0, 1), chunk=1)

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a larger run of this book's experiment; the paper has none."""
        return cls(widths=(*cls.widths, 2048, 4096, 8192), seeds=tuple(range(10, 30)), chunk=5)

    @property
    def angles(self) -> Float[np.ndarray, " angles"]:
        """Angles at which predictions are compared."""
        return np.linspace(0, 2 * np.pi, self.n_angles)

    def draw(self, seed: int) -> tuple[Float[np.ndarray, " samples"], Sample]:
        """Return the angles of the training points of a seed, near a regular polygon, and the training set."""
        rng = stream(seed, "circle", self.n_samples)
        angles = (np.arange(self.n_samples) + rng.uniform(0.2, 0.8, self.n_samples)) * 2 * np.pi / self.n_samples
        return angles, Sample(on_circle(angles), rng.uniform(-1, 1, (1, self.n_samples)))


@dataclass(frozen=True)
class Circle(Result):
    r"""Movements, drifts and gaps of all seeds, ``(seeds, widths, networks)``, and the picture of the first.

    Attributes:
        movement: Root mean square movement of the neurons.
        drift: Relative drift of the kernel.
        gap: Largest distance of the network's prediction from the kernel machine's after the same steps.
        steps: Steps to the target.
        reached: 1 where the target was reached, else 0.
        points: Angles of the training points, ``(samples,)``.
        labels: Their labels, ``(samples,)``.
        before: First two weights of the shown neurons before training, ``(networks, widths, shown, 2)``; where there
            are fewer, the last repeats.
        after: The same after training.
        network: Predictions of the trained networks, ``(networks, widths, angles)``.
        machine: Predictions of the kernel machines.
        kernel_before: Kernels before training, ``(networks, widths, samples, samples)``.
        kernel_after: Kernels after training.
    """

    experiment: ClassVar[str] = "softmax_ntk.circle"
    settings_type: ClassVar[type] = Settings

    movement: Float[np.ndarray, "seeds widths networks"]
    drift: Float[np.ndarray, "seeds widths networks"]
    gap: Float[np.ndarray, "seeds widths networks"]
    steps: Float[np.ndarray, "seeds widths networks"]
    reached: Float[np.ndarray, "seeds widths networks"]
    points: Float[np.ndarray, " samples"]
    labels: Float[np.ndarray, " samples"]
    before: Float[np.ndarray, "networks widths shown 2"]
    after: Float[np.ndarray, "networks widths shown 2"]
    network: Float[np.ndarray, "networks widths angles"]
    machine: Float[np.ndarray, "networks widths angles"]
    kernel_before: Float[np.ndarray, "networks widths samples samples"]
    kernel_after: Float[np.ndarray, "networks widths samples samples"]

    def measurements(self) -> dict[str, Measurement]:
        """Return how fast the gap to the kernel machine closes, by claim id."""
        widths = [m for m in self.settings.widths if m >= self.settings.slope_from]
        gaps = {name: self.gap[:, -len(widths) :, j] for j, name in enumerate(ACTIVATIONS)}
        return {"SN-LAZY-prediction": slopes(widths, **gaps)}


def on_circle(angles: Float[np.ndarray, " points"]) -> Float[np.ndarray, "points 3"]:
    """Return the inputs of these angles, of unit norm and with a constant coordinate."""
    return np.stack([np.cos(angles), np.sin(angles), np.ones_like(angles)], axis=1) / np.sqrt(2)


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> Circle:
    """Train networks of all widths on the circle, and the kernel machines beside them.

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
        groups = [(width, activation) for width in s.widths for activation in ACTIVATIONS]
        samples, found = [s.draw(seed)[1] for seed in seeds], []
        with runtime.threads(1):
            for done, (width, activation) in enumerate(groups, 1):
                problem = Problem(activation, width, s.n_samples, 3, scale=s.scale)
                trained = train(problem, seeds, device=where, max_steps=s.max_steps, target=s.target, samples=samples)
                found.append(_statistics(trained, s))
                if inner:
                    inner(done, len(groups))
        shape = (len(s.widths), len(ACTIVATIONS))
        stacked = {name: np.stack([f[name] for f in found]) for name in found[0]}
        return {
            name: np.moveaxis(v.reshape(*shape, *v.shape[1:]), (0, 1), (2, 1) if name in PICTURE else (1, 2))
            for name, v in stacked.items()
        }

    parts = by_seeds(s, part, clock=clock, workdir=workdir, progress=progress)
    numbers = {n: np.concatenate([p[n] for p in parts]) for n in parts[0] if n not in PICTURE}
    picture = {n: parts[0][n][0] for n in PICTURE}
    points, sample = s.draw(s.seeds[0])
    return Circle(
        settings=s, provenance=clock.provenance(where), points=points, labels=sample.labels[0], **numbers, **picture
    )


PICTURE = ("before", "after", "network", "machine", "kernel_before", "kernel_after")


def _statistics(run: Run, s: Settings) -> dict[str, np.ndarray]:
    trained, n_seeds = run.descent.networks, len(run.inputs)
    everywhere = to_tensor(on_circle(s.angles), device=run.inputs.device, dtype=run.inputs.dtype)
    grid = everywhere.expand(n_seeds, -1, -1)
    cross, labels = ntk_gram(run.start, grid, run.inputs), run.labels.flatten(1)
    machine = torch.stack(
        [
            kernel_gradient_flow(k, y, float(eta) * run.start.width, [int(t)], cross=c)[0]
            for k, y, eta, t, c in zip(run.kernel, labels, run.step_size, run.descent.steps, cross, strict=True)
        ]
    )
    network = predict(trained, grid)[:, 0]
    shown = [min(i, run.start.width - 1) for i in range(s.shown)]
    tensors = {
        "gap": (network - machine).abs().amax(1),
        "before": run.start.first_layer[:, :2, shown].mT,
        "after": trained.first_layer[:, :2, shown].mT,
        "network": network,
        "machine": machine,
        "kernel_before": run.kernel,
        "kernel_after": ntk_gram(trained, run.inputs),
    }
    return {name: tensor.cpu().double().numpy() for name, tensor in tensors.items()} | {
        "movement": np.sqrt((run.movement() ** 2).mean(axis=1)),
        "drift": run.drift(),
        "steps": run.descent.steps.astype(float),
        "reached": run.descent.reached.astype(float),
    }
