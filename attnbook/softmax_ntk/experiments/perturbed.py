"""What the experiments on stability share: paired networks of several seeds, and how a move changes their kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.rng import stream, to_tensor
from attnbook.softmax_ntk.data import draw_sample
from attnbook.softmax_ntk.experiments.runs import Problem
from attnbook.softmax_ntk.ntk import ntk_gram
from attnbook.softmax_ntk.perturbations import Direction, displaced
from attnbook.softmax_ntk.two_layer import Networks, draw_weights

__all__ = ["Start"]


@dataclass(frozen=True)
class Start:
    """Networks of several seeds before the move, with their samples.

    Attributes:
        problem: What they have in common.
        seeds: One network for each.
        device: Where to compute.
    """

    problem: Problem
    seeds: Sequence[int]
    device: torch.device

    @cached_property
    def inputs(self) -> Float[Tensor, "seeds samples inputs"]:
        """Samples of each seed, on the unit sphere."""
        p = self.problem
        drawn = [draw_sample(p.n_samples, p.n_inputs, p.n_outputs, seed=s).inputs for s in self.seeds]
        return to_tensor(np.stack(drawn), device=self.device, dtype=torch.float64)

    @cached_property
    def networks(self) -> Networks:
        """The networks; seeds share their weights between activations."""
        p = self.problem
        weights = [
            draw_weights(p.width, p.n_inputs, p.n_outputs, rng=stream(s, "weights", p.width), scale=p.scale)
            for s in self.seeds
        ]
        return Networks.stack(p.activation, weights, device=self.device)

    @cached_property
    def kernel(self) -> Float[Tensor, "seeds rows rows"]:
        """Their kernels before the move."""
        return ntk_gram(self.networks, self.inputs)

    def norm(self) -> Float[np.ndarray, " seeds"]:
        """Return the Frobenius norm of each kernel."""
        return self.kernel.norm(dim=(1, 2)).cpu().double().numpy()

    def exponent(self) -> Float[np.ndarray, " seeds"]:
        r"""Return the measured $B$: the largest $|\\langle w_r,x_i\\rangle|$, at least 1."""
        logits = torch.bmm(self.inputs, self.networks.first_layer)
        return logits.abs().amax((1, 2)).clamp(min=1.0).cpu().double().numpy()

    def moved(self, direction: Direction, radius: float) -> Networks:
        """Return the networks after a move; the same seed moves in the same direction at every radius."""
        width = self.problem.width
        return displaced(
            self.networks, direction, radius, rngs=[stream(s, "direction", direction, width) for s in self.seeds]
        )

    def moved_kernel(self, direction: Direction, radius: float) -> Float[Tensor, "seeds rows rows"]:
        """Return their kernels after a move."""
        return ntk_gram(self.moved(direction, radius), self.inputs)

    def change(self, direction: Direction, radius: float) -> Float[np.ndarray, " seeds"]:
        r"""Return $\|H(\tilde W)-H(W)\|_F$ of each seed."""
        return (self.moved_kernel(direction, radius) - self.kernel).norm(dim=(1, 2)).cpu().double().numpy()

    def changes(
        self, directions: Sequence[Direction], radii: Sequence[float]
    ) -> Float[np.ndarray, "seeds radii directions"]:
        """Return the changes of the kernels for several directions and radii."""
        return np.stack([np.stack([self.change(d, r) for d in directions], axis=1) for r in radii], axis=1)

    def of(self, **changes: object) -> Start:
        """Return the start of a problem that differs in a few things."""
        return replace(self, problem=replace(self.problem, **changes))  # type: ignore[arg-type]  # replace checks the names
