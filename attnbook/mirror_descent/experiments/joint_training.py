r"""Where do matrix and head go when both are trained, and what if some samples are off the head's margin?

Both blocks start at zero and take scale-free steps of their own. The head's steps may be several times as long: then
the ratio $\kappa$ of the two relative norms settles at several times its value.
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
from attnbook.core.results import Clock, Measurement, Result, extremes_over_seeds, over_seeds
from attnbook.core.resuming import by_seeds, check_seeds, concatenate
from attnbook.core.runtime import Progress
from attnbook.mirror_descent.data import Problems, draw_problems, joined
from attnbook.mirror_descent.experiments import joint_probes
from attnbook.mirror_descent.experiments.joint_comparing import compared_jointly
from attnbook.mirror_descent.joint import descend_jointly

__all__ = ["JointTraining", "Settings", "run"]

# Exponents of the claims; runs with smaller ones are judged by claims of their own.
SMALLEST = 1.5
NEEDED = (1.75, 2.0, 3.0)
# Ratio from which it counts as large; exponent of the scan; cosine below which a target counts as missed.
LARGE, SCANNED, MISSED = 4.0, 2.0, 0.99
# Only so fast a head makes right-hand sides negative in more than a few runs.
FASTEST = 64.0


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment; the sizes of the problems and the steps are this book's.

    Attributes:
        ps: Exponents, increasing.
        head_paces: How many times as long the head's steps are as the matrix's, increasing from 1.
        n_samples: Samples per problem.
        n_tokens: Tokens per sample.
        dimension: Dimension of a token; at least as many as samples, so that any tokens can be classified.
        step_size: Step size of the matrix's scale-free steps, the same for every exponent.
        steps: Steps of each run.
        records: How many steps are recorded, about.
        scan: Ratios at which the last matrices are compared with the solution for that ratio.
        seeds: One problem per seed.
        chunk: Seeds trained together as one program.
    """

    ps: tuple[float, ...] = NEEDED
    head_paces: tuple[float, ...] = (1.0, 4.0, 16.0)
    n_samples: int = 5
    n_tokens: int = 4
    dimension: int = 12
    step_size: float = 0.1
    steps: int = 4000
    records: int = 8
    scan: tuple[float, ...] = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 16.0, 32.0)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4, 5)
    chunk: int = 6

    def __post_init__(self) -> None:
        if set(NEEDED) - set(self.ps) or list(self.ps) != sorted(set(self.ps)) or self.ps[0] <= 1:
            raise ValueError(f"ps: expected increasing numbers above 1 with {NEEDED} among them, got {self.ps}")
        if self.head_paces[0] != 1 or list(self.head_paces) != sorted(set(self.head_paces)):
            raise ValueError(f"head_paces: expected increasing numbers from 1 on, got {self.head_paces}")
        if self.n_samples > self.dimension:
            raise ValueError(f"dimension: expected at least n_samples = {self.n_samples}, got {self.dimension}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(
            n_samples=3, n_tokens=3, dimension=5, steps=40, records=4, seeds=(0, 1), chunk=1, head_paces=(1.0, 4.0)
        )

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return more seeds, exponents, paces and steps; the paper's own settings are not known."""
        return cls(
            ps=(1.25, SMALLEST, *NEEDED),
            head_paces=(1.0, 4.0, 16.0, 64.0),
            steps=20_000,
            records=8,
            seeds=tuple(range(20)),
            chunk=20,
        )

    @property
    def record_at(self) -> tuple[int, ...]:
        """Steps that are recorded, from a fiftieth of the run on; at the first the matrix is zero."""
        first = max(10, self.steps // 50)
        return tuple(s for s in log_spaced(self.steps, 2 * self.records, also=(first,)) if s >= first)


@dataclass(frozen=True)
class JointTraining(Result):
    r"""Directions and norms along all runs, ``(seeds, paces, ps, records)`` each.

    Attributes:
        steps: Steps at which they were recorded, ``(records,)``.
        cosine_head: Cosine of $v$ and the smallest head $v_{mm}$ for the tokens attended then.
        cosine_plain: Cosine of $W$ and the plain attention SVM of these tokens.
        cosine_corrected: Cosine of $W$ and $W_\kappa$ at the current $\kappa$.
        cosine_raw: The same for right-hand sides that may fall below zero everywhere.
        cosine_limit: Cosine of $W$ and the solution for infinite $\kappa$.
        kappa: The self-consistent ratio $\kappa$.
        head_norm: $\|v\|_p/\|v_{mm}\|_p$.
        relative_norm: $\|W\|_{p,p}/\|W_\kappa\|_{p,p}$.
        all_support: Whether every sample has head margin one.
        largest_margin: The largest head margin.
        unchanged: Whether the tokens are those attended last.
        scanned: Cosine of the last matrix and the solution for each ratio of ``settings.scan``, $p=2$,
            ``(seeds, paces, ratios)``.
        gaps: Smallest gap of each sample over the relative norm of the last matrix, $p=2$, ``(seeds, paces, samples)``.
        margins: Head margins of the last tokens, $p=2$, ``(seeds, paces, samples)``.
        floored: Whether some other token of the sample has head margin below one, $p=2$, ``(seeds, paces, samples)``.
        change: Change of the label margin per share mixed in, measured, at the last tokens, first pace,
            ``(seeds, ps, samples, tokens - 1)``.
        predicted_change: The same by the formula.
        on_margin: Whether a sample has head margin one, first pace, ``(seeds, ps, samples)``.
    """

    experiment: ClassVar[str] = "mirror_descent.joint_training"
    digits: ClassVar[int | None] = None
    settings_type: ClassVar[type] = Settings

    steps: Float[np.ndarray, " records"]
    cosine_head: Float[np.ndarray, "seeds paces ps records"]
    cosine_plain: Float[np.ndarray, "seeds paces ps records"]
    cosine_corrected: Float[np.ndarray, "seeds paces ps records"]
    cosine_raw: Float[np.ndarray, "seeds paces ps records"]
    cosine_limit: Float[np.ndarray, "seeds paces ps records"]
    kappa: Float[np.ndarray, "seeds paces ps records"]
    head_norm: Float[np.ndarray, "seeds paces ps records"]
    relative_norm: Float[np.ndarray, "seeds paces ps records"]
    all_support: Float[np.ndarray, "seeds paces ps records"]
    largest_margin: Float[np.ndarray, "seeds paces ps records"]
    unchanged: Float[np.ndarray, "seeds paces ps records"]
    scanned: Float[np.ndarray, "seeds paces ratios"]
    gaps: Float[np.ndarray, "seeds paces samples"]
    margins: Float[np.ndarray, "seeds paces samples"]
    floored: Float[np.ndarray, "seeds paces samples"]
    change: Float[np.ndarray, "seeds ps samples others"]
    predicted_change: Float[np.ndarray, "seeds ps samples others"]
    on_margin: Float[np.ndarray, "seeds ps samples"]

    def judged(self) -> list[int]:
        """Return the places of the exponents that the claims on directions name."""
        return [at for at, p in enumerate(self.settings.ps) if p >= SMALLEST]

    def off_margin(self) -> np.ndarray:
        """Return which runs end with a sample off the head's margin, ``(seeds, paces, ps)``."""
        return np.asarray(self.all_support[..., -1] == 0)

    def measurements(self) -> dict[str, Measurement]:
        """Return what was measured at the end of the runs, by claim id."""
        judged, off = self.judged(), self.off_margin()
        head, plain, fitted = (
            a[:, :, judged, -1] for a in (self.cosine_head, self.cosine_plain, self.cosine_corrected)
        )
        off = off[:, :, judged]
        first, large = off[:, 0], off & (self.kappa[:, :, judged, -1] >= LARGE)
        found = {
            "MD-joint-head": _smallest("min_cosine_head", head[:, 0], np.ones_like(first)),
            "MD-joint": _smallest("min_cosine_key_query", plain[:, 0], ~first),
            "MD-joint-plain": _compared(plain, fitted, off),
            "MD-joint+": _smallest("min_cosine_corrected", fitted[:, 0], first),
            "MD-joint+-large": _smallest("min_cosine_corrected", fitted, large),
        }
        if self.settings.head_paces[-1] >= FASTEST:
            raw = self.cosine_raw[:, :, judged, -1]
            missed = Measurement({"runs_missed": float((raw[large] < MISSED).sum())})
            found["MD-joint-floor"] = _both(_smallest("min_cosine_raw", raw, large), found["MD-joint+-large"], missed)
        if self.settings.ps[0] < SMALLEST:
            found["MD-joint-p1.25"] = over_seeds(
                cosine_head=self.cosine_head[:, 0, 0, -1], cosine_corrected=self.cosine_corrected[:, 0, 0, -1]
            )
        return found | self._mixing()

    def _mixing(self) -> dict[str, Measurement]:
        """What mixing in another token does to the label margin, on and off the head's margin."""
        size = np.abs(self.predicted_change).max(axis=(2, 3), keepdims=True)
        error = np.abs(self.change - self.predicted_change) / size
        off = np.where(self.on_margin[..., None] == 0, np.abs(self.change) / size, 0.0)
        return {"MD-joint-mixing": extremes_over_seeds(max_relative_error=error, max_change_off_margin=off)}


def _smallest(name: str, values: np.ndarray, counts: np.ndarray) -> Measurement:
    """The smallest value among the runs that count, its range over seeds, and how many seeds have such a run."""
    kept = np.where(counts, values, np.inf).reshape(len(values), -1).min(axis=1)
    kept = kept[np.isfinite(kept)]
    if not len(kept):
        return Measurement({name: float("inf"), "runs": 0.0}, n_seeds=len(values))
    spread = {name: (float(kept.min()), float(kept.max()))}
    return Measurement({name: float(kept.min()), "runs": float(np.sum(counts))}, spread, len(kept))


def _compared(plain: np.ndarray, fitted: np.ndarray, counts: np.ndarray) -> Measurement:
    """How often runs are nearer to the corrected target than to the plain one, and how much, among those that count."""
    names = ("share_nearer_to_corrected", "distance_ratio")
    if not counts.any():
        return Measurement({**dict.fromkeys(names, 0.0), "runs": 0.0}, n_seeds=len(counts))
    ratio = (1 - plain) / (1 - fitted)
    each = [float(np.median(own[kept])) for own, kept in zip(ratio, counts, strict=True) if kept.any()]
    values = (float((fitted > plain)[counts].mean()), float(np.median(ratio[counts])))
    spread = {"distance_ratio": (min(each), max(each))}
    return Measurement({**dict(zip(names, values, strict=True)), "runs": float(counts.sum())}, spread, len(each))


def _both(*parts: Measurement) -> Measurement:
    values = {name: value for part in parts for name, value in part.values.items()}
    return Measurement(values, {n: s for part in parts for n, s in part.spread.items()}, parts[0].n_seeds)


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> JointTraining:
    """Train matrix and head of every seed with every exponent and pace, and compare them with their targets.

    Args:
        settings: Sizes, exponents, paces, seeds and steps.
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
        problems, ps, history = _trained(settings, seeds, where, inner)
        with runtime.threads(1):
            path = history.records["key_query"], history.records["decoder"]
            found = compared_jointly(*path, problems, ps)
            shape = (len(settings.ps), len(settings.head_paces), len(seeds))
            arrays = {name: np.moveaxis(a.reshape(*shape, -1), (2, 1), (0, 1)) for name, a in found.items()}
            return arrays | _probed(settings, path[0][-1], found["relative_norm"][:, -1], problems, ps)

    parts = by_seeds(settings, train, clock=clock, workdir=workdir, progress=progress)
    steps = np.array(settings.record_at, dtype=np.float64)
    return JointTraining(settings=settings, provenance=clock.provenance(where), steps=steps, **concatenate(parts))


def _trained(
    settings: Settings, seeds: tuple[int, ...], device: torch.device, progress: Progress | None
) -> tuple[Problems, np.ndarray, History]:
    """Problems, exponents and runs of some seeds; members are ordered by exponent, pace and seed."""
    drawn = draw_problems(seeds, n_samples=settings.n_samples, n_tokens=settings.n_tokens, dimension=settings.dimension)
    problems = joined([drawn] * (len(settings.ps) * len(settings.head_paces)))
    ps = np.repeat(settings.ps, len(settings.head_paces) * len(seeds))
    history = descend_jointly(
        problems,
        ps,
        steps=settings.steps,
        step_size=settings.step_size,
        head_pace=np.tile(np.repeat(settings.head_paces, len(seeds)), len(settings.ps)).tolist(),
        record_at=settings.record_at,
        device=device,
        progress=progress,
    )
    return problems, ps, history


def _probed(
    settings: Settings, key_query: np.ndarray, norms: np.ndarray, problems: Problems, ps: np.ndarray
) -> dict[str, np.ndarray]:
    """What is asked of the last matrices only, seeds first."""
    exponents, paces = len(settings.ps), len(settings.head_paces)
    members = np.arange(len(ps)).reshape(exponents, paces, -1)
    one = members[settings.ps.index(SCANNED)].ravel()
    scanned = joint_probes.scan(key_query[one], joint_probes.part(problems, one), norms[one], settings.scan, SCANNED)
    first = members[:, 0].ravel()
    mixed = joint_probes.mix(key_query[first], joint_probes.part(problems, first), ps[first])
    return {name: np.swapaxes(a.reshape(paces, -1, a.shape[1]), 0, 1) for name, a in scanned.items()} | {
        name: np.swapaxes(a.reshape(exponents, -1, *a.shape[1:]), 0, 1) for name, a in mixed.items()
    }
