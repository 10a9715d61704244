"""The data of this paper: tokens that are patterns, some of which carry the label."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnbook.core.rng import stream
from attnbook.multi_head.checks import at_least, positive, whole

__all__ = ["Drawn", "Mixture", "Patterns", "Samples", "draw", "draw_patterns", "draw_samples"]


@dataclass(frozen=True)
class Mixture:
    r"""Sizes of the tokenised mixture (the paper's data model with Assumption 3).

    A relevant token is the pattern of its label, $x_t=\mu_y$, without noise. Any other is $x_t=\nu_j+z_t$ with $j$
    uniform. The noise is ours, made so that every bound holds on every draw:
    $z=\sum_p\frac{a_p}{S^2}p+Z_\perp v$ with $a_p$ uniform up to the bound for pattern $p$, and $v$ uniform on the unit
    sphere orthogonal to all patterns.

    Attributes:
        n_tokens: Tokens $T$ of a sample, at least 1.
        dimension: Dimension $d$ of a token: at least ``n_patterns + 2``, one more when ``free_noise`` is positive.
        n_patterns: Number $M$ of patterns that say nothing, at least 1.
        pattern_norm: Norm $S$ of every pattern, positive; default 1.
        relevant_fraction: Share $\zeta$ of relevant tokens; ``n_tokens`` times it must be whole and at least 1.
        label_noise: Bound $Z_\mu$ on the product of noise and a label pattern; default 0.
        other_noise: Bound $Z_\nu$ on $M$ times the product of noise and another pattern; default 0.
        free_noise: Norm $Z_\perp$ of the noise orthogonal to all patterns; default 0.
    """

    n_tokens: int
    dimension: int
    n_patterns: int
    pattern_norm: float = 1.0
    relevant_fraction: float = 0.2
    label_noise: float = 0.0
    other_noise: float = 0.0
    free_noise: float = 0.0

    def __post_init__(self) -> None:
        whole(n_tokens=self.n_tokens, dimension=self.dimension, n_patterns=self.n_patterns)
        at_least(0, label_noise=self.label_noise, other_noise=self.other_noise, free_noise=self.free_noise)
        positive(pattern_norm=self.pattern_norm)
        relevant, needed = self.relevant_fraction * self.n_tokens, self.n_patterns + 2 + (self.free_noise > 0)
        if not (0 < relevant <= self.n_tokens and abs(relevant - round(relevant)) < 1e-9):
            expected = f"a share of {self.n_tokens} tokens that is a whole number, at least 1"
            raise ValueError(f"relevant_fraction: expected {expected}, got {self.relevant_fraction}")
        if self.dimension < needed:
            room = "room for orthogonal patterns and free noise"
            raise ValueError(f"dimension: expected at least {needed}, {room}, got {self.dimension}")

    @property
    def n_relevant(self) -> int:
        r"""Relevant tokens of a sample, $\zeta T$."""
        return round(self.relevant_fraction * self.n_tokens)

    @property
    def noise_norm(self) -> float:
        r"""The bound $Z$ on the norm of the noise, $Z^2=(2Z_\mu^2+Z_\nu^2/M)/S^2+Z_\perp^2$."""
        on_patterns = 2 * self.label_noise**2 + self.other_noise**2 / self.n_patterns
        return math.sqrt(on_patterns / self.pattern_norm**2 + self.free_noise**2)

    @property
    def token_norm(self) -> float:
        r"""The bound on the norm of a token, $R=\max(1,\sqrt{S^2+Z^2+2Z_\nu/M})$ (Assumption 1 asks for $R\ge1$)."""
        square = self.pattern_norm**2 + self.noise_norm**2 + 2 * self.other_noise / self.n_patterns
        return max(1.0, math.sqrt(square))


class Patterns(NamedTuple):
    r"""Orthogonal patterns of equal norm.

    Attributes:
        label: $\mu_+$ and $\mu_-$, in this order.
        other: $\nu_1,\dots,\nu_M$.
    """

    label: Float[np.ndarray, "2 dimension"]
    other: Float[np.ndarray, "patterns dimension"]


class Samples(NamedTuple):
    """Labelled samples.

    Attributes:
        tokens: The tokens.
        labels: 1 or -1.
        relevant: Which tokens carry the label.
    """

    tokens: Float[np.ndarray, "samples tokens dimension"]
    labels: Float[np.ndarray, " samples"]
    relevant: Bool[np.ndarray, "samples tokens"]


def draw_patterns(mixture: Mixture, *, rng: np.random.Generator) -> Patterns:
    """Draw orthogonal patterns of norm ``pattern_norm`` in a uniformly random orientation.

    Args:
        mixture: Sizes.
        rng: Source of randomness.

    Returns:
        The patterns.
    """
    basis, triangle = np.linalg.qr(rng.standard_normal((mixture.dimension, mixture.dimension)))
    basis = basis * np.sign(np.diag(triangle))  # without the signs the law would not be uniform
    rows = mixture.pattern_norm * basis.T[: mixture.n_patterns + 2]
    return Patterns(rows[:2], rows[2:])


def draw_samples(
    mixture: Mixture, patterns: Patterns, n_samples: int, *, rng: np.random.Generator, corners: bool = False
) -> Samples:
    """Draw labelled samples: equiprobable labels, relevant positions drawn afresh for each sample.

    Args:
        mixture: Sizes.
        patterns: Those of :func:`draw_patterns`.
        n_samples: Number of samples, at least 1.
        rng: Source of randomness.
        corners: Whether every product of noise and a pattern is at its bound, with a random sign; default uniform.

    Returns:
        The samples.

    Raises:
        ValueError: If ``n_samples`` is not at least 1 or the patterns do not fit the mixture.

    Example:
        >>> mixture, rng = Mixture(5, 7, 3), np.random.default_rng(0)
        >>> samples = draw_samples(mixture, draw_patterns(mixture, rng=rng), 4, rng=rng)
        >>> samples.tokens.shape, samples.relevant.sum(1).tolist()
        ((4, 5, 7), [1, 1, 1, 1])
    """
    whole(n_samples=n_samples)
    expected = mixture.n_patterns, mixture.dimension
    if patterns.other.shape != expected:
        raise ValueError(f"patterns: expected other patterns of shape {expected}, got {patterns.other.shape}")
    labels = rng.choice([1.0, -1.0], n_samples)
    relevant = rng.random((n_samples, mixture.n_tokens)).argsort(axis=1) < mixture.n_relevant
    plain = patterns.other[rng.integers(mixture.n_patterns, size=relevant.shape)]

    everything = np.concatenate(patterns)
    bounds = np.full(len(everything), mixture.other_noise / mixture.n_patterns)
    bounds[:2] = mixture.label_noise
    products = rng.uniform(-1.0, 1.0, (*relevant.shape, len(everything)))
    products = np.copysign(1.0, products) if corners else products
    noise = products * bounds @ everything / mixture.pattern_norm**2
    free = rng.standard_normal(plain.shape)
    if mixture.free_noise:
        free -= free @ everything.T @ everything / mixture.pattern_norm**2
        noise += mixture.free_noise / np.linalg.norm(free, axis=-1, keepdims=True) * free
    of_label = patterns.label[(labels < 0).astype(int)][:, None]
    return Samples(np.where(relevant[..., None], of_label, plain + noise), labels, relevant)


class Drawn(NamedTuple):
    """:class:`Samples` of some seeds, one member each, in double precision; the first two entries are a batch."""

    tokens: Float[Tensor, "members samples tokens dimension"]
    labels: Float[Tensor, "members samples"]
    relevant: Bool[Tensor, "members samples tokens"]


def draw(
    mixture: Mixture,
    n_samples: int,
    seeds: Sequence[int],
    *,
    purpose: str = "samples",
    device: torch.device | None = None,
) -> Drawn:
    """Return :func:`draw_samples` for each of some seeds.

    Args:
        mixture: Sizes.
        n_samples: Number of samples of each seed.
        seeds: One member each.
        purpose: The patterns of a seed are the same for every purpose; another one gives fresh samples.
        device: Where the tensors are; default the CPU.

    Returns:
        The samples.
    """
    found = []
    for seed in seeds:
        patterns = draw_patterns(mixture, rng=stream(seed, "patterns"))
        found.append(draw_samples(mixture, patterns, n_samples, rng=stream(seed, purpose)))
    return Drawn(*(torch.from_numpy(np.stack(part)).to(device or "cpu") for part in zip(*found, strict=True)))
