"""What the experiments on score estimation share: the data, the network's inputs, kernel machines and samplers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.ensemble import train
from attnbook.core.rng import stream, to_tensor
from attnbook.core.update_rules import Adam
from attnbook.softmax_ntk.linearised import predict_linearised
from attnbook.softmax_ntk.mixtures import Mixture, mixture_denoiser, mixture_quantiles
from attnbook.softmax_ntk.ntk import kernel_gradient_flow, ntk_gram
from attnbook.softmax_ntk.reverse_sde import Denoiser, look_up, reverse_times, sample, tabulate, wasserstein
from attnbook.softmax_ntk.score_matching import NoisySample, Schedule, draw_noisy_sample, network_input
from attnbook.softmax_ntk.two_layer import Networks, draw_weights, loss_and_gradient, predict

__all__ = ["BINS", "GAP", "IN_THE_PLANE", "ON_A_LINE", "KernelMachine", "ScoreTask", "sample_quality", "train_by_adam"]

# The region between the two modes on the line.
GAP = 0.25
# Points of a tabulated denoiser: one every 0.02.
TABLE = 251
# Edges of the histograms of particles.
BINS = np.linspace(-2.5, 2.5, 101)


@dataclass(frozen=True)
class ScoreTask:
    """A mixture whose score is to be learned.

    Attributes:
        mixture: The data.
        schedule: Rate of the noise, first and last time.
        radius: Where inputs are clipped.
    """

    mixture: Mixture
    schedule: Schedule = field(default_factory=Schedule)
    radius: float = 2.5

    def draw(self, count: int, *, rng: np.random.Generator) -> NoisySample:
        """Return a training set with noisy labels."""
        return draw_noisy_sample(self.mixture.draw(count, rng=rng), rng=rng, schedule=self.schedule)

    def true_labels(self, drawn: NoisySample) -> Float[np.ndarray, "count dimension"]:
        """Return $f_*$ at the points of a training set."""
        return mixture_denoiser(self.mixture, drawn.times, drawn.points, schedule=self.schedule)

    def inputs(
        self,
        times: Float[np.ndarray, " count"],
        points: Float[np.ndarray, "count dimension"],
        like: Tensor,
    ) -> Float[Tensor, "1 count inputs"]:
        """Return the inputs of one network, with the type and device of a tensor."""
        mapped = network_input(points, times, schedule=self.schedule, radius=self.radius)
        return to_tensor(mapped[None], device=like.device, dtype=like.dtype)

    def start(
        self, width: int, scale: float, *, seed: int, device: torch.device, dtype: torch.dtype = torch.float64
    ) -> Networks:
        """Return one paired softmax network."""
        n_inputs, rng = self.mixture.dimension + 2, stream(seed, "score network", width)
        weights = draw_weights(width, n_inputs, self.mixture.dimension, rng=rng, scale=scale)
        return Networks.stack("softmax", [weights], device=device, dtype=dtype)

    def exact(self) -> Denoiser:
        """Return the true denoiser $f_*$."""
        return lambda time, points: mixture_denoiser(
            self.mixture, np.full(len(points), time), points, schedule=self.schedule
        )

    def table(self, networks: Networks, n_steps: int) -> Denoiser:
        """Return the denoiser of one network on the line as a table for the times of a backward process.

        Single precision is enough for it.
        """
        single = Networks("softmax", networks.first_layer.float(), networks.signs.float())
        return tabulate(self.network(single), self.times(n_steps), reach=self.radius, points=TABLE)

    def times(self, n_steps: int) -> Float[np.ndarray, " steps"]:
        """Return the times at which a backward process asks for the score."""
        return reverse_times(n_steps, schedule=self.schedule)[:-1]

    def network(self, networks: Networks) -> Denoiser:
        """Return the denoiser of one trained network."""

        def answer(time: float, points: np.ndarray) -> np.ndarray:
            inputs = self.inputs(np.full(len(points), time), points, networks.signs)
            return predict(networks, inputs)[0].T.cpu().double().numpy()

        return answer

    def answers(self, networks: Networks, drawn: NoisySample) -> Float[np.ndarray, "count dimension"]:
        """Return what one network answers at the points of a training set."""
        inputs = self.inputs(drawn.times, drawn.points, networks.signs)
        return predict(networks, inputs)[0].T.cpu().double().numpy()

    def ideal_gap(self) -> float:
        """Return the share of the data at the first time that lies between the modes, on the line."""
        ideal = mixture_quantiles(self.mixture, self.schedule.first, 20_000, schedule=self.schedule)
        return float(np.mean(np.abs(ideal) < GAP))

    def linear(
        self, networks: Networks, displacements: Float[Tensor, "variants inputs width"], times: np.ndarray
    ) -> list[Denoiser]:
        """Return tables of the denoisers of linear models around the start, on the line, for the given times.

        All variants share their features, which single precision is enough for.
        """
        grid = np.linspace(-self.radius, self.radius, TABLE)
        single = Networks("softmax", networks.first_layer.float(), networks.signs.float())
        moved, rows = displacements[None].float(), []
        for time in times:
            inputs = self.inputs(np.full(TABLE, time), grid[:, None], single.signs)
            rows.append(predict_linearised(single, moved, inputs)[0, :, 0].cpu().double().numpy())
        return [
            look_up(grid, {float(t): row[k] for t, row in zip(times, rows, strict=True)})
            for k in range(len(displacements))
        ]

    def train_on_fresh_noise(
        self, networks: Networks, *, batch: int, iterations: int, step_size: float, rng: np.random.Generator
    ) -> Networks:
        """Train one network by Adam on a fresh sample per iteration; see :func:`train_by_adam`."""

        def fresh(_: int) -> tuple[Tensor, Tensor]:
            drawn = self.draw(batch, rng=rng)
            labels = to_tensor(drawn.clean.T[None], device=networks.signs.device, dtype=networks.signs.dtype)
            return self.inputs(drawn.times, drawn.points, networks.signs), labels

        return train_by_adam(networks, fresh, iterations=iterations, step_size=step_size)


def train_by_adam(
    networks: Networks, batches: Callable[[int], tuple[Tensor, Tensor]], *, iterations: int, step_size: float
) -> Networks:
    """Train networks by Adam, step size falling linearly to zero.

    Args:
        networks: The networks at their start; they are not changed.
        batches: Number of the iteration to inputs ``(members, batch, inputs)`` and labels
            ``(members, outputs, batch)``.
        iterations: Number of iterations.
        step_size: First step size.

    Returns:
        The trained networks.
    """

    def gradient(parameters: dict[str, Tensor], batch: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        losses, slope = loss_and_gradient(Networks("softmax", parameters["first_layer"], networks.signs), *batch)
        return losses, {"first_layer": slope}

    history = train(
        gradient,
        {"first_layer": networks.first_layer},
        batches,
        optimizer=Adam(step_size),
        steps=iterations,
        schedule=lambda step: 1 - step / iterations,
        record=lambda parameters: {"size": parameters["first_layer"].square().mean((1, 2))},
        record_at=[iterations],
    )
    return Networks("softmax", history.parameters["first_layer"], networks.signs)


ON_A_LINE = ScoreTask(Mixture(((-0.6,), (0.6,)), 0.15))
"""Two modes on a line."""
IN_THE_PLANE = ScoreTask(Mixture(((0.0, 0.6), (-0.52, -0.3), (0.52, -0.3)), 0.12), radius=3.2)
"""Three modes at the corners of a triangle; the clip is wider, so that it still touches few points."""


class KernelMachine:
    r"""Gradient descent on the kernel of one network at its start: the limit in which training is linear.

    Attributes:
        networks: The network.
        inputs: Its training inputs.
        kernel: Its kernel there.
        smallest: Its smallest eigenvalue; negative by rounding where it is zero to sixteen digits.
        step_size: $1/(m\lambda_{\max})$, the step size of the network.
    """

    def __init__(self, networks: Networks, inputs: Float[Tensor, "1 samples inputs"]) -> None:
        self.networks, self.inputs = networks, inputs
        self.kernel = ntk_gram(networks, inputs)
        eigenvalues = torch.linalg.eigvalsh(self.kernel)
        self.smallest = float(eigenvalues[0, 0])
        self.step_size = 1 / (networks.width * eigenvalues[:, -1])
        self._asked: tuple[Tensor, Tensor] | None = None

    def after(self, labels: Float[Tensor, "1 rows"], steps: Sequence[int]) -> Float[Tensor, "steps 1 rows"]:
        """Return the coefficients $c$ with which the machine predicts $K(x,X)c$, after any numbers of steps."""
        unit = torch.eye(self.kernel.shape[1], dtype=self.kernel.dtype, device=self.kernel.device)[None]
        return kernel_gradient_flow(self.kernel, labels, self.step_size * self.networks.width, steps, cross=unit)

    def predict(
        self, coefficients: Float[Tensor, "steps 1 rows"], points: Float[Tensor, "1 points inputs"] | None = None
    ) -> Float[Tensor, "steps outputs points"]:
        """Return predictions at points, default the training points, for each set of coefficients."""
        cross = self.kernel if points is None else self._cross(points)
        return (coefficients[:, 0] @ cross[0].T).unflatten(1, (self.networks.signs.shape[1], -1))

    def _cross(self, points: Tensor) -> Tensor:
        """The kernel between points and training inputs, kept for the points that were asked for last."""
        if self._asked is None or self._asked[0] is not points:
            self._asked = points, ntk_gram(self.networks, points, self.inputs)
        return self._asked[1]


def sample_quality(
    task: ScoreTask,
    denoiser: Denoiser,
    *,
    count: int,
    n_steps: int,
    rng: np.random.Generator,
    keep: Sequence[int] = (),
) -> dict[str, np.ndarray]:
    """Draw samples on the line and compare them with the diffused data at the first time.

    Args:
        task: The data, one-dimensional.
        denoiser: Estimate of the clean point.
        count: Number of particles.
        n_steps: Steps of the backward process.
        rng: Source of randomness.
        keep: Steps whose particles are kept as histograms.

    Returns:
        ``wasserstein`` and ``gap`` (the share between the modes), ``histogram`` of the samples over :data:`BINS`,
        ``history`` of histograms ``(kept, bins)`` and ``paths`` of the first particles ``(kept, particles)``.
    """
    found, kept = sample(denoiser, count, dimension=1, rng=rng, schedule=task.schedule, n_steps=n_steps, keep=keep)
    ideal = mixture_quantiles(task.mixture, task.schedule.first, count, schedule=task.schedule)
    return {
        "wasserstein": np.array(wasserstein(found[:, 0], ideal)),
        "gap": np.mean(np.abs(found[:, 0]) < GAP),
        "histogram": np.histogram(found, BINS, density=True)[0],
        "history": np.array([np.histogram(k, BINS, density=True)[0] for k in kept]).reshape(len(keep), len(BINS) - 1),
        "paths": kept[:, :40, 0],
    }
