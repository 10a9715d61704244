"""The pictures of the chapter on noisy digits. They take a result or plain arrays and compute nothing but medians."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np

from attnbook.core.figures import BACKGROUND, INK, LOOKS, Look, band, style
from attnbook.global_attention.experiments.noisy_mnist import FIGURES, MODELS, NAMES, PANELS, NoisyMnist

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

    from attnbook.global_attention.agreement import Agreement

__all__ = [
    "PATH_LOOKS",
    "accuracy_against_loss",
    "accuracy_against_step_size",
    "agreement",
    "curves",
    "gallery",
    "growing_weights",
    "lead",
    "learned_masks",
    "overview",
    "penalty_paths",
]

PATH_LOOKS: Mapping[str, Look] = {
    "l1_mask": Look("mask: L1 on it", LOOKS["l1_attention"].color, "-.", "^"),
    "l1_mask_l2": Look("mask: L1 on it, L2 on the weights", "#a21caf", ":", "D"),
    "l2_baseline": Look("no mask: L2 on the weights", LOOKS["baseline"].color, "--", "s"),
    "group_baseline": Look("no mask: group penalty on pixels", "#0f4f4a", (0, (5, 1)), "v"),
}
ACCURACY = "test accuracy"
ITERATIONS = "iterations"


def overview(result: NoisyMnist, example: np.ndarray) -> Figure:
    """Draw an image, the penalised mask of the first seed, and the accuracies of Figure 2."""
    with style():
        figure = plt.figure(figsize=(7.2, 3.8))
        grid = figure.add_gridspec(2, 2, width_ratios=(1, 2))
        few = plt.get_cmap("gray", 12), plt.get_cmap("cividis", 12)  # the palette of the file holds the lines too
        _picture(figure.add_subplot(grid[0, 0]), example, "one image", cmap=few[0], vmin=-1.0, vmax=1.5)
        _picture(figure.add_subplot(grid[1, 0]), result.masks[0, 1], "trained mask (L1)", cmap=few[1])
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
        of_panel = np.median(result.test_loss[:, :, list(PANELS).index(panel)], axis=1)
        lowest, highest = 0.9 * of_panel.min(), min(1.1 * of_panel.max(), 9.0)
        right.set(yscale="log", ylim=(lowest, highest), ylabel="test loss (nats)", title=f"step size {step_size:g}")
        ticks = [tick for tick in (0.3, 0.5, 1, 2, 3, 5, 8) if lowest <= tick <= highest]
        right.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        right.minorticks_off()
        figure.supxlabel(ITERATIONS, fontsize=10.5)
    return figure


def accuracy_against_step_size(result: NoisyMnist, panels: Sequence[str]) -> Figure:
    """Draw the final test accuracy against the step size, one panel per setting, two in a row."""
    with style():
        figure, axes = plt.subplots(-(-len(panels) // 2), 2, figsize=(5.6, 5.6), sharex=True, sharey=True)
        for ax, panel in zip(axes.flat, panels, strict=False):
            final = result.accuracy[-1, :, list(PANELS).index(panel)]
            for j, model in enumerate(MODELS):
                band(ax, np.array(result.settings.step_sizes), final[:, :, j], LOOKS[model])
            ax.axhline(0.1, color=INK, linewidth=1, linestyle=":")
            ax.set(xscale="log", ylim=(0, 1), title=NAMES[panel].split(" (")[0])
            ax.set_xticks([0.001, 0.01, 0.1], ["0.001", "0.01", "0.1"])
            ax.minorticks_off()
        axes.flat[0].annotate(
            "guessing", (result.settings.step_sizes[-1], 0.1), xytext=(0, 4), textcoords="offset points", ha="right"
        )
        axes.flat[len(panels) - 1].legend()
        for unused in axes.flat[len(panels) :]:
            unused.axis("off")
        figure.supxlabel("step size", fontsize=11.5)
        figure.supylabel(f"final {ACCURACY}", fontsize=11.5)
    return figure


def lead(result: NoisyMnist) -> Figure:
    """Draw by how many points attention is ahead in every setting, blank where neither network has learned."""
    points, source = 100 * result.lead(), {"digits": "scikit-learn's digits", "mnist": "MNIST"}
    with style():
        figure, ax = plt.subplots(figsize=(5.6, 4.2))
        image = ax.imshow(points, cmap="PuOr", vmin=-40, vmax=40, aspect="auto")
        for (row, column), value in np.ndenumerate(points):
            text = "–" if np.isnan(value) else f"{value:+.0f}"
            ax.text(column, row, text, ha="center", va="center", color="white" if abs(value) > 24 else INK)
        ax.set_xticks(range(points.shape[1]), [f"{size:g}" for size in result.settings.step_sizes])
        ax.set_yticks(range(points.shape[0]), [NAMES[panel] for panel in PANELS])
        ax.set(xlabel="step size")
        ax.grid(visible=False)
        figure.colorbar(image, ax=ax, label="points of accuracy", extend="both")
        figure.suptitle(f"lead of attention, {source[result.settings.images]}", fontsize=12, fontweight="bold")
    return figure


def learned_masks(result: NoisyMnist) -> Figure:
    """Draw how strongly each pixel enters at the end, relative to those of the digit, for Figures 4 to 6."""
    with style():
        figure, axes = plt.subplots(len(FIGURES), len(MODELS), figsize=(5.6, 4.7))
        for i, panel in enumerate(FIGURES):
            inside = PANELS[panel].scene.patch == 1
            for j, model in enumerate(MODELS):
                title, pixels = LOOKS[model].label if i == 0 else "", result.weights_large[i, j]
                relative = pixels / pixels[inside].mean()
                image = _picture(axes[i, j], relative, title, cmap=plt.get_cmap("cividis", 16), vmin=0.0, vmax=1.5)
            axes[i, 0].set_ylabel(f"digit of {PANELS[panel].scene.digit_size}")
        _bar(figure, image, axes, "strength relative to the mean in the digit", extend="max")
    return figure


def growing_weights(result: NoisyMnist, step: int) -> Figure:
    """Draw how strongly each pixel enters after some steps, for Figure 2 and all models, on one scale for all steps."""
    weights = result.weights[int(np.flatnonzero(result.steps == step)[0])]
    largest = np.quantile(result.weights, 0.999)
    with style():
        figure, axes = plt.subplots(1, len(MODELS), figsize=(7.2, 2.7))
        for j, (ax, model) in enumerate(zip(axes, MODELS, strict=True)):
            # Few levels, so that the palette of a small file holds them all.
            cmap = plt.get_cmap("cividis", 16)
            image = _picture(ax, weights[j], LOOKS[model].label, cmap=cmap, vmin=0.0, vmax=largest)
        _bar(figure, image, axes, "strength", extend="max")
    return figure


def agreement(found: Agreement, member: int = 0) -> Figure:
    """Draw, for the pixels of one network, how far hidden units agree within a batch, and how far batches agree."""
    with style():
        figure, axes = plt.subplots(1, 2, figsize=(5.6, 3.2))
        shown = {"units, in one batch": found.units, "batches, over time": found.batches}
        for ax, (title, values) in zip(axes, shown.items(), strict=True):
            cmap = plt.get_cmap("cividis", 16).with_extremes(bad="#c9c7c0")  # always dark: no push to agree on
            image = _picture(ax, values[member], title, cmap=cmap, vmin=0.0, vmax=1.0)
        _bar(figure, image, axes, "agreement of the pushes")
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
    """Draw the final accuracy along the penalty paths, each at its best step size; dotted lines: no penalty."""
    without, path = np.median(result.best("figure_2"), axis=0), np.array(result.settings.path)
    with style():
        figure, ax = plt.subplots(figsize=(5.6, 5.0))
        for i, look in enumerate(PATH_LOOKS.values()):
            best = np.median(result.path_accuracy[:, i], axis=0).max(axis=1).argmax()
            step_size = result.settings.path_step_sizes[best]
            band(ax, path, result.path_accuracy[:, i, best], replace(look, label=f"{look.label} (step {step_size:g})"))
        for j, model in enumerate(MODELS[:2]):
            ax.axhline(without[j], color=LOOKS[model].color, linewidth=1.2, linestyle=":")
            name = f"{LOOKS[model].label}, no penalty"
            ax.annotate(name, (path[0], without[j]), xytext=(0, -4), textcoords="offset points", va="top", fontsize=10)
        ax.set(xscale="log", xlabel="strength of the penalty", ylabel=f"final {ACCURACY}", ylim=(0.4, 1.0))
        ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return figure


def _curves(ax: Axes, result: NoisyMnist, what: str, panel: str, step_size: float) -> None:
    kept = result.steps > 0
    for j, model in enumerate(MODELS):
        band(ax, result.steps[kept], result.curves(what, panel, step_size)[kept, :, j].T, LOOKS[model])
    ax.set(xscale="log")


def _picture(ax: Axes, pixels: np.ndarray, title: str, *, cmap: str | Colormap = "cividis", vmin: float | None = None,
             vmax: float | None = None) -> AxesImage:  # fmt: skip
    """A square image; the scale starts at its darkest pixel unless told otherwise."""
    side = int(np.sqrt(pixels.size))
    image = ax.imshow(pixels.reshape(side, side), cmap=cmap, vmin=vmin, vmax=vmax)
    ax.set(title=title, xticks=[], yticks=[])
    ax.grid(visible=False)
    ax.set_facecolor(BACKGROUND)
    return image


def _bar(figure: Figure, image: AxesImage, axes: np.ndarray, label: str, *, extend: str = "neither") -> None:
    figure.colorbar(image, ax=axes.ravel().tolist(), label=label, extend=extend, shrink=0.8)
