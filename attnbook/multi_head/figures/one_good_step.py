"""The pictures of the chapter on one good step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float

from attnbook.core.figures import BACKGROUND, INK, Look, band, style
from attnbook.multi_head.data import Mixture
from attnbook.multi_head.experiments import first_phase, good_start, start_margin
from attnbook.multi_head.figures.looks import LOOKS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["coin", "explorer_frame", "margins_in_noise", "readings", "residual", "whole_bound", "written"]

OWN: Mapping[str, Look] = {
    "stated": LOOKS["curvature"],
    "ours": replace(LOOKS["dimension_free_curvature"], label="our bound"),
    "after_step": Look("after the step", "#0b5cad", "-", "o"),
    "at_zero": Look("at zero", "#5b5f66", "--", "s"),
    "label_pattern": Look("pattern of the label", "#0b5cad", "-", "o"),
    "other_pattern": Look("the loudest other pattern", "#5b5f66", "--", "s"),
    "exact_size": Look("exact size (ours)", "#15803d", (0, (5, 1)), "none"),
}
"""How each quantity of this chapter looks; the paper's bound and ours as in the others."""

PAPER = {"facecolor": BACKGROUND, "edgecolor": "none", "pad": 1.0}
FIRST = "samples of the first step, $n_1$"


def coin(
    values: Float[np.ndarray, " values"],
    probabilities: Float[np.ndarray, " values"],
    limits: Mapping[str, float],
    n_heads: int,
) -> Figure:
    r"""Draw the law of the random sum of signs that scales all outputs of a good start.

    Args:
        values: Those of $\frac1{\sqrt H}\sum_h\alpha_h$, in ascending order.
        probabilities: Of each.
        limits: ``ours`` and ``stated`` to what the sum stays below with high probability.
        n_heads: $H$.

    Returns:
        The picture.
    """
    with style():
        figure, ax = plt.subplots(figsize=(5.4, 3.6))
        width = min(0.3, 1.4 / n_heads**0.5)
        kinds = (
            (values < 0, "#c2410c", "every sample wrong", "//"),
            (values == 0, "#9aa0a8", "a tie", ""),
            (values > 0, "#0b5cad", "every sample right", ""),
        )
        for chosen, color, label, hatch in kinds:
            if chosen.any():
                bars = ax.bar(values[chosen], probabilities[chosen], width=width, color=color, label=label)
                for bar in bars:
                    bar.set_hatch(hatch)
                    bar.set_edgecolor(BACKGROUND)
                    bar.set_linewidth(0.3)
        for name, text in (("stated", "stated"), ("ours", "ours")):
            for side in (-1, 1):
                ax.axvline(
                    side * limits[name], ymax=0.8, color=OWN[name].color, linewidth=1.8, linestyle=OWN[name].line
                )
            ax.annotate(
                text,
                (limits[name], 0.9 * probabilities.max()),
                xytext=(4, 0),
                textcoords="offset points",
                fontsize=10,
                bbox=PAPER,
            )
        ax.set(
            xlim=(-4.6, 4.9),
            ylim=(0, 1.4 * probabilities.max()),
            xlabel=r"$\sum_h\alpha_h/\sqrt{H}$",
            ylabel="probability",
        )
        ax.set_title(f"H = {n_heads}")
        ax.legend(loc="upper center", fontsize=9.5, ncols=3, columnspacing=1.0, handlelength=1.2)
    return figure


def written(result: first_phase.FirstPhase) -> Figure:
    """Draw what the first step lets the decoder read from the label's pattern and from the others."""
    sizes = np.array(result.settings.n_first)
    with style():
        figure, ax = plt.subplots(figsize=(5.6, 3.6))
        band(ax, sizes, result.label_value, OWN["label_pattern"])
        band(ax, sizes, result.other_value, OWN["other_pattern"])
        ax.axhline(0, color=INK, linewidth=0.8)
        _size_axis(ax, sizes)
        ax.set(ylabel=r"what a decoder reads, over $\zeta S^2/4$", ylim=(-0.05, 1.15))
        ax.set_title(_held(result.settings.mixture), fontsize=10.5, fontweight="normal")
        ax.legend(loc="center right")
    return figure


def residual(result: first_phase.FirstPhase) -> Figure:
    """Draw the residual with both coefficients against its samples, with its exact size and Lemma 2's bound."""
    sizes = np.array(result.settings.n_first)
    with style():
        figure, ax = plt.subplots(figsize=(5.6, 4.6))
        band(ax, sizes, result.residual_half, LOOKS["half"])
        band(ax, sizes, result.residual, LOOKS["quarter"])
        ax.plot(sizes, result.size, **OWN["exact_size"].line_style())
        stated = Look("Lemma 2's bound, C = 1", *_rest(OWN["stated"]))
        ax.plot(sizes, result.bound, **stated.line_style())
        start = result.size[0] / 3
        ax.plot(sizes, start * (sizes / sizes[0]) ** -0.5, color=INK, linewidth=1, linestyle=":")
        ax.annotate("slope −1/2", (sizes[1], start * (sizes[1] / sizes[0]) ** -0.5), xytext=(0, -14),
                    textcoords="offset points", ha="right", fontsize=10)  # fmt: skip
        _size_axis(ax, sizes)
        ax.set(yscale="log", ylabel=r"what is left of $m$, $\|p\|$")
        ax.set_ylim(top=result.bound[0] * 12)
        ax.set_title(_held(result.settings.mixture), fontsize=10.5, fontweight="normal")
        ax.legend(loc="upper right", fontsize=9.5, ncols=2)
    return figure


def readings(result: good_start.GoodStart) -> Figure:
    """Draw the margin without noise under both readings of the random step, each with both coefficients."""
    heads = np.array(result.settings.uniform_heads)
    stated = result.stated_without_noise
    linear = result.linear_without_noise
    with style():
        figure, ax = plt.subplots(figsize=(5.6, 4.4))
        for value, look, text in (
            (2 * stated - linear, LOOKS["half"], "random signs, ζ/2"),
            (stated, LOOKS["quarter"], "random signs, ζ/4"),
        ):
            ax.plot(heads, np.full(len(heads), value), **Look(text, look.color, "-", look.marker).line_style())
        for coefficient, look, text in (
            (0.5, LOOKS["half"], "uniform, ζ/2"),
            (0.25, LOOKS["quarter"], "uniform, ζ/4"),
        ):
            band(ax, heads, result.reading(coefficient).T, Look(text, look.color, "--", look.marker, hollow=True))
        ax.axhline(stated, color=INK, linewidth=1.2, linestyle=":")
        ax.annotate("eq. (7)", (heads[-1], stated), xytext=(0, -14), textcoords="offset points", ha="right")
        ax.set(xscale="log", xlabel="number of heads H", ylabel="margin of the target, no noise")
        ax.set_xticks(heads, [str(h) for h in heads])
        ax.minorticks_off()
        ax.set_ylim(top=(2 * stated - linear) * 1.22)
        ax.set_title(_held(result.settings.mixture, noise=False), fontsize=10.5, fontweight="normal")
        ax.legend(loc="upper center", fontsize=9.5, ncols=2, columnspacing=1.0)
    return figure


def margins_in_noise(result: start_margin.StartMargin) -> Figure:
    """Draw the smallest margin, at zero and after the step, and its two bounds against the noise, for each norm."""
    settings = result.settings
    stated, ours, noises = result.of_cells("stated")[0], result.of_cells("ours")[0], np.array(settings.noises)
    with style():
        figure, axes = plt.subplots(len(settings.pattern_norms), 1, figsize=(5.6, 8.4), sharex=True, squeeze=False)
        for i, ax in enumerate(axes[:, 0]):
            band(ax, noises, result.margin[:, 0, i], OWN["after_step"])
            band(ax, noises, result.zero_margin[:, 0, i], OWN["at_zero"])
            ax.plot(noises, ours[i], **OWN["ours"].line_style())
            ax.plot(noises, stated[i], **Look("eq. (7)", *_rest(OWN["stated"])).line_style())
            ax.axhline(0, color=INK, linewidth=0.9)
            title = _held(settings.mixture(0, i, 0), noise=False)
            ax.set_title(f"{title}, $Z_\\perp$ = {settings.free_noise:g}", fontsize=10.5, fontweight="normal")
            ax.set_ylabel("margin of the target")
            low = max(min(stated[i].min(), 0), -1.5 * stated[i, 0])
            ax.set_ylim(low - 0.08 * stated[i, 0], 1.15 * stated[i, 0])
        axes[-1, 0].legend(loc="lower left", fontsize=9.5)
        axes[-1, 0].set_xlabel(r"noise along patterns, $\bar Z/S^2$")
    return figure


def whole_bound(result: start_margin.StartMargin) -> Figure:
    """Draw the margin after a real first phase, and both bounds with the measured residual, against its samples."""
    sizes = np.array(result.settings.n_first)
    with style():
        figure, ax = plt.subplots(figsize=(5.6, 4.2))
        band(ax, sizes, result.step_margin, OWN["after_step"])
        band(ax, sizes, result.our_step, OWN["ours"])
        band(ax, sizes, result.stated_step, Look("the whole of eq. (7)", *_rest(OWN["stated"])))
        ax.axhline(0, color=INK, linewidth=0.9)
        _size_axis(ax, sizes)
        ax.set_yscale("symlog", linthresh=5)
        ax.set(ylabel="margin of the target (linear within ±5)", ylim=(-400, 60))
        ax.set_title(_held(result.settings.step_mixture), fontsize=10.5, fontweight="normal")
        ax.set_yticks([-100, -10, -5, 0, 5, 10], ["−100", "−10", "−5", "0", "5", "10"])
        ax.minorticks_off()
        ax.legend(loc="upper left", fontsize=9.5, ncols=2)
    return figure


def explorer_frame(result: start_margin.StartMargin, share: float, norm: float, noise: float) -> Figure:
    """Draw how many samples have which margin at zero and after the step, with both bounds, for one cell."""
    settings = result.settings
    i, j, k = settings.shares.index(share), settings.pattern_norms.index(norm), settings.noises.index(noise)
    edges = np.linspace(-0.5, 1.5, settings.bins + 1)
    unit = result.unit(i, j)
    with style():
        figure, ax = plt.subplots(figsize=(5.2, 3.8))
        ax.stairs(result.counts[1, i, j, k], edges, fill=True, color=OWN["after_step"].color, label="after the step")
        ax.stairs(
            result.counts[0, i, j, k], edges, label="same target, at zero", color=INK, linewidth=1.6, linestyle="--"
        )
        top = result.counts[:, i, j, k].max() * 1.9
        for name, text, height in (("stated", "eq. (7)", 0.7), ("ours", "our bound", 0.58)):
            value = result.of_cells(name)[i, j, k] / unit
            at, outside = max(value, -0.49), value < -0.49
            ax.plot([at, at], [0, top * height], color=OWN[name].color, linewidth=2, linestyle=OWN[name].line)
            words = ("← " if outside else "") + text
            ax.annotate(words, (at, top * height), xytext=(5, -8), textcoords="offset points", fontsize=11, bbox=PAPER)
        ax.plot([0, 0], [0, 0.82 * top], color=INK, linewidth=0.9)
        ax.set_xticks([-0.5, 0, 0.5, 1, 1.5])
        ax.set(xlim=(-0.52, 1.52), ylim=(0, top), ylabel="samples", xlabel="margin, over eq. (7) without noise")
        ax.set_title(f"ζ = {share:g}, S = {norm:g}, noise {noise:g} S²")
        ax.legend(loc="upper center", fontsize=11, ncols=2, columnspacing=1.0, handlelength=1.6)
    return figure


def _rest(look: Look) -> tuple[str, str | tuple[int, tuple[int, ...]], str]:
    return look.color, look.line, look.marker


def _size_axis(ax: Axes, sizes: np.ndarray) -> None:
    ax.set(xscale="log", xlabel=FIRST)
    ax.set_xticks(sizes, [f"{n:,}".replace(",", "\u2009") for n in sizes])
    ax.minorticks_off()


def _held(mixture: Mixture, *, noise: bool = True) -> str:
    """Say what is held fixed."""
    sizes = (
        f"T = {mixture.n_tokens}, d = {mixture.dimension}, M = {mixture.n_patterns}, "
        f"S = {mixture.pattern_norm:g}, ζ = {mixture.relevant_fraction:g}"
    )
    bounds = f", $\\bar Z$ = {mixture.label_noise:g}, $Z_\\perp$ = {mixture.free_noise:g}"
    return sizes + (bounds if noise else "")
