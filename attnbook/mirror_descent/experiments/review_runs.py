"""The common part of the two experiments on film reviews: every optimiser, step size and seed, trained and measured.

The attention matrices are trained by mirror descent or Adam, everything else by the same Adam, from the same starts and
on the same batches; so differences between optimisers of equal seed are paired.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core import runtime
from attnbook.core.results import Clock
from attnbook.core.resuming import by_seeds
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress
from attnbook.datasets import Source
from attnbook.mirror_descent import comparison
from attnbook.mirror_descent import reviews as data
from attnbook.mirror_descent.comparison import OPTIMIZERS
from attnbook.mirror_descent.experiments.optimizer_runs import OptimizerRuns, OptimizerSettings
from attnbook.mirror_descent.reviews import LastWords
from attnbook.mirror_descent.transformer import Shape, attention_names, forward

__all__ = ["EDGES", "ReviewRuns", "ReviewSettings", "matrix_index", "train_reviews"]

EDGES = np.geomspace(1e-6, 1.0, 25)
"""Bounds of the bins of the histograms, in sizes of entries divided by the largest of their matrix."""

# Test reviews whose attention is drawn, and how many words of each.
N_PICTURED, N_WORDS = 2, 10


@dataclass(frozen=True)
class ReviewSettings(OptimizerSettings):
    """Sizes of an experiment on reviews; the paper's own are not in the text available to us.

    Attributes:
        reviews: ``imdb``, or ``synthetic`` for the reviews that come with the package.
        vectors: Name of the word vectors for ``imdb``.
        learned: Whether word vectors and positions are learned; if not, vectors are frozen and there are no positions.
        n_words: Known words, the most frequent ones.
        n_tokens: Last words of a review that are read.
        n_layers: Layers of the network.
        width: Entries of the stream.
        n_train: Training reviews of each seed, drawn anew for each.
        n_validation: Reviews on which step sizes are chosen, the same for all.
        n_test: Test reviews, the same for all.
        n_read: Test reviews on which attention is measured, and training reviews for the training accuracy.
    """

    reviews: Source
    vectors: str
    learned: bool
    n_words: int
    n_tokens: int
    n_layers: int
    width: int
    n_train: int
    n_validation: int
    n_test: int
    n_read: int

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("n_words", "n_train", "n_validation", "n_test", "n_read"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        _ = self.shape

    @property
    def shape(self) -> Shape:
        """Sizes of the network."""
        return Shape(
            tokens="words" if self.learned else "frozen",
            input_size=self.n_words + 1 if self.learned else self.width,
            n_tokens=self.n_tokens,
            width=self.width,
            n_layers=self.n_layers,
            positions=self.learned,
        )


@dataclass(frozen=True)
class ReviewRuns(OptimizerRuns):
    """What all configurations of optimiser and step size reached.

    Attributes:
        effective_dimension: Of each attention matrix and, last, of all, ``(configurations, seeds, matrices + 1)``.
        near_zero: Share of entries of at most one per cent of the largest, likewise.
        mass: Attention of the class token on words of praise or blame, ``(configurations, seeds)``.
        entropy: Entropy of its attention over that of uniform attention, likewise.
        top: Share of reviews whose most attended word is one of praise or blame, likewise.
        histogram: Share of entries by size, mean over seeds, ``(configurations, matrices, bins)``.
        uniform_mass: Share of words of praise or blame among the words read, ``(1,)``.
        attention: Attention over uniform attention on the most attended words of a few test reviews, first seed,
            ``(configurations, pictured, words)``; the words with the highest mean over the configurations compared,
            this mean falling.
        words: These words, review after review; no review is kept.
        source: Where reviews and vectors came from.
    """

    effective_dimension: Float[np.ndarray, "configurations seeds matrices"]
    near_zero: Float[np.ndarray, "configurations seeds matrices"]
    mass: Float[np.ndarray, "configurations seeds"]
    entropy: Float[np.ndarray, "configurations seeds"]
    top: Float[np.ndarray, "configurations seeds"]
    histogram: Float[np.ndarray, "configurations matrices_alone bins"]
    uniform_mass: Float[np.ndarray, " 1"]
    attention: Float[np.ndarray, "configurations pictured most_attended"]
    words: tuple[str, ...]
    source: str

    @property
    def whole(self) -> Float[np.ndarray, "configurations seeds"]:
        """Effective dimension of all attention matrices together."""
        return self.effective_dimension[..., -1]

    def curve(self) -> Float[np.ndarray, " 3"]:
        """Return the quadratic of the entropy that fits attention on words of praise or blame, all runs together."""
        return np.polyfit(self.entropy.ravel(), self.mass.ravel(), 2)

    def off_curve(self) -> Float[np.ndarray, "configurations seeds"]:
        """Return how much more attention falls on words of praise or blame than the curve says."""
        return self.mass - np.polyval(self.curve(), self.entropy)


def train_reviews(
    settings: ReviewSettings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> dict[str, Any]:
    """Train and measure all configurations.

    Args:
        settings: Reviews, sizes and step sizes.
        device: Where to train; default the first of cuda, mps and cpu.
        progress: Told (work done, work in all).
        workdir: Folder that keeps finished groups of seeds, so that a killed run continues; default none.

    Returns:
        The fields of a :class:`ReviewRuns`.

    Raises:
        ValueError: If the device or enough reviews are not available.
        DataError: If the reviews are not on this machine; the message says how to get them.
        FloatingPointError: If a network diverges.
    """
    clock, place = Clock(), runtime.device(device)
    found = data.load_reviews(
        settings.reviews,
        settings.vectors,
        n_words=settings.n_words,
        n_tokens=settings.n_tokens,
        dimension=settings.width,
    )
    _check_sizes(settings, found)
    groups = by_seeds(
        settings,
        lambda seeds, inner: _group(settings, found, seeds, place, inner),
        clock=clock,
        workdir=workdir,
        progress=progress,
    )
    arrays = {name: np.concatenate([g[name] for g in groups], axis=1) for name in groups[0] if name != "attention"}
    attention, words = most_attended(settings, groups[0]["attention"], found)
    real = found.test[: settings.n_read]
    share = found.polar[real].sum(axis=1) / np.maximum((real > 0).sum(axis=1), 1)
    return arrays | {
        "settings": settings,
        "provenance": clock.provenance(place),
        "histogram": arrays["histogram"].mean(axis=1),
        "attention": attention,
        "uniform_mass": np.array([share.mean()]),
        "words": words,
        "source": found.source,
    }


def _check_sizes(settings: ReviewSettings, found: LastWords) -> None:
    left = len(found.train) - settings.n_validation
    if settings.n_train > left:
        raise ValueError(f"n_train: expected at most {left} beside the validation reviews, got {settings.n_train}")
    if max(settings.n_test, settings.n_read, N_PICTURED) > len(found.test):
        raise ValueError(f"n_test, n_read: expected at most {len(found.test)}, got {settings.n_test, settings.n_read}")


def _group(
    settings: ReviewSettings,
    found: LastWords,
    seeds: tuple[int, ...],
    place: torch.device,
    progress: Progress | None,
) -> dict[str, np.ndarray]:
    """Train some seeds together; arrays ``(configurations, seeds, ...)``."""
    shape, held_out = settings.shape, settings.n_validation
    left = len(found.train) - held_out
    subsets = np.stack([held_out + stream(s, "training reviews").permutation(left)[: settings.n_train] for s in seeds])
    order = np.stack(
        [
            comparison.epoch_order(settings.n_train, settings.steps, settings.batch_size, stream(s, "batches"))
            for s in seeds
        ]
    )
    options: dict[str, Any] = {"frozen": not settings.learned, "device": place}
    trained = comparison.train_configurations(
        shape,
        settings.rates,
        seeds,
        data.batches(found, subsets, order, **options),
        steps=settings.steps,
        device=place,
        progress=progress,
    )

    def accuracy(ids: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return comparison.accuracy(trained, shape, (part for part, _ in data.parts(found, ids, labels, **options)))

    test, n_test, n_read = (found.test[None], found.test_labels[None]), settings.n_test, settings.n_read
    seen = subsets[:, :n_read]
    measured = {
        "test_accuracy": accuracy(test[0][:, :n_test], test[1][:, :n_test]),
        "validation_accuracy": accuracy(found.train[None, :held_out], found.train_labels[None, :held_out]),
        "train_accuracy": accuracy(found.train[seen], found.train_labels[seen]),
        **comparison.sparsity(trained, shape),
        **comparison.attended_words(
            trained, shape, data.parts(found, test[0][:, :n_read], test[1][:, :n_read], **options)
        ),
        "histogram": comparison.weight_histogram(trained, shape, EDGES),
        "attention": _attention(trained, shape, found, options),
    }
    split = {name: a.reshape(len(settings.configurations), len(seeds), *a.shape[1:]) for name, a in measured.items()}
    return split | {"attention": split["attention"][:, 0]}


@torch.no_grad()
def _attention(trained: Any, shape: Shape, found: LastWords, options: dict[str, Any]) -> np.ndarray:
    """Attention of each member on the words of the pictured reviews, mean over heads."""
    ((inputs, _),) = data.parts(found, found.test[None, :N_PICTURED], found.test_labels[None, :N_PICTURED], **options)
    weights = forward(trained, shape, inputs).attention[..., :-1].mean(2)
    return np.asarray((weights / weights.sum(-1, keepdim=True).clamp_min(1e-30)).double().cpu().numpy())


def most_attended(
    settings: ReviewSettings, attention: Float[np.ndarray, "configurations pictured tokens"], found: LastWords
) -> tuple[Float[np.ndarray, "configurations pictured most_attended"], tuple[str, ...]]:
    """Keep the words of the pictured reviews that are attended to most, in the mean over the configurations compared.

    Args:
        settings: Settings with the configurations compared.
        attention: Attention on every word of the first test reviews, of sum 1.
        found: The reviews.

    Returns:
        Attention over uniform attention, and the words, review after review.
    """
    ids = found.test[: attention.shape[1]]
    over = attention * (ids > 0).sum(axis=1)[:, None]
    compared = [settings.configurations.index(pair) for pair in zip(OPTIMIZERS, settings.compared, strict=True)]
    order = np.argsort(-over[compared].mean(axis=0), axis=-1, kind="stable")[:, :N_WORDS]
    kept = np.take_along_axis(ids, order, axis=1)
    return np.take_along_axis(over, order[None], axis=2), tuple(found.words[i] for i in kept.ravel())


def matrix_index(settings: ReviewSettings, name: str) -> list[int]:
    """Return the places of a kind of matrix, over all layers, on the axis of matrices.

    Args:
        settings: Settings with the number of layers.
        name: ``query``, ``key``, ``value`` or ``output``.

    Returns:
        One place per layer.
    """
    return [place for place, full in enumerate(attention_names(settings.shape)) if full.startswith(name)]
