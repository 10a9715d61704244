r"""Softmax networks and their kernel machines as denoisers: trained on noisy labels, stopped, and taken apart.

Answers are ``(outputs, samples)``: what a denoiser says of the clean point behind each noisy one. A kernel machine is
the network to first order around its start: it can be asked about any number of steps of gradient descent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnbook.core.rng import stream, to_tensor
from attnbook.softmax_ntk.descent import gradient_descent
from attnbook.softmax_ntk.linearised import change_of_weights, outputs_and_change
from attnbook.softmax_ntk.mixtures import Mixture
from attnbook.softmax_ntk.ntk import kernel_gradient_flow, ntk_gram
from attnbook.softmax_ntk.reverse_sde import Denoiser, sample
from attnbook.softmax_ntk.score_matching import NoisySample, StoppingRule, draw_noisy_sample, network_input
from attnbook.softmax_ntk.two_layer import Networks, draw_weights, loss_and_gradient, predict
from attnbook.train import Adam, History, train

__all__ = [
    "Machine", "Task", "beside_network", "draw_copies", "few_directions", "four_terms", "function_of_class",
    "learning_curves", "loss_gap", "pseudo_labels", "sample_quality", "tabulated", "train_on_copies",
]  # fmt: skip

TERMS = ("coupling", "label mismatch", "early stopping", "approximation")  # of Claim G.1


@dataclass(frozen=True)
class Task:
    """A mixture of mean 0 whose score is to be learned from noisy labels.

    Attributes:
        mixture: The data, and the schedule of the noise.
        radius: Where inputs are clipped.
    """

    mixture: Mixture
    radius: float

    def draw(self, count: int, rng: np.random.Generator) -> NoisySample:
        """Return times, clean points (the noisy labels) and noisy points."""
        return draw_noisy_sample(self.mixture.draw(count, rng=rng), rng=rng, schedule=self.mixture.schedule)

    def truth(self, drawn: NoisySample) -> np.ndarray:
        """Return the true labels."""
        return self.mixture.denoiser(drawn.times, drawn.points).T

    def line(self, drawn: NoisySample, second_moment: float | None = None) -> np.ndarray:
        """Return what the best linear denoiser answers; it knows the data's second moment, or is given one."""
        slope = self.mixture.schedule.linear_slope(second_moment or self.mixture.second_moment, drawn.times)
        return slope * drawn.points.T

    def inputs(self, drawn: NoisySample, like: Tensor) -> Tensor:
        """Return the inputs of one network, ``(1, samples, inputs)``, with the type and device of a tensor."""
        mapped = network_input(drawn.points, drawn.times, schedule=self.mixture.schedule, radius=self.radius)
        return to_tensor(mapped[None], device=like.device, dtype=like.dtype)

    def start(
        self,
        width: int,
        scale: float,
        seed: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float64,
    ) -> Networks:
        """Return one paired softmax network before training."""
        rng, outputs = stream(seed, "score network", width), self.mixture.dimension
        weights = draw_weights(width, outputs + 2, outputs, rng=rng, scale=scale)
        return Networks.stack("softmax", [weights], device=device, dtype=dtype)

    def answers(self, networks: Networks, drawn: NoisySample) -> np.ndarray:
        """Return what one network answers."""
        return predict(networks, self.inputs(drawn, networks.signs))[0].cpu().double().numpy()

    def largest_slope(self, grid: np.ndarray, step: float = 1e-5) -> float:
        """Return the Lipschitz constant of the true labels on a line, on a grid of points, over 300 times."""
        truth, schedule = self.at_time(self.truth), self.mixture.schedule
        times, x = np.linspace(schedule.first, schedule.last, 300), grid[:, None]
        return max(float(np.abs(truth(t, x + step) - truth(t, x - step)).max()) / (2 * step) for t in times)

    def at_time(self, answer: Callable[[NoisySample], np.ndarray]) -> Denoiser:
        """Return answers as a denoiser that a sampler can call with one time and all its particles."""
        return lambda time, points: answer(NoisySample(np.full(len(points), time), points, points)).T


def draw_copies(task: Task, seed: int, points: int, copies: int) -> list[NoisySample]:
    """Draw clean points for training and half as many held-out ones, and noisy copies of each.

    Args:
        task: The data.
        seed: The clean points depend on it alone.
        points: Number of clean points for training.
        copies: Noisy copies of each.

    Returns:
        Noisy samples for training, ``points * copies`` of them, and held-out ones.
    """
    found = []
    for part, count in {"train": points, "held out": -(-points // 2)}.items():
        clean = np.repeat(task.mixture.draw(count, rng=stream(seed, part)), copies, axis=0)
        found.append(draw_noisy_sample(clean, rng=stream(seed, part, copies), schedule=task.mixture.schedule))
    return found


class Machine:
    r"""Gradient descent on the kernel of a network at its start, each sample's square with a weight of its own.

    The residual $r$ moves as $\dot r=-HDr$ with the weights $D$: plain descent on $D^{1/2}HD^{1/2}$ and $D^{1/2}Y$. The
    step size is one over the largest eigenvalue.

    Args:
        task: The data.
        start: One network before training.
        drawn: Its training samples.
        weight: Times to weights of the squares; default 1.
    """

    def __init__(
        self,
        task: Task,
        start: Networks,
        drawn: NoisySample,
        weight: Callable[[np.ndarray], np.ndarray] = np.ones_like,
    ) -> None:
        self.task, self.start, self.drawn, self.weight = task, start, drawn, weight
        self.labels, self.inputs = drawn.clean.T, task.inputs(drawn, start.signs)
        self.root = self._like(weight(drawn.times)).sqrt().repeat(start.signs.shape[1])
        self.kernel = self.root[:, None] * ntk_gram(start, self.inputs)[0] * self.root

    @cached_property
    def eigenvalues(self) -> Tensor:
        """Eigenvalues of the weighted kernel, in increasing order."""
        return torch.linalg.eigvalsh(self.kernel)

    @property
    def smallest(self) -> float:
        """The smallest eigenvalue; with many samples it is a rounding error."""
        return float(self.eigenvalues[0])

    @property
    def largest(self) -> float:
        """The largest eigenvalue, one over the step size."""
        return float(self.eigenvalues[-1])

    def after(self, steps: Sequence[int], labels: np.ndarray, *, rank: int | None = None) -> Tensor:
        """Return the coefficients of the machine after numbers of steps.

        Args:
            steps: Numbers of steps.
            labels: What it is trained on.
            rank: Directions to keep, for many samples; see :func:`few_directions`. Default all.

        Returns:
            Coefficients, ``(steps, outputs * samples)``.
        """
        y = self.root * self._like(labels.ravel())
        if rank is not None:
            return self.root * few_directions(self.kernel, y, steps, rank=rank)
        unit = torch.eye(len(y), dtype=y.dtype, device=y.device)
        return self.root * kernel_gradient_flow(self.kernel, y, 1 / self.largest, steps, cross=unit)

    def predict(self, coefficients: Tensor, at: NoisySample) -> np.ndarray:
        """Return predictions (records, outputs, samples)."""
        cross = ntk_gram(self.start, self.task.inputs(at, self.inputs), self.inputs)[0]
        return (coefficients @ cross.T).unflatten(1, (self.start.signs.shape[1], -1)).cpu().numpy()

    def held_out_losses(self, coefficients: Tensor, held: NoisySample, labels: np.ndarray) -> np.ndarray:
        """Return the mean square on held-out labels, weighted as in training: all that a stopping rule may see."""
        return (self.weight(held.times) * ((self.predict(coefficients, held) - labels) ** 2).sum(1)).mean(1)

    def networks(self, checkpoints: Sequence[int]) -> list[Networks]:
        """Return the network itself at increasing steps of plain descent with the machine's step size."""
        found, y = [self.start], self._like(self.labels[None])
        size = self.inputs.new_tensor([1 / (self.start.width * self.largest)])
        for before, step in pairwise((0, *checkpoints)):
            found.append(gradient_descent(found[-1], self.inputs, y, size, max_steps=step - before).networks)
        return found[1:]

    def table(self, steps: int, grid: np.ndarray, times: np.ndarray) -> Denoiser:
        """Return the machine after some steps on its labels as a denoiser on a line; see :func:`tabulated`."""
        coefficients = self.after([steps], self.labels)[None]
        moved = change_of_weights(self.start, self.inputs, coefficients).float().cpu()
        first, signs = (part.float().cpu() for part in (self.start.first_layer, self.start.signs))
        single = replace(self.start, first_layer=first, signs=signs)
        return tabulated(self.task, grid, times, lambda x: outputs_and_change(single, x, moved)[1])

    def _like(self, values: np.ndarray) -> Tensor:
        return to_tensor(values, device=self.inputs.device, dtype=self.inputs.dtype)


def few_directions(kernel: Tensor, labels: Tensor, steps: Sequence[int], *, rank: int = 256) -> Tensor:
    r"""Return coefficients of gradient descent on a kernel, along the directions that it learns at all.

    The kernel of a network with few inputs has few eigenvalues above rounding, so a randomised factorisation
    (``torch.svd_lowrank``) takes the place of all eigenvectors: a second instead of ten for 3200 samples. The step size
    is one over the largest eigenvalue.

    Args:
        kernel: Symmetric, positive semidefinite, ``(samples, samples)``.
        labels: One per sample.
        steps: Numbers of steps.
        rank: Directions to keep, at most as many as samples; default 256.

    Returns:
        Coefficients, ``(steps, samples)``.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        vectors, values, _ = torch.svd_lowrank(kernel, q=min(rank, len(kernel)), niter=2)
    times = torch.as_tensor(steps, dtype=kernel.dtype, device=kernel.device)[:, None]
    shares = (values / values[0]).clamp(max=1 - 1e-15)
    learned = -torch.expm1(times * torch.log1p(-shares)) / values
    return (learned * (vectors.mT @ labels)) @ vectors.mT


def tabulated(
    task: Task, grid: np.ndarray, times: Sequence[float] | np.ndarray, answer: Callable[[Tensor], Tensor]
) -> Denoiser:
    """Return a denoiser on a line as a table in single precision, for samplers that ask many times.

    Args:
        task: The data, of one dimension.
        grid: Points at which answers are kept; between them the table is linear, beyond them it repeats the last.
        times: Times that can be asked for.
        answer: Inputs of one network to its answers.

    Returns:
        The denoiser.
    """
    like, known = torch.zeros(1, device="cpu", dtype=torch.float32), {}
    for time in np.asarray(times, dtype=float).tolist():
        at = NoisySample(np.full(len(grid), time), grid[:, None], grid[:, None])
        known[time] = answer(task.inputs(at, like))[0, 0].double().numpy()
    return lambda time, points: np.interp(points[:, 0], grid, known[time])[:, None]


def function_of_class(
    task: Task, start: Networks, fresh: NoisySample, ridge: float = 1e-4
) -> Callable[[NoisySample], np.ndarray]:
    """Return a function of the kernel's class that stands for the truth: a ridge fit of true labels on fresh points."""
    many = task.inputs(fresh, start.signs)
    kernel = ntk_gram(start, many)[0]
    kernel.diagonal().add_(ridge)
    exact = to_tensor(task.truth(fresh).reshape(-1, 1), device=kernel.device, dtype=kernel.dtype)
    coefficients = torch.cholesky_solve(exact, torch.linalg.cholesky(kernel))[:, 0]

    def at(drawn: NoisySample) -> np.ndarray:
        cross = ntk_gram(start, task.inputs(drawn, start.signs), many)[0]
        return (cross @ coefficients).view(start.signs.shape[1], -1).cpu().numpy()

    return at


def pseudo_labels(task: Task, drawn: NoisySample, member: Callable[[NoisySample], np.ndarray]) -> np.ndarray:
    r"""Return the labels of Claim G.1, $f_{\mathcal H}(x_i)+(x_{0,i}-f_*(x_i))$: the same noise around the class."""
    return member(drawn) + (drawn.clean.T - task.truth(drawn))


def four_terms(
    machine: Machine, test: NoisySample, network: np.ndarray, member: Callable[[NoisySample], np.ndarray], steps: int
) -> np.ndarray:
    """Return the terms of Claim G.1 at test points: coupling, label mismatch, early stopping and approximation.

    Args:
        machine: The kernel machine.
        test: Points at which to compare.
        network: What the network answers there after the steps.
        member: Function of the kernel's class that stands for the truth.
        steps: Number of steps.

    Returns:
        Four mean squares.
    """
    labels = (machine.labels, pseudo_labels(machine.task, machine.drawn, member))
    noisy, matched = (machine.predict(machine.after([steps], y), test)[0] for y in labels)
    way = (network, noisy, matched, member(test), machine.task.truth(test))
    return np.array([np.mean((a - b) ** 2) for a, b in pairwise(way)])


def learning_curves(
    machine: Machine, held: NoisySample, at: NoisySample, rule: StoppingRule, *, early: float
) -> dict[str, Any]:
    """Return errors of a machine against the truth along its steps, and where held-out labels stop it.

    Args:
        machine: The kernel machine.
        held: Held-out samples with noisy labels.
        at: Points at which errors are measured.
        rule: What stops it, and the steps that are recorded.
        early: Times below are small; errors there are also measured alone.

    Returns:
        By name and along ``step``: ``error``, ``small_error``, ``train_loss``, ``held_out_loss``; and numbers:
        ``stopped``, the step; ``line_error``, ``small_line_error`` and ``line_by_labels_error`` of best lines, the last
        with the variance of the training labels; the mean squares ``signal`` of the true labels and ``train_noise`` of
        the noisy ones around them.
    """
    task, labels, truth = machine.task, machine.labels, machine.task.truth(at)
    coefficients, small = machine.after(rule.recorded, labels), at.times < early
    squares = ((machine.predict(coefficients, at) - truth) ** 2).sum(1)
    line, by_labels = (((task.line(at, v) - truth) ** 2).sum(0) for v in (None, float(np.mean(labels**2))))
    by_step = {
        "error": squares.mean(1),
        "small_error": squares[:, small].mean(1),
        "train_loss": ((machine.predict(coefficients, machine.drawn) - labels) ** 2).sum(1).mean(1),
        "held_out_loss": machine.held_out_losses(coefficients, held, held.clean.T),
    }
    return {name: xr.DataArray(array, {"step": rule.recorded}) for name, array in by_step.items()} | {
        "stopped": rule.stop(by_step["held_out_loss"]),
        "line_error": line.mean(),
        "small_line_error": line[small].mean(),
        "line_by_labels_error": by_labels.mean(),
        "signal": (truth**2).sum(0).mean(),
        "train_noise": ((labels - task.truth(machine.drawn)) ** 2).sum(0).mean(),
    }


def beside_network(
    machine: Machine,
    at: NoisySample,
    checkpoints: Sequence[int],
    stop: int,
    member: Callable[[NoisySample], np.ndarray],
) -> dict[str, Any]:
    """Train the network of a machine with one output, and split its error where it was stopped.

    Args:
        machine: The kernel machine.
        at: Points at which to compare.
        checkpoints: Steps at which network and machine are compared.
        stop: Step at which the network is stopped.
        member: Function of the kernel's class that stands for the truth.

    Returns:
        ``coupling``, mean square between network and machine along ``checkpoint``; ``stopped_error``; ``terms`` along
        ``term``, see :func:`four_terms`.
    """
    steps = sorted({*checkpoints, stop})
    answers = np.stack([machine.task.answers(network, at)[0] for network in machine.networks(steps)])
    coupling = ((answers - machine.predict(machine.after(steps, machine.labels), at)[:, 0]) ** 2).mean(1)
    stopped = answers[steps.index(stop)]
    terms, names = four_terms(machine, at, stopped, member, stop), list(TERMS)
    return {
        "coupling": xr.DataArray(coupling[[steps.index(c) for c in checkpoints]], {"checkpoint": list(checkpoints)}),
        "stopped_error": ((stopped - machine.task.truth(at)[0]) ** 2).mean(),
        "terms": xr.DataArray(terms, {"term": names}),
    }


def sample_quality(task: Task, denoiser: Denoiser, count: int, rng: np.random.Generator) -> dict[str, float]:
    """Draw samples on a line in 150 steps, and compare them with the data at the first time.

    Args:
        task: The data, two modes around zero.
        denoiser: What the samples are drawn with.
        count: Number of samples.
        rng: Source of randomness.

    Returns:
        ``wasserstein``, their distance, and ``gap``, the share of samples nearer to zero than 0.25.
    """
    from scipy.stats import wasserstein_distance

    schedule = task.mixture.schedule
    found = sample(denoiser, count, dimension=1, rng=rng, schedule=schedule)[:, 0]
    ideal = task.mixture.quantiles(schedule.first, count)
    return {"wasserstein": float(wasserstein_distance(found, ideal)), "gap": float(np.mean(np.abs(found) < 0.25))}


def loss_gap(task: Task, drawn: NoisySample, answers: np.ndarray) -> float:
    r"""Return the paper's loss (6) minus its (5) for a denoiser's answers; weight $\beta^2/\alpha^2$ of time."""
    schedule, t, x = task.mixture.schedule, drawn.times, drawn.points
    weight = (schedule.noise(t) / schedule.signal(t)) ** 2
    score = schedule.score(answers.T, t, x)
    targets = [schedule.score(denoised, t, x) for denoised in (drawn.clean, task.truth(drawn).T)]
    noisy, exact = ((weight * ((score - target) ** 2).sum(1)).mean() for target in targets)
    return float(noisy - exact)


def train_on_copies(
    task: Task,
    start: Networks,
    clean: np.ndarray,
    *,
    copies: int,
    steps: int,
    step_size: float,
    seed: int,
    errors: Mapping[str, tuple[NoisySample, np.ndarray]],
) -> tuple[Networks, History]:
    """Train one network by Adam on all clean points at once, at each step with the next of their noisy copies.

    Args:
        task: The data.
        start: The network before training.
        clean: Clean points, ``(count, dimension)``: the noisy labels.
        copies: Noisy copies of each point; with as many as steps no copy is seen twice.
        steps: Number of steps.
        step_size: Of the first step; it falls linearly to zero.
        seed: Of the noise.
        errors: Name of a mean square that is recorded to the points and answers it compares with.

    Returns:
        The trained network and its history.
    """
    labels = to_tensor(clean.T[None], device=start.signs.device, dtype=start.signs.dtype)

    def network(now: Mapping[str, Tensor]) -> Networks:
        return replace(start, first_layer=now["first_layer"])

    def batch(step: int) -> Tensor:
        rng = stream(seed, "noise", step % copies)
        return task.inputs(draw_noisy_sample(clean, rng=rng, schedule=task.mixture.schedule), start.signs)

    def value_and_grad(now: dict[str, Tensor], inputs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        loss, gradient = loss_and_gradient(network(now), inputs, labels)
        return loss, {"first_layer": gradient}

    def record(now: dict[str, Tensor]) -> dict[str, Tensor]:
        gaps = {name: task.answers(network(now), at) - right for name, (at, right) in errors.items()}
        return {name: torch.tensor([(gap**2).sum(0).mean()], device="cpu") for name, gap in gaps.items()}

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
