"""The attention SVM for one set of tokens and many norms: what the optimiser's geometry does to its solution.

Nothing is trained here. The tokens are those of highest score, the same for every exponent.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core import runtime
from attnbook.core.results import Clock, Measurement, Result
from attnbook.core.resuming import check_seeds
from attnbook.core.runtime import Progress
from attnbook.mirror_descent import mirror
from attnbook.mirror_descent.attention import Batch, attention_weights
from attnbook.mirror_descent.attention_svm import attention_svm
from attnbook.mirror_descent.data import Problems, draw_problems, joined, plane_toy

__all__ = ["CLOSED_FORM", "Geometry", "Settings", "run"]

# Angles of the solution of the plane toy in degrees, rounded, by exponent: the closed form by hand.
CLOSED_FORM = {3.0: 32.84, 2.0: 22.62, 1.75: 17.29, 1.5: 9.85, 1.25: 1.73, 1.1: 0.009}


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment.

    Attributes:
        ps: Exponents, increasing.
        n_samples: Samples per problem.
        n_tokens: Tokens per sample.
        dimension: Dimension of a token.
        scales: Norms of the matrix over the norm of the solution at which attention is shown.
        seeds: One problem per seed; pictures show the first.
    """

    ps: tuple[float, ...] = (1.05, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0)
    n_samples: int = 6
    n_tokens: int = 8
    dimension: int = 10
    scales: tuple[float, ...] = (1.0, 3.0, 10.0)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)

    def __post_init__(self) -> None:
        if list(self.ps) != sorted(set(self.ps)) or self.ps[0] <= 1:
            raise ValueError(f"ps: expected increasing numbers above 1, got {self.ps}")
        check_seeds(self.seeds, 1)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(ps=(1.5, 2.0, 3.0), n_samples=2, n_tokens=3, dimension=5, seeds=(0, 1))

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return more seeds; the sizes are those of an early state of the first author's code already."""
        return cls(seeds=tuple(range(100)))


@dataclass(frozen=True)
class Geometry(Result):
    """Solutions of the attention SVM by exponent.

    Attributes:
        plane: First column of the solution of the plane toy, ``(ps, 2)``.
        effective_dimension: Of each solution, ``(seeds, ps)``.
        share: Share of entries above one per cent of the largest, ``(seeds, ps)``.
        weights: Solutions of the first seed, ``(ps, dimension, dimension)``.
        attention: Its attention weights, ``(ps, scales, samples, tokens)``.
        selected: Its selected tokens, ``(samples,)``.
        gap: Largest certificate of all solutions, ``(ps,)``.
    """

    experiment: ClassVar[str] = "mirror_descent.geometry"
    settings_type: ClassVar[type] = Settings

    plane: Float[np.ndarray, "ps 2"]
    effective_dimension: Float[np.ndarray, "seeds ps"]
    share: Float[np.ndarray, "seeds ps"]
    weights: Float[np.ndarray, "ps dimension dimension"]
    attention: Float[np.ndarray, "ps scales samples tokens"]
    selected: Float[np.ndarray, " samples"]
    gap: Float[np.ndarray, " ps"]

    def measurements(self) -> dict[str, Measurement]:
        """Return the angles of the toy and the order of the densities, by claim id."""
        angles = dict(zip(self.settings.ps, np.degrees(np.arctan2(*self.plane.T[::-1])), strict=True))
        wrong = np.array(
            [[abs(angle - CLOSED_FORM[p]), CLOSED_FORM[p]] for p, angle in angles.items() if p in CLOSED_FORM]
        )
        rising = np.all(np.diff(self.effective_dimension, axis=1) > 0, axis=1)
        return {
            "MD-2d-target": Measurement(
                {
                    "max_angle_difference_degrees": float(wrong[:, 0].max()),
                    "max_relative_difference": float((wrong[:, 0] / wrong[:, 1]).max()),
                }
            ),
            "MD-sparse-svm": Measurement(
                {"share_strictly_increasing": float(rising.mean())}, n_seeds=len(self.effective_dimension)
            ),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> Geometry:
    """Solve the attention SVM for every exponent and seed.

    Args:
        settings: Sizes and exponents.
        device: Checked, but not used: solutions are computed in float64 on the CPU.
        progress: Told (parts done, parts in all).
        workdir: Not used: the run is short.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available, or the tokens of highest score cannot be selected.
    """
    clock = Clock()
    runtime.device(device)
    ps, count = np.array(settings.ps), len(settings.seeds)
    one = draw_problems(
        settings.seeds, n_samples=settings.n_samples, n_tokens=settings.n_tokens, dimension=settings.dimension
    )
    problems = joined([one] * len(ps))
    toy = joined([plane_toy()] * len(ps))
    with runtime.threads(1):
        plane = attention_svm(toy.tokens, toy.queries, toy.best_tokens, ps)
        found = attention_svm(problems.tokens, problems.queries, problems.best_tokens, np.repeat(ps, count))
        first = found.weight.reshape(len(ps), count, settings.dimension, settings.dimension)[:, 0]
        shown = Batch.of(Problems(*(part[::count] for part in vars(problems).values())))
        attention = [attention_weights(torch.tensor(first * scale), shown).numpy() for scale in settings.scales]
    if progress:
        progress(1, 1)
    by_seed = (len(ps), count)
    return Geometry(
        settings=settings,
        provenance=clock.provenance(torch.device("cpu")),
        plane=plane.weight[:, :, 0],
        effective_dimension=mirror.effective_dimension(found.weight).reshape(by_seed).T,
        share=mirror.share_above(found.weight).reshape(by_seed).T,
        weights=first,
        attention=np.stack(attention, axis=1),
        selected=one.best_tokens[0].astype(np.float64),
        gap=found.gap.reshape(by_seed).max(axis=1),
    )
