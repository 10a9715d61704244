"""The pictures of this part. Each function takes a result; only medians, angles and reference curves are computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib.patheffects as effects
import matplotlib.pyplot as plt
import numpy as np

from attnbook.core.figures import INK, Look, band, style
from attnbook.mirror_descent.data import plane_toy
from attnbook.mirror_descent.experiments import direction, geometry, inequalities, trajectories
from attnbook.mirror_descent.figures.looks import LOOKS
from attnbook.mirror_descent.theory.inequalities import best_constant

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "angle_errors",
    "convergence",
    "cross_table",
    "entries",
    "explorer_frame",
    "microscope",
    "paths",
    "sparsity",
]

DIVERGENCE = r"divergence $D_\psi(\bar W_{mm},\bar W)$"
PANELS = (1.25, 1.5, 2.0, 3.0)
SOLUTION, TRAINED, MARK = "#56524a", "#a3123a", "#c2410c"


def paths(result: trajectories.Trajectories) -> Figure:
    """Draw the paths of the plane toy and the ray they should turn to; norms on a log scale, so that all of it fits."""
    with style():
        figure, axes = plt.subplots(2, 2, figsize=(7.2, 5.4), sharex=True, sharey=True)
        for ax, p in zip(axes.flat, PANELS, strict=True):
            at, look = result.settings.ps.index(p), LOOKS[p]
            for radius in (1.0, 10.0, 100.0):
                ax.add_patch(plt.Circle((0, 0), np.log1p(radius), fill=False, color="#b9b6ad", linewidth=0.8))
            for path in result.path[at]:
                ax.plot(*_compressed(path).T, color=look.color, linewidth=1.4)
                ax.plot(*_compressed(path[:1]).T, marker="o", markersize=5, color=look.color, markerfacecolor="none")
            for path in result.plain[at]:
                ax.plot(*_compressed(path[-1:]).T, marker="x", markersize=7, color=INK)
            ray = result.target[at] / np.linalg.norm(result.target[at]) * np.log1p(3000.0)
            ax.plot([0, ray[0]], [0, ray[1]], color=MARK, linestyle="--", linewidth=1.6)
            ax.set(xlim=(-1.6, 8.2), ylim=(-1.6, 4.6), aspect="equal", title=look.label, xticks=[], yticks=[])
            ax.grid(visible=False)
        for radius in (10, 100):
            axes[0, 0].annotate(f"norm {radius}", np.log1p(radius) * np.array([0.66, 0.77]), fontsize=8.5)
        figure.supxlabel("first entry of $W$'s first column, direction true, norm on a log scale", fontsize=10.5)
        figure.supylabel("second entry", fontsize=10.5)
    return figure


def _compressed(path: np.ndarray) -> np.ndarray:
    norm = np.linalg.norm(path, axis=-1, keepdims=True)
    return path / norm * np.log1p(norm)


def angle_errors(result: trajectories.Trajectories) -> Figure:
    """Draw the angle to the max-margin ray against the norm, slopes -(p - 1) beside it, and where plain steps end."""
    free, plain = result.angle_errors(result.path), result.angle_errors(result.plain)
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.9))
        for at, p in enumerate(result.settings.ps):
            look = LOOKS[p]
            norms = np.median(np.linalg.norm(result.path[at], axis=-1), axis=0)
            shown = slice(1, None, 4)
            ax.plot(norms[shown], free[at].max(axis=0)[shown], **look.line_style())
            end = np.median(np.linalg.norm(result.plain[at, :, -1], axis=-1))
            ax.plot(end, plain[at, :, -1].max(), marker=look.marker, color=look.color, markersize=11,
                    markerfacecolor="none", linestyle="none")  # fmt: skip
            if p >= 1.5:
                ends = norms[-1] * np.array([0.08, 1.0])
                fade = 1.7 * free[at, :, -1].max() * (ends / norms[-1]) ** (1 - p)
                ax.plot(ends, fade, color=INK, linewidth=1, linestyle=(0, (2, 2)))
        ax.plot([], [], color=INK, linewidth=1, linestyle=(0, (2, 2)), label=r"slope $-(p-1)$")
        ax.set(xscale="log", yscale="log", xlabel=r"Euclidean norm of $W$, median over starts")
        ax.set_ylabel("largest angle to the ray (degrees)")
        ax.legend(fontsize=10, loc="lower left")
    return figure


def convergence(result: direction.Direction) -> Figure:
    """Draw the divergence to the max-margin solution of the tokens attended last, against steps."""
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 4.0))
        for at, p in enumerate(result.settings.ps):
            band(ax, result.steps, result.divergence[0, :, at], LOOKS[p])
        ax.set(xscale="log", yscale="log", xlabel="scale-free steps", ylabel=DIVERGENCE)
        ax.legend(fontsize=10, loc="lower left")
    return figure


def cross_table(result: direction.Direction) -> Figure:
    """Draw how far the runs of three exponents are from three max-margin solutions, one panel per target."""
    with style():
        figure, axes = plt.subplots(1, 3, figsize=(7.2, 3.3), sharey=True)
        for ax, target in zip(axes, direction.CROSSED, strict=True):
            for place, p in enumerate(direction.CROSSED):
                far = result.cross[0, :, result.of(p), result.of(target)]
                look, own = LOOKS[p], p == target
                fill = look.color if own else "none"
                beside = place + np.linspace(-0.24, 0.24, len(far))
                ax.plot(beside, far, color=look.color, marker=look.marker, markerfacecolor=fill, linestyle="none",
                        markersize=7)  # fmt: skip
            ax.set(yscale="log", xlim=(-0.5, 2.5), title=f"target: p = {target:g}")
            ax.set_xticks(range(3), [f"{p:g}" for p in direction.CROSSED])
        axes[0].set_ylabel("divergence to the target")
        axes[1].set_xlabel("p of the run")
    return figure


def entries(result: direction.Direction) -> Figure:
    """Draw the entries of the last matrix of one seed, sorted by size, for every exponent."""
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.6))
        for at, p in enumerate(result.settings.ps):
            size = np.sort(np.abs(result.weights[at]).ravel())[::-1]
            look = LOOKS[p].line_style() | {"markevery": 12}
            ax.plot(np.arange(1, len(size) + 1), np.maximum(size, 1e-12), **look)
        ax.axhline(0.01, color=INK, linewidth=1, linestyle=":")
        ax.annotate("one per cent", (1, 0.01), xytext=(0, 3), textcoords="offset points", fontsize=9)
        ax.set(yscale="log", ylim=(1e-9, 2), xlabel="entry of $W$, sorted by size", ylabel="size over the largest")
        ax.legend(fontsize=10, loc="lower left")
    return figure


def sparsity(result: direction.Direction) -> Figure:
    """Draw how many entries count against the exponent: trained matrices and the solutions for their own tokens."""
    with style():
        figure, axes = plt.subplots(1, 2, figsize=(7.2, 3.4), sharey=True)
        pairs = (
            ("effective dimension", result.effective_dimension[0]),
            ("share of entries above 1 %", result.share[0]),
        )
        ps = np.array(result.settings.ps)
        for ax, (title, density) in zip(axes, pairs, strict=True):
            band(ax, ps, density[..., 1], Look("max-margin solution", SOLUTION, "--", "s"))
            band(ax, ps, density[..., 0], Look("trained matrix", TRAINED, "-", "o"))
            ax.set(title=title, xscale="log", ylim=(0, 1.05))
            ax.set_xticks([1.1, 1.5, 2, 3], ["1.1", "1.5", "2", "3"])
            ax.minorticks_off()
        axes[0].set_ylabel("share of all entries")
        figure.supxlabel("p", fontsize=10.5)
        axes[1].legend(loc="lower right")
    return figure


def microscope(result: inequalities.Inequalities) -> Figure:
    """Draw divergence against distance for pairs of unit matrices, with the bounds of Lemma 13."""
    with style():
        figure, axes = plt.subplots(1, 2, figsize=(7.2, 3.5), sharex=True, sharey=True)
        r = np.geomspace(2e-3, 2, 50)
        for ax, p in zip(axes, (1.25, 4.0), strict=True):
            at, look = result.settings.ps.index(p), LOOKS[p]
            ax.plot(result.distance[at], result.divergence[at], ".", color=look.color, markersize=4, alpha=0.6)
            if p <= 2:
                ax.plot(r, (p - 1) / 2 * r**2, color=INK, linestyle="--", label="classical, attained")
            else:
                ax.plot(r, best_constant(p) * r**p, color=INK, linestyle="--", label=r"$c_p^\star$, this book")
                ax.plot(r, r**p / (p * 2**p), color=INK, linestyle=":", label="Lemma 13")
            ax.set(xscale="log", yscale="log", title=f"p = {p:g}", ylim=(1e-11, 5))
            ax.legend(fontsize=10)
        axes[0].set_ylabel(r"divergence $D_\psi(U,V)$")
        figure.supxlabel(r"distance $\|U-V\|_{p,p}$", fontsize=10.5)
    return figure


def explorer_frame(result: geometry.Geometry, p: float, scale: float) -> Figure:
    """Draw for one exponent the ball that touches the constraint, the solution, and its attention at one norm."""
    at, level = result.settings.ps.index(p), result.settings.scales.index(scale)
    with style():
        figure, (ball, matrix, attention) = plt.subplots(1, 3, figsize=(7.2, 2.7), width_ratios=(1.1, 1, 1))
        _ball(ball, result.plane[at], p)
        matrix.imshow(np.abs(result.weights[at]), vmin=0, cmap="Greys")
        matrix.set(title="solution", xticks=[], yticks=[], xlabel=r"size of $W_{mm}$'s entries")
        attention.imshow(result.attention[at, level], vmin=0, vmax=1, cmap="Greys", aspect="auto")
        rows = np.arange(len(result.selected))
        (rings,) = attention.plot(
            result.selected, rows, "o", color=MARK, markerfacecolor="none", markersize=10, markeredgewidth=2
        )
        rings.set_path_effects([effects.withStroke(linewidth=4.5, foreground="white")])
        attention.set(title="attention", xticks=[], yticks=[], xlabel="token", ylabel="sample")
        for ax in (matrix, attention):
            ax.grid(visible=False)
    return figure


def _ball(ax: Axes, solution: np.ndarray, p: float) -> None:
    """The ball of the smallest norm that reaches the half-plane of the toy's constraint, and where it touches."""
    toy = plane_toy().tokens[0, 0]
    first, second = toy[0] - toy[1]
    angles = np.linspace(0, 2 * np.pi, 400)
    circle = np.stack([np.cos(angles), np.sin(angles)])
    on_sphere = np.sign(circle) * np.abs(circle) ** (2 / p)
    radius = (np.abs(solution) ** p).sum() ** (1 / p)
    line = np.array([-1.0, 1.4])
    height = (1 - first * line) / second
    ax.fill_between(line, height, 3, color="#d9d7d0", linewidth=0)
    ax.plot(line, height, color=INK, linewidth=1.2)
    ax.plot(*(radius * on_sphere), color=SOLUTION)
    ax.plot([0, solution[0]], [0, solution[1]], color=MARK, marker="o", markevery=[1])
    ax.set(xlim=(-1, 1.4), ylim=(-1.1, 1.3), aspect="equal", title=f"p = {p:g}", xlabel="$w_1$", ylabel="$w_2$")
