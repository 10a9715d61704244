"""The comparison on text where there are no files: synthetic reviews whose telling words are known. It is ours.

It shows the same measurements at work and says nothing about film reviews: that is :mod:`.reviews`.
"""

from __future__ import annotations

from collections.abc import Callable
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
from attnbook.mirror_descent.experiments.arms import ArmResult, ArmSettings, by_arm, looked_at, sparsity, train_arms
from attnbook.mirror_descent.models.transformer import Inputs, Shape
from attnbook.mirror_descent.planted_reviews import PlantedReviews, Vocabulary, draw_reviews

__all__ = ["MadeReviews", "Settings", "run"]


@dataclass(frozen=True)
class Settings(ArmSettings):
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
            adam=(1e-3,), p1_1=(0.03,), p2=(0.03,), p3=(0.003,), steps=3, batch_size=8, seeds=(0, 1), chunk=1,
            n_train=20, n_validation=10, n_test=12, n_tokens=7, n_telling=2, width=8, n_layers=2, n_heads=2,
        )  # fmt: skip

    @classmethod
    def book(cls) -> Self:
        """Return a short training at one step size each; those of mirror descent make comparable progress."""
        return cls(
            adam=(1e-3,), p1_1=(0.03,), p2=(0.03,), p3=(0.003,), steps=200, batch_size=32, seeds=(0, 1, 2, 3, 4),
            chunk=5, n_train=1000, n_validation=500, n_test=1000, n_tokens=32, n_telling=3, width=32, n_layers=1,
            n_heads=4,
        )  # fmt: skip

    @classmethod
    def paper(cls) -> Self:
        """Return a longer training at all step sizes."""
        return cls(
            adam=(3e-4, 1e-3, 3e-3, 1e-2), p1_1=(0.003, 0.01, 0.03, 0.1), p2=(0.003, 0.01, 0.03, 0.1),
            p3=(0.0003, 0.001, 0.003, 0.01), steps=300, batch_size=64, seeds=(0, 1, 2, 3, 4), chunk=1, n_train=1000,
            n_validation=500, n_test=1500, n_tokens=32, n_telling=3, width=32, n_layers=2, n_heads=4,
        )  # fmt: skip


@dataclass(frozen=True)
class MadeReviews(ArmResult):
    """Accuracy, sparsity and attention on synthetic reviews.

    Attributes:
        mass: Attention of the class token on the telling words in the last layer, mean over heads and test reviews,
            ``(seeds, arms)``.
        hits: Share of test reviews whose most attended word is a telling one, likewise.
    """

    experiment: ClassVar[str] = "mirror_descent.made_reviews"
    settings_type: ClassVar[type] = Settings

    mass: Float[np.ndarray, "seeds arms"]
    hits: Float[np.ndarray, "seeds arms"]

    def uniform_mass(self) -> float:
        """Return the attention on telling words of a class token that attends to all words and itself alike."""
        return self.settings.n_telling / (self.settings.n_tokens + 1)

    def measurements(self) -> dict[str, Measurement]:
        """Return accuracy and attention, by claim id."""
        accuracy, mass = self.tuned(self.test_accuracy), self.tuned(self.mass)
        together = self.tuned(self.effective_dimension[..., -1])
        found = over_seeds(**{f"accuracy_{name}": values for name, values in accuracy.items()})
        spread = max(float(accuracy[name].std(ddof=1)) for name in ("p1_1", "p2", "p3"))
        least = np.min(list(mass.values()), axis=0)
        return {
            "MD-imdb-standin": Measurement({**found.values, "accuracy_spread": spread}, found.spread, found.n_seeds),
            "MD-hist-standin": over_seeds(
                **{f"effective_dimension_{name}": together[name] for name in ("p1_1", "p2", "p3")}
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
    return MadeReviews(settings=settings, provenance=clock.provenance(where), **concatenate(parts))


def _measured(
    settings: Settings, seeds: tuple[int, ...], device: torch.device, progress: Progress | None
) -> dict[str, np.ndarray]:
    """Train the networks of some seeds and look at them."""
    train, validation, test = (
        draw_reviews(seeds, part, n_reviews=count, n_tokens=settings.n_tokens, n_telling=settings.n_telling)
        for part, count in (
            ("train", settings.n_train),
            ("validation", settings.n_validation),
            ("test", settings.n_test),
        )
    )
    shape = settings.shape
    parameters = train_arms(
        settings, shape, seeds, _batches(settings, seeds, train, device), device=device, progress=progress
    )
    tests = looked_at(parameters, shape, _inputs(test, device), _seen(test, device))
    arrays = sparsity(parameters, settings.n_layers) | {
        "test_accuracy": tests["accuracy"],
        "entropy": tests["entropy"],
        "mass": tests["seen"][..., 0],
        "hits": tests["seen"][..., 1],
        "validation_accuracy": looked_at(parameters, shape, _inputs(validation, device))["accuracy"],
        "train_accuracy": looked_at(parameters, shape, _inputs(train, device))["accuracy"],
    }
    return by_arm(arrays, len(settings.arms()))


def _batches(
    settings: Settings, seeds: tuple[int, ...], reviews: PlantedReviews, device: torch.device
) -> Callable[[int], Inputs]:
    rows = np.arange(len(seeds))[:, None]

    def batch(step: int) -> Inputs:
        drawn = np.stack(
            [
                stream(seed, "review batch", step).choice(settings.n_train, settings.batch_size, replace=False)
                for seed in seeds
            ]
        )
        words, labels = reviews.words[rows, drawn], reviews.labels[rows, drawn]
        return Inputs(torch.tensor(words, device=device), torch.tensor(labels, device=device))

    return batch


def _inputs(reviews: PlantedReviews, device: torch.device) -> Inputs:
    return Inputs(torch.tensor(reviews.words, device=device), torch.tensor(reviews.labels, device=device))


def _seen(reviews: PlantedReviews, device: torch.device) -> Callable[[Tensor, slice], Tensor]:
    """Attention on the telling words, and whether the most attended word is one."""
    telling = torch.tensor(reviews.telling, device=device)

    def see(attention: Tensor, part: slice) -> Tensor:
        on_words = attention.mean(2)[..., :-1]
        here = telling[:, part].repeat(len(on_words) // len(telling), 1, 1)
        hit = here.gather(-1, on_words.argmax(-1, keepdim=True))[..., 0]
        return torch.stack([(on_words * here).sum(-1), hit.double()], dim=-1)

    return see
