"""Thousands of film reviews: test accuracy, weights and attention of four optimisers of the attention matrices.

At book scale word vectors are frozen and each optimiser has one step size, set beforehand. At full size words and
positions are learned, and each optimiser has the best of several step sizes, chosen by the mean validation accuracy
over all seeds.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch

from attnbook.core.results import Measurement, over_seeds
from attnbook.core.runtime import Progress
from attnbook.mirror_descent.comparison import OPTIMIZERS
from attnbook.mirror_descent.experiments.optimizer_runs import MIRROR, gain
from attnbook.mirror_descent.experiments.review_runs import ReviewRuns, ReviewSettings, matrix_index, train_reviews

__all__ = ["Reviews", "Settings", "run"]

FIXED = (0.003, 0.03, 0.03, 0.003)
TUNED = ((3e-4, 1e-3, 3e-3), (0.01, 0.03, 0.1), (0.01, 0.03, 0.1), (0.001, 0.003, 0.01))


@dataclass(frozen=True)
class Settings(ReviewSettings):
    """Settings at three scales; ``book`` and ``paper`` need the reviews on this machine."""

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing, on synthetic reviews."""
        return cls(
            reviews="synthetic",
            vectors="",
            learned=True,
            n_words=100,
            n_tokens=12,
            n_layers=2,
            width=8,
            n_train=40,
            n_validation=20,
            n_test=30,
            n_read=20,
            rates=tuple((rate,) for rate in FIXED),
            compared=FIXED,
            steps=3,
            batch_size=10,
            seeds=(0, 1),
            chunk=1,
        )

    @classmethod
    def book(cls) -> Self:
        """Return 22,500 reviews, their last 64 words, frozen vectors, one layer, one step size per optimiser."""
        return cls(
            reviews="imdb",
            vectors="imdb_ppmi_svd_100d",
            learned=False,
            n_words=30_000,
            n_tokens=64,
            n_layers=1,
            width=32,
            n_train=22_500,
            n_validation=2500,
            n_test=10_000,
            n_read=2000,
            rates=tuple((rate,) for rate in FIXED),
            compared=FIXED,
            steps=1000,
            batch_size=64,
            seeds=(0, 1, 2, 3, 4),
            chunk=5,
        )

    @classmethod
    def paper(cls) -> Self:
        """Return learned words and positions, three step sizes each: what one processor does in minutes."""
        change = {
            "learned": True,
            "n_words": 5000,
            "rates": TUNED,
            "n_test": 5000,
            "steps": 500,
            "chunk": 1,
        }
        return cls(**{**vars(cls.book()), **change})


@dataclass(frozen=True)
class Reviews(ReviewRuns):
    """Accuracy, weights and attention of the four optimisers."""

    experiment: ClassVar[str] = "mirror_descent.reviews"
    settings_type: ClassVar[type] = Settings

    def measurements(self) -> dict[str, Measurement]:
        """Return what the runs say, by claim id.

        Synthetic reviews measure no claim on real ones; only tuned step sizes measure the paper's table, and only
        frozen vectors what the book set for them.
        """
        if self.settings.reviews != "imdb":
            return {}
        found = self._sparsity() | self._attention()
        tuned = all(len(own) > 1 for own in self.settings.rates)
        return found | (self._table() if tuned else {}) | ({} if self.settings.learned else self._frozen())

    def _table(self) -> dict[str, Measurement]:
        best, accuracy, off_curve = self.chosen(), self.test_accuracy, self.off_curve()
        return {
            "MD-imdb": gain(accuracy[best["p1_1"]], accuracy[best["p2"]], "accuracy_gain_over_descent"),
            "MD-imdb-p3": gain(accuracy[best["p3"]], accuracy[best["p1_1"]], "accuracy_gain_of_p3"),
            "MD-tok-sharp": gain(off_curve[self.compared["p1_1"]], off_curve[self.compared["p2"]], "attention_gain"),
        }

    def _sparsity(self) -> dict[str, Measurement]:
        found = {}
        for name in ("key", "query", "value"):
            share = self.near_zero[:, :, matrix_index(self.settings, name)].mean(axis=2)
            found[f"MD-hist-{name}"] = over_seeds(**{f"share_near_zero_{p}": share[self.compared[p]] for p in MIRROR})
        dimensions = {f"effective_dimension_{p}": self.whole[self.compared[p]] for p in MIRROR}
        return found | {"MD-hist": over_seeds(**dimensions)}

    def _attention(self) -> dict[str, Measurement]:
        one, two = self.compared["p1_1"], self.compared["p2"]
        return {
            "MD-tok": gain(self.mass[one], self.mass[two], "attention_gain"),
            "MD-tok-top1": gain(self.top[one], self.top[two], "hit_rate_gain"),
        }

    def _frozen(self) -> dict[str, Measurement]:
        """The book's own claims at its own step sizes."""
        accuracy = [self.test_accuracy[self.compared[name]].mean() for name in OPTIMIZERS]
        differences = [abs(first - second) for first, second in combinations(accuracy, 2)]
        whole = {p: self.whole[self.compared[p]] for p in MIRROR}
        zero = {p: self.near_zero[self.compared[p], :, -1] for p in MIRROR}
        strict = (whole["p1_1"] < whole["p2"]) & (whole["p2"] < whole["p3"])
        ratio, n_seeds = self.mass / self.uniform_mass, len(self.settings.seeds)
        return {
            "MD-imdb-tie": Measurement(
                {"smallest_accuracy": float(self.test_accuracy.min()), "largest_difference": float(max(differences))},
                n_seeds=n_seeds,
            ),
            "MD-hist-clear": Measurement(
                {
                    "smallest_step": float(np.diff([whole[p].mean() for p in MIRROR]).min()),
                    "share_ordered": float(strict.mean()),
                    "near_zero_ratio": float(zero["p1_1"].mean() / zero["p2"].mean()),
                    "near_zero_p3": float(zero["p3"].max()),
                },
                n_seeds=n_seeds,
            ),
            "MD-tok-words": Measurement(
                {"smallest_ratio": float(ratio.min())},
                {"smallest_ratio": (float(ratio.min()), float(ratio.max()))},
                n_seeds,
            ),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> Reviews:
    """Train the four optimisers on thousands of reviews.

    Args:
        settings: Reviews, sizes and step sizes.
        device: Where to train; default the first of cuda, mps and cpu.
        progress: Told (work done, work in all).
        workdir: Folder that keeps finished seeds, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device or enough reviews are not available.
        FloatingPointError: If a network diverges.
    """
    return Reviews(**train_reviews(settings, device=device, progress=progress, workdir=workdir))
