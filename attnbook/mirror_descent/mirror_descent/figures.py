"""The pictures and tables of the chapter; what they show is computed from its data sets and the library."""

from __future__ import annotations

from itertools import product

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from attnbook.core.figures import INK, log_axis, style
from attnbook.core.tables import Measured, Table, spread
from attnbook.mirror_descent.attention_svm import attention_svm
from attnbook.mirror_descent.data import draw_problems
from attnbook.mirror_descent.mirror import share_above
from attnbook.mirror_descent.mirror_descent.experiments import CHOICES, own_cosine, toy_rays

COLORS = {1.25: "#7f0a3c", 1.5: "#bb30be", 2.0: "#0e0e0e", 3.0: "#03707f"}
MARK, PALE = "#c2410c", "#b9b6ad"


def paths(data: xr.Dataset) -> Figure:
    """Draw the paths of the plane toy and the ray they should turn to; norms on a log scale, so that all of it fits."""
    with style():
        figure, axes = plt.subplots(1, 4, figsize=(8.6, 2.2), sharex=True, sharey=True)
        for ax, (p, color) in zip(axes, COLORS.items(), strict=True):
            for radius in (1.0, 10.0, 100.0):
                ax.add_patch(plt.Circle((0, 0), np.log1p(radius), fill=False, color=PALE, linewidth=0.8))
            for path, plain in data.path.sel(p=p).transpose("seed", "kind", "step", "weight").values:
                ax.plot(*_compressed(path).T, color=color, linewidth=1.3)
                ax.plot(*_compressed(path[:1]).T, "o", markersize=4, color=color, markerfacecolor="none")
                ax.plot(*_compressed(plain[-1:]).T, "x", markersize=6, color=INK)
            ray = _compressed(1e3 * toy_rays([p]) / np.linalg.norm(toy_rays([p])))[0]
            ax.plot([0, ray[0]], [0, ray[1]], color=MARK, linestyle="--", linewidth=1.8)
            ax.set(xlim=(-1.0, 7.4), ylim=(-1.2, 4.2), aspect="equal", title=f"p = {p:g}", xticks=[], yticks=[])
            ax.grid(visible=False)
        axes[0].set(xlabel="$w_1$", ylabel="$w_2$")
    return figure


def _compressed(path: np.ndarray) -> np.ndarray:
    norm = np.linalg.norm(path, axis=-1, keepdims=True)
    return path / norm * np.log1p(norm)


def solution_frame(p: float) -> Figure:
    """Draw for one exponent the ball that touches the toy's constraint, and the solution of a larger problem."""
    (w,), turns = toy_rays([p]), np.linspace(0, 2 * np.pi, 400)
    sphere = np.stack([np.cos(turns), np.sin(turns)])
    sphere = (np.abs(w) ** p).sum() ** (1 / p) * np.sign(sphere) * np.abs(sphere) ** (2 / p)
    with style():
        figure, (ball, matrix) = plt.subplots(1, 2, figsize=(6.2, 3.2))
        line = np.array([-1.0, 1.4])
        height = (1 - 1.2 * line) / 0.5  # the toy's constraint is 1.2 w_1 + 0.5 w_2 >= 1
        ball.fill_between(line, height, 3, color="#d9d7d0", linewidth=0)
        ball.plot(line, height, color=INK, linewidth=1.2)
        ball.plot(*sphere, color=INK)
        ball.plot([0, w[0]], [0, w[1]], color=MARK, marker="o", markevery=[1])
        ball.set(title=f"p = {p:g}: the ball touches", xlabel="$w_1$", ylabel="$w_2$", aspect="equal")
        ball.set(xlim=(-1, 1.4), ylim=(-1.1, 1.3))
        matrix.imshow(np.abs(_solution(p)), vmin=0, cmap="Greys")
        matrix.set(title="size of the 100 weights", xticks=[], yticks=[])
        matrix.grid(visible=False)
    return figure


def _solution(p: float) -> np.ndarray:
    problem = draw_problems([0])
    return attention_svm(problem.tokens, problem.queries, problem.best_tokens, p).weight[0]


def solution_text(p: float) -> str:
    """Return the numbers behind one picture of the slider."""
    (w,), weights = toy_rays([p]), _solution(p)
    return (
        f"p = {p:g}: the toy's solution has an angle of {np.degrees(np.arctan2(w[1], w[0])):.3g} degrees; of the 100 "
        f"weights {share_above(weights):.0%} are above one per cent of the largest."
    )


def theorem(data: xr.Dataset) -> Figure:
    """Draw the divergence against the norm from starts in the cone, for plain and scale-free steps; below, farther."""
    with style():
        figure, axes = plt.subplots(2, 3, figsize=(8.2, 5.2), sharey="row")
        for column, p in zip(axes.T, (1.5, 2.0, 3.0), strict=True):
            for (row, ax), (choice, color) in product(enumerate(column), zip(CHOICES, ("#0b5cad", MARK), strict=True)):
                runs = data.sel(p=p, choice=choice).transpose("seed", ...)
                plain = ax.plot(runs.norm.T, runs.divergence.T, color=color, linewidth=3, alpha=0.3)
                free = ax.plot(runs.free_norm.T, runs.free_divergence.T, color=color, linewidth=0.7)
                if row == 0:
                    free[0].set_label(f"{choice} tokens, scale-free steps")
                    plain[0].set_label(f"{choice} tokens, plain steps")
            column[0].set(yscale="log", title=f"p = {p:g}", xlim=(9.8, 13.6), ylim=(8e-4, 3e-2))
            log_axis(column[1], (10, 30, 100), "norm over that of $W_{mm}$")
            column[1].set(yscale="log", ylim=(1e-5, 1), xlim=(9, 250))
        figure.supylabel(r"divergence $D_\psi(\bar W_{mm},\bar W)$", fontsize=11.5)
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=10)
    return figure


def by_exponent(data: xr.Dataset) -> Table:
    """Return by exponent what the runs from zero end with."""
    trained, solution = (data.dimension.sel(of=of) for of in ("trained", "solution"))
    angle = np.degrees(np.arccos(own_cosine(data).clip(max=1)))
    found = {"angle to the solution": angle, "share that counts": trained, "of the solution": solution}
    rows: list[list[str | Measured]] = []
    for p in data.p.values:
        spreads = (spread(values.sel(p=p), ".3g") for values in found.values())
        shares = (Measured(f"{float(data[name].sel(p=p).mean()):.0%}") for name in ("local", "best"))
        rows.append([f"{p:g}", *spreads, *shares])
    caption = f"Medians over {data.sizes['seed']} problems [smallest, largest], angles in degrees; last: shares."
    return Table(["p", *found, "locally optimal", "best tokens"], rows, caption)
