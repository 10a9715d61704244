"""Eigenvalues of kernels, and what is wrong with a kernel that is none, or zero."""

from __future__ import annotations

import torch
from torch import Tensor

from attnbook.softmax_ntk.kernels import Activation

__all__ = ["ZeroKernelError", "spectrum"]


class ZeroKernelError(ValueError):
    """A kernel is zero: no weight of its network moves an output, and no step size fits it."""

    def __init__(self, member: int, activation: Activation, width: int) -> None:
        remedy = f"all its neurons are off at every sample: take a larger width than {width}, or another seed"
        if activation != "relu":
            remedy = "all its neurons are saturated: take smaller weights (scale), or inputs of norm at most one"
        super().__init__(f"kernel: that of member {member}, activation {activation}, width {width}, is zero; {remedy}")


def spectrum(kernel: Tensor) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues, increasing, of each kernel and its eigenvectors.

    Args:
        kernel: Symmetric positive semi-definite matrices, up to rounding.

    Returns:
        Eigenvalues, none of them negative, ``(*members, rows)``, and vectors as columns.

    Raises:
        ValueError: If the kernel is not square, finite, symmetric or positive semi-definite, by more than the root of
            the rounding unit.
    """
    if kernel.ndim < 2 or kernel.shape[-2] != kernel.shape[-1] or not kernel.numel():
        raise ValueError(f"kernel: expected a square matrix for each member, got shape {tuple(kernel.shape)}")
    if not torch.isfinite(kernel).all():
        raise ValueError("kernel: expected finite numbers, got NaN or infinity")
    rounding = torch.finfo(kernel.dtype).eps ** 0.5
    uneven = (kernel - kernel.mT).abs().amax((-2, -1))
    if (uneven > rounding * kernel.abs().amax((-2, -1))).any():
        raise ValueError(f"kernel: expected a symmetric matrix, got one that differs by {uneven.max():.3g}")
    found, vectors = torch.linalg.eigh(kernel)
    if (found[..., 0] < -rounding * found[..., -1].abs()).any():
        raise ValueError(f"kernel: expected a positive semi-definite matrix, got the eigenvalue {found.min():.3g}")
    return found.clamp(min=0.0), vectors
