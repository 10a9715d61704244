"""The pictures of this part. Each function takes a result and computes nothing but medians."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import matplotlib.pyplot as plt
import numpy as np

from attnbook.core.figures import INK, Look, band, style
from attnbook.preconditioning.experiments import ablation, optimizer_race, structure_aware_descent
from attnbook.preconditioning.experiments.curves import NEAR

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "LOOKS",
    "ablation_by_step_size",
    "conditioning_frame",
    "keys_frame",
    "larger_problem",
    "mechanism",
    "population_gradient",
    "race",
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
# Names of the six ablations, in the order of their axis.
PARTS = ("sgd", "left_unregularised", "unregularised", "sgd_regularised", "left", "algorithm_1")
RACERS = {"algorithm_1": "Algorithm 1", "left": "one-sided", "sgd": "SGD", "adam": "Adam", "muon": "Muon-like",
          "shampoo": "Shampoo-like"}  # fmt: skip
# Percentages of the keys at which axes of keys have ticks.
KEY_PERCENTS = (2, 5, 10, 20, 50, 100)
EXCESS = r"excess loss $(L-L^*)/L^*$"


def training_curves(result: structure_aware_descent.StructureAwareDescent, problem: int = 0) -> Figure:
    """Draw Figures 1 and 2: excess loss against steps, from the spectral and from a random start."""
    with style():
        figure, axes = plt.subplots(2, 1, sharex=True, sharey=True, figsize=(5.8, 6.8))
        kappa = rf"$\kappa$ = {result.settings.condition_numbers[problem]:g}"
        first, second = ("Figure 1: the", "Figure 2: the") if problem == 0 else ("The", "The")
        panels = {
            f"{first} start (problem {problem + 1}, {kappa})": ("spectral", "sgd"),
            f"{second} method (problem {problem + 1}, {kappa})": ("algorithm_1", "left", "sgd"),
        }
        for ax, (title, names) in zip(axes, panels.items(), strict=True):
            _curves(ax, result, problem, names)
            ax.set(title=title, ylabel=EXCESS)
            ax.legend(fontsize=10, loc="upper right")
        figure.supxlabel("steps (log axis after the first record)", fontsize=11.5)
    return figure


def larger_problem(result: structure_aware_descent.StructureAwareDescent) -> Figure:
    """Draw excess loss against steps for the larger problem, both starts in one panel per size of the data set."""
    with style():
        figure, axes = plt.subplots(len(result.steps), 1, sharex=True, sharey=True, figsize=(5.8, 6.4), squeeze=False)
        for problem, ax in enumerate(axes[:, 0]):
            _curves(ax, result, problem, ("spectral", "algorithm_1", "sgd"))
            ax.set(ylabel=EXCESS, title=f"{result.settings.setup(problem).n_samples} samples")
        axes[0, 0].legend(fontsize=9.5)
        figure.supxlabel("steps (log axis after the first record)", fontsize=11.5)
    return figure


def mechanism(result: structure_aware_descent.StructureAwareDescent, problem: int = 1) -> Figure:
    """Draw how many keys a query attends to, and how unequal the layers are, along training."""
    names = ("algorithm_1", "unregularised", "sgd")
    keys, imbalance = result.effective_keys[problem], result.imbalance[problem]
    with style():
        figure, axes = plt.subplots(2, 1, sharex=True, figsize=(5.8, 6.4))
        kept = _thin(result.steps[problem])
        for ax, values in zip(axes, (keys, imbalance), strict=True):
            for name in names:
                samples = values[kept, structure_aware_descent.DESCENTS.index(name)].T
                band(ax, result.steps[problem, kept], samples, LOOKS[name])
            _steps_axis(ax, result.steps[problem])
        axes[0].set(ylabel=f"keys per query, of {result.settings.batch_size}", yscale="log", title="saturation")
        shares = _shares_of(result.settings.batch_size, KEY_PERCENTS)
        axes[0].set_yticks(shares, [f"{share:g}" for share in shares])
        axes[0].minorticks_off()
        axes[1].set(ylabel="imbalance, 0 to 1", ylim=(0, 1.05), title="balance")
        axes[0].legend(fontsize=10)
        figure.supxlabel("steps (log axis after the first record)", fontsize=11.5)
    return figure


def keys_frame(result: structure_aware_descent.StructureAwareDescent, step: int) -> Figure:
    """Draw how many keys queries attend to at one step of the last problem, and how far the loss has come."""
    s, steps = result.settings, result.steps[-1]
    tallest = max(float(result.key_shares(snapshot).max()) for snapshot in s.snapshots)
    with style():
        figure, (above, below) = plt.subplots(2, 1, figsize=(5.8, 6.4), height_ratios=(3, 2))
        for row, (name, shares) in enumerate(zip(structure_aware_descent.FILM, result.key_shares(step), strict=True)):
            look, base = LOOKS[name], len(structure_aware_descent.FILM) - 1 - row
            above.stairs(base + 0.85 * shares / tallest, s.key_bins, baseline=base, fill=True, color=look.color)
            above.annotate(look.label, (1.1, base + 0.88), fontsize=10, va="top", color=look.color)
            median = np.median(result.ratio(-1, name), axis=-1) - 1
            below.plot(steps, median, color=look.color, linestyle=look.line)
            below.plot(step, median[result.at(-1, step)], look.marker, color=look.color, markersize=9)
        above.set(xscale="log", xlim=(1, s.batch_size), ylim=(0, 3), yticks=[], ylabel="share of queries, one scale")
        above.set(xlabel=f"keys that a query attends to, of {s.batch_size}")
        shares = _shares_of(s.batch_size, KEY_PERCENTS)
        above.set_xticks([1, *shares[1:]], [f"{share:g}" for share in (1, *shares[1:])])
        above.minorticks_off()
        below.axvline(step, color=INK, linewidth=1)
        _near_line(below)
        _steps_axis(below, steps)
        below.set(yscale="log", xlabel="steps (log axis after the first record)", ylabel=EXCESS)
        below.minorticks_off()
    return figure


def population_gradient(result: structure_aware_descent.StructureAwareDescent) -> Figure:
    """Draw training on the population loss of the last problem: each seed a line, without those that diverge."""
    steps = result.steps[-1]
    scale = result.settings.setup(-1).best_loss
    with style():
        figure, ax = plt.subplots()
        for i, name in enumerate(structure_aware_descent.POPULATION):
            look = LOOKS[name].line_style() | {"linewidth": 1.2, "markevery": (3 * i, 12), "markersize": 5}
            for seed, excess in enumerate(result.population[:, i].T):
                shown = np.where(excess < 1e9 * scale, excess / scale, np.nan)
                ax.plot(steps, shown, **(look | ({"label": None} if seed else {})))
            lost = int((~np.isfinite(result.population[-1, i])).sum())
            if lost:
                words = f"{LOOKS[name].label}: {lost} of {len(result.settings.seeds)} seeds diverge"
                ax.annotate(words, (0.98, 0.98), xycoords="axes fraction", ha="right", va="top", fontsize=9.5)
        ax.set(yscale="log", xlabel="steps", ylabel=EXCESS, ylim=(1e-4, 1e5))
        ax.legend(fontsize=9.5, loc="upper right", bbox_to_anchor=(1.0, 0.93))
    return figure


def ablation_by_step_size(result: ablation.Ablation) -> Figure:
    """Draw the final excess of the six variants against the step size, for the two problems with a weak signal."""
    s = result.settings
    with style():
        figure, axes = plt.subplots(2, 1, sharey=True, figsize=(5.8, 8.2))
        for ax, kappa, sizes, curves in zip(axes, s.weak_conditions, s.weak_step_sizes, result.weak, strict=True):
            ends = curves[-1] - 1
            for part, name in enumerate(PARTS):
                # Counts above the panel, in two rows so that neighbours do not touch.
                rise = 3 + 11 * (part % 2)
                _by_step_size(ax, np.array(sizes) * 1.07 ** (part - 2.5), ends[:, part], LOOKS[name], rise)
            _near_line(ax)
            ax.set(xscale="log", yscale="log", ylabel=f"final {EXCESS}")
            ax.set_title(rf"$\kappa$ = {kappa:g}; numbers: seeds that diverged", pad=30)
            ax.set_xticks(sizes, [f"{size:g}" for size in sizes])
            ax.minorticks_off()
        figure.supxlabel("step size", fontsize=11.5)
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=10)
    return figure


def race(result: optimizer_race.OptimizerRace, problem: int) -> Figure:
    """Draw final excess and time to the optimum of every method, with and without the regulariser."""
    with style():
        figure, (left, right) = plt.subplots(2, 1, sharey=True, figsize=(5.8, 7.6))
        for row, name in enumerate(reversed(RACERS)):
            for marker, offset, racer in _entries(name):
                y = row + offset
                color = LOOKS["algorithm_1" if name in ("algorithm_1", "left") else "sgd"].color
                ends, times = result.ends(problem, racer) - 1, result.times(problem, racer)
                _whisker(left, ends, y, marker, color, "diverged")
                _whisker(right, times, y, marker, color, "never")
        left.axvline(NEAR - 1, color=INK, linewidth=1, linestyle=":")
        left.annotate(f"{NEAR:g} $L^*$", (NEAR - 1, 1.0), xycoords=("data", "axes fraction"), xytext=(3, -11),
                      textcoords="offset points", fontsize=9.5)  # fmt: skip
        left.set(xscale="log", xlabel=f"final {EXCESS}", title="how low?")
        right.set(
            xlim=(0, result.settings.steps[problem] * 1.25), xlabel=rf"steps to ${NEAR:g}\,L^*$", title="how soon?"
        )
        left.set_yticks(range(len(RACERS)), list(reversed(RACERS.values())))
        left.plot([], [], "o", color=INK, label="with regulariser")
        left.plot([], [], "s", color=INK, fillstyle="none", label="without")
        figure.legend(*left.get_legend_handles_labels(), loc="outside upper right", ncols=2, fontsize=10)
    return figure


def conditioning_frame(result: ablation.Ablation, condition_number: float, step_size: float) -> Figure:
    """Draw the excess of the six variants along training for one condition number and step size."""
    s = result.settings
    curves = result.strong[s.strong_conditions.index(condition_number), :, s.strong_step_sizes.index(step_size)]
    steps = np.array(s.record_at(s.strong_steps))
    every = np.arange(0, len(steps), 5)
    with style():
        figure, ax = plt.subplots(figsize=(5.8, 5.0))
        gone: list[Look] = []
        for part, name in enumerate(PARTS):
            median = np.median(curves[:, part], axis=-1) - 1
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


def _curves(
    ax: Axes, result: structure_aware_descent.StructureAwareDescent, problem: int, names: tuple[str, ...]
) -> None:
    steps = result.steps[problem]
    kept = _thin(steps)
    for name in names:
        band(ax, steps[kept], result.ratio(problem, name)[kept].T - 1, LOOKS[name])
    _near_line(ax)
    _steps_axis(ax, steps)
    ax.set(yscale="log")


def _shares_of(whole: int, percents: tuple[int, ...]) -> list[float]:
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
