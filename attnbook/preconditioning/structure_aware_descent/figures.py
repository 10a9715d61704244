"""The pictures of the chapter, a table, and the words of its slider; nothing is computed but medians."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnbook.core.figures import INK, Look, band, legend_above, log_axis, style
from attnbook.core.tables import Measured, Table
from attnbook.preconditioning.curves import NEAR
from attnbook.preconditioning.structure_aware_descent.experiments import at_best_size, best_size, ratios
from attnbook.preconditioning.structure_aware_descent.near_minima import ARRIVED
from attnbook.preconditioning.structure_aware_descent.race import outcomes

LOOKS: Mapping[str, Look] = {
    "spectral": Look("Algorithm 1, spectral start", "#15803d", "-.", "v"),
    "algorithm_1": Look("Algorithm 1, random start", "#0b5cad", "-", "o"),
    "left": Look("one-sided preconditioner", "#7c3aed", (0, (5, 1)), "D"),
    "sgd_regularised": Look("regulariser only", "#0f766e", (0, (3, 1, 1, 1)), "P"),
    "unregularised": Look("preconditioner only", "#c2410c", ":", "^"),
    "left_unregularised": Look("one-sided, no regulariser", "#9d174d", (0, (1, 1)), "X"),
    "sgd": Look("SGD", "#4b5058", "--", "s"),
}
# Names of the six ablations, by weight of the regulariser and preconditioner.
PARTS = {
    (1, "two"): "algorithm_1", (1, "left"): "left", (1, "none"): "sgd_regularised",
    (0, "two"): "unregularised", (0, "left"): "left_unregularised", (0, "none"): "sgd",
}  # fmt: skip
KINDS: Mapping[str, Look] = {
    "two": replace(LOOKS["algorithm_1"], label="two-sided preconditioner"),
    "left": LOOKS["left"],
    "none": replace(LOOKS["sgd_regularised"], label="no preconditioner"),
}
STEP_SIZES = (Look("", "#9a3412", "none", "s"), Look("", "#0b5cad", "none", "o"), Look("", "#03182f", "none", "^"))
SCALINGS = {1 / 3: ("c = 1/3", "#15803d", "s"), 1.0: ("c = 1", "#4b5058", "o"), 3.0: ("c = 3", "#0b5cad", "^")}
RACERS = {"algorithm_1": "Algorithm 1", "left": "one-sided", "sgd": "SGD", "adam": "Adam", "muon": "Muon-like",
          "shampoo": "Shampoo-like"}  # fmt: skip
EXCESS = r"excess loss $(L-L^*)/L^*$"
SYMLOG = "steps (log axis after the first record)"


def training_curves(data: xr.Dataset, problem: int = 0) -> Figure:
    """Draw Figures 1 and 2: excess loss against steps, from the spectral and from a random start."""
    panels = {"the start (Figure 1)": ("spectral", "sgd"), "the method (Figure 2)": ("algorithm_1", "left", "sgd")}
    with style():
        figure, axes = plt.subplots(1, 2, sharey=True, figsize=(7.6, 3.7))
        for ax, (title, names) in zip(axes, panels.items(), strict=True):
            _along_training(ax, data.step.values[problem], ratios(data)[problem] - 1, names)
            _near_line(ax)
            ax.set(yscale="log", title=title, ylim=(0.008, None))
            ax.legend(fontsize=9.5, loc="upper right")
        axes[0].set_ylabel(EXCESS)
        figure.supxlabel(SYMLOG, fontsize=11.5)
    return figure


def mechanism(data: xr.Dataset, problem: int = 1) -> Figure:
    """Draw how many keys a query attends to, and how unequal the layers are, along training."""
    batch_size = data.attrs["settings"]["batch_size"]
    with style():
        figure, axes = plt.subplots(1, 2, figsize=(7.6, 3.7))
        for ax, values in zip(axes, (data.effective_keys[problem], data.imbalance[problem]), strict=True):
            _along_training(ax, data.step.values[problem], values, ("algorithm_1", "unregularised", "sgd"))
        shares = [batch_size * percent / 100 for percent in (2, 5, 10, 20, 50, 100)]
        axes[0].set(ylabel=f"keys per query, of {batch_size}", yscale="log", title="saturation")
        axes[0].set_yticks(shares, [f"{share:g}" for share in shares])
        axes[0].minorticks_off()
        axes[1].set(ylabel="imbalance, 0 to 1", ylim=(0, 1.05), title="balance")
        legend_above(axes[0], ncols=3, fontsize=9.5)
        figure.supxlabel(SYMLOG, fontsize=11.5)
    return figure


def conditioning_frame(data: xr.Dataset, condition_number: float, step_size: float) -> Figure:
    """Draw the excess of the six variants along training for one condition number and step size."""
    curves = data.strong.sel(condition=condition_number).isel(size=data.strong_size.values == step_size)
    medians, steps = curves.squeeze("size").median("seed") - 1, data.strong_step.values
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 4.0))
        for (penalty, kind), name in PARTS.items():
            median = medians.sel(penalty=penalty, kind=kind).values
            ax.plot(steps[::5], np.where(median < 1e6, median, np.nan)[::5], **LOOKS[name].line_style())
            if not np.isfinite(median[-1]):  # there is no line to see
                at, text = (0.98, 0.95 - 0.09 * len(ax.texts)), f"{LOOKS[name].label}: median diverges"
                ax.annotate(text, at, xycoords="axes fraction", ha="right", va="top", fontsize=9.5, color="white",
                            backgroundcolor=LOOKS[name].color)  # fmt: skip
        _near_line(ax)
        ax.set(yscale="log", ylim=(0.05, 1e5), xlim=(0, steps[-1]), xlabel="steps", ylabel=EXCESS)
        ax.minorticks_off()
        legend_above(ax, ncols=3, fontsize=9.5)
    return figure


def conditioning_text(data: xr.Dataset, condition_number: float, step_size: float) -> str:
    """Return the numbers behind one picture of the sliders."""
    ends = data.strong.sel(condition=condition_number).isel(record=-1, size=data.strong_size.values == step_size)
    each = {LOOKS[name].label: ends.sel(penalty=penalty, kind=kind).values for (penalty, kind), name in PARTS.items()}
    shown = (f"{label}: {_spread(values)}" for label, values in each.items())
    return (
        f"Condition number {condition_number:g}, step size {step_size:g}. Final loss over the best loss, median of "
        f"{ends.sizes['seed']} seeds (in brackets, how many were lost to divergence). {'; '.join(shown)}."
    )


def ablation_table(data: xr.Dataset) -> Table:
    """Return the final $L/L^*$ of the six variants, each at its own best step size, by problem."""
    heads = ["variant"]
    rows: dict[tuple[int, str], list[str | Measured]] = {part: [LOOKS[name].label] for part, name in PARTS.items()}
    for signal, axis in (("weak", "problem"), ("strong", "condition")):
        ends, at = at_best_size(data[signal]).isel(record=-1), best_size(data[signal])
        for kappa in data[axis].values:
            heads.append(f"{signal}, κ = {kappa:g}")
            for (penalty, kind), row in rows.items():
                where = {axis: kappa, "penalty": penalty, "kind": kind}
                star = "*" if int(at.sel(where)) == data.sizes["size"] - 1 else ""
                row.append(Measured(_spread(ends.sel(where).values) + star))
    caption = f"Final L/L* from the random start: median over {data.sizes['seed']} seeds (how many diverged)."
    return Table(heads, list(rows.values()), caption + " *: at the largest step tried; a larger one might do better.")


def race(data: xr.Dataset) -> Figure:
    """Draw final excess and time to the optimum of every method, with and without the regulariser; a row a problem."""
    ends, times = outcomes(data)
    with style():
        figure, axes = plt.subplots(2, 2, sharey=True, figsize=(7.6, 7.4))
        for problem, (low, soon) in enumerate(axes):
            for row, name in enumerate(reversed(RACERS)):
                ours = name in ("algorithm_1", "left")
                color = LOOKS["algorithm_1" if ours else "sgd"].color
                pairs = [("o", 0.0, name)] if ours else [("o", 0.17, f"{name}_regularised"), ("s", -0.17, name)]
                for marker, offset, racer in pairs:
                    _whisker(low, ends[problem].sel(racer=racer).values - 1, row + offset, marker, color, "diverged")
                    _whisker(soon, times[problem].sel(racer=racer).values, row + offset, marker, color, "never")
            low.axvline(NEAR - 1, color=INK, linewidth=1, linestyle=":")
            kappa = rf"$\kappa$ = {data.kappa.values[problem]:g}"
            low.set(xscale="log", xlabel=f"final {EXCESS}", title=f"{kappa}: how low?")
            longest = float(data.step[problem, -1])
            soon.set(xlim=(0, longest * 1.3), xlabel=rf"steps to ${NEAR:g}\,L^*$", title=f"{kappa}: how soon?")
            low.set_yticks(range(len(RACERS)), list(reversed(RACERS.values())))
        low.plot([], [], "o", color=INK, label="with regulariser")
        low.plot([], [], "s", color=INK, fillstyle="none", label="without")
        figure.legend(*low.get_legend_handles_labels(), loc="outside upper right", ncols=2, fontsize=10)
    return figure


def against_condition(data: xr.Dataset) -> Figure:
    """Draw condition number of the Hessian and steps needed against that of the covariance, with reference slopes."""
    x = data.kappa.values
    panels = {"condition number of the Hessian": data.condition, "steps to a millionth of the excess": data.steps}
    with style():
        figure, axes = plt.subplots(1, 2, figsize=(7.6, 4.0))
        for ax, (title, values) in zip(axes, panels.items(), strict=True):
            for kind, look in KINDS.items():
                band(ax, x, values.sel(kind=kind).values, look)
            start = float(values.sel(kind="two")[:, 0].median())
            for line, text in ((start * x, r"$\kappa$"), (start * x**2, r"$\kappa^2$")):
                ax.plot(x, line, color=INK, linewidth=1, linestyle=":")
                ax.annotate(text, (x[-1], line[-1]), xytext=(4, -3), textcoords="offset points", fontsize=10)
            ax.set(yscale="log", title=title)
            log_axis(ax, x, r"$\kappa$ of the covariance")
        legend_above(axes[0], ncols=3, fontsize=9.5)
    return figure


def rates(data: xr.Dataset) -> Figure:
    """Draw excess loss against steps times step size, with lines of the predicted slopes through the middle."""
    middle = data.sizes["record"] // 2
    with style():
        figure, axes = plt.subplots(1, 2, sharey=True, figsize=(7.6, 3.8))
        titles = r"$m > d$: $2\,\log(1-\eta\,s_d)$", r"$m = d$: $2\,\log(1-\eta\,2s_d)$"
        for number, (ax, title) in enumerate(zip(axes, titles, strict=True)):
            for k, look in enumerate(STEP_SIZES[: data.sizes["step_size"]]):
                run = data.isel(outputs=number, step_size=k)
                size, steps, curves = float(run.step_size), run.step.values, run.excess.values
                time, kept = steps * size, np.arange(2 * k, len(steps), 6)
                band(ax, time[kept], curves[:, kept], replace(look, label=rf"$\eta$ = {size:g}"))
                line = np.median(curves[:, middle]) * np.exp(float(run.predicted) * (steps - steps[middle]))
                ax.plot(time[middle // 2 :], line[middle // 2 :], color=look.color, linewidth=1.4)
            ax.set(yscale="log", xlabel=r"steps $\times$ step size", title=title)
        axes[0].set_ylabel("excess loss $L-L^*$")
        axes[0].plot([], [], color=INK, linewidth=1.4, label="predicted slope")
        axes[0].legend(fontsize=9.5)
    return figure


def along_balance(data: xr.Dataset) -> Figure:
    """Draw the excess along descents from scaled minima, with and without the regulariser."""
    with style():
        figure, axes = plt.subplots(1, 2, sharey=True, figsize=(7.6, 4.2))
        for number, (ax, title) in enumerate(zip(axes, ("$m > d$: outputs to spare", "$m = d$"), strict=True)):
            for scale, (label, color, marker) in SCALINGS.items():
                for penalty, (line, word) in enumerate(((":", "without"), ("-", "with regulariser"))):
                    look = Look(f"{label}, {word}", color, line, marker, hollow=not penalty)
                    median = data.excess[number].sel(penalty=penalty, scale=scale).median("seed")
                    ax.plot(data.step, median, **look.line_style(), markevery=4)
            ax.axhline(ARRIVED, color=INK, linewidth=1, linestyle="--")
            ax.set_xscale("symlog", linthresh=1.0)
            ax.set(title=title, xlabel="steps", xlim=(-0.1, 1.1 * float(data.step[-1])))
            ax.minorticks_off()
        axes[0].set(ylabel="excess loss $L-L^*$", yscale="log", ylim=(1e-13, 3e-1))
        axes[0].annotate("arrived", (0.0, ARRIVED), xytext=(4, -12), textcoords="offset points", fontsize=9.5)
        legend_above(axes[0], ncols=3, fontsize=9.5)
    return figure


def _near_line(ax: Axes) -> None:
    """The level that counts as near the optimum."""
    ax.axhline(NEAR - 1, color=INK, linewidth=1, linestyle=":")
    ax.annotate(f"{NEAR:g} $L^*$", (0, NEAR - 1), xycoords=("axes fraction", "data"), xytext=(3, -11),
                textcoords="offset points", fontsize=9.5)  # fmt: skip


def _along_training(ax: Axes, steps: np.ndarray, values: xr.DataArray, names: tuple[str, ...]) -> None:
    """Medians and ranges at the start and about a dozen records, evenly spaced on the axis from the first one on."""
    kept = np.unique([0, *np.geomspace(1, len(steps) - 1, 13).round().astype(int)])
    for name in names:
        band(ax, steps[kept], values.sel(descent=name).values[kept].T, LOOKS[name])
    ax.set_xscale("symlog", linthresh=float(steps[1]))
    ticks = [0, *(t for t in (20, 100, 500, 2000) if steps[1] <= t <= steps[-1])]
    ax.set_xticks(ticks, [f"{t}" for t in ticks])
    ax.minorticks_off()
    ax.set_xlim(-0.15 * steps[1], 1.15 * steps[-1])


def _whisker(ax: Axes, samples: np.ndarray, y: float, marker: str, color: str, lost: str) -> None:
    """Median and range over the seeds that are finite; how many are not stands at the right."""
    finite, median = samples[np.isfinite(samples)], float(np.median(samples))
    fill: Literal["full", "none"] = "full" if marker == "o" else "none"
    if finite.size:
        ax.plot([finite.min(), finite.max()], [y, y], color=color, linewidth=1.4)
    if np.isfinite(median):
        ax.plot(median, y, marker, color=color, fillstyle=fill, markersize=6)
    if finite.size < samples.size:
        ax.annotate(f"{samples.size - finite.size} {lost}", (1.0, y), xycoords=("axes fraction", "data"), ha="right",
                    va="center", fontsize=9, color=color)  # fmt: skip


def _spread(samples: np.ndarray) -> str:
    """Median, and how many seeds diverged."""
    median, lost = float(np.median(samples)), int((~np.isfinite(samples)).sum())
    return (f"{median:.3g}" if np.isfinite(median) else "diverged") + (f" ({lost})" if lost else "")
