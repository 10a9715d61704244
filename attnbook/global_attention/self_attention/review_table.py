"""The common part of Table 2, its miniature and the trial of step sizes: training networks and controls on reviews."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, get_args

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float, Int

from attnbook.core import update_rules
from attnbook.core.experiment import Arrays, Experiment
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress, share, threads
from attnbook.core.settings import check_increasing, check_positive, check_sizes
from attnbook.data import Source
from attnbook.global_attention.review_networks import (
    Classifier,
    Control,
    Network,
    Pooled,
    PooledNetwork,
    ReviewNetwork,
    ReviewShape,
)
from attnbook.global_attention.reviews import load_corpus

NETWORKS: tuple[str, ...] = (*get_args(Network), *get_args(Control))
N_MASS = 200  # test reviews on which the mass of attention on real words is averaged


@dataclass(frozen=True)
class Recipe:
    """Adam on batches without replacement, for a fixed number of epochs."""

    step_size: float  #: Step size, constant
    epochs: int  #: How often each review is seen
    batch_size: int = 64  #: Reviews per step

    def __post_init__(self) -> None:
        check_positive(step_size=self.step_size)
        check_sizes(self, "epochs", "batch_size")


def train(
    network: Classifier,
    reviews: Any,
    recipe: Recipe,
    *,
    seed: int,
    after_epoch: Callable[[], object] = lambda: None,
    progress: Progress | None = None,
) -> Float[np.ndarray, " epochs"]:
    """Train a network in place and return its mean training loss in each epoch."""
    optimizer = update_rules.Adam(recipe.step_size).build(network.groups(recipe.step_size))
    losses: list[float] = []
    for epoch in range(recipe.epochs):
        total = 0.0
        for chosen in epoch_batches(len(reviews), recipe, seed, epoch):
            total += network.step(reviews, chosen) * len(chosen)
            optimizer.step()
        losses.append(total / len(reviews))
        if not np.isfinite(losses[-1]):
            raise FloatingPointError(
                f"{network.network}, seed {seed}, {len(reviews)} reviews: loss {losses[-1]} in epoch {epoch + 1}, "
                f"step size {recipe.step_size}"
            )
        after_epoch()
        if progress:
            progress(epoch + 1, recipe.epochs)
    return np.array(losses)


def epoch_batches(n_reviews: int, recipe: Recipe, seed: int, epoch: int) -> list[Int[np.ndarray, " batch"]]:
    """Return all reviews once in random order, in batches, the same for every network; the last one may be smaller."""
    order = stream(seed, "batches", n_reviews, epoch).permutation(n_reviews)
    return [order[first : first + recipe.batch_size] for first in range(0, n_reviews, recipe.batch_size)]


@dataclass(frozen=True, kw_only=True)
class ReviewTable(Experiment):
    """Accuracies of networks on reviews; a cell of the table is one network, one number of reviews, one seed."""

    reviews: Source = "imdb"  # or "synthetic", the reviews that come with the package
    vectors: str = "imdb_ppmi_svd_100d"  # name of the word vectors; the paper's, GloVe 6B, are glove6B_100d
    dimension: int = 100  # entries of a word vector; 100 in the paper
    n_positions: int = 200  # positions after padding, 2142 in the paper; longer reviews are cut
    width: int = 64  # hidden units; 256 in the paper
    sizes: tuple[int, ...] = (437, 875)  # training reviews
    n_test: int = 1000  # test reviews, the same for all networks and seeds
    epochs: int = 5  # fixed; the paper does not say how long it trains
    step_size: float = 1e-3  # of Adam for the networks of Table 2 and for uniform attention; ours
    pooling_step_size: float = 1e-2  # for the mean of the word vectors; ours
    pooling_passes: int = 2  # epochs of the mean of the word vectors per epoch of the others, which cost 100 times more
    batch_size: int = 64  # reviews per step; ours

    def __post_init__(self) -> None:
        super().__post_init__()
        check_increasing(self, "sizes")
        _ = self.recipe("baseline"), self.recipe("mean_pooling"), self.shape

    @property
    def shape(self) -> ReviewShape:
        """Return the sizes of a network."""
        return ReviewShape(self.n_positions, self.dimension, self.width)

    def recipe(self, network: str) -> Recipe:
        """Return how a network is trained."""
        if network == "mean_pooling":
            return Recipe(self.pooling_step_size, self.epochs * self.pooling_passes, self.batch_size)
        return Recipe(self.step_size, self.epochs, self.batch_size)

    def coordinates(self) -> dict[str, Any]:
        """Name numbers of reviews, networks and epochs."""
        return {"size": list(self.sizes), "network": list(NETWORKS), "epoch": list(range(1, self.epochs + 1))}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train all cells of these seeds."""
        bench = Bench(self, device)
        shape = len(seeds), len(self.sizes)
        shapes = dict.fromkeys(("pooled_path", "words_at_start", "words_at_end"), shape)
        full = dict.fromkeys(("test_accuracy", "train_loss"), (*shape, len(NETWORKS), self.epochs))
        found = {name: np.full(size, np.nan) for name, size in (full | shapes).items()}
        cells = list(product(enumerate(seeds), self.sizes, NETWORKS))
        for number, ((i, seed), size, network) in enumerate(cells):
            at: tuple[int, ...] = i, self.sizes.index(size)
            for name, array in bench.train(seed, size, network, share(progress, number, len(cells))).items():
                found[name][(*at, NETWORKS.index(network)) if np.ndim(array) else at] = array
        axes = ("seed", "size", "network", "epoch")
        return {name: (axes[: array.ndim], array) for name, array in found.items()}

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Return nothing, unless claims rest on the table."""
        return {}


class Bench:
    """Trains a cell and measures it."""

    def __init__(self, table: ReviewTable, device: torch.device, *, held_out: bool = False) -> None:
        """Load the reviews; ``held_out`` tests on training reviews that are set apart."""
        s = self.settings = table
        self.corpus = load_corpus(
            s.reviews, s.vectors, dimension=s.dimension, n_positions=s.n_positions, n_test=s.n_test
        )
        if held_out:
            every = self.corpus.train
            order = stream(0, "reviews set apart").permutation(len(every))
            apart, left = every.take(order[: s.n_test]), every.take(order[s.n_test :])
            self.corpus = replace(self.corpus, train=left, test=apart)
        if s.sizes[-1] > len(self.corpus.train):
            raise ValueError(f"sizes: expected at most {len(self.corpus.train)}, the training reviews, got {s.sizes}")
        self.some = self.corpus.test.take(np.arange(min(N_MASS, len(self.corpus.test))))
        self.table = to_tensor(self.corpus.vectors, device=device)

    def train(self, seed: int, size: int, network: Any, progress: Progress | None = None) -> dict[str, Any]:
        """Return accuracies and losses by epoch, and of self-attention what is attended to."""
        s, corpus = self.settings, self.corpus
        accuracies: list[float] = []
        order = stream(seed, "training reviews").permutation(len(corpus.train))
        seen: list[Any] = [corpus.train.take(order[:size]), corpus.test]
        pools, attends = network in get_args(Control), network == "self_attention"
        if pools:
            seen = [Pooled.of(reviews, corpus.vectors, network, s.n_positions) for reviews in seen]
        kind: Any = PooledNetwork if pools else ReviewNetwork

        def accuracy(**options: bool) -> float:
            return float(100 * np.mean((trained.logits(seen[1], **options) > 0) == (corpus.test.labels > 0.5)))

        with threads(1):
            trained = kind(network, s.shape, self.table, seed=seed)
            found = {"words_at_start": trained.mass_on_words(self.some)} if attends else {}
            losses = train(
                trained, seen[0], s.recipe(network), seed=seed, after_epoch=lambda: accuracies.append(accuracy()),
                progress=progress,
            )  # fmt: skip
            if attends:
                found |= {"pooled_path": accuracy(only_padding=True), "words_at_end": trained.mass_on_words(self.some)}
        every = s.pooling_passes if network == "mean_pooling" else 1
        by_epoch = {"test_accuracy": np.array(accuracies), "train_loss": losses}
        return found | {name: values[every - 1 :: every] for name, values in by_epoch.items()}


def final(data: xr.Dataset, network: str, size: int | None = None) -> xr.DataArray:
    """Return the accuracies of a network after the last epoch, at all numbers of reviews or at one."""
    found = data.test_accuracy.isel(epoch=-1).sel(network=network)
    return found if size is None else found.sel(size=size)


def lead(data: xr.Dataset, over: str, network: str = "self_attention") -> xr.DataArray:
    """Return by how much a network is ahead of another after the last epoch."""
    return final(data, network) - final(data, over)
