"""Sizes of the experiment on networks beside their kernel machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from jaxtyping import Float

from attnbook.core.resuming import check_seeds
from attnbook.softmax_ntk.data import draw_sample
from attnbook.softmax_ntk.kernels import Activation
from attnbook.softmax_ntk.two_layer import Start

__all__ = ["SMOOTH", "STARTS", "Settings"]

STARTS: tuple[Start, ...] = ("paired", "independent")
SMOOTH: tuple[Activation, ...] = ("softmax", "exp")


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment.

    Attributes:
        n_samples: Number of samples.
        n_inputs: Number of inputs.
        n_outputs: Number of outputs.
        n_points: Unseen inputs at which predictions are compared.
        steps: Number of steps, all of which are compared.
        record: Steps at which the kernels are computed, for the drifts.
        widths: Numbers of neurons, increasing and even.
        light_scale: Standard deviation of light initial weights, for which no neuron dominates; the others have 1.
        light_widths: Numbers of neurons of softmax and exp networks with light weights.
        curve_width: Width of the loss curves that are compared, one of ``widths``.
        curve_floor: Loss over its first value down to which they are compared.
        linear_width: Width of the linearised networks that are trained step by step.
        linear_steps: Number of their steps.
        shown_widths: Widths in the picture of predictions, some of ``widths``.
        times: Steps in that picture.
        n_angles: Even angles of that picture, along the circle through two samples; that of the second sample is added.
        seeds: Seeds of data and weights; the picture shows the first.
        chunk: Seeds trained together.
    """

    n_samples: int = 16
    n_inputs: int = 8
    n_outputs: int = 2
    n_points: int = 64
    steps: int = 300
    record: tuple[int, ...] = (0, 1, 2, 3, 5, 8, 13, 20, 32, 50, 80, 130, 200, 300)
    widths: tuple[int, ...] = (64, 128, 256, 512, 1024)
    light_scale: float = 0.3
    light_widths: tuple[int, ...] = (64, 128, 256, 512)
    curve_width: int = 512
    curve_floor: float = 1e-4
    linear_width: int = 64
    linear_steps: int = 100
    shown_widths: tuple[int, ...] = (64, 256, 1024)
    times: tuple[int, ...] = (1, 3, 10, 30, 300)
    n_angles: int = 73
    seeds: tuple[int, ...] = tuple(range(5))
    chunk: int = 5

    def __post_init__(self) -> None:
        for name in ("widths", "light_widths"):
            widths = getattr(self, name)
            if len(widths) < 2 or sorted(set(widths)) != list(widths):
                raise ValueError(f"{name}: expected at least two increasing numbers, got {widths}")
        for name in ("shown_widths", "curve_width"):
            chosen = np.atleast_1d(getattr(self, name)).tolist()
            if not chosen or not set(chosen) <= set(self.widths):
                raise ValueError(f"{name}: expected some of widths {self.widths}, got {getattr(self, name)}")
        for name in ("record", "times"):
            steps = getattr(self, name)
            if not steps or sorted(set(steps)) != list(steps) or not 0 <= steps[0] <= steps[-1] <= self.steps:
                raise ValueError(f"{name}: expected increasing steps up to steps = {self.steps}, got {steps}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(
            n_samples=5, n_inputs=7, n_points=3, steps=20, record=(0, 5, 20), widths=(16, 32), light_widths=(16, 32),
            curve_width=32, linear_width=16, linear_steps=5, shown_widths=(16,), times=(1, 20), n_angles=13,
            seeds=(0, 1), chunk=1,
        )  # fmt: skip

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a larger run of this book's experiment; the paper has none."""
        return cls(widths=(*cls.widths, 2048, 4096), light_widths=(*cls.light_widths, 1024), seeds=tuple(range(10)))

    @property
    def angles(self) -> Float[np.ndarray, " angles"]:
        """Angles of the picture, with that of the second sample; at 0 stands the first sample of the first seed."""
        return np.union1d(np.linspace(0, 2 * np.pi, self.n_angles), [self._two_samples()[2]])

    def circle(self) -> tuple[Float[np.ndarray, "angles inputs"], float, Float[np.ndarray, " 2"]]:
        """Return the circle through two samples of the first seed, the angle of the second, and their first labels."""
        first, across, angle, labels = self._two_samples()
        points = np.outer(np.cos(self.angles), first) + np.outer(np.sin(self.angles), across)
        return points, angle, labels

    def _two_samples(self) -> tuple[np.ndarray, np.ndarray, float, np.ndarray]:
        """First sample, unit vector across in the plane of both, angle of the second, labels."""
        sample = draw_sample(self.n_samples, self.n_inputs, self.n_outputs, seed=self.seeds[0])
        first, second = sample.inputs[:2]
        across = second - (first @ second) * first
        across /= np.linalg.norm(across)
        return first, across, float(np.arccos(first @ second)), sample.labels[0, :2]
