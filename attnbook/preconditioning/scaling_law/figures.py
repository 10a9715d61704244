"""The pictures and tables of the chapter. Each function takes data sets and computes nothing but medians."""

from __future__ import annotations

from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnbook.core.figures import INK, Look, band, legend_above, log_axis, style
from attnbook.core.tables import Measured, Table, spread
from attnbook.preconditioning.law_constants import heavy_tail_exponent
from attnbook.preconditioning.scaling_law import experiments as own

TRAINED = Look("one data set, trained", "#0b5cad", "-", "o")
START = Look("one data set, spectral start", "#15803d", "-.", "v", hollow=True)
ORACLE = Look("gradient oracle, expansion", "#9a3412", "--", "s")
FRESH = Look("gradient oracle, runs on fresh batches", "#111111", "none", "D", hollow=True)
EXCESS = r"excess loss $L-L^*$"


def law(data: xr.Dataset, oracle: xr.Dataset) -> Figure:
    """Draw the statistical term: excess against samples, for one data set and for the oracle."""
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.8))
        band(ax, data.n, data.start, START)
        ax.lines[-1].set(markersize=12, markeredgewidth=2.5)
        band(ax, data.n, data.path.isel(step=-1), TRAINED)
        band(ax, oracle.n, oracle.expansion, ORACLE)
        ax.plot(oracle.measured_n, oracle.measured.median("seed"), **FRESH.line_style())
        _slope(ax, data.n, float(data.limit) / data.n, "slope -1", (6, 6))
        _slope(ax, oracle.n[3:], float(oracle.limit.median()) / oracle.n[3:] ** 2.0, "slope -2", (8, 2))
        ax.set(xscale="log", yscale="log", xlabel="samples $n$", ylabel=EXCESS)
        ax.legend(fontsize=9.5, loc="lower left")
    return figure


def steps_frame(data: xr.Dataset, oracle: xr.Dataset, steps: int) -> Figure:
    """Draw excess against samples after some steps from the cold start, and what the steps alone leave."""
    finite, population = oracle.surface.isel(surface_n=slice(-1)), oracle.surface.isel(surface_n=-1)
    with style():
        figure, ax = plt.subplots(figsize=(6.4, 4.2))
        for look, n, curves in ((TRAINED, data.n, data.cold), (ORACLE, finite.surface_n, finite)):
            band(ax, n, curves.sel(cold_step=steps), look)
            ax.plot(n, curves.isel(cold_step=-1).median("seed"), color=look.color, linewidth=0.8)
        ax.axhline(float(population.sel(cold_step=steps).median()), color=INK, linestyle=":", label="steps alone")
        ax.set(xscale="log", yscale="log", xlabel="samples $n$", ylabel=EXCESS, ylim=(5e-8, 3e-2))
        ax.set_title(f"after {steps} steps; thin: at the end", fontsize=11)
        ax.legend(fontsize=9.5, loc="lower left")
    return figure


def steps_text(data: xr.Dataset, oracle: xr.Dataset, steps: int) -> str:
    """Return the numbers behind one picture of the slider."""
    picked = (data.cold, 0), (data.cold, -1), (oracle.surface, 0), (oracle.surface, -2), (oracle.surface, -1)
    found = [f"{float(curves.sel(cold_step=steps)[:, n].median()):.2g}" for curves, n in picked]
    return (
        f"After {steps} steps, with 100 and 1600 samples: one data set {found[0]} and {found[1]}, oracle {found[2]} "
        f"and {found[3]}; with infinitely many {found[4]}. Medians over problems."
    )


def approach(keys: xr.Dataset, oracle: xr.Dataset) -> Figure:
    """Draw exact biases over their leading orders: of the loss, its gradient, and the excess of the oracle."""
    loss = keys.loss_bias / keys.coefficient
    gradient = keys.gradient_bias * keys.n.astype(float) ** 2 / keys.gradient_coefficient
    fixed = oracle.exact * oracle.exact_n.astype(float) ** 2 / oracle.exact_limit
    curves = [
        (Look("loss, at an optimum", "#0b5cad", "-", "o"), loss.isel(point=0)),
        (Look("loss, away from it", "#7c3aed", ":", "^"), loss.isel(point=1)),
        (Look("squared gradient, at an optimum", "#15803d", "-.", "D"), gradient.isel(point=0)),
        (replace(ORACLE, label="excess of the oracle"), fixed),
    ]
    with style():
        figure, ax = plt.subplots(figsize=(6.4, 4.2))
        for look, curve in curves:
            band(ax, curve[curve.dims[-1]].values, curve.values, look)
        ax.axhline(1, color=INK, linewidth=1, linestyle=":")
        ax.set(xscale="log", xlabel="samples $n$", ylabel="exact / leading order", ylim=(0.3, 1.3))
        legend_above(ax, ncols=2, fontsize=9.5)
    return figure


def floors(batches: xr.Dataset) -> Figure:
    """Draw the floor of minibatch training by batch size, above the spectral start."""
    sizes, level, start = batches.b.values, own.floor(batches.constant), batches.constant.isel(b=0, step=0)
    with style():
        figure, ax = plt.subplots(figsize=(6.4, 4.0))
        band(ax, sizes, level.values.T, Look("minibatches, constant step size", "#0b5cad", "-", "o"))
        decayed = Look("minibatches, step size decayed to zero", "#c2410c", ":", "^")
        band(ax, sizes[:-1] * 1.03, batches.decayed.isel(step=-1).values.T, decayed)
        _slope(ax, sizes, float(level.isel(b=0).median()) * sizes[0] / sizes, "slope -1", (6, 8))
        ax.axhspan(float(start.min()), float(start.max()), color=START.color, alpha=0.15, linewidth=0)
        ax.axhline(float(start.median()), color=START.color, linestyle="-.", label="spectral start")
        ax.set(yscale="log", ylabel=EXCESS)
        log_axis(ax, sizes, "keys per batch $b$")
        legend_above(ax, ncols=2, fontsize=9.5)
    return figure


def slopes(tails: xr.Dataset) -> Figure:
    """Draw the slope of the bias against the signal, in two ranges of samples, beside the predicted one."""
    fine, (near, far) = np.linspace(float(tails.signal[0]), float(tails.signal[-1]), 200), own.bias_slopes(tails)
    fresh = far.sel(signal=sorted((own.BELOW, *own.ABOVE)))
    with style():
        figure, ax = plt.subplots(figsize=(6.4, 4.4))
        ax.plot(fine, -heavy_tail_exponent(fine), color=INK, linestyle=":", label="random-energy argument")
        ax.plot(tails.signal, near, "-o", color="#0b5cad", label="exact, $n$ from $2^7$ to $2^{12}$")
        ax.plot(tails.signal, far, "--^", color="#c2410c", label=f"exact, $n$ near $2^{{{int(np.log2(tails.n[-1]))}}}$")
        ax.plot(fresh.signal, fresh, "o", markersize=12, fillstyle="none", color="#c2410c", label="new signals")
        ax.axvline(0.5, color=INK, linewidth=1)
        ax.set(xlabel="signal $s_1$; line: one half", ylabel="slope of the bias in $n$, log axes")
        legend_above(ax, ncols=2, fontsize=9.5)
    return figure


def bounds(keys: xr.Dataset) -> Table:
    """Return how loose Lemmas 9 to 11 are: moment over bound at random queries."""
    rows: list[list[str | Measured]] = [
        [f"Lemma 9, p = {p}", *(spread(keys.weight_ratio.sel(power=p, weight=w), ".3g") for w in keys.weight)]
        for p in keys.power.values
    ]
    ratios = (spread(keys.variance_ratio.sel(weight=weight), ".3g") for weight in keys.weight)
    rows.append(["Lemma 10, the paper's (20) and (21)", *ratios])
    rows.append(["Lemma 11, all of the output", spread(keys.shift_ratio, ".3g"), ""])
    caption = "Exact moment over bound: median over queries and problems [smallest, largest]; 1 is attained."
    return Table(["", "weight on itself", "weight on another key"], rows, caption)


def one_data_set(data: xr.Dataset) -> Table:
    """Return by number of samples what the start leaves over its limit, and what training adds."""
    rows: list[list[str | Measured]] = []
    for path in own.pooled_path(data).transpose("n", "step"):
        n = path.n.item()
        worth = (Measured(f"{ratio.item():.3f}") for ratio in (path[-1], path.min()))
        rows.append([f"{n}", spread(n * data.start.sel(n=n) / data.limit, ".3g"), *worth])
    caption = "First: median over problems [smallest, largest]. Others: means over data sets and problems."
    return Table(["n", "n · start / limit", "trained / start", "best step / start"], rows, caption)


def _slope(ax: Axes, x: np.ndarray, y: np.ndarray, text: str, offset: tuple[float, float]) -> None:
    """A thin reference line with its slope in words at its middle."""
    ax.plot(x, y, color=INK, linewidth=1, linestyle=":")
    middle = len(x) // 2
    ax.annotate(text, (x[middle], y[middle]), xytext=offset, textcoords="offset points", fontsize=9.5)
