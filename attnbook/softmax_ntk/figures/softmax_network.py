"""The pictures of the chapter on the softmax network."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np

from attnbook.core.figures import INK, Look, band, style
from attnbook.softmax_ntk.denominator import expected_effective_width, tail_scales
from attnbook.softmax_ntk.experiments import denominator, softmax_network
from attnbook.softmax_ntk.experiments.runs import ACTIVATIONS
from attnbook.softmax_ntk.figures.lazy_training import LOOKS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["attention_frame", "effective_numbers", "kernels", "spectrum_frame", "towards_the_limit"]

WIDTHS = (Look("", "#7fb2e5", "-", "v"), Look("", "#0b5cad", "-", "o"), Look("", "#082c52", "-", "D"))


def kernels(result: softmax_network.SoftmaxNetwork) -> Figure:
    """Draw the kernels of softmax networks of growing width, and their limit."""
    titles = [f"{m} neurons" for m in result.pictured_widths()] + ["formula, infinitely many"]
    samples, outputs = result.settings.n_samples, result.settings.n_outputs
    top = result.pictures[-1].max()
    with style():
        figure, axes = plt.subplots(2, 2, figsize=(6.4, 6.2))
        for ax, picture, title in zip(axes.flat, result.pictures, titles, strict=True):
            image = ax.imshow(picture, vmin=-top, vmax=top, cmap="RdBu_r", interpolation="nearest")
            for edge in np.arange(1, outputs) * samples - 0.5:
                ax.axhline(edge, color=INK, linewidth=1)
                ax.axvline(edge, color=INK, linewidth=1)
            middle = (np.arange(outputs) + 0.5) * samples - 0.5
            names = [f"output {k + 1}" for k in range(outputs)]
            ax.set_xticks(middle, names, fontsize=10)
            ax.set_yticks(middle, names, rotation=90, va="center", fontsize=10)
            ax.tick_params(length=0)
            ax.grid(visible=False)
            ax.set_title(title, fontsize=11)
        figure.colorbar(image, ax=axes, shrink=0.6, label="entry of the kernel (larger ones cut off)", aspect=30)
    return figure


def attention_frame(result: softmax_network.SoftmaxNetwork, scale: float) -> Figure:
    """Draw the sorted attention weights of one input, and how many neurons that amounts to."""
    weights = result.weights[result.settings.scales.index(scale)]
    width = result.settings.effective_widths[0]
    rank = np.arange(1, len(weights) + 1)
    with style():
        figure, ax = plt.subplots(figsize=(6.4, 3.6))
        effective = np.median(result.effective[:, 0, result.settings.scales.index(scale)])
        ax.axvline(effective, color="#c9a227", linewidth=5, alpha=0.6)
        ax.plot(rank, 100 * weights, "o", color=LOOKS["softmax"].color, markersize=4.5)
        ax.axhline(100 / width, color=INK, linewidth=1.2, linestyle="--")
        ax.annotate(
            f"if all {width} had the same", (1, 100 / width), xytext=(0, -14), textcoords="offset points", fontsize=10
        )
        if effective < len(weights):
            ax.annotate(
                "effective number", (effective, 80), xytext=(6 if effective < 40 else -6, 0), fontsize=10, va="center",
                ha="left" if effective < 40 else "right", textcoords="offset points",
            )  # fmt: skip
        ax.set(yscale="log", ylim=(0.02, 100), xlim=(0, len(weights) + 1))
        ax.set(xlabel=f"neuron, sorted by weight (first {len(weights)} of {width})", ylabel="attention weight (%)")
        ax.set_yticks((0.1, 1, 10, 100), ("0.1", "1", "10", "100"))
    return figure


def towards_the_limit(result: softmax_network.SoftmaxNetwork) -> Figure:
    """Draw how far kernels are from their limit and how large the blocks between outputs are, against the width."""
    widths = np.array(result.settings.widths)
    panels = (
        ("distance from the limit", result.distance, result.fluctuation),
        ("blocks between outputs", result.between, result.fluctuation_between),
    )
    with style():
        figure, axes = plt.subplots(1, 2, figsize=(7.2, 4.0), sharey=True)
        for ax, (title, measured, formula) in zip(axes, panels, strict=True):
            for k, name in enumerate(ACTIVATIONS):
                band(ax, widths, measured[:, :, k], LOOKS[name])
                ax.plot(
                    widths, np.median(formula[:, :, k], axis=0), color=LOOKS[name].color, linestyle=":", linewidth=1
                )
            ax.set(xscale="log", yscale="log", xlabel="width", title=title)
            ax.set_xticks(widths[::2], [str(m) for m in widths[::2]])
            ax.minorticks_off()
        axes[0].set_ylabel("relative size")
        axes[0].legend(fontsize=10, loc="lower left")
        axes[1].annotate(
            "dotted: from the variance\nof one pair, slope −½", (0.97, 0.97), xycoords="axes fraction", ha="right",
            va="top", fontsize=10,
        )  # fmt: skip
    return figure


def effective_numbers(result: softmax_network.SoftmaxNetwork) -> Figure:
    """Draw the effective number of neurons against the weight scale, with the formula and where its tails begin."""
    s = result.settings
    scales = np.array(s.scales)
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 4.2))
        for i, width in enumerate(s.effective_widths):
            look = Look(f"{width} neurons", WIDTHS[i % 3].color, "-", WIDTHS[i % 3].marker)
            band(ax, scales, result.effective[:, i], look)
            fine = np.linspace(scales[0], 4, 60)
            expected = [expected_effective_width(width, scale=c) for c in fine]
            ax.plot(fine, expected, color=look.color, linestyle=":", linewidth=1.2)
            _mark(ax, tail_scales(width), look.color)
        ax.set(yscale="log", ylim=(1, 1.5e5), xlabel=r"weight scale $\sigma$, inputs of norm 1")
        ax.set_ylabel("effective number of neurons")
        ax.legend(title="dotted: the formula; at the axis\n| from here it must fail,  × a few have it all")
    return figure


def spectrum_frame(result: denominator.Denominator, lowest_norm: float, scale: float) -> Figure:
    """Draw the spectra of the three kernels, of networks and at infinite width."""
    s = result.settings
    at = (s.lowest_norms.index(lowest_norm), s.scales.index(scale))
    rank = np.arange(1, s.n_samples + 1)
    with style():
        figure, ax = plt.subplots(figsize=(6.4, 3.8))
        for k, name in enumerate(ACTIVATIONS):
            band(ax, rank, result.finite_spectrum[:, *at, k], LOOKS[name])
            limit = np.median(result.spectrum[:, *at, k], axis=0)
            ax.plot(rank, limit, color=LOOKS[name].color, linestyle=":", linewidth=1.6)
        ax.set(yscale="log", ylim=(1e-6, 1.5), xlabel="eigenvalue, from the largest", ylabel="over the largest")
        ax.set_xticks(rank[::3])
        ax.legend(loc="lower left", title=f"{s.width} neurons; dotted: limit", title_fontsize=10)
    return figure


def _mark(ax: Axes, scales: tuple[float, float], color: str) -> None:
    """Small marks at the lower edge: the formula must fail from the first on, few have it all from the other."""
    for scale, marker in zip(scales, ("|", "x"), strict=True):
        ax.plot(
            scale, 1.0, marker, color=color, markersize=14 if marker == "|" else 8, markeredgewidth=2, clip_on=False
        )
