"""When does a mask help? Error against samples for teachers that look at few, many or all inputs.

This book's experiment. It also follows the L1 path, and tests the paper's remark (appendix B) that attention may hurt
when every input matters.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core import runtime
from attnbook.core.results import (
    Clock,
    Measurement,
    Provenance,
    Result,
    over_seeds,
    ratio_over_seeds,
)
from attnbook.core.resuming import by_seeds, check_seeds
from attnbook.core.runtime import Progress
from attnbook.global_attention.masked_teachers import Setup
from attnbook.global_attention.masks import Member, Model, Training, train_members

__all__ = ["MODELS", "Settings", "Sparsity", "run"]

# Added to a seed on the L1 path, so that the penalty is not chosen on the seeds it is judged on.
PATH_SEEDS = 100
MODELS: tuple[Model, ...] = ("baseline", "attention", "l1_attention")


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment.

    Attributes:
        n_inputs: Number of inputs.
        sparsities: Relevant inputs of the teachers, increasing; the last one is dense.
        outputs: Labels per sample.
        teacher_width: Hidden units of the teachers.
        width: Hidden units of the networks.
        noise: Standard deviation of the label noise; the clean labels have 1.
        sizes: Training samples, increasing.
        n_test: Held-out samples with clean labels.
        penalty: L1 weight on the mask in the main grid; the best of the path at book scale, whose seeds are others.
        path_penalties: L1 weights of the path, increasing.
        path_size: Training samples of the path.
        path_sparsity: Relevant inputs of the path.
        dense_size: Training samples for the remark on dense teachers, one of ``sizes``.
        target: Test error that defines "samples needed".
        step_size: Step size of Adam, falling to zero along a cosine.
        batch_size: Samples per step.
        steps: Number of steps.
        seeds: Seeds.
        chunk: Seeds trained together as one program.
    """

    n_inputs: int = 32
    sparsities: tuple[int, ...] = (2, 4, 8, 16, 32)
    outputs: int = 10
    teacher_width: int = 16
    width: int = 32
    noise: float = 0.5
    sizes: tuple[int, ...] = (250, 500, 1000, 2000, 4000)
    n_test: int = 2048
    penalty: float = 1e-2
    path_penalties: tuple[float, ...] = (1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
    path_size: int = 1000
    path_sparsity: int = 4
    dense_size: int = 4000
    target: float = 0.02
    step_size: float = 5e-3
    batch_size: int = 64
    steps: int = 2000
    seeds: tuple[int, ...] = (0, 1, 2)
    chunk: int = 3

    def __post_init__(self) -> None:
        if self.dense_size not in self.sizes:
            raise ValueError(f"dense_size: expected one of sizes {self.sizes}, got {self.dense_size}")
        if self.sparsities[-1] != self.n_inputs:
            raise ValueError(f"sparsities: expected n_inputs = {self.n_inputs} last, got {self.sparsities}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        small = (30, 40, 50)
        return cls(
            sparsities=(4, 32), sizes=small, path_size=40, dense_size=50, n_test=64, steps=20, seeds=(0, 1), chunk=1
        )

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a larger run of this book's experiment; the paper has none."""
        return cls(steps=6000, n_test=20_000, seeds=tuple(range(10)), chunk=1)

    @property
    def grid(self) -> list[tuple[int, int, Model]]:
        """Sparsity, size and model of the main grid, in order."""
        return [(k, n, model) for k in self.sparsities for n in self.sizes for model in MODELS]

    def grid_members(self, seeds: tuple[int, ...]) -> list[Member]:
        """Return the networks of the grid, ordered by seed."""
        return [Member(model, seed, n, k, self.penalty) for seed in seeds for k, n, model in self.grid]

    def path_members(self, seeds: tuple[int, ...]) -> list[Member]:
        """Return the networks of the L1 path, ordered by seed; the seeds are kept apart from those of the grid."""
        return [
            Member("l1_attention", seed + PATH_SEEDS, self.path_size, self.path_sparsity, penalty)
            for seed in seeds
            for penalty in self.path_penalties
        ]


@dataclass(frozen=True)
class Sparsity(Result):
    """Final errors and masks.

    Attributes:
        test_loss: Errors of the grid, ``(seeds, sparsities, sizes, models)``, in units of the label variance.
        weights: How strongly each input enters, first seed only, ``(sparsities, sizes, models, inputs)``.
        truth: The teachers' masks, first seed only, ``(sparsities, inputs)``.
        path_loss: Errors along the L1 path, ``(seeds, penalties)``.
        path_weights: How strongly each input enters along the path, first seed, ``(penalties, inputs)``.
        path_truth: The teacher's mask on the path, first seed, ``(inputs,)``.
    """

    experiment: ClassVar[str] = "global_attention.sparsity"
    settings_type: ClassVar[type] = Settings

    test_loss: Float[np.ndarray, "seeds sparsities sizes models"]
    weights: Float[np.ndarray, "sparsities sizes models inputs"]
    truth: Float[np.ndarray, "sparsities inputs"]
    path_loss: Float[np.ndarray, "seeds penalties"]
    path_weights: Float[np.ndarray, "penalties inputs"]
    path_truth: Float[np.ndarray, " inputs"]

    def samples_needed(self, model: Model) -> Float[np.ndarray, " sparsities"]:
        """Return the sample size at which the median error falls to the target, by log-log interpolation.

        Args:
            model: One of :data:`MODELS`.

        Returns:
            One size per sparsity; infinite where no size reached the target, the smallest size where all did.
        """
        medians = np.median(self.test_loss[..., MODELS.index(model)], axis=0)
        log_sizes, log_target = np.log(self.settings.sizes), np.log(self.settings.target)
        needed = []
        for errors in np.log(medians):
            falling = np.minimum.accumulate(errors)
            if falling[-1] > log_target:
                needed.append(np.inf)
            else:
                needed.append(np.exp(np.interp(-log_target, -falling, log_sizes)))
        return np.array(needed)

    def measurements(self) -> dict[str, Measurement]:
        """Return what the grid, the path and the dense teacher say, by claim id."""
        dense = self.test_loss[:, -1, self.settings.sizes.index(self.settings.dense_size)]
        small = self.test_loss[:, -1, 0]
        path = np.median(self.path_loss, axis=0)
        return {
            "GA-G1-dense-l1": ratio_over_seeds("l1_over_baseline", dense[:, 2], dense[:, 0]),
            "GA-G1-dense-mask": ratio_over_seeds("attention_over_baseline", dense[:, 1], dense[:, 0]),
            "GA-G1-dense-small": ratio_over_seeds("l1_over_baseline", small[:, 2], small[:, 0]),
            "GA-X-path": over_seeds(
                best_over_smallest=self.path_loss[:, path.argmin()] / self.path_loss[:, 0],
                best_over_largest=self.path_loss[:, path.argmin()] / self.path_loss[:, -1],
            ),
            "GA-X-phase": self._phase(),
        }

    def _phase(self) -> Measurement:
        """Ratios of samples needed; where no size reached the target, the largest size counts: a bound."""
        most = self.settings.sizes[-1]
        baseline, l1 = (np.minimum(self.samples_needed(m), most) for m in ("baseline", "l1_attention"))
        ratios = baseline / l1
        values = {"samples_ratio_sparse": float(ratios[0]), "samples_ratio_dense_at_most": float(ratios[-1])}
        return Measurement(values, n_seeds=len(self.settings.seeds))


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> Sparsity:
    """Train the grid and the L1 path.

    Args:
        settings: Sizes, seeds and steps.
        device: Where to train; default the first of cuda, mps and cpu.
        progress: Told (steps done, steps in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
        FloatingPointError: If a network diverges.
    """
    clock, where = Clock(), runtime.device(device)
    setup = Setup(
        settings.n_inputs, settings.outputs, settings.teacher_width, settings.width, settings.noise, settings.n_test
    )
    training = Training(settings.steps, settings.batch_size, settings.step_size, (settings.steps,), decay=True)

    def train(seeds: tuple[int, ...], inner: Progress | None) -> dict[str, np.ndarray]:
        arrays = {}
        for name, members in {"grid": settings.grid_members, "path": settings.path_members}.items():
            records = train_members(members(seeds), setup, training, device=where, progress=inner).records
            arrays[f"{name}_loss"] = records["test_loss"][-1].reshape(len(seeds), -1)
            weights = records["effective_weights"][-1]
            arrays[f"{name}_weights"] = weights.reshape(len(seeds), -1, settings.n_inputs)
        return arrays

    parts = by_seeds(settings, train, clock=clock, workdir=workdir, progress=progress)
    return _collect(settings, setup, parts, clock.provenance(where))


def _collect(settings: Settings, setup: Setup, parts: list[dict[str, np.ndarray]], provenance: Provenance) -> Sparsity:
    grid, path = (np.concatenate([part[f"{name}_loss"] for part in parts]) for name in ("grid", "path"))
    first = parts[0]
    shape = (len(settings.sparsities), len(settings.sizes), len(MODELS))
    return Sparsity(
        settings=settings,
        provenance=provenance,
        test_loss=grid.reshape(-1, *shape),
        weights=first["grid_weights"][0].reshape(*shape, -1),
        truth=np.stack([setup.teacher(settings.seeds[0], k).mask for k in settings.sparsities]),
        path_loss=path,
        path_weights=first["path_weights"][0],
        path_truth=setup.teacher(settings.seeds[0] + PATH_SEEDS, settings.path_sparsity).mask,
    )
