r"""Networks of any width after the first phase, as two groups of equal heads, for stacks of seeds and widths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.core.resuming import check_seeds
from attnbook.core.rng import stream, to_tensor
from attnbook.multi_head import layer, starts
from attnbook.multi_head.data import Mixture
from attnbook.multi_head.experiments import samples
from attnbook.multi_head.objectives import logistic

__all__ = ["Sizes", "Stack", "along", "draw", "losses", "moved"]


@dataclass(frozen=True)
class Sizes:
    r"""Sizes of a problem small enough for bounds to be followed by hand; ours, the paper's are not in the text.

    Attributes:
        n_tokens: Tokens of a sample.
        dimension: Dimension of a token.
        n_patterns: Patterns that say nothing.
        pattern_norm: Norm of every pattern.
        relevant_fraction: Share of tokens that carry the label.
        noise: Bound on the noise along patterns, $Z_\mu=Z_\nu$.
        free_noise: Norm of the noise orthogonal to all patterns.
        n_samples: Training samples.
        first_phase_samples: Extra samples $n_1$ of the first phase.
        heads: Numbers of heads, increasing, each at least 2.
        steps: Steps of gradient descent.
        seeds: Seeds of patterns, samples and signs.
        chunk: Seeds trained together as one program.
    """

    n_tokens: int = 4
    dimension: int = 6
    n_patterns: int = 2
    pattern_norm: float = 1.0
    relevant_fraction: float = 0.5
    noise: float = 0.02
    free_noise: float = 0.2
    n_samples: int = 40
    first_phase_samples: int = 1000
    heads: tuple[float, ...] = (4, 64, 1e4, 1e6, 1e8, 1e10, 1e12)
    steps: int = 1000
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    chunk: int = 5

    def __post_init__(self) -> None:
        if len(self.heads) < 2 or list(self.heads) != sorted(set(self.heads)) or self.heads[0] < 2:
            raise ValueError(f"heads: expected at least two increasing numbers of at least 2, got {self.heads}")
        for name in ("n_samples", "first_phase_samples", "steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        check_seeds(self.seeds, self.chunk)
        _ = self.mixture

    @property
    def mixture(self) -> Mixture:
        """The data model."""
        return Mixture(
            self.n_tokens,
            self.dimension,
            self.n_patterns,
            pattern_norm=self.pattern_norm,
            relevant_fraction=self.relevant_fraction,
            label_noise=self.noise,
            other_noise=self.noise,
            free_noise=self.free_noise,
        )


class Stack(NamedTuple):
    """One member for each seed and width: seeds outside, widths inside.

    Attributes:
        tokens: Training samples.
        labels: 1 or -1.
        relevant: Which tokens carry the label.
        start: The two groups after the first phase.
        counts: Heads of each group.
    """

    tokens: Float[Tensor, "members samples tokens dimension"]
    labels: Float[Tensor, "members samples"]
    relevant: Bool[Tensor, "members samples tokens"]
    start: Parameters
    counts: Float[Tensor, "members groups"]


def draw(settings: Sizes, seeds: tuple[int, ...], device: torch.device) -> Stack:
    """Draw samples, take the first phase, and draw signs until both occur.

    Args:
        settings: Sizes; the widths are ``settings.heads``.
        seeds: Seeds of this stack.
        device: Where it is wanted.

    Returns:
        The stack; widths of one seed share samples and start.
    """
    drawn = samples.draw(settings.mixture, settings.n_samples, seeds, device=device)
    extra = samples.draw(settings.mixture, settings.first_phase_samples, seeds, purpose="first phase", device=device)
    start = starts.first_phase(extra.tokens, extra.labels)
    counts = np.array([_signs(seed, n_heads) for seed in seeds for n_heads in settings.heads])
    widths = len(settings.heads)
    tokens, labels, relevant = (tensor.repeat_interleave(widths, dim=0) for tensor in drawn)
    repeated = {name: tensor.repeat_interleave(widths, dim=0) for name, tensor in start.items()}
    return Stack(tokens, labels, relevant, repeated, to_tensor(counts, device=device, dtype=torch.float64))


def along(stack: Stack, direction: Parameters, distance: Float[Tensor, " members"]) -> Parameters:
    """Return the points at some distance from the start in a direction.

    Args:
        stack: The start.
        direction: One direction of norm 1 for each member.
        distance: How far.

    Returns:
        The points.
    """
    far = distance[:, None, None, None]
    return {name: stack.start[name] + far * tensor for name, tensor in direction.items()}


def losses(parameters: Parameters, stack: Stack) -> Float[Tensor, " members"]:
    """Return the training loss of each member.

    Args:
        parameters: Two groups of heads for each member.
        stack: Its samples and counts.

    Returns:
        The losses.
    """
    return logistic(stack.labels)(layer.outputs(parameters, stack.tokens, counts=stack.counts))[0]


def moved(parameters: Parameters, stack: Stack) -> Float[Tensor, " members"]:
    """Return how far the head that moved most is from its start.

    Args:
        parameters: Two groups of heads for each member.
        stack: Their start.

    Returns:
        The largest distance of a single head.
    """
    squares = [(parameters[name] - stack.start[name]).square().sum((2, 3)) for name in ("decoder", "key_query")]
    return torch.stack(squares).sum(0).amax(1).sqrt()


def _signs(seed: int, n_heads: float) -> np.ndarray:
    """How many heads have each sign, given that both occur (else there would be one group)."""
    rng = stream(seed, "signs", f"{n_heads:g}")
    counts = starts.draw_sign_counts(n_heads, rng=rng)
    while counts.min() == 0:
        counts = starts.draw_sign_counts(n_heads, rng=rng)
    return counts
