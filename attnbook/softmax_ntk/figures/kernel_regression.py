"""The pictures of the chapter on kernel regression."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np

from attnbook.core.figures import INK, band, style
from attnbook.softmax_ntk.experiments import kernel_regression
from attnbook.softmax_ntk.experiments.runs import ACTIVATIONS, ROUNDING
from attnbook.softmax_ntk.figures.lazy_training import LOOKS, STARTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from attnbook.softmax_ntk.kernels import Activation
    from attnbook.softmax_ntk.two_layer import Start

__all__ = [
    "bound_ladder",
    "circle_frame",
    "gap_by_start",
    "gap_by_step",
    "late_drift_frame",
    "loss_curves",
    "network_and_machine",
    "start_named",
]

MACHINE: dict[str, Any] = {"color": "#c9a227", "linewidth": 5, "alpha": 0.7, "label": "kernel machine"}


def network_and_machine(result: kernel_regression.KernelRegression) -> Figure:
    """Draw a ReLU and a softmax network with their machines along a circle, and the gap against the width."""
    s, last = result.settings, len(result.settings.times) - 1
    with style():
        figure, axes = plt.subplot_mosaic(
            [["relu", "gap"], ["softmax", "gap"]], figsize=(6.4, 4.6), width_ratios=(1, 1.05)
        )
        for name in ("relu", "softmax"):
            _predictions(axes[name], result, "paired", name, 0, last)
            axes[name].set(title=f"{LOOKS[name].label}, width {s.shown_widths[0]}", ylabel="output", ylim=(-1.5, 1.7))
        axes["relu"].tick_params(labelbottom=False)
        axes["softmax"].set_xlabel("angle on a circle (degrees)")
        axes["relu"].legend(fontsize=8.5, loc="upper right", ncols=2, handlelength=1.2, columnspacing=1.0)
        _gaps(axes["gap"], result, "paired", legend=True)
        axes["gap"].set(title="largest gap", ylabel="largest |network \u2212 machine|")
    return figure


def gap_by_start(result: kernel_regression.KernelRegression) -> Figure:
    """Draw the gap against the width for paired and independent neurons, with weights of scale 1 and light ones."""
    s = result.settings
    shown: tuple[tuple[Activation, bool], ...] = (
        ("softmax", False),
        ("exp", False),
        ("softmax", True),
        ("exp", True),
        ("relu", False),
    )
    with style():
        figure, axes = plt.subplots(3, 2, figsize=(6.4, 8.0), sharex=True, sharey=True)
        for ax, (name, light) in zip(axes.flat, shown, strict=False):
            widths = np.array(s.light_widths if light else s.widths)
            for start in kernel_regression.STARTS:
                band(ax, widths, np.maximum(result.of(start, name, light=light), ROUNDING), STARTS[start])
            ax.set(yscale="log", title=f"{LOOKS[name].label}, scale {s.light_scale if light else 1:g}")
            powers = {"relu": (-1.0,)}.get(name, (-2.0, -1.5) if light else (-2.0, -1.0))
            for start, power in zip(kernel_regression.STARTS, powers, strict=False):
                first = np.median(result.of(start, name, light=light)[:, 0])
                _reference(ax, widths, (0.3 if power == -2 else 2.5) * first, power)
        for ax in (axes[2, 0], axes[1, 1]):
            _log_widths(ax, np.array(s.widths)[::2])
            ax.tick_params(labelbottom=True)
        figure.supylabel("largest gap to the kernel machine", fontsize=11.5)
        axes[2, 1].axis("off")
        axes[2, 1].legend(*axes[2, 0].get_legend_handles_labels(), fontsize=11, loc="upper left")
    return figure


def gap_by_step(result: kernel_regression.KernelRegression) -> Figure:
    """Draw how the gap grows with the number of steps, relative to its end, one line per network."""
    s = result.settings
    steps = np.array(s.record)[1:]
    with style():
        figure, axes = plt.subplots(1, 2, figsize=(7.2, 3.6), sharex=True, sharey=True)
        for i, (ax, start) in enumerate(zip(axes, kernel_regression.STARTS, strict=True)):
            for j, name in enumerate(ACTIVATIONS):
                shares = result.gap_at[:, i, -1, j, 1:] / np.maximum(result.gap_at[:, i, -1, j, -1:], ROUNDING)
                band(ax, steps, shares, LOOKS[name])
            ax.axhline(1, color=INK, linewidth=0.8)
            ax.set(xscale="log", yscale="log", title=STARTS[start].label, xlabel="steps")
        axes[0].set_ylabel(f"gap / gap after {s.steps} steps")
        axes[1].legend(loc="lower right")
    return figure


def bound_ladder(result: kernel_regression.KernelRegression) -> Figure:
    """Draw by which factor each stage of the bound exceeds the gap, against the width, paired neurons."""
    widths = np.array(result.settings.widths)
    stages = {
        "the bound": result.median_bound_over_gap,
        "measured residuals": result.summed_over_gap,
        "and directions": result.directed_over_gap,
    }
    with style():
        figure, axes = plt.subplots(1, 3, figsize=(6.6, 3.7), sharey=True)
        for j, (ax, name) in enumerate(zip(axes, ACTIVATIONS, strict=True)):
            for (label, ratios), line, marker in zip(stages.items(), ("-", "--", ":"), "osv", strict=True):
                each = np.maximum(ratios[:, 0, :, j], ROUNDING)
                ax.fill_between(widths, each.min(axis=0), each.max(axis=0), color=LOOKS[name].color, alpha=0.18, lw=0)
                ax.plot(
                    widths, np.median(each, axis=0), line, marker=marker, color=LOOKS[name].color, label=label, ms=4
                )
            ax.axhline(1, color=INK, linewidth=0.8)
            ax.set(yscale="log", title=LOOKS[name].label)
            _log_widths(ax, widths[::2], label="width" if j == 1 else "")
        axes[0].set_ylabel("factor above the gap")
        axes[2].legend(fontsize=8.5, loc="upper right", bbox_to_anchor=(1.06, 1.02))
    return figure


def loss_curves(result: kernel_regression.KernelRegression) -> Figure:
    """Draw losses of networks and machines, one panel per network."""
    s = result.settings
    with style():
        figure, axes = plt.subplots(1, 3, figsize=(6.6, 3.4), sharey=True, sharex=True)
        steps = np.arange(result.curve.shape[2])
        for j, (ax, name) in enumerate(zip(axes, ACTIVATIONS, strict=True)):
            ax.plot(steps, np.median(result.machine_curve[:, j], axis=0), **MACHINE)
            band(ax, steps, result.curve[:, j], LOOKS[name])
            ax.lines[-1].set(marker="none", label="network")
            ax.axhline(s.curve_floor, color=INK, linewidth=0.8, linestyle=":")
            ax.set(yscale="log", title=LOOKS[name].label, ylim=(s.curve_floor / 20, 2), xlim=(0, min(100, s.steps)))
        axes[0].set_ylabel("loss / first loss")
        axes[1].set_xlabel(f"steps, width {s.curve_width}")
        axes[2].legend(fontsize=9, loc="upper right")
    return figure


def circle_frame(result: kernel_regression.KernelRegression, steps: int, network: str, neurons: str) -> Figure:
    """Draw the narrowest network and its machine along the circle, and below the gap at every width."""
    s = result.settings
    k, j = s.times.index(steps), ACTIVATIONS.index(network)
    i = kernel_regression.STARTS.index(start_named(neurons))
    degrees, shades = np.degrees(s.angles), plt.get_cmap("cividis")(np.linspace(0.75, 0, len(s.shown_widths)))
    with style():
        figure, (above, below) = plt.subplots(2, 1, figsize=(6.0, 5.0), sharex=True, height_ratios=(1.1, 1))
        _predictions(above, result, start_named(neurons), network, 0, k)
        counted = f"{steps} step" + "s" * (steps > 1)
        above.set(title=f"{LOOKS[network].label}, width {s.shown_widths[0]}, {counted}", ylabel="learned output")
        above.set_ylim(-1.8, 2.0)
        above.legend(fontsize=9, loc="upper right", ncols=2)
        for shade, line, (w, width) in zip(shades, ("-", "--", "-."), enumerate(s.shown_widths), strict=False):
            gap = np.abs(result.network[i, j, w, k] - result.machine[i, j, w, k])
            below.plot(degrees, np.maximum(gap, 1e-9), line, color=shade, label=f"width {width}")
        below.set(yscale="log", ylim=(1e-9, 50), ylabel="|network \u2212 machine|")
        below.set_xlabel("angle on a circle (degrees)")
        below.set_yticks([1e-8, 1e-6, 1e-4, 1e-2, 1])
        below.legend(fontsize=9, ncols=3, loc="upper right")
    return figure


def late_drift_frame(times: np.ndarray, residuals: np.ndarray, jump: float) -> Figure:
    """Draw residuals of machine and network with a jump of the kernel, and their gap below what step 3 allows."""
    machine, network, allowed = residuals
    with style():
        figure, (above, below) = plt.subplots(2, 1, figsize=(6.0, 4.8), sharex=True)
        above.plot(times, machine, **MACHINE)
        above.plot(times, network, color=LOOKS["softmax"].color, label="network")
        below.plot(times, allowed, color=INK, linestyle=":", linewidth=2, label="step 3 allows")
        below.plot(times, network - machine, color=LOOKS["softmax"].color, label="gap")
        for ax in (above, below):
            ax.axvline(jump, color="#c2410c", linewidth=1.2, linestyle="--")
            ax.legend(fontsize=9.5, loc="upper right")
        side, at = ("right", (-4, 0)) if jump > 2.5 else ("left", (4, 0))
        above.annotate("the kernel jumps", (jump, 1.03), xytext=at, textcoords="offset points", ha=side, fontsize=10)
        above.set(ylim=(0, 1.18), xlim=(-0.1, 8), ylabel="residual")
        below.set(ylim=(0, 0.3), xlabel=r"time, in units of $1/\lambda$", ylabel="gap")
    return figure


def start_named(label: str) -> Start:
    """Return the start whose label in legends and controls this is."""
    return next(start for start in kernel_regression.STARTS if STARTS[start].label == label)


def _predictions(
    ax: Axes, result: kernel_regression.KernelRegression, start: Start, name: str, width: int, time: int
) -> None:
    s = result.settings
    i, j = kernel_regression.STARTS.index(start), ACTIVATIONS.index(name)
    degrees, (_, angle, labels) = np.degrees(s.angles), s.circle()
    ax.plot(degrees, result.machine[i, j, width, time], **MACHINE)
    ax.plot(degrees, result.network[i, j, width, time], color=LOOKS[name].color, label="network")
    ax.plot(np.degrees([0, angle]), labels, "x", color=INK, markersize=9, markeredgewidth=2)
    ax.set(xlim=(-8, 360), xticks=(0, 90, 180, 270, 360))


def _gaps(ax: Axes, result: kernel_regression.KernelRegression, start: Start, *, legend: bool) -> None:
    widths = np.array(result.settings.widths)
    for name in ACTIVATIONS:
        band(ax, widths, np.maximum(result.of(start, name), ROUNDING), LOOKS[name])
    _reference(ax, widths, 0.2 * np.median(result.of(start, "exp")[:, 0]), -2)
    _reference(ax, widths, 2.0 * np.median(result.of(start, "relu")[:, 0]), -1)
    ax.set(yscale="log")
    _log_widths(ax, widths[::2])
    if legend:
        ax.set_ylim(bottom=ax.get_ylim()[0] / 3)
        ax.legend(fontsize=10, loc="lower left")


def _reference(ax: Axes, widths: np.ndarray, start: float, power: float) -> None:
    """A dotted line of a falling power, named."""
    line = start * (widths / widths[0]) ** power
    ax.plot(widths, line, color=INK, linewidth=1, linestyle=":")
    at = (len(widths) - 1) // 2
    below = power < -1.75
    ax.annotate(
        f"slope \u2212{-power:g}",
        (widths[at], line[at]),
        xytext=(-4, -4) if below else (5, 3),
        textcoords="offset points",
        fontsize=10,
        ha="right" if below else "left",
        va="top" if below else "bottom",
    )


def _log_widths(ax: Axes, widths: np.ndarray, *, label: str = "width") -> None:
    ax.set(xscale="log", xlabel=label)
    ax.set_xticks(widths, [str(m) for m in widths])
    ax.minorticks_off()
