"""An outlook: the same network and the same regression on small images, scikit-learn's digits of 8 x 8 pixels.

Beside the network stand the best linear denoiser and the exact denoiser of the training set, which is an attention
layer over the training images and can only repeat them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core import runtime
from attnbook.core.results import Clock, Measurement, Result, over_seeds
from attnbook.core.resuming import check_seeds, seed_by_seed
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress
from attnbook.datasets import digits
from attnbook.softmax_ntk.experiments.runs import place
from attnbook.softmax_ntk.experiments.score_tasks import train_by_adam
from attnbook.softmax_ntk.reverse_sde import Denoiser, sample
from attnbook.softmax_ntk.score_matching import NoisySample, Schedule, draw_noisy_sample, network_input
from attnbook.softmax_ntk.two_layer import Networks, draw_weights, predict

__all__ = ["DENOISERS", "ScoreDigits", "Settings", "run"]

DENOISERS = ("network", "linear", "training_set")
PIXELS = 64
# Images of the training set and of the network that are kept for the picture.
SHOWN = 20
# Length at which noisy images are clipped: the longest of them are hardly touched.
RADIUS = 12.0
SCHEDULE = Schedule()


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment.

    Attributes:
        width: Neurons.
        scale: Standard deviation of the initial weights.
        batch: Noisy images per iteration.
        iterations: Iterations of Adam.
        step_size: Its first step size, falling linearly to zero.
        n_noise: Noisy versions of each held-out image.
        n_made: Images to generate.
        n_sde_steps: Steps of the backward process.
        seeds: Seeds of weights and noise.
        chunk: Seeds kept together.
    """

    width: int = 256
    scale: float = 1.0
    batch: int = 128
    iterations: int = 150
    step_size: float = 1e-2
    n_noise: int = 2
    n_made: int = 40
    n_sde_steps: int = 50
    seeds: tuple[int, ...] = (0,)
    chunk: int = 1

    def __post_init__(self) -> None:
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(width=16, batch=8, iterations=3, n_noise=1, n_made=21, n_sde_steps=3, seeds=(0, 1))

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop; far too small for images."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return the full size of this book's experiment; the paper has none."""
        return cls(
            width=2048, batch=256, iterations=4000, n_noise=10, n_made=400, n_sde_steps=300, seeds=(0, 1)
        )  # fmt: skip


@dataclass(frozen=True)
class ScoreDigits(Result):
    r"""Errors on held-out images and generated images.

    Attributes:
        error: Mean squared error against the clean held-out images, the noisy labels, ``(seeds, denoisers)``.
        signal: Mean square of these images around the mean of the training images, ``(seeds,)``.
        nearest: Root mean square distance of a generated image from its nearest training image, ``(seeds,)``.
        nearest_real: The same distance for held-out images, ``(seeds,)``.
        made: Generated images of the first seed, ``(images, 64)``.
        neighbours: The training image nearest to each, ``(images, 64)``.
    """

    experiment: ClassVar[str] = "softmax_ntk.score_digits"
    settings_type: ClassVar[type] = Settings
    digits: ClassVar[int | None] = 6

    error: Float[np.ndarray, "seeds denoisers"]
    signal: Float[np.ndarray, " seeds"]
    nearest: Float[np.ndarray, " seeds"]
    nearest_real: Float[np.ndarray, " seeds"]
    made: Float[np.ndarray, "images 64"]
    neighbours: Float[np.ndarray, "images 64"]

    def measurements(self) -> dict[str, Measurement]:
        """Return the errors on held-out images, by claim id."""
        return {"SN-6.DIGITS": over_seeds(error_network=self.error[:, 0], error_linear=self.error[:, 1])}


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> ScoreDigits:
    """Train one network per seed on noisy digits, compare its errors and generate images.

    Args:
        settings: Sizes and seeds.
        device: Where to train; default the first of cuda, mps and cpu.
        progress: Told (seeds done, seeds in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
    """
    clock, where = Clock(), place(device)
    with runtime.threads(1):
        arrays = seed_by_seed(
            settings, lambda seed: _measure(settings, seed, where), clock=clock, workdir=workdir, progress=progress
        )
    first = {name: arrays.pop(name)[0] for name in ("made", "neighbours")}
    return ScoreDigits(settings=settings, provenance=clock.provenance(where), **arrays, **first)


def _measure(s: Settings, seed: int, device: torch.device) -> dict[str, np.ndarray]:
    images = digits()
    known, held_out = (_small(x) for x in (images.train, images.test))
    trained = _train(s, seed, known, device)
    denoisers = {"network": _network(trained), "linear": _linear(known), "training_set": _training_set(known)}
    rng = stream(seed, "held out")
    noisy = draw_noisy_sample(np.repeat(held_out, s.n_noise, axis=0), rng=rng, schedule=SCHEDULE)
    made, _ = sample(
        denoisers["network"], s.n_made, dimension=PIXELS, rng=rng, schedule=SCHEDULE, n_steps=s.n_sde_steps
    )
    final = denoisers["network"](SCHEDULE.first, made)
    distance, at = _nearest(final, known)
    return {
        "error": np.array([_error(denoisers[name], noisy) for name in DENOISERS]),
        "signal": ((held_out - known.mean(axis=0)) ** 2).mean(),
        "nearest": np.sqrt((distance**2).mean()),
        "nearest_real": np.sqrt((_nearest(held_out, known)[0] ** 2).mean()),
        "made": final[:SHOWN],
        "neighbours": known[at[:SHOWN]],
    }


def _small(enlarged: np.ndarray) -> np.ndarray:
    """The 8 x 8 pixels, from -1 to 1, of digits that were enlarged threefold with a margin of 2."""
    return enlarged[:, 2:26:3, 2:26:3].reshape(len(enlarged), PIXELS) / 127.5 - 1


def _inputs(times: np.ndarray, points: np.ndarray, like: Tensor) -> Tensor:
    mapped = network_input(points, times, schedule=SCHEDULE, radius=RADIUS)
    return to_tensor(mapped[None], device=like.device, dtype=like.dtype)


def _train(s: Settings, seed: int, known: np.ndarray, device: torch.device) -> Networks:
    weights = draw_weights(s.width, PIXELS + 2, PIXELS, rng=stream(seed, "weights", s.width), scale=s.scale)
    start, rng = Networks.stack("softmax", [weights], device=device, dtype=torch.float32), stream(seed, "fresh noise")

    def fresh(_: int) -> tuple[Tensor, Tensor]:
        drawn = draw_noisy_sample(known[rng.integers(len(known), size=s.batch)], rng=rng, schedule=SCHEDULE)
        labels = to_tensor(drawn.clean.T[None] / np.sqrt(PIXELS), device=device, dtype=torch.float32)
        return _inputs(drawn.times, drawn.points, start.signs), labels

    return train_by_adam(start, fresh, iterations=s.iterations, step_size=s.step_size)


def _network(trained: Networks) -> Denoiser:
    """The network as a denoiser; its labels were images divided by 8, of norm at most one."""

    def answer(time: float, points: np.ndarray) -> np.ndarray:
        inputs = _inputs(np.full(len(points), time), points, trained.signs)
        return np.sqrt(PIXELS) * predict(trained, inputs)[0].T.cpu().double().numpy()

    return answer


def _linear(known: np.ndarray) -> Denoiser:
    r"""The best affine denoiser, $\mu+\alpha C(\alpha^2C+\beta I)^{-1}(x-\alpha\mu)$."""
    mean = known.mean(axis=0)
    variances, directions = np.linalg.eigh(np.cov(known.T))

    def answer(time: float, points: np.ndarray) -> np.ndarray:
        signal, noise = SCHEDULE.signal(time), SCHEDULE.noise(time)
        shrink = signal * variances / (signal**2 * variances + noise)
        return mean + ((points - signal * mean) @ directions * shrink) @ directions.T

    return answer


def _training_set(known: np.ndarray) -> Denoiser:
    r"""$E[x_0|x_t]$ if only the training images existed: softmax attention over them."""

    def answer(time: float, points: np.ndarray) -> np.ndarray:
        signal, noise = SCHEDULE.signal(time), SCHEDULE.noise(time)
        logits = (signal * points @ known.T - signal**2 * (known**2).sum(axis=1) / 2) / noise
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True) @ known

    return answer


def _error(denoiser: Denoiser, noisy: NoisySample) -> float:
    """Mean squared error per pixel, the times gathered in a hundred groups."""
    order = np.array_split(np.argsort(noisy.times), 100)
    squares = []
    for group in filter(len, order):
        time = float(noisy.times[group].mean())
        squares.append(((denoiser(time, noisy.points[group]) - noisy.clean[group]) ** 2).mean(axis=1))
    return float(np.concatenate(squares).mean())


def _nearest(images: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    distances = np.linalg.norm(images[:, None] - known, axis=2)
    return distances.min(axis=1), distances.argmin(axis=1)
