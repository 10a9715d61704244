r"""The gradient oracle: the bias left by $n$ keys when gradients are averaged over unlimited fresh batches.

Three fixed points: the predicted one minimises $L+\mathcal R+\mathcal B/n$; the exact one is where the expected
gradient vanishes, by quadrature and in a smaller problem; the measured one is the mean of the last layers of
Algorithm 1 on gradients averaged over many fresh batches with noisy labels. Inputs are whitened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core import runtime
from attnbook.core.results import Clock, Measurement, Result, extremes_over_seeds, over_seeds
from attnbook.core.resuming import check_seeds, seed_by_seed
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress
from attnbook.preconditioning.experiments import scaling_law
from attnbook.preconditioning.models.three_gradients import (
    exact_fixed_point,
    excess,
    fresh_batch_average,
    oracle_descent,
    pull_along_descent,
    whitened_minimum,
)
from attnbook.preconditioning.theory.attention_output import gaussian_nodes
from attnbook.preconditioning.theory.scaling_law import oracle_bias

__all__ = ["GradientOracle", "Settings", "run"]

# From this many samples on, runs are compared with the prediction.
LARGE = 100
# Step size and number of steps that bring the predicted fixed point to rounding.
PREDICTED = (4.0, 60)
# From this many samples on, the exact fixed points are fitted.
FAR = 400


@dataclass(frozen=True)
class Settings:
    r"""Sizes of the experiment; the problem is that of :mod:`~attnbook.preconditioning.experiments.scaling_law`.

    Attributes:
        predicted_samples: $n$ for the slope of the prediction, increasing.
        measured_samples: $n$ of the runs with fresh batches, increasing.
        batches: Fresh batches averaged in each step.
        step_size: Step size of these runs.
        steps: Number of steps, from an optimum.
        kept: Last steps whose layers are averaged.
        exact_samples: $n$ of the exact fixed points, increasing, at least two of them 400 or more.
        exact_sizes: Inputs $d$ and outputs $m$ of the problem there; quadrature needs few inputs.
        per_axis: Quadrature nodes per input there.
        iterations: Iterations towards each exact fixed point.
        surface_samples: $n$ of the runs from the cold start on the gradient of $L+\mathcal R+\mathcal B/n$.
        shrink: Cold start, as in the experiment on one data set.
        cold_step_size: Step size from there.
        cold_steps: Steps from there.
        seeds: Seeds of problem and batches.
        chunk: Seeds kept together.
    """

    predicted_samples: tuple[int, ...] = (400, 1000, 2500, 10_000)
    measured_samples: tuple[int, ...] = (25, 50, 100, 200)
    batches: int = 100
    step_size: float = 6.0
    steps: int = 16
    kept: int = 8
    exact_samples: tuple[int, ...] = (25, 50, 100, 400, 1600, 6400)
    exact_sizes: tuple[int, int] = (2, 3)
    per_axis: int = 8
    iterations: int = 4
    surface_samples: tuple[int, ...] = (100, 200, 400, 800, 1600)
    shrink: float = 0.5
    cold_step_size: float = 1.0
    cold_steps: int = 48
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    chunk: int = 1

    def __post_init__(self) -> None:
        for name in ("predicted_samples", "measured_samples", "exact_samples"):
            counts = getattr(self, name)
            if len(counts) < 2 or list(counts) != sorted(set(counts)):
                raise ValueError(f"{name}: expected at least two increasing numbers, got {counts}")
        if self.measured_samples[-1] < LARGE:
            raise ValueError(f"measured_samples: expected one of at least {LARGE}, got {self.measured_samples}")
        if sum(n >= FAR for n in self.exact_samples) < 2:
            raise ValueError(f"exact_samples: expected at least two of at least {FAR}, got {self.exact_samples}")
        if not 1 <= self.kept <= self.steps:
            raise ValueError(f"kept: expected 1 to steps {self.steps}, got {self.kept}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        few: dict[str, Any] = {"measured_samples": (25, 100), "exact_samples": (25, 400, 800), "per_axis": 2}
        return cls(**few, iterations=1, batches=2, steps=2, kept=1, cold_steps=3, seeds=(0, 1))

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return more batches and larger ones; the paper's own sizes are not known to us."""
        sizes: dict[str, Any] = {"measured_samples": (25, 50, 100, 200, 400, 800, 1600), "per_axis": 12}
        return cls(**sizes, iterations=8, batches=400, steps=24, kept=16)


@dataclass(frozen=True)
class GradientOracle(Result):
    r"""Excess losses of the oracle. Axes start with the seed.

    Attributes:
        predicted: At the predicted fixed point, ``(seeds, predicted_samples)``.
        beside: The same at the numbers of samples of the runs, ``(seeds, measured_samples)``.
        measured: Of runs with fresh batches, ``(seeds, measured_samples)``.
        constant: $\lim n^2(L-L^*)$, exact, ``(seeds,)``.
        exact: At the exact fixed point of the smaller problem, ``(seeds, exact_samples)``.
        exact_constant: $\lim n^2(L-L^*)$ there, ``(seeds,)``.
        pull: $\|\nabla\mathcal B\|_F^2$ along the descent on the population loss from the cold start over its value at
            the minimum, ``(seeds, records)``.
        cold: Along the descent from the cold start, ``(seeds, surface_samples and infinity, records)``; the last one
            is descent on the population loss.
    """

    experiment: ClassVar[str] = "preconditioning.gradient_oracle"
    settings_type: ClassVar[type] = Settings
    digits: ClassVar[int | None] = None

    predicted: Float[np.ndarray, "seeds predicted_samples"]
    beside: Float[np.ndarray, "seeds measured_samples"]
    measured: Float[np.ndarray, "seeds measured_samples"]
    constant: Float[np.ndarray, " seeds"]
    exact: Float[np.ndarray, "seeds exact_samples"]
    exact_constant: Float[np.ndarray, " seeds"]
    pull: Float[np.ndarray, "seeds records"]
    cold: Float[np.ndarray, "seeds counts records"]

    @property
    def ratio(self) -> Float[np.ndarray, "seeds measured_samples"]:
        """Measured over predicted excess."""
        return self.measured / self.beside

    def measurements(self) -> dict[str, Measurement]:
        """Return the slopes, and how near fixed points and runs come to the prediction, by claim id."""
        counts = np.array(self.settings.exact_samples)
        ratio = self.ratio[:, np.array(self.settings.measured_samples) >= LARGE]
        return {
            "PC-T2a": over_seeds(slope_predicted=_slope(self.settings.predicted_samples, self.predicted)),
            "PC-T2a-exact": over_seeds(slope_exact=_slope(counts[counts >= FAR], self.exact[:, counts >= FAR])),
            "PC-T2a-exact-constant": over_seeds(
                exact_over_leading=self.exact[:, -1] * float(counts[-1]) ** 2 / self.exact_constant
            ),
            "PC-T2a-fresh-slope": over_seeds(
                slope_measured=_slope(self.settings.measured_samples, self.measured),
                slope_beside=_slope(self.settings.measured_samples, self.beside),
            ),
            "PC-T2-path": extremes_over_seeds(largest_pull=self.pull),
            "PC-T2a-measured": extremes_over_seeds(
                smallest_measured_over_predicted=ratio, largest_measured_over_predicted=ratio
            ),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> GradientOracle:
    """Find the oracle's fixed points, predicted and measured, and follow it from a cold start.

    Args:
        settings: Sizes and seeds.
        device: Named in the provenance; the work is on the CPU.
        progress: Told (seeds done, seeds in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
    """
    clock, where = Clock(), runtime.device(device)

    def measure(seed: int) -> dict[str, np.ndarray]:
        with runtime.threads(1):
            return _measure(settings, seed)

    arrays = seed_by_seed(settings, measure, clock=clock, workdir=workdir, progress=progress)
    return GradientOracle(settings=settings, provenance=clock.provenance(where), **arrays)


def _measure(settings: Settings, seed: int) -> dict[str, np.ndarray]:
    target = scaling_law.whitened_target(scaling_law.Settings().setup(), seed)
    minimum = whitened_minimum(target)

    def follow(counts: tuple[float, ...], scale: float, step_size: float, steps: int) -> Tensor:
        start = (scale * minimum[0].expand(len(counts), -1, -1), scale * minimum[1].expand(len(counts), -1, -1))
        members = torch.tensor(counts, dtype=torch.float64)
        return oracle_descent(target, members, start, step_size=step_size, steps=steps)[0]

    both = settings.predicted_samples + settings.measured_samples
    fixed = follow(both, 1.0, *PREDICTED)[-1].numpy()
    surface = (*settings.surface_samples, float("inf"))
    cold = follow(surface, settings.shrink, settings.cold_step_size, settings.cold_steps)
    measured = [
        fresh_batch_average(
            target, _batches(settings, target, n, seed), step_size=settings.step_size, steps=settings.steps,
            kept=settings.kept,
        )
        for n in settings.measured_samples
    ]  # fmt: skip
    return {
        "predicted": fixed[: len(settings.predicted_samples)],
        "beside": fixed[len(settings.predicted_samples) :],
        "measured": torch.stack(measured).numpy(),
        "constant": np.array(oracle_bias(*minimum)),
        "cold": cold.T.numpy(),
        "pull": _pull(settings, target),
        **_exact(settings, seed),
    }


def _pull(settings: Settings, target: Tensor) -> np.ndarray:
    """The squared pull of the bias along the descent from the cold start, beside that at the minimum."""
    minimum = whitened_minimum(target)
    start = (settings.shrink * minimum[0], settings.shrink * minimum[1])
    pull = pull_along_descent(target, start, step_size=settings.cold_step_size, steps=settings.cold_steps)
    return (pull / pull_along_descent(target, minimum, step_size=0.0, steps=0)).numpy()


def _exact(settings: Settings, seed: int) -> dict[str, np.ndarray]:
    """Exact fixed points of a problem small enough for quadrature over its queries."""
    dimension, outputs = settings.exact_sizes
    target = scaling_law.whitened_target(scaling_law.Settings(dimension=dimension, n_outputs=outputs).setup(), seed)
    nodes = gaussian_nodes(dimension, settings.per_axis)
    found = [
        float(excess(exact_fixed_point(target, n, nodes=nodes, iterations=settings.iterations), target))
        for n in settings.exact_samples
    ]
    return {"exact": np.array(found), "exact_constant": np.array(oracle_bias(*whitened_minimum(target)))}


def _slope(counts: Sequence[int] | np.ndarray, values: np.ndarray) -> np.ndarray:
    """The slope of each seed's values, on log axes."""
    return np.polyfit(np.log(counts), np.log(values).T, 1)[0]


def _batches(settings: Settings, target: Tensor, n: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Fresh inputs and noisy labels for every step, in float32."""
    rng, noise = stream(seed, "fresh batches", n), scaling_law.Settings().noise
    shape = (settings.batches, n)
    while True:
        inputs = torch.as_tensor(rng.standard_normal((*shape, target.shape[1]), dtype=np.float32))
        draws = torch.as_tensor(rng.standard_normal((*shape, target.shape[0]), dtype=np.float32))
        yield inputs, inputs @ target.T.float() + noise * draws
