r"""A first layer with its own weights at every position, on inputs that differ from a common vector at few positions.

The flattened layer of Table 2 computes $h_i = \sum_{z\le P} W_z^\top o_{iz}$ with 2142 matrices $W_z$. After the last
word of review $i$ all inputs are the same vector $c_i$ (the output of padding; zero for the baseline), so

$$h_i = S^\top c_i + \sum_{z\le L_i} W_z^\top(o_{iz}-c_i),\qquad S=\sum_{z\le P} W_z .$$

The gradient for $W_z$ is $\sum_{i: L_i\ge z}(o_{iz}-c_i)\delta_i^\top + G$, where $G=\sum_i c_i\delta_i^\top$ is one
matrix for all positions. ``deviations`` are the $o_{iz}-c_i$, zero after the last word, the longest review first;
``lengths`` are the $L_i$, falling.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["CHUNK", "apply", "input_gradient", "set_gradient"]

# Positions in one matrix product: their weights (6.5 MB at full size) stay in cache between uses.
CHUNK = 64


def apply(
    weights: Float[Tensor, "positions value width"],
    deviations: Float[Tensor, "reviews longest value"],
    lengths: Int[np.ndarray, " reviews"],
) -> Float[Tensor, "reviews width"]:
    """Return the part of the layer that the words add to that of padding.

    Args:
        weights: The matrices of all positions.
        deviations: Inputs minus the common vector.
        lengths: Words of each review.

    Returns:
        Sum over the words of each review.

    Raises:
        ValueError: If the reviews are not in the order of falling length, or longer than the layer.
    """
    _check(weights, deviations, lengths)
    output = deviations.new_zeros(len(deviations), weights.shape[2])
    for first, last, active in _chunks(lengths):
        output[:active].addmm_(deviations[:active, first:last].flatten(1), weights[first:last].flatten(0, 1))
    return output


def set_gradient(
    weights: Float[Tensor, "positions value width"],
    deviations: Float[Tensor, "reviews longest value"],
    lengths: Int[np.ndarray, " reviews"],
    common: Float[Tensor, "reviews value"],
    gradient: Float[Tensor, "reviews width"],
) -> None:
    """Write the gradient of all weights into their ``.grad``.

    Args:
        weights: As for :func:`apply`.
        deviations: As for :func:`apply`.
        lengths: As for :func:`apply`.
        common: The vector at all padded positions of each review.
        gradient: Gradient of the loss at the output of the whole layer, padding included.

    Raises:
        ValueError: As :func:`apply`.
    """
    _check(weights, deviations, lengths)
    if weights.grad is None:
        weights.grad = torch.empty_like(weights)
    shared, end = common.mT @ gradient, 0
    repeated = shared.repeat(min(CHUNK, len(weights)), 1)
    for first, end, active in _chunks(lengths):
        here = weights.grad[first:end].flatten(0, 1)
        torch.addmm(repeated[: len(here)], deviations[:active, first:end].flatten(1).mT, gradient[:active], out=here)
    weights.grad[end:] = shared


def input_gradient(
    weights: Float[Tensor, "positions value width"],
    lengths: Int[np.ndarray, " reviews"],
    gradient: Float[Tensor, "reviews width"],
) -> Float[Tensor, "reviews longest value"]:
    """Return the gradient at the deviations, for arguments as above; meaningless after the last word of a review."""
    found = gradient.new_zeros(len(gradient), int(lengths.max(initial=0)), weights.shape[1])
    for first, last, active in _chunks(lengths):
        here = gradient[:active] @ weights[first:last].flatten(0, 1).mT
        found[:active, first:last] = here.unflatten(1, (last - first, -1))
    return found


def _chunks(lengths: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """(first, last + 1, number of reviews that reach the first) for blocks of positions."""
    longest = int(lengths.max(initial=0))
    for first in range(0, longest, CHUNK):
        yield first, min(first + CHUNK, longest), int((lengths > first).sum())


def _check(weights: Tensor, deviations: Tensor, lengths: np.ndarray) -> None:
    if len(lengths) != len(deviations) or (np.diff(lengths) > 0).any():
        raise ValueError("lengths: expected one per review, the longest first")
    if lengths.max(initial=0) > min(deviations.shape[1], len(weights)):
        most = min(deviations.shape[1], len(weights))
        raise ValueError(f"lengths: expected at most {most} words, got {lengths.max()}")
