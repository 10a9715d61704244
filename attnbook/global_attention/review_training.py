"""How the networks of Table 2 and their controls are trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from attnbook.core import update_rules
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress
from attnbook.global_attention.batches import check_sizes
from attnbook.global_attention.review_networks import Classifier

__all__ = ["Recipe", "epoch_batches", "train"]


@dataclass(frozen=True)
class Recipe:
    """Adam on batches without replacement, for a fixed number of epochs.

    Attributes:
        step_size: Step size, constant.
        epochs: How often each review is seen.
        batch_size: Reviews per step.
    """

    step_size: float
    epochs: int
    batch_size: int = 64

    def __post_init__(self) -> None:
        if not 0 < self.step_size < float("inf"):
            raise ValueError(f"step_size: expected a positive number, got {self.step_size}")
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
    """Train a network in place.

    Args:
        network: The network.
        reviews: Training reviews, in the form that the network takes.
        recipe: Step size, epochs and batches.
        seed: Seed of the order of the reviews; networks of one seed and sample size see the same batches.
        after_epoch: Called after each epoch.
        progress: Told (epochs done, epochs in all).

    Returns:
        Mean training loss in each epoch.

    Raises:
        FloatingPointError: If the loss becomes NaN or infinite; names network, epoch and step size.
    """
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
