r"""One softmax attention layer that predicts in context (Section 2): predictions, loss (1) and exact gradient.

For a batch of $b$ inputs (rows of $X$), the score of key $j$ for query $i$ is $x_j^\top Vx_i$, the prediction
$\hat y_i=Us_i$ with $s_i=\sum_jP_{ij}x_j$ and $P_{ij}=\mathrm{softmax}_j(x_j^\top Vx_i)$; the query is among the keys.

The gradient needs two things of a query with weights $P_{ij}$: the attention output $s_i$ and the product $C_ig$ of
the softmax covariance $C_i=\sum_jP_{ij}x_jx_j^\top-s_is_i^\top$ with a vector. Both are read off one product of the
weights with the columns $x_j$ and $x_jx_j^\top$. Queries are taken in blocks whose weights stay in the cache, so that
$n\times n$ weights are never held: time grows as $n^2$, memory as $n$.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations_with_replacement
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.ensemble import Parameters

__all__ = ["attention_weights", "effective_keys", "in_sample_loss_and_gradient", "loss_and_gradient", "predict"]

Square: TypeAlias = Float[Tensor, "*batch dimension dimension"]
Inputs: TypeAlias = Float[Tensor, "*batch samples dimension"]

# Weights computed at a time: the cache of one core, or a part of a GPU's memory; never fewer queries than the last.
HELD = {"cpu": 2**17, "cuda": 2**26}
SMALLEST_BLOCK = 32


def attention_weights(key_query: Square, inputs: Inputs) -> Float[Tensor, "*batch samples samples"]:
    r"""Return $P_{ij}=\mathrm{softmax}_j(x_j^\top Vx_i)$: row $i$ is what query $i$ attends to.

    Args:
        key_query: $V$.
        inputs: The batch, keys and queries at once.

    Returns:
        Weights whose rows sum to one.
    """
    return torch.softmax(inputs @ key_query.mT @ inputs.mT, dim=-1)


def predict(
    value: Float[Tensor, "*batch outputs dimension"], key_query: Square, inputs: Inputs
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


def effective_keys(key_query: Square, inputs: Inputs) -> Float[Tensor, "*batch samples"]:
    r"""Return $1/\sum_jP_{ij}^2$, the number of keys that each query attends to.

    Args:
        key_query: $V$.
        inputs: The batch.

    Returns:
        Between 1 (saturated) and the size of the batch (uniform).

    Example:
        >>> effective_keys(torch.zeros(2, 2), torch.eye(2))
        tensor([2., 2.])
    """
    return 1 / attention_weights(key_query, inputs).square().sum(-1)


@torch.no_grad()
def loss_and_gradient(
    parameters: Parameters, batch: tuple[Float[Tensor, "seeds batch dimension"], Float[Tensor, "seeds batch outputs"]]
) -> tuple[Float[Tensor, " members"], Parameters]:
    r"""Return the empirical loss (1) of each member and its gradient, in closed form.

    With residuals $r_i=Us_i-y_i$ and $g_i=U^\top r_i/b$: $\nabla_UL=\frac1b\sum_ir_is_i^\top$ and
    $\nabla_VL=\sum_iC_ig_ix_i^\top$. Member $i$ sees batch $i$ modulo the number of batches: all variants of a seed
    share its data.

    Args:
        parameters: ``value (members, outputs, dimension)`` and ``key_query (members, dimension, dimension)``.
        batch: Inputs and labels, one batch per seed; the number of members is a multiple of theirs.

    Returns:
        The losses and their gradients.
    """
    inputs, labels = batch
    seeds, size, dimension = inputs.shape
    per_seed = len(parameters["value"]) // seeds
    value, key_query = (parameters[n].unflatten(0, (per_seed, seeds)).transpose(0, 1) for n in ("value", "key_query"))
    averages = _averages(inputs, key_query)
    attended = averages[:, :dimension].transpose(1, 2)
    residual = value @ attended - labels.mT.unsqueeze(1)
    back = value.mT @ residual / size
    pulled = _covariance_times(averages[:, dimension:].unbind(1), attended, back)
    losses = 0.5 * residual.square().sum((-2, -1)) / size
    gradients = {"value": residual @ attended.mT / size, "key_query": pulled @ inputs.unsqueeze(1)}
    return losses.mT.flatten(), {name: g.transpose(0, 1).flatten(0, 1) for name, g in gradients.items()}


def in_sample_loss_and_gradient(
    value: Float[Tensor, "outputs dimension"],
    key_query: Float[Tensor, "dimension dimension"],
    x: Float[Tensor, "samples dimension"],
    y: Float[Tensor, "samples outputs"],
) -> tuple[Float[Tensor, ""], Parameters]:
    r"""Return the empirical loss (1) of one layer on all its samples and the exact gradient; arguments are checked.

    $10^5$ samples fit any laptop.

    Args:
        value: $U$.
        key_query: $V$.
        x: Inputs, queries and keys at once, one per row; at least one.
        y: Labels.

    Returns:
        The loss and its gradients ``value`` and ``key_query``, of the dtype and on the device of the arguments.

    Raises:
        ValueError: If shapes, dtypes or devices do not fit together, or a number is not finite.

    Example:
        >>> x, y = torch.tensor([[1.0], [3.0]]), torch.zeros(2, 1)
        >>> loss, gradient = in_sample_loss_and_gradient(torch.ones(1, 1), torch.zeros(1, 1), x, y)
        >>> loss.item(), gradient["value"].item(), gradient["key_query"].item()
        (2.0, 4.0, 4.0)
    """
    if x.ndim != 2 or not len(x):
        raise ValueError(f"x: expected (samples, dimension) with at least one sample, got {tuple(x.shape)}")
    samples, dimension = x.shape
    outputs = value.shape[0] if value.ndim else 0
    shapes = {"value": (outputs, dimension), "key_query": (dimension, dimension), "x": x.shape, "y": (samples, outputs)}
    for name, tensor in {"value": value, "key_query": key_query, "x": x, "y": y}.items():
        if tuple(tensor.shape) != shapes[name]:
            raise ValueError(f"{name}: expected {shapes[name]} to fit x {tuple(x.shape)}, got {tuple(tensor.shape)}")
        if (tensor.dtype, tensor.device) != (x.dtype, x.device):
            raise ValueError(f"{name}: expected {x.dtype} on {x.device} as x, got {tensor.dtype} on {tensor.device}")
        if not torch.isfinite(tensor).all():
            raise ValueError(f"{name}: expected finite numbers, got NaN or infinity")
    layer = {"value": value.unsqueeze(0), "key_query": key_query.unsqueeze(0)}
    losses, gradients = loss_and_gradient(layer, (x.unsqueeze(0), y.unsqueeze(0)))
    return losses[0], {name: gradient[0] for name, gradient in gradients.items()}


def _averages(inputs: Tensor, key_query: Tensor) -> Tensor:
    """Averages of the moments over what each query attends to, ``(seeds, moments, members, queries)``, in blocks."""
    seeds, size, dimension = inputs.shape
    upper = torch.triu_indices(dimension, dimension, device=inputs.device)
    moments = torch.cat([inputs, inputs[..., upper[0]] * inputs[..., upper[1]]], dim=-1).mT
    held = HELD.get(inputs.device.type, HELD["cpu"]) // (seeds * size)
    block = held // size * size or max(SMALLEST_BLOCK, held)  # whole members, where one fits
    queries = (inputs.unsqueeze(1) @ key_query.mT).flatten(1, 2).split(block, 1)
    room = inputs.new_empty(2, queries[0].shape[1] * seeds * size)  # fresh arrays for each part would cost more
    found = []
    for some in queries:
        scores, weights = room[:, : some.shape[1] * seeds * size].view(2, seeds, -1, size)
        torch.softmax(torch.bmm(some, inputs.mT, out=scores), dim=-1, out=weights)
        found.append(torch.bmm(moments, weights.mT))
    return torch.cat(found, 2).unflatten(2, (-1, size))


def _covariance_times(second: Sequence[Tensor], attended: Tensor, back: Tensor) -> Tensor:
    """Products $C_ig_i$ of all queries (columns), from averages of the upper half of $x_jx_j^T$, row by row."""
    dimension = back.shape[-2]
    place = {pair: n for n, pair in enumerate(combinations_with_replacement(range(dimension), 2))}
    columns, rows = back.unbind(-2), []
    for i in range(dimension):
        total = second[place[0, i]] * columns[0]
        for j in range(1, dimension):
            total.addcmul_(second[place[min(i, j), max(i, j)]], columns[j])
        rows.append(total)
    return torch.stack(rows, dim=-2) - attended * (attended * back).sum(-2, keepdim=True)
