"""The step sizes of Table 2: every network with a third of its step size, with its own, and with three times as much.

Tried on training reviews that were set apart, not on test reviews, with seeds that Table 2 does not use.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core import runtime
from attnbook.core.results import Clock, Measurement, Result
from attnbook.core.runtime import Progress
from attnbook.global_attention.experiments import imdb
from attnbook.global_attention.experiments.review_table import ReviewSettings, train_table

__all__ = ["ReviewSteps", "Settings", "run"]


@dataclass(frozen=True)
class Settings(ReviewSettings):
    """Settings of the trial: those of Table 2 at one number of reviews; ``n_test`` training reviews are set apart.

    Attributes:
        factors: By what the step sizes of Table 2 are multiplied.
    """

    factors: tuple[float, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.factors or min(self.factors) <= 0:
            raise ValueError(f"factors: expected positive numbers, got {self.factors}")

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls("synthetic", "", 8, 40, 8, (10,), 30, 1, 1e-3, 1e-2, 2, 16, (0, 1), (0.3, 1.0))

    @classmethod
    def book(cls) -> Self:
        """Return a smaller trial: reviews cut after 200 words and a quarter of the hidden units."""
        return cls._like(imdb.Settings.book(), (100,))

    @classmethod
    def paper(cls) -> Self:
        """Return the trial at the size of Table 2."""
        return cls._like(imdb.Settings.paper(), (100, 101))

    @classmethod
    def _like(cls, table: imdb.Settings, seeds: tuple[int, ...]) -> Self:
        changed = {"sizes": (875,), "n_test": 2500, "seeds": seeds}
        return cls(**asdict(table) | changed, factors=(0.3, 1.0, 3.0))

    def trial(self, factor: float) -> imdb.Settings:
        """Return the settings of the networks with one factor."""
        plain = {name: value for name, value in asdict(self).items() if name != "factors"}
        moved = {name: round(factor * plain[name], 12) for name in ("step_size", "pooling_step_size")}
        return imdb.Settings(**plain | moved)


@dataclass(frozen=True)
class ReviewSteps(Result):
    """Accuracies on the reviews set apart.

    Attributes:
        accuracy: Per cent after the last epoch, ``(factors, seeds, models)``.
    """

    experiment: ClassVar[str] = "global_attention.review_steps"
    settings_type: ClassVar[type] = Settings

    accuracy: Float[np.ndarray, "factors seeds models"]

    def measurements(self) -> dict[str, Measurement]:
        """Return nothing: no claim rests on the trial."""
        return {}


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> ReviewSteps:
    """Train every network with every factor.

    Args:
        settings: Sizes, seeds and factors.
        device: Where to train; default the first of cuda, mps and cpu.
        progress: Told (work done, work in all), every factor counted the same.
        workdir: Folder that keeps finished cells, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device or the reviews are not available; the message says how to get them.
        FloatingPointError: If a network diverges.
    """
    clock, where = Clock(), runtime.device(device)
    found = []
    for number, factor in enumerate(settings.factors):
        table = train_table(
            settings.trial(factor),
            device=where,
            progress=_part(progress, number, len(settings.factors)),
            workdir=None if workdir is None else workdir / f"factor-{factor:g}",
            held_out=True,
        )
        found.append(table["test_accuracy"][:, 0, :, -1])
    return ReviewSteps(settings=settings, provenance=clock.provenance(where), accuracy=np.stack(found))


def _part(progress: Progress | None, number: int, count: int) -> Progress | None:
    return None if progress is None else lambda done, total: progress(number * total + done, count * total)
