"""What the experiments share: train networks of one activation and one width, and look at how far they moved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core import runtime
from attnbook.core.results import Measurement
from attnbook.core.rng import stream, to_tensor
from attnbook.softmax_ntk.data import Sample, draw_sample
from attnbook.softmax_ntk.descent import Descent, gradient_descent
from attnbook.softmax_ntk.kernels import Activation
from attnbook.softmax_ntk.ntk import ntk_gram
from attnbook.softmax_ntk.two_layer import Networks, Start, draw_weights, predict

__all__ = [
    "ACTIVATIONS",
    "ROUNDING",
    "Problem",
    "Run",
    "over_runs",
    "place",
    "ratio_over_seeds",
    "slope",
    "slope_over_seeds",
    "slopes",
    "train",
]

# Stands for zero on logarithmic axes.
ROUNDING = 1e-16
ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)


@dataclass(frozen=True)
class Problem:
    """What a group of networks has in common.

    Attributes:
        activation: What a neuron computes.
        width: Number of neurons.
        n_samples: Number of samples.
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
class Run:
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

    def first_outputs(self) -> Float[Tensor, "seeds outputs samples"]:
        """Return the outputs before training; zero for paired networks."""
        return predict(self.start, self.inputs)

    def movement(self) -> Float[np.ndarray, "seeds width"]:
        """Return how far each neuron moved, in Euclidean norm."""
        return (self.descent.networks.first_layer - self.start.first_layer).norm(dim=1).cpu().double().numpy()

    def drift(self) -> Float[np.ndarray, " seeds"]:
        """Return how far the kernel moved, relative to its first norm."""
        moved = ntk_gram(self.descent.networks, self.inputs) - self.kernel
        return (moved.norm(dim=(1, 2)) / self.kernel.norm(dim=(1, 2))).cpu().double().numpy()


def train(
    problem: Problem,
    seeds: Sequence[int],
    *,
    device: torch.device,
    max_steps: int,
    target: float = 0.0,
    fraction: float = 1.0,
    samples: Sequence[Sample] | None = None,
) -> Run:
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
    """
    p, to = problem, partial(to_tensor, device=device, dtype=torch.float64)
    weights = [
        draw_weights(p.width, p.n_inputs, p.n_outputs, rng=stream(s, "weights", p.width), scale=p.scale, start=p.start)
        for s in seeds
    ]
    start = Networks.stack(p.activation, weights, device=device, dtype=torch.float64)
    drawn = samples or [draw_sample(p.n_samples, p.n_inputs, p.n_outputs, seed=s) for s in seeds]
    inputs = to(np.stack([s.inputs for s in drawn]))
    labels = to(np.stack([s.labels for s in drawn])) + predict(start, inputs)
    kernel = ntk_gram(start, inputs)
    eigenvalues = torch.linalg.eigvalsh(kernel)
    step_size = fraction / (p.width * eigenvalues[:, -1])
    descent = gradient_descent(start, inputs, labels, step_size, max_steps=max_steps, target=target)
    return Run(start, inputs, labels, kernel, eigenvalues.cpu().double().numpy(), step_size, descent)


def place(name: str | torch.device | None) -> torch.device:
    """Return the device to compute on: as :func:`attnbook.core.runtime.device`, but the CPU in place of mps.

    Late losses and small drifts need float64, and kernels need eigenvalues; mps has neither.

    Args:
        name: Name of a device; default the first that this machine has.

    Returns:
        The device.

    Raises:
        ValueError: If the device is not available.
    """
    where = runtime.device(name)
    return torch.device("cpu") if where.type == "mps" else where


def slope(x: Sequence[float] | np.ndarray, y: np.ndarray) -> float:
    """Return the slope of a line through points on log axes; zeros count as the smallest rounding error."""
    return float(np.polyfit(np.log(x), np.log(np.maximum(y, ROUNDING)), 1)[0])


def slope_over_seeds(x: Sequence[float] | np.ndarray, samples: np.ndarray) -> tuple[float, tuple[float, float]]:
    """Return the log-log slope of the medians over seeds, and the range of the slopes of single seeds.

    Args:
        x: Abscissae, ``(points,)``.
        samples: Positive values, ``(seeds, points)``.

    Returns:
        The slope, and (smallest, largest) over seeds.
    """
    each = [slope(x, row) for row in samples]
    return slope(x, np.median(samples, axis=0)), (min(each), max(each))


def slopes(x: Sequence[float] | np.ndarray, **samples: np.ndarray) -> Measurement:
    """Return log-log slopes of medians over seeds, named ``slope_of_medians_<name>``, with the range of single seeds.

    Args:
        x: Abscissae, ``(points,)``.
        **samples: Name to positive values, ``(seeds, points)``.

    Returns:
        The measurement.
    """
    found = {f"slope_of_medians_{name}": slope_over_seeds(x, values) for name, values in samples.items()}
    n_seeds = len(next(iter(samples.values())))
    return Measurement({k: v[0] for k, v in found.items()}, {k: v[1] for k, v in found.items()}, n_seeds)


def over_runs(n_seeds: int, pick: Callable[..., np.ndarray], **samples: np.ndarray) -> Measurement:
    """Return the extreme, or the share, of each quantity over all runs, with its range over single seeds.

    Args:
        n_seeds: Number of seeds, the length of the first axis.
        pick: ``np.min``, ``np.max`` or ``np.mean`` (for shares).
        **samples: Name to values, ``(seeds, ...)``.

    Returns:
        The measurement.
    """
    each = {name: pick(np.reshape(values, (n_seeds, -1)), axis=1) for name, values in samples.items()}
    return Measurement(
        {name: float(pick(values)) for name, values in each.items()},
        {name: (float(values.min()), float(values.max())) for name, values in each.items()},
        n_seeds,
    )


def ratio_over_seeds(name: str, above: np.ndarray, below: np.ndarray) -> Measurement:
    """Summarise a ratio: of the medians over seeds, with its range seed by seed.

    Args:
        name: Name of the value.
        above: Numerators, one per seed.
        below: Denominators, one per seed.

    Returns:
        The measurement.

    Example:
        >>> ratio_over_seeds("gain", np.array([2.0, 3.0]), np.array([1.0, 1.0])).values
        {'gain': 2.5}
    """
    ratios = above / below
    value = float(np.median(above) / np.median(below))
    return Measurement({name: value}, {name: (float(ratios.min()), float(ratios.max()))}, len(ratios))
