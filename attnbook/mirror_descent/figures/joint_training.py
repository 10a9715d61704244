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

__all__ = ["approach", "collapse", "explorer_frame", "large_ratios", "ratios", "same_distance", "shown_seed", "toy"]

PLAIN = Look("plain attention SVM", "#a3123a", "--", "s")
RAW = Look("without the stop at zero", "#5b5b5b", ":", "^")
CORRECTED = Look("corrected", "#0b4f6c", "-", "o")
ON_MARGIN = Look("all samples on the margin: plain", "#6f7f1d", "-.", "D")
COMMON = Look("one step size", "#a3123a", "--", "s", hollow=True)
SEPARATE = Look("separate steps", "#0b4f6c", "-", "o")
MARKERS = ("o", "s", "^", "D")
SHADES = ("#0b4f6c", "#c2410c", "#6b21a8", "#4d5a06")
DISTANCE = r"$1-\cos$ to the target"


def collapse(result: joint_training.JointTraining) -> Figure:
    """Draw each sample's smallest gap against the excess of its head margin times the ratio, and the line they obey."""
    ratio = result.kappa[:, :, result.settings.ps.index(joint_training.SCANNED), -1]
    excess = ratio[..., None] * (result.margins - 1)
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.9))
        x = np.linspace(0, 4, 200)
        ax.plot(x, np.maximum(1 - x, 0), color=INK, linewidth=1.4, label="right-hand side")
        ax.axhline(1, color=INK, linewidth=1.1, linestyle="--", label="plain attention SVM: one for all")
        for at, pace in enumerate(result.settings.head_paces):
            shown = excess[:, at] < x[-1]
            label = "steps of equal length" if pace == 1 else f"head's steps {pace:g} times as long"
            ax.plot(excess[:, at][shown], result.gaps[:, at][shown], MARKERS[at], color=SHADES[at], markersize=6.5,
                    markerfacecolor="none", markeredgewidth=1.5, label=label)  # fmt: skip
        ax.set(xlabel=r"$\kappa\,(m_i-1)$: head margin above one, times the ratio", ylim=(-0.06, 1.9))
        ax.set_ylabel(r"smallest gap of sample $i$ over $\rho$")
        ax.legend(fontsize=9, loc="upper right", ncols=2)
    return figure


def toy(result: joint_toy.JointToy) -> Figure:
    """Draw the paths of matrix and head in the plane with their max-margin rays; norms on a log scale."""
    with style():
        figure, axes = plt.subplots(1, 2, figsize=(7.2, 3.7))
        pairs = (
            (axes[0], result.matrix, joint_toy.MATRIX, "key-query matrix"),
            (axes[1], result.head, joint_toy.HEAD, "head"),
        )
        for ax, paths, target, title in pairs:
            for radius in (1.0, 10.0, 100.0):
                ax.add_patch(plt.Circle((0, 0), np.log1p(radius), fill=False, color="#b9b6ad", linewidth=0.8))
            for p, path in zip(result.settings.ps, paths, strict=True):
                norm = np.linalg.norm(path, axis=1, keepdims=True)
                look = LOOKS[p].line_style() | {"markevery": (4 + 3 * result.settings.ps.index(p) % 7, 14)}
                ax.plot(*(path / np.maximum(norm, 1e-12) * np.log1p(norm)).T, **look)
            start = paths[0, 0] / np.linalg.norm(paths[0, 0]) * np.log1p(np.linalg.norm(paths[0, 0]))
            ax.plot(*start, "o", color=INK, markersize=9, markerfacecolor="none", markeredgewidth=2)
            ray = target / np.linalg.norm(target) * np.log1p(1500.0)
            ax.plot([0, ray[0]], [0, ray[1]], color="#c2410c", linestyle="--", linewidth=1.6)
            ax.set(aspect="equal", title=title, xticks=[], yticks=[])
            ax.grid(visible=False)
        axes[0].set(xlim=(-2.2, 8), ylim=(-8.2, 3.2))
        axes[1].set(xlim=(-7.6, 3.2), ylim=(-3, 8.4))
        axes[0].legend(fontsize=8.5, loc="lower right")
        figure.supxlabel("first entry: direction true, norm on a log scale; circles at 1, 10, 100", fontsize=10.5)
    return figure


def approach(result: joint_training.JointTraining) -> Figure:
    """Draw the distance of the matrix to plain and corrected target against steps, by where the samples lie."""
    off = result.off_margin()[:, 0]
    with style():
        figure, axes = plt.subplots(1, len(joint_training.NEEDED), figsize=(7.2, 3.6), sharey=True)
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
        figure.legend(names.values(), names.keys(), fontsize=9, loc="outside upper center", ncols=3)
    return figure


def ratios(separate: joint_training.JointTraining, common: joint_one_step_size.JointOneStepSize) -> Figure:
    """Draw the ratio against the head's relative norm for both protocols, and the growth behind it."""
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.9))
        two = separate.settings.ps.index(2.0)
        for at, pace in enumerate(separate.settings.head_paces):
            norm = np.median(separate.head_norm[:, at, two], axis=0)
            ratio = np.median(separate.kappa[:, at, two], axis=0)
            left.plot(norm, ratio, color="#5b5b5b", marker=".", linewidth=1.3)
            left.annotate(f"head's steps x {pace:g}", (norm[-1], ratio[-1]), xytext=(0, 5),
                          textcoords="offset points", fontsize=8.5, ha="right")  # fmt: skip
        for p in joint_one_step_size.NEEDED:
            at = common.of(p)
            norm = np.median(common.head_norm[:, at], axis=0)
            left.plot(norm, np.median(common.kappa[:, at], axis=0), **LOOKS[p].line_style())
            right.plot(norm, np.median(common.relative_norm[:, at], axis=0), **LOOKS[p].line_style())
            ends = norm[-1] * np.array([0.1, 1.0])
            last = np.median(common.relative_norm[:, at, -1])
            right.plot(ends, last + 0.35 + p * np.log(ends / ends[1]), color=INK, linewidth=1, linestyle=(0, (2, 2)))
        left.set(xscale="log", yscale="log", xlabel="relative norm $r$ of the head", title=r"ratio $\kappa=r/\rho$")
        right.set(xscale="log", xlabel="relative norm $r$ of the head", title=r"one step size: $\rho$")
        right.plot([], [], color=INK, linewidth=1, linestyle=(0, (2, 2)), label=r"slope $p$ against $\log r$")
        right.legend(fontsize=9, loc="upper left")
        left.set_ylim(0.8, None)
    return figure


def same_distance(result: joint_one_step_size.JointOneStepSize) -> Figure:
    """Draw the distance to the corrected target against the matrix's relative norm, for both protocols."""
    with style():
        figure, axes = plt.subplots(1, 3, figsize=(7.2, 3.5), sharey=True)
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
        axes[0].legend(fontsize=9, loc="lower left")
        figure.supxlabel(r"relative norm $\rho$ of the matrix", fontsize=10.5)
    return figure


def large_ratios(result: joint_training.JointTraining) -> Figure:
    """Draw, for runs with samples off the margin, the distance to three targets against the ratio."""
    judged = result.judged()
    off = result.off_margin()[:, :, judged]
    ratio = result.kappa[:, :, judged, -1][off]
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.8))
        cosines = ((PLAIN, result.cosine_plain), (RAW, result.cosine_raw), (CORRECTED, result.cosine_corrected))
        for look, cosine in cosines:
            fill = look.color if look is CORRECTED else "none"
            ax.plot(ratio, np.maximum(1 - cosine[:, :, judged, -1][off], 1e-7), look.marker, color=look.color,
                    markerfacecolor=fill, markersize=4 if look is CORRECTED else 7, label=look.label)  # fmt: skip
        ax.axhline(0.01, color=INK, linewidth=1, linestyle=":")
        ax.set(xscale="log", yscale="log", xlabel=r"ratio $\kappa$ at the end", ylabel=DISTANCE)
        ax.legend(fontsize=9.5, loc="upper left")
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
        figure, (fit, bars) = plt.subplots(1, 2, figsize=(7.2, 3.2))
        shown = np.maximum(scan, 0.25)
        fit.plot(shown, 1 - result.scanned[seed, at], **CORRECTED.line_style() | {"label": None})
        now = result.settings.scan.index(ratio)
        fit.plot(shown[now], 1 - result.scanned[seed, at, now],
                 "o", color="#c2410c", markersize=12, markerfacecolor="none", markeredgewidth=2.5)  # fmt: skip
        fit.axvline(own, color=INK, linestyle="--", linewidth=1.3)
        fit.annotate("its own ratio", (own, 0.97), xycoords=("data", "axes fraction"), xytext=(4, -4), va="top",
                     textcoords="offset points", fontsize=9)  # fmt: skip
        fit.set(xscale="log", yscale="log", xlabel=r"ratio in the right-hand sides", ylabel=DISTANCE, title="fit")
        fit.set_xticks([0.25, 1, 4, 16], ["0", "1", "4", "16"])
        fit.minorticks_off()
        _sides(bars, result, seed, at, ratio)
    return figure


def _sides(ax: Axes, result: joint_training.JointTraining, seed: int, at: int, ratio: float) -> None:
    """Bars: right-hand sides for this ratio; diamonds: the smallest gap that the run gives each sample."""
    margins = result.margins[seed, at]
    order = np.argsort(margins)
    sides = 1 - ratio * (margins - 1)
    sides = np.where(result.floored[seed, at] > 0, np.maximum(sides, 0), sides)
    places = np.arange(len(order))
    ax.bar(places, np.clip(sides[order], -0.5, None), 0.6, color="#d9d7d0", edgecolor=INK, label="asked for")
    ax.plot(places, result.gaps[seed, at][order], "D", color="#0b4f6c", markersize=7, label="the run's gap")
    ax.axhline(0, color=INK, linewidth=1)
    ax.set(ylim=(-0.55, 2.0), title="smallest gap by sample", xlabel="head margin $m_i$ of the sample")
    ax.set_xticks(places, [f"{m:.2f}" for m in margins[order]])
    ax.legend(fontsize=9, loc="upper left", ncols=2)
