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
from attnbook.core.results import Clock, Measurement, Result, ratio_over_seeds
from attnbook.core.resuming import check_seeds, seed_by_seed
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress
from attnbook.softmax_ntk.at_start import distance_from_limit, initial_kernel, limit_spectrum, output_limit
from attnbook.softmax_ntk.data import draw_sample, sphere
from attnbook.softmax_ntk.experiments.runs import ACTIVATIONS, over_runs, slope_over_seeds
from attnbook.softmax_ntk.models.two_layer import (
    Networks,
    draw_weights,
    loss_and_gradient,
    predict,
)
from attnbook.softmax_ntk.ntk import ntk_gram
from attnbook.softmax_ntk.theory.kernels import Activation, infinite_width_kernel
from attnbook.softmax_ntk.theory.softmax_network import (
    denominator_scaling,
    effective_width,
    expected_effective_width,
    kernel_fluctuation,
    sphere_factor,
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
        lowest_norms: Norms of the inputs whose kernels are compared are uniform from one of these to 1.
        kernel_scales: Values of $\sigma$ in that comparison, and of the distance from the limit at one width.
        kernel_samples: Number of samples and of inputs in the comparison.
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
    lowest_norms: tuple[float, ...] = (1.0, 0.8, 0.5, 0.2)
    kernel_scales: tuple[float, ...] = (0.5, 1.0, 1.5, 2.0)
    kernel_samples: int = 16
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
            points=3, lowest_norms=(1.0, 0.5), kernel_samples=5, seeds=(0, 1), chunk=1,
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
        distance: Relative distance of the kernel from its limit, ``(seeds, widths, networks)``.
        between: Size of the blocks between outputs over that of the kernel, ``(seeds, widths, networks)``.
        fluctuation: What ``kernel_fluctuation`` says of the distance, ``(seeds, widths, networks)``.
        fluctuation_between: What it says of the blocks between outputs, over the limit.
        distance_by_scale: As ``distance``, at the widest width of the slope, ``(seeds, kernel_scales, networks)``.
        fluctuation_by_scale: What the formula says of it.
        scaling_error: Largest relative error of $K_{\exp}=DK_{\rm softmax}D$, ``(seeds,)``.
        sphere_error: The same of $K_{\exp}=e^{\sigma^2}K_{\rm softmax}$ on the sphere, ``(seeds,)``.
        sphere_condition_error: Relative difference of the two condition numbers there, ``(seeds,)``.
        effective: Mean effective number over the points, ``(seeds, effective_widths, scales)``.
        spectrum: Eigenvalues of the limits over the largest, decreasing,
            ``(seeds, lowest_norms, kernel_scales, networks, samples)``.
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
    distance: Float[np.ndarray, "seeds widths networks"]
    between: Float[np.ndarray, "seeds widths networks"]
    fluctuation: Float[np.ndarray, "seeds widths networks"]
    fluctuation_between: Float[np.ndarray, "seeds widths networks"]
    distance_by_scale: Float[np.ndarray, "seeds kernel_scales networks"]
    fluctuation_by_scale: Float[np.ndarray, "seeds kernel_scales networks"]
    scaling_error: Float[np.ndarray, " seeds"]
    sphere_error: Float[np.ndarray, " seeds"]
    sphere_condition_error: Float[np.ndarray, " seeds"]
    effective: Float[np.ndarray, "seeds effective_widths scales"]
    spectrum: Float[np.ndarray, "seeds norms kernel_scales networks samples"]
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
            **{f"SN-INF-{name}": self._towards_limit(k) for k, name in enumerate(ACTIVATIONS)},
            "SN-INF-cross": self._between_outputs(),
            "SN-INF-scatter": self._against_formula(),
            "SN-KEXP": over_runs(n, np.max, max_relative_error=self.scaling_error),
            "SN-KEXP-sphere": over_runs(
                n, np.max, max_relative_error=self.sphere_error, max_condition_difference=self.sphere_condition_error
            ),
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

    def _between_outputs(self) -> Measurement:
        """The rule is about softmax; the other two stand beside it."""
        s = self.settings
        wide = [i for i, m in enumerate(s.widths) if m >= s.cross_from]
        widths = [s.widths[i] for i in wide]
        found = [slope_over_seeds(widths, self.between[:, wide, k]) for k in range(len(ACTIVATIONS))]
        names = ("slope", "slope_exp", "slope_relu")
        values = {name: value for name, (value, _) in zip(names, found, strict=True)}
        return Measurement(values, {k: v[1] for k, v in zip(names, found, strict=True)}, len(s.seeds))

    def _against_formula(self) -> Measurement:
        """Root mean square over seeds, as the formula is one; the range is that of single seeds."""
        ratio = self.distance[:, -1] / self.fluctuation[:, -1]
        rms = np.sqrt((ratio**2).mean(axis=0))
        return Measurement(
            {"min_distance_over_formula": float(rms.min()), "max_distance_over_formula": float(rms.max())},
            {
                "min_distance_over_formula": (float(ratio.min()), float(ratio.max())),
                "max_distance_over_formula": (float(ratio.min()), float(ratio.max())),
            },
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
            "SN-EFF-frozen": ratio_over_seeds("wide_over_narrow", self.effective[:, -1, -1], self.effective[:, 0, -1]),
            "SN-EFF-tails": over_runs(len(s.seeds), np.min, ratio_to_formula_sigma2=at_two),
        }


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
                **_limits(settings, seed),
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
    moved = replace(network, first_layer=network.first_layer - s.step / m * loss_and_gradient(network, x, y)[1])
    change = (predict(moved, x) - before).flatten()
    first_order = -s.step * ntk_gram(network, x)[0] @ (before - y).flatten()
    return {
        "attention_error": np.array(float((attention.mT - before).abs().max())),
        "flow_error": np.array(float((change - first_order).norm() / change.norm())),
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
    return {name: found[:, :, i] for i, name in enumerate(names)}


def _by_scale(s: Settings, seed: int) -> dict[str, np.ndarray]:
    inputs = draw_sample(s.n_samples, s.n_inputs, s.n_outputs, seed=seed).inputs
    width = s.slope_to
    found = np.array([[_compare(a, inputs, width, s, seed, scale) for a in ACTIVATIONS] for scale in s.kernel_scales])
    return {"distance_by_scale": found[:, :, 0], "fluctuation_by_scale": found[:, :, 2]}


def _limits(s: Settings, seed: int) -> dict[str, np.ndarray]:
    """The kernels at infinite width: identities, and spectra for inputs of equal and of different norms."""
    n = s.kernel_samples
    rng = stream(seed, "limits")
    units = sphere(n, n, rng=rng)
    spread = rng.uniform(size=(n, 1))
    anywhere = 2 * spread * units
    soft, exp = (infinite_width_kernel(name, anywhere) for name in ("softmax", "exp"))
    d = denominator_scaling(anywhere)
    round_soft, round_exp = (infinite_width_kernel(name, units) for name in ("softmax", "exp"))
    conditions = [np.linalg.cond(kernel) for kernel in (round_soft, round_exp)]
    spectra = [
        [[limit_spectrum(a, (low + (1 - low) * spread) * units, scale=c) for a in ACTIVATIONS] for c in s.kernel_scales]
        for low in s.lowest_norms
    ]
    return {
        "scaling_error": np.abs(d[:, None] * soft * d / exp - 1).max(),
        "sphere_error": np.abs(sphere_factor(units) * round_soft / round_exp - 1).max(),
        "sphere_condition_error": np.abs(conditions[0] / conditions[1] - 1),
        "spectrum": np.array(spectra).round(PLACES),
    }


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
