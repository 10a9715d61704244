r"""Can this kernel be inverted? Rank, and errors that say why not.

Paired neurons share their features, so a kernel of size $nd$ needs $m\ge 2nd/d_{in}$ neurons, and some more: see
:func:`attnbook.softmax_ntk.stability_bounds.rank_bound`. Where a kernel is inverted,
:func:`attnbook.softmax_ntk.ntk.kernel_coefficients` refuses one that is singular; the solution would be made of
rounding errors.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.softmax_ntk.kernels import Activation

__all__ = ["SingularKernelError", "ZeroKernelError", "rank", "spectrum"]


class SingularKernelError(ValueError):
    """A kernel that was to be inverted has no inverse, up to rounding.

    Attributes:
        rank: Its rank.
        size: Its number of rows.
        width: Smallest width at which the count of features of a paired network reaches the size; None if the sizes of
            the network were not given.
    """

    def __init__(self, rank: int, size: int, width: int | None = None) -> None:
        self.rank, self.size, self.width = rank, size, width
        hint = "pass n_inputs to learn the width a paired network needs"
        if width is not None:
            hint = f"the width must be at least 2 * samples * outputs / inputs = {width}; take about {2 * width}"
        super().__init__(f"kernel: expected full rank, got rank {rank} of {size}; {hint}; equal inputs also cause it")


class ZeroKernelError(ValueError):
    """A kernel is zero: no weight of its network moves an output, and no step size fits it."""

    def __init__(self, member: int, activation: Activation, width: int) -> None:
        remedy = f"all its neurons are off at every sample: take a larger width than {width}, or another seed"
        if activation != "relu":
            remedy = "all its neurons are saturated: take smaller weights (scale), or inputs of norm at most one"
        super().__init__(f"kernel: that of member {member}, activation {activation}, width {width}, is zero; {remedy}")


def rank(kernel: Float[Tensor, "*members rows rows"]) -> Tensor:
    r"""Return the number of eigenvalues of each symmetric positive semi-definite matrix that are not rounding errors.

    Args:
        kernel: The matrices.

    Returns:
        Whole numbers, one for each matrix.

    Raises:
        ValueError: As :func:`spectrum`.

    Example:
        >>> rank(torch.ones(3, 3, dtype=torch.float64)).item()
        1
    """
    eigenvalues = spectrum(kernel)[0]
    return (eigenvalues > kernel.shape[-1] * torch.finfo(kernel.dtype).eps * eigenvalues[..., -1:]).sum(-1)


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
