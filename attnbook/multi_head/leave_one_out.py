r"""The network trained on all samples beside the networks trained without one of them, all in one program.

With $\ell_i$ the loss on sample $i$, the loss without it is $\hat L^{\neg i}=\frac1n\sum_{j\ne i}\ell_j$: it keeps the
factor $1/n$, as in the paper. The full network $\theta_k$ and the $n$ reduced ones $\theta_k^{\neg i}$ start together
and take the same number of steps. A reduced network is a member whose weight of one sample is zero.

========================  ======================  ======================================================
paper                     name here               shape
========================  ======================  ======================================================
$\ell_j(\theta_k)$        ``sample_loss``         ``(records, sets, samples)``
$\ell_i(\theta_k^{\neg    ``left_out_loss``       ``(records, sets, samples)``
i})$
$\hat L^{\neg i}          ``kept_loss``           ``(records, sets, samples)``
(\theta_k)$
$\hat L^{\neg i}          ``reduced_loss``        ``(records, sets, samples)``
(\theta_k^{\neg i})$
$\|\theta_k-              ``distance``            ``(records, sets, samples)``
\theta_k^{\neg i}\|$
========================  ======================  ======================================================

A *set* is one training set with its own start and its own number of heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid

from attnbook.core.ensemble import History, Parameters, log_spaced
from attnbook.core.runtime import Progress
from attnbook.multi_head import head_groups, layer
from attnbook.multi_head.network import largest_head_norm
from attnbook.multi_head.objectives import logistic

__all__ = ["LeaveOneOut", "leave_one_out_weights", "step_expansion", "train"]

# What one step holds beside the tokens: attention, attended tokens and their gradients, about this many times them.
COPIES = 12


@dataclass(frozen=True)
class LeaveOneOut:
    r"""Paths of the full and of the reduced networks; see the table above.

    Attributes:
        steps: Steps recorded at.
        distance: Distance of each reduced network from the full one, over all heads.
        sample_loss: The full network's loss on each sample.
        left_out_loss: The loss of each reduced network on the sample that it has not seen.
        reduced_loss: The loss of each reduced network on the samples that it has seen, their sum over $n$.
        head_norm: Norm of the largest head of the full network.
        reduced_head_norm: The same for each reduced network.
        full: Final parameters of the full networks, one member for each set.
        reduced: Final parameters of the reduced networks: one list entry for each set, one member for each sample.
    """

    steps: Int[np.ndarray, " records"]
    distance: Float[np.ndarray, "records sets samples"]
    sample_loss: Float[np.ndarray, "records sets samples"]
    left_out_loss: Float[np.ndarray, "records sets samples"]
    reduced_loss: Float[np.ndarray, "records sets samples"]
    head_norm: Float[np.ndarray, "records sets"]
    reduced_head_norm: Float[np.ndarray, "records sets samples"]
    full: Parameters
    reduced: list[Parameters]

    @property
    def kept_loss(self) -> Float[np.ndarray, "records sets samples"]:
        r"""The full network's loss without sample $i$, $\hat L^{\neg i}(\theta_k)$."""
        n_samples = self.sample_loss.shape[2]
        return (self.sample_loss.sum(2, keepdims=True) - self.sample_loss) / n_samples


def leave_one_out_weights(n_samples: int, left_out: Sequence[int]) -> Float[Tensor, "models samples"]:
    r"""Return the weight of each sample in the loss of each network: $1/n$, or 0 for the sample left out.

    Args:
        n_samples: Number of samples $n$, at least 2.
        left_out: Which sample each reduced network does not see.

    Returns:
        One row for the full network, then one for each reduced network.

    Raises:
        ValueError: If there are fewer than two samples or an index is outside them.

    Example:
        >>> leave_one_out_weights(2, [1])
        tensor([[0.5000, 0.5000],
                [0.5000, 0.0000]], dtype=torch.float64)
    """
    if n_samples < 2:
        raise ValueError(f"n_samples: leaving one out needs at least 2, got {n_samples}")
    outside = [i for i in left_out if not 0 <= i < n_samples]
    if outside:
        raise ValueError(f"left_out: expected indices from 0 to {n_samples - 1}, got {outside[0]}")
    weights = torch.full((1 + len(left_out), n_samples), 1 / n_samples, dtype=torch.float64)
    weights[torch.arange(1, 1 + len(left_out)), torch.tensor(list(left_out), dtype=torch.long)] = 0.0
    return weights


def train(
    parameters: Parameters,
    tokens: Float[Tensor, "sets samples tokens dimension"],
    labels: Float[Tensor, "sets samples"],
    *,
    counts: Float[Tensor, "sets groups"],
    step_size: float,
    steps: int,
    record_at: Sequence[int] | None = None,
    memory_mib: float = 512.0,
    progress: Progress | None = None,
) -> LeaveOneOut:
    r"""Train the full network of every set and all of its reduced networks.

    One program holds as many reduced networks as ``memory_mib`` allows, with the full one beside them; all others wait
    for their turn. The result does not depend on it.

    Args:
        parameters: Start of each set, in groups of equal heads, see :mod:`~attnbook.multi_head.head_groups`.
        tokens: Samples of each set, at least two.
        labels: 1 or -1.
        counts: Heads of each group.
        step_size: The constant $\eta$.
        steps: Number of steps, at least 1.
        record_at: Steps to record at; default 12 log-spaced ones.
        memory_mib: About how much memory training may take, in MiB; default 512. One reduced network per set is always
            trained.
        progress: Told (steps done, steps in all).

    Returns:
        The paths.

    Raises:
        ValueError: If the shapes do not fit, a label is not 1 or -1 or a number is outside its range.
        FloatingPointError: If a network diverges.

    Example:
        >>> from attnbook.multi_head.models import starts
        >>> tokens = torch.randn(1, 3, 5, 2, dtype=torch.float64)
        >>> labels, counts = torch.ones(1, 3, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
        >>> train(starts.zero(1, 5, 2), tokens, labels, counts=counts, step_size=0.1, steps=2).distance.shape
        (3, 1, 3)
    """
    sets, n_samples = layer.check(parameters, tokens, labels, counts=counts)[0], tokens.shape[1]
    if n_samples < 2:
        raise ValueError(f"tokens: leaving one out needs at least 2 samples, got {n_samples}")
    if not (labels.abs() == 1).all():
        raise ValueError(f"labels: expected 1 or -1, got {labels[labels.abs() != 1][0].item()}")
    if not memory_mib > 0:
        raise ValueError(f"memory_mib: expected a positive number, got {memory_mib}")
    per_model = COPIES * tokens.numel() * tokens.element_size() / 2**20
    at_once = int(max(1, min(n_samples, memory_mib / per_model - 1)))
    groups = [range(start, min(start + at_once, n_samples)) for start in range(0, n_samples, at_once)]
    wanted = log_spaced(steps, 12) if record_at is None else tuple(record_at)
    parts = []
    for number, group in enumerate(groups):
        inner = None if progress is None else lambda k, of, at=number: progress(at * of + k, of * len(groups))
        batch = _Batch(tokens, labels, counts, leave_one_out_weights(n_samples, group).to(tokens), wanted)
        history = head_groups.gradient_descent(
            batch.spread(parameters),
            batch.tokens,
            batch.objective,
            counts=batch.counts,
            step_size=step_size,
            steps=steps,
            record=batch.record,
            record_at=wanted,
            progress=inner,
        )
        parts.append((history, batch.losses(history)))
    return _join(parts, sets)


def step_expansion(
    path: LeaveOneOut,
    tokens: Float[Tensor, "sets samples tokens dimension"],
    labels: Float[Tensor, "sets samples"],
    *,
    counts: Float[Tensor, "sets groups"],
    step_size: float,
) -> Float[np.ndarray, "sets samples"]:
    r"""Return how much a step $F(\theta)=\theta-\eta\nabla\hat L^{\neg i}(\theta)$ drives the final networks apart.

    Args:
        path: Where the networks are after training.
        tokens: The samples they were trained on.
        labels: 1 or -1.
        counts: Heads of each group.
        step_size: $\eta$.

    Returns:
        $\|F(\theta_K)-F(\theta_K^{\neg i})\|/\|\theta_K-\theta_K^{\neg i}\|$, at most the factor of eqs. (19) and (20).

    Raises:
        ValueError: If the shapes do not fit.
    """
    n_samples = tokens.shape[1]
    weights = leave_one_out_weights(n_samples, range(n_samples))[1:].to(tokens).repeat(2, 1)
    found = []
    for index, reduced in enumerate(path.reduced):
        pairs = {name: torch.cat([path.full[name][index].expand_as(r), r]) for name, r in reduced.items()}
        own = counts[index].expand(2 * n_samples, -1)
        stepped = head_groups.gradient_descent(
            pairs,
            tokens[index].expand(2 * n_samples, -1, -1, -1),
            logistic(labels[index].expand(2 * n_samples, -1), weights),
            counts=own,
            step_size=step_size,
            steps=1,
            record=lambda parameters: {},
        ).parameters
        before, after = (
            head_groups.norm({name: t[:n_samples] - t[n_samples:] for name, t in of.items()}, counts=own[:n_samples])
            for of in (pairs, stepped)
        )
        found.append((after / before).cpu().numpy())
    return np.stack(found)


class _Batch:
    """The full network of every set and some reduced ones, as members; those of one set are neighbours."""

    def __init__(self, tokens: Tensor, labels: Tensor, counts: Tensor, weights: Tensor, wanted: Sequence[int]) -> None:
        self.sets, self.models = len(tokens), len(weights)
        self.tokens, self.labels, self.counts = (self._repeat(tensor) for tensor in (tokens, labels, counts))
        self.loss = logistic(self.labels, weights.repeat(self.sets, 1))
        self.wanted, self.calls = set(wanted), 0
        self.kept: dict[int, Tensor] = {}

    def _repeat(self, tensor: Tensor) -> Tensor:
        return tensor.repeat_interleave(self.models, dim=0)

    def spread(self, parameters: Parameters) -> Parameters:
        """Give every model of a set the same start."""
        return {name: self._repeat(tensor) for name, tensor in parameters.items()}

    def objective(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss, and keep the outputs: computing them again for a record would cost a third of a step."""
        if self.calls in self.wanted:
            self.kept[self.calls] = outputs
        self.calls += 1
        return self.loss(outputs)

    def record(self, parameters: Parameters) -> dict[str, Tensor]:
        """Return the distance from the full network and the norm of the largest head."""
        by_set = {name: tensor.unflatten(0, (self.sets, self.models)) for name, tensor in parameters.items()}
        apart = {name: (tensor - tensor[:, :1]).flatten(0, 1) for name, tensor in by_set.items()}
        return {
            "distance": head_groups.norm(apart, counts=self.counts),
            "head_norm": largest_head_norm(parameters),
        }

    def losses(self, history: History) -> Float[np.ndarray, "records members samples"]:
        """Return the loss of every model on every sample at the recorded steps."""
        if self.calls in self.wanted:
            self.kept[self.calls] = layer.outputs(history.parameters, self.tokens, counts=self.counts)
        outputs = torch.stack([self.kept[step] for step in history.steps])
        return np.asarray(-logsigmoid(self.labels * outputs).cpu().numpy())


def _join(parts: list[tuple[History, np.ndarray]], sets: int) -> LeaveOneOut:
    """Sort what was recorded into the full networks (the first part's) and the reduced ones."""

    def by_set(values: np.ndarray) -> np.ndarray:
        return values.reshape(len(values), sets, -1, *values.shape[2:])

    def reduced(values: list[np.ndarray]) -> np.ndarray:
        return np.concatenate([by_set(of_part)[:, :, 1:] for of_part in values], axis=2)

    first, of_parts = parts[0][0], [of_part for _, of_part in parts]
    records = {name: [history.records[name] for history, _ in parts] for name in first.records}
    losses = reduced(of_parts)
    left_out = np.diagonal(losses, axis1=2, axis2=3)
    final = [{n: t.unflatten(0, (sets, -1)) for n, t in history.parameters.items()} for history, _ in parts]
    return LeaveOneOut(
        steps=first.steps,
        distance=reduced(records["distance"]),
        sample_loss=by_set(of_parts[0])[:, :, 0],
        left_out_loss=left_out,
        reduced_loss=(losses.sum(3) - left_out) / losses.shape[3],
        head_norm=by_set(records["head_norm"][0])[:, :, 0],
        reduced_head_norm=reduced(records["head_norm"]),
        full={name: tensor[:, 0] for name, tensor in final[0].items()},
        reduced=[
            {name: torch.cat([part[name][index, 1:] for part in final]) for name in final[0]} for index in range(sets)
        ],
    )
