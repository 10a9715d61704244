"""One training set, each of its samples left out once: distances over the steps below recursions (22) and (21)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core.results import Clock, Measurement, Result
from attnbook.core.runtime import Progress, threads
from attnbook.multi_head.experiments import samples, stability, stability_settings

__all__ = ["LeaveOneOutPaths", "Settings", "run"]


@dataclass(frozen=True)
class Settings:
    """Sizes; those of the tokens and the step size are those of the experiment on stability.

    Attributes:
        n_samples: Training samples.
        heads: Numbers of heads, each even.
        steps: Number of steps.
        seed: Seed of patterns and samples.
    """

    n_samples: int = 20
    heads: tuple[int, ...] = (4, 10_000, 1_000_000, 100_000_000)
    steps: int = 60
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.heads or any(h < 2 or h % 2 for h in self.heads):
            raise ValueError(f"heads: expected even numbers of at least 2, got {self.heads}")
        if self.n_samples < 2 or self.steps < 1:
            raise ValueError(f"n_samples, steps: expected at least 2 and 1, got {self.n_samples}, {self.steps}")

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show little."""
        return cls(n_samples=7, steps=10)

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return more samples."""
        return cls(n_samples=80)


@dataclass(frozen=True)
class LeaveOneOutPaths(Result):
    """Distances and unrolled recursions; samples in order of their final distance with the fewest heads, least first.

    Attributes:
        distance: Distance of the network without a sample from the full one.
        recursion: Recursion (22) unrolled.
        printed: Eq. (21) as shown, unrolled.
        sample_loss: Loss of the full network on the sample.
        left_out_loss: Loss of the network that has not seen the sample on it.
    """

    experiment: ClassVar[str] = "multi_head.leave_one_out_paths"
    settings_type: ClassVar[type] = Settings

    distance: Float[np.ndarray, "records heads samples"]
    recursion: Float[np.ndarray, "records heads samples"]
    printed: Float[np.ndarray, "records heads samples"]
    sample_loss: Float[np.ndarray, "records heads samples"]
    left_out_loss: Float[np.ndarray, "records heads samples"]

    def measurements(self) -> dict[str, Measurement]:
        """Return nothing: no claim rests on one training set."""
        return {}


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> LeaveOneOutPaths:
    """Train the full network and all reduced ones for each number of heads, as one program.

    Args:
        settings: Sizes.
        device: Where to train, in float64; default cuda where there is one, else the CPU.
        progress: Told (1, 1) at the end.
        workdir: Not used: there is one short part.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
        FloatingPointError: If training diverges.
    """
    clock, where = Clock(), samples.double_device(device)
    chosen = stability_settings.Settings.book()
    with threads(1):
        problem = stability.Problem(chosen, (settings.seed,), where)
        path, recursions, _, _ = problem.paths(
            settings.n_samples, settings.heads, step_size=chosen.step_size, steps=settings.steps
        )
    order = path.distance[-1, 0].argsort()
    arrays = {
        "distance": path.distance,
        "recursion": recursions.envelope("recursion"),
        "printed": recursions.envelope("printed"),
        "sample_loss": path.sample_loss,
        "left_out_loss": path.left_out_loss,
    }
    if progress:
        progress(1, 1)
    ordered = {name: array[:, :, order] for name, array in arrays.items()}
    return LeaveOneOutPaths(settings=settings, provenance=clock.provenance(where), **ordered)
