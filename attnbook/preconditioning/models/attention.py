r"""One softmax attention layer that predicts in context (Section 2).

For a batch of $b$ inputs (rows of $X$), the score of key $j$ for query $i$ is $x_j^\top Vx_i$, the prediction
$\hat y_i=Us_i$ with $s_i=\sum_jP_{ij}x_j$ and $P_{ij}=\mathrm{softmax}_j(x_j^\top Vx_i)$; the query is among the keys.
Members are ordered so that member $i$ sees batch $i$ modulo the number of batches: all variants of a seed share data.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.ensemble import Parameters

__all__ = ["attention_weights", "effective_keys", "loss_and_gradient", "predict"]

# Attention weights computed at a time: as many as stay in the cache of one core.
CACHED = 2**18


def attention_weights(
    key_query: Float[Tensor, "*batch dimension dimension"], inputs: Float[Tensor, "*batch samples dimension"]
) -> Float[Tensor, "*batch samples samples"]:
    r"""Return $P_{ij}=\mathrm{softmax}_j(x_j^\top Vx_i)$: row $i$ is what query $i$ attends to.

    Args:
        key_query: $V$.
        inputs: The batch, keys and queries at once.

    Returns:
        Weights whose rows sum to one.
    """
    return torch.softmax(inputs @ key_query.mT @ inputs.mT, dim=-1)


def predict(
    value: Float[Tensor, "*batch outputs dimension"],
    key_query: Float[Tensor, "*batch dimension dimension"],
    inputs: Float[Tensor, "*batch samples dimension"],
) -> Float[Tensor, "*batch samples outputs"]:
    r"""Return $\hat y_i=U\sum_jP_{ij}x_j$, the in-sample prediction.

    Args:
        value: $U$.
        key_query: $V$.
        inputs: The batch.

    Returns:
        Predictions.
    """
    return attention_weights(key_query, inputs) @ inputs @ value.mT


def effective_keys(
    key_query: Float[Tensor, "*batch dimension dimension"], inputs: Float[Tensor, "*batch samples dimension"]
) -> Float[Tensor, "*batch"]:
    r"""Return $1/\sum_jP_{ij}^2$, the number of keys that a query attends to, on average over queries.

    Args:
        key_query: $V$.
        inputs: The batch.

    Returns:
        Between 1 (saturated) and the size of the batch (uniform).
    """
    return (1 / attention_weights(key_query, inputs).square().sum(-1)).mean(-1)


def loss_and_gradient(
    parameters: Parameters, batch: tuple[Float[Tensor, "seeds batch dimension"], Float[Tensor, "seeds batch outputs"]]
) -> tuple[Float[Tensor, " members"], Parameters]:
    r"""Return the empirical loss (1) of each member and its gradient, in closed form.

    With residuals $r_i=Us_i-y_i$, $g_i=U^\top r_i/b$ and softmax covariances $C_i=\sum_jP_{ij}x_jx_j^\top-s_is_i^\top$:
    $\nabla_UL=\frac1b\sum_ir_is_i^\top$ and $\nabla_VL=\sum_iC_ig_ix_i^\top$. One product of the weights with the
    columns $x_j$ and $x_jx_j^\top$ (its upper half) gives $s_i$ and $C_i$ together: the moment form.

    Args:
        parameters: ``value (members, outputs, dimension)`` and ``key_query (members, dimension, dimension)``.
        batch: Inputs and labels, one batch per seed; member $i$ uses batch $i$ modulo their number.

    Returns:
        The losses and their gradients.
    """
    inputs, labels = batch
    seeds, size, dimension = inputs.shape
    upper = torch.triu_indices(dimension, dimension, device=inputs.device)
    moments = torch.cat([inputs, inputs[..., upper[0]] * inputs[..., upper[1]]], dim=-1)
    per_seed = len(parameters["value"]) // seeds
    grouped = {name: t.unflatten(0, (per_seed, seeds)).transpose(0, 1) for name, t in parameters.items()}
    at_once = max(1, CACHED // (seeds * size * size))
    parts = [
        _part(value, key_query, inputs, labels, moments)
        for value, key_query in zip(
            grouped["value"].split(at_once, 1), grouped["key_query"].split(at_once, 1), strict=True
        )
    ]
    losses, for_value, for_key_query = (
        torch.cat(part, 1).transpose(0, 1).flatten(0, 1) for part in zip(*parts, strict=True)
    )
    return losses, {"value": for_value, "key_query": for_key_query}


def _part(
    value: Tensor, key_query: Tensor, inputs: Tensor, labels: Tensor, moments: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Loss and gradients of some members of each seed, ``(seeds, members, ...)``; queries run along the last axis."""
    (seeds, size, dimension), members = inputs.shape, value.shape[1]
    queries = (inputs.unsqueeze(1) @ key_query.mT).reshape(seeds, members * size, dimension)
    weights = torch.softmax(torch.bmm(queries, inputs.mT), dim=-1)
    averages = torch.bmm(moments.mT, weights.mT).view(seeds, -1, members, size).unbind(1)
    attended = torch.stack(averages[:dimension], dim=2)
    residual = value @ attended - labels.mT.unsqueeze(1)
    back = value.mT @ residual / size
    second = _full(averages[dimension:], dimension)
    pulled = torch.stack([_inner(row, back.unbind(2)) for row in second], dim=2)
    pulled -= attended * (attended * back).sum(2, keepdim=True)
    losses = 0.5 * residual.square().sum((-2, -1)) / size
    return losses, residual @ attended.mT / size, pulled @ inputs.unsqueeze(1)


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
