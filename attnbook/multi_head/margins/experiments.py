"""The experiments of the chapter: the oracle's logits, linear rules, Proposition 3, and the order of three margins."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
import xarray as xr

from attnbook.core.experiment import Arrays, highest, lowest
from attnbook.core.runtime import Progress
from attnbook.multi_head import oracle
from attnbook.multi_head.checks import containing, increasing
from attnbook.multi_head.data import Mixture
from attnbook.multi_head.experiment_parts import Gridded, slope
from attnbook.multi_head.feasibility import allowed_constant, constant_limits
from attnbook.multi_head.hard_samples import against_attention, against_linear_rules
from attnbook.multi_head.margins.cells import SeedBySeed, draw, linearised_margins, unit_oracle
from attnbook.multi_head.measures import leak_and_margin, logit_gaps
from attnbook.multi_head.tangent_kernel import largest_margins

__all__ = ["Feasibility", "LinearRules", "MarginOrder", "OracleLogits", "ScaledAttention"]

EIGHTH = 0.125  # the most that Proposition 3 allows of noise along patterns, in units of S^2
CELLS = ["no noise", "noise", "residual"]  # where the formula for the tangent margin is held against the linear one
LAWS = ["none", "constant", "linear", "quadratic"]  # of the noise in the pattern norm: 0, 0.1, 0.1 S, S^2 / 8


@dataclass(frozen=True, kw_only=True)
class OracleLogits(SeedBySeed):
    r"""Eq. (8): logits $x_t^\top W_\star x_s$, and the smallest gap between a relevant and an irrelevant key."""

    id = "multi_head.oracle_logits"
    summary = "Eq. (8): logits under the oracle key-query matrix, and their smallest gap"
    needs = "cpu"
    smoke = {"n_samples": 20, "n_corners": 60, "seeds": (0, 1)}
    axes = {"norm": "pattern_norms", "noise": "noise_shares"}
    labels = {"law": LAWS}

    n_tokens: int = 10  # T
    dimension: int = 12  # d
    relevant_fraction: float = 0.4  # zeta
    pattern_norms: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0)  # S
    noise_shares: tuple[float, ...] = (0.0, 0.03125, 0.0625, 0.09375, 0.125, 0.1875, 0.25, 0.3125)  # at S = 1
    n_samples: int = 200  # of each law and pattern norm
    n_corners: int = 600  # with noise at its bounds, of each noise share

    def __post_init__(self) -> None:
        super().__post_init__()
        containing([EIGHTH], noise_shares=self.noise_shares)
        increasing(1e-9, count=2, pattern_norms=self.pattern_norms)  # for a slope

    def of(self, noise_share: float, pattern_norm: float = 1.0) -> Mixture:
        """Return the data at some noise."""
        return self.mixture(pattern_norm, self.relevant_fraction, noise_share)

    def one_seed(self, seed: int) -> Arrays:
        """Measure logits on drawn samples, and gaps with noise at its bounds."""

        def of_law(law: str, s: float) -> Arrays:
            share = {"none": 0.0, "constant": 0.1 / s**2, "linear": 0.1 / s, "quadratic": EIGHTH}[law]
            patterns, drawn = draw(self.of(share, s), seed, self.n_samples, "logits", law)
            w = oracle.key_query(patterns)
            logits = drawn.tokens @ w @ drawn.tokens.swapaxes(1, 2)
            keys = np.broadcast_to(drawn.relevant[:, None], logits.shape)
            return {
                "relevant": ((), logits[keys].mean()),
                "irrelevant": ((), np.abs(logits[~keys]).max()),  # the largest in size
                "gap": ((), logit_gaps(drawn, w).min() / s**4),  # the smallest
            }

        def at_corners(share: float) -> Arrays:
            patterns, drawn = draw(self.of(share), seed, self.n_corners, "corners", repr(share), corners=True)
            return {"corner_gap": ((), logit_gaps(drawn, oracle.key_query(patterns)).min())}

        patterns = draw(self.of(0.0), seed, 1)[0]
        w, of_label = oracle.key_query(patterns), patterns.label.T
        scores: Arrays = {
            "as_query": ((), (patterns.other @ w @ of_label).min()),  # of nu as a query and mu as a key
            "as_key": ((), np.abs(patterns.other @ w.T @ of_label).max()),  # and the other way round
        }
        return scores | self.grid(("law", "norm"), of_law) | self.grid(("noise",), at_corners)

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off powers of S and gaps."""
        excess = data.corner_gap - self.stated(("noise",), lambda share: oracle.worst_gap(self.of(share)))
        largest = {law: slope(data.irrelevant.sel(law=law), "norm") for law in LAWS[1:]}
        return {
            "MH-B13.13": {
                "smallest_score_irrelevant_query": lowest(data.as_query),
                "largest_score_irrelevant_key": highest(data.as_key),
            },
            "MH-E8": {
                "slope_relevant": slope(data.relevant.sel(law="constant"), "norm"),
                "slope_irrelevant": largest["constant"],
            },
            "MH-E8-noise": {f"slope_{law}_noise": largest[law] for law in ("linear", "quadratic")},
            "MH-E8-gap": {
                "slope_gap": slope(data.gap * data.norm**2, "norm").sel(law="quadratic"),
                "smallest_relative_gap": lowest(data.gap),
            },
            "MH-P3.1-law": {
                "smallest_excess": lowest(excess), "largest_excess": highest(excess),
                "smallest_corner_gap": lowest(data.corner_gap.sel(noise=EIGHTH)),
            },
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LinearRules(SeedBySeed):
    """What a linear rule separates and what attention does, against the noise; S = 1."""

    id = "multi_head.linear_rules"
    summary = "What linear rules separate and what attention does, against the noise"
    needs = "cpu"
    smoke = {"n_samples": 5, "noise_shares": (0.0, 0.05, 0.125), "seeds": (0, 1)}
    axes = {"fraction": "relevant_fractions", "noise": "noise_shares"}

    relevant_fractions: tuple[float, ...] = (0.05, 0.1, 0.3)  # zeta, increasing
    noise_shares: tuple[float, ...] = tuple(round(0.0125 * i, 4) for i in range(11))  # up to 1/8
    leak: float = 0.01  # the epsilon whose scale attention has
    n_samples: int = 40  # of each cell with noise inside its bounds, and as many with noise at them

    def one_seed(self, seed: int) -> Arrays:
        """Measure margins with uniform and with saturated attention, and the best ones of all linear rules."""

        def margins(zeta: float, share: float) -> Arrays:
            mixture = self.mixture(1.0, zeta, share)
            patterns, inside = draw(mixture, seed, self.n_samples, "margins")
            at_bounds = draw(mixture, seed, self.n_samples, "margins", corners=True)[1]
            against = [against_linear_rules(mixture, patterns, sign=sign) for sign in (1.0, -1.0)]
            every = [inside, at_bounds, *against, against_attention(mixture, patterns)]
            u, w = unit_oracle(patterns, mixture)
            scales = 0.0, oracle.stated_scale(mixture, self.leak)
            uniform, attention = (min(leak_and_margin(drawn, u, g * w)[1] for drawn in every) for g in scales)
            features = np.concatenate([drawn.tokens.reshape(len(drawn.tokens), -1) for drawn in against])
            labels = np.concatenate([drawn.labels for drawn in against])
            best = largest_margins((features @ features.T)[None], labels[None])[0]  # 0 where no rule separates
            return {"uniform": ((), uniform), "attention": ((), attention), "best": ((), best)}

        return self.grid(("fraction", "noise"), margins)

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Hold margins against the linear one."""
        stated = self.stated(("fraction", "noise"), lambda z, share: oracle.linear_margin(self.mixture(1.0, z, share)))
        return {
            "MH-A3-linear": {"smallest_margin_minus_bound": lowest(data.uniform - stated)},
            "MH-A3-linear-best": {
                "largest_difference": highest(abs(data.best - stated.clip(0))),
                "smallest_stated_margin": stated.min(), "largest_stated_margin": stated.max(),
            },
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ScaledAttention(SeedBySeed):
    """Proposition 3 at the largest noise: where attention looks when it is scaled as stated, and its margin."""

    id = "multi_head.margins"
    summary = "Proposition 3: leak and margin of attention that is scaled as stated"
    needs = "cpu"
    smoke = {"n_samples": 20, "seeds": (0, 1)}
    axes = {"norm": "pattern_norms", "fraction": "relevant_fractions", "epsilon": "leaks"}
    falling = ("leaks",)

    pattern_norms: tuple[float, ...] = (1.0, 2.0)  # S
    relevant_fractions: tuple[float, ...] = (0.05, 0.1, 0.3)  # zeta
    leaks: tuple[float, ...] = (0.3, 0.1, 0.01)  # epsilon, decreasing
    n_samples: int = 300  # of each cell and kind of noise

    def one_seed(self, seed: int) -> Arrays:
        """Measure leaks and margins of the oracle parameters."""

        def cell(s: float, zeta: float) -> Arrays:
            mixture = self.mixture(s, zeta, EIGHTH)
            patterns, inside = draw(mixture, seed, self.n_samples, "random")
            at_bounds = draw(mixture, seed, self.n_samples, "corners", corners=True)[1]
            every = inside, at_bounds, against_attention(mixture, patterns)
            u, w = unit_oracle(patterns, mixture)
            scaled = [oracle.stated_scale(mixture, leak) * w for leak in self.leaks]
            at = np.array([[leak_and_margin(drawn, u, one) for one in scaled] for drawn in every])
            # With uniform attention the leak is 1 - zeta exactly, and these samples have the worst noise.
            worst = against_linear_rules(mixture, patterns)
            return {
                "leak": (("epsilon",), at[..., 0].max(axis=0)),  # largest attention of a query on irrelevant keys
                "margin": (("epsilon",), at[..., 1].min(axis=0)),  # the smallest
                "uniform": ((), min(leak_and_margin(drawn, u, 0 * w)[1] for drawn in every)),  # with uniform attention
                "worst_uniform": ((), leak_and_margin(worst, u, 0 * w)[1]),
            }

        return self.grid(("norm", "fraction"), cell)

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Hold leaks and margins against those of Proposition 3, and uniform attention against two readings."""
        bound = self.stated(
            ("norm", "fraction", "epsilon"),
            lambda s, zeta, leak: oracle.attention_margin(self.mixture(s, zeta, EIGHTH), leak=leak),
        )
        limit = data.norm * np.sqrt(self.n_tokens / 2)
        leak, ratio = 1 - data.fraction, EIGHTH * data.norm  # the second is Z_mu / S
        forms = {"with_square": 1 - leak * (1 + 2 * EIGHTH), "printed": 1 - leak * (1 + 2 * ratio)}
        errors = {f"error_{name}": abs(data.worst_uniform / limit - form) for name, form in forms.items()}
        return {
            "MH-P3.1": {"largest_leak_over_epsilon": highest(data.leak / data.epsilon)},
            "MH-P3.2": {
                "smallest_margin_minus_bound": lowest(data.margin - bound),
                "smallest_share_of_limit": lowest(data.margin.isel(epsilon=-1) / limit),
                "largest_uniform_sparsest": highest(data.uniform.isel(fraction=0)),
            },
            "MH-B13.7": {name: highest(error.sel(norm=self.pattern_norms[-1])) for name, error in errors.items()},
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class MarginOrder(SeedBySeed):
    r"""Is $\gamma_{attn}\ge\gamma_\star\ge\gamma_{lin}$? One head: margins do not depend on how many there are."""

    id = "multi_head.margin_order"
    summary = "Sections 5.3 and 7: the order of three margins, and when it flips"
    needs = "cpu"
    smoke = {"pattern_norms": (1.0, 2.0, 3.0, 6.0), "n_samples": 10, "seeds": (0, 1)}
    axes = {"fraction": "relevant_fractions", "norm": "pattern_norms", "step": "steps"}
    labels = {"cell": CELLS}

    n_tokens: int = 10  # T
    dimension: int = 12  # d
    pattern_norms: tuple[float, ...] = (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 5.5, 6.0)  # S
    relevant_fractions: tuple[float, ...] = (0.1, 0.2, 0.3, 0.5)  # zeta, increasing
    steps: tuple[float, ...] = (0.25, 1.0, 4.0)  # c, 1 among them
    noisy_norm: float = 2.0  # S of the three cells in which the formula (7) is held against the linear margin
    noisy_fraction: float = 0.4  # zeta there
    noise_share: float = 0.1  # noise along patterns in the second of them, in units of S^2
    residual: float = 0.001  # P in the third
    free_noise: float = 0.5  # in the third
    n_samples: int = 60  # of each cell

    def __post_init__(self) -> None:
        super().__post_init__()
        containing([1.0], steps=self.steps)

    def quiet(self, relevant_fraction: float, pattern_norm: float) -> Mixture:
        """Return the data of one cell, without noise."""
        return replace(self.mixture(pattern_norm, relevant_fraction, 0.0), free_noise=0.0)

    def special(self, cell: str) -> tuple[Mixture, float]:
        """Return the data of one of the three cells, and the residual of the first step there."""
        free = self.mixture(self.noisy_norm, self.noisy_fraction, self.noise_share if cell == "noise" else 0.0)
        return (free, self.residual) if cell == "residual" else (replace(free, free_noise=0.0), 0.0)

    def of_theory(self, of: Callable[[Mixture], float]) -> xr.DataArray:
        """Return a quantity of theory in all cells without noise."""
        return self.stated(("fraction", "norm"), lambda zeta, s: of(self.quiet(zeta, s)))

    def one_seed(self, seed: int) -> Arrays:
        """Measure the margins of a network and of its linearisation."""

        def cell(zeta: float, s: float) -> Arrays:
            tangent, uniform = linearised_margins(self.quiet(zeta, s), seed, self.n_samples, self.steps)
            return {"tangent": (("step",), tangent), "uniform": ((), uniform)}

        def special(name: str) -> Arrays:
            mixture, residual = self.special(name)
            tangent, uniform = linearised_margins(mixture, seed, self.n_samples, (1.0,), residual)
            return {"noisy_tangent": ((), tangent[0]), "noisy_uniform": ((), uniform)}

        return self.grid(("fraction", "norm"), cell) | self.grid(("cell",), special)

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Count cells on the wrong side of a threshold, and hold margins against each other."""
        network, cells = self.of_theory(oracle.attention_margin), ("fraction", "norm")
        above, one = data.tangent > network, data.tangent.sel(step=1.0)
        beyond = data.norm > self.of_theory(oracle.crossing)
        longer = data.step > self.of_theory(oracle.step_crossing)

        def difference(cell: str) -> float:
            mixture, residual = self.special(cell)
            return oracle.first_phase_margin(mixture, residual=residual) - oracle.linear_margin(mixture)

        formulas = {f"formula_{cell.replace(' ', '_')}": xr.DataArray(difference(cell)) for cell in CELLS}
        return {
            "MH-ORD": {
                "cells_against_threshold": highest((above.sel(step=1.0) != beyond).sum(cells)),
                "cells_violating": lowest(above.sel(step=1.0).sum(cells)),
                "steps_against_threshold": highest((above != longer).sum((*cells, "step"))),
                "cells_with_both_orders": lowest((above.any("step") & ~above.all("step")).sum(cells)),
            },
            "MH-ORD-linear": formulas | {"smallest_measured": lowest(data.noisy_tangent - data.noisy_uniform)},
            "MH-ORD-gap": {  # from one share to the next larger one
                "largest_change_linear": highest((network - data.uniform).diff("fraction")),
                "largest_change_tangent": highest((network - one).diff("fraction")),
                "smallest_change_between": lowest((one - data.uniform).diff("fraction")),
            },
        }


@dataclass(frozen=True, kw_only=True)
class Feasibility(Gridded):
    """Section 5.3, on grids with all hidden constants 1: does the oracle target satisfy the head condition?"""

    id = "multi_head.feasibility"
    summary = "Section 5.3: heads and signal strengths for which the theorem reaches the oracle"
    needs = "cpu"
    budget_seconds = 5
    smoke = {"per_decade": 4, "seeds": (0, 1)}
    axes = {"n": "n_samples", "c": "scalings", "p": "powers"}
    labels = {"few_heads": (10.0, 100.0, 1e4, 1e8), "condition": ("saturation", "case")}

    n_samples: tuple[float, ...] = (100.0, 1e6)  # n, above e
    norm_decades: int = 8  # largest S, as a power of ten
    head_decades: int = 16  # largest H, as a power of ten
    per_decade: int = 20  # points of the grid
    scalings: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)  # powers c of heads summed as H^-c
    powers: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 3.0)  # p of key-query matrices of norm C H^-p
    seeds: tuple[int, ...] = (0,)  # nothing is drawn

    def __post_init__(self) -> None:
        super().__post_init__()
        increasing(math.e, n_samples=self.n_samples)
        containing([0.5], scalings=self.scalings)

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Count the heads that satisfy the conditions at each pattern norm, and follow the paper's exponents."""
        s = np.logspace(0, self.norm_decades, self.norm_decades * self.per_decade + 1)[:, None]
        heads = np.logspace(0, self.head_decades, self.head_decades * self.per_decade + 1)  # not rounded

        def of_scaling(c: float, n: float) -> Arrays:  # of targets whose loss stays small, and of the printed one
            small, printed = (allowed_constant(s, heads, n, scaling=c, target_scaling=one) for one in (None, 0.5))
            return {"scaled": ((), (small >= 1).sum()), "scaled_printed": ((), (printed >= 1).sum())}

        def limits(p: float, n: float, n_heads: float) -> Arrays:
            return {"limits": (("condition",), constant_limits(p, n_heads, n))}

        return self.grid(("c", "n"), of_scaling) | self.grid(("p", "n", "few_heads"), limits)

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Count feasible points, and read off constants and exponents."""
        offset = slope(data.limits, "few_heads") - data.p
        log_n = slope(data.limits.sel(condition="case").assign_coords(n=np.log(data.n)), "n")
        return {
            "MH-53.1": {"feasible_points": data.scaled.sel(c=0.5).sum()},  # the scaling of the paper
            "MH-53.3": {
                "feasible_points": data.scaled.sum(),
                "printed_points_to_1": data.scaled_printed.sel(c=slice(None, 1.0)).sum(),
                "printed_points_above_1": data.scaled_printed.sel(c=slice(1.01, None)).sum("n").min(),
            },
            "MH-B13.6": {
                "largest_offset_error_saturation": abs(offset.sel(condition="saturation") + 2).max(),
                "smallest_offset_case": offset.sel(condition="case").min(),
                "largest_offset_case": offset.sel(condition="case").max(),
                "power_of_log": log_n.mean(),
                "largest_room": (data.limits.sel(condition="saturation") / data.limits.sel(condition="case")).max(),
            },
        }  # fmt: skip
