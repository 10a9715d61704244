r"""What can a linear rule separate, and what can attention? Margins against the size of the noise.

The margin of the value direction with uniform attention and with the attention of Proposition 3, on drawn samples and
on samples made against either; and the largest margin that *any* linear rule has on the latter, and on drawn samples.
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
from attnbook.core.kernel_margin import NotSeparableError, kernel_margin
from attnbook.core.results import Clock, Measurement, Result, extremes_over_seeds
from attnbook.core.resuming import check_seeds, seed_by_seed
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress, threads
from attnbook.multi_head import oracle
from attnbook.multi_head.data import Mixture, draw_patterns, draw_samples
from attnbook.multi_head.hard_samples import against_attention, against_linear_rules
from attnbook.multi_head.measures import leak_and_margin

__all__ = ["LinearRules", "Settings", "run"]


@dataclass(frozen=True)
class Settings:
    r"""Sizes of the experiment; $S=1$.

    Attributes:
        n_tokens: Tokens of a sample.
        dimension: Dimension of a token.
        n_patterns: Number $M$ of patterns that say nothing.
        free_noise: Norm of the noise orthogonal to all patterns.
        relevant_fractions: Values of $\zeta$, increasing.
        noise_shares: Values of $\bar Z/S^2$, increasing.
        leak: The $\epsilon$ whose $\Gamma_\epsilon$ scales attention.
        n_samples: Samples of each seed and cell with noise inside its bounds, and as many with noise at them.
        drawn_samples: Numbers of samples that linear rules are fitted to, with noise inside its bounds, increasing.
        seeds: Seeds.
        chunk: Seeds in one part of a resumable run.
    """

    n_tokens: int = 20
    dimension: int = 16
    n_patterns: int = 4
    free_noise: float = 0.3
    relevant_fractions: tuple[float, ...] = (0.05, 0.1, 0.3)
    noise_shares: tuple[float, ...] = (0.0, 0.0125, 0.025, 0.0375, 0.05, 0.0625, 0.075, 0.0875, 0.1, 0.1125, 0.125)
    leak: float = 0.01
    n_samples: int = 40
    drawn_samples: tuple[int, ...] = (100, 400)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    chunk: int = 1

    def __post_init__(self) -> None:
        for name in ("relevant_fractions", "noise_shares", "drawn_samples"):
            values = getattr(self, name)
            if not values or list(values) != sorted(set(values)):
                raise ValueError(f"{name}: expected increasing numbers, got {values}")
        if self.n_samples < 1:
            raise ValueError(f"n_samples: expected at least 1, got {self.n_samples}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show little."""
        return cls(n_samples=5, noise_shares=(0.0, 0.05, 0.125), seeds=(0, 1))

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return many more samples."""
        return cls(n_samples=4000)

    def mixture(self, relevant_fraction: float, noise_share: float) -> Mixture:
        r"""Return the data of one cell.

        Args:
            relevant_fraction: $\zeta$.
            noise_share: $\bar Z/S^2$.

        Returns:
            The sizes.
        """
        return Mixture(
            self.n_tokens,
            self.dimension,
            self.n_patterns,
            relevant_fraction=relevant_fraction,
            label_noise=noise_share,
            other_noise=noise_share,
            free_noise=self.free_noise,
        )

    def per_cell(self, of: Callable[[Mixture], float]) -> Float[np.ndarray, "fractions shares"]:
        """Return a quantity of theory for all cells.

        Args:
            of: The quantity, from a mixture.

        Returns:
            Its values.
        """
        return np.array(
            [[of(self.mixture(zeta, share)) for share in self.noise_shares] for zeta in self.relevant_fractions]
        )


@dataclass(frozen=True)
class LinearRules(Result):
    r"""Margins, the first three ``(seeds, fractions, shares)``, of the worst of all samples, drawn or made.

    Attributes:
        uniform: With uniform attention.
        attention: With attention scaled by $\Gamma_\epsilon$.
        best: Largest margin that any linear rule, with weights of its own for each position, has on the samples made
            against linear rules; 0 if it cannot separate them.
        best_drawn: Largest margin of two kinds of linear rules on *drawn* samples at the largest noise, for each of
            the settings' numbers of samples: on the mean token, and with weights of its own for each position.
    """

    digits: ClassVar[int | None] = None
    experiment: ClassVar[str] = "multi_head.linear_rules"
    settings_type: ClassVar[type] = Settings

    uniform: Float[np.ndarray, "seeds fractions shares"]
    attention: Float[np.ndarray, "seeds fractions shares"]
    best: Float[np.ndarray, "seeds fractions shares"]
    best_drawn: Float[np.ndarray, "seeds fractions sizes rules"]

    def measurements(self) -> dict[str, Measurement]:
        """Return what was found for the linear margin, by claim id."""
        stated = self.settings.per_cell(oracle.linear_margin)
        cells = np.broadcast_to(stated, self.best.shape)
        share = self.best_drawn[:, 0] / oracle.attention_margin(self.settings.mixture(0.1, 0.0))
        return {
            "MH-A3-linear": extremes_over_seeds(smallest_margin_minus_bound=self.uniform - stated),
            "MH-A3-linear-best": extremes_over_seeds(
                largest_difference=np.abs(self.best - np.maximum(stated, 0)),
                smallest_stated_margin=cells,
                largest_stated_margin=cells,
            ),
            "MH-A3-linear-drawn": extremes_over_seeds(
                smallest_share_few=share[:, 0], smallest_share_many=share[:, -1, 1], largest_share_many=share[:, -1]
            ),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> LinearRules:
    """Measure margins with uniform and with saturated attention.

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
            settings, lambda seed: _measure_seed(settings, seed), clock=clock, workdir=workdir, progress=progress
        )
    return LinearRules(settings=settings, provenance=clock.provenance(torch.device("cpu")), **arrays)


def _measure_seed(settings: Settings, seed: int) -> dict[str, np.ndarray]:
    cells = [
        [_measure(settings, settings.mixture(zeta, share), seed) for share in settings.noise_shares]
        for zeta in settings.relevant_fractions
    ]
    loud = [settings.mixture(zeta, settings.noise_shares[-1]) for zeta in settings.relevant_fractions]
    drawn = np.array([[_best_on_drawn(mixture, n, seed) for n in settings.drawn_samples] for mixture in loud])
    uniform, attention, best = np.moveaxis(np.array(cells), -1, 0)
    return {"uniform": uniform, "attention": attention, "best": best, "best_drawn": drawn}


def _measure(settings: Settings, mixture: Mixture, seed: int) -> tuple[float, float, float]:
    """The three margins of one cell."""
    patterns = draw_patterns(mixture, rng=stream(seed, "patterns"))
    n = settings.n_samples
    against = [against_linear_rules(mixture, patterns, sign=sign) for sign in (1.0, -1.0)]
    every = [
        *(
            draw_samples(mixture, patterns, n, rng=stream(seed, "margins"), corners=corners)
            for corners in (False, True)
        ),
        against_attention(mixture, patterns),
        *against,
    ]
    u, w = oracle.decoder(patterns, mixture.n_tokens), oracle.key_query(patterns)
    u, w = u / np.linalg.norm(u), w / np.linalg.norm(w)
    scale = oracle.stated_scale(mixture, settings.leak)
    uniform, attention = (min(leak_and_margin(drawn, u, g * w)[1] for drawn in every) for g in (0.0, scale))
    features = np.concatenate([drawn.tokens.reshape(len(drawn.tokens), -1) for drawn in against])
    return uniform, attention, _margin(features, np.concatenate([drawn.labels for drawn in against]))


def _best_on_drawn(mixture: Mixture, n_samples: int, seed: int) -> tuple[float, float]:
    r"""Largest margins on drawn samples: on the mean token $\bar x$, and with weights for each position."""
    patterns = draw_patterns(mixture, rng=stream(seed, "patterns"))
    drawn = draw_samples(mixture, patterns, n_samples, rng=stream(seed, "drawn", n_samples))
    # A rule with equal rows v gives T <v, mean token> and has norm sqrt(T) |v|.
    mean = np.sqrt(mixture.n_tokens) * drawn.tokens.mean(axis=1)
    return _margin(mean, drawn.labels), _margin(drawn.tokens.reshape(n_samples, -1), drawn.labels)


def _margin(features: Float[np.ndarray, "samples features"], labels: Float[np.ndarray, " samples"]) -> float:
    """The largest margin of any linear rule; 0 if there is none."""
    try:
        return kernel_margin(features @ features.T, labels).margin
    except NotSeparableError:
        return 0.0
