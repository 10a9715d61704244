"""How the networks of Table 2 are trained, and what is looked at after each epoch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from attnbook.core import update_rules
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress
from attnbook.global_attention.review_networks import ReviewNetwork, batches
from attnbook.global_attention.reviews import EncodedReviews

__all__ = ["Recipe", "accuracy", "epoch_batches", "train_reviews"]


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


def train_reviews(
    network: ReviewNetwork,
    reviews: EncodedReviews,
    recipe: Recipe,
    *,
    seed: int,
    after_epoch: Callable[[], None],
    progress: Progress | None = None,
) -> Float[np.ndarray, " epochs"]:
    """Train a network in place.

    Args:
        network: The network, made for reviews of this length.
        reviews: Training reviews.
        recipe: Step size, epochs and batches.
        seed: Seed of the order of the reviews; networks of one seed and sample size see the same batches.
        after_epoch: Called after each epoch.
        progress: Told (steps done, steps in all).

    Returns:
        Mean training loss in each epoch.

    Raises:
        FloatingPointError: If the loss becomes NaN or infinite; names network, epoch and step size.
    """
    rule = update_rules.Adam(recipe.step_size)
    optimizer = rule.build([{"params": list(network.parameters.values()), **rule.options(1)[0]}])
    in_all = recipe.epochs * -(-len(reviews) // recipe.batch_size)
    losses, done = [], 0
    for epoch in range(recipe.epochs):
        total = 0.0
        for chosen in epoch_batches(len(reviews), recipe, seed, epoch):
            total += network.step(reviews, chosen) * len(chosen)
            optimizer.step()
            done += 1
            if progress:
                progress(done, in_all)
        losses.append(total / len(reviews))
        if not np.isfinite(losses[-1]):
            raise FloatingPointError(
                f"{network.network}, seed {seed}, {len(reviews)} reviews: loss {losses[-1]} in epoch {epoch + 1}, "
                f"step size {recipe.step_size}"
            )
        after_epoch()
    return np.array(losses)


def epoch_batches(n_reviews: int, recipe: Recipe, seed: int, epoch: int) -> list[Int[np.ndarray, " batch"]]:
    """Return the batches of an epoch, the same for every network of a seed."""
    return list(batches(n_reviews, recipe.batch_size, rng=stream(seed, "batches", n_reviews, epoch)))


def accuracy(logits: Float[np.ndarray, " reviews"], labels: Float[np.ndarray, " reviews"]) -> float:
    """Return the share of reviews, in per cent, whose logit has the right sign.

    Args:
        logits: Positive for praise.
        labels: 1 for praise, 0 for blame.

    Returns:
        Between 0 and 100.

    Raises:
        ValueError: If there is no review.

    Example:
        >>> accuracy(np.array([2.0, -1.0]), np.array([1.0, 1.0]))
        50.0
    """
    if not len(labels):
        raise ValueError("labels: expected at least one review, got none")
    return float(100 * np.mean((logits > 0) == (labels > 0.5)))
