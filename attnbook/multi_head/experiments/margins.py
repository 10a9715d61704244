r"""Proposition 3: how strongly must attention be scaled, and what margin does it then have?

Samples are drawn with noise inside its bounds, with noise at its bounds, or made against attention
(:mod:`attnbook.multi_head.hard_samples`); a guarantee has to hold on all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core import runtime
from attnbook.core.results import Clock, Measurement, Result, extremes_over_seeds, over_seeds
from attnbook.core.resuming import check_seeds, seed_by_seed
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress, threads
from attnbook.multi_head import oracle
from attnbook.multi_head.data import Mixture, Patterns, Samples, draw_patterns, draw_samples
from attnbook.multi_head.hard_samples import against_attention
from attnbook.multi_head.measures import leak_and_margin, logit_gaps, needed_scale

__all__ = ["KINDS", "Margins", "Settings", "run"]

KINDS = ("random", "corners", "hard")
"""Noise inside its bounds, at its bounds, and chosen against attention."""


@dataclass(frozen=True)
class Settings:
    r"""Sizes of the experiment.

    Attributes:
        n_tokens: Tokens of a sample.
        dimension: Dimension of a token.
        n_patterns: Number $M$ of patterns that say nothing.
        free_noise: Norm of the noise orthogonal to all patterns.
        pattern_norms: Values of $S$: two.
        relevant_fractions: Values of $\zeta$.
        leaks: Values of $\epsilon$.
        noise_share: $\bar Z/S^2$; default 1/8, the most that Proposition 3 allows.
        n_samples: Samples of each seed, cell and kind.
        seeds: Seeds.
        chunk: Seeds in one part of a resumable run.
    """

    n_tokens: int = 20
    dimension: int = 16
    n_patterns: int = 4
    free_noise: float = 0.3
    pattern_norms: tuple[float, float] = (1.0, 2.0)
    relevant_fractions: tuple[float, ...] = (0.05, 0.1, 0.3)
    leaks: tuple[float, ...] = (0.3, 0.1, 0.01)
    noise_share: float = 0.125
    n_samples: int = 300
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    chunk: int = 1

    def __post_init__(self) -> None:
        if self.pattern_norms[0] != 1 or self.pattern_norms[1] <= 0 or self.pattern_norms[1] == 1:
            raise ValueError(f"pattern_norms: expected 1 and another positive number, got {self.pattern_norms}")
        if 0.05 not in self.relevant_fractions or 0.1 not in self.leaks:
            expected = "relevant_fractions, leaks: expected 0.05 among the first and 0.1 among the second"
            raise ValueError(f"{expected}, got {self.relevant_fractions} and {self.leaks}")
        if self.n_samples < 1:
            raise ValueError(f"n_samples: expected at least 1, got {self.n_samples}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show little."""
        return cls(n_samples=20, seeds=(0, 1))

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return ten times as many samples."""
        return cls(n_samples=4000)

    def mixture(self, pattern_norm: float, relevant_fraction: float) -> Mixture:
        r"""Return the data of one cell.

        Args:
            pattern_norm: $S$.
            relevant_fraction: $\zeta$.

        Returns:
            The sizes.
        """
        noise = self.noise_share * pattern_norm**2
        return Mixture(
            self.n_tokens,
            self.dimension,
            self.n_patterns,
            pattern_norm=pattern_norm,
            relevant_fraction=relevant_fraction,
            label_noise=noise,
            other_noise=noise,
            free_noise=self.free_noise,
        )

    def per_cell(self, of: Callable[[Mixture, float], float]) -> Float[np.ndarray, "norms fractions leaks"]:
        """Return a quantity of theory for all cells.

        Args:
            of: The quantity, from a mixture and a leak.

        Returns:
            Its values.
        """
        cells = [[self.mixture(s, zeta) for zeta in self.relevant_fractions] for s in self.pattern_norms]
        return np.array([[[of(mixture, leak) for leak in self.leaks] for mixture in row] for row in cells])


@dataclass(frozen=True)
class Margins(Result):
    r"""Margins of the oracle parameters; kinds are those of :data:`KINDS`.

    Attributes:
        leak: Largest attention that a query gives to irrelevant keys at $\Gamma_\epsilon$, ``(seeds, kinds, norms,
            fractions, leaks)``.
        margin: Smallest margin of the network there, of the same shape.
        needed: Smallest $\Gamma$ that keeps the leak at $\epsilon$, of the same shape.
        uniform: Smallest margin with uniform attention, ``(seeds, kinds, norms, fractions)``.
    """

    digits: ClassVar[int | None] = None
    experiment: ClassVar[str] = "multi_head.margins"
    settings_type: ClassVar[type] = Settings

    leak: Float[np.ndarray, "seeds kinds norms fractions leaks"]
    margin: Float[np.ndarray, "seeds kinds norms fractions leaks"]
    needed: Float[np.ndarray, "seeds kinds norms fractions leaks"]
    uniform: Float[np.ndarray, "seeds kinds norms fractions"]

    @property
    def stated_margin(self) -> Float[np.ndarray, "norms fractions leaks"]:
        """The margin that eq. (11) promises in each cell."""
        return self.settings.per_cell(lambda mixture, leak: oracle.attention_margin(mixture, leak=leak))

    def measurements(self) -> dict[str, Measurement]:
        """Return what was found for the linear margin and Proposition 3, by claim id."""
        s = self.settings
        share = self.needed[:, KINDS.index("random")] / s.per_cell(oracle.stated_scale)
        of_sharp = self.needed / s.per_cell(oracle.sharp_scale)
        relative_leak = self.leak / np.array(s.leaks)
        both = np.stack([relative_leak, self.margin / self.stated_margin], axis=1)
        zeta, leak = s.relevant_fractions.index(0.05), s.leaks.index(0.1)
        limit = oracle.attention_margin(s.mixture(1.0, 0.05))
        return {
            "MH-P3.1": extremes_over_seeds(largest_leak_over_epsilon=relative_leak),
            "MH-P3.1-needed": extremes_over_seeds(smallest_needed_fraction=share, largest_needed_fraction=share),
            "MH-P3.1-sharp": extremes_over_seeds(
                largest_needed_fraction=of_sharp, smallest_needed_fraction_hard=of_sharp[:, KINDS.index("hard")]
            ),
            "MH-P3.2": extremes_over_seeds(smallest_margin_minus_bound=self.margin - self.stated_margin),
            "MH-P3.2-uniform": over_seeds(
                uniform_margin=self.uniform[:, :, 0, zeta].min(axis=1),
                attention_margin=self.margin[:, :, 0, zeta, leak].min(axis=1),
                margin_limit=np.full(len(self.margin), limit),
            ),
            "MH-P3.2-scale": extremes_over_seeds(
                largest_ratio_difference=np.abs(both[:, :, :, 0] / both[:, :, :, 1] - 1)
            ),
            "MH-B13.7": self._lost_exponent(),
        }

    def _lost_exponent(self) -> Measurement:
        s = self.settings
        mixture = s.mixture(2.0, s.relevant_fractions[0])
        right = np.array([oracle.attention_margin(mixture, leak=e) for e in s.leaks])
        signal = mixture.pattern_norm * np.sqrt(mixture.n_tokens / 2)
        leaks = np.array(s.leaks)
        square = signal * (1 - leaks - 2 * leaks * mixture.label_noise / mixture.pattern_norm**2)
        printed = np.array([oracle.printed_margin(mixture, e) for e in s.leaks])
        errors = {"error_with_square": square, "error_printed": printed}
        return Measurement({name: float(np.abs(value / right - 1).max()) for name, value in errors.items()})


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> Margins:
    """Measure leaks and margins of the oracle parameters.

    Args:
        settings: Sizes and seeds.
        device: Checked, but nothing is trained: all of it is float64 on the CPU.
        progress: Told (seeds done, seeds in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
    """
    clock = Clock()
    runtime.device(device)

    with threads(1):
        arrays = seed_by_seed(
            settings, lambda seed: _cells(settings, seed), clock=clock, workdir=workdir, progress=progress
        )
    return Margins(settings=settings, provenance=clock.provenance(torch.device("cpu")), **arrays)


def _cells(settings: Settings, seed: int) -> dict[str, np.ndarray]:
    """Leaks, margins and needed scales of all cells at the largest noise."""
    found: dict[str, list[np.ndarray]] = {name: [] for name in ("leak", "margin", "needed", "uniform")}
    for s in settings.pattern_norms:
        for zeta in settings.relevant_fractions:
            mixture = settings.mixture(s, zeta)
            patterns, kinds = _draw(settings, mixture, seed)
            scales = [oracle.stated_scale(mixture, leak) for leak in settings.leaks]
            u, w = _unit(oracle.decoder(patterns, settings.n_tokens)), _unit(oracle.key_query(patterns))
            at = np.array([[leak_and_margin(drawn, u, g * w) for g in (*scales, 0.0)] for drawn in kinds])
            found["leak"].append(at[:, :-1, 0])
            found["margin"].append(at[:, :-1, 1])
            found["uniform"].append(at[:, -1, 1])
            gaps = [logit_gaps(drawn, w) for drawn in kinds]
            k = mixture.n_relevant
            found["needed"].append(np.array([[needed_scale(g, k, leak) for leak in settings.leaks] for g in gaps]))
    shape = (len(settings.pattern_norms), len(settings.relevant_fractions))
    stacked = {name: np.stack(arrays, axis=1) for name, arrays in found.items()}
    return {name: array.reshape(len(KINDS), *shape, *array.shape[2:]) for name, array in stacked.items()}


def _draw(settings: Settings, mixture: Mixture, seed: int) -> tuple[Patterns, list[Samples]]:
    patterns = draw_patterns(mixture, rng=stream(seed, "patterns"))
    drawn = [
        draw_samples(mixture, patterns, settings.n_samples, rng=stream(seed, kind), corners=kind == "corners")
        for kind in KINDS[:2]
    ]
    return patterns, [*drawn, against_attention(mixture, patterns)]


def _unit(matrix: np.ndarray) -> np.ndarray:
    return matrix / np.linalg.norm(matrix)
