"""The comparison on images where there are no files: a small vision transformer on scikit-learn's digits. It is ours.

It shows the same measurements at work and says nothing about CIFAR-10, which is in
:mod:`attnbook.mirror_descent.experiments.images`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import torch

from attnbook.core.results import Measurement, over_seeds
from attnbook.core.runtime import Progress
from attnbook.mirror_descent.experiments.image_runs import ImageRuns, ImageSettings, train_images
from attnbook.mirror_descent.experiments.optimizer_runs import FIXED, MIRROR, gain

__all__ = ["DigitImages", "Settings", "run"]

GRID = ((3e-4, 1e-3, 3e-3, 1e-2), (0.01, 0.03, 0.1), (0.01, 0.03, 0.1, 0.3), (0.001, 0.003, 0.01, 0.03))
"""Step sizes of Adam and of mirror descent with p = 1.1, 2 and 3 at full size."""


@dataclass(frozen=True)
class Settings(ImageSettings):
    """Settings at three scales; none of them needs files."""

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(
            rates=tuple((rate,) for rate in FIXED),
            compared=FIXED,
            steps=3,
            batch_size=8,
            seeds=(0, 1),
            chunk=1,
            images="digits",
            patch=4,
            n_train=30,
            n_validation=10,
            n_test=12,
            mirrored=False,
            width=8,
            n_layers=1,
            n_heads=2,
        )

    @classmethod
    def book(cls) -> Self:
        """Return a short training at one step size each; those of mirror descent make comparable progress."""
        return cls(
            rates=tuple((rate,) for rate in FIXED),
            compared=FIXED,
            steps=300,
            batch_size=32,
            seeds=(0, 1, 2, 3, 4),
            chunk=5,
            images="digits",
            patch=2,
            n_train=1200,
            n_validation=237,
            n_test=360,
            mirrored=False,
            width=32,
            n_layers=1,
            n_heads=4,
        )

    @classmethod
    def paper(cls) -> Self:
        """Return a longer training at all step sizes."""
        return cls(
            rates=GRID,
            compared=FIXED,
            steps=400,
            batch_size=64,
            seeds=(0, 1, 2, 3, 4),
            chunk=1,
            images="digits",
            patch=2,
            n_train=1200,
            n_validation=237,
            n_test=360,
            mirrored=False,
            width=32,
            n_layers=2,
            n_heads=4,
        )


@dataclass(frozen=True)
class DigitImages(ImageRuns):
    """Accuracies and sparsity on digits."""

    experiment: ClassVar[str] = "mirror_descent.digits"
    settings_type: ClassVar[type] = Settings

    def measurements(self) -> dict[str, Measurement]:
        """Return accuracy and sparsity, by claim id."""
        best = self.chosen()
        adam, one = self.test_accuracy[best["adam"]], self.test_accuracy[best["p1_1"]]
        both, lead = over_seeds(accuracy_adam=adam, accuracy_p1_1=one), gain(adam, one, "lead")
        return {
            "MD-vit-standin": Measurement({**both.values, **lead.values}, {**both.spread, **lead.spread}, both.n_seeds),
            "MD-vit-order": over_seeds(
                **{f"effective_dimension_{name}": self.effective_dimension[self.compared[name]] for name in MIRROR}
            ),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> DigitImages:
    """Train vision transformers on digits with four optimisers of the attention matrices.

    Args:
        settings: Images, network and step sizes.
        device: Where to train; default the first of cuda, mps and cpu.
        progress: Told (work done, work in all), every group of seeds counted the same.
        workdir: Folder that keeps finished groups of seeds; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
        FloatingPointError: If a network diverges.
    """
    return DigitImages(**train_images(settings, device=device, progress=progress, workdir=workdir))
