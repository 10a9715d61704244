"""The pictures of the chapter on generalisation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float

from attnbook.core.figures import INK, Look, band, style
from attnbook.multi_head.experiments.generalisation_gap import GeneralisationGap
from attnbook.multi_head.experiments.leave_one_out_paths import LeaveOneOutPaths
from attnbook.multi_head.experiments.stability import Stability
from attnbook.multi_head.figures.looks import LOOKS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "bounds_and_margin",
    "bounds_by_rate",
    "explorer_frame",
    "gap_and_bounds",
    "gaps",
    "head_count",
    "stability",
]

SAMPLES = "training samples n"


def gap_and_bounds(result: Stability) -> Figure:
    """Draw the measured gap, what the networks without one sample say, and the bounds, for few and for many heads."""
    sizes = np.array(result.settings.sizes)
    with style():
        figure, panels = plt.subplots(2, 1, figsize=(5.6, 8.0), sharey=True)
        for i, (ax, n_heads) in enumerate(zip(panels, result.settings.heads, strict=True)):
            lines = {"corollary_2": result.corollary_2, "lemma_3": result.lemma_3}
            if i == 1:
                lines["unrolled"] = 10**result.log_unrolled
            for name, values in (lines | {"gap": result.gap, "left_out": result.left_out_gap}).items():
                band(ax, sizes, values[:, i], LOOKS[name])
            _guess(ax, sizes)
            _sample_axis(ax, sizes)
            ax.set(yscale="log", ylabel="test − training loss", title=f"{head_count(n_heads)} heads")
            ax.set_ylim(bottom=4e-3)
        decades = result.log_unrolled[:, 0, -1].mean()
        note = f"recursion (22) unrolled: far above the top, 10$^{{{decades:.0f}}}$ at n = {sizes[-1]}"
        panels[0].annotate(note, (0.98, 0.985), xycoords="axes fraction", ha="right", va="top", fontsize=9)
        panels[0].set_ylim(top=panels[0].get_ylim()[1] * 30)
        for ax in panels:
            _slope(ax, sizes, 0.1, "slope −1", below=True)
        panels[1].legend(fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
    return figure


def gaps(result: GeneralisationGap) -> Figure:
    """Draw the gap against the number of samples for both schedules, and with coin tosses for labels."""
    sizes = np.array(result.settings.sizes)
    with style():
        figure, ax = plt.subplots(figsize=(6.4, 5.2))
        coins = Look(f"coin tosses for labels, K = {result.settings.steps}", *_rest(LOOKS["coins_fixed"]), hollow=True)
        band(ax, sizes, result.random_gap[:, 1], coins)
        band(ax, sizes, result.random_gap[:, 0], LOOKS["coins"])
        band(ax, sizes, result.gap[:, 0], Look("true labels, K = n", *_rest(LOOKS["gap"])))
        fixed = Look(f"true labels, K = {result.settings.steps}", *_rest(LOOKS["fixed_steps"]))
        band(ax, sizes, result.gap[:, 1], fixed)
        _slope(ax, sizes, result.gap[:, 0].mean(0)[0] * 1.6, "slope −1")
        _sample_axis(ax, sizes)
        ax.set(yscale="log", ylabel="test − training loss", ylim=(1e-3, None))
        ax.legend(fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
    return figure


def bounds_and_margin(result: GeneralisationGap) -> Figure:
    """Draw the bounds for as many steps as samples beside the gap, and the margin of the training sample."""
    sizes = np.array(result.settings.sizes)
    with style():
        figure, (top, bottom) = plt.subplots(2, 1, figsize=(5.6, 6.6), height_ratios=(3, 2))
        lines = {"corollary_2": result.corollary_2, "theorem_2": result.theorem_2, "gap": result.gap}
        for name, values in lines.items():
            band(top, sizes, values[:, 0], LOOKS[name])
        _guess(top, sizes)
        top.set(yscale="log", ylabel="test − training loss", title="K = n steps")
        top.legend(fontsize=9, loc="center right", bbox_to_anchor=(1.0, 0.72))
        band(bottom, sizes, result.margin, LOOKS["tangent_margin"])
        _slope(bottom, sizes, np.median(result.margin[:, 0]) * 1.25, "slope −1/2", power=-0.5, below=True)
        bottom.set(yscale="log", ylabel=r"tangent margin $\gamma$", title="the margin at the start")
        bottom.set_yticks([0.2, 0.4, 0.8], ["0.2", "0.4", "0.8"])
        for ax in (top, bottom):
            _sample_axis(ax, sizes)
    return figure


def stability(result: Stability) -> Figure:
    """Draw the mean distance between the full network and those without one sample."""
    sizes = np.array(result.settings.sizes)
    with style():
        figure, ax = plt.subplots(figsize=(6.4, 3.8))
        for i, name in enumerate(("few_heads", "many_heads")):
            look = LOOKS[name]
            label = f"{head_count(result.settings.heads[i])} heads"
            band(ax, sizes, result.distance[:, i], Look(label, look.color, look.line, look.marker, look.hollow))
        _slope(ax, sizes, np.median(result.distance[:, 0, 0]) * 1.5, "slope −1")
        _sample_axis(ax, sizes)
        ax.set(yscale="log", ylabel=r"mean of $\|\theta_K-\theta_K^{\neg i}\|$")
        ax.legend(loc="lower left")
    return figure


def explorer_frame(result: LeaveOneOutPaths, n_heads: int, rank: int) -> Figure:
    """Draw one distance over the steps with both envelopes; samples are ranked from 1, the least influential."""
    head, sample = result.settings.heads.index(n_heads), rank - 1
    steps = np.arange(len(result.distance))
    every = max(1, len(steps) // 12)
    with style():
        figure, ax = plt.subplots(figsize=(5.6, 4.6))
        for name in ("recursion", "printed", "distance"):
            values = getattr(result, name)[1:, head, sample]
            ax.plot(steps[1:], values, markevery=every, **LOOKS[name].line_style())
        ax.set(yscale="log", ylim=(2e-4, 2e3), xlim=(0, steps[-1]), xlabel="step k")
        ax.set(ylabel="distance of the two networks", title=f"H = {head_count(n_heads)}, sample {rank}")
        ax.set_yticks([1e-3, 1e-1, 1e1, 1e3])
        ax.minorticks_off()
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), fontsize=11)
    return figure


def bounds_by_rate(
    sizes: Float[np.ndarray, " sizes"], bounds: Mapping[str, Float[np.ndarray, " sizes"]], rate: float
) -> Figure:
    """Draw Corollary 2 against the samples, continued with a margin that falls at a given rate.

    Args:
        sizes: Samples $n$.
        bounds: ``corollary_2`` (as many steps as samples) and ``fixed_steps`` to the bound.
        rate: The margin falls like $n$ to the power of minus this.

    Returns:
        The picture.
    """
    with style():
        figure, ax = plt.subplots(figsize=(5.4, 3.7))
        ax.axhspan(1e-4, math.log(2), color="#e5e7eb", zorder=0)
        for name, label in (("corollary_2", "as many steps as samples"), ("fixed_steps", "fixed number of steps")):
            look = LOOKS[name]
            ax.plot(sizes, bounds[name], markevery=max(1, len(sizes) // 9), **Look(label, *_rest(look)).line_style())
        ax.annotate("below log 2", (sizes[0], math.log(2)), xytext=(4, -13), textcoords="offset points", fontsize=10)
        ax.set(xscale="log", yscale="log", xlabel=SAMPLES, ylabel="Corollary 2", ylim=(1e-2, 1e7))
        ax.set_title(rf"margin falls like $n^{{-{rate:g}}}$" if rate else "margin stays as it is")
        ax.legend(fontsize=9.5, loc="upper right")
    return figure


def head_count(n_heads: int) -> str:
    """Return a number of heads for labels: in digits below a thousand, else as a power of ten."""
    power = round(math.log10(n_heads))
    return f"$10^{power}$" if n_heads >= 1000 and 10**power == n_heads else f"{n_heads}"


def _guess(ax: Axes, sizes: np.ndarray) -> None:
    """Draw the loss of a network that always returns zero."""
    ax.axhline(math.log(2), color=INK, linewidth=1, linestyle=(0, (4, 4)))
    at = (sizes[1], math.log(2))
    ax.annotate("log 2: guessing", at, xytext=(4, 3), textcoords="offset points", fontsize=9)


def _rest(look: Look) -> tuple[str, str | tuple[int, tuple[int, ...]], str]:
    return look.color, look.line, look.marker


def _sample_axis(ax: Axes, sizes: np.ndarray) -> None:
    ax.set(xscale="log", xlabel=SAMPLES)
    ax.set_xticks(sizes, [f"{n}" for n in sizes])
    ax.minorticks_off()


def _slope(ax: Axes, sizes: np.ndarray, start: float, text: str, *, power: float = -1.0, below: bool = False) -> None:
    """Draw a reference slope and name it."""
    values = start * (sizes / sizes[0]) ** power
    ax.plot(sizes, values, color=INK, linewidth=1, linestyle=":", marker="")
    middle = len(sizes) // 2
    at = (sizes[middle], values[middle])
    offset, side = ((-4, -8), "right") if below else ((4, 5), "left")
    ax.annotate(text, at, xytext=offset, textcoords="offset points", fontsize=10, ha=side, va="center")
