"""Locally optimal tokens that are not the best: how far out training must start to keep them.

Such choices are rare, so every choice of many small problems is solved, and only these are trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core import runtime
from attnbook.core.results import Clock, Measurement, Result
from attnbook.core.resuming import check_seeds
from attnbook.core.runtime import Progress
from attnbook.mirror_descent import objective as theory
from attnbook.mirror_descent.attention import descend
from attnbook.mirror_descent.attention_svm import attention_svm, locally_optimal
from attnbook.mirror_descent.data import Problems, draw_problems, joined

__all__ = ["AHEAD", "Rivals", "Settings", "run"]

AHEAD = 5.0
"""Relative norm times slack above which a start counts as far out."""


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment; all are this book's.

    Attributes:
        ps: Exponents.
        n_samples: Samples per problem.
        n_tokens: Tokens per sample.
        dimension: Dimension of a token.
        relative_norms: Norms of the starts over the norm of the max-margin solution, increasing.
        steps: Scale-free steps, an even number; the tokens are read half-way, too.
        step_size: Their size, the same for every exponent.
        seeds: One problem per seed.
    """

    ps: tuple[float, ...] = (1.5, 2.0, 3.0)
    n_samples: int = 2
    n_tokens: int = 3
    dimension: int = 5
    relative_norms: tuple[float, ...] = (5.0, 20.0, 80.0)
    steps: int = 3000
    step_size: float = 0.2
    seeds: tuple[int, ...] = tuple(range(100))

    def __post_init__(self) -> None:
        norms = self.relative_norms
        if list(norms) != sorted(set(norms)) or norms[0] <= 0:
            raise ValueError(f"relative_norms: expected increasing numbers above 0, got {norms}")
        if self.steps < 2 or self.steps % 2:
            raise ValueError(f"steps: expected an even number of at least 2, got {self.steps}")
        check_seeds(self.seeds, 1)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(ps=(2.0, 3.0), relative_norms=(5.0, 10.0), steps=20, seeds=tuple(range(20)))

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return more problems and steps; the paper gives no sizes."""
        return cls(steps=20_000, seeds=tuple(range(1000)))


@dataclass(frozen=True)
class Rivals(Result):
    """Locally optimal choices that are not the best, and whether training keeps them.

    Attributes:
        slack: Margin, above one, of the nearest token of higher score than the chosen one of its sample, ``(cases,)``.
        kept: Whether training keeps all tokens, half-way and at the end, ``(cases, relative norms, 2)``.
        exponent: Exponent of the case, ``(cases,)``.
        seed: Seed of its problem, ``(cases,)``.
    """

    experiment: ClassVar[str] = "mirror_descent.rivals"
    settings_type: ClassVar[type] = Settings

    slack: Float[np.ndarray, " cases"]
    kept: Float[np.ndarray, "cases relative_norms 2"]
    exponent: Float[np.ndarray, " cases"]
    seed: Float[np.ndarray, " cases"]

    def ahead(self) -> Float[np.ndarray, "cases relative_norms"]:
        """Return how far out each run starts: relative norm times slack."""
        return self.slack[:, None] * np.array(self.settings.relative_norms)

    def measurements(self) -> dict[str, Measurement]:
        """Return the shares of runs that keep their tokens, far out and near, by claim id."""
        far, seeds = self.ahead() > AHEAD, len(np.unique(self.seed))
        changed = self.kept[..., 0] != self.kept[..., 1]
        parts = {"MD-local-kept": far, "MD-local-near": ~far}
        return {
            claim: Measurement(
                {
                    "share_kept": float(self.kept[which, 1].sum() / max(1, which.sum())),
                    "runs": float(which.sum()),
                    "choices": float(which.any(axis=1).sum()),
                    "changed_after_half": float(changed[which].sum()),
                },
                n_seeds=seeds,
            )
            for claim, which in parts.items()
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> Rivals:
    """Find the locally optimal choices that are not the best, and train from multiples of their solutions.

    Args:
        settings: Sizes and exponents.
        device: Where to train; default the first of cuda, mps and cpu.
        progress: Told (exponents done, exponents in all).
        workdir: Not used: the run is short.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available, a choice is impossible, or no such choice exists.
    """
    clock, where = Clock(), runtime.device(device)
    parts = []
    for number, p in enumerate(settings.ps, 1):
        with runtime.threads(1):
            parts.append(_one_exponent(settings, p, where))
        if progress:
            progress(number, len(settings.ps))
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return Rivals(settings=settings, provenance=clock.provenance(where), **arrays)


def _one_exponent(settings: Settings, p: float, device: torch.device) -> dict[str, np.ndarray]:
    one = draw_problems(
        settings.seeds, n_samples=settings.n_samples, n_tokens=settings.n_tokens, dimension=settings.dimension
    )
    choices = np.array(list(product(range(settings.n_tokens), repeat=settings.n_samples)))
    problems, selected = one.repeated(len(choices)), np.tile(choices, (len(settings.seeds), 1))
    found = attention_svm(problems.tokens, problems.queries, selected, p)
    best = (selected == problems.best_tokens).all(axis=1)
    which = locally_optimal(problems.token_scores, selected, found.support) & ~best
    if not which.any():
        raise ValueError(f"seeds: none of these {len(settings.seeds)} problems has such a choice for p = {p:g}")
    cases = Problems(*(part[which] for part in vars(problems).values()))
    return {
        "slack": _slack(cases, selected[which], found.margins[which]),
        "kept": _kept(settings, cases, selected[which], found.weight[which], p, device),
        "exponent": np.full(which.sum(), p),
        "seed": np.repeat(np.array(settings.seeds, dtype=float), len(choices))[which],
    }


def _slack(cases: Problems, selected: np.ndarray, margins: np.ndarray) -> np.ndarray:
    """Margin, above one, of the nearest token of higher score."""
    own = np.take_along_axis(cases.token_scores, selected[..., None], axis=2)
    return np.asarray(np.where(cases.token_scores > own, margins, np.inf).min(axis=(1, 2)) - 1)


def _kept(
    settings: Settings, cases: Problems, selected: np.ndarray, weight: np.ndarray, p: float, device: torch.device
) -> np.ndarray:
    """Whether the tokens are kept, ``(cases, relative norms, 2)``."""
    norms, count = settings.relative_norms, len(selected)
    problems = joined([cases] * len(norms))
    history = descend(
        problems,
        np.full(count * len(norms), p),
        steps=settings.steps,
        step_size=settings.step_size,
        normalized=True,
        start=np.concatenate([norm * weight for norm in norms]),
        record_at=(settings.steps // 2, settings.steps),
        device=device,
    )
    wanted = np.tile(selected, (len(norms), 1))
    ends = np.asarray(history.records["key_query"])
    kept = np.stack([(theory.attention(end, problems).argmax(-1) == wanted).all(-1) for end in ends], axis=-1)
    return kept.reshape(len(norms), count, 2).swapaxes(0, 1).astype(float)
