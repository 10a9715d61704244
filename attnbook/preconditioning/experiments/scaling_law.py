r"""One data set: how the spectral start and full-batch training improve with samples, and what steps are worth.

Inputs are whitened: with the two-sided preconditioner the covariance plays no part. "Excess" is $L-L^*$ in closed
form, with the true map.
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
from attnbook.preconditioning.data import Setup
from attnbook.preconditioning.models.three_gradients import (
    data_descent,
    distance_to_minima,
    excess,
    whitened_minimum,
)
from attnbook.preconditioning.optimizer import spectral_init
from attnbook.preconditioning.theory.population import excess_loss
from attnbook.preconditioning.theory.scaling_law import spectral_start_constant

__all__ = ["ScalingLaw", "Settings", "run", "whitened_target"]

# From this many samples on, the claim on the constant speaks of the leading order.
LARGE = 400


@dataclass(frozen=True)
class Settings:
    r"""Sizes of the experiment; one entry per number of samples where a setting is a tuple, apart from the seeds.

    Attributes:
        dimension: Number of inputs $d$.
        n_outputs: Number of outputs $m$.
        largest: $s_1$.
        smallest: $s_d$.
        noise: $\sigma$.
        n_samples: Numbers of samples $n$, increasing.
        start_sets: Data sets per seed and $n$ whose spectral start is looked at.
        trained_sets: How many of them are trained on, from the spectral start.
        step_size: Step size there.
        steps: Number of steps there; with this step size they end at convergence.
        cold_sets: How many of them are trained on from the cold start.
        shrink: The cold start is a minimum with both layers shrunk by this factor.
        cold_step_size: Step size from the cold start, small enough to see the steps.
        cold_steps: Number of steps from the cold start.
        strong_samples: $n$ of the problem with a larger signal and condition number 10, the size of the figures.
        strong_sets: Data sets per seed there.
        seeds: Seeds of problem and data sets.
        chunk: Seeds kept together.
    """

    dimension: int = 4
    n_outputs: int = 6
    largest: float = 0.12
    smallest: float = 0.08
    noise: float = 0.1
    n_samples: tuple[int, ...] = (100, 200, 400, 800, 1600)
    start_sets: int = 60
    trained_sets: tuple[int, ...] = (20, 12, 8, 4, 2)
    step_size: float = 4.0
    steps: int = 16
    cold_sets: tuple[int, ...] = (10, 5, 3, 2, 1)
    shrink: float = 0.5
    cold_step_size: float = 1.0
    cold_steps: int = 36
    strong_samples: int = 1000
    strong_sets: int = 40
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    chunk: int = 1

    def __post_init__(self) -> None:
        for name in ("trained_sets", "cold_sets"):
            sets = getattr(self, name)
            if len(sets) != len(self.n_samples) or not 1 <= min(sets) <= max(sets) <= self.start_sets:
                raise ValueError(
                    f"{name}: expected one number of 1 to start_sets {self.start_sets} for each of the "
                    f"{len(self.n_samples)} n_samples, got {sets}"
                )
        if len(self.n_samples) < 2 or list(self.n_samples) != sorted(set(self.n_samples)):
            raise ValueError(f"n_samples: expected at least two increasing numbers, got {self.n_samples}")
        if self.n_samples[-1] < LARGE:
            raise ValueError(f"n_samples: expected one of at least {LARGE}, got {self.n_samples}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        sizes = {"n_samples": (50, 400), "start_sets": 3, "trained_sets": (2, 1), "cold_sets": (2, 1)}
        return cls(**sizes, steps=2, cold_steps=3, strong_samples=50, strong_sets=2, seeds=(0, 1))  # type: ignore[arg-type]  # mypy sees one type for all values of ``sizes``

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return more data sets and seeds; the paper's own sizes are not known to us."""
        return cls(
            n_samples=(100, 200, 400, 800, 1600, 3200),
            start_sets=400,
            trained_sets=(200, 100, 60, 40, 20, 8),
            cold_sets=(60, 40, 20, 10, 6, 4),
            strong_sets=200,
            seeds=tuple(range(10)),
        )

    def setup(self) -> Setup:
        """Return the sizes of the problem."""
        return self._setup(self.dimension, self.n_outputs, self.largest, self.smallest, 1.0)

    def strong(self) -> Setup:
        """Return the sizes of the problem with a larger signal: those of the figures at condition number 10."""
        return self._setup(5, 8, 0.4, 0.2, 10.0)

    def _setup(self, dimension: int, n_outputs: int, largest: float, smallest: float, condition: float) -> Setup:
        return Setup(
            dimension=dimension,
            n_outputs=n_outputs,
            condition_number=condition,
            largest=largest,
            smallest=smallest,
            noise=self.noise,
            n_samples=self.strong_samples,
        )


@dataclass(frozen=True)
class ScalingLaw(Result):
    r"""Excess losses over numbers of samples; means over data sets, axes start with the seed.

    Attributes:
        distance: Squared distance of the spectral start to the minima, ``(seeds, counts)``.
        regression: $\|\hat A-A\|_F$, root mean square, ``(seeds, counts)``.
        start: Excess of the spectral start, ``(seeds, counts)``.
        path: Excess along training from the spectral start, over the data sets that are trained on, ``(seeds, counts,
            trained_records)``.
        cold: Excess along training from the cold start, ``(seeds, counts, records)``.
        strong: Excess of the spectral start with a larger signal, ``(seeds,)``.
    """

    experiment: ClassVar[str] = "preconditioning.scaling_law"
    settings_type: ClassVar[type] = Settings
    digits: ClassVar[int | None] = None

    distance: Float[np.ndarray, "seeds counts"]
    regression: Float[np.ndarray, "seeds counts"]
    start: Float[np.ndarray, "seeds counts"]
    path: Float[np.ndarray, "seeds counts trained_records"]
    cold: Float[np.ndarray, "seeds counts records"]
    strong: Float[np.ndarray, " seeds"]

    @property
    def paired(self) -> Float[np.ndarray, "seeds counts"]:
        """Excess of the spectral start on the data sets that are trained on."""
        return self.path[..., 0]

    @property
    def trained(self) -> Float[np.ndarray, "seeds counts"]:
        """Excess after training on them."""
        return self.path[..., -1]

    @property
    def pooled_path(self) -> Float[np.ndarray, "counts trained_records"]:
        """Excess along training over that of the start, both averaged over data sets and seeds."""
        return self.path.mean(axis=0) / self.paired.mean(axis=0)[:, None]

    @property
    def constant(self) -> float:
        """The predicted limit of n times the excess of the spectral start."""
        return _constant(self.settings.setup())

    def slope(self, values: Float[np.ndarray, "seeds counts"]) -> Float[np.ndarray, " seeds"]:
        """Return the slope of each seed's values against the number of samples, on log axes."""
        return np.polyfit(np.log(self.settings.n_samples), np.log(values).T, 1)[0]

    def measurements(self) -> dict[str, Measurement]:
        """Return slopes, constants and the worth of training, by claim id."""
        counts = np.array(self.settings.n_samples)
        error = np.abs(counts * self.start / self.constant - 1)[:, counts >= LARGE]
        pooled = self.pooled_path[:, -1]
        strong = self.settings.strong()
        worth = Measurement(
            {"smallest_ratio": float(pooled.min()), "largest_ratio": float(pooled.max())},
            extremes_over_seeds(
                smallest_ratio=self.trained / self.paired, largest_ratio=self.trained / self.paired
            ).spread,
            len(self.settings.seeds),
        )
        return {
            "PC-L5": over_seeds(slope_distance=self.slope(self.distance)),
            "PC-L5-regression": over_seeds(slope_regression=self.slope(self.regression)),
            "PC-L5-excess": over_seeds(slope_excess=self.slope(self.start)),
            "PC-L5-constant": over_seeds(largest_relative_error=error.max(axis=1)),
            "PC-L5-larger-signal": over_seeds(
                excess=self.strong, predicted=np.full(len(self.strong), _constant(strong) / strong.n_samples)
            ),
            "PC-T2b": over_seeds(slope=self.slope(self.trained)),
            "PC-X1": worth,
            "PC-X1-path": Measurement(
                {"smallest_on_the_way": float(self.pooled_path.min())},
                extremes_over_seeds(smallest_on_the_way=self.path / self.path[..., :1]).spread,
                len(self.settings.seeds),
            ),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> ScalingLaw:
    """Start and train Algorithm 1 on data sets of many sizes.

    Args:
        settings: Sizes, data sets and seeds.
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
            found = [_at(settings, seed, number) for number in range(len(settings.n_samples))]
            strong = _strong(settings, seed)
        return {name: np.stack([one[name] for one in found]) for name in found[0]} | {"strong": strong}

    arrays = seed_by_seed(settings, measure, clock=clock, workdir=workdir, progress=progress)
    return ScalingLaw(settings=settings, provenance=clock.provenance(where), **arrays)


def whitened_target(setup: Setup, seed: int) -> Float[Tensor, "outputs dimension"]:
    r"""Return $\tilde A$ of a seed; the setup must have condition number one, so that it is $A$ itself."""
    return torch.as_tensor(setup.problem(seed).true_map)


def _at(settings: Settings, seed: int, number: int) -> dict[str, np.ndarray]:
    """Everything at one number of samples."""
    target, n = whitened_target(settings.setup(), seed), settings.n_samples[number]
    rng = stream(seed, "data sets", n)
    inputs = torch.as_tensor(rng.standard_normal((settings.start_sets, n, settings.dimension)))
    noise = torch.as_tensor(rng.standard_normal((settings.start_sets, n, settings.n_outputs)))
    labels = inputs @ target.mT + settings.noise * noise
    start = spectral_init(inputs, labels)
    regression = torch.linalg.solve(inputs.mT @ inputs, inputs.mT @ labels).mT
    some, few = settings.trained_sets[number], settings.cold_sets[number]
    trained = data_descent(
        target,
        (inputs[:some], labels[:some]),
        (start[0][:some], start[1][:some]),
        step_size=settings.step_size,
        steps=settings.steps,
    )
    minimum = whitened_minimum(target)
    cold = data_descent(
        target,
        (inputs[:few], labels[:few]),
        (settings.shrink * minimum[0].expand(few, -1, -1), settings.shrink * minimum[1].expand(few, -1, -1)),
        step_size=settings.cold_step_size,
        steps=settings.cold_steps,
    )
    found = {
        "distance": distance_to_minima(start, target).mean(),
        "regression": (regression - target).square().sum((-2, -1)).mean().sqrt(),
        "start": excess(start, target).mean(),
        "path": trained.mean(dim=1),
        "cold": cold.mean(dim=1),
    }
    return {name: tensor.numpy() for name, tensor in found.items()}


def _strong(settings: Settings, seed: int) -> np.ndarray:
    """Mean excess of the spectral start with a larger signal."""
    setup = settings.strong()
    problem = setup.problem(seed)
    drawn = [
        problem.draw(setup.n_samples, inputs=stream(seed, "strong", i), noise=stream(seed, "strong noise", i))
        for i in range(settings.strong_sets)
    ]
    inputs, labels = (torch.as_tensor(np.stack(arrays)) for arrays in zip(*drawn, strict=True))
    true = {"covariance": torch.as_tensor(problem.covariance), "true_map": torch.as_tensor(problem.true_map)}
    return excess_loss(*spectral_init(inputs, labels), **true).mean().numpy()


def _constant(setup: Setup) -> float:
    values = np.linspace(setup.largest, setup.smallest, setup.dimension)
    return spectral_start_constant(values, setup.n_outputs, setup.noise)
