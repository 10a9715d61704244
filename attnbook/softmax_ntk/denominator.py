r"""What the denominator of the softmax network does: formulas for its start, at infinite and at finite width.

==================================  ============================  ==================================
here                                name here                     shape
==================================  ============================  ==================================
$D$                                 ``denominator_scaling``       ``(samples,)``, the diagonal
$1/\sum_rS_r^2$                     ``effective_width``           one number per row of logits
$m e^{-\sigma^2\|x\|^2}$            ``expected_effective_width``  number
==================================  ============================  ==================================

All of these are this book's: the paper works at finite width, and the text available to us has none of its equations.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from attnbook.softmax_ntk.kernels import (
    Activation,
    check_activation,
    check_positive,
    infinite_width_kernel,
)

__all__ = ["denominator_scaling", "effective_width", "expected_effective_width", "kernel_fluctuation", "tail_scales"]


def denominator_scaling(
    inputs: Float[np.ndarray, "samples inputs"], *, scale: float = 1.0
) -> Float[np.ndarray, " samples"]:
    r"""Return the diagonal of $D$ with $K_{\exp} = D\,K_{\rm softmax}\,D$, $D_{ii} = e^{\sigma^2\|x_i\|^2/2}$.

    It is what the denominator of the softmax network, divided by the width, tends to at the start.

    Args:
        inputs: One input per row, of any norm.
        scale: Standard deviation $\sigma$ of the initial weights; default 1.

    Returns:
        One number per input.

    Raises:
        ValueError: If the scale is not positive.

    Example:
        >>> denominator_scaling(np.zeros((1, 2))).tolist()
        [1.0]
    """
    check_positive(scale=scale)
    return np.exp(scale**2 * (inputs**2).sum(1) / 2)


def effective_width(logits: Float[np.ndarray, "*rows width"]) -> Float[np.ndarray, "*rows"]:
    r"""Return the effective number of neurons of a softmax, $1/\sum_rS_r^2$: 1 if one has it all, $m$ if all are equal.

    Args:
        logits: Before the softmax; finite, of any size.

    Returns:
        One number per row, between 1 and the width.

    Raises:
        ValueError: If a logit is not finite.

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

    Args:
        width: $m$, positive.
        scale: $\sigma$; default 1.
        norm: $\|x\|$; default 1.

    Returns:
        The number of neurons.

    Raises:
        ValueError: If an argument is not positive.

    Example:
        >>> round(expected_effective_width(100), 4)
        36.7879
    """
    check_positive(width=width, scale=scale, norm=norm)
    return float(width * np.exp(-((scale * norm) ** 2)))


def tail_scales(width: int) -> tuple[float, float]:
    r"""Return two values of $\sigma\|x\|$: where the formula must begin to fail, and where a few neurons have it all.

    A paired network has $N = m/2$ independent Gaussian logits: Derrida's random energy model. A sum of $N$ terms
    $e^{2z}$ is, for very large $N$, near its mean only for $\sigma\|x\| < \sqrt{\log(N)/2}$; beyond $\sqrt{2\log N}$
    the largest few terms carry the sum of $e^z$ itself.

    Args:
        width: $m$ of a paired network, at least 4.

    Returns:
        $\sqrt{\log(m/2)/2}$ and twice that.

    Raises:
        ValueError: If the width is smaller.
    """
    if width < 4:
        raise ValueError(f"width: expected at least two pairs, 4 neurons, got {width}")
    holds = float(np.sqrt(np.log(width / 2) / 2))
    return holds, 2 * holds


def kernel_fluctuation(
    activation: Activation,
    inputs: Float[np.ndarray, "samples inputs"],
    *,
    width: int,
    n_outputs: int,
    scale: float = 1.0,
) -> tuple[float, float]:
    r"""Return how far the kernel of a wide paired network scatters around its limit, relative to it, root mean square.

    An entry is an average over $m/2$ pairs, so its variance is that of one pair over $m/2$: exact at every width for
    exp and ReLU, and for softmax to first order in the normaliser. With $g_{ij}=\sigma^2\langle x_i,x_j\rangle$ the
    relative variance of a pair in a block of one output is $e^{g_{ii}+2g_{ij}+g_{jj}} - 1$ for exp,
    $1/p_{ij} - 1$ for ReLU ($p_{ij}$ the probability that both are on) and, for softmax,
    $e^{g_{ii}+2g_{ij}+g_{jj}}+e^{g_{ii}}+e^{g_{jj}}+2e^{g_{ij}}-2e^{g_{ij}}(e^{g_{ii}}+e^{g_{jj}})-1$.
    In a block of two outputs only the first term is there, $1/p_{ij}$ for ReLU.

    Args:
        activation: Which network.
        inputs: One input per row.
        width: $m$, positive.
        n_outputs: $d$, at least 1.
        scale: $\sigma$; default 1.

    Returns:
        The Frobenius norms, over that of the limit, of the distance from the limit and of the blocks between
        different outputs alone.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> kernel_fluctuation("relu", np.eye(1), width=8, n_outputs=1)
        (0.5, 0.0)
    """
    check_activation(activation)
    check_positive(width=width, n_outputs=n_outputs, scale=scale)
    limit = infinite_width_kernel(activation, inputs, scale=scale)
    same, across = _pair_variance(activation, inputs, scale)
    size = n_outputs * np.square(limit).sum()
    within = n_outputs * (np.square(limit) * same).sum() * 2 / width
    between = n_outputs * (n_outputs - 1) * (np.square(limit) * across).sum() * 2 / width
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
