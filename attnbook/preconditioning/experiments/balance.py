"""What balance costs and what it saves: descents from unbalanced minima, with and without the regulariser."""

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
from attnbook.core.resuming import by_seeds, check_seeds, concatenate
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress, threads
from attnbook.preconditioning.data import Setup, draw_problem
from attnbook.preconditioning.experiments.curves import first_time
from attnbook.preconditioning.experiments.noisy_balance import closed_form_imbalance, settled_imbalance
from attnbook.preconditioning.models.factorisation import Factorisation
from attnbook.preconditioning.optimizer import spectral_init
from attnbook.preconditioning.theory.manifold import minimum, split
from attnbook.preconditioning.theory.population import imbalance, sample_covariance

__all__ = ["ARRIVED", "Balance", "Settings", "run"]

ARRIVED = 1e-10
"""Excess loss that counts as arrived."""
RATED = 3.0
"""Scale at which the rate without regulariser is compared with its prediction."""


@dataclass(frozen=True)
class Settings:
    r"""Sizes of the experiment.

    Attributes:
        dimension: Number of inputs $d$.
        outputs: Numbers of outputs $m$: one larger than the dimension, and one equal to it.
        largest: Largest singular value $s_1$ of $A\Sigma^{1/2}$; the smallest, $s_d$, is half of it.
        displacement: Standard deviation of a start's entries around a minimum, before its layers are scaled.
        scales: $c$: the value layer is multiplied by it, the key-query layer divided.
        steps: Number of steps; step sizes are $1/(2s_1(c^2+c^{-2}))$.
        records: Losses and imbalances kept, the start and then evenly spaced on a log axis.
        n_samples: Sample sizes of the regulariser built from data.
        noisy_steps: Number of steps there, of size $1/(2s_1)$.
        condition_number: $\kappa(\Sigma)$ there and for the spectral start.
        noise: Standard deviation of the label noise, for the spectral start.
        seeds: One problem, start and data set per seed.
        chunk: Seeds that descend together.
    """

    dimension: int = 5
    outputs: tuple[int, ...] = (8, 5)
    largest: float = 0.4
    displacement: float = 0.02
    scales: tuple[float, ...] = (0.1, 1 / 3, 1.0, 3.0, 10.0, 30.0)
    steps: int = 5000
    records: int = 31
    n_samples: tuple[int, ...] = (100, 200, 400, 800, 1600)
    noisy_steps: int = 150
    condition_number: float = 10.0
    noise: float = 0.1
    seeds: tuple[int, ...] = tuple(range(10))
    chunk: int = 10

    def __post_init__(self) -> None:
        if len(self.outputs) != 2 or not self.outputs[0] > self.outputs[1] == self.dimension:
            raise ValueError(
                f"outputs: expected a larger number and the dimension, {self.dimension}, got {self.outputs}"
            )
        if not {0.1, 1 / 3, 1.0, 3.0, 10.0, 30.0} <= set(self.scales):
            raise ValueError(f"scales: expected 1/10, 1/3, 1, 3, 10 and 30 among them, got {self.scales}")
        if not 3 <= self.records <= self.steps:
            raise ValueError(f"records: expected at least 3 and at most steps, {self.steps}, got {self.records}")
        if len(self.n_samples) < 2 or min(self.n_samples) < self.dimension:
            raise ValueError(
                f"n_samples: expected several numbers of at least the dimension, {self.dimension}, got {self.n_samples}"
            )
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(dimension=2, outputs=(3, 2), steps=40, records=5, n_samples=(20, 40), noisy_steps=20, seeds=(0, 1),
                   chunk=1)  # fmt: skip

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a larger problem, more steps and more seeds."""
        return cls(dimension=10, outputs=(15, 10), steps=20_000, seeds=tuple(range(20)))

    @property
    def singular_values(self) -> Float[np.ndarray, " dimension"]:
        """Those of the map on whitened inputs, largest first."""
        return np.linspace(self.largest, self.largest / 2, self.dimension)

    @property
    def record_at(self) -> list[int]:
        """Recorded steps."""
        return [0, *np.unique(np.geomspace(1, self.steps, self.records - 1).round().astype(int)).tolist()]

    @property
    def step_sizes(self) -> Float[np.ndarray, " scales"]:
        r"""The step size of each scale, half of one over the largest curvature of the loss at the start."""
        squares = np.array(self.scales) ** 2
        return 0.5 / (self.largest * (squares + 1 / squares))

    def setup(self, n_samples: int) -> Setup:
        """Return the sizes of the problems that data are drawn from."""
        return Setup(self.dimension, self.outputs[0], self.condition_number, self.largest, self.largest / 2, self.noise,
                     n_samples)  # fmt: skip


@dataclass(frozen=True)
class Balance(Result):
    r"""What was found; axes of outputs and scales as in the settings, ``weights`` without and with the regulariser.

    Attributes:
        iterations: Steps to the excess :data:`ARRIVED`, infinite where the run ends before,
            ``(seeds, outputs, weights, scales)``.
        excess: Excess loss along the run, ``(seeds, outputs, weights, scales, records)``.
        imbalance: Imbalance along the run, same shape.
        spare_slopes: Slopes of the log excess per step without regulariser, for outputs to spare and $c=3$, fitted on
            the second half of the run, ``(seeds,)``.
        noisy: Imbalance, with the true covariance, after descent with a regulariser from data, ``(seeds, n_samples)``.
        closed_form: The same at the minimum that is balanced for the estimate, ``(seeds, n_samples)``.
        start_residuals: Largest entries of $U_0\hat\Sigma V_0-\hat A$ and of $U_0^\top U_0-V_0\hat\Sigma V_0^\top$
            at the spectral start, over all sample sizes, ``(seeds, 2)``.
    """

    experiment: ClassVar[str] = "preconditioning.balance"
    settings_type: ClassVar[type] = Settings

    iterations: Float[np.ndarray, "seeds outputs weights scales"]
    excess: Float[np.ndarray, "seeds outputs weights scales records"]
    imbalance: Float[np.ndarray, "seeds outputs weights scales records"]
    spare_slopes: Float[np.ndarray, " seeds"]
    noisy: Float[np.ndarray, "seeds n_samples"]
    closed_form: Float[np.ndarray, "seeds n_samples"]
    start_residuals: Float[np.ndarray, "seeds residuals"]

    def at(self, scale: float) -> int:
        """Return the position of a scale."""
        return self.settings.scales.index(scale)

    def measurements(self) -> dict[str, Measurement]:
        """Return what was measured, by claim id."""
        balanced = self.imbalance[:, :, 1, [self.at(1.0), self.at(3.0)], -1]
        kept = self.imbalance[:, :, 0, [self.at(3.0), self.at(10.0), self.at(30.0)]]
        slopes = np.polyfit(np.log(self.settings.n_samples), np.log(self.noisy).T, 1)[0]
        return {
            "PC-A10": extremes_over_seeds(
                largest_product_residual=self.start_residuals[:, 0], largest_balance_residual=self.start_residuals[:, 1]
            ),
            "PC-C3": extremes_over_seeds(largest_imbalance=balanced),
            "PC-C3-conserved": extremes_over_seeds(largest_relative_change=np.abs(kept / kept[..., :1] - 1)),
            "PC-C3-noise": over_seeds(slope=slopes),
            "PC-C3-noise-level": extremes_over_seeds(largest_relative_error=np.abs(self.noisy / self.closed_form - 1)),
            "PC-C4": self._iterations(0, {3: 3.0, 10: 10.0}),
            "PC-C4-square": self._iterations(1, {3: 3.0, 10: 10.0}),
            "PC-C4-keys": self._iterations(0, {3: 1 / 3, 10: 0.1}),
            "PC-C4-spare": self._iterations(0, {3: 3.0, 10: 10.0}),
            "PC-C4-rate": extremes_over_seeds(largest_slope_error=np.abs(self.spare_slopes / self.spare_slope - 1)),
        }

    @property
    def spare_slope(self) -> float:
        r"""The predicted slope of the log excess for outputs to spare, $2\log(1-\eta s_d/c^2)$, at $c=3$."""
        flattest = self.settings.largest / 2 / RATED**2
        return float(2 * np.log1p(-self.settings.step_sizes[self.at(RATED)] * flattest))

    def _iterations(self, outputs: int, scales: dict[int, float]) -> Measurement:
        """Median steps without and with the regulariser, by name of the scale."""
        names = ("iterations_unregularised", "iterations_regularised")
        return over_seeds(**{
            f"{name}_{number}": self.iterations[:, outputs, weight, self.at(scale)]
            for weight, name in enumerate(names) for number, scale in scales.items()
        })  # fmt: skip


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> Balance:
    """Descend from unbalanced minima, and with a regulariser from data; check the spectral start.

    Args:
        settings: Sizes, problems and seeds.
        device: Where to compute; default the first of cuda, mps and cpu. Always in float64, which mps lacks.
        progress: Told (parts done, all three of them).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
    """
    clock, where = Clock(), runtime.device(device)
    where = torch.device("cpu") if where.type == "mps" else where
    with threads(1):
        parts = by_seeds(settings, partial(_measure, settings, where), clock=clock, workdir=workdir, progress=progress)
    return Balance(settings=settings, provenance=clock.provenance(where), **concatenate(parts))


def _measure(
    settings: Settings, where: torch.device, seeds: tuple[int, ...], progress: Progress | None
) -> dict[str, np.ndarray]:
    """Everything about a few seeds."""
    runs = []
    for number, outputs in enumerate(settings.outputs, 1):
        runs.append(_from_unbalanced(settings, where, seeds, outputs))
        if progress:
            progress(number, 3)
    found = {name: np.stack([one[name] for one in runs], axis=1) for name in runs[0]}
    found["spare_slopes"] = found["spare_slopes"][:, 0]
    data = [[settings.setup(n).draw(seed) for n in settings.n_samples] for seed in seeds]
    problems = [settings.setup(settings.n_samples[0]).problem(seed) for seed in seeds]
    estimates = torch.stack([torch.stack([sample_covariance(torch.as_tensor(x)) for x, _ in row]) for row in data])
    covariance, true_map = (
        torch.as_tensor(np.stack(arrays)).unsqueeze(1)
        for arrays in zip(*((p.covariance, p.true_map) for p in problems), strict=True)
    )
    step_size = 0.5 / settings.largest
    found["noisy"] = settled_imbalance(covariance, true_map, estimates, step_size, settings.noisy_steps)
    found["closed_form"] = closed_form_imbalance(covariance, true_map, estimates)
    found["start_residuals"] = np.array([np.max([_residuals(*pair) for pair in row], axis=0) for row in data])
    if progress:
        progress(3, 3)
    return found


def _from_unbalanced(
    settings: Settings, where: torch.device, seeds: tuple[int, ...], outputs: int
) -> dict[str, np.ndarray]:
    """Descents from scaled layers, ``(seeds, weights, scales, ...)``."""
    maps = [
        draw_problem(settings.dimension, outputs, condition_number=1.0, singular_values=settings.singular_values,
                     noise=0.0, rng=stream(seed, "problem", outputs)).true_map
        for seed in seeds
    ]  # fmt: skip
    to = partial(to_tensor, device=where, dtype=torch.float64)
    whitened_map = to(np.array(maps))
    base = minimum(whitened_map)
    draws = to(np.array([stream(seed, "start", outputs).standard_normal(base.shape[1:]) for seed in seeds]))
    value, key_query = split((base + settings.displacement * draws)[:, None, None])
    scales = to(settings.scales)[:, None, None]
    start = torch.cat([value * scales, key_query / scales], dim=-2).expand(-1, 2, -1, -1, -1)
    weights = to([0.0, 1.0]).unsqueeze(-1)
    descent = Factorisation(whitened_map[:, None, None], to(settings.step_sizes), weights)
    losses, points = descent.descend(start, settings.steps, keep=settings.record_at)
    one = torch.eye(settings.dimension, dtype=torch.float64, device=where)
    outer, inner = split(points)
    half = range(settings.steps // 2, settings.steps + 1)
    rated = losses[half.start :, :, 0, settings.scales.index(RATED)].cpu().numpy()
    slopes = np.polyfit(np.array(half), np.log(rated), 1)[0]
    unequal = imbalance(outer, inner.mT, covariance=one).nan_to_num(nan=torch.inf)
    return {
        "spare_slopes": np.nan_to_num(slopes, nan=np.inf),
        "iterations": first_time(np.arange(len(losses)), losses.cpu().numpy(), ARRIVED),
        "excess": losses[settings.record_at].movedim(0, -1).cpu().numpy(),
        "imbalance": unequal.movedim(0, -1).cpu().numpy(),
    }


def _residuals(inputs: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """How far a spectral start is from interpolating the regression estimate, and from balance."""
    x, y = torch.as_tensor(inputs), torch.as_tensor(labels)
    value, key_query = spectral_init(x, y)
    estimate, regression = sample_covariance(x), torch.linalg.lstsq(x, y).solution.mT
    product = value @ estimate @ key_query - regression
    balance = value.mT @ value - key_query @ estimate @ key_query.mT
    return float(product.abs().max()), float(balance.abs().max())
