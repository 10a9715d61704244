"""A small vision transformer on CIFAR-10: Adam and mirror descent on the attention matrices, each at its own step size.

The text available to us gives neither sizes nor numbers of the paper's experiment; network, training and grids of step
sizes are ours. The images are the first ten thousand training and the first thousand test images.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch

from attnbook.core.results import Measurement, extremes_over_seeds, over_seeds
from attnbook.core.runtime import Progress
from attnbook.mirror_descent.experiments.image_runs import ImageRuns, ImageSettings, train_images
from attnbook.mirror_descent.experiments.optimizer_runs import FIXED, gain

__all__ = ["CifarImages", "Settings", "run"]

GRID = ((3e-4, 1e-3, 3e-3), (0.01, 0.03, 0.1), (0.01, 0.03, 0.1, 0.3), (0.001, 0.003, 0.01, 0.03))
"""Step sizes of Adam and of mirror descent with p = 1.1, 2 and 3 at full size."""


@dataclass(frozen=True)
class Settings(ImageSettings):
    """Settings at three scales; ``book`` and ``paper`` need CIFAR-10 on this machine."""

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing, on digits."""
        return cls(
            rates=tuple((rate,) for rate in FIXED),
            compared=FIXED,
            steps=2,
            batch_size=8,
            seeds=(0, 1),
            chunk=2,
            images="digits",
            patch=2,
            n_train=40,
            n_validation=10,
            n_test=12,
            mirrored=True,
            width=8,
            n_layers=2,
            n_heads=2,
        )

    @classmethod
    def book(cls) -> Self:
        """Return a short training at one step size each; those of mirror descent make comparable progress."""
        return cls(
            rates=tuple((rate,) for rate in FIXED),
            compared=FIXED,
            steps=80,
            batch_size=64,
            seeds=(0, 1, 2, 3, 4),
            chunk=5,
            images="cifar10",
            patch=8,
            n_train=9000,
            n_validation=1000,
            n_test=1000,
            mirrored=True,
            width=48,
            n_layers=2,
            n_heads=4,
        )

    @classmethod
    def paper(cls) -> Self:
        """Return the largest training that a laptop does in minutes, at all step sizes; not the paper's own size."""
        return cls(
            rates=GRID,
            compared=FIXED,
            steps=900,
            batch_size=64,
            seeds=(0, 1, 2, 3, 4),
            chunk=1,
            images="cifar10",
            patch=8,
            n_train=9000,
            n_validation=1000,
            n_test=1000,
            mirrored=True,
            width=48,
            n_layers=2,
            n_heads=4,
        )


@dataclass(frozen=True)
class CifarImages(ImageRuns):
    """Accuracies and sparsity on CIFAR-10."""

    experiment: ClassVar[str] = "mirror_descent.images"
    settings_type: ClassVar[type] = Settings

    def sampling_error(self) -> float:
        """Return the standard error that the number of test images leaves, at the mean accuracy of all runs."""
        accuracy = float(self.test_accuracy.mean())
        return float(np.sqrt(accuracy * (1 - accuracy) / self.settings.n_test))

    def measurements(self) -> dict[str, Measurement]:
        """Return accuracy and sparsity, by claim id.

        Digits measure no claim on CIFAR-10; a single step size each measures nothing about tuned ones.
        """
        if self.settings.images != "cifar10":
            return {}
        best = self.chosen()
        found = {
            "MD-vit-sparse": over_seeds(
                effective_dimension_p1_1=self.effective_dimension[best["p1_1"]],
                effective_dimension_adam=self.effective_dimension[best["adam"]],
            ),
            "MD-vit-matched": extremes_over_seeds(
                smallest_share_ordered=self.rising(self.effective_dimension).mean(axis=0)
            ),
        }
        return found | (self._tuned() if all(len(own) > 1 for own in self.settings.rates) else {})

    def _tuned(self) -> dict[str, Measurement]:
        accuracy = {name: self.test_accuracy[number] for name, number in self.chosen().items()}
        means = [values.mean() for values in accuracy.values()]
        p3 = gain(accuracy["p3"], accuracy["p2"], "lead_of_p3_over_p2")
        gap = {"largest_gap": float(max(means) - min(means)), "sampling_error": self.sampling_error(), **p3.values}
        both = over_seeds(accuracy_adam=accuracy["adam"], accuracy_p1_1=accuracy["p1_1"])
        lead, leads = gain(accuracy["adam"], accuracy["p1_1"], "lead_of_adam"), self.one_seed_leads(picks=False)
        same_start, same_optimiser = self.map_correlations()
        return {
            "MD-vit": Measurement({**both.values, **lead.values}, {**both.spread, **lead.spread}, both.n_seeds),
            "MD-vit-learns": extremes_over_seeds(smallest_accuracy=np.stack(list(accuracy.values()), axis=1)),
            "MD-vit-resolved": Measurement(gap, p3.spread, n_seeds=len(self.settings.seeds)),
            "MD-vit-one-seed": Measurement(
                {"smallest_lead": float(leads.min()), "largest_lead": float(leads.max())}, n_seeds=len(leads)
            ),
            "MD-vit-maps": Measurement(
                {"between_optimisers": float(same_start.mean()), "between_seeds": float(same_optimiser.mean())},
                n_seeds=len(leads),
            ),
            "MD-vit-place": over_seeds(
                fastest_adam=self.effective_dimension[self.of("adam")[-1]],
                slowest_p1_1=self.effective_dimension[self.of("p1_1")[0]],
            ),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> CifarImages:
    """Train vision transformers with four optimisers of the attention matrices.

    Args:
        settings: Images, network and step sizes.
        device: Where to train; default the first of cuda, mps and cpu.
        progress: Told (work done, work in all), every group of seeds counted the same.
        workdir: Folder that keeps finished groups of seeds, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device or the images are not available; the message says how to get them.
        FloatingPointError: If a network diverges.
    """
    return CifarImages(**train_images(settings, device=device, progress=progress, workdir=workdir))
