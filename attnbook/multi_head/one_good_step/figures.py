"""The pictures and tables of the chapter on one good step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr

from attnbook.core.figures import BACKGROUND, INK, Look, band, style
from attnbook.core.tables import Measured, Table
from attnbook.multi_head import oracle
from attnbook.multi_head import start_bounds as theory
from attnbook.multi_head.one_good_step.experiments import STARTS, AfterStart, FirstPhase, StartMargin
from attnbook.multi_head.one_good_step.start import BINS, RANGE, quiet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STEP, ZERO = Look("after the step", "#0b5cad", "-", "o"), Look("same target, at zero", "#5b5f66", "--", "s")
STATED, OURS = Look("eq. (7)", "#111111", (0, (1, 1)), "X"), Look("our bound", "#15803d", (0, (5, 1)), "v")
QUARTER, HALF = Look("ζ/4 taken off", "#0b5cad", "-", "o"), Look("ζ/2 taken off", "#c2410c", "-.", "^")
PAPER = {"facecolor": BACKGROUND, "edgecolor": "none", "pad": 1.0}
NAMES = dict(zip(STARTS, ("zero", "balanced signs", "three quarters plus", "three quarters minus"), strict=True))


def units(own: StartMargin, data: xr.Dataset) -> xr.DataArray:
    """Return eq. (7) without noise at every cell, the unit of the pictures."""
    return own.of_cells(data, lambda mixture: oracle.first_phase_margin(quiet(mixture)))


def margins_in_noise(own: StartMargin, data: xr.Dataset) -> Figure:
    """Draw the smallest margin and both bounds, over eq. (7) without noise, against the noise for each norm."""
    unit, share = units(own, data), own.shares[0]
    bounds = [own.of_cells(data, f) / unit for f in (oracle.first_phase_margin, theory.margin_bound)]
    with style():
        figure, axes = plt.subplots(1, len(own.pattern_norms), figsize=(7.2, 2.6), sharey=True)
        for norm, ax in zip(own.pattern_norms, axes, strict=True):
            for name, look in (("margin", STEP), ("zero_margin", ZERO)):
                values = (data[name] / unit).sel(share=share, norm=norm).transpose("seed", "noise")
                band(ax, data.noise.values, values.values, look)
            for bound, look in zip(bounds, (STATED, OURS), strict=True):
                ax.plot(data.noise, bound.sel(share=share, norm=norm), **look.line_style())
            ax.axhline(0, color=INK, linewidth=0.9)
            ax.set(ylim=(-0.75, 1.1), xlabel=r"noise, $\bar Z/S^2$", title=f"S = {norm:g}")
            ax.set_xticks([0, 0.05, 0.1], ["0", "0.05", "0.1"])
        axes[0].set_ylabel("smallest margin, relative")
        axes[0].legend(loc="lower left", fontsize=8.5, labelspacing=0.25, borderaxespad=0.2)
    return figure


def residual(own: FirstPhase, data: xr.Dataset) -> Figure:
    """Draw the residual with both coefficients against its samples, with its exact size and eq. (6) at C = 1."""
    law = own.over_n(data, theory.residual_size)
    bound = own.over_n(data, lambda mixture, n: theory.residual_bound(mixture, n, failure=own.failure))
    with style():
        figure, ax = plt.subplots(figsize=(6.4, 3.8))
        for name, look in (("residual_half", HALF), ("residual", QUARTER)):
            band(ax, data.n.values, data[name].transpose("seed", "n").values, look)
        ax.plot(data.n, law, color=OURS.color, linestyle=OURS.line, label="exact size (ours)")
        ax.plot(data.n, bound, color=STATED.color, linestyle=STATED.line, label="eq. (6), C = 1")
        size_axis(ax, data.n.values)
        ax.set(yscale="log", ylabel=r"what is left of $m$, $\|p\|$", ylim=(None, float(bound.max()) * 8))
        ax.legend(loc="upper right", fontsize=9.5, ncols=2)
    return figure


def whole_bound(own: StartMargin, data: xr.Dataset) -> Figure:
    """Draw the margin after a real first phase, and both bounds with the measured residual, against its samples."""
    with style():
        figure, ax = plt.subplots(figsize=(6.4, 3.8))
        ours, whole = own.after_step(data, sharper=True), own.after_step(data)
        for values, look in ((data.step_margin, STEP), (ours, OURS), (whole, STATED)):
            band(ax, data.n.values, values.transpose("seed", "n").values, look)
        ax.axhline(0, color=INK, linewidth=0.9)
        size_axis(ax, data.n.values)
        ax.set_yscale("symlog", linthresh=5)
        ax.set(ylabel="margin of the target (linear within ±5)", ylim=(-400, 40))
        ax.set_yticks([-100, -10, -5, 0, 5, 10], ["−100", "−10", "−5", "0", "5", "10"])
        ax.minorticks_off()
        ax.legend(loc="upper left", fontsize=9.5, ncols=3)
    return figure


def explorer_frame(own: StartMargin, data: xr.Dataset, share: float, norm: float, noise: float) -> Figure:
    """Draw how many samples have which margin at zero and after the step, with both bounds, for one cell."""
    edges, here = np.linspace(*RANGE, BINS + 1), {"share": share, "norm": norm, "noise": noise}
    zero, after = data.counts.sel(here)
    mixture, top = own.mixture(share, norm, noise), 1.9 * float(max(zero.max(), after.max()))
    with style():
        figure, ax = plt.subplots(figsize=(5.2, 3.2))
        ax.stairs(after, edges, fill=True, color=STEP.color, label=STEP.label)
        ax.stairs(zero, edges, label=ZERO.label, color=INK, linewidth=1.6, linestyle="--")
        for formula, look, height in ((oracle.first_phase_margin, STATED, 0.7), (theory.margin_bound, OURS, 0.56)):
            value = formula(mixture) / float(units(own, data).sel(here))
            at, words = max(value, -0.49), ("← " if value < -0.49 else "") + look.label
            ax.plot([at, at], [0, top * height], color=look.color, linewidth=2, linestyle=look.line)
            ax.annotate(words, (at, top * height), xytext=(5, -8), textcoords="offset points", fontsize=10, bbox=PAPER)
        ax.plot([0, 0], [0, 0.8 * top], color=INK, linewidth=0.9)
        ax.set(xlim=(-0.52, 1.52), ylim=(0, top), ylabel="samples", xlabel="margin, over eq. (7) without noise")
        ax.set_title(f"ζ = {share:g}, S = {norm:g}, noise {noise:g} S²")
        ax.legend(loc="upper center", fontsize=10, ncols=2, columnspacing=1.0, handlelength=1.6)
    return figure


def explorer_text(own: StartMargin, data: xr.Dataset, share: float, norm: float, noise: float) -> str:
    """Return the numbers behind one picture of the sliders."""
    here, mixture = {"share": share, "norm": norm, "noise": noise}, own.mixture(share, norm, noise)
    unit = float(units(own, data).sel(here))
    before, after = (float(data[name].sel(here).min()) / unit for name in ("zero_margin", "margin"))
    stated, ours = (f(mixture) / unit for f in (oracle.first_phase_margin, theory.margin_bound))
    promised = [f"{value:.2f}" if value > 0 else f"nothing ({value:.2f})" for value in (stated, ours)]
    return (
        f"Smallest margin over all seeds: {before:.2f} at zero, {after:.2f} after the step. Guaranteed by eq. (7): "
        f"{promised[0]}; by our bound: {promised[1]}. (All over eq. (7) without noise, {unit:.2f}.)"
    )


def zero_or_step(own: StartMargin, data: xr.Dataset) -> Table:
    """Return margins at zero and after the step: of the paper's target and of the best one."""
    names = "zero_margin", "margin", "best_zero", "best"
    rows: list[list[str | Measured]] = []
    for noise in (own.noises[0], own.noises[-1]):
        for norm in own.pattern_norms:
            here = data.sel(share=own.shares[0], norm=norm, noise=noise)
            rows.append([f"{norm:g}", f"{noise:g}", *(spread(here[name]) for name in names)])
    caption = (
        f"ζ = {own.shares[0]:g}. Target: smallest of {own.n_samples} samples; best: for {own.n_best} samples; all "
        f"targets have norm √2. Median over {data.sizes['seed']} seeds [smallest, largest]."
    )
    columns = ["S", "noise / S²", "target, at zero", "target, after the step", "best, at zero", "best, after the step"]
    return Table(columns, rows, caption)


def samples_required(own: StartMargin) -> Table:
    """Return from how many first-phase samples on each bound is positive, for three sizes of the residual."""
    sizes = {
        "eq. (6)": f"eq. (6) with C = 1 (probability {1 - own.failure:g})",
        "likely": f"exact size, Chebyshev's inequality (ours, probability {1 - own.failure:g})",
        "typical": "exact size (ours, typical draw)",
    }
    found = own.samples_required()
    rows: list[list[str | Measured]] = [
        [words, *(f"{found[size, bound]:.1e}" for bound in ("stated", "ours"))] for size, words in sizes.items()
    ]
    caption = f"T = {own.n_tokens}, S = {own.step_norm:g}, ζ = {own.shares[0]:g}, noise {own.step_noise:g}."
    return Table(["residual", "eq. (7) positive from n₁ =", "our bound positive from n₁ ="], rows, caption)


def steps(own: AfterStart, data: xr.Dataset) -> Table:
    """Return steps to the judged loss, for each start and step size."""
    rows: list[list[str | Measured]] = []
    for start, name in NAMES.items():
        needed = (spread(data.steps_needed.sel(start=start, step_size=step), 0) for step in own.step_sizes)
        rows.append([name, *needed, spread(data.first_loss.sel(start=start))])
    rows.append(["largest loss on the way", *(spread(data.largest_loss.sel(step_size=s)) for s in own.step_sizes), ""])
    caption = (
        f"Steps until the training loss is {own.reached:g} or less, of at most {own.steps}: median over "
        f"{data.sizes['seed']} seeds [smallest, largest]; last row: over all starts too. H = {own.n_heads}."
    )
    return Table(["start", *(f"η = {step:g}" for step in own.step_sizes), "loss at the start"], rows, caption)


def spread(values: xr.DataArray, digits: int = 2) -> Measured:
    """Return the median and the range, where there is one; infinity means never."""
    low, middle, high = (
        f"{x:.{digits}f}".replace("inf", "never") for x in np.quantile(values, (0, 0.5, 1), method="nearest")
    )
    return Measured(middle if low == high else f"{middle} [{low}, {high}]")


def size_axis(ax: Axes, sizes: np.ndarray) -> None:
    """Name the axis of the sizes of the first phase."""
    ax.set(xscale="log", xlabel="samples of the first step, $n_1$")
    ax.set_xticks(sizes, [f"{n:,}".replace(",", "\u2009") for n in sizes])
    ax.minorticks_off()
