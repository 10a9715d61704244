r"""The tokenised mixture: the number of heads and the step size together.

Most networks start at zero, where $H$ heads with step size $\eta$ are one head whose two matrices have step sizes
$\eta$ and $\eta/H$ (:mod:`attnbook.multi_head.one_head`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.ensemble import Parameters, log_spaced
from attnbook.core.results import Clock, Measurement, Result, extremes_over_seeds, over_seeds
from attnbook.core.resuming import by_seeds, concatenate, share
from attnbook.core.runtime import Progress
from attnbook.multi_head import head_groups, layer
from attnbook.multi_head.experiments import groups, samples
from attnbook.multi_head.experiments.groups import Cell, Data, MixtureSettings, Start
from attnbook.multi_head.layer import Objective
from attnbook.multi_head.objectives import logistic

__all__ = ["Settings", "StepSizeMap", "run"]

# Step sizes of the claims, by number of heads, and one that does not grow.
LARGE_STEPS = {256: 128.0, 4096: 512.0}
SMALL_STEP = 0.5
# Cells on one line eta = 32 sqrt(H), and cells on one line eta = H / 2.
ROOT_CELLS = ((16, 128.0), (256, 512.0), (4096, 2048.0))
PROPORTIONAL_CELLS = ((1, 0.5), (16, 8.0), (256, 128.0), (4096, 2048.0))
# Cells on one line eta = H / 8.
EIGHTH_CELLS = {256: 32.0, 4096: 512.0}
# One that is finished after the first steps, and one that takes a longer way, step size times steps, in the whole run.
SHORT_CELL, LONG_CELL = (256, 512.0), (256, 8.0)
# A training loss at which steps no longer change a parameter: even the largest of them are below its rounding error.
FINISHED = 1e-18
# Steps of all networks; most of those with large step sizes are finished after them.
FIRST_STEPS = 8


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
        small = {(h, SMALL_STEP) for h in LARGE_STEPS}
        used = {
            *ROOT_CELLS,
            *PROPORTIONAL_CELLS,
            *LARGE_STEPS.items(),
            *EIGHTH_CELLS.items(),
            *small,
            SHORT_CELL,
            LONG_CELL,
        }
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
        early_loss: Training loss after the first few steps (eight, or all of a shorter run).
        test_error: Share of wrong test samples.
        mass: Attention mass on relevant tokens.
        first_phase_error: Test error from the first-phase start, at the large step sizes of the claims.
        first_phase_mass: Attention mass on relevant tokens there, the mean over all heads.
    """

    experiment: ClassVar[str] = "multi_head.step_size_map"
    settings_type: ClassVar[type] = Settings

    train_loss: Float[np.ndarray, "seeds heads step_sizes"]
    highest_loss: Float[np.ndarray, "seeds heads step_sizes"]
    early_loss: Float[np.ndarray, "seeds heads step_sizes"]
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
            "MH-H.9-eighth": over_seeds(
                **{f"error_{h}_eighth": self.cell("test_error", h, eta) for h, eta in EIGHTH_CELLS.items()}
            ),
            "MH-H.9-short": extremes_over_seeds(
                largest_loss_after_eight_steps=self.cell("early_loss", *SHORT_CELL),
                largest_error=self.cell("test_error", *SHORT_CELL),
                smallest_error_of_the_longer_run=self.cell("test_error", *LONG_CELL),
            ),
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

    def measure(seeds: tuple[int, ...], inner: Progress | None) -> dict[str, np.ndarray]:
        data = groups.draw_data(settings, seeds, device=where)
        cells = [Cell(h, eta) for h in settings.heads for eta in settings.step_sizes]
        zero = _train_to_the_end(settings, data, cells, "zero", share(inner, 0, 2))
        large = [Cell(h, eta) for h, eta in LARGE_STEPS.items()]
        first = _train_to_the_end(settings, data, large, "first_phase", share(inner, 1, 2))
        shape = (len(seeds), len(settings.heads), len(settings.step_sizes))
        map_of = {name: array.mean(2) if name == "mass" else array for name, array in zero.items()}
        return {name: array.reshape(shape) for name, array in map_of.items()} | {
            "first_phase_error": first["test_error"],
            "first_phase_mass": first["mass"].mean(2),
        }

    arrays = concatenate(by_seeds(settings, measure, clock=clock, workdir=workdir, progress=progress))
    return StepSizeMap(settings=settings, provenance=clock.provenance(where), **arrays)


def _train_to_the_end(
    settings: Settings, data: Data, cells: list[Cell], start: Start, progress: Progress | None
) -> dict[str, np.ndarray]:
    """Train every cell and seed; arrays ``(seeds, cells)``, ``mass`` with a last axis over groups."""
    # All take the first steps. Those whose loss is then zero up to rounding would not change any more.
    members = _Members.of(data, cells, start)
    first = min(FIRST_STEPS, settings.steps)
    later = [step - first for step in log_spaced(settings.steps, 12) if step >= first]
    members.train(np.arange(len(members.rates)), range(first + 1), share(progress, 0, 2))
    early = members.loss.copy()
    if settings.steps > first:
        members.train(np.flatnonzero(members.loss > FINISHED), later, share(progress, 1, 2))
    if progress:
        progress(1, 1)  # where nobody needs more than the first steps, the second half is over at once
    found = members.found()
    return found | {"early_loss": early.reshape(len(cells), -1).T}


@dataclass(frozen=True)
class _Members:
    """Networks in training: cells, and for each cell the seeds."""

    data: Data
    parameters: Parameters
    counts: Tensor
    rates: np.ndarray
    loss: np.ndarray
    highest: np.ndarray

    @classmethod
    def of(cls, data: Data, cells: list[Cell], start: Start) -> Self:
        seeds = len(data.train.tokens)
        each = [groups.start_of(start, data, [cell.n_heads] * seeds) for cell in cells]
        parameters = {name: torch.cat([one[name] for one, _ in each]) for name in each[0][0]}
        rates = np.repeat([cell.step_size for cell in cells], seeds)
        empty = np.zeros((2, len(rates)))
        return cls(data, parameters, torch.cat([counts for _, counts in each]), rates, *empty)

    def train(self, chosen: np.ndarray, at: Sequence[int], progress: Progress | None) -> None:
        """Train some members up to the last step of ``at``, a few at a time, with a look at the loss at each."""
        together = max(1, groups.GROUPS_AT_ONCE // self.counts.shape[1])
        parts = [chosen[i : i + together] for i in range(0, len(chosen), together)]
        for number, part in enumerate(parts):
            tokens, labels = (of[part % len(of)] for of in self.data.train[:2])
            counts, objective = self.counts[part], logistic(labels)
            history = head_groups.gradient_descent(
                {name: tensor[part] for name, tensor in self.parameters.items()},
                tokens,
                objective,
                counts=counts,
                step_size=self.rates[part].tolist(),
                steps=at[-1],
                record=_loss_alone(tokens, objective, counts),
                record_at=tuple(at),
                progress=share(progress, number, len(parts)),
            )
            for name, tensor in history.parameters.items():
                self.parameters[name][part] = tensor
            self.loss[part] = history.records["train_loss"][-1]
            self.highest[part] = np.maximum(self.highest[part], history.records["train_loss"].max(0))

    def found(self) -> dict[str, np.ndarray]:
        """Return the statistics of every cell and seed, and the highest loss on the way."""
        seeds, cells = len(self.data.train.tokens), []
        for i in range(0, len(self.rates), seeds):
            own = {name: tensor[i : i + seeds] for name, tensor in self.parameters.items()}
            last = groups.statistics(own, self.data, self.counts[i : i + seeds])
            cells.append({name: last[name].cpu().numpy() for name in ("train_loss", "test_error", "mass")})
        joined = {name: np.stack([one[name] for one in cells], axis=1) for name in cells[0]}
        return joined | {"highest_loss": self.highest.reshape(-1, seeds).T}


def _loss_alone(tokens: Tensor, objective: Objective, counts: Tensor) -> Callable[[Parameters], dict[str, Tensor]]:
    """Return a record of the training loss; test samples are many, and wait for the end."""
    return lambda p: {"train_loss": objective(layer.outputs(p, tokens, counts=counts))[0]}
