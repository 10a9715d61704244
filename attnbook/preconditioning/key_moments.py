r"""Weighted averages of keys and of their products: what the closed-form gradient of softmax attention is made of.

The gradient needs two things of a query $i$ with weights $P_{ij}$: the attention output $s_i=\sum_jP_{ij}x_j$ and
the product $C_ig$ of the softmax covariance $C_i=\sum_jP_{ij}x_jx_j^\top-s_is_i^\top$ with a vector. Both are read off
the averages of the columns of :func:`key_moments`, so that one product with the weights is enough.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["covariance_times", "key_moments"]


def key_moments(keys: Float[Tensor, "*batch keys dimension"]) -> Float[Tensor, "*batch keys moments"]:
    r"""Return the columns $x_j$ and the upper half of $x_jx_j^\top$, row by row.

    Args:
        keys: One key per row, $d$ entries.

    Returns:
        $d+d(d+1)/2$ columns.

    Example:
        >>> key_moments(torch.tensor([[2.0, 3.0]]))
        tensor([[2., 3., 4., 6., 9.]])
    """
    upper = torch.triu_indices(keys.shape[-1], keys.shape[-1], device=keys.device)
    return torch.cat([keys, keys[..., upper[0]] * keys[..., upper[1]]], dim=-1)


def covariance_times(
    second: Sequence[Float[Tensor, "*batch queries"]],
    attended: Float[Tensor, "*batch dimension queries"],
    back: Float[Tensor, "*batch dimension queries"],
) -> Float[Tensor, "*batch dimension queries"]:
    r"""Return $C_ig_i$ for all queries, with the softmax covariance of each read off its averages.

    Args:
        second: Averages $\sum_jP_{ij}x_jx_j^\top$, one tensor per entry of the upper half, as in :func:`key_moments`.
        attended: Averages $s_i=\sum_jP_{ij}x_j$, one column per query.
        back: The vectors $g_i$, one column per query.

    Returns:
        The products.

    Example:
        >>> half = torch.tensor([0.5])  # two keys, (1, 0) and (0, 1), of equal weight
        >>> attended, back = torch.tensor([[0.5], [0.5]]), torch.tensor([[1.0], [0.0]])
        >>> covariance_times([half, 0 * half, half], attended, back).T
        tensor([[ 0.2500, -0.2500]])
    """
    products = torch.stack([_inner(row, back.unbind(-2)) for row in _full(second, back.shape[-2])], dim=-2)
    products -= attended * (attended * back).sum(-2, keepdim=True)
    return products


def _full(upper: Sequence[Tensor], dimension: int) -> list[list[Tensor]]:
    """Arrange the upper half of a symmetric matrix, given row by row, as the full one."""
    rows, columns = np.triu_indices(dimension)
    full: list[list[Tensor]] = [[upper[0]] * dimension for _ in range(dimension)]
    for entry, i, j in zip(upper, rows, columns, strict=True):
        full[i][j] = full[j][i] = entry
    return full


def _inner(row: Sequence[Tensor], column: Sequence[Tensor]) -> Tensor:
    total = row[0] * column[0]
    for one, other in zip(row[1:], column[1:], strict=True):
        total.addcmul_(one, other)
    return total
