"""Which part of Algorithm 1 does what: start, preconditioner and regulariser, each left out in turn.

This book's experiment. Every combination is run at every step size of a grid, on the same seeds; each is judged at its
own best step size on those seeds. Members that diverge count as infinite.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float, Int

from attnbook.core import runtime
from attnbook.core.results import Clock, Measurement, Result
from attnbook.core.resuming import by_seeds, check_seeds, concatenate
from attnbook.core.runtime import Progress
from attnbook.preconditioning.data import Setup
from attnbook.preconditioning.experiments.curves import first_time, loss_ratio, stage
from attnbook.preconditioning.theory.population import Preconditioner
from attnbook.preconditioning.training import Start, Training, Variant, train_variants

__all__ = ["PARTS", "Ablation", "Settings", "run"]

# The six variants: preconditioner and weight of the regulariser; the last one is Algorithm 1.
KINDS: tuple[Preconditioner, ...] = ("none", "left", "two")
PARTS = tuple((kind, penalty) for penalty in (0.0, 1.0) for kind in KINDS)


@dataclass(frozen=True)
class Settings:
    r"""Sizes of the experiment.

    Attributes:
        dimension: Number of inputs $d$.
        n_outputs: Number of outputs $m$.
        n_samples: Size $n$ of the data set.
        batch_size: Samples per minibatch.
        weak_conditions: $\kappa(\Sigma)$ of the problems with a weak signal, those of Figures 1 and 2.
        weak_steps: Number of steps there.
        weak_step_sizes: Step sizes tried there, for each of these problems.
        strong_conditions: $\kappa(\Sigma)$ of the problems with a strong signal, increasing.
        strong_steps: Number of steps there, and from the spectral start.
        strong_step_sizes: Step sizes tried there, increasing.
        hard_condition: The one of ``strong_conditions`` that the claim on hard problems speaks of.
        spectral_conditions: $\kappa(\Sigma)$ of the problems with a strong signal trained from the spectral start.
        spectral_step_size: Step size from the spectral start.
        records: Losses recorded after the first, evenly spaced.
        seeds: Seeds of problem, data, batches and random start.
        chunk: Seeds trained together as one program.
    """

    dimension: int = 5
    n_outputs: int = 8
    n_samples: int = 1000
    batch_size: int = 100
    weak_conditions: tuple[float, ...] = (3.0, 10.0)
    weak_steps: int = 1500
    weak_step_sizes: tuple[tuple[float, ...], ...] = ((0.02, 0.05, 0.1, 0.2), (0.01, 0.02, 0.05, 0.1))
    strong_conditions: tuple[float, ...] = (3.0, 10.0, 30.0, 100.0)
    strong_steps: int = 600
    strong_step_sizes: tuple[float, ...] = (0.005, 0.01, 0.02, 0.04)
    hard_condition: float = 30.0
    spectral_conditions: tuple[float, ...] = (3.0, 10.0, 30.0)
    spectral_step_size: float = 0.01
    records: int = 50
    seeds: tuple[int, ...] = (0, 1, 2)
    chunk: int = 3

    def __post_init__(self) -> None:
        if len(self.weak_conditions) != 2 or len(self.weak_step_sizes) != 2:
            raise ValueError(
                f"weak_conditions, weak_step_sizes: expected two of each, got {self.weak_conditions} and "
                f"{self.weak_step_sizes}"
            )
        for name in ("weak_steps", "strong_steps"):
            if self.records < 1 or getattr(self, name) % self.records:
                raise ValueError(f"records: expected a divisor of {name} {getattr(self, name)}, got {self.records}")
        if self.hard_condition not in self.strong_conditions:
            raise ValueError(
                f"hard_condition: expected one of strong_conditions {self.strong_conditions}, got {self.hard_condition}"
            )
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(n_samples=200, batch_size=10, weak_steps=20, strong_steps=10, records=10, seeds=(0, 1), chunk=1)

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop: what the claims speak of, and no more."""
        return cls(strong_conditions=(30.0,))

    @classmethod
    def paper(cls) -> Self:
        """Return the same experiment with more seeds and condition numbers; the paper has none."""
        return cls(seeds=tuple(range(20)), chunk=5)

    def weak(self, condition_number: float) -> Setup:
        """Return the sizes of a problem with a weak signal."""
        return self._setup(condition_number, largest=0.06, noise=0.02)

    def strong(self, condition_number: float) -> Setup:
        """Return the sizes of a problem with a strong signal."""
        return self._setup(condition_number, largest=0.4, noise=0.1)

    def _setup(self, condition_number: float, *, largest: float, noise: float) -> Setup:
        sizes = {"dimension": self.dimension, "n_outputs": self.n_outputs, "n_samples": self.n_samples}
        return Setup(**sizes, condition_number=condition_number, largest=largest, smallest=largest / 2, noise=noise)

    def record_at(self, steps: int) -> tuple[int, ...]:
        """Return the recorded steps of a run."""
        return tuple(range(0, steps + 1, steps // self.records))

    @property
    def conditions(self) -> tuple[float, ...]:
        """Condition numbers of all problems with a strong signal, increasing."""
        return tuple(sorted({*self.strong_conditions, *self.spectral_conditions}))

    @property
    def networks(self) -> int:
        """Number of networks that are trained."""
        grid = sum(map(len, self.weak_step_sizes)) + len(self.strong_conditions) * len(self.strong_step_sizes)
        return len(PARTS) * (grid + len(self.spectral_conditions)) * len(self.seeds)


@dataclass(frozen=True)
class Ablation(Result):
    """Training curves of every variant at every step size, $L/L^*$ throughout.

    Attributes:
        weak: Problems with a weak signal, ``(problems, records, step_sizes, parts, seeds)``; infinite where diverged.
        strong: Problems with a strong signal, same axes.
        spectral: Problems with a strong signal from the spectral start, ``(problems, records, parts, seeds)``.
    """

    experiment: ClassVar[str] = "preconditioning.ablation"
    settings_type: ClassVar[type] = Settings
    digits: ClassVar[int | None] = 6

    weak: Float[np.ndarray, "weak records weak_sizes parts seeds"]
    strong: Float[np.ndarray, "strong records strong_sizes parts seeds"]
    spectral: Float[np.ndarray, "spectral records parts seeds"]

    def best(self, curves: Float[np.ndarray, "records step_sizes parts seeds"]) -> Int[np.ndarray, " parts"]:
        """Return the position of the step size with the lowest median final ratio, for each variant."""
        return np.median(curves[-1], axis=-1).argmin(axis=0)

    def at_best(
        self, curves: Float[np.ndarray, "records step_sizes parts seeds"]
    ) -> Float[np.ndarray, "records parts seeds"]:
        """Return the curves of each variant at its best step size."""
        best = self.best(curves)
        return np.stack([curves[:, best[part], part] for part in range(len(PARTS))], axis=1)

    def fastest(self, problem: int) -> Float[np.ndarray, " parts"]:
        """Return each variant's smallest median first step near the optimum over step sizes, weak signal."""
        steps = np.array(self.settings.record_at(self.settings.weak_steps), dtype=np.float64)
        return np.median(first_time(steps, self.weak[problem]), axis=-1).min(axis=0)

    def measurements(self) -> dict[str, Measurement]:
        """Return what the ablations say, by claim id."""
        seeds = len(self.settings.seeds)
        weak = [self.at_best(curves)[-1] for curves in self.weak]
        hard = self.at_best(self.strong[self.settings.strong_conditions.index(self.settings.hard_condition)])[-1] - 1
        fastest = dict(zip(KINDS, self.fastest(0)[3:], strict=True))
        values = {
            "PC-F3": {"smallest_ratio_unregularised": _best(weak[0][:3])},
            "PC-F3-regularised": {"largest_ratio_regularised": max(weak[0][3:], key=np.median)},
            "PC-F3-speed": {f"hitting_time_{kind}": time for kind, time in fastest.items()},
            "PC-F4": {"ratio_two_regularised": weak[1][-1], "smallest_ratio_others": _best(weak[1][:-1])},
            "PC-F5": {
                "excess_over_best_two_regularised": hard[-1],
                "smallest_excess_over_best_others": _best(hard[:-1]),
            },
            "PC-F6": {"largest_ratio": np.median(self.spectral, axis=-1).max()},
        }
        spread = {
            claim: {name: _range(v) for name, v in found.items() if np.ndim(v)} for claim, found in values.items()
        }
        spread["PC-F6"] = {"largest_ratio": _range(self.spectral.max(axis=(0, 1, 2)))}
        return {
            claim: Measurement({k: float(np.median(v)) for k, v in found.items()}, spread.get(claim, {}), seeds)
            for claim, found in values.items()
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> Ablation:
    """Train all variants at all step sizes on all problems.

    Args:
        settings: Sizes, grids, seeds and steps.
        device: Where to train; default the first of cuda, mps and cpu.
        progress: Told (steps done, steps in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available or a batch is larger than the data set.
    """
    clock, where = Clock(), runtime.device(device)

    def train(seeds: tuple[int, ...], inner: Progress | None) -> dict[str, np.ndarray]:
        return _train(settings, seeds, where, inner)

    parts = by_seeds(settings, train, clock=clock, workdir=workdir, progress=progress)
    curves = concatenate(parts, axis=-1)
    return Ablation(settings=settings, provenance=clock.provenance(where), **curves)


def _train(
    settings: Settings, seeds: tuple[int, ...], device: torch.device, progress: Progress | None
) -> dict[str, np.ndarray]:
    stages = len(settings.weak_conditions) + len(settings.conditions)

    def curves(setup: Setup, variants: list[Variant], steps: int, number: int) -> np.ndarray:
        training = Training(steps, settings.batch_size, settings.record_at(steps))
        inner = stage(progress, number, stages)
        records = train_variants(variants, seeds, setup, training, device=device, progress=inner).records
        return loss_ratio(records["excess_loss"].reshape(-1, len(variants), len(seeds)), setup.best_loss)

    weak: list[np.ndarray] = []
    strong: list[np.ndarray] = []
    spectral: list[np.ndarray] = []
    for kappa, sizes in zip(settings.weak_conditions, settings.weak_step_sizes, strict=True):
        found = curves(settings.weak(kappa), _grid(sizes), settings.weak_steps, len(weak))
        weak.append(found.reshape(len(found), len(sizes), len(PARTS), -1))
    for number, kappa in enumerate(settings.conditions, len(weak)):
        sizes = settings.strong_step_sizes if kappa in settings.strong_conditions else ()
        extra = _grid((settings.spectral_step_size,), start="spectral") if kappa in settings.spectral_conditions else []
        found = curves(settings.strong(kappa), extra + _grid(sizes), settings.strong_steps, number)
        spectral += [found[:, : len(extra)]] if extra else []
        strong += [found[:, len(extra) :].reshape(len(found), len(sizes), len(PARTS), -1)] if sizes else []
    return {"weak": np.stack(weak), "strong": np.stack(strong), "spectral": np.stack(spectral)}


def _grid(step_sizes: tuple[float, ...], start: Start = "random") -> list[Variant]:
    return [Variant(size, kind, penalty, start) for size in step_sizes for kind, penalty in PARTS]


def _best(samples: np.ndarray) -> np.ndarray:
    """Return the final values over seeds of the variant with the lowest median."""
    return min(samples, key=np.median)


def _range(samples: np.ndarray) -> tuple[float, float]:
    return float(samples.min()), float(samples.max())
