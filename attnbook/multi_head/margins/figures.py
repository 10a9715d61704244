"""The pictures of the chapter. Each function takes data sets and computes nothing but medians."""

from __future__ import annotations

from typing import TypeAlias

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from attnbook.core.figures import INK, Look, band, log_axis, style
from attnbook.multi_head import oracle
from attnbook.multi_head.margins import experiments as own
from attnbook.multi_head.margins.cells import AttentionMap

Mark: TypeAlias = tuple[str, str | tuple[int, tuple[int, ...]], str]  # colour, line, marker

ATTENTION = Look("saturated attention", "#0b5cad", "-", "o")
LINEAR = Look(r"uniform attention, $\gamma_{lin}$", "#5b5f66", "--", "s")
BY_FRACTION: tuple[Mark, ...] = ("#111111", ":", "D"), ("#5b5f66", "--", "s"), ("#9d174d", (0, (3, 1, 1, 1, 1, 1)), "P")
BY_STEP: tuple[Mark, ...] = ("#7c3aed", ":", "D"), ("#c2410c", "-.", "^"), ("#7f1d1d", (0, (5, 1)), "v")
BEST = Look("best linear rule", "#111111", "none", "o", hollow=True)
NOISE = r"noise along patterns $\bar Z/S^2$"
LOST = "#e5e7eb"  # where a sample is on the wrong side, or a query looks away


def separation(rules: xr.Dataset) -> Figure:
    """Draw the smallest margins with uniform and with saturated attention against the noise."""
    x, n_tokens = rules.noise.values, own.LinearRules.from_data(rules).n_tokens
    limit = (n_tokens / 2) ** 0.5  # the attention margin at S = 1
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.0))
        ax.axhspan(-1, 0, color=LOST, zorder=0)
        band(ax, x, rules.attention.isel(fraction=0) / limit, ATTENTION)
        for zeta, look in zip(rules.fraction.values, BY_FRACTION, strict=True):
            uniform = rules.uniform.sel(fraction=zeta) / limit
            band(ax, x, uniform, Look(rf"uniform attention, $\zeta$ = {zeta:g}", *look))
        best = rules.best.median("seed") / limit
        points = best.where(best > 0).stack(point=("fraction", "noise")).dropna("point")
        ax.plot(points.noise, points, **BEST.line_style())
        ax.text(0.0, -0.17, "a sample is on the wrong side", fontsize=9.5)
        ax.set(xlabel=NOISE, ylabel=r"smallest margin / $\gamma_{attn}$", ylim=(-0.22, 1.06))
        ax.legend(fontsize=9.5, loc="center right", bbox_to_anchor=(1.0, 0.67))
    return figure


def margins_and_steps(data: xr.Dataset) -> Figure:
    r"""Draw measured margins against $S$ for three lengths of the first step, at the largest $\zeta$."""
    ready, last = own.MarginOrder.from_data(data), {"fraction": -1}
    s = data.norm.values
    with style():
        figure, ax = plt.subplots(figsize=(6.4, 4.0))
        ax.plot(s, ready.of_theory(oracle.attention_margin).isel(last), **ATTENTION.line_style())
        for c, look in zip(data.step.values, BY_STEP, strict=True):
            band(ax, s, data.tangent.isel(last).sel(step=c), Look(rf"linearised, step $\times$ {c:g}", *look))
        ax.plot(s, ready.of_theory(oracle.linear_margin).isel(last), **LINEAR.line_style())
        crossing = oracle.crossing(ready.quiet(float(data.fraction[-1]), 1.0))
        ax.axvline(crossing, color=INK, linewidth=1, linestyle=":", label="predicted crossing")
        log_axis(ax, range(1, 7), "pattern norm S")
        ax.set(yscale="log", ylabel="margin")
        ax.legend(fontsize=9, loc="upper left")
    return figure


def attention_map(found: AttentionMap) -> Figure:
    """Draw where each query looks, and how far leak and margin are."""
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(5.4, 3.2), width_ratios=(1.5, 1))
        left.imshow(found.weights, vmin=0, vmax=1 / found.n_relevant, cmap="Greys")
        left.axvline(found.n_relevant - 0.5, color="#c2410c", linewidth=1.6)
        left.set(xlabel="keys, relevant left of the line", ylabel="query token", xticks=[])
        rows = np.arange(len(found.weights))
        left.set_yticks(rows, rows + 1, fontsize=8)
        left.set_title(f"white 0, black {1 / found.n_relevant:g}", fontsize=9.5)
        bars = {"color": ["#5b5f66", "#0b5cad"], "hatch": ["//", ""], "width": 0.6}
        right.bar([0, 1], [found.leak, found.margin], **bars)
        right.axhline(1, color=INK, linewidth=1)
        right.set(ylim=(-0.1, 1.1), xlim=(-0.6, 1.6))
        right.set_xticks([0, 1], ["worst\nleak", "margin /\n$\\gamma_{attn}$"])
        for ax in (left, right):
            ax.grid(visible=False)
    return figure


def map_text(found: AttentionMap) -> str:
    """Return the numbers behind one picture of the attention map."""
    worst = found.weights[:, found.n_relevant :].sum(axis=1).argmax() + 1
    return f"Worst leak {found.leak:.3f}, of query {worst}; margin {found.margin:.3f} times the attention margin."
