"""The pictures and tables of the chapter."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnbook import ledger
from attnbook.core.figures import INK, Look, band, legend_above, log_axis, style
from attnbook.core.figures import LOOKS as COMMON
from attnbook.core.tables import Measured, Table, spread
from attnbook.global_attention.self_attention.experiments import PAPER_SIZES, best, final, lead
from attnbook.global_attention.self_attention.review_table import NETWORKS

LOOKS = {
    "baseline": COMMON["baseline"],
    "self_attention": Look("self-attention", "#0b5cad", "-", "o"),
    "uniform_attention": Look("uniform attention", "#a16207", "-.", "P", hollow=True),  # lies on top of self-attention
    "mean_pooling": Look("mean of the word vectors", "#0f766e", (0, (5, 1)), "X"),
    "global_attention": Look("global mask", "#7c3aed", ":", "D"),
}
ACCURACY = "test accuracy (%)"


def paper(network: str) -> list[float]:
    """Return a column of the paper's Table 2."""
    return [ledger.claim("GA-TAB2").paper_value[f"{network}_{size}"] for size in PAPER_SIZES]


def table_2(data: xr.Dataset) -> Figure:
    """Draw the paper's Table 2, and beside it ours with the controls that are not in the paper."""
    with style():
        figure, axes = plt.subplots(1, 2, figsize=(7.2, 3.5), sharex=True, sharey=True)
        for network in ("baseline", "self_attention"):
            axes[0].plot(PAPER_SIZES, paper(network), **LOOKS[network].line_style())
        axes[0].set(title="the paper, Table 2", ylabel=ACCURACY)
        _accuracies(axes[1], data)
        axes[1].set(title="this book, with controls")
        for ax in axes:
            log_axis(ax, (875, 3500, 17_500), "training reviews", ",")
        axes[1].legend(fontsize=9.5, loc="lower right")
    return figure


def table_2_frame(data: xr.Dataset, epoch: int) -> Figure:
    """Draw our Table 2 as it would be after some epoch, beside the paper's numbers."""
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 4.0))
        _accuracies(ax, data.sel(epoch=[epoch]))
        for network in ("baseline", "self_attention"):
            ax.plot(PAPER_SIZES, paper(network), color=LOOKS[network].color, marker="x", linestyle="none", markersize=8)
        ax.plot([], [], color=INK, marker="x", linestyle="none", label="the paper", markersize=8)
        ax.set(ylabel=ACCURACY, ylim=(50, 92), title=f"after epoch {epoch}")
        log_axis(ax, PAPER_SIZES, "training reviews", ",", rotation=45)
        legend_above(ax, ncols=4, fontsize=9)
    return figure


def frame_text(data: xr.Dataset, epoch: int) -> str:
    """Return the numbers behind one picture of the slider: for the fewest, some and the most reviews."""
    sizes, parts = (875, 5250, 17_500), []
    for network in NETWORKS[:1] + NETWORKS[2:]:
        leads = lead(data.sel(epoch=[epoch]), network).median("seed").sel(size=list(sizes))
        parts.append(f"over {LOOKS[network].label} " + ", ".join(f"{x:.1f}" for x in leads.values))
    named = ", ".join(map(str, sizes))
    return f"Epoch {epoch}: lead of self-attention in points, for {named} reviews: {'; '.join(parts)}."


def students(data: xr.Dataset) -> Figure:
    """Draw the error of each student on each teacher, and of every restart, for each number of samples."""
    with style():
        figure, axes = plt.subplots(1, data.sizes["size"], figsize=(7.2, 3.9), sharey=True, squeeze=False)
        places = np.arange(data.sizes["seed"])
        for size, ax in zip(data["size"].values, axes[0], strict=True):
            for j, model in enumerate(data.model.values):
                look, x = LOOKS[str(model)], places + 0.18 * (j - 1.5)
                marks = {"color": look.color, "linestyle": "none"}
                at = data.sel(size=size, model=model)
                ax.plot(x, at.test_loss.transpose("seed", "restart"), marker="_", markersize=9, **marks)
                ax.plot(x, best(at), marker=look.marker, markersize=7, label=look.label, **marks)
            ax.axhline(1, color=INK, linewidth=1, linestyle=":")
            ax.set(yscale="log", title=f"n = {size}", xlabel="teacher")
            ax.set_xticks(places, [str(seed) for seed in data.seed.values])
        axes[0, 0].set_ylabel("test loss (variance of the labels = 1)")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, fontsize=10, ncols=4, loc="outside upper center")
    return figure


def accuracies(data: xr.Dataset) -> Table:
    """Return the accuracies of networks and controls, and what attention adds seed by seed."""
    rows = [[LOOKS[network].label, *_spreads(final(data, network))] for network in NETWORKS]
    rows.append(["self-attention, pooled path alone", *_spreads(data.pooled_path)])
    rows.append(["self-attention minus uniform, seed by seed", *_spreads(lead(data, "uniform_attention"), "+z.1f")])
    s = data.attrs["settings"]
    caption = f"Test accuracy in per cent on {s['n_test']} {s['reviews']} test reviews, {_seeds(data)}."
    return Table(["network", *(f"{size} reviews" for size in data["size"].values)], rows, caption)


def table_2_numbers(data: xr.Dataset) -> Table:
    """Return Table 2: the paper's two columns, ours, and the two controls."""
    columns: list[list[str | Measured]] = [[f"{size}" for size in PAPER_SIZES]]
    for network in NETWORKS:
        columns += [[f"{value:.1f}" for value in paper(network)]] if network in NETWORKS[:2] else []
        columns += [_spreads(final(data, network))]
    s = data.attrs["settings"]
    groups = [("", 1), ("baseline", 2), ("self-attention", 2), ("uniform", 1), ("mean", 1)]
    caption = (
        f"Test accuracy in per cent on {s['n_test']} reviews after epoch {s['epochs']} with N training reviews; "
        f"ours: {_seeds(data)}. "
        "The last two columns are controls of this book; the mean of the word vectors has "
        f"{s['epochs'] * s['pooling_passes']} epochs and a step size of its own. Word vectors: {s['vectors']}."
    )
    heads = ["N", "paper", "ours", "paper", "ours", "ours", "ours"]
    return Table(heads, list(zip(*columns, strict=True)), caption, groups)


def differences(data: xr.Dataset) -> Table:
    """Return by how much self-attention is ahead of each control, and where its attention falls."""
    path = data.pooled_path
    found = {
        "uniform": lead(data, "uniform_attention"),
        "mean": lead(data, "mean_pooling"),
        "pooled path": final(data, "self_attention") - path,
        "uniform ": path - final(data, "uniform_attention"),
    }
    columns = [[f"{size}" for size in PAPER_SIZES], *(_spreads(values, "+z.1f") for values in found.values())]
    columns.append(_spreads(100 * data.words_at_end))
    noise = 100 * np.sqrt(0.85 * 0.15 / data.attrs["settings"]["n_test"])
    groups = [("", 1), ("self-attention minus", 3), ("pooled path minus", 1), ("on words", 1)]
    caption = (
        f"Differences of test accuracies in points for N training reviews; {_seeds(data)}. Pooled path: the same "
        "trained network with the words' own outputs switched off at test time. A single accuracy near 85 % has a "
        f"standard error of {noise:.1f} points from the choice of test reviews alone. Last column: mean share of a "
        "word's attention that falls on words, after training; before, it is "
    )
    start = Measured(f"{100 * float(data.words_at_start.mean()):.1f} %.", before=caption)
    return Table(["N", *found, "%"], list(zip(*columns, strict=True)), start, groups)


def step_sizes(data: xr.Dataset) -> Table:
    """Return the accuracies on reviews set apart for each step size."""
    s, rows = data.attrs["settings"], []
    for network in NETWORKS:
        used = s["pooling_step_size" if network == "mean_pooling" else "step_size"]
        rows.append([LOOKS[network].label, f"{used:g}", *_spreads(data.accuracy.sel(network=network))])
    caption = (
        f"Accuracy in per cent on {s['n_test']} training reviews set apart, after training on {s['sizes'][0]} others: "
        f"{_seeds(data)}, which Table 2 does not use."
    )
    return Table(["network", "step size", *(f"times {factor:g}" for factor in s["factors"])], rows, caption)


def _accuracies(ax: Axes, data: xr.Dataset) -> None:
    """Median and range of all four networks over the seeds."""
    for network in NETWORKS:
        band(ax, data["size"].values, final(data, network).transpose("seed", "size").values, LOOKS[network])


def _spreads(values: xr.DataArray, form: str = ".1f") -> list[str | Measured]:
    """Median and range over the seeds, for each number of reviews, or each step size."""
    return [spread(column, form) for column in values.transpose(..., "seed").values]


def _seeds(data: xr.Dataset) -> str:
    n = data.sizes["seed"]
    return "one seed, no spread" if n == 1 else f"{'mean' if n == 2 else 'median'} over {n} seeds [smallest, largest]"
