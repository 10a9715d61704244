"""The pictures of the comparisons on images and made reviews: functions of results, which compute only medians."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np

from attnbook.core.figures import INK, band, style
from attnbook.mirror_descent.comparison import OPTIMIZERS
from attnbook.mirror_descent.experiments.image_runs import ImageRuns
from attnbook.mirror_descent.experiments.images import CifarImages
from attnbook.mirror_descent.experiments.made_reviews import MadeReviews
from attnbook.mirror_descent.figures.looks import OPTIMIZER_LOOKS
from attnbook.mirror_descent.figures.reviews import COMPARABLE, label_steps

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["accuracy_by_rate", "attention_maps", "dimensions", "stand_ins"]


def accuracy_by_rate(result: CifarImages) -> Figure:
    """Draw test accuracy against step size, the chosen ones ringed; beside it paired differences at the chosen ones."""
    best = result.chosen()
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(6.4, 4.2), width_ratios=(1.35, 1))
        for place, name in enumerate(OPTIMIZERS):
            aside = COMPARABLE[name] * 1.09 ** (place - 1.5)
            _whiskers(left, result, name, aside, 100 * result.test_accuracy)
            mean = np.median(100 * result.test_accuracy[best[name]])
            rate = aside * result.settings.configurations[best[name]][1]
            left.plot(rate, mean, "o", color=OPTIMIZER_LOOKS[name].color, markerfacecolor="none", markersize=14)
        left.set(xscale="log", ylabel="test accuracy in per cent")
        label_steps(left, (0.001, 0.01, 0.1))
        low, high = left.get_ylim()
        left.set_ylim(low - 0.3 * (high - low), high)
        left.legend(fontsize=9, loc="lower left", ncols=2, columnspacing=1.0)
        error = 100 * result.sampling_error()
        right.axhspan(-error, error, color=INK, alpha=0.1, linewidth=0)
        right.axhline(0, color=INK, linewidth=1)
        others = [name for name in OPTIMIZERS if name != "p2"]
        for place, name in enumerate(others):
            difference = 100 * (result.test_accuracy[best[name]] - result.test_accuracy[best["p2"]])
            _dots(right, place, difference, name)
        right.set_xticks(range(len(others)), [_short(name) for name in others])
        right.set(xlim=(-0.6, len(others) - 0.4), title="minus p = 2, paired")
        right.set_ylabel("difference in points")
    return figure


def dimensions(result: ImageRuns) -> Figure:
    """Draw the effective dimension of the attention matrices against step size, and seed by seed at the chosen ones."""
    best, values = result.chosen(), result.effective_dimension
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(6.4, 4.2), sharey=True, width_ratios=(1.35, 1))
        for name in OPTIMIZERS:
            _curve(left, result, name, values)
        left.axhline(0.75, color=INK, linewidth=1, linestyle=":")
        left.set(xscale="log", ylabel="effective dimension (dotted: the start)")
        label_steps(left, (0.001, 0.01, 0.1))
        low, high = left.get_ylim()
        left.set_ylim(low - 0.35 * (high - low), high)
        left.legend(fontsize=9, loc="lower left")
        names = list(OPTIMIZERS)
        for own in np.array([values[best[name]] for name in names]).T:
            right.plot(range(len(names)), own, color=INK, linewidth=0.7, alpha=0.5)
        for place, name in enumerate(names):
            _dots(right, place, values[best[name]], name, apart=0.0)
        right.axhline(0.75, color=INK, linewidth=1, linestyle=":")
        right.set_xticks(range(len(names)), [_short(name).removeprefix("p = ") for name in names])
        right.set(xlim=(-0.4, len(names) - 0.6), title="at the chosen steps")
    return figure


def attention_maps(result: ImageRuns, numbers: Mapping[str, int]) -> Figure:
    """Draw where the class token looks in a few test images, and on average; first seed, lighter for more attention.

    Args:
        result: The runs.
        numbers: Optimiser to the configuration to show.

    Returns:
        One row per image, named by what it shows, and one for the mean over all test images.
    """
    across = round(result.mean_attention.shape[-1] ** 0.5)
    rows = [*result.attention[:, 0].swapaxes(0, 1), result.mean_attention[:, 0]]
    top = max(float(row[list(numbers.values())].max()) for row in rows) * across**2
    with style():
        figure, axes = plt.subplots(len(rows), len(numbers), figsize=(6.2, 6.4))
        for ax in axes.flat:
            ax.set(xticks=[], yticks=[])
            ax.grid(visible=False)
            ax.spines[:].set_visible(False)
        for k, (row, title) in enumerate(zip(rows, [*result.shown, "mean of all"], strict=True)):
            axes[k, 0].set_ylabel(title, fontsize=12)
            for ax, number in zip(axes[k], numbers.values(), strict=True):
                shade = across**2 * row[number].reshape(across, across)
                image = ax.imshow(shade, vmin=0, vmax=top)
        for ax, name in zip(axes[0], numbers, strict=True):
            ax.set_title(_short(name), fontsize=12.5)
        bar = figure.colorbar(image, ax=axes, shrink=0.7, pad=0.02)
        bar.set_label("attention over uniform attention", fontsize=12)
    return figure


def stand_ins(digits: ImageRuns, reviews: MadeReviews) -> Figure:
    """Draw test accuracy and effective dimension on digits and made reviews, one marker per seed."""
    with style():
        figure, axes = plt.subplots(1, 3, figsize=(7.2, 3.9))
        panels = {
            "test accuracy": (lambda run: 100 * run.test_accuracy, "per cent"),
            "effective dimension": (lambda run: run.effective_dimension, ""),
        }
        names = list(OPTIMIZERS)
        for ax, (title, (values, unit)) in zip(axes, panels.items(), strict=False):
            for run, shift, filled in ((digits, -0.18, True), (reviews, 0.18, False)):
                for place, name in enumerate(names):
                    _dots(ax, place + shift, values(run)[run.compared[name]], name, filled=filled, apart=0.05)
            ax.set(title=title, ylabel=unit)
        for place, name in enumerate(names):
            _dots(axes[2], place, reviews.mass[reviews.compared[name]] / reviews.uniform_mass(), name, filled=False)
        axes[2].axhline(1, color=INK, linewidth=1, linestyle=":")
        axes[2].set(title="telling words", ylabel="attention over uniform (dotted)")
        for ax in axes:
            ax.set_xticks(range(len(names)), [_short(name).removeprefix("p = ") for name in names], fontsize=10)
            ax.set_xlim(-0.5, len(names) - 0.5)
        axes[0].plot([], [], "o", color=INK, label="digits")
        axes[0].plot([], [], "o", color=INK, markerfacecolor="none", label="made reviews")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=10)
    return figure


def _whiskers(ax: Axes, result: ImageRuns, name: str, aside: float, values: np.ndarray) -> None:
    """Medians over seeds against step sizes times a factor, with whiskers over their range."""
    own = result.of(name)
    rates = np.array([aside * result.settings.configurations[number][1] for number in own])
    middle = np.median(values[own], axis=1)
    ends = np.abs(np.stack([values[own].min(axis=1), values[own].max(axis=1)]) - middle)
    ax.errorbar(rates, middle, yerr=ends, capsize=2, elinewidth=1, **OPTIMIZER_LOOKS[name].line_style())


def _curve(ax: Axes, result: ImageRuns, name: str, values: np.ndarray) -> None:
    own = result.of(name)
    rates = np.array([result.settings.configurations[number][1] for number in own])
    band(ax, COMPARABLE[name] * rates, values[own].T, OPTIMIZER_LOOKS[name])


def _dots(ax: Axes, place: float, values: np.ndarray, name: str, *, filled: bool = True, apart: float = 0.15) -> None:
    """One small marker per seed, and the mean as a bar."""
    look = OPTIMIZER_LOOKS[name]
    beside = np.linspace(-apart, apart, len(values)) if len(values) > 1 else np.zeros(1)
    face = look.color if filled else "none"
    ax.plot(place + beside, values, look.marker, color=look.color, markerfacecolor=face, markersize=5, alpha=0.8)
    ax.plot([place - 0.16, place + 0.16], [values.mean()] * 2, color=look.color, linewidth=2.2)


def _short(name: str) -> str:
    return OPTIMIZER_LOOKS[name].label.split(" (")[0]
