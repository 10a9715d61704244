"""The pictures of the chapter on score estimation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np

from attnbook.core.figures import INK, Look, band, style
from attnbook.softmax_ntk.experiments import (
    score_digits,
    score_learning,
    score_plane,
    score_sampling,
    score_sizes,
    score_stopping,
)
from attnbook.softmax_ntk.experiments.score_tasks import BINS, ON_A_LINE
from attnbook.softmax_ntk.mixtures import mixture_log_density
from attnbook.softmax_ntk.reverse_sde import reverse_times

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "LOOKS",
    "TERMS",
    "denoiser_frame",
    "digits",
    "early_stopping",
    "four_terms",
    "frame_times",
    "learned",
    "plane",
    "sampled",
    "sizes",
    "stopping",
    "time_frame",
]

LOOKS: Mapping[str, Look] = {
    "exact": Look("true", INK, "-", "none"),
    "network": Look("network, stopped early", "#0b5cad", "-", "o"),
    "best": Look("kernel machine, best step", "#0b5cad", "--", "s"),
    "late": Look("trained much longer", "#c2410c", "-.", "^"),
    "adam": Look("network, fresh noise", "#15803d", (0, (5, 1)), "v"),
    "zero": Look("always zero", "#8a5a00", ":", "P"),
    "labels": Look("noisy labels", "#5b5f66", "none", "."),
}
TERMS = ("coupling", "label mismatch", "early stopping", "approximation")
SHADES = ("#0b5cad", "#8a5a00", "#c2410c", "#b9b6ac")
HATCHES = ("", "//", "", "..")


def learned(result: score_learning.ScoreLearning, sampling: score_sampling.ScoreSampling) -> Figure:
    """Draw noisy labels with true and learned denoiser at one time, and the samples that the scores lead to."""
    s, at = result.settings, 1
    time, (times, points, labels) = s.grid_times[at], result.drawn
    near, grid = np.abs(times - time) < 0.1, np.linspace(-2.5, 2.5, result.curves.shape[2])
    with style():
        figure, (above, below) = plt.subplots(2, 1, figsize=(5.6, 6.4))
        above.plot(points[near], labels[near], ".", color=LOOKS["labels"].color, alpha=0.6, label="noisy labels")
        for k, name in enumerate(("exact", "network")):
            look = LOOKS[name]
            above.plot(grid, result.curves[k, at], color=look.color, linestyle="-" if k else ":", label=look.label)
        above.set(xlim=(-2, 2), ylim=(-1.4, 1.9), xlabel="noisy point", ylabel="clean point", title=f"time {time:g}")
        above.legend(fontsize=9, loc="upper left")
        _density(below, ON_A_LINE.schedule.first, "data")
        for name, heights in (("network", result.histogram[0, 0]), ("adam", sampling.histogram[0, 2])):
            _steps(below, heights, name)
        below.set(xlim=(-1.5, 1.5), ylim=(0, 2.1), xlabel="sample", ylabel="density", title="samples")
        below.legend(fontsize=9, loc="upper center")
    return figure


def early_stopping(result: score_learning.ScoreLearning) -> Figure:
    """Draw error and training loss against the number of steps, with the networks as dots."""
    s = result.settings
    steps, checkpoints = np.array(s.steps), np.array(s.checkpoints)
    with style():
        figure, (above, below) = plt.subplots(2, 1, figsize=(6.4, 5.6), sharex=True)
        band(above, steps, result.error, Look("kernel machine", LOOKS["network"].color, "-", "none"))
        for k, row in enumerate(result.network_error):
            above.plot(checkpoints, row, "o", color=LOOKS["network"].color, markersize=4, markerfacecolor="none",
                       label="networks" if k == 0 else None)  # fmt: skip
        above.axhline(np.median(result.signal), color=INK, linestyle=":", linewidth=1)
        above.annotate("always zero", (steps[-1], np.median(result.signal)), xytext=(0, 4), ha="right",
                       textcoords="offset points")  # fmt: skip
        above.set(yscale="log", ylabel="error against the truth")
        above.legend(loc="lower right", fontsize=9.5)
        excess = result.train_loss - result.train_noise[:, None]
        band(below, steps, excess, Look("kernel machine", LOOKS["late"].color, "-", "none"))
        below.axhline(0, color=INK, linestyle=":", linewidth=1)
        below.annotate("loss of the true labels", (steps[-1], 0), xytext=(0, 4), ha="right", textcoords="offset points")
        below.set(xscale="log", ylabel="training loss, less\nnoise of its labels", xlabel="steps", ylim=(-0.05, 0.1))
    return figure


def four_terms(result: score_learning.ScoreLearning) -> Figure:
    """Draw the four terms of each seed as a stacked bar, with the error they bound."""
    n = len(result.terms)
    with style():
        figure, ax = plt.subplots(figsize=(5.4, 3.8))
        left = np.zeros(n)
        for k, name in enumerate(TERMS):
            ax.barh(np.arange(n), result.terms[:, k], left=left, color=SHADES[k], hatch=HATCHES[k], label=name,
                    height=0.6, edgecolor=INK, linewidth=0.4)  # fmt: skip
            left += result.terms[:, k]
        ax.plot(result.network_error[:, -1], np.arange(n), "D", color=INK, label="error of the network")
        ax.set(xlabel="mean square on fresh points", ylabel="seed", xlim=(0, 1.05 * left.max()))
        ax.locator_params(axis="x", nbins=5)
        ax.set_yticks(np.arange(n), [str(seed) for seed in result.settings.seeds])
        ax.grid(axis="y", visible=False)
        figure.legend(*ax.get_legend_handles_labels(), loc="outside upper left", ncols=2, fontsize=9.5)
    return figure


def sizes(result: score_sizes.ScoreSizes) -> Figure:
    """Draw best and last error, and the best step, against the number of samples."""
    counts = np.array(result.settings.sizes)
    with style():
        figure, (above, below) = plt.subplots(2, 1, figsize=(5.6, 6.4))
        band(above, counts, result.best_error, Look("best step", LOOKS["network"].color, "-", "o"))
        band(above, counts, result.end_error, Look("after long training", LOOKS["late"].color, "-.", "^"))
        start = 0.5 * np.median(result.best_error[:, 0])
        line = start * (counts / counts[0]) ** -0.5
        above.plot(counts, line, ":", color=INK, linewidth=1)
        above.annotate(
            "slope \u2212\u00bd", (counts[2], line[2]), xytext=(-4, -14), textcoords="offset points", ha="right"
        )
        above.set(ylabel="error against the truth")
        above.legend(fontsize=9.5)
        band(below, counts, result.best_step, Look("best step", LOOKS["network"].color, "-", "o"))
        below.set(ylabel="best number of steps")
        for ax in (above, below):
            ax.set(xscale="log", yscale="log", xlabel="samples")
            ax.set_xticks(counts, [str(n) for n in counts])
            ax.xaxis.minorticks_off()
    return figure


def stopping(result: score_stopping.ScoreStopping) -> Figure:
    """Draw error at all times, error at small times and distance of samples against the number of steps."""
    s = result.settings
    with style():
        figure, (above, below) = plt.subplots(2, 1, figsize=(6.4, 5.8), sharex=True)
        for values, look in (
            (result.error, Look("all times", LOOKS["network"].color, "-", "none")),
            (result.early_error, Look(f"times below {s.early[1]:g}", LOOKS["late"].color, "-.", "none")),
        ):
            band(above, np.array(s.steps), values, look)
        band(below, np.array(s.sampled), result.wasserstein, Look("samples", LOOKS["adam"].color, "-", "v"))
        median = np.median(result.error, axis=0)
        for ax in (above, below):
            ax.axvline(s.steps[int(median.argmin())], color=INK, linestyle=":", linewidth=1)
        below.annotate(
            "least error, all times", (s.steps[int(median.argmin())], 0.045), xytext=(5, 0), textcoords="offset points"
        )
        above.set(yscale="log", ylabel="error against the truth")
        above.legend(fontsize=9.5, loc="upper center")
        below.set(xscale="log", yscale="log", xlabel="steps", ylabel="distance of samples", ylim=(0.04, 1))
        below.set_yticks([0.05, 0.1, 0.2, 0.5, 1], ["0.05", "0.1", "0.2", "0.5", "1"])
        below.minorticks_off()
    return figure


def sampled(result: score_learning.ScoreLearning, sampling: score_sampling.ScoreSampling) -> Figure:
    """Draw histograms of samples beside the density they should have, one panel per score."""
    shown = (
        ("exact", sampling.histogram[0, 0], "exact score"),
        ("zero", sampling.histogram[0, 1], "always zero"),
        ("network", result.histogram[0, 0], "stopped early"),
        ("adam", sampling.histogram[0, 2], "fresh noise"),
    )
    with style():
        figure, axes = plt.subplots(2, 2, figsize=(6.8, 5.2), sharex=True, sharey=True)
        for ax, (name, heights, title) in zip(axes.flat, shown, strict=True):
            ax.stairs(heights, BINS, color=LOOKS[name].color, fill=True, alpha=0.45)
            _density(ax, ON_A_LINE.schedule.first, None)
            ax.set(title=title, xlim=(-1.6, 1.6), ylim=(0, 2.1))
        figure.supxlabel("sample", fontsize=11.5)
        figure.supylabel("density", fontsize=11.5)
    return figure


def plane(result: score_plane.ScorePlane) -> Figure:
    """Draw points of the diffused data and samples of the network in the plane, and error and loss by step."""
    s = result.settings
    with style():
        figure, axes = plt.subplot_mosaic([["data", "samples"], ["curve", "curve"]], figsize=(6.8, 6.6))
        for points, name, title in zip(result.points, ("labels", "adam"), ("data", "samples"), strict=True):
            ax = axes[title]
            ax.plot(*points.T, ".", color=LOOKS[name].color, markersize=4, alpha=0.7)
            ax.set(xlim=(-1.2, 1.2), ylim=(-1.0, 1.25), aspect="equal", title=title)
        steps, curve = np.array(s.steps), axes["curve"]
        band(curve, steps, result.error, Look("error against the truth", LOOKS["network"].color, "-", "none"))
        band(curve, steps, result.train_loss, Look("training loss", LOOKS["late"].color, "-.", "none"))
        curve.set(xscale="log", yscale="log", xlabel="steps", ylabel="mean square", title="kernel machine")
        curve.set_yticks([0.02, 0.05, 0.1, 0.2, 0.5], ["0.02", "0.05", "0.1", "0.2", "0.5"])
        curve.minorticks_off()
        curve.legend(fontsize=9.5)
    return figure


def time_frame(result: score_learning.ScoreLearning, sampling: score_sampling.ScoreSampling, time: float) -> Figure:
    """Draw paths of particles from the last time down to one time, and where all particles are at that time."""
    s = sampling.settings
    times = reverse_times(s.n_sde_steps, schedule=ON_A_LINE.schedule)[list(s.frames)]
    k = int(np.abs(times - time).argmin())
    with style():
        figure, (above, below) = plt.subplots(2, 1, figsize=(6.0, 5.8))
        above.plot(times[: k + 1], sampling.paths[2, : k + 1], color=LOOKS["adam"].color, linewidth=0.9, alpha=0.6)
        above.plot(np.full(sampling.paths.shape[2], times[k]), sampling.paths[2, k], "o", color=LOOKS["adam"].color,
                   markersize=3)  # fmt: skip
        above.set(xlim=(1.55, 0), ylim=(-3, 3), xlabel="time, running backwards", ylabel="particle")
        _density(below, times[k], "true")
        for name, heights in (("network", result.history[k]), ("adam", sampling.history[2, k])):
            _steps(below, heights, name)
        below.set(xlim=(-2.5, 2.5), ylim=(0, 2.1), xlabel="particle", ylabel="density", title=f"time {times[k]:.2f}")
        below.legend(fontsize=9, loc="upper right")
    return figure


def digits(result: score_digits.ScoreDigits) -> Figure:
    """Draw generated images, and below each the training image that is nearest to it."""
    shown = 8
    with style():
        figure, axes = plt.subplots(2, shown, figsize=(6.8, 2.2))
        for row, (images, name) in enumerate(((result.made, "generated"), (result.neighbours, "nearest"))):
            for ax, image in zip(axes[row], images[:shown], strict=True):
                ax.imshow(image.reshape(8, 8), cmap="gray", vmin=-1, vmax=1)
                ax.set_xticks([])
                ax.set_yticks([])
            axes[row, 0].set_ylabel(name)
    return figure


def denoiser_frame(
    time: float, points: np.ndarray, truth: np.ndarray, spread: np.ndarray, slope: float, density: np.ndarray
) -> Figure:
    """Draw true label, scatter of the noisy ones and best line at one time, above the density of the noisy points."""
    with style():
        figure, (above, below) = plt.subplots(2, 1, figsize=(5.6, 5.2), sharex=True, height_ratios=(2.4, 1))
        color = LOOKS["labels"].color
        above.fill_between(points, truth - spread, truth + spread, color=color, alpha=0.25, lw=0, label="noisy labels")
        above.plot(points, slope * points, color="#8a5a00", linestyle="--", label="best line")
        above.plot(points, truth, color=LOOKS["exact"].color, label="true label")
        above.set(xlim=(-2, 2), ylim=(-1.3, 1.3), ylabel="clean point", title=f"time {time:g}")
        above.legend(fontsize=9.5, loc="upper left")
        below.fill_between(points, density, color=color, alpha=0.4, lw=0)
        below.set(ylim=(0, 1.6), xlabel="noisy point", ylabel="density")
    return figure


def frame_times(sampling: score_sampling.ScoreSampling) -> tuple[float, ...]:
    """Return the times of the slider, falling, to two digits."""
    s = sampling.settings
    times = reverse_times(s.n_sde_steps, schedule=ON_A_LINE.schedule)[list(s.frames)]
    return tuple(dict.fromkeys(round(float(time), 2) for time in times))


def _density(ax: Axes, time: float, label: str | None) -> None:
    grid = np.linspace(-2.5, 2.5, 401)
    log = mixture_log_density(ON_A_LINE.mixture, np.full(401, time), grid[:, None], schedule=ON_A_LINE.schedule)
    ax.plot(grid, np.exp(log), color=INK, linestyle=":", linewidth=1.6, label=label)


def _steps(ax: Axes, heights: np.ndarray, name: str) -> None:
    look = LOOKS[name]
    ax.stairs(heights, BINS, color=look.color, linewidth=1.3, linestyle=look.line, label=look.label)
