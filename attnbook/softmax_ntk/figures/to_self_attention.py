"""The pictures of the chapter on self-attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np

from attnbook.core.figures import INK, Look, band, style
from attnbook.softmax_ntk.attention_logits import uniform_condition
from attnbook.softmax_ntk.experiments.planted_attention import PROBLEMS, WAYS, PlantedAttention
from attnbook.softmax_ntk.experiments.to_self_attention import ToSelfAttention

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "LOOKS",
    "SHOWN",
    "TITLES",
    "condition",
    "found",
    "loss_by_budget",
    "maps_frame",
    "one_row",
    "step_windows",
    "values_frame",
]

LOOKS: Mapping[str, Look] = {
    "alternating": Look("alternating", "#0b5cad", "-", "o"),
    "every_tenth": Look("alternating, every tenth", "#0b5cad", ":", "o", hollow=True),
    "joint": Look("joint, random values", "#c2410c", "-.", "^"),
    "joint_from_zero": Look("joint, zero values", "#8a5a00", "--", "P"),
    "frozen": Look("frozen, random signs", "#5b5f66", ":", "s"),
    "known": Look("frozen, the teacher's", "#15803d", (0, (5, 1)), "v"),
    "alternating_adam": Look("alternating, Adam", "#7c3aed", "-", "D"),
    "joint_adam": Look("joint, Adam", "#111111", "--", "x"),
}
"""How each way of training looks."""
TITLES: Mapping[str, str] = {"plain": "no shared mean", "common_mean": "shared mean", "sharp": "sharp teacher"}
"""What each problem is called."""
PROBLEM_LOOKS: Mapping[str, Look] = {
    "plain": Look("no shared mean", "#0b5cad", "none", "o", hollow=True),
    "common_mean": Look("shared mean", "#c2410c", "none", "^"),
    "sharp": Look("sharp teacher", "#111111", "none", "x"),
}
"""How each problem looks where all ways are drawn alike."""
SHOWN: Mapping[str, str] = {LOOKS[way].label: way for way in ("alternating", "joint_from_zero", "joint", "frozen")}
"""Label to name of the ways that the slider shows."""


def one_row(result: PlantedAttention, row: int = 1) -> Figure:
    """Draw one row of attention as a network with one neuron per token, beside the whole attention map."""
    weights = result.teacher_map
    count = len(weights)
    with style():
        figure, (net, heat) = plt.subplots(1, 2, figsize=(6.8, 3.8), width_ratios=(1.25, 1))
        heights = np.linspace(count - 1, 0, count)
        middle = (count - 1) / 2
        for j, height in enumerate(heights):
            share = weights[row, j]
            net.plot([0, 1], [middle, height], color="#5b5f66", linewidth=0.8)
            net.plot([1, 2], [height, middle], color="#0b5cad", linewidth=0.6 + 9 * share, solid_capstyle="butt")
            net.plot(1, height, "o", color="#fbfaf7", markeredgecolor=INK, markersize=20)
            net.annotate(f"{j + 1}", (1, height), ha="center", va="center", fontsize=11.5)
            if share >= 0.05:  # beside its own neuron, where others leave room
                net.annotate(f"{share:.2f}", (1.2, height), ha="left", va="center", fontsize=11)
        for at, text in ((0, f"token\n{row + 1}"), (2, f"row\n{row + 1}")):
            net.plot(at, middle, "s", color="#fbfaf7", markeredgecolor=INK, markersize=36)
            net.annotate(text, (at, middle), ha="center", va="center", fontsize=11.5)
        net.set(xlim=(-0.35, 2.35), ylim=(-1.0, count), title="a two-layer network")
        for at, text in ((0, "query"), (1, "neurons = keys"), (2, "output")):
            net.annotate(text, (at, -0.95), ha="center", fontsize=11.5)
        net.axis("off")
        _map(heat, weights, "attention", float(weights.max()))
        figure.colorbar(heat.images[0], ax=heat, shrink=0.6)
        heat.add_patch(plt.Rectangle((-0.5, row - 0.5), count, 1, fill=False, edgecolor="#c2410c", linewidth=2.5))
    return figure


def loss_by_budget(result: PlantedAttention) -> Figure:
    """Draw losses against gradients of the key-query matrix, without and with a mean that all tokens share."""
    steps = result.settings.records
    shown = ("frozen", "joint", "joint_from_zero", "alternating")
    with style():
        figure, axes = plt.subplots(1, 2, figsize=(7.2, 4.2), sharey=True)
        for ax, problem in zip(axes, PROBLEMS, strict=False):
            for way in shown:
                band(ax, steps, np.maximum(result.of("loss", problem, way), 1e-16), LOOKS[way])
                ax.lines[-1].set_markevery(max(1, len(steps) // 6))
            ax.axhline(result.settings.target, color=INK, linestyle=":", linewidth=1)
            ax.set(yscale="log", title=TITLES[problem], xlabel="gradients (budget)", ylim=(1e-7, 5))
            ax.set_xscale("symlog", linthresh=3)
            ax.set_xticks((0, 3, 10, 30, 100), ("0", "3", "10", "30", "100"))
            ax.set_xlim(0, steps[-1])
        axes[0].set_ylabel("loss / that of zero output")
        axes[0].legend(fontsize=9.5, loc="lower left")
        axes[0].annotate("target", (0, result.settings.target), ha="left", va="bottom", fontsize=10)
    return figure


def step_windows(result: PlantedAttention) -> Figure:
    """Draw what tuning saw: mean gradients to the target against the step size of the key-query matrix."""
    sizes = np.array(result.settings.key_query_steps)
    with style():
        figure, axes = plt.subplots(1, 2, figsize=(7.2, 3.8), sharey=True)
        for ax, problem in zip(axes, ("common_mean", "sharp"), strict=True):
            for way in ("alternating", "joint_from_zero", "joint"):
                ax.plot(sizes, result.of("tuned", problem, way)[: len(sizes)], **LOOKS[way].line_style())
            ax.axhline(result.settings.steps + 1, color=INK, linestyle=":", linewidth=1)
            ax.set(xscale="log", yscale="log", title=TITLES[problem], xlabel="step size of the weights")
            ax.set_ylim(top=1.6 * result.settings.steps)
            _plain_ticks(ax, sizes[::2], (10, 20, 50, 100, 200))
        axes[0].set_ylabel("gradients to the target")
        axes[1].legend(fontsize=9.5, loc="lower left")
    return figure


def found(result: PlantedAttention) -> Figure:
    """Draw, for every run that had to find the values, the distance from the planted matrix against the loss."""
    ways = [i for i, way in enumerate(WAYS.values()) if way.values != "frozen"]
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.8))
        for i, problem in enumerate(PROBLEMS):
            loss, distance = result.loss[i, ways, :, -1].ravel(), result.distance[i, ways].ravel()
            ax.plot(loss, distance, **PROBLEM_LOOKS[problem].line_style())
        ax.set(xscale="log", yscale="log", xlabel="loss at the end / that of zero output")
        ax.set_ylabel("distance of the matrix")
        ax.legend(fontsize=9.5, loc="upper left")
    return figure


def condition(result: ToSelfAttention) -> Figure:
    """Draw the condition number of the values' problem against the mean that tokens share."""
    norms = np.array(result.settings.mean_norms)
    fine = np.linspace(norms.min(), norms.max(), 60)
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.4))
        ax.plot(fine, uniform_condition(fine, result.settings.length), color=INK, linestyle=":", label="1 + L |μ|²")
        looks = (
            Look("uniform attention", "#0b5cad", "none", "o"),
            Look("each token to itself", "#c2410c", "--", "^"),
        )
        for look, samples in zip(looks, (result.condition, result.sharp_condition), strict=True):
            band(ax, norms, samples, look)
        ax.set(yscale="log", xlabel="norm of the shared mean |μ|", ylabel="condition number")
        ax.legend(loc="lower right")
    return figure


def maps_frame(result: PlantedAttention, way: str, steps: int) -> Figure:
    """Draw the attention of the student after some steps beside the teacher's; the way by its label."""
    student = result.maps[list(WAYS).index(SHOWN[way]), result.settings.shown_steps.index(steps)]
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(6.0, 3.3))
        largest = float(result.teacher_map.max())
        _map(left, student, f"student, step {steps}", largest)
        _map(right, result.teacher_map, "teacher", largest)
        figure.colorbar(right.images[0], ax=(left, right), shrink=0.6)
    return figure


def values_frame(path: np.ndarray, condition: float, target: float) -> Figure:
    """Draw descent on the values over contours of their loss, beside one solve, and the loss by step.

    Args:
        path: Errors along the shared mean and across it, one row per step.
        condition: Ratio of the curvatures of these two directions.
        target: Share of the first loss that is aimed at.

    Returns:
        The figure.
    """
    grid = np.linspace(-1.25, 1.25, 121)
    loss = (condition * path[:, 0] ** 2 + path[:, 1] ** 2) / (condition + 1)
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(6.6, 3.7))
        heights = (condition * grid**2 + grid[:, None] ** 2) / (condition + 1)
        left.contour(grid, grid, heights, levels=[0.003, 0.01, 0.03, 0.1, 0.3, 1], colors="#b9b6ac", linewidths=0.9)
        left.plot(*path[:30].T, "-P", color=LOOKS["joint_from_zero"].color, linewidth=1, markersize=4, label="descent")
        left.plot([1, 0], [1, 0], "-o", color=LOOKS["alternating"].color, label="one solve")
        left.set(xlabel="error along the mean", ylabel="error across it", title=f"condition {condition:.3g}")
        left.set(xticks=(-1, 0, 1), yticks=(-1, 0, 1))
        left.legend(fontsize=9, loc="lower left")
        right.plot(np.maximum(loss, 1e-9), "-P", color=LOOKS["joint_from_zero"].color, markersize=4, markevery=0.1)
        right.plot([0, 1], [1, 1e-9], "-o", color=LOOKS["alternating"].color)
        right.axhline(target, color=INK, linestyle=":", linewidth=1)
        right.set(yscale="log", ylim=(1e-3, 1.5), xlabel="steps on the values", title="loss / first loss")
        right.set_xlim(0, len(path) - 1)
    return figure


def _map(ax: Axes, weights: np.ndarray, title: str, largest: float) -> None:
    ax.imshow(weights, vmin=0, vmax=largest)
    ticks = np.arange(0, len(weights), max(1, len(weights) // 4))
    ax.set(title=title, xlabel="looks at token")
    ax.set_xticks(ticks, [str(t + 1) for t in ticks])
    ax.set_yticks(ticks, [str(t + 1) for t in ticks])
    ax.set_ylabel("token")
    ax.grid(visible=False)


def _plain_ticks(ax: Axes, x: np.ndarray, y: tuple[int, ...]) -> None:
    ax.set_xticks(x, [f"{value:g}" for value in x])
    ax.set_yticks(y, [str(value) for value in y])
    ax.minorticks_off()
