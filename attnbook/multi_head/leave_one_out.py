r"""The network trained on all samples beside the networks trained without one of them, all in one program.

With $\ell_i$ the loss on sample $i$, the loss without it is $\hat L^{\neg i}=\frac1n\sum_{j\ne i}\ell_j$: it keeps the
factor $1/n$, as in the paper. A *set* is one training set with its own start and its own number of heads. It has one
*model* more than samples: the full network $\theta_k$, then the $n$ reduced ones $\theta_k^{\neg i}$, whose weight of
one sample is zero. All models of a set start together and take the same number of steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid

from attnbook.core.ensemble import Parameters
from attnbook.core.runtime import Progress
from attnbook.multi_head import head_groups, layer
from attnbook.multi_head.checks import plus_or_minus_one
from attnbook.multi_head.layer import Counts, PerSample, Tokens
from attnbook.multi_head.network import largest_head_norm
from attnbook.multi_head.objectives import logistic

__all__ = ["LeaveOneOut", "leave_one_out_weights", "step_expansion", "train"]

Paths = Float[np.ndarray, "records sets samples"]


@dataclass(frozen=True)
class LeaveOneOut:
    r"""Paths of the full and of the reduced networks.

    Attributes:
        steps: Steps recorded at.
        distance: $\|\theta_k-\theta_k^{\neg i}\|$, of each reduced network from the full one, over all heads.
        losses: Loss of every model on every sample.
        head_norm: Norm of the largest head of every model.
        networks: Final parameters, ``(sets, models, ...)``.
    """

    steps: Int[np.ndarray, " records"]
    distance: Paths
    losses: Float[np.ndarray, "records sets models samples"]
    head_norm: Float[np.ndarray, "records sets models"]
    networks: Parameters

    @property
    def sample_loss(self) -> Paths:
        r"""The full network's loss on each sample, $\ell_j(\theta_k)$."""
        return self.losses[:, :, 0]

    @property
    def left_out_loss(self) -> Paths:
        r"""The loss of each reduced network on the sample that it has not seen, $\ell_i(\theta_k^{\neg i})$."""
        return self.losses[:, :, 1:].diagonal(axis1=2, axis2=3)

    @property
    def kept_loss(self) -> Paths:
        r"""The full network's loss without sample $i$, $\hat L^{\neg i}(\theta_k)$."""
        return (self.sample_loss.sum(2, keepdims=True) - self.sample_loss) / self.losses.shape[3]

    @property
    def reduced_loss(self) -> Paths:
        r"""The loss of each reduced network on what it has seen, over $n$, $\hat L^{\neg i}(\theta_k^{\neg i})$."""
        return (self.losses[:, :, 1:].sum(3) - self.left_out_loss) / self.losses.shape[3]


def leave_one_out_weights(n_samples: int) -> Float[Tensor, "models samples"]:
    r"""Return the weight of each sample, $1/n$, or 0 if left out: a row for the full network, then the reduced ones.

    Raises:
        ValueError: If there are fewer than two samples.
    """
    if n_samples < 2:
        raise ValueError(f"n_samples: leaving one out needs at least 2, got {n_samples}")
    everyone = torch.ones(1, n_samples, device="cpu", dtype=torch.float64)
    return torch.cat([everyone, everyone - everyone[0].diag()]) / n_samples


def train(
    parameters: Parameters,
    tokens: Tokens,
    labels: PerSample,
    *,
    counts: Counts,
    step_size: float,
    steps: int,
    record_at: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> LeaveOneOut:
    r"""Return the paths of training the full network of every set and all of its reduced networks.

    Memory grows with the square of $n$. The start is that of each set, in groups of equal heads, the samples are
    at least two, and all else is as for :func:`~attnbook.multi_head.head_groups.gradient_descent`.
    """
    sets, n_samples = layer.check(parameters, tokens, labels, counts=counts)[0], tokens.shape[1]
    plus_or_minus_one(labels)
    weights = leave_one_out_weights(n_samples).to(tokens)
    start = _for_each_model(len(weights), parameters)
    x, y, m = (tensor.repeat_interleave(len(weights), dim=0) for tensor in (tokens, labels, counts))

    def record(networks: Parameters) -> dict[str, Tensor]:
        by_set = {name: tensor.unflatten(0, (sets, -1)) for name, tensor in networks.items()}
        apart = {name: (tensor - tensor[:, :1]).flatten(0, 1) for name, tensor in by_set.items()}
        return {
            "distance": head_groups.norm(apart, counts=m),
            "losses": -logsigmoid(y * layer.outputs(networks, x, counts=m)),
            "head_norm": largest_head_norm(networks),
        }

    history = head_groups.gradient_descent(
        start, x, logistic(y, weights.repeat(sets, 1)), counts=m, step_size=step_size, steps=steps, record=record,
        record_at=record_at, progress=progress,
    )  # fmt: skip
    found = {name: v.reshape(len(v), sets, len(weights), *v.shape[2:]) for name, v in history.records.items()}
    networks = {name: tensor.unflatten(0, (sets, -1)) for name, tensor in history.parameters.items()}
    return LeaveOneOut(history.steps, found["distance"][:, :, 1:], found["losses"], found["head_norm"], networks)


def step_expansion(
    path: LeaveOneOut, tokens: Tokens, labels: PerSample, *, counts: Counts, step_size: float
) -> Float[np.ndarray, "sets samples"]:
    r"""Return how much a step $F(\theta)=\theta-\eta\nabla\hat L^{\neg i}(\theta)$ drives the final networks apart.

    $\|F(\theta_K)-F(\theta_K^{\neg i})\|/\|\theta_K-\theta_K^{\neg i}\|$, at most the factor of eqs. (19) and (20), for
    the samples that the networks were trained on; arguments as for :func:`train`.
    """
    sets, n_samples = labels.shape
    weights = leave_one_out_weights(n_samples)[1:].to(tokens).repeat(sets, 1)
    reduced = {name: tensor[:, 1:].flatten(0, 1) for name, tensor in path.networks.items()}
    full = _for_each_model(n_samples, {name: tensor[:, 0] for name, tensor in path.networks.items()})
    x, y, m = (tensor.repeat_interleave(n_samples, dim=0) for tensor in (tokens, labels, counts))

    def step(networks: Parameters) -> Parameters:
        slopes = layer.value_and_gradient(networks, x, logistic(y, weights), counts=m)[1]
        return {name: tensor - step_size * slopes[name] for name, tensor in networks.items()}

    before, after = (
        head_groups.norm({name: one[name] - other[name] for name in one}, counts=m)
        for one, other in ((full, reduced), (step(full), step(reduced)))
    )
    return np.asarray((after / before).cpu()).reshape(sets, n_samples)


def _for_each_model(models: int, parameters: Parameters) -> Parameters:
    """Repeat what belongs to a set once for each of its models; those of one set are neighbours."""
    return {name: tensor.repeat_interleave(models, dim=0) for name, tensor in parameters.items()}
