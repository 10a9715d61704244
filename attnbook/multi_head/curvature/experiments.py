"""The experiments of the chapter: one head, whole networks, and what the paper's footnotes allow. All in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr

from attnbook.core.experiment import Arrays, highest, lowest
from attnbook.core.runtime import Progress, threads
from attnbook.multi_head.checks import increasing
from attnbook.multi_head.curvature import points
from attnbook.multi_head.curvature_bounds import loss_constants
from attnbook.multi_head.data import Mixture, draw
from attnbook.multi_head.experiment_parts import Gridded, slope


@dataclass(frozen=True, kw_only=True)
class SingleHead(Gridded):
    """Lemma 1 and Proposition 1: derivatives of one head, and bounds on them, at random and at chosen points."""

    id = "multi_head.single_head"
    summary = "Lemma 1 and Proposition 1: derivatives of one head and bounds on them"
    needs = "cpu"
    budget_seconds = 10
    smoke = {"formula_draws": 2, "dimensions": (2, 8), "bound_draws": 3, "seeds": (0, 1)}
    axes = {"dimension": "dimensions"}
    labels = {"formula": points.FORMULAS, "bound": points.BOUNDS, "kind": points.KINDS}

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
        increasing(1, dimensions=self.dimensions)

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Compare formulas and bounds with automatic differentiation and exact norms."""
        t, draws = self.n_tokens, {"formula_draw": range(self.formula_draws), "draw": range(self.bound_draws)}

        def formulas(*draw: int) -> Arrays:
            return {"errors": (("formula",), points.formula_errors(t, self.formula_dimension, *draw))}

        def bounds(seed: int, dimension: int, kind: str, number: int) -> Arrays:
            *ratios, share = points.bound_ratios(kind, t, dimension, seed, number)
            return {"ratio": (("bound",), ratios), "decoder_share": ((), share)}

        also: dict[str, Any] = draws | {"seed": seeds}
        with threads(1):
            errors = self.grid(("seed", "formula_draw"), formulas, also=also)
            return errors | self.grid(("seed", "dimension", "kind", "draw"), bounds, also=also, progress=progress)

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off largest errors and ratios; where the bound is attained, by the decoder's share of it."""
        right = data.errors.sel(formula=[name for name in points.FORMULAS if name != "printed key_query"])
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
class Curvature(Gridded):
    """Corollary 1: extreme eigenvalues of true Hessians beside the bounds, by number of heads and size of weights."""

    id = "multi_head.curvature"
    summary = "Corollary 1: extreme curvature of the loss against the number of heads"
    needs = "float64"
    budget_seconds = 60
    smoke = {"heads": (1, 4, 8), "steps": 10, "seeds": (0, 1)}
    full = {
        "n_tokens": 10, "dimension": 50, "n_patterns": 20, "n_samples": 50, "heads": (1, 4, 16, 64),
        "start_scales": (0.5,),
    }  # fmt: skip
    axes = {"scale": "start_scales", "heads": "heads"}
    labels = {"point": points.POINTS}

    n_tokens: int = 5  # of a sample
    dimension: int = 8  # of a token
    n_patterns: int = 3  # that say nothing
    relevant_fraction: float = 0.2  # share of tokens that carry the label
    noise: float = 0.1  # bound on the noise along patterns
    free_noise: float = 0.3  # norm of the noise orthogonal to all patterns
    n_samples: int = 40
    heads: tuple[int, ...] = (1, 4, 16, 64, 256)
    start_scales: tuple[float, ...] = (0.5, 2.0)  # standard deviations of entries where training starts
    step_size: float = 1.0  # not tuned
    steps: int = 100  # from a random to a trained point
    equal_loss: float = 0.2  # at which training to an equal point stops
    chunk: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        increasing(1, count=2, heads=self.heads)  # for a slope
        increasing(1e-9, start_scales=self.start_scales)
        if not 0 < self.equal_loss < math.log(2):
            raise ValueError(f"equal_loss: expected a number between 0 and log 2, got {self.equal_loss}")
        _ = self.mixture

    @property
    def mixture(self) -> Mixture:
        """The data model, with patterns of norm one."""
        sizes = self.n_tokens, self.dimension, self.n_patterns, 1.0, self.relevant_fraction
        return Mixture(*sizes, self.noise, self.noise, self.free_noise)

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train to all points and find the extreme eigenvalues there."""
        batch = draw(self.mixture, self.n_samples, seeds, device=device)[:2]

        def at_points(scale: float, n_heads: int) -> Arrays:
            drawn = points.draw_points(self, scale, n_heads, seeds, batch)
            found = [points.measure_point(*drawn[name]) for name in points.POINTS]
            return {name: (("point", "seed"), [one[name] for one in found]) for name in found[0]}

        with threads(1):
            return self.grid(("scale", "heads"), at_points, progress=progress)

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
            "MH-FN4": {f"largest_{name}": highest(thinner[name]) for name in points.QUANTITIES},
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
class Variants(Gridded):
    """Corollary 1 with tied decoders and with another self-bounded loss, at networks drawn at random."""

    id = "multi_head.curvature_variants"
    summary = "Corollary 1 with pooling, with the last token alone, and with another self-bounded loss"
    needs = "cpu"
    budget_seconds = 40
    smoke = {"heads": (1, 2), "n_samples": 8, "seeds": (0, 1)}
    axes = {"heads": "heads"}
    labels = {"variant": points.VARIANTS, "point": tuple(points.SCALES), "bound": points.QUANTITIES}

    heads: tuple[int, ...] = (1, 4)
    n_samples: int = 40
    chunk: int = 1

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Measure gradient and curvature over their bounds; data as for :class:`Curvature`."""
        batches = {seed: draw(Curvature().mixture, self.n_samples, [seed])[:2] for seed in seeds}

        def of_case(seed: int, variant: str, n_heads: int, point: str) -> Arrays:
            return {"ratio": (("bound",), points.variant_ratios(variant, n_heads, point, seed, batches[seed]))}

        with threads(1):
            return self.grid(("seed", "variant", "heads", "point"), of_case, also={"seed": seeds}, progress=progress)

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off the largest ratios of each variant."""
        of = {name: data.ratio.sel(variant=name) for name in points.VARIANTS}
        return {
            "MH-FN1": {
                "largest_last_token": highest(of["last token"]), "largest_pooling": highest(of["pooling"]),
                "largest_pooling_plain": highest(of["pooling, plain"].sel(bound="gradient")),
            },
            "MH-FN3": {f"largest_{name}": highest(of["squareplus"].sel(bound=name)) for name in points.QUANTITIES},
        }  # fmt: skip


def relative(data: xr.Dataset) -> xr.DataArray:
    r"""Return the most negative curvature relative to the loss, $-\lambda_{\min}/\hat L$."""
    return -data.smallest / data.loss


def constants(data: xr.Dataset, norm: xr.DataArray) -> dict[str, xr.DataArray]:
    """Return the constants of Corollary 1 at every point, for the largest norm of a head, or of a decoder."""
    sizes = {name: data.attrs["settings"][name] for name in ("n_tokens", "dimension")}
    found = loss_constants(**sizes, n_heads=data.heads, token_norm=data.token_norm, largest_head_norm=norm)
    return found._asdict()


def ratios(data: xr.Dataset, norm: xr.DataArray) -> dict[str, xr.DataArray]:
    """Return measured over stated, by constant; the norm is that of the largest head, or of the largest decoder."""
    stated, scaled = constants(data, norm), relative(data) * np.sqrt(data.heads)
    return {
        "gradient": data.gradient_norm / (stated["gradient"] * data.loss),
        "smoothness": np.maximum(-data.smallest, data.largest) / stated["smoothness"],
        "curvature": scaled / stated["curvature"],
        "dimension_free_curvature": scaled / stated["dimension_free_curvature"],
    }
