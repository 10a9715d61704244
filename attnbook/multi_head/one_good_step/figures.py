"""The pictures of the chapter on one good step."""

from __future__ import annotations

from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnbook.core.figures import INK, Look, band, legend_above, log_axis, style
from attnbook.multi_head import oracle
from attnbook.multi_head import start_bounds as theory
from attnbook.multi_head.one_good_step.experiments import StartMargin

STEP, ZERO = Look("after the step", "#0b5cad", "-", "o"), Look("start at zero", "#5b5f66", "--", "s")
STATED = Look("the paper's (7)", "#111111", (0, (1, 1)), "X")
OURS = Look("guaranteed (ours)", "#15803d", (0, (5, 1)), "v")
QUARTER, HALF = Look("ζ/4 taken off", "#0b5cad", "-", "o"), Look("ζ/2 taken off", "#c2410c", "-.", "^")


def relative(data: xr.Dataset) -> dict[Look, xr.DataArray]:
    """Return measured smallest margins and both bounds of all cells, over the paper's (7) without noise."""
    own = StartMargin.from_data(data)
    unit = own.of_cells(lambda mixture: oracle.first_phase_margin(replace(mixture, label_noise=0.0, other_noise=0.0)))
    bounds = {STATED: own.of_cells(oracle.first_phase_margin), OURS: own.of_cells(theory.margin_bound)}
    return {look: values / unit for look, values in ({STEP: data.margin, ZERO: data.zero_margin} | bounds).items()}


def margins_in_noise(data: xr.Dataset) -> Figure:
    """Draw the smallest margin and both bounds, over the paper's (7) without noise, against the noise for each norm."""
    own = StartMargin.from_data(data)
    with style():
        figure, axes = plt.subplots(1, len(own.pattern_norms), figsize=(7.2, 2.6), sharey=True)
        for norm, ax in zip(own.pattern_norms, axes, strict=True):
            _against_noise(ax, data, own.shares[0], norm)
            ax.set(title=f"S = {norm:g}")
        axes[0].set_ylabel("margin / margin without noise", fontsize=10)
        axes[0].legend(loc="lower left", fontsize=8.5, labelspacing=0.25, borderaxespad=0.2)
    return figure


def residual(data: xr.Dataset) -> Figure:
    """Draw the residual with both coefficients against its samples, its exact size, and the paper's (6) at C = 1."""
    own = StartMargin.from_data(data)
    law, bound = own.over_n(theory.residual_size), own.over_n(theory.residual_bound)
    with style():
        figure, ax = plt.subplots(figsize=(6.4, 3.8))
        for name, look in (("residual_half", HALF), ("typical_residual", QUARTER)):
            band(ax, data.n.values, data[name].transpose("seed", "n").values, look)
        ax.plot(data.n, law, color=OURS.color, linestyle=OURS.line, label="exact size (ours)")
        ax.plot(data.n, bound, color=STATED.color, linestyle=STATED.line, label="the paper's (6), C = 1")
        log_axis(ax, data.n.values, "samples of the first step, $n_1$", ",")
        ax.set(yscale="log", ylim=(None, float(bound.max()) * 2), ylabel=r"what is left of $m$, $\|p\|$")
        legend_above(ax, ncols=2, fontsize=9.5)
    return figure


def cell_frame(data: xr.Dataset, share: float, norm: float, noise: float) -> Figure:
    """Draw one panel of the first picture for any share, with the noise of one cell marked."""
    with style():
        figure, ax = plt.subplots(figsize=(5.6, 2.8))
        _against_noise(ax, data, share, norm)
        ax.axvline(noise, color=INK, linewidth=0.9, linestyle=":")
        ax.set(title=f"ζ = {share:g}, S = {norm:g}, noise {noise:g} S²", ylabel="margin / without noise")
        ax.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=9.5)
    return figure


def _against_noise(ax: Axes, data: xr.Dataset, share: float, norm: float) -> None:
    for look, values in relative(data).items():
        band(ax, data.noise, np.atleast_2d(values.sel(share=share, norm=norm).transpose(..., "noise")), look)
    ax.axhline(0, color=INK, linewidth=0.9)
    ax.set(ylim=(-0.75, 1.1), xlabel=r"noise, $\bar Z/S^2$")
    ax.set_xticks([0, 0.05, 0.1], ["0", "0.05", "0.1"])


def cell_text(data: xr.Dataset, share: float, norm: float, noise: float) -> str:
    """Return what the bounds promise in one cell, and what the worst seed has."""
    found = {look: float(v.sel(share=share, norm=norm, noise=noise).min()) for look, v in relative(data).items()}
    stated, ours = (f"{found[look]:.2f}" if found[look] > 0 else "nothing" for look in (STATED, OURS))
    return (
        f"Smallest margin over all seeds: {found[ZERO]:.2f} at zero, {found[STEP]:.2f} after the step. "
        f"The paper's (7) promises {stated}, our bound {ours}. (All over the paper's (7) without noise.)"
    )
