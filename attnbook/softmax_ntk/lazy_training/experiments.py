"""The experiments of the chapter: Theorem 4.2, Lemma 5.3 and Table 1, one step taken apart, and starts.

The paper has no experiments. Networks train until their loss has fallen to a part of the first one, so that movements
and drifts are compared at equal residual; those that do not start at zero fit their first output plus the labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import numpy as np
import torch
import xarray as xr

from attnbook.core.experiment import Arrays, highest, lowest
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress
from attnbook.softmax_ntk.data import Sample, draw_sample
from attnbook.softmax_ntk.kernels import ACTIVATIONS, Activation
from attnbook.softmax_ntk.lazy_bounds import loss_envelope, movement_bound
from attnbook.softmax_ntk.lazy_training.breaking import SINGULAR, SMOOTH, StepSize, step_size_ratio
from attnbook.softmax_ntk.one_step import ALLOWED, account
from attnbook.softmax_ntk.sweeps import Sweep, measured_exponent, over, slope
from attnbook.softmax_ntk.training import Problem, Trained
from attnbook.softmax_ntk.two_layer import Start

__all__ = ["LazyTraining", "OneStep", "Starts", "StepSize"]

STARTS = list(get_args(Start))
TERMS = ["normaliser", "first order", "higher orders", "squared change"]
BLOWN_UP = 1e30  # stands for the loss of a network that diverged


@dataclass(frozen=True, kw_only=True)
class LazyTraining(Sweep):
    """Theorem 4.2, Lemma 5.3 and Table 1, by gradient descent on networks of many widths."""

    id = "softmax_ntk.lazy_training"
    summary = "Theorem 4.2, Lemma 5.3, Table 1: loss, movement and kernel drift against width"
    needs = "float64"
    budget_seconds = 40
    smoke = {
        "n_samples": 5, "n_inputs": 7, "widths": (16, 32, 64), "sizes": (2, 4), "target": 0.1, "max_steps": 300,
        "trained_from": 32, "lazy_from": 16, "short_from": 32, "sample_width": 32, "norm_width": 32, "curve_width": 32,
        "seeds": (0, 1), "chunk": 1,
    }  # fmt: skip
    full = {
        "n_samples": 128, "n_inputs": 128, "widths": (128, 512, 2048, 8192, 32768), "sizes": (32, 64, 128),
        "seeds": (0, 1, 2, 3, 4), "chunk": 1,
    }  # fmt: skip

    outputs: tuple[int, ...] = (1, 2)  # the first is that of Corollary 4.3 and Table 1
    widths: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024, 2048)  # numbers of neurons
    sizes: tuple[int, ...] = (4, 8, 16, 32, 48)  # numbers of samples, at one width and with one output
    sample_width: int = 1024  # of these
    lowest_norms: tuple[float, float] = (1.0, 0.5)  # norms of inputs are uniform between one of these and 1
    norm_width: int = 512  # where norms are varied, with one output
    trained_from: int = 32  # width from which on every softmax network must arrive
    lazy_from: int = 128  # smallest width in the slopes of the movement
    short_from: int = 1024  # smallest width at which single steps must be short
    curve_width: int = 512  # whose loss curves are kept, with the first number of outputs
    curve_steps: int = 30  # steps of these
    seeds: tuple[int, ...] = tuple(range(20))  # with five, a single heavy neuron decides a mean or a slope
    chunk: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("trained_from", "lazy_from", "short_from"):
            if sum(width >= getattr(self, name) for width in self.widths) < 2:
                raise ValueError(f"{name}: expected at least two widths from there on, got {getattr(self, name)}")
        if self.curve_width not in self.widths:
            raise ValueError(f"curve_width: expected one of widths {self.widths}, got {self.curve_width}")

    def axes(self) -> Mapping[str, Sequence[Any]]:
        """Vary outputs, widths and networks; also numbers of samples, norms of inputs, and steps."""
        return {
            "output": self.outputs, "width": self.widths, "network": ACTIVATIONS, "size": self.sizes,
            "lowest": self.lowest_norms, "step": range(self.curve_steps + 1),
        }  # fmt: skip

    def draw(self, seed: int, lowest: float) -> Sample:
        """Return a training set; directions, labels and order of norms are the same for every lowest norm."""
        sample = draw_sample(self.n_samples, self.n_inputs, 1, seed=seed)
        uniform = stream(seed, "norms", self.n_samples).uniform(size=self.n_samples)
        return Sample(sample.inputs * (lowest + (1 - lowest) * uniform)[:, None], sample.labels)

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train networks of all widths; on samples of all sizes; and on inputs of different norms."""
        curves = []

        def one(n_outputs: int, width: int, activation: Activation) -> dict[str, np.ndarray]:
            run = self.trained(self.problem(activation, width, n_outputs=n_outputs), seeds, device)
            if (n_outputs, width) == (self.outputs[0], self.curve_width):
                loss = (run.descent.loss / run.descent.loss[0])[: self.curve_steps + 1]
                # A network that has stopped keeps its last loss.
                curves.append(np.pad(loss, ((0, self.curve_steps + 1 - len(loss)), (0, 0)), mode="edge").T)
            return _ends(run)

        def more(size: int, activation: Activation) -> dict[str, np.ndarray]:
            run = self.trained(Problem(activation, self.sample_width, size, self.n_inputs), seeds, device)
            return {"sample_steps": run.descent.steps.astype(float)}

        def unequal(lowest: float, activation: Activation) -> dict[str, np.ndarray]:
            samples = [self.draw(seed, lowest) for seed in seeds]
            run = self.trained(self.problem(activation, self.norm_width), seeds, device, samples=samples)
            return {"norm_steps": run.descent.steps.astype(float)}

        found = over(["size", "network"], self.axes(), more, seeds, None)
        found |= over(["lowest", "network"], self.axes(), unequal, seeds, None)
        found |= over(["output", "width", "network"], self.axes(), one, seeds, progress)
        return found | {"curve": (("network", "seed", "step"), curves)}

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off convergence, the loss under its envelope, movement, and steps."""
        softmax, single = data.sel(network="softmax"), data.isel(output=0)
        trained, lazy, short = (slice(width, None) for width in (self.trained_from, self.lazy_from, self.short_from))
        regular = softmax.smallest_eigenvalue > SINGULAR * softmax.largest_eigenvalue
        last = data.steps.isel(width=-1).median("seed")
        ratio, moved = last.max("network") / last.min("network"), single.sel(width=lazy).median("seed")
        growth = slope(data.sample_steps.mean("seed"), "size")
        rms, norms = slope(moved.rms_movement, "width"), data.norm_steps.median("seed")
        return {
            "SN-T4.2": {"share_arrived": softmax.reached.sel(width=trained).mean()},
            "SN-TAB1": {
                "ratio": ratio.isel(output=0), "ratio_more_outputs": ratio.isel(output=-1),
                **{f"growth_{name}": growth.sel(network=name) for name in ACTIVATIONS},
            },
            "SN-5.3L": {
                "largest_over_envelope": highest(softmax.bound_ratio.where(regular, 0)),
                "share_monotone": softmax.monotone.where(regular).mean(),
                "smallest_exponent_ratio": lowest(softmax.exponent_ratio.where(regular, np.inf)),
            },
            "SN-5.3W": {
                **{f"slope_{name}": rms.sel(network=name) for name in ACTIVATIONS},
                "slope_largest": slope(moved.largest_movement.sel(network="softmax"), "width"),
                "smallest_slack": lowest(softmax.movement_bound / softmax.largest_movement),
            },
            "SN-5.3G": {
                "longest": highest(softmax.longest_step.sel(width=short)),
                "longest_narrow": highest(softmax.longest_step.isel(width=0)),
                "longest_at_theorem": highest(softmax.longest_step * softmax.step_size_ratio),
            },
            "SN-NORM": {
                "exp_over_softmax": norms.sel(network="exp")[-1] / norms.sel(network="softmax")[-1],
                "exp_over_softmax_unit": norms.sel(network="exp")[0] / norms.sel(network="softmax")[0],
                "relu_over_softmax": norms.sel(network="relu")[-1] / norms.sel(network="softmax")[-1],
            },
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class OneStep(Sweep):
    r"""Lemmas E.2 to E.4, Claims E.6 and E.7: the four terms of a step in the unit $m\eta\lambda\|F-Y\|_F^2$."""

    id = "softmax_ntk.one_step"
    summary = "One step of the induction, term by term, against width, start, weight scale and step size"
    needs = "float64"
    budget_seconds = 15
    smoke = {
        "n_samples": 5, "n_inputs": 7, "widths": (16, 32), "width": 16, "steps": 3, "seeds": (0, 1), "chunk": 1,
    }  # fmt: skip
    full = {"n_samples": 128, "n_inputs": 128, "widths": (512, 1024, 2048, 4096, 8192, 16384), "chunk": 1}

    n_outputs: int = 2  # of the networks
    widths: tuple[int, ...] = (64, 256, 1024, 4096)  # numbers of neurons
    fraction: float = 0.5  # step size, times m λ_max, where the width is varied
    width: int = 256  # where scale and step size are varied
    weight_scales: tuple[float, ...] = (0.3, 1.0, 2.0)  # standard deviations of the initial weights
    fractions: tuple[float, ...] = (0.5, 0.1, 0.01)  # step sizes, times m λ_max
    steps: int = 20  # that are taken apart
    seeds: tuple[int, ...] = tuple(range(10))
    chunk: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < min(self.fraction, *self.fractions) <= max(self.fraction, *self.fractions) < 2:
            raise ValueError(f"fraction, fractions: from 2 on even a linear model diverges, got {self.fractions}")

    def axes(self) -> Mapping[str, Sequence[Any]]:
        """Vary starts and widths, or scales and step sizes; name terms and steps."""
        return {
            "start": STARTS[::2], "width": self.widths, "scale": self.weight_scales, "fraction": self.fractions,
            "step": range(self.steps), "term": TERMS,
        }  # fmt: skip

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Take every step apart."""

        def one(start: Start, width: int, scale: float = 1.0, fraction: float = self.fraction) -> dict[str, np.ndarray]:
            problem = self.problem("softmax", width, n_outputs=self.n_outputs, scale=scale, start=start)
            run = self.trained(problem, seeds, device, max_steps=1, fraction=fraction)
            terms, leading = account(run.start, run.inputs, run.labels, run.step_size, steps=self.steps)
            return {"terms": terms.cpu().numpy(), "leading": leading.amin(1).cpu().numpy()}

        def largest(name: str, start: Start, value: float) -> dict[str, np.ndarray]:
            terms = one(start, self.width, **{name: value})["terms"]
            return {f"by_{name}": np.abs(terms).max(axis=1)}

        axes = self.axes()
        by_scale, by_fraction = (
            over(["start", name], axes, partial(largest, name), seeds, None, rest=("term",))
            for name in ("scale", "fraction")
        )
        found = over(["start", "width"], axes, one, seeds, progress, rest=("step", "term"))
        return found | by_scale | by_fraction

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Hold every term against its part of the account, and pairs against independent neurons."""
        pairs, sizes = data.sel(start="paired"), abs(data.terms).max("step")
        normaliser = sizes.sel(term="normaliser")
        one, other = normaliser.sel(start="paired"), normaliser.sel(start="independent")
        squared = pairs.by_fraction.sel(term="squared change")
        return {
            "SN-E2": {"largest_sum": highest(pairs.terms.sum("term"))},
            "SN-E3": {"largest": highest(one)},
            "SN-E4": {
                "smallest_over_leading": lowest(pairs.leading),
                "largest_in_the_unit": highest(pairs.terms.sel(term="first order")),
            },
            "SN-E6": {"largest": highest(sizes.sel(start="paired", term="higher orders"))},
            "SN-E7": {
                "largest_usual": highest(squared.isel(fraction=0)), "largest_small": highest(squared.isel(fraction=-1)),
                "allowed_fraction": ALLOWED * self.fractions[-1] / squared.isel(fraction=-1),
            },
            "SN-E3-pairs": {
                "share_beyond_narrow": (other.isel(width=0) > ALLOWED).mean(), "median_narrow": other.isel(width=0),
                "slope_pairs": slope(one, "width"), "slope_independent": slope(other, "width"),
                "smallest_ratio": (other / one).median("seed").min(),
            },
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Starts(Sweep):
    """What pairs buy: drift of the kernel at equal residual for three starts and two scales of the weights."""

    id = "softmax_ntk.starts"
    summary = "What pairs buy: kernel drift at equal residual for three starts"
    needs = "float64"
    budget_seconds = 30
    smoke = {
        "n_samples": 5, "n_inputs": 7, "target": 0.1, "max_steps": 100, "widths": (16, 32), "seeds": (0, 1), "chunk": 1,
    }  # fmt: skip
    full = {"n_samples": 64, "n_inputs": 64, "widths": (512, 1024, 2048, 4096, 8192, 16384), "chunk": 1}

    widths: tuple[int, ...] = (128, 256, 512, 1024, 2048)  # numbers of neurons
    weight_scales: tuple[float, float] = (1.0, 0.3)  # with light weights no neuron dominates
    seeds: tuple[int, ...] = tuple(range(20))

    def axes(self) -> Mapping[str, Sequence[Any]]:
        """Vary scales, widths, starts and networks."""
        return {"scale": self.weight_scales, "width": self.widths, "start": STARTS, "network": ACTIVATIONS}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train networks from three starts."""

        def one(scale: float, width: int, start: Start, activation: Activation) -> dict[str, np.ndarray]:
            return {
                "drift": self.trained(self.problem(activation, width, scale=scale, start=start), seeds, device).drift()
            }

        return over(list(self.axes()), self.axes(), one, seeds, progress)

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off the slopes of the drift in the width."""
        usual, light = (slope(data.drift.isel(scale=k).median("seed"), "width") for k in (0, 1))
        each = slope(data.drift.isel(scale=0).sel(network=SMOOTH), "width")
        steeper = each.sel(start="paired") < each.sel(start="independent")
        found = {f"light_{a}_{start}": light.sel(network=a, start=start) for a in SMOOTH for start in STARTS[::2]}
        found |= {f"{a}_{start}": usual.sel(network=a, start=start) for a in ACTIVATIONS for start in STARTS}
        return {"SN-UNP": found | {"share_steeper": steeper.mean()}}


def _ends(run: Trained) -> dict[str, np.ndarray]:
    """Loss beside its envelope, movement beside its bound, and the drift of the kernel."""
    descent, movement, smallest, width = run.descent, run.movement(), run.eigenvalues[:, 0], run.start.width
    exponents, largest = measured_exponent(run.start, run.inputs), run.eigenvalues[:, -1]
    sizes = {"n_samples": run.inputs.shape[1], "n_outputs": run.labels.shape[1], "width": width}
    monotone, bound_ratio, exponent_ratio, bounds = [], [], [], []
    for k, eta in enumerate(run.step_size.tolist()):
        eigenvalue, steps, half = max(smallest[k], SINGULAR * largest[k]), descent.steps[k], descent.steps[k] // 2
        loss = np.nan_to_num(descent.loss[: steps + 1, k] / descent.loss[0, k], nan=BLOWN_UP, posinf=BLOWN_UP)
        envelope = loss_envelope(np.arange(steps + 1.0), smallest_eigenvalue=eigenvalue, step_size=eta, width=width)
        monotone.append(float((np.diff(loss) <= 0).all()))
        bound_ratio.append((loss / envelope)[1:].max())
        exponent_ratio.append(np.log(loss[-1] / loss[half]) / np.log(envelope[-1] / envelope[half]))
        residual = float(np.sqrt(2 * descent.loss[0, k]))
        bounds.append(movement_bound(eigenvalue, exponent=exponents[k], residual=residual, **sizes))
    found = {
        "monotone": monotone, "bound_ratio": bound_ratio, "exponent_ratio": exponent_ratio, "movement_bound": bounds,
        "steps": descent.steps, "reached": descent.reached,
        "rms_movement": np.sqrt((movement**2).mean(axis=1)), "largest_movement": movement.max(axis=1),
        "longest_step": descent.longest_step, "drift": run.drift(), "step_size_ratio": step_size_ratio(run),
        "smallest_eigenvalue": smallest, "largest_eigenvalue": largest,
    }  # fmt: skip
    return {name: np.asarray(values, dtype=float) for name, values in found.items()}
