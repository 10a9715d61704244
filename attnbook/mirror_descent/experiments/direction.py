r"""Which direction do the iterates take, which tokens do they select, how sparse do they become?

All runs start at zero and take scale-free steps, which reach norms that plain steps would not reach in any lifetime.
Queries are independent of the tokens, as in an early state of the first author's code; the same runs with the first
token as the query are kept beside them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self, get_args

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core import runtime
from attnbook.core.ensemble import log_spaced
from attnbook.core.results import Clock, Measurement, Result, over_seeds
from attnbook.core.resuming import by_seeds, check_seeds, concatenate
from attnbook.core.runtime import Progress
from attnbook.mirror_descent.attention import descend
from attnbook.mirror_descent.data import Queries, draw_problems, joined
from attnbook.mirror_descent.experiments.comparing import compared

__all__ = ["CROSSED", "NEEDED", "QUERIES", "Direction", "Settings", "run"]

QUERIES: tuple[Queries, ...] = get_args(Queries)
CROSSED = (1.75, 2.0, 3.0)
# Exponents that the claims name, and the smallest one of the claims on tokens; below it a trial had failed.
NEEDED = (1.1, 1.25, 1.5, *CROSSED)
SMALLEST = 1.25


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment.

    Attributes:
        ps: Exponents, increasing.
        n_samples: Samples per problem; 6 in an early state of the first author's code.
        n_tokens: Tokens per sample; 8 in the same source.
        dimension: Dimension of a token; 10 in the same source.
        step_size: Step size of the scale-free steps, the same for every exponent; far from zero such a step moves the
            weights by about ``step_size / (p - 1)``.
        steps: Steps in all.
        read_at: Step at which the direction is read; the paper's number of iterations is not known.
        records: How many steps are recorded, about.
        seeds: One problem per seed.
        chunk: Seeds trained together as one program.
    """

    ps: tuple[float, ...] = NEEDED
    n_samples: int = 6
    n_tokens: int = 8
    dimension: int = 10
    step_size: float = 0.2
    steps: int = 4000
    read_at: int = 4000
    records: int = 24
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    chunk: int = 5

    def __post_init__(self) -> None:
        missing = [p for p in NEEDED if p not in self.ps]
        if missing or list(self.ps) != sorted(set(self.ps)) or self.ps[0] <= 1:
            raise ValueError(f"ps: expected increasing numbers above 1 with {NEEDED} among them, got {self.ps}")
        if not 1 <= self.read_at <= self.steps:
            raise ValueError(f"read_at: expected between 1 and steps = {self.steps}, got {self.read_at}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(n_samples=2, n_tokens=3, dimension=5, steps=20, read_at=10, records=4, seeds=(0, 1), chunk=1)

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return more seeds, more exponents and three times the steps; the paper's own settings are not known."""
        return cls(ps=(1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0), steps=12_000, seeds=tuple(range(20)))

    @property
    def record_at(self) -> tuple[int, ...]:
        """Steps at which the matrices are recorded."""
        return log_spaced(self.steps, self.records, also=(self.read_at,))[1:]


@dataclass(frozen=True)
class Direction(Result):
    r"""Directions, tokens and sparsity of all runs; the first axis counts the two kinds of query.

    Attributes:
        steps: Steps at which directions were recorded, ``(records,)``.
        divergence: $D_\psi(\bar W_{mm},\bar W(k))$ to the max-margin solution of the tokens attended last,
            ``(queries, seeds, ps, records)``.
        cosine: Cosine of the same two matrices, ``(queries, seeds, ps, records)``.
        relative_norm: $\|W(k)\|_{p,p}/\|W_{mm}\|_{p,p}$, ``(queries, seeds, ps, records)``.
        cross: Divergence, in the geometry of the target, of each run to the max-margin solution of its tokens for each
            target's exponent, ``(queries, seeds, ps of the run, ps of the target)``.
        cross_cosine: Cosine of the same matrices, ``(queries, seeds, ps of the run, ps of the target)``.
        same_tokens: Whether a run selects the tokens of another, ``(queries, seeds, ps, ps)``.
        locally_optimal: Whether the tokens attended last satisfy Definition 3, ``(queries, seeds, ps)``.
        globally_optimal: Whether they all have the highest score, ``(queries, seeds, ps)``.
        unchanged: Whether the tokens attended at a recorded step are those attended last,
            ``(queries, seeds, ps, records)``.
        least_attention: Smallest attention that a sample pays to its token at the end, ``(queries, seeds, ps)``.
        effective_dimension: Of the last matrix and of the max-margin solution, ``(queries, seeds, ps, 2)``.
        share: Share of entries above one per cent of the largest, of the same two, ``(queries, seeds, ps, 2)``.
        weights: Last matrices of the first seed, independent queries, each over its largest entry,
            ``(ps, dimension, dimension)``.
    """

    experiment: ClassVar[str] = "mirror_descent.direction"
    settings_type: ClassVar[type] = Settings

    steps: Float[np.ndarray, " records"]
    divergence: Float[np.ndarray, "queries seeds ps records"]
    cosine: Float[np.ndarray, "queries seeds ps records"]
    relative_norm: Float[np.ndarray, "queries seeds ps records"]
    cross: Float[np.ndarray, "queries seeds ps ps"]
    cross_cosine: Float[np.ndarray, "queries seeds ps ps"]
    same_tokens: Float[np.ndarray, "queries seeds ps ps"]
    locally_optimal: Float[np.ndarray, "queries seeds ps"]
    globally_optimal: Float[np.ndarray, "queries seeds ps"]
    unchanged: Float[np.ndarray, "queries seeds ps records"]
    least_attention: Float[np.ndarray, "queries seeds ps"]
    effective_dimension: Float[np.ndarray, "queries seeds ps 2"]
    share: Float[np.ndarray, "queries seeds ps 2"]
    weights: Float[np.ndarray, "ps dimension dimension"]

    def of(self, p: float) -> int:
        """Return the place of an exponent."""
        return self.settings.ps.index(p)

    def settled_at(self) -> Float[np.ndarray, "queries seeds ps"]:
        """Return the first recorded step from which on a run attends to its last tokens."""
        since = np.logical_and.accumulate(self.unchanged[..., ::-1] == 1, axis=-1).sum(axis=-1)
        return self.steps[len(self.steps) - since]

    def own_is_nearest(self) -> Float[np.ndarray, "seeds ps"]:
        """Return whether, of all runs, the one with the target's exponent has the smallest divergence to the target."""
        return (self.cross[0].argmin(axis=1) == np.arange(len(self.settings.ps))).astype(float)

    def own_has_largest_cosine(self) -> Float[np.ndarray, "seeds ps"]:
        """Return whether, of all targets, a run has the largest cosine with the one of its own exponent."""
        return (self.cross_cosine[0].argmax(axis=2) == np.arange(len(self.settings.ps))).astype(float)

    def own_over_smallest_other(self, p: float, among: tuple[float, ...] = CROSSED) -> Float[np.ndarray, " seeds"]:
        """Return the last divergence of the run with this exponent to its target over the smallest of other runs."""
        to_target = self.cross[0, :, :, self.of(p)]
        others = [self.of(other) for other in among if other != p]
        return to_target[:, self.of(p)] / to_target[:, others].min(axis=1)

    def measurements(self) -> dict[str, Measurement]:
        """Return what was measured with independent queries, by claim id."""
        found = self._directions() | self._tokens() | self._sparsity()
        for p in CROSSED:
            ratio = self.own_over_smallest_other(p)
            found[f"MD-cross-p{p:g}"] = Measurement(
                {
                    "max_own_divergence_over_smallest_other": float(ratio.max()),
                    "own_divergence_over_smallest_other": float(np.median(ratio)),
                },
                {"own_divergence_over_smallest_other": (float(ratio.min()), float(ratio.max()))},
                len(ratio),
            )
        if self.settings.steps > self.settings.read_at:
            found |= self._longer()
        return found

    def _directions(self) -> dict[str, Measurement]:
        at = int(np.flatnonzero(self.steps == self.settings.read_at)[0])
        found = {}
        for p in (1.25, 1.5, *CROSSED):
            divergence, cosine = self.divergence[0, :, self.of(p)], self.cosine[0, :, self.of(p), at]
            values = {"divergence": divergence[:, at], "cosine": cosine, "divergence_at_end": divergence[:, -1]}
            found[f"MD-dir-p{p:g}"] = over_seeds(**values)
        # The threshold on the divergence alone would let other exponents pass.
        worst = float(self.own_over_smallest_other(SMALLEST, self.settings.ps).max())
        name = f"MD-dir-p{SMALLEST:g}"
        judged = {**found[name].values, "max_own_over_smallest_other_at_end": worst}
        return found | {name: replace(found[name], values=judged)}

    def _tokens(self) -> dict[str, Measurement]:
        asked = np.array(self.settings.ps) >= SMALLEST
        local = self.locally_optimal[0][:, asked].mean(axis=1)
        best = self.globally_optimal[0][:, asked].mean(axis=1)
        return {
            "MD-local": _mean_share("share_locally_optimal", local),
            "MD-local-global": _mean_share("share_globally_optimal", best),
        }

    def _sparsity(self) -> dict[str, Measurement]:
        upto = [i for i, p in enumerate(self.settings.ps) if p <= 3]
        rising = (np.diff(self.effective_dimension[0][:, upto, 0], axis=1) > 0).all(axis=1)
        shares = {f"share_p{p:g}".replace(".", "_"): self.share[0, :, self.of(p), 0] for p in (1.1, 1.5, 3.0)}
        measures = (("ratio", self.effective_dimension), ("share_ratio", self.share))
        ratios = {
            f"{name}_p{p:g}".replace(".", "_"): density[0, :, self.of(p), 0] / density[0, :, self.of(p), 1]
            for name, density in measures
            for p in (1.1, 1.25, 2.0)
        }
        return {
            "MD-sparse": Measurement({"share_strictly_increasing": float(rising.mean())}, n_seeds=len(rising)),
            "MD-sparse-share": over_seeds(**shares),
            "MD-sparse-own": over_seeds(**ratios),
        }

    def _longer(self) -> dict[str, Measurement]:
        """What takes more steps than the others: the smallest exponent, and the table of all exponents."""
        at = int(np.flatnonzero(self.steps == self.settings.read_at)[0])
        small, n_seeds = self.of(1.1), len(self.settings.seeds)
        first, last = (self.divergence[0, :, small, i] for i in (at, -1))
        by_cosine, nearest = self.own_has_largest_cosine(), self.own_is_nearest()
        elsewhere = self.locally_optimal[0, :, small] == 0
        settled = self.settled_at()[0, :, small] / self.settings.steps
        tokens = {
            "share_locally_optimal": float(1 - elsewhere.mean()),
            "max_of_others_settled_at": float(settled[elsewhere].max(initial=0.0)),
            "min_of_others_attention": float(self.least_attention[0, elsewhere, small].min(initial=1.0)),
        }
        asked = np.array(self.settings.ps) >= SMALLEST
        cosines = {"share_own_nearest": float(by_cosine.mean()), "min_share_of_one_p": float(by_cosine.mean(0).min())}
        return {
            "MD-dir-p1.1": over_seeds(
                divergence_when_read=first,
                divergence_at_end=last,
                times_smaller_at_end=first / last,
                cosine_at_end=self.cosine[0, :, small, -1],
            ),
            "MD-local-p1.1": Measurement(tokens, n_seeds=n_seeds),
            "MD-cross-nearest": Measurement(cosines, n_seeds=n_seeds),
            "MD-cross-run": Measurement(
                {"min_share_of_one_p": float(nearest[:, asked].mean(0).min())}, n_seeds=n_seeds
            ),
            "MD-cross-run-p1.1": Measurement({"share_own_nearest": float(nearest[:, small].mean())}, n_seeds=n_seeds),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> Direction:
    """Train every seed with every exponent and both kinds of query, and solve the attention SVM of what they select.

    Args:
        settings: Sizes, exponents, seeds and steps.
        device: Where to train; default the first of cuda, mps and cpu.
        progress: Told (steps done, steps in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available, or the tokens that a run attends to cannot be selected.
        FloatingPointError: If a run diverges.
    """
    clock, where = Clock(), runtime.device(device)

    def train(seeds: tuple[int, ...], inner: Progress | None) -> dict[str, np.ndarray]:
        sizes = {"n_samples": settings.n_samples, "n_tokens": settings.n_tokens, "dimension": settings.dimension}
        one = joined([draw_problems(seeds, queries=queries, **sizes) for queries in QUERIES])
        problems, ps = joined([one] * len(settings.ps)), np.repeat(settings.ps, len(one.labels))
        history = descend(
            problems,
            ps,
            steps=settings.steps,
            step_size=settings.step_size,
            normalized=True,
            record_at=settings.record_at,
            device=where,
            progress=inner,
        )
        with runtime.threads(1):
            return compared(history.records["key_query"], problems, ps, (len(settings.ps), len(QUERIES), len(seeds)))

    parts = by_seeds(settings, train, clock=clock, workdir=workdir, progress=progress)
    weights = parts[0].pop("weights")
    arrays = concatenate(parts, axis=1)
    return Direction(
        settings=settings,
        provenance=clock.provenance(where),
        steps=np.array(settings.record_at, dtype=np.float64),
        weights=weights,
        **arrays,
    )


def _mean_share(name: str, by_seed: np.ndarray) -> Measurement:
    """Return the share over all runs, with its range over seeds."""
    return Measurement(
        {name: float(by_seed.mean())}, {name: (float(by_seed.min()), float(by_seed.max()))}, len(by_seed)
    )
