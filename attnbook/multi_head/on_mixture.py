"""Experiments on the tokenised mixture: their settings, and stacks of networks that start after the first phase."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.core.experiment import Arrays
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress
from attnbook.multi_head import head_groups, layer, starts
from attnbook.multi_head.checks import at_least, increasing, whole
from attnbook.multi_head.curvature_bounds import loss_constants
from attnbook.multi_head.data import Drawn, Mixture, draw
from attnbook.multi_head.experiment_parts import Gridded
from attnbook.multi_head.objectives import logistic
from attnbook.multi_head.tangent_kernel import TangentMargin, tangent_margin


class Stack(NamedTuple):
    """Members: samples, two groups of equal heads after the first phase, and how many heads each group has."""

    start: Parameters
    counts: Tensor
    tokens: Tensor
    labels: Tensor
    relevant: Tensor

    def on(self, drawn: Drawn) -> Stack:
        """Return the same networks with other samples of their seeds."""
        widths = len(self.counts) // len(drawn.tokens)
        return Stack(self.start, self.counts, *(tensor.repeat_interleave(widths, dim=0) for tensor in drawn))

    def outputs(self, networks: Parameters) -> Tensor:
        """Return the outputs of one network of each member."""
        return layer.outputs(networks, self.tokens, counts=self.counts)

    def losses(self, networks: Parameters) -> Tensor:
        """Return the training loss of one network of each member."""
        return logistic(self.labels)(self.outputs(networks))[0]

    def output_bound(self) -> np.ndarray:
        """Return the largest output at the start, at least 1."""
        return np.asarray(self.outputs(self.start).abs().amax(1).clamp(min=1).cpu())

    def tangent(self) -> TangentMargin:
        """Return the largest margin of the linearised network, and its direction."""
        return tangent_margin(self.start, self.tokens, self.labels, counts=self.counts)

    def towards(self, direction: Parameters, distance: np.ndarray) -> Parameters:
        """Return the networks at some distance from the start, one for each member, in a direction of norm 1."""
        far = torch.from_numpy(distance).to(self.tokens)[:, None, None, None]
        return {name: tensor + far * direction[name] for name, tensor in self.start.items()}

    def train(
        self, step_size: float | Sequence[float], steps: Sequence[int],
        record: Callable[[Parameters], Mapping[str, Tensor]], progress: Progress | None = None,
    ) -> tuple[dict[str, np.ndarray], Parameters]:  # fmt: skip
        """Train by gradient descent; return what was recorded after these increasing steps, and the networks."""
        history = head_groups.gradient_descent(
            self.start, self.tokens, logistic(self.labels), counts=self.counts, step_size=step_size, steps=steps[-1],
            record=record, record_at=steps, progress=progress,
        )  # fmt: skip
        at = np.searchsorted(history.steps, steps)
        return {name: values[at] for name, values in history.records.items()}, history.parameters


@dataclass(frozen=True, kw_only=True)
class OnMixture(Gridded):
    """Data small and clean enough for bounds to be followed by hand; ours, the paper's sizes are not in the text."""

    n_tokens: int = 4  # tokens T of a sample
    dimension: int = 6  # of a token
    n_patterns: int = 2  # patterns M that say nothing
    pattern_norm: float = 1.0  # norm S of every pattern
    relevant_fraction: float = 0.5  # share zeta of tokens that carry the label
    noise: float = 0.02  # bound on the noise along patterns, Z_mu = Z_nu
    free_noise: float = 0.2  # norm of the noise orthogonal to all patterns

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.mixture

    @property
    def mixture(self) -> Mixture:
        """The data model."""
        sizes = self.n_tokens, self.dimension, self.n_patterns, self.pattern_norm, self.relevant_fraction
        return Mixture(*sizes, self.noise, self.noise, self.free_noise)

    def draw(self, seeds: Sequence[int], n_samples: int, purpose: str, where: torch.device) -> Drawn:
        """Draw samples; the patterns of a seed are the same for every purpose."""
        return draw(self.mixture, n_samples, seeds, purpose=purpose, device=where)

    def constants(self, heads: np.ndarray | float, head_norms: np.ndarray) -> dict[str, np.ndarray]:
        """Return the constants of Corollary 1 at some norms of the largest head."""
        sizes: dict[str, Any] = {"n_tokens": self.n_tokens, "dimension": self.dimension, "n_heads": heads}
        found = loss_constants(**sizes, token_norm=self.mixture.token_norm, largest_head_norm=head_norms)
        return {"gradient": found.gradient, "smoothness": found.smoothness, "curvature": found.curvature}


@dataclass(frozen=True, kw_only=True)
class MixtureCells(Gridded):
    """Base of experiments whose grid has pattern norms, shares of relevant tokens and noise; ours, as above."""

    n_tokens: int = 20  # T
    dimension: int = 16  # d
    n_patterns: int = 4  # M
    free_noise: float = 0.3  # norm of the noise orthogonal to all patterns

    def mixture(self, pattern_norm: float, relevant_fraction: float, noise_share: float) -> Mixture:
        r"""Return the data of one cell; $Z_\mu=Z_\nu$ is a share of $S^2$."""
        noise = noise_share * pattern_norm**2
        sizes = self.n_tokens, self.dimension, self.n_patterns, pattern_norm, relevant_fraction
        return Mixture(*sizes, noise, noise, self.free_noise)


@dataclass(frozen=True, kw_only=True)
class AfterFirstPhase(OnMixture):
    """Networks that start after the first phase."""

    first_phase_samples: int = 1000  # n_1, extra samples of the first phase; they are not counted in n

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, first_phase_samples=self.first_phase_samples)

    def first(self, seeds: Sequence[int], where: torch.device) -> Drawn:
        """Draw the samples of the first phase."""
        return self.draw(seeds, self.first_phase_samples, "first phase", where)


@dataclass(frozen=True, kw_only=True)
class WideNetworks(AfterFirstPhase):
    """The same problem for several numbers of heads."""

    axes: ClassVar[Mapping[str, str]] = {"heads": "heads"}

    n_samples: int = 40  # training samples
    heads: tuple[float, ...] = (4, 64, 1e4, 1e6, 1e8, 1e10, 1e12)  # increasing, each at least 2

    def __post_init__(self) -> None:
        super().__post_init__()
        increasing(2, heads=self.heads)
        whole(**{f"heads: {n_heads:g}": n_heads for n_heads in self.heads})

    def stack(self, seeds: Sequence[int], where: torch.device) -> Stack:
        """Draw samples, take the first phase, and draw the signs of the heads."""
        drawn = self.draw(seeds, self.n_samples, "samples", where)
        return stacked(drawn, self.first(seeds, where), self.heads, random_signs(seeds, self.heads))

    def by_width(self, arrays: Mapping[str, tuple[tuple[str, ...], Any]]) -> Arrays:
        """Split the members of a stack into seeds and numbers of heads."""
        found: Arrays = {}
        for name, (dims, v) in arrays.items():
            values = np.asarray(v.cpu() if isinstance(v, Tensor) else v)
            found[name] = ("seed", "heads", *dims), values.reshape(-1, len(self.heads), *values.shape[1:])
        return found


def stacked(drawn: Drawn, first: Drawn, heads: Sequence[float], counts: Sequence[np.ndarray] | None = None) -> Stack:
    """Return one member for each seed and number of heads, seeds outside, after the first phase on other samples.

    Half of the heads of a member have each sign, or as ``counts`` says.
    """
    start, widths = starts.first_phase(first.tokens, first.labels), len(heads)
    counts = counts or [starts.even_sign_counts(n_heads) for n_heads in heads] * len(drawn.tokens)
    repeated = {name: tensor.repeat_interleave(widths, dim=0) for name, tensor in start.items()}
    samples = (tensor.repeat_interleave(widths, dim=0) for tensor in drawn)
    return Stack(repeated, torch.from_numpy(np.array(counts)).to(drawn.tokens), *samples)


def random_signs(seeds: Sequence[int], heads: Sequence[float]) -> list[np.ndarray]:
    """Draw how many heads have each sign, until both occur: else there would be one group."""
    found = []
    for seed, n_heads in itertools.product(seeds, heads):
        rng = stream(seed, "signs", f"{n_heads:g}")
        while (plus := rng.binomial(int(n_heads), 0.5)) in (0, n_heads):
            pass
        found.append(np.array([plus, n_heads - plus], dtype=np.float64))
    return found
