r"""One softmax attention layer that predicts in context (Section 2).

For a batch of $b$ inputs (rows of $X$), the score of key $j$ for query $i$ is $x_j^\top Vx_i$, the prediction
$\hat y_i=Us_i$ with $s_i=\sum_jP_{ij}x_j$ and $P_{ij}=\mathrm{softmax}_j(x_j^\top Vx_i)$; the query is among the keys.
Members are ordered so that member $i$ sees batch $i$ modulo the number of batches: all variants of a seed share data.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.preconditioning.key_moments import covariance_times, key_moments

__all__ = ["attention_weights", "effective_keys", "loss_and_gradient", "predict"]

# Attention weights computed at a time: as many as stay in the cache of one core.
CACHED = 2**17


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
) -> Float[Tensor, "*batch samples"]:
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
    per_seed = len(parameters["value"]) // seeds
    value, key_query = (parameters[n].unflatten(0, (per_seed, seeds)).transpose(0, 1) for n in ("value", "key_query"))
    averages = _averages(inputs, key_query)
    attended = averages[:, :dimension].transpose(1, 2)
    residual = value @ attended - labels.mT.unsqueeze(1)
    back = value.mT @ residual / size
    pulled = covariance_times(averages[:, dimension:].unbind(1), attended, back)
    losses = 0.5 * residual.square().sum((-2, -1)) / size
    gradients = {"value": residual @ attended.mT / size, "key_query": pulled @ inputs.unsqueeze(1)}
    return losses.mT.flatten(), {name: g.transpose(0, 1).flatten(0, 1) for name, g in gradients.items()}


def _averages(inputs: Tensor, key_query: Tensor) -> Tensor:
    """What the queries of each member attend to, ``(seeds, moments, members, queries)``; a few members at a time."""
    seeds, size, _ = inputs.shape
    moments = key_moments(inputs).mT
    queries = (inputs.unsqueeze(1) @ key_query.mT).split(max(1, CACHED // (seeds * size * size)), 1)
    room = inputs.new_empty(2, queries[0].shape[1] * seeds * size * size)  # fresh arrays for each part would cost more
    found = []
    for some in queries:
        scores, weights = room[:, : some.shape[1] * seeds * size * size].view(2, seeds, -1, size)
        torch.softmax(torch.bmm(some.flatten(1, 2), inputs.mT, out=scores), dim=-1, out=weights)
        found.append(torch.bmm(moments, weights.mT).unflatten(-1, (-1, size)))
    return torch.cat(found, 2)
