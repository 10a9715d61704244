"""The comparison on images where there are no files: a small vision transformer on scikit-learn's digits. It is ours.

It shows the same measurements at work and says nothing about CIFAR-10: that is :mod:`.images`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch

from attnbook.core.results import Measurement, over_seeds
from attnbook.core.runtime import Progress
from attnbook.mirror_descent.experiments.image_runs import ImageResult, ImageSettings, train_images

__all__ = ["DigitTable", "Settings", "run"]


@dataclass(frozen=True)
class Settings(ImageSettings):
    """Settings at three scales; none of them needs files."""

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(
            adam=(1e-3,), p1_1=(0.03,), p2=(0.03,), p3=(0.003,), steps=3, batch_size=8, seeds=(0, 1), chunk=1,
            images="digits", patch=4, n_train=30, n_validation=10, n_test=12, mirrored=False, width=8, n_layers=1,
            n_heads=2,
        )  # fmt: skip

    @classmethod
    def book(cls) -> Self:
        """Return a short training at one step size each; those of mirror descent make comparable progress."""
        return cls(
            adam=(1e-3,), p1_1=(0.03,), p2=(0.03,), p3=(0.003,), steps=300, batch_size=32, seeds=(0, 1, 2, 3, 4),
            chunk=5, images="digits", patch=2, n_train=1200, n_validation=237, n_test=360, mirrored=False, width=32,
            n_layers=1, n_heads=4,
        )  # fmt: skip

    @classmethod
    def paper(cls) -> Self:
        """Return a longer training at all step sizes."""
        return cls(
            adam=(3e-4, 1e-3, 3e-3, 1e-2), p1_1=(0.01, 0.03, 0.1), p2=(0.01, 0.03, 0.1, 0.3),
            p3=(0.001, 0.003, 0.01, 0.03), steps=400, batch_size=64, seeds=(0, 1, 2, 3, 4), chunk=1, images="digits",
            patch=2, n_train=1200, n_validation=237, n_test=360, mirrored=False, width=32, n_layers=2, n_heads=4,
        )  # fmt: skip


@dataclass(frozen=True)
class DigitTable(ImageResult):
    """Accuracies and sparsity on digits."""

    experiment: ClassVar[str] = "mirror_descent.digits"
    settings_type: ClassVar[type] = Settings

    def measurements(self) -> dict[str, Measurement]:
        """Return accuracy and sparsity, by claim id."""
        accuracy = self.tuned(self.test_accuracy)
        together = self.tuned(self.effective_dimension[..., -1])
        lead = accuracy["adam"] - accuracy["p1_1"]
        error = {"lead_error": float(lead.std(ddof=1) / np.sqrt(len(lead))), "lead": float(lead.mean())}
        leads = over_seeds(accuracy_adam=accuracy["adam"], accuracy_p1_1=accuracy["p1_1"])
        spread = {**leads.spread, "lead": (float(lead.min()), float(lead.max()))}
        return {
            "MD-vit-standin": Measurement({**leads.values, **error}, spread, leads.n_seeds),
            "MD-vit-order": over_seeds(
                **{f"effective_dimension_{name}": together[name] for name in ("p1_1", "p2", "p3")}
            ),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> DigitTable:
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
    return DigitTable(**train_images(settings, device=device, progress=progress, workdir=workdir))
