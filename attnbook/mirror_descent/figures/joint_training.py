"""The pictures of the chapter on joint training. Each function takes results; medians and curves are computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import NullFormatter

from attnbook.core.figures import INK, Look, band, style
from attnbook.mirror_descent.experiments import joint_one_step_size, joint_toy, joint_training
from attnbook.mirror_descent.figures.looks import LOOKS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "approach", "collapse", "easy_frame", "explorer_frame", "large_ratios", "ratios", "same_distance", "shown_seed",
    "toy",
]  # fmt: skip

PLAIN = Look("plain", "#a3123a", "--", "s")
RAW = Look("negative ones left out", "#5b5b5b", ":", "^")
CORRECTED = Look("corrected", "#0b4f6c", "-", "o")
ON_MARGIN = Look("all on the margin: plain", "#6f7f1d", "-.", "D")
COMMON = Look("one step size", "#a3123a", "--", "s", hollow=True)
SEPARATE = Look("separate steps", "#0b4f6c", "-", "o")
MARKERS = ("o", "s", "^", "D")
SHADES = ("#0b4f6c", "#c2410c", "#6b21a8", "#4d5a06")
DISTANCE = r"$1-\cos$ to the target"


def collapse(result: joint_training.JointTraining) -> Figure:
    """Draw each sample's smallest gap against the excess of its head margin times the ratio, and the line they obey."""
    ratio = result.kappa[:, :, result.settings.ps.index(joint_training.SCANNED), -1]
    excess = ratio[..., None] * (result.margins - 1)
    end = 1.3 * max(float(excess.max()), 3.0)
    with style():
        figure, ax = plt.subplots(figsize=(6, 4.6))
        ax.plot([0, 1, end], [1, 0, 0], color=INK, linewidth=1.6, label="this book's correction")
        ax.axhline(1, color=INK, linewidth=1.1, linestyle="--", label="max-margin solution: one for all")
        for at, pace in enumerate(result.settings.head_paces):
            label = f"head's steps x {pace:g}"
            ax.plot(excess[:, at].ravel(), result.gaps[:, at].ravel(), MARKERS[at], color=SHADES[at], markersize=7,
                    linestyle="none", markerfacecolor="none", markeredgewidth=1.5, label=label)  # fmt: skip
        ax.set_xscale("symlog", linthresh=1, linscale=2.2)
        ticks = [tick for tick in (0, 0.25, 0.5, 0.75, 1, 2, 5, 10, 20) if tick <= end]
        ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        ax.minorticks_off()
        ax.set(xlabel="excess of the head margin, times the ratio", xlim=(-0.05, end), ylim=(-0.06, 1.5))
        ax.set_ylabel("smallest gap of the sample")
        figure.legend(fontsize=10.5, loc="outside upper center", ncols=2)
    return figure


def toy(result: joint_toy.JointToy) -> Figure:
    """Draw the paths of matrix and head in the plane with their max-margin rays; norms on a log scale."""
    with style():
        figure, axes = plt.subplots(1, 2, figsize=(6, 4.4))
        pairs = (
            (axes[0], result.matrix, joint_toy.MATRIX, "matrix: first column"),
            (axes[1], result.head, joint_toy.HEAD, "head"),
        )
        for ax, paths, target, title in pairs:
            for radius in (1.0, 10.0):
                ax.add_patch(plt.Circle((0, 0), np.log1p(radius), fill=False, color="#b9b6ad", linewidth=0.8))
            for p, path in zip(result.settings.ps, paths, strict=True):
                norm = np.linalg.norm(path, axis=1, keepdims=True)
                look = LOOKS[p].line_style() | {"markevery": (4 + 3 * result.settings.ps.index(p) % 7, 14)}
                ax.plot(*(path / np.maximum(norm, 1e-12) * np.log1p(norm)).T, **look)
            start = paths[0, 0] / np.linalg.norm(paths[0, 0]) * np.log1p(np.linalg.norm(paths[0, 0]))
            ax.plot(*start, "o", color=INK, markersize=9, markerfacecolor="none", markeredgewidth=2, label="start",
                    linestyle="none")  # fmt: skip
            ray = target / np.linalg.norm(target) * np.log1p(1500.0)
            ax.plot([0, ray[0]], [0, ray[1]], color="#c2410c", linestyle="--", linewidth=1.6, label="target")
            ax.set(aspect="equal", title=title, xticks=[], yticks=[], xlabel="first entry", ylabel="second entry")
            ax.grid(visible=False)
        axes[0].set(xlim=(-2.6, 8), ylim=(-8.2, 3.6))
        axes[1].set(xlim=(-7.6, 3.0), ylim=(-3.4, 8.4))
        handles, names = axes[0].get_legend_handles_labels()
        figure.legend(handles, [name.split(" (")[0] for name in names], fontsize=10.5, loc="outside upper center",
                      ncols=4)  # fmt: skip
    return figure


def easy_frame(rows: np.ndarray, asked: np.ndarray, plain: np.ndarray, solution: np.ndarray) -> Figure:
    """Draw what three samples of the plane ask of the matrix's first column, and the smallest column that obeys.

    Args:
        rows: Selected minus other token, ``(3, 2)``.
        asked: Right-hand side of each sample, ``(3,)``.
        plain: Solution where all ask for one, ``(2,)``.
        solution: Solution for ``asked``, ``(2,)``.

    Returns:
        The figure.
    """
    grid = np.stack(np.meshgrid(np.linspace(-0.4, 2.0, 200), np.linspace(-0.8, 1.2, 200)), axis=-1)
    with style():
        figure, ax = plt.subplots(figsize=(6.0, 4.2))
        broken = (grid @ rows.T < asked).any(axis=-1).astype(float)
        ax.contourf(grid[..., 0], grid[..., 1], broken, levels=[0.5, 1.5], colors=["#d9d7d0"])
        line = np.array([-3.0, 3.0])
        for at, (row, right) in enumerate(zip(rows, asked, strict=True)):
            foot, along = right * row / (row @ row), np.array([-row[1], row[0]])
            name = f"{('first', 'second', 'third')[at]} sample asks for {right:g}"
            ax.plot(*(foot[:, None] + along[:, None] * line), color=SHADES[at], linewidth=1.8,
                    linestyle=("-", "-.", (0, (5, 1)))[at], label=name)  # fmt: skip
        ax.plot([0, plain[0]], [0, plain[1]], color=INK, linestyle="--", linewidth=1.4, label="plain solution")
        ax.plot([0, solution[0]], [0, solution[1]], color="#a3123a", linewidth=2.6, marker="o", markevery=[1],
                markersize=9, label="smallest column")  # fmt: skip
        ax.set(xlim=(-0.4, 2.0), ylim=(-0.8, 1.2), aspect="equal", xlabel="first entry", ylabel="second entry")
        ax.grid(visible=False)
        figure.legend(*ax.get_legend_handles_labels(), fontsize=9.5, loc="outside upper center", ncols=2)
    return figure


def approach(result: joint_training.JointTraining) -> Figure:
    """Draw the distance of the matrix to plain and corrected target against steps, by where the samples lie."""
    off = result.off_margin()[:, 0]
    with style():
        figure, axes = plt.subplots(1, len(joint_training.NEEDED), figsize=(6, 4.2), sharey=True)
        for ax, p in zip(axes, joint_training.NEEDED, strict=True):
            at = result.settings.ps.index(p)
            runs = off[:, at]
            if runs.any():
                band(ax, result.steps, 1 - result.cosine_plain[runs, 0, at], PLAIN)
                band(ax, result.steps, 1 - result.cosine_corrected[runs, 0, at], CORRECTED)
            if not runs.all():
                band(ax, result.steps, 1 - result.cosine_plain[~runs, 0, at], ON_MARGIN)
            ax.set(xscale="log", yscale="log", title=LOOKS[p].label.split(" (")[0])
        axes[0].set_ylabel(DISTANCE)
        figure.supxlabel("scale-free steps", fontsize=10.5)
        names = {line.get_label(): line for ax in axes for line in ax.lines}
        figure.legend(names.values(), names.keys(), fontsize=10.5, loc="outside upper center", ncols=2)
    return figure


def ratios(separate: joint_training.JointTraining, common: joint_one_step_size.JointOneStepSize) -> Figure:
    """Draw the ratio against the head's relative norm for both protocols, and the growth behind it."""
    with style():
        figure, (above, below) = plt.subplots(2, 1, figsize=(6, 7.4), sharex=True)
        two = separate.settings.ps.index(2.0)
        for at, pace in enumerate(separate.settings.head_paces):
            norm = np.median(separate.head_norm[:, at, two], axis=0)
            ratio = np.median(separate.kappa[:, at, two], axis=0)
            above.plot(norm, ratio, color="#5b5b5b", marker=".", linewidth=1.3)
            above.annotate(f"head's steps x {pace:g}", (norm[-1], ratio[-1]), xytext=(0, 5),
                           textcoords="offset points", fontsize=10.5, ha="right")  # fmt: skip
        for p in joint_one_step_size.NEEDED:
            at, look = common.of(p), LOOKS[p]
            norm = np.median(common.head_norm[:, at], axis=0)
            band(above, norm, common.kappa[:, at], look)
            band(below, norm, common.relative_norm[:, at], look)
            rho = np.linspace(0.4, 1.0, 50) * np.median(common.relative_norm[:, at, -1])
            grown = np.exp(((p - 2) * np.log(rho / rho[-1]) + rho - rho[-1]) / p)
            below.plot(norm[-1] * grown, rho + 0.6, color=INK, linewidth=1.2, linestyle=(0, (2, 2)))
        below.plot([], [], color=INK, linewidth=1.2, linestyle=(0, (2, 2)), label="slope of the formula")
        above.set(xscale="log", yscale="log", ylabel=r"ratio $\kappa=r/\rho$", ylim=(0.8, None))
        below.set(xscale="log", xlabel="relative norm $r$ of the head", ylabel=r"one step size: $\rho$")
        below.legend(fontsize=10.5, loc="lower right")
    return figure


def same_distance(result: joint_one_step_size.JointOneStepSize) -> Figure:
    """Draw the distance to the corrected target against the matrix's relative norm, for both protocols."""
    with style():
        figure, axes = plt.subplots(1, 3, figsize=(6, 4.2), sharex=True, sharey=True)
        for ax, p in zip(axes, joint_one_step_size.NEEDED, strict=True):
            at = result.of(p)
            pairs = (
                (SEPARATE, result.relative_norm_separate, result.cosine_corrected_separate),
                (COMMON, result.relative_norm, result.cosine_corrected),
            )
            for look, norm, cosine in pairs:
                for number, (x, y) in enumerate(zip(norm[:, at], 1 - cosine[:, at], strict=True)):
                    label = look.label if number == 0 else None
                    ax.plot(x, y, **(look.line_style() | {"label": label, "linewidth": 1.0, "markersize": 4}))
            ax.set(xscale="log", yscale="log", title=LOOKS[p].label.split(" (")[0])
            ax.xaxis.set_minor_formatter(NullFormatter())
        axes[0].set_ylabel(DISTANCE)
        figure.legend(*axes[0].get_legend_handles_labels(), fontsize=10.5, loc="outside upper center", ncols=2)
        figure.supxlabel(r"relative norm $\rho$ of the matrix", fontsize=10.5)
    return figure


def large_ratios(result: joint_training.JointTraining) -> Figure:
    """Draw, for runs with samples off the margin, the distance to three targets against the ratio."""
    judged = result.judged()
    off = result.off_margin()[:, :, judged]
    ratio = result.kappa[:, :, judged, -1][off]
    with style():
        figure, ax = plt.subplots(figsize=(6, 4.6))
        cosines = ((PLAIN, result.cosine_plain), (RAW, result.cosine_raw), (CORRECTED, result.cosine_corrected))
        for look, cosine in cosines:
            fill = look.color if look is CORRECTED else "none"
            ax.plot(ratio, np.maximum(1 - cosine[:, :, judged, -1][off], 1e-7), look.marker, color=look.color,
                    markerfacecolor=fill, markersize=4 if look is CORRECTED else 7, label=look.label)  # fmt: skip
        ax.axhline(1 - joint_training.MISSED, color=INK, linewidth=1.2, linestyle=(0, (2, 2)), label="cosine 0.99")
        ax.set(xscale="log", yscale="log", xlabel=r"ratio $\kappa$ at the end", ylabel=DISTANCE)
        figure.legend(fontsize=10.5, loc="outside upper center", ncols=2)
    return figure


def shown_seed(result: joint_training.JointTraining) -> int:
    """Return the seed whose runs have the largest head margin at every pace, gradient descent."""
    return int(result.margins.max(axis=2).min(axis=1).argmax())


def explorer_frame(result: joint_training.JointTraining, head_pace: float, ratio: float) -> Figure:
    """Draw for one run how well the solution for a ratio fits, and the right-hand sides beside the gaps it has."""
    seed, at = shown_seed(result), result.settings.head_paces.index(head_pace)
    scan = np.array(result.settings.scan)
    own = result.kappa[seed, at, result.settings.ps.index(joint_training.SCANNED), -1]
    with style():
        figure, (fit, bars) = plt.subplots(2, 1, figsize=(5.4, 5.8))
        shown = np.maximum(scan, 0.25)
        fit.plot(shown, 1 - result.scanned[seed, at], **CORRECTED.line_style() | {"label": None})
        now = result.settings.scan.index(ratio)
        fit.plot(shown[now], 1 - result.scanned[seed, at, now],
                 "o", color="#c2410c", markersize=12, markerfacecolor="none", markeredgewidth=2.5)  # fmt: skip
        fit.axvline(own, color=INK, linestyle="--", linewidth=1.3)
        fit.set(
            xscale="log",
            yscale="log",
            xlabel=r"ratio in the right-hand sides",
            ylabel=DISTANCE,
            title="fit; dashed: own ratio",
        )
        fit.set_xticks([0.25, 1, 4, 16], ["0", "1", "4", "16"])
        fit.minorticks_off()
        _sides(bars, result, seed, at, ratio)
    return figure


def asked_for(result: joint_training.JointTraining, seed: int, at: int, ratio: float) -> np.ndarray:
    """Return the right-hand side of each sample of one run for a ratio; negative where the constraint is left out."""
    sides = 1 - ratio * (result.margins[seed, at] - 1)
    return np.asarray(np.where(result.floored[seed, at] > 0, np.maximum(sides, 0), sides))


def _sides(ax: Axes, result: joint_training.JointTraining, seed: int, at: int, ratio: float) -> None:
    """Bars: right-hand sides for this ratio; diamonds: the smallest gap that the run gives each sample."""
    margins = result.margins[seed, at]
    order = np.argsort(margins)
    sides = asked_for(result, seed, at, ratio)
    places = np.arange(len(order))
    ax.bar(places, np.clip(sides[order], -0.3, None), 0.6, color="#d9d7d0", edgecolor=INK, label="asked for")
    ax.plot(places, result.gaps[seed, at][order], "D", color="#0b4f6c", markersize=7, label="the run's gap")
    ax.axhline(0, color=INK, linewidth=1)
    ax.set(ylim=(-0.35, 1.9), title="smallest gaps", xlabel="head margin $m_i$")
    ax.set_xticks(places, [f"{m:.3f}" for m in margins[order]], fontsize=10)
    ax.legend(fontsize=10, loc="upper left")
