"""Draw networks, train them at a step size that fits their own kernel, and see how far they have moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import double_device
from attnbook.softmax_ntk.data import Sample, draw_sample
from attnbook.softmax_ntk.descent import Descent, gradient_descent
from attnbook.softmax_ntk.kernels import Activation
from attnbook.softmax_ntk.ntk import ntk_gram
from attnbook.softmax_ntk.two_layer import Networks, Start, draw_weights, predict

__all__ = ["Problem", "Trained", "starting_networks", "train"]


@dataclass(frozen=True)
class Problem:
    """What a group of networks has in common.

    Attributes:
        activation: What a neuron computes.
        width: Number of neurons.
        n_samples: Number of samples, on the unit sphere.
        n_inputs: Number of inputs.
        n_outputs: Number of outputs; default 1.
        scale: Standard deviation of the initial weights; default 1.
        start: What neurons share at the start; default the paper's pairs.
    """

    activation: Activation
    width: int
    n_samples: int
    n_inputs: int
    n_outputs: int = 1
    scale: float = 1.0
    start: Start = "paired"


@dataclass(frozen=True)
class Trained:
    """Networks of several seeds before and after training.

    Attributes:
        start: The networks before training.
        inputs: Their samples, ``(seeds, samples, inputs)``.
        labels: What they fit, ``(seeds, outputs, samples)``: the initial outputs plus the labels; paired networks
            start at zero, so that these are the labels.
        kernel: Kernel before training, ``(seeds, rows, rows)``.
        eigenvalues: Its eigenvalues, increasing, ``(seeds, rows)``.
        step_size: Step sizes, ``(seeds,)``.
        descent: What training did.
    """

    start: Networks
    inputs: Float[Tensor, "seeds samples inputs"]
    labels: Float[Tensor, "seeds outputs samples"]
    kernel: Float[Tensor, "seeds rows rows"]
    eigenvalues: Float[np.ndarray, "seeds rows"]
    step_size: Float[Tensor, " seeds"]
    descent: Descent

    def movement(self) -> Float[np.ndarray, "seeds width"]:
        """Return how far each neuron moved, in Euclidean norm."""
        return (self.descent.networks.first_layer - self.start.first_layer).norm(dim=1).cpu().numpy()

    def drift(self) -> Float[np.ndarray, " seeds"]:
        """Return how far the kernel moved, relative to its first norm."""
        moved = ntk_gram(self.descent.networks, self.inputs) - self.kernel
        return (moved.norm(dim=(1, 2)) / self.kernel.norm(dim=(1, 2))).cpu().numpy()


def starting_networks(
    problem: Problem,
    seeds: Sequence[int],
    *,
    device: torch.device | str = "cpu",
    samples: Sequence[Sample] | None = None,
) -> tuple[Networks, Float[Tensor, "seeds samples inputs"], Float[Tensor, "seeds outputs samples"]]:
    """Return one network for each seed, its inputs and its labels; problems that differ in nothing else share draws.

    Args:
        problem: What they have in common.
        seeds: One network for each.
        device: Where to compute; default the CPU, which also takes the place of mps.
        samples: One training set per seed; default uniform on unit spheres.
    """
    p, to = problem, partial(to_tensor, device=double_device(device), dtype=torch.float64)
    drawn = samples or [draw_sample(p.n_samples, p.n_inputs, p.n_outputs, seed=seed) for seed in seeds]
    weights = [
        draw_weights(p.width, p.n_inputs, p.n_outputs, rng=stream(s, "weights", p.width), scale=p.scale, start=p.start)
        for s in seeds
    ]
    inputs, labels = (to(np.stack(part)) for part in zip(*drawn, strict=True))
    return Networks.stack(p.activation, weights, device=inputs.device), inputs, labels


def train(
    problem: Problem,
    seeds: Sequence[int],
    *,
    device: torch.device | str,
    max_steps: int,
    target: float = 0.0,
    fraction: float = 1.0,
    samples: Sequence[Sample] | None = None,
) -> Trained:
    r"""Draw networks, train them with step size ``fraction`` $/(m\lambda_{\max}(H^*))$ and keep both ends.

    Args:
        problem: What they have in common.
        seeds: One network for each.
        device: Where to compute.
        max_steps: Steps after which to give up.
        target: Fraction of the first loss to stop at; default never.
        fraction: Step size in units of one over the largest eigenvalue of $mH^*$; default 1. Linear theory allows 2.
        samples: One training set per seed; default uniform on unit spheres.

    Returns:
        The networks before and after.

    Raises:
        ValueError: If the kernel of a network is zero; names seed, activation and what to change.
    """
    start, inputs, labels = starting_networks(problem, seeds, device=device, samples=samples)
    kernel = ntk_gram(start, inputs)
    eigenvalues = torch.linalg.eigvalsh(kernel)
    for member in (eigenvalues[:, -1] <= 0).nonzero().flatten().tolist():
        remedy = (
            f"all its neurons are off at every sample: take a larger width than {problem.width}, or another seed"
            if problem.activation == "relu"
            else "all its neurons are saturated: take smaller weights (scale), or inputs of norm at most one"
        )
        raise ValueError(f"kernel: that of seed {seeds[member]}, {problem.activation}, is zero; {remedy}")
    labels = labels + predict(start, inputs)
    step_size = fraction / (problem.width * eigenvalues[:, -1])
    descent = gradient_descent(start, inputs, labels, step_size, max_steps=max_steps, target=target)
    return Trained(start, inputs, labels, kernel, eigenvalues.cpu().numpy(), step_size, descent)
