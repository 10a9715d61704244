"""The order of three margins, and whether the training theorem reaches the largest of them (Section 5.3)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
import xarray as xr

from attnbook.core.experiment import Arrays, Experiment, highest, lowest
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress
from attnbook.multi_head import oracle
from attnbook.multi_head.data import Mixture
from attnbook.multi_head.feasibility import allowed_constant, constant_limits, largest_allowed_constant
from attnbook.multi_head.margins.cells import check_increasing, draw, each, noisy, slope, unit_oracle
from attnbook.multi_head.tangent_kernel import tangent_features

CELLS = ["no noise", "noise", "residual"]  # where the formula for the tangent margin is held against the linear one


@dataclass(frozen=True, kw_only=True)
class MarginOrder(Experiment):
    r"""Is $\gamma_{attn}\ge\gamma_\star\ge\gamma_{lin}$? Margins of a network and of its linearisation.

    The tangent-kernel margin of $\tilde\theta_\star=(\bar U_\star,\bar W_\star)$ after the first phase is measured from
    gradients at $U=c\,\frac\zeta4\,\mathbb 1u_\star^\top$, $W=0$, with a factor $c$ on the step that is 1 in the paper.
    One head is enough: the margin does not depend on how many there are.
    """

    id = "multi_head.margin_order"
    summary = "Sections 5.3 and 7: the order of three margins, and when it flips"
    budget_seconds = 10
    smoke: ClassVar[Mapping[str, Any]] = {"pattern_norms": (1.0, 2.0, 3.0, 6.0), "n_samples": 10, "seeds": (0, 1)}

    n_tokens: int = 10  # T
    dimension: int = 12  # d
    n_patterns: int = 4  # M
    pattern_norms: tuple[float, ...] = (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 5.5, 6.0)  # S
    relevant_fractions: tuple[float, ...] = (0.1, 0.2, 0.3, 0.5)  # zeta, increasing
    steps: tuple[float, ...] = (0.25, 1.0, 4.0)  # c, 1 among them
    noisy_norm: float = 2.0  # S of the three cells in which the formula (7) is held against the linear margin
    noisy_fraction: float = 0.4  # zeta there
    noise_share: float = 0.1  # noise along patterns in the second of them, in units of S^2
    residual: float = 0.001  # P in the third
    free_noise: float = 0.5  # norm of the noise orthogonal to all patterns in the third
    n_samples: int = 60  # of each cell

    def __post_init__(self) -> None:
        super().__post_init__()
        check_increasing(self, "pattern_norms", "relevant_fractions")
        if 1.0 not in self.steps or min(self.steps) <= 0:
            raise ValueError(f"steps: expected positive numbers, 1 among them, got {self.steps}")

    def mixture(self, relevant_fraction: float, pattern_norm: float) -> Mixture:
        """Return the data of one cell, without noise."""
        return Mixture(self.n_tokens, self.dimension, self.n_patterns, pattern_norm, relevant_fraction)

    def noisy_cells(self) -> list[Mixture]:
        """Return the data of the three cells: quiet, noisy, and with the residual."""
        quiet = self.mixture(self.noisy_fraction, self.noisy_norm)
        return [quiet, noisy(quiet, self.noise_share), replace(quiet, free_noise=self.free_noise)]

    def stated_differences(self) -> list[float]:
        r"""Return the formula (7) minus that for $\gamma_{lin}$ in the three cells."""
        residuals = zip(self.noisy_cells(), (0.0, 0.0, self.residual), strict=True)
        return [oracle.first_phase_margin(m, residual=p) - oracle.linear_margin(m) for m, p in residuals]

    def stated(self, of: Callable[[Mixture], float]) -> xr.DataArray:
        """Return a quantity of theory in all cells."""
        axes = {"fraction": list(self.relevant_fractions), "norm": list(self.pattern_norms)}
        return xr.DataArray([[of(self.mixture(z, s)) for s in axes["norm"]] for z in axes["fraction"]], axes)

    def coordinates(self) -> dict[str, Any]:
        """Name shares of relevant tokens, pattern norms, steps and cells."""
        axes = {"fraction": self.relevant_fractions, "norm": self.pattern_norms, "step": self.steps, "cell": CELLS}
        return {name: list(values) for name, values in axes.items()}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Measure the margins of a network and of its linearisation."""
        return each(seeds, self._of_seed)

    def _of_seed(self, seed: int) -> Arrays:
        zetas, norms = self.relevant_fractions, self.pattern_norms
        grid = np.array([[self._margins(self.mixture(z, s), seed, self.steps) for s in norms] for z in zetas])
        residuals = (0.0, 0.0, self.residual)
        cells = zip(self.noisy_cells(), residuals, strict=True)
        three = np.array([self._margins(mixture, seed, (1.0,), residual) for mixture, residual in cells])
        axes = ("fraction", "norm")
        return {
            "tangent": ((*axes, "step"), grid[..., :-1]), "uniform": (axes, grid[..., -1]),
            "noisy_tangent": (("cell",), three[:, 0]), "noisy_uniform": (("cell",), three[:, -1]),
        }  # fmt: skip

    def _margins(self, mixture: Mixture, seed: int, steps: Sequence[float], residual: float = 0.0) -> np.ndarray:
        r"""Return smallest margins of $\tilde\theta_\star$ for each first step, and with uniform attention."""
        patterns, drawn = draw(mixture, seed, self.n_samples, "order")
        u, d = oracle.decoder(patterns, mixture.n_tokens), mixture.dimension
        direction = np.concatenate([part.ravel() for part in unit_oracle(patterns, mixture)])
        off = stream(seed, "residual").standard_normal(d)
        rows = mixture.relevant_fraction / 4 * u + residual * off / np.linalg.norm(off)
        starts = torch.from_numpy(np.stack([c * rows for c in steps]))[:, None]
        parameters = {"decoder": starts, "key_query": torch.zeros((len(steps), 1, d, d), dtype=torch.float64)}
        tokens = torch.from_numpy(drawn.tokens).expand(len(steps), -1, -1, -1)
        features = tangent_features(parameters, tokens).numpy()
        tangent = (drawn.labels * (features @ direction)).min(axis=1)
        uniform = (drawn.labels * (features[0, :, : u.size] @ direction[: u.size])).min()
        return np.append(tangent, uniform)

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Count cells on the wrong side of a threshold, and hold margins against each other."""
        network, cells = self.stated(oracle.attention_margin), ("fraction", "norm")
        above, one = data.tangent > network, data.tangent.sel(step=1.0)
        beyond = data.norm > self.stated(oracle.crossing)
        longer = data.step > self.stated(oracle.step_crossing)
        both = (above.any("step") & ~above.all("step")).sum(cells)
        differences = xr.DataArray(self.stated_differences(), {"cell": CELLS})
        kept = data.noisy_tangent - data.noisy_uniform
        growth = {"linear": network - data.uniform, "tangent": network - one, "between": one - data.uniform}
        less_sparse = {name: gap.diff("fraction") for name, gap in growth.items()}
        return {
            "MH-ORD": {
                "cells_against_threshold": highest((above.sel(step=1.0) != beyond).sum(cells)),
                "cells_violating": lowest(above.sel(step=1.0).sum(cells)),
                "steps_against_threshold": highest((above != longer).sum((*cells, "step"))),
                "cells_with_both_orders": lowest(both),
            },
            "MH-ORD-linear": {
                **{f"formula_{name.replace(' ', '_')}": differences.sel(cell=name) for name in CELLS},
                "smallest_measured": lowest(kept),
            },
            "MH-ORD-gap": {
                "largest_change_linear": highest(less_sparse["linear"]),
                "largest_change_tangent": highest(less_sparse["tangent"]),
                "smallest_change_between": lowest(less_sparse["between"]),
            },
        }


@dataclass(frozen=True, kw_only=True)
class Feasibility(Experiment):
    """Section 5.3, on grids with all hidden constants 1: does the oracle target satisfy the head condition?

    Nothing is drawn, so that seeds change nothing.
    """

    id = "multi_head.feasibility"
    summary = "Section 5.3: heads and signal strengths for which the theorem reaches the oracle"
    budget_seconds = 5
    smoke: ClassVar[Mapping[str, Any]] = {"per_decade": 4, "seeds": (0, 1)}

    n_samples: tuple[float, ...] = (100.0, 1e6)  # n, above e
    norm_decades: int = 8  # largest S, as a power of ten
    head_decades: int = 16  # largest H, as a power of ten
    per_decade: int = 20  # points of the grid
    scalings: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)  # powers c of heads summed as H^-c
    powers: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 3.0)  # p of key-query matrices of norm C H^-p
    seeds: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.n_samples or min(self.n_samples) <= math.e:
            raise ValueError(f"n_samples: expected numbers above e, got {self.n_samples}")

    def coordinates(self) -> dict[str, Any]:
        """Name samples, pattern norms, powers, and the few heads at which powers are read off."""
        norms = np.logspace(0, self.norm_decades, self.norm_decades * self.per_decade + 1)
        axes = {"n": list(self.n_samples), "norm": norms, "c": list(self.scalings), "p": list(self.powers)}
        return axes | {"few_heads": [10.0, 100.0, 1e4, 1e8], "condition": ["saturation", "case"]}

    def heads(self) -> np.ndarray:
        """Return values of H, not rounded."""
        return np.logspace(0, self.head_decades, self.head_decades * self.per_decade + 1)

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Count the heads that satisfy the conditions at each pattern norm, and follow the paper's exponents."""
        at = self.coordinates()
        s, heads = at["norm"][:, None], self.heads()

        def counts(**options: Any) -> list[np.ndarray]:
            return [(allowed_constant(s, heads, n, **options) >= 1).sum(axis=1) for n in self.n_samples]

        limits = [[[constant_limits(p, h, n) for h in at["few_heads"]] for n in self.n_samples] for p in self.powers]
        of_c, grid = ("c", "n"), ("n", "norm")

        def of_scaling(c: float, **options: Any) -> list[int]:
            return [int(row.sum()) for row in counts(scaling=c, **options)]

        return {
            # the largest for which some H satisfies (12)
            "largest_constant": (grid, [allowed_constant(s, heads, n).max(axis=1) for n in self.n_samples]),
            "feasible": (grid, counts()),
            "feasible_literal": (grid, counts(literal=True)),
            "scaled": (of_c, [of_scaling(c) for c in self.scalings]),  # the loss stays small
            "scaled_printed": (of_c, [of_scaling(c, target_scaling=0.5) for c in self.scalings]),
            "limits": (("p", "n", "few_heads", "condition"), limits),
        }  # fmt: skip

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Count feasible points, and read off constants and exponents."""
        n, norm = self.n_samples, data.norm
        law = xr.DataArray(largest_allowed_constant(norm.values, np.array(n)[:, None]), {"n": list(n), "norm": norm})
        best_heads = norm**2 * np.log(max(n)) ** 2 / 2
        of_law = (data.largest_constant / law).where(best_heads < 10.0**self.head_decades)
        offset = slope(data.limits, "few_heads") - data.p
        log_n = slope(data.limits.sel(condition="case").assign_coords(n=np.log(data.n)), "n")
        return {
            "MH-53.1": {"feasible_points": data.feasible.sum()},
            "MH-53.1-constant": {
                "smallest_of_law": of_law.min(), "largest_of_law": of_law.max(),
                "feasible_points_literal": data.feasible_literal.sum("norm").min(),
            },
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
