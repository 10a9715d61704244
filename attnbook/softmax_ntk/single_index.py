r"""Targets that depend on one direction of the input, and what a network has learned of that direction.

A single-index target is $y = g(\sqrt{d_{in}}\,\langle u, x\rangle)$ with a unit vector $u$, the index, and inputs $x$
uniform on the unit sphere. Nothing here is in the paper, which leaves features to future work (Appendix H.2).
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.rng import stream
from attnbook.softmax_ntk.data import sphere
from attnbook.softmax_ntk.two_layer import Networks

__all__ = ["TARGETS", "draw_single_index", "index_learned"]

TARGETS = {"step": lambda z: np.tanh(2 * z), "square": lambda z: (z**2 - 1) / 2}
r"""Profiles $g$ by name; two softmax neurons compute the first, and no few compute the second."""


def draw_single_index(
    n_samples: int, n_inputs: int, *, seed: int, purpose: str = "train"
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return samples of a seed: fewer of a purpose are the first of more, others share the index and nothing else.

    Args:
        n_samples: Number of samples.
        n_inputs: Number of inputs.
        seed: Of the index and the samples.
        purpose: What they are for; default training.

    Returns:
        Inputs $x$, one row per sample, on the unit sphere; the unit vector $u$; standard normal noise for the labels.

    Raises:
        ValueError: If a size is not positive.

    Example:
        >>> few, more = (draw_single_index(n, 4, seed=0) for n in (2, 3))
        >>> bool((few[0] == more[0][:2]).all() and (few[1] == more[1]).all())
        True
    """
    inputs = sphere(n_samples, n_inputs, rng=stream(seed, "single index", purpose))
    noise = stream(seed, "single index", purpose, "noise").standard_normal(n_samples)
    return inputs, sphere(1, n_inputs, rng=stream(seed, "index"))[0], noise


@torch.no_grad()
def index_learned(start: Networks, networks: Networks, index: Float[Tensor, "members inputs"]) -> dict[str, Tensor]:
    r"""Return what of its index $u$ is in the weights $W$ of each network, and in their movement $D = W - W(0)$.

    Args:
        start: The networks before training.
        networks: The same networks later.
        index: The index of each.

    Returns:
        ``aligned``: $\|u^\top W\|^2 / \|W\|_F^2$, about $1/d_{in}$ for random weights; ``cosine`` between $u$ and the
        first left singular vector of $D$, without sign; ``signed``: the share of neurons that move along $u$ in the
        direction of their output sign.
    """
    weights, moved, along = networks.first_layer, networks.first_layer - start.first_layer, index.unsqueeze(1)
    direction = torch.linalg.eigh((moved @ moved.mT).double().cpu())[1][:, :, -1].to(moved)
    return {
        "aligned": (along @ weights).square().sum((1, 2)) / weights.square().sum((1, 2)),
        "cosine": (direction * index).sum(1).abs(),
        "signed": ((along @ moved)[:, 0] * networks.signs[:, 0] > 0).to(moved).mean(1),
    }
