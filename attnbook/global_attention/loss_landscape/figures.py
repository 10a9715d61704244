"""The pictures and tables of this chapter, from data sets: only medians and shares are computed here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from attnbook.core.figures import INK, LOOKS, Look, band, legend_above, log_axis, style
from attnbook.core.rng import stream
from attnbook.core.tables import Measured, Table, spread
from attnbook.global_attention.loss_landscape.experiments import STATIONARY, LossLandscape, log10_bounds
from attnbook.global_attention.loss_landscape.hessian import OUTLIERS, allowed_decay, over_baseline
from attnbook.global_attention.regions import crossover_width
from attnbook.global_attention.rescaling import Minimum, output

RANK = "rank of the eigenvalue"
SHADES = ("#1f2937", "#4338ca", "#0e7490", "#4d7c0f", "#a16207")  # for curves that differ in a number only


def two_comparisons(data: xr.Dataset) -> Figure:
    """Draw Figure 3 twice: after equal numbers of steps, and at equal training loss."""
    titles = {"attention": "after equal numbers of steps", "equal_loss": "at equal training loss"}
    with style():
        figure, axes = plt.subplots(1, 2, sharey=True, figsize=(7.2, 3.6))
        for ax, (name, title) in zip(axes, titles.items(), strict=True):
            for spectrum, look in (("baseline", LOOKS["baseline"]), (name, LOOKS["attention"])):
                values = data.eigenvalues.isel(step_size=0).sel(spectrum=spectrum)
                band(ax, data["rank"].values, values.transpose("seed", "rank").values, look)
                ax.lines[-1].set_markevery(0.1)
            ax.set(yscale="log", title=title)
            ax.axvline(OUTLIERS + 0.5, color=INK, linewidth=1, linestyle=":")
            log_axis(ax, (1, 2, 5, 10, 20, 50, 100), RANK)
        axes[0].set_ylabel("eigenvalue of the Hessian")
        axes[0].legend(loc="lower left")
        words = axes[1].get_xaxis_transform()
        axes[1].text(OUTLIERS, 0.04, "nine outliers", transform=words, ha="right", fontsize=10)
        axes[1].text(OUTLIERS + 1.2, 0.94, "the bulk", transform=words, fontsize=10)
    return figure


def region_bounds(run: LossLandscape) -> Figure:
    """Draw Figure 1: the bound of Theorem 3 against width, one curve per number of inputs kept."""
    widths, p = np.unique(np.geomspace(100, 5000, 300).astype(int)), run.figure_inputs
    with style():
        figure, axes = plt.subplots(1, 2, figsize=(7.2, 3.7), width_ratios=(1, 1.25))
        panels = {"narrow": (100, 150, 200, 300), "all widths": (100, 300, 1000, 5000)}
        for ax, (title, ticks) in zip(axes, panels.items(), strict=True):
            for i, kept in enumerate(run.figure_sparsities):
                look = Look(f"s₀ = {kept}", SHADES[i % 5], "-", "oD^vP"[i % 5])
                ax.plot(widths, log10_bounds(widths, kept), **look.line_style(), markevery=(i, 50), linewidth=1.5)
            look = replace(LOOKS["baseline"], label=f"baseline, p = {p}")
            ax.plot(widths, log10_bounds(widths, p), **look.line_style(), markevery=50, linewidth=2.6)
            ax.set_title(title)
            log_axis(ax, ticks, "hidden units $n_1$")
        for i, kept in enumerate(run.figure_sparsities):
            axes[0].axvline(crossover_width(p, kept), color=SHADES[i % 5], linewidth=0.9, linestyle=":")
        axes[0].set(xlim=(100, 400), ylim=(-1, 36), ylabel="log₁₀ of the bound")
        axes[1].legend(fontsize=9.5)
    return figure


def orbit_map(data: xr.Dataset) -> Figure:
    """Draw the sharpness over the orbit of the first minimum, what A2 and A4 allow, and the least L2 penalty."""
    first, minimum = data.isel(seed=0), Minimum.draw(int(data.seed[0]))
    values = np.log10(first.sharpness.transpose("log_hidden", "log_mask").values)
    axis, levels = data.log_mask.values / np.log(10), np.arange(np.floor(2 * values.min()), 2 * values.max() + 1) / 2
    with style():
        figure, ax = plt.subplots(figsize=(6.4, 4.2))
        bands = ax.contourf(axis, axis, values, levels, cmap="cividis")
        figure.colorbar(bands, label="log₁₀ of the largest eigenvalue")
        x, y, product = np.log10(minimum.limits)
        side = x + y - product
        ax.plot([x, x - side, x, x], [y, y, y - side, y], color="white", linewidth=2.4)
        ax.text(x, y + 0.03, "allowed by A2 and A4", color="white", ha="right", va="bottom", fontsize=9.5)
        ax.plot(0, 0, marker="o", color="white", markersize=8, markeredgecolor=INK)
        least = [np.log10(minimum.least_penalty_factor(10**x)) for x in axis]
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
        before: dict[str, Any] = {"label": "before", "color": "#9ca3af", "linewidth": 6}
        after: dict[str, Any] = {"label": "rescaled", "color": SHADES[1], "linestyle": "--"}
        for factors, look in (((1.0, 1.0), before), ((mask_factor, hidden_factor), after)):
            left.plot(t, output(minimum.network(*factors), line)[0], **look)
            right.plot(np.arange(1, 31), np.maximum(minimum.eigenvalues(*factors)[:30], 1e-9), **look)
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
        figure, ax = plt.subplots(figsize=(7.2, 4.2))
        for j, model in enumerate(data.model.values):
            losses, gradients = (values.sel(model=model).values for values in (data.fit_loss, data.fit_gradient))
            at = widths * np.exp((j - 0.5) * 0.12 + np.linspace(-0.02, 0.02, len(losses))[:, None])
            rest, shown = gradients <= STATIONARY, np.maximum(losses, 1e-32)
            look = LOOKS[model].line_style() | {"linestyle": "none", "markersize": 6, "alpha": 0.85}
            ax.plot(at[rest], shown[rest], **look)
            ax.plot(at[~rest], shown[~rest], **look | {"markerfacecolor": "none", "label": None})
        ax.plot([], [], linestyle="none", marker="o", color=INK, markerfacecolor="none", label="not at rest")
        few = n / (data.attrs["settings"]["few_inputs"] + 1)
        ax.axvline(few, color=INK, linewidth=1, linestyle="--")
        ax.text(few, 1e-20, " as many weights\n as samples", fontsize=9.5)
        ax.axvline(n, color=INK, linewidth=1, linestyle=":")
        ax.text(n, 1e-12, "as many units as samples: \nTheorem 5 ", ha="right", fontsize=9.5)
        log_axis(ax, widths, "hidden units d (points of a width side by side)")
        ax.set(yscale="log", xlim=(1.5, 60), ylabel="training loss over that of output zero")
        legend_above(ax, ncols=3)
    return figure


def comparison(runs: Mapping[str, xr.Dataset]) -> Table:
    """Return attention over baseline at every step size of some runs, after equal steps and at equal training loss."""
    middle = min(data.sizes["rank"] for data in runs.values()) // 2
    columns = {
        f"{name}, step size {step_size:g}": _over_baseline(data.sel(step_size=step_size), middle)
        for name, data in runs.items() for step_size in data.step_size.values
    }  # fmt: skip
    return _table("attention over baseline", columns)


def _over_baseline(data: xr.Dataset, middle: int) -> dict[str, xr.DataArray]:
    """What the claims on Figure 3 are judged by, and more."""
    ratio, loss = over_baseline(data.eigenvalues, "spectrum"), over_baseline(data.train_loss, "network")
    gain = data.accuracy - data.accuracy.sel(network="baseline")
    found = {"training loss of the baseline": data.train_loss.sel(network="baseline")}
    for network, matched in (("attention", "equal steps"), ("equal_loss", "equal loss")):
        raw, folded = ratio.sel(spectrum=network), ratio.sel(spectrum=f"{network}_folded")
        found |= {
            f"{matched}: training loss": loss.sel(network=network),
            f"{matched}: largest eigenvalue": raw.sel(rank=1),
            f"{matched}: largest, folded": folded.sel(rank=1),
            f"{matched}: rank {middle}": raw.sel(rank=middle),
            f"{matched}: rank {middle}, folded": folded.sel(rank=middle),
            f"{matched}: test accuracy, points more": 100 * gain.sel(network=network),
        }
    return found


def decays(data: xr.Dataset) -> Table:
    """Return training loss, in-sample and test accuracy by weight decay."""
    in_sample = data.decay_train_accuracy
    chosen = allowed_decay(data) == xr.DataArray(range(data.sizes["decay"]), dims="decay")
    measures = {
        "training loss": data.decay_train_loss,
        "in-sample points lost": 100 * (in_sample.isel(decay=0) - in_sample),
        "test accuracy, %": 100 * data.decay_test_accuracy,
        "seeds": chosen.assign_coords(decay=data.decay).sum("seed"),
    }
    rows = {f"{model}, L2 {decay:g}": {"model": model, "decay": decay}
            for model in data.model.values for decay in data.decay.values}  # fmt: skip
    columns = {head: {row: values.sel(at) for row, at in rows.items()} for head, values in measures.items()}
    return _table(
        "network, penalty", columns, " The loss is without the penalty; last, how many seeds choose the decay."
    )


def trained_weights(data: xr.Dataset) -> Table:
    """Return norms, pieces and the two parts of A5 of the trained networks."""
    measures = {
        "error on new inputs": data.error,
        **{f"norm of layer: {layer}": data.norm.sel(layer=layer) for layer in data.layer.values},
        f"pieces that {data.attrs['settings']['fresh']} inputs lie in": data.patterns,
        "largest correlation of A5": data.correlation,
        "smallest eigenvalue of A5": data.least_variance,
    }
    columns = {LOOKS[n].label: {row: v.sel(network=n) for row, v in measures.items()} for n in data.network.values}
    return _table("", columns)


def _table(head: str, columns: Mapping[str, Mapping[str, xr.DataArray]], more: str = "") -> Table:
    """Columns by their heads, each with the same rows."""
    rows: list[list[str | Measured]] = [
        [row, *(spread(v[row], ".0f" if float(abs(v[row]).max()) >= 100 else ".2g") for v in columns.values())]
        for row in next(iter(columns.values()))
    ]
    return Table([head, *columns], rows, f"Median over seeds [smallest, largest].{more}")
