"""Warnings when Assumption 2 or 3 fails, and what degenerates then."""

from __future__ import annotations

import warnings

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["LARGEST_SIGNAL", "warn_about_assumptions", "warn_about_sizes"]

LARGEST_SIGNAL = 0.5
r"""Largest $s_1$ for which $E e^{x^\top V^\top\Sigma Vx}$ is finite at the minima; the paper's is missing."""
_NO_RATE = (
    "Assumption 2 fails; the smallest singular value of A Sigma^(1/2) is zero, "
    "so the guaranteed rate degenerates to zero"
)


def warn_about_assumptions(singular_values: Float[Tensor, "*batch dimension"], n_outputs: int) -> None:
    r"""Warn when Assumption 2 or 3 fails, and say what degenerates.

    Args:
        singular_values: Of $A\Sigma^{1/2}$, largest first.
        n_outputs: Number of outputs $m$.

    Warns:
        UserWarning: If there are fewer outputs than inputs, a singular value is zero, or the largest one is at least
            :data:`LARGEST_SIGNAL`.
    """
    dimension, largest = singular_values.shape[-1], float(singular_values.max())
    warn_about_sizes(n_outputs, dimension, stacklevel=4)
    threshold = dimension * torch.finfo(singular_values.dtype).eps * largest
    if n_outputs >= dimension and float(singular_values.min()) <= threshold:
        warnings.warn(f"y: linearly dependent columns of the least squares map: {_NO_RATE}", stacklevel=3)
    if largest >= LARGEST_SIGNAL:
        warnings.warn(
            f"y: the largest singular value of A Sigma^(1/2) is {largest:.3g}; from {LARGEST_SIGNAL} on "
            "E exp(q), which the 1/n term needs, is infinite (Assumption 3); divide the labels by a constant",
            stacklevel=3,
        )


def warn_about_sizes(n_outputs: int, dimension: int, *, stacklevel: int = 3) -> None:
    """Warn when there are fewer outputs than inputs.

    Args:
        n_outputs: Number of outputs $m$.
        dimension: Number of inputs $d$.
        stacklevel: Whose line the warning names; default the caller of the caller.

    Warns:
        UserWarning: If that is so.
    """
    if n_outputs < dimension:
        warnings.warn(f"fewer outputs ({n_outputs}) than inputs ({dimension}): {_NO_RATE}", stacklevel=stacklevel)
