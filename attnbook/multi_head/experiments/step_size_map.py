r"""The tokenised mixture: the number of heads and the step size together.

Most networks start at zero, where $H$ heads with step size $\eta$ are one head whose two matrices have step sizes
$\eta$ and $\eta/H$ (:mod:`attnbook.multi_head.models.one_head`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core.ensemble import log_spaced
from attnbook.core.results import Clock, Measurement, Result, extremes_over_seeds, over_seeds
from attnbook.core.resuming import by_seeds, concatenate, share
from attnbook.core.runtime import Progress
from attnbook.multi_head.experiments import groups, samples
from attnbook.multi_head.experiments.groups import Cell, MixtureSettings

__all__ = ["Settings", "StepSizeMap", "run"]

# Step sizes of the claims, by number of heads, and one that does not grow.
LARGE_STEPS = {256: 128.0, 4096: 512.0}
SMALL_STEP = 0.5
# Cells on one line eta = 32 sqrt(H), and cells on one line eta = H / 2.
ROOT_CELLS = ((16, 128.0), (256, 512.0), (4096, 2048.0))
PROPORTIONAL_CELLS = ((1, 0.5), (16, 8.0), (256, 128.0), (4096, 2048.0))


@dataclass(frozen=True)
class Settings(MixtureSettings):
    r"""Sizes of the experiment: those of the data, and training.

    Attributes:
        heads: Numbers of heads.
        step_sizes: Step sizes $\eta$, each with every number of heads, from the zero start.
        steps: Number of steps $K$.
    """

    heads: tuple[int, ...] = (1, 16, 256, 4096)
    step_sizes: tuple[float, ...] = (0.5, 2.0, 8.0, 32.0, 128.0, 512.0, 2048.0)
    steps: int = 600

    def __post_init__(self) -> None:
        super().__post_init__()
        used = {*ROOT_CELLS, *PROPORTIONAL_CELLS, *LARGE_STEPS.items(), *((h, SMALL_STEP) for h in LARGE_STEPS)}
        missing = [cell for cell in sorted(used) if cell[0] not in self.heads or cell[1] not in self.step_sizes]
        if missing:
            raise ValueError(f"heads, step_sizes: the claims need {missing[0]}, got {self.heads}, {self.step_sizes}")

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show little."""
        return cls(n_samples=8, n_first_phase=20, n_test=20, steps=5, seeds=(0, 1))

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a finer map; the paper has none."""
        return cls(
            heads=tuple(4**k for k in range(7)),
            step_sizes=tuple(0.5 * 4**k for k in range(9)),
            seeds=tuple(range(10)),
            chunk=1,
        )


@dataclass(frozen=True)
class StepSizeMap(Result):
    """What training left behind, ``(seeds, heads, step_sizes)`` from zero and ``(seeds, cells)`` from the first phase.

    Attributes:
        train_loss: Training loss after the last step.
        highest_loss: The highest training loss of all records, a sign of unstable training.
        test_error: Share of wrong test samples.
        mass: Attention mass on relevant tokens.
        first_phase_error: Test error from the first-phase start, at the large step sizes of the claims.
        first_phase_mass: Attention mass on relevant tokens there, the mean over all heads.
    """

    experiment: ClassVar[str] = "multi_head.step_size_map"
    settings_type: ClassVar[type] = Settings

    train_loss: Float[np.ndarray, "seeds heads step_sizes"]
    highest_loss: Float[np.ndarray, "seeds heads step_sizes"]
    test_error: Float[np.ndarray, "seeds heads step_sizes"]
    mass: Float[np.ndarray, "seeds heads step_sizes"]
    first_phase_error: Float[np.ndarray, "seeds cells"]
    first_phase_mass: Float[np.ndarray, "seeds cells"]

    def cell(self, name: str, n_heads: int, step_size: float) -> Float[np.ndarray, " seeds"]:
        """Return an array of this result for one number of heads and one step size."""
        s = self.settings
        return np.asarray(getattr(self, name)[:, s.heads.index(n_heads), s.step_sizes.index(step_size)])

    def measurements(self) -> dict[str, Measurement]:
        """Return what was found, by claim id."""
        large = {f"error_{h}_large_step": self.cell("test_error", h, eta) for h, eta in LARGE_STEPS.items()}
        small = self.cell("test_error", 256, SMALL_STEP)
        first = {f"error_{h}_large_step": self.first_phase_error[:, i] for i, h in enumerate(LARGE_STEPS)}
        root = np.stack([self.cell("mass", *cell) for cell in ROOT_CELLS], axis=1)
        loss = {f"highest_loss_{h}": self.cell("highest_loss", h, eta) for h, eta in LARGE_STEPS.items()}
        proportional = np.stack([self.cell("test_error", *cell) for cell in PROPORTIONAL_CELLS], axis=1)
        return {
            "MH-H.9": over_seeds(**large, error_256_small_step=small),
            "MH-H.9-good": over_seeds(**first),
            "MH-H.9-root": extremes_over_seeds(largest_mass_gap=np.ptp(root, axis=1)),
            "MH-H.9-unstable": over_seeds(**loss),
            "MH-H.9-proportional": over_seeds(largest_error=proportional.max(1)),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> StepSizeMap:
    """Train networks for every number of heads and every step size.

    Args:
        settings: Sizes and seeds.
        device: Where to train, in float64; default cuda where there is one, else the CPU.
        progress: Told (steps done, steps in all).
        workdir: Folder that keeps finished seeds, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
        FloatingPointError: If the loss of a member overflows.
    """
    clock, where = Clock(), samples.double_device(device)
    at = log_spaced(settings.steps, 12)

    def measure(seeds: tuple[int, ...], inner: Progress | None) -> dict[str, np.ndarray]:
        data = groups.draw_data(settings, seeds, device=where)
        cells = [Cell(h, eta) for eta in settings.step_sizes for h in settings.heads]
        found = groups.train_cells(data, cells, "zero", steps=settings.steps, record_at=at, progress=share(inner, 0, 2))
        large = [Cell(h, eta) for h, eta in LARGE_STEPS.items()]
        first = groups.train_cells(
            data, large, "first_phase", steps=settings.steps, record_at=at, progress=share(inner, 1, 2)
        )
        shape = (len(seeds), len(settings.step_sizes), len(settings.heads))
        final = {name: found[name][:, :, -1].reshape(shape) for name in ("train_loss", "test_error", "mass")}
        final["highest_loss"] = found["train_loss"].max(2).reshape(shape)
        return {name: array.swapaxes(1, 2) for name, array in final.items()} | {
            "first_phase_error": first["test_error"][:, :, -1],
            "first_phase_mass": first["mass"][:, :, -1].mean(2),
        }

    arrays = concatenate(by_seeds(settings, measure, clock=clock, workdir=workdir, progress=progress))
    return StepSizeMap(settings=settings, provenance=clock.provenance(where), **arrays)
