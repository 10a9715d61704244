r"""What softmax attention computes for Gaussian keys, by simulation: the tilted mean, the loss, and the moments.

Nothing here uses the closed forms it tests: keys are drawn, and attention is computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core import runtime
from attnbook.core.results import Clock, Measurement, Result, extremes_over_seeds, over_seeds
from attnbook.core.resuming import check_seeds, seed_by_seed
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress
from attnbook.preconditioning.data import Problem, draw_problem
from attnbook.preconditioning.experiments.simulation import (
    NORMALISER_ORDERS,
    POINTS,
    SCORE_ORDERS,
    attention_line,
    loss_gaps,
    simulated_moments,
    tilt_error,
)

__all__ = ["PopulationLoss", "Settings", "run"]


@dataclass(frozen=True)
class Settings:
    r"""Sizes of the experiment.

    Attributes:
        dimension: Number of inputs $d$ of the moments.
        condition_number: $\kappa(\Sigma)$.
        tilt: $\|\tilde V\|$ for the tilted mean; the smallest singular value is half of it.
        n_queries: Queries of the tilted mean, each of length two in whitened coordinates.
        tilt_draws: Draws for it.
        moment_tilt: $\|\tilde V\|$ for the moments.
        moment_draws: Draws for them.
        loss_dimension: Number of inputs $d$ of the loss.
        loss_outputs: Number of outputs $m$.
        loss_singular_values: Of $A\Sigma^{1/2}$, largest first.
        away: Standard deviation of each entry of the other point around the minimum, in whitened coordinates.
        sample_sizes: Numbers $n$ of keys, increasing, with 32 and 512 among them.
        loss_draws: Data sets per number of keys, with one query each.
        line_sizes: Numbers of keys of the picture in one dimension.
        line_tilt: $V$ there; the variance is one.
        seeds: Seeds of problems and draws.
        chunk: Seeds kept together.
    """

    dimension: int = 4
    condition_number: float = 3.0
    tilt: float = 0.5
    n_queries: int = 3
    tilt_draws: int = 2_000_000
    moment_tilt: float = 0.3
    moment_draws: int = 4_000_000
    loss_dimension: int = 2
    loss_outputs: int = 3
    loss_singular_values: tuple[float, ...] = (0.15, 0.08)
    away: float = 0.1
    sample_sizes: tuple[int, ...] = (8, 32, 128, 512)
    loss_draws: int = 6000
    line_sizes: tuple[int, ...] = (10, 100, 10_000)
    line_tilt: float = 0.7
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    chunk: int = 1

    def __post_init__(self) -> None:
        if {32, 512} - set(self.sample_sizes) or list(self.sample_sizes) != sorted(set(self.sample_sizes)):
            raise ValueError(
                f"sample_sizes: expected increasing numbers, 32 and 512 among them, got {self.sample_sizes}"
            )
        if len(self.loss_singular_values) != self.loss_dimension:
            raise ValueError(
                f"loss_singular_values: expected {self.loss_dimension} numbers, got {self.loss_singular_values}"
            )
        for name in ("tilt_draws", "moment_draws", "loss_draws"):
            if getattr(self, name) < 10:
                raise ValueError(f"{name}: expected at least 10, got {getattr(self, name)}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(tilt_draws=20_000, moment_draws=20_000, loss_draws=500, line_sizes=(10, 100), seeds=(0, 1))

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return more draws and seeds; the paper has no simulation of its own here."""
        return cls(tilt_draws=20_000_000, moment_draws=40_000_000, sample_sizes=(8, 32, 128, 512, 2048),
                   loss_draws=40_000, seeds=tuple(range(10)))  # fmt: skip

    def tilted_problem(self, seed: int) -> Problem:
        """Return a problem with the covariance of the tilted mean."""
        return draw_problem(self.dimension, self.dimension, condition_number=self.condition_number, noise=0.0,
                            singular_values=np.ones(self.dimension), rng=stream(seed, "covariance"))  # fmt: skip

    def loss_problem(self, seed: int) -> Problem:
        """Return the problem of the loss; without noise, which adds the same to both losses."""
        return draw_problem(self.loss_dimension, self.loss_outputs, condition_number=self.condition_number, noise=0.0,
                            singular_values=np.array(self.loss_singular_values),
                            rng=stream(seed, "loss problem"))  # fmt: skip

    @property
    def line_queries(self) -> Float[np.ndarray, " queries"]:
        """Queries of the picture in one dimension."""
        return np.linspace(-3, 3, 41)


@dataclass(frozen=True)
class PopulationLoss(Result):
    r"""What the simulation gave.

    Attributes:
        tilt_error: Largest error of the tilted mean over queries and entries, ``(seeds,)``.
        moments: Simulated $E e^{kq}$ and $E e^{kx^\top Vx}$, by order, and $E e^{x^\top Vx-q/2}$, ``(seeds, 5)``.
        closed_moments: The determinants, same shape and order.
        finite_variance: 1 where the variance of what is averaged is finite, else 0, same shape and order.
        loss_gap: $E L_n-L$, ``(seeds, points, sizes)``.
        excess: $L-L^*$ at the points, ``(seeds, points)``.
        line: Attention output in one dimension, ``(seeds, sizes, queries)``.
    """

    digits: ClassVar[int | None] = None
    experiment: ClassVar[str] = "preconditioning.population_loss"
    settings_type: ClassVar[type] = Settings

    tilt_error: Float[np.ndarray, " seeds"]
    moments: Float[np.ndarray, "seeds moments"]
    closed_moments: Float[np.ndarray, "seeds moments"]
    finite_variance: Float[np.ndarray, "seeds moments"]
    loss_gap: Float[np.ndarray, "seeds points sizes"]
    excess: Float[np.ndarray, "seeds points"]
    line: Float[np.ndarray, "seeds keys queries"]

    def gap(self, n: int, point: str = POINTS[1]) -> Float[np.ndarray, " seeds"]:
        """Return $E L_n-L$ at one of :data:`POINTS`, for a number of keys."""
        return self.loss_gap[:, POINTS.index(point), self.settings.sample_sizes.index(n)]

    def measurements(self) -> dict[str, Measurement]:
        """Return what was measured, by claim id."""
        errors = np.abs(self.moments / self.closed_moments - 1)
        first, second = len(NORMALISER_ORDERS), len(NORMALISER_ORDERS) + len(SCORE_ORDERS)
        return {
            "PC-A1": extremes_over_seeds(largest_error=self.tilt_error),
            "PC-A2": over_seeds(
                loss_gap_512=self.gap(512), loss_gap_32=self.gap(32),
                loss_gap_512_minimum=self.gap(512, POINTS[0]), loss_gap_32_minimum=self.gap(32, POINTS[0]),
            ),
            "PC-A2-points": extremes_over_seeds(
                largest_ratio=np.abs([self.gap(512, point) / self.gap(32, point) for point in POINTS]).T,
                smallest_gap=self.loss_gap,
            ),
            "PC-A4": extremes_over_seeds(relative_error=errors[:, :first]),
            "PC-A4-score": extremes_over_seeds(relative_error=errors[:, first:second]),
            "PC-A4-self": extremes_over_seeds(relative_error=errors[:, second:]),
        }  # fmt: skip


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> PopulationLoss:
    """Simulate attention on Gaussian keys.

    Args:
        settings: Sizes, draws and seeds.
        device: Checked, and not used: the draws are made on the CPU, and they are the work.
        progress: Told (seeds done, seeds in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
    """
    clock = Clock()
    runtime.device(device)
    found = seed_by_seed(settings, partial(_of_seed, settings), clock=clock, workdir=workdir, progress=progress)
    return PopulationLoss(settings=settings, provenance=clock.provenance(torch.device("cpu")), **found)


def _of_seed(settings: Settings, seed: int) -> dict[str, np.ndarray]:
    error = tilt_error(settings.tilted_problem(seed).covariance, settings.tilt, settings.tilt_draws,
                       n_queries=settings.n_queries, rng=stream(seed, "tilt"))  # fmt: skip
    moments, closed, finite = simulated_moments(
        settings.dimension, settings.moment_tilt, settings.moment_draws, rng=stream(seed, "moments")
    )
    gap, excess = loss_gaps(settings.loss_problem(seed), settings.sample_sizes, settings.loss_draws,
                            away=settings.away, rng=stream(seed, "loss"))  # fmt: skip
    keys = {n: stream(seed, "line", n).standard_normal(n) for n in settings.line_sizes}
    return {
        "tilt_error": np.array(error),
        "moments": moments,
        "closed_moments": closed,
        "finite_variance": finite,
        "loss_gap": gap,
        "excess": excess,
        "line": np.array([attention_line(settings.line_queries, k, settings.line_tilt) for k in keys.values()]),
    }
