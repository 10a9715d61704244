"""How fast Algorithm 1 is near the minima, and up to which step size: the optimisation term of Theorem 2."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core import runtime
from attnbook.core.results import Clock, Measurement, Result, extremes_over_seeds, over_seeds
from attnbook.core.resuming import by_seeds, check_seeds, concatenate
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress, threads
from attnbook.preconditioning.data import draw_problem
from attnbook.preconditioning.models.factorisation import Factorisation
from attnbook.preconditioning.theory.manifold import minimum, nearest

__all__ = ["Convergence", "Settings", "run"]


@dataclass(frozen=True)
class Settings:
    r"""Sizes of the experiment; all in whitened coordinates, where the covariance drops out.

    Attributes:
        dimension: Number of inputs $d$.
        outputs: Numbers of outputs $m$: one larger than the dimension, and one equal to it.
        largest: Largest singular value $s_1$ of $A\Sigma^{1/2}$; the smallest, $s_d$, is half of it.
        displacement: Standard deviation of a start's entries around a minimum.
        step_sizes: Step sizes $\eta$ of the runs whose rate is fitted.
        folds: Length of a run, in units of $1/(\eta s_d)$ steps.
        records: Losses and distances kept per run after the start; the second half is fitted.
        shares: $\eta s_1$ of the runs that test the limit 1, with 0.9, 0.99, 1.01 and 1.1 among them.
        limit_steps: Their number of steps.
        seeds: One problem and one start per seed.
        chunk: Seeds that descend together.
    """

    dimension: int = 5
    outputs: tuple[int, ...] = (8, 5)
    largest: float = 0.4
    displacement: float = 0.1
    step_sizes: tuple[float, ...] = (0.05, 0.2, 0.5)
    folds: int = 12
    records: int = 60
    shares: tuple[float, ...] = (0.5, 0.9, 0.99, 1.01, 1.1, 1.3)
    limit_steps: int = 2000
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    chunk: int = 5

    def __post_init__(self) -> None:
        if len(self.outputs) != 2 or not self.outputs[0] > self.outputs[1] == self.dimension:
            raise ValueError(
                f"outputs: expected a larger number and the dimension, {self.dimension}, got {self.outputs}"
            )
        if not {0.9, 0.99, 1.01, 1.1} <= set(self.shares):
            raise ValueError(f"shares: expected 0.9, 0.99, 1.01 and 1.1 among them, got {self.shares}")
        if not self.step_sizes or not all(0 < size < 1 / self.largest for size in self.step_sizes):
            raise ValueError(f"step_sizes: expected numbers between 0 and 1 / largest, got {self.step_sizes}")
        if self.records < 4 or any(self.steps(size) % self.records for size in self.step_sizes):
            raise ValueError(f"records: expected a divisor of the steps of every run, at least 4, got {self.records}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(
            dimension=2, outputs=(3, 2), step_sizes=(0.2, 0.5), records=10, limit_steps=20, seeds=(0, 1), chunk=1
        )

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a larger problem and more seeds; the paper has a proof in their place."""
        return cls(dimension=10, outputs=(15, 10), limit_steps=10_000, seeds=tuple(range(20)))

    @property
    def smallest(self) -> float:
        """The smallest singular value."""
        return self.largest / 2

    def steps(self, step_size: float) -> int:
        """Return the length of a run."""
        return round(self.folds / (step_size * self.smallest))

    @property
    def next_curvature(self) -> float:
        r"""The second smallest curvature for $m=d$, $s_d+s_{d-1}$."""
        return 2 * self.smallest + (self.largest - self.smallest) / (self.dimension - 1)

    def curvature(self, outputs: int) -> float:
        r"""Return the smallest curvature at the minima: $s_d$ with outputs to spare, $2s_d$ without."""
        return self.smallest if outputs > self.dimension else 2 * self.smallest

    def slopes(self, curvature: float) -> Float[np.ndarray, " step_sizes"]:
        r"""Return the slopes of the log excess along a direction, $2\log(1-\eta\lambda)$ for each step size.

        Args:
            curvature: $\lambda$.

        Returns:
            Slopes per step.
        """
        return 2 * np.log1p(-np.array(self.step_sizes) * curvature)


@dataclass(frozen=True)
class Convergence(Result):
    r"""What was found; the axis of outputs is in the order of the settings.

    Attributes:
        steps: Recorded steps, ``(step_sizes, records)``.
        excess: Excess loss there, ``(seeds, outputs, step_sizes, records)``.
        distance: Squared distance to the nearest minimum, same shape.
        limit: Excess loss at the end of the runs that test the limit of the step size, infinite after a divergence,
            ``(seeds, outputs, shares)``.
    """

    experiment: ClassVar[str] = "preconditioning.convergence"
    settings_type: ClassVar[type] = Settings

    steps: Float[np.ndarray, "step_sizes records"]
    excess: Float[np.ndarray, "seeds outputs step_sizes records"]
    distance: Float[np.ndarray, "seeds outputs step_sizes records"]
    limit: Float[np.ndarray, "seeds outputs shares"]

    @property
    def predicted(self) -> Float[np.ndarray, "outputs step_sizes"]:
        """Predicted slopes of the logarithm, per step."""
        s = self.settings
        return np.array([s.slopes(s.curvature(outputs)) for outputs in s.outputs])

    def fit(
        self, values: Float[np.ndarray, "seeds outputs step_sizes records"]
    ) -> tuple[Float[np.ndarray, "seeds outputs step_sizes"], Float[np.ndarray, "seeds outputs step_sizes"]]:
        r"""Fit lines to the logarithm over the second half of each run.

        Args:
            values: Excess losses or squared distances.

        Returns:
            Slopes per step and shares of the variance that the lines explain, $R^2$; infinite and 0 after a divergence.
        """
        half = values.shape[-1] // 2
        at = self.steps[:, half:] - self.steps[:, half:].mean(-1, keepdims=True)
        with np.errstate(invalid="ignore"):  # infinite losses have no slope
            centred = np.log(values[..., half:])
            centred = centred - centred.mean(-1, keepdims=True)
            slopes = (at * centred).sum(-1) / (at**2).sum(-1)
            residual = ((centred - slopes[..., None] * at) ** 2).sum(-1)
            explained = 1 - residual / (centred**2).sum(-1)
        return np.nan_to_num(slopes, nan=np.inf), np.nan_to_num(explained, nan=0.0)

    def measurements(self) -> dict[str, Measurement]:
        """Return what was measured, by claim id."""
        loss, distance = (self._errors(values) for values in (self.excess, self.distance))
        square, following = self.fit(self.excess)[0][:, 1], self.settings.slopes(self.settings.next_curvature)
        ends = dict(zip(self.settings.shares, np.moveaxis(self.limit, -1, 0), strict=True))
        gone = np.isinf(ends[1.1]).mean(axis=1)
        above = over_seeds(diverged_fraction_above=gone)
        below = extremes_over_seeds(largest_excess_below=ends[0.9])
        values = {**below.values, "diverged_fraction_above": float(gone.mean())}
        return {
            "PC-R1": extremes_over_seeds(**{name: values[:, 0] for name, values in loss.items()}),
            "PC-R1-square": extremes_over_seeds(**{name: values[:, 1] for name, values in loss.items()}),
            "PC-R1-square-next": extremes_over_seeds(
                smallest_over_slowest=square / self.predicted[1], largest_over_next=square / following
            ),
            "PC-R1-distance": extremes_over_seeds(**distance),
            "PC-R2": Measurement(values, {**below.spread, **above.spread}, above.n_seeds),
            "PC-R2-divergence": extremes_over_seeds(largest_excess_below=ends[0.99], smallest_excess_above=ends[1.01]),
        }

    def _errors(self, values: np.ndarray) -> dict[str, np.ndarray]:
        slopes, explained = self.fit(values)
        return {"largest_slope_error": np.abs(slopes / self.predicted - 1), "smallest_r_squared": explained}


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> Convergence:
    """Descend from near the minima with several step sizes.

    Args:
        settings: Sizes, problems and seeds.
        device: Where to compute; default the first of cuda, mps and cpu. Always in float64, which mps lacks.
        progress: Told (numbers of outputs done, all of them).
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
    steps = np.array([_record_at(settings, size) for size in settings.step_sizes], dtype=np.float64)
    return Convergence(settings=settings, provenance=clock.provenance(where), steps=steps, **concatenate(parts))


def _record_at(settings: Settings, step_size: float) -> range:
    last = settings.steps(step_size)
    return range(0, last + 1, last // settings.records)


def _measure(
    settings: Settings, where: torch.device, seeds: tuple[int, ...], progress: Progress | None
) -> dict[str, np.ndarray]:
    """All runs of a few seeds, one number of outputs after the other."""
    found: dict[str, list[np.ndarray]] = {"excess": [], "distance": [], "limit": []}
    for number, outputs in enumerate(settings.outputs, 1):
        whitened_map, start = _problems(settings, where, seeds, outputs)
        runs = [_rate(settings, whitened_map, start, size) for size in settings.step_sizes]
        for name, values in zip(("excess", "distance"), zip(*runs, strict=True), strict=True):
            found[name].append(np.stack(values, axis=1))
        found["limit"].append(_limit(settings, whitened_map, start))
        if progress:
            progress(number, len(settings.outputs))
    return {name: np.stack(values, axis=1) for name, values in found.items()}


def _problems(settings: Settings, where: torch.device, seeds: tuple[int, ...], outputs: int) -> tuple[Tensor, Tensor]:
    """Whitened maps, and starts near one of their minima."""
    values = np.linspace(settings.largest, settings.smallest, settings.dimension)
    maps = [
        draw_problem(settings.dimension, outputs, condition_number=1.0, singular_values=values, noise=0.0,
                     rng=stream(seed, "problem", outputs)).true_map
        for seed in seeds
    ]  # fmt: skip
    whitened_map = to_tensor(np.array(maps), device=where, dtype=torch.float64)
    base = minimum(whitened_map)
    draws = np.array([stream(seed, "start", outputs).standard_normal(base.shape[1:]) for seed in seeds])
    return whitened_map, base + settings.displacement * to_tensor(draws, device=where, dtype=torch.float64)


def _rate(settings: Settings, whitened_map: Tensor, start: Tensor, step_size: float) -> tuple[np.ndarray, np.ndarray]:
    """Excess losses and squared distances along a run, ``(seeds, records)``."""
    kept, one = list(_record_at(settings, step_size)), whitened_map.new_ones(len(whitened_map))
    losses, points = Factorisation(whitened_map, step_size * one, one).descend(start, kept[-1], keep=kept)
    finite = points.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)
    closest = nearest(torch.where(finite, points, minimum(whitened_map)), whitened_map)
    distance = (points - closest).square().sum((-2, -1)).nan_to_num(nan=torch.inf)
    return losses[kept].T.cpu().numpy(), distance.T.cpu().numpy()


def _limit(settings: Settings, whitened_map: Tensor, start: Tensor) -> np.ndarray:
    """Excess losses at the end, ``(seeds, shares)``."""
    sizes = torch.tensor(settings.shares, dtype=start.dtype, device=start.device) / settings.largest
    descent = Factorisation(whitened_map.unsqueeze(1), sizes, torch.ones_like(sizes))
    several = start.unsqueeze(1).expand(-1, len(sizes), -1, -1)
    losses, _ = descent.descend(several, settings.limit_steps)
    return np.where(np.isfinite(end := losses[-1].cpu().numpy()), end, np.inf)
