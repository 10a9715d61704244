"""The pictures of the chapter on the scaling law. Each function takes results and computes nothing but medians."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patheffects import withStroke

from attnbook.core.figures import INK, Look, band, style
from attnbook.preconditioning.experiments import (
    finite_keys,
    gradient_oracle,
    heavy_tails,
    minibatch_floor,
    scaling_law,
)
from attnbook.preconditioning.experiments.compute_split import along_budget, surfaces
from attnbook.preconditioning.figures.structure_aware_descent import LOOKS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["coefficient", "floors", "law", "oracle_ratio", "slopes", "split_frame", "steps", "tail_frame"]

TRAINED = Look("one data set, trained", "#0b5cad", "-", "o")
START = Look("one data set, spectral start", LOOKS["spectral"].color, "-.", "v", hollow=True)
ORACLE = Look("oracle, minimum of the expansion", "#9a3412", "--", "s")
FRESH = Look("gradient oracle, fresh batches", "#111111", "none", "D", hollow=True)
SHADES = ("#9ec5e8", "#5d9bd1", "#0b5cad", "#083c74", "#03182f")
EXCESS = r"excess loss $L-L^*$"


def law(data: scaling_law.ScalingLaw, oracle: gradient_oracle.GradientOracle) -> Figure:
    """Draw the statistical term: excess against samples, for one data set and for the oracle."""
    with style():
        figure, ax = plt.subplots(figsize=(5.8, 5.2))
        counts = np.array(data.settings.n_samples, dtype=float)
        band(ax, counts, data.start, START)
        band(ax, counts, data.trained, TRAINED)
        own = oracle.settings
        both = np.array(own.measured_samples + own.predicted_samples, dtype=float)
        order = np.argsort(both)
        band(ax, both[order], np.concatenate([oracle.beside, oracle.predicted], axis=1)[:, order], ORACLE)
        measured = np.array(own.measured_samples, dtype=float)
        ax.plot(measured, np.median(oracle.measured, axis=0), **(FRESH.line_style() | {"linestyle": "none"}))
        _slope(ax, counts, data.constant / counts, "slope -1", (6, 6))
        far = np.array(own.predicted_samples, dtype=float)
        _slope(ax, far, np.median(oracle.constant) / far**2, "slope -2", (-58, -14))
        ax.set(xscale="log", yscale="log", xlabel="samples $n$", ylabel=EXCESS)
        figure.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=1, fontsize=10)
    return figure


def steps(data: scaling_law.ScalingLaw, oracle: gradient_oracle.GradientOracle) -> Figure:
    """Draw excess against steps from the cold start, for several numbers of samples."""
    with style():
        figure, axes = plt.subplots(2, 1, sharex=True, sharey=True, figsize=(5.8, 7.4))
        population = np.median(oracle.cold[:, -1], axis=0)
        panels = {
            "one data set": (data.settings.n_samples, data.cold, data.settings.cold_steps),
            "gradient oracle": (oracle.settings.surface_samples, oracle.cold[:, :-1], oracle.settings.cold_steps),
        }
        for ax, (title, (counts, curves, last)) in zip(axes, panels.items(), strict=True):
            at = np.arange(last + 1)
            for number, (n, color) in enumerate(zip(counts, SHADES, strict=False)):
                look = Look(f"n = {n}", color, "-", "ovs^D"[number % 5])
                ax.plot(at, np.median(curves[:, number], axis=0), **look.line_style(), markevery=(number, 6))
            ax.plot(np.arange(len(population)), population, color=INK, linestyle=":", label="population loss")
            ax.set(yscale="log", title=title, ylabel=EXCESS, ylim=(5e-8, 3e-2))
        axes[1].set_xlabel("steps $t$")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=10)
    return figure


def split_frame(data: scaling_law.ScalingLaw, oracle: gradient_oracle.GradientOracle, compute: float) -> Figure:
    """Draw both surfaces, the curve of equal compute, and its best point."""
    with style():
        figure, axes = plt.subplots(2, 1, figsize=(5.8, 7.4))
        levels = np.arange(-7, -1.49, 0.5)
        titles = ("one data set", "gradient oracle, at a nominal price")
        for ax, title, (_, samples, surface, *_) in zip(axes, titles, surfaces(data, oracle), strict=True):
            at = np.arange(surface.shape[1])
            filled = ax.contourf(at, samples, np.log10(surface), levels=levels, cmap="cividis", extend="both")
            lines = ax.contour(at, samples, np.log10(surface), levels=levels, colors="white", linewidths=0.6)
            words = ax.clabel(lines, levels[::2], fontsize=9, colors=INK, fmt=_power)
            for word in words:
                word.set_path_effects([withStroke(linewidth=2.5, foreground="white")])
            path = along_budget(samples, surface, compute)
            ax.plot(path.steps, path.samples, color="white", linewidth=4.5)
            ax.plot(path.steps, path.samples, color="#c2410c", linewidth=2.4)
            ax.plot(path.steps[path.best], path.samples[path.best], "*", color="#c2410c", markersize=17, zorder=6,
                    markeredgecolor="white")  # fmt: skip
            ax.set(yscale="log", title=title, ylabel="samples $n$", xlim=(0, at[-1]))
            ax.set_yticks(samples, [f"{n:g}" for n in samples])
            ax.minorticks_off()
            ax.grid(visible=False)
        axes[1].set_xlabel("steps $t$")
        bar = figure.colorbar(filled, ax=axes, label="excess loss", shrink=0.7)
        bar.set_ticks(levels[::2].tolist(), labels=[_power(level) for level in levels[::2]])
    return figure


def oracle_ratio(oracle: gradient_oracle.GradientOracle) -> Figure:
    """Draw the oracle's excess over its leading order: exact in a small problem, expansion and runs in a larger one."""
    s = oracle.settings
    exact, runs = np.array(s.exact_samples, dtype=float), np.array(s.measured_samples, dtype=float)
    both = np.array(s.measured_samples + s.predicted_samples, dtype=float)
    order = np.argsort(both)
    expansion = np.concatenate([oracle.beside, oracle.predicted], axis=1) * both**2 / oracle.constant[:, None]
    with style():
        figure, ax = plt.subplots(figsize=(5.8, 4.8))
        band(ax, exact, oracle.exact * exact**2 / oracle.exact_constant[:, None],
             Look("exact, d = 2", "#0b5cad", "-", "o"))  # fmt: skip
        band(ax, both[order], expansion[:, order], Look("minimum of the expansion, d = 4", ORACLE.color, "--", "s"))
        ratios = oracle.measured * runs**2 / oracle.constant[:, None]
        for number, row in enumerate(ratios):
            label = "runs with fresh batches, d = 4" if number == 0 else None
            ax.plot(runs * 1.03, row, **(FRESH.line_style() | {"linestyle": "none", "label": label}))
        ax.axhline(1, color=INK, linewidth=1, linestyle=":")
        ax.set(xscale="log", xlabel="samples $n$ per batch", ylabel="excess / leading order", ylim=(0, 1.3))
        ax.legend(fontsize=10, loc="lower right")
    return figure


def coefficient(result: finite_keys.FiniteKeys) -> Figure:
    """Draw exact biases over their leading order: of the loss at two points, and of the gradient."""
    counts = np.array(result.settings.loss_keys, dtype=float)
    looks = (Look("loss, at an optimum", "#0b5cad", "-", "o"), Look("loss, away from it", "#c2410c", ":", "^"))
    with style():
        figure, ax = plt.subplots(figsize=(5.8, 4.6))
        for point, look in enumerate(looks):
            band(ax, counts, result.loss_bias[:, point] / result.coefficient[:, point, None], look)
        squared = result.gradient_bias * counts**2 / result.gradient_coefficient[:, None]
        band(ax, counts, squared, Look("squared gradient, at an optimum", "#15803d", "--", "s"))
        ax.axhline(1, color=INK, linewidth=1, linestyle=":")
        ax.set(xscale="log", xlabel="samples $n$", ylabel="exact bias / leading order")
        ax.set_xticks(counts, [f"{n:g}" for n in counts])
        ax.minorticks_off()
        ax.legend(fontsize=10, loc="lower right")
    return figure


def floors(result: minibatch_floor.MinibatchFloor) -> Figure:
    """Draw minibatch training from the spectral start, and the floor by batch size."""
    s = result.settings
    with style():
        figure, (upper, lower) = plt.subplots(2, 1, sharey=True, figsize=(5.8, 7.4))
        for number, (b, color) in enumerate(zip(s.batch_sizes, SHADES[1:], strict=False)):
            look = Look(f"b = {b}", color, "-", "ovs^"[number % 4])
            median = np.median(result.constant[number], axis=-1)
            upper.plot(s.record_at, median, **look.line_style(), markevery=(number, 6))
        upper.set(yscale="log", xlabel="steps", ylabel=EXCESS, title="along training")
        upper.legend(fontsize=10, ncols=2)
        sizes = np.array(s.batch_sizes, dtype=float)
        band(lower, sizes, result.floor.T, Look("constant step size", "#0b5cad", "-", "o"))
        band(lower, sizes[:-1] * 1.04, result.decayed[:, -1].T, Look("step size decayed to zero", "#c2410c", ":", "^"))
        _slope(lower, sizes, np.median(result.floor[0]) * sizes[0] / sizes, "slope -1", (6, 8))
        lower.axhspan(result.initial.min(), result.initial.max(), color=START.color, alpha=0.15, linewidth=0)
        lower.axhline(float(np.median(result.initial)), color=START.color, linestyle="-.", label="spectral start")
        lower.set(xscale="log", yscale="log", xlabel="keys per batch $b$", ylabel=f"{EXCESS} at the end", title="floor")
        lower.set_xticks(sizes, [f"{b:g}" for b in sizes])
        lower.minorticks_off()
        lower.legend(fontsize=10)
    return figure


def slopes(result: heavy_tails.HeavyTails) -> Figure:
    """Draw the slope of the bias against the signal, in two ranges of samples, beside the predicted one."""
    signals = np.array(result.settings.signals)
    local, counts = result.slopes(), result.n_samples
    fine = np.linspace(signals[0], signals[-1], 200)
    with style():
        figure, ax = plt.subplots(figsize=(5.8, 5.0))
        ax.plot(fine, -heavy_tails.heavy_tail_exponent(fine), color=INK, linestyle=":", label="random-energy argument")
        near = Look(rf"exact, $n$ from $2^{{{7}}}$ to $2^{{{12}}}$", "#0b5cad", "-", "o")
        far = Look(rf"exact, $n$ near $2^{{{int(np.log2(counts[-1]))}}}$", "#c2410c", "--", "^")
        ax.plot(signals, result.fitted(), **near.line_style())
        ax.plot(signals, local[:, -1], **far.line_style())
        fresh = np.isin(signals, (heavy_tails.BELOW, *heavy_tails.ABOVE))
        ax.plot(signals[fresh], local[fresh, -1], "o", markersize=12, fillstyle="none", color=far.color,
                label="new signals")  # fmt: skip
        ax.axvline(0.5, color=INK, linewidth=1)
        ax.annotate(r"$s_1=\frac{1}{2}$", (0.5, 0.98), xycoords=("data", "axes fraction"), xytext=(4, 0),
                    textcoords="offset points", va="top")  # fmt: skip
        ax.set(xlabel="signal $s_1$", ylabel="slope of the bias in n, log axes")
        ax.legend(fontsize=10, loc="lower right")
    return figure


def tail_frame(result: heavy_tails.HeavyTails, signal: float) -> Figure:
    """Draw bias against samples for one signal, with both slopes."""
    number, counts = result.settings.signals.index(signal), result.n_samples
    bias, exponent = result.bias[number], float(heavy_tails.heavy_tail_exponent(signal))
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


def _power(level: float) -> str:
    return f"$10^{{{level:g}}}$"


def _slope(ax: Axes, x: np.ndarray, y: np.ndarray, text: str, offset: tuple[float, float]) -> None:
    """A thin reference line with its slope in words at its middle."""
    ax.plot(x, y, color=INK, linewidth=1, linestyle=":")
    middle = len(x) // 2
    ax.annotate(text, (x[middle], y[middle]), xytext=offset, textcoords="offset points", fontsize=9.5)
