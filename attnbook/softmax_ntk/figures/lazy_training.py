"""The pictures of the chapter on lazy training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np

from attnbook.core.figures import INK, Look, band, style
from attnbook.softmax_ntk.experiments import circle, lazy_training, samples, starts, step_size
from attnbook.softmax_ntk.experiments.runs import ACTIVATIONS, ROUNDING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from attnbook.softmax_ntk.kernels import Activation

__all__ = [
    "LOOKS",
    "STARTS",
    "circle_frame",
    "drift_by_start",
    "envelope",
    "exponents",
    "lazier",
    "linear_steps_frame",
    "loss_by_step_size",
    "steps_against_samples",
    "steps_against_width",
]

LOOKS: Mapping[str, Look] = {
    "softmax": Look("softmax", "#0b5cad", "-", "o"),
    "exp": Look("exp", "#c2410c", "-.", "^"),
    "relu": Look("ReLU", "#5b5f66", "--", "s"),
}
STARTS: Mapping[str, Look] = {
    "paired": Look("pairs", "#15803d", "-", "v"),
    "opposite_signs": Look("opposite signs only", "#7c3aed", "-.", "D"),
    "independent": Look("independent", "#8a5a00", "--", "P"),
}


def lazier(result: lazy_training.LazyTraining) -> Figure:
    """Draw how far weights and kernel have moved when the loss has fallen to the target, against the width."""
    widths = np.array(result.settings.widths)
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 4.0), sharex=True)
        for j, name in enumerate(ACTIVATIONS):
            band(left, widths, result.rms_movement[:, 0, :, j], LOOKS[name])
            band(right, widths, np.maximum(result.drift[:, 0, :, j], ROUNDING), LOOKS[name])
        _reference(left, widths, 0.05 * np.median(result.rms_movement[:, 0, 0, 0]), -1)
        _reference(right, widths, 0.2 * np.median(result.drift[:, 0, 0, 0]), -2)
        _reference(right, widths, 2.5 * np.median(result.drift[:, 0, 0, 2]), -1)
        left.set(title="weights", ylabel="movement of a neuron (rms)")
        right.set(title="kernel", ylabel="change, relative")
        for ax in (left, right):
            ax.set_yscale("log")
            _log_widths(ax, widths[::2])
        left.legend()
    return figure


def envelope(result: lazy_training.LazyTraining) -> Figure:
    """Draw loss curves, those of the kernel machine and the envelope of Lemma 5.3, one panel per network."""
    with style():
        figure, axes = plt.subplots(1, 3, figsize=(6.4, 3.6), sharey=True)
        steps = np.arange(result.curve.shape[2])
        for j, (ax, name) in enumerate(zip(axes, ACTIVATIONS, strict=True)):
            ax.plot(steps, np.median(result.envelope[:, j], axis=0), color=INK, linestyle=":", label="Lemma 5.3")
            ax.plot(steps, np.median(result.kernel_curve[:, j], axis=0), color="#c9a227", linewidth=5, alpha=0.7,
                    label="kernel machine")  # fmt: skip
            band(ax, steps, result.curve[:, j], LOOKS[name])
            ax.lines[-1].set(marker="none", label="network")
            ax.set(yscale="log", title=LOOKS[name].label, ylim=(1e-9, 4), xticks=(0, 20, 40))
        axes[0].set_ylabel("loss / first loss")
        axes[1].set_xlabel(f"steps, width {result.settings.curve_width}")
        axes[0].legend(fontsize=9, loc="lower left")
    return figure


def exponents(result: lazy_training.LazyTraining) -> Figure:
    """Draw how many times faster than its envelope the late loss falls, against the width."""
    widths = np.array(result.settings.widths)
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.4))
        for j, name in enumerate(ACTIVATIONS):
            ratios = result.exponent_ratio[:, :, :, j].reshape(-1, len(widths))
            ratios = np.where(ratios > 0, ratios, np.nan)
            ax.plot(widths, np.nanmin(ratios, axis=0), **LOOKS[name].line_style())
        ax.axhline(4, color=INK, linestyle=":", linewidth=1)
        ax.axhline(1, color=INK, linestyle="-", linewidth=1)
        for height, text in ((4, "a kernel that does not move: at least 4"), (1, "the envelope: 1")):
            ax.annotate(text, (widths[-1], height), xytext=(0, -13), textcoords="offset points", ha="right")
        ax.set(ylabel="exponent / envelope's", ylim=(0, 6.4))
        _log_widths(ax, widths)
        ax.legend(loc="upper right", ncols=3, title="smallest over seeds and outputs, singular kernels left out")
    return figure


def steps_against_width(result: lazy_training.LazyTraining) -> Figure:
    """Draw the number of steps to the target against the width, one dot per network, means as lines."""
    widths, outputs = np.array(result.settings.widths), result.settings.outputs
    with style():
        figure, axes = plt.subplots(1, len(outputs), figsize=(7.2, 3.8), sharey=True, squeeze=False)
        for i, ax in enumerate(axes[0]):
            for j, name in enumerate(ACTIVATIONS):
                look, steps = LOOKS[name], result.steps[:, i, :, j]
                failed = result.reached[:, i, :, j] == 0
                shift = np.linspace(-0.09, 0.09, len(steps)) + 0.25 * (j - 1)
                at = widths * 2 ** np.broadcast_to(shift[:, None], steps.shape)
                ax.plot(at[~failed], steps[~failed], ".", color=look.color, alpha=0.4)
                ax.plot(at[failed], steps[failed], "x", color=look.color, markersize=7, markeredgewidth=1.5)
                ax.plot(widths, steps.mean(axis=0), **look.line_style())
            ax.set(yscale="log", title=f"{outputs[i]} output" + "s" * (outputs[i] > 1))
            _log_widths(ax, widths[::2])
        axes[0, 0].set_ylabel("steps to a thousandth")
        axes[0, 0].legend()
    return figure


def steps_against_samples(result: samples.Samples) -> Figure:
    """Draw the number of steps against the number of samples, with the theorem's square as a slope."""
    sizes = np.array(result.settings.sizes)
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.6))
        for j, name in enumerate(ACTIVATIONS):
            band(ax, sizes, result.steps[:, :, j], LOOKS[name])
        start = np.median(result.steps[:, 0]) * 1.5
        for power in (1, 2):
            line = start * (sizes / sizes[0]) ** float(power)
            ax.plot(sizes, line, color=INK, linewidth=1, linestyle=":")
            ax.annotate(f"slope {power}", (sizes[2], line[2]), xytext=(-6, 4), textcoords="offset points", ha="right")
        ax.set(xscale="log", yscale="log", xlabel="samples", ylabel="steps to a thousandth")
        ax.set_xticks(sizes, [str(n) for n in sizes])
        ax.minorticks_off()
        ax.legend(loc="lower right")
    return figure


def loss_by_step_size(result: step_size.StepSize) -> Figure:
    """Draw loss curves of one seed for step sizes below and beyond the limit of linear theory."""
    with style():
        figure, axes = plt.subplots(1, 3, figsize=(6.4, 3.8), sharex=True, sharey=True)
        shades = plt.get_cmap("cividis")(np.linspace(0.75, 0, len(result.settings.curve_fractions)))
        lines = ("-", "--", "-.", ":")
        for j, (ax, name) in enumerate(zip(axes, ACTIVATIONS, strict=True)):
            for i, fraction in enumerate(result.settings.curve_fractions):
                curve = np.minimum(result.curves[i, j], 1e7)
                ended = result.steps[0, result.settings.fractions.index(fraction), j]
                upto = int(min(ended, len(curve) - 1)) + 1
                ax.plot(curve[:upto], color=shades[i], linestyle=lines[i % 4], label=f"{fraction:g}")
            ax.axhline(1, color=INK, linewidth=0.8)
            ax.set(yscale="log", title=LOOKS[name].label)
        axes[0].set_ylabel("loss / first loss")
        axes[1].set_xlabel("steps")
        axes[2].legend(title=r"$m\eta\lambda_{\max}(H^*)$", fontsize=9)
    return figure


def drift_by_start(result: starts.Starts) -> Figure:
    """Draw the drift of the kernel at equal residual for three starts, with weights of scale 1 and with light ones."""
    widths, light_widths = np.array(result.settings.widths), np.array(result.settings.light_widths)
    light = result.settings.light_scale
    shown: tuple[tuple[Activation, bool], ...] = (
        ("softmax", False),
        ("exp", False),
        ("softmax", True),
        ("relu", False),
    )
    with style():
        figure, axes = plt.subplots(2, 2, figsize=(6.8, 6.0), sharex=True, sharey=True)
        for ax, (name, is_light) in zip(axes.flat, shown, strict=True):
            for start in starts.STARTS:
                drift = np.maximum(result.of(start, name, light=is_light), ROUNDING)
                band(ax, light_widths if is_light else widths, drift, STARTS[start])
            ax.set(yscale="log", title=f"{LOOKS[name].label}, scale {light if is_light else 1:g}")
        for start, power in (("paired", 2), ("independent", 1.5)):
            first = np.median(result.of(start, "softmax", light=True)[:, 0])
            _reference(axes[1, 0], light_widths, 0.5 * first, -power)
        _reference(axes[1, 1], widths, 0.4 * np.median(result.of("paired", "relu")[:, 0]), -1)
        for ax in axes[1]:
            _log_widths(ax, widths[::2])
        figure.supylabel("change of the kernel, relative", fontsize=11.5)
        axes[0, 1].legend(fontsize=9.5)
    return figure


def circle_frame(result: circle.Circle, width: int, network: str) -> Figure:
    """Draw neurons before and after training, kernel entries before and after, and both predictions on the circle."""
    s = result.settings
    i, j = s.widths.index(width), ACTIVATIONS.index(network)
    before, after = result.before[j, i, : min(width, s.shown)], result.after[j, i, : min(width, s.shown)]
    degrees, look = np.degrees(s.angles), LOOKS[network]
    with style():
        fixed = {"left": 0.12, "right": 0.96, "top": 0.95, "bottom": 0.1, "wspace": 0.32, "hspace": 0.52}
        figure, axes = plt.subplot_mosaic(  # many frames: a layout that is given costs half of one that is searched
            [["neurons", "kernel"], ["prediction"] * 2], figsize=(6.0, 5.4), layout="none", gridspec_kw=fixed
        )
        neurons, kernel, prediction = (axes[part] for part in ("neurons", "kernel", "prediction"))
        for start, end in zip(before, after, strict=True):
            neurons.plot(*zip(start, end, strict=True), color=look.color, linewidth=1.5)
        neurons.plot(*before.T, "o", color="#5b5f66", markersize=6, markerfacecolor="none", markeredgewidth=0.8)
        neurons.plot(*after.T, ".", color=look.color, markersize=4)
        neurons.set(xlim=(-4.5, 4.5), ylim=(-4.5, 4.5), title="weights", xlabel="first weight", ylabel="second weight")
        neurons.set_xticks((-4, 0, 4))
        entries = np.stack([result.kernel_before[j, i].ravel(), result.kernel_after[j, i].ravel()])
        low, high = min(entries.min(), 0.0), 1.08 * entries.max()
        kernel.plot([low, high], [low, high], color=INK, linewidth=0.8)
        kernel.plot(*entries, look.marker, color=look.color, markersize=4)
        kernel.set(title="kernel", xlabel="entry before", ylabel="entry after")
        prediction.plot(degrees, result.machine[j, i], color="#c9a227", linewidth=5, alpha=0.7, label="kernel machine")
        prediction.plot(degrees, result.network[j, i], color=look.color, label="network")
        prediction.plot(np.degrees(result.points), result.labels, "x", color=INK, markersize=9, markeredgewidth=2)
        prediction.set(ylim=(-1.6, 2.4), xlim=(0, 360), title=f"prediction, width {width}", xlabel="angle (degrees)")
        prediction.set_xticks((0, 90, 180, 270, 360))
        prediction.legend(fontsize=9, loc="upper right")
    return figure


def linear_steps_frame(eigenvalues: np.ndarray, factors: np.ndarray, losses: Mapping[str, np.ndarray]) -> Figure:
    """Draw what one step leaves of the residual along each eigenvector, and the loss by step, with one for comparison.

    Args:
        eigenvalues: Over the largest.
        factors: One per eigenvalue.
        losses: Label to losses over the first, the one for comparison last.

    Returns:
        The figure.
    """
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(6.4, 3.6))
        left.vlines(eigenvalues, 0, factors, color="#c9a227", linewidth=2)
        left.plot(eigenvalues, factors, "o", color="#7a5c00", markersize=4)
        for level, line in ((1, ":"), (0, "-"), (-1, ":")):
            left.axhline(level, color=INK, linewidth=0.9, linestyle=line)
        left.set(xlim=(0, 1.05), ylim=(-1.35, 1.35), title="kept in one step")
        left.set(xlabel=r"eigenvalue / $\lambda_{\max}$", ylabel="factor of the residual")
        looks = zip(losses.items(), (("#7a5c00", "-", "o"), ("#5b5f66", "--", "none")), strict=True)
        for (label, values), (color, line, marker) in looks:
            right.plot(values, color=color, linestyle=line, marker=marker, markersize=4, label=label)
        right.axhline(1e-3, color=INK, linewidth=0.9, linestyle=":")
        right.set(yscale="log", ylim=(1e-5, 30), xlim=(0, 20), xlabel="steps", title="loss / first loss")
        right.legend(fontsize=9, loc="upper right", title=r"step size $\times\, m\lambda_{\max}$", title_fontsize=9)
    return figure


def _reference(ax: Axes, widths: np.ndarray, start: float, power: float) -> None:
    """A dotted line of a falling power, named."""
    line = start * (widths / widths[0]) ** float(power)
    ax.plot(widths, line, color=INK, linewidth=1, linestyle=":")
    ax.annotate(
        f"slope \u2212{-power:g}",
        (widths[len(widths) // 2 - 1], line[len(widths) // 2 - 1]),
        xytext=(5, 2),
        textcoords="offset points",
        fontsize=10,
    )


def _log_widths(ax: Axes, widths: np.ndarray, *, label: str = "width") -> None:
    ax.set(xscale="log", xlabel=label)
    ax.set_xticks(widths, [str(m) for m in widths])
    ax.minorticks_off()
