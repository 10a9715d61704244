"""The pictures and tables of the chapter. Each function takes data sets and computes nothing but medians and bounds."""

from __future__ import annotations

from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnbook.core.figures import INK, Look, band, style
from attnbook.core.tables import Measured, Table
from attnbook.multi_head.training_bounds import experiments as own

LOG_2 = float(np.log(2))
FEW = Look("measured, 4 heads, practical step size", "#0b5cad", "-", "o")
PRACTICAL = Look("Corollary 2 there, hypotheses not met", "#5b5f66", "--", "^")
PAPER = Look(r"Corollary 2 at the paper's $1/\rho$", "#c2410c", "-.", "D")
CERTIFICATE = Look("certificate", "#15803d", (0, (5, 1)), "v")
CERTIFIED = Look("measured at its step size", "#7c3aed", (0, (1, 1)), "s")
PIECES = Look("Section 6.1, constants printed", "#c2410c", "-.", "D")
ORDER = Look("condition (3), constant 1", "#0e7490", "--", "<")
PLUS = Look("heads of sign +", "#4d7c0f", (0, (8, 2)), ">")
MINUS = Look("heads of sign −", "#9d174d", ":", "P")


def promise(data: xr.Dataset, certificates: xr.Dataset) -> Figure:
    """Draw measured average losses and what is promised for them, over many decades of steps."""
    recorded, steps = data.step[1:], np.geomspace(10, 1e13, 40)
    late = data.isel(heads=-1)
    bound, eta = late.start_output.clip(min=1), data.attrs["settings"]["step_size"]
    far = (2 * bound + np.log(xr.DataArray(steps, dims="steps"))) / late.margin
    practical = (2 / steps + 5 * far**2 / (4 * eta * steps)).transpose("seed", ...)
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.4))
        band(ax, recorded, data.average.isel(heads=0, step=slice(1, None)), FEW)
        band(ax, steps, practical, replace(PRACTICAL, marker=""))
        band(ax, steps[steps > 1e8], own.demands(data, steps[steps > 1e8]).bound, replace(PAPER, marker=""))
        _certified(ax, certificates, float(certificates.trained[-1]))
        _log_2(ax, 1e13)
        ax.set(xscale="log", yscale="log", xlim=(1, 1e13), ylim=(1e-2, 1e3))
        ax.set(xlabel="number of steps K", ylabel="average training loss")
        ax.legend(fontsize=9.5, loc="upper left", bbox_to_anchor=(0.02, 1))
    return figure


def certificate_frame(certificates: xr.Dataset, n_heads: float) -> Figure:
    """Draw the certificate for one number of heads, and the measured average where networks were trained."""
    with style():
        figure, ax = plt.subplots(figsize=(6.4, 3.8))
        _certified(ax, certificates, n_heads)
        _log_2(ax, float(certificates.step[-1]))
        ax.set(xscale="log", yscale="log", xlim=(1, 1000), ylim=(0.03, 30), title=f"H = {power(n_heads)}")
        ax.set(xlabel="number of steps K", ylabel="average training loss")
        ax.legend(fontsize=9.5, loc="upper right")
    return figure


def certificate_text(certificates: xr.Dataset, n_heads: float) -> str:
    """Return the numbers behind one picture of the slider."""
    ever = certificates.ever.sel(heads=n_heads)
    useful = int((ever < LOG_2).sum())
    best = "no target is allowed" if np.isinf(ever.median()) else f"the lowest bound is {_range(ever)}"
    return (
        f"{n_heads:,.0f} heads, step size {float(certificates.step_size.sel(heads=n_heads).median()):.3f}: "
        f"{best} for the best number of steps; below log 2 in {useful} of {ever.size} problems."
    )


def inside(data: xr.Dataset) -> Figure:
    """Draw the run that meets the paper's own hypotheses, beside its bound (4)."""
    later = data.isel(step=slice(1, None))
    bound = 2 * data.target_loss + 5 * data.target_distance**2 / (4 * data.step_size * later.step)
    with style():
        figure, ax = plt.subplots(figsize=(6.4, 3.8))
        band(ax, later.step, bound.transpose("seed", "step"), Look("Theorem 1, eq. (4)", PAPER.color, "-.", "D"))
        band(ax, later.step, later.average, replace(CERTIFIED, label="measured average"))
        band(ax, later.step, later.loss, Look("measured last loss", INK, ":", "."))
        _log_2(ax, float(later.step[-1]))
        ax.set(xscale="log", yscale="log", ylim=(0.05, 1e4), xlabel="number of steps K", ylabel="training loss")
        ax.legend(fontsize=9.5)
    return figure


def heads_asked(data: xr.Dataset) -> Figure:
    """Draw how many heads are asked for, against the number of steps."""
    steps = np.geomspace(10, 1e9, 17)
    found = own.demands(data, steps)
    with style():
        figure, ax = plt.subplots(figsize=(6.4, 3.8))
        band(ax, steps, found.sketch_heads, PIECES)
        band(ax, steps, found.order_heads, ORDER)
        band(ax, steps, found.certificate_heads, replace(CERTIFICATE, label="certificate, target at √2 g₀"))
        few = float(data.heads[0])
        ax.axhline(few, color=INK, linewidth=1)
        text = f"{few:g} heads: trained here without trouble"
        ax.annotate(text, (steps[-1], few), ha="right", va="bottom", fontsize=9.5)
        ax.set(xscale="log", yscale="log", ylim=(1, None), xlabel="number of steps K", ylabel="heads asked for")
        ax.legend(fontsize=9.5, loc="center left", bbox_to_anchor=(0, 0.3))
    return figure


def asked(data: xr.Dataset, certificates: xr.Dataset) -> Table:
    """Return what the theorem and a certificate ask for, and when they say something."""
    steps = np.geomspace(1e2, 1e15, 2601)
    found = own.demands(data, steps)
    useful = found.steps.where(found.bound < LOG_2).min("steps")
    at = found.sel(steps=1000, method="nearest")
    heads, wide = own.fewest_heads(certificates), certificates.isel(heads=-1)
    late = certificates.step.where(wide.bound < LOG_2).min("step")
    rows: list[list[str | Measured]] = [
        ["Theorem 1, condition (3) with constant 1", _cell(at.order_heads), "", ""],
        ["Theorem 1, printed constants (Section 6.1)", _cell(at.sketch_heads), _cell(at.step_size), _cell(useful)],
        ["certificate", _cell(heads), _cell(wide.step_size), _cell(late)],
    ]
    caption = (
        f"Median [smallest, largest] over {data.seed.size} problems, for certificates {certificates.seed.size}. "
        "Theorem 1: target at g₀ for K = 1000. Certificate: fewest heads of a grid from which on the bound for some "
        "number of steps is below log 2; its steps at 10¹² heads, of those recorded."
    )
    return Table(["", "heads", "step size", "steps until the bound is below log 2"], rows, caption)


def lazy(data: xr.Dataset) -> Figure:
    """Draw how far heads move, how far from linear training is and where attention ends, against the width."""
    heads, above = data.heads.values, data.linear_gap.min("seed") > own.ROUNDING
    move, gap = data.largest_move.isel(step=-1), data.linear_gap.where(above, drop=True)
    uniform = data.attrs["settings"]["relevant_fraction"]
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.6))
        band(left, heads, move, Look("movement of a head", FEW.color, "-", "o"))
        band(left, gap.heads.values, gap, Look("gap to linear", PAPER.color, "-.", "D"))
        _slope(left, heads[1:], float(move[:, 1].median()) * 3, -0.5, "slope −1/2")
        _slope(left, gap.heads.values[1:], float(gap[:, 1].median()) / 30, -1, "slope −1")
        left.set(xscale="log", yscale="log", xlabel="number of heads H", title="heads move less")
        left.legend(fontsize=9.5)
        band(right, heads, data.attention.sel(sign="+"), PLUS)
        band(right, heads, data.attention.sel(sign="-"), MINUS)
        right.axhline(uniform, color=INK, linewidth=1)
        right.set(xscale="log", xlabel="number of heads H", title="attention on relevant tokens", ylim=(0.4, 0.8))
        right.legend(fontsize=9.5)
    return figure


def between_networks(data: xr.Dataset) -> Figure:
    """Draw the loss between permuted copies, and how far from a network a hill is found."""
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.6))
        looks = (Look("", "#0e7490", "--", "<"), Look("", MINUS.color, ":", "P"))
        for n_heads, look in zip(data.heads.values, looks, strict=True):
            loss = data.permuted.sel(heads=n_heads)
            named = replace(look, label=f"H = {n_heads}")
            band(left, data.share, (loss / loss.isel(share=0)).transpose("seed", "share"), named)
        left.axhline(4 / 3, color=INK, linewidth=1)
        left.annotate("4/3", (0, 4 / 3), va="bottom")
        left.set(xlabel="position between the copies", title="loss / loss of the copies")
        left.legend(fontsize=9.5)
        rise = data.hill - 1
        band(right, data.multiple, rise, Look("", INK, "-", "o"))
        right.axhline(1 / 3, color=INK, linewidth=1)
        right.annotate("Proposition 4", (1, 1 / 3), va="bottom", fontsize=9.5)
        right.axvline(1, color=INK, linewidth=1, linestyle=":")
        right.set(xscale="log", yscale="log", xlabel="distance / allowed distance", title="rise above the larger end")
    return figure


def power(number: float) -> str:
    """Return a number of heads for a title or a slider."""
    mantissa, exponent = f"{number:.0e}".split("e")
    raised = "10" + str(int(exponent)).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return raised if mantissa == "1" else f"{mantissa} · {raised}"


def _certified(ax: Axes, certificates: xr.Dataset, n_heads: float) -> None:
    """Draw the certificate of one width where all problems have one, and what was measured."""
    bound, later = certificates.bound.sel(heads=n_heads), certificates.step[1:]
    there = np.isfinite(bound).all("seed").values
    if there.any():
        band(ax, certificates.step[there], bound[:, there], replace(CERTIFICATE, label="certificate for these"))
    if n_heads in certificates.trained:
        band(ax, later, certificates.average.sel(trained=n_heads).isel(step=slice(1, None)), CERTIFIED)


def _log_2(ax: Axes, right: float) -> None:
    ax.axhline(LOG_2, color=INK, linewidth=1)
    ax.annotate("log 2", (right, LOG_2), ha="right", va="bottom", fontsize=9.5)


def _slope(ax: Axes, x: np.ndarray, start: float, power: float, text: str) -> None:
    """Draw a reference slope and name it."""
    y = start * (x / x[0]) ** power
    ax.plot(x, y, color=INK, linewidth=1, linestyle=":")
    ax.annotate(text, (x[len(x) // 2], y[len(x) // 2]), xytext=(4, 4), textcoords="offset points", fontsize=9.5)


def _range(values: xr.DataArray) -> str:
    low, middle, high = np.quantile(values, (0, 0.5, 1))
    return f"{_short(middle)} [{_short(low)}, {_short(high)}]"


def _cell(values: xr.DataArray) -> Measured:
    return Measured(_range(values))


def _short(number: float) -> str:
    """Three digits; large and small numbers with a power of ten."""
    return f"{number:.3g}" if 1e-3 <= abs(number) < 1e4 or not np.isfinite(number) else f"{number:.1e}"
