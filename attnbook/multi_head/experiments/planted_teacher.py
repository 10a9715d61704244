"""A planted teacher: what more heads do where one head has to find the weights of one head."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnbook.core.ensemble import History, Parameters, log_spaced
from attnbook.core.results import Clock, Measurement, Result
from attnbook.core.resuming import by_seeds, check_seeds, concatenate
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress
from attnbook.multi_head import head_groups, layer, measures, network, teacher
from attnbook.multi_head.experiments import samples
from attnbook.multi_head.experiments.summaries import means_over_seeds
from attnbook.multi_head.objectives import logistic

__all__ = ["PlantedTeacher", "Settings", "run"]


@dataclass(frozen=True)
class Settings:
    r"""Sizes of the experiment; they are this book's own.

    Attributes:
        n_tokens: Tokens of a sample.
        dimension: Dimension of a token.
        n_samples: Training samples.
        n_test: Test samples.
        heads: Numbers of heads, increasing.
        scale: Standard deviation of the entries where training starts.
        step_size: Step size $\eta$ for every number of heads; not tuned.
        steps: Number of steps.
        other_steps: Further step sizes, so that a few and many heads can be compared at the best of all.
        tuned_heads: Numbers of heads that are trained with these.
        seeds: Seeds of teacher, samples and start.
        chunk: Seeds trained together as one program.
    """

    n_tokens: int = 5
    dimension: int = 5
    n_samples: int = 100
    n_test: int = 1000
    heads: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    scale: float = 0.5
    step_size: float = 0.3
    steps: int = 500
    other_steps: tuple[float, ...] = (1.0, 3.0, 10.0)
    tuned_heads: tuple[int, ...] = (1, 8)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    chunk: int = 5

    def __post_init__(self) -> None:
        if any(np.diff(self.heads) <= 0) or not {1, 8, 16, 32} <= set(self.heads):
            raise ValueError(f"heads: expected increasing numbers with 1, 8, 16, 32 among them, got {self.heads}")
        if not {1, 8} <= set(self.tuned_heads) <= set(self.heads):
            raise ValueError(f"tuned_heads: expected some of {self.heads}, 1 and 8 among them, got {self.tuned_heads}")
        for name in ("n_samples", "n_test", "steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if not 0 < self.scale < math.inf:
            raise ValueError(f"scale: expected a finite positive number, got {self.scale}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show little."""
        return cls(n_samples=8, n_test=20, steps=10, seeds=(0, 1))

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return more seeds and samples; the paper's own experiments are not in the text available to us."""
        return cls(n_samples=400, n_test=4000, steps=2000, seeds=tuple(range(20)), chunk=2)

    @property
    def step_sizes(self) -> tuple[float, ...]:
        """All step sizes of the tuned heads, increasing."""
        return tuple(sorted({self.step_size, *self.other_steps}))

    @property
    def at(self) -> tuple[int, ...]:
        """Steps of the records."""
        return log_spaced(self.steps, 14)


@dataclass(frozen=True)
class PlantedTeacher(Result):
    """What training left behind.

    Attributes:
        train_loss: Training loss at each record.
        test_error: Share of wrong test samples after the last step.
        tuned_loss: Training loss after the last step for each step size.
        tuned_error: Test error after the last step for each step size.
        majority: Share of the rarer label among the test samples: the error of the best constant.
    """

    experiment: ClassVar[str] = "multi_head.planted_teacher"
    settings_type: ClassVar[type] = Settings

    train_loss: Float[np.ndarray, "seeds heads records"]
    test_error: Float[np.ndarray, "seeds heads"]
    tuned_loss: Float[np.ndarray, "seeds tuned_heads step_sizes"]
    tuned_error: Float[np.ndarray, "seeds tuned_heads step_sizes"]
    majority: Float[np.ndarray, " seeds"]

    def final_loss(self, n_heads: int) -> Float[np.ndarray, " seeds"]:
        """Return the training loss after the last step for one number of heads."""
        return np.asarray(self.train_loss[:, self.settings.heads.index(n_heads), -1])

    @property
    def best_step(self) -> Int[np.ndarray, " tuned_heads"]:
        """Which step size has the smallest mean training loss, for each of the tuned numbers of heads."""
        return np.asarray(self.tuned_loss.mean(0).argmin(1))

    def tuned(self, name: str, n_heads: int) -> Float[np.ndarray, " seeds"]:
        """Return ``tuned_loss`` or ``tuned_error`` at the best step size of a number of heads."""
        at = self.settings.tuned_heads.index(n_heads)
        return np.asarray(getattr(self, name)[:, at, self.best_step[at]])

    def measurements(self) -> dict[str, Measurement]:
        """Return what was found, by claim id."""
        heads = self.settings.heads
        errors = {f"mean_error_{h}": self.test_error[:, heads.index(h)] for h in (1, 16)}
        losses = {h: self.final_loss(h) for h in (1, 8, 32)}
        tuned_losses = {f"mean_loss_{h}": self.tuned("tuned_loss", h) for h in (1, 8)}
        tuned_errors = {f"mean_error_{h}": self.tuned("tuned_error", h) for h in (1, 8)}
        spread = {f"spread_{h}": float(losses[h].std(ddof=1)) for h in (1, 32)}
        seeds = len(self.settings.seeds)
        return {
            "MH-H.7": means_over_seeds(mean_loss_1=losses[1], mean_loss_8=losses[8]),
            "MH-H.7-saturates": means_over_seeds(mean_loss_8=losses[8], mean_loss_32=losses[32]),
            "MH-H.7-spread": Measurement(spread, n_seeds=seeds),
            "MH-H.7-tuned": means_over_seeds(**tuned_losses),
            "MH-H.8": means_over_seeds(**errors),
            "MH-H.8-tuned": means_over_seeds(**tuned_errors),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> PlantedTeacher:
    """Train networks with few and many heads on the labels of a planted teacher.

    Args:
        settings: Sizes and seeds.
        device: Where to train, in float64; default cuda where there is one, else the CPU.
        progress: Told (networks of each seed done, in all).
        workdir: Folder that keeps finished seeds, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
        FloatingPointError: If a member diverges.
    """
    clock, where = Clock(), samples.double_device(device)

    def measure(seeds: tuple[int, ...], inner: Progress | None) -> dict[str, np.ndarray]:
        train, test = _draw(settings, seeds, where)
        cells = [(h, settings.step_size) for h in settings.heads]
        cells += [(h, eta) for h in settings.tuned_heads for eta in settings.other_steps]
        found = {}
        for number, (n_heads, step_size) in enumerate(cells, 1):
            history = _train(settings, seeds, n_heads, step_size, train)
            out = layer.outputs(history.parameters, test[0])
            error = measures.error_rate(out, test[1]).cpu().numpy()
            found[n_heads, step_size] = history.records["train_loss"].T, error
            if inner:
                inner(number, len(cells))
        tuned = [[found[h, eta] for eta in settings.step_sizes] for h in settings.tuned_heads]
        plus = (test[1] > 0).to(torch.float64).mean(1).cpu().numpy()
        return {
            "train_loss": np.stack([found[cell][0] for cell in cells[: len(settings.heads)]], axis=1),
            "test_error": np.stack([found[cell][1] for cell in cells[: len(settings.heads)]], axis=1),
            "tuned_loss": np.moveaxis(np.array([[loss[:, -1] for loss, _ in row] for row in tuned]), 2, 0),
            "tuned_error": np.moveaxis(np.array([[error for _, error in row] for row in tuned]), 2, 0),
            "majority": np.minimum(plus, 1 - plus),
        }

    arrays = concatenate(by_seeds(settings, measure, clock=clock, workdir=workdir, progress=progress))
    return PlantedTeacher(settings=settings, provenance=clock.provenance(where), **arrays)


def _draw(settings: Settings, seeds: tuple[int, ...], device: torch.device) -> list[network.Batch]:
    """Training and test samples of each seed, labelled by its teacher."""
    teachers = [teacher.draw_teacher(settings.n_tokens, settings.dimension, rng=stream(s, "teacher")) for s in seeds]
    batches = []
    for purpose, size in {"samples": settings.n_samples, "test": settings.n_test}.items():
        drawn = [
            teacher.draw_labelled(one, size, rng=stream(s, purpose)) for s, one in zip(seeds, teachers, strict=True)
        ]
        tokens, labels = (np.stack(parts) for parts in zip(*drawn, strict=True))
        batches.append((_double(tokens, device), _double(labels, device)))
    return batches


def _train(settings: Settings, seeds: tuple[int, ...], n_heads: int, step_size: float, batch: network.Batch) -> History:
    shape = (n_heads, settings.n_tokens, settings.dimension)
    drawn = [network.draw_parameters(*shape, scale=settings.scale, rng=stream(s, "start")) for s in seeds]
    start = {name: _double(np.stack([one[name] for one in drawn]), batch[0].device) for name in drawn[0]}
    tokens, labels = batch

    def record(parameters: Parameters) -> dict[str, Tensor]:
        return {"train_loss": network.losses(parameters, batch)}

    return head_groups.gradient_descent(
        start,
        tokens,
        logistic(labels),
        counts=tokens.new_ones((len(seeds), n_heads)),
        step_size=step_size,
        steps=settings.steps,
        record=record,
        record_at=settings.at,
    )


def _double(values: np.ndarray, device: torch.device) -> Tensor:
    return to_tensor(values, device=device, dtype=torch.float64)
