r"""The three activations, and their neural tangent kernels at infinite width in closed form.

The paper works at finite width; the kernels here are this book's formulas. They hold at initialisation, for paired
networks whose weights have standard deviation $\sigma$ (``scale``).
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import numpy as np
from jaxtyping import Float

from attnbook.core.settings import check_positive

__all__ = ["ACTIVATIONS", "Activation", "check_activation", "infinite_width_kernel"]

Activation: TypeAlias = Literal["softmax", "exp", "relu"]
ACTIVATIONS: list[Activation] = list(get_args(Activation))


def infinite_width_kernel(
    activation: Activation,
    inputs: Float[np.ndarray, "samples inputs"],
    others: Float[np.ndarray, "others inputs"] | None = None,
    *,
    scale: float = 1.0,
) -> Float[np.ndarray, "samples others"]:
    r"""Return the neural tangent kernel of a paired network at initialisation, as the width grows without bound.

    Per output, and zero between different outputs (this book's formulas; the paper works at finite width):
    $K_{\rm softmax} = \langle x,x'\rangle e^{\sigma^2\langle x,x'\rangle}$,
    $K_{\exp} = \langle x,x'\rangle e^{\sigma^2\|x+x'\|^2/2}$ and
    $K_{\rm relu} = \langle x,x'\rangle(\pi-\theta)/2\pi$ with $\theta$ the angle between $x$ and $x'$.

    Args:
        activation: Which network.
        inputs: One input per row.
        others: Second arguments; default the inputs themselves.
        scale: Standard deviation $\sigma$ of the initial weights, positive; default 1. ReLU does not depend on it.

    Returns:
        The kernel.

    Raises:
        ValueError: If the activation is unknown, the scale is not positive or an input is not finite.

    Example:
        >>> infinite_width_kernel("relu", np.eye(2)).tolist()
        [[0.5, 0.0], [0.0, 0.5]]
    """
    check_activation(activation)
    check_positive(scale=scale)
    others = inputs if others is None else others
    if not (np.isfinite(inputs).all() and np.isfinite(others).all()):
        raise ValueError("inputs, others: expected finite numbers, got NaN or infinity")
    products = inputs @ others.T
    squares, other_squares = (inputs**2).sum(1)[:, None], (others**2).sum(1)
    if activation == "relu":
        norms = np.sqrt(squares * other_squares).clip(1e-300)
        return products * (np.pi - np.arccos(np.clip(products / norms, -1, 1))) / (2 * np.pi)
    exponent = products + (squares + other_squares) / 2 * (activation == "exp")
    return products * np.exp(scale**2 * exponent)


def check_activation(activation: str) -> None:
    """Refuse a name that is no activation."""
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation: expected one of {', '.join(ACTIVATIONS)}, got {activation!r}")
