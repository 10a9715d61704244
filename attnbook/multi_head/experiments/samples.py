"""Samples of the tokenised mixture for stacks of members."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnbook.core import runtime
from attnbook.core.rng import stream, to_tensor
from attnbook.multi_head.data import Mixture, draw_patterns, draw_samples

__all__ = ["Drawn", "double_device", "draw"]


class Drawn(NamedTuple):
    """Samples of some seeds, one member each; the first two entries are a batch.

    Attributes:
        tokens: The tokens, in double precision.
        labels: 1 or -1.
        relevant: Which tokens carry the label.
    """

    tokens: Float[Tensor, "members samples tokens dimension"]
    labels: Float[Tensor, "members samples"]
    relevant: Bool[Tensor, "members samples tokens"]


def draw(
    mixture: Mixture,
    n_samples: int,
    seeds: Sequence[int],
    *,
    purpose: str = "samples",
    corners: bool = False,
    device: torch.device | None = None,
) -> Drawn:
    """Draw samples of some seeds; the patterns of a seed are the same for every purpose.

    Args:
        mixture: Sizes and noise.
        n_samples: Samples of each seed, at least 1.
        seeds: Seeds, one member each.
        purpose: What the samples are for; another purpose gives fresh ones. Default those for training.
        corners: Whether noise lies at its bounds, see :func:`~attnbook.multi_head.data.draw_samples`; default no.
        device: Where they are wanted; default CPU.

    Returns:
        The samples.
    """
    found = []
    for seed in seeds:
        patterns = draw_patterns(mixture, rng=stream(seed, "patterns"))
        found.append(draw_samples(mixture, patterns, n_samples, rng=stream(seed, purpose), corners=corners))
    tokens, labels, relevant = (np.stack([getattr(one, name) for one in found]) for name in Drawn._fields)
    where = device or torch.device("cpu")
    return Drawn(
        to_tensor(tokens, device=where, dtype=torch.float64),
        to_tensor(labels, device=where, dtype=torch.float64),
        torch.tensor(relevant, device=where),
    )


def double_device(name: str | torch.device | None = None) -> torch.device:
    """Return the device to compute on in float64: as ``runtime.device``, but the CPU in the place of mps.

    Args:
        name: A device; default cuda where there is one, else the CPU.

    Returns:
        The device.

    Raises:
        ValueError: If this machine has no such device.
    """
    found = runtime.device(name)
    return torch.device("cpu") if found.type == "mps" else found
