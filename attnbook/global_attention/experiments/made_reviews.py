"""The miniature of Table 2 that needs no data: synthetic reviews, the same networks, the same controls. It is ours.

It shows the mechanism and checks what is exact. It says nothing about IMDB: that is :mod:`.imdb`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import torch

from attnbook.core.results import Measurement, over_seeds
from attnbook.core.runtime import Progress
from attnbook.global_attention.experiments.exactness import network_error, padding_free_errors, uniform_attention_error
from attnbook.global_attention.experiments.review_table import ReviewSettings, ReviewTable, train_table

__all__ = ["MadeReviews", "Settings", "run"]


@dataclass(frozen=True)
class Settings(ReviewSettings):
    """Settings of the miniature at three scales."""

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls("synthetic", "", 8, 60, 8, (20, 40), 30, 2, 3e-3, 1e-2, 2, 16, (0, 1))

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls("synthetic", "", 24, 256, 32, (300, 1200), 500, 4, 3e-3, 1e-2, 2, 32, (0, 1, 2, 3, 4))

    @classmethod
    def paper(cls) -> Self:
        """Return a larger run: the number of positions and the width of Table 2."""
        return cls("synthetic", "", 100, 2142, 256, (100, 400, 1600), 1000, 5, 1e-3, 1e-2, 2, 32, (0, 1, 2, 3, 4))


@dataclass(frozen=True)
class MadeReviews(ReviewTable):
    """Accuracies on synthetic reviews."""

    experiment: ClassVar[str] = "global_attention.made_reviews"
    settings_type: ClassVar[type] = Settings

    def measurements(self) -> dict[str, Measurement]:
        """Return the order on synthetic reviews and the exact identities, by claim id."""
        size = self.settings.sizes[-1]
        names = ("baseline", "self_attention", "uniform_attention", "mean_pooling")
        error, gradient_error = padding_free_errors()
        return {
            "GA-X-made": over_seeds(**{model: self.at(model, size) for model in names}),
            "GA-X-padding-free": Measurement(
                {"max_error": error, "max_gradient_error": gradient_error, "network_error": network_error()}
            ),
            "GA-X-bag-of-words": Measurement({"max_error": uniform_attention_error()}),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> MadeReviews:
    """Train the networks of Table 2 and its controls on synthetic reviews.

    Args:
        settings: Sizes, seeds and recipe.
        device: Where to train; default the first of cuda, mps and cpu.
        progress: Told (work done, work in all), every cell counted the same.
        workdir: Folder that keeps finished cells, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
        FloatingPointError: If a network diverges.
    """
    return MadeReviews(**train_table(settings, device=device, progress=progress, workdir=workdir))
