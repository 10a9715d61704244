"""The pictures of the chapter on self-attention. Functions take results or plain numbers and compute only medians."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np

from attnbook.core.figures import INK, Look, band, style
from attnbook.core.figures import LOOKS as COMMON
from attnbook.global_attention import token_networks
from attnbook.global_attention.attention_bounds import mass_on_padding
from attnbook.global_attention.experiments import imdb, review_table, self_attention

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["LOOKS", "attention", "padding_frame", "students", "table_2", "table_2_frame"]

LOOKS: Mapping[str, Look] = {
    "baseline": COMMON["baseline"],
    "self_attention": Look("self-attention", "#0b5cad", "-", "o"),
    # Lies on top of self-attention in Table 2.
    "uniform_attention": Look("uniform attention", "#a16207", "-.", "P", hollow=True),
    "mean_pooling": Look("mean of the word vectors", "#0f766e", (0, (5, 1)), "X"),
    "global_attention": Look("global mask", "#7c3aed", ":", "D"),
}
ACCURACY = "test accuracy (%)"
CHANCE = 50
FAINT = "#8a8f98"


def table_2(result: review_table.ReviewTable) -> Figure:
    """Draw the paper's Table 2, and beside it ours with the controls that are not in the paper."""
    with style():
        figure, axes = plt.subplots(1, 2, figsize=(7.2, 4.2), sharex=True, sharey=True)
        for j, model in enumerate(("baseline", "self_attention")):
            axes[0].plot(imdb.PAPER_SIZES, imdb.paper_accuracies()[:, j], **LOOKS[model].line_style())
        axes[0].set(title="the paper, Table 2", ylabel=ACCURACY)
        _accuracies(axes[1], result, 0)
        axes[1].set(title="this book, with controls")
        for ax in axes:
            ax.set(xscale="log", xlabel="training reviews")
            _name_ticks(ax, (875, 3500, 17_500))
        axes[1].legend(fontsize=8.5, loc="lower right")
    return figure


def table_2_frame(result: review_table.ReviewTable, epoch: int) -> Figure:
    """Draw our Table 2 as it would be after some epoch, beside the paper's numbers."""
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 4.0))
        _accuracies(ax, result, epoch)
        for j, model in enumerate(("baseline", "self_attention")):
            paper = imdb.paper_accuracies()[:, j]
            ax.plot(imdb.PAPER_SIZES, paper, color=LOOKS[model].color, marker="x", linestyle="none", markersize=8)
        ax.plot([], [], color=INK, marker="x", linestyle="none", label="the paper", markersize=8)
        ax.set(xscale="log", xlabel="training reviews", ylabel=ACCURACY, ylim=(CHANCE, 92))
        ax.set_title(f"after epoch {epoch}")
        _name_ticks(ax, result.settings.sizes)
        ax.legend(fontsize=9, loc="lower right")
    return figure


def attention(results: Mapping[str, review_table.ReviewTable]) -> Figure:
    """Draw, for the beginning of one review per result, how much attention each word draws and what it does.

    Args:
        results: Title to result.

    Returns:
        The figure, one row per result.
    """
    with style():
        figure, axes = plt.subplots(len(results), 2, figsize=(5.4, 3.9 * len(results)), squeeze=False, sharey="row")
        for (left, right), (title, result) in zip(axes, results.items(), strict=True):
            places = np.arange(len(result.words))
            for drawn in result.attention:
                left.plot(drawn, places, color=FAINT, marker="o", markersize=3.5, linestyle="none")
            left.plot(result.attention.mean(0), places, color=INK, marker="D", markersize=6, linestyle="none")
            left.axvline(1, color=INK, linewidth=1, linestyle=":")
            left.set(xscale="log", title=title, ylim=(len(places) - 0.5, -0.5))
            left.set_yticks(places, result.words)
            right.barh(places, result.effect, color=FAINT, edgecolor=INK)
            right.axvline(0, color=INK, linewidth=0.8)
        axes[-1, 0].set_xlabel("attention drawn\n(times uniform)")
        axes[-1, 1].set_xlabel("effect on\nthe logit")
    return figure


def students(result: self_attention.AttendedTeachers) -> Figure:
    """Draw the error of each student on each teacher, and of every restart, for each number of samples."""
    s = result.settings
    with style():
        figure, axes = plt.subplots(
            len(s.sizes), 1, figsize=(5.4, 2.7 * len(s.sizes) + 0.7), sharex=True, sharey=True, squeeze=False
        )
        places = np.arange(len(s.seeds))
        for (i, size), ax in zip(enumerate(s.sizes), axes[:, 0], strict=True):
            for j, model in enumerate(token_networks.MODELS):
                look, x = LOOKS[model], places + 0.18 * (j - 1.5)
                marks = {"color": look.color, "linestyle": "none"}
                ax.plot(x, result.test_loss[:, i, j], marker="_", markersize=10, **marks)
                best = result.best(model)[:, i]
                ax.plot(x, best, marker=look.marker, markersize=8, label=look.label if i == 0 else None, **marks)
            ax.axhline(1, color=INK, linewidth=1, linestyle=":")
            ax.set(yscale="log", title=f"n = {size}", ylabel="test loss")
        axes[-1, 0].set(xlabel="teacher")
        axes[-1, 0].set_xticks(places, [str(seed) for seed in s.seeds])
        figure.legend(fontsize=10.5, ncols=2, loc="outside upper center")
    return figure


def padding_frame(length: int, score: float, n_positions: int = 2142) -> Figure:
    """Draw how one softmax row is shared between words and padding, if every word has the same score.

    Args:
        length: Words of the review.
        score: Their score; that of padding is 0.
        n_positions: Positions after padding; default that of Table 2.

    Returns:
        The figure.
    """
    padding = mass_on_padding(length, n_positions, score)
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 1.9))
        ax.barh([0], [100 * (1 - padding)], color=LOOKS["self_attention"].color)
        ax.barh([0], [100 * padding], left=[100 * (1 - padding)], color="#d9d7d0", edgecolor="#8a8f98", hatch="//")
        inside = f"real words {100 * (1 - padding):.2g} %", f"padding {100 * padding:.2g} %"
        ax.text(0, 0.62, inside[0], ha="left", color=LOOKS["self_attention"].color)
        ax.text(100, 0.62, inside[1], ha="right")
        ax.set(xlim=(0, 100), ylim=(-0.5, 1.1), yticks=[], xlabel="share of a word's attention (%)")
        ax.grid(visible=False)
    return figure


def _accuracies(ax: Axes, result: review_table.ReviewTable, epoch: int) -> None:
    """All four networks."""
    for model in review_table.MODELS:
        band(ax, np.array(result.settings.sizes), result.of(model, epoch), LOOKS[model])


def _name_ticks(ax: Axes, sizes: tuple[int, ...]) -> None:
    """Write sample sizes out on a logarithmic axis."""
    ax.set_xticks(sizes, [f"{n:,}".replace(",", "\u2009") for n in sizes], rotation=45 if len(sizes) > 4 else 0)
    ax.minorticks_off()
