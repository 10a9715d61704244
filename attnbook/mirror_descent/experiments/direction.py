r"""Which direction do the iterates take, which tokens do they select, how sparse do they become?

All runs start at zero and take scale-free steps, which reach norms that plain steps would not reach in any lifetime.
Queries are independent of the tokens, as in an early state of the first author's code; the same runs with the first
token as the query are kept beside them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self, get_args

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core import runtime
from attnbook.core.ensemble import log_spaced
from attnbook.core.results import Clock, Measurement, Result, over_seeds
from attnbook.core.resuming import by_seeds, check_seeds
from attnbook.core.runtime import Progress
from attnbook.mirror_descent.attention_svm import attention_svm, locally_optimal
from attnbook.mirror_descent.data import Problems, Queries, draw_problems, joined
from attnbook.mirror_descent.models import Batch, attention_weights, descend
from attnbook.mirror_descent.theory import mirror

__all__ = ["CROSSED", "QUERIES", "Direction", "Settings", "run"]

QUERIES: tuple[Queries, ...] = get_args(Queries)
CROSSED = (1.75, 2.0, 3.0)
# Exponents that the claims name, and those whose token choice has settled at book scale.
NEEDED = (1.1, 1.25, 1.5, *CROSSED)
SETTLED = 1.25


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment.

    Attributes:
        ps: Exponents, increasing.
        n_samples: Samples per problem; 6 in an early state of the first author's code.
        n_tokens: Tokens per sample; 8 in the same source.
        dimension: Dimension of a token; 10 in the same source.
        step_size: How far a scale-free step moves the weights.
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
    records: int = 16
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
        effective_dimension: Of the last matrix, ``(queries, seeds, ps)``.
        share: Share of its entries above one per cent of the largest, ``(queries, seeds, ps)``.
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
    effective_dimension: Float[np.ndarray, "queries seeds ps"]
    share: Float[np.ndarray, "queries seeds ps"]
    weights: Float[np.ndarray, "ps dimension dimension"]

    def of(self, p: float) -> int:
        """Return the place of an exponent."""
        return self.settings.ps.index(p)

    def own_over_smallest_other(self, p: float) -> Float[np.ndarray, " seeds"]:
        """Return the divergence of the run with this exponent to its target over the smallest of the other two runs."""
        to_target = self.cross[0, :, :, self.of(p)]
        others = [self.of(other) for other in CROSSED if other != p]
        return to_target[:, self.of(p)] / to_target[:, others].min(axis=1)

    def measurements(self) -> dict[str, Measurement]:
        """Return what was measured with independent queries, by claim id."""
        found = self._directions() | self._tokens() | self._sparsity()
        for p in CROSSED:
            ratio = self.own_over_smallest_other(p)
            found[f"MD-cross-p{p:g}"] = Measurement(
                {
                    "max_own_divergence_over_smallest_other": float(ratio.max()),
                    "median_over_seeds": float(np.median(ratio)),
                },
                {"median_over_seeds": (float(ratio.min()), float(ratio.max()))},
                len(ratio),
            )
        if self.settings.steps > self.settings.read_at:
            found |= self._longer()
        return found

    def _directions(self) -> dict[str, Measurement]:
        at = int(np.flatnonzero(self.steps == self.settings.read_at)[0])
        found = {}
        for p in (1.25, 1.5, *CROSSED):
            values = {"divergence": self.divergence[0, :, self.of(p), at], "cosine": self.cosine[0, :, self.of(p), at]}
            found[f"MD-dir-p{p:g}"] = over_seeds(**values)
        return found

    def _tokens(self) -> dict[str, Measurement]:
        settled = np.array(self.settings.ps) >= SETTLED
        local = self.locally_optimal[0][:, settled].mean(axis=1)
        best = self.globally_optimal[0][:, settled].mean(axis=1)
        return {
            "MD-local": _mean_share("share_locally_optimal", local),
            "MD-local-global": _mean_share("share_globally_optimal", best),
        }

    def _sparsity(self) -> dict[str, Measurement]:
        upto = [i for i, p in enumerate(self.settings.ps) if p <= 3]
        rising = (np.diff(self.effective_dimension[0][:, upto], axis=1) > 0).all(axis=1)
        shares = {f"share_p{p:g}".replace(".", "_"): self.share[0, :, self.of(p)] for p in (1.1, 1.5, 3.0)}
        return {
            "MD-sparse": Measurement({"share_strictly_increasing": float(rising.mean())}, n_seeds=len(rising)),
            "MD-sparse-share": over_seeds(**shares),
        }

    def _longer(self) -> dict[str, Measurement]:
        """What takes more steps than the others: the smallest exponent, and the table of all exponents."""
        at = int(np.flatnonzero(self.steps == self.settings.read_at)[0])
        first, last = (self.divergence[0, :, self.of(1.1), i] for i in (at, -1))
        # Cosines, because divergences of different exponents are not comparable.
        nearest = self.cross_cosine[0].argmax(axis=2) == np.arange(len(self.settings.ps))
        return {
            "MD-dir-p1.1": over_seeds(divergence_when_read=first, divergence_at_end=last),
            "MD-local-p1.1": _mean_share("share_locally_optimal", self.locally_optimal[0, :, self.of(1.1)]),
            "MD-cross-nearest": _mean_share("share_own_nearest", nearest.mean(axis=1)),
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
            return _looked_at(history.records["key_query"], problems, ps, (len(settings.ps), len(QUERIES), len(seeds)))

    parts = by_seeds(settings, train, clock=clock, workdir=workdir, progress=progress)
    weights = parts[0].pop("weights")
    arrays = {name: np.concatenate([part[name] for part in parts], axis=1) for name in parts[0]}
    return Direction(
        settings=settings,
        provenance=clock.provenance(where),
        steps=np.array(settings.record_at, dtype=np.float64),
        weights=weights,
        **arrays,
    )


def _looked_at(
    path: Float[np.ndarray, "records members d d"], problems: Problems, ps: np.ndarray, shape: tuple[int, int, int]
) -> dict[str, np.ndarray]:
    """Compare each run with the max-margin solutions of the tokens it attends to last."""
    last = path[-1]
    selected = attention_weights(torch.tensor(last), Batch.of(problems)).argmax(dim=-1).numpy()
    solution = attention_svm(problems.tokens, problems.queries, selected, ps)
    unit, ray = mirror.normalised(path, ps), mirror.normalised(solution.weight, ps)
    rays = np.broadcast_to(ray, path.shape)
    found = {
        "divergence": np.moveaxis(mirror.bregman_divergence(rays, unit, ps), 0, -1),
        "cosine": np.moveaxis(_cosine(rays, path), 0, -1),
        "relative_norm": np.moveaxis(mirror.entrywise_norm(path, ps) / solution.norm, 0, -1),
        "locally_optimal": locally_optimal(problems.token_scores, selected, solution.support).astype(float),
        "globally_optimal": (selected == problems.best_tokens).all(axis=1).astype(float),
        "effective_dimension": mirror.effective_dimension(last),
        "share": mirror.share_above(last),
    }
    found |= _crossed(last, problems, selected, np.unique(ps))
    arrays = {name: np.moveaxis(a.reshape(*shape, *a.shape[1:]), 0, 2) for name, a in found.items()}
    tokens = np.moveaxis(selected.reshape(*shape, -1), 0, 2)
    arrays["same_tokens"] = (tokens[:, :, :, None] == tokens[:, :, None]).all(axis=-1).astype(float)
    first = last.reshape(*shape, *last.shape[1:])[:, 0, 0]
    arrays["weights"] = first / np.abs(first).max(axis=(1, 2), keepdims=True)
    return arrays


def _crossed(
    last: np.ndarray, problems: Problems, selected: np.ndarray, targets: np.ndarray
) -> dict[str, Float[np.ndarray, "members targets"]]:
    """Divergence and cosine of each run to the solution of its own tokens, for every exponent."""
    # Its own tokens: so a run is not far away for the reason alone that the target's run selects others.
    found: dict[str, list[np.ndarray]] = {"cross": [], "cross_cosine": []}
    for p in targets.tolist():
        weight = attention_svm(problems.tokens, problems.queries, selected, p).weight
        found["cross"].append(mirror.bregman_divergence(mirror.normalised(weight, p), mirror.normalised(last, p), p))
        found["cross_cosine"].append(_cosine(weight, last))
    return {name: np.stack(columns, axis=1) for name, columns in found.items()}


def _cosine(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return (mirror.normalised(first, 2.0) * mirror.normalised(second, 2.0)).sum(axis=(-2, -1))


def _mean_share(name: str, by_seed: np.ndarray) -> Measurement:
    """Return the share over all runs, with its range over seeds."""
    return Measurement(
        {name: float(by_seed.mean())}, {name: (float(by_seed.min()), float(by_seed.max()))}, len(by_seed)
    )
