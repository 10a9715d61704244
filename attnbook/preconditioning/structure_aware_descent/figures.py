"""The pictures of the chapter. Each function takes a data set and computes nothing but medians."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr

from attnbook.core.figures import INK, Look, band, style
from attnbook.preconditioning.curves import NEAR
from attnbook.preconditioning.metric import POWERS
from attnbook.preconditioning.structure_aware_descent.experiments import ratios
from attnbook.preconditioning.structure_aware_descent.near_minima import ARRIVED
from attnbook.preconditioning.structure_aware_descent.race import race_ends, race_times

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "KINDS",
    "LOOKS",
    "PARTS",
    "RACERS",
    "ablation_by_step_size",
    "against_condition",
    "along_balance",
    "conditioning_frame",
    "curvature_frame",
    "key_shares",
    "keys_frame",
    "larger_problem",
    "mechanism",
    "population_gradient",
    "race",
    "rates",
    "training_curves",
]

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
    (0, "none"): "sgd", (0, "left"): "left_unregularised", (0, "two"): "unregularised",
    (1, "none"): "sgd_regularised", (1, "left"): "left", (1, "two"): "algorithm_1",
}  # fmt: skip
KINDS: Mapping[str, Look] = {
    "two": replace(LOOKS["algorithm_1"], label="two-sided preconditioner"),
    "left": LOOKS["left"],
    "none": replace(LOOKS["sgd_regularised"], label="no preconditioner"),
}
STEP_SIZES = (Look("", "#9a3412", "none", "s"), Look("", "#0b5cad", "none", "o"), Look("", "#03182f", "none", "^"))
SCALINGS = {1.0: ("#5d9bd1", "o"), 3.0: ("#0b5cad", "s"), 10.0: ("#03182f", "^")}
RACERS = {"algorithm_1": "Algorithm 1", "left": "one-sided", "sgd": "SGD", "adam": "Adam", "muon": "Muon-like",
          "shampoo": "Shampoo-like"}  # fmt: skip
# Percentages of the keys at which axes of keys have ticks.
KEY_PERCENTS = (2, 5, 10, 20, 50, 100)
EXCESS = r"excess loss $(L-L^*)/L^*$"
PLAIN_EXCESS = r"excess loss $L-L^*$"
SYMLOG = "steps (log axis after the first record)"


def training_curves(data: xr.Dataset, problem: int = 0) -> Figure:
    """Draw Figures 1 and 2: excess loss against steps, from the spectral and from a random start."""
    with style():
        figure, axes = plt.subplots(2, 1, sharex=True, sharey=True, figsize=(5.8, 6.8))
        kappa = rf"$\kappa$ = {data.kappa.values[problem]:g}"
        first, second = ("Figure 1: the", "Figure 2: the") if problem == 0 else ("The", "The")
        panels = {
            f"{first} start (problem {problem + 1}, {kappa})": ("spectral", "sgd"),
            f"{second} method (problem {problem + 1}, {kappa})": ("algorithm_1", "left", "sgd"),
        }
        for ax, (title, names) in zip(axes, panels.items(), strict=True):
            _curves(ax, data, problem, names)
            ax.set(title=title, ylabel=EXCESS)
            ax.legend(fontsize=10, loc="upper right")
        figure.supxlabel(SYMLOG, fontsize=11.5)
    return figure


def larger_problem(data: xr.Dataset) -> Figure:
    """Draw excess loss against steps for the larger problem, both starts in one panel per size of the data set."""
    with style():
        figure, axes = plt.subplots(len(data.problem), 1, sharex=True, sharey=True, figsize=(5.8, 6.4), squeeze=False)
        for problem, ax in enumerate(axes[:, 0]):
            _curves(ax, data, problem, ("spectral", "algorithm_1", "sgd"))
            ax.set(ylabel=EXCESS, title=f"{data.n_samples.values[problem]} samples")
        axes[0, 0].legend(fontsize=9.5)
        figure.supxlabel(SYMLOG, fontsize=11.5)
    return figure


def mechanism(data: xr.Dataset, problem: int = 1) -> Figure:
    """Draw how many keys a query attends to, and how unequal the layers are, along training."""
    batch_size, steps = float(data.edge[-1]), data.step.values[problem]
    kept = _thin(steps)
    with style():
        figure, axes = plt.subplots(2, 1, sharex=True, figsize=(5.8, 6.4))
        for ax, values in zip(axes, (data.effective_keys[problem], data.imbalance[problem]), strict=True):
            for name in ("algorithm_1", "unregularised", "sgd"):
                band(ax, steps[kept], values.sel(descent=name).values[kept].T, LOOKS[name])
            _steps_axis(ax, steps)
        axes[0].set(ylabel=f"keys per query, of {batch_size:g}", yscale="log", title="saturation")
        shares = _shares_of(batch_size, KEY_PERCENTS)
        axes[0].set_yticks(shares, [f"{share:g}" for share in shares])
        axes[0].minorticks_off()
        axes[1].set(ylabel="imbalance, 0 to 1", ylim=(0, 1.05), title="balance")
        axes[0].legend(fontsize=10)
        figure.supxlabel(SYMLOG, fontsize=11.5)
    return figure


def key_shares(data: xr.Dataset) -> xr.DataArray:
    """Return the share of queries by the number of keys that they attend to, all seeds together."""
    counts = data.key_counts.sum("seed")
    return counts / counts.sum("bin")


def keys_frame(data: xr.Dataset, step: int) -> Figure:
    """Draw how many keys queries attend to at one step of the last problem, and how far the loss has come."""
    steps, edges, ratio = data.step.values[-1], data.edge.values, ratios(data)[-1].median("seed")
    shares, names = key_shares(data), data.filmed.values.tolist()
    tallest, record = float(shares.max()), int(np.searchsorted(steps, step))
    with style():
        figure, (above, below) = plt.subplots(2, 1, figsize=(5.8, 6.4), height_ratios=(3, 2))
        for row, name in enumerate(names):
            look, base = LOOKS[name], len(names) - 1 - row
            hill = shares.sel(snapshot=step, filmed=name).values
            above.stairs(base + 0.85 * hill / tallest, edges, baseline=base, fill=True, color=look.color)
            above.annotate(look.label, (1.1, base + 0.88), fontsize=10, va="top", color=look.color)
            median = ratio.sel(descent=name).values - 1
            below.plot(steps, median, color=look.color, linestyle=look.line)
            below.plot(step, median[record], look.marker, color=look.color, markersize=9)
        above.set(xscale="log", xlim=(1, edges[-1]), ylim=(0, 3), yticks=[], ylabel="share of queries, one scale")
        above.set(xlabel=f"keys that a query attends to, of {edges[-1]:g}")
        ticks = [1, *_shares_of(edges[-1], KEY_PERCENTS)[1:]]
        above.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        above.minorticks_off()
        below.axvline(step, color=INK, linewidth=1)
        _near_line(below)
        _steps_axis(below, steps)
        below.set(yscale="log", xlabel=SYMLOG, ylabel=EXCESS)
        below.minorticks_off()
    return figure


def population_gradient(data: xr.Dataset) -> Figure:
    """Draw training on the population loss of the last problem: each seed a line, without those that diverge."""
    steps, ratio = data.step.values[-1], data.population / data.best_loss[-1]
    with style():
        figure, ax = plt.subplots()
        for i, name in enumerate(data.trained.values.tolist()):
            look = LOOKS[name].line_style() | {"linewidth": 1.2, "markevery": (3 * i, 12), "markersize": 5}
            curves = ratio.sel(trained=name).transpose("seed", "record").values
            for seed, excess in enumerate(curves):
                ax.plot(steps, np.where(excess < 1e9, excess, np.nan), **(look | ({"label": None} if seed else {})))
            lost = int((~np.isfinite(curves[:, -1])).sum())
            if lost:
                words = f"{LOOKS[name].label}: {lost} of {len(curves)} seeds diverge"
                ax.annotate(words, (0.98, 0.98), xycoords="axes fraction", ha="right", va="top", fontsize=9.5)
        ax.set(yscale="log", xlabel="steps", ylabel=EXCESS, ylim=(1e-4, 1e5))
        ax.legend(fontsize=9.5, loc="upper right", bbox_to_anchor=(1.0, 0.93))
    return figure


def ablation_by_step_size(data: xr.Dataset) -> Figure:
    """Draw the final excess of the six variants against the step size, for the two problems with a weak signal."""
    with style():
        figure, axes = plt.subplots(2, 1, sharey=True, figsize=(5.8, 8.2))
        for ax, curves in zip(axes, data.weak, strict=True):
            sizes, ends = curves.weak_size.values, curves.isel(record=-1) - 1
            for part, ((penalty, kind), name) in enumerate(PARTS.items()):
                # Counts above the panel, in two rows so that neighbours do not touch.
                rise, samples = 3 + 11 * (part % 2), ends.sel(penalty=penalty, kind=kind).values
                _by_step_size(ax, sizes * 1.07 ** (part - 2.5), samples, LOOKS[name], rise)
            _near_line(ax)
            ax.set(xscale="log", yscale="log", ylabel=f"final {EXCESS}")
            ax.set_title(rf"$\kappa$ = {float(curves.problem):g}; numbers: seeds that diverged", pad=30)
            ax.set_xticks(sizes, [f"{size:g}" for size in sizes])
            ax.minorticks_off()
        figure.supxlabel("step size", fontsize=11.5)
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=10)
    return figure


def race(data: xr.Dataset, problem: int) -> Figure:
    """Draw final excess and time to the optimum of every method, with and without the regulariser."""
    ends, times = race_ends(data)[problem] - 1, race_times(data)[problem]
    with style():
        figure, (left, right) = plt.subplots(2, 1, sharey=True, figsize=(5.8, 7.6))
        for row, name in enumerate(reversed(RACERS)):
            for marker, offset, racer in _entries(name):
                y = row + offset
                color = LOOKS["algorithm_1" if name in ("algorithm_1", "left") else "sgd"].color
                _whisker(left, ends.sel(racer=racer).values, y, marker, color, "diverged")
                _whisker(right, times.sel(racer=racer).values, y, marker, color, "never")
        left.axvline(NEAR - 1, color=INK, linewidth=1, linestyle=":")
        left.annotate(f"{NEAR:g} $L^*$", (NEAR - 1, 1.0), xycoords=("data", "axes fraction"), xytext=(3, -11),
                      textcoords="offset points", fontsize=9.5)  # fmt: skip
        left.set(xscale="log", xlabel=f"final {EXCESS}", title="how low?")
        longest = float(data.step[problem, -1])
        right.set(xlim=(0, longest * 1.25), xlabel=rf"steps to ${NEAR:g}\,L^*$", title="how soon?")
        left.set_yticks(range(len(RACERS)), list(reversed(RACERS.values())))
        left.plot([], [], "o", color=INK, label="with regulariser")
        left.plot([], [], "s", color=INK, fillstyle="none", label="without")
        figure.legend(*left.get_legend_handles_labels(), loc="outside upper right", ncols=2, fontsize=10)
    return figure


def conditioning_frame(data: xr.Dataset, condition_number: float, step_size: float) -> Figure:
    """Draw the excess of the six variants along training for one condition number and step size."""
    curves = data.strong.sel(condition=condition_number).isel(size=data.strong_size.values == step_size)
    medians = curves.squeeze("size").median("seed") - 1
    steps = data.strong_step.values
    every = np.arange(0, len(steps), 5)
    with style():
        figure, ax = plt.subplots(figsize=(5.8, 5.0))
        gone: list[Look] = []
        for (penalty, kind), name in PARTS.items():
            median = medians.sel(penalty=penalty, kind=kind).values
            shown = np.where(median < 1e6, median, np.nan)
            ax.plot(steps[every], shown[every], **LOOKS[name].line_style())
            if not np.isfinite(median[-1]):
                gone.append(LOOKS[name])
        # Diverging methods as broad bars of their colour: a frame's small palette would lose that of a short line.
        for i, look in enumerate(gone):
            ax.annotate(f"{look.label}: median diverges", (0.98, 0.97 - 0.07 * i), xycoords="axes fraction", ha="right",
                        va="top", fontsize=9.5, color="white", backgroundcolor=look.color)  # fmt: skip
        _near_line(ax)
        ax.set(yscale="log", ylim=(0.05, 1e5), xlim=(0, steps[-1]), xlabel="steps", ylabel=EXCESS)
        ax.minorticks_off()
        figure.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=10)
    return figure


def against_condition(data: xr.Dataset) -> Figure:
    """Draw condition number of the Hessian and steps needed against that of the covariance, with reference slopes."""
    kappas = data.kappa.values
    with style():
        figure, axes = plt.subplots(2, 1, sharex=True, figsize=(5.8, 7.6))
        panels = (
            (kappas, data.condition, r"condition number of the Hessian, $c$"),
            (data.descended.values, data.steps, "steps to a millionth of the excess"),
        )
        for ax, (x, values, label) in zip(axes, panels, strict=True):
            for kind, look in KINDS.items():
                band(ax, x, values.sel(kind=kind).values, look)
            start = float(values.sel(kind="two").isel({values.dims[-1]: 0}).median())
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


def curvature_frame(data: xr.Dataset, condition_number: float) -> Figure:
    """Draw the spectra of the Hessian for one condition number, and the descents with predicted slopes."""
    one, steps = data.sel(kappa=condition_number, descended=condition_number), data.step.values
    rows, fine = len(KINDS), np.geomspace(1, steps[-1], 200)
    with style():
        figure, (comb, curves) = plt.subplots(2, 1, figsize=(5.8, 7.6), height_ratios=(1, 2))
        for number, (kind, look) in enumerate(KINDS.items()):
            mine = one.sel(kind=kind)
            spectrum = mine.spectrum.values[0]
            positive = spectrum[spectrum > 1e-9 * spectrum[-1]]
            comb.plot(positive / spectrum[-1], np.full(len(positive), rows - number), "|", color=look.color,
                      markersize=20, markeredgewidth=1.4)  # fmt: skip
            band(curves, steps, mine.excess.values, look)
            slowest = 1 - 1 / float(mine.condition.median())
            curves.plot(fine, slowest ** (2 * fine), color=look.color, linewidth=1, linestyle=":")
        comb.set(xscale="log", xlim=(3e-5, 1.5), ylim=(0.4, rows + 0.6), title="curvatures over the largest")
        comb.set_yticks(range(rows, 0, -1), ["two-sided", "one-sided", "none"])
        curves.set(xscale="log", yscale="log", xlim=(0.9, steps[-1]), ylim=(3e-7, 2), xlabel="steps",
                   ylabel="excess over the initial one", title="descent, and the slowest direction alone")  # fmt: skip
        figure.legend(*curves.get_legend_handles_labels(), loc="outside upper center", ncols=1, fontsize=10)
    return figure


def rates(data: xr.Dataset) -> Figure:
    """Draw excess loss against steps times step size, with lines of the predicted slopes through the middle."""
    middle = data.sizes["record"] // 2
    with style():
        figure, axes = plt.subplots(2, 1, sharex=True, figsize=(5.8, 7.4))
        for number, ax in enumerate(axes):
            for k, look in enumerate(STEP_SIZES[: data.sizes["step_size"]]):
                run = data.isel(outputs=number, step_size=k)
                size, steps, curves = float(run.step_size), run.step.values, run.excess.values
                time, kept = steps * size, np.arange(2 * k, len(steps), 6)
                band(ax, time[kept], curves[:, kept], replace(look, label=rf"$\eta$ = {size:g}"))
                line = np.median(curves[:, middle]) * np.exp(float(run.predicted) * (steps - steps[middle]))
                ax.plot(time[middle // 2 :], line[middle // 2 :], color=look.color, linewidth=1.4)
            rate, relation = (("s_d", ">"), ("2s_d", "="))[number]
            title = rf"$m {relation} d$: predicted slope $2\,\log(1-\eta\,{rate})$ per step"
            ax.set(yscale="log", ylabel=PLAIN_EXCESS, title=title)
        axes[1].set_xlabel(r"steps $\times$ step size, $t\,\eta$")
        axes[0].plot([], [], color=INK, linewidth=1.4, label="predicted slope")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=10)
    return figure


def along_balance(data: xr.Dataset) -> Figure:
    """Draw imbalance and excess along descents from scaled minima, with and without the regulariser."""
    with style():
        figure, axes = plt.subplots(3, 1, sharex=True, figsize=(5.8, 9.6))
        panels = (
            (data.imbalance[0], "imbalance, 0 to 1", "$m > d$: balance"),
            (data.excess[0], PLAIN_EXCESS, "$m > d$: loss"),
            (data.excess[1], PLAIN_EXCESS, "$m = d$: loss"),
        )
        for ax, (values, label, title) in zip(axes, panels, strict=True):
            for scale, (color, marker) in SCALINGS.items():
                for penalty, (line, word) in enumerate(((":", "without"), ("-", "with regulariser"))):
                    look = Look(f"c = {scale:g}, {word}", color, line, marker, hollow=not penalty)
                    median = values.sel(penalty=penalty, scale=scale).median("seed")
                    ax.plot(data.step, median, **look.line_style(), markevery=4)
            _decades_axis(ax, int(data.step[-1]))
            ax.set(ylabel=label, title=title)
        axes[0].set_ylim(-0.03, 1.05)
        for ax in axes[1:]:
            ax.axhline(ARRIVED, color=INK, linewidth=1, linestyle="--")
            ax.set(yscale="log", ylim=(1e-13, 3e-1))
        axes[1].annotate("arrived", (1.0, ARRIVED), xytext=(0, -12), textcoords="offset points", fontsize=9.5)
        axes[2].set_xlabel("steps (log axis after the first)")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=10)
    return figure


def _decades_axis(ax: Axes, last: int) -> None:
    """A log axis of steps that shows the start."""
    ticks = [0, *(10**k for k in range(5) if 10**k <= last)]
    ax.set_xscale("symlog", linthresh=1.0)
    ax.set_xlim(-0.1, 1.1 * last)
    ax.set_xticks(ticks, [f"{tick}" for tick in ticks])
    ax.minorticks_off()


def _curves(ax: Axes, data: xr.Dataset, problem: int, names: tuple[str, ...]) -> None:
    steps, ratio = data.step.values[problem], ratios(data)[problem]
    kept = _thin(steps)
    for name in names:
        band(ax, steps[kept], ratio.sel(descent=name).values[kept].T - 1, LOOKS[name])
    _near_line(ax)
    _steps_axis(ax, steps)
    ax.set(yscale="log")


def _shares_of(whole: float, percents: tuple[int, ...]) -> list[float]:
    return [whole * percent / 100 for percent in percents]


def _near_line(ax: Axes) -> None:
    """The level that counts as near the optimum."""
    ax.axhline(NEAR - 1, color=INK, linewidth=1, linestyle=":")
    ax.annotate(f"{NEAR:g} $L^*$", (0, NEAR - 1), xycoords=("axes fraction", "data"), xytext=(3, -11),
                textcoords="offset points", fontsize=9.5)  # fmt: skip


def _by_step_size(ax: Axes, sizes: np.ndarray, ends: np.ndarray, look: Look, rise: float) -> None:
    """Medians, thin bars over the seeds that are finite, and above the panel how many are not."""
    median, finite = np.median(ends, axis=-1), np.isfinite(ends)
    shown = np.where(np.isfinite(median), median, np.nan)
    ax.plot(sizes, shown, **look.line_style())
    for x, y, values, alive in zip(sizes, shown, ends, finite, strict=True):
        if not alive.all():
            ax.annotate(f"{int((~alive).sum())}", (x, 1.0), xycoords=("data", "axes fraction"), xytext=(0, rise),
                        ha="center", textcoords="offset points", fontsize=9.5, color=look.color)  # fmt: skip
        if np.isfinite(y):
            ax.plot([x, x], [values[alive].min(), values[alive].max()], color=look.color, linewidth=0.9)


def _steps_axis(ax: Axes, steps: np.ndarray) -> None:
    """An axis of steps that shows the start and, from the first record on, grows multiplicatively."""
    ax.set_xscale("symlog", linthresh=float(steps[1]))
    ticks = [0, *(t for t in (20, 100, 500, 1000, 2000) if steps[1] <= t <= steps[-1] and t != steps[-1] // 2)]
    ax.set_xticks(ticks, [f"{t}" for t in ticks])
    ax.minorticks_off()
    ax.set_xlim(-0.15 * steps[1], 1.15 * steps[-1])


def _thin(steps: np.ndarray) -> np.ndarray:
    """Positions of the start and of about a dozen records evenly spaced on a log axis."""
    spaced = np.round(np.geomspace(1, len(steps) - 1, 13)).astype(int)
    return np.unique(np.concatenate([[0], spaced]))


def _entries(name: str) -> list[tuple[str, float, str]]:
    """Marker, vertical offset and racer: with and, where there is one, without the regulariser."""
    if name in ("algorithm_1", "left"):
        return [("o", 0.0, name)]
    return [("o", 0.15, f"{name}_regularised"), ("s", -0.15, name)]


def _whisker(ax: Axes, samples: np.ndarray, y: float, marker: str, color: str, lost: str) -> None:
    """Median and range over the seeds that are finite; how many are not stands at the right."""
    finite = samples[np.isfinite(samples)]
    fill: Literal["full", "none"] = "full" if marker == "o" else "none"
    median = float(np.median(samples))
    if finite.size:
        ax.plot([finite.min(), finite.max()], [y, y], color=color, linewidth=1.4)
    if np.isfinite(median):
        ax.plot(median, y, marker, color=color, fillstyle=fill, markersize=7)
    if finite.size < samples.size:
        ax.annotate(f"{samples.size - finite.size} {lost}", (1.0, y), xycoords=("axes fraction", "data"), ha="right",
                    va="center", fontsize=9.5, color=color)  # fmt: skip
