"""The pictures of the chapter on self-attention. Functions take results or plain numbers and compute only medians."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import BoundaryNorm

from attnbook.core.figures import INK, Look, band, style
from attnbook.core.figures import LOOKS as COMMON
from attnbook.global_attention.experiments import imdb, review_table, self_attention
from attnbook.global_attention.models import token_networks
from attnbook.global_attention.theory.self_attention import mass_on_padding

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["LOOKS", "attention", "padding_frame", "students", "table_2", "table_2_frame"]

LOOKS: Mapping[str, Look] = {
    "baseline": COMMON["baseline"],
    "self_attention": Look("self-attention", "#0b5cad", "-", "o"),
    "uniform_attention": Look("uniform attention", "#c2410c", "-.", "^"),
    "mean_pooling": Look("mean of the word vectors", "#15803d", (0, (5, 1)), "v"),
    "global_attention": Look("global mask", "#7c3aed", ":", "D"),
}
ACCURACY = "test accuracy (%)"
CHANCE = 50


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
    """Draw, for the beginning of one review per result, who attends to whom and what each word does to the answer.

    Args:
        results: Title to result.

    Returns:
        The figure, one column per result.
    """
    largest = max(float(result.attention.max()) for result in results.values())
    steps = max(2, int(np.ceil(np.log2(largest))))
    levels = 2.0 ** np.arange(-steps, steps + 1)
    # One colour around each level, so that all that is near uniform looks the same.
    edges = 2.0 ** (np.arange(-steps, steps + 2) - 0.5)
    with style():
        figure, axes = plt.subplots(2, len(results), figsize=(7.2, 5.6), height_ratios=(1.6, 1), squeeze=False)
        for column, (title, result) in enumerate(results.items()):
            places = np.arange(len(result.words))
            top, bottom = axes[:, column]
            image = top.imshow(result.attention, norm=BoundaryNorm(edges, 256), cmap="PuOr_r")
            top.set(title=title, xticks=[], yticks=places)
            top.set_yticklabels(result.words, fontsize=8)
            bottom.bar(places, result.effect, color=[_sign_color(effect) for effect in result.effect])
            bottom.axhline(0, color=INK, linewidth=0.8)
            bottom.set_xticks(places, result.words, rotation=90, fontsize=8)
            for ax in (top, bottom):
                ax.grid(visible=False)
        axes[0, 0].set_ylabel("word that attends")
        axes[1, 0].set_ylabel("effect on the logit")
        bar = figure.colorbar(image, ax=axes[0], label="attention, in units of 1 / positions", shrink=0.8)
        bar.set_ticks(levels.tolist(), labels=[f"{level:g}" if level >= 1 else f"1/{1 / level:g}" for level in levels])
    return figure


def students(result: self_attention.AttendedTeachers) -> Figure:
    """Draw the error of each student on each teacher, and of every restart of the self-attention student."""
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.8))
        places = np.arange(len(result.settings.seeds))
        for j, model in enumerate(token_networks.MODELS):
            look, errors = LOOKS[model], result.test_loss[:, -1, j]
            x = places + 0.18 * (j - 1.5)
            ax.plot(x, errors, color=look.color, marker="_", linestyle="none", markersize=10)
            ax.plot(x, result.best(model)[:, -1], color=look.color, marker=look.marker, linestyle="none", markersize=9,
                    label=look.label)  # fmt: skip
        ax.axhline(1, color=INK, linewidth=1, linestyle=":")
        ax.annotate("no better than the mean label", (places[-1] + 0.45, 1), ha="right", va="bottom", fontsize=9)
        ax.set(yscale="log", xlabel="teacher (dash: every restart; mark: the one with the smallest training loss)")
        ax.set(ylabel="test loss (label variances)", ylim=(None, 1.5))
        ax.set_xticks(places, [str(seed) for seed in result.settings.seeds])
        figure.legend(fontsize=9, ncols=4, loc="outside upper center")
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
        ax.set(xlim=(0, 100), ylim=(-0.5, 1.1), yticks=[], xlabel="share of one row of the softmax (%)")
        ax.grid(visible=False)
    return figure


def _accuracies(ax: Axes, result: review_table.ReviewTable, epoch: int) -> None:
    """All four networks; uniform attention lies on top of self-attention, so its marks are hollow."""
    for model in review_table.MODELS:
        band(ax, np.array(result.settings.sizes), result.of(model, epoch), LOOKS[model])
    for line in ax.get_lines():
        if line.get_label() == LOOKS["uniform_attention"].label:
            line.set(markerfacecolor="none", markersize=9)


def _sign_color(effect: float) -> str:
    return LOOKS["self_attention"].color if effect > 0 else LOOKS["uniform_attention"].color


def _name_ticks(ax: Axes, sizes: tuple[int, ...]) -> None:
    """Write sample sizes out on a logarithmic axis."""
    ax.set_xticks(sizes, [f"{n:,}".replace(",", "\u2009") for n in sizes], rotation=45 if len(sizes) > 4 else 0)
    ax.minorticks_off()
