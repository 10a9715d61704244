"""The comparison on text where there are no files: synthetic reviews whose telling words are known. It is ours.

It shows the same measurements at work and says nothing about film reviews, which are in
:mod:`attnbook.mirror_descent.experiments.reviews`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core import runtime
from attnbook.core.results import Clock, Measurement, over_seeds
from attnbook.core.resuming import by_seeds, concatenate
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress, threads
from attnbook.mirror_descent import comparison
from attnbook.mirror_descent.experiments.optimizer_runs import FIXED, MIRROR, OptimizerRuns, OptimizerSettings
from attnbook.mirror_descent.planted_reviews import PlantedReviews, Vocabulary, draw_reviews
from attnbook.mirror_descent.transformer import Inputs, Shape

__all__ = ["MadeReviews", "Settings", "run"]

GRID = ((3e-4, 1e-3, 3e-3, 1e-2), (0.003, 0.01, 0.03, 0.1), (0.003, 0.01, 0.03, 0.1), (0.0003, 0.001, 0.003, 0.01))
"""Step sizes of Adam and of mirror descent with p = 1.1, 2 and 3 at full size."""

EVALUATED = 250


@dataclass(frozen=True)
class Settings(OptimizerSettings):
    """Reviews, network and step sizes.

    Attributes:
        n_train: Training reviews.
        n_validation: Reviews to choose step sizes on.
        n_test: Test reviews.
        n_tokens: Words of a review.
        n_telling: Words of them that speak for the class.
        width: Entries of the stream.
        n_layers: Layers.
        n_heads: Heads of each layer.
    """

    n_train: int
    n_validation: int
    n_test: int
    n_tokens: int
    n_telling: int
    width: int
    n_layers: int
    n_heads: int

    @property
    def shape(self) -> Shape:
        """Sizes of the network; words carry no positions, as their order is random."""
        return Shape(
            "words",
            Vocabulary().n_words,
            self.n_tokens,
            width=self.width,
            n_heads=self.n_heads,
            n_layers=self.n_layers,
            positions=False,
        )

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
            n_train=20,
            n_validation=10,
            n_test=12,
            n_tokens=7,
            n_telling=2,
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
            steps=200,
            batch_size=32,
            seeds=(0, 1, 2, 3, 4),
            chunk=5,
            n_train=1000,
            n_validation=500,
            n_test=1000,
            n_tokens=32,
            n_telling=3,
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
            steps=300,
            batch_size=64,
            seeds=(0, 1, 2, 3, 4),
            chunk=1,
            n_train=1000,
            n_validation=500,
            n_test=1500,
            n_tokens=32,
            n_telling=3,
            width=32,
            n_layers=2,
            n_heads=4,
        )


@dataclass(frozen=True)
class MadeReviews(OptimizerRuns):
    """Accuracy, sparsity and attention on synthetic reviews.

    Attributes:
        effective_dimension: Of all attention matrices together, each divided by its largest entry,
            ``(configurations, seeds)``.
        near_zero: Share of their entries of at most one per cent of the largest, likewise.
        mass: Attention of the class token on the telling words in the last layer, on words only, mean over heads and
            test reviews, ``(configurations, seeds)``.
        entropy: Entropy of this attention over that of uniform attention, likewise.
        top: Share of test reviews whose most attended word is a telling one, likewise.
    """

    experiment: ClassVar[str] = "mirror_descent.made_reviews"
    settings_type: ClassVar[type] = Settings

    effective_dimension: Float[np.ndarray, "configurations seeds"]
    near_zero: Float[np.ndarray, "configurations seeds"]
    mass: Float[np.ndarray, "configurations seeds"]
    entropy: Float[np.ndarray, "configurations seeds"]
    top: Float[np.ndarray, "configurations seeds"]

    def uniform_mass(self) -> float:
        """Return the mass of attention that is the same on all words."""
        return float(self.settings.n_telling / self.settings.n_tokens)

    def measurements(self) -> dict[str, Measurement]:
        """Return accuracy, sparsity and attention, by claim id."""
        best = self.chosen()
        accuracy = {name: self.test_accuracy[best[name]] for name in MIRROR}
        found = over_seeds(**{f"accuracy_{name}": values for name, values in accuracy.items()})
        spread = max(float(values.std(ddof=1)) for values in accuracy.values())
        least = np.min([self.mass[number] for number in best.values()], axis=0)
        return {
            "MD-imdb-standin": Measurement({**found.values, "accuracy_spread": spread}, found.spread, found.n_seeds),
            "MD-hist-standin": over_seeds(
                **{f"effective_dimension_{name}": self.effective_dimension[self.compared[name]] for name in MIRROR}
            ),
            "MD-tok-uniform": Measurement(
                {"min_attention_mass": float(least.min()), "uniform_mass": self.uniform_mass()},
                {"min_attention_mass": (float(least.min()), float(least.max()))},
                len(least),
            ),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> MadeReviews:
    """Train transformers on synthetic reviews with four optimisers of the attention matrices.

    Args:
        settings: Reviews, network and step sizes.
        device: Where to train; default the first of cuda, mps and cpu.
        progress: Told (work done, work in all), every group of seeds counted the same.
        workdir: Folder that keeps finished groups of seeds; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
        FloatingPointError: If a network diverges.
    """
    clock, where = Clock(), runtime.device(device)

    def measure(seeds: tuple[int, ...], inner: Progress | None) -> dict[str, np.ndarray]:
        return _measured(settings, seeds, where, inner)

    with threads(1):
        parts = by_seeds(settings, measure, clock=clock, workdir=workdir, progress=progress)
    return MadeReviews(settings=settings, provenance=clock.provenance(where), **concatenate(parts, axis=1))


def _measured(
    settings: Settings, seeds: tuple[int, ...], device: torch.device, progress: Progress | None
) -> dict[str, np.ndarray]:
    """Train the networks of some seeds and look at them; all are tested on the same reviews."""
    wanted = {
        "train": (seeds, settings.n_train),
        "validation": ((0,), settings.n_validation),
        "test": ((0,), settings.n_test),
    }
    samples = {
        part: draw_reviews(own, part, n_reviews=count, n_tokens=settings.n_tokens, n_telling=settings.n_telling)
        for part, (own, count) in wanted.items()
    }
    shape = settings.shape
    trained = comparison.train_configurations(
        shape,
        settings.rates,
        seeds,
        _batches(settings, seeds, samples["train"], device),
        steps=settings.steps,
        device=device,
        progress=progress,
    )
    arrays = {
        f"{name}_accuracy": comparison.accuracy(trained, shape, (inputs for inputs, _ in _parts(reviews, device)))
        for name, reviews in samples.items()
    }
    arrays |= {name: values[:, -1] for name, values in comparison.sparsity(trained, shape).items()}
    arrays |= comparison.attended_words(trained, shape, _parts(samples["test"], device))
    return {name: values.reshape(-1, len(seeds)) for name, values in arrays.items()}


def _batches(
    settings: Settings, seeds: tuple[int, ...], reviews: PlantedReviews, device: torch.device
) -> Callable[[int], Inputs]:
    order = np.stack(
        [
            comparison.epoch_order(settings.n_train, settings.steps, settings.batch_size, stream(seed, "batches"))
            for seed in seeds
        ]
    )
    rows = np.arange(len(seeds))[:, None]

    def batch(step: int) -> Inputs:
        words, labels = reviews.words[rows, order[:, step]], reviews.labels[rows, order[:, step]]
        return Inputs(torch.tensor(words, device=device), torch.tensor(labels, device=device))

    return batch


def _parts(reviews: PlantedReviews, device: torch.device) -> Iterator[tuple[Inputs, Tensor]]:
    """The reviews a part at a time, with the mask of the telling words of the first group."""
    words, labels, telling = (torch.tensor(a, device=device) for a in (reviews.words, reviews.labels, reviews.telling))
    for start in range(0, words.shape[1], EVALUATED):
        part = slice(start, start + EVALUATED)
        yield Inputs(words[:, part], labels[:, part]), telling[0, part]
