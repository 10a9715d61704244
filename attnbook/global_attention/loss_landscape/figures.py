"""The pictures and tables of this chapter, from data sets: only medians and shares are computed here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr

from attnbook.core.figures import INK, LOOKS, Look, style
from attnbook.core.rng import stream
from attnbook.core.tables import Measured, Table
from attnbook.global_attention.loss_landscape.experiments import LossLandscape, log10_bounds
from attnbook.global_attention.loss_landscape.few_samples import STATIONARY
from attnbook.global_attention.loss_landscape.hessian import OUTLIERS, allowed_decay, over_baseline
from attnbook.global_attention.loss_landscape.minimum import Minimum, output
from attnbook.global_attention.regions import crossover_width
from attnbook.global_attention.rescaling import least_penalty_factor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "along_training", "comparison", "decays", "fits", "orbit_frame", "orbit_map", "orbit_text", "region_bounds",
    "region_window", "step_sizes", "trained_weights", "two_comparisons",
]  # fmt: skip

FOLDED = Look("attention, folded", "#2f74b8", (0, (1, 2)), "D", hollow=True)
RANK = "rank of the eigenvalue"
SHADES = ("#1f2937", "#4338ca", "#0e7490", "#4d7c0f", "#a16207")  # for curves that differ in a number only


def two_comparisons(data: xr.Dataset) -> Figure:
    """Draw Figure 3 twice: after equal numbers of steps, and at equal training loss."""
    spectra, titles = ("attention", "equal_loss"), ("after equal numbers of steps", "at equal training loss")
    with style():
        figure, axes = plt.subplots(1, 2, sharey=True, figsize=(7.2, 3.6))
        for ax, name, title in zip(axes, spectra, titles, strict=True):
            for spectrum, look in (("baseline", LOOKS["baseline"]), (name, LOOKS["attention"])):
                _spectrum(ax, data.eigenvalues.isel(step_size=0).sel(spectrum=spectrum), look)
            ax.set(xscale="log", yscale="log", title=title, xlabel=RANK)
            ax.axvline(OUTLIERS + 0.5, color=INK, linewidth=1, linestyle=":")
            ax.set_xticks((1, 2, 5, 10, 20, 50, 100), ("1", "2", "5", "10", "20", "50", "100"))
            ax.minorticks_off()
        axes[0].set_ylabel("eigenvalue of the Hessian")
        axes[0].legend(loc="lower left")
        words = axes[1].get_xaxis_transform()
        axes[1].text(OUTLIERS, 0.04, "nine outliers", transform=words, ha="right", fontsize=10)
        axes[1].text(OUTLIERS + 1.2, 0.94, "the bulk", transform=words, fontsize=10)
    return figure


def _spectrum(ax: Axes, values: xr.DataArray, look: Look) -> None:
    """A band with few markers: a hundred would hide the line."""
    rank = values["rank"].values
    ax.fill_between(rank, values.min("seed"), values.max("seed"), color=look.color, alpha=0.18, linewidth=0)
    every = [i - 1 for i in (1, 2, 3, 5, 10, 20, 50, 100) if i <= len(rank)]
    ax.plot(rank, values.median("seed"), **look.line_style(), markevery=every)


def along_training(data: xr.Dataset) -> Figure:
    """Draw the largest eigenvalue against the training loss along both runs, every seed; training goes right."""
    looks = {"baseline": LOOKS["baseline"], "attention": replace(LOOKS["attention"], label="attention, raw"),
             "attention_folded": FOLDED}  # fmt: skip
    with style():
        figure, axes = plt.subplots(1, data.sizes["step_size"], sharey=True, figsize=(7.2, 3.4), squeeze=False)
        for ax, step_size in zip(axes[0], data.step_size.values, strict=True):
            at = data.sel(step_size=step_size)
            for (name, look), seed in ((pair, s) for pair in looks.items() for s in range(data.sizes["seed"])):
                loss, top = (values.sel(path=name).isel(seed=seed) for values in (at.path_loss, at.path_top))
                ax.plot(loss, top, linewidth=1.1, **look.line_style() | {"label": look.label if seed == 0 else None})
            ax.set(xscale="log", yscale="log", title=f"step size {step_size:g}")
            ax.set_xlim(1.7 * float(data.path_loss.max()), float(data.path_loss.min()) / 1.7)
        axes[0, 0].set_ylabel("largest eigenvalue")
        axes[0, -1].legend(fontsize=9.5, loc="lower left")
        figure.supxlabel("training loss (training goes to the right)", fontsize=11.5)
    return figure


def region_bounds(run: LossLandscape) -> Figure:
    """Draw Figure 1: the bound of Theorem 3 against width, one curve per number of inputs kept."""
    widths, p = np.unique(np.geomspace(100, 5000, 300).astype(int)), run.figure_inputs
    with style():
        figure, axes = plt.subplots(1, 2, figsize=(7.2, 3.7), width_ratios=(1, 1.25))
        for ax in axes:
            for i, kept in enumerate((*run.figure_sparsities, p)):
                look = LOOKS["baseline"] if kept == p else Look("", SHADES[i % 5], "-", "oD^vP"[i % 5])
                label = f"baseline, p = {p}" if kept == p else f"s₀ = {kept}"
                ax.plot(widths, log10_bounds(widths, kept), color=look.color, linestyle=look.line, marker=look.marker,
                        markevery=(i, 50), linewidth=2.6 if kept == p else 1.5, label=label)  # fmt: skip
            ax.set(xscale="log", xlabel="hidden units $n_1$")
        for i, kept in enumerate(run.figure_sparsities):
            axes[0].axvline(crossover_width(p, kept), color=SHADES[i % 5], linewidth=0.9, linestyle=":")
        axes[0].set(xlim=(100, 400), ylim=(-1, 36), title="narrow", ylabel="log₁₀ of the bound")
        axes[0].set_xticks([100, 150, 200, 300], ["100", "150", "200", "300"])
        axes[1].set(title="all widths")
        axes[1].set_xticks([100, 300, 1000, 5000], ["100", "300", "1000", "5000"])
        for ax in axes:
            ax.minorticks_off()
        axes[1].legend(fontsize=9.5)
    return figure


def region_window(normals: np.ndarray, offsets: np.ndarray, half_width: float = 3.0) -> Figure:
    """Draw the regions that lines cut out of a square: the brighter, the more units are on."""
    with style():
        figure, ax = plt.subplots(figsize=(4.0, 4.0))
        grid = np.linspace(-half_width, half_width, 240)
        on = np.einsum("lk,kij->lij", normals, np.stack(np.meshgrid(grid, grid))) + offsets[:, None, None] > 0
        extent = (-half_width, half_width)
        ax.imshow(on.sum(axis=0), extent=extent * 2, origin="lower", cmap="cividis", alpha=0.75)
        for normal, offset in zip(normals, offsets, strict=True):
            foot = -offset * normal / (normal @ normal)
            ax.axline(foot, foot + np.array([-normal[1], normal[0]]), color=INK, linewidth=0.7)
        ax.set(xlim=extent, ylim=extent, xlabel="first input", ylabel="second input", title="bright: many units are on")
        ax.grid(visible=False)
    return figure


def orbit_map(data: xr.Dataset) -> Figure:
    """Draw the sharpness over the orbit of the first minimum, what A2 and A4 allow, and the least L2 penalty."""
    first, minimum = data.isel(seed=0), Minimum.draw(int(data.seed[0]))
    values = np.log10(first.sharpness.transpose("log_hidden", "log_mask").values)
    axis, middle = data.log_mask.values / np.log(10), (values.min() + values.max()) / 2
    with style():
        figure, ax = plt.subplots(figsize=(6.4, 4.2))
        figure.colorbar(ax.pcolormesh(axis, axis, values, cmap="cividis"), label="log₁₀ of the largest eigenvalue")
        at = np.arange(np.ceil(values.min() * 2) / 2, values.max(), 0.5)[1:]
        levels = ax.contour(axis, axis, values, at, colors=["white" if v < middle else INK for v in at], linewidths=0.8)
        ax.clabel(levels, at[::2], fontsize=10.5)
        x, y, product = np.log10(minimum.limits)
        side = x + y - product
        ax.plot([x, x - side, x, x], [y, y, y - side, y], color="white", linewidth=2.4)
        ax.text(x, y + 0.03, "allowed by A2 and A4", color="white", ha="right", va="bottom", fontsize=9.5)
        ax.plot(0, 0, marker="o", color="white", markersize=8, markeredgecolor=INK)
        least = [np.log10(least_penalty_factor(minimum.hidden, minimum.decoder, 10**x)) for x in axis]
        ax.plot(axis, least, color="white", linewidth=1.6, linestyle="--")
        ax.text(axis[-1] - 0.04, least[-1], "least L2 penalty", color="white", ha="right", va="top", fontsize=9.5)
        ax.set(xlabel="log₁₀ α₁ (mask)", ylabel="log₁₀ α₂ (first layer)", xlim=axis[[0, -1]], ylim=axis[[0, -1]])
        ax.grid(visible=False)
    return figure


def orbit_frame(minimum: Minimum, mask_factor: float, hidden_factor: float) -> Figure:
    """Draw function and spectrum at one point of the orbit, beside those at the start."""
    t, (direction, middle) = np.linspace(-2, 2, 81), stream(0, "line").standard_normal((2, len(minimum.mask)))
    line = t[:, None] * direction + middle / 2
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.3))
        looks: list[tuple[tuple[float, float], str, dict[str, Any]]] = [
            ((1.0, 1.0), "before", {"color": "#9ca3af", "linewidth": 6}),
            ((mask_factor, hidden_factor), "rescaled", {"color": SHADES[1], "linestyle": "--"}),
        ]
        for factors, label, look in looks:
            left.plot(t, output(minimum.network(*factors), line)[0], label=label, **look)
            eigenvalues = minimum.eigenvalues(*factors)
            right.plot(np.arange(1, 31), np.maximum(eigenvalues[:30], 1e-9), label=label, **look)
        left.set(xlabel="position on a line of inputs", ylabel="output", title="the function")
        right.set(yscale="log", ylim=(1e-7, 1e6), xlabel=RANK, ylabel="eigenvalue", title="the curvature")
        left.legend()
        right.legend()
    return figure


def orbit_text(minimum: Minimum, mask_factor: float, hidden_factor: float) -> str:
    """Return the numbers behind one picture of the slider on Theorem 4."""
    ratio = minimum.sharpness(mask_factor, hidden_factor) / minimum.sharpness(1.0, 1.0)
    volume = minimum.log_volume(mask_factor, hidden_factor) / np.log(10)
    return (
        f"Mask times {mask_factor:g}, first layer times {hidden_factor:g}, second layer divided by both: the same "
        f"function, the largest eigenvalue is {ratio:.3g} times what it was, and volumes of weights change by a "
        f"factor of ten to the {volume:.3g}."
    )


def fits(data: xr.Dataset) -> Figure:
    """Draw where training of all weights ends, every run, against the width; hollow where it is not at rest."""
    widths, n = data.fit_width.values, data.attrs["settings"]["few_samples"]
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.6))
        for j, model in enumerate(data.model.values):
            losses, gradients = (values.sel(model=model).values for values in (data.fit_loss, data.fit_gradient))
            at = widths * np.exp((j - 0.5) * 0.12 + np.linspace(-0.02, 0.02, len(losses))[:, None])
            look: dict[str, Any] = {"linestyle": "none", "color": LOOKS[model].color, "marker": LOOKS[model].marker}
            rest, shown = gradients <= STATIONARY, np.maximum(losses, 1e-32)
            ax.plot(at[rest], shown[rest], markersize=6, alpha=0.85, label=LOOKS[model].label, **look)
            ax.plot(at[~rest], shown[~rest], markersize=6, alpha=0.85, markerfacecolor="none", **look)
        ax.plot([], [], linestyle="none", marker="o", color=INK, markerfacecolor="none", label="not at rest")
        marks = {n / (data.attrs["settings"]["few_inputs"] + 1): ("as many weights\nas samples", 1e-20, "left", "--"),
                 n: ("as many units as samples:\nTheorem 5", 1e-12, "right", ":")}  # fmt: skip
        for x, (words, y, side, line) in marks.items():
            ax.axvline(x, color=INK, linewidth=1, linestyle=line)
            ax.text(x * (1.03 if side == "left" else 0.97), y, words, ha=side, fontsize=9.5)
        ax.set(xscale="log", yscale="log", xlabel="hidden units d (points of a width side by side)")
        ax.set(xlim=(1.5, 60), ylabel="training loss over that of output zero")
        ax.set_xticks(widths, map(str, widths))
        ax.minorticks_off()
        ax.legend(loc="center", bbox_to_anchor=(0.5, 0.5))
    return figure


def comparison(data: xr.Dataset) -> Table:
    """Return attention over baseline for several measures, raw and folded, in both comparisons."""
    at, spectra = data.isel(step_size=0), ["attention", "attention_folded", "equal_loss", "equal_loss_folded"]
    ratio, middle = over_baseline(at.eigenvalues, "spectrum").sel(spectrum=spectra), data.sizes["rank"] // 2
    networks = xr.DataArray([name.removesuffix("_folded") for name in spectra], dims="spectrum")
    loss, gain = over_baseline(at.train_loss, "network"), 100 * (at.accuracy - at.accuracy.sel(network="baseline"))
    measures = {
        "largest eigenvalue": ratio.sel(rank=1),
        f"eigenvalue of rank {middle}": ratio.sel(rank=middle),
        "training loss": loss.sel(network=networks),
        "test accuracy, difference in points": gain.sel(network=networks),
    }
    columns = ["equal steps", "equal steps, folded", "equal loss", "equal loss, folded"]
    return _table("attention over baseline", measures, "spectrum", columns)


def step_sizes(data: xr.Dataset) -> Table:
    """Return attention over baseline at every step size: what the claims on Figure 3 are judged by, and more."""
    ratio, middle = over_baseline(data.eigenvalues, "spectrum"), data.sizes["rank"] // 2
    total = over_baseline(data.eigenvalues.sum("rank"), "spectrum")
    gain = 100 * (data.accuracy - data.accuracy.sel(network="baseline"))
    measures = {
        "training loss of the baseline": data.train_loss.sel(network="baseline"),
        "equal steps: largest, raw": ratio.sel(spectrum="attention", rank=1),
        "equal steps: largest, folded": ratio.sel(spectrum="attention_folded", rank=1),
        f"equal steps: rank {middle}, raw": ratio.sel(spectrum="attention", rank=middle),
        "equal loss: largest, raw": ratio.sel(spectrum="equal_loss", rank=1),
        "equal loss: largest, folded": ratio.sel(spectrum="equal_loss_folded", rank=1),
        f"equal loss: rank {middle}, folded": ratio.sel(spectrum="equal_loss_folded", rank=middle),
        f"equal loss: sum of {data.sizes['rank']}, folded": total.sel(spectrum="equal_loss_folded"),
        "equal loss: accuracy, points more": gain.sel(network="equal_loss"),
    }
    return _table("step size", measures, "step_size", [f"{size:g}" for size in data.step_size.values])


def decays(data: xr.Dataset) -> Table:
    """Return training loss, in-sample and test accuracy by weight decay."""
    rows: list[list[str | Measured]] = []
    for model in data.model.values:
        for k, decay in enumerate(data.decay.values):
            at, chosen = data.sel(model=model, decay=decay), (allowed_decay(data).sel(model=model) == k).sum()
            rows.append([f"{model}, L2 {decay:g}" if decay else model, _spread(at.decay_train_loss),
                         _spread(100 * at.decay_train_accuracy, 3), _spread(100 * at.decay_test_accuracy),
                         Measured(f"{int(chosen)}")])  # fmt: skip
    columns = ["network, penalty", "training loss", "in-sample accuracy, %", "test accuracy, %", "seeds"]
    caption = ("Median over seeds [smallest, largest]; the loss without the penalty. Last: how many seeds choose it, "
               "the largest decay before one costs more than a point of in-sample accuracy.")  # fmt: skip
    return Table(columns, rows, caption)


def trained_weights(data: xr.Dataset) -> Table:
    """Return norms, pieces and the two parts of A5 of the trained networks."""
    measures = {
        "error on new inputs": data.error,
        **{f"norm of layer: {layer}": data.norm.sel(layer=layer) for layer in data.layer.values},
        f"pieces that {data.attrs['settings']['fresh']} inputs lie in": data.patterns,
        "largest correlation of A5": data.correlation,
        "smallest eigenvalue of A5": data.least_variance,
    }
    return _table("", measures, "network", [LOOKS[name].label for name in data.network.values])


def _table(head: str, measures: Mapping[str, xr.DataArray], dimension: str, columns: Sequence[str]) -> Table:
    """A row for each measure, a column for each place along a dimension."""
    rows: list[list[str | Measured]] = [
        [label, *map(_spread, values.transpose(dimension, "seed"))] for label, values in measures.items()
    ]
    seeds = next(iter(measures.values())).sizes["seed"]
    return Table(
        [head, *columns], rows, f"Median over {seeds} seeds [smallest, largest]." if seeds > 1 else "One seed."
    )


def _spread(values: xr.DataArray, digits: int = 2) -> Measured:
    form = ".0f" if float(abs(values).max()) >= 10**digits else f".{digits}g"
    low, middle, high = (float(np.quantile(values, q)) for q in (0, 0.5, 1))
    return Measured(f"{middle:{form}}" + f" [{low:{form}}, {high:{form}}]" * (values.size > 1))
