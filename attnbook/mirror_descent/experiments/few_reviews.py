"""A few hundred film reviews: accuracy against step size for every optimiser, and how a choice of rates makes a winner.

Five hundred reviews are few for the network, and how fast attention is trained matters. Every optimiser is tried at
every step size and every seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core.results import Measurement
from attnbook.core.runtime import Progress
from attnbook.mirror_descent.comparison import OPTIMIZERS
from attnbook.mirror_descent.experiments.optimizer_runs import gain
from attnbook.mirror_descent.experiments.review_runs import ReviewRuns, ReviewSettings, train_reviews

__all__ = ["GRID", "FewReviews", "Settings", "run"]

GRID = ((3e-4, 1e-3, 3e-3), (0.003, 0.01, 0.03, 0.1), (0.003, 0.01, 0.03, 0.1), (3e-4, 0.001, 0.003, 0.01))
"""Step sizes of Adam and of mirror descent with p = 1.1, 2 and 3; equal places are comparable in the last three."""
SLOW, FAST, UNMATCHED = 0.003, 0.1, (0.01, 0.1)
# Runs whose attention keeps more than this share of the entropy of uniform attention are not sharp.
BLUNT = 0.6


@dataclass(frozen=True)
class Settings(ReviewSettings):
    """Settings at three scales; ``book`` and ``paper`` need the reviews on this machine."""

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing, on synthetic reviews."""
        return cls(
            reviews="synthetic",
            vectors="",
            learned=False,
            n_words=200,
            n_tokens=12,
            n_layers=1,
            width=8,
            n_train=40,
            n_validation=20,
            n_test=30,
            n_read=20,
            rates=GRID,
            compared=(0.003, 0.03, 0.03, 0.003),
            steps=3,
            batch_size=10,
            seeds=(0, 1),
            chunk=2,
        )

    @classmethod
    def book(cls) -> Self:
        """Return 500 reviews, their last 64 words, frozen vectors, one layer."""
        return cls(
            reviews="imdb",
            vectors="imdb_ppmi_svd_100d",
            learned=False,
            n_words=30_000,
            n_tokens=64,
            n_layers=1,
            width=32,
            n_train=500,
            n_validation=2500,
            n_test=5000,
            n_read=2000,
            rates=GRID,
            compared=(0.003, 0.03, 0.03, 0.003),
            steps=300,
            batch_size=64,
            seeds=(0, 1, 2, 3, 4),
            chunk=5,
        )

    @classmethod
    def paper(cls) -> Self:
        """Return more seeds, more steps and all test reviews; the paper's own sizes are not known."""
        small = cls.book()
        return cls(**{**vars(small), "steps": 500, "n_test": 25_000, "seeds": tuple(range(10)), "chunk": 5})


@dataclass(frozen=True)
class FewReviews(ReviewRuns):
    """Accuracy, sparsity and attention at every step size."""

    experiment: ClassVar[str] = "mirror_descent.few_reviews"
    settings_type: ClassVar[type] = Settings

    def measurements(self) -> dict[str, Measurement]:
        """Return what every step size says, by claim id; synthetic reviews measure no claim on real ones."""
        return {} if self.settings.reviews != "imdb" else self._rates() | self._choices() | self._weights()

    def one_seed_gains(self, better: str = "p1_1", worse: str = "p2") -> Float[np.ndarray, " seeds"]:
        """Return mean test gains when both rates are picked on the validation accuracy of one seed.

        Args:
            better: The optimiser said to win.
            worse: The one it is compared with.

        Returns:
            For each picking seed, the mean paired gain over the other seeds.
        """
        n_seeds, found = self.test_accuracy.shape[1], []
        for seed in range(n_seeds):
            picked, others = self.chosen([seed]), [other for other in range(n_seeds) if other != seed]
            difference = self.test_accuracy[picked[better]] - self.test_accuracy[picked[worse]]
            found.append(difference[others].mean())
        return np.array(found)

    def _rates(self) -> dict[str, Measurement]:
        drops = {
            name: self.test_accuracy[self.at(name, SLOW)] - self.test_accuracy[self.at(name, FAST)]
            for name in ("p1_1", "p2")
        }
        values = {f"mean_drop_{name}": float(drop.mean()) for name, drop in drops.items()}
        values |= {f"smallest_drop_{name}": float(drop.min()) for name, drop in drops.items()}
        spread = {f"mean_drop_{name}": (float(drop.min()), float(drop.max())) for name, drop in drops.items()}
        n_seeds = len(self.settings.seeds)
        residual = self.off_curve()
        blunt = self.entropy > BLUNT
        values_of_curve = {
            "explained": 1 - float(residual.var() / self.mass.var()),
            "explained_where_blunt": 1 - float((residual[blunt] ** 2).mean() / self.mass[blunt].var()),
        }
        largest = max(float(abs(residual[self.of(name)].mean())) for name in OPTIMIZERS)
        return {
            "MD-imdb-rate": Measurement(values, spread, n_seeds),
            "MD-tok-curve": Measurement({**values_of_curve, "largest_residual": largest}, n_seeds=n_seeds),
        }

    def _choices(self) -> dict[str, Measurement]:
        best, accuracy = self.chosen(), self.test_accuracy
        slow, fast = UNMATCHED
        picks = self.one_seed_gains()
        # The largest step size is left out: there seeds scatter too widely.
        equal = (accuracy[self.of("p1_1")] - accuracy[self.of("p2")]).mean(axis=1)[:-1]
        return {
            "MD-imdb-equal": Measurement({"largest_gap": float(np.abs(equal).max())}, n_seeds=accuracy.shape[1]),
            "MD-imdb-few": gain(accuracy[best["p1_1"]], accuracy[best["p2"]], "gain"),
            "MD-imdb-unmatched": gain(accuracy[self.at("p1_1", slow)], accuracy[self.at("p2", fast)], "gain"),
            "MD-imdb-one-seed": Measurement(
                {"largest_gain": float(picks.max()), "smallest_gain": float(picks.min())}, n_seeds=len(picks)
            ),
        }

    def _weights(self) -> dict[str, Measurement]:
        ordered, whole = self.rising(self.whole), self.whole
        crossing = whole[self.at("p2", FAST)] - whole[self.at("p1_1", SLOW)]
        return {
            "MD-hist-rates": Measurement({"share_ordered": float(np.mean(ordered))}, n_seeds=len(self.settings.seeds)),
            "MD-hist-unmatched": Measurement(
                {"largest_difference": float(crossing.max())},
                {"largest_difference": (float(crossing.min()), float(crossing.max()))},
                len(crossing),
            ),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> FewReviews:
    """Train every optimiser at every step size on a few hundred reviews.

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
    return FewReviews(**train_reviews(settings, device=device, progress=progress, workdir=workdir))
