"""Kernels that cannot be inverted: found before they are, with the width that mends them."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["SingularKernelError", "check_invertible"]

# Eigenvalues below this share of the largest are rounding errors.
SINGULAR = 1e-12


class SingularKernelError(ValueError):
    """A kernel of too small a rank.

    Attributes:
        rank: Its rank in floating point.
        size: Its number of rows.
        smallest_width: Width from which on networks in pairs can have full rank; None if it is not known.
    """

    def __init__(self, rank: int, size: int, smallest_width: int | None = None) -> None:
        mend = "take a wider network" if smallest_width is None else f"take a width of at least {smallest_width}"
        super().__init__(
            f"kernel: expected an invertible matrix, got rank {rank} of {size} rows; {mend}, or inputs of more "
            "dimensions, or leave out repeated inputs"
        )
        self.rank, self.size, self.smallest_width = rank, size, smallest_width


def check_invertible(kernel: Float[Tensor, "*members rows rows"], *, n_inputs: int | None = None) -> None:
    r"""Refuse a kernel that is singular in floating point.

    Args:
        kernel: Symmetric positive semi-definite matrices.
        n_inputs: Number of inputs $d_{in}$, to name the smallest width $2nd/d_{in}$ at which the features of networks
            in pairs can span all rows; default unknown.

    Raises:
        SingularKernelError: If one is singular.
    """
    eigenvalues = torch.linalg.eigvalsh(kernel)
    ranks = (eigenvalues > SINGULAR * eigenvalues[..., -1:]).sum(-1).flatten()
    size = kernel.shape[-1]
    if int(ranks.min()) < size:
        width = None if n_inputs is None else 2 * -(-size // n_inputs)
        raise SingularKernelError(int(ranks.min()), size, width)
