"""Two identities, checked in float64: attention without its padding, and uniform attention as a bag of words."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from attnbook.core.rng import stream, to_tensor
from attnbook.global_attention.data.reviews import EncodedReviews
from attnbook.global_attention.models.pooled_networks import PooledNetwork, train_pooled
from attnbook.global_attention.models.review_networks import ReviewNetwork, Shape
from attnbook.global_attention.models.review_training import Recipe, train_reviews
from attnbook.global_attention.models.self_attention import attend_with_gradient

__all__ = ["padding_free_errors", "uniform_attention_error"]


def padding_free_errors(n_positions: int = 40, dimension: int = 7, n_value: int = 5) -> tuple[float, float]:
    """Compare attention on the real words with attention on all padded positions, for every length.

    Args:
        n_positions: Positions after padding.
        dimension: Entries of a word vector.
        n_value: Entries of a value.

    Returns:
        Largest error of the outputs, and largest error of the gradients relative to the largest entry of each.
    """
    rng = stream(0, "padding-free")
    key_query, value = (
        to_tensor(rng.standard_normal((rows, dimension)), dtype=torch.float64) for rows in (dimension, n_value)
    )
    largest, largest_of_gradient = 0.0, 0.0
    for length in range(1, n_positions + 1):
        tokens = to_tensor(rng.standard_normal((1, length, dimension)), dtype=torch.float64)
        gradient = to_tensor(rng.standard_normal((1, n_positions, n_value)), dtype=torch.float64)
        expected, expected_gradients = _padded(tokens, key_query, value, gradient)
        attended, backward = attend_with_gradient(tokens, key_query, value, n_positions)
        found = torch.cat([attended.words, attended.padding.unsqueeze(1).expand(-1, n_positions - length, -1)], 1)
        largest = max(largest, float((found - expected).abs().max()))
        gradients = backward(gradient[:, :length].clone(), gradient[:, length:].sum(1))
        for ours, theirs in zip(gradients, expected_gradients, strict=True):
            # Relative to one where a gradient vanishes: with one word all of its weight may lie on itself.
            scale = max(1.0, float(theirs.abs().max()))
            largest_of_gradient = max(largest_of_gradient, float((ours - theirs).abs().max()) / scale)
    return largest, largest_of_gradient


def _padded(tokens: Tensor, key_query: Tensor, value: Tensor, gradient: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Self-attention as it is written: all positions, autograd."""
    inputs = torch.nn.functional.pad(tokens, (0, 0, 0, gradient.shape[1] - tokens.shape[1]))
    leaves = [matrix.clone().requires_grad_() for matrix in (key_query, value)]
    with torch.enable_grad():
        outputs = torch.softmax(inputs @ leaves[0] @ inputs.mT, -1) @ (inputs @ leaves[1].mT)
        return outputs.detach(), torch.autograd.grad((outputs * gradient).sum(), leaves)


def uniform_attention_error(epochs: int = 3) -> float:
    """Train the network of Table 2 from queries and keys of zero, and the bag of words that it should be.

    Zero queries and keys have zero gradient, so they stay where they are.

    Args:
        epochs: Epochs of training.

    Returns:
        Largest difference of the two networks' logits afterwards.
    """
    rng, shape, recipe = (
        stream(0, "uniform attention"),
        Shape(n_positions=29, dimension=5, width=7),
        Recipe(0.01, epochs, 4),
    )
    lengths = rng.integers(1, 24, 13)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    reviews = EncodedReviews(rng.integers(1, 11, starts[-1]), starts, rng.integers(0, 2, 13).astype(np.float64))
    table = np.concatenate([np.zeros((1, 5)), rng.standard_normal((10, 5))])
    vectors = to_tensor(table, dtype=torch.float64)
    full = ReviewNetwork("self_attention", shape, vectors, seed=0, longest=int(lengths.max()))
    full.parameters["query"].zero_()
    full.parameters["key"].zero_()
    train_reviews(full, reviews, recipe, seed=0, after_epoch=lambda: None)
    bag = PooledNetwork("uniform_attention", shape, vectors, seed=0)
    pooled = reviews.means(table) * reviews.lengths[:, None] / shape.n_positions
    train_pooled(bag, pooled, reviews.labels, recipe, seed=0)
    logits = bag.logits(bag.parameters, to_tensor(pooled, dtype=torch.float64))
    return float(np.abs(full.logits(reviews) - logits.numpy()).max())
