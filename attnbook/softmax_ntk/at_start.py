"""The kernel of a paired network at the start, and how far it is from its limit at infinite width."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core.rng import to_tensor
from attnbook.softmax_ntk.kernels import Activation, infinite_width_kernel
from attnbook.softmax_ntk.ntk import ntk_gram
from attnbook.softmax_ntk.two_layer import Networks, draw_weights

__all__ = ["distance_from_limit", "initial_kernel", "limit_spectrum", "output_limit"]


def initial_kernel(
    activation: Activation,
    inputs: Float[np.ndarray, "samples inputs"],
    *,
    width: int,
    n_outputs: int = 1,
    scale: float = 1.0,
    rng: np.random.Generator,
) -> Float[np.ndarray, "rows rows"]:
    r"""Draw a paired network and return its kernel $H(W(0))$.

    Args:
        activation: What a neuron computes.
        inputs: One input per row.
        width: Number of neurons $m$, even.
        n_outputs: Number of outputs $d$; default 1.
        scale: Standard deviation $\sigma$ of the weights; default 1.
        rng: Source of randomness.

    Returns:
        The kernel, output-major, ``rows = n_outputs * samples``.

    Raises:
        ValueError: If a size or the scale is not positive, the width is odd or an input is not finite.

    Example:
        >>> one = initial_kernel("relu", np.eye(2), width=6, n_outputs=2, rng=np.random.default_rng(0))
        >>> one.shape
        (4, 4)
    """
    drawn = draw_weights(width, inputs.shape[1], n_outputs, rng=rng, scale=scale)
    return ntk_gram(Networks.stack(activation, [drawn]), to_tensor(inputs[None], dtype=torch.float64))[0].numpy()


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


def limit_spectrum(
    activation: Activation, inputs: Float[np.ndarray, "samples inputs"], *, scale: float = 1.0
) -> Float[np.ndarray, " samples"]:
    r"""Return the eigenvalues of the kernel at infinite width over the largest, decreasing.

    Args:
        activation: What a neuron computes.
        inputs: One input per row.
        scale: Standard deviation $\sigma$ of the weights; default 1.

    Returns:
        The eigenvalues; one over the last is the condition number.
    """
    values = np.linalg.eigvalsh(infinite_width_kernel(activation, inputs, scale=scale))[::-1]
    return values / values[0]
