"""The miniature of Table 2 that needs no data: synthetic reviews, the same networks, the same controls. It is ours.

It shows the mechanism and checks what is exact. It says nothing about IMDB: that is :mod:`.imdb`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import torch

from attnbook.core.results import Measurement, over_seeds
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress
from attnbook.global_attention.experiments.exactness import padding_free_errors, uniform_attention_error
from attnbook.global_attention.experiments.review_table import ReviewSettings, ReviewTable, train_table
from attnbook.global_attention.models.review_networks import Shape, initial_weights
from attnbook.global_attention.models.self_attention import merge_key_query, padding_mass

__all__ = ["MadeReviews", "Settings", "run", "untrained_padding_mass"]


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
            "GA-X-padding": Measurement({"padding_mass": untrained_padding_mass(230, 2142)}),
            "GA-X-padding-free": Measurement({"max_error": error, "max_gradient_error": gradient_error}),
            "GA-X-bag-of-words": Measurement({"max_error": uniform_attention_error()}),
        }


def untrained_padding_mass(length: int, n_positions: int, dimension: int = 100) -> float:
    """Return the mean share of attention on padding in an untrained network, for words with random vectors.

    Args:
        length: Words of the review.
        n_positions: Positions after padding.
        dimension: Entries of a word vector; each has a standard deviation of 0.1.

    Returns:
        Between 0 and 1; close to ``1 - length / n_positions`` when scores are small.
    """
    vectors = stream(0, "padding").standard_normal((1, length, dimension)) / 10
    small, _ = initial_weights(Shape(1, dimension, 1), 0, torch.zeros(()))
    return float(padding_mass(to_tensor(vectors), merge_key_query(small["query"], small["key"]), n_positions).mean())


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
