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
from attnbook.core.resuming import by_seeds, check_seeds
from attnbook.core.runtime import Progress
from attnbook.softmax_ntk.experiments.runs import ACTIVATIONS, Problem, place, slope_over_seeds, train
from attnbook.softmax_ntk.models.two_layer import Start
from attnbook.softmax_ntk.theory.lazy_training import Activation

__all__ = ["STARTS", "Settings", "Starts", "run"]

STARTS: tuple[Start, ...] = get_args(Start)


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment.

    Attributes:
        n_samples: Number of samples.
        n_inputs: Number of inputs.
        widths: Numbers of neurons, increasing and even.
        target: Fraction of the first loss to stop at.
        max_steps: Steps after which to give up.
        seeds: Seeds of data and weights.
        chunk: Seeds trained together.
    """

    n_samples: int = 16
    n_inputs: int = 16
    widths: tuple[int, ...] = (128, 256, 512, 1024, 2048)
    target: float = 1e-3
    max_steps: int = 3000
    seeds: tuple[int, ...] = tuple(range(20))
    chunk: int = 20

    def __post_init__(self) -> None:
        if len(self.widths) < 2 or sorted(set(self.widths)) != list(self.widths):
            raise ValueError(f"widths: expected at least two increasing numbers, got {self.widths}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(n_samples=5, n_inputs=7, widths=(16, 32, 64), target=0.1, max_steps=100, seeds=(0, 1), chunk=1)

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a larger run of this book's experiment; the paper has none."""
        return cls(n_samples=64, n_inputs=64, widths=(512, 1024, 2048, 4096, 8192, 16384), chunk=1)


@dataclass(frozen=True)
class Starts(Result):
    """Drift of the kernel at equal residual.

    Attributes:
        drift: Relative drift, ``(seeds, widths, starts, networks)``.
        initial_norm: Squared norm of the outputs before training, ``(seeds, widths, starts, networks)``.
    """

    experiment: ClassVar[str] = "softmax_ntk.starts"
    settings_type: ClassVar[type] = Settings

    drift: Float[np.ndarray, "seeds widths starts networks"]
    initial_norm: Float[np.ndarray, "seeds widths starts networks"]

    def slope(self, start: Start, activation: Activation) -> tuple[float, tuple[float, float]]:
        """Return the log-log slope of the median drift against the width, and its range over single seeds."""
        drift = self.drift[:, :, STARTS.index(start), ACTIVATIONS.index(activation)]
        return slope_over_seeds(self.settings.widths, drift)

    def measurements(self) -> dict[str, Measurement]:
        """Return the slopes of the drift, by claim id."""
        n = len(self.settings.seeds)
        paired, signs, free = (self.slope(start, "softmax") for start in STARTS)
        relu = [self.slope(start, "relu") for start in STARTS]
        norm = slope_over_seeds(self.settings.widths, self.initial_norm[:, :, STARTS.index("independent"), 0])
        return {
            "SN-UNP": _slopes({"slope_paired": paired, "slope_independent": free}, n),
            "SN-UNP-signs": _slopes({"slope_opposite_signs": signs}, n),
            "SN-UNP-relu": _slopes({"slope_paired": relu[0], "slope_independent": relu[2]}, n),
            "SN-UNP-norm": _slopes({"slope": norm}, n),
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
        groups = [(m, start, a) for m in s.widths for start in STARTS for a in ACTIVATIONS]
        drift, norm = [], []
        with runtime.threads(1):
            for done, (width, start, activation) in enumerate(groups, 1):
                problem = Problem(activation, width, s.n_samples, s.n_inputs, start=start)
                trained = train(problem, seeds, device=where, max_steps=s.max_steps, target=s.target)
                drift.append(trained.drift())
                norm.append(trained.first_outputs().square().sum((1, 2)).cpu().double().numpy())
                if inner:
                    inner(done, len(groups))
        shape = (len(seeds), len(s.widths), len(STARTS), len(ACTIVATIONS))
        return {
            "drift": np.stack(drift, axis=1).reshape(shape),
            "initial_norm": np.stack(norm, axis=1).reshape(shape),
        }

    parts = by_seeds(s, part, clock=clock, workdir=workdir, progress=progress)
    arrays = {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
    return Starts(settings=s, provenance=clock.provenance(where), **arrays)


def _slopes(found: dict[str, tuple[float, tuple[float, float]]], n_seeds: int) -> Measurement:
    return Measurement({k: v[0] for k, v in found.items()}, {k: v[1] for k, v in found.items()}, n_seeds)
