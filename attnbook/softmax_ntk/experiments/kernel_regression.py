r"""Theorem F.2: how far is a network in training from its kernel machine, and what does the bound make of it?

Networks of growing width, paired and with independent neurons, are compared with gradient descent on their kernel at
the start, at every step and on unseen inputs. This book's experiment; the paper has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core import runtime
from attnbook.core.results import Clock, Measurement, Result
from attnbook.core.resuming import by_seeds, concatenate
from attnbook.core.runtime import Progress
from attnbook.softmax_ntk.experiments.coupling import Coupled, couple, linear_error
from attnbook.softmax_ntk.experiments.regression_settings import SMOOTH, STARTS, Settings
from attnbook.softmax_ntk.experiments.runs import ACTIVATIONS, ROUNDING, Problem, over_runs, place, slope_over_seeds
from attnbook.softmax_ntk.kernels import Activation
from attnbook.softmax_ntk.two_layer import Start

__all__ = ["SMOOTH", "STARTS", "KernelRegression", "Settings", "run"]


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
        light_drift: As ``kernel_drift`` with light weights.
        light_eigenvalue: As ``smallest_eigenvalue`` with light weights.
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
    light_drift: Float[np.ndarray, "seeds starts light_widths smooth"]
    light_eigenvalue: Float[np.ndarray, "seeds starts light_widths smooth"]
    curve: Float[np.ndarray, "seeds networks records"]
    machine_curve: Float[np.ndarray, "seeds networks records"]
    linear_error: Float[np.ndarray, "seeds networks"]
    network: Float[np.ndarray, "starts networks shown_widths times angles"]
    machine: Float[np.ndarray, "starts networks shown_widths times angles"]

    def of(
        self, start: Start, activation: Activation, *, light: bool = False, what: np.ndarray | None = None
    ) -> Float[np.ndarray, "seeds widths"]:
        """Return the gap, or ``what``, of one start and one network, with weights of scale 1 or light ones."""
        if what is None:
            what = self.light_gap if light else self.gap
        return what[:, STARTS.index(start), :, ACTIVATIONS.index(activation)]

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
        pairs: list[tuple[Start, Activation]] = [("paired", name) for name in SMOOTH]
        lone: list[tuple[Start, Activation]] = [("independent", name) for name in SMOOTH]
        return {
            "SN-F1": over_runs(n, np.max, max_relative_error=self.linear_error),
            "SN-CURVE": over_runs(n, np.max, max_relative_difference=curves[:, smooth]),
            "SN-CURVE-relu": over_runs(n, np.max, max_relative_difference=curves[:, ACTIVATIONS.index("relu")]),
            "SN-F2": self._slopes([self.of("paired", name) for name in ACTIVATIONS]),
            "SN-F2-bound": _together(bound, holds),
            "SN-F2-ladder": _together(
                over_runs(n, np.min, min_directed_over_gap=self.directed_over_gap),
                over_runs(n, np.max, max_directed_over_gap=self.directed_over_gap),
            ),
            "SN-F2-paired": self._slopes([self.of(*one) for one in pairs]),
            "SN-F2-drift": self._slopes([self.of(*one, what=self.kernel_drift) for one in pairs]),
            "SN-F2-first-order": self._slopes([self.of("paired", "relu"), *(self.of(*one) for one in first_order)]),
            "SN-F2-light": self._light(self.light_gap, pairs, lone),
            "SN-F2-light-drift": self._light(self.light_drift, pairs, lone),
        }

    def _light(self, what: np.ndarray, *groups: Sequence[tuple[Start, Activation]]) -> Measurement:
        """Slopes with light weights, pairs and independent neurons."""
        found = [self._slopes([self.of(*one, what=what) for one in g], light=True, named=f"{g[0][0]}_") for g in groups]
        return _together(*found)

    def _slopes(self, samples: Sequence[np.ndarray], *, light: bool = False, named: str = "") -> Measurement:
        """Steepest and flattest slope of medians over seeds, each with the range of the slopes of its single seeds."""
        widths = self.settings.light_widths if light else self.settings.widths
        found = sorted(slope_over_seeds(widths, np.maximum(one, ROUNDING)) for one in samples)
        names = f"{named}min_slope", f"{named}max_slope"
        values = {name: value for name, (value, _) in zip(names, (found[0], found[-1]), strict=True)}
        spread = {name: one for name, (_, one) in zip(names, (found[0], found[-1]), strict=True)}
        return Measurement(values, spread, len(self.gap))


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
LIGHT = {"light_gap": "gap", "light_drift": "kernel_drift", "light_eigenvalue": "smallest_eigenvalue"}


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
        lightly = [one.statistics(s.record) for one in light]
        smooth = (seeds, len(STARTS), len(s.light_widths), len(SMOOTH))
        chosen = [one for one, group in zip(unit, self.unit, strict=True) if group[1:3] == ("paired", s.curve_width)]
        return arrays | {
            **{name: np.stack([k[of] for k in lightly], axis=1).reshape(smooth) for name, of in LIGHT.items()},
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
