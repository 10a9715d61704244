r"""The network trained on all samples beside networks trained without one of them, all in one program.

With $\ell_i$ the loss on sample $i$, the loss without it is $\hat L^{\neg i}=\frac1n\sum_{j\ne i}\ell_j$: it keeps the
factor $1/n$, as in the paper. A *set* is one training set with its own start and its own number of heads. Its *models*
are the full network $\theta_k$, then the reduced ones $\theta_k^{\neg i}$, whose weight of one sample is zero. All
models of a set start together and take the same number of steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from attnbook.core.ensemble import Parameters
from attnbook.multi_head import head_groups, layer
from attnbook.multi_head.checks import plus_or_minus_one
from attnbook.multi_head.layer import Counts, PerSample, Tokens
from attnbook.multi_head.network import largest_head_norm
from attnbook.multi_head.objectives import logistic

__all__ = ["LeaveOneOut", "leave_one_out_weights", "train"]

Paths = Float[np.ndarray, "records sets left_out"]


@dataclass(frozen=True)
class LeaveOneOut:
    r"""Paths of the full and of the reduced networks; what has samples has one for each reduced network.

    Attributes:
        distance: $\|\theta_k-\theta_k^{\neg i}\|$, of each reduced network from the full one, over all heads.
        train_loss: The full network's loss on all samples, $\hat L(\theta_k)$.
        sample_loss: Its loss on each sample that is left out, $\ell_i(\theta_k)$.
        left_out_loss: The loss of each reduced network on the sample that it has not seen,
            $\ell_i(\theta_k^{\neg i})$.
        kept_loss: The full network's loss without sample $i$, $\hat L^{\neg i}(\theta_k)$.
        reduced_loss: That of each reduced network, $\hat L^{\neg i}(\theta_k^{\neg i})$.
        head_norm: Norm of the largest head of every model.
        networks: Final parameters, ``(sets, models, ...)``.
    """

    distance: Paths
    train_loss: Float[np.ndarray, "records sets"]
    sample_loss: Paths
    left_out_loss: Paths
    kept_loss: Paths
    reduced_loss: Paths
    head_norm: Float[np.ndarray, "records sets models"]
    networks: Parameters


def leave_one_out_weights(n_samples: int, left_out: Sequence[int] | None = None) -> Float[Tensor, "models samples"]:
    r"""Return the weight of each sample, $1/n$, or 0 if left out: a row for the full network, then the reduced ones.

    Args:
        n_samples: $n$, at least 2.
        left_out: Which samples are left out; default each of them.

    Returns:
        Weights in double precision.

    Raises:
        ValueError: If a number is outside its range.
    """
    chosen = list(range(n_samples) if left_out is None else left_out)
    if n_samples < 2:
        raise ValueError(f"n_samples: expected at least 2, got {n_samples}")
    if not set(chosen) <= set(range(n_samples)):
        raise ValueError(f"left_out: expected numbers below {n_samples}, got {left_out}")
    weights = torch.ones(1 + len(chosen), n_samples, device="cpu", dtype=torch.float64)
    weights[range(1, len(weights)), chosen] = 0
    return weights / n_samples


def train(
    parameters: Parameters,
    tokens: Tokens,
    labels: PerSample,
    *,
    counts: Counts,
    step_size: float,
    steps: int,
    record_at: Sequence[int] | None = None,
    left_out: Sequence[int] | None = None,
) -> LeaveOneOut:
    r"""Return the paths of training the full network of every set and its reduced networks.

    Args:
        parameters: The start of each set, in groups of equal heads.
        tokens: Samples of each set, at least two.
        labels: 1 or -1.
        counts: Heads in each group.
        step_size: $\eta$.
        steps: $K$.
        record_at: Steps to record at; default 12 log-spaced ones.
        left_out: Samples that have a reduced network; default all, and memory grows with the square of $n$.

    Returns:
        The paths.

    Raises:
        ValueError: If shapes do not fit or a number is outside its range.
    """
    sets, n_samples = layer.check(parameters, tokens, labels, counts=counts)[0], tokens.shape[1]
    plus_or_minus_one(labels)
    weights = leave_one_out_weights(n_samples, left_out).to(tokens)
    models, own = len(weights), weights.argmin(1)  # of the full network any sample: it is not used
    start = {name: tensor.repeat_interleave(models, dim=0) for name, tensor in parameters.items()}
    x, y, m = (tensor.repeat_interleave(models, dim=0) for tensor in (tokens, labels, counts))

    def by_set(networks: Parameters) -> Parameters:
        return {name: tensor.unflatten(0, (sets, models)) for name, tensor in networks.items()}

    def record(networks: Parameters) -> dict[str, Tensor]:
        apart = {name: (tensor - tensor[:, :1]).flatten(0, 1) for name, tensor in by_set(networks).items()}
        losses = -logsigmoid(y * layer.outputs(networks, x, counts=m)).view(sets, models, n_samples)
        return {
            "distance": head_groups.norm(apart, counts=m),
            "mean": losses.mean(2).flatten(),
            "full": losses[:, 0, own].flatten(),
            "own": losses[:, range(models), own].flatten(),
            "head_norm": largest_head_norm(networks),
        }

    objective = logistic(y, weights.repeat(sets, 1))
    history = head_groups.gradient_descent(
        start, x, objective, counts=m, step_size=step_size, steps=steps, record=record, record_at=record_at
    )
    found = {name: values.reshape(len(values), sets, models) for name, values in history.records.items()}
    distance, full, left, reduced = (found[name][:, :, 1:] for name in ("distance", "full", "own", "mean"))
    mean = found["mean"][:, :, 0]
    kept, reduced = mean[:, :, None] - full / n_samples, reduced - left / n_samples
    return LeaveOneOut(distance, mean, full, left, kept, reduced, found["head_norm"], by_set(history.parameters))
