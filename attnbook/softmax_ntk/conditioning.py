"""Kernels that cannot be inverted: found before they are, with the width that mends them."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["SingularKernelError", "check_invertible", "rank"]


class SingularKernelError(ValueError):
    """A kernel that was to be inverted has no inverse, up to rounding.

    Attributes:
        rank: Its rank.
        size: Its number of rows.
        width: Smallest width at which the features of a paired network can span all rows; None if the number of inputs
            was not given.
    """

    def __init__(self, rank: int, size: int, width: int | None = None) -> None:
        self.rank, self.size, self.width = rank, size, width
        mend = "take a wider network" if width is None else f"take a width of at least {width}, and some more"
        super().__init__(
            f"kernel: expected full rank, got rank {rank} of {size}; {mend}; inputs that occur twice also cause it"
        )


def rank(kernel: Float[Tensor, "*members rows rows"]) -> Tensor:
    """Return the number of eigenvalues that are not rounding errors.

    Args:
        kernel: Symmetric positive semi-definite matrices.

    Returns:
        The rank of each kernel.

    Example:
        >>> rank(torch.ones(3, 3, dtype=torch.float64)).item()
        1
    """
    eigenvalues = torch.linalg.eigvalsh(kernel)
    part = kernel.shape[-1] * torch.finfo(kernel.dtype).eps
    return (eigenvalues > part * eigenvalues[..., -1:]).sum(-1)


def check_invertible(kernel: Float[Tensor, "*members rows rows"], *, n_inputs: int | None = None) -> None:
    r"""Refuse kernels of which one is singular up to rounding.

    Args:
        kernel: Symmetric positive semi-definite matrices.
        n_inputs: Number of inputs $d_{in}$, to name the width $2nd/d_{in}$ in the error; default none.

    Raises:
        SingularKernelError: If one is singular; names the smallest rank, the size and the smallest width that can work.
    """
    smallest, size = int(rank(kernel).min()), kernel.shape[-1]
    if smallest < size:
        raise SingularKernelError(smallest, size, None if n_inputs is None else 2 * -(-size // n_inputs))
