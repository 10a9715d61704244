r"""Targets that depend on one direction of the input, and what a network has learnt of that direction.

A single-index target is $y = g(\sqrt{d_{in}}\,\langle u, x\rangle)$ with a unit vector $u$, the index, and inputs $x$
uniform on the unit sphere. Nothing here is in the paper, which leaves features to future work (Appendix H.2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.rng import stream
from attnbook.softmax_ntk.data import sphere
from attnbook.softmax_ntk.two_layer import Networks

__all__ = ["TARGETS", "SingleIndex", "draw_single_index", "index_learnt"]

TARGETS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "step": lambda z: np.tanh(2 * z), "wave": lambda z: np.sin(2 * z), "square": lambda z: (z**2 - 1) / 2
}  # fmt: skip
r"""Profiles $g$ by name; two softmax neurons compute the first, and none does the second."""


@dataclass(frozen=True)
class SingleIndex:
    """Samples of one index.

    Attributes:
        inputs: One row per sample, on the unit sphere.
        index: The unit vector $u$.
        noise: What is added to each label.
    """

    inputs: Float[np.ndarray, "samples inputs"]
    index: Float[np.ndarray, " inputs"]
    noise: Float[np.ndarray, " samples"]

    @property
    def projections(self) -> Float[np.ndarray, " samples"]:
        r"""Arguments $\sqrt{d_{in}}\,\langle u, x\rangle$ of the profile."""
        return np.sqrt(len(self.index)) * self.inputs @ self.index


def draw_single_index(n_samples: int, n_inputs: int, *, noise: float, seed: int, purpose: str = "train") -> SingleIndex:
    """Return samples of a seed: fewer of a purpose are the first of more, others share the index and nothing else.

    Raises:
        ValueError: If the standard deviation of the noise is negative.

    Example:
        >>> few, more = (draw_single_index(n, 4, noise=0.1, seed=0) for n in (2, 3))
        >>> bool((few.inputs == more.inputs[:2]).all() and (few.index == more.index).all())
        True
    """
    if noise < 0:
        raise ValueError(f"noise: expected a number of at least 0, got {noise}")
    inputs = sphere(n_samples, n_inputs, rng=stream(seed, "single index", purpose))
    errors = noise * stream(seed, "single index", purpose, "noise").standard_normal(n_samples)
    return SingleIndex(inputs, sphere(1, n_inputs, rng=stream(seed, "index"))[0], errors)


@torch.no_grad()
def index_learnt(start: Networks, networks: Networks, index: Float[Tensor, "members inputs"]) -> dict[str, Tensor]:
    r"""Return what of its index $u$ is in the weights $W$ of each network, and in their movement $D = W - W(0)$.

    Returns:
        ``movement``: $\|D\|_F / \|W(0)\|_F$; ``aligned``: $\|u^\top W\|^2 / \|W\|_F^2$, about $1/d_{in}$ for random
        weights; ``direction``: the first left singular vector of $D$; ``cosine`` between it and $u$, without sign;
        ``signed``: the share of neurons that move along $u$ in the direction of their output sign.
    """
    weights, moved = networks.first_layer, networks.first_layer - start.first_layer
    direction = torch.linalg.eigh((moved @ moved.mT).double().cpu())[1][:, :, -1].to(moved)
    along = (index[:, :, None] * moved).sum(1)
    return {
        "movement": moved.norm(dim=(1, 2)) / start.first_layer.norm(dim=(1, 2)),
        "aligned": (index[:, :, None] * weights).sum(1).square().sum(1) / weights.square().sum((1, 2)),
        "direction": direction,
        "cosine": (direction * index).sum(1).abs(),
        "signed": (along * networks.signs[:, 0] > 0).to(moved).mean(1),
    }
