r"""Theorem 4: the same function, another Hessian; and a minimum that is known exactly, with its orbit of rescalings.

The paper's $a$, $w^{(1)}$ and $w^{(2)}$ are ``mask (inputs,)``, ``hidden (width, inputs)`` and ``decoder (outputs,
width)``; its positive factors $\alpha_1$ and $\alpha_2$ are ``mask_factor`` and ``hidden_factor``.

All of this rests on ReLU being positively homogeneous. Softplus is not, $\phi_\tau(cu)=c\,\phi_{c\tau}(u)$: its
function is unchanged only if the sharpness becomes $\tau/(\alpha_1\alpha_2)$.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core.rng import stream
from attnbook.core.settings import check_positive
from attnbook.global_attention.two_layer import Hessian

__all__ = ["Minimum", "Network", "hessian_scaling", "output", "rescale"]

ROOM = 3.0  # the bounds of assumption A2 are this many times the norms of the minimum

Mask: TypeAlias = Float[np.ndarray, " inputs"]
Hidden: TypeAlias = Float[np.ndarray, "width inputs"]
Decoder: TypeAlias = Float[np.ndarray, "outputs width"]
Network: TypeAlias = tuple[Mask, Hidden, Decoder]


def rescale(mask: Mask, hidden: Hidden, decoder: Decoder, mask_factor: float, hidden_factor: float) -> Network:
    r"""Return $T_{\alpha_1,\alpha_2}$ of a network: for ReLU the same function.

    Args:
        mask: The mask, which is multiplied by its factor.
        hidden: The first layer, which is multiplied by its factor.
        decoder: The second layer, which is divided by both.
        mask_factor: Positive.
        hidden_factor: Positive.

    Returns:
        New mask, first and second layer.

    Raises:
        ValueError: If a factor is not positive and finite.

    Example:
        >>> rescale(np.ones(1), np.ones((1, 1)), np.ones((1, 1)), 0.5, 4.0)[2].tolist()
        [[0.5]]
    """
    check_positive(mask_factor=mask_factor, hidden_factor=hidden_factor)
    return mask_factor * mask, hidden_factor * hidden, decoder / (mask_factor * hidden_factor)


def hessian_scaling(
    n_inputs: int, width: int, mask_factor: float, hidden_factor: float
) -> Float[np.ndarray, " parameters"]:
    r"""Return the diagonal of $D$ in $\nabla^2L(T\theta)=D\,\nabla^2L(\theta)\,D$.

    $D=\mathrm{diag}(\alpha_1^{-1}I_p,\ \alpha_2^{-1}I_{pd},\ \alpha_1\alpha_2I_{d})$: the Hessian anywhere on the orbit
    comes from one point without differentiating again. Weights move by the inverse, so volumes grow by $1/\det D$.

    Args:
        n_inputs: The number $p$ of inputs.
        width: The number $d$ of hidden units, with one output.
        mask_factor: Positive.
        hidden_factor: Positive.

    Returns:
        The diagonal, in the order mask, first layer, second layer.

    Raises:
        ValueError: If a factor is not positive and finite.
    """
    check_positive(mask_factor=mask_factor, hidden_factor=hidden_factor)
    counts = [n_inputs, n_inputs * width, width]
    return np.repeat([1 / mask_factor, 1 / hidden_factor, mask_factor * hidden_factor], counts)


@dataclass(frozen=True)
class Minimum:
    """A network, and data that it fits exactly: a minimum of objective (2).

    Attributes:
        mask: In [0, 1], ``(inputs,)``.
        hidden: First layer, ``(width, inputs)``.
        decoder: Second layer, ``(1, width)``.
        inputs: Samples, ``(samples, inputs)``.
        labels: Of the samples, ``(1, samples)``.
    """

    mask: Mask
    hidden: Hidden
    decoder: Decoder
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
        return Hessian(*(torch.from_numpy(a) for a in arrays), activation=torch.relu, loss="squared")

    @cached_property
    def dense(self) -> np.ndarray:
        """The Hessian at the start, written out."""
        return self.hessian().dense().numpy()

    def scaling(self, mask_factor: float, hidden_factor: float) -> np.ndarray:
        """Return the diagonal of :func:`hessian_scaling` for this network."""
        return hessian_scaling(len(self.mask), len(self.hidden), mask_factor, hidden_factor)

    def eigenvalues(self, mask_factor: float, hidden_factor: float) -> np.ndarray:
        """Return all eigenvalues at the rescaled weights, largest first, from the Hessian at the start alone."""
        scaling = self.scaling(mask_factor, hidden_factor)
        return np.linalg.eigvalsh(self.dense * np.outer(scaling, scaling))[::-1]

    def sharpness(self, mask_factor: float, hidden_factor: float) -> float:
        """Return the largest of them."""
        return float(self.eigenvalues(mask_factor, hidden_factor)[0])

    def least_penalty_factor(self, mask_factor: float) -> float:
        r"""Return the $\alpha_2$ at which the L2 penalty on both layers is least, for a given $\alpha_1$.

        $\|\alpha_2w^{(1)}\|^2+\|w^{(2)}\|^2/(\alpha_1\alpha_2)^2$ is least where both terms are equal, and is
        $2\|w^{(1)}\|\|w^{(2)}\|/\alpha_1$ there: it grows as the mask shrinks, and vanishes as the mask grows.
        """
        return math.sqrt(float(np.linalg.norm(self.decoder) / (mask_factor * np.linalg.norm(self.hidden))))

    @property
    def limits(self) -> tuple[float, float, float]:
        """Largest factors of mask and first layer, and the least product of both, that A2 and A4 allow."""
        return 1 / float(self.mask.max()), ROOM, 1 / ROOM

    def allowed(self, mask_factor: float, hidden_factor: float) -> bool:
        """Return whether the rescaled weights satisfy A2 and A4."""
        mask, hidden, product = self.limits
        return mask_factor <= mask and hidden_factor <= hidden and mask_factor * hidden_factor >= product


def output(network: Network, inputs: np.ndarray) -> np.ndarray:
    """Return the outputs ``(outputs, samples)`` of a ReLU network for inputs ``(samples, inputs)``."""
    mask, hidden, decoder = network
    return decoder @ np.maximum((hidden * mask) @ inputs.T, 0.0)
