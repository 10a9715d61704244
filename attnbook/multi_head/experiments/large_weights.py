"""Corollary 1 at larger weights: the theorem has to hold at them too, the law in the number of heads has not.

The same networks and measurements as in :mod:`attnbook.multi_head.experiments.curvature`, with start weights of
standard deviation two.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar

import torch

from attnbook.core.results import Measurement
from attnbook.core.runtime import Progress
from attnbook.multi_head.experiments import curvature, points

__all__ = ["LargeWeights", "Settings", "run"]


@dataclass(frozen=True)
class Settings(points.Settings):
    """Sizes: those of the experiment on curvature, with larger weights.

    Attributes:
        scale: Standard deviation of the entries at random points.
    """

    scale: float = 2.0


@dataclass(frozen=True)
class LargeWeights(curvature.Curvature):
    """As the result on curvature, with the same attributes, at larger weights."""

    experiment: ClassVar[str] = "multi_head.large_weights"
    settings_type: ClassVar[type] = Settings

    def measurements(self) -> dict[str, Measurement]:
        """Return what was found where weights are large, by claim id."""
        found = super().measurements()
        names = {"MH-C1.3": "bound", "MH-C1.4": "slope", "MH-C1.4-flat": "flat"}
        return {f"MH-SCALE-{new}": found[old] for old, new in names.items()}


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> LargeWeights:
    """Measure as the experiment on curvature does.

    Args:
        settings: Sizes and seeds.
        device: Where to train; see there.
        progress: Told (head counts done, head counts in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
        FloatingPointError: If training diverges or does not reach the equal loss.
    """
    found = curvature.run(settings, device=device, progress=progress, workdir=workdir)
    return LargeWeights(**{field.name: getattr(found, field.name) for field in fields(found)})
