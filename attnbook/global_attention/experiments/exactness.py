"""Identities, checked in float64: attention and its network without padding, uniform attention as a bag of words."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from attnbook.core.rng import stream, to_tensor
from attnbook.global_attention.padding_free_attention import attend_with_gradient
from attnbook.global_attention.pooled_networks import PooledNetwork, train_pooled
from attnbook.global_attention.position_layer import CHUNK
from attnbook.global_attention.review_networks import Network, ReviewNetwork, Shape, initial_weights
from attnbook.global_attention.review_training import Recipe, train_reviews
from attnbook.global_attention.reviews import EncodedReviews

__all__ = ["network_error", "padding_free_errors", "uniform_attention_error"]


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


def network_error(network: Network = "self_attention") -> float:
    """Compare all gradients of a network of Table 2 with those of the padded network under autograd.

    The reviews differ in length; one is empty, and none reaches the last positions, which share one update.

    Args:
        network: Which of the two.

    Returns:
        Largest error, relative to the largest entry of each gradient.
    """
    shape, rng = Shape(n_positions=2 * CHUNK + 3, dimension=5, width=7), stream(0, "whole network")
    lengths = np.array([1, 0, CHUNK, CHUNK - 1, 23, 2])
    starts = np.concatenate([[0], np.cumsum(lengths)])
    reviews = EncodedReviews(rng.integers(1, 11, starts[-1]), starts, rng.integers(0, 2, len(lengths)) * 1.0)
    table = np.concatenate([np.zeros((1, 5)), rng.standard_normal((10, 5))])
    vectors = to_tensor(table, dtype=torch.float64)
    ours = ReviewNetwork(network, shape, vectors, seed=0, longest=int(lengths.max()))
    ours.step(reviews, np.arange(len(lengths)))
    small, weights = initial_weights(shape, 0, vectors)
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in small.items()} | {"weights": weights}
    weights.requires_grad_()
    inputs = torch.nn.functional.pad(vectors[reviews.padded(np.arange(len(lengths)))], (0, 0, 0, CHUNK + 3))
    with torch.enable_grad():
        _padded_loss(network, leaves, inputs, to_tensor(reviews.labels, dtype=torch.float64)).backward()
    rows = len(ours.parameters["rows"])
    expected = {name: _gradient(leaf) for name, leaf in leaves.items() if name in ours.parameters}
    expected |= {"rows": _gradient(weights)[:rows], "tail": _gradient(weights)[rows:]}
    tiny = torch.finfo(
        torch.float64
    ).tiny  # padding gives the flat network no gradient at all: then no error is allowed
    errors = [
        (_gradient(ours.parameters[name]) - g).abs().max() / g.abs().max().clamp(min=tiny)
        for name, g in expected.items()
    ]
    return float(torch.stack(errors).max())


def _gradient(tensor: Tensor) -> Tensor:
    assert tensor.grad is not None
    return tensor.grad


def _padded_loss(network: Network, p: dict[str, Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
    """The network as the paper writes it: every position, one matrix each."""
    if network == "self_attention":
        query, key, value = (inputs @ p[name].mT for name in ("query", "key", "value"))
        inputs = torch.softmax(query @ key.mT / query.shape[-1] ** 0.5, -1) @ value
    hidden = torch.relu(inputs.flatten(1) @ p["weights"].flatten(0, 1) + p["bias"])
    logits = hidden @ p["decoder"] + p["decoder_bias"]
    return torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)


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
