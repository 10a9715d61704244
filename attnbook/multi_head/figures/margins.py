"""The pictures of the first half of the chapter on margins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np

from attnbook.core.figures import INK, Look, band, style
from attnbook.multi_head import oracle
from attnbook.multi_head.experiments import attention_maps, feasibility, linear_rules, margin_order, margins
from attnbook.multi_head.experiments import oracle_logits as logits
from attnbook.multi_head.feasibility import boundaries
from attnbook.multi_head.figures.looks import LOOKS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "attention_map",
    "feasibility_map",
    "gaps",
    "margins_and_steps",
    "needed_scale",
    "oracle_logits",
    "order_frame",
    "separation",
]

SHARE = r"smallest margin / $\gamma_{attn}$"
NOISE = r"noise along patterns $\bar Z/S^2$"
DIM = "#9aa0a8"
# Looks of the shares of relevant tokens, from the smallest.
BY_FRACTION = (("#111111", ":", "D"), ("#5b5f66", "--", "s"), ("#9d174d", (0, (3, 1, 1, 1, 1, 1)), "P"))
BY_STEP = (("#7c3aed", ":", "D"), ("#c2410c", "-.", "^"), ("#7f1d1d", (0, (5, 1)), "v"))


def separation(result: linear_rules.LinearRules) -> Figure:
    """Draw the smallest margins with uniform and with saturated attention against the noise."""
    settings = result.settings
    x, limit = np.array(settings.noise_shares), oracle.attention_margin(settings.mixture(0.1, 0.0))
    with style():
        figure, ax = plt.subplots(figsize=(5.2, 4.3))
        ax.axhspan(-1, 0, color="#e5e7eb", zorder=0)
        band(ax, x, result.attention[:, 0] / limit, replace(LOOKS["attention_margin"], label="saturated attention"))
        for i, zeta in enumerate(settings.relevant_fractions):
            look = Look(rf"uniform attention, $\zeta$ = {zeta:g}", *BY_FRACTION[i % len(BY_FRACTION)])
            band(ax, x, result.uniform[:, i] / limit, look)
        best, (rows, columns) = np.median(result.best, axis=0) / limit, np.nonzero(np.median(result.best, axis=0))
        ax.plot(x[columns], best[rows, columns], **LOOKS["best_linear"].line_style())
        ax.text(0.0, -0.17, "a sample is on the wrong side", fontsize=9.5)
        ax.set(xlabel=NOISE, ylabel=SHARE, ylim=(-0.22, 1.06), xlim=(-0.002, x[-1] + 0.002))
        ax.legend(fontsize=9.5, loc="center right", bbox_to_anchor=(1.0, 0.68))
    return figure


def oracle_logits(result: logits.OracleLogits) -> Figure:
    """Draw logits of relevant and irrelevant keys against the pattern norm, for three laws of the noise."""
    s = np.array(result.settings.pattern_norms)
    laws = {
        "constant": Look(r"irrelevant, $\bar Z$ constant", "#5b5f66", "--", "s"),
        "linear": Look(r"irrelevant, $\bar Z\propto S$", "#c2410c", "-.", "^"),
        "quadratic": Look(r"irrelevant, $\bar Z=S^2/8$", "#7c3aed", ":", "D"),
    }
    with style():
        figure, ax = plt.subplots(figsize=(5.2, 4.2))
        band(ax, s, result.relevant[:, 1], Look("relevant (mean)", "#0b5cad", "-", "o"))
        for law, look in laws.items():
            band(ax, s, result.irrelevant[:, logits.LAWS.index(law)], look)
        for law, power, side in (("constant", 2, 0.6), ("linear", 3, 0.6), ("quadratic", 4, 1.6)):
            start = np.median(result.irrelevant[:, logits.LAWS.index(law), 0]) * side
            ax.plot(s, start * s**power, color=INK, linewidth=0.9, linestyle=(0, (1, 2)), marker="")
            ax.annotate(f"slope {power}", (s[-1], start * s[-1] ** power), ha="left", va="center", fontsize=9.5)
        ax.set(xscale="log", yscale="log", xlabel="pattern norm S", ylabel=r"logit under $W_{*}$")
        ax.set_xticks(s, [f"{value:g}" for value in s])
        ax.minorticks_off()
        ax.set_xlim(s[0] * 0.92, s[-1] * 1.45)
        ax.legend(fontsize=9.5, loc="upper left")
    return figure


def gaps(result: logits.OracleLogits) -> Figure:
    """Draw the smallest logit gap against the noise, sampled and by formula, and what Proposition 3 uses."""
    x = np.array(result.settings.noise_shares)
    with style():
        figure, ax = plt.subplots(figsize=(5.2, 3.8))
        ax.axhspan(-1, 0, color="#e5e7eb", zorder=0)
        ax.axvspan(-1, 0.125, color="#dbeafe", zorder=0, linewidth=0)
        ax.plot(x, result.stated_gaps(), color=INK, linewidth=1.4, marker="", label="our formula")
        found = replace(LOOKS["corner_noise"], label="smallest of sampled corners", line="none", hollow=True)
        ax.plot(x, result.corner_gap.min(axis=0), **found.line_style())
        ax.plot(0.125, 0.375, **Look("used by the paper's proof", "#0b5cad", "none", "X").line_style())
        ax.text(0.004, -0.11, "Proposition 3 applies", fontsize=9.5)
        ax.text(x[-1], -0.15, "a query may look away", fontsize=9.5, ha="right")
        ax.set(xlabel=NOISE, ylabel=r"smallest logit gap / $S^4$", ylim=(-0.18, 1.05), xlim=(-0.005, x[-1] + 0.005))
        ax.legend(loc="upper right", fontsize=9.5)
    return figure


def needed_scale(result: margins.Margins, *, relevant_fraction: float = 0.05) -> Figure:
    r"""Draw the $\Gamma$ that is needed as a share of the stated one, for each kind of noise."""
    settings = result.settings
    at, leaks = settings.relevant_fractions.index(relevant_fraction), np.array(settings.leaks)
    stated, sharp = settings.per_cell(oracle.stated_scale), settings.per_cell(oracle.sharp_scale)
    names = {"random": "inside_noise", "corners": "corner_noise", "hard": "hard_noise"}
    with style():
        figure, ax = plt.subplots(figsize=(5.2, 3.8))
        for i, kind in enumerate(margins.KINDS):
            band(ax, leaks, result.needed[:, i, 0, at] / stated[0, at], LOOKS[names[kind]])
        ax.plot(leaks, sharp[0, at] / stated[0, at], color=INK, linestyle=":", linewidth=1.4, label="our bound")
        ax.axhline(1, color=INK, linewidth=1.4)
        ax.annotate(
            r"$\Gamma_\epsilon$ of Proposition 3", (leaks.max(), 1), xytext=(0, -14), textcoords="offset points"
        )
        ax.set(xscale="log", xlabel=r"attention $\epsilon$ allowed on irrelevant tokens", ylim=(0, 1.08))
        ax.set(ylabel=r"needed $\Gamma$ / $\Gamma_\epsilon$", title=rf"$\zeta$ = {relevant_fraction:g}")
        ax.set_xticks(leaks, [f"{leak:g}" for leak in leaks])
        ax.minorticks_off()
        ax.invert_xaxis()
        ax.legend(fontsize=9.5, loc="lower left", ncols=2)
    return figure


def margins_and_steps(result: margin_order.MarginOrder, *, relevant_fraction: float = 0.5) -> Figure:
    r"""Draw measured margins against $S$, for three lengths of the first step."""
    settings = result.settings
    at, s = settings.relevant_fractions.index(relevant_fraction), np.array(settings.pattern_norms)
    cells = settings.cells()[at]
    with style():
        figure, ax = plt.subplots(figsize=(5.2, 4.2))
        ax.plot(s, result.of_network[at], **LOOKS["attention_margin"].line_style())
        for i, c in enumerate(settings.steps):
            look = Look(rf"linearised, step $\times$ {c:g}", *BY_STEP[i % len(BY_STEP)])
            band(ax, s, result.tangent[:, at, :, i], look)
        ax.plot(s, [oracle.linear_margin(cell) for cell in cells], **LOOKS["linear_margin"].line_style())
        ax.axvline(oracle.crossing(cells[0]), color=INK, linewidth=1, linestyle=":")
        ax.set(xscale="log", yscale="log", xlabel="pattern norm S", ylabel="margin")
        ax.set_xticks([1, 2, 3, 4, 5, 6], ["1", "2", "3", "4", "5", "6"])
        ax.minorticks_off()
        ax.legend(fontsize=9.5, loc="upper left")
        ax.set_title(rf"$\zeta$ = {relevant_fraction:g}, no noise; dotted: predicted crossing", fontsize=11)
    return figure


def feasibility_map(result: feasibility.Feasibility) -> Figure:
    """Draw where each part of the target satisfies the head condition: the two regions do not meet."""
    s = result.settings.pattern_norms
    with style():
        figure, ax = plt.subplots(figsize=(5.2, 4.2))
        top = 10.0**result.settings.head_decades
        for n, line in zip(result.settings.n_samples, ("-", "--"), strict=False):
            value, attention = boundaries(s, n)
            inside = value <= top
            ax.plot(
                s[inside],
                value[inside],
                color="#c2410c",
                linestyle=line,
                label=rf"value matrices, $n=10^{{{np.log10(n):.0f}}}$",
            )
        value, attention = boundaries(s, min(result.settings.n_samples))
        ax.fill_between(s, np.minimum(value, top), top, color="#c2410c", alpha=0.15, linewidth=0)
        ax.plot(s, attention, color="#0b5cad", linestyle="-.", label="key-query matrices")
        ax.fill_between(s, 1, attention, color="#0b5cad", alpha=0.15, linewidth=0)
        ax.text(40, 1.5e9, "above: enough heads for\nthe value matrices", fontsize=9.5, va="center")
        ax.text(
            1e8 * 0.6, 30, "below: few enough heads for\nthe key-query matrices", fontsize=9.5, ha="right", va="center"
        )
        ax.set(xscale="log", yscale="log", xlabel="pattern norm S", ylabel="number of heads H", ylim=(1, top))
        ax.set_xlim(1, s[-1])
        ax.legend(fontsize=9.5, loc="center right", bbox_to_anchor=(1.0, 0.72))
    return figure


def order_frame(
    curves: Mapping[tuple[float, float], Mapping[str, np.ndarray]],
    pattern_norms: np.ndarray,
    relevant_fraction: float,
    noise: float,
) -> Figure:
    r"""Draw the three stated margins against $S$ for one share of relevant tokens and one noise level.

    Args:
        curves: (share of relevant tokens, noise share) to the margins of
            :func:`~attnbook.multi_head.oracle.three_margins`.
        pattern_norms: Values of $S$.
        relevant_fraction: $\zeta$.
        noise: $\bar Z/S^2$.

    Returns:
        The picture.
    """
    found = curves[relevant_fraction, noise]
    with style():
        figure, ax = plt.subplots(figsize=(5.2, 3.4))
        for name, margin in found.items():
            look = LOOKS[name].line_style() | {"markevery": 4}
            ax.plot(pattern_norms, margin / found["attention_margin"], **look)
        ax.axhspan(-9, 0, color="#e5e7eb", zorder=0)
        ax.set(xlabel="pattern norm S", ylabel=r"margin / $\gamma_{attn}$", ylim=(-0.5, 3.6))
        ax.set_title(rf"$\zeta$ = {relevant_fraction:g}, noise {noise:g} $S^2$")
        ax.legend(fontsize=9.5, loc="upper left")
    return figure


def attention_map(found: attention_maps.AttentionMap) -> Figure:
    """Draw where each query looks, and how far leak and margin are."""
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(5.4, 3.2), width_ratios=(1.5, 1))
        left.imshow(found.weights, vmin=0, vmax=1 / found.n_relevant, cmap="Greys")
        left.axvline(found.n_relevant - 0.5, color="#c2410c", linewidth=1.6)
        left.set(xlabel="key token; relevant ones left of the line", ylabel="query token", xticks=[])
        rows = np.arange(len(found.weights))
        left.set_yticks(rows, [str(row + 1) for row in rows], fontsize=8)
        left.set_title(f"white 0, black {1 / found.n_relevant:g}", fontsize=9.5)
        left.grid(visible=False)
        bars = right.bar([0, 1], [found.leak, found.margin], color=["#5b5f66", "#0b5cad"], width=0.6)
        bars[0].set_hatch("//")
        right.axhline(1, color=INK, linewidth=1)
        right.axhline(0, color=DIM, linewidth=0.8)
        right.set(ylim=(-0.1, 1.1), xlim=(-0.6, 1.6))
        right.set_xticks([0, 1], ["worst\nleak", "margin /\n$\\gamma_{attn}$"])
        right.grid(visible=False, axis="x")
    return figure
