r"""The cells of signal and noise in which the margin at the start is measured, and the setting with a real step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from attnbook.core.resuming import check_seeds
from attnbook.multi_head import oracle, starts
from attnbook.multi_head.data import Mixture
from attnbook.multi_head.experiments import samples
from attnbook.multi_head.experiments.targets import best_margin, label_direction, oracle_target
from attnbook.multi_head.tangent_kernel import tangent_features

__all__ = ["CELLS", "Settings", "measure_cell", "measure_step"]

CELLS = ("margin", "zero_margin", "best", "best_zero")
"""Measured in every cell; see :class:`~attnbook.multi_head.experiments.start_margin.StartMargin`."""


@dataclass(frozen=True)
class Settings:
    r"""Sizes of the experiment, which is this book's; not tuned.

    Attributes:
        n_tokens: Tokens of a sample.
        dimension: Dimension of a token.
        n_patterns: Patterns that say nothing.
        shares: Shares $\zeta$ of relevant tokens; the claims use the first.
        pattern_norms: Norms $S$ of the patterns.
        noises: Bounds on the noise along patterns over $S^2$, $Z_\mu/S^2=Z_\nu/S^2$, at most 1/8.
        free_noise: Norm of the noise orthogonal to all patterns.
        n_samples: Samples over which the smallest margin is taken.
        n_best: Samples for which the largest margin of any target is found.
        step_norm: Pattern norm at which the whole of eq. (7) is judged.
        step_noise: Noise along patterns there.
        n_first: Samples of the first phase there, increasing; the fewer are the first of the more.
        failure: $\delta$ of the residual bound.
        bins: Bins of the histogram of margins, for the first seed.
        seeds: Seeds of patterns and samples.
        chunk: Seeds computed together.
    """

    n_tokens: int = 10
    dimension: int = 12
    n_patterns: int = 4
    shares: tuple[float, ...] = (0.4, 0.1)
    pattern_norms: tuple[float, ...] = (1.0, 2.0, 4.0)
    noises: tuple[float, ...] = (0.0, 0.02, 0.05, 0.1, 0.125)
    free_noise: float = 0.5
    n_samples: int = 2000
    n_best: int = 40
    step_norm: float = 2.0
    step_noise: float = 0.05
    n_first: tuple[int, ...] = (100, 300, 1000, 3000, 10_000)
    failure: float = 0.05
    bins: int = 70
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    chunk: int = 5

    def __post_init__(self) -> None:
        if not 0 <= min(self.noises) <= max(self.noises) <= 1 / 8:
            raise ValueError(f"noises: expected numbers between 0 and 1/8, got {self.noises}")
        if 0.1 not in self.noises or not {1.0, 2.0, 4.0} <= set(self.pattern_norms):
            raise ValueError(f"noises: the claims need 0.1, and norms 1, 2 and 4, got {self.noises}")
        if list(self.n_first) != sorted(set(self.n_first)) or not self.n_first or self.n_first[0] < 1:
            raise ValueError(f"n_first: expected increasing numbers of at least 1, got {self.n_first}")
        for name in ("n_samples", "n_best", "bins"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if self.n_best > self.n_samples:
            raise ValueError(f"n_best: expected at most n_samples = {self.n_samples}, got {self.n_best}")
        check_seeds(self.seeds, self.chunk)
        for index in np.ndindex(self.shape):
            _ = self.mixture(*index)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second."""
        return cls(n_samples=100, n_best=10, noises=(0.0, 0.1), n_first=(100, 10_000), seeds=(0, 1), chunk=2)

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return more samples and seeds."""
        return cls(n_samples=20_000, n_best=200, n_first=(100, 1000, 10_000, 100_000), seeds=tuple(range(20)), chunk=1)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Numbers of shares, norms and noises."""
        return len(self.shares), len(self.pattern_norms), len(self.noises)

    def mixture(self, share: int, norm: int, noise: int) -> Mixture:
        """Return the data model of a cell, by its index."""
        s = self.pattern_norms[norm]
        z = self.noises[noise] * s**2
        return Mixture(self.n_tokens, self.dimension, self.n_patterns, s, self.shares[share], z, z, self.free_noise)

    @property
    def step_mixture(self) -> Mixture:
        """The data model at which the whole of eq. (7) is judged."""
        sizes = (self.n_tokens, self.dimension, self.n_patterns, self.step_norm, self.shares[0])
        return Mixture(*sizes, self.step_noise, self.step_noise, self.free_noise)


def measure_cell(
    settings: Settings, cell: tuple[int, ...], seeds: tuple[int, ...], where: torch.device
) -> dict[str, np.ndarray]:
    r"""Measure the margins of one cell at zero and at $m=\frac\zeta4u_\star$, the signal of the first step alone.

    Args:
        settings: Sizes.
        cell: Index of the cell.
        seeds: Seeds, one member each.
        where: Where to compute.

    Returns:
        The margins named in :data:`CELLS` and ``counts``, see
        :class:`~attnbook.multi_head.experiments.start_margin.StartMargin`, each ``(members, ...)``.
    """
    mixture = settings.mixture(*cell)
    batch = samples.draw(mixture, settings.n_samples, seeds, device=where)
    zero, pull = _parts(mixture, batch, seeds)
    m = mixture.relevant_fraction / 4 * label_direction(mixture, seeds, device=where)
    after = zero + torch.einsum("bnd,bd->bn", pull, m)
    few, few_labels = (part[:, : settings.n_best] for part in batch[:2])
    start = {
        "decoder": m[:, None, None, :].expand(-1, 1, mixture.n_tokens, -1),
        "key_query": m.new_zeros((len(seeds), 1, mixture.dimension, mixture.dimension)),
    }
    nothing = {name: torch.zeros_like(tensor) for name, tensor in start.items()}
    unit = oracle.first_phase_margin(replace(mixture, label_noise=0.0, other_noise=0.0))
    return {
        "margin": after.amin(1).cpu().numpy(),
        "zero_margin": zero.amin(1).cpu().numpy(),
        "best": best_margin(tangent_features(start, few), few_labels),
        "best_zero": best_margin(tangent_features(nothing, few), few_labels),
        "counts": np.stack([_histogram(part / unit, settings.bins) for part in (zero, after)], axis=1),
    }


def measure_step(settings: Settings, seeds: tuple[int, ...], where: torch.device) -> dict[str, np.ndarray]:
    """Measure residual, margins and drops after a real first phase, for each of its sizes.

    Args:
        settings: Sizes.
        seeds: Seeds, one member each.
        where: Where to compute.

    Returns:
        ``residual``, ``step_margin``, ``drop`` and ``worst_drop``, each ``(members, ...)``.
    """
    mixture = settings.step_mixture
    batch = samples.draw(mixture, settings.n_samples, seeds, device=where)
    first = samples.draw(mixture, settings.n_first[-1], seeds, purpose="first phase", device=where)
    zero, pull = _parts(mixture, batch, seeds)
    signal = mixture.relevant_fraction / 4 * label_direction(mixture, seeds, device=where)
    m = torch.stack(
        [starts.first_phase_direction(first.tokens[:, :n], first.labels[:, :n]) for n in settings.n_first], dim=1
    )
    residual = m - signal[:, None]
    length = residual.norm(dim=2)
    found = {
        "residual": length,
        "step_margin": (zero[:, None] + torch.einsum("bnd,bsd->bsn", pull, m)).amin(2),
        "drop": -torch.einsum("bnd,bsd->bsn", pull, residual).amin(2) / length,
        "worst_drop": pull.norm(dim=2).amax(1),
    }
    return {name: tensor.cpu().numpy() for name, tensor in found.items()}


def _parts(mixture: Mixture, batch: samples.Drawn, seeds: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    r"""Return the decoder part of the margins, and the vectors whose product with $m$ is the attention part."""
    decoder, key_query = oracle_target(mixture, seeds, device=batch.tokens.device)
    return (
        starts.decoder_part(batch.tokens, batch.labels, decoder),
        starts.key_query_pull(batch.tokens, batch.labels, key_query),
    )


def _histogram(values: Tensor, bins: int) -> np.ndarray:
    """Count the values of each member in bins from -0.5 to 1.5; those outside fall in the outer bins."""
    inside = values.clamp(-0.5 + 1e-9, 1.5 - 1e-9).cpu().numpy()
    return np.array([np.histogram(own, bins=bins, range=(-0.5, 1.5))[0] for own in inside])
