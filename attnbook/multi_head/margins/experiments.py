"""The experiments of the chapter: logits of the oracle, what linear rules separate, and Proposition 3."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr

from attnbook.core.experiment import Arrays, Experiment, highest, lowest
from attnbook.core.kernel_margin import NotSeparableError, kernel_margin
from attnbook.core.runtime import Progress
from attnbook.multi_head import oracle
from attnbook.multi_head.data import Mixture
from attnbook.multi_head.hard_samples import against_attention, against_linear_rules
from attnbook.multi_head.margins.cells import (
    check_increasing,
    draw,
    each,
    noisy,
    patterns_of,
    slope,
    stacked,
    unit_oracle,
)
from attnbook.multi_head.margins.order import Feasibility, MarginOrder
from attnbook.multi_head.measures import leak_and_margin, logit_gaps, needed_scale

__all__ = ["Feasibility", "LinearRules", "MarginOrder", "OracleLogits", "ScaledAttention", "best_on_drawn"]

EIGHTH = 0.125  # the most that Proposition 3 allows of noise along patterns, in units of S^2
LAWS = ["none", "constant", "linear", "quadratic"]  # of the noise in the pattern norm: 0, 0.1, 0.1 S, S^2 / 8
KINDS = ["random", "corners", "hard"]  # noise inside its bounds, at its bounds, chosen against attention


@dataclass(frozen=True, kw_only=True)
class OracleLogits(Experiment):
    r"""Eq. (8): logits $x_t^\top W_\star x_s$, and the smallest gap between a relevant and an irrelevant key."""

    id = "multi_head.oracle_logits"
    summary = "Eq. (8): logits under the oracle key-query matrix, and their smallest gap"
    budget_seconds = 10
    smoke = {"n_samples": 20, "n_corners": 60, "seeds": (0, 1)}

    n_tokens: int = 10  # T
    dimension: int = 12  # d
    n_patterns: int = 4  # M
    relevant_fraction: float = 0.4  # zeta
    free_noise: float = 0.3  # norm of the noise orthogonal to all patterns
    pattern_norms: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0)  # S
    noise_shares: tuple[float, ...] = (0.0, 0.03125, 0.0625, 0.09375, 0.125, 0.1875, 0.25, 0.3125)  # at S = 1
    n_samples: int = 200  # of each law and pattern norm
    n_corners: int = 600  # with noise at its bounds, of each noise share

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.pattern_norms) < 2 or min(self.pattern_norms) <= 0:
            raise ValueError(f"pattern_norms: expected two or more positive numbers, got {self.pattern_norms}")
        if EIGHTH not in self.noise_shares or not all(0 <= share <= 0.5 for share in self.noise_shares):
            raise ValueError(f"noise_shares: expected numbers between 0 and 1/2, 1/8 included, got {self.noise_shares}")

    def mixture(self, pattern_norm: float, noise_share: float) -> Mixture:
        """Return the data of one cell."""
        sizes = self.n_tokens, self.dimension, self.n_patterns, pattern_norm, self.relevant_fraction
        return noisy(Mixture(*sizes, free_noise=self.free_noise), noise_share)

    def stated_gaps(self) -> xr.DataArray:
        """Return the smallest gap that the noise bounds allow, for each noise share."""
        gaps = [oracle.worst_gap(self.mixture(1.0, share)) for share in self.noise_shares]
        return xr.DataArray(gaps, {"noise": list(self.noise_shares)})

    def coordinates(self) -> dict[str, Any]:
        """Name laws of the noise, pattern norms and noise shares."""
        return {"law": LAWS, "norm": list(self.pattern_norms), "noise": list(self.noise_shares)}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Measure logits on drawn samples, and gaps with noise at its bounds."""
        return each(seeds, self._of_seed)

    def _of_seed(self, seed: int) -> Arrays:
        cells = np.array([[self._cell(seed, law, s) for s in self.pattern_norms] for law in LAWS])
        corners = []
        for share in self.noise_shares:
            drawn = draw(self.mixture(1.0, share), seed, self.n_corners, "corners", repr(share), corners=True)
            corners.append(logit_gaps(drawn[1], oracle.key_query(drawn[0])).min())
        patterns = patterns_of(self.mixture(1.0, 0.0), seed)
        w, of_label = oracle.key_query(patterns), patterns.label.T
        return {
            "relevant": (("law", "norm"), cells[..., 0]),  # mean logit
            "irrelevant": (("law", "norm"), cells[..., 1]),  # largest logit in size
            "gap": (("law", "norm"), cells[..., 2]),  # the smallest, in units of S^4
            "corner_gap": (("noise",), corners),
            "as_query": ((), (patterns.other @ w @ of_label).min()),  # scores of nu as a query and mu as a key
            "as_key": ((), np.abs(patterns.other @ w.T @ of_label).max()),  # and the other way round
        }

    def _cell(self, seed: int, law: str, s: float) -> tuple[float, float, float]:
        share = {"none": 0.0, "constant": 0.1 / s**2, "linear": 0.1 / s, "quadratic": EIGHTH}[law]
        patterns, drawn = draw(self.mixture(s, share), seed, self.n_samples, "logits", law)
        w = oracle.key_query(patterns)
        logits = drawn.tokens @ w @ drawn.tokens.swapaxes(1, 2)
        keys = np.broadcast_to(drawn.relevant[:, None], logits.shape)
        return logits[keys].mean(), np.abs(logits[~keys]).max(), logit_gaps(drawn, w).min() / s**4

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off powers of S and gaps."""
        excess = data.corner_gap - self.stated_gaps()
        largest = {law: slope(data.irrelevant.sel(law=law)) for law in LAWS[1:]}
        return {
            "MH-B13.13": {
                "smallest_score_irrelevant_query": lowest(data.as_query),
                "largest_score_irrelevant_key": highest(data.as_key),
            },
            "MH-E8": {
                "slope_relevant": slope(data.relevant.sel(law="constant")),
                "slope_irrelevant": largest["constant"],
            },
            "MH-E8-noise": {
                "slope_linear_noise": largest["linear"], "slope_quadratic_noise": largest["quadratic"],
            },
            "MH-E8-gap": {
                "slope_gap": slope(data.gap * data.norm**2).sel(law="quadratic"),
                "smallest_relative_gap": lowest(data.gap),
            },
            "MH-P3.1-law": {
                "smallest_excess": lowest(excess), "largest_excess": highest(excess),
                "smallest_corner_gap": lowest(data.corner_gap.sel(noise=EIGHTH)),
            },
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LinearRules(Experiment):
    """What a linear rule separates and what attention does, against the noise; S = 1."""

    id = "multi_head.linear_rules"
    summary = "What linear rules separate and what attention does, against the noise"
    budget_seconds = 10
    smoke = {"n_samples": 5, "noise_shares": (0.0, 0.05, 0.125), "seeds": (0, 1)}

    n_tokens: int = 20  # T
    dimension: int = 16  # d
    n_patterns: int = 4  # M
    free_noise: float = 0.3  # norm of the noise orthogonal to all patterns
    relevant_fractions: tuple[float, ...] = (0.05, 0.1, 0.3)  # zeta, increasing
    noise_shares: tuple[float, ...] = tuple(round(0.0125 * i, 4) for i in range(11))  # up to 1/8
    leak: float = 0.01  # the epsilon whose scale attention has
    n_samples: int = 40  # of each cell with noise inside its bounds, and as many with noise at them
    drawn_samples: tuple[int, ...] = (100, 400)  # samples that linear rules are fitted to, at the largest noise

    def __post_init__(self) -> None:
        super().__post_init__()
        check_increasing(self, "relevant_fractions", "noise_shares", "drawn_samples")

    def mixture(self, relevant_fraction: float, noise_share: float) -> Mixture:
        """Return the data of one cell."""
        sizes = self.n_tokens, self.dimension, self.n_patterns, 1.0, relevant_fraction
        return noisy(Mixture(*sizes, free_noise=self.free_noise), noise_share)

    def stated(self) -> xr.DataArray:
        r"""Return $\gamma_{lin}$ of each cell."""
        margins = [[oracle.linear_margin(self.mixture(z, share)) for share in self.noise_shares] for z in self._shares]
        return xr.DataArray(margins, {"fraction": self._shares, "noise": list(self.noise_shares)})

    @property
    def _shares(self) -> list[float]:
        return list(self.relevant_fractions)

    def limit(self) -> float:
        r"""Return $\gamma_{attn}$."""
        return oracle.attention_margin(self.mixture(self.relevant_fractions[0], 0.0))

    def coordinates(self) -> dict[str, Any]:
        """Name shares of relevant tokens, noise shares, numbers of samples and rules."""
        rules = {"size": list(self.drawn_samples), "rule": ["mean token", "positions"]}
        return {"fraction": self._shares, "noise": list(self.noise_shares)} | rules

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Measure margins with uniform and with saturated attention, and the best ones of all linear rules."""
        return each(seeds, self._of_seed)

    def _of_seed(self, seed: int) -> Arrays:
        cells = [[self._cell(self.mixture(z, share), seed) for share in self.noise_shares] for z in self._shares]
        loud = [self.mixture(z, self.noise_shares[-1]) for z in self._shares]
        drawn = [[best_on_drawn(mixture, n, seed) for n in self.drawn_samples] for mixture in loud]
        uniform, attention, best = np.moveaxis(np.array(cells), -1, 0)
        axes = ("fraction", "noise")
        return {
            "uniform": (axes, uniform), "attention": (axes, attention), "best": (axes, best),
            "best_drawn": (("fraction", "size", "rule"), drawn),  # 0 where no rule separates
        }  # fmt: skip

    def _cell(self, mixture: Mixture, seed: int) -> tuple[float, float, float]:
        """Smallest margins with uniform and scaled attention, and the best linear rule's on the samples against it."""
        patterns = patterns_of(mixture, seed)
        kinds = [draw(mixture, seed, self.n_samples, "margins", corners=corners)[1] for corners in (False, True)]
        against = [against_linear_rules(mixture, patterns, sign=sign) for sign in (1.0, -1.0)]
        u, w = unit_oracle(patterns, mixture)
        scales, every = (0.0, oracle.stated_scale(mixture, self.leak)), [*kinds, *against]
        every.append(against_attention(mixture, patterns))
        uniform, attention = (min(leak_and_margin(drawn, u, g * w)[1] for drawn in every) for g in scales)
        features = np.concatenate([drawn.tokens.reshape(len(drawn.tokens), -1) for drawn in against])
        return uniform, attention, best_linear(features, np.concatenate([drawn.labels for drawn in against]))

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Hold margins against the linear one, and the best rules on drawn samples against the attention margin."""
        stated, share = self.stated(), data.best_drawn.isel(fraction=0) / self.limit()
        few, many = share.isel(size=0), share.isel(size=-1)
        return {
            "MH-A3-linear": {"smallest_margin_minus_bound": lowest(data.uniform - stated)},
            "MH-A3-linear-best": {
                "largest_difference": highest(abs(data.best - stated.clip(0))),
                "smallest_stated_margin": stated.min(), "largest_stated_margin": stated.max(),
                "smallest_share_few": lowest(few), "smallest_share_many": lowest(many.sel(rule="positions")),
                "largest_share_many": highest(many),
            },
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ScaledAttention(Experiment):
    """Proposition 3: how strongly attention must be scaled, and what margin it then has, at the largest noise."""

    id = "multi_head.margins"
    summary = "Proposition 3: how strongly attention must be scaled, and its margin"
    budget_seconds = 10
    smoke = {"n_samples": 20, "seeds": (0, 1)}

    n_tokens: int = 20  # T
    dimension: int = 16  # d
    n_patterns: int = 4  # M
    free_noise: float = 0.3  # norm of the noise orthogonal to all patterns
    pattern_norms: tuple[float, ...] = (1.0, 2.0)  # S
    relevant_fractions: tuple[float, ...] = (0.05, 0.1, 0.3)  # zeta
    leaks: tuple[float, ...] = (0.3, 0.1, 0.01)  # epsilon, decreasing
    n_samples: int = 300  # of each cell and kind of noise

    def mixture(self, pattern_norm: float, relevant_fraction: float) -> Mixture:
        """Return the data of one cell."""
        sizes = self.n_tokens, self.dimension, self.n_patterns, pattern_norm, relevant_fraction
        return noisy(Mixture(*sizes, free_noise=self.free_noise), EIGHTH)

    def stated(self, of: Callable[[Mixture, float], float]) -> xr.DataArray:
        """Return a quantity of theory, from a mixture and a leak, in all cells."""
        cells = [[self.mixture(s, z) for z in self.relevant_fractions] for s in self.pattern_norms]
        values = [[[of(mixture, leak) for leak in self.leaks] for mixture in row] for row in cells]
        return xr.DataArray(values, {name: self.coordinates()[name] for name in ("norm", "fraction", "epsilon")})

    def coordinates(self) -> dict[str, Any]:
        """Name kinds of noise, pattern norms, shares of relevant tokens and allowed leaks."""
        axes = {"norm": self.pattern_norms, "fraction": self.relevant_fractions, "epsilon": self.leaks}
        return {"kind": KINDS} | {name: list(values) for name, values in axes.items()}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Measure leaks, margins and needed scales of the oracle parameters."""
        return each(seeds, self._of_seed)

    def _of_seed(self, seed: int) -> Arrays:
        norms = self.pattern_norms
        rows = [stacked("fraction", [self._cell(seed, s, z) for z in self.relevant_fractions]) for s in norms]
        return stacked("norm", rows)

    def _cell(self, seed: int, s: float, zeta: float) -> Arrays:
        mixture = self.mixture(s, zeta)
        patterns = patterns_of(mixture, seed)
        u, w = unit_oracle(patterns, mixture)
        drawn = [draw(mixture, seed, self.n_samples, kind, corners=kind == "corners")[1] for kind in KINDS[:2]]
        kinds = [*drawn, against_attention(mixture, patterns)]
        scales = [*(oracle.stated_scale(mixture, leak) for leak in self.leaks), 0.0]
        at = np.array([[leak_and_margin(drawn, u, g * w) for g in scales] for drawn in kinds])
        needed = [[needed_scale(logit_gaps(k, w), mixture.n_relevant, leak) for leak in self.leaks] for k in kinds]
        return {
            "leak": (("kind", "epsilon"), at[:, :-1, 0]),  # largest attention of a query on irrelevant keys
            "margin": (("kind", "epsilon"), at[:, :-1, 1]),  # the smallest
            "needed": (("kind", "epsilon"), needed),  # smallest scale that keeps the leak at epsilon
            "uniform": (("kind",), at[:, -1, 1]),  # smallest margin with uniform attention
            # With uniform attention the leak is 1 - zeta exactly, and these samples have the worst noise.
            "worst_uniform": ((), leak_and_margin(against_linear_rules(mixture, patterns), u, 0 * w)[1]),
        }

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Hold leaks, margins and scales against those of Proposition 3 and of this book."""
        of_stated = data.needed.sel(kind="random") / self.stated(oracle.stated_scale)
        of_sharp = data.needed / self.stated(oracle.sharp_scale)
        bound = self.stated(lambda mixture, leak: oracle.attention_margin(mixture, leak=leak))
        limit = self.stated(lambda mixture, leak: oracle.attention_margin(mixture)).isel(epsilon=-1)
        leak, ratio = 1 - data.fraction, EIGHTH * data.norm  # the second is Z_mu / S
        forms = {"with_square": 1 - leak * (1 + 2 * EIGHTH), "printed": 1 - leak * (1 + 2 * ratio)}
        errors = {f"error_{name}": abs(data.worst_uniform / limit - form) for name, form in forms.items()}
        return {
            "MH-P3.1": {"largest_leak_over_epsilon": highest(data.leak / data.epsilon)},
            "MH-P3.1-sharp": {
                "largest_needed_fraction": highest(of_sharp),
                "smallest_needed_fraction_hard": lowest(of_sharp.sel(kind="hard")),
                "smallest_share_of_stated": lowest(of_stated), "largest_share_of_stated": highest(of_stated),
            },
            "MH-P3.2": {
                "smallest_margin_minus_bound": lowest(data.margin - bound),
                "smallest_share_of_limit": lowest(data.margin.isel(epsilon=-1) / limit),
                "largest_uniform_sparsest": highest(data.uniform.isel(fraction=0).min("kind")),
            },
            "MH-B13.7": {name: highest(error.sel(norm=self.pattern_norms[-1])) for name, error in errors.items()},
        }  # fmt: skip


def best_on_drawn(mixture: Mixture, n_samples: int, seed: int) -> tuple[float, float]:
    """Return the largest margins of linear rules on drawn samples: on the mean token, and with weights by position."""
    drawn = draw(mixture, seed, n_samples, "drawn", n_samples)[1]
    # A rule with equal rows v gives T <v, mean token> and has norm sqrt(T) |v|.
    mean = np.sqrt(mixture.n_tokens) * drawn.tokens.mean(axis=1)
    return best_linear(mean, drawn.labels), best_linear(drawn.tokens.reshape(n_samples, -1), drawn.labels)


def best_linear(features: np.ndarray, labels: np.ndarray) -> float:
    """Return the largest margin of any linear rule; 0 if there is none."""
    try:
        return kernel_margin(features @ features.T, labels).margin
    except NotSeparableError:
        return 0.0
