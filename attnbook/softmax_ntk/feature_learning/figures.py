"""The pictures and the table of the chapter. Each function takes a data set and computes nothing but medians."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from attnbook.core.figures import INK, Look, band, log_axis, style
from attnbook.core.tables import Measured, Table, spread
from attnbook.softmax_ntk.single_index import TARGETS

LOOKS = [
    Look("mean field", "#0b5cad", "-", "o"),
    Look("large steps", "#7c3aed", ":", "D"),
    Look("lazy", "#c2410c", "-.", "^"),
    Look("kernel", "#111111", "--", "s"),
    Look("kernel, stretched", "#be185d", (0, (5, 1)), "v"),
    Look("line", "#5b5f66", (0, (1, 1)), "none"),
]
ERROR = "test error / variance"


def samples(data: xr.Dataset, *targets: str) -> Figure:
    """Draw the test error of all learners against the number of samples, for some targets."""
    with style():
        figure, axes = plt.subplots(1, len(targets), figsize=(3.9 * len(targets), 2.9), sharey=True, squeeze=False)
        for ax, target in zip(axes[0], targets, strict=True):
            for look in LOOKS:
                band(ax, data.n.values, data.error.sel(target=target, learner=look.label).values, look)
            ax.set(yscale="log", title=target)
            log_axis(ax, data.n.values, "samples $n$")
        axes[0, 0].set_ylabel(ERROR)
        axes[0, 0].set_yticks((0.03, 0.1, 0.3, 1), ("0.03", "0.1", "0.3", "1"))
        handles = axes[0, 0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=3 * len(targets), fontsize=8.5)
    return figure


def dial_frame(data: xr.Dataset, size: float) -> Figure:
    """Draw error and alignment against the label size, and what the network of the first seed computes at one."""
    at = data.sel(size=size, method="nearest")
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(7.4, 3.4))
        band(left, data["size"].values, data.dial_error.values.T, Look(ERROR, "#0b5cad", "-", "o"))
        band(left, data["size"].values, data.dial_aligned.values.T, Look("weights along $u$", "#c2410c", "-.", "^"))
        left.axvline(float(at["size"]), color=INK, linewidth=1)
        left.set(xscale="log", yscale="log", xlabel="label size $s$")
        left.legend(fontsize=9)
        line = np.linspace(-3, 3, 121)
        right.plot(line, TARGETS["step"](line), color=INK, linewidth=1.2, label="target")
        right.plot(at.points.isel(seed=0), at.outputs.isel(seed=0), "o", color="#0b5cad", markersize=3, label="network")
        right.set(xlabel="$z$", ylabel="output, test points", ylim=(-1.6, 1.6))
        right.legend(fontsize=9, loc="upper left")
    return figure


def dial_text(data: xr.Dataset, size: float) -> str:
    """Return the numbers behind one picture of the slider."""
    at = data.sel(size=size, method="nearest")
    error, moved, aligned = (float(at[f"dial_{name}"].median()) for name in ("error", "movement", "aligned"))
    return (
        f"Label size {float(at['size']):.3g}: test error {error:.2g}, weights moved by {moved:.2g} of their norm, "
        f"{aligned:.2g} of their square along the index. Medians over {data.sizes['seed']} seeds."
    )


def learnt(data: xr.Dataset) -> Table:
    """Return what the networks have learnt with the most samples, by target."""
    last = data.isel(n=-1)
    names = {"movement": "movement", "aligned": "weights along u", "cosine": "cosine of movement", "signed": "by sign"}
    rows: list[list[str | Measured]] = []
    for target in data.target.values:
        for network in data.network.values:
            values = [last.error.sel(target=target, learner=network)]
            values += [last[name].sel(target=target, network=network) for name in names]
            rows.append([f"{target}, {network}", *(spread(value, ".2g") for value in values)])
    caption = f"Median over {data.sizes['seed']} seeds [smallest, largest], {int(last.n)} samples."
    return Table(["", "test error", *names.values()], rows, caption)
