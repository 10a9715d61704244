r"""The empirical loss of one layer on all samples, and its gradient, without ever holding $n\times n$ weights.

The queries are taken in blocks. A block's weights are computed once, by a softmax that subtracts the largest score of
each row, and give the attention outputs $s_i$ and the products $C_ig_i$ of the gradient in one of two ways:

* by moments: one product of the weights with the columns $x_j$ and $x_jx_j^\top$ (upper half), then everything else
  from those averages: $d(d+3)/2$ multiplications for each pair of query and key;
* by two products: the weights with $x_j$, then the weights times $x_j^\top g_i$ with $x_j$: $3d$ and one more pass.

The first is used for up to :data:`LARGEST_BY_MOMENTS` dimensions, where it costs less.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.preconditioning.key_moments import covariance_times, key_moments

__all__ = ["in_sample_loss_and_gradient"]

# Most dimensions for which the moments cost less than two products; measured on one core, float32 and float64.
LARGEST_BY_MOMENTS = 7
# Weights held at a time: the cache of one core, or a part of a GPU's memory; never fewer queries than SMALLEST_BLOCK.
HELD = {"cpu": 2**18, "cuda": 2**26}
SMALLEST_BLOCK = 32


@torch.no_grad()
def in_sample_loss_and_gradient(
    value: Float[Tensor, "outputs dimension"],
    key_query: Float[Tensor, "dimension dimension"],
    x: Float[Tensor, "samples dimension"],
    y: Float[Tensor, "samples outputs"],
    *,
    block: int | None = None,
) -> tuple[Float[Tensor, ""], Parameters]:
    r"""Return the empirical loss (1) of one layer on all its samples and the exact gradient, in blocks of queries.

    $L_n=\frac1{2n}\sum_i\|Us_i-y_i\|^2$ with $s_i=\sum_jP_{ij}x_j$ and $P_{ij}=\mathrm{softmax}_j(x_j^\top Vx_i)$; with
    residuals $r_i=Us_i-y_i$, $g_i=U^\top r_i/n$ and softmax covariances $C_i$, $\nabla_UL_n=\frac1n\sum_ir_is_i^\top$
    and $\nabla_VL_n=\sum_iC_ig_ix_i^\top$. Time grows as $n^2$, memory as $n$: $10^5$ samples fit any laptop.

    Args:
        value: $U$.
        key_query: $V$.
        x: Inputs, queries and keys at once, one per row; at least one.
        y: Labels.
        block: Queries whose weights are held at a time, at least 1; default as many as stay in the cache (CPU) or in
            256 MiB of float32 (GPU). It changes time and memory, not the numbers.

    Returns:
        The loss and its gradients ``value`` and ``key_query``, of the dtype and on the device of the arguments.

    Raises:
        ValueError: If shapes, dtypes or devices do not fit together, a number is not finite, or ``block`` is less
            than 1.

    Example:
        >>> x, y = torch.tensor([[1.0], [3.0]]), torch.zeros(2, 1)
        >>> loss, gradient = in_sample_loss_and_gradient(torch.ones(1, 1), torch.zeros(1, 1), x, y)
        >>> loss.item(), gradient["value"].item(), gradient["key_query"].item()
        (2.0, 4.0, 4.0)
    """
    _check(value, key_query, x, y, block)
    samples, dimension = x.shape
    at_once = block or max(SMALLEST_BLOCK, HELD.get(x.device.type, HELD["cpu"]) // samples)
    queries = (x @ key_query.mT).split(at_once)
    by = _by_moments if dimension <= LARGEST_BY_MOMENTS else _by_two_products
    attended, residual, pulled = by(value, queries, x, y)
    gradients = {"value": residual @ attended.mT / samples, "key_query": pulled @ x / samples}
    return residual.square().sum() / (2 * samples), gradients


def _by_moments(
    value: Tensor, queries: tuple[Tensor, ...], keys: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention outputs, residuals and C_i U' r_i, one column per query, from the averages of all moments."""
    moments = key_moments(keys).mT.contiguous()
    averages = torch.cat([moments @ weights.mT for weights, _ in _weights(queries, keys)], dim=1)
    attended, second = averages.split([keys.shape[1], len(averages) - keys.shape[1]])
    residual = value @ attended - labels.mT
    return attended, residual, covariance_times(second.unbind(), attended, value.mT @ residual)


def _by_two_products(
    value: Tensor, queries: tuple[Tensor, ...], keys: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The same, from two products with the weights of each block."""
    columns = keys.mT.contiguous()
    found = []
    blocks = zip(_weights(queries, keys), labels.split(len(queries[0])), strict=True)
    for (weights, free), label in blocks:
        attended = columns @ weights.mT
        residual = value @ attended - label.mT
        back = value.mT @ residual
        weights *= torch.mm(back.mT, columns, out=free)
        found.append((attended, residual, columns @ weights.mT - attended * (attended * back).sum(0)))
    attended, residual, pulled = (torch.cat(parts, dim=1) for parts in zip(*found, strict=True))
    return attended, residual, pulled


def _weights(queries: tuple[Tensor, ...], keys: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The weights of each block and a free array of that shape; both are used again for the next block."""
    # Fresh arrays of this size would be given back to the system and fetched again for each block: twice the time.
    columns = keys.mT.contiguous()
    scores, weights = keys.new_empty(2, len(queries[0]), len(keys))
    for block in queries:
        some = slice(len(block))
        torch.mm(block, columns, out=scores[some])
        yield torch.softmax(scores[some], dim=-1, out=weights[some]), scores[some]


def _check(value: Tensor, key_query: Tensor, x: Tensor, y: Tensor, block: int | None) -> None:
    if x.ndim != 2 or not len(x):
        raise ValueError(f"x: expected (samples, dimension) with at least one sample, got {tuple(x.shape)}")
    samples, dimension = x.shape
    outputs = value.shape[0] if value.ndim else 0
    expected = {"value": (outputs, dimension), "key_query": (dimension, dimension), "y": (samples, outputs)}
    for name, tensor in {"value": value, "key_query": key_query, "y": y}.items():
        if tuple(tensor.shape) != expected[name]:
            raise ValueError(
                f"{name}: expected {expected[name]} to fit x {(samples, dimension)}, got {tuple(tensor.shape)}"
            )
        if (tensor.dtype, tensor.device) != (x.dtype, x.device):
            raise ValueError(f"{name}: expected {x.dtype} on {x.device} as x, got {tensor.dtype} on {tensor.device}")
    for name, tensor in {"value": value, "key_query": key_query, "x": x, "y": y}.items():
        if not torch.isfinite(tensor).all():
            raise ValueError(f"{name}: expected finite numbers, got NaN or infinity")
    if block is not None and block < 1:
        raise ValueError(f"block: expected at least 1 query, got {block}")
