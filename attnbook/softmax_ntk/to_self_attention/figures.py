"""The pictures and tables of the chapter. Each function takes data sets and computes nothing but medians."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnbook.core.figures import INK, Look, band, style
from attnbook.core.tables import Measured, Table, spread
from attnbook.softmax_ntk.alternating import uniform_condition, values_descent
from attnbook.softmax_ntk.to_self_attention.experiments import PROBLEMS, WAYS

LOOKS = {
    "alternating": Look("values solved for", "#0b5cad", "-", "o"),
    "joint": Look("values trained from random", "#c2410c", "-.", "^"),
    "joint_from_zero": Look("values trained from zero", "#8a5a00", "--", "P"),
    "frozen": Look("values frozen, random signs", "#5b5f66", ":", "s"),
    "known": Look("values frozen, the teacher's", "#15803d", (0, (5, 1)), "v"),
    "alternating_adam": Look("values solved for, Adam", "#7c3aed", "-", "D"),
    "joint_adam": Look("values trained from zero, Adam", "#111111", "--", "x"),
}
TITLES = {"plain": "no shared mean", "common_mean": "shared mean", "sharp": "sharp teacher"}
STEPS, TARGET = 60, 0.01  # of descent on the values alone


def race(data: xr.Dataset) -> Figure:
    """Draw losses against gradients in two problems."""
    with style():
        figure, axes = plt.subplots(1, 2, figsize=(7.8, 2.9), sharey=True)
        for ax, problem in zip(axes, PROBLEMS, strict=False):
            _losses(ax, data.sel(problem=problem))
            ax.set(title=TITLES[problem])
        axes[0].set_ylabel("loss / loss of zero")
        axes[0].legend(fontsize=8.5, loc="lower left")
    return figure


def values_frame(norm: float, length: int) -> Figure:
    """Draw descent on the values at uniform attention over contours of their loss, beside one solve."""
    path, condition = values_descent(norm, length, steps=STEPS), uniform_condition(norm, length)
    grid = np.linspace(-1.25, 1.25, 121)
    descent, solve = LOOKS["joint_from_zero"], LOOKS["alternating"]
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(6.6, 3.4))
        heights = (condition * grid**2 + grid[:, None] ** 2) / (condition + 1)
        left.contour(grid, grid, heights, levels=[0.003, 0.01, 0.03, 0.1, 0.3, 1], colors="#b9b6ac", linewidths=0.9)
        left.plot(*path[:30].T, "-P", color=descent.color, linewidth=1, markersize=4, label="descent")
        left.plot([1, 0], [1, 0], "-o", color=solve.color, label="one solve")
        left.set(xlabel="error along the mean", ylabel="error across it", title=f"condition {condition:.3g}")
        left.set(xticks=(-1, 0, 1), yticks=(-1, 0, 1))
        left.legend(fontsize=9, loc="lower left")
        loss = (condition * path[:, 0] ** 2 + path[:, 1] ** 2) / (condition + 1)
        right.plot(np.maximum(loss, 1e-9), "-P", color=descent.color, markersize=4, markevery=0.1)
        right.plot([0, 1], [1, 1e-9], "-o", color=solve.color)
        right.axhline(TARGET, color=INK, linestyle=":", linewidth=1)
        right.set(yscale="log", ylim=(1e-3, 1.5), xlim=(0, STEPS), xlabel="steps on the values")
        right.set_title("loss / first loss")
    return figure


def values_text(norm: float, length: int) -> str:
    """Return how many steps of the best fixed size the values need at uniform attention.

    Without a mean the length does not matter; the words name it, so that a slider is heard to have moved.
    """
    condition = uniform_condition(norm, length)
    factor = (condition - 1) / (condition + 1)
    steps = math.ceil(math.log(TARGET) / (2 * math.log(factor)) - 1e-9) if factor else 1
    return (
        f"Mean of norm {norm:g}, {length} tokens: condition number {condition:.3g}. One step of descent keeps "
        f"{factor:.3g} of the error, and it takes {steps} to get to {TARGET:g} of the first loss; a solve takes one."
    )


def compared(race: xr.Dataset) -> Table:
    """Return how many gradients each way needed on each problem, and how many seeds never arrived."""
    rows: list[list[str | Measured]] = []
    for way in WAYS:
        cells = []
        for problem in PROBLEMS:
            counts = race.evaluations.sel(way=way, problem=problem).values
            missed = int((counts > race.step.values[-1]).sum())
            text = f"{np.median(counts):.0f} [{counts.min():.0f}, {counts.max():.0f}]"
            cells.append(Measured("none" if missed == len(counts) else text + f", {missed} missed" * bool(missed)))
        rows.append([LOOKS[way].label, *cells])
    caption = (
        f"Gradients of the key-query matrix until the loss is a hundredth of that of the zero output: median [fewest, "
        f"most] over {race.sizes['seed']} seeds; one that missed counts as {race.step.values[-1] + 1}."
    )
    return Table(["way", *TITLES.values()], rows, caption)


def finals(race: xr.Dataset) -> Table:
    """Return the loss of each way after the whole budget, and what a longer one brings with the sharp teacher."""
    rows: list[list[str | Measured]] = []
    for way in WAYS:
        losses = (race.loss.sel(problem=problem, way=way).isel(step=-1).values for problem in PROBLEMS)
        cells = [spread(x, ".0e") for x in losses]
        later = race.later_loss.sel(later=way) if way in race.later else None
        stuck = "" if later is None else Measured(f"{int((later > 0.1).sum())} of {race.sizes['seed']}")
        rows.append([LOOKS[way].label, *cells, stuck])
    caption = (
        f"Loss after {race.step.values[-1]} gradients over that of the zero output, median [smallest, largest]. Stuck: "
        "with the sharp teacher still above a tenth after five times the budget."
    )
    return Table(["way", *TITLES.values(), "stuck"], rows, caption)


def _losses(ax: Axes, race: xr.Dataset) -> None:
    for way in ("frozen", "joint", "joint_from_zero", "alternating"):
        band(ax, race.step, np.maximum(race.loss.sel(way=way).values, 1e-16), LOOKS[way])
        ax.lines[-1].set_markevery(max(1, race.sizes["step"] // 6))
    ax.axhline(TARGET, color=INK, linestyle=":", linewidth=1)
    ax.set(yscale="log", xlabel="gradients", ylim=(1e-8, 5))
    ax.set_xscale("symlog", linthresh=3)
    ax.set_xticks((0, 3, 10, 30, 100), ("0", "3", "10", "30", "100"))
    ax.set_xlim(0, race.step.values[-1])
