"""Training many variants on many seeds as one program: Algorithm 1, its ablations, and its rivals.

Everything that a seed decides (problem, data, batches, random start) is drawn once and shared by all variants, so that
every difference between variants comes from how they are trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from attnbook.core import ensemble, update_rules
from attnbook.core.ensemble import History, Parameters
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress, threads
from attnbook.preconditioning.attention import effective_keys, loss_and_gradient
from attnbook.preconditioning.data import Setup
from attnbook.preconditioning.optimizer import MuonLike, ShampooLike, spectral_init
from attnbook.preconditioning.population import (
    Preconditioner,
    check_parts,
    excess_loss,
    excess_loss_gradient,
    imbalance,
    penalty_gradient,
    precondition,
    sample_covariance,
)

__all__ = ["Optimizer", "Training", "Variant", "train_variants"]

Start: TypeAlias = Literal["random", "spectral"]
Optimizer: TypeAlias = Literal["sgd", "adam", "muon", "shampoo"]
LAYERS = ("value", "key_query")
RULES = {"sgd": update_rules.SGD, "adam": update_rules.Adam, "muon": MuonLike, "shampoo": ShampooLike}


@dataclass(frozen=True)
class Variant:
    """One way to train."""

    step_size: float  #: Step size
    preconditioner: Preconditioner = "none"  #: What the gradient is multiplied with; ``none`` for plain gradients
    penalty: float = 0.0  #: Weight of the balance penalty; 1 in Algorithm 1, 0 for none
    start: Start = "random"  #: ``random`` (standard normal entries) or ``spectral``

    def __post_init__(self) -> None:
        check_parts(self.preconditioner, self.penalty)
        if self.start not in get_args(Start):
            raise ValueError(f"start: expected random or spectral, got {self.start!r}")


@dataclass(frozen=True)
class Training:
    """How long, on which batches and by which rule."""

    steps: int  #: Number of steps
    batch_size: int  #: Samples per step, drawn without replacement; they are the keys as well as the queries
    record_at: tuple[int, ...]  #: Steps at which statistics are recorded
    #: Rule that the gradients are fed to; Algorithm 1 is ``sgd`` on preconditioned gradients
    optimizer: Optimizer = "sgd"
    decay: bool = False  #: Whether step sizes fall to zero along a cosine
    population: bool = False  #: Whether to use the gradient of the population loss in place of the batch's
    keys: bool = False  #: Whether to record what queries attend to as well; it takes as long as a step

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch_size < 1:
            raise ValueError(f"steps, batch_size: expected at least 1, got {self.steps}, {self.batch_size}")
        if self.optimizer not in RULES:
            raise ValueError(f"optimizer: expected one of {', '.join(RULES)}, got {self.optimizer!r}")


def train_variants(
    variants: Sequence[Variant],
    seeds: Sequence[int],
    setup: Setup,
    training: Training,
    *,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    progress: Progress | None = None,
) -> History:
    """Train every variant on the problem of every seed as one program; all variants of a seed see the same batches.

    Args:
        variants: Ways to train; neighbours with equal step size are updated together.
        seeds: Seeds of problem, data, batches and random start.
        setup: Sizes.
        training: Steps, batches and rule.
        device: Where to compute.
        dtype: Type of the computation; default float32.
        progress: Told (steps done, steps in all).

    Returns:
        History whose members are ordered by variant, then seed, with the records ``excess_loss`` over the best
        population loss, ``imbalance`` (both with the true covariance, in closed form) and, if asked for,
        ``effective_keys`` of each of the first samples; infinite from the step at which a member diverges.

    Raises:
        ValueError: If there are no variants or seeds, or the batch is larger than the data set.
    """
    if not variants or not seeds:
        raise ValueError(f"variants, seeds: expected at least one of each, got {len(variants)} and {len(seeds)}")
    if training.batch_size > setup.n_samples:
        raise ValueError(
            f"batch_size: expected at most the number of samples, {setup.n_samples}, as batches are drawn without "
            f"replacement; got {training.batch_size}"
        )
    data = _Data(variants, seeds, setup, training, partial(to_tensor, device=device, dtype=dtype))
    with threads(1):
        return ensemble.train(
            data.population_gradient if training.population else data.gradient,
            data.start,
            data.batch,
            optimizer=RULES[training.optimizer]([v.step_size for v in variants for _ in seeds]),
            steps=training.steps,
            record=data.record,
            record_at=training.record_at,
            schedule=update_rules.cosine(training.steps) if training.decay else None,
            on_divergence="record",
            names=[f"{variant}, seed {seed}" for variant in variants for seed in seeds],
            progress=progress,
        )


class _Data:
    """Problems, samples, batches and starts of all members; each drawn once per seed."""

    def __init__(
        self, variants: Sequence[Variant], seeds: Sequence[int], setup: Setup, training: Training, to: partial[Tensor]
    ) -> None:
        self.variants, self.seeds, self.setup, self.training = variants, seeds, setup, training
        samples = [setup.draw(seed) for seed in seeds]
        exact = [torch.from_numpy(np.stack(arrays)) for arrays in zip(*samples, strict=True)]
        self.inputs, self.labels = (to(t.numpy()) for t in exact)
        estimate = sample_covariance(exact[0])
        self.covariance, self.inverse = (to(t.numpy()) for t in (estimate, torch.linalg.inv(estimate)))
        problems = [setup.problem(seed) for seed in seeds]
        true = {"covariance": [p.covariance for p in problems], "true_map": [p.true_map for p in problems]}
        self.true = {name: torch.from_numpy(np.stack(matrices)) for name, matrices in true.items()}
        shapes = (setup.n_outputs, setup.dimension), (setup.dimension, setup.dimension)
        normal = [
            [rng.standard_normal(shape) for shape in shapes] for rng in (stream(s, "random start") for s in seeds)
        ]
        read_off = [layer.numpy() for layer in spectral_init(*exact)]
        starts = {"random": [np.stack(layers) for layers in zip(*normal, strict=True)], "spectral": read_off}
        each = zip(*(starts[v.start] for v in variants), strict=True)
        self.start = {n: to(np.concatenate(layers)) for n, layers in zip(LAYERS, each, strict=True)}
        self.finite = torch.arange(len(variants) * len(seeds), device=self.inputs.device)
        self.probe = self.inputs[:, : training.batch_size]
        self.batches: list[np.random.Generator] = [stream(seed, "batches", setup.n_samples) for seed in seeds]
        self.offsets = torch.arange(len(seeds), device=self.inputs.device).unsqueeze(1) * setup.n_samples
        self.penalties = to([v.penalty for v in variants]).view(-1, 1, 1, 1)
        self.penalised = [i for i, v in enumerate(variants) if v.penalty]
        kinds = {v.preconditioner for v in variants} - {"none"}
        self.preconditioned = {kind: [i for i, v in enumerate(variants) if v.preconditioner == kind] for kind in kinds}

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Draw the next batch of every seed; training asks for each step once, in order."""
        n, size = self.setup.n_samples, self.training.batch_size
        drawn = np.stack([rng.choice(n, size, replace=False, shuffle=False) for rng in self.batches])
        rows = (torch.as_tensor(drawn, device=self.offsets.device) + self.offsets).flatten()
        shape = (len(self.seeds), size)
        inputs, labels = (t.flatten(0, 1).index_select(0, rows) for t in (self.inputs, self.labels))
        return inputs.unflatten(0, shape), labels.unflatten(0, shape)

    def gradient(self, parameters: Parameters, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Parameters]:
        losses, gradients = loss_and_gradient({name: t[self.finite] for name, t in parameters.items()}, batch)
        whole = {n: torch.zeros_like(t).index_copy_(0, self.finite, gradients[n]) for n, t in parameters.items()}
        lost = losses.new_full((len(self.variants) * len(self.seeds),), torch.nan)
        return lost.index_copy_(0, self.finite, losses), self._directions(parameters, whole)

    def population_gradient(self, parameters: Parameters, _: object) -> tuple[Tensor, Parameters]:
        value, key_query = self._layers(parameters)
        true = {name: matrices.to(value) for name, matrices in self.true.items()}
        losses = excess_loss(value, key_query, **true)
        slopes = zip(LAYERS, excess_loss_gradient(value, key_query, **true), strict=True)
        return losses.flatten(), self._directions(parameters, {n: slope.flatten(0, 1) for n, slope in slopes})

    def record(self, parameters: Parameters) -> dict[str, Tensor]:
        layers = self._layers(parameters)
        self.finite = self._members(torch.stack([t.isfinite().flatten(1).all(1) for t in parameters.values()]).all(0))
        value, key_query = (layer.cpu().double() for layer in layers)  # not every device has float64
        excess = excess_loss(value, key_query, **self.true)
        unequal = imbalance(value, key_query, covariance=self.true["covariance"])
        found = {"excess_loss": excess.flatten(), "imbalance": unequal.flatten()}
        if self.training.keys:
            found["effective_keys"] = torch.cat([effective_keys(one, self.probe) for one in layers[1]])
        return found

    def _directions(self, parameters: Parameters, gradients: Parameters) -> Parameters:
        """Add the penalty's gradient and precondition, each variant in its own way."""
        layers, sums = self._layers(parameters), self._layers(gradients)
        if self.penalised:
            weights = self.penalties[self.penalised]
            mine = (layer[self.penalised] for layer in layers)
            for total, extra in zip(sums, penalty_gradient(*mine, covariance=self.covariance), strict=True):
                total[self.penalised] += weights * extra
        for kind, chosen in self.preconditioned.items():
            directions = precondition((sums[0][chosen], sums[1][chosen]), self.inverse, kind)
            for total, direction in zip(sums, directions, strict=True):
                total[chosen] = direction
        return {name: total.flatten(0, 1) for name, total in zip(LAYERS, sums, strict=True)}

    def _members(self, finite: Tensor) -> Tensor:
        """Positions of all members of the variants that are finite on some seed; of the first one, if none is."""
        kept = finite.view(len(self.variants), len(self.seeds)).any(1).nonzero()
        kept = kept if len(kept) else kept.new_zeros((1, 1))
        return (kept * len(self.seeds) + torch.arange(len(self.seeds), device=kept.device)).flatten()

    def _layers(self, stacked: Parameters) -> tuple[Tensor, Tensor]:
        """Members as ``(variants, seeds, ...)``: value, key_query."""
        value, key_query = (stacked[name].unflatten(0, (len(self.variants), len(self.seeds))) for name in LAYERS)
        return value, key_query
