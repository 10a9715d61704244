"""The pictures of the chapter on one good step."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from attnbook.core.figures import INK, Look, band, style
from attnbook.multi_head import oracle
from attnbook.multi_head import start_bounds as theory
from attnbook.multi_head.one_good_step.experiments import StartMargin
from attnbook.multi_head.one_good_step.start import quiet

STEP, ZERO = Look("after the step", "#0b5cad", "-", "o"), Look("start at zero", "#5b5f66", "--", "s")
STATED, OURS = (
    Look("stated, eq. (7)", "#111111", (0, (1, 1)), "X"),
    Look("guaranteed (ours)", "#15803d", (0, (5, 1)), "v"),
)
QUARTER, HALF = Look("ζ/4 taken off", "#0b5cad", "-", "o"), Look("ζ/2 taken off", "#c2410c", "-.", "^")


def relative(own: StartMargin, data: xr.Dataset) -> dict[Look, xr.DataArray]:
    """Return measured smallest margins and both bounds of all cells, over eq. (7) without noise."""
    unit = own.of_cells(lambda mixture: oracle.first_phase_margin(quiet(mixture)))
    bounds = {STATED: own.of_cells(oracle.first_phase_margin), OURS: own.of_cells(theory.margin_bound)}
    return {look: values / unit for look, values in ({STEP: data.margin, ZERO: data.zero_margin} | bounds).items()}


def margins_in_noise(own: StartMargin, data: xr.Dataset) -> Figure:
    """Draw the smallest margin and both bounds, over eq. (7) without noise, against the noise for each norm."""
    with style():
        figure, axes = plt.subplots(1, len(own.pattern_norms), figsize=(7.2, 2.6), sharey=True)
        for norm, ax in zip(own.pattern_norms, axes, strict=True):
            for look, values in relative(own, data).items():
                here = values.sel(share=own.shares[0], norm=norm)
                band(ax, data.noise, np.atleast_2d(here.transpose(..., "noise")), look)
            ax.axhline(0, color=INK, linewidth=0.9)
            ax.set(ylim=(-0.75, 1.1), xlabel=r"noise, $\bar Z/S^2$", title=f"S = {norm:g}")
            ax.set_xticks([0, 0.05, 0.1], ["0", "0.05", "0.1"])
        axes[0].set_ylabel("margin / margin without noise", fontsize=10)
        axes[0].legend(loc="lower left", fontsize=8.5, labelspacing=0.25, borderaxespad=0.2)
    return figure


def residual(own: StartMargin, data: xr.Dataset) -> Figure:
    """Draw the residual with both coefficients against its samples, with its exact size and eq. (6) at C = 1."""
    law, bound = own.over_n(theory.residual_size), own.over_n(theory.residual_bound)
    with style():
        figure, ax = plt.subplots(figsize=(6.4, 3.8))
        for name, look in (("residual_half", HALF), ("typical_residual", QUARTER)):
            band(ax, data.n.values, data[name].transpose("seed", "n").values, look)
        ax.plot(data.n, law, color=OURS.color, linestyle=OURS.line, label="exact size (ours)")
        ax.plot(data.n, bound, color=STATED.color, linestyle=STATED.line, label="eq. (6), C = 1")
        ax.set_xscale("log")
        ax.set_xticks(data.n, [f"{int(n):,}".replace(",", "\u2009") for n in data.n])
        ax.minorticks_off()
        ax.set(xlabel="samples of the first step, $n_1$", ylabel=r"what is left of $m$, $\|p\|$")
        ax.set(yscale="log", ylim=(None, float(bound.max()) * 8))
        ax.legend(loc="upper right", fontsize=9.5, ncols=2)
    return figure


def cell_frame(own: StartMargin, data: xr.Dataset, share: float, norm: float, noise: float) -> Figure:
    """Draw measured margins of all seeds and both bounds for one cell, as bars."""
    with style():
        figure, ax = plt.subplots(figsize=(5.6, 2.6))
        for row, (look, values) in enumerate(relative(own, data).items()):
            each = np.atleast_1d(values.sel(share=share, norm=norm, noise=noise))
            ax.barh(-row, np.median(each), color=look.color, height=0.6)
            ax.plot(each, np.full(len(each), -row), linestyle="none", marker="|", color=INK, markersize=12)
            ax.annotate(f"{np.median(each):.2f}", (1.22, -row), ha="right", va="center")
        ax.axvline(0, color=INK, linewidth=0.9)
        ax.set_yticks(range(0, -4, -1), [look.label for look in (STEP, ZERO, STATED, OURS)])
        ax.set_xticks([-1, -0.5, 0, 0.5, 1])
        ax.set(xlim=(-1, 1.25), xlabel="smallest margin / margin without noise")
        ax.set_title(f"ζ = {share:g}, S = {norm:g}, noise {noise:g} S²")
    return figure


def cell_text(own: StartMargin, data: xr.Dataset, share: float, norm: float, noise: float) -> str:
    """Return what the bounds promise in one cell, and what the worst seed has."""
    found = {look: float(v.sel(share=share, norm=norm, noise=noise).min()) for look, v in relative(own, data).items()}
    stated, ours = (f"{found[look]:.2f}" if found[look] > 0 else "nothing" for look in (STATED, OURS))
    return (
        f"Smallest margin over all seeds: {found[ZERO]:.2f} at zero, {found[STEP]:.2f} after the step. "
        f"Eq. (7) promises {stated}, our bound {ours}. (All over eq. (7) without noise.)"
    )
