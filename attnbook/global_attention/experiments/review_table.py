"""The common part of Table 2 and its miniature: networks and controls on reviews, one cell at a time.

A cell is one network, one number of training reviews, one seed. Each finished cell is kept on disk where a folder for
it is given, so that a long run may be interrupted, continued, and extended by further seeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core import runtime
from attnbook.core.results import Clock, Result
from attnbook.core.resuming import check_seeds, resumable
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress, threads
from attnbook.datasets import Source, synthetic
from attnbook.global_attention.padding_free_attention import attention_weights, padding_mass
from attnbook.global_attention.pooled_networks import PooledNetwork, train_pooled
from attnbook.global_attention.review_networks import ReviewNetwork, Shape
from attnbook.global_attention.review_training import Recipe, accuracy, train_reviews
from attnbook.global_attention.reviews import Corpus, EncodedReviews, load_corpus

__all__ = ["MODELS", "PICTURED", "ReviewSettings", "ReviewTable", "train_table"]

MODELS = ("baseline", "self_attention", "uniform_attention", "mean_pooling")
# Words of one review that are drawn.
PICTURED = 14
# Test reviews on which the mass of attention on real words is averaged.
N_MASS = 200


@dataclass(frozen=True)
class ReviewSettings:
    """Sizes of Table 2 and how its networks are trained.

    Attributes:
        reviews: ``imdb``, or ``synthetic`` for the reviews that come with the package.
        vectors: Name of the word vectors; the paper's, GloVe 6B, are ``glove6B_100d``.
        dimension: Entries of a word vector; 100 in the paper.
        n_positions: Positions after padding; 2142 in the paper. Longer reviews are cut.
        width: Hidden units; 256 in the paper.
        sizes: Training reviews.
        n_test: Test reviews, the same for all networks and seeds.
        epochs: Epochs, fixed; the paper does not say how long it trains.
        step_size: Step size of Adam for the two networks of Table 2 and for uniform attention; ours.
        pooling_step_size: That for the mean of the word vectors; ours.
        pooling_passes: Epochs of the mean of the word vectors in each epoch of the others; each costs a hundredth.
        batch_size: Reviews per step; ours.
        seeds: Seeds of the choice of training reviews, the batches and the initial weights.
    """

    reviews: Source
    vectors: str
    dimension: int
    n_positions: int
    width: int
    sizes: tuple[int, ...]
    n_test: int
    epochs: int
    step_size: float
    pooling_step_size: float
    pooling_passes: int
    batch_size: int
    seeds: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.sizes or sorted(set(self.sizes)) != list(self.sizes) or self.sizes[0] < 1:
            raise ValueError(f"sizes: expected increasing positive numbers, got {self.sizes}")
        check_seeds(self.seeds, 1)
        _ = self.recipe, self.pooling_recipe, self.shape

    @property
    def shape(self) -> Shape:
        """Sizes of a network."""
        return Shape(self.n_positions, self.dimension, self.width)

    @property
    def recipe(self) -> Recipe:
        """How the networks of Table 2 are trained."""
        return Recipe(self.step_size, self.epochs, self.batch_size)

    @property
    def pooling_recipe(self) -> Recipe:
        """How the mean of the word vectors is trained."""
        return Recipe(self.pooling_step_size, self.epochs * self.pooling_passes, self.batch_size)

    def cells(self) -> dict[str, tuple[int, int, str]]:
        """Return name to (seed, training reviews, model) of each cell, seed by seed."""
        return {
            f"seed-{seed}-{size}-{model}": (seed, size, model)
            for seed in self.seeds
            for size in self.sizes
            for model in MODELS
        }


@dataclass(frozen=True)
class ReviewTable(Result):
    """Accuracies of every network after every epoch.

    Attributes:
        test_accuracy: Per cent of the test reviews, ``(seeds, sizes, models, epochs)``.
        train_loss: Mean training loss in each epoch, likewise.
        pooled_path: Accuracy of self-attention at the end when only the output of padding is left, ``(seeds, sizes)``.
        real_mass: Mean share of a word's attention on real words, at the start and the end, ``(seeds, sizes, 2)``.
        attention: Of one test review, how much each of its first words attends to each of them, in units of
            1 / ``n_positions``; trained on most reviews with the first seed, ``(words, words)``.
        effect: What each of these words adds to the logit of its review: with it minus without it, ``(words,)``.
        words: The words.
        source: Where reviews and vectors came from.
    """

    test_accuracy: Float[np.ndarray, "seeds sizes models epochs"]
    train_loss: Float[np.ndarray, "seeds sizes models epochs"]
    pooled_path: Float[np.ndarray, "seeds sizes"]
    real_mass: Float[np.ndarray, "seeds sizes 2"]
    attention: Float[np.ndarray, "words words"]
    effect: Float[np.ndarray, " words"]
    words: tuple[str, ...]
    source: str

    def of(self, model: str, epoch: int = 0) -> Float[np.ndarray, "seeds sizes"]:
        """Return the accuracies of one model.

        Args:
            model: One of :data:`MODELS`.
            epoch: After which epoch, from 1; default 0, the last.

        Returns:
            Per cent.
        """
        return self.test_accuracy[:, :, MODELS.index(model), epoch - 1]

    def at(self, model: str, size: int) -> Float[np.ndarray, " seeds"]:
        """Return the final accuracies of one model at one number of training reviews."""
        return self.of(model)[:, self.settings.sizes.index(size)]


def train_table(
    settings: ReviewSettings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
    held_out: bool = False,
) -> dict[str, Any]:
    """Train all cells.

    Args:
        settings: Reviews, sizes, seeds and recipe.
        device: Where to train; default the first of cuda, mps and cpu.
        progress: Told (work done, work in all), every cell counted the same.
        workdir: Folder that keeps finished cells; default none.
        held_out: Test on training reviews that are set apart, not on test reviews; default False.

    Returns:
        The fields of a :class:`ReviewTable`.

    Raises:
        ValueError: If the device or the data are not available, or there are too few reviews.
        FloatingPointError: If a network diverges.
    """
    clock, where = Clock(), runtime.device(device)
    corpus = load_corpus(
        settings.reviews,
        settings.vectors,
        dimension=settings.dimension,
        n_positions=settings.n_positions,
        n_test=settings.n_test,
    )
    if held_out:
        corpus = _without_test_reviews(corpus, settings.n_test)
    if settings.sizes[-1] > len(corpus.train):
        raise ValueError(f"sizes: expected at most {len(corpus.train)}, the training reviews, got {settings.sizes}")
    cells, bench = settings.cells(), _Bench(settings, corpus, where)
    with threads(1):
        parts = resumable(
            list(cells),
            lambda name, inner: bench.train(*cells[name], inner),
            # What a cell depends on: further seeds and sizes leave it as it is.
            settings={name: value for name, value in asdict(settings).items() if name not in ("seeds", "sizes")},
            clock=clock,
            workdir=workdir,
            progress=progress,
        )
    attending = {key: parts[name] for name, key in cells.items() if key[2] == "self_attention"}
    drawn = attending[settings.seeds[0], settings.sizes[-1], "self_attention"]
    return {
        "settings": settings,
        "provenance": clock.provenance(where),
        "test_accuracy": _gathered(settings, parts, "test_accuracy"),
        "train_loss": _gathered(settings, parts, "train_loss"),
        "pooled_path": np.stack([part["pooled_path"] for part in attending.values()]).reshape(len(settings.seeds), -1),
        "real_mass": np.stack([part["real_mass"] for part in attending.values()]).reshape(len(settings.seeds), -1, 2),
        "attention": drawn["attention"],
        "effect": drawn["effect"],
        "words": tuple(corpus.words[i] for i in corpus.test.words(bench.pictured)[:PICTURED]),
        "source": corpus.source,
    }


def _without_test_reviews(corpus: Corpus, count: int) -> Corpus:
    """Set some training reviews apart and let them take the place of the test reviews."""
    order = stream(0, "reviews set apart").permutation(len(corpus.train))
    return replace(corpus, train=corpus.train.take(order[count:]), test=corpus.train.take(order[:count]))


def _gathered(settings: ReviewSettings, parts: Mapping[str, Mapping[str, np.ndarray]], name: str) -> np.ndarray:
    shape = len(settings.seeds), len(settings.sizes), len(MODELS), settings.epochs
    return np.stack([part[name] for part in parts.values()]).reshape(shape)


def _pictured(corpus: Corpus, source: Source) -> int:
    """The shortest test review with enough words; of the synthetic ones, with praise and blame among the first."""
    lengths = corpus.test.lengths
    fits = lengths >= PICTURED
    if source == "synthetic":
        kinds = [{row for row, word in enumerate(corpus.words) if word in kind} for kind in synthetic.polar_words()]
        first = [set(corpus.test.words(review)[:PICTURED].tolist()) for review in range(len(lengths))]
        both = np.array([all(words & kind for kind in kinds) for words in first])
        fits = fits & both if (fits & both).any() else fits
    return int(np.argmin(np.where(fits, lengths, lengths.max() + 1)))


class _Bench:
    """Trains a cell and measures it."""

    def __init__(self, settings: ReviewSettings, corpus: Corpus, device: torch.device) -> None:
        self.settings, self.corpus = settings, corpus
        self.vectors = to_tensor(corpus.vectors, device=device)
        self.pictured = _pictured(corpus, settings.reviews)

    def train(self, seed: int, size: int, model: str, progress: Progress | None) -> dict[str, np.ndarray]:
        order = stream(seed, "training reviews").permutation(len(self.corpus.train))
        train = self.corpus.train.take(order[:size])
        pooled = model in ("uniform_attention", "mean_pooling")
        return (self._control if pooled else self._network)(seed, model, train, progress)

    def _network(
        self, seed: int, model: Any, train: EncodedReviews, progress: Progress | None
    ) -> dict[str, np.ndarray]:
        s, test = self.settings, self.corpus.test
        longest = max(1, int(train.lengths.max()))
        network = ReviewNetwork(model, s.shape, self.vectors, seed=seed, longest=longest)
        mass = [self._real_mass(network)]
        found: list[float] = []
        losses = train_reviews(
            network,
            train,
            s.recipe,
            seed=seed,
            after_epoch=lambda: found.append(accuracy(network.logits(test), test.labels)),
            progress=progress,
        )
        arrays: dict[str, Any] = {"test_accuracy": found, "train_loss": losses}
        if model == "self_attention":
            arrays["pooled_path"] = accuracy(network.logits(test, only_padding=True), test.labels)
            arrays["real_mass"] = [*mass, self._real_mass(network)]
            arrays |= self._picture(network)
        return arrays

    def _control(
        self, seed: int, model: Any, train: EncodedReviews, progress: Progress | None
    ) -> dict[str, np.ndarray]:
        s, test = self.settings, self.corpus.test
        network = PooledNetwork(model, s.shape, self.vectors, seed=seed)
        pooled, seen = self._pooled(train, model), self._pooled(test, model)
        inputs, found = to_tensor(seen, device=self.vectors.device), []

        def look() -> None:
            found.append(accuracy(network.logits(network.parameters, inputs).double().cpu().numpy(), test.labels))

        passes, recipe = 1, s.recipe
        if model == "mean_pooling":
            passes, recipe = s.pooling_passes, s.pooling_recipe
        losses = train_pooled(network, pooled, train.labels, recipe, seed=seed, after_epoch=look, progress=progress)
        return {"test_accuracy": np.array(found)[passes - 1 :: passes], "train_loss": losses[passes - 1 :: passes]}

    def _pooled(self, reviews: EncodedReviews, model: str) -> np.ndarray:
        means = reviews.means(self.corpus.vectors)
        return means if model == "mean_pooling" else means * reviews.lengths[:, None] / self.settings.n_positions

    def _real_mass(self, network: ReviewNetwork) -> float:
        """Mean over words, then over some test reviews, of the attention that does not fall on padding."""
        if network.network == "baseline":
            return 0.0
        test, shares = self.corpus.test, []
        for review in range(min(N_MASS, len(test))):
            tokens = network.tokens(test, np.array([review]))
            shares.append(1 - float(padding_mass(tokens, network.key_query(), self.settings.n_positions).mean()))
        return float(np.mean(shares))

    def _picture(self, network: ReviewNetwork) -> dict[str, np.ndarray]:
        words = self.corpus.test.words(self.pictured)
        shown = min(PICTURED, len(words))
        tokens, n = network.tokens(self.corpus.test, np.array([self.pictured])), self.settings.n_positions
        weights = attention_weights(tokens, network.key_query(), n)[0, :shown, :shown]
        without = [np.delete(words, j) for j in range(shown)]
        variants = EncodedReviews(
            np.concatenate([words, *without]),
            np.cumsum([0, len(words), *map(len, without)]),
            np.zeros(shown + 1),
        )
        logits = network.logits(variants)
        return {"attention": weights.double().cpu().numpy() * n, "effect": logits[0] - logits[1:]}
