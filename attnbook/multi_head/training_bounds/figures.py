"""The pictures and tables of the chapter. Each function takes data sets and computes nothing but medians and bounds."""

from __future__ import annotations

from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnbook.core.figures import INK, Look, band, legend_above, style
from attnbook.core.tables import Measured, Table
from attnbook.multi_head.training_bounds import experiments as own

LOG_2 = float(np.log(2))
FEW = Look("measured, 4 heads, practical step size", "#0b5cad", "-", "o")
PRACTICAL = Look("Corollary 2 there, hypotheses not met", "#5b5f66", "--", "")
PAPER = Look(r"Corollary 2 at the paper's $1/\rho$", "#c2410c", "-.", "")
CERTIFICATE = Look("certificate", "#15803d", (0, (5, 1)), "v")
CERTIFIED = Look("measured at its step size", "#7c3aed", (0, (1, 1)), "s")
PLUS = Look("heads of sign +", "#4d7c0f", (0, (8, 2)), ">")
MINUS = Look("heads of sign −", "#9d174d", ":", "P")
SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def promise(data: xr.Dataset, certificates: xr.Dataset) -> Figure:
    """Draw measured average losses and what is promised for them, over many decades of steps."""
    steps, late, few = np.geomspace(10, 1e13, 40), data.isel(heads=-1), data.isel(heads=0, step=slice(1, None))
    k = xr.DataArray(steps, dims="steps")
    practical = 2 / k + 5 * own.printed_distance(late, k) ** 2 / (4 * data.attrs["settings"]["step_size"] * k)
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.4))
        band(ax, few.step, few.average, FEW)
        band(ax, steps, practical.transpose("seed", ...), PRACTICAL)
        band(ax, steps[steps > 1e8], own.demands(data, steps[steps > 1e8]).bound, PAPER)
        _certified(ax, certificates, float(certificates.trained[-1]))
        _loss_axes(ax, (1, 1e13), (1e-2, 1e3))
        ax.legend(fontsize=9.5, loc="upper left", bbox_to_anchor=(0.02, 1))
    return figure


def certificate_frame(certificates: xr.Dataset, n_heads: float) -> Figure:
    """Draw the certificate for one number of heads, and the measured average where networks were trained."""
    with style():
        figure, ax = plt.subplots(figsize=(6.4, 3.8))
        _certified(ax, certificates, n_heads)
        _loss_axes(ax, (1, 1000), (0.03, 30))
        ax.set(title=f"H = {power(n_heads)}")
        legend_above(ax, ncols=2, fontsize=9.5)
    return figure


def certificate_text(certificates: xr.Dataset, n_heads: float) -> str:
    """Return the numbers behind one picture of the slider."""
    one = certificates.sel(heads=n_heads)
    best = "no target is allowed" if np.isinf(one.ever.median()) else f"the lowest bound is {_cell(one.ever).text}"
    return (
        f"{n_heads:,.0f} heads, step size {float(one.step_size.median()):.3f}: {best} for the best number of steps; "
        f"below log 2 in {int((one.ever < LOG_2).sum())} of {one.ever.size} problems."
    )


def asked(data: xr.Dataset, certificates: xr.Dataset) -> Table:
    """Return what the theorem and a certificate ask for, and when they say something."""
    found, wide = own.demands(data, np.geomspace(1e2, 1e15, 2601)), certificates.isel(heads=-1)
    at = found.sel(steps=1000, method="nearest")
    of_theorem = at.sketch_heads, at.step_size, found.steps.where(found.bound < LOG_2).min("steps")
    late = certificates.step.where(wide.bound < LOG_2).min("step")
    rows: list[list[str | Measured]] = [
        ["Theorem 1, the paper's (3) with constant 1", _cell(at.order_heads), "", ""],
        ["Theorem 1, printed constants (Section 6.1)", *map(_cell, of_theorem)],
        ["certificate, fewest heads", _cell(own.fewest_heads(certificates)), "", ""],
        [
            f"certificate at {power(float(wide.heads))} heads",
            power(float(wide.heads)),
            *map(_cell, (wide.step_size, late)),
        ],
    ]
    caption = (
        f"Median [smallest, largest] over {data.seed.size} problems, for certificates {certificates.seed.size}. "
        "Theorem 1: target at g₀ for K = 1000. Fewest heads: of a grid, from which on the bound for the best number of "
        "steps is below log 2. The steps of the last row are of those recorded."
    )
    return Table(["", "heads", "step size", "steps until the bound is below log 2"], rows, caption)


def lazy(data: xr.Dataset) -> Figure:
    """Draw how far heads move and where attention ends, against the width."""
    heads, move = data.heads.values, data.largest_move.isel(step=-1)
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.6))
        band(left, heads, move, Look("movement of a head", FEW.color, "-", "o"))
        line = 3 * float(move[:, 1].median()) * (heads[1:] / heads[1]) ** -0.5
        left.plot(heads[1:], line, color=INK, linewidth=1, linestyle=":")
        place = min(4, len(heads) - 1)
        left.annotate(
            "slope −1/2", (heads[place], line[place - 1]), xytext=(4, 4), textcoords="offset points", fontsize=9.5
        )
        left.set(xscale="log", yscale="log", xlabel="number of heads H", title="heads move less")
        band(right, heads, data.attention.sel(sign="+"), PLUS)
        band(right, heads, data.attention.sel(sign="-"), MINUS)
        right.axhline(data.attrs["settings"]["relevant_fraction"], color=INK, linewidth=1)
        right.set(xscale="log", xlabel="number of heads H", title="attention on relevant tokens", ylim=(0.4, 0.8))
        for ax in (left, right):
            ax.legend(fontsize=9.5)
    return figure


def power(number: float) -> str:
    """Return a number of heads for a title or a slider."""
    mantissa, exponent = f"{number:.0e}".split("e")
    raised = "10" + str(int(exponent)).translate(SUPERSCRIPT)
    return raised if mantissa == "1" else f"{mantissa} · {raised}"


def _certified(ax: Axes, certificates: xr.Dataset, n_heads: float) -> None:
    """Draw the certificate of one width where all problems have one, and what was measured."""
    bound = certificates.bound.sel(heads=n_heads)
    there = np.isfinite(bound).all("seed").values
    if there.any():
        label = f"certificate, {power(n_heads)} heads"
        band(ax, certificates.step[there], bound[:, there], replace(CERTIFICATE, label=label))
    if n_heads in certificates.trained:
        average = certificates.average.sel(trained=n_heads).isel(step=slice(1, None))
        band(ax, average.step, average, replace(CERTIFIED, label=f"measured, {power(n_heads)} heads, its step size"))


def _loss_axes(ax: Axes, steps: tuple[float, float], losses: tuple[float, float]) -> None:
    ax.axhline(LOG_2, color=INK, linewidth=1)
    ax.annotate("log 2", (steps[1], LOG_2), ha="right", va="bottom", fontsize=9.5)
    ax.set(xscale="log", yscale="log", xlim=steps, ylim=losses)
    ax.set(xlabel="number of steps K", ylabel="average training loss")


def _cell(values: xr.DataArray) -> Measured:
    low, middle, high = (
        f"{x:.3g}" if 1e-3 <= x < 1e4 or np.isinf(x) else f"{x:.1e}" for x in np.quantile(values, (0, 0.5, 1))
    )
    return Measured(middle if low == high else f"{middle} [{low}, {high}]")
