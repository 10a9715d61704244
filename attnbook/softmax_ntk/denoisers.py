r"""Softmax networks and their kernel machines as denoisers, trained on noisy labels.

Answers are ``(outputs, samples)``: what a denoiser says of the clean point behind each noisy one. A
kernel machine is the network to first order around its start: it can be asked about any number of
steps of gradient descent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.core.rng import stream
from attnbook.core.settings import check_positive
from attnbook.softmax_ntk.descent import gradient_descent
from attnbook.softmax_ntk.mixtures import Mixture
from attnbook.softmax_ntk.ntk import kernel_gradient_flow, ntk_gram
from attnbook.softmax_ntk.reverse_sde import Denoiser
from attnbook.softmax_ntk.score_matching import NoisySample
from attnbook.softmax_ntk.two_layer import Networks, draw_weights, loss_and_gradient, predict
from attnbook.train import Adam, History, train

__all__ = [
    "Answers",
    "Machine",
    "Task",
    "function_of_class",
    "train_on_copies",
]

Answers: TypeAlias = Callable[[NoisySample], np.ndarray]
"""Noisy points to what a denoiser says of them."""


@dataclass(frozen=True)
class Task(Mixture):
    r"""A mixture of mean 0 whose denoiser is to be learned from noisy labels.

    Attributes:
        radius: Where inputs are clipped; default 2.5, which touches one point in a hundred in one
            dimension.

    Example:
        >>> task = Task(((-0.6,), (0.6,)), 0.15)
        >>> drawn = task.noisy(5, np.random.default_rng(0))
        >>> task.answers(task.start(8, 1.0, 0), drawn).tolist()
        [[0.0, 0.0, 0.0, 0.0, 0.0]]
    """

    radius: float = 2.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(radius=self.radius)

    def noisy(self, count: int, rng: np.random.Generator) -> NoisySample:
        """Return times, clean points (the noisy labels) and noisy points."""
        return self.schedule.noised(self.draw(count, rng=rng), rng=rng)

    def truth(self, drawn: NoisySample) -> np.ndarray:
        """Return the true labels."""
        return self.denoiser(drawn.times, drawn.points).T

    def line(self, drawn: NoisySample) -> np.ndarray:
        r"""Return what the best linear denoiser answers, $\alpha v/(\alpha^2v+\beta)\,x$.

        It knows one number of the data, the mean square $v$ of a coordinate.
        """
        signal, v = self.schedule.signal(drawn.times), self.second_moment
        return signal * v / (signal**2 * v + self.schedule.noise(drawn.times)) * drawn.points.T

    def inputs(self, drawn: NoisySample, like: Tensor) -> Tensor:
        r"""Return $(0.8\,\mathrm{clip}(x)/r,\;0.42\,(2t/T-1),\;0.42)$, of norm below one.

        Assumption 6.1 wants inputs of norm at most one, which normal noise never satisfies. So
        points longer than $r$ are pulled back to length $r$ (our reading), and everything is
        scaled. The last coordinate is constant: a paired network without one is zero at $x=0$.

        Args:
            drawn: Noisy points and their times.
            like: A tensor of the type and on the device that are wanted.

        Returns:
            Inputs of one network, ``(1, samples, dimension + 2)``.

        Raises:
            ValueError: If a time is outside the schedule.
        """
        t = self.schedule.check(drawn.times)
        length = np.linalg.norm(drawn.points, axis=1, keepdims=True)
        inside = drawn.points * np.minimum(1.0, self.radius / np.maximum(length, 1e-300))
        clock = 0.42 * (2 * t / self.schedule.last - 1)
        mapped = np.column_stack([0.8 * inside / self.radius, clock, 0 * t + 0.42])
        return like.new_tensor(mapped[None])

    def start(self, width: int, scale: float, seed: int, **options: Any) -> Networks:
        """Return one paired softmax network before training; options are device and dtype."""
        rng, outputs = stream(seed, "score network", width), self.dimension
        weights = draw_weights(width, outputs + 2, outputs, rng=rng, scale=scale)
        return Networks.stack("softmax", [weights], **options)

    def answers(self, networks: Networks, drawn: NoisySample) -> np.ndarray:
        """Return what one network answers."""
        return predict(networks, self.inputs(drawn, networks.signs))[0].cpu().double().numpy()

    def at_time(self, answers: Answers) -> Denoiser:
        """Return answers as a denoiser that a sampler can call with a time and its particles."""
        return lambda time, x: answers(NoisySample(np.full(len(x), time), x, x)).T


class Machine:
    """Gradient descent on the kernel of a network at its start, from zero.

    The step size is one over the largest eigenvalue.

    Args:
        task: The data.
        start: One network before training.
        drawn: Its training samples.
    """

    def __init__(self, task: Task, start: Networks, drawn: NoisySample) -> None:
        self.task, self.start, self.drawn = task, start, drawn
        self.labels, self.inputs = drawn.clean.T, task.inputs(drawn, start.signs)
        self.kernel = ntk_gram(start, self.inputs)[0]

    @cached_property
    def largest(self) -> float:
        """The largest eigenvalue of the kernel."""
        return float(torch.linalg.eigvalsh(self.kernel)[-1])

    def after(self, steps: Sequence[int], labels: np.ndarray) -> Tensor:
        """Return coefficients ``(steps, outputs * samples)`` after steps on labels."""
        y = self.inputs.new_tensor(labels.ravel())
        unit = y.new_tensor(np.eye(len(y)))
        return kernel_gradient_flow(self.kernel, y, 1 / self.largest, steps, cross=unit)

    def predict(self, coefficients: Tensor, at: NoisySample) -> np.ndarray:
        """Return predictions ``(steps, outputs, samples)``."""
        cross = ntk_gram(self.start, self.task.inputs(at, self.inputs), self.inputs)[0]
        return (coefficients @ cross.T).unflatten(1, (len(self.labels), -1)).cpu().numpy()

    def losses(self, coefficients: Tensor, at: NoisySample, right: np.ndarray) -> np.ndarray:
        """Return the mean square distance of predictions from what is right, ``(steps,)``."""
        return ((self.predict(coefficients, at) - right) ** 2).sum(1).mean(1)

    def network(self, steps: int) -> Networks:
        """Return the network itself after steps of descent with the machine's step size."""
        size = self.inputs.new_tensor([1 / (self.start.width * self.largest)])
        y = self.inputs.new_tensor(self.labels[None])
        return gradient_descent(self.start, self.inputs, y, size, max_steps=steps).networks


def function_of_class(machine: Machine, ridge: float = 1e-4) -> Answers:
    """Return the function of a machine's class that represents the truth.

    Args:
        machine: Whose class; the true labels of its training points are fitted.
        ridge: Of the fit; default 1e-4.

    Returns:
        The ridge fit.
    """
    kernel = machine.kernel.clone()
    kernel.diagonal().add_(ridge)
    truth = kernel.new_tensor(machine.task.truth(machine.drawn).reshape(-1, 1))
    coefficients = torch.cholesky_solve(truth, torch.linalg.cholesky(kernel)).T
    return lambda drawn: machine.predict(coefficients, drawn)[0]


def train_on_copies(
    task: Task,
    start: Networks,
    clean: np.ndarray,
    copies: int,
    *,
    steps: int,
    step_size: float,
    seed: int,
    errors: Mapping[str, tuple[NoisySample, np.ndarray]],
) -> tuple[Networks, History]:
    """Train one network by Adam on all clean points, each step with the next noisy copy of each.

    Args:
        task: The data.
        start: The network before training.
        clean: Clean points, ``(count, dimension)``: the noisy labels.
        copies: Noisy copies of each point; with as many as steps no copy is seen twice.
        steps: Number of steps.
        step_size: Of the first step; it falls linearly to zero.
        seed: Of the noise.
        errors: Name of a mean square to record to the points and answers it compares with.

    Returns:
        The trained network and its history.
    """
    labels = start.signs.new_tensor(clean.T[None])

    def network(now: Parameters) -> Networks:
        return replace(start, first_layer=now["first_layer"])

    def batch(step: int) -> Tensor:
        noisy = task.schedule.noised(clean, rng=stream(seed, "noise", step % copies))
        return task.inputs(noisy, labels)

    def value_and_grad(now: Parameters, inputs: Tensor) -> tuple[Tensor, Parameters]:
        loss, gradient = loss_and_gradient(network(now), inputs, labels)
        return loss, {"first_layer": gradient}

    def record(now: Parameters) -> Parameters:
        gaps = {n: task.answers(network(now), at) - right for n, (at, right) in errors.items()}
        return {n: torch.tensor([(gap**2).sum(0).mean()], device="cpu") for n, gap in gaps.items()}

    history = train(
        value_and_grad,
        {"first_layer": start.first_layer},
        batch,
        optimizer=Adam(step_size),
        steps=steps,
        record=record,
        record_at=sorted({2**k for k in range(steps.bit_length())} | {steps}),
        schedule=lambda step: 1 - step / steps,
    )
    return network(history.parameters), history
