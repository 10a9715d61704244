"""The pictures of the chapter. Each function takes data sets and computes nothing but medians."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import xarray as xr
from matplotlib.figure import Figure

from attnbook.core.figures import INK, Look, band, legend_above, log_axis, style
from attnbook.multi_head.margin_race import experiments as own

LOOKS = {
    ("normalised", 0): ("#0b5cad", "-", "o"),
    ("normalised", 1): ("#0e7490", "--", "s"),
    ("plain", 0): ("#c2410c", "-.", "^"),
    ("plain", 1): ("#7f1d1d", ":", "D"),
}  # the best first
BY_HEADS = (("#c2410c", "-.", "^"), ("#7c3aed", ":", "D"), ("#0b5cad", "-", "o"))  # from the fewest to the most
FIXED: dict[str, dict[str, Any]] = {
    "zero": {"label": "zero start", "color": "#5b5f66", "linestyle": "--"},
    "first_phase": {"label": "after the first phase", "color": "#15803d", "linestyle": (0, (5, 1))},
}
SHARE = r"margin per $\|\tilde U\|$, share of $\gamma_{attn}$"


def race(data: xr.Dataset, norm: float | None = None) -> Figure:
    """Draw the share of the attention margin against steps and norms; circles where every network has one norm."""
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(7.8, 3.0), sharey=True)
        for look, network in _networks(data):
            band(left, data.step, network.fraction.values.T, look)
            left.lines[-1].set_markevery(4)
            runs = _drawn(network)
            lines = right.plot(runs.value_norm, runs.fraction, **look.line_style(), markevery=7, linewidth=1)
            plt.setp(lines[1:], label="_")  # one line for each seed
        left.axhline(float(data.floor.median()), color=INK, linewidth=1.2, linestyle=(0, (1, 1)))
        place = {"transform": left.transAxes, "fontsize": 9}
        left.text(0.99, 0.1, "dotted: best with uniform attention", ha="right", **place)
        left.text(0.01, 0.935, r"attention margin $\gamma_{attn}$", **place)
        left.set(xscale="log", xlabel="step", ylabel=SHARE, ylim=(-0.45, 1.14), xlim=(3, None))
        left.legend(fontsize=8.5, loc="upper left", bbox_to_anchor=(0, 0.91), labelspacing=0.2)
        right.set(xscale="log", xlabel=r"norm of all value matrices $\|\tilde U\|$", xlim=(0.3, None))
        for ax in (left, right):
            ax.axhline(1, color=INK, linewidth=1.4)
        if norm is not None:
            right.axvline(norm, color=INK, linewidth=1)
            for look, share in shares_at(data, norm):
                right.plot(norm, share, "o", markersize=11, color=look.color, fillstyle="none", markeredgewidth=2)
    return figure


def norm_text(data: xr.Dataset, norm: float) -> str:
    """Return the numbers behind one picture of the slider."""
    found = [f"{look.label}: {'not there' if x != x else f'{x:.2f}'}" for look, x in shares_at(data, norm)]
    return f"Median shares where the value matrices have norm {norm:g}. {'; '.join(found)}."


def shares_at(data: xr.Dataset, norm: float) -> list[tuple[Look, float]]:
    """Return each network's median share at a norm, over the seeds that pass it where they are drawn; NaN for none."""
    return [(look, float(own.shares_at(_drawn(network), norm).median("seed"))) for look, network in _networks(data)]


def at_starts(starts: xr.Dataset) -> Figure:
    """Draw tangent-kernel margins against the scale of random value matrices, and with coin flips for labels."""
    margins, scales = starts.sel(key_query_scale=0.3), starts.value_scale.values
    panels = {"true labels": "random", "coin flips for labels": "coin_flips"}
    with style():
        figure, axes = plt.subplots(1, 2, figsize=(7.8, 3.7), sharey=True)
        for ax, (title, name) in zip(axes, panels.items(), strict=True):
            for heads, look in zip(starts.heads.values, BY_HEADS, strict=False):
                band(ax, scales, margins[name].sel(heads=heads).values.T, Look(f"random, H = {heads}", *look))
            for start, line in FIXED.items():
                ax.axhline(float(starts[start if name == "random" else f"{start}_{name}"].median()), **line)
            ax.set(title=title, ylim=(-0.05, None))
            log_axis(ax, scales, r"scale $\sigma_U$ of value matrices")
        axes[0].set_ylabel(r"tangent margin, $\|\tilde\theta_\star\|=\sqrt{2}$")
        axes[1].legend(loc="upper left", fontsize=9.5)
    return figure


def global_margins(starts: xr.Dataset) -> Figure:
    """Draw the largest margin found at norm root two against the number of heads, beside tangent margins."""
    random, of = starts.matched.sel(key_query_scale=0.3), "tangent margin, "
    with style():
        figure, ax = plt.subplots(figsize=(6.4, 3.8))
        largest = Look("largest margin found, norm √2", "#0b5cad", "-", "o")
        band(ax, starts.searched, starts.global_margin.max("start").values.T, largest)
        for name, line in FIXED.items():
            ax.axhline(float(starts[name].median()), **{**line, "label": of + line["label"]})
        band(ax, starts.heads, random.values.T, Look(f"{of}random start, as large", "#c2410c", "-.", "^"))
        log_axis(ax, starts.searched.values, "number of heads $H$")
        ax.set(ylabel="margin", ylim=(0.55, 1.35))
        legend_above(ax, ncols=2, fontsize=9.5)
    return figure


def _networks(data: xr.Dataset) -> list[tuple[Look, xr.Dataset]]:
    """Look and data of every network, the best first."""
    networks = {at: data.sel(rule=at[0]).isel(heads=at[1]) for at in LOOKS}
    labels = {at: f"{at[0]}, H = {int(one.heads)}" for at, one in networks.items()}
    labels["normalised", 1] += ", first phase"
    return [(Look(labels[at], *look), networks[at]) for at, look in LOOKS.items()]


def _drawn(run: xr.Dataset) -> xr.Dataset:
    """One run; of plain descent, which starts on the wrong side, all but the first fortieth of the steps."""
    first = int(run.step[-1]) / 40 if run.rule == "plain" else 0
    return run.sel(step=slice(first, None))
