"""The experiment of the chapter: Theorem F.2, networks in training beside their kernel machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import xarray as xr

from attnbook.core.experiment import Arrays, highest, lowest
from attnbook.core.rng import to_tensor
from attnbook.core.runtime import Progress
from attnbook.softmax_ntk.data import draw_sample
from attnbook.softmax_ntk.kernel_regression.coupling import couple, learned, unseen
from attnbook.softmax_ntk.kernels import ACTIVATIONS, Activation
from attnbook.softmax_ntk.sweeps import Sweep, over, slope
from attnbook.softmax_ntk.two_layer import Start

__all__ = ["KernelRegression"]

SMOOTH = ["softmax", "exp"]
STARTS: list[Start] = ["paired", "independent"]
FLOOR = 1e-4  # loss over its first value down to which curves are compared


@dataclass(frozen=True, kw_only=True)
class KernelRegression(Sweep):
    """Networks of growing width, paired and with independent neurons, at every step and on unseen inputs."""

    id = "softmax_ntk.kernel_regression"
    summary = "Theorem F.2: networks in training beside their kernel machines, gap and bound against width"
    needs = "float64"
    budget_seconds = 40
    smoke = {
        "n_samples": 5, "n_inputs": 7, "n_points": 3, "steps": 20, "record": (0, 5, 20), "widths": (16, 32),
        "curve_width": 32, "shown_widths": (16,), "times": (1, 20), "n_angles": 13, "seeds": (0, 1), "chunk": 1,
    }  # fmt: skip
    full = {"widths": (64, 128, 256, 512, 1024, 2048, 4096), "seeds": tuple(range(10))}

    n_inputs: int = 8  # half as many as samples: kernels are worse conditioned than in the chapter before
    n_outputs: int = 2  # of the networks
    n_points: int = 64  # unseen inputs at which predictions are compared
    steps: int = 300  # all of which are compared
    record: tuple[int, ...] = (0, 1, 2, 3, 5, 8, 13, 20, 32, 50, 80, 130, 200, 300)  # steps at which drifts are taken
    widths: tuple[int, ...] = (64, 128, 256, 512, 1024)  # numbers of neurons
    weight_scales: tuple[float, float] = (1.0, 0.3)  # with light weights no neuron dominates
    curve_width: int = 512  # of the loss curves, paired
    shown_widths: tuple[int, ...] = (64, 256, 1024)  # in the picture of predictions
    times: tuple[int, ...] = (1, 10, 300)  # steps in that picture
    n_angles: int = 73  # of that picture, along the circle through two samples of the first seed

    def __post_init__(self) -> None:
        super().__post_init__()
        if not {self.curve_width, *self.shown_widths} <= set(self.widths):
            raise ValueError(f"curve_width, shown_widths: expected some of widths {self.widths}")
        for name in ("record", "times"):
            chosen = getattr(self, name)
            if not chosen or sorted(set(chosen)) != list(chosen) or not 0 <= chosen[0] <= chosen[-1] <= self.steps:
                raise ValueError(f"{name}: expected increasing steps up to steps = {self.steps}, got {chosen}")

    def axes(self) -> Mapping[str, Sequence[Any]]:
        """Vary scales, starts, widths and networks; name steps and the picture."""
        return {
            "scale": self.weight_scales, "start": STARTS, "width": self.widths, "network": ACTIVATIONS,
            "step": range(self.steps + 1), "shown": self.shown_widths, "time": self.times,
            "model": ["network", "machine"], "angle": np.degrees(self.circle()[0]).tolist(),
        }  # fmt: skip

    def circle(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return angles and inputs on the circle through two samples of the first seed; their angles and labels."""
        sample = draw_sample(self.n_samples, self.n_inputs, self.n_outputs, seed=self.seeds[0])
        first, second = sample.inputs[:2]
        across = second - (first @ second) * first
        at = float(np.arccos(first @ second))
        angles = np.union1d(np.linspace(0, 2 * np.pi, self.n_angles), [at])
        points = np.outer(np.cos(angles), first) + np.outer(np.sin(angles), across / np.linalg.norm(across))
        return angles, points, np.degrees([0, at]), sample.labels[0, :2]

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train networks of all widths from both starts beside their kernel machines."""
        _, circle, sample_angle, sample_label = self.circle()
        curves, pictures = [], []

        def one(scale: float, start: Start, width: int, activation: Activation) -> dict[str, np.ndarray]:
            problem = self.problem(activation, width, n_outputs=self.n_outputs, scale=scale, start=start)
            begun = self.trained(problem, seeds, device, max_steps=1)  # draws and first kernel; its step is not used
            to = partial(to_tensor, device=begun.inputs.device, dtype=begun.inputs.dtype)
            points = [to(unseen(self.n_points, self.n_inputs, seed=s)) for s in seeds]
            found = couple(begun, torch.stack(points), steps=self.steps, record=self.record)
            both = np.stack([found.pop("curve"), found.pop("machine_curve")])
            if (scale, start, width) == (self.weight_scales[0], "paired", self.curve_width):
                curves.append(both)
            if scale == self.weight_scales[0] and width in self.shown_widths:
                pictures.append(learned(begun, to(circle), self.times))
            return found

        found = over(["scale", "start", "width", "network"], self.axes(), one, seeds, progress)
        shape = len(STARTS), len(self.shown_widths), len(ACTIVATIONS)
        picture = np.stack(pictures).reshape(*shape, *pictures[0].shape)
        return found | {
            "curve": (("network", "model", "seed", "step"), np.stack(curves)),
            "picture": (("start", "shown", "network", "model", "time", "angle"), picture),
            "sample_angle": (("sample",), sample_angle), "sample_label": (("sample",), sample_label),
        }  # fmt: skip

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off loss curves, slopes of gap and drift, and how far the bounds are above the gap."""
        usual, light = data.isel(scale=0), data.isel(scale=1)
        condition = data.kernel_drift <= data.smallest_eigenvalue / 2
        network, machine = data.curve.sel(model="network"), data.curve.sel(model="machine")
        curves = abs(network / machine - 1).where((network > FLOOR) & (machine > FLOOR), 0).max("step")
        gap = slope(usual.gap.median("seed"), "width").sel(start="paired")
        drift = slope(light.kernel_drift.median("seed"), "width").sel(network=SMOOTH)
        each = slope(data.gap.sel(network=SMOOTH), "width")
        steeper = each.sel(start="paired") < each.sel(start="independent")
        return {
            "SN-CURVE": {
                "largest_difference": highest(curves.sel(network=SMOOTH)),
                "largest_difference_relu": highest(curves.sel(network=["relu"])),
            },
            "SN-F2": {
                "flattest_slope": gap.max(), "largest_constant": highest((data.gap / data.form).where(condition, 0)),
                "share_with_condition": condition.mean(),
            },
            "SN-F2-ladder": {
                "smallest_bound": lowest(data.smallest_bound_over_gap),
                "smallest_directed": lowest(data.directed_over_gap),
                "largest_directed": highest(data.directed_over_gap),
                "median_bound": data.bound_over_gap.median(), "median_summed": data.summed_over_gap.median(),
            },
            "SN-F2-paired": {
                "share_steeper": steeper.mean(),
                **{f"light_drift_{s}_{name}": drift.sel(start=s, network=name) for s in STARTS for name in SMOOTH},
                **{f"gap_{name}": gap.sel(network=name) for name in ACTIVATIONS},
            },
        }  # fmt: skip
