"""The pictures of the experiments on film reviews. Each function takes a result; medians and curves are computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np

from attnbook.core.figures import INK, band, style
from attnbook.mirror_descent.comparison import OPTIMIZERS
from attnbook.mirror_descent.experiments.few_reviews import UNMATCHED, FewReviews
from attnbook.mirror_descent.experiments.review_runs import EDGES, ReviewRuns
from attnbook.mirror_descent.figures.looks import OPTIMIZER_LOOKS
from attnbook.mirror_descent.transformer import ATTENTION

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "accuracy_by_rate", "attended", "choices", "dimensions", "histograms", "mass_by_entropy", "pair_frame",
    "picking_frame",
]  # fmt: skip

MARK = "#c2410c"
LETTERS = ("Q", "K", "V", "O", "all")
# A step of p = 3 is comparable with ten times its size for the other two.
STEP_SIZE = "step size (p = 3: a tenth)"
COMPARABLE = {"adam": 1.0, "p1_1": 1.0, "p2": 1.0, "p3": 10.0}


def accuracy_by_rate(result: FewReviews) -> Figure:
    """Draw test accuracy against step size for every optimiser, and paired differences at comparable step sizes."""
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(6.4, 4.0), width_ratios=(1.25, 1))
        for name in OPTIMIZERS:
            own, rates = _of(result, name)
            band(left, rates * COMPARABLE[name], 100 * result.test_accuracy[own].T, OPTIMIZER_LOOKS[name])
        left.set(xscale="log", ylabel="test accuracy in per cent")
        label_steps(left, (0.001, 0.01, 0.1))
        left.legend(fontsize=9.5, loc="lower left")
        base, rates = _of(result, "p2")
        for name, shift in (("p1_1", 0.9), ("p3", 1.1)):
            own, _ = _of(result, name)
            look = OPTIMIZER_LOOKS[name]
            difference = 100 * (result.test_accuracy[own] - result.test_accuracy[base])
            _dots(right, rates * shift, difference, look.color, look.marker, f"{look.label} minus p = 2")
        right.axhline(0, color=INK, linewidth=1)
        low, high = right.get_ylim()
        right.set_ylim(low, high + 0.3 * (high - low))
        right.set(xscale="log", ylabel="paired difference in points")
        label_steps(right, tuple(rates))
        right.legend(fontsize=9.5, loc="upper left")
    return figure


def choices(result: FewReviews) -> Figure:
    """Draw the gain of p = 1.1 over p = 2, seed by seed, under several ways of choosing the two step sizes."""
    accuracy, rows = 100 * result.test_accuracy, []
    for rate in result.settings.rates[1]:
        rows.append((f"both at {rate:g}", accuracy[result.at("p1_1", rate)] - accuracy[result.at("p2", rate)]))
    best = result.chosen()
    rows.append(("each at its best, all seeds", accuracy[best["p1_1"]] - accuracy[best["p2"]]))
    picks = 100 * result.one_seed_gains()
    rows.append(("picked on one seed", picks))
    slow, fast = UNMATCHED
    unfair = accuracy[result.at("p1_1", slow)] - accuracy[result.at("p2", fast)]
    rows.append((f"p = 1.1 at {slow:g}, p = 2 at {fast:g}", unfair))
    mirrored = accuracy[result.at("p1_1", fast)] - accuracy[result.at("p2", slow)]
    rows.append((f"p = 1.1 at {fast:g}, p = 2 at {slow:g}", mirrored))
    with style():
        figure, ax = plt.subplots(figsize=(6.2, 4.0))
        for place, (_, gains) in enumerate(rows):
            _dots(ax, np.array([-place]), gains[None], MARK if place >= len(rows) - 3 else INK, "o", None, across=True)
        ax.axvline(0, color=INK, linewidth=1)
        ax.set_yticks([-place for place in range(len(rows))], [label for label, _ in rows])
        ax.set(xlabel="test accuracy, p = 1.1 minus p = 2, in points")
    return figure


def pair_frame(result: FewReviews, one: float, two: float) -> Figure:
    """Draw gain and sparsity, seed by seed, for one step size of p = 1.1 and one of p = 2.

    Args:
        result: The runs.
        one: Step size of p = 1.1.
        two: Step size of p = 2.

    Returns:
        The figure.
    """
    first, second = result.at("p1_1", one), result.at("p2", two)
    gains = 100 * (result.test_accuracy[first] - result.test_accuracy[second])
    places = np.arange(gains.size)
    with style():
        figure, (accuracy, density) = plt.subplots(2, 1, figsize=(6.0, 4.6), sharex=True)
        look = OPTIMIZER_LOOKS["p1_1"]
        accuracy.axhspan(0, 20, color="#d9d7d0", alpha=0.5, linewidth=0)
        accuracy.axhline(0, color=INK, linewidth=1)
        accuracy.plot(places, gains, look.marker, color=look.color, markersize=7)
        accuracy.axhline(gains.mean(), color=MARK, linewidth=2)
        accuracy.set(ylim=(-12, 12), ylabel="gain, points", title="p = 1.1 minus p = 2; line: mean; grey: p = 1.1 wins")
        accuracy.set_yscale("symlog", linthresh=2)
        accuracy.set_yticks([-10, -2, 0, 2, 10], ["-10", "-2", "0", "2", "10"])
        for name, number in (("p1_1", first), ("p2", second)):
            look = OPTIMIZER_LOOKS[name]
            density.plot(places, result.whole[number], look.marker, color=look.color, markersize=7, label=look.label)
        low, high = result.whole[result.of("p1_1") + result.of("p2")].min(), 0.8
        density.set(ylim=(low - 0.03, high), ylabel="effective dimension", xlabel="seed")
        density.set_xticks(places, [f"{seed}" for seed in result.settings.seeds])
        figure.legend(*density.get_legend_handles_labels(), fontsize=10, loc="outside lower center", ncols=2)
    return figure


def histograms(result: ReviewRuns) -> Figure:
    """Draw how the entries of each attention matrix are distributed by size, mean over seeds, first layer."""
    middle = np.sqrt(EDGES[1:] * EDGES[:-1])
    with style():
        figure, axes = plt.subplots(2, 2, figsize=(7.2, 5.2), sharex=True, sharey=True)
        for place, ax in enumerate(axes.flat):
            for name, number in result.compared.items():
                ax.plot(middle, result.histogram[number, place], **OPTIMIZER_LOOKS[name].line_style())
            ax.axvline(0.01, color=INK, linewidth=1, linestyle=":")
            ax.set(xscale="log", yscale="log", ylim=(3e-4, 1), title=f"{ATTENTION[place]} matrix")
        axes[0, 0].legend(fontsize=9, loc="upper left")
        figure.supxlabel("size of an entry over the largest of its matrix (dotted: one per cent)", fontsize=10.5)
        figure.supylabel("share of entries", fontsize=10.5)
    return figure


def dimensions(results: Mapping[str, ReviewRuns]) -> Figure:
    """Draw the effective dimension of each kind of attention matrix, one marker per seed and layer."""
    with style():
        figure, axes = plt.subplots(1, len(results), figsize=(6.4, 4.4), sharey=True, squeeze=False)
        for ax, (title, result) in zip(axes[0], results.items(), strict=True):
            layers = (result.effective_dimension.shape[-1] - 1) // len(ATTENTION)
            for row, (name, number) in enumerate(result.compared.items()):
                look, values = OPTIMIZER_LOOKS[name], result.effective_dimension[number]
                for place in range(len(LETTERS)):
                    own = values[:, [-1]] if place == len(ATTENTION) else values[:, place : -1 : len(ATTENTION)]
                    x = place + 0.17 * (row - 1.5) + np.linspace(-0.05, 0.05, own.size)
                    label = look.label if place == 0 else None
                    ax.plot(x, own.ravel(), look.marker, color=look.color, markersize=5, alpha=0.8, label=label)
            ax.axhline(0.75, color=INK, linewidth=1, linestyle=":")
            ax.set_xticks(range(len(LETTERS)), LETTERS)
            ax.set(title=f"{title}, {layers} layer{'s' * (layers > 1)}", xlabel="matrix")
        axes[0, 0].set_ylabel("effective dimension (dotted: the start)")
        figure.legend(*axes[0, -1].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=10)
    return figure


def mass_by_entropy(result: FewReviews) -> Figure:
    """Draw attention on words of praise or blame against the entropy of attention, one marker per run."""
    fit = result.curve()
    x = np.linspace(result.entropy.min(), result.entropy.max(), 60)
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 4.0))
        ax.plot(x, np.polyval(fit, x), color=INK, linewidth=1.5, label="one quadratic for all")
        for name in OPTIMIZERS:
            own, _ = _of(result, name)
            look = OPTIMIZER_LOOKS[name]
            ax.plot(
                result.entropy[own].ravel(), result.mass[own].ravel(), look.marker, color=look.color, markersize=6,
                alpha=0.75, label=look.label,
            )  # fmt: skip
        ax.axhline(result.uniform_mass[0], color=INK, linewidth=1, linestyle=":")
        ax.annotate("uniform", (x[0], result.uniform_mass[0]), xytext=(0, 4), textcoords="offset points", fontsize=9.5)
        ax.set(
            xlabel="entropy of attention, as a share of uniform attention's",
            ylabel="attention on words of praise or blame",
        )
        ax.legend(fontsize=9.5)
    return figure


def attended(result: ReviewRuns) -> Figure:
    """Draw how much each optimiser's network attends to the most attended words of test reviews, first seed."""
    shades = result.attention[list(result.compared.values())]
    _, n_reviews, n_words = shades.shape
    words = np.reshape(result.words, (n_reviews, n_words))
    with style():
        figure, axes = plt.subplots(n_reviews, 1, figsize=(6.2, 2.7 * n_reviews), squeeze=False)
        for k, ax in enumerate(axes[:, 0]):
            image = ax.imshow(shades[:, k], cmap="Greys", aspect="auto", vmin=0, vmax=shades.max())
            ax.set_xticks(range(n_words), words[k], rotation=40, ha="right", fontsize=11)
            ax.set_yticks(range(len(shades)), [OPTIMIZER_LOOKS[name].label.split(" (")[0] for name in result.compared])
            ax.grid(visible=False)
            ax.set_title(f"review {k + 1}", fontsize=11)
        bar = figure.colorbar(image, ax=axes[:, 0], pad=0.02)
        bar.set_label("attention over uniform attention", fontsize=10.5)
    return figure


def picking_frame(result: FewReviews, seed: int) -> Figure:
    """Draw the validation accuracies of one seed, the step sizes they pick, and the test gains they lead to."""
    at = result.settings.seeds.index(seed)
    picked, gains = result.chosen([at]), 100 * result.one_seed_gains()
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.2), width_ratios=(1.3, 1))
        for name in ("p1_1", "p2"):
            own, rates = _of(result, name)
            values = 100 * result.validation_accuracy[own, at]
            left.plot(rates, values, **OPTIMIZER_LOOKS[name].line_style())
            best = own.index(picked[name])
            left.plot(rates[best], values[best], "o", color=MARK, markerfacecolor="none", markersize=15, zorder=4)
        low, high = 100 * result.validation_accuracy.min(), 100 * result.validation_accuracy.max()
        left.set(xscale="log", ylim=(low - 1, high + 1), xlabel="step size", ylabel="validation accuracy in per cent")
        left.set_title("this seed picks (ringed)")
        left.legend(fontsize=9)
        difference = 100 * (result.test_accuracy[picked["p1_1"]] - result.test_accuracy[picked["p2"]])
        others = np.delete(difference, at)
        right.plot(np.linspace(-0.2, 0.2, len(others)), others, "o", color=INK, markersize=5, alpha=0.7)
        right.plot([-0.3, 0.3], [gains[at]] * 2, color=MARK, linewidth=2.5)
        right.axhline(0, color=INK, linewidth=1, linestyle=":")
        bound = 100 * np.abs(result.test_accuracy[:, :, None] - result.test_accuracy[:, :, None].min()).max() / 2
        right.set(xlim=(-0.5, 0.5), ylim=(-bound, bound), xticks=[], title="on all other seeds")
        right.set_ylabel("gain of p = 1.1 in points")
    return figure


def label_steps(ax: Axes, rates: tuple[float, ...]) -> None:
    """Write these step sizes on a logarithmic axis, and no others."""
    ax.set_xticks(rates, [f"{rate:g}" for rate in rates])
    ax.set_xticks([], minor=True)
    ax.set_xlabel(STEP_SIZE)


def _of(result: ReviewRuns, name: str) -> tuple[list[int], np.ndarray]:
    """The configurations of an optimiser and their step sizes."""
    own = result.of(name)
    return own, np.array([result.settings.configurations[number][1] for number in own])


def _dots(
    ax: Axes, places: np.ndarray, samples: np.ndarray, color: str, marker: str, label: str | None, across: bool = False
) -> None:
    """Draw one small marker per seed and a large one for the mean; rows of ``samples`` belong to places."""
    for number, (place, values) in enumerate(zip(places, samples, strict=True)):
        fixed = np.full(len(values), place)
        ax.plot(*((values, fixed) if across else (fixed, values)), marker, color=color, markersize=4, alpha=0.6)
        mean = ([values.mean()], [place]) if across else ([place], [values.mean()])
        ax.plot(*mean, marker, color=color, markersize=9, markeredgecolor="white", label=None if number else label)
