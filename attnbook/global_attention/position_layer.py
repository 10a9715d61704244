r"""A first layer with its own weights at every position, on inputs that differ from a common vector at few positions.

The flattened layer of Table 2 computes $h_i = \sum_{z\le P} W_z^\top o_{iz}$ with 2142 matrices $W_z$. After the last
word of review $i$ all inputs are the same vector $c_i$ (the output of padding; zero for the baseline), so

$$h_i = S^\top c_i + \sum_{z\le L_i} W_z^\top(o_{iz}-c_i),\qquad S=\sum_{z\le P} W_z .$$

The gradient for $W_z$ is $\sum_{i: L_i\ge z}(o_{iz}-c_i)\delta_i^\top + G$, where $G=\sum_i c_i\delta_i^\top$ is one
matrix for all positions. Positions beyond the longest training review receive $G$ alone. An optimiser that acts on
each entry therefore moves all of them alike, and one *tail* matrix keeps the books for them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["PositionLayer"]

# Positions in one matrix product: their weights (6.5 MB at full size) stay in cache between uses.
CHUNK = 64


class PositionLayer:
    """The layer, its gradient in closed form, and the two tensors that an optimiser has to move.

    Attributes:
        weights: All positions, ``(positions, value, width)``.
        rows: View of the positions that training reviews reach; its ``.grad`` is set by :meth:`set_gradients`.
        tail: How far all other positions have moved, ``(value, width)``; its ``.grad`` is set as well.
    """

    def __init__(self, weights: Float[Tensor, "positions value width"], reached: int) -> None:
        """Take over initial weights.

        Args:
            weights: Initial weights; changed in place by training.
            reached: Words of the longest training review, between 1 and the number of positions.

        Raises:
            ValueError: If ``reached`` is outside its range.
        """
        if not 1 <= reached <= len(weights):
            raise ValueError(f"reached: expected between 1 and the {len(weights)} positions, got {reached}")
        self.weights = weights
        self.rows = weights[:reached]
        self.rows.grad = torch.zeros_like(self.rows)
        self.tail = torch.zeros_like(weights[0])
        self.tail.grad = torch.zeros_like(self.tail)
        self._beyond = len(weights) - reached
        self._start_of_tail = weights[reached:].sum(0)
        self._written = torch.zeros_like(self.tail)

    def settle(self) -> None:
        """Write the movement of the tail into ``weights``: needed before reviews longer than those of training."""
        self.weights[len(self.rows) :] += self.tail - self._written
        self._written.copy_(self.tail)

    def total(self) -> Float[Tensor, "value width"]:
        """Return $S$, the sum of the weights over all positions."""
        return self.rows.sum(0) + self._start_of_tail + self._beyond * self.tail

    def forward(
        self, deviations: Float[Tensor, "reviews longest value"], lengths: Int[np.ndarray, " reviews"]
    ) -> Float[Tensor, "reviews width"]:
        """Return the part of the layer that the words add to that of padding.

        Args:
            deviations: Inputs minus the common vector, zero after the last word; the longest review first.
            lengths: Words of each review, falling.

        Returns:
            Sum over the words of each review.

        Raises:
            ValueError: If the reviews are not in the order of falling length, or longer than the layer.
        """
        self._check(deviations, lengths)
        output = deviations.new_zeros(len(deviations), self.weights.shape[2])
        for first, last, active in self._chunks(lengths):
            block = deviations[:active, first:last].flatten(1)
            output[:active].addmm_(block, self.weights[first:last].flatten(0, 1))
        return output

    def set_gradients(
        self,
        deviations: Float[Tensor, "reviews longest value"],
        lengths: Int[np.ndarray, " reviews"],
        common: Float[Tensor, "reviews value"],
        gradient: Float[Tensor, "reviews width"],
    ) -> None:
        """Set the gradients of ``rows`` and ``tail``.

        Args:
            deviations: As for :meth:`forward`.
            lengths: As for :meth:`forward`.
            common: The vector at all padded positions of each review.
            gradient: Gradient of the loss at the output of the whole layer, padding included.

        Raises:
            ValueError: As :meth:`forward`, or if a review is longer than those announced for training.
        """
        self._check(deviations, lengths)
        grad = self.rows.grad
        if grad is None or lengths.max(initial=0) > len(grad):
            raise ValueError(f"lengths: expected at most {len(self.rows)} words in training, got {lengths.max()}")
        shared = common.mT @ gradient
        self.tail.grad = shared
        repeated = shared.repeat(min(CHUNK, len(grad)), 1)
        end = 0
        for first, end, active in self._chunks(lengths):
            here = grad[first:end].flatten(0, 1)
            torch.addmm(
                repeated[: len(here)], deviations[:active, first:end].flatten(1).mT, gradient[:active], out=here
            )
        grad[end:] = shared

    def input_gradient(
        self, lengths: Int[np.ndarray, " reviews"], gradient: Float[Tensor, "reviews width"]
    ) -> Float[Tensor, "reviews longest value"]:
        """Return the gradient at the deviations.

        Args:
            lengths: As for :meth:`forward`.
            gradient: As for :meth:`set_gradients`.

        Returns:
            The gradient; meaningless after the last word of a review.
        """
        found = gradient.new_zeros(len(gradient), int(lengths.max(initial=0)), self.weights.shape[1])
        for first, last, active in self._chunks(lengths):
            here = gradient[:active] @ self.weights[first:last].flatten(0, 1).mT
            found[:active, first:last] = here.unflatten(1, (last - first, -1))
        return found

    def _chunks(self, lengths: np.ndarray) -> Iterator[tuple[int, int, int]]:
        """(first, last + 1, number of reviews that reach the first) for blocks of positions."""
        longest = int(lengths.max(initial=0))
        for first in range(0, longest, CHUNK):
            yield first, min(first + CHUNK, longest), int((lengths > first).sum())

    def _check(self, deviations: Tensor, lengths: np.ndarray) -> None:
        if len(lengths) != len(deviations) or (np.diff(lengths) > 0).any():
            raise ValueError("lengths: expected one per review, the longest first")
        if lengths.max(initial=0) > min(deviations.shape[1], len(self.weights)):
            most = min(deviations.shape[1], len(self.weights))
            raise ValueError(f"lengths: expected at most {most} words, got {lengths.max()}")
