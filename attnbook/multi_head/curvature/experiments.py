"""The experiments of the chapter: one head, whole networks, and what the paper's footnotes allow. All in float64."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr

from attnbook.core.experiment import Arrays, Experiment, highest, lowest
from attnbook.core.runtime import Progress, threads
from attnbook.multi_head import curvature_bounds
from attnbook.multi_head.curvature import single_head, variants
from attnbook.multi_head.curvature.points import POINTS, draw_points, measure_point
from attnbook.multi_head.data import Mixture, double_device, draw

CONSTANTS = ("gradient", "smoothness", "curvature", "dimension_free_curvature")


@dataclass(frozen=True, kw_only=True)
class SingleHead(Experiment):
    """Lemma 1 and Proposition 1: derivatives of one head, and bounds on them, at random and at chosen points."""

    id = "multi_head.single_head"
    summary = "Lemma 1 and Proposition 1: derivatives of one head and bounds on them"
    budget_seconds = 10
    smoke = {"formula_draws": 2, "dimensions": (2, 8), "bound_draws": 3, "seeds": (0, 1)}

    n_tokens: int = 6  # of a sample; even, so that half of them can point one way
    formula_dimension: int = 5  # of a token where formulas are checked
    formula_draws: int = 20  # per seed
    dimensions: tuple[int, ...] = (2, 4, 8)  # of a token where bounds are checked
    bound_draws: int = 60  # per seed, dimension and kind
    chunk: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_tokens < 2 or self.n_tokens % 2:
            raise ValueError(f"n_tokens: expected an even number of at least 2, got {self.n_tokens}")
        if not self.dimensions or list(self.dimensions) != sorted(set(self.dimensions)) or self.dimensions[0] < 1:
            raise ValueError(f"dimensions: expected increasing numbers of at least 1, got {self.dimensions}")

    def coordinates(self) -> dict[str, Any]:
        """Name formulas, dimensions, kinds of draws and bounds."""
        named = {"formula": list(single_head.FORMULAS), "bound": list(single_head.BOUNDS)}
        return named | {"dimension": list(self.dimensions), "kind": ["random", "lopsided"]}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Compare formulas and bounds with automatic differentiation and exact norms."""
        t, draws = self.n_tokens, range(self.bound_draws)
        with threads(1):
            errors = [
                [single_head.formula_errors(t, self.formula_dimension, s, i) for i in range(self.formula_draws)]
                for s in seeds
            ]
            kinds = [
                [
                    [[single_head.bound_ratios(kind, t, d, s, i) for i in draws] for kind in ("random", "lopsided")]
                    for d in self.dimensions
                ]
                for s in seeds
            ]
        found, where = np.array(kinds), ("seed", "dimension", "kind", "draw")
        return {
            "errors": (("seed", "formula_draw", "formula"), errors),
            "ratio": ((*where, "bound"), found[..., :-1]),
            "decoder_share": (where, found[..., -1]),
        }

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off largest errors and ratios; where the bound is attained, by the decoder's share of it."""
        right = data.errors.sel(formula=[name for name in single_head.FORMULAS if name != "printed key_query"])
        free = data.ratio.sel(bound="Hessian without dimension")
        near, share = free.sel(kind="lopsided"), data.decoder_share.sel(kind="lopsided")
        return {
            "MH-L1.1": {"largest_relative_error": highest(right)},
            "MH-L1.2": {
                "error_corrected": highest(data.errors.sel(formula="key_query")),
                "error_printed": lowest(data.errors.sel(formula="printed key_query")),
            },
            "MH-P1.1": {"largest_ratio": highest(data.ratio.sel(bound="gradient"))},
            "MH-P1.2": {"largest_ratio": highest(data.ratio.sel(bound="Hessian"))},
            "MH-P1.3": {
                "largest_ratio": highest(free),
                "largest_ratio_small_decoder": highest(near.where(share < 0.05, 0)),
                "largest_ratio_large_decoder": highest(near.where(share > 0.95, 0)),
            },
        }


@dataclass(frozen=True, kw_only=True)
class Curvature(Experiment):
    r"""Corollary 1: extreme eigenvalues of true Hessians beside the bounds, by number of heads and size of weights.

    Small Hessians are put together from Lemma 1 in closed form; at the larger size, where all blocks would take
    gigabytes, their products with vectors come from differentiating twice. The paper's sizes are not in the text.
    """

    id = "multi_head.curvature"
    summary = "Corollary 1: extreme curvature of the loss against the number of heads"
    budget_seconds = 60
    smoke = {"heads": (1, 4, 8), "steps": 10, "seeds": (0, 1)}
    large = {
        "n_tokens": 10, "dimension": 50, "n_patterns": 20, "n_samples": 50, "heads": (1, 4, 16, 64),
        "start_scales": (0.5,),
    }  # fmt: skip

    n_tokens: int = 5  # of a sample
    dimension: int = 8  # of a token
    n_patterns: int = 3  # that say nothing
    relevant_fraction: float = 0.2  # share of tokens that carry the label
    noise: float = 0.1  # bound on the noise along patterns
    free_noise: float = 0.3  # norm of the noise orthogonal to all patterns
    n_samples: int = 40
    heads: tuple[int, ...] = (1, 4, 16, 64, 256)
    start_scales: tuple[float, ...] = (
        0.5,
        2.0,
    )  # standard deviations of entries at random points, where training starts
    step_size: float = 1.0  # not tuned
    steps: int = 100  # from a random to a trained point
    equal_loss: float = 0.2  # at which training to an equal point stops
    chunk: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.heads) < 2 or list(self.heads) != sorted(set(self.heads)) or self.heads[0] < 1:
            raise ValueError(f"heads: expected at least two increasing numbers of at least 1, got {self.heads}")
        if not self.start_scales or min(self.start_scales) <= 0:
            raise ValueError(f"start_scales: expected positive numbers, got {self.start_scales}")
        if not 0 < self.equal_loss < math.log(2):
            raise ValueError(f"equal_loss: expected a number between 0 and log 2, got {self.equal_loss}")
        _ = self.mixture

    @property
    def mixture(self) -> Mixture:
        """The data model, with patterns of norm one."""
        sizes = self.n_tokens, self.dimension, self.n_patterns, 1.0, self.relevant_fraction
        return Mixture(*sizes, self.noise, self.noise, self.free_noise)

    def coordinates(self) -> dict[str, Any]:
        """Name sizes of weights, numbers of heads and points."""
        return {"scale": list(self.start_scales), "heads": list(self.heads), "point": list(POINTS)}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train to all points and find the extreme eigenvalues there."""
        found, total = [], len(self.start_scales) * len(self.heads)
        with threads(1):
            batch = draw(self.mixture, self.n_samples, seeds, device=double_device(device))[:2]
            for scale in self.start_scales:
                for n_heads in self.heads:
                    points = draw_points(self, scale, n_heads, seeds, batch)
                    found.append([measure_point(*points[name]) for name in POINTS])
                    if progress:
                        progress(len(found), total)
        shape = len(self.start_scales), len(self.heads), len(POINTS), len(seeds)
        arrays = {name: np.array([[point[name] for point in row] for row in found]) for name in found[0][0]}
        return {name: (("scale", "heads", "point", "seed"), array.reshape(shape)) for name, array in arrays.items()}

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off ratios to the bounds and powers of the number of heads, at each size of the weights."""
        over, thinner = ratios(data, data.head_norm), ratios(data, data.decoder_norm)
        ends = relative(data).isel(heads=-1) / relative(data).isel(heads=0)
        slopes = slope(relative(data)).sel(scale=0.5)
        spread, descent = ["random", "trained", "equal"], ["random", "trained", "equal", "lone"]
        found = {
            "MH-C1.1": {"largest_ratio": highest(over["gradient"])},
            "MH-C1.2": {"largest_ratio": highest(over["smoothness"])},
            "MH-C1.3": {
                "largest_ratio": highest(over["curvature"]),
                "largest_ratio_dimension_free": highest(over["dimension_free_curvature"]),
            },
            "MH-FN4": {f"largest_{name}": highest(thinner[name]) for name in CONSTANTS[:3]},
            "MH-B13.12": {
                "largest_smallest_eigenvalue": highest(data.smallest.sel(point=descent)),
                "largest_widest_over_single": highest(ends.sel(point=spread)),
            },
            "MH-C1.4": {f"slope_{name}": slopes.sel(point=name) for name in spread},
        }
        if 2.0 in data.scale:
            steep = slope(relative(data)).sel(scale=2.0)
            found["MH-SCALE-slope"] = {f"slope_{name}": steep.sel(point=name) for name in ("trained", "equal")}
        return found


@dataclass(frozen=True, kw_only=True)
class Variants(Experiment):
    """Corollary 1 with tied decoders and with another self-bounded loss, at networks drawn at random."""

    id = "multi_head.curvature_variants"
    summary = "Corollary 1 with pooling, with the last token alone, and with another self-bounded loss"
    budget_seconds = 10
    smoke = {"heads": (1, 2), "seeds": (0, 1)}

    heads: tuple[int, ...] = (1, 4)
    n_samples: int = 40
    chunk: int = 1

    def coordinates(self) -> dict[str, Any]:
        """Name variants, numbers of heads, points and bounds."""
        named = {"variant": list(variants.VARIANTS), "heads": list(self.heads)}
        return named | {"point": list(variants.SCALES), "bound": list(variants.QUANTITIES)}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Measure gradient and curvature over their bounds; data as for :class:`Curvature`."""
        shape = len(variants.VARIANTS), len(self.heads), len(variants.SCALES), len(variants.QUANTITIES)
        cases = list(itertools.product(variants.VARIANTS, self.heads, variants.SCALES))
        with threads(1):
            batches = {s: draw(Curvature().mixture, self.n_samples, [s])[:2] for s in seeds}
            found = [[variants.ratios(v, p, h, s, batches[s]) for v, h, p in cases] for s in seeds]
        return {"ratio": (("seed", "variant", "heads", "point", "bound"), np.reshape(found, (len(seeds), *shape)))}

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off the largest ratios of each variant."""
        of = {name: data.ratio.sel(variant=name) for name in variants.VARIANTS}
        return {
            "MH-FN1": {
                "largest_last_token": highest(of["last token"]), "largest_pooling": highest(of["pooling"]),
                "largest_pooling_plain": highest(of["pooling, plain"].sel(bound="gradient")),
            },
            "MH-FN3": {f"largest_{name}": highest(of["squareplus"].sel(bound=name)) for name in variants.QUANTITIES},
        }  # fmt: skip


def relative(data: xr.Dataset) -> xr.DataArray:
    r"""Return the most negative curvature relative to the loss, $-\lambda_{\min}/\hat L$."""
    return -data.smallest / data.loss


def slope(values: xr.DataArray) -> xr.DataArray:
    """Return the slope of the logarithm of values in that of the number of heads, by least squares.

    NaN where a value is not positive.
    """
    logs = np.log(values.heads) - np.log(values.heads).mean()
    return (np.log(values.where(values > 0)) * logs).sum("heads", skipna=False) / (logs**2).sum()


def constants(data: xr.Dataset, norm: xr.DataArray) -> dict[str, xr.DataArray]:
    """Return the constants of Corollary 1 at every point, for the largest norm of a head, or of a decoder."""
    sizes = {name: data.attrs["settings"][name] for name in ("n_tokens", "dimension")}

    def at(n_heads: int, token_norm: float, largest: float) -> tuple[float, ...]:
        found = curvature_bounds.loss_constants(
            **sizes, n_heads=int(n_heads), token_norm=float(token_norm), largest_head_norm=float(largest)
        )
        return tuple(getattr(found, name) for name in CONSTANTS)

    all_of: tuple[list[str], ...] = ([],) * len(CONSTANTS)
    found = xr.apply_ufunc(at, data.heads, data.token_norm, norm, vectorize=True, output_core_dims=all_of)
    return dict(zip(CONSTANTS, found, strict=True))


def ratios(data: xr.Dataset, norm: xr.DataArray) -> dict[str, xr.DataArray]:
    """Return measured over stated, by constant; the norm is that of the largest head, or of the largest decoder."""
    stated, scaled = constants(data, norm), relative(data) * np.sqrt(data.heads)
    return {
        "gradient": data.gradient_norm / (stated["gradient"] * data.loss),
        "smoothness": np.maximum(-data.smallest, data.largest) / stated["smoothness"],
        "curvature": scaled / stated["curvature"],
        "dimension_free_curvature": scaled / stated["dimension_free_curvature"],
    }
