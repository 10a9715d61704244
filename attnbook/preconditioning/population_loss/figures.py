"""The pictures of the chapter, and the sentences below its sliders."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnbook.core.figures import INK, Look, band, style
from attnbook.core.rng import stream
from attnbook.preconditioning import landscape

LOOKS = {
    10: Look("10 keys", "#c2410c", ":", "^"),
    10_000: Look("10,000 keys", "#0b5cad", "-", "o"),
    "random": Look("random, extreme per seed", "#4b5058", "--", "s"),
    "search": Look("worst by search", "#0b5cad", "none", "o"),
    "a minimum": Look("at a minimum", "#0b5cad", "-", "o"),
    "another point": Look("at another point", "#c2410c", ":", "^"),
}
QUERIES, SEEDS = np.linspace(-3, 3, 41), 10  # of the pictures of attention in one dimension
SADDLE, MINIMUM = "#c2410c", "#0b5cad"
NEAR: dict[str, Any] = {"color": "#d9d7d0", "alpha": 0.55, "linewidth": 0}
PROVED = 1.6  # up to this squared distance, over s_d, the proof of one-point convexity gives a positive factor


@cache
def line_outputs(n: int, key_query: float) -> np.ndarray:
    """Return what queries attend to for keys of variance one, ``(seeds, queries)``; it takes no time."""
    keys = np.array([stream(seed, "line", n).standard_normal(n) for seed in range(SEEDS)])
    scores = key_query * QUERIES[:, None] * keys[:, None]
    return (torch.from_numpy(scores).softmax(-1).numpy() @ keys[:, :, None])[..., 0]


def line_and_valley(key_query: float = 0.7) -> Figure:
    """Draw what attention computes for Gaussian keys, and the loss that follows, in one dimension."""
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(7.8, 3.6), width_ratios=(1.2, 1))
        for n in (10, 10_000):
            band(left, QUERIES[::4], line_outputs(n, key_query)[:, ::4], LOOKS[n])
        _line(left, key_query)
        left.set(title=f"what attention computes, $V$ = {key_query:g}")
        _valley(right)
        _legend(figure, ncols=3)
    return figure


def line_frame(n: int, key_query: float) -> Figure:
    """Draw attention with some number of keys against the line, and where the keys are too few for it."""
    reach = math.sqrt(math.log(n)) / key_query
    with style():
        figure, ax = plt.subplots(figsize=(5.6, 4.4))
        for side, label in ((1, "$n<e^{w^2}$: too few keys"), (-1, None)):
            ax.axvspan(side * min(reach, 3), side * 3, label=label, **NEAR)
        look = replace(LOOKS[10_000], label=f"attention, median and range of {SEEDS} seeds")
        band(ax, QUERIES[::4], line_outputs(n, key_query)[:, ::4], look)
        _line(ax, key_query)
        ax.set(xlim=(-3, 3), ylim=(-4.4, 4.4), title=f"{n} keys, $V$ = {key_query:g}")
        _legend(figure, ncols=1)
    return figure


def line_text(n: int, key_query: float) -> str:
    """Return the numbers behind one picture of the slider on the number of keys."""
    reach, outputs = math.sqrt(math.log(n)) / key_query, line_outputs(n, key_query)
    errors = np.abs(outputs - key_query * QUERIES)
    some, half = (np.abs(QUERIES)[off > 0.5] for off in (errors.max(0), np.median(errors, axis=0)))
    left = f"Up to |z| = {QUERIES.max():g} none of the {SEEDS} seeds is off the line by more than 0.5."
    if some.size:
        left = f"Beyond |z| = {some.min():.2f} at least one of the {SEEDS} seeds is off the line by more than 0.5; "
        left += f"beyond |z| = {half.min():.2f}, half of them are." if half.size else "nowhere are half of them."
    return (
        f"{n} keys, V = {key_query:g}: there are more than exp(w²) of them for |z| below {reach:.2f}, which is "
        f"{100 * math.erf(reach / math.sqrt(2)):.3g} % of all queries. {left}"
    )


def theorem_frame(data: xr.Dataset, outputs: str, spread: float) -> Figure:
    """Draw both ratios of Theorem 1 against the squared distance, for one kind of problem."""
    chosen = data.sel(outputs=outputs, spread=spread)
    fine = torch.linspace(1e-4, 2, 200, device="cpu", dtype=torch.float64)
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(7.8, 4.7), sharex=True)
        for ax, name, worst in ((left, "smallest", "min"), (right, "largest", "max")):
            ax.axvspan(0, landscape.RADIUS, **NEAR)
            ax.axvline(landscape.SADDLE, color=SADDLE, linewidth=1.4, linestyle=":", label="nearest saddle")
            band(ax, data.distance.values, chosen[f"random_{name}"].values, LOOKS["random"])
            found = getattr(chosen[f"found_{name}"], worst)("seed")
            ax.plot(data.distance, found, **LOOKS["search"].line_style() | {"markersize": 7})
            ax.set(xlim=(0, 2.08), xlabel=r"squared distance $r=\|H\|^2/s_d$")
        left.plot(fine, landscape.one_point_bound(fine), color=INK, label=r"bound $1-\frac{5}{8}r$")
        left.plot(fine, landscape.shrinking_ratio(fine), color=SADDLE, linewidth=1.2, linestyle=(0, (5, 1)),
                  label="shrink the weakest column")  # fmt: skip
        right.plot(fine, landscape.growing_ratio(fine, spread), color=INK, label="bound $(1+g)(2+g)$")
        stated = ((left, 0.5, r"convexity: $\frac{1}{2}$"), (right, landscape.SMOOTHNESS, "gradient: 5.3"))
        for ax, bound, label in stated:
            ax.plot([0, landscape.RADIUS], [bound, bound], color=INK, linewidth=1.2, linestyle=":", label=label)
        _legend(figure, ncols=3)
        left.set(ylim=(0, 4.2), title=r"$\langle\nabla,H\rangle\,/\,(s_d\|H\|^2)$")
        right.set(ylim=(0, 7.2), title=r"$\|\nabla\|\,/\,(s_1\|H\|)$")
    return figure


def theorem_text(data: xr.Dataset, outputs: str, spread: float) -> str:
    """Return the numbers behind one picture of the slider on Theorem 1."""
    chosen = data.sel(outputs=outputs, spread=spread)
    near, last = chosen.sel(distance=slice(None, landscape.RADIUS)), chosen.isel(distance=-1)
    low, high, end = near.min(), near.max(), float(last.distance)
    way = [100 * (r / landscape.SADDLE) ** 0.5 for r in (landscape.RADIUS, PROVED, end)]
    return (
        f"{outputs}, weakest over strongest singular value {spread:g}. Shaded, up to {way[0]:.0f} % of the way to the "
        f"saddle: the ratio of one-point convexity is at least {low.random_smallest:.2f} at random and "
        f"{low.found_smallest:.3f} by search, that of the bound on the gradient at most {high.random_largest:.2f} and "
        f"{high.found_largest:.2f}. The proof of convexity ends at {way[1]:.0f} %; at {way[2]:.0f} % the search still "
        f"finds {last.found_smallest.min():.3f}."
    )


def _legend(figure: Figure, ncols: int) -> None:
    shown = {label: line for ax in figure.axes for line, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    figure.legend(shown.values(), shown, loc="outside lower center", ncols=ncols, fontsize=9.5)


def _line(ax: Axes, key_query: float) -> None:
    ax.plot(QUERIES, key_query * QUERIES, color=INK, linewidth=1.4, linestyle=":", label=r"straight line $\Sigma Vz$")
    ax.set(xlabel="query $z$", ylabel="attention output")


def _valley(ax: Axes) -> None:
    r"""Contours of $\frac12(uv-1)^2+\frac18(u^2-v^2)^2$, what fits, minima, saddle, and the radius of Theorem 1."""
    grid, levels = np.linspace(-2.05, 2.05, 161), np.geomspace(0.003, 12, 13)
    u, v = np.meshgrid(grid, grid)
    loss = (u * v - 1) ** 2 / 2 + (u**2 - v**2) ** 2 / 8
    ax.contour(grid, grid, loss, levels=levels, colors=["#6b7280"], linewidths=0.8)
    curve, angle = np.geomspace(1 / 2.05, 2.05, 60), np.linspace(0, 2 * np.pi, 121)
    around = 1 + 1j + landscape.RADIUS**0.5 * np.exp(1j * angle)
    branches, circles = (np.concatenate([one, [np.nan], -one]) for one in (curve, around))
    ax.plot(branches, 1 / branches, color=INK, linewidth=1.4, linestyle="--", label="fits exactly")
    ax.plot(circles.real, circles.imag, color=MINIMUM, linewidth=1.6, label="radius of Theorem 1 (ours)")
    marks: dict[str, Any] = {"markeredgecolor": "white", "linestyle": "none"}
    ax.plot([1, -1], [1, -1], "*", color=MINIMUM, markersize=15, label="fits, in balance", **marks)
    ax.plot(0, 0, "X", color=SADDLE, markersize=10, label="saddle", **marks)
    ax.set(title="the loss that follows", xlabel=r"$\tilde U$", ylabel=r"$\tilde V$", aspect="equal",
           xlim=(-2.05, 2.05), ylim=(-2.05, 2.05))  # fmt: skip
    ax.grid(visible=False)
