r"""Plain mirror descent step by step: Lemmas 4, 22, 23, 24, 25 and the growth of the norm (Lemma 30).

Short runs from random starts are checked at every step, with step sizes up to much too large ones. Longer runs from
zero are checked at every recorded step; their norms are followed against the logarithm of the steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core import runtime
from attnbook.core.ensemble import log_spaced
from attnbook.core.results import Clock, Measurement, Result, extremes_over_seeds, over_seeds
from attnbook.core.resuming import by_seeds, check_seeds, concatenate, share
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress
from attnbook.mirror_descent import mirror, one_step
from attnbook.mirror_descent.attention import Batch, attention_weights, descend, loss_and_gradient
from attnbook.mirror_descent.attention_svm import attention_svm
from attnbook.mirror_descent.data import Problems, draw_problems, joined

__all__ = ["Settings", "Steps", "run"]

# The step size and the exponents that the claims name, and the step from which norms are fitted.
SMALL = 0.1
NEEDED = (1.5, 3.0)
FITTED_FROM = 1000
# Steps shorter than this share of the mirror image's norm are not checked.
RESOLVED = 1e-5


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment.

    Attributes:
        ps: Exponents of the short runs, increasing; this book's.
        step_sizes: Step sizes of the short runs, increasing; the smallest, 0.1, is that of an early state of the
            first author's code (there with normalised steps), the others are this book's.
        short_steps: Steps of the short runs.
        long_ps: Exponents of the long runs, increasing.
        long_steps: Steps of the long runs, with the smallest step size.
        records: How many pairs of neighbouring steps of the long runs are recorded, about.
        seeds: One problem per seed.
        chunk: Seeds trained together as one program.
    """

    ps: tuple[float, ...] = (1.1, 1.25, 1.5, 1.75, 2.0, 3.0, 4.0)
    step_sizes: tuple[float, ...] = (SMALL, 1.0, 10.0, 100.0, 1000.0)
    short_steps: int = 60
    long_ps: tuple[float, ...] = (1.5, 1.75, 2.0, 3.0)
    long_steps: int = 5000
    records: int = 40
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    chunk: int = 5

    def __post_init__(self) -> None:
        for name, ps in (("ps", self.ps), ("long_ps", self.long_ps)):
            if list(ps) != sorted(set(ps)) or ps[0] <= 1:
                raise ValueError(f"{name}: expected increasing numbers above 1, got {ps}")
        if set(NEEDED) - set(self.long_ps):
            raise ValueError(f"long_ps: expected {NEEDED} among them, got {self.long_ps}")
        if self.step_sizes[0] != SMALL or list(self.step_sizes) != sorted(set(self.step_sizes)):
            raise ValueError(f"step_sizes: expected increasing numbers from {SMALL} on, got {self.step_sizes}")
        if len(self.step_sizes) < 2:
            raise ValueError(f"step_sizes: expected at least two, got {self.step_sizes}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(
            ps=(1.5, 3.0), step_sizes=(SMALL, 1000.0), short_steps=3, long_ps=NEEDED, long_steps=40, records=6,
            seeds=(0, 1), chunk=1,
        )  # fmt: skip

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return longer runs and more seeds; the paper's numbers of steps are not known."""
        return cls(long_steps=30_000, records=90, seeds=tuple(range(20)), chunk=20)

    @property
    def record_at(self) -> tuple[int, ...]:
        """Recorded steps of the long runs, log-spaced ones, each with the one after it."""
        spaced = log_spaced(self.long_steps - 1, self.records)
        return tuple(sorted({*spaced, *(step + 1 for step in spaced)}))


@dataclass(frozen=True)
class Steps(Result):
    r"""How closely each inequality of one step holds, and how the norm grows.

    Attributes:
        lemma_4: Smallest slack over the steps of the short runs that double precision resolves,
            ``(seeds, ps, step_sizes)``.
        lemma_22: The same for Lemma 22.
        lemma_24: The same for Lemma 24.
        error_23: Largest error of Lemma 23 with a random third matrix, ``(seeds, ps, step_sizes)``.
        rise: Largest increase of the loss in one step, ``(seeds, ps, step_sizes)``.
        steps: Recorded steps of the long runs, ``(records,)``.
        norm: $\|W(k)\|_{p,p}$ of the long runs, ``(seeds, long_ps, records)``.
        loss: Their losses, ``(seeds, long_ps, records)``.
        long_slack: Smallest slack of Lemmas 4, 22 and 24 over pairs of neighbouring recorded steps, the first one left
            out, ``(seeds, long_ps, 3)``.
        target_norm: $\|W_{mm}\|_{p,p}$ for the tokens attended last, ``(seeds, long_ps)``.
    """

    experiment: ClassVar[str] = "mirror_descent.steps"
    settings_type: ClassVar[type] = Settings
    # Nearly equal losses are compared.
    digits: ClassVar[int | None] = None

    lemma_4: Float[np.ndarray, "seeds ps step_sizes"]
    lemma_22: Float[np.ndarray, "seeds ps step_sizes"]
    lemma_24: Float[np.ndarray, "seeds ps step_sizes"]
    error_23: Float[np.ndarray, "seeds ps step_sizes"]
    rise: Float[np.ndarray, "seeds ps step_sizes"]
    steps: Float[np.ndarray, " records"]
    norm: Float[np.ndarray, "seeds long_ps records"]
    loss: Float[np.ndarray, "seeds long_ps records"]
    long_slack: Float[np.ndarray, "seeds long_ps 3"]
    target_norm: Float[np.ndarray, "seeds long_ps"]

    def fits(self) -> tuple[Float[np.ndarray, "seeds long_ps"], Float[np.ndarray, "seeds long_ps"]]:
        """Return slope and R squared of a straight line through the norm against the log of the step, late steps."""
        late = self.steps > min(FITTED_FROM, self.settings.long_steps / 5)
        across, up = np.log(self.steps[late]), self.norm[..., late]
        slope, height = np.polyfit(across, up.reshape(-1, late.sum()).T, 1).reshape(2, *up.shape[:2], 1)
        left = np.square(up - slope * across - height).sum(axis=-1)
        return slope[..., 0], 1 - left / np.square(up - up.mean(axis=-1, keepdims=True)).sum(axis=-1)

    def late_to_early(self) -> Float[np.ndarray, "seeds long_ps"]:
        r"""Return how the norm's slope against the log of the step changes between the halves of the late steps.

        Returns:
            The slope of the second half (of $\log k$) over that of the first, or over $\|W_{mm}\|$ if that is less.
        """
        late = self.steps > min(FITTED_FROM, self.settings.long_steps / 5)
        across, up = np.log(self.steps[late]), self.norm[..., late]
        middle = int(np.abs(across - (across[0] + across[-1]) / 2).argmin())
        first, second = np.moveaxis(np.diff(up[..., [0, middle, -1]]) / np.diff(across[[0, middle, -1]]), -1, 0)
        return second / np.minimum(first, self.target_norm)

    def measurements(self) -> dict[str, Measurement]:
        """Return the worst case of each lemma, by claim id."""
        small, large = self.lemma_24[..., 0], self.lemma_24[..., -1]
        slope, share_explained = self.fits()
        ratio = slope / self.target_norm
        rises = np.concatenate([self.rise[..., 0], np.diff(self.loss, axis=-1).max(axis=-1)], axis=1)
        found = {
            "MD-L4": extremes_over_seeds(
                max_relative_violation=-np.concatenate([self.lemma_4.min(axis=-1), self.long_slack[..., 0]], axis=1)
            ),
            "MD-L22": extremes_over_seeds(
                max_relative_violation=-np.concatenate([self.lemma_22[..., 0], self.long_slack[..., 1]], axis=1)
            ),
            "MD-L22-large": extremes_over_seeds(max_relative_violation=-self.lemma_22[..., 1:]),
            "MD-L23": extremes_over_seeds(max_error=self.error_23[..., 0]),
            "MD-L24": extremes_over_seeds(max_violation=-np.concatenate([small, self.long_slack[..., 2]], axis=1)),
            "MD-L24-large": extremes_over_seeds(max_violation=-large, max_loss_increase=self.rise[..., -1]),
            "MD-L24-fails": extremes_over_seeds(max_violation=-large),
            "MD-L25": extremes_over_seeds(max_loss_increase=rises),
            "MD-L30": over_seeds(
                min_r_squared=share_explained.min(axis=1),
                min_slope=slope.min(axis=1),
                min_late_to_early_slope=self.late_to_early().min(axis=1),
            ),
            "MD-L30-monotone": extremes_over_seeds(max_norm_decrease=-np.diff(self.norm, axis=-1)),
        }
        if self.settings.long_steps >= 30_000:
            places = {f"slope_ratio_p{p:g}".replace(".", "_"): self.settings.long_ps.index(p) for p in NEEDED}
            found["MD-L30+-plain"] = over_seeds(**{name: ratio[:, at] for name, at in places.items()})
        return found


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> Steps:
    """Check the lemmas on one step along plain runs of mirror descent.

    Args:
        settings: Sizes, exponents and step sizes.
        device: Where to train; default the first of cuda, mps and cpu.
        progress: Told (steps done, steps in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
        FloatingPointError: If a run diverges.
    """
    clock, where = Clock(), runtime.device(device)

    def train(seeds: tuple[int, ...], inner: Progress | None) -> dict[str, np.ndarray]:
        short = _short(settings, seeds, where, share(inner, 0, 2))
        return short | _long(settings, seeds, where, share(inner, 1, 2))

    parts = by_seeds(settings, train, clock=clock, workdir=workdir, progress=progress)
    steps = np.array(settings.record_at, dtype=np.float64)
    return Steps(settings=settings, provenance=clock.provenance(where), steps=steps, **concatenate(parts))


def _short(
    settings: Settings, seeds: tuple[int, ...], device: torch.device, progress: Progress | None
) -> dict[str, np.ndarray]:
    """Every step of runs from random starts, members ordered by exponent, step size, seed."""
    one = draw_problems(seeds)
    dimension, sizes = one.decoder.shape[1], len(settings.step_sizes)
    ps = np.repeat(settings.ps, sizes * len(seeds))
    problems = joined([one] * (len(settings.ps) * sizes))
    step_size = np.tile(np.repeat(settings.step_sizes, len(seeds)), len(settings.ps))
    drawn = np.stack([stream(s, "start and third").standard_normal((2, dimension, dimension)) for s in seeds])
    start, third = np.moveaxis(np.tile(drawn, (len(settings.ps) * sizes, 1, 1, 1)), 1, 0)
    history = descend(
        problems,
        ps,
        steps=settings.short_steps,
        step_size=step_size.tolist(),
        start=start,
        record_at=range(settings.short_steps + 1),
        device=device,
        progress=progress,
    )
    path = history.records["key_query"]
    losses, gradients = _evaluated(path, problems)
    before, after, pair = path[:-1], path[1:], (losses[:-1], losses[1:])
    third = np.broadcast_to(third, before.shape)
    error = one_step.three_point_step_error(before, after, third, pair, gradients[:-1], step_size, ps)
    # Once attention is saturated a step is smaller than the rounding of what it moves: nothing to check there.
    moved = one_step.step_length(before, after, ps) > RESOLVED * mirror.entrywise_norm(before, ps) ** (ps - 1)
    slacks = {
        "lemma_4": one_step.upper_growth_slack(before, after, ps),
        "lemma_22": one_step.growth_slack(before, after, ps),
        "lemma_24": one_step.loss_slack(before, after, pair, step_size, ps),
    }
    found = {
        **{name: np.where(moved, slack, np.inf).min(axis=0) for name, slack in slacks.items()},
        "error_23": np.abs(error).max(axis=0),
        "rise": np.diff(losses, axis=0).max(axis=0),
    }
    shape = (len(settings.ps), sizes, len(seeds))
    return {name: np.moveaxis(values.reshape(shape), 2, 0) for name, values in found.items()}


def _long(
    settings: Settings, seeds: tuple[int, ...], device: torch.device, progress: Progress | None
) -> dict[str, np.ndarray]:
    """Pairs of neighbouring steps of long runs from zero, members ordered by exponent, seed."""
    one = draw_problems(seeds)
    problems, ps = joined([one] * len(settings.long_ps)), np.repeat(settings.long_ps, len(seeds))
    history = descend(
        problems,
        ps,
        steps=settings.long_steps,
        step_size=SMALL,
        record_at=settings.record_at,
        device=device,
        progress=progress,
    )
    path = history.records["key_query"]
    losses, _ = _evaluated(path, problems)
    # The first step starts at zero, which has no direction.
    pairs = np.flatnonzero(np.diff(history.steps) == 1)[1:]
    before, after = path[pairs], path[pairs + 1]
    slacks = (
        one_step.upper_growth_slack(before, after, ps),
        one_step.growth_slack(before, after, ps),
        one_step.loss_slack(before, after, (losses[pairs], losses[pairs + 1]), np.array(SMALL), ps),
    )
    attended = attention_weights(torch.tensor(path[-1]), Batch.of(problems)).numpy().argmax(axis=-1)
    found = {
        "norm": mirror.entrywise_norm(path, ps).T,
        "loss": losses.T,
        "long_slack": np.stack([slack.min(axis=0) for slack in slacks], axis=-1),
        "target_norm": attention_svm(problems.tokens, problems.queries, attended, ps).norm,
    }
    shape = (len(settings.long_ps), len(seeds))
    return {name: np.swapaxes(v.reshape(*shape, *v.shape[1:]), 0, 1) for name, v in found.items()}


def _evaluated(path: np.ndarray, problems: Problems) -> tuple[np.ndarray, np.ndarray]:
    """Losses ``(records, members)`` and gradients ``(records, members, d, d)``."""
    batch = Batch.of(problems)
    found = [loss_and_gradient({"key_query": to_tensor(w, dtype=torch.float64)}, batch) for w in path]
    return np.stack([loss.numpy() for loss, _ in found]), np.stack([g["key_query"].numpy() for _, g in found])
