"""The formulas of section 6, checked: forward process, Tweedie, denoising score matching as regression, inputs.

The data is a mixture of two normal modes on a line, and one of three modes in the plane for what must hold there too.
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
from attnbook.core.results import Clock, Measurement, Result, extremes_over_seeds, over_seeds
from attnbook.core.resuming import check_seeds, seed_by_seed
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress
from attnbook.softmax_ntk.experiments.runs import place
from attnbook.softmax_ntk.experiments.score_tasks import IN_THE_PLANE, ON_A_LINE, ScoreTask
from attnbook.softmax_ntk.mixtures import mixture_score
from attnbook.softmax_ntk.score_matching import Schedule, network_input, tweedie_score

__all__ = ["DiffusionIdentities", "Settings", "run"]


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment.

    Attributes:
        n_paths: Simulated paths of the forward process, even: they come in pairs with mirrored noise, so that their
            mean is free of sampling error.
        n_path_steps: Steps of each path.
        path_times: Times at which mean and variance are compared.
        n_draws: Draws for the gap between the two losses.
        n_points: Points at which closed forms are compared.
        n_inputs: Inputs whose norms are looked at, and labels whose noise is measured.
        seeds: Seeds of everything random.
        chunk: Seeds kept together.
    """

    n_paths: int = 100_000
    n_path_steps: int = 400
    path_times: tuple[float, ...] = (0.05, 0.25, 0.5, 1.0, 1.5)
    n_draws: int = 200_000
    n_points: int = 200
    n_inputs: int = 50_000
    seeds: tuple[int, ...] = (0, 1, 2)
    chunk: int = 3

    def __post_init__(self) -> None:
        if self.n_paths % 2:
            raise ValueError(f"n_paths: paths come in mirrored pairs, expected an even number, got {self.n_paths}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(n_paths=200, n_path_steps=20, n_draws=500, n_points=7, n_inputs=100, seeds=(0, 1), chunk=1)

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a larger run of this book's experiment; the paper has none."""
        return cls(n_paths=400_000, n_path_steps=1500, n_draws=4_000_000, seeds=tuple(range(10)), chunk=1)


@dataclass(frozen=True)
class DiffusionIdentities(Result):
    r"""How far the two sides of each formula are apart, one number per seed unless stated.

    Attributes:
        path_error: Relative error of mean and variance of simulated paths, ``(seeds, 2, times)``.
        loss_gap: Denoising minus ordinary score matching loss for three models, ``(seeds, models)``.
        tweedie_error: Largest distance of Tweedie's formula from the score.
        score_error: Largest distance of the closed-form score from automatic differentiation.
        regression_error: Largest relative distance of weighted denoising loss and squared regression error.
        input_norm: Largest norm of an input.
        share_clipped: Share of inputs that the clip touches.
        share_long_labels: Share of labels $x_0$ of norm above one.
        label_noise: $E\|x_0-f_*\|^2$.
        signal: $E\|f_*\|^2$.
    """

    experiment: ClassVar[str] = "softmax_ntk.diffusion_identities"
    settings_type: ClassVar[type] = Settings
    digits: ClassVar[int | None] = None

    path_error: Float[np.ndarray, "seeds 2 times"]
    loss_gap: Float[np.ndarray, "seeds models"]
    tweedie_error: Float[np.ndarray, " seeds"]
    score_error: Float[np.ndarray, " seeds"]
    regression_error: Float[np.ndarray, " seeds"]
    input_norm: Float[np.ndarray, " seeds"]
    share_clipped: Float[np.ndarray, " seeds"]
    share_long_labels: Float[np.ndarray, " seeds"]
    label_noise: Float[np.ndarray, " seeds"]
    signal: Float[np.ndarray, " seeds"]

    def measurements(self) -> dict[str, Measurement]:
        """Return the largest errors and the shares, by claim id."""
        spread = self.loss_gap.max(axis=1) - self.loss_gap.min(axis=1)
        clipped = extremes_over_seeds(max_input_norm=self.input_norm, share_clipped=self.share_clipped)
        return {
            "SN-6.FWD": extremes_over_seeds(max_relative_error=self.path_error),
            "SN-6.DSM": over_seeds(gap_spread=spread, mean_gap=self.loss_gap.mean(axis=1)),
            "SN-6.TW": extremes_over_seeds(max_error=self.tweedie_error),
            "SN-6.GMM": extremes_over_seeds(max_error=self.score_error),
            "SN-6.REG": extremes_over_seeds(max_relative_error=self.regression_error),
            "SN-A6.1": clipped,
            "SN-6.NOISE": over_seeds(noise_floor=self.label_noise, signal=self.signal),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> DiffusionIdentities:
    """Compare the two sides of every formula.

    Args:
        settings: Sizes and seeds.
        device: Where to compute; all of this is float64 on the CPU, whatever is chosen.
        progress: Told (seeds done, seeds in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
    """
    clock = Clock()
    place(device)

    def measure(seed: int) -> dict[str, np.ndarray]:
        return {"path_error": _paths(settings, seed), "loss_gap": _loss_gap(settings, seed)} | {
            name: np.array(value) for name, value in (_closed_forms(settings, seed) | _inputs(settings, seed)).items()
        }

    with runtime.threads(1):
        arrays = seed_by_seed(settings, measure, clock=clock, workdir=workdir, progress=progress)
    return DiffusionIdentities(settings=settings, provenance=clock.provenance(torch.device("cpu")), **arrays)


def _paths(s: Settings, seed: int) -> np.ndarray:
    """Errors of mean and variance of the forward process, simulated in small steps from $x_0=1$, against $N(a,b)$."""
    schedule, rng, errors = Schedule(), stream(seed, "forward paths"), []
    noise, mean, now, sources = np.zeros(s.n_paths // 2), 1.0, 0.0, iter(s.path_times)
    until = next(sources)
    steps = np.unique(np.concatenate([np.linspace(0, max(s.path_times), s.n_path_steps + 1), s.path_times]))
    for following in steps[1:]:
        growth = float(schedule.rate((now + following) / 2)) * (following - now)
        mean *= 1 - growth / 2
        noise *= 1 - growth / 2
        noise += np.sqrt(growth) * rng.standard_normal(len(noise))
        now = following
        if np.isclose(now, until):
            pair = np.stack([mean + noise, mean - noise])
            expected = np.array([schedule.signal(now), schedule.noise(now)])
            errors.append(np.abs(np.array([pair.mean(), pair.var()]) / expected - 1))
            until = next(sources, np.inf)
    return np.array(errors).T


def _loss_gap(s: Settings, seed: int) -> np.ndarray:
    r"""Denoising minus ordinary score matching, weighted by $\beta^2/\alpha^2$, for three denoisers as models."""
    task, schedule = ON_A_LINE, ON_A_LINE.schedule
    drawn = task.draw(s.n_draws, rng=stream(seed, "loss gap"))
    t, x = drawn.times, drawn.points
    weight = (schedule.noise(t) / schedule.signal(t)) ** 2
    score = mixture_score(task.mixture, t, x, schedule=schedule)
    conditional = tweedie_score(drawn.clean, t, x, schedule=schedule)
    gaps = []
    for model in (np.zeros_like(x), 0.5 * np.tanh(3 * x), np.sin(2 * x) + t[:, None]):
        answer = tweedie_score(model, t, x, schedule=schedule)
        losses = [(weight * ((answer - target) ** 2)[:, 0]).mean() for target in (conditional, score)]
        gaps.append(losses[0] - losses[1])
    return np.array(gaps)


def _closed_forms(s: Settings, seed: int) -> dict[str, float]:
    errors = [_errors_of(task, s, stream(seed, "closed forms", task.mixture.dimension)) for task in TASKS]
    return {name: max(one[name] for one in errors) for name in errors[0]}


TASKS = (ON_A_LINE, IN_THE_PLANE)


def _errors_of(task: ScoreTask, s: Settings, rng: np.random.Generator) -> dict[str, float]:
    schedule, drawn = task.schedule, task.draw(s.n_points, rng=rng)
    t, x = drawn.times, drawn.points
    score = mixture_score(task.mixture, t, x, schedule=schedule)
    tweedie = tweedie_score(task.true_labels(drawn), t, x, schedule=schedule)
    model = np.tanh(x)
    distance = tweedie_score(model, t, x, schedule=schedule) - tweedie_score(drawn.clean, t, x, schedule=schedule)
    weighted = (schedule.noise(t) / schedule.signal(t)) ** 2 * (distance**2).sum(axis=1)
    regression = ((model - drawn.clean) ** 2).sum(axis=1)
    return {
        "tweedie_error": float(np.abs(tweedie - score).max()),
        "score_error": float(np.abs(_score_by_autograd(task, t, x) - score).max()),
        "regression_error": float(np.abs(weighted / regression - 1).max()),
    }


def _score_by_autograd(task: ScoreTask, times: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Gradient of the log density, written once more in torch."""
    signal, noise = (torch.tensor(f(times)) for f in (task.schedule.signal, task.schedule.noise))
    variance = signal**2 * task.mixture.width**2 + noise
    means = torch.tensor(task.mixture.means, dtype=torch.float64)

    def log_density(x: Tensor) -> Tensor:
        squares = (x[:, None] - signal[:, None, None] * means).square().sum(2)
        return torch.logsumexp(-squares / (2 * variance[:, None]), dim=1).sum()

    return torch.func.grad(log_density)(torch.tensor(points)).numpy()


def _inputs(s: Settings, seed: int) -> dict[str, float]:
    task = ON_A_LINE
    drawn = task.draw(s.n_inputs, rng=stream(seed, "inputs"))
    truth = task.true_labels(drawn)
    inputs = network_input(drawn.points, drawn.times, schedule=task.schedule, radius=task.radius)
    return {
        "input_norm": float(np.linalg.norm(inputs, axis=1).max()),
        "share_clipped": float(np.mean(np.linalg.norm(drawn.points, axis=1) > task.radius)),
        "share_long_labels": float(np.mean(np.linalg.norm(drawn.clean, axis=1) > 1)),
        "label_noise": float(((drawn.clean - truth) ** 2).sum(axis=1).mean()),
        "signal": float((truth**2).sum(axis=1).mean()),
    }
