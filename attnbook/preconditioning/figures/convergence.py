"""Pictures of conditioning, rates and balance near the minima. Functions take a result and compute only medians."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np

from attnbook.core.figures import INK, Look, band, style
from attnbook.preconditioning.experiments import balance, conditioning, convergence
from attnbook.preconditioning.figures.structure_aware_descent import LOOKS
from attnbook.preconditioning.theory.metric import POWERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["KINDS", "against_condition", "along_balance", "curvature_frame", "rates"]

KINDS: Mapping[str, Look] = {
    "two": replace(LOOKS["algorithm_1"], label="two-sided preconditioner"),
    "left": LOOKS["left"],
    "none": replace(LOOKS["sgd_regularised"], label="no preconditioner"),
}
STEP_SIZES = (
    Look("", "#9a3412", "none", "s"),
    Look("", "#0b5cad", "none", "o"),
    Look("", "#03182f", "none", "^"),
)
SCALES = {1.0: ("#5d9bd1", "o"), 3.0: ("#0b5cad", "s"), 10.0: ("#03182f", "^")}
EXCESS = r"excess loss $L-L^*$"


def against_condition(result: conditioning.Conditioning) -> Figure:
    """Draw condition number of the Hessian and steps needed against that of the covariance, with reference slopes."""
    kappas = np.array(result.settings.condition_numbers)
    with style():
        figure, axes = plt.subplots(2, 1, sharex=True, figsize=(5.8, 7.6))
        panels = (
            (kappas, result.condition, r"condition number of the Hessian, $c$"),
            (result.descended, result.steps, "steps to a millionth of the excess"),
        )
        for ax, (x, values, label) in zip(axes, panels, strict=True):
            for number, look in enumerate(KINDS.values()):
                band(ax, x, values[:, number], look)
            start = float(np.median(values[:, :, 0]))
            for power in tuple(POWERS.values())[1:]:
                ax.plot(x, start * x**power, color=INK, linewidth=1, linestyle=":")
                ax.annotate(rf"$\kappa^{power}$" if power > 1 else r"$\kappa$", (x[-1], start * x[-1] ** power),
                            xytext=(4, -3), textcoords="offset points", fontsize=10)  # fmt: skip
            ax.set(xscale="log", yscale="log", ylabel=label)
        axes[1].set_xlabel(r"condition number of the covariance, $\kappa$")
        axes[1].set_xticks(kappas, [f"{kappa:g}" for kappa in kappas])
        axes[1].minorticks_off()
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=1, fontsize=10)
    return figure


def rates(result: convergence.Convergence) -> Figure:
    """Draw excess loss against steps times step size, with lines of the predicted slopes through the middle."""
    settings = result.settings
    with style():
        figure, axes = plt.subplots(2, 1, sharex=True, figsize=(5.8, 7.4))
        for ax, number in zip(axes, range(2), strict=True):
            for k, (size, look) in enumerate(zip(settings.step_sizes, STEP_SIZES, strict=False)):
                time, curves = result.steps[k] * size, result.excess[:, number, k]
                kept = np.arange(2 * k, len(time), 6)
                band(ax, time[kept], curves[:, kept], replace(look, label=rf"$\eta$ = {size:g}"))
                middle = len(time) // 2
                line = np.median(curves[:, middle]) * np.exp(
                    result.predicted[number, k] * (result.steps[k] - result.steps[k, middle])
                )
                ax.plot(time[middle // 2 :], line[middle // 2 :], color=look.color, linewidth=1.4)
            rate = "s_d" if settings.outputs[number] > settings.dimension else "2s_d"
            relation = ">" if settings.outputs[number] > settings.dimension else "="
            title = rf"$m {relation} d$: predicted slope $2\,\log(1-\eta\,{rate})$ per step"
            ax.set(yscale="log", ylabel=EXCESS, title=title)
        axes[1].set_xlabel(r"steps $\times$ step size, $t\,\eta$")
        axes[0].plot([], [], color=INK, linewidth=1.4, label="predicted slope")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=10)
    return figure


def along_balance(result: balance.Balance) -> Figure:
    """Draw imbalance and excess along descents from scaled minima, with and without the regulariser."""
    with style():
        figure, axes = plt.subplots(3, 1, sharex=True, figsize=(5.8, 9.6))
        panels = (
            (result.imbalance, 0, "imbalance, 0 to 1", "$m > d$: balance"),
            (result.excess, 0, EXCESS, "$m > d$: loss"),
            (result.excess, 1, EXCESS, "$m = d$: loss"),
        )
        for ax, (values, outputs, label, title) in zip(axes, panels, strict=True):
            for scale, (color, marker) in SCALES.items():
                for weight, (line, word) in enumerate(((":", "without"), ("-", "with regulariser"))):
                    look = Look(f"c = {scale:g}, {word}", color, line, marker, hollow=not weight)
                    _along(ax, result, values[:, outputs, weight, result.at(scale)], look)
            ax.set(ylabel=label, title=title)
        axes[0].set_ylim(-0.03, 1.05)
        for ax in axes[1:]:
            ax.axhline(balance.ARRIVED, color=INK, linewidth=1, linestyle="--")
            ax.set(yscale="log", ylim=(1e-13, 3e-1))
        axes[1].annotate("arrived", (1.0, balance.ARRIVED), xytext=(0, -12), textcoords="offset points", fontsize=9.5)
        axes[2].set_xlabel("steps (log axis after the first)")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=10)
    return figure


def curvature_frame(result: conditioning.Conditioning, condition_number: float) -> Figure:
    """Draw the spectra of the Hessian for one condition number, and the descents with predicted slopes."""
    at = result.settings.condition_numbers.index(condition_number)
    steps = np.array(result.settings.record_at, dtype=float)
    rows = len(KINDS)
    with style():
        figure, (comb, curves) = plt.subplots(2, 1, figsize=(5.8, 7.6), height_ratios=(1, 2))
        for number, look in enumerate(KINDS.values()):
            spectrum = result.spectrum[0, number, at]
            positive = spectrum[spectrum > 1e-9 * spectrum[-1]]
            comb.plot(positive / spectrum[-1], np.full(len(positive), rows - number), "|", color=look.color,
                      markersize=20, markeredgewidth=1.4)  # fmt: skip
            band(curves, steps, result.excess[:, number, at], look)
            slowest = 1 - 1 / np.median(result.condition[:, number, at])
            fine = np.geomspace(1, steps[-1], 200)
            curves.plot(fine, slowest ** (2 * fine), color=look.color, linewidth=1, linestyle=":")
        comb.set(xscale="log", xlim=(3e-5, 1.5), ylim=(0.4, rows + 0.6), title="curvatures over the largest")
        comb.set_yticks(range(rows, 0, -1), ["two-sided", "one-sided", "none"])
        curves.set(xscale="log", yscale="log", xlim=(0.9, steps[-1]), ylim=(3e-7, 2), xlabel="steps",
                   ylabel="excess over the initial one", title="descent, and the slowest direction alone")  # fmt: skip
        figure.legend(*curves.get_legend_handles_labels(), loc="outside upper center", ncols=1, fontsize=10)
    return figure


def _along(ax: Axes, result: balance.Balance, samples: np.ndarray, look: Look) -> None:
    """Median over seeds against steps, on a log axis that shows the start."""
    steps = np.array(result.settings.record_at, dtype=float)
    ax.plot(steps, np.median(samples, axis=0), **look.line_style(), markevery=4)
    ax.set_xscale("symlog", linthresh=1.0)
    ax.set_xlim(-0.1, 1.1 * steps[-1])
    ax.set_xticks([0, *(10**k for k in range(5) if 10**k <= steps[-1])],
                  ["0", *(f"{10**k}" for k in range(5) if 10**k <= steps[-1])])  # fmt: skip
    ax.minorticks_off()
