r"""Eq. (8) and the proof of Proposition 3: where do the queries look under the oracle key-query matrix?

Logits of $W_\star$ on drawn samples, with noise inside its bounds and with noise at its bounds.
"""

from __future__ import annotations

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
from attnbook.multi_head.measures import logit_gaps

__all__ = ["LAWS", "OracleLogits", "Settings", "run"]

LAWS = ("none", "constant", "linear", "quadratic")
r"""Laws of the noise $\bar Z$ in the pattern norm, in this order 0, 0.1, $0.1S$ and $S^2/8$."""


@dataclass(frozen=True)
class Settings:
    r"""Sizes of the experiment.

    Attributes:
        n_tokens: Tokens of a sample.
        dimension: Dimension of a token.
        n_patterns: Number $M$ of patterns that say nothing.
        relevant_fraction: Share $\zeta$ of relevant tokens.
        free_noise: Norm of the noise orthogonal to all patterns.
        pattern_norms: Values of $S$.
        noise_shares: Values of $\bar Z/S^2$ at which the smallest gap is sought, at $S=1$.
        n_samples: Samples of each seed and cell.
        n_corners: Samples with noise at its bounds, of each seed and noise share.
        seeds: Seeds.
        chunk: Seeds in one part of a resumable run.
    """

    n_tokens: int = 10
    dimension: int = 12
    n_patterns: int = 4
    relevant_fraction: float = 0.4
    free_noise: float = 0.3
    pattern_norms: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0)
    noise_shares: tuple[float, ...] = (0.0, 0.03125, 0.0625, 0.09375, 0.125, 0.1875, 0.25, 0.3125)
    n_samples: int = 200
    n_corners: int = 600
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    chunk: int = 1

    def __post_init__(self) -> None:
        if len(self.pattern_norms) < 2 or min(self.pattern_norms) <= 0:
            raise ValueError(f"pattern_norms: expected two or more positive numbers, got {self.pattern_norms}")
        if 0.125 not in self.noise_shares or not all(0 <= share <= 0.5 for share in self.noise_shares):
            raise ValueError(f"noise_shares: expected numbers between 0 and 1/2, 1/8 included, got {self.noise_shares}")
        for name in ("n_samples", "n_corners"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show little."""
        return cls(n_samples=20, n_corners=60, seeds=(0, 1))

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return longer samples of larger dimension, and more of them."""
        return cls(n_tokens=20, dimension=50, n_patterns=20, relevant_fraction=0.1, n_samples=1000, n_corners=5000)

    def mixture(self, pattern_norm: float, noise_share: float) -> Mixture:
        r"""Return the data of one cell.

        Args:
            pattern_norm: $S$.
            noise_share: $\bar Z/S^2$.

        Returns:
            The sizes.
        """
        noise = noise_share * pattern_norm**2
        return Mixture(
            self.n_tokens,
            self.dimension,
            self.n_patterns,
            pattern_norm=pattern_norm,
            relevant_fraction=self.relevant_fraction,
            label_noise=noise,
            other_noise=noise,
            free_noise=self.free_noise,
        )


@dataclass(frozen=True)
class OracleLogits(Result):
    r"""Logits $x_t^\top W_\star x_s$; laws are those of :data:`LAWS`.

    Attributes:
        relevant: Mean logit of relevant keys, ``(seeds, laws, norms)``.
        irrelevant: Largest absolute logit of irrelevant keys, ``(seeds, laws, norms)``.
        gap: Smallest gap between a relevant and an irrelevant key of a query, in units of $S^4$, ``(seeds, laws,
            norms)``.
        corner_gap: The same with noise at its bounds, at $S=1$, ``(seeds, shares)``.
        pair_scores: $\nu_\ell^\top W_\star\mu_\pm/S^4$, the smallest, and $\mu_\pm^\top W_\star\nu_\ell/S^4$, the
            largest in size, ``(seeds, 2)``.
        norm_errors: Relative errors of the stated norms of $W_\star$ and $U_\star$, ``(seeds, norms, 2)``.
    """

    experiment: ClassVar[str] = "multi_head.oracle_logits"
    settings_type: ClassVar[type] = Settings

    relevant: Float[np.ndarray, "seeds laws norms"]
    irrelevant: Float[np.ndarray, "seeds laws norms"]
    gap: Float[np.ndarray, "seeds laws norms"]
    corner_gap: Float[np.ndarray, "seeds shares"]
    pair_scores: Float[np.ndarray, "seeds 2"]
    norm_errors: Float[np.ndarray, "seeds norms 2"]

    def slopes(self, logits: Float[np.ndarray, "seeds norms"]) -> Float[np.ndarray, " seeds"]:
        r"""Return the slope of the logarithm of some logits in $\log S$.

        Args:
            logits: Positive numbers.

        Returns:
            One slope for each seed.
        """
        return np.polyfit(np.log(self.settings.pattern_norms), np.log(logits).T, 1)[0]

    def stated_gaps(self) -> Float[np.ndarray, " shares"]:
        """Return the smallest gap that the noise bounds allow, for each noise share."""
        mixtures = (self.settings.mixture(1.0, share) for share in self.settings.noise_shares)
        return np.array([oracle.worst_gap(mixture) for mixture in mixtures])

    def measurements(self) -> dict[str, Measurement]:
        """Return what was found for eq. (8) and the logits in the proof of Proposition 3, by claim id."""
        irrelevant = {law: self.irrelevant[:, i] for i, law in enumerate(LAWS)}
        largest_allowed = self.settings.noise_shares.index(0.125)
        smallest = np.concatenate([self.gap[:, -1], self.corner_gap[:, [largest_allowed]]], axis=1)
        stated = self.stated_gaps()
        return {
            "MH-A3-norms": extremes_over_seeds(largest_relative_error=self.norm_errors),
            "MH-B13.13": extremes_over_seeds(
                smallest_score_irrelevant_query=self.pair_scores[:, 0],
                largest_score_irrelevant_key=np.abs(self.pair_scores[:, 1]),
            ),
            "MH-E8": over_seeds(slope_relevant=self.slopes(self.relevant[:, LAWS.index("constant")])),
            "MH-E8-irrelevant": over_seeds(slope_constant_noise=self.slopes(irrelevant["constant"])),
            "MH-E8-noise": over_seeds(
                slope_linear_noise=self.slopes(irrelevant["linear"]),
                slope_quadratic_noise=self.slopes(irrelevant["quadratic"]),
            ),
            "MH-E8-noise-free": extremes_over_seeds(largest_irrelevant_logit=irrelevant["none"]),
            "MH-E8-gap": extremes_over_seeds(smallest_relative_gap=self.gap),
            "MH-P3.1-gap": extremes_over_seeds(smallest_relative_gap=smallest),
            "MH-P3.1-corner": extremes_over_seeds(smallest_corner_gap=self.corner_gap[:, largest_allowed]),
            "MH-P3.1-law": extremes_over_seeds(
                smallest_excess=self.corner_gap - stated, largest_excess=self.corner_gap - stated
            ),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> OracleLogits:
    """Measure the logits of the oracle key-query matrix.

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
    return OracleLogits(settings=settings, provenance=clock.provenance(torch.device("cpu")), **arrays)


def _measure_seed(settings: Settings, seed: int) -> dict[str, np.ndarray]:
    cells = np.array([[_cell(settings, seed, law, s) for s in settings.pattern_norms] for law in LAWS])
    corners = []
    for share in settings.noise_shares:
        mixture = settings.mixture(1.0, share)
        patterns = draw_patterns(mixture, rng=stream(seed, "patterns"))
        rng = stream(seed, "corners", repr(share))
        drawn = draw_samples(mixture, patterns, settings.n_corners, rng=rng, corners=True)
        corners.append(_smallest_gap(patterns, drawn))
    scores, errors = _exact(settings, seed)
    names = ("relevant", "irrelevant", "gap")
    return {
        **{name: cells[..., i] for i, name in enumerate(names)},
        "corner_gap": np.array(corners),
        "pair_scores": scores,
        "norm_errors": errors,
    }


def _cell(settings: Settings, seed: int, law: str, s: float) -> tuple[float, float, float]:
    """Mean relevant logit, largest irrelevant one and smallest gap."""
    share = {"none": 0.0, "constant": 0.1 / s**2, "linear": 0.1 / s, "quadratic": 1 / 8}[law]
    mixture = settings.mixture(s, share)
    patterns = draw_patterns(mixture, rng=stream(seed, "patterns"))
    drawn = draw_samples(mixture, patterns, settings.n_samples, rng=stream(seed, "logits", law))
    logits = drawn.tokens @ oracle.key_query(patterns) @ drawn.tokens.swapaxes(1, 2)
    keys = np.broadcast_to(drawn.relevant[:, None], logits.shape)
    return float(logits[keys].mean()), float(np.abs(logits[~keys]).max()), _smallest_gap(patterns, drawn)


def _smallest_gap(patterns: Patterns, drawn: Samples) -> float:
    """The smallest gap of logits in units of the fourth power of the pattern norm."""
    gaps = logit_gaps(drawn, oracle.key_query(patterns))
    return float(gaps.min() / (patterns.label[0] @ patterns.label[0]) ** 2)


def _exact(settings: Settings, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores of pairs of patterns, and errors of the stated norms."""
    errors = []
    for s in settings.pattern_norms:
        mixture = settings.mixture(s, 0.0)
        patterns = draw_patterns(mixture, rng=stream(seed, "patterns"))
        w, u = oracle.key_query(patterns), oracle.decoder(patterns, mixture.n_tokens)
        stated = np.array([oracle.norm_of_key_query(mixture), s * np.sqrt(2 * mixture.n_tokens)])
        errors.append(np.abs(np.array([np.linalg.norm(w), np.linalg.norm(u)]) / stated - 1))
        as_query = patterns.other @ w @ patterns.label.T / s**4
        as_key = patterns.label @ w @ patterns.other.T / s**4
    return np.array([as_query.min(), np.abs(as_key).max()]), np.array(errors)
