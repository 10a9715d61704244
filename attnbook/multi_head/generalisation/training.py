"""Data, start and training of all experiments of the chapter, and the targets that the bounds compare with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from attnbook.core.ensemble import Parameters
from attnbook.core.experiment import Experiment
from attnbook.core.runtime import Progress
from attnbook.multi_head import generalisation_bounds as theory
from attnbook.multi_head import head_groups, layer, starts
from attnbook.multi_head.curvature_bounds import loss_constants
from attnbook.multi_head.data import Drawn, Mixture, draw
from attnbook.multi_head.objectives import logistic
from attnbook.multi_head.realizability import Targets
from attnbook.multi_head.tangent_kernel import tangent_margin

Named = dict[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class OnMixture(Experiment):
    """Data, the first phase and the step size; the paper's sizes are not in the text available to us."""

    n_tokens: int = 10  # tokens T of a sample
    dimension: int = 20  # of a token, d
    n_patterns: int = 4  # patterns M that say nothing; all have norm 1
    relevant_fraction: float = 0.2  # share of tokens that carry the label
    noise: float = 0.3  # bound on the noise along patterns
    free_noise: float = 1.0  # norm of the noise orthogonal to all patterns
    first_samples: int = 400  # of the first phase, one step from zero; they are not counted in n
    step_size: float = 0.5  # practical: it was not made for the theorem, and not tuned

    @property
    def mixture(self) -> Mixture:
        """The data model."""
        sizes = self.n_tokens, self.dimension, self.n_patterns, 1.0, self.relevant_fraction
        return Mixture(*sizes, self.noise, self.noise, self.free_noise)

    def draw(self, seeds: tuple[int, ...], n_samples: int, purpose: str, where: torch.device) -> Drawn:
        """Draw samples; the patterns of a seed are the same for every purpose."""
        return draw(self.mixture, n_samples, seeds, purpose=purpose, device=where)

    def start(self, seeds: tuple[int, ...], where: torch.device) -> Parameters:
        """Return the two groups of heads after the first phase."""
        first = self.draw(seeds, self.first_samples, "first phase", where)
        return starts.first_phase(first.tokens, first.labels)

    def constants(self, heads: np.ndarray, head_norms: np.ndarray) -> Named:
        """Return the constants of Corollary 1 at some norms of the largest head."""
        arrays = {name: np.empty(head_norms.shape) for name in ("gradient", "smoothness", "curvature")}
        for index, n_heads in np.ndenumerate(np.broadcast_to(heads, head_norms.shape)):
            found = loss_constants(
                n_tokens=self.n_tokens,
                dimension=self.dimension,
                n_heads=int(n_heads),
                token_norm=self.mixture.token_norm,
                largest_head_norm=float(head_norms[index]),
            )
            for name, array in arrays.items():
                array[index] = getattr(found, name)
        return arrays


def losses(networks: Parameters, batch: Drawn, counts: Tensor) -> Tensor:
    """Return the mean logistic loss of each member."""
    return -logsigmoid(batch.labels * layer.outputs(networks, batch.tokens, counts=counts)).mean(1)


def even_counts(start: Parameters, heads: int) -> Tensor:
    """Return the heads of each group, half of them with each sign, for each member."""
    return torch.as_tensor(starts.even_sign_counts(heads)).to(start["decoder"]).expand(len(start["decoder"]), -1)


def descend(
    start: Parameters,
    batch: Drawn,
    counts: Tensor,
    step_size: float,
    steps: Sequence[int],
    record: Callable[[Parameters], Mapping[str, Tensor]],
    progress: Progress | None = None,
) -> Named:
    """Train by gradient descent; return what is recorded after some increasing numbers of steps, ``(steps, ...)``."""
    history = head_groups.gradient_descent(
        start,
        batch.tokens,
        logistic(batch.labels),
        counts=counts,
        step_size=step_size,
        steps=steps[-1],
        record=record,
        record_at=steps,
        progress=progress,
    )
    at = np.searchsorted(history.steps, steps)
    return {name: values[at] for name, values in history.records.items()}


def best_direction(
    start: Parameters, batch: Drawn, counts: Tensor
) -> tuple[np.ndarray, np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """Return tangent margin, output bound, and the training loss at a distance in the direction of that margin."""
    outputs = layer.outputs(start, batch.tokens, counts=counts)
    best = tangent_margin(start, batch.tokens, batch.labels, counts=counts)

    def loss_at(distance: np.ndarray) -> np.ndarray:
        far = torch.as_tensor(distance).to(outputs)[:, None, None, None]
        moved = {name: start[name] + far * best.direction[name] for name in start}
        return np.asarray(losses(moved, batch, counts).cpu())

    return best.margin, np.asarray(outputs.abs().amax(1).clamp(min=1).cpu()), loss_at


def best_bound(targets: Targets, *, n_samples: int, steps: int, step_size: float) -> Named:
    r"""Return the smallest bound of Theorem 2 over targets with $\eta K\hat L\le D^2$, and its target."""
    bounds = theory.theorem_2(
        n_samples=n_samples,
        steps=steps,
        step_size=step_size,
        target_loss=targets.loss,
        target_distance=targets.distance,
    )
    allowed = step_size * steps * targets.loss <= targets.distance**2
    best = np.where(allowed, bounds, np.inf).argmin(1)[:, None]
    found = {"theorem_2": bounds, "target_loss": targets.loss, "target_distance": targets.distance}
    return {name: np.take_along_axis(values, best, 1)[:, 0] for name, values in found.items()}
