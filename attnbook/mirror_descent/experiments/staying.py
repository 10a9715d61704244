r"""Do runs that start in a cone stay in one? Lemma 28 over depths and norms of the start, and Lemma 27 step by step.

All runs start beside the max-margin solution of the best tokens, moved where one gap of a selected token shrinks most,
and take scale-free steps of equal length in the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core import runtime
from attnbook.core.ensemble import History, log_spaced
from attnbook.core.results import Clock, Measurement, Result, extremes_over_seeds
from attnbook.core.resuming import by_seeds, check_seeds, concatenate, share
from attnbook.core.rng import to_tensor
from attnbook.core.runtime import Progress
from attnbook.mirror_descent import mirror, one_step
from attnbook.mirror_descent.attention import Batch, attention_weights, descend, excess_loss
from attnbook.mirror_descent.data import Problems
from attnbook.mirror_descent.experiments.starting import Started, started

__all__ = ["Settings", "Staying", "run"]

# Starts that the claims name.
NEEDLE, DEEP, OUTSIDE, CLOSE, FAR = 0.001, (0.01, 0.05), 0.15, 5.0, 20.0


@dataclass(frozen=True)
class Settings:
    r"""Sizes of the experiment; all are this book's.

    Attributes:
        ps: Exponents, increasing.
        divergences: Divergences $\mu'$ of the starts.
        radii: Relative norms of the starts.
        step: How far a step moves the weights, the same for every exponent.
        steps: Steps of each run.
        records: How many steps are recorded, about.
        close_steps: Steps of the runs for Lemma 27, all recorded.
        close_step: Lengths of their steps.
        slack: $\pi$ of Lemma 27 times the relative norm.
        seeds: One problem per seed.
        chunk: Seeds trained together as one program.
    """

    ps: tuple[float, ...] = (1.5, 1.75, 2.0, 3.0)
    divergences: tuple[float, ...] = (0.001, 0.01, 0.05, 0.15, 0.25)
    radii: tuple[float, ...] = (2.0, 5.0, 20.0)
    step: float = 0.1
    steps: int = 1500
    records: int = 40
    close_steps: int = 120
    close_step: tuple[float, ...] = (0.01, 0.1)
    slack: float = 0.3
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    chunk: int = 5

    def __post_init__(self) -> None:
        if list(self.ps) != sorted(set(self.ps)) or self.ps[0] <= 1:
            raise ValueError(f"ps: expected increasing numbers above 1, got {self.ps}")
        needed = {NEEDLE, *DEEP, OUTSIDE}
        if needed - set(self.divergences):
            raise ValueError(f"divergences: expected {sorted(needed)} among them, got {self.divergences}")
        if {CLOSE, FAR} - set(self.radii):
            raise ValueError(f"radii: expected {CLOSE} and {FAR} among them, got {self.radii}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(ps=(1.5, 3.0), radii=(CLOSE, FAR), steps=6, records=4, close_steps=3, seeds=(0, 1), chunk=1)

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return more problems and longer runs; the paper has a proof in their place."""
        return cls(steps=6000, close_steps=600, seeds=tuple(range(20)))

    @property
    def record_at(self) -> tuple[int, ...]:
        """Steps at which divergences are recorded."""
        return log_spaced(self.steps, self.records)


@dataclass(frozen=True)
class Staying(Result):
    r"""Divergences along runs that start in a cone.

    Attributes:
        steps: Steps at which divergences were recorded, ``(records,)``.
        divergence: $D_k$ to the max-margin direction of the best tokens,
            ``(seeds, ps, divergences, radii, records)``.
        kept: Whether the run attends to the best tokens at the end, ``(seeds, ps, divergences, radii)``.
        close_slack: Smallest slack of Lemma 27 over the steps, with $\pi$ = ``slack`` over the relative norm,
            ``(seeds, ps, close_step)``.
        needed: Largest $\pi$ times the relative norm that a step needs, ``(seeds, ps, close_step)``.
    """

    experiment: ClassVar[str] = "mirror_descent.staying"
    settings_type: ClassVar[type] = Settings

    steps: Float[np.ndarray, " records"]
    divergence: Float[np.ndarray, "seeds ps divergences radii records"]
    kept: Float[np.ndarray, "seeds ps divergences radii"]
    close_slack: Float[np.ndarray, "seeds ps close_step"]
    needed: Float[np.ndarray, "seeds ps close_step"]

    def place(self, divergence: float, radius: float) -> tuple[int, int]:
        """Return the place of a start."""
        return self.settings.divergences.index(divergence), self.settings.radii.index(radius)

    def relative(self, divergence: float, radius: float) -> Float[np.ndarray, "seeds ps records"]:
        """Return the divergences of the runs from one kind of start, over the initial one."""
        first, second = self.place(divergence, radius)
        found = self.divergence[:, :, first, second]
        return found / found[..., :1]

    def kept_up_to(self) -> float:
        """Return the largest tested divergence such that all runs from there, and from closer, kept their tokens."""
        kept = np.logical_and.accumulate(self.kept.all(axis=(0, 1, 3)))
        return float(np.array(self.settings.divergences)[kept].max(initial=0.0))

    def measurements(self) -> dict[str, Measurement]:
        """Return what was measured, by claim id."""
        starts = [(divergence, radius) for divergence in DEEP for radius in (CLOSE, FAR)]
        deep = np.stack([self.relative(*start) for start in starts], axis=1)
        kept = np.stack([self.kept[:, :, first, second] for first, second in (self.place(*s) for s in starts)], axis=1)
        outside = self.kept[:, :, self.settings.divergences.index(OUTSIDE)]
        used = [self.settings.radii.index(radius) for radius in (CLOSE, FAR)]
        return {
            "MD-L27": extremes_over_seeds(max_violation=-self.close_slack, largest_slack_needed=self.needed),
            "MD-L27-constant": extremes_over_seeds(largest_slack_needed=self.needed),
            "MD-L28": extremes_over_seeds(max_divergence_ratio=deep),
            "MD-L28-far": extremes_over_seeds(max_divergence_ratio=self.relative(DEEP[0], FAR)),
            "MD-L28-leaves": extremes_over_seeds(max_divergence_ratio=self.relative(DEEP[0], CLOSE)),
            "MD-L28-needle": extremes_over_seeds(max_divergence_ratio=self.relative(NEEDLE, CLOSE)),
            "MD-L28-tokens": _mean(share_tokens_kept=kept),
            "MD-L28-wide": _mean(share_tokens_kept=outside[..., used]),
            "MD-L28-end": _mean(mean_final_to_initial_divergence=deep[..., -1]),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> Staying:
    """Train from starts at several depths of the cone and at several norms, and check Lemma 27 along short runs.

    Args:
        settings: Sizes, exponents and starts.
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
        starts = [(mu, radius) for mu in settings.divergences for radius in settings.radii]
        runs, history = _runs(settings, seeds, starts, where, share(inner, 0, 2))
        shape = (len(settings.ps), len(settings.divergences), len(settings.radii), len(seeds))
        with runtime.threads(1):
            path = history.records["key_query"]
            attended = attention_weights(torch.tensor(path[-1]), Batch.of(runs.problems)).numpy().argmax(axis=-1)
            kept = (attended == runs.problems.best_tokens).all(axis=1).astype(float)
            found = {"divergence": runs.divergence(path), "kept": kept}
        arrays = {n: np.moveaxis(a.reshape(*shape, *a.shape[1:]), 3, 0) for n, a in found.items()}
        return arrays | _close(settings, seeds, where, share(inner, 1, 2))

    parts = by_seeds(settings, train, clock=clock, workdir=workdir, progress=progress)
    steps = np.array(settings.record_at, dtype=np.float64)
    return Staying(settings=settings, provenance=clock.provenance(where), steps=steps, **concatenate(parts))


def _runs(
    settings: Settings,
    seeds: tuple[int, ...],
    starts: list[tuple[float, float]],
    device: torch.device,
    progress: Progress | None,
) -> tuple[Started, History]:
    runs = started(settings.ps, seeds, starts)
    history = descend(
        runs.problems,
        runs.ps,
        steps=settings.steps,
        step_size=(settings.step * (runs.ps - 1)).tolist(),
        normalized=True,
        start=runs.start,
        record_at=settings.record_at,
        device=device,
        progress=progress,
    )
    return runs, history


def _close(
    settings: Settings, seeds: tuple[int, ...], device: torch.device, progress: Progress | None
) -> dict[str, np.ndarray]:
    """Lemma 27 at every step of runs that start deep in the cone, for several lengths of a step."""
    lengths = settings.close_step
    runs = started(settings.ps, seeds, [(DEEP[0], CLOSE)] * len(lengths))
    step = np.tile(np.repeat(lengths, len(seeds)), len(settings.ps))
    history = descend(
        runs.problems,
        runs.ps,
        steps=settings.close_steps,
        step_size=(step * (runs.ps - 1)).tolist(),
        normalized=True,
        start=runs.start,
        record_at=range(settings.close_steps + 1),
        log_time=True,
        device=device,
        progress=progress,
    )
    with runtime.threads(1):
        path, step_size = history.records["key_query"], np.exp(history.records["log_step_size"][:-1])
        losses = _excess(path, runs.problems)
        target = np.broadcast_to(mirror.normalised(runs.weight, runs.ps), path[:-1].shape)
        pair = losses[:-1], losses[1:]
        relative = mirror.entrywise_norm(path[:-1], runs.ps) / runs.norm
        parts = path[:-1], path[1:], target, pair, step_size
        found = one_step.cone_slack(*parts, settings.slack / relative, runs.ps).min(axis=0)
        needed = (one_step.needed_slack(*parts, runs.ps) * relative).max(axis=0)
    shape = (len(settings.ps), len(lengths), len(seeds))
    return {
        name: np.moveaxis(values.reshape(shape), 2, 0) for name, values in (("close_slack", found), ("needed", needed))
    }


def _excess(path: np.ndarray, problems: Problems) -> Float[np.ndarray, "records members"]:
    """Loss above that of attending to the best tokens alone."""
    batch, best = Batch.of(problems), torch.tensor(problems.best_tokens)
    return np.stack([excess_loss(to_tensor(w, dtype=torch.float64), batch, best).numpy() for w in path])


def _mean(**samples: np.ndarray) -> Measurement:
    """The mean over all runs, with the range over seeds of each seed's own."""
    per_seed = {name: values.reshape(len(values), -1).mean(axis=1) for name, values in samples.items()}
    return Measurement(
        {name: float(values.mean()) for name, values in per_seed.items()},
        {name: (float(values.min()), float(values.max())) for name, values in per_seed.items()},
        len(next(iter(per_seed.values()))),
    )
