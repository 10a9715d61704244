"""The pictures of this part. Each function takes a result and computes nothing but medians."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np

from attnbook.core.figures import INK, LOOKS, band, style
from attnbook.global_attention.experiments import error_rate, sample_complexity, sparsity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "convergence",
    "dense_teacher",
    "error_against_samples",
    "explorer_frame",
    "l1_path",
    "race",
    "recovered_masks",
    "sample_curves",
    "stopping_frame",
    "table_1",
]

LOSS = "test loss (label variances)"


def table_1(result: sample_complexity.SampleComplexity) -> Figure:
    """Draw Table 1: the paper's 18 numbers, and ours times one common factor."""
    with style():
        figure, axes = plt.subplots(1, 2, sharex=True, sharey=True)
        sizes = np.array(sample_complexity.PAPER_SIZES)
        for j, model in enumerate(sample_complexity.MODELS):
            axes[0].plot(sizes, sample_complexity.paper_losses()[:, j], **LOOKS[model].line_style())
            band(axes[1], sizes, result.table[:, :, j] * result.common_factor, LOOKS[model])
        axes[0].set(title="the paper, Table 1", ylabel="test loss (label units of the paper)")
        axes[1].set(title="this book, paper scale")
        for ax in axes:
            ax.set(xscale="log", yscale="log", xlabel="training samples")
            _name_ticks(ax, (10_000, 20_000, 50_000))
        axes[1].legend()
    return figure


def convergence(result: sample_complexity.SampleComplexity) -> Figure:
    """Draw Figure 7: test loss against iterations, one panel per sample size."""
    with style():
        figure, axes = plt.subplots(2, 3, figsize=(7.2, 4.8), sharex=True, sharey=True)
        kept = result.steps > 0
        for i, ax in enumerate(axes.flat):
            for j, model in enumerate(sample_complexity.MODELS):
                band(ax, result.steps[kept], result.test_loss[kept, :, i, j].T, LOOKS[model])
            ax.set_title(f"N = {result.settings.sizes[i]}")
            ax.set(yscale="log")
        figure.supxlabel("iterations", fontsize=10.5)
        figure.supylabel(LOSS, fontsize=10.5)
        axes[0, 0].legend(fontsize=8.5)
    return figure


def race(result: sample_complexity.SampleComplexity) -> Figure:
    """Draw the smallest sample size trained on, beyond the snapshot at which the table is read."""
    with style():
        figure, ax = plt.subplots()
        kept = result.steps > 0
        for j, model in enumerate(sample_complexity.MODELS):
            band(ax, result.steps[kept], result.test_loss[kept, :, 0, j].T, LOOKS[model])
        ax.axvline(result.settings.snapshot, color=INK, linewidth=1, linestyle=":")
        ax.annotate("the table is read here", (result.settings.snapshot, ax.get_ylim()[1]), ha="right", va="top",
                    xytext=(-6, -4), textcoords="offset points")  # fmt: skip
        ax.set(xscale="log", yscale="log", xlabel="iterations", ylabel=LOSS)
        ax.set_title(f"N = {result.settings.sizes[0]:,}".replace(",", " "))
        ax.legend()
    return figure


def stopping_frame(result: sample_complexity.SampleComplexity, step: int) -> Figure:
    """Draw Table 1 as it would be if training stopped at a step, beside the paper's; the headline pair is circled.

    Args:
        result: A result.
        step: A recorded step.

    Returns:
        The figure; both panels in units of the baseline's loss with the fewest samples.
    """
    sizes = np.array(sample_complexity.PAPER_SIZES)
    pair = ((1, 1), (4, 0))  # attention with 14 000 samples, baseline with 20 000
    panels = {"the paper, Table 1": sample_complexity.paper_losses()[None], f"ours, step {step}": result.at(step)}
    with style():
        figure, axes = plt.subplots(1, 2, figsize=(7.2, 3.6), sharex=True, sharey=True)
        for ax, (title, losses) in zip(axes, panels.items(), strict=True):
            shares = losses / np.median(losses, axis=0)[0, 0]
            for j, model in enumerate(sample_complexity.MODELS):
                band(ax, sizes, shares[:, :, j], LOOKS[model])
            medians = np.median(shares, axis=0)
            circle = {"markersize": 14, "fillstyle": "none", "color": INK, "linewidth": 1, "linestyle": ":"}
            ax.plot([sizes[i] for i, _ in pair], [medians[at] for at in pair], marker="o", **circle)
            ax.set(xscale="log", yscale="log", ylim=(2e-3, 5), xlabel="training samples", title=title)
            _name_ticks(ax, (10_000, 20_000, 50_000))
        axes[0].set_ylabel("test loss over the baseline's\nwith the fewest samples")
        axes[0].legend(loc="upper right", fontsize=9.5)
    return figure


def recovered_masks(result: sample_complexity.SampleComplexity, seed: int = 0, size: int = 0) -> Figure:
    """Draw how strongly each input enters, beside the truth, for one seed and sample size."""
    truth = result.truth[seed]
    order = np.argsort(-truth, kind="stable")
    with style():
        figure, axes = plt.subplots(3, 1, figsize=(7.2, 4.4), sharex=True)
        for j, (ax, model) in enumerate(zip(axes, sample_complexity.MODELS, strict=True)):
            weights = result.weights[seed, size, j]
            _bars(ax, weights[order] / weights.max(), truth[order], LOOKS[model].color)
            ax.set_title(LOOKS[model].label)
        axes[1].set_ylabel(r"$|a_j|\,\|w^{(1)}_j\|$, relative to the largest")
        axes[2].set_xlabel("input, the relevant ones first")
    return figure


def error_against_samples(result: error_rate.ErrorRate) -> Figure:
    """Draw the error of all five models against the number of samples, with the theorem's slope."""
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 4.2))
        sizes = np.array(result.settings.sizes)
        for model in error_rate.MODELS:
            band(ax, sizes, result.of(model), LOOKS[model])
        start = np.median(result.of("baseline"), axis=0)[0] * 1.6
        ax.plot(sizes, start * sizes[0] / sizes, color=INK, linewidth=1, linestyle=":")
        ax.annotate("slope −1", (sizes[-2], start * sizes[0] / sizes[-2]), xytext=(4, 6), textcoords="offset points")
        ax.set(xscale="log", yscale="log", xlabel="training samples, noisy labels", ylabel=f"clean {LOSS}")
        _name_ticks(ax, result.settings.sizes)
        ax.legend()
    return figure


def sample_curves(result: sparsity.Sparsity) -> Figure:
    """Draw error against samples for each number of relevant inputs, one panel per model."""
    with style():
        figure, axes = plt.subplots(1, 3, sharex=True, sharey=True)
        sizes = np.array(result.settings.sizes)
        shades = plt.get_cmap("cividis")(np.linspace(0, 0.85, len(result.settings.sparsities)))
        for j, (ax, model) in enumerate(zip(axes, sparsity.MODELS, strict=True)):
            for i, k in enumerate(result.settings.sparsities):
                losses = result.test_loss[:, i, :, j]
                ax.fill_between(sizes, losses.min(axis=0), losses.max(axis=0), color=shades[i], alpha=0.2, linewidth=0)
                ax.plot(sizes, np.median(losses, axis=0), color=shades[i], marker="osD^v"[i % 5], label=f"k = {k}")
            ax.axhline(result.settings.target, color=INK, linewidth=1, linestyle=":")
            ax.set(xscale="log", yscale="log", title=LOOKS[model].label)
            _name_ticks(ax, result.settings.sizes[::2])
        axes[1].annotate("target", (sizes[0], result.settings.target), xytext=(0, 3), textcoords="offset points")
        axes[0].set_ylabel(f"clean {LOSS}")
        axes[1].set_xlabel("training samples, noisy labels")
        axes[0].legend(fontsize=8.5, title="relevant inputs")
    return figure


def l1_path(result: sparsity.Sparsity) -> Figure:
    """Draw error and mask along the L1 path."""
    s = result.settings
    truth = result.path_truth == 1
    with style():
        figure, (left, right) = plt.subplots(1, 2)
        band(left, np.array(s.path_penalties), result.path_loss, LOOKS["l1_attention"])
        left.set(
            xscale="log",
            yscale="log",
            xlabel=r"penalty $\lambda$",
            ylabel=f"clean {LOSS}",
            title=f"error, k = {s.path_sparsity}, n = {s.path_size}",
        )
        for k, weights in enumerate(result.path_weights.T):
            look = {"color": LOOKS["l1_attention"].color} if truth[k] else {"color": "#8a8f98", "linestyle": "--"}
            right.plot(s.path_penalties, weights, linewidth=1.2, **look)
        right.set(xscale="log", xlabel=r"penalty $\lambda$", ylabel=r"$|a_j|\,\|w^{(1)}_j\|$")
        right.set_title("inputs: relevant —, others - -")
    return figure


def dense_teacher(result: sparsity.Sparsity, longer: sparsity.Sparsity) -> Figure:
    """Draw the errors when every input matters, after short and after long training."""
    with style():
        figure, axes = plt.subplots(1, 2, sharey=True, figsize=(7.2, 3.6))
        for ax, run in zip(axes, (result, longer), strict=True):
            for model in (*sparsity.MODELS[1:], "baseline"):  # the baseline last: attention lies on it
                losses = run.test_loss[:, -1, :, sparsity.MODELS.index(model)]
                band(ax, np.array(run.settings.sizes), losses, replace(LOOKS[model], hollow=model == "baseline"))
            ax.set(xscale="log", yscale="log", title=f"{run.settings.steps} steps")
            _name_ticks(ax, run.settings.sizes)
        figure.supxlabel("training samples, noisy labels", fontsize=10.5)
        axes[0].set_ylabel(f"clean {LOSS}")
        axes[0].legend()
    return figure


def explorer_frame(result: sparsity.Sparsity, n_relevant: int, n_samples: int) -> Figure:
    """Draw test errors and learned masks for one number of relevant inputs and one sample size."""
    s = result.settings
    i, n = s.sparsities.index(n_relevant), s.sizes.index(n_samples)
    truth = result.truth[i]
    order = np.argsort(-truth, kind="stable")
    with style():
        figure = plt.figure(figsize=(7.2, 3.6))
        grid = figure.add_gridspec(3, 2, width_ratios=(1, 2.2))
        left = figure.add_subplot(grid[:, 0])
        losses = result.test_loss[:, i, n, :]
        for j, model in enumerate(sparsity.MODELS):
            look = LOOKS[model]
            left.plot([j] * len(losses), losses[:, j], color=look.color, marker="_", linestyle="none", markersize=18)
            left.plot(j, np.median(losses[:, j]), color=look.color, marker=look.marker, markersize=10)
        left.set(
            yscale="log", ylim=(result.test_loss.min() / 1.5, result.test_loss.max() * 1.5), ylabel=f"clean {LOSS}"
        )
        left.set(xlim=(-0.5, 2.5), title="median and seeds")
        left.set_xticks(range(3), ["base-\nline", "atten-\ntion", "L1"])
        for j, model in enumerate(sparsity.MODELS):
            ax = figure.add_subplot(grid[j, 1])
            weights = result.weights[i, n, j]
            _bars(ax, weights[order] / weights.max(), truth[order], LOOKS[model].color)
            ax.set_title(LOOKS[model].label, fontsize=9.5)
            if j < 2:
                ax.set_xticklabels([])
        ax.set_xlabel("input, the relevant ones first")
    return figure


def _name_ticks(ax: Axes, sizes: Sequence[int]) -> None:
    """Write sample sizes out on a logarithmic axis."""
    ax.set_xticks(sizes, [f"{n:,}".replace(",", "\u2009") for n in sizes])
    ax.minorticks_off()


def _bars(ax: Axes, heights: np.ndarray, truth: np.ndarray, color: str) -> None:
    """Bars, filled where the teacher looks and hollow where it does not."""
    for relevant in (True, False):
        at = np.flatnonzero((truth == 1) == relevant)
        ax.bar(at, heights[at], color=color if relevant else "none", edgecolor=color, linewidth=0.8, width=0.85)
    ax.set(ylim=(0, 1.05), yticks=(0, 1), xlim=(-0.6, len(heights) - 0.4))
    ax.grid(visible=False)
