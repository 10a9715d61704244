r"""Theorem F.2: how far is a network in training from its kernel machine, and what does the bound make of it?

Networks of growing width, paired and with independent neurons, are compared with gradient descent on their kernel at
the start, at every step and on unseen inputs. This book's experiment; the paper has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core import runtime
from attnbook.core.results import Clock, Measurement, Result
from attnbook.core.resuming import by_seeds, check_seeds, concatenate
from attnbook.core.runtime import Progress
from attnbook.softmax_ntk.data import draw_sample
from attnbook.softmax_ntk.experiments.coupling import Coupled, couple, linear_error
from attnbook.softmax_ntk.experiments.runs import ACTIVATIONS, ROUNDING, Problem, over_runs, place, slope_over_seeds
from attnbook.softmax_ntk.models.two_layer import Start
from attnbook.softmax_ntk.theory.kernels import Activation

__all__ = ["SMOOTH", "STARTS", "KernelRegression", "Settings", "run"]

STARTS: tuple[Start, ...] = ("paired", "independent")
SMOOTH: tuple[Activation, ...] = ("softmax", "exp")


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment.

    Attributes:
        n_samples: Number of samples.
        n_inputs: Number of inputs.
        n_outputs: Number of outputs.
        n_points: Unseen inputs at which predictions are compared.
        steps: Number of steps, all of which are compared.
        record: Steps at which the kernels are computed, for the drifts.
        widths: Numbers of neurons, increasing and even.
        light_scale: Standard deviation of light initial weights, for which no neuron dominates; the others have 1.
        light_widths: Numbers of neurons of softmax and exp networks with light weights.
        curve_width: Width of the loss curves that are compared, one of ``widths``.
        curve_floor: Loss over its first value down to which they are compared.
        linear_width: Width of the linearised networks that are trained step by step.
        linear_steps: Number of their steps.
        shown_widths: Widths in the picture of predictions, some of ``widths``.
        times: Steps in that picture.
        n_angles: Angles of that picture, along the circle through two samples.
        seeds: Seeds of data and weights; the picture shows the first.
        chunk: Seeds trained together.
    """

    n_samples: int = 16
    n_inputs: int = 8
    n_outputs: int = 2
    n_points: int = 64
    steps: int = 300
    record: tuple[int, ...] = (0, 1, 2, 3, 5, 8, 13, 20, 32, 50, 80, 130, 200, 300)
    widths: tuple[int, ...] = (64, 128, 256, 512, 1024)
    light_scale: float = 0.3
    light_widths: tuple[int, ...] = (64, 128, 256, 512)
    curve_width: int = 512
    curve_floor: float = 1e-4
    linear_width: int = 64
    linear_steps: int = 100
    shown_widths: tuple[int, ...] = (64, 256, 1024)
    times: tuple[int, ...] = (1, 3, 10, 30, 300)
    n_angles: int = 73
    seeds: tuple[int, ...] = tuple(range(5))
    chunk: int = 5

    def __post_init__(self) -> None:
        for name in ("widths", "light_widths"):
            widths = getattr(self, name)
            if len(widths) < 2 or sorted(set(widths)) != list(widths):
                raise ValueError(f"{name}: expected at least two increasing numbers, got {widths}")
        for name in ("shown_widths", "curve_width"):
            chosen = np.atleast_1d(getattr(self, name)).tolist()
            if not chosen or not set(chosen) <= set(self.widths):
                raise ValueError(f"{name}: expected some of widths {self.widths}, got {getattr(self, name)}")
        for name in ("record", "times"):
            steps = getattr(self, name)
            if not steps or sorted(set(steps)) != list(steps) or not 0 <= steps[0] <= steps[-1] <= self.steps:
                raise ValueError(f"{name}: expected increasing steps up to steps = {self.steps}, got {steps}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(
            n_samples=5, n_inputs=7, n_points=3, steps=20, record=(0, 5, 20), widths=(16, 32), light_widths=(16, 32),
            curve_width=32, linear_width=16, linear_steps=5, shown_widths=(16,), times=(1, 20), n_angles=13,
            seeds=(0, 1), chunk=1,
        )  # fmt: skip

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a larger run of this book's experiment; the paper has none."""
        return cls(widths=(*cls.widths, 2048, 4096), light_widths=(*cls.light_widths, 1024), seeds=tuple(range(10)))

    @property
    def angles(self) -> Float[np.ndarray, " angles"]:
        """Angles of the picture; at 0 stands the first sample of the first seed."""
        return np.linspace(0, 2 * np.pi, self.n_angles)

    def circle(self) -> tuple[Float[np.ndarray, "angles inputs"], float, Float[np.ndarray, " 2"]]:
        """Return the circle through two samples of the first seed, the angle of the second, and their first labels."""
        sample = draw_sample(self.n_samples, self.n_inputs, self.n_outputs, seed=self.seeds[0])
        first, second = sample.inputs[:2]
        across = second - (first @ second) * first
        across /= np.linalg.norm(across)
        points = np.outer(np.cos(self.angles), first) + np.outer(np.sin(self.angles), across)
        return points, float(np.arccos(first @ second)), sample.labels[0, :2]


@dataclass(frozen=True)
class KernelRegression(Result):
    r"""Gaps, drifts and bounds; arrays ``(seeds, starts, widths, networks)`` unless stated.

    Attributes:
        gap: Largest distance of network and machine over steps, unseen inputs and outputs.
        late_gap: The same at the last step alone.
        gap_at: Largest distance over inputs and outputs at the recorded steps, with a last axis for these.
        bound: Our form of the theorem's bound with the measured drifts, median over inputs and outputs.
        bound_over_gap: Smallest ratio over inputs and outputs of our bound to the largest distance over steps.
        summed_over_gap: The same with the measured residuals in place of their envelopes; median over inputs.
        directed_over_gap: The same with the drift in the direction of the residual, at every step; median over inputs.
        median_bound_over_gap: As ``bound_over_gap``, but the median over inputs and outputs.
        kernel_drift: $\epsilon_H$, largest Frobenius norm of $H(\tau)-H(0)$ at the recorded steps.
        point_drift: $\epsilon_{test}$, the largest over inputs.
        smallest_eigenvalue: $\lambda$ of $H(0)$.
        light_gap: As ``gap`` with light weights, ``(seeds, starts, light widths, softmax and exp)``.
        curve: Loss over its first value, paired, at the width of the curves, ``(seeds, networks, steps + 1)``.
        machine_curve: The same of the machines.
        linear_error: Largest difference of explicit steps of the linearised network from the closed form, over the
            largest prediction, ``(seeds, networks)``.
        network: What networks have learned on the circle, first output less its value at the start,
            ``(starts, networks, shown widths, times, angles)``.
        machine: The same of their machines.
    """

    experiment: ClassVar[str] = "softmax_ntk.kernel_regression"
    settings_type: ClassVar[type] = Settings

    gap: Float[np.ndarray, "seeds starts widths networks"]
    late_gap: Float[np.ndarray, "seeds starts widths networks"]
    gap_at: Float[np.ndarray, "seeds starts widths networks recorded"]
    bound: Float[np.ndarray, "seeds starts widths networks"]
    bound_over_gap: Float[np.ndarray, "seeds starts widths networks"]
    summed_over_gap: Float[np.ndarray, "seeds starts widths networks"]
    directed_over_gap: Float[np.ndarray, "seeds starts widths networks"]
    median_bound_over_gap: Float[np.ndarray, "seeds starts widths networks"]
    kernel_drift: Float[np.ndarray, "seeds starts widths networks"]
    point_drift: Float[np.ndarray, "seeds starts widths networks"]
    smallest_eigenvalue: Float[np.ndarray, "seeds starts widths networks"]
    light_gap: Float[np.ndarray, "seeds starts light_widths smooth"]
    curve: Float[np.ndarray, "seeds networks records"]
    machine_curve: Float[np.ndarray, "seeds networks records"]
    linear_error: Float[np.ndarray, "seeds networks"]
    network: Float[np.ndarray, "starts networks shown_widths times angles"]
    machine: Float[np.ndarray, "starts networks shown_widths times angles"]

    def of(self, start: Start, activation: Activation, *, light: bool = False) -> Float[np.ndarray, "seeds widths"]:
        """Return the gap of one start and one network, with weights of scale 1 or light ones."""
        gap = self.light_gap if light else self.gap
        return gap[:, STARTS.index(start), :, ACTIVATIONS.index(activation)]

    def curve_difference(self) -> Float[np.ndarray, "seeds networks"]:
        """Return the largest relative difference of loss and machine's loss while both are above the floor."""
        above = (self.curve > self.settings.curve_floor) & (self.machine_curve > self.settings.curve_floor)
        return np.where(above, np.abs(self.curve / self.machine_curve - 1), 0).max(axis=2)

    def condition_holds(self) -> Float[np.ndarray, "seeds starts widths networks"]:
        r"""Return 1 where $\epsilon_H\le\lambda/2$, the condition of the theorem, else 0."""
        return (self.kernel_drift <= self.smallest_eigenvalue / 2).astype(float)

    def measurements(self) -> dict[str, Measurement]:
        """Return identity, loss curves, slopes of the gap and the bound, by claim id."""
        n, smooth = len(self.gap), [ACTIVATIONS.index(name) for name in SMOOTH]
        curves = self.curve_difference()
        bound = over_runs(n, np.min, min_bound_over_gap=self.bound_over_gap)
        holds = over_runs(n, np.mean, share_where_condition_holds=self.condition_holds())
        first_order: list[tuple[Start, Activation]] = [("independent", name) for name in ACTIVATIONS]
        return {
            "SN-F1": over_runs(n, np.max, max_relative_error=self.linear_error),
            "SN-CURVE": over_runs(n, np.max, max_relative_difference=curves[:, smooth]),
            "SN-CURVE-relu": over_runs(n, np.max, max_relative_difference=curves[:, ACTIVATIONS.index("relu")]),
            "SN-F2": self._slopes([("paired", name) for name in ACTIVATIONS]),
            "SN-F2-bound": Measurement({**bound.values, **holds.values}, {**bound.spread, **holds.spread}, n),
            "SN-F2-paired": self._slopes([("paired", name) for name in SMOOTH]),
            "SN-F2-first-order": self._slopes([("paired", "relu"), *first_order]),
            "SN-F2-light": _together(
                self._slopes([("paired", name) for name in SMOOTH], light=True, named="paired_"),
                self._slopes([("independent", name) for name in SMOOTH], light=True, named="independent_"),
            ),
        }

    def _slopes(
        self, which: Sequence[tuple[Start, Activation]], *, light: bool = False, named: str = ""
    ) -> Measurement:
        """Smallest and largest slope of medians over seeds; the spread is the range over single seeds."""
        widths = self.settings.light_widths if light else self.settings.widths
        found = [slope_over_seeds(widths, np.maximum(self.of(*one, light=light), ROUNDING)) for one in which]
        spread = min(low for _, (low, _) in found), max(high for _, (_, high) in found)
        steepest, flattest = min(value for value, _ in found), max(value for value, _ in found)
        values = {f"{named}min_slope": steepest, f"{named}max_slope": flattest}
        return Measurement(values, dict.fromkeys(values, spread), len(self.gap))


def _together(first: Measurement, second: Measurement) -> Measurement:
    return Measurement({**first.values, **second.values}, {**first.spread, **second.spread}, first.n_seeds)


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> KernelRegression:
    """Train networks of all widths from both starts beside their kernel machines.

    Args:
        settings: Sizes and seeds.
        device: Where to train; default the first of cuda, mps and cpu.
        progress: Told (groups of networks done, groups in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
    """
    clock, where = Clock(), place(device)

    def part(seeds: tuple[int, ...], inner: Progress | None) -> dict[str, np.ndarray]:
        with runtime.threads(1):
            return _Sweep(settings, seeds, where, inner).arrays()

    parts = by_seeds(settings, part, clock=clock, workdir=workdir, progress=progress)
    pictures = {name: parts[0].pop(name) for name in PICTURES}
    arrays = concatenate([{n: a for n, a in one.items() if n not in PICTURES} for one in parts])
    return KernelRegression(settings=settings, provenance=clock.provenance(where), **arrays, **pictures)


PICTURES = ("network", "machine")


class _Sweep:
    """All networks of a group of seeds."""

    def __init__(
        self, settings: Settings, seeds: tuple[int, ...], device: torch.device, progress: Progress | None
    ) -> None:
        self.s, self.seeds, self.device, self.progress = settings, seeds, device, progress
        self.unit = [(1.0, start, m, a) for start in STARTS for m in settings.widths for a in ACTIVATIONS]
        light = settings.light_scale
        self.light = [(light, start, m, a) for start in STARTS for m in settings.light_widths for a in SMOOTH]

    def arrays(self) -> dict[str, np.ndarray]:
        """Train everything and return the arrays of the result."""
        s, seeds = self.s, len(self.seeds)
        found = [self._couple(*group, done) for done, group in enumerate(self.unit + self.light, 1)]
        unit, light = found[: len(self.unit)], found[len(self.unit) :]
        shape = (seeds, len(STARTS), len(s.widths), len(ACTIVATIONS))
        kept = [one.statistics(s.record) for one in unit]
        arrays = {name: np.stack([k[name] for k in kept], axis=1) for name in kept[0]}
        arrays = {name: a.reshape(*shape, *a.shape[2:]) for name, a in arrays.items()}
        gaps = np.stack([one.gap.max(axis=0) for one in light], axis=1)
        chosen = [one for one, group in zip(unit, self.unit, strict=True) if group[1:3] == ("paired", s.curve_width)]
        return arrays | {
            "light_gap": gaps.reshape(seeds, len(STARTS), len(s.light_widths), len(SMOOTH)),
            "curve": np.stack([(one.loss / one.loss[0]).T for one in chosen], axis=1),
            "machine_curve": np.stack([(one.machine_loss / one.machine_loss[0]).T for one in chosen], axis=1),
            "linear_error": np.stack([self._linear_error(a) for a in ACTIVATIONS], axis=1),
            "network": self._picture([one.network for one in unit]),
            "machine": self._picture([one.machine for one in unit]),
        }

    def _problem(self, scale: float, start: Start, width: int, activation: Activation) -> Problem:
        s = self.s
        return Problem(activation, width, s.n_samples, s.n_inputs, s.n_outputs, scale=scale, start=start)

    def _couple(self, scale: float, start: Start, width: int, activation: Activation, done: int) -> Coupled:
        s, problem = self.s, self._problem(scale, start, width, activation)
        coupled = couple(
            problem, self.seeds, device=self.device, steps=s.steps, n_points=s.n_points, record=s.record,
            watched=s.circle()[0], times=s.times,
        )  # fmt: skip
        if self.progress:
            self.progress(done, len(self.unit) + len(self.light))
        return coupled

    def _linear_error(self, activation: Activation) -> np.ndarray:
        s, problem = self.s, self._problem(1.0, "paired", self.s.linear_width, activation)
        return linear_error(problem, self.seeds, device=self.device, steps=s.linear_steps, n_points=s.n_points)

    def _picture(self, curves: list[np.ndarray]) -> np.ndarray:
        """Predictions on the circle, ``(starts, networks, shown widths, times, angles)``."""
        s = self.s
        stacked = np.stack(curves).reshape(len(STARTS), len(s.widths), len(ACTIVATIONS), len(s.times), -1)
        return np.swapaxes(stacked[:, [s.widths.index(m) for m in s.shown_widths]], 1, 2)
