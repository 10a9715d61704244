"""The pictures and tables of the chapter. Each function takes data sets and computes nothing but medians."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnbook.core.figures import INK, Look, band, legend_above, log_axis, style
from attnbook.core.tables import Measured, Table, spread
from attnbook.softmax_ntk.kernel_stability import experiments as own
from attnbook.softmax_ntk.looks import LOOKS
from attnbook.softmax_ntk.stability_bounds import rank_bound

DIRECTIONS: Mapping[str, Look] = {
    "random": Look("random", "#7c3aed", "-", "D"),
    "common": Look("all alike", "#8a5a00", "--", "P"),
    "spread": Look("spread", "#be185d", "-.", "X"),
    "gdlike": Look("opposite in pairs", "#0f766e", ":", "v"),
    "inward": Look("inward", "#111827", (0, (5, 1)), "o"),
}
LEAST = 3e-9  # below all changes that are not rounding
EDGES = (2e-4, 3e2)  # eigenvalues outside are drawn at the edge


def movement(data: xr.Dataset) -> Figure:
    """Draw the relative change of the kernel against the radius, one panel per network, one line per direction."""
    relative, radii = data.change / data.norm, data.radius.values
    with style():
        figure, axes = plt.subplots(1, 3, figsize=(7.8, 2.6), sharey=True)
        for ax, (name, network) in zip(axes, LOOKS.items(), strict=True):
            for direction in own.MOVES:
                samples = relative.sel(network=name, direction=direction).transpose("seed", "radius").values
                if (direction, name) != ("common", "softmax"):
                    band(ax, radii, np.maximum(samples, LEAST), DIRECTIONS[direction])
            ax.set(xscale="log", yscale="log", ylim=(LEAST, 3), xlabel="distance moved $R$", title=network.label)
        axes[0].annotate("all alike: rounding error", (0.98, 0.03), xycoords="axes fraction", ha="right", fontsize=9)
        _slope(axes[0], radii, 4e-3 * (radii / radii[0]), "slope 1")
        _slope(axes[1], radii, 4e-3 * (radii / radii[0]), "slope 1")
        _slope(axes[0], radii, 8e-9 * (radii / radii[0]) ** 2, "slope 2")
        _slope(axes[2], radii, 3e-5 * (radii / radii[0]) ** 0.5, "slope ½")
        axes[0].set_ylabel("relative change")
        axes[1].legend(fontsize=8.5, loc="lower right")
    return figure


def lost(data: xr.Dataset) -> Figure:
    """Draw how much of each part of Lemma B.1 is used, and the ladder from the change of the kernel to its bound."""
    looks = (DIRECTIONS["random"], DIRECTIONS["common"], DIRECTIONS["spread"])
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(7.8, 3.9), width_ratios=(1, 1))
        for i, (move, look) in enumerate(zip(data.move.values, looks, strict=True)):
            largest = data.ratio.sel(move=move).max("seed")
            left.plot(largest, data.part + 0.2 * (i - 1), look.marker, color=look.color, label=str(move))
            if i != 1:  # all towards one sample changes nothing but rounding errors
                rungs = data.ladder.sel(move=move).median("seed")
                right.plot(rungs, range(len(rungs)), look.line, marker=look.marker, color=look.color, label=str(move))
        left.axvline(1, color=INK, linewidth=1)
        left.set(xscale="log", xlabel="left side / bound", ylabel="part of Lemma B.1", ylim=(13.8, 0.2))
        left.set(xticks=[1e-16, 1e-8, 1], yticks=range(1, 14))
        left.legend(fontsize=8.5, loc="upper left", title="neurons move", title_fontsize=8.5)
        right.set(xscale="log", xlabel="change of the kernel over $R$", ylim=(len(own.RUNGS) - 0.5, -0.5))
        right.set_yticks(range(len(own.RUNGS)), own.RUNGS, fontsize=8.5)
    return figure


def eigenvalue_frame(data: xr.Dataset, direction: str, size: int) -> Figure:
    """Draw what is left of the smallest eigenvalue against the radius, for one direction and number of samples."""
    picked = data.sel(direction=_named(direction), size=size).isel(radius=slice(1, None))
    with style():
        figure, axes = plt.subplots(1, len(data.output), figsize=(6.8, 3.3), sharey=True, squeeze=False)
        for ax, outputs in zip(axes[0], data.output.values, strict=True):
            for name, look in LOOKS.items():
                left = (picked.after / picked.before).sel(output=outputs, network=name).transpose("seed", "radius")
                band(ax, picked.radius.values, np.clip(left.values, *EDGES), look)
                ax.lines[-1].set_markevery(4)
            ax.axhline(0.5, color=INK, linewidth=1, linestyle=":")
            ax.set(yscale="log", ylim=(1e-4, 5e2))
            log_axis(ax, (0.5, 2, 8), "distance moved $R$")
            ax.set_title(f"{outputs} output{'s' if outputs > 1 else ''}")
        axes[0, 0].set_ylabel(r"$\lambda$ after / before")
        axes[0, -1].annotate("smaller: drawn here", (0.5, EDGES[0]), va="center", fontsize=9)
        axes[0, 0].legend(fontsize=9, loc="lower left")
    return figure


def eigenvalue_text(data: xr.Dataset, direction: str, size: int) -> str:
    """Return the numbers behind one picture of the slider."""
    first = own.first_loss(data).sel(direction=_named(direction), size=size)
    parts = []
    for name, look in LOOKS.items():
        radii = first.sel(network=name)
        gone, count = radii.values[np.isfinite(radii.values)], radii.size
        where = f", R = {np.median(gone):.2g}" if len(gone) else ""
        parts.append(f"{look.label} {len(gone)} of {count}{where}")
    return f"{direction}, {size} samples. Networks that lose half of λ, and the median R of that: {'; '.join(parts)}."


def ranks(data: xr.Dataset) -> Figure:
    """Draw the rank of paired networks against the width."""
    s = data.attrs["settings"]
    sizes = {"n_samples": s["rank_size"], "n_outputs": s["rank_outputs"], "n_inputs": s["rank_inputs"]}
    with style():
        figure, ax = plt.subplots(figsize=(6.0, 3.2))
        widths, jitter = data.rank_width.values, np.linspace(-0.7, 0.7, data.sizes["seed"])[:, None]
        color = LOOKS["softmax"].color
        ax.plot(widths + jitter, data["rank"].transpose("seed", "rank_width"), ".", color=color, alpha=0.45)
        ax.plot([], [], ".", color=color, label="softmax, measured")
        counts = [rank_bound(**sizes, width=int(m)) for m in widths]
        ax.plot(widths, counts, color=INK, linestyle=":", marker="_", label="counting bound")
        ax.set(xlabel="width", ylabel="rank", ylim=(0, None), xticks=widths[::2])
        legend_above(ax, ncols=2)
    return figure


def changes(data: xr.Dataset, radius: float) -> Table:
    """Return the relative change of the kernel at one radius, by direction and network."""
    relative = (data.change / data.norm).sel(radius=radius)
    rows: list[list[str | Measured]] = [
        [DIRECTIONS[d].label, *(spread(relative.sel(direction=d, network=k), ".1e") for k in LOOKS)] for d in own.MOVES
    ]
    caption = f"Change over norm at R = {radius:g}: median over {data.sizes['seed']} seeds [smallest, largest]."
    return Table(["neurons move", *(look.label for look in LOOKS.values())], rows, caption)


def _named(label: str) -> str:
    """The direction that legends call by this name."""
    return next(name for name, look in DIRECTIONS.items() if look.label == label)


def _slope(ax: Axes, x: np.ndarray, y: np.ndarray, text: str) -> None:
    """A thin line of a power, with its name at its left end."""
    ax.plot(x, y, color=INK, linewidth=1, linestyle=(0, (1, 2)))
    ax.annotate(text, (x[0], y[0]), xytext=(2, 5), textcoords="offset points", fontsize=9)
