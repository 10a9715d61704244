r"""Tangent-kernel margins at random starts, beside those at zero and after the first phase; the design is ours.

With $\|\tilde\theta_\star\|=\sqrt2$, as in the paper's P3, the margin is $\sqrt2$ times the exact largest one for rules
of unit norm. The gradient in $W_h$ is linear in $U_h$ and that in $U_h$ does not depend on it. So one evaluation at
$\sigma_U=1$ gives the kernel for every scale of the value matrices: $K=K_U+\sigma_U^2K_W$.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core.kernel_margin import NotSeparableError, kernel_margin
from attnbook.core.results import Clock, Measurement, Result, extremes_over_seeds, over_seeds
from attnbook.core.resuming import by_seeds, check_seeds, concatenate
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress, threads
from attnbook.multi_head import network, starts, tangent_kernel
from attnbook.multi_head.data import Mixture
from attnbook.multi_head.experiments import samples

__all__ = ["RandomStarts", "Settings", "run"]


@dataclass(frozen=True)
class Settings:
    r"""Sizes and scales; all are this book's.

    Attributes:
        n_tokens: Tokens of a sample.
        dimension: Dimension of a token.
        n_patterns: Patterns that say nothing.
        pattern_norm: Norm of every pattern.
        relevant_fraction: Share of tokens that carry the label.
        noise: Bound on the noise along patterns, $Z_\mu=Z_\nu$.
        free_noise: Norm of the noise orthogonal to all patterns.
        n_samples: Samples to be separated.
        first_phase_samples: Samples of the first phase.
        heads: Numbers of heads, increasing; the heads of a smaller network are those of a larger one.
        key_query_scales: Standard deviations $\sigma_W$ of the entries of $W_h$, at least 0.
        value_scales: Standard deviations $\sigma_U$ of the entries of $U_h$, positive, increasing.
        seeds: Seeds of patterns, samples and starts.
        chunk: Seeds computed together as one program.
    """

    n_tokens: int = 10
    dimension: int = 12
    n_patterns: int = 4
    pattern_norm: float = 1.5
    relevant_fraction: float = 0.2
    noise: float = 0.1
    free_noise: float = 0.5
    n_samples: int = 40
    first_phase_samples: int = 1000
    heads: tuple[int, ...] = (1, 8, 64)
    key_query_scales: tuple[float, ...] = (0.0, 0.3, 1.0)
    value_scales: tuple[float, ...] = (0.1, 0.3, 1.0)
    seeds: tuple[int, ...] = tuple(range(8))
    chunk: int = 4

    def __post_init__(self) -> None:
        for name, least in {"heads": 1, "key_query_scales": 0, "value_scales": 1e-9}.items():
            values = getattr(self, name)
            if not values or list(values) != sorted(set(values)) or values[0] < least:
                raise ValueError(f"{name}: expected increasing numbers of at least {least:g}, got {values}")
        for name in ("n_samples", "first_phase_samples"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        check_seeds(self.seeds, self.chunk)
        _ = self.mixture

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show little."""
        return cls(n_samples=11, first_phase_samples=100, seeds=(0, 1))

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return more samples in more dimensions."""
        return cls(dimension=50, n_patterns=20, n_samples=200, seeds=tuple(range(20)), chunk=1)

    @property
    def mixture(self) -> Mixture:
        """The data model."""
        return Mixture(
            self.n_tokens,
            self.dimension,
            self.n_patterns,
            self.pattern_norm,
            self.relevant_fraction,
            self.noise,
            self.noise,
            self.free_noise,
        )


@dataclass(frozen=True)
class RandomStarts(Result):
    r"""Margins for targets of norm $\sqrt2$; 0 where the samples are not separable.

    Attributes:
        random: At random starts.
        matched: At random starts whose value matrices are as large, in the mean square over heads, as those after the
            first phase of the same seed.
        matched_scale: The scale $\sigma_U$ of these.
        coin_flips: As ``random``, with a coin flip in the place of every label.
        zero: At zero: a linear rule on the mean token.
        zero_coin_flips: The same with coin flips for labels.
        first_phase: After the first phase; it does not depend on the number of heads.
        first_phase_coin_flips: The same start, with a coin flip in the place of every label it is asked to separate.
    """

    experiment: ClassVar[str] = "multi_head.random_starts"
    settings_type: ClassVar[type] = Settings

    random: Float[np.ndarray, "seeds heads key_query_scales value_scales"]
    matched: Float[np.ndarray, "seeds heads key_query_scales"]
    matched_scale: Float[np.ndarray, " seeds"]
    coin_flips: Float[np.ndarray, "seeds heads key_query_scales value_scales"]
    zero: Float[np.ndarray, " seeds"]
    zero_coin_flips: Float[np.ndarray, " seeds"]
    first_phase: Float[np.ndarray, " seeds"]
    first_phase_coin_flips: Float[np.ndarray, " seeds"]

    def measurements(self) -> dict[str, Measurement]:
        """Return what was found at random starts, by claim id; at the key-query scale 0.3 unless said otherwise."""
        at, most = self.settings.key_query_scales.index(0.3), -1
        names = [f"margin_scale_{scale:g}".replace(".", "_") for scale in self.settings.value_scales]
        spread = self.random[:, :, 0, -1].std(axis=0, ddof=1)
        first = {"mean_margin_first_phase": self.first_phase}
        return {
            "MH-X.5": extremes_over_seeds(smallest_margin=self.random),
            "MH-X.5-scale": over_seeds(**dict(zip(names, self.random[:, most, at].T, strict=True))),
            "MH-X.5-spread": Measurement(
                {"spread_1": float(spread[0]), "spread_64": float(spread[most])}, {}, len(self.random)
            ),
            "MH-X.5-compare": _means(mean_margin_random_64=self.random[:, most, at, 0], **first),
            "MH-X.5-equal-norm": _means(
                mean_margin_matched_64=self.matched[:, most, at], mean_margin_blind_64=self.matched[:, most, 0], **first
            ),
            "MH-X.5-labels": extremes_over_seeds(
                smallest_coin_flip_margin_64=self.coin_flips[:, most, at],
                largest_coin_flip_margin_zero=self.zero_coin_flips,
            ),
            "MH-X.5-labels-few": extremes_over_seeds(
                smallest_coin_flip_margin_1=self.coin_flips[:, 0, at],
                smallest_coin_flip_margin_first_phase=self.first_phase_coin_flips,
            ),
        }


def _means(**samples_: np.ndarray) -> Measurement:
    """Means over seeds in the place of medians."""
    found = over_seeds(**samples_)
    return Measurement({name: float(values.mean()) for name, values in samples_.items()}, found.spread, found.n_seeds)


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> RandomStarts:
    """Compute the margin at every start.

    Args:
        settings: Sizes, scales and seeds.
        device: Where to compute gradients, in float64; default cuda where there is one, else the CPU.
        progress: Told (scales of the key-query matrices done, their number).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
    """
    clock, where = Clock(), samples.double_device(device)

    def measure(seeds: tuple[int, ...], inner: Progress | None) -> dict[str, np.ndarray]:
        drawn = samples.draw(settings.mixture, settings.n_samples, seeds, device=where)
        first = samples.draw(settings.mixture, settings.first_phase_samples, seeds, purpose="first phase", device=where)
        direction = starts.first_phase_direction(first.tokens, first.labels)
        scale = (direction.norm(dim=1) / math.sqrt(settings.dimension)).cpu().numpy()
        labels = {"": drawn.labels.cpu().numpy(), "coin_flips": _coin_flips(settings, seeds)}
        at_scale = []
        for number, key_query_scale in enumerate(settings.key_query_scales, 1):
            at_scale.append(_at_scale(settings, _kernel_parts(settings, key_query_scale, seeds, drawn), labels, scale))
            if inner:
                inner(number, len(settings.key_query_scales))
        # One head: the kernel sees the square of its coefficient only.
        later = starts.first_phase(first.tokens, first.labels, coefficients=direction.new_ones(1))
        zero = {name: torch.zeros_like(tensor) for name, tensor in later.items()}
        gram = _gram(tangent_kernel.tangent_features(zero, drawn.tokens)).cpu().numpy()
        gram_later = _gram(tangent_kernel.tangent_features(later, drawn.tokens)).cpu().numpy()
        return {
            **{name: np.stack([one[name] for one in at_scale], axis=2) for name in at_scale[0]},
            "matched_scale": scale,
            "zero": _margins(gram, labels[""]),
            "zero_coin_flips": _margins(gram, labels["coin_flips"]),
            "first_phase": _margins(gram_later, labels[""]),
            "first_phase_coin_flips": _margins(gram_later, labels["coin_flips"]),
        }

    with threads(1):
        parts = by_seeds(settings, measure, clock=clock, workdir=workdir, progress=progress)
    return RandomStarts(settings=settings, provenance=clock.provenance(where), **concatenate(parts))


def _kernel_parts(
    settings: Settings, key_query_scale: float, seeds: tuple[int, ...], drawn: samples.Drawn
) -> Float[np.ndarray, "parts seeds heads samples samples"]:
    """Kernels of the gradients in the value and in the key-query matrices, for each number of heads, at unit values."""
    most = settings.heads[-1]
    entries = [
        network.draw_parameters(
            most, settings.n_tokens, settings.dimension, scale=1.0, rng=stream(seed, "random start")
        )
        for seed in seeds
    ]
    start = {
        name: to_tensor(np.stack([one[name] for one in entries]), device=drawn.tokens.device, dtype=torch.float64)
        for name in entries[0]
    }
    start["key_query"] = key_query_scale * start["key_query"]
    features = tangent_kernel.tangent_features(start, drawn.tokens).unflatten(2, (most, -1))
    blocks = features.split([settings.n_tokens * settings.dimension, settings.dimension**2], dim=3)
    kernels = [
        torch.stack([_gram(block[:, :, :n_heads].flatten(2)) * most / n_heads for n_heads in settings.heads], dim=1)
        for block in blocks
    ]
    return np.asarray(torch.stack(kernels).cpu().numpy())


def _at_scale(
    settings: Settings, parts: np.ndarray, labels: dict[str, np.ndarray], matched_scale: np.ndarray
) -> dict[str, np.ndarray]:
    """Margins at one key-query scale, ``(seeds, heads)`` and where value scales vary ``(seeds, heads, scales)``."""

    def margins(y: np.ndarray, scale: np.ndarray | float) -> np.ndarray:
        kernels = parts[0] + np.reshape(scale, (-1, 1, 1, 1)) ** 2 * parts[1]
        return np.stack([_margins(kernels[:, i], y) for i in range(len(settings.heads))], axis=1)

    return {
        "random": np.stack([margins(labels[""], scale) for scale in settings.value_scales], axis=2),
        "coin_flips": np.stack([margins(labels["coin_flips"], scale) for scale in settings.value_scales], axis=2),
        "matched": margins(labels[""], matched_scale),
    }


def _coin_flips(settings: Settings, seeds: tuple[int, ...]) -> Float[np.ndarray, "seeds samples"]:
    return np.stack([stream(seed, "coin flips").choice([1.0, -1.0], settings.n_samples) for seed in seeds])


def _gram(features: torch.Tensor) -> torch.Tensor:
    return features @ features.mT


def _margins(
    kernels: Float[np.ndarray, "seeds samples samples"], labels: Float[np.ndarray, "seeds samples"]
) -> Float[np.ndarray, " seeds"]:
    """Largest margins for targets of norm root two; 0 where there is none."""
    found = np.zeros(len(kernels))
    for i, (kernel, y) in enumerate(zip(kernels, labels, strict=True)):
        with contextlib.suppress(NotSeparableError):
            found[i] = math.sqrt(2) * kernel_margin(kernel, y).margin
    return found
