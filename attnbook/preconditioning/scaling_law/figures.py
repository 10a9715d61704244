"""The pictures of the chapter on the scaling law. Each function takes data sets and computes nothing but medians."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.patheffects import withStroke

from attnbook.core.figures import INK, Look, band, style
from attnbook.preconditioning.law_constants import heavy_tail_exponent
from attnbook.preconditioning.scaling_law import readings
from attnbook.preconditioning.scaling_law.experiments import ABOVE, BELOW

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TRAINED = Look("one data set, trained", "#0b5cad", "-", "o")
START = Look("one data set, spectral start", "#15803d", "-.", "v", hollow=True)
ORACLE = Look("oracle, minimum of the expansion", "#9a3412", "--", "s")
FRESH = Look("gradient oracle, fresh batches", "#111111", "none", "D", hollow=True)
SHADES = ("#9ec5e8", "#5d9bd1", "#0b5cad", "#083c74", "#03182f")
EXCESS = r"excess loss $L-L^*$"


def law(data: xr.Dataset, oracle: xr.Dataset) -> Figure:
    """Draw the statistical term: excess against samples, for one data set and for the oracle."""
    with style():
        figure, ax = plt.subplots(figsize=(5.8, 5.2))
        counts, far = (values.astype(float) for values in (data.n.values, oracle.predicted_n.values))
        band(ax, counts, data.start, START)
        band(ax, counts, data.path.isel(step=-1), TRAINED)
        band(ax, *_expansion(oracle), ORACLE)
        measured = oracle.measured.median("seed")
        ax.plot(measured.measured_n, measured, **(FRESH.line_style() | {"linestyle": "none"}))
        _slope(ax, counts, float(data.limit) / counts, "slope -1", (6, 6))
        _slope(ax, far, float(oracle.limit.median()) / far**2, "slope -2", (-58, -14))
        ax.set(xscale="log", yscale="log", xlabel="samples $n$", ylabel=EXCESS)
        figure.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=1, fontsize=10)
    return figure


def steps(data: xr.Dataset, oracle: xr.Dataset) -> Figure:
    """Draw excess against steps from the cold start, for several numbers of samples."""
    with style():
        figure, axes = plt.subplots(2, 1, sharex=True, sharey=True, figsize=(5.8, 7.4))
        for ax, surface in zip(axes, readings.surfaces(data, oracle), strict=True):
            for number, (n, curve, color) in enumerate(zip(surface.samples, surface.excess, SHADES, strict=False)):
                look = Look(f"n = {n:g}", color, "-", "ovs^D"[number % 5])
                ax.plot(curve, **look.line_style(), markevery=(number, 6))
            ax.plot(readings.population(oracle), color=INK, linestyle=":", label="population loss")
            ax.set(yscale="log", title=surface.name, ylabel=EXCESS, ylim=(5e-8, 3e-2))
        axes[1].set_xlabel("steps $t$")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=10)
    return figure


def split_frame(data: xr.Dataset, oracle: xr.Dataset, compute: float) -> Figure:
    """Draw both surfaces, the curve of equal compute, and its best point."""
    with style():
        figure, axes = plt.subplots(2, 1, figsize=(5.8, 7.4))
        levels = np.arange(-7, -1.49, 0.5)
        titles = ("one data set", "gradient oracle, at a nominal price")
        for ax, title, surface in zip(axes, titles, readings.surfaces(data, oracle), strict=True):
            grid = np.arange(surface.excess.shape[1]), surface.samples, np.log10(surface.excess)
            filled = ax.contourf(*grid, levels=levels, cmap="cividis", extend="both")
            lines = ax.contour(*grid, levels=levels, colors="white", linewidths=0.6)
            for word in ax.clabel(lines, levels[::2], fontsize=9, colors=INK, fmt=_power):
                word.set_path_effects([withStroke(linewidth=2.5, foreground="white")])
            path = readings.along_budget(surface, compute)
            ax.plot(path.steps, path.samples, color="white", linewidth=4.5)
            ax.plot(path.steps, path.samples, color="#c2410c", linewidth=2.4)
            ax.plot(path.steps[path.best], path.samples[path.best], "*", color="#c2410c", markersize=17, zorder=6,
                    markeredgecolor="white")  # fmt: skip
            ax.set(yscale="log", title=title, ylabel="samples $n$", xlim=(0, grid[0][-1]))
            _ticks(ax, "y", surface.samples)
            ax.grid(visible=False)
        axes[1].set_xlabel("steps $t$")
        bar = figure.colorbar(filled, ax=axes, label="excess loss", shrink=0.7)
        bar.set_ticks(levels[::2].tolist(), labels=[_power(level) for level in levels[::2]])
    return figure


def oracle_ratio(oracle: xr.Dataset) -> Figure:
    """Draw the oracle's excess over its leading order: exact in a small problem, expansion and runs in a larger one."""
    with style():
        figure, ax = plt.subplots(figsize=(5.8, 4.8))
        exact = oracle.exact * oracle.exact_n.astype(float) ** 2 / oracle.exact_limit
        band(ax, oracle.exact_n, exact, Look("exact, d = 2", "#0b5cad", "-", "o"))
        counts, expansion = _expansion(oracle)
        scaled = expansion * counts**2 / oracle.limit.values[:, None]
        band(ax, counts, scaled, Look("minimum of the expansion, d = 4", ORACLE.color, "--", "s"))
        runs = oracle.measured_n.astype(float)
        for number, row in enumerate(oracle.measured * runs**2 / oracle.limit):
            label = "runs with fresh batches, d = 4" if number == 0 else None
            ax.plot(runs * 1.03, row, **(FRESH.line_style() | {"linestyle": "none", "label": label}))
        ax.axhline(1, color=INK, linewidth=1, linestyle=":")
        ax.set(xscale="log", xlabel="samples $n$ per batch", ylabel="excess / leading order", ylim=(0, 1.3))
        ax.legend(fontsize=10, loc="lower right")
    return figure


def coefficient(keys: xr.Dataset) -> Figure:
    """Draw exact biases over their leading order: of the loss at two points, and of the gradient."""
    ratio = keys.loss_bias / keys.terms.sum("term")
    squared = keys.gradient_bias * keys.n.astype(float) ** 2 / keys.gradient_coefficient
    curves = {
        Look("loss, at an optimum", "#0b5cad", "-", "o"): ratio.isel(point=0),
        Look("loss, away from it", "#c2410c", ":", "^"): ratio.isel(point=1),
        Look("squared gradient, at an optimum", "#15803d", "--", "s"): squared,
    }
    with style():
        figure, ax = plt.subplots(figsize=(5.8, 4.6))
        for look, curve in curves.items():
            band(ax, keys.n, curve.transpose("seed", "n"), look)
        ax.axhline(1, color=INK, linewidth=1, linestyle=":")
        ax.set(xscale="log", xlabel="samples $n$", ylabel="exact bias / leading order")
        _ticks(ax, "x", keys.n.values)
        ax.legend(fontsize=10, loc="lower right")
    return figure


def floors(batches: xr.Dataset) -> Figure:
    """Draw minibatch training from the spectral start, and the floor by batch size."""
    sizes, floor, start = batches.b.values.astype(float), readings.floor(batches.constant), readings.initial(batches)
    with style():
        figure, (upper, lower) = plt.subplots(2, 1, sharey=True, figsize=(5.8, 7.4))
        for number, (b, color) in enumerate(zip(batches.b.values, SHADES[1:], strict=False)):
            look = Look(f"b = {b}", color, "-", "ovs^"[number % 4])
            median = batches.constant.sel(b=b).median("seed")
            upper.plot(batches.step, median, **look.line_style(), markevery=(number, 6))
        upper.set(yscale="log", xlabel="steps", ylabel=EXCESS, title="along training")
        upper.legend(fontsize=10, ncols=2)
        band(lower, sizes, floor.transpose("seed", "b").values, Look("constant step size", "#0b5cad", "-", "o"))
        band(lower, sizes[:-1] * 1.04, batches.decayed.isel(step=-1).transpose("seed", "decayed_b"),
             Look("step size decayed to zero", "#c2410c", ":", "^"))  # fmt: skip
        _slope(lower, sizes, float(floor.isel(b=0).median()) * sizes[0] / sizes, "slope -1", (6, 8))
        lower.axhspan(float(start.min()), float(start.max()), color=START.color, alpha=0.15, linewidth=0)
        lower.axhline(float(start.median()), color=START.color, linestyle="-.", label="spectral start")
        lower.set(xscale="log", yscale="log", xlabel="keys per batch $b$", ylabel=f"{EXCESS} at the end", title="floor")
        _ticks(lower, "x", sizes)
        lower.legend(fontsize=10)
    return figure


def slopes(tails: xr.Dataset) -> Figure:
    """Draw the slope of the bias against the signal, in two ranges of samples, beside the predicted one."""
    last, fitted = readings.local_slopes(tails).isel(n=-1), readings.fitted_slope(tails)
    fine = np.linspace(float(tails.signal[0]), float(tails.signal[-1]), 200)
    with style():
        figure, ax = plt.subplots(figsize=(5.8, 5.0))
        ax.plot(fine, -heavy_tail_exponent(fine), color=INK, linestyle=":", label="random-energy argument")
        near = Look(rf"exact, $n$ from $2^{{{7}}}$ to $2^{{{12}}}$", "#0b5cad", "-", "o")
        far = Look(rf"exact, $n$ near $2^{{{int(np.log2(last.n))}}}$", "#c2410c", "--", "^")
        ax.plot(tails.signal, fitted, **near.line_style())
        ax.plot(tails.signal, last, **far.line_style())
        fresh = last.sel(signal=sorted((BELOW, *ABOVE)))
        ax.plot(fresh.signal, fresh, "o", markersize=12, fillstyle="none", color=far.color, label="new signals")
        ax.axvline(0.5, color=INK, linewidth=1)
        ax.annotate(r"$s_1=\frac{1}{2}$", (0.5, 0.98), xycoords=("data", "axes fraction"), xytext=(4, 0),
                    textcoords="offset points", va="top")  # fmt: skip
        ax.set(xlabel="signal $s_1$", ylabel="slope of the bias in n, log axes")
        ax.legend(fontsize=10, loc="lower right")
    return figure


def tail_frame(tails: xr.Dataset, signal: float) -> Figure:
    """Draw bias against samples for one signal, with both slopes."""
    counts, bias = tails.n.values, tails.bias.sel(signal=signal).values
    exponent = float(heavy_tail_exponent(signal))
    with style():
        figure, ax = plt.subplots(figsize=(5.8, 4.4))
        ax.plot(counts, bias, color="#0b5cad", marker="o", label="exact")
        ax.plot(counts, bias[0] * counts[0] / counts, color=INK, linewidth=1, linestyle="--", label="slope -1")
        if exponent < 1:
            guide = bias[-1] * (counts / counts[-1]) ** -exponent
            ax.plot(counts, guide, color="#c2410c", linestyle=":", label=f"predicted slope {-exponent:.2f}")
        ax.set(xscale="log", yscale="log", xlabel="samples $n$", ylabel=r"bias of the loss $E\,L_n-L^*$",
               ylim=(1e-12, 0.3))  # fmt: skip
        ax.legend(fontsize=10, loc="lower left")
    return figure


def _expansion(oracle: xr.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of samples and excess at the predicted fixed points, those of the runs first."""
    both = np.concatenate([oracle.measured_n, oracle.predicted_n]).astype(float)
    order = np.argsort(both)
    return both[order], np.concatenate([oracle.beside, oracle.predicted], axis=1)[:, order]


def _ticks(ax: Axes, axis: str, values: np.ndarray) -> None:
    """Write out the values on a log axis."""
    (ax.set_xticks if axis == "x" else ax.set_yticks)(values, [f"{value:g}" for value in values])
    ax.minorticks_off()


def _power(level: float) -> str:
    return f"$10^{{{level:g}}}$"


def _slope(ax: Axes, x: np.ndarray, y: np.ndarray, text: str, offset: tuple[float, float]) -> None:
    """A thin reference line with its slope in words at its middle."""
    ax.plot(x, y, color=INK, linewidth=1, linestyle=":")
    middle = len(x) // 2
    ax.annotate(text, (x[middle], y[middle]), xytext=offset, textcoords="offset points", fontsize=9.5)
