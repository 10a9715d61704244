"""What do the pairs of the symmetric start buy? Kernel drift at equal residual for three starts.

This book's experiment. A network that does not start at zero fits its initial output plus the labels, so that all
starts have the same residual to remove; fitting the labels themselves would mix in the initial output, which grows with
the width.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self, get_args

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core import runtime
from attnbook.core.results import Clock, Measurement, Result
from attnbook.core.resuming import by_seeds, check_seeds, concatenate
from attnbook.core.runtime import Progress
from attnbook.softmax_ntk.experiments.runs import ACTIVATIONS, Problem, place, slopes, train
from attnbook.softmax_ntk.kernels import Activation
from attnbook.softmax_ntk.two_layer import Start

__all__ = ["STARTS", "Settings", "Starts", "run"]

STARTS: tuple[Start, ...] = get_args(Start)
SMOOTH: tuple[Activation, ...] = ("softmax", "exp")


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment.

    Attributes:
        n_samples: Number of samples.
        n_inputs: Number of inputs.
        widths: Numbers of neurons, increasing and even.
        light_scale: Standard deviation of light initial weights, for which no neuron dominates; the others have 1.
        light_widths: Numbers of neurons of softmax and exp networks with light weights.
        target: Fraction of the first loss to stop at.
        max_steps: Steps after which to give up.
        seeds: Seeds of data and weights.
        chunk: Seeds trained together.
    """

    n_samples: int = 16
    n_inputs: int = 16
    widths: tuple[int, ...] = (128, 256, 512, 1024, 2048)
    light_scale: float = 0.3
    light_widths: tuple[int, ...] = (128, 256, 512, 1024)
    target: float = 1e-3
    max_steps: int = 3000
    seeds: tuple[int, ...] = tuple(range(20))
    chunk: int = 5

    def __post_init__(self) -> None:
        for name in ("widths", "light_widths"):
            widths = getattr(self, name)
            if len(widths) < 2 or sorted(set(widths)) != list(widths):
                raise ValueError(f"{name}: expected at least two increasing numbers, got {widths}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(
            n_samples=5, n_inputs=7, target=0.1, max_steps=100,
            widths=(16, 32, 64), light_widths=(16, 32), seeds=(0, 1), chunk=1,
        )  # fmt: skip

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a larger run of this book's experiment; the paper has none."""
        widths = (512, 1024, 2048, 4096, 8192, 16384)
        return cls(n_samples=64, n_inputs=64, widths=widths, light_widths=widths, chunk=1)


@dataclass(frozen=True)
class Starts(Result):
    """Drift of the kernel at equal residual.

    Attributes:
        drift: Relative drift, ``(seeds, widths, starts, networks)``.
        light_drift: The same with light weights, ``(seeds, light widths, starts, softmax and exp)``.
        initial_norm: Squared norm of the outputs before training, ``(seeds, widths, starts, networks)``.
    """

    experiment: ClassVar[str] = "softmax_ntk.starts"
    settings_type: ClassVar[type] = Settings

    drift: Float[np.ndarray, "seeds widths starts networks"]
    light_drift: Float[np.ndarray, "seeds light_widths starts smooth"]
    initial_norm: Float[np.ndarray, "seeds widths starts networks"]

    def of(self, start: Start, activation: Activation, *, light: bool = False) -> Float[np.ndarray, "seeds widths"]:
        """Return the drift of one start and one network, with weights of scale 1 or light ones."""
        drift = self.light_drift if light else self.drift
        return drift[:, :, STARTS.index(start), ACTIVATIONS.index(activation)]

    def measurements(self) -> dict[str, Measurement]:
        """Return the slopes of the drift, by claim id."""

        def of(activation: Activation, *which: Start, light: bool = False) -> Measurement:
            widths = self.settings.light_widths if light else self.settings.widths
            return slopes(widths, **{f"{activation}_{s}": self.of(s, activation, light=light) for s in which})

        light = [of(name, "paired", "independent", light=True) for name in SMOOTH]
        norm = self.initial_norm[:, :, STARTS.index("independent"), 0]
        return {
            "SN-UNP": of("softmax", "paired", "independent"),
            "SN-UNP-signs": of("softmax", "opposite_signs"),
            "SN-UNP-relu": of("relu", "paired", "independent"),
            "SN-UNP-norm": slopes(self.settings.widths, softmax=norm),
            "SN-UNP-light": Measurement(
                {k: v for m in light for k, v in m.values.items()},
                {k: v for m in light for k, v in m.spread.items()},
                len(norm),
            ),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> Starts:
    """Train networks from three starts.

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
        unit = [(1.0, m, start, a) for m in s.widths for start in STARTS for a in ACTIVATIONS]
        light = [(s.light_scale, m, start, a) for m in s.light_widths for start in STARTS for a in SMOOTH]
        drift, norm = [], []
        with runtime.threads(1):
            for done, (scale, width, start, activation) in enumerate(unit + light, 1):
                problem = Problem(activation, width, s.n_samples, s.n_inputs, scale=scale, start=start)
                trained = train(problem, seeds, device=where, max_steps=s.max_steps, target=s.target)
                drift.append(trained.drift())
                norm.append(trained.first_outputs().square().sum((1, 2)).cpu().double().numpy())
                if inner:
                    inner(done, len(unit + light))
        drifts, norms, count = np.stack(drift, axis=1), np.stack(norm, axis=1), len(unit)
        shape = (len(seeds), -1, len(STARTS))
        return {
            "drift": drifts[:, :count].reshape(*shape, len(ACTIVATIONS)),
            "light_drift": drifts[:, count:].reshape(*shape, len(SMOOTH)),
            "initial_norm": norms[:, :count].reshape(*shape, len(ACTIVATIONS)),
        }

    parts = by_seeds(s, part, clock=clock, workdir=workdir, progress=progress)
    arrays = concatenate(parts)
    return Starts(settings=s, provenance=clock.provenance(where), **arrays)
