"""The pictures and tables of the chapter. Each function takes data sets and computes nothing but medians."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnbook.core.figures import INK, Look, band, legend_above, log_axis, style
from attnbook.core.tables import Measured, Table, spread
from attnbook.softmax_ntk.lazy_bounds import loss_envelope, row_of_table_1
from attnbook.softmax_ntk.looks import LOOKS, STARTS
from attnbook.softmax_ntk.one_step import ALLOWED, ASKED

TERMS = {
    "normaliser": Look("normaliser, $|C_0|$", "#9d174d", "-", "D"),
    "first order": Look("first order, $|C_1|$", INK, ":", "o"),
    "higher orders": Look("higher orders, $|C_2|$", "#0f766e", "--", "P"),
    "squared change": Look("squared change, $C_3$", "#a16207", "-.", "s"),
}


def harmless(lazy: xr.Dataset, steps: xr.Dataset) -> Figure:
    """Draw how far the kernel has moved at equal loss, and the normaliser's part in a step, against the width."""
    drift, normaliser = lazy.drift.isel(output=0), abs(steps.terms).max("step").sel(term="normaliser")
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(7.6, 2.3))
        for name, look in LOOKS.items():
            band(left, lazy.width, np.maximum(drift.sel(network=name).transpose("seed", "width"), 1e-16), look)
        for start in steps.start.values:
            band(right, steps.width, normaliser.sel(start=start).transpose("seed", "width"), STARTS[start])
        right.axhline(ALLOWED, color=INK, linestyle=":", linewidth=1.2)
        _noted(right, "allowed: 0.1", (steps.width[-1], ALLOWED), (0, 4), ha="right")
        left.set(yscale="log", ylabel="change of the kernel", title="once the loss has fallen 1000-fold")
        right.set(yscale="log", ylabel="normaliser's term", title="one step, softmax")
        log_axis(left, lazy.width.values[::2], "width")
        log_axis(right, steps.width.values, "width")
        left.legend(fontsize=10)
        right.legend(fontsize=10)
    return figure


def account_frame(steps: xr.Dataset, width: int, start: str) -> Figure:
    """Draw the sizes of the four terms in the unit of the induction, step by step."""
    sizes = abs(steps.terms).sel(width=width, start=start).transpose("term", "seed", "step")
    with style():
        figure, ax = plt.subplots(figsize=(6.4, 3.9))
        for name, look in TERMS.items():
            band(ax, steps.step, sizes.sel(term=name), look)
        levels = {f"asked of $|C_1|$: {-ASKED:g}": -ASKED, f"allowed to the others: {ALLOWED:g}": ALLOWED}
        for text, level in levels.items():
            ax.axhline(level, color=INK, linestyle=":", linewidth=1)
            _noted(ax, text, (steps.step[-1], level), (0, -11), ha="right", fontsize=9)
        ax.set(yscale="log", xlabel="step", ylabel=r"size / $m\eta\lambda\|e\|^2$", ylim=(1e-9, 100))
        ax.set(xticks=(0, 5, 10, 15), title=f"{STARTS[start].label}, width {width}")
        ax.legend(loc="lower left", ncols=2, fontsize=9)
    return figure


def account_text(steps: xr.Dataset, width: int, start: str) -> str:
    """Say how large the normaliser's term becomes, and whether the account closes."""
    terms = steps.terms.sel(width=width, start=start)
    largest = abs(terms).max("step").sel(term="normaliser")
    within = int((largest <= ALLOWED).sum())
    return (
        f"{STARTS[start].label}, width {width}: the normaliser's term is at most {float(largest.median()):.2g} (median "
        f"over {len(steps.seed)} seeds), within its allowance in {within}; the sum of all four is at most "
        f"{float(terms.sum('term').max()):.2g} where -0.5 is asked."
    )


def envelope(lazy: xr.Dataset) -> Figure:
    """Draw the loss of the three networks, and for softmax the envelope of Lemma 5.3."""
    at = lazy.isel(output=0).sel(width=lazy.attrs["settings"]["curve_width"], network="softmax")
    rates = [float(e / top) for e, top in zip(at.smallest_eigenvalue, at.largest_eigenvalue, strict=True)]
    steps = lazy.step.values.astype(float)
    bound = [loss_envelope(steps, smallest_eigenvalue=rate, step_size=1.0, width=1) for rate in rates]
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.2))
        for name, look in LOOKS.items():
            band(ax, lazy.step, lazy.curve.sel(network=name).transpose("seed", "step"), look)
        band(ax, lazy.step, np.array(bound), Look("envelope of Lemma 5.3, softmax", INK, ":", "none"))
        ax.set(yscale="log", xlabel="step", ylabel="loss / first loss", ylim=(3e-4, 1.5))
        legend_above(ax, ncols=4, fontsize=10)
    return figure


def drift_by_start(starts: xr.Dataset) -> Figure:
    """Draw the drift of the kernel at equal residual for three starts."""
    shown = (("softmax", 1.0, -1.5), ("softmax", 0.3, -2.0), ("relu", 1.0, -1.0))
    with style():
        figure, axes = plt.subplots(1, 3, figsize=(7.6, 3.3), sharey=True)
        for ax, (network, scale, power) in zip(axes, shown, strict=True):
            drift = starts.drift.sel(network=network, scale=scale).transpose("start", "seed", "width")
            for start, look in STARTS.items():
                band(ax, starts.width, np.maximum(drift.sel(start=start), 1e-16), look)
            widths = starts.width.values
            line = 0.4 * float(drift.sel(start="paired").isel(width=0).median()) * (widths / widths[0]) ** power
            ax.plot(widths, line, color=INK, linewidth=1, linestyle=":")
            _noted(ax, f"slope −{-power:g}", (widths[1], line[1]), (0, -15), fontsize=9)
            ax.set(yscale="log", title=f"{LOOKS[network].label}, scale {scale:g}")
            log_axis(ax, starts.width.values[::2], "width")
        axes[0].set_ylabel("change of the kernel")
        axes[0].legend(fontsize=9)
    return figure


def varied(steps: xr.Dataset) -> Table:
    """Return the largest sizes of the terms by weight scale and by step size, for both starts."""
    rows: list[list[str | Measured]] = []
    for name, label in (("scale", "weights σ"), ("fraction", "step size × mλ_max")):
        for value in steps[name].values:
            for start in steps.start.values:
                sizes = steps[f"by_{name}"].sel({name: value, "start": start}).median("seed")
                cells = [Measured(f"{float(sizes.sel(term=term)):.2g}") for term in TERMS if term != "first order"]
                rows.append([f"{label} = {value:g}", STARTS[start].label, *cells])
    width = steps.attrs["settings"]["width"]
    caption = (
        f"Largest size over the steps, in the unit of the account, width {width}; medians over seeds. Allowed: 0.1."
    )
    return Table(["", "start", "normaliser", "higher orders", "squared change"], rows, caption)


def table_1(lazy: xr.Dataset) -> Table:
    """Return the rows of Table 1, evaluated on the data, beside what the networks took."""
    n = lazy.attrs["settings"]["n_samples"]
    rows: list[list[str | Measured]] = []
    last = lazy.isel(output=0, width=-1)
    for name, look in LOOKS.items():
        at = last.sel(network=name)
        eigenvalue = float(at.smallest_eigenvalue.median())
        width, steps = row_of_table_1(name, eigenvalue, n_samples=n, error=lazy.attrs["settings"]["target"] * n)  # type: ignore[arg-type]  # xarray's names are str
        arrived = (lazy.reached.isel(output=0).sel(network=name) == 1).all("seed")
        failed = [int(w) for w in lazy.width.values[~arrived]]
        enough = [int(w) for w in lazy.width.values if not failed or w > max(failed)]
        cells = (f"{eigenvalue:.2g}", f"{width:.0e}", f"{enough[0]}" if enough else "none", f"{steps:.0e}")
        rows.append([look.label, *map(Measured, cells), spread(at.steps, ".3g")])
    caption = f"One output, constants and powers of e^B set to 1. Steps at width {int(lazy.width[-1])}: median, range."
    return Table(["", "λ", "width: row", "all arrive from", "steps: row", "steps taken"], rows, caption)


def step_sizes(data: xr.Dataset) -> Figure:
    """Draw steps against the step size: hollow where the loss of most networks rises, crossed where not all arrive."""
    with style():
        figure, ax = plt.subplots(figsize=(6.6, 3.3))
        for name, look in LOOKS.items():
            run = data.sel(network=name)
            steps, rising = run.steps.where(run.reached == 1).median("seed"), run.rises.mean("seed") > 0.5
            ax.plot(data.fraction, steps, color=look.color, linestyle=look.line, label=look.label)
            for shown, fill in ((rising, "none"), (~rising, "full")):
                ax.plot(data.fraction, steps.where(shown), look.marker, color=look.color, fillstyle=fill)
            ax.plot(data.fraction, steps.where(run.reached.mean("seed") < 1), "kx", markersize=9)
        ax.axvline(2, color=INK, linestyle=":", linewidth=1)
        ax.set(yscale="log", ylabel="steps to arrive")
        log_axis(ax, (0.25, 0.5, 1, 2, 4, 10), r"step size $\times m\lambda_{\max}$")
        legend_above(ax, ncols=3, fontsize=10)
    return figure


def _noted(ax: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], **how: Any) -> None:
    """A word beside a point of a picture."""
    ax.annotate(text, at, xytext=offset, textcoords="offset points", **how)
