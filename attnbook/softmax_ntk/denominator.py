r"""What the denominator of the softmax network does: formulas for its start, at infinite and at finite width.

All of these are this book's: the paper works at finite width, and the text available to us has none of its equations.
Weights have the standard deviation $\sigma$ (``scale``); arguments outside their range raise ValueError.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from attnbook.core.settings import check_positive
from attnbook.softmax_ntk.kernels import Activation, infinite_width_kernel

__all__ = [
    "distance_from_limit", "effective_width", "expected_effective_width", "kernel_fluctuation", "output_limit",
    "tail_scales",
]  # fmt: skip


def effective_width(logits: Float[np.ndarray, "*rows width"]) -> Float[np.ndarray, "*rows"]:
    r"""Return the effective number of neurons of a softmax, $1/\sum_rS_r^2$: 1 if one has it all, $m$ if all are equal.

    Raises:
        ValueError: If a logit is not finite; any size will do.

    Example:
        >>> effective_width(np.array([[0.0, 0.0], [1000.0, 0.0]])).tolist()
        [2.0, 1.0]
    """
    if not np.isfinite(logits).all():
        raise ValueError("logits: expected finite numbers, got NaN or infinity")
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(weights.sum(axis=-1) ** 2 / np.square(weights).sum(axis=-1))


def expected_effective_width(width: int, *, scale: float = 1.0, norm: float = 1.0) -> float:
    r"""Return $m\,e^{-\sigma^2\|x\|^2}$, the effective width at the start for a wide network and light tails.

    With $z=\langle w_r,x\rangle$ normal of variance $\sigma^2\|x\|^2$ it is $m(\mathrm E\,e^z)^2/\mathrm E\,e^{2z}$.

    Example:
        >>> round(expected_effective_width(100), 4)
        36.7879
    """
    check_positive(width=width, scale=scale, norm=norm)
    return float(width * np.exp(-((scale * norm) ** 2)))


def tail_scales(width: int) -> tuple[float, float]:
    r"""Return two values of $\sigma\|x\|$: where the formula must begin to fail, and where a few neurons have it all.

    They are $\sqrt{\log(m/2)/2}$ and twice that. A paired network has $N = m/2$ independent Gaussian logits: Derrida's
    random energy model. A sum of $N$ terms $e^{2z}$ is, for very large $N$, near its mean only for
    $\sigma\|x\| < \sqrt{\log(N)/2}$; beyond $\sqrt{2\log N}$ the largest few terms carry the sum of $e^z$ itself.

    Raises:
        ValueError: If there are fewer than two pairs.
    """
    if width < 4:
        raise ValueError(f"width: expected at least two pairs, 4 neurons, got {width}")
    holds = float(np.sqrt(np.log(width / 2) / 2))
    return holds, 2 * holds


def output_limit(
    activation: Activation, inputs: Float[np.ndarray, "samples inputs"], *, n_outputs: int, scale: float = 1.0
) -> Float[np.ndarray, "rows rows"]:
    r"""Return the limit of a kernel at infinite width, $I_d\otimes K$: one equal block per output, zero between."""
    return np.kron(np.eye(n_outputs), infinite_width_kernel(activation, inputs, scale=scale))


def distance_from_limit(
    kernel: Float[np.ndarray, "rows rows"], limit: Float[np.ndarray, "rows rows"], *, n_outputs: int
) -> tuple[float, float]:
    """Return the norm of a kernel less its limit over that of the limit; of blocks between outputs over the kernel's.

    Example:
        >>> distance_from_limit(np.array([[3.0, 4.0], [4.0, 3.0]]), np.eye(2), n_outputs=2)[1]
        0.8
    """
    distance = np.linalg.norm(kernel - limit) / np.linalg.norm(limit)
    samples = len(kernel) // n_outputs
    same = np.kron(np.eye(n_outputs), np.ones((samples, samples)))
    return float(distance), float(np.linalg.norm(kernel * (1 - same)) / np.linalg.norm(kernel))


def kernel_fluctuation(
    activation: Activation,
    inputs: Float[np.ndarray, "samples inputs"],
    *,
    width: int,
    n_outputs: int,
    scale: float = 1.0,
) -> tuple[float, float]:
    r"""Return how far the kernel of a wide paired network scatters around its limit, relative to it, root mean square.

    The second number is that of the blocks between different outputs alone. An entry is an average over $m/2$ pairs,
    so its variance is that of one pair over $m/2$: exact at every width for exp and ReLU, and for softmax to first
    order in the normaliser. With $g_{ij}=\sigma^2\langle x_i,x_j\rangle$ the relative variance of a pair in a block of
    one output is $e^{g_{ii}+2g_{ij}+g_{jj}} - 1$ for exp, $1/p_{ij} - 1$ for ReLU ($p_{ij}$ the probability that both
    are on) and, for softmax,
    $e^{g_{ii}+2g_{ij}+g_{jj}}+e^{g_{ii}}+e^{g_{jj}}+2e^{g_{ij}}-2e^{g_{ij}}(e^{g_{ii}}+e^{g_{jj}})-1$.
    In a block of two outputs only the first term is there, $1/p_{ij}$ for ReLU.

    Example:
        >>> kernel_fluctuation("relu", np.eye(1), width=8, n_outputs=1)
        (0.5, 0.0)
    """
    check_positive(width=width, n_outputs=n_outputs)
    squares = np.square(infinite_width_kernel(activation, inputs, scale=scale))
    same, across = _pair_variance(activation, inputs, scale)
    size = n_outputs * squares.sum()
    within = n_outputs * (squares * same).sum() * 2 / width
    between = n_outputs * (n_outputs - 1) * (squares * across).sum() * 2 / width
    return float(np.sqrt((within + between) / size)), float(np.sqrt(between / size))


def _pair_variance(activation: Activation, inputs: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Relative variance of an entry over pairs, in a block of one output and in one of two."""
    if activation == "relu":
        units = inputs / np.maximum(np.linalg.norm(inputs, axis=1, keepdims=True), 1e-300)
        angle = np.arccos(np.clip(units @ units.T, -1.0, 1.0))
        across = 2 * np.pi / np.maximum(np.pi - angle, 1e-12)
        return across - 1, across
    g = scale**2 * inputs @ inputs.T
    own = np.diagonal(g)
    across = np.exp(2 * g + own[:, None] + own)
    if activation == "exp":
        return across - 1, across
    single = np.exp(own)[:, None] + np.exp(own)
    return across + single + 2 * np.exp(g) - 2 * np.exp(g) * single - 1, across
