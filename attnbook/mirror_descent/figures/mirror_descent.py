"""The pictures of this part. Each function takes a result; only medians, angles and reference curves are computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib.patheffects as effects
import matplotlib.pyplot as plt
import numpy as np

from attnbook.core.figures import INK, Look, band, style
from attnbook.mirror_descent import mirror
from attnbook.mirror_descent.data import plane_toy
from attnbook.mirror_descent.experiments import direction, geometry, inequalities, trajectories
from attnbook.mirror_descent.figures.looks import LOOKS
from attnbook.mirror_descent.inequalities import best_constant

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "angle_errors",
    "convergence",
    "cross_heat",
    "cross_table",
    "entries",
    "explorer_frame",
    "lens_frame",
    "microscope",
    "paths",
    "sparsity",
    "two_spaces",
]

DIVERGENCE = r"divergence $D_\psi(\bar W_{mm},\bar W)$"
PANELS = (1.25, 1.5, 2.0, 3.0)
SOLUTION, TRAINED, MARK = "#56524a", "#a3123a", "#c2410c"


def paths(result: trajectories.Trajectories) -> Figure:
    """Draw the paths of the plane toy and the ray they should turn to; norms on a log scale, so that all of it fits."""
    with style():
        figure, axes = plt.subplots(2, 2, figsize=(5.8, 4.5), sharex=True, sharey=True)
        for ax, p in zip(axes.flat, PANELS, strict=True):
            at = result.settings.ps.index(p)
            _weights(ax, result, at)
            for path in result.plain[at]:
                ax.plot(*_compressed(path[-1:]).T, marker="x", markersize=7, color=INK)
            ax.set(title=f"p = {p:g}", xticks=[], yticks=[])
        for radius in (10, 100):
            axes[0, 0].annotate(f"norm {radius}", np.log1p(radius) * np.array([0.6, 0.84]), fontsize=11)
        figure.supxlabel("$w_1$ (direction true, norm on a log scale)", fontsize=12)
        figure.supylabel("$w_2$", fontsize=12)
    return figure


def _weights(ax: Axes, result: trajectories.Trajectories, at: int) -> None:
    """Paths of one exponent in the weight space, norms on a log scale, with the ray and circles of norm 1, 10, 100."""
    color = LOOKS[result.settings.ps[at]].color
    for radius in (1.0, 10.0, 100.0):
        ax.add_patch(plt.Circle((0, 0), np.log1p(radius), fill=False, color="#b9b6ad", linewidth=0.8))
    for path in result.path[at]:
        ax.plot(*_compressed(path).T, color=color, linewidth=1.4)
        ax.plot(*_compressed(path[:1]).T, marker="o", markersize=5, color=color, markerfacecolor="none")
    ray = result.target[at] / np.linalg.norm(result.target[at]) * np.log1p(3000.0)
    ax.plot([0, ray[0]], [0, ray[1]], color=MARK, linestyle="--", linewidth=1.6)
    ax.set(xlim=(-1.6, 8.2), ylim=(-1.6, 4.6), aspect="equal")
    ax.grid(visible=False)


def two_spaces(result: trajectories.Trajectories, p: float) -> Figure:
    """Draw the same paths of one exponent in the mirror space, on plain axes, and in the weight space."""
    at, color = result.settings.ps.index(p), LOOKS[p].color
    with style():
        figure, (mirrored, weights) = plt.subplots(2, 1, figsize=(5.4, 5.8))
        paths, ray = mirror.mirror_map(result.path[at], p), mirror.mirror_map(result.target[at, :, None], p)[:, 0]
        for path in paths:
            mirrored.plot(*path.T, color=color, linewidth=1.4)
            mirrored.plot(*path[:1].T, marker="o", markersize=5, color=color, markerfacecolor="none")
        ray *= paths[..., 0].max() / ray[0]
        mirrored.plot([0, ray[0]], [0, ray[1]], color=MARK, linestyle="--", linewidth=1.6)
        mirrored.set(title=r"mirror space: $\theta=\nabla\psi(W)$", xlabel=r"$\theta_1$", ylabel=r"$\theta_2$")
        mirrored.set(aspect="equal")
        _weights(weights, result, at)
        weights.set(title="weight space: $W$", xticks=[], yticks=[], ylabel="$w_2$")
        weights.set_xlabel("$w_1$ (direction true, norm on a log scale)")
    return figure


def lens_frame(p: float, pushes: float) -> Figure:
    """Draw six starts after a push along the toy's constraint: points of the mirror space, directions of the weights.

    Args:
        p: Exponent above 1.
        pushes: How many times the constraint was added in the mirror space.

    Returns:
        The figure.
    """
    constraint, weights = lens_directions(p, pushes)
    sums = mirror.mirror_map(weights, p)
    with style():
        figure, (mirrored, seen) = plt.subplots(1, 2, figsize=(6.4, 3.5))
        end = 1.15 * constraint * (pushes + 1.5)
        mirrored.plot([0, end[0]], [0, end[1]], color=MARK, linestyle="--", linewidth=1.6)
        mirrored.plot(*sums.T, "o", color=TRAINED, markersize=7, markerfacecolor="none", markeredgewidth=1.6)
        mirrored.set(title=r"mirror space: sums $\theta$", xlabel=r"$\theta_1$", ylabel=r"$\theta_2$", aspect="equal")
        mirrored.set(xlim=(-1.6, 1.4 * pushes + 2.2), ylim=(-0.45 * pushes - 1.8, 0.95 * pushes + 2.0))
        seen.add_patch(plt.Circle((0, 0), 1, fill=False, color="#b9b6ad", linewidth=0.8))
        ray = mirror.inverse_mirror_map(constraint[None], p)[0]
        ray *= 1.25 / np.linalg.norm(ray)
        for unit in weights / np.linalg.norm(weights, axis=1, keepdims=True):
            seen.plot([0, unit[0]], [0, unit[1]], color=TRAINED, marker="o", markevery=[1], linewidth=1.6)
        seen.plot([0, ray[0]], [0, ray[1]], color=MARK, linestyle="--", linewidth=1.8)
        seen.set(title=f"directions of $W$, p = {p:g}", xlabel="$w_1$", ylabel="$w_2$", aspect="equal")
        seen.set(xlim=(-1.3, 1.4), ylim=(-1.3, 1.4))
    return figure


def lens_directions(p: float, pushes: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the toy's constraint, and the six starts of its paths after that many pushes along it, ``(6, 2)``."""
    tokens = plane_toy().tokens[0, 0]
    constraint = tokens[0] - tokens[1]
    turns = np.pi * (np.arange(6) / 3 + 1 / 6)
    # Rounded, so that a zero is one: the lens of small p would show the rounding of a cosine.
    starts = np.stack([np.cos(turns), np.sin(turns)], axis=1).round(12)
    return constraint, mirror.pushed(starts, pushes * constraint[None], p)


def _compressed(path: np.ndarray) -> np.ndarray:
    norm = np.linalg.norm(path, axis=-1, keepdims=True)
    return path / norm * np.log1p(norm)


def angle_errors(result: trajectories.Trajectories) -> Figure:
    """Draw the angle to the max-margin ray against the norm, slopes -(p - 1) beside it, and where plain steps end."""
    free, plain = result.angle_errors(result.path), result.angle_errors(result.plain)
    with style():
        figure, ax = plt.subplots(figsize=(5.6, 4.4))
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
        ax.legend(fontsize=10.5, loc="lower left", labelspacing=0.25)
    return figure


def convergence(result: direction.Direction) -> Figure:
    """Draw the divergence to the max-margin solution of the tokens attended last, against the norm; a panel each."""
    with style():
        figure, axes = plt.subplots(3, 2, figsize=(5.6, 6.6), sharex=True, sharey=True)
        for ax, p in zip(axes.flat, direction.NEEDED, strict=True):
            at, look = result.of(p), LOOKS[p]
            norm = np.median(result.relative_norm[0, :, at], axis=0)
            band(ax, norm, result.divergence[0, :, at], look)
            far = np.array([10.0, norm[-1]])
            height = 3 * np.interp(far[0], norm, np.median(result.divergence[0, :, at], axis=0))
            ax.plot(far, height * (far / far[0]) ** -min(1.0, p - 1), color=INK, linewidth=1.6, linestyle=":")
            ax.set(xscale="log", yscale="log", xlim=(0.7, 2 * norm[-1]), title=f"p = {p:g}")
        figure.supxlabel(r"norm $\|W\|_{p,p}$ over that of the solution", fontsize=12)
        figure.supylabel(DIVERGENCE, fontsize=12)
    return figure


def cross_heat(result: direction.Direction) -> Figure:
    """Draw for every target how much farther each run is than the run with the target's exponent, median over seeds."""
    ps, far = result.settings.ps, result.cross[0]
    ratio = np.median(far / np.einsum("sii->si", far)[:, None], axis=0)
    with style():
        figure, ax = plt.subplots(figsize=(5.6, 5.2))
        ax.imshow(np.log10(ratio), cmap="Greys", vmin=-1, vmax=7)
        for (row, column), value in np.ndenumerate(ratio):
            text = f"{value:.1f}" if value < 9.95 else f"{value:.0f}" if value < 1000 else f"{value / 1000:.0f}k"
            weight = "bold" if value < 1 else "normal"
            ax.annotate("1" if row == column else text, (column, row), ha="center", va="center", weight=weight,
                        color="white" if value > 3e3 else INK)  # fmt: skip
        for place in range(len(ps)):
            ax.add_patch(plt.Rectangle((place - 0.48, place - 0.48), 0.96, 0.96, fill=False, linewidth=1.6))
        names = [f"{p:g}" for p in ps]
        ax.set_xticks(range(len(ps)), names)
        ax.set_yticks(range(len(ps)), names)
        ax.set(xlabel="p of the target", ylabel="p of the run")
        ax.grid(visible=False)
    return figure


def cross_table(result: direction.Direction) -> Figure:
    """Draw how far the runs of three exponents are from three max-margin solutions, one panel per target."""
    with style():
        figure, axes = plt.subplots(1, 3, figsize=(5.8, 3.4), sharey=True)
        for ax, target in zip(axes, direction.CROSSED, strict=True):
            for place, p in enumerate(direction.CROSSED):
                far = result.cross[0, :, result.of(p), result.of(target)]
                look, own = LOOKS[p], p == target
                fill = look.color if own else "none"
                beside = place + np.linspace(-0.24, 0.24, len(far))
                ax.plot(beside, far, color=look.color, marker=look.marker, markerfacecolor=fill, linestyle="none",
                        markersize=7)  # fmt: skip
            ax.set(yscale="log", xlim=(-0.5, 2.5), title=f"target {target:g}")
            ax.set_xticks(range(3), [f"{p:g}" for p in direction.CROSSED])
        axes[0].set_ylabel("divergence to the target")
        axes[1].set_xlabel("p of the run")
    return figure


def entries(result: direction.Direction) -> Figure:
    """Draw the entries of the last matrix of one seed, sorted by size, in the mirror space and in the weight space."""
    with style():
        figure, axes = plt.subplots(2, 1, figsize=(5.6, 6.2), sharex=True, sharey=True)
        for p in (1.1, 1.25, 1.5, 3.0):
            weights = result.weights[result.of(p)]
            for ax, shown in zip(axes, (mirror.mirror_map(weights, p), weights), strict=True):
                size = np.sort(np.abs(shown).ravel())[::-1]
                ax.plot(np.arange(1, len(size) + 1), size, **LOOKS[p].line_style() | {"markevery": 12})
        for ax, name in zip(axes, (r"mirror space: entries of $\theta$", "weight space: entries of $W$"), strict=True):
            ax.axhline(0.01, color=INK, linewidth=1, linestyle=":")
            ax.set(yscale="log", ylim=(1e-12, 5), title=name, ylabel="size over the largest")
        axes[1].annotate("one per cent", (1, 0.01), xytext=(0, -13), textcoords="offset points", fontsize=10.5)
        axes[1].set(xlabel="entries, sorted by size")
        axes[0].legend(fontsize=11, loc="lower left")
    return figure


def sparsity(result: direction.Direction) -> Figure:
    """Draw how many entries count against the exponent: trained matrices and the solutions for their own tokens."""
    with style():
        figure, axes = plt.subplots(1, 2, figsize=(5.8, 3.5), sharey=True)
        pairs = (
            ("effective dimension", result.effective_dimension[0]),
            ("share above 1 %", result.share[0]),
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
        figure, axes = plt.subplots(1, 2, figsize=(5.8, 4.0), sharex=True, sharey=True)
        r = np.geomspace(2e-3, 2, 50)
        for ax, p in zip(axes, (1.25, 4.0), strict=True):
            at, look = result.settings.ps.index(p), LOOKS[p]
            ax.plot(result.distance[at], result.divergence[at], ".", color=look.color, markersize=4, alpha=0.6)
            if p <= 2:
                ax.plot(r, (p - 1) / 2 * r**2, color=INK, linestyle="--", label="classical, attained")
            else:
                ax.plot(r, best_constant(p) * r**p, color=INK, linestyle="--", label=r"$c_p^\star$, this book")
                ax.plot(r, r**p / (p * 2**p), color=INK, linestyle=":", label="Lemma 13")
            sharp = (p - 1) / 2 * result.distance[at] ** 2 if p <= 2 else best_constant(p) * result.distance[at] ** p
            worst = result.divergence[at] < 1.05 * sharp
            ax.plot(result.distance[at][worst], result.divergence[at][worst], "o", color=MARK, markerfacecolor="none",
                    markersize=8, markeredgewidth=1.8, zorder=3, label="worst pairs")  # fmt: skip
            ax.set(xscale="log", yscale="log", title=f"p = {p:g}", ylim=(1e-11, 5))
            ax.legend(fontsize=10, loc="upper center", bbox_to_anchor=(0.5, -0.2))
        axes[0].set_ylabel(r"divergence $D_\psi(U,V)$")
        figure.supxlabel(r"distance $\|U-V\|_{p,p}$", fontsize=10.5)
    return figure


def explorer_frame(result: geometry.Geometry, p: float, scale: float) -> Figure:
    """Draw for one exponent the ball that touches the constraint, the solution, and its attention at one norm."""
    at, level = result.settings.ps.index(p), result.settings.scales.index(scale)
    with style():
        figure, axes = plt.subplot_mosaic("bm;aa", figsize=(4.8, 4.6), height_ratios=(1.3, 1), width_ratios=(1.15, 1))
        ball, matrix, attention = (axes[name] for name in "bma")
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
