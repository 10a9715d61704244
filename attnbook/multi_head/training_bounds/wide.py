"""Networks of any width after the first phase, as two groups of equal heads: their start and their training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.core.experiment import Experiment
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress
from attnbook.multi_head import head_groups, layer, starts
from attnbook.multi_head.data import Mixture, draw
from attnbook.multi_head.objectives import logistic


@dataclass(frozen=True, kw_only=True)
class WideNetworks(Experiment):
    """Sizes of a problem small enough for bounds to be followed by hand; ours, the paper's are not in the text."""

    n_tokens: int = 4
    dimension: int = 6
    n_patterns: int = 2  # patterns that say nothing
    pattern_norm: float = 1.0
    relevant_fraction: float = 0.5  # share of tokens that carry the label
    noise: float = 0.02  # bound on the noise along patterns, Z_mu = Z_nu
    free_noise: float = 0.2  # norm of the noise orthogonal to all patterns
    n_samples: int = 40
    first_phase_samples: int = 1000  # n_1, extra samples of the first phase
    heads: tuple[float, ...] = (4, 64, 1e4, 1e6, 1e8, 1e10, 1e12)  # increasing, each at least 2
    steps: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        if list(self.heads) != sorted(set(self.heads)) or self.heads[0] < 2:
            raise ValueError(f"heads: expected increasing numbers of at least 2, got {self.heads}")
        for name in ("n_samples", "first_phase_samples", "steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        _ = self.mixture

    @property
    def mixture(self) -> Mixture:
        """The data model."""
        sizes = self.n_tokens, self.dimension, self.n_patterns, self.pattern_norm, self.relevant_fraction
        return Mixture(*sizes, self.noise, self.noise, self.free_noise)


class Stack(NamedTuple):
    """One member for each seed and width, seeds outside: samples, the two groups after the first phase, their heads."""

    tokens: Tensor
    labels: Tensor
    relevant: Tensor
    start: Parameters
    counts: Tensor

    def losses(self, parameters: Parameters) -> Tensor:
        """The training loss of each member."""
        return logistic(self.labels)(layer.outputs(parameters, self.tokens, counts=self.counts))[0]


def draw_stack(settings: WideNetworks, seeds: Sequence[int], device: torch.device) -> Stack:
    """Draw samples, take the first phase, and draw signs until both occur; widths of a seed share all but the signs."""
    drawn = draw(settings.mixture, settings.n_samples, seeds, device=device)
    extra = draw(settings.mixture, settings.first_phase_samples, seeds, purpose="first phase", device=device)
    start = starts.first_phase(extra.tokens, extra.labels)
    counts = to_tensor(
        np.array([_signs(seed, n_heads) for seed in seeds for n_heads in settings.heads]),
        device=device,
        dtype=torch.float64,
    )
    widths = len(settings.heads)
    tokens, labels, relevant = (tensor.repeat_interleave(widths, dim=0) for tensor in drawn)
    repeated = {name: tensor.repeat_interleave(widths, dim=0) for name, tensor in start.items()}
    return Stack(tokens, labels, relevant, repeated, counts)


def _signs(seed: int, n_heads: float) -> np.ndarray:
    """How many heads have each sign, given that both occur (else there would be one group)."""
    rng = stream(seed, "signs", f"{n_heads:g}")
    counts = starts.draw_sign_counts(n_heads, rng=rng)
    while counts.min() == 0:
        counts = starts.draw_sign_counts(n_heads, rng=rng)
    return counts


def train(
    stack: Stack, step_size: float | Sequence[float], steps: int, kept: Sequence[int], progress: Progress | None
) -> dict[str, Any]:
    """Train every member; return losses, averages and distances at the kept steps, attention and outputs at the end."""

    def record(parameters: Parameters) -> dict[str, Tensor]:
        change = {name: parameters[name] - stack.start[name] for name in stack.start}
        squares = torch.stack([tensor.square().sum((2, 3)) for tensor in change.values()]).sum(0)
        return {
            "loss": stack.losses(parameters),
            "distance": head_groups.norm(change, counts=stack.counts),
            "largest_move": squares.amax(1).sqrt(),
        }

    history = head_groups.gradient_descent(
        stack.start,
        stack.tokens,
        logistic(stack.labels),
        counts=stack.counts,
        step_size=step_size,
        steps=steps,
        record=record,
        record_at=range(steps + 1),
        progress=progress,
    )
    records = history.records | {"average": averages(history.records["loss"])}
    weights = layer.attention_weights(history.parameters, stack.tokens)
    on_relevant = (weights * stack.relevant[:, :, None, None, :]).sum(4).mean((1, 3))
    return {name: values[list(kept)].T for name, values in records.items()} | {
        "attention": on_relevant.cpu().numpy(),
        "outputs": layer.outputs(history.parameters, stack.tokens, counts=stack.counts),
    }


def averages(loss: np.ndarray) -> np.ndarray:
    """The average over steps 1 to each one along the first axis; the loss itself at step 0."""
    steps = np.arange(1, len(loss)).reshape(-1, *[1] * (loss.ndim - 1))
    return np.concatenate([loss[:1], np.cumsum(loss[1:], axis=0) / steps])
