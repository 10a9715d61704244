"""A minimum that is known exactly, and its orbit of rescalings (Theorem 4)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from attnbook.core.rng import stream
from attnbook.global_attention.rescaling import Network, hessian_scaling, least_penalty_factor, rescale
from attnbook.global_attention.two_layer import Hessian, ReLU

__all__ = ["Minimum", "output"]

ROOM = 3.0  # the bounds of assumption A2 are this many times the norms of the minimum


@dataclass(frozen=True)
class Minimum:
    """A network, and data that it fits exactly: a minimum of objective (2).

    Attributes:
        mask: In [0, 1], ``(inputs,)``.
        hidden: First layer, ``(width, inputs)``.
        decoder: Second layer, ``(1, width)``.
        inputs: Samples, ``(samples, inputs)``.
        labels: Their labels, ``(1, samples)``.
    """

    mask: np.ndarray
    hidden: np.ndarray
    decoder: np.ndarray
    inputs: np.ndarray
    labels: np.ndarray

    @classmethod
    def draw(cls, seed: int, *, n_inputs: int = 7, width: int = 5, samples: int = 43) -> Minimum:
        """Return the minimum of a seed: a random ReLU network that made the labels itself."""
        rng = stream(seed, "exact minimum")
        mask = 0.2 + 0.8 * rng.random(n_inputs)
        hidden = rng.standard_normal((width, n_inputs)) / np.sqrt(n_inputs)
        decoder = rng.standard_normal((1, width)) / np.sqrt(width)
        inputs = rng.standard_normal((samples, n_inputs))
        return cls(mask, hidden, decoder, inputs, output((mask, hidden, decoder), inputs))

    def network(self, mask_factor: float = 1.0, hidden_factor: float = 1.0) -> Network:
        """Return the rescaled weights."""
        return rescale(self.mask, self.hidden, self.decoder, mask_factor, hidden_factor)

    def hessian(self, mask_factor: float = 1.0, hidden_factor: float = 1.0) -> Hessian:
        """Return the Hessian at the rescaled weights, computed there."""
        arrays = (*self.network(mask_factor, hidden_factor), self.inputs, self.labels)
        return Hessian(*(torch.as_tensor(a) for a in arrays), activation=ReLU(), loss="squared")

    @cached_property
    def dense(self) -> np.ndarray:
        """The Hessian at the start, written out."""
        return self.hessian().dense().numpy()

    def eigenvalues(self, mask_factor: float, hidden_factor: float) -> np.ndarray:
        """Return all eigenvalues at the rescaled weights, largest first, from the Hessian at the start alone."""
        scaling = hessian_scaling(len(self.mask), len(self.hidden), mask_factor, hidden_factor)
        return np.linalg.eigvalsh(self.dense * np.outer(scaling, scaling))[::-1]

    def sharpness(self, mask_factor: float, hidden_factor: float) -> float:
        """Return the largest of them."""
        return float(self.eigenvalues(mask_factor, hidden_factor)[0])

    def log_volume(self, mask_factor: float, hidden_factor: float) -> float:
        """Return the logarithm of the factor by which the rescaling changes volumes of weights."""
        return -float(np.log(hessian_scaling(len(self.mask), len(self.hidden), mask_factor, hidden_factor)).sum())

    def loss_change(self, seed: int, hidden_factor: float) -> float:
        """Return how much the loss changes at most, among points around the minimum, when the map moves them."""
        rng, changes = stream(seed, "neighbours"), []
        for _ in range(20):
            mask, hidden, decoder = (a + 0.01 * rng.standard_normal(a.shape) for a in self.network())
            both = (mask, hidden, decoder), rescale(mask, hidden, decoder, 1.0, hidden_factor)
            changes.append(np.diff([np.square(output(at, self.inputs) - self.labels).mean() / 2 for at in both])[0])
        return float(np.abs(changes).max())

    def least_penalty(self, mask_factor: float) -> tuple[float, float]:
        """Return the least L2 penalty on both layers for a mask this much larger, and the sharpness there."""
        factor = least_penalty_factor(self.hidden, self.decoder, mask_factor)
        _, hidden, decoder = self.network(mask_factor, factor)
        return float(np.square(hidden).sum() + np.square(decoder).sum()), self.sharpness(mask_factor, factor)

    @property
    def limits(self) -> tuple[float, float, float]:
        """Largest factors of mask and first layer, and the least product of both, that A2 and A4 allow."""
        return 1 / float(self.mask.max()), ROOM, 1 / ROOM

    def allowed(self, mask_factor: float, hidden_factor: float) -> bool:
        """Return whether the rescaled weights satisfy A2 and A4."""
        mask, hidden, product = self.limits
        return mask_factor <= mask and hidden_factor <= hidden and mask_factor * hidden_factor >= product


def output(network: Network, inputs: np.ndarray) -> np.ndarray:
    """Return the outputs of a ReLU network for these inputs."""
    mask, hidden, decoder = network
    return decoder @ np.maximum((hidden * mask) @ inputs.T, 0.0)
