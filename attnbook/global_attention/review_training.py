"""How the networks of Table 2 and their controls are trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from attnbook.core import update_rules
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress

__all__ = ["Classifier", "Recipe", "accuracy", "epoch_batches", "train"]


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
        if self.epochs < 1 or self.batch_size < 1:
            raise ValueError(f"epochs, batch_size: expected at least 1, got {self.epochs}, {self.batch_size}")


@runtime_checkable
class Classifier(Protocol):
    """What can be trained: :class:`.ReviewNetwork` and :class:`.PooledNetwork`."""

    @property
    def network(self) -> str:
        """Which network it is, for messages."""

    def groups(self, step_size: float) -> list[dict[str, Any]]:
        """Return the parameters with their step sizes, as torch's optimisers take them."""

    def step(self, reviews: Any, chosen: Int[np.ndarray, " reviews"]) -> float:
        """Set the gradient of the mean loss over some reviews, and return that loss."""


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


def accuracy(logits: Float[np.ndarray, " reviews"], labels: Float[np.ndarray, " reviews"]) -> float:
    """Return the share of reviews, in per cent, whose logit has the right sign.

    Args:
        logits: Positive for praise.
        labels: 1 for praise, 0 for blame.

    Returns:
        Between 0 and 100.

    Raises:
        ValueError: If there is no review.
    """
    if not len(labels):
        raise ValueError("labels: expected at least one review, got none")
    return float(100 * np.mean((logits > 0) == (labels > 0.5)))
