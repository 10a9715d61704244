"""The pictures of this chapter, from results or arrays: only medians and shares are computed here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float, Int

from attnbook.core.figures import INK, LOOKS, Look, band, style
from attnbook.global_attention.experiments.hessian_settings import OUTLIERS
from attnbook.global_attention.experiments.hessian_spectrum import HessianSpectrum
from attnbook.global_attention.experiments.landscape_rescaling import MAP_RANGE
from attnbook.global_attention.experiments.landscape_samples import STATIONARY
from attnbook.global_attention.experiments.loss_landscape import BIASES, MODELS, LossLandscape

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "FOLDED",
    "along_training",
    "few_samples",
    "fits",
    "orbit_frame",
    "orbit_map",
    "planes",
    "ratios",
    "region_bounds",
    "region_window",
    "segments",
    "two_comparisons",
]

FOLDED = Look("folded", "#2f74b8", (0, (1, 2)), "D", hollow=True)
"""Eigenvalues of the Hessian in diag(mask) hidden and decoder."""

RANK = "rank of the eigenvalue"
EIGENVALUE = "eigenvalue of the Hessian"
# Greys and one hue for curves that differ in a number only.
SHADES = ("#1f2937", "#4338ca", "#0e7490", "#4d7c0f", "#a16207")


def two_comparisons(result: HessianSpectrum) -> Figure:
    """Draw Figure 3 twice: after equal numbers of steps, and at equal training loss."""
    with style():
        figure, axes = plt.subplots(1, 2, sharey=True, figsize=(7.2, 3.9))
        rank = np.arange(1, result.settings.n_eigenvalues + 1)
        for ax, name, title in zip(
            axes, ("attention", "equal_loss"), ("after equal numbers of steps", "at equal training loss"), strict=True
        ):
            _spectrum(ax, rank, result.spectrum("baseline"), LOOKS["baseline"])
            _spectrum(ax, rank, result.spectrum(name), LOOKS["attention"])
            ax.set(xscale="log", yscale="log", title=title, xlabel=RANK)
            ax.axvline(OUTLIERS + 0.5, color=INK, linewidth=1, linestyle=":")
            _whole_numbers(ax)
        axes[0].set_ylabel(EIGENVALUE)
        axes[0].legend(loc="lower left")
        words = axes[1].get_xaxis_transform()
        axes[1].text(OUTLIERS, 0.04, "nine outliers", transform=words, ha="right", fontsize=10)
        axes[1].text(OUTLIERS + 1.2, 0.94, "the bulk", transform=words, fontsize=10)
    return figure


def along_training(result: HessianSpectrum) -> Figure:
    """Draw the outlying eigenvalues against the training loss along both runs, every seed; training goes right."""
    step_sizes = result.settings.step_sizes
    rows = [("largest eigenvalue", result.path_top), ("sum of the outliers", result.path_sum)]
    looks = (LOOKS["baseline"], replace(LOOKS["attention"], label="attention, raw"),
             replace(FOLDED, label="attention, folded"))  # fmt: skip
    if len(step_sizes) > 1:
        rows = rows[:1]
    panels = [(step_size, i, *row) for i, step_size in enumerate(step_sizes) for row in rows]
    with style():
        figure, axes = plt.subplots(1, len(panels), sharey=len(rows) == 1, figsize=(7.2, 3.6), squeeze=False)
        for ax, (step_size, i, label, values) in zip(axes[0], panels, strict=True):
            for path, look in enumerate(looks):
                for seed in range(len(values)):
                    ax.plot(result.path_loss[seed, i, path], values[seed, i, path], linewidth=1.1,
                            **{**look.line_style(), "label": look.label if seed == 0 else None})  # fmt: skip
            title = label if len(step_sizes) == 1 else f"step size {step_size:g}"
            ax.set(xscale="log", yscale="log", title=title)
            ax.set_xlim(1.7 * result.path_loss.max(), result.path_loss.min() / 1.7)
        axes[0, 0].set_ylabel("eigenvalues of the Hessian" if len(rows) > 1 else rows[0][0])
        axes[0, 0].legend(fontsize=10, loc="lower left")
        figure.supxlabel("training loss (training goes to the right)", fontsize=11.5)
    return figure


def ratios(result: HessianSpectrum) -> Figure:
    """Draw the ratio of attention's eigenvalues to the baseline's by rank, raw and folded, for both comparisons."""
    with style():
        figure, axes = plt.subplots(1, 2, sharey=True, figsize=(7.2, 3.9))
        rank = np.arange(1, result.settings.n_eigenvalues + 1)
        for ax, name, title in zip(
            axes, ("attention", "equal_loss"), ("after equal numbers of steps", "at equal training loss"), strict=True
        ):
            for each, look in ((name, replace(LOOKS["attention"], label="raw")), (f"{name}_folded", FOLDED)):
                _spectrum(ax, rank, result.spectrum(each) / result.spectrum("baseline"), look)
            ax.axhline(1.0, color=LOOKS["baseline"].color, linewidth=1.2, linestyle="--")
            ax.set(xscale="log", yscale="log", title=title, xlabel=RANK)
            _whole_numbers(ax)
        ticks = (0.7, 1.0, 1.4, 2.0)
        axes[0].set_yticks(ticks, [f"{t:g}" for t in ticks])
        axes[0].minorticks_off()
        _whole_numbers(axes[0])
        axes[0].set_ylabel("eigenvalue, attention over baseline")
        axes[1].legend()
    return figure


def region_bounds(
    widths: Int[np.ndarray, " widths"],
    bounds: Mapping[int, Float[np.ndarray, " widths"]],
    crossings: Mapping[int, float],
) -> Figure:
    """Draw Figure 1: the bound of Theorem 3 against width, one curve per number of inputs kept.

    Args:
        widths: Hidden units.
        bounds: Inputs kept to logarithms (base 10) of the bound; the largest number is the baseline.
        crossings: Inputs kept to the width from which the baseline's bound is larger.

    Returns:
        The figure; left the narrow networks and every other curve, right all.
    """
    with style():
        figure, axes = plt.subplots(1, 2, figsize=(7.2, 4.0), width_ratios=(1, 1.25))
        most = max(bounds)
        for ax, shown in zip(axes, ([*list(bounds)[::2], most], list(bounds)), strict=True):
            for i, (kept, values) in enumerate(bounds.items()):
                if kept not in shown:
                    continue
                look = LOOKS["baseline"] if kept == most else Look("", SHADES[i % 5], "-", "oD^vP"[i % 5])
                label = f"baseline, p = {kept}" if kept == most else f"s₀ = {kept}"
                every = max(1, len(widths) // 6)
                ax.plot(widths, values, color=look.color, linestyle=look.line, marker=look.marker, markevery=(i, every),
                        linewidth=2.6 if kept == most else 1.5, label=label)  # fmt: skip
            ax.set(xscale="log", xlabel="hidden units $n_1$")
        lowest, last = widths[0], max(crossings.values()) * 1.5
        axes[0].set(xlim=(lowest, last), ylim=(-1, 36), title="narrow", ylabel="log₁₀ of the bound")
        for kept, width in list(crossings.items())[::2]:  # every other one, so that lines can be told apart
            axes[0].axvline(width, color=SHADES[list(bounds).index(kept) % 5], linewidth=0.9, linestyle=":")
        ticks = [100, 150, 200, 300]
        axes[0].set_xticks(ticks, map(str, ticks))
        axes[1].set(title="all widths")
        axes[1].set_xticks([100, 300, 1000, 5000], ["100", "300", "1000", "5000"])
        for ax in axes:
            ax.minorticks_off()
        axes[1].legend(fontsize=10.5)
    return figure


def region_window(lines: Float[np.ndarray, "lines 3"], half_width: float, *, ax: Axes | None = None) -> Figure:
    """Draw the regions that lines cut out of a square: the brighter, the more units are on.

    Args:
        lines: Normal (two numbers) and offset of each line.
        half_width: Half the side of the square.
        ax: Where to draw; default a new figure.

    Returns:
        The figure.
    """
    with style():
        figure, axes = plt.subplots(figsize=(4.2, 4.2)) if ax is None else (plt.gcf(), ax)
        grid = np.linspace(-half_width, half_width, 240)
        x, y = np.meshgrid(grid, grid)
        on = np.einsum("lk,kij->lij", lines[:, :2], np.stack([x, y])) + lines[:, 2, None, None] > 0
        axes.imshow(on.sum(axis=0), extent=(-half_width, half_width) * 2, origin="lower", cmap="cividis", alpha=0.75)
        for (a, b, offset), row in zip(lines, on, strict=True):
            if row.any() and not row.all():
                foot = -offset * np.array([a, b]) / (a * a + b * b)
                axes.axline(foot, foot + np.array([-b, a]) / np.hypot(a, b), color=INK, linewidth=0.7)
        axes.set(xlim=(-half_width, half_width), ylim=(-half_width, half_width))
        axes.set(xticks=(-half_width, 0, half_width), yticks=(-half_width, 0, half_width), aspect="equal")
        if ax is None:
            axes.set(xlabel="first input", ylabel="second input", title="bright: many units are on")
        axes.grid(visible=False)
    return figure


def planes(result: LossLandscape) -> Figure:
    """Draw the regions of trained networks on a plane of relevant and ignored inputs, first seed."""
    with style():
        figure, axes = plt.subplots(1, len(MODELS), figsize=(7.2, 2.9), sharey=True)
        for i, (ax, model) in enumerate(zip(axes, MODELS, strict=True)):
            region_window(result.plane_lines[i], result.settings.half_width, ax=ax)
            ax.set_title(f"{LOOKS[model].label}:\n{result.plane_regions[0, i]:.0f} regions", fontsize=11)
        axes[0].set_ylabel("inputs it ignores")
        figure.supxlabel("inputs the teacher looks at", fontsize=11.5)
    return figure


def segments(result: LossLandscape) -> Figure:
    """Draw how many units bend the function along a segment: random networks by mask and biases, and trained ones."""
    s = result.settings
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 4.0), sharey=True)
        for j, (biases, line) in enumerate(zip(BIASES, (":", "-", "--"), strict=True)):
            look = Look(f"biases: {biases}", SHADES[j], line, "sov"[j])
            band(left, np.array(s.segment_sparsities), (result.segment_pieces[:, j] - 1) / s.segment_width, look)
        left.set(xscale="log", ylim=(-0.03, 0.62), xlabel="inputs that the mask keeps, s₀", title="random networks")
        left.set(ylabel="share of units that bend the function")
        left.set_xticks(s.segment_sparsities, map(str, s.segment_sparsities))
        left.minorticks_off()
        left.legend(loc="lower right", fontsize=10)
        counts = ((result.pieces_before, result.pieces), (result.ignored_pieces_before, result.ignored_pieces))
        for group, (before, after) in enumerate(counts):
            columns = [(before[:, 0], replace(LOOKS["baseline"], label="all, untrained", marker="x"))]
            columns += [(after[:, j], LOOKS[model]) for j, model in enumerate(MODELS)]
            for j, (values, look) in enumerate(columns):
                at = group + (j - 1.5) * 0.2 + np.linspace(-0.03, 0.03, len(values))
                right.plot(at, (values - 1) / s.width, linestyle="none", marker=look.marker, color=look.color,
                           label=look.label if group == 0 else None)  # fmt: skip
        right.set(xlim=(-0.6, 1.6), title="trained networks")
        right.set_xticks(range(2), ["all inputs\nmove", "only ignored\ninputs move"])
        right.legend(loc="lower left", fontsize=10)
        for ax in (left, right):
            ax.axhline(0.5, color=INK, linewidth=1, linestyle=":")
    return figure


def orbit_map(result: LossLandscape) -> Figure:
    """Draw the sharpness over the orbit, with the part that the assumptions allow and the least L2 penalty."""
    log10 = np.log(10)
    axis = np.linspace(*MAP_RANGE, result.settings.map_points) / log10
    with style():
        figure, ax = plt.subplots(figsize=(6.4, 4.6))
        shades = ax.pcolormesh(axis, axis, np.log10(result.sharpness_map).T, shading="nearest", cmap="cividis")
        figure.colorbar(shades, label="log₁₀ of the largest eigenvalue")
        values = np.log10(result.sharpness_map).T
        at = np.arange(np.ceil(values.min() * 2) / 2, values.max(), 0.5)[1:]
        middle = (values.min() + values.max()) / 2
        levels = ax.contour(axis, axis, values, at, colors=["white" if v < middle else INK for v in at], linewidths=0.8)
        ax.clabel(levels, at[::2], fontsize=10.5)
        corners = np.vstack([result.triangle, result.triangle[:1]]) / log10
        ax.plot(*corners.T, color="white", linewidth=2.4)
        ax.annotate("allowed by A2 and A4", result.triangle[0] / log10, color="white", ha="right",
                    va="bottom", fontsize=9.5, xytext=(0, 4), textcoords="offset points")  # fmt: skip
        ax.plot(0, 0, marker="o", color="white", markersize=8, markeredgecolor=INK)
        ax.plot(axis, result.least_penalty / log10, color="white", linewidth=1.6, linestyle="--")
        ax.annotate("least L2 penalty", (axis[-1], result.least_penalty[-1] / log10), color="white", fontsize=9.5,
                    ha="right", va="top", xytext=(-6, -4), textcoords="offset points")  # fmt: skip
        ax.set(xlabel="log₁₀ α₁ (mask)", ylabel="log₁₀ α₂ (first layer)", xlim=(axis[0], axis[-1]))
        ax.set_ylim(axis[0], axis[-1])
        ax.grid(visible=False)
    return figure


def orbit_frame(result: LossLandscape, mask_factor: float, hidden_factor: float) -> Figure:
    """Draw function and spectrum at one point of the orbit, beside those at the start."""
    s = result.settings
    i, j = s.mask_factors.index(mask_factor), s.hidden_factors.index(hidden_factor)
    start = s.mask_factors.index(1.0), s.hidden_factors.index(1.0)
    kept = int((result.orbit_eigenvalues[start] > 1e-9 * result.orbit_eigenvalues[start][0]).sum())
    t = np.linspace(-2, 2, result.orbit_outputs.shape[2])
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.3))
        left.plot(t, result.orbit_outputs[start], color="#9ca3af", linewidth=6, label="before")
        left.plot(t, result.orbit_outputs[i, j], color=SHADES[1], linestyle="--", label="rescaled")
        left.set(xlabel="position on a line of inputs", ylabel="output", title="the function")
        left.legend()
        rank = np.arange(1, kept + 1)
        for at, color, marker, label in ((start, "#6b7280", "s", "before"), ((i, j), SHADES[1], "o", "rescaled")):
            right.plot(rank, np.maximum(result.orbit_eigenvalues[at][:kept], 1e-9), color=color, marker=marker,
                       markersize=3.5, label=label)  # fmt: skip
        right.set(yscale="log", ylim=(1e-7, 1e6), xlabel=RANK, ylabel=EIGENVALUE, title="the curvature")
        right.legend()
    return figure


def few_samples(result: LossLandscape) -> Figure:
    """Draw the share of random labels that the best second layer misses, against the width."""
    s = result.settings
    widths = np.array(s.residual_widths)
    with style():
        figure, axes = plt.subplots(1, 2, figsize=(7.2, 3.6))
        look = Look("measured", SHADES[1], "-", "o")
        for ax in axes:
            band(ax, widths / s.few_samples, np.maximum(result.residuals, 1e-32), look)
            ax.axvline(1.0, color=INK, linewidth=1, linestyle=":")
            ax.set_xlabel("hidden units per sample, d / n")
        line = np.linspace(0, 1, 50)
        axes[0].plot(line, 1 - line, color=INK, linewidth=1, linestyle="--", label="1 − d/n")
        axes[0].set(ylabel="share of the labels that is missed", title="linear axis")
        axes[0].legend()
        axes[1].set(yscale="log", title="logarithmic: the cliff")
    return figure


def fits(result: LossLandscape) -> Figure:
    """Draw where training of all weights ends, every run, against the width; hollow where it is not at rest."""
    s = result.settings
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.8))
        for j, model in enumerate(("baseline", "attention")):
            for k, width in enumerate(s.fit_widths):
                losses = np.maximum(result.fit_losses[:, j, k], 1e-32)
                spread = np.linspace(-0.04, 0.04, len(losses)) if len(losses) > 1 else np.zeros(1)
                at = width * np.exp((j - 0.5) * 0.12 + spread / 2)
                rest = result.fit_gradients[:, j, k] <= STATIONARY
                look: dict[str, Any] = {"linestyle": "none", "marker": LOOKS[model].marker, "color": LOOKS[model].color}
                ax.plot(at[rest], losses[rest], markersize=6, alpha=0.85, **look)
                ax.plot(at[~rest], losses[~rest], markersize=6, markerfacecolor="none", **look)
            ax.plot([], [], **look, label=LOOKS[model].label)
        ax.plot([], [], linestyle="none", marker="o", color=INK, markerfacecolor="none", label="not at rest")
        ax.axvline(s.few_samples / (s.few_inputs + 1), color=INK, linewidth=1, linestyle="--")
        ax.annotate("as many weights\nas samples", (s.few_samples / (s.few_inputs + 1), 1e-20), ha="left",
                    xytext=(4, 0), textcoords="offset points", fontsize=9.5)  # fmt: skip
        ax.axvline(s.few_samples, color=INK, linewidth=1, linestyle=":")
        ax.annotate("as many units as samples:\nTheorem 5", (s.few_samples, 1e-12), ha="right",
                    xytext=(-4, 0), textcoords="offset points", fontsize=9.5)  # fmt: skip
        ax.set(xscale="log", yscale="log", xlim=(1.5, 60))
        ax.set(
            xlabel="hidden units d (points of a width side by side)", ylabel="training loss over that of output zero"
        )
        ax.set_xticks(s.fit_widths, map(str, s.fit_widths))
        ax.minorticks_off()
        ax.legend(loc="center", bbox_to_anchor=(0.5, 0.5))
    return figure


def _spectrum(ax: Axes, rank: np.ndarray, samples: np.ndarray, look: Look) -> None:
    """A band with few markers: a hundred would hide the line."""
    ax.fill_between(rank, samples.min(axis=0), samples.max(axis=0), color=look.color, alpha=0.18, linewidth=0)
    every = [i - 1 for i in (1, 2, 3, 5, 10, 20, 50, 100) if i <= len(rank)]
    ax.plot(rank, np.median(samples, axis=0), **look.line_style(), markevery=every)


def _whole_numbers(ax: Axes) -> None:
    ax.set_xticks((1, 2, 5, 10, 20, 50, 100), ["1", "2", "5", "10", "20", "50", "100"])
    ax.xaxis.set_minor_locator(plt.NullLocator())
