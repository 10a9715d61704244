"""The experiments of the chapter: networks at the start, with and without the denominator. The paper has none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import xarray as xr

from attnbook.core.experiment import Arrays, Experiment, highest, lowest
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress
from attnbook.core.settings import check_increasing
from attnbook.softmax_ntk.data import draw_sample, sphere
from attnbook.softmax_ntk.denominator import (
    distance_from_limit,
    effective_width,
    expected_effective_width,
    kernel_fluctuation,
    output_limit,
    tail_scales,
)
from attnbook.softmax_ntk.kernels import ACTIVATIONS, Activation, infinite_width_kernel
from attnbook.softmax_ntk.ntk import ntk_gram
from attnbook.softmax_ntk.sweeps import each, slope
from attnbook.softmax_ntk.two_layer import Networks, Start, Weights, draw_weights


@dataclass(frozen=True, kw_only=True)
class SoftmaxNetwork(Experiment):
    """Kernels beside their limit at growing width, and the effective number of neurons."""

    id = "softmax_ntk.softmax_network"
    summary = "The kernel at growing width beside its limit, and the effective number of neurons"
    needs = "cpu"
    budget_seconds = 25
    smoke = {
        "n_samples": 5, "widths": (16, 32, 64), "shown": 8, "effective_widths": (16, 64), "points": 3, "seeds": (0, 1),
    }  # fmt: skip
    full = {"widths": (64, 256, 1024, 4096, 16384, 65536, 262144, 1048576), "seeds": tuple(range(40)), "chunk": 1}

    n_samples: int = 12  # on the unit sphere
    n_inputs: int = 6
    n_outputs: int = 2
    widths: tuple[int, ...] = (64, 256, 1024, 4096, 16384, 65536)  # even
    weight_scales: tuple[float, ...] = (0.5, 1.0, 2.0)  # of the kernels; the first one small, for light tails
    sigmas: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0)  # of the effective number
    effective_widths: tuple[int, ...] = (256, 4096, 65536)  # where it is counted
    points: int = 32  # unit inputs at which it is counted
    shown: int = 64  # sorted shares of attention that are kept for the picture
    seeds: tuple[int, ...] = tuple(range(20))  # with fewer a single heavy neuron decides
    chunk: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        check_increasing(self, "widths", "effective_widths", least=2)
        if self.n_outputs < 2:
            raise ValueError(f"n_outputs: blocks between outputs need at least 2, got {self.n_outputs}")

    def coordinates(self) -> dict[str, Any]:
        """Name widths, scales and networks."""
        sizes = {"width": self.widths, "scale": self.weight_scales, "sigma": self.sigmas}
        pictures = [*map(str, self.widths[:5:2]), "limit"]
        return {k: list(v) for k, v in sizes.items()} | {
            "effective_width": list(self.effective_widths), "network": ACTIVATIONS, "picture": pictures,
        }  # fmt: skip

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Look at the networks of each seed, on the CPU; pictures are of seed 0, whatever the seeds."""
        found = each(seeds, "seed", lambda seed: self._kernels(seed) | self._effective(seed), progress)
        return found | self._pictures()

    def _kernels(self, seed: int) -> Arrays:
        """Relative distance of kernels from their limit, size of the blocks between outputs, and what a pair says."""
        inputs, d = draw_sample(self.n_samples, self.n_inputs, self.n_outputs, seed=seed).inputs, self.n_outputs
        weights = [draw_weights(m, self.n_inputs, d, rng=stream(seed, "weights", m)) for m in self.widths]

        def compare(scale: float, drawn: Weights, name: Activation) -> tuple[float, float, float]:
            kernel = kernels([name], drawn, inputs, scale)[0]
            limit = output_limit(name, inputs, n_outputs=d, scale=scale)
            said = kernel_fluctuation(name, inputs, width=drawn.signs.shape[1], n_outputs=d, scale=scale)[0]
            return *distance_from_limit(kernel, limit, n_outputs=d), said

        found = np.array([[[compare(c, w, a) for a in ACTIVATIONS] for w in weights] for c in self.weight_scales])
        dims = ("scale", "width", "network")
        return {name: (dims, found[..., i]) for i, name in enumerate(("distance", "between", "fluctuation"))}

    def _logits(self, seed: int, width: int) -> np.ndarray:
        """Of unit inputs, at weight scale 1."""
        points = sphere(self.points, self.n_inputs, rng=stream(seed, "points", self.points, self.n_inputs))
        return points @ draw_weights(width, self.n_inputs, 1, rng=stream(seed, "weights", width)).first_layer

    def _effective(self, seed: int) -> Arrays:
        """Mean effective number over the points."""
        logits = [self._logits(seed, width) for width in self.effective_widths]
        found = [[effective_width(sigma * one).mean() for sigma in self.sigmas] for one in logits]
        return {"effective": (("effective_width", "sigma"), found)}

    def _pictures(self) -> Arrays:
        inputs, d = draw_sample(self.n_samples, self.n_inputs, self.n_outputs, seed=0).inputs, self.n_outputs
        finite = [
            kernels(["softmax"], draw_weights(m, self.n_inputs, d, rng=stream(0, "weights", m)), inputs, 1.0)[0]
            for m in self.widths[:5:2]
        ]
        logits = self._logits(0, self.effective_widths[0])[0]
        shares = [np.exp(sigma * logits - np.logaddexp.reduce(sigma * logits)) for sigma in self.sigmas]
        return {
            "kernel": (("picture", "row", "column"), [*finite, output_limit("softmax", inputs, n_outputs=d)]),
            "share": (("sigma", "neuron"), [np.sort(one)[::-1][: self.shown] for one in shares]),
        }

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off slopes and ratios to the formulas."""
        over = np.sqrt(((data.distance / data.fluctuation).isel(width=-1) ** 2).mean("seed")).isel(scale=slice(2))
        light = slope(data.distance.isel(scale=0).median("seed"), "width")
        between = slope(data.between.isel(scale=0).median("seed"), "width")
        below, beyond = self.around_the_tail(data)
        return {
            "SN-INF": {
                "least_over_formula": over.min(), "most_over_formula": over.max(),
                "slope_steepest": light.min(), "slope_flattest": light.max(),
                "between_steepest": between.min(), "between_flattest": between.max(),
            },
            "SN-EFF": {
                "largest_deviation_below": highest(abs(below - 1)), "smallest_ratio_beyond": lowest(beyond),
                "wide_over_narrow_frozen": (data.effective.isel(effective_width=-1, sigma=-1)
                                            / data.effective.isel(effective_width=0, sigma=-1)),
            },
        }  # fmt: skip

    def around_the_tail(self, data: xr.Dataset) -> tuple[xr.DataArray, xr.DataArray]:
        """Return effective numbers over the formula, up to half of where tails begin, and at the first sigma beyond."""
        formula = xr.apply_ufunc(
            lambda m, sigma: expected_effective_width(int(m), scale=float(sigma)),
            data.effective_width, data.sigma, vectorize=True,
        )  # fmt: skip
        ratio = data.effective / formula
        starts = xr.DataArray([tail_scales(int(m))[0] for m in data.effective_width], dims="effective_width")
        first = data.sigma.where(data.sigma > starts).min("sigma")
        return ratio.where(data.sigma <= starts / 2, 1.0), ratio.sel(sigma=first)


@dataclass(frozen=True, kw_only=True)
class Denominator(Experiment):
    """Networks with and without the denominator: their kernels at the start, and condition numbers."""

    id = "softmax_ntk.denominator"
    summary = "Networks with and without the denominator: their kernels at the start, condition numbers"
    needs = "cpu"
    budget_seconds = 20
    smoke = {
        "n_samples": 5, "width": 256, "exact_widths": (16,), "lowest_norms": (1.0, 0.5), "weight_scales": (1.0, 2.0),
        "seeds": (0, 1),
    }  # fmt: skip
    full = {"width": 131072, "seeds": tuple(range(40)), "chunk": 1}

    n_samples: int = 16  # in as many dimensions
    n_outputs: int = 2
    width: int = 16384  # of the networks whose condition numbers are taken
    exact_widths: tuple[int, ...] = (64, 1024)  # where the identity of finite networks is tried
    lowest_norms: tuple[float, ...] = (1.0, 0.8, 0.5, 0.2)  # norms of the inputs are uniform from one of these to 1
    weight_scales: tuple[float, ...] = (0.5, 1.0, 1.5, 2.0)
    seeds: tuple[int, ...] = tuple(range(20))
    chunk: int = 20

    def coordinates(self) -> dict[str, Any]:
        """Name norms, scales, widths and networks."""
        sizes = {"lowest": self.lowest_norms, "scale": self.weight_scales, "exact_width": self.exact_widths}
        names = {"network": ACTIVATIONS, "pairs": [True, False], "shown": ["exp", "softmax"]}
        return names | {name: list(values) for name, values in sizes.items()}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Compare the networks of each seed, on the CPU; the picture is of seed 0, whatever the seeds."""
        found = each(seeds, "seed", lambda seed: self._conditions(seed) | self._identity(seed), progress)
        return found | self._picture()

    def _picture(self) -> Arrays:
        """Kernels of one network at scale 2 on inputs of norms from one half to one, and the factor between them."""
        n, norms = self.n_samples, np.linspace(0.5, 1, self.n_samples)
        inputs, scale = norms[:, None] * sphere(n, n, rng=stream(0, "limits")), 2.0
        drawn = draw_weights(self.width, n, 1, rng=stream(0, "weights", self.width))
        found = kernels(["exp", "softmax"], drawn, inputs, scale)
        return {
            "kernel": (("shown", "row", "column"), found), "norm": (("row",), norms),
            "kernel_condition": (("shown",), np.linalg.cond(found)),
            "factor": (("row",), np.exp(scale * inputs @ drawn.first_layer).mean(1)),
        }  # fmt: skip

    def _conditions(self, seed: int) -> Arrays:
        n, rng = self.n_samples, stream(seed, "limits")
        units, uniform = sphere(n, n, rng=rng), rng.uniform(size=(n, 1))
        samples = np.stack([(low + (1 - low) * uniform) * units for low in self.lowest_norms])
        drawn, scales = draw_weights(self.width, n, 1, rng=stream(seed, "weights", self.width)), self.weight_scales
        finite = np.stack([kernels(ACTIVATIONS, drawn, samples, c) for c in scales])
        limit = [[[infinite_width_kernel(a, x, scale=c) for a in ACTIVATIONS] for c in scales] for x in samples]
        conditions = {"condition": np.moveaxis(np.linalg.cond(finite), 2, 0), "limit": np.linalg.cond(limit)}
        return {name: (("lowest", "scale", "network"), found) for name, found in conditions.items()}

    def _identity(self, seed: int) -> Arrays:
        """Error of H_exp = D H_softmax D over the largest entry, D the mean exponential over neurons."""
        n = self.n_samples
        inputs = np.linspace(self.lowest_norms[-1], 1, n)[:, None] * draw_sample(n, n, 1, seed=seed).inputs

        def error(m: int, scale: float, start: Start) -> float:
            drawn = draw_weights(m, n, self.n_outputs, rng=stream(seed, "identity", m), start=start)
            soft, exp = kernels(["softmax", "exp"], drawn, inputs, scale)
            mean = np.tile(np.exp(scale * inputs @ drawn.first_layer).mean(1), self.n_outputs)
            return float(np.abs(mean[:, None] * soft * mean - exp).max() / np.abs(exp).max())

        starts: tuple[Start, Start] = ("paired", "independent")
        errors = [[[error(m, c, s) for c in self.weight_scales] for m in self.exact_widths] for s in starts]
        return {"identity_error": (("pairs", "exact_width", "scale"), np.array(errors))}

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off errors and ratios of condition numbers."""
        finite = data.condition.sel(lowest=0.5)
        ratio = finite.sel(network="exp") / finite.sel(network="softmax")
        limit = data["limit"].sel(lowest=1)
        return {
            "SN-KEXP-finite": {
                "error_with_pairs": highest(data.identity_error.sel(pairs=True)),
                "error_without_pairs": lowest(data.identity_error.sel(pairs=False)),
            },
            "SN-COND": {
                "share_exp_worse_sigma1": (ratio.sel(scale=1) > 1).mean(),
                "exp_over_softmax_sigma1": ratio.sel(scale=1),
                "exp_over_softmax_sigma2": ratio.sel(scale=2),
                "limit_on_the_sphere": highest(abs(limit.sel(network="exp") / limit.sel(network="softmax") - 1)),
            },
        }  # fmt: skip


def kernels(activations: Sequence[Activation], drawn: Weights, inputs: np.ndarray, scale: float) -> np.ndarray:
    """Return kernels ``(networks, *sets, rows, rows)`` of networks that share their weights, drawn at scale 1.

    Inputs are ``(*sets, samples, inputs)``, one set or several.
    """
    sets = to_tensor(inputs, dtype=torch.float64).view(-1, 1, *inputs.shape[-2:])
    scaled = Networks.stack(activations[0], [Weights(scale * drawn.first_layer, drawn.signs)])
    each_network = (replace(scaled, activation=name) for name in activations)
    found = np.stack([[ntk_gram(network, x)[0].numpy() for x in sets] for network in each_network])
    return found.reshape(len(activations), *inputs.shape[:-2], *found.shape[2:])
