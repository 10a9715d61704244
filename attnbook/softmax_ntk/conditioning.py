r"""Can this kernel be inverted? Rank, condition number, and an error that says why not.

Paired neurons share their features, so a kernel of size $nd$ needs $m\ge 2nd/d_{in}$ neurons, and some more: see
:func:`attnbook.softmax_ntk.stability_bounds.rank_bound`. Where a kernel is inverted,
:func:`check_invertible` refuses one that is singular; the solution would be made of rounding errors.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.softmax_ntk.kernels import Activation
from attnbook.softmax_ntk.stability_bounds import smallest_full_width

__all__ = [
    "SingularKernelError",
    "ZeroKernelError",
    "check_invertible",
    "check_not_zero",
    "condition_number",
    "rank",
]

# A width of this many times the counting bound was enough for every kernel of this book.
MARGIN = 2


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
        hint = (
            "pass n_inputs to learn the width a paired network needs; inputs that occur twice also cause it"
            if width is None
            else f"paired neurons share their features, so the width must be at least 2 * samples * outputs / inputs = "
            f"{width}; take about {MARGIN * width}, and check that no two inputs are equal"
        )
        super().__init__(f"kernel: expected full rank, got rank {rank} of {size}; {hint}")


def rank(kernel: Float[Tensor, "*members rows rows"], *, tolerance: float | None = None) -> Tensor:
    r"""Return the number of eigenvalues that are not rounding errors.

    Args:
        kernel: Symmetric positive semi-definite matrices.
        tolerance: Eigenvalues below this part of the largest count as zero; default the number of rows times the
            rounding error of the type.

    Returns:
        The rank of each kernel.

    Raises:
        ValueError: If the kernel is not square or not finite.

    Example:
        >>> rank(torch.ones(3, 3, dtype=torch.float64)).item()
        1
    """
    eigenvalues = _eigenvalues(kernel)
    part = kernel.shape[-1] * torch.finfo(kernel.dtype).eps if tolerance is None else tolerance
    return (eigenvalues > part * eigenvalues[..., -1:]).sum(-1)


def condition_number(kernel: Float[Tensor, "*members rows rows"]) -> Float[Tensor, "*members"]:
    r"""Return $\lambda_{\max}/\lambda_{\min}$; infinite where the kernel is singular up to rounding.

    Args:
        kernel: Symmetric positive semi-definite matrices.

    Returns:
        The condition number of each kernel.

    Raises:
        ValueError: If the kernel is not square or not finite.

    Example:
        >>> condition_number(torch.tensor([[2.0, 0.0], [0.0, 8.0]])).item()
        4.0
    """
    eigenvalues = _eigenvalues(kernel)
    ratio = eigenvalues[..., -1] / eigenvalues[..., 0]
    return torch.where(rank(kernel) == kernel.shape[-1], ratio, torch.inf)


def check_invertible(kernel: Float[Tensor, "*members rows rows"], *, n_inputs: int | None = None) -> None:
    r"""Refuse kernels of which one is singular up to rounding.

    Args:
        kernel: Symmetric positive semi-definite matrices.
        n_inputs: Number of inputs $d_{in}$ of the network, for the message of the error; default none.

    Raises:
        SingularKernelError: If one is singular; names the smallest rank, the size and, if ``n_inputs`` is given, the
            smallest width that works.
        ValueError: If the kernel is not square or not finite.
    """
    smallest, size = int(rank(kernel).min()), kernel.shape[-1]
    if smallest < size:
        raise SingularKernelError(
            smallest, size, None if n_inputs is None else smallest_full_width(size, 1, n_inputs=n_inputs)
        )


class ZeroKernelError(ValueError):
    """A kernel is zero: no weight of its network moves an output, and no step size fits it."""


def check_not_zero(largest: Float[Tensor, " members"], *, activation: Activation, width: int) -> None:
    """Refuse networks of which one has a zero kernel at its start.

    Args:
        largest: Largest eigenvalue of each kernel.
        activation: What a neuron of these networks computes, for the message.
        width: Their number of neurons, for the message.

    Raises:
        ZeroKernelError: If one is zero; names member, width, activation and what to change.
    """
    if (largest > 0).all():
        return
    member = int((largest <= 0).nonzero()[0, 0])
    remedy = (
        f"all its neurons are off at every sample: take a larger width than {width}, or another seed"
        if activation == "relu"
        else "all its neurons are saturated: take smaller weights (scale), or inputs of norm at most one"
    )
    raise ZeroKernelError(f"kernel: that of member {member}, activation {activation}, width {width}, is zero; {remedy}")


def _eigenvalues(kernel: Tensor) -> Tensor:
    if kernel.ndim < 2 or kernel.shape[-1] != kernel.shape[-2]:
        raise ValueError(f"kernel: expected a square matrix, got {tuple(kernel.shape)}")
    if not torch.isfinite(kernel).all():
        raise ValueError("kernel: expected finite numbers, got NaN or infinity")
    return torch.linalg.eigvalsh(kernel)
