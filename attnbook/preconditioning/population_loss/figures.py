"""The pictures of the chapter. Each takes what was measured or a formula and computes little."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
import torch
import xarray as xr

from attnbook.core.figures import INK, Look, band, style
from attnbook.core.rng import stream
from attnbook.preconditioning import landscape
from attnbook.preconditioning.population_loss.simulation import attention_line
from attnbook.preconditioning.population_loss.valley import Coordinates, Valley

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOOKS = {
    "few": Look("few keys", "#c2410c", ":", "^"),
    "some": Look("some keys", "#4b5058", (0, (5, 1)), "D"),
    "many": Look("many keys", "#0b5cad", "-", "o"),
    "a minimum": Look("at a minimum", "#15803d", "-.", "v"),
    "another point": Look("at another point", "#0b5cad", "-", "o"),
    "random": Look("random, extreme per seed", "#4b5058", "--", "s"),
    "search": Look("worst by search", "#0b5cad", "none", "o"),
}
LINE_QUERIES = np.linspace(-3, 3, 41)
LINE_SEEDS = 10
SADDLE, MINIMUM = "#c2410c", "#15803d"
# Whitened start of the paths, in units of the root of the signal.
START = (1.75, -0.15)
STEPS = 60
LEVELS = np.geomspace(0.003, 12, 13)


def line_and_valley(key_query: float = 0.7) -> Figure:
    """Draw what attention computes for Gaussian keys, and the loss that follows, in one dimension."""
    with style():
        figure, (upper, lower) = plt.subplots(2, 1, figsize=(5.8, 9.0), height_ratios=(1, 1.45))
        for look, n in (("few", 10), ("some", 100), ("many", 10_000)):
            drawn = replace(LOOKS[look], label=f"{n} keys")
            band(upper, LINE_QUERIES[::4], line_outputs(n, key_query)[:, ::4], drawn)
        upper.plot(LINE_QUERIES, key_query * LINE_QUERIES, color=INK, linewidth=1.2, linestyle=(0, (1, 1)),
                   label=r"straight line $\Sigma Vz$")  # fmt: skip
        upper.set(xlabel="query $z$", ylabel="attention output",
                  title=f"what attention computes, $V$ = {key_query:g}, {LINE_SEEDS} seeds")  # fmt: skip
        upper.legend(fontsize=9.5)
        _valley(lower, Valley(1.0), theorem=True)
        lower.set(title="the loss that follows", xlabel=r"$\tilde U$", ylabel=r"$\tilde V$")
        lower.legend(fontsize=9.5, loc="lower right")
    return figure


def loss_gap(data: xr.Dataset) -> Figure:
    """Draw how far the expected empirical loss is above the population loss, against the number of keys."""
    sizes = data.n.values
    with style():
        figure, ax = plt.subplots(figsize=(5.8, 4.2))
        for point in data.point.values:
            band(ax, sizes, data.loss_gap.sel(point=point).values, LOOKS[point])
        height = float(data.loss_gap.isel(point=0, n=-1).median()) * 0.55
        ax.plot(sizes, height * sizes[-1] / sizes, color=INK, linewidth=1, linestyle=(0, (1, 1)), label="slope -1")
        ax.set(xscale="log", yscale="log", xlabel="keys $n$", ylabel=r"$\mathbb{E}L_n-L$")
        ax.set_title(f"median and range of {data.sizes['seed']} seeds")
        ax.set_xticks(sizes, [f"{n:g}" for n in sizes])
        ax.minorticks_off()
        ax.legend(fontsize=10)
    return figure


@cache
def line_outputs(n: int, key_query: float) -> np.ndarray:
    """Return what queries attend to for keys of variance one, ``(seeds, queries)``; it takes no time."""
    keys = [stream(seed, "line", n).standard_normal(n) for seed in range(LINE_SEEDS)]
    return np.array([attention_line(LINE_QUERIES, one, key_query) for one in keys])


def line_frame(n: int, key_query: float) -> Figure:
    """Draw attention with some number of keys against the line, and where the keys are too few for it."""
    reach = math.sqrt(math.log(n)) / key_query
    with style():
        figure, ax = plt.subplots(figsize=(5.6, 4.4))
        for sign in (1, -1):
            ax.axvspan(sign * min(reach, 3), sign * 3, color="#d9d7d0", alpha=0.6, linewidth=0,
                       label="$n<e^{w^2}$: too few keys" if sign > 0 else None)  # fmt: skip
        look = replace(LOOKS["many"], label=f"attention, median and range of {LINE_SEEDS} seeds")
        band(ax, LINE_QUERIES[::4], line_outputs(n, key_query)[:, ::4], look)
        ax.plot(LINE_QUERIES, key_query * LINE_QUERIES, color=INK, linewidth=1.4, linestyle=(0, (1, 1)),
                label=r"straight line $\Sigma Vz$")  # fmt: skip
        ax.set(xlabel="query $z$", ylabel="attention output", xlim=(-3, 3), ylim=(-4.4, 4.4),
               title=f"{n} keys, $V$ = {key_query:g}")  # fmt: skip
        figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=1, fontsize=9.5)
    return figure


def theorem_frame(data: xr.Dataset, outputs: str, spread: float) -> Figure:
    """Draw both ratios of Theorem 1 against the squared distance, for one kind of problem."""
    chosen = data.sel(outputs=outputs, spread=spread)
    with style():
        figure, (upper, lower) = plt.subplots(2, 1, figsize=(5.8, 9.6), sharex=True)
        for ax in (upper, lower):
            ax.axvspan(0, landscape.RADIUS, color="#d9d7d0", alpha=0.55, linewidth=0)
            ax.axvline(landscape.SADDLE, color=SADDLE, linewidth=1.4, linestyle=":")
        _one_point(upper, data.distance.values, chosen.random_smallest.values, chosen.found_smallest.values)
        _smoothness(lower, data.distance.values, chosen.random_largest.values, chosen.found_largest.values, spread)
        lower.set_xlabel(r"squared distance to the minima, $\|H\|^2/s_d$")
        lower.set_xlim(0, 2.08)
    return figure


def valley_frame(variance: float, coordinates: Coordinates, penalty: float) -> Figure:
    """Draw the loss of two numbers with a path of gradient descent."""
    valley = Valley(variance, coordinates, penalty)
    with style():
        figure, ax = plt.subplots(figsize=(5.6, 5.4))
        _valley(ax, valley)
        path = valley.descend(START, STEPS)
        ax.plot(*path.T, "-o", color="#0b5cad", markersize=3.5, linewidth=1.3, label=f"gradient descent, {STEPS} steps")
        ax.plot(*path[0], "s", color="#0b5cad", markersize=8)
        names = (r"$\tilde U$", r"$\tilde V$") if coordinates == "whitened" else ("$U$", "$V$")
        ax.set(xlabel=names[0], ylabel=names[1], title=f"{coordinates} coordinates")
        figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=9.5)
    return figure


def spectrum_frame(spare: int, spread: float, penalty: float, dimension: int = 3) -> Figure:
    """Draw the eigenvalues of the Hessian at a minimum, by where they come from."""
    s = np.linspace(1, spread, dimension)
    sums = s[:, None] + s
    groups = {
        "rotations: nothing changes": np.zeros(dimension * (dimension - 1) // 2),
        "spare outputs: $s_j$": np.repeat(s, spare),
        "balance: weight times $s_i+s_j$, $i \\leq j$": penalty * sums[np.triu_indices(dimension)],
        "fit: $s_i+s_j$, all pairs": sums.ravel(),
    }
    looks = zip(("#4b5058", "#c2410c", "#15803d", "#0b5cad"), ("s", "^", "v", "o"), strict=True)
    with style():
        figure, ax = plt.subplots(figsize=(5.8, 4.4))
        plain = {"facecolor": ax.get_facecolor(), "edgecolor": "none", "pad": 1}
        for row, ((name, values), (color, marker)) in enumerate(zip(groups.items(), looks, strict=True)):
            found, counts = np.unique(values.round(9), return_counts=True)
            ax.plot(found, np.full(len(found), row), marker, color=color, markersize=9)
            for value, count in zip(found, counts, strict=True):
                if count > 1:
                    ax.annotate(f"{count}x", (value, row), xytext=(0, 13), textcoords="offset points", ha="center",
                                fontsize=9, color=color, bbox=plain)  # fmt: skip
            ax.annotate(name, (4.2, row), xytext=(0, -19), textcoords="offset points", ha="right", fontsize=9.5,
                        color=color, bbox=plain)  # fmt: skip
        _ring(ax, list(groups.values()))
        ax.set(xlabel=r"eigenvalue, in units of $s_1$", xlim=(-0.25, 4.3), ylim=(-0.65, len(groups) - 0.4),
               title="rings: slowest and fastest positive eigenvalue")  # fmt: skip
        ax.set_yticks([])
        ax.axvline(0, color=INK, linewidth=0.8)
    return figure


def _valley(ax: Axes, valley: Valley, *, theorem: bool = False) -> None:
    """Contours of the loss, the curve that fits, the minima, the saddle; the neighbourhood of Theorem 1."""
    u, v = valley.minimum
    reach = 2.05 * max(u, v)
    grid = np.linspace(-reach, reach, 161)
    loss = valley.loss(*np.meshgrid(grid, grid))
    ax.contourf(grid, grid, loss, levels=[0, *LEVELS[8:]], cmap="cividis", alpha=0.55, extend="max")
    ax.contour(grid, grid, loss, levels=LEVELS, colors=[INK], linewidths=0.5, alpha=0.6)
    for sign in (1, -1):
        curve = sign * np.geomspace(u * v / reach, reach, 60)
        ax.plot(curve, u * v / curve, color=INK, linewidth=1.4, linestyle="--",
                label="fits exactly" if sign > 0 else None)  # fmt: skip
    ax.plot([u, -u], [v, -v], "*", color=MINIMUM, markersize=15, markeredgecolor="white", linestyle="none",
            label="fits exactly, and in balance")  # fmt: skip
    ax.plot(0, 0, "X", color=SADDLE, markersize=10, markeredgecolor="white", linestyle="none", label="saddle")
    if theorem:
        angle, radius = np.linspace(0, 2 * np.pi, 121), np.sqrt(landscape.RADIUS * valley.signal)
        for sign in (1, -1):
            ax.plot(sign * u + radius * np.cos(angle), sign * v + radius * np.sin(angle), color=MINIMUM, linewidth=1.6,
                    label="our radius for Theorem 1" if sign > 0 else None)  # fmt: skip
    ax.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
    ax.grid(visible=False)


def _ring(ax: Axes, rows: Sequence[np.ndarray]) -> None:
    """Rings round the smallest and the largest positive value, in every row that has them."""
    positive = np.concatenate(rows)
    positive = positive[positive > 1e-9]
    for row, values in enumerate(rows):
        for end in (positive.min(), positive.max()):
            if np.isclose(values, end).any():
                ax.plot(end, row, "o", color=INK, markerfacecolor="none", markersize=17, markeredgewidth=1.4)


def _one_point(ax: Axes, distances: np.ndarray, random: np.ndarray, found: np.ndarray) -> None:
    fine = torch.linspace(1e-4, 2, 200, dtype=torch.float64)
    below = fine <= 8 / 9
    band(ax, distances, random, LOOKS["random"])
    ax.plot(fine[below], landscape.one_point_bound(fine[below]), color=INK, linewidth=1.6,
            label=r"bound $1-\frac{5}{8}r$")  # fmt: skip
    ax.plot(fine, landscape.shrinking_ratio(fine), color=SADDLE, linewidth=1.2, linestyle=(0, (5, 1)),
            label="shrink the weakest column")  # fmt: skip
    ax.plot(distances, found.min(axis=0), **LOOKS["search"].line_style(), markersize=7)
    ax.plot([0, landscape.RADIUS], [0.5, 0.5], color=INK, linewidth=1.2, linestyle=":", label=r"(3): $\frac{1}{2}$")
    ax.annotate("saddle", (landscape.SADDLE, 1.0), rotation=90, ha="right", va="top", color=SADDLE, fontsize=10)
    ax.annotate("neighbourhood", (0.02, 0.06), fontsize=10)
    ax.set(
        ylim=(0, 4.2), ylabel=r"$\langle\nabla,H\rangle\,/\,(s_d\|H\|^2)$", title="(3) does the gradient point back?"
    )
    ax.legend(fontsize=11.5, loc="upper center", bbox_to_anchor=(0.45, -0.02), ncols=1)


def _smoothness(ax: Axes, distances: np.ndarray, random: np.ndarray, found: np.ndarray, spread: float) -> None:
    fine = torch.linspace(1e-4, 2, 200, dtype=torch.float64)
    band(ax, distances, random, LOOKS["random"])
    ax.plot(fine, landscape.growing_ratio(fine, spread), color=INK, linewidth=1.6, label="bound $(1+g)(2+g)$")
    ax.plot(distances, found.max(axis=0), **LOOKS["search"].line_style(), markersize=7)
    ax.plot([0, landscape.RADIUS], [landscape.SMOOTHNESS] * 2, color=INK, linewidth=1.2, linestyle=":",
            label=f"(4): {landscape.SMOOTHNESS:g}")  # fmt: skip
    ax.set(ylim=(0, 8.4), ylabel=r"$\|\nabla\|\,/\,(s_1\|H\|)$", title="(4) how steep is it?")
    ax.legend(fontsize=11.5, loc="upper center", bbox_to_anchor=(0.45, -0.17), ncols=2)
