"""Paired networks at the start, and how far their kernel is from its limit at infinite width."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.rng import stream, to_tensor
from attnbook.softmax_ntk.data import draw_sample
from attnbook.softmax_ntk.kernels import Activation, infinite_width_kernel
from attnbook.softmax_ntk.two_layer import Networks, Start, draw_weights

__all__ = ["distance_from_limit", "output_limit", "starting_networks"]


def starting_networks(
    activation: Activation,
    seeds: Sequence[int],
    *,
    width: int,
    n_samples: int,
    n_inputs: int,
    n_outputs: int = 1,
    scale: float = 1.0,
    start: Start = "paired",
    device: torch.device | str = "cpu",
) -> tuple[Networks, Float[Tensor, "seeds samples inputs"]]:
    r"""Draw one network and one training set per seed; other activations and scales of a seed share their draws.

    Args:
        activation: What a neuron computes.
        seeds: Their seeds.
        width: Number of neurons $m$.
        n_samples: Number of samples $n$, on the unit sphere.
        n_inputs: Number of inputs $d_{in}$.
        n_outputs: Number of outputs $d$; default 1.
        scale: Standard deviation $\sigma$ of the weights; default 1.
        start: What neurons share; default the paper's pairs.
        device: Where to compute; default the CPU, which also takes the place of mps: that has no float64.

    Returns:
        The networks side by side, and their inputs.

    Raises:
        ValueError: If a size or the scale is not positive, or the width is odd where pairs are asked for.
    """
    samples = [draw_sample(n_samples, n_inputs, n_outputs, seed=seed).inputs for seed in seeds]
    drawn = [
        draw_weights(width, n_inputs, n_outputs, rng=stream(seed, "weights", width), scale=scale, start=start)
        for seed in seeds
    ]
    where = torch.device("cpu") if torch.device(device).type == "mps" else torch.device(device)
    return Networks.stack(activation, drawn, device=where), to_tensor(
        np.stack(samples), device=where, dtype=torch.float64
    )


def output_limit(
    activation: Activation,
    inputs: Float[np.ndarray, "samples inputs"],
    *,
    n_outputs: int = 1,
    scale: float = 1.0,
) -> Float[np.ndarray, "rows rows"]:
    r"""Return the limit of that kernel at infinite width, $I_d\otimes K$: one equal block per output, zero between.

    Args:
        activation: What a neuron computes.
        inputs: One input per row.
        n_outputs: Number of outputs $d$; default 1.
        scale: Standard deviation $\sigma$ of the weights; default 1.

    Returns:
        The limit.
    """
    return np.kron(np.eye(n_outputs), infinite_width_kernel(activation, inputs, scale=scale))


def distance_from_limit(
    kernel: Float[np.ndarray, "rows rows"], limit: Float[np.ndarray, "rows rows"], *, n_outputs: int
) -> tuple[float, float]:
    """Return the distance of a kernel from its limit, and the size of its blocks between different outputs.

    Args:
        kernel: Kernel of a network.
        limit: What it should tend to.
        n_outputs: Number of outputs, hence of blocks per side.

    Returns:
        Frobenius norms of the difference over the limit, and of the blocks between outputs over the kernel.

    Example:
        >>> distance_from_limit(np.array([[3.0, 4.0], [4.0, 3.0]]), np.eye(2), n_outputs=2)[1]
        0.8
    """
    distance = np.linalg.norm(kernel - limit) / np.linalg.norm(limit)
    samples = len(kernel) // n_outputs
    same = np.kron(np.eye(n_outputs), np.ones((samples, samples)))
    return float(distance), float(np.linalg.norm(kernel * (1 - same)) / np.linalg.norm(kernel))
