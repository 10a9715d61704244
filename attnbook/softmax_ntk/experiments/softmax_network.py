"""The softmax network at the start: attention, first-order training, its kernel at growing width, effective width.

The paper has no experiments; this one is the book's. Nothing is trained beyond one step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core import runtime
from attnbook.core.results import Clock, Measurement, Result, extremes_over_seeds
from attnbook.core.resuming import check_seeds, seed_by_seed
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress
from attnbook.softmax_ntk.at_start import distance_from_limit, initial_kernel, output_limit
from attnbook.softmax_ntk.data import draw_sample, sphere
from attnbook.softmax_ntk.denominator import (
    effective_width,
    expected_effective_width,
    kernel_fluctuation,
    tail_scales,
)
from attnbook.softmax_ntk.experiments.runs import ACTIVATIONS, over_runs, ratio_over_seeds, slope_over_seeds
from attnbook.softmax_ntk.experiments.summaries import extent, range_of
from attnbook.softmax_ntk.kernels import Activation
from attnbook.softmax_ntk.ntk import ntk_gram
from attnbook.softmax_ntk.two_layer import (
    Networks,
    draw_weights,
    loss_and_gradient,
    predict,
)

__all__ = ["Settings", "SoftmaxNetwork", "run"]

# Decimal places of what is only drawn.
PLACES = 7


@dataclass(frozen=True)
class Settings:
    r"""Sizes of the experiment.

    Attributes:
        n_samples: Number of samples $n$, on the unit sphere.
        n_inputs: Number of inputs $d_{in}$.
        n_outputs: Number of outputs $d$, at least 2.
        widths: Numbers of neurons, even, increasing.
        slope_to: Largest width in the slope of the distance from the limit.
        cross_from: Smallest width in the slope of the blocks between outputs.
        small_width: Width of the network compared with attention, and trained for one step.
        step: Width times step size, $\eta m$, of that step.
        scales: Values of $\sigma$ of the effective width.
        effective_widths: Widths at which it is counted; the second one is that of the claims.
        shown: Sorted attention weights that are kept for the picture.
        points: Unit inputs at which it is counted.
        kernel_scales: Values of $\sigma$ of the distance from the limit at one width.
        light_scale: Value of $\sigma$ at which tails are light enough for a test of the exponent.
        seeds: Seeds of data and weights; twenty, since with fewer a single heavy neuron decides a slope.
        chunk: Seeds kept together.
    """

    n_samples: int = 12
    n_inputs: int = 6
    n_outputs: int = 2
    widths: tuple[int, ...] = (64, 256, 1024, 4096, 16384, 65536)
    slope_to: int = 16384
    cross_from: int = 256
    small_width: int = 64
    step: float = 1e-6
    scales: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0)
    effective_widths: tuple[int, ...] = (256, 4096, 65536)
    shown: int = 64
    points: int = 32
    kernel_scales: tuple[float, ...] = (0.5, 1.0, 1.5, 2.0)
    light_scale: float = 0.5
    seeds: tuple[int, ...] = tuple(range(20))
    chunk: int = 20

    def __post_init__(self) -> None:
        for name in ("widths", "effective_widths"):
            widths = getattr(self, name)
            least = {"widths": 5, "effective_widths": 2}[name]
            if sorted(set(widths)) != list(widths) or len(widths) < least or any(m % 2 for m in widths):
                raise ValueError(f"{name}: expected at least {least} even numbers, increasing, got {widths}")
        if self.slope_to not in self.widths[1:] or self.cross_from > self.widths[-2]:
            raise ValueError(
                f"slope_to, cross_from: expected a width that is not the first, and at least two widths from there on, "
                f"got {self.slope_to}, {self.cross_from} with widths {self.widths}"
            )
        if self.n_outputs < 2:
            raise ValueError(f"n_outputs: blocks between outputs need at least 2, got {self.n_outputs}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show little."""
        return cls(
            n_samples=5, widths=(16, 32, 64, 256, 16384), cross_from=16, shown=8, effective_widths=(16, 64),
            points=3, seeds=(0, 1), chunk=1,
        )  # fmt: skip

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a larger run of this book's experiment; the paper has none."""
        return cls(widths=(*cls.widths, 262144, 1048576), seeds=tuple(range(40)), chunk=1)


@dataclass(frozen=True)
class SoftmaxNetwork(Result):
    r"""What was measured at the start; networks in the order softmax, exp, ReLU.

    Attributes:
        attention_error: Largest distance of the softmax network from PyTorch's attention, ``(seeds,)``.
        flow_error: Distance of one step from its first order, over the step, ``(seeds,)``.
        flow_order: Power of the step size with which that distance grows, ``(seeds,)``.
        distance: Relative distance of the kernel from its limit, ``(seeds, widths, networks)``.
        between: Size of the blocks between outputs over that of the kernel, ``(seeds, widths, networks)``.
        fluctuation: What ``kernel_fluctuation`` says of the distance, ``(seeds, widths, networks)``.
        fluctuation_between: What it says of the blocks between outputs, over the limit.
        light_distance: As ``distance``, at the light scale, widths up to that of the slope,
            ``(seeds, light_widths, networks)``.
        light_fluctuation: What the formula says of it.
        distance_by_scale: As ``distance``, at the widest width of the slope, ``(seeds, kernel_scales, networks)``.
        fluctuation_by_scale: What the formula says of it.
        effective: Mean effective number over the points, ``(seeds, effective_widths, scales)``.
        weights: Sorted attention weights of the first point of the first seed at the smallest of the effective
            widths, ``(scales, shown)``.
        pictures: Kernels of the softmax network of the first seed at the first, third and fifth width, and their
            limit, ``(pictures, rows, rows)``.
    """

    # Rounding errors are compared with a tolerance, and eigenvalues span many orders of magnitude.
    digits: ClassVar[int | None] = None
    experiment: ClassVar[str] = "softmax_ntk.softmax_network"
    settings_type: ClassVar[type] = Settings

    attention_error: Float[np.ndarray, " seeds"]
    flow_error: Float[np.ndarray, " seeds"]
    flow_order: Float[np.ndarray, " seeds"]
    distance: Float[np.ndarray, "seeds widths networks"]
    between: Float[np.ndarray, "seeds widths networks"]
    fluctuation: Float[np.ndarray, "seeds widths networks"]
    fluctuation_between: Float[np.ndarray, "seeds widths networks"]
    light_distance: Float[np.ndarray, "seeds light_widths networks"]
    light_fluctuation: Float[np.ndarray, "seeds light_widths networks"]
    distance_by_scale: Float[np.ndarray, "seeds kernel_scales networks"]
    fluctuation_by_scale: Float[np.ndarray, "seeds kernel_scales networks"]
    effective: Float[np.ndarray, "seeds effective_widths scales"]
    weights: Float[np.ndarray, "scales shown"]
    pictures: Float[np.ndarray, "pictures rows rows"]

    def pictured_widths(self) -> list[int]:
        """Return the widths of the pictures of finite networks."""
        return _pictured(self.settings)

    def slopes(self, seeds: slice, network: int) -> tuple[float, tuple[float, float]]:
        """Return the slope of the distance from the limit for some of the seeds: of the medians, and its range."""
        upto = [i for i, m in enumerate(self.settings.widths) if m <= self.settings.slope_to]
        return slope_over_seeds([self.settings.widths[i] for i in upto], self.distance[seeds][:, upto, network])

    def measurements(self) -> dict[str, Measurement]:
        """Return what was measured, by claim id."""
        n = len(self.settings.seeds)
        return {
            "SN-ATT-net": over_runs(n, np.max, max_error=self.attention_error),
            "SN-FLOW": over_runs(n, np.max, relative_error=self.flow_error),
            "SN-FLOW-order": extremes_over_seeds(smallest_order=self.flow_order, largest_order=self.flow_order),
            **{f"SN-INF-{name}": self._towards_limit(k) for k, name in enumerate(ACTIVATIONS)},
            "SN-INF-cross": self._between_outputs(slope=0),
            "SN-INF-cross-others": self._between_outputs(slope_exp=1, slope_relu=2),
            "SN-INF-light": self._light_tails(),
            "SN-INF-scatter": self._against_formula(),
            **self._effective_width(),
        }

    def _towards_limit(self, network: int) -> Measurement:
        s = self.settings
        value, spread = self.slopes(slice(None), network)
        last = self.distance[:, s.widths.index(s.slope_to), network]
        return Measurement(
            {"slope": value, f"relative_error_m{s.slope_to}": float(np.median(last))},
            {"slope": spread, f"relative_error_m{s.slope_to}": (float(last.min()), float(last.max()))},
            len(s.seeds),
        )

    def cross_slopes(self, seeds: slice, network: int) -> tuple[float, tuple[float, float]]:
        """Return the same for the size of the blocks between outputs."""
        wide = [i for i, m in enumerate(self.settings.widths) if m >= self.settings.cross_from]
        return slope_over_seeds([self.settings.widths[i] for i in wide], self.between[seeds][:, wide, network])

    def _between_outputs(self, **networks: int) -> Measurement:
        found = {name: self.cross_slopes(slice(None), k) for name, k in networks.items()}
        names = {name: value for name, (value, _) in found.items()}
        return Measurement(names, {name: spread for name, (_, spread) in found.items()}, len(self.between))

    def _light_tails(self) -> Measurement:
        s = self.settings
        found = extent("slope", s.widths[: self.light_distance.shape[1]], np.moveaxis(self.light_distance, 2, 0))
        ratio = self.light_distance[:, -1] / self.light_fluctuation[:, -1]
        largest = float(np.sqrt((ratio**2).mean(axis=0)).max())
        name = "max_distance_over_formula"
        return Measurement(
            {**found.values, name: largest}, {**found.spread, name: range_of(ratio.max(axis=1))}, len(ratio)
        )

    def _against_formula(self) -> Measurement:
        """Root mean square over seeds, as the formula is one; the range is that of single seeds of that network."""
        ratio = self.distance[:, -1] / self.fluctuation[:, -1]
        rms = np.sqrt((ratio**2).mean(axis=0))
        which = {"min_distance_over_formula": rms.argmin(), "max_distance_over_formula": rms.argmax()}
        return Measurement(
            {name: float(rms[k]) for name, k in which.items()},
            {name: range_of(ratio[:, k]) for name, k in which.items()},
            len(ratio),
        )

    def _effective_width(self) -> dict[str, Measurement]:
        s = self.settings
        width = s.effective_widths[1]
        light = [i for i, scale in enumerate(s.scales) if scale <= 1]
        formula = np.array([expected_effective_width(width, scale=scale) for scale in s.scales])
        ratio = self.effective[:, 1] / formula
        at_two = ratio[:, s.scales.index(2.0)]
        return {
            "SN-EFF": over_runs(len(s.seeds), np.max, max_relative_deviation=np.abs(ratio[:, light] - 1)),
            "SN-EFF-widths": self._at_all_widths(),
            "SN-EFF-frozen": ratio_over_seeds("wide_over_narrow", self.effective[:, -1, -1], self.effective[:, 0, -1]),
            "SN-EFF-tails": over_runs(len(s.seeds), np.min, ratio_to_formula_sigma2=at_two),
        }

    def _at_all_widths(self) -> Measurement:
        """The formula up to half of the scale at which its tails begin, and at the first one beyond that scale."""
        s = self.settings
        below, beyond = [], []
        for i, width in enumerate(s.effective_widths):
            bar = tail_scales(width)[0]
            ratio = self.effective[:, i] / [expected_effective_width(width, scale=scale) for scale in s.scales]
            below += [np.abs(ratio[:, j] - 1) for j, scale in enumerate(s.scales) if scale <= bar / 2]
            beyond.append(ratio[:, next(j for j, scale in enumerate(s.scales) if scale > bar)])
        return extremes_over_seeds(
            largest_deviation_below=np.stack(below, 1), smallest_ratio_beyond=np.stack(beyond, 1)
        )


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> SoftmaxNetwork:
    """Measure networks at the start.

    Args:
        settings: Sizes and seeds.
        device: Checked for being there; everything is computed in float64 on the CPU.
        progress: Told (seeds done, seeds in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
    """
    clock = Clock()
    runtime.device(device)

    def measure(seed: int) -> dict[str, np.ndarray]:
        with runtime.threads(1):
            return {
                **_one_step(settings, seed),
                **_by_width(settings, seed),
                **_by_scale(settings, seed),
                "effective": _effective(settings, seed),
            }

    arrays = seed_by_seed(settings, measure, clock=clock, workdir=workdir, progress=progress)
    drawn = _logits(settings, settings.seeds[0], settings.effective_widths[0])[0]
    shares = [np.exp(scale * drawn - np.logaddexp.reduce(scale * drawn)) for scale in settings.scales]
    return SoftmaxNetwork(
        settings=settings, provenance=clock.provenance(torch.device("cpu")), pictures=_pictures(settings),
        weights=np.stack([np.sort(share)[::-1][: settings.shown] for share in shares]).round(PLACES), **arrays,
    )  # fmt: skip


def _one_step(s: Settings, seed: int) -> dict[str, np.ndarray]:
    """Attention, and the first order of a step, for weights without pairs."""
    sample, m = draw_sample(s.n_samples, s.n_inputs, s.n_outputs, seed=seed), s.small_width
    drawn = draw_weights(m, s.n_inputs, s.n_outputs, rng=stream(seed, "one step"), start="independent")
    network = Networks.stack("softmax", [drawn])
    x, y = (to_tensor(a[None], dtype=torch.float64) for a in (sample.inputs, sample.labels))
    attention = torch.nn.functional.scaled_dot_product_attention(
        x, network.first_layer.mT, network.signs.mT, scale=1.0
    ).mul(m)
    before = predict(network, x)
    gradient, kernel = loss_and_gradient(network, x, y)[1], ntk_gram(network, x)[0]

    def error(step: float) -> float:
        moved = replace(network, first_layer=network.first_layer - step / m * gradient)
        change = (predict(moved, x) - before).flatten()
        return float((change + step * kernel @ (before - y).flatten()).norm() / change.norm())

    return {
        "attention_error": np.array(float((attention.mT - before).abs().max())),
        "flow_error": np.array(error(s.step)),
        "flow_order": np.log10([error(100 * s.step) / error(10 * s.step)])[0],
    }


def _compare(
    activation: Activation, inputs: np.ndarray, width: int, s: Settings, seed: int, scale: float = 1.0
) -> tuple[float, float, float, float]:
    """Distance from the limit and size of the blocks between outputs, then what the formula says of both."""
    d, rng = s.n_outputs, stream(seed, "weights", width)
    kernel = initial_kernel(activation, inputs, width=width, n_outputs=d, scale=scale, rng=rng)
    limit = output_limit(activation, inputs, n_outputs=d, scale=scale)
    expected = kernel_fluctuation(activation, inputs, width=width, n_outputs=d, scale=scale)
    return *distance_from_limit(kernel, limit, n_outputs=d), *expected


def _by_width(s: Settings, seed: int) -> dict[str, np.ndarray]:
    inputs = draw_sample(s.n_samples, s.n_inputs, s.n_outputs, seed=seed).inputs
    found = np.array([[_compare(a, inputs, m, s, seed) for a in ACTIVATIONS] for m in s.widths])
    names = ("distance", "between", "fluctuation", "fluctuation_between")
    narrow = [m for m in s.widths if m <= s.slope_to]
    light = np.array([[_compare(a, inputs, m, s, seed, s.light_scale) for a in ACTIVATIONS] for m in narrow])
    return {
        **{name: found[:, :, i] for i, name in enumerate(names)},
        "light_distance": light[:, :, 0],
        "light_fluctuation": light[:, :, 2],
    }


def _by_scale(s: Settings, seed: int) -> dict[str, np.ndarray]:
    inputs = draw_sample(s.n_samples, s.n_inputs, s.n_outputs, seed=seed).inputs
    width = s.slope_to
    found = np.array([[_compare(a, inputs, width, s, seed, scale) for a in ACTIVATIONS] for scale in s.kernel_scales])
    return {"distance_by_scale": found[:, :, 0], "fluctuation_by_scale": found[:, :, 2]}


def _logits(s: Settings, seed: int, width: int) -> np.ndarray:
    """Logits of unit inputs at scale 1."""
    points = sphere(s.points, s.n_inputs, rng=stream(seed, "points", s.points, s.n_inputs))
    return points @ draw_weights(width, s.n_inputs, 1, rng=stream(seed, "weights", width)).first_layer


def _effective(s: Settings, seed: int) -> np.ndarray:
    drawn = [_logits(s, seed, width) for width in s.effective_widths]
    return np.array([[effective_width(scale * logits).mean() for scale in s.scales] for logits in drawn])


def _pictured(s: Settings) -> list[int]:
    return list(s.widths[:5:2])


def _pictures(s: Settings) -> np.ndarray:
    seed = s.seeds[0]
    inputs = draw_sample(s.n_samples, s.n_inputs, s.n_outputs, seed=seed).inputs
    finite = [
        initial_kernel("softmax", inputs, width=width, n_outputs=s.n_outputs, rng=stream(seed, "weights", width))
        for width in _pictured(s)
    ]
    return np.stack([*finite, output_limit("softmax", inputs, n_outputs=s.n_outputs)]).round(PLACES)
