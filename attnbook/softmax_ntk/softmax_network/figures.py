"""The pictures and tables of the chapter. Each function takes data sets and computes nothing but medians."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from attnbook.core.figures import INK, Look, band, legend_above, log_axis, style
from attnbook.core.tables import Measured, Table, spread
from attnbook.softmax_ntk.denominator import expected_effective_width, tail_scales
from attnbook.softmax_ntk.looks import LOOKS

WIDTHS = (Look("", "#7fb2e5", "-", "v"), Look("", "#0b5cad", "-", "o"), Look("", "#082c52", "-", "D"))


def denominator(data: xr.Dataset) -> Figure:
    """Draw the kernels of exp and softmax networks with equal weights, and between them what makes one the other."""
    looks = {"exp": "exp, no denominator", "softmax": "softmax"}
    with style():
        figure, axes = plt.subplots(1, 3, figsize=(7.8, 2.9), width_ratios=(1, 0.7, 1))
        for ax, (name, label) in zip(axes[::2], looks.items(), strict=True):
            size = abs(data.kernel.sel(shown=name))
            image = ax.imshow(size / size.max(), norm="log", vmin=1e-4, vmax=1, cmap="Blues", interpolation="nearest")
            condition = float(data.kernel_condition.sel(shown=name))
            ax.set_title(f"{label}\ncondition number {condition:.0f}", fontsize=9.5)
            ax.set(xlabel="samples, by length", xticks=[], yticks=[])
            ax.grid(visible=False)
        axes[1].bar(data.norm, data.factor, width=0.025, color=LOOKS["softmax"].color)
        axes[1].set(yscale="log", ylim=(1, 9), xlabel="length of the input")
        axes[1].set_yticks([1, 2, 4, 8], [1, 2, 4, 8])
        axes[1].set_title("divide row and column $i$\nby $\\hat D_i$, the denominator", fontsize=9.5)
        axes[1].minorticks_off()
        figure.colorbar(image, ax=axes, shrink=0.8, aspect=20, label="entry over the largest")
    return figure


def kernels(data: xr.Dataset) -> Figure:
    """Draw the kernels of softmax networks of growing width, and their limit."""
    samples, top = data.attrs["settings"]["n_samples"], float(data.kernel[-1].max())
    names = [f"{name} neurons" for name in data.picture.values[:-1]] + ["infinitely many: a formula"]
    with style():
        figure, axes = plt.subplots(1, len(names), figsize=(7.8, 2.5))
        for i, (ax, name) in enumerate(zip(axes, names, strict=True)):
            image = ax.imshow(data.kernel[i], vmin=-top, vmax=top, cmap="RdBu_r", interpolation="nearest")
            ends = np.arange(len(data.row) // samples + 1) * samples - 0.5
            for edge in ends[1:-1]:
                ax.axhline(edge, color=INK, linewidth=1)
                ax.axvline(edge, color=INK, linewidth=1)
            labels = [f"output {k + 1}" for k in range(len(ends) - 1)]
            ax.set_xticks((ends[1:] + ends[:-1]) / 2, labels, fontsize=8.5)
            ax.set_yticks((ends[1:] + ends[:-1]) / 2, labels if i == 0 else [], rotation=90, va="center", fontsize=8.5)
            ax.tick_params(length=0)
            ax.grid(visible=False)
            ax.set_title(name, fontsize=9)
        figure.colorbar(image, ax=axes, shrink=0.8, aspect=20)
    return figure


def attention_frame(data: xr.Dataset, sigma: float) -> Figure:
    """Draw the sorted attention weights of one input, and how many neurons that amounts to."""
    share, width = data.share.sel(sigma=sigma).values, int(data.effective_width[0])
    effective = float(data.effective.isel(effective_width=0).sel(sigma=sigma).median())
    with style():
        figure, ax = plt.subplots(figsize=(6.4, 3.4))
        ax.axvline(effective, color="#c9a227", linewidth=5, alpha=0.6)
        ax.plot(range(1, len(share) + 1), 100 * share, "o", color=LOOKS["softmax"].color, markersize=4.5)
        ax.axhline(100 / width, color=INK, linewidth=1.2, linestyle="--")
        ax.annotate(f"if all {width} had the same", (1, 100 / width), xytext=(0, -13), textcoords="offset points")
        side = "left" if effective**2 < width else "right"
        ax.annotate(
            "effective number", (effective, 60), xytext=(8 if side == "left" else -8, 0),
            textcoords="offset points", ha=side,
        )  # fmt: skip
        ax.set(yscale="log", ylim=(0.02, 100), xlim=(0.8, 1.25 * width), ylabel="attention weight (%)")
        places = 2 ** np.arange(int(np.log2(width)) + 1)
        log_axis(ax, places, f"neuron, sorted by weight (the first {len(share)} of {width})")
    return figure


def attention_text(data: xr.Dataset, sigma: float) -> str:
    """Return the numbers behind one picture of the slider."""
    pair = float(data.share.sel(sigma=sigma)[:2].sum())
    found, width = data.effective.isel(effective_width=0).sel(sigma=sigma), int(data.effective_width[0])
    return (
        f"Weight scale {sigma:g}: the heaviest pair of this input has {100 * pair:.2g} % of the attention. Effective "
        f"number: {float(found.median()):.3g} of {width} (mean over inputs, median over {data.sizes['seed']} seeds)."
    )


def towards_the_limit(data: xr.Dataset) -> Figure:
    """Draw how far kernels are from their limit, by width and weight scale, beside what the variance of a pair says."""
    with style():
        figure, axes = plt.subplots(1, len(data["scale"]), figsize=(7.8, 3.2), sharey=True)
        for ax, scale in zip(axes, data["scale"].values, strict=True):
            for name, look in LOOKS.items():
                picked = data.sel(scale=scale, network=name)
                band(ax, data.width.values, picked.distance.values, look)
                ax.plot(data.width, picked.fluctuation.median("seed"), color=look.color, linestyle=":", linewidth=1.4)
            ax.set(xscale="log", yscale="log", ylim=(5e-3, 9), title=rf"$\sigma={scale:g}$", xlabel="width")
        axes[0].set_ylabel("distance from the limit, relative")
        axes[0].legend(fontsize=9)
    return figure


def effective_numbers(data: xr.Dataset) -> Figure:
    """Draw the effective number of neurons against the weight scale, with the formula and where its tails begin."""
    sigmas = data.sigma.values
    fine = np.linspace(sigmas[0], 4, 60)
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.8))
        for width, drawn in zip(data.effective_width.values, WIDTHS, strict=False):
            look = Look(f"{width} neurons", drawn.color, "-", drawn.marker)
            band(ax, sigmas, data.effective.sel(effective_width=width).values, look)
            expected = [expected_effective_width(int(width), scale=c) for c in fine]
            ax.plot(fine, expected, color=look.color, linestyle=":", linewidth=1.2)
            for at, marker in zip(tail_scales(int(width)), ("|", "x"), strict=True):
                ax.plot(at, 1.0, marker, color=look.color, markersize=9, markeredgewidth=2, clip_on=False)
        ax.set(yscale="log", ylim=(1, 1.5e5), xlabel=r"weight scale $\sigma$, inputs of norm 1")
        ax.set_ylabel("effective number of neurons")
        title = "dotted: the formula; at the axis\n| here it must fail,  × a few have it all"
        legend_above(ax, ncols=3, fontsize=9.5, title=title)
    return figure


def conditions(data: xr.Dataset) -> Table:
    """Return condition numbers of the kernels of networks and at infinite width, by norms and weight scale."""
    rows: list[list[str | Measured]] = []
    lows, scales = (data[name].values for name in ("lowest", "scale"))
    for low in lows[np.isin(lows, (1.0, 0.5, 0.2))]:
        for scale in scales[np.isin(scales, (1.0, 2.0))]:
            picked = data.sel(lowest=low, scale=scale)
            cells = [spread(picked.condition.sel(network=name), ".1f") for name in LOOKS]
            cells.append(spread(picked.condition.sel(network="exp") / picked.condition.sel(network="softmax"), ".1f"))
            limits = (f"{float(picked['limit'].sel(network=name).median()):.1f}" for name in LOOKS)
            rows.append(["all 1" if low == 1 else f"{low:g} to 1", f"{scale:g}", *cells, Measured(" / ".join(limits))])
    caption = f"Median over {data.sizes['seed']} seeds [smallest, largest]; at infinite width medians of the three."
    return Table(["norms", "σ", *(look.label for look in LOOKS.values()), "exp over softmax", "limits"], rows, caption)
