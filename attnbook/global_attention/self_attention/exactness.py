"""Two identities checked in float64: the network without padding, and uniform attention as a bag of words."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from attnbook.core.rng import stream, to_tensor
from attnbook.global_attention.pooled_networks import Pooled, PooledNetwork
from attnbook.global_attention.review_networks import CHUNK, ReviewNetwork, Shape
from attnbook.global_attention.review_training import Recipe, train
from attnbook.global_attention.reviews import EncodedReviews

WORDS, DIMENSION = 11, 5


def network_error() -> float:
    """Return the largest relative error of the gradients of a network of Table 2, against autograd with all padding.

    The reviews differ in length, one is empty, and none reaches the last positions.
    """
    shape = Shape(n_positions=2 * CHUNK + 3, dimension=DIMENSION, width=7)
    reviews, vectors = _reviews(np.array([1, 0, CHUNK, CHUNK - 1, 23, 2]), "whole network")
    every = np.arange(len(reviews))
    ours = ReviewNetwork("self_attention", shape, vectors, seed=0)
    ours.step(reviews, every)
    p = {name: tensor.detach().clone().requires_grad_() for name, tensor in ours.parameters.items()}
    inputs = torch.nn.functional.pad(vectors[reviews.padded(every)], (0, 0, 0, CHUNK + 3))
    query, key, value = (inputs @ p[name].mT for name in ("query", "key", "value"))
    attended = torch.softmax(query @ key.mT / DIMENSION**0.5, -1) @ value
    hidden = torch.relu(attended.flatten(1) @ p["first"].flatten(0, 1) + p["bias"])
    logits, labels = hidden @ p["decoder"] + p["decoder_bias"], to_tensor(reviews.labels, dtype=torch.float64)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)
    by_hand = [parameter.grad for parameter in ours.parameters.values() if parameter.grad is not None]
    pairs = zip(by_hand, torch.autograd.grad(loss, list(p.values())), strict=True)
    return float(max((one - other).abs().max() / other.abs().max() for one, other in pairs))


def uniform_attention_error(epochs: int = 3) -> float:
    """Return how far logits differ after training from queries and keys of zero, and as the bag of words.

    Zero queries and keys have zero gradient, so they stay where they are.
    """
    shape, recipe = Shape(n_positions=29, dimension=DIMENSION, width=7), Recipe(0.01, epochs, 4)
    reviews, vectors = _reviews(stream(0, "lengths").integers(1, 24, 13), "uniform attention")
    full = ReviewNetwork("self_attention", shape, vectors, seed=0)
    full.parameters["query"].zero_()
    full.parameters["key"].zero_()
    train(full, reviews, recipe, seed=0)
    bag = PooledNetwork("uniform_attention", shape, vectors, seed=0)
    pooled = Pooled.of(reviews, vectors.numpy(), "uniform_attention", shape.n_positions)
    train(bag, pooled, recipe, seed=0)
    return float(np.abs(full.logits(reviews) - bag.logits(pooled)).max())


def _reviews(lengths: np.ndarray, name: str) -> tuple[EncodedReviews, Tensor]:
    """Random reviews of these lengths, and vectors of their words."""
    rng, starts = stream(0, name), np.concatenate([[0], np.cumsum(lengths)])
    labels = rng.integers(0, 2, len(lengths)) * 1.0
    reviews = EncodedReviews(rng.integers(1, WORDS, starts[-1]), starts, labels)
    table = np.concatenate([np.zeros((1, DIMENSION)), rng.standard_normal((WORDS - 1, DIMENSION))])
    return reviews, to_tensor(table, dtype=torch.float64)
