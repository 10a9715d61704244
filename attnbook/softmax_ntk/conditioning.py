r"""Can this kernel be inverted? Rank, and errors that say why not.

Paired neurons share their features, so a kernel of size $nd$ needs $m\ge 2nd/d_{in}$ neurons, and some more. Where a
kernel is inverted,
:func:`attnbook.softmax_ntk.ntk.kernel_coefficients` refuses one that is singular; the solution would be made of
rounding errors.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.softmax_ntk.kernels import Activation

__all__ = ["SingularKernelError", "ZeroKernelError", "rank", "refuse_negative"]


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
            f"{width}; take about {2 * width}, and check that no two inputs are equal"
        )
        super().__init__(f"kernel: expected full rank, got rank {rank} of {size}; {hint}")


def rank(kernel: Float[Tensor, "*members rows rows"]) -> Tensor:
    r"""Return the number of eigenvalues of each symmetric positive semi-definite matrix that are not rounding errors.

    Raises:
        ValueError: If a kernel is not finite, or has a negative eigenvalue that is no rounding error.

    Example:
        >>> rank(torch.ones(3, 3, dtype=torch.float64)).item()
        1
    """
    if not torch.isfinite(kernel).all():
        raise ValueError("kernel: expected finite numbers, got NaN or infinity")
    eigenvalues = torch.linalg.eigvalsh(kernel)
    refuse_negative(eigenvalues)
    return (eigenvalues > kernel.shape[-1] * torch.finfo(kernel.dtype).eps * eigenvalues[..., -1:]).sum(-1)


def refuse_negative(eigenvalues: Float[Tensor, "*members rows"]) -> None:
    """Refuse increasing eigenvalues of a kernel that are negative by more than rounding can explain.

    Raises:
        ValueError: If one is below minus the root of the rounding unit, relative to the largest in size.
    """
    smallest, largest = eigenvalues[..., 0], eigenvalues.abs().amax(-1)
    wrong = smallest < -(torch.finfo(eigenvalues.dtype).eps ** 0.5) * largest
    if wrong.any():
        lowest = float(smallest[wrong].min())
        raise ValueError(f"kernel: expected a positive semi-definite matrix, got one with the eigenvalue {lowest:.3g}")


class ZeroKernelError(ValueError):
    """A kernel is zero: no weight of its network moves an output, and no step size fits it."""

    def __init__(self, member: int, activation: Activation, width: int) -> None:
        remedy = (
            f"all its neurons are off at every sample: take a larger width than {width}, or another seed"
            if activation == "relu"
            else "all its neurons are saturated: take smaller weights (scale), or inputs of norm at most one"
        )
        super().__init__(f"kernel: that of member {member}, activation {activation}, width {width}, is zero; {remedy}")
