r"""How the properties P1, P2 and P3 of a start are measured: settings, draws of the random step, whole networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.core.resuming import check_seeds
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress
from attnbook.multi_head import layer, starts
from attnbook.multi_head.data import Mixture
from attnbook.multi_head.experiments import samples
from attnbook.multi_head.experiments.targets import best_margin, label_direction, oracle_target
from attnbook.multi_head.tangent_kernel import tangent_features

__all__ = ["Settings", "measure"]


@dataclass(frozen=True)
class Settings:
    r"""Sizes of the experiment, which is this book's; not tuned.

    Attributes:
        n_tokens: Tokens of a sample.
        dimension: Dimension of a token.
        n_patterns: Patterns that say nothing.
        pattern_norm: Norm of every pattern.
        relevant_fraction: Share of tokens that carry the label.
        noise: Bound on the noise along patterns, $Z_\mu=Z_\nu$.
        free_noise: Norm of the noise orthogonal to all patterns.
        n_samples: Training samples $n$ of the second phase.
        n_first: Samples of the first phase; the fewer are the first of the more.
        heads: Numbers of heads, increasing, 64 among them, where signs are compared.
        whole_draws: Draws of the signs for which whole networks are differentiated.
        sign_draws: Draws of the signs for which outputs are measured.
        uniform_heads: Numbers of heads for coefficients uniform on $[-1,1]$, increasing.
        uniform_draws: Draws of these coefficients.
        failure: $\delta$ of P2.
        seeds: Seeds of patterns, samples and coefficients.
        chunk: Seeds computed together.
    """

    n_tokens: int = 10
    dimension: int = 12
    n_patterns: int = 4
    pattern_norm: float = 2.0
    relevant_fraction: float = 0.4
    noise: float = 0.05
    free_noise: float = 0.5
    n_samples: int = 60
    n_first: tuple[int, ...] = (100, 10_000)
    heads: tuple[int, ...] = (1, 4, 16, 64)
    whole_draws: int = 3
    sign_draws: int = 200
    uniform_heads: tuple[int, ...] = (1, 4, 16, 64, 256, 1024)
    uniform_draws: int = 20
    failure: float = 0.05
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    chunk: int = 5

    def __post_init__(self) -> None:
        for name in ("n_first", "heads", "uniform_heads"):
            sizes = getattr(self, name)
            if len(sizes) < 2 or list(sizes) != sorted(set(sizes)) or sizes[0] < 1:
                raise ValueError(f"{name}: expected at least two increasing numbers of at least 1, got {sizes}")
        for name in ("n_samples", "whole_draws", "sign_draws", "uniform_draws"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if 64 not in self.heads or not {4, 1024} <= set(self.uniform_heads):
            raise ValueError(f"heads: the claims need 64, and 4 and 1024 in uniform_heads, got {self.heads}")
        check_seeds(self.seeds, self.chunk)
        _ = self.mixture

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second."""
        return cls(n_samples=20, n_first=(100, 1000), heads=(1, 64), whole_draws=2, seeds=(0, 1), chunk=2)

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return more samples and seeds."""
        return cls(n_samples=200, n_first=(100, 100_000), seeds=tuple(range(20)))

    @property
    def mixture(self) -> Mixture:
        """The data model."""
        sizes = (self.n_tokens, self.dimension, self.n_patterns, self.pattern_norm, self.relevant_fraction)
        return Mixture(*sizes, self.noise, self.noise, self.free_noise)


def measure(
    settings: Settings, where: torch.device, seeds: tuple[int, ...], progress: Progress | None
) -> dict[str, np.ndarray]:
    """Measure norms, outputs and margins at the start for some seeds.

    Args:
        settings: Sizes.
        where: Where to compute.
        seeds: Seeds, one member each.
        progress: Told (first phases done, first phases in all).

    Returns:
        The arrays of :class:`~attnbook.multi_head.experiments.good_start.GoodStart`.
    """
    batch = samples.draw(settings.mixture, settings.n_samples, seeds, device=where)
    firsts, by_first = _first_samples(settings, seeds, where), []
    for number, first in enumerate(firsts, 1):
        by_first.append(_at_start(settings, seeds, batch, first))
        if progress:
            progress(number, len(firsts))
    found = {name: np.stack([one[name] for one in by_first], axis=1) for name in by_first[0]}
    zero = starts.zero(len(seeds), settings.n_tokens, settings.dimension, device=where)
    return {
        **found,
        "sign_sum": _sign_sums(settings, seeds),
        "best_zero": best_margin(tangent_features(zero, batch.tokens), batch.labels),
        **_uniform(settings, seeds, batch, firsts[-1]),
    }


def _first_samples(settings: Settings, seeds: tuple[int, ...], where: torch.device) -> list[samples.Drawn]:
    most = samples.draw(settings.mixture, settings.n_first[-1], seeds, purpose="first phase", device=where)
    return [samples.Drawn(*(part[:, :n] for part in most)) for n in settings.n_first]


def _at_start(
    settings: Settings, seeds: tuple[int, ...], batch: samples.Drawn, first: samples.Drawn
) -> dict[str, np.ndarray]:
    """What is measured after one first phase, each ``(members, ...)``."""
    signal = label_direction(settings.mixture, seeds, device=batch.tokens.device)
    residual = starts.first_phase_direction(first.tokens, first.labels) - settings.relevant_fraction / 4 * signal
    single = _start(first, np.ones(1))
    signed = batch.labels * layer.outputs(single, batch.tokens)
    equal = [layer.outputs(_start(first, np.ones(n)), batch.tokens).abs().amax(1) for n in settings.heads]
    shape = (len(seeds), len(settings.heads), settings.whole_draws)
    margin, best, norm = np.empty(shape), np.empty(shape), np.zeros(len(seeds))
    for index in np.ndindex(shape[1:]):
        n_heads = settings.heads[index[0]]
        signs = stream(settings.seeds[0], "whole signs", n_heads, index[1]).choice([1.0, -1.0], n_heads)
        start = _start(first, signs)
        features = tangent_features(start, batch.tokens)
        target = _target_vector(settings, seeds, signs, batch.tokens.device)
        margin[:, *index] = (batch.labels * torch.einsum("bnf,bf->bn", features, target)).amin(1).cpu().numpy()
        best[:, *index] = best_margin(features, batch.labels)
        norm = np.maximum(norm, start["decoder"].flatten(2).norm(dim=2).amax(1).cpu().numpy())
    return {
        "residual": residual.norm(dim=1).cpu().numpy(),
        "head_norm": norm,
        "one_head_output": signed.abs().amax(1).cpu().numpy(),
        "one_head_right": signed.amin(1).cpu().numpy(),
        "equal_output": torch.stack(equal, dim=1).cpu().numpy(),
        "margin": margin,
        "best": best,
    }


def _start(first: samples.Drawn, coefficients: np.ndarray) -> Parameters:
    alpha = to_tensor(coefficients, device=first.tokens.device, dtype=torch.float64)
    return starts.first_phase(first.tokens, first.labels, coefficients=alpha)


def _target_vector(settings: Settings, seeds: tuple[int, ...], signs: np.ndarray, where: torch.device) -> Tensor:
    r"""Return $\tilde\theta_\star$ of norm $\sqrt2$ in the order of the tangent features."""
    decoder, key_query = oracle_target(settings.mixture, seeds, device=where)
    heads = [torch.cat([decoder.flatten(1), sign * key_query.flatten(1)], dim=1) for sign in signs]
    return torch.cat(heads, dim=1) / len(signs) ** 0.5


def _sign_sums(settings: Settings, seeds: tuple[int, ...]) -> np.ndarray:
    found = np.empty((len(seeds), len(settings.heads), settings.sign_draws))
    for i, seed in enumerate(seeds):
        for j, n_heads in enumerate(settings.heads):
            rng = stream(seed, "signs", n_heads)
            counts = [starts.draw_sign_counts(n_heads, rng=rng) for _ in range(settings.sign_draws)]
            found[i, j] = [(plus - minus) / n_heads**0.5 for plus, minus in counts]
    return found


def _uniform(
    settings: Settings, seeds: tuple[int, ...], batch: samples.Drawn, first: samples.Drawn
) -> dict[str, np.ndarray]:
    """Margins of the target for uniform coefficients, which enter by the mean of their absolute values only."""
    decoder, key_query = oracle_target(settings.mixture, seeds, device=batch.tokens.device)
    m = starts.first_phase_direction(first.tokens, first.labels)
    linear = starts.decoder_part(batch.tokens, batch.labels, decoder)
    attention = torch.einsum("bnd,bd->bn", starts.key_query_pull(batch.tokens, batch.labels, key_query), m)
    shape = (len(seeds), len(settings.uniform_heads), settings.uniform_draws)
    mean, margin = np.empty(shape), np.empty(shape)
    for i, j in np.ndindex(shape[:2]):
        rng = stream(seeds[i], "uniform", settings.uniform_heads[j])
        mean[i, j] = np.abs(rng.uniform(-1, 1, (settings.uniform_draws, settings.uniform_heads[j]))).mean(1)
        margin[i, j] = [float((linear[i] + w * attention[i]).min()) for w in mean[i, j]]
    return {"uniform_mean": mean, "uniform_margin": margin}
