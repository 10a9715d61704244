"""The networks whose curvature is measured: sizes, samples, and four kinds of points.

*Random* points; *trained* ones (a fixed number of steps of gradient descent from there); *lone* ones, where the first
of $H$ heads does the work of a trained single head and the others are zero: the same function for every $H$; and
*equal* ones, trained until the loss is the same for every $H$.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.core.resuming import check_seeds
from attnbook.core.rng import stream, to_tensor
from attnbook.multi_head import network
from attnbook.multi_head.data import Mixture

__all__ = ["POINTS", "Settings", "draw_points", "random_start"]

POINTS = ("random", "trained", "lone", "equal")


@dataclass(frozen=True)
class Settings:
    r"""Sizes of the experiment; the paper's own are not in the text available to us.

    Attributes:
        n_tokens: Tokens of a sample.
        dimension: Dimension of a token.
        n_patterns: Patterns that say nothing.
        pattern_norm: Norm of every pattern.
        relevant_fraction: Share of tokens that carry the label.
        noise: Bound on the noise along patterns, $Z_\mu=Z_\nu$.
        free_noise: Norm of the noise orthogonal to all patterns.
        n_samples: Training samples.
        heads: Numbers of heads, increasing.
        scale: Standard deviation of the entries at random points, where training also starts.
        step_size: Step size of gradient descent; not tuned.
        steps: Steps from a random to a trained point.
        equal_loss: Loss at which training to an equal point stops.
        seeds: Seeds of patterns, samples and random points.
        chunk: Seeds trained together as one program.
    """

    n_tokens: int = 5
    dimension: int = 8
    n_patterns: int = 3
    pattern_norm: float = 1.0
    relevant_fraction: float = 0.2
    noise: float = 0.1
    free_noise: float = 0.3
    n_samples: int = 40
    heads: tuple[int, ...] = (1, 4, 16, 64, 256)
    scale: float = 0.5
    step_size: float = 1.0
    steps: int = 100
    equal_loss: float = 0.2
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    chunk: int = 1

    def __post_init__(self) -> None:
        if len(self.heads) < 2 or list(self.heads) != sorted(set(self.heads)) or self.heads[0] < 1:
            raise ValueError(f"heads: expected at least two increasing numbers of at least 1, got {self.heads}")
        for name in ("n_samples", "steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if not 0 < self.equal_loss < math.log(2):
            raise ValueError(f"equal_loss: expected a number between 0 and log 2, got {self.equal_loss}")
        check_seeds(self.seeds, self.chunk)
        _ = self.mixture

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show little; larger tokens, so that all claims are measured."""
        return cls(dimension=9, heads=(1, 4, 8), steps=10, seeds=(0, 1))

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a larger network, up to 192 000 parameters."""
        return cls(
            n_tokens=10,
            dimension=50,
            n_patterns=20,
            n_samples=50,
            heads=(1, 4, 16, 64),
        )

    @property
    def mixture(self) -> Mixture:
        """The data model."""
        return Mixture(
            self.n_tokens,
            self.dimension,
            self.n_patterns,
            self.pattern_norm,
            self.relevant_fraction,
            self.noise,
            self.noise,
            self.free_noise,
        )

    @property
    def n_parameters(self) -> int:
        """Parameters of one head."""
        return (self.n_tokens + self.dimension) * self.dimension


def draw_points(
    settings: Settings, n_heads: int, seeds: tuple[int, ...], batch: network.Batch
) -> dict[str, Parameters]:
    """Return networks at the points of :data:`POINTS`; the heads of a smaller random network are those of a larger one.

    Args:
        settings: Sizes, scale and training.
        n_heads: Number of heads.
        seeds: Seeds, one member each.
        batch: Their samples.

    Returns:
        Point to stacked parameters, on the device of the samples.

    Raises:
        FloatingPointError: If training diverges, or does not reach the equal loss within ten times the steps.
    """

    def train(start: Parameters) -> Parameters:
        return network.gradient_descent(start, batch, step_size=settings.step_size, steps=settings.steps).parameters

    random, single = (random_start(settings, count, seeds, batch[0].device) for count in (n_heads, 1))
    lone = {name: torch.zeros_like(tensor) for name, tensor in random.items()}
    for name, tensor in train(single).items():
        lone[name][:, :1] = tensor
    lone["decoder"] *= math.sqrt(n_heads)
    most = 10 * max(settings.steps, 100)
    equal = network.descend_to(random, batch, step_size=settings.step_size, loss=settings.equal_loss, most_steps=most)
    return {"random": random, "trained": train(random), "lone": lone, "equal": equal}


def random_start(settings: Settings, n_heads: int, seeds: tuple[int, ...], device: torch.device) -> Parameters:
    """Return random networks, where training starts.

    Args:
        settings: Sizes and scale.
        n_heads: Number of heads.
        seeds: Seeds, one member each.
        device: Where they are wanted.

    Returns:
        Stacked parameters, in double precision.
    """
    drawn = [
        network.draw_parameters(
            n_heads, settings.n_tokens, settings.dimension, scale=settings.scale, rng=stream(seed, "random point")
        )
        for seed in seeds
    ]
    return {name: _double(np.stack([one[name] for one in drawn]), device) for name in drawn[0]}


def _double(values: np.ndarray, device: torch.device) -> Tensor:
    return to_tensor(values, device=device, dtype=torch.float64)
