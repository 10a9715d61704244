r"""Definition 1 and Proposition 2: is the start after the first phase a good one (P1, P2, P3)?

Networks with different numbers of heads and different draws of the random step start from the same first-phase
samples. Their head norms, outputs and margins are measured at the training samples of the second phase.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.kernel_margin import kernel_margin
from attnbook.core.results import Clock, Measurement, Result, over_seeds
from attnbook.core.resuming import by_seeds, check_seeds, concatenate
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress, threads
from attnbook.multi_head.data import Mixture
from attnbook.multi_head.experiments import samples
from attnbook.multi_head.experiments.summaries import largest, log_slopes
from attnbook.multi_head.experiments.targets import label_direction, oracle_target
from attnbook.multi_head.models import closed_form, starts, target_margins
from attnbook.multi_head.models.tangent_kernel import tangent_features
from attnbook.multi_head.theory import one_good_step as theory

__all__ = ["GoodStart", "Settings", "run"]


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


@dataclass(frozen=True)
class GoodStart(Result):
    r"""What holds at the start; axes as named, ``first`` the sizes of the first phase.

    Attributes:
        residual: Norm of $p$.
        head_norm: Norm of the largest head, over whole networks.
        one_head_output: Largest $|\tilde\Phi(X_i)|$ with one head.
        one_head_right: Smallest $y_i\tilde\Phi(X_i)$ with one head of positive sign.
        sign_sum: $\sum_h\alpha_h/\sqrt H$ of random signs.
        equal_output: Largest $|\tilde\Phi(X_i)|$ with all signs positive, by whole networks.
        margin: Smallest margin of the target over samples, by whole networks with random signs.
        best: Largest margin that any target of norm $\sqrt2$ has, for the same networks.
        best_zero: The same at zero, where only the decoders have a gradient.
        uniform_margin: Smallest margin of the target for coefficients uniform on $[-1,1]$, the most first samples.
    """

    experiment: ClassVar[str] = "multi_head.good_start"
    settings_type: ClassVar[type] = Settings

    residual: Float[np.ndarray, "seeds first"]
    head_norm: Float[np.ndarray, "seeds first"]
    one_head_output: Float[np.ndarray, "seeds first"]
    one_head_right: Float[np.ndarray, "seeds first"]
    sign_sum: Float[np.ndarray, "seeds heads draws"]
    equal_output: Float[np.ndarray, "seeds first heads"]
    margin: Float[np.ndarray, "seeds first heads draws"]
    best: Float[np.ndarray, "seeds first heads draws"]
    best_zero: Float[np.ndarray, " seeds"]
    uniform_margin: Float[np.ndarray, "seeds uniform_heads draws"]

    @property
    def head_norm_bound(self) -> Float[np.ndarray, "seeds first"]:
        """$B_2$ with the measured residual."""
        return np.vectorize(lambda p: theory.head_norm_bound(self.settings.mixture, float(p)))(self.residual)

    @property
    def output_bound(self) -> Float[np.ndarray, "seeds first"]:
        r"""$B_\Phi$ with the measured residual."""
        s = self.settings
        sizes = {"n_samples": s.n_samples, "failure": s.failure}
        return np.vectorize(lambda p: theory.output_bound(s.mixture, float(p), **sizes))(self.residual)

    @property
    def outputs(self) -> Float[np.ndarray, "seeds first heads draws"]:
        r"""Largest $|\tilde\Phi(X_i)|$ with random signs; all heads have the same output up to their sign."""
        return self.one_head_output[:, :, None, None] * np.abs(self.sign_sum)[:, None]

    @property
    def all_wrong(self) -> Float[np.ndarray, " seeds"]:
        """Share of draws, without ties, in which the start misclassifies every training sample."""
        wrong, decided = (self.sign_sum < 0).sum((1, 2)), (self.sign_sum != 0).sum((1, 2))
        return np.where((self.one_head_right > 0).all(1), wrong / decided, np.nan)

    def relative_spread(self, n_heads: int) -> Float[np.ndarray, " seeds"]:
        """Return the range of the margin over draws of uniform coefficients, over its mean."""
        own = self.uniform_margin[:, self.settings.uniform_heads.index(n_heads)]
        return np.ptp(own, axis=1) / own.mean(1)

    def measurements(self) -> dict[str, Measurement]:
        """Return what was found for Definition 1 and Proposition 2, by claim id."""
        at = self.settings.heads.index(64)
        return {
            "MH-P2.1": largest(largest_ratio=self.head_norm / self.head_norm_bound),
            "MH-P2.2": largest(largest_ratio=self.outputs / self.output_bound[:, :, None, None]),
            "MH-P2.2-signs": over_seeds(
                slope_equal_signs=log_slopes(self.settings.heads, self.equal_output[:, -1]),
                mean_output_random_signs_64=self.outputs[:, -1, at].mean(1),
                output_equal_signs_64=self.equal_output[:, -1, at],
            ),
            "MH-P2.2-coin": over_seeds(share_all_wrong=self.all_wrong),
            "MH-P2.3": largest(largest_margin_spread=np.ptp(self.margin, axis=(2, 3))),
            "MH-P2.3-best": largest(largest_margin_spread=np.ptp(self.best, axis=(2, 3))),
            "MH-P2.3-uniform": over_seeds(
                relative_spread_4=self.relative_spread(4), relative_spread_1024=self.relative_spread(1024)
            ),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> GoodStart:
    """Measure the properties of the start.

    Args:
        settings: Sizes and seeds.
        device: Where to compute, in float64; default cuda where there is one, else the CPU.
        progress: Told (parts done, parts in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
    """
    clock, where = Clock(), samples.double_device(device)

    def measure(seeds: tuple[int, ...], inner: Progress | None) -> dict[str, np.ndarray]:
        batch = samples.draw(settings.mixture, settings.n_samples, seeds, device=where)
        firsts, by_first = _first_samples(settings, seeds, where), []
        for number, first in enumerate(firsts, 1):
            by_first.append(_at_start(settings, seeds, batch, first))
            if inner:
                inner(number, len(firsts))
        found = {name: np.stack([one[name] for one in by_first], axis=1) for name in by_first[0]}
        zero = starts.zero(len(seeds), settings.n_tokens, settings.dimension, device=where)
        return {
            **found,
            "sign_sum": _sign_sums(settings, seeds),
            "best_zero": _best(tangent_features(zero, batch.tokens), batch.labels),
            "uniform_margin": _uniform(settings, seeds, batch, firsts[-1]),
        }

    with threads(1):
        parts = by_seeds(settings, measure, clock=clock, workdir=workdir, progress=progress)
    return GoodStart(settings=settings, provenance=clock.provenance(where), **concatenate(parts))


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
    signed = batch.labels * closed_form.outputs(single, batch.tokens)
    equal = [closed_form.outputs(_start(first, np.ones(n)), batch.tokens).abs().amax(1) for n in settings.heads]
    shape = (len(seeds), len(settings.heads), settings.whole_draws)
    margin, best, norm = np.empty(shape), np.empty(shape), np.zeros(len(seeds))
    for index in np.ndindex(shape[1:]):
        n_heads = settings.heads[index[0]]
        signs = stream(settings.seeds[0], "whole signs", n_heads, index[1]).choice([1.0, -1.0], n_heads)
        start = _start(first, signs)
        features = tangent_features(start, batch.tokens)
        target = _target_vector(settings, seeds, signs, batch.tokens.device)
        margin[:, *index] = (batch.labels * torch.einsum("bnf,bf->bn", features, target)).amin(1).cpu().numpy()
        best[:, *index] = _best(features, batch.labels)
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


def _start(first: samples.Drawn, coefficients: np.ndarray) -> dict[str, Tensor]:
    alpha = to_tensor(coefficients, device=first.tokens.device, dtype=torch.float64)
    return starts.first_phase(first.tokens, first.labels, coefficients=alpha)


def _target_vector(settings: Settings, seeds: tuple[int, ...], signs: np.ndarray, where: torch.device) -> Tensor:
    r"""Return $\tilde\theta_\star$ of norm $\sqrt2$ in the order of the tangent features."""
    decoder, key_query = oracle_target(settings.mixture, seeds, device=where)
    heads = [torch.cat([decoder.flatten(1), sign * key_query.flatten(1)], dim=1) for sign in signs]
    return torch.cat(heads, dim=1) / len(signs) ** 0.5


def _best(features: Tensor, labels: Tensor) -> np.ndarray:
    r"""Return the largest margin of any target of norm $\sqrt2$, for each member."""
    grams, signs = (features @ features.mT).cpu().numpy(), labels.cpu().numpy()
    return np.array([2**0.5 * kernel_margin(gram, own).margin for gram, own in zip(grams, signs, strict=True)])


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
) -> np.ndarray:
    """Margins of the target for uniform coefficients, which enter by the mean of their absolute values only."""
    decoder, key_query = oracle_target(settings.mixture, seeds, device=batch.tokens.device)
    m = starts.first_phase_direction(first.tokens, first.labels)
    linear = target_margins.decoder_part(batch.tokens, batch.labels, decoder)
    attention = torch.einsum("bnd,bd->bn", target_margins.key_query_pull(batch.tokens, batch.labels, key_query), m)
    found = np.empty((len(seeds), len(settings.uniform_heads), settings.uniform_draws))
    for i, seed in enumerate(seeds):
        for j, n_heads in enumerate(settings.uniform_heads):
            draws = stream(seed, "uniform", n_heads).uniform(-1, 1, (settings.uniform_draws, n_heads))
            found[i, j] = [float((linear[i] + w * attention[i]).min()) for w in np.abs(draws).mean(1)]
    return found
