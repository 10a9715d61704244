"""The pictures of the chapter on noisy digits. They take a result or plain arrays and compute nothing but medians."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np

from attnbook.core.figures import BACKGROUND, INK, LOOKS, Look, band, style
from attnbook.global_attention.experiments.noisy_mnist import FIGURES, MODELS, PANELS, NoisyMnist

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

__all__ = [
    "PATH_LOOKS",
    "accuracy_against_loss",
    "accuracy_against_step_size",
    "curves",
    "gallery",
    "growing_weights",
    "lead",
    "learned_masks",
    "overview",
    "penalty_paths",
]

NAMES: Mapping[str, str] = {
    "figure_2": "8 in 24 (Figure 2)",
    "uniform": "uniform noise",
    "plain": "no momentum",
    "uniform_plain": "uniform, no momentum",
    "figure_4": "15 in 48 (Figure 4)",
    "figure_5": "8 in 48 (Figure 5)",
    "figure_6": "5 in 48 (Figure 6)",
}
PATH_LOOKS: Mapping[str, Look] = {
    "l1_mask": Look("L1 on the mask", LOOKS["l1_attention"].color, "-.", "^"),
    "l2_baseline": Look("L2 on the weights, baseline", LOOKS["baseline"].color, "--", "s"),
    "l2_attention": Look("L2 on the weights, attention", LOOKS["attention"].color, "-", "o"),
}
ACCURACY = "test accuracy"
ITERATIONS = "iterations"


def overview(result: NoisyMnist, example: np.ndarray) -> Figure:
    """Draw an image, how strongly its pixels enter with the penalised mask, and the accuracies of Figure 2."""
    with style():
        figure = plt.figure(figsize=(7.2, 3.8))
        grid = figure.add_gridspec(2, 2, width_ratios=(1, 2))
        _picture(figure.add_subplot(grid[0, 0]), example, "one image", cmap="gray", vmin=-1.0, vmax=1.5)
        _picture(figure.add_subplot(grid[1, 0]), result.weights[-1, 2], "learned mask")
        ax = figure.add_subplot(grid[:, 1])
        _curves(ax, result, "accuracy", "figure_2", result.settings.read_at)
        ax.set(xlabel=ITERATIONS, ylabel=ACCURACY, title="which digit is it?", ylim=(0, 1))
        ax.legend()
    return figure


def gallery(pictures: Mapping[str, np.ndarray]) -> Figure:
    """Draw images side by side, each with its title, on one grey scale."""
    with style():
        figure, axes = plt.subplots(1, len(pictures), figsize=(7.2, 2.1))
        for ax, (title, picture) in zip(np.atleast_1d(axes), pictures.items(), strict=True):
            _picture(ax, picture, title, cmap="gray", vmin=-1.0, vmax=1.5)
    return figure


def curves(result: NoisyMnist, panel: str, step_size: float) -> Figure:
    """Draw test accuracy and test loss against iterations for one setting and step size."""
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.2))
        _curves(left, result, "accuracy", panel, step_size)
        left.set(ylim=(0, 1), ylabel=ACCURACY, title=NAMES[panel])
        left.legend()
        _curves(right, result, "test_loss", panel, step_size)
        right.set(yscale="log", ylim=(0.2, 20), ylabel="test loss (nats)", title=f"step size {step_size:g}")
        right.set_yticks([0.3, 1, 3, 10], ["0.3", "1", "3", "10"])
        right.minorticks_off()
        figure.supxlabel(ITERATIONS, fontsize=10.5)
    return figure


def accuracy_against_step_size(result: NoisyMnist, panels: Sequence[str]) -> Figure:
    """Draw the final test accuracy against the step size, one panel per setting."""
    with style():
        figure, axes = plt.subplots(1, len(panels), figsize=(7.2, 3.4), sharey=True)
        for ax, panel in zip(np.atleast_1d(axes), panels, strict=True):
            final = result.accuracy[-1, :, list(PANELS).index(panel)]
            for j, model in enumerate(MODELS):
                band(ax, np.array(result.settings.step_sizes), final[:, :, j], LOOKS[model])
            ax.axhline(0.1, color=INK, linewidth=1, linestyle=":")
            ax.set(xscale="log", ylim=(0, 1), title=NAMES[panel].split(" (")[0])
            ax.set_xticks([0.001, 0.01, 0.1], ["0.001", "0.01", "0.1"])
            ax.minorticks_off()
        first = np.atleast_1d(axes)[0]
        first.set_ylabel(f"final {ACCURACY}")
        first.annotate("guessing", (result.settings.step_sizes[0], 0.1), xytext=(0, -11), textcoords="offset points",
                       fontsize=9)  # fmt: skip
        np.atleast_1d(axes)[-1].legend(fontsize=9)
        figure.supxlabel("step size", fontsize=10.5)
    return figure


def lead(result: NoisyMnist) -> Figure:
    """Draw by how many points attention is ahead in every setting, blank where neither network has learned."""
    points = 100 * result.lead()
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.6))
        image = ax.imshow(points, cmap="PuOr", vmin=-40, vmax=40, aspect="auto")
        for (row, column), value in np.ndenumerate(points):
            text = "–" if np.isnan(value) else f"{value:+.0f}"
            ax.text(column, row, text, ha="center", va="center", color="white" if abs(value) > 24 else INK)
        ax.set_xticks(range(points.shape[1]), [f"{size:g}" for size in result.settings.step_sizes])
        ax.set_yticks(range(points.shape[0]), [NAMES[panel] for panel in PANELS])
        ax.set(xlabel="step size", title="lead of attention")
        ax.grid(visible=False)
        figure.colorbar(image, ax=ax, label="points of accuracy")
    return figure


def learned_masks(result: NoisyMnist) -> Figure:
    """Draw how strongly each pixel enters at the end, for Figures 4 to 6 and all models."""
    with style():
        figure, axes = plt.subplots(len(FIGURES), len(MODELS), figsize=(7.2, 7.0))
        for i, panel in enumerate(FIGURES):
            for j, model in enumerate(MODELS):
                title = LOOKS[model].label if i == 0 else ""
                _picture(axes[i, j], result.weights_large[i, j], title)
            axes[i, 0].set_ylabel(f"digit of {PANELS[panel].scene.digit_size} pixels")
    return figure


def growing_weights(result: NoisyMnist, step: int) -> Figure:
    """Draw how strongly each pixel enters after some steps, for Figure 2 and all models, on one scale for all steps."""
    weights = result.weights[int(np.flatnonzero(result.steps == step)[0])]
    largest = np.quantile(result.weights, 0.999)
    with style():
        figure, axes = plt.subplots(1, len(MODELS), figsize=(7.2, 2.7))
        for j, (ax, model) in enumerate(zip(axes, MODELS, strict=True)):
            # Few levels, so that the palette of a small file holds them all.
            _picture(ax, weights[j], LOOKS[model].label, cmap=plt.get_cmap("cividis", 16), vmin=0.0, vmax=largest)
    return figure


def accuracy_against_loss(result: NoisyMnist) -> Figure:
    """Draw test accuracy against training loss along the way, medians over seeds, for Figure 2."""
    loss, accuracy = (
        np.median(result.curves(what, "figure_2", result.settings.read_at), axis=1)
        for what in ("train_loss", "accuracy")
    )
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.4))
        for j, model in enumerate(MODELS):
            ax.plot(loss[:, j], accuracy[:, j], **LOOKS[model].line_style())
        ax.axvline(loss[-1, 0], color=INK, linewidth=1, linestyle=":")
        ax.annotate(
            "the baseline ends here", (loss[-1, 0], 0.05), xytext=(-6, 0), textcoords="offset points", ha="right"
        )
        ax.set(xscale="log", ylim=(0, 1), xlabel="training loss (nats), training goes to the right", ylabel=ACCURACY)
        ax.invert_xaxis()
        ax.legend(loc="upper left")
    return figure


def penalty_paths(result: NoisyMnist) -> Figure:
    """Draw the final accuracy along the penalty paths; dotted lines: no penalty."""
    without = np.median(result.curves("accuracy", "figure_2", result.settings.read_at)[-1], axis=0)
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.4))
        for i, look in enumerate(PATH_LOOKS.values()):
            band(ax, np.array(result.settings.path), result.path_accuracy[:, i], look)
        for j, model in enumerate(MODELS[:2]):
            ax.axhline(without[j], color=LOOKS[model].color, linewidth=1.2, linestyle=":")
        ax.set(xscale="log", xlabel="strength of the penalty", ylabel=f"final {ACCURACY}")
        ax.legend(fontsize=9.5)
    return figure


def _curves(ax: Axes, result: NoisyMnist, what: str, panel: str, step_size: float) -> None:
    kept = result.steps > 0
    for j, model in enumerate(MODELS):
        band(ax, result.steps[kept], result.curves(what, panel, step_size)[kept, :, j].T, LOOKS[model])
    ax.set(xscale="log")


def _picture(ax: Axes, pixels: np.ndarray, title: str, *, cmap: str | Colormap = "cividis", vmin: float | None = None,
             vmax: float | None = None) -> None:  # fmt: skip
    """A square image; the scale starts at its darkest pixel unless told otherwise."""
    side = int(np.sqrt(pixels.size))
    ax.imshow(pixels.reshape(side, side), cmap=cmap, vmin=vmin, vmax=vmax)
    ax.set(title=title, xticks=[], yticks=[])
    ax.grid(visible=False)
    ax.set_facecolor(BACKGROUND)
