"""The pictures of the chapter on the stability of the kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np

from attnbook.core.figures import INK, Look, band, style
from attnbook.softmax_ntk.experiments import eigenvalue_radius, kernel_movement, lemma_b1, smallest_eigenvalues
from attnbook.softmax_ntk.experiments.runs import ACTIVATIONS, ROUNDING
from attnbook.softmax_ntk.figures.lazy_training import LOOKS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "DIRECTIONS",
    "condition_numbers",
    "degrees_frame",
    "eigenvalue_left",
    "movement",
    "movement_against_width",
    "named",
    "parts_of_lemma",
    "scale_and_rank",
    "spectrum_frame",
]

DIRECTIONS: Mapping[str, Look] = {
    "random": Look("random", "#7c3aed", "-", "D"),
    "common": Look("all alike", "#8a5a00", "--", "P"),
    "spread": Look("spread", "#be185d", "-.", "X"),
    "gdlike": Look("opposite in pairs", "#0f766e", ":", "v"),
    "inward": Look("inward", "#111827", (0, (5, 1)), "o"),
}
# Below all changes that are not rounding.
LEAST = 3e-9
# Eigenvalues outside are drawn at the edge of the slider's picture.
EDGES = (1e-4, 1e4)


def movement(result: kernel_movement.KernelMovement) -> Figure:
    """Draw the relative change of the kernel against the radius, one panel per network, one line per direction."""
    radii = np.array(result.settings.radii)

    def draw(ax: Axes, name: str) -> None:
        for direction in kernel_movement.DIRECTIONS:
            if (direction, name) != ("common", "softmax"):
                band(ax, radii, _where_moved(result.relative(direction, name)), DIRECTIONS[direction])
        if name == "softmax":
            ax.annotate(
                "\u2193 all alike: rounding error", (1, 0.03), xycoords="axes fraction", ha="right", fontsize=10
            )
        if name != "relu":
            _slope(ax, radii, 4 * np.median(result.relative("spread", name)[:, 0]), 1, up=True)
            _slope(ax, radii, 0.2 * np.median(result.relative("gdlike", name)[:, 0]), 2)
        else:
            _slope(ax, radii, 0.3 * np.median(result.relative("random", name)[:, 0]), 0.5)
        ax.set(xscale="log", yscale="log", ylim=(LEAST, 3))

    return _panels(draw, "distance moved, $R$", "change of the kernel, relative")


def movement_against_width(result: kernel_movement.KernelMovement) -> Figure:
    """Draw the relative change at one radius against the width, one panel per network."""
    widths = np.array(result.settings.widths)

    def draw(ax: Axes, name: str) -> None:
        j = ACTIVATIONS.index(name)
        for i, direction in enumerate(kernel_movement.DIRECTIONS):
            if (direction, name) != ("common", "softmax"):
                band(ax, widths, _where_moved(result.by_width[:, :, i, j]), DIRECTIONS[direction])
        _slope(ax, widths, 0.45 * np.median(result.by_width[:, 0, 0, j]), -0.5)
        ax.set(xscale="log", yscale="log", ylim=(1e-6, 3e-2))
        ax.set_xticks(widths[::3], [str(m) for m in widths[::3]])
        ax.minorticks_off()

    return _panels(draw, "width", f"change of the kernel at $R={result.settings.radius:g}$")


def eigenvalue_left(result: eigenvalue_radius.EigenvalueRadius, n_samples: int, n_outputs: int) -> Figure:
    """Draw what is left of the smallest eigenvalue against the radius, one panel per direction."""
    s = result.settings
    ratio = result.ratio()[:, s.outputs.index(n_outputs), s.sizes.index(n_samples), 1:]
    radii = np.array(s.radii[1:])
    with style():
        figure, axes = plt.subplots(2, 2, figsize=(6.8, 5.8), sharex=True, sharey=True)
        for i, (ax, direction) in enumerate(zip(axes.flat, eigenvalue_radius.DIRECTIONS, strict=True)):
            for j, name in enumerate(ACTIVATIONS):
                band(ax, radii, np.clip(ratio[:, :, i, j], 2e-4, 3e2), LOOKS[name])
                ax.lines[-1].set_markevery(4)
            ax.axhline(0.5, color=INK, linewidth=1, linestyle=":")
            ax.set(xscale="log", yscale="log", ylim=(1e-4, 5e2), title=DIRECTIONS[direction].label)
            ax.set_xticks([0.5, 2, 8], ["0.5", "2", "8"])
            ax.minorticks_off()
        axes[1, 0].annotate("half", (0.5, 0.5), xytext=(2, -13), textcoords="offset points", fontsize=10)
        axes[0, 0].legend(loc="lower left", fontsize=10)
        figure.supxlabel("distance moved, $R$", fontsize=11.5)
        figure.supylabel(r"$\lambda$ after / before", fontsize=11.5)
    return figure


def parts_of_lemma(result: lemma_b1.LemmaB1) -> Figure:
    """Draw left side over bound for each part of Lemma B.1: every trial a dot, the largest a mark, per kind of move."""
    parts = np.arange(1, lemma_b1.PARTS + 1)
    looks = (DIRECTIONS["random"], DIRECTIONS["common"], DIRECTIONS["spread"])
    with style():
        figure, ax = plt.subplots(figsize=(5.0, 5.2))
        for i, (look, move) in enumerate(zip(looks, lemma_b1.MOVES, strict=True)):
            ratio, at = result.ratio[:, i], parts + 0.22 * (i - 1)
            ax.plot(ratio.T, at, ".", color=look.color, alpha=0.2, markersize=4)
            ax.plot(ratio.max(axis=0), at, look.marker, color=look.color, markersize=6, label=move)
        ax.axvline(1, color=INK, linewidth=1)
        ax.axhline(lemma_b1.TIGHT + 0.5, color=INK, linewidth=0.8, linestyle=":")
        ax.annotate("the bound", (1, 13.6), xytext=(-4, 0), textcoords="offset points", ha="right", fontsize=10)
        ax.set(xscale="log", xlabel="left side / bound", ylabel="part of Lemma B.1", ylim=(13.9, 0.4))
        ax.set_yticks(parts)
        ax.set_xticks([1e-16, 1e-12, 1e-8, 1e-4, 1])
        ax.legend(loc="upper left", fontsize=10, title="neurons move")
    return figure


def condition_numbers(result: smallest_eigenvalues.SmallestEigenvalues) -> Figure:
    """Draw the condition number at infinite width against the number of samples, one panel per number of inputs."""
    s = result.settings
    sizes, condition = np.array(s.sizes), result.condition()
    with style():
        figure, axes = plt.subplots(1, len(s.inputs), figsize=(6.8, 3.8), sharey=True)
        for i, ax in enumerate(axes):
            for j, name in enumerate(ACTIVATIONS):
                look = LOOKS[name]
                if name == "exp":  # lies on top of softmax
                    look = Look(look.label, look.color, "none", look.marker, hollow=True)
                band(ax, sizes, condition[:, i, :, j], look)
            ax.set(xscale="log", yscale="log", xlabel="samples", title=f"{s.inputs[i]} inputs")
            ax.set_xticks(sizes, [str(n) for n in sizes])
            ax.minorticks_off()
        axes[0].set_ylabel(r"$\lambda_{\max}/\lambda$")
        axes[0].legend(loc="upper left")
    return figure


def scale_and_rank(result: smallest_eigenvalues.SmallestEigenvalues) -> Figure:
    """Draw the inverse condition number against the weight scale, and the rank of paired networks against the width."""
    s = result.settings
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(6.8, 3.8))
        scales = np.array(s.scales)
        for j in (0, 2):
            band(left, scales, result.inverse_condition[..., j], LOOKS[ACTIVATIONS[j]])
        left.set(
            yscale="log", xlabel=r"weight scale $\sigma$", ylabel=r"$\lambda/\lambda_{\max}$", title="conditioning"
        )
        left.legend(loc="lower right")
        widths = np.array(s.rank_widths)
        jitter = np.linspace(-0.7, 0.7, len(s.seeds))[:, None]
        right.plot(widths + jitter, result.ranks, ".", color=LOOKS["softmax"].color, alpha=0.45)
        right.plot([], [], ".", color=LOOKS["softmax"].color, label="measured")
        right.plot(widths, result.counting_bound(), color=INK, linestyle=":", marker="_", label="counting bound")
        right.set(xlabel="width", title="rank, softmax", ylim=(0, None))
        right.set_xticks(widths[::2])
        right.legend(loc="lower right")
    return figure


def spectrum_frame(result: eigenvalue_radius.EigenvalueRadius, direction: str, radius: float) -> Figure:
    """Draw the eigenvalues of the three kernels before and after a move in a direction, named as in legends."""
    after = result.spectra[0, list(DIRECTIONS).index(named(direction)), result.settings.shown_radii.index(radius)]
    before, order = result.spectra_before[0], np.arange(1, len(after) + 1)
    with style():
        figure, axes = plt.subplots(2, 2, figsize=(6.0, 5.2), sharex=True, sharey=True)
        for j, (ax, name) in enumerate(zip(axes.flat, ACTIVATIONS, strict=False)):
            look = LOOKS[name]
            ax.plot(order, before[::-1, j], color=INK, linewidth=1.2)
            ax.plot(order, np.clip(after[::-1, j], *EDGES), look.marker, color=look.color, markersize=4)
            ax.axhline(before[0, j] / 2, color=INK, linestyle=":", linewidth=1)
            ax.set(yscale="log", ylim=(EDGES[0] / 2, EDGES[1] * 2), title=look.label)
        axes[0, 1].tick_params(labelbottom=True)
        figure.supxlabel("eigenvalue, from the largest", fontsize=11.5)
        corner = axes[1, 1]
        corner.set_axis_off()
        corner.plot([], [], color=INK, linewidth=1.2, label="before")
        corner.plot([], [], "o", color=LOOKS["softmax"].color, markersize=4, label="after")
        corner.plot([], [], color=INK, linestyle=":", linewidth=1, label="half of the smallest")
        corner.legend(loc="center", fontsize=10.5, title=f"{direction}, R = {radius:g}")
    return figure


def degrees_frame(softmax: np.ndarray, relu: np.ndarray, counts: Sequence[int], scale: float) -> Figure:
    """Draw two spectra over their largest eigenvalue, and after how many polynomials each degree is used up."""
    order = np.arange(1, len(softmax) + 1)
    with style():
        figure, ax = plt.subplots(figsize=(6.0, 3.9))
        for k, count in enumerate(counts):
            ax.axvline(count + 0.5, color=INK, linewidth=0.8, linestyle=":")
            ax.annotate(f"{k}", (count + 0.5, 2.2), xytext=(-3, 0), textcoords="offset points", ha="right", fontsize=10)
        for name, values in (("relu", relu), ("softmax", softmax)):
            look = LOOKS[name]
            ax.plot(order, values / values[0], look.marker, color=look.color, markersize=4, label=look.label)
        ax.set(yscale="log", ylim=(5e-8, 6), xlabel="eigenvalue, from the largest", ylabel="share of the largest")
        ax.set_title(f"weight scale {scale:g}; on top: polynomials up to degree", fontsize=11.5)
        ax.legend(loc="lower left")
    return figure


def _where_moved(change: np.ndarray) -> np.ndarray:
    """Networks of which no neuron switched lie on the lower edge of the others, where the median does not see them."""
    least = np.where(change > 0, change, np.inf).min(axis=0)
    return np.maximum(change, np.where(np.isfinite(least), least, ROUNDING))


def named(label: str) -> str:
    """Return the direction that a legend calls by this name."""
    return next(name for name, look in DIRECTIONS.items() if look.label == label)


def _panels(draw: Callable[[Axes, str], None], xlabel: str, ylabel: str) -> Figure:
    """Three panels, one per network, and a legend of directions in the fourth."""
    with style():
        figure, axes = plt.subplots(2, 2, figsize=(6.8, 6.0), sharex=True, sharey=True)
        for ax, name in zip(axes.flat, ACTIVATIONS, strict=False):
            draw(ax, name)
            ax.set_title(LOOKS[name].label)
        axes[0, 1].tick_params(labelbottom=True)
        _legend_panel(axes[1, 1], [DIRECTIONS[d] for d in kernel_movement.DIRECTIONS])
        figure.supxlabel(xlabel, fontsize=11.5)
        figure.supylabel(ylabel, fontsize=11.5)
    return figure


def _legend_panel(ax: Axes, looks: Sequence[Look]) -> None:
    ax.set_axis_off()
    for look in looks:
        ax.plot([], [], **look.line_style())
    ax.legend(loc="center", fontsize=11.5)


def _slope(ax: Axes, x: np.ndarray, start: float, power: float, *, up: bool = False) -> None:
    """A dotted line of a power, named."""
    line = start * (x / x[0]) ** float(power)
    at = len(x) // 2
    ax.plot(x, line, color=INK, linewidth=1, linestyle=(0, (1, 2)))
    ax.annotate(
        f"slope {power:g}".replace("-", "\u2212"),
        (x[at], line[at]),
        xytext=(-6, 6) if up else (4, -13),
        textcoords="offset points",
        ha="right" if up else "left",
        fontsize=10,
    )
