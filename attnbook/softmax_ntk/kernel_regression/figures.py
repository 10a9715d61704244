"""The pictures and tables of the chapter. Each function takes the data set and computes nothing but medians."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnbook.core.figures import INK, band, log_axis, style
from attnbook.core.tables import Measured, Table
from attnbook.softmax_ntk.looks import LOOKS, STARTS
from attnbook.softmax_ntk.sweeps import ROUNDING

MACHINE: dict[str, Any] = {"color": "#c9a227", "linewidth": 5, "alpha": 0.7, "label": "kernel machine"}
STAGES = {
    "bound": ("the bound", "-", "o"),
    "summed": ("residuals measured", "--", "s"),
    "directed": ("and directions", ":", "v"),
}


def network_and_machine(data: xr.Dataset) -> Figure:
    """Draw a ReLU and a softmax network with their machines along a circle, and the gap against the width."""
    with style():
        figure, axes = plt.subplots(1, 3, figsize=(7.8, 2.35))
        for ax, name in zip(axes, ("relu", "softmax"), strict=False):
            _predictions(ax, data, "paired", name, int(data.time[-1]))
            ax.set(title=f"{LOOKS[name].label}, width {int(data.shown[0])}", ylim=(-1.5, 1.9), xlabel="angle (degrees)")
        axes[0].set_ylabel("output")
        axes[1].legend(fontsize=8.5, loc="upper right")
        for name, look in LOOKS.items():
            gap = data.gap.isel(scale=0).sel(start="paired", network=name).transpose("seed", "width")
            band(axes[2], data.width, np.maximum(gap, ROUNDING), look)
        axes[2].set(yscale="log", title="largest gap")
        axes[2].set_ylim(bottom=axes[2].get_ylim()[0] / 300)
        log_axis(axes[2], data.width.values[::2], "width")
        axes[2].legend(fontsize=8.5, loc="lower left")
    return figure


def circle_frame(data: xr.Dataset, steps: int, network: str, neurons: str) -> Figure:
    """Draw the narrowest network and its machine along the circle, and below the gap at every width."""
    start = start_named(neurons)
    shown = data.picture.sel(start=start, network=network, time=steps)
    gaps = abs(shown.sel(model="network") - shown.sel(model="machine"))
    shades = plt.get_cmap("cividis")(np.linspace(0.75, 0, len(data.shown)))
    with style():
        figure, (above, below) = plt.subplots(2, 1, figsize=(6.0, 4.3), sharex=True, height_ratios=(1.1, 1))
        _predictions(above, data, start, network, steps)
        title = f"{LOOKS[network].label}, width {int(data.shown[0])}, {steps} step" + "s" * (steps > 1)
        above.set(title=title, ylabel="learned", ylim=(-1.8, 2))
        above.legend(fontsize=9, loc="upper left", ncols=2)
        for shade, line, width in zip(shades, ("-", "--", "-."), data.shown.values, strict=False):
            below.plot(data.angle, np.maximum(gaps.sel(shown=width), 1e-9), line, color=shade, label=f"width {width}")
        below.set(yscale="log", ylim=(1e-9, 50), ylabel="distance", xlabel="angle on a circle (degrees)")
        below.set_yticks([1e-8, 1e-6, 1e-4, 1e-2, 1])
        below.legend(fontsize=9, ncols=3, loc="upper left")
    return figure


def circle_text(data: xr.Dataset, steps: int, network: str, neurons: str) -> str:
    """Say how far network and machine are apart on the circle at every width."""
    shown = data.picture.sel(start=start_named(neurons), network=network, time=steps)
    gaps = abs(shown.sel(model="network") - shown.sel(model="machine")).max("angle")
    listed = ", ".join(f"{float(gap):.1g} at width {int(width)}" for gap, width in zip(gaps, data.shown, strict=True))
    return (
        f"{LOOKS[network].label}, {neurons}, {steps} step{'s' * (steps > 1)}: largest distance on the circle {listed}."
    )


def start_named(label: str) -> str:
    """Return the start whose label in legends and controls this is."""
    return next(start for start, look in STARTS.items() if look.label == label)


def ladder(data: xr.Dataset) -> Figure:
    """Draw by which factor each stage of the bound exceeds the gap, against the width, paired neurons."""
    with style():
        figure, axes = plt.subplots(1, 3, figsize=(7.2, 3.5), sharey=True)
        for ax, (name, look) in zip(axes, LOOKS.items(), strict=True):
            at = data.isel(scale=0).sel(start="paired", network=name)
            for stage, (label, line, marker) in STAGES.items():
                each = at[f"{stage}_over_gap"].transpose("seed", "width")
                ax.fill_between(data.width, each.min("seed"), each.max("seed"), color=look.color, alpha=0.18, lw=0)
                ax.plot(data.width, each.median("seed"), line, marker=marker, color=look.color, label=label)
            ax.axhline(1, color=INK, linewidth=0.8)
            ax.set(yscale="log", title=look.label)
            log_axis(ax, data.width.values[::2], "width")
        axes[0].set_ylabel("factor above the gap")
        axes[2].legend(fontsize=9, loc="upper right")
    return figure


def gap_by_start(data: xr.Dataset) -> Figure:
    """Draw the gap against the width for paired and independent neurons, with weights of scale 1 and light ones."""
    shown = (("softmax", 0), ("softmax", 1), ("relu", 0))
    with style():
        figure, axes = plt.subplots(1, 3, figsize=(7.6, 3.3), sharey=True)
        for ax, (name, scale) in zip(axes, shown, strict=True):
            at = data.gap.isel(scale=scale).sel(network=name)
            for start in data.start.values:
                gaps = np.maximum(at.sel(start=start).transpose("seed", "width"), ROUNDING)
                band(ax, data.width, gaps, STARTS[start])
            ax.set(yscale="log", title=f"{LOOKS[name].label}, scale {float(data.scale[scale]):g}")
            log_axis(ax, data.width.values[::2], "width")
        axes[0].set_ylabel("largest gap")
        axes[0].legend(fontsize=9)
    return figure


def looseness(data: xr.Dataset) -> Table:
    """Return in how many runs the theorem's condition holds, and by which factor each stage exceeds the gap."""
    usual, rows = data.isel(scale=0), list[list[str | Measured]]()
    for start in data.start.values:
        for name, look in LOOKS.items():
            at = usual.sel(start=start, network=name)
            holds = at.kernel_drift <= at.smallest_eigenvalue / 2
            factors = [f"{float(at[f'{stage}_over_gap'].isel(width=-1).median()):.2g}" for stage in STAGES]
            cells = map(Measured, (f"{int(holds.sum())} of {holds.size}", *factors))
            rows.append([STARTS[start].label, look.label, *cells])
    caption = f"Condition: drift at most λ/2, all widths. Factors above the gap: width {int(data.width[-1])}, medians."
    return Table(["start", "network", "condition", *(label for label, *_ in STAGES.values())], rows, caption)


def _predictions(ax: Axes, data: xr.Dataset, start: str, name: str, time: int) -> None:
    shown = data.picture.sel(start=start, network=name, time=time).isel(shown=0)
    ax.plot(data.angle, shown.sel(model="machine"), **MACHINE)
    ax.plot(data.angle, shown.sel(model="network"), color=LOOKS[name].color, label=f"{LOOKS[name].label} network")
    ax.plot(data.sample_angle, data.sample_label, "x", color=INK, markersize=9, markeredgewidth=2)
    ax.set(xlim=(-8, 360), xticks=(0, 90, 180, 270, 360))
