"""What the experiments share: data and inputs, kernel machines and networks as denoisers, the four terms, samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from attnbook.core.rng import stream, to_tensor
from attnbook.softmax_ntk.descent import gradient_descent
from attnbook.softmax_ntk.linearised import change_of_weights, outputs_and_change
from attnbook.softmax_ntk.mixtures import Mixture
from attnbook.softmax_ntk.ntk import kernel_gradient_flow, ntk_gram
from attnbook.softmax_ntk.reverse_sde import Denoiser, sample
from attnbook.softmax_ntk.score_matching import NoisySample, Schedule, draw_noisy_sample, network_input
from attnbook.softmax_ntk.two_layer import Networks, draw_weights, predict

SCHEDULE = Schedule()
GAP = 0.25  # points nearer to 0 lie between the two modes on the line
GRID = np.linspace(-2.5, 2.5, 251)  # where denoisers on the line are tabulated
BINS = np.linspace(-2.5, 2.5, 101)  # edges of the histograms of samples
WEIGHTINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "theorem": np.ones_like,  # the score error weighted by beta^2 / alpha^2, which is plain regression
    "signal_to_noise": lambda t: SCHEDULE.signal(t) ** 2 / SCHEDULE.noise(t),  # the score error weighted by beta
}  # weight of a label at time t in the regression


@dataclass(frozen=True)
class ScoreTask:
    """A mixture of mean 0 whose score is to be learned from noisy labels."""

    mixture: Mixture
    radius: float  # where inputs are clipped

    def draw(self, count: int, *, rng: np.random.Generator) -> NoisySample:
        """Return times, clean points (the noisy labels) and noisy points."""
        return draw_noisy_sample(self.mixture.draw(count, rng=rng), rng=rng, schedule=SCHEDULE)

    def truth(self, drawn: NoisySample) -> np.ndarray:
        """Return the true labels, as (outputs, samples)."""
        return self.mixture.denoiser(drawn.times, drawn.points).T

    def line(self, drawn: NoisySample, second_moment: float | None = None) -> np.ndarray:
        """Return what the best linear denoiser answers; it knows the data's second moment, or is given one."""
        return SCHEDULE.linear_slope(second_moment or self.mixture.second_moment, drawn.times) * drawn.points.T

    def inputs(self, times: np.ndarray, points: np.ndarray, like: Tensor) -> Tensor:
        """Return the inputs of one network, with the type and device of a tensor."""
        mapped = network_input(points, times, schedule=SCHEDULE, radius=self.radius)
        return to_tensor(mapped[None], device=like.device, dtype=like.dtype)

    def start(self, width: int, scale: float, seed: int, device: torch.device) -> Networks:
        """Return one paired softmax network."""
        rng, outputs = stream(seed, "score network", width), self.mixture.dimension
        return Networks.stack(
            "softmax", [draw_weights(width, outputs + 2, outputs, rng=rng, scale=scale)], device=device
        )

    def answers(self, networks: Networks, drawn: NoisySample) -> np.ndarray:
        """Return what one network answers, as (outputs, samples)."""
        inputs = self.inputs(drawn.times, drawn.points, networks.signs)
        return predict(networks, inputs)[0].cpu().double().numpy()


ON_A_LINE = ScoreTask(Mixture(((-0.6,), (0.6,)), 0.15), radius=2.5)
IN_THE_PLANE = ScoreTask(Mixture(((0.0, 0.6), (-0.52, -0.3), (0.52, -0.3)), 0.12), radius=3.2)
TASKS = {"line": ON_A_LINE, "plane": IN_THE_PLANE}


class Machine:
    r"""Gradient descent on the kernel of a network at its start, each sample's square with a weight of its own.

    The residual $r$ moves as $\dot r=-HDr$ with the weights $D$: plain descent on $D^{1/2}HD^{1/2}$ and $D^{1/2}Y$. The
    step size is one over the largest eigenvalue.
    """

    def __init__(self, task: ScoreTask, start: Networks, drawn: NoisySample, weighting: str = "theorem") -> None:
        self.task, self.start, self.drawn, self.weighting = task, start, drawn, weighting
        self.labels = drawn.clean.T
        self.inputs = task.inputs(drawn.times, drawn.points, start.signs)
        weights = to_tensor(WEIGHTINGS[weighting](drawn.times), device=self.inputs.device, dtype=self.inputs.dtype)
        self.root = weights.sqrt().repeat(start.signs.shape[1])
        self.kernel = self.root[:, None] * ntk_gram(start, self.inputs)[0] * self.root
        eigenvalues = torch.linalg.eigvalsh(self.kernel)
        self.smallest, self.largest = float(eigenvalues[0]), float(eigenvalues[-1])

    def after(self, steps: Sequence[int], labels: np.ndarray) -> Tensor:
        """Return the coefficients of the machine after numbers of steps, for labels (outputs, samples)."""
        y = self.root * to_tensor(labels.ravel(), device=self.root.device, dtype=self.root.dtype)
        unit = torch.eye(len(y), dtype=y.dtype, device=y.device)
        return self.root * kernel_gradient_flow(self.kernel, y, 1 / self.largest, steps, cross=unit)

    def predict(self, coefficients: Tensor, at: NoisySample) -> np.ndarray:
        """Return predictions (records, outputs, samples)."""
        points = self.task.inputs(at.times, at.points, self.inputs)
        cross = ntk_gram(self.start, points, self.inputs)[0]
        return (coefficients @ cross.T).unflatten(1, (self.start.signs.shape[1], -1)).cpu().numpy()

    def held_out_losses(self, coefficients: Tensor, held: NoisySample, labels: np.ndarray) -> np.ndarray:
        """Return the mean square on held-out labels, weighted as in training: all that a stopping rule may see."""
        squares = ((self.predict(coefficients, held) - labels) ** 2).sum(1)
        return (WEIGHTINGS[self.weighting](held.times) * squares).mean(1)

    def network(self, checkpoints: Sequence[int]) -> list[Networks]:
        """Return the network itself at increasing steps of plain descent with the machine's step size."""
        networks = [self.start]
        y = to_tensor(self.labels[None], device=self.inputs.device, dtype=self.inputs.dtype)
        size = self.inputs.new_tensor([1 / (self.start.width * self.largest)])
        for before, step in pairwise((0, *checkpoints)):
            networks.append(gradient_descent(networks[-1], self.inputs, y, size, max_steps=step - before).networks)
        return networks[1:]

    def table(self, coefficients: Tensor, times: np.ndarray) -> Denoiser:
        """Return the denoiser on the line of one record of coefficients, at given times, in single precision."""
        moved = change_of_weights(self.start, self.inputs, coefficients[None, None]).float().cpu()
        start = _single(self.start)
        return _table(self.task, times, lambda x: outputs_and_change(start, x, moved)[1])


def network_table(task: ScoreTask, networks: Networks, times: np.ndarray) -> Denoiser:
    """Return the denoiser of one network on the line as a table, in single precision."""
    single = _single(networks)
    return _table(task, times, lambda x: predict(single, x))


def _single(networks: Networks) -> Networks:
    """The networks in single precision, and on the CPU: tables are small, and samplers read them in NumPy."""
    return Networks("softmax", networks.first_layer.float().cpu(), networks.signs.float().cpu())


def _table(task: ScoreTask, times: np.ndarray, answer: Callable[[Tensor], Tensor]) -> Denoiser:
    """A table of answers, interpolated; beyond the grid it repeats the last, as a network does with clipped inputs."""
    like, points = torch.zeros(1, device="cpu", dtype=torch.float32), GRID[:, None]
    inputs = {float(time): task.inputs(np.full(len(GRID), time), points, like) for time in times}
    table = {time: answer(x)[0, 0].double().numpy() for time, x in inputs.items()}
    return lambda time, at: np.interp(at[:, 0], GRID, table[time])[:, None]


def in_class(task: ScoreTask, start: Networks, fresh: NoisySample, ridge: float) -> Callable[[NoisySample], np.ndarray]:
    """Return a function of the kernel's class that stands for the truth: a ridge fit of true labels on fresh points."""
    many = task.inputs(fresh.times, fresh.points, start.signs)
    kernel = ntk_gram(start, many)[0]
    kernel.diagonal().add_(ridge)
    exact = to_tensor(task.truth(fresh).reshape(-1, 1), device=kernel.device, dtype=kernel.dtype)
    coefficients = torch.cholesky_solve(exact, torch.linalg.cholesky(kernel))[:, 0]

    def at(drawn: NoisySample) -> np.ndarray:
        points = task.inputs(drawn.times, drawn.points, start.signs)
        return (ntk_gram(start, points, many)[0] @ coefficients).view(start.signs.shape[1], -1).cpu().numpy()

    return at


def pseudo_labels(task: ScoreTask, drawn: NoisySample, member: Callable[[NoisySample], np.ndarray]) -> np.ndarray:
    r"""Return the labels of Claim G.1, $f_{\mathcal H}(x_i)+(x_{0,i}-f_*(x_i))$: the same noise around the class."""
    return member(drawn) + (drawn.clean.T - task.truth(drawn))


def four_terms(
    machine: Machine, test: NoisySample, network: np.ndarray, member: Callable[[NoisySample], np.ndarray], steps: int
) -> np.ndarray:
    """Return coupling, label mismatch, early stopping and approximation at test points, of a network after steps."""
    labels = (machine.labels, pseudo_labels(machine.task, machine.drawn, member))
    noisy, matched = (machine.predict(machine.after([steps], y), test)[0] for y in labels)
    way = (network, noisy, matched, member(test), machine.task.truth(test))
    return np.array([np.mean((a - b) ** 2) for a, b in pairwise(way)])


def sample_quality(
    denoisers: Sequence[Denoiser], count: int, n_steps: int, seed: int, name: str
) -> dict[str, np.ndarray]:
    """Draw samples on the line with each denoiser and the same noise, and compare them with the data at $T_0$."""
    from scipy.stats import wasserstein_distance

    ideal = ON_A_LINE.mixture.quantiles(SCHEDULE.first, count)
    found = [
        sample(one, count, dimension=1, rng=stream(seed, name), schedule=SCHEDULE, n_steps=n_steps)[:, 0]
        for one in denoisers
    ]
    return {
        "wasserstein": np.array([wasserstein_distance(x, ideal) for x in found]),
        "gap": np.array([np.mean(np.abs(x) < GAP) for x in found]),
        "histogram": np.array([np.histogram(x, BINS, density=True)[0] for x in found]),
    }


def line_denoiser(time: float, points: np.ndarray) -> np.ndarray:
    """The best linear denoiser on the line."""
    return SCHEDULE.linear_slope(ON_A_LINE.mixture.second_moment, time) * points


def exact_denoiser(time: float, points: np.ndarray) -> np.ndarray:
    """The true denoiser on the line."""
    return ON_A_LINE.mixture.denoiser(np.full(len(points), time), points)
