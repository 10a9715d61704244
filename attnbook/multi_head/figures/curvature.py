"""The pictures of the chapter on curvature."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float

from attnbook.core.figures import INK, Look, band, style
from attnbook.multi_head.experiments import curvature, eigenvalues, single_head
from attnbook.multi_head.figures.looks import LOOKS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "bound_ladder",
    "curvature_and_bounds",
    "curvature_without_the_loss",
    "explorer_frame",
    "hessian_parts",
    "lone_head",
    "single_head_bounds",
    "typical_and_largest_head",
]

RELATIVE = r"$-\lambda_{\min}/\hat L$"
HEADS = "number of heads H"


def curvature_and_bounds(result: curvature.Curvature) -> Figure:
    """Draw the most negative curvature relative to the loss against the number of heads, alone and below its bounds."""
    heads = np.array(result.settings.heads)
    with style():
        figure, (left, right) = plt.subplots(2, 1, figsize=(5.4, 7.0))
        for point in ("trained", "random"):
            samples = result.relative[:, curvature.POINTS.index(point)]
            band(left, heads, samples, LOOKS[point])
            band(right, heads, samples, LOOKS[point])
        start = np.median(result.relative[:, curvature.POINTS.index("trained"), 0]) * 1.5
        _slope(left, heads, start, -0.5, "slope −1/2")
        trained = curvature.POINTS.index("trained")
        for name in ("curvature", "dimension_free_curvature"):
            stated = result.constants(name)[:, trained] / np.sqrt(heads)
            band(right, heads, stated, LOOKS[name])
        left.set(title="measured", ylabel=f"most negative curvature {RELATIVE}")
        right.set(title="beside the bounds at trained points", ylabel=RELATIVE)
        for ax in (left, right):
            _head_axis(ax, heads)
            ax.set_yscale("log")
        right.set_ylim(top=right.get_ylim()[1] * 30)
        left.legend(loc="lower left", fontsize=9)
        lines, names = right.get_legend_handles_labels()
        right.legend(lines[2:], names[2:], loc="upper right", fontsize=9)
    return figure


def single_head_bounds(result: single_head.SingleHead) -> Figure:
    """Draw how much of each Hessian bound is used, by dimension and by the size of the decoder."""
    dimensions = np.array(result.settings.dimensions)
    labels = {"hessian": "curvature", "dimension_free_hessian": "dimension_free_curvature"}
    with style():
        figure, (left, right) = plt.subplots(2, 1, figsize=(5.4, 6.6))
        for bound, name in labels.items():
            look = LOOKS[name]
            band(left, dimensions, result.of(bound, "random").max(axis=2), look)
            ratios = result.of(bound, "lopsided").ravel()
            shares = result.decoder_share[:, :, single_head.KINDS.index("lopsided")].ravel()
            dots = {"color": look.color, "marker": look.marker, "linestyle": "none", "markersize": 3.2}
            right.plot(shares, ratios, **dots)
        left.set(title="random draws", xscale="log", yscale="log", xlabel="dimension of a token d")
        left.set_ylabel("measured / stated, largest draw")
        left.set_xticks(dimensions, [f"{d}" for d in dimensions])
        left.minorticks_off()
        left.set_ylim(top=1.5)
        right.set(title="lopsided draws, looks as above", xlabel="decoder's share of the bound without dimension")
        right.set_ylabel("measured / stated")
        right.set_ylim(0, 1.08)
        for ax in (left, right):
            ax.axhline(1, color=INK, linewidth=1, linestyle=":")
        left.annotate(
            "the bound", (dimensions[-1], 1), ha="right", va="top", xytext=(0, -3), textcoords="offset points"
        )
        left.legend(fontsize=9, loc="lower left")
    return figure


def bound_ladder(one: single_head.SingleHead, loss: curvature.Curvature) -> Figure:
    """Draw how far below each bound the measured values lie, one rung per bound."""
    ratios = loss.ratios
    rungs = {
        "Prop. 1, gradient": one.of("gradient", "random"),
        "Prop. 1, Hessian": one.of("hessian", "random"),
        "Hessian, no dimension": one.of("dimension_free_hessian", "random"),
        "Cor. 1 (1), gradient": ratios["gradient"],
        "Cor. 1 (2), smoothness": ratios["smoothness"],
        "Cor. 1 (3), $\\lambda_{\\min}$": ratios["curvature"],
        "$\\lambda_{\\min}$, no dimension": ratios["dimension_free_curvature"],
    }
    ours = {"Hessian, no dimension", "$\\lambda_{\\min}$, no dimension"}
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.6))
        for height, (name, values) in enumerate(reversed(rungs.items())):
            look = LOOKS["dimension_free_curvature" if name in ours else "curvature"]
            middle, high = np.median(values), values.max()
            ax.plot([high, 1], [height, height], color=look.color, linewidth=1, linestyle=":", marker="")
            ax.plot([middle, high], [height, height], color=look.color, linewidth=5, alpha=0.35, solid_capstyle="butt")
            ax.plot(middle, height, color=look.color, marker="|", markersize=12, markeredgewidth=2)
            ax.plot(high, height, color=look.color, marker=look.marker, markersize=7)
        ax.axvline(1, color=INK, linewidth=1.4)
        ax.annotate("the bound", (1, len(rungs) - 0.45), ha="right", xytext=(-4, 0), textcoords="offset points")
        ax.set_yticks(range(len(rungs)), list(reversed(rungs)))
        ax.set(xscale="log", xlabel="measured / stated: from the median to the largest", xlim=(None, 2))
        ax.set_ylim(-0.6, len(rungs) - 0.1)
        ax.grid(visible=False, axis="y")
    return figure


def typical_and_largest_head(result: curvature.Curvature) -> Figure:
    r"""Draw the curvature of the whole loss, the worst and the typical block at random points, times $\sqrt H$."""
    heads, at = np.array(result.settings.heads), curvature.POINTS.index("random")
    root = np.sqrt(heads)
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.4))
        band(ax, heads, result.scaled[:, at], Look("the whole loss", *_rest(LOOKS["random"])))
        for values, name in ((result.worst_head, "worst"), (result.typical_head, "typical")):
            band(ax, heads, (values / result.loss)[:, at] * root, LOOKS[name])
        _head_axis(ax, heads)
        ax.set(ylabel=r"$-\lambda_{\min}\sqrt{H}/\hat L$, random points", ylim=(0, None))
        ax.legend(loc="lower right")
    return figure


def curvature_without_the_loss(result: curvature.Curvature) -> Figure:
    r"""Draw the loss and the most negative eigenvalue itself, after equally many steps and at equal loss."""
    heads, at = np.array(result.settings.heads), curvature.POINTS.index("trained")
    equal = curvature.POINTS.index("equal")
    with style():
        figure, (left, right) = plt.subplots(2, 1, figsize=(5.4, 6.4))
        band(left, heads, result.loss[:, at], LOOKS["trained"])
        band(left, heads, result.loss[:, equal], LOOKS["equal"])
        band(right, heads, -result.smallest[:, at], LOOKS["trained"])
        band(right, heads, -result.smallest[:, equal], LOOKS["equal"])
        _slope(right, heads, np.median(-result.smallest[:, at, 0]) * 0.8, -0.5, "slope −1/2", below=True)
        left.legend(fontsize=9, loc="center right")
        left.set(title=f"loss (trained: {result.settings.steps} steps)", ylabel=r"training loss $\hat L$")
        right.set(title="curvature itself", ylabel=r"$-\lambda_{\min}$")
        for ax in (left, right):
            _head_axis(ax, heads)
            ax.set_yscale("log")
    return figure


def lone_head(result: curvature.Curvature) -> Figure:
    """Draw the curvature where training spread the work over the heads and where one head does it all."""
    heads = np.array(result.settings.heads)
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.4))
        for point, label in {"trained": "all heads trained", "lone": LOOKS["lone"].label}.items():
            look = Look(label, *_rest(LOOKS[point]))
            band(ax, heads, result.relative[:, curvature.POINTS.index(point)], look)
        _head_axis(ax, heads)
        ax.set(yscale="log", ylabel=RELATIVE)
        ax.legend(loc="lower left")
    return figure


def explorer_frame(result: eigenvalues.Eigenvalues, point: str, n_heads: int) -> Figure:
    """Draw how many eigenvalues lie where, for one kind of point and one number of heads."""
    settings = result.settings
    i, j = eigenvalues.SHOWN.index(point), settings.heads.index(n_heads)
    middles = settings.bin_width * np.arange(-settings.bins_below, settings.bins_above + 1)
    counts = result.counts[0, i, j]
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.2))
        for chosen, color in ((middles < -1e-9, INK), (abs(middles) < 1e-9, "#d0d3d8"), (middles > 1e-9, "#8a9099")):
            ax.bar(middles[chosen], counts[chosen], width=settings.bin_width * 0.9, color=color)
        smallest = result.smallest[0, i, j]
        ax.plot([smallest] * 2, [0.7, 3e4], color=INK, linewidth=1.2, linestyle="--")
        ax.annotate("smallest", (smallest, 1.4e4), xytext=(4, 0), textcoords="offset points")
        last = (f"{middles[-1]:.2g} and above", (middles[-1], 0.7))
        ax.annotate(*last, xytext=(0, 40), textcoords="offset points", ha="right", fontsize=9)
        ax.set(yscale="log", ylim=(0.7, 3e4), xlim=(middles[0] * 1.05, middles[-1] * 1.02))
        ax.set(xlabel=r"eigenvalue of the Hessian, in units of the loss $\hat L$", ylabel="eigenvalues in the bin")
        ax.set_title(f"{LOOKS[point].label}, H = {n_heads}")
    return figure


def hessian_parts(
    bowl: Float[np.ndarray, "size size"], rest: Float[np.ndarray, "size size"], n_heads: int, *, top: float
) -> Figure:
    """Draw the sizes of the entries of both parts of the Hessian, with a line between any two heads.

    Args:
        bowl: The part that is never negative.
        rest: The part that may be negative.
        n_heads: Number of heads; their parameters follow one another.
        top: The entry that is drawn in black.

    Returns:
        The picture; grey values show the root of the size, so that small entries are seen.
    """
    block = len(bowl) // n_heads
    with style():
        figure, panels = plt.subplots(1, 2, figsize=(5.4, 3.1))
        for ax, part, name in zip(panels, (bowl, rest), ("the bowl", "the rest"), strict=True):
            ax.imshow(np.sqrt(np.abs(part) / top), cmap="Greys", vmin=0, vmax=1, interpolation="nearest")
            for edge in range(block, len(part), block):
                ax.axhline(edge - 0.5, color="#c2410c", linewidth=0.5)
                ax.axvline(edge - 0.5, color="#c2410c", linewidth=0.5)
            ax.set(xticks=[], yticks=[], title=name, xlabel="parameters, head after head")
            ax.grid(visible=False)
        heads = "one head" if n_heads == 1 else f"{n_heads} heads"
        panels[0].set_ylabel(heads)
    return figure


def _rest(look: Look) -> tuple[str, str | tuple[int, tuple[int, ...]], str]:
    return look.color, look.line, look.marker


def _head_axis(ax: Axes, heads: np.ndarray) -> None:
    ax.set(xscale="log", xlabel=HEADS)
    ax.set_xticks(heads, [f"{h}" for h in heads])
    ax.minorticks_off()


def _slope(ax: Axes, heads: np.ndarray, start: float, power: float, text: str, *, below: bool = False) -> None:
    """Draw a reference slope and name it."""
    ax.plot(heads, start * (heads / heads[0]) ** power, color=INK, linewidth=1, linestyle=":", marker="")
    middle = len(heads) // 2
    at = (heads[middle], start * (heads[middle] / heads[0]) ** power)
    offset, side = ((-4, -12), "right") if below else ((3, 5), "left")
    ax.annotate(text, at, xytext=offset, textcoords="offset points", fontsize=10, ha=side)
