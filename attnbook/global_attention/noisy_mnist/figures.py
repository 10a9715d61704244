"""The pictures and tables of the chapter on noisy digits; they compute nothing but medians."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from attnbook.core.figures import BACKGROUND, INK, LOOKS, Look, band, legend_above, style
from attnbook.core.tables import Measured, Table, spread
from attnbook.global_attention.digit_training import MODELS
from attnbook.global_attention.noisy_mnist.experiments import PANELS, leads

PATH_LOOKS: Mapping[str, Look] = {
    "l1_mask": Look("mask: L1 on it", LOOKS["l1_attention"].color, "-.", "^"),
    "group_baseline": Look("no mask: group penalty on pixels", "#0f4f4a", (0, (5, 1)), "v"),
    "l2_baseline": Look("no mask: L2 on the weights", LOOKS["baseline"].color, "--", "s"),
}
VARIATIONS = {"uniform": ", uniform noise", "plain": ", no momentum", "uniform_plain": ", uniform, no momentum"}
ACCURACY, ITERATIONS = "test accuracy", "iterations"


def named(panel: str) -> str:
    """Return what figures and tables call a panel."""
    scene = PANELS[panel][0]
    figure = f" (Figure {panel[-1]})" if panel not in VARIATIONS else VARIATIONS[panel]
    return f"{scene.digit_size} in {scene.image_size}{figure}"


def overview(data: xr.Dataset, example: np.ndarray) -> Figure:
    """Draw an image, how strongly each pixel enters with a penalised mask, and the accuracies of Figure 2."""
    with style():
        figure = plt.figure(figsize=(7.2, 3.8))
        grid = figure.add_gridspec(2, 2, width_ratios=(1, 2))
        # The palette of the file is small, and holds the lines too: few greys, and the colour of the model's line.
        greys, look = plt.get_cmap("gray", 12), LOOKS["l1_attention"]
        shades = LinearSegmentedColormap.from_list("strength", ["#dde2e8", look.color], 6)
        _picture(figure.add_subplot(grid[0, 0]), example, "one image", greys, -1.0, 1.5)
        strength = data.strength.sel(model="l1_attention").isel(record=-1).values
        _picture(figure.add_subplot(grid[1, 0]), strength, "pixel strength", shades)
        ax = figure.add_subplot(grid[:, 1])
        _curves(ax, data.sel(panel="figure_2", step_size=data.attrs["settings"]["read_at"]), "accuracy")
        ax.set(xlabel=ITERATIONS, ylabel=ACCURACY, title="which digit is it?", ylim=(0, 1))
        ax.legend()
    return figure


def gallery(pictures: Mapping[str, np.ndarray]) -> Figure:
    """Draw images side by side, each with its title, on one grey scale."""
    with style():
        figure, axes = plt.subplots(1, len(pictures), figsize=(7.2, 2.1))
        for ax, (title, picture) in zip(np.atleast_1d(axes), pictures.items(), strict=True):
            _picture(ax, picture, title, "gray", -1.0, 1.5)
    return figure


def curves(data: xr.Dataset, panel: str, step_size: float) -> Figure:
    """Draw test accuracy and test loss against iterations for one setting and step size."""
    one = data.sel(panel=panel, step_size=step_size)
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.5))
        _curves(left, one, "accuracy")
        left.set(ylim=(0, 1), ylabel=ACCURACY, title=named(panel))
        figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=3)
        _curves(right, one, "test_loss")
        medians = data.test_loss.median("seed").values  # of all settings: frames of the slider have one axis
        right.set(yscale="log", ylabel="test loss (nats)", title=f"step size {step_size:g}")
        right.set_yticks(ticks := (0.3, 0.5, 1, 2, 3, 5, 8), [f"{tick:g}" for tick in ticks])
        right.set_ylim(0.9 * medians.min(), min(1.1 * medians.max(), 9.0))
        right.minorticks_off()
        figure.supxlabel(ITERATIONS, fontsize=11)
    return figure


def curves_text(data: xr.Dataset, panel: str, step_size: float) -> str:
    """Return the numbers behind one picture of curves."""
    final = data.accuracy.sel(panel=panel, step_size=step_size).isel(record=-1).median("seed")
    shown = ", ".join(f"{LOOKS[m].label} {float(final.sel(model=m)):.2f}" for m in MODELS)
    return f"Digit of {named(panel)}, step size {step_size:g}: final test accuracy {shown}."


def smallest_step(data: xr.Dataset) -> Figure:
    """Draw test accuracy and training loss of Figures 4 to 6 at the step size of the text."""
    with style():
        figure, axes = plt.subplots(2, data.sizes["panel"], figsize=(7.2, 4.6), sharex=True, sharey="row")
        for (top, bottom), panel in zip(axes.T, data.panel.values, strict=True):
            _curves(top, data.sel(panel=panel), "accuracy")
            _curves(bottom, data.sel(panel=panel), "train_loss")
            top.set(ylim=(0, 1), title=named(panel))
        axes[0, 0].set_ylabel(ACCURACY)
        axes[1, 0].set_ylabel("training loss (nats)")
        axes[0, -1].legend(loc="upper left")
        figure.supxlabel(ITERATIONS, fontsize=11)
    return figure


def accuracy_against_loss(data: xr.Dataset) -> Figure:
    """Draw test accuracy against training loss along the way, medians over seeds, for Figure 2."""
    middle = data.sel(panel="figure_2", step_size=data.attrs["settings"]["read_at"]).median("seed")
    end = float(middle.train_loss.sel(model="baseline").isel(record=-1))
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.4))
        for model in MODELS:
            one = middle.sel(model=model)
            ax.plot(one.train_loss, one.accuracy, **LOOKS[model].line_style())
        ax.axvline(end, color=INK, linewidth=1, linestyle=":")
        ax.annotate("the baseline ends here", (end, 0.05), xytext=(-6, 0), textcoords="offset points", ha="right")
        ax.set(xscale="log", ylim=(0, 1), xlabel="training loss (nats), training goes to the right", ylabel=ACCURACY)
        ax.invert_xaxis()
        ax.legend(loc="upper left")
    return figure


def lead(data: xr.Dataset) -> Figure:
    """Draw by how many points attention is ahead in every setting, blank where neither network has learned."""
    points = 100 * leads(data).values
    source = {"digits": "scikit-learn's digits", "mnist": "MNIST"}[data.attrs["settings"]["images"]]
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 1.6 + 0.38 * len(points)))
        image = ax.imshow(points, cmap=plt.get_cmap("PuOr", 9), vmin=-45, vmax=45, aspect="auto")
        for (row, column), value in np.ndenumerate(points):
            text = "–" if np.isnan(value) else f"{value:+.0f}"
            ax.text(column, row, text, ha="center", va="center", color="white" if abs(value) > 24 else INK)
        ax.set_xticks(range(points.shape[1]), [f"{size:g}" for size in data.step_size.values])
        ax.set_yticks(range(points.shape[0]), [named(panel) for panel in data.panel.values])
        ax.set(xlabel="step size")
        ax.grid(visible=False)
        figure.colorbar(image, ax=ax, label="points", extend="both")
        figure.suptitle(f"lead of attention in accuracy, {source}", fontsize=12, fontweight="bold")
    return figure


def growing_weights(data: xr.Dataset, step: int) -> Figure:
    """Draw how strongly each pixel enters after some steps, for Figure 2 and all models, on one scale for all steps."""
    strength, largest = data.strength[data.step.values == step][0], float(np.quantile(data.strength, 0.999))
    with style():
        figure, axes = plt.subplots(1, len(MODELS), figsize=(7.2, 2.7))
        for ax, model in zip(axes, MODELS, strict=True):
            few = plt.get_cmap("cividis", 16)  # so that the palette of a small file holds them all
            image = _picture(ax, strength.sel(model=model).values, LOOKS[model].label, few, 0.0, largest)
        figure.colorbar(image, ax=axes.tolist(), label="strength", extend="max", shrink=0.8)
    return figure


def weights_text(data: xr.Dataset, step: int) -> str:
    """Return the numbers behind one picture of the growing weights: mean strength outside and inside the digit."""
    inside, strength = PANELS["figure_2"][0].patch == 1, data.strength[data.step.values == step][0]
    of_each = [(LOOKS[m].label, strength.sel(model=m).values) for m in MODELS]
    shown = ", ".join(f"{name} {s[~inside].mean():.2f} and {s[inside].mean():.2f}" for name, s in of_each)
    return f"After {step} steps, mean strength of a pixel outside the digit and inside: {shown}."


def penalty_paths(data: xr.Dataset) -> Figure:
    """Draw the final accuracy against the strength of each penalty, at its best step size; dotted lines: none."""
    final = data.accuracy.isel(record=-1)
    with style():
        figure, ax = plt.subplots(figsize=(6.4, 4.8))
        for path, look in PATH_LOOKS.items():
            one, strengths = final.sel(path=path), data.strength.values[1:]
            best = one.sel(strength=strengths).median("seed").max("strength").idxmax("step_size")
            shown = one.sel(step_size=best, strength=strengths).transpose("seed", "strength")
            band(ax, strengths, shown.values, replace(look, label=f"{look.label} (step {float(best):g})"))
        for path, name in (("l1_mask", "attention"), ("l2_baseline", "baseline")):
            level = float(final.sel(path=path, strength=0).median("seed").max())
            ax.axhline(level, color=LOOKS[name].color, linewidth=1.2, linestyle=":")
            ax.annotate(f"{LOOKS[name].label}, no penalty", (0.01, level), xycoords=("axes fraction", "data"),
                        xytext=(0, -4), textcoords="offset points", va="top", fontsize=10)  # fmt: skip
        ax.set(xscale="log", xlabel="strength of the penalty", ylabel=f"final {ACCURACY}", ylim=(0.4, 1.0))
        legend_above(ax, ncols=1)
    return figure


def accuracies(names: Sequence[str], accuracy: np.ndarray) -> Table:
    """Return accuracies ``(seeds, scenes, models)`` of each model in some scenes, in per cent, with their range."""
    rows: list[list[str | Measured]] = [
        [name, *(spread(of_model, ".1f") for of_model in of_scene)]
        for name, of_scene in zip(names, 100 * accuracy.transpose(1, 2, 0), strict=True)
    ]
    caption = "Final test accuracy in per cent; median over seeds [smallest, largest]."
    return Table(["digit", *(LOOKS[m].label for m in MODELS)], rows, caption)


def _curves(ax: Axes, data: xr.Dataset, what: str) -> None:
    kept = data.isel(record=data.step.values > 0)
    for model in data.model.values:
        band(ax, kept.step.values, kept[what].sel(model=model).transpose("seed", "record").values, LOOKS[model])
    ax.set(xscale="log")


def _picture(
    ax: Axes, pixels: np.ndarray, title: str, cmap: str | Colormap, low: float | None = None, high: float | None = None
) -> AxesImage:
    """A square image; the scale starts at its darkest pixel unless told otherwise."""
    side = int(np.sqrt(pixels.size))
    image = ax.imshow(pixels.reshape(side, side), cmap=cmap, vmin=low, vmax=high)
    ax.set(title=title, xticks=[], yticks=[])
    ax.grid(visible=False)
    ax.set_facecolor(BACKGROUND)
    return image
