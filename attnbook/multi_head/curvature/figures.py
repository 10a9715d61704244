"""The pictures and tables of the chapter. Each function takes data sets and computes nothing but medians."""

from __future__ import annotations

import itertools

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from attnbook.core.figures import INK, Look, band, legend_above, log_axis, style
from attnbook.core.tables import Measured, Table, spread
from attnbook.multi_head.curvature import experiments as own
from attnbook.multi_head.curvature.points import WORST, two_parts
from attnbook.multi_head.experiment_parts import slope

LOOKS = {
    "random": Look("random points", "#c2410c", "-.", "^"),
    "trained": Look("trained points", "#0b5cad", "-", "o"),
    "equal": Look("trained to equal loss", "#9d174d", (0, (3, 1, 1, 1, 1, 1)), "P"),
    "lone": Look("one head does the work", "#7c3aed", ":", "D"),
    "curvature": Look("the paper's bound", "#111111", (0, (1, 1)), "X"),
    "dimension_free_curvature": Look("the bound without dimension (ours)", "#15803d", (0, (5, 1)), "v"),
}
RELATIVE = r"$-\lambda_{\min}/\hat L$"


def law(data: xr.Dataset) -> Figure:
    """Draw the most negative curvature relative to the loss against the number of heads, below both bounds."""
    small, stated = own.relative(data).sel(scale=0.5), own.constants(data, data.head_norm)
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 4.0))
        names = ("curvature", "dimension_free_curvature")
        drawn = {name: (stated[name] / np.sqrt(data.heads)).sel(scale=0.5, point="trained") for name in names}
        drawn |= {point: small.sel(point=point) for point in ("random", "equal", "trained")}
        for name, values in drawn.items():
            band(ax, data.heads, values.transpose("seed", "heads"), LOOKS[name])
        start = float(small.sel(point="random").isel(heads=0).median()) * 2
        ax.plot(data.heads, start / np.sqrt(data.heads), color=INK, linewidth=1, linestyle=":")
        ax.annotate("slope -1/2", (16, start / 4), xytext=(4, 4), textcoords="offset points", fontsize=10)
        ax.set(yscale="log", ylabel=f"most negative curvature {RELATIVE}")
        log_axis(ax, data.heads.values, "number of heads H")
        legend_above(ax, ncols=2, fontsize=9)
    return figure


def parts_frame(n_heads: int) -> Figure:
    """Draw the sizes of the entries of both parts of a Hessian, with a line between any two heads."""
    bowl, rest, _ = two_parts(n_heads)
    top, block = max(abs(part).max() for part in two_parts(2)[:2]), len(bowl) // n_heads
    with style():
        figure, panels = plt.subplots(1, 2, figsize=(5.4, 3.1))
        for ax, part, name in zip(panels, (bowl, rest), ("the bowl", "the rest"), strict=True):
            # The cube root of the size, so that small entries are seen.
            ax.imshow(np.cbrt(np.abs(part) / top), cmap="Greys", vmin=0, vmax=1, interpolation="nearest")
            for edge in range(block, len(part), block):
                ax.axhline(edge - 0.5, color="#c2410c", linewidth=0.5)
                ax.axvline(edge - 0.5, color="#c2410c", linewidth=0.5)
            ax.set(xticks=[], yticks=[], title=name, xlabel="parameters, head after head")
            ax.grid(visible=False)
        panels[0].set_ylabel(f"{n_heads} heads")
    return figure


def parts_text(n_heads: int) -> str:
    """Return the numbers behind one picture of the two parts."""
    bowl, rest, loss = two_parts(n_heads)
    largest, smallest = np.linalg.eigvalsh(bowl)[-1] / loss, np.linalg.eigvalsh(rest)[0] / loss
    return (
        f"H = {n_heads}: {(np.abs(rest) > 1e-12).mean():.1%} of the entries of the rest are not zero. Largest "
        f"eigenvalue of the bowl: {largest:.2g} times the loss. Smallest of the rest: {smallest:.2g} times the loss; "
        f"times the root of H, {smallest * np.sqrt(n_heads):.2g}."
    )


def one_head(data: xr.Dataset) -> Figure:
    """Draw how much of each Hessian bound is used, by dimension and by the size of the decoder."""
    names = {"Hessian": "curvature", "Hessian without dimension": "dimension_free_curvature"}
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.4))
        for bound, name in names.items():
            ratio, look = data.ratio.sel(bound=bound), LOOKS[name]
            band(left, data.dimension, ratio.sel(kind="random").max("draw"), look)
            near, share = ratio.sel(kind="lopsided"), data.decoder_share.sel(kind="lopsided")
            dots = {"color": look.color, "marker": look.marker, "linestyle": "none", "markersize": 3.2}
            right.plot(share.values.ravel(), near.values.ravel(), **dots)
        left.set(title="random draws", yscale="log", ylim=(None, 2))
        log_axis(left, data.dimension.values, "dimension of a token d")
        right.set(title="draws made to come near", xlabel="decoder's share of our bound", ylim=(0, 1.08))
        for ax in (left, right):
            ax.axhline(1, color=INK, linewidth=1, linestyle=":")
        left.set_ylabel("measured / stated")
        left.legend(fontsize=9, loc="lower left")
    return figure


def slack(data: xr.Dataset) -> Table:
    """Return how far below each bound of Corollary 1 the measured values lie."""
    over, thinner = own.ratios(data, data.head_norm), own.ratios(data, data.decoder_norm)
    bounds = {
        "part 1, gradient": over["gradient"],
        "part 2, smoothness": over["smoothness"],
        "part 3, most negative curvature": over["curvature"],
        "part 3 with the norm of U alone": thinner["curvature"],
        "part 3 without dimension (ours)": over["dimension_free_curvature"],
    }
    rows: list[list[str | Measured]] = []
    for name, ratio in bounds.items():
        plain, worst = ratio.sel(point=["random", "trained", "lone", "equal"]), ratio.sel(point=list(WORST))
        rows.append([name, *(Measured(f"{float(x):.2g}") for x in (plain.median(), plain.max(), worst.max()))])
    caption = (
        "Measured over stated, all seeds and numbers of heads. Plain: random, trained, lone and equal points; made to "
        "come near: zero weights with equal or opposite tokens."
    )
    return Table(["Corollary 1", "plain, median", "plain, largest", "made to come near"], rows, caption)


def slopes(data: xr.Dataset) -> Table:
    """Return how fast curvature falls with the number of heads, at each kind of point and size of the weights."""
    quantities = {
        "relative to the loss": own.relative(data),
        "not divided by the loss": -data.smallest,
        "the median head's own block, relative to the loss": data.typical_head / data.loss,
    }
    points = ("random", "trained", "equal", "lone")
    rows: list[list[str | Measured]] = []
    for (name, values), scale in itertools.product(quantities.items(), data.scale.values):
        if np.isfinite(values.sel(point="random")).all():
            at = slope(values).sel(scale=scale)
            rows.append([f"{name}, start weights {scale:g}", *(spread(at.sel(point=one), ".2f") for one in points)])
    caption = (
        f"Slope of the logarithm of the most negative curvature in log H, H = {data.heads.values[0]} to "
        f"{data.heads.values[-1]}: median over {data.sizes['seed']} seeds [smallest, largest]."
    )
    return Table(["most negative curvature", *(LOOKS[point].label for point in points)], rows, caption)
