"""The pictures of the chapter on rates; only medians, ranges and reference lines are computed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np

from attnbook.core.figures import INK, Look, band, style
from attnbook.mirror_descent.experiments import cone, rates, staying, steps
from attnbook.mirror_descent.figures.looks import LOOKS
from attnbook.mirror_descent.rate_bounds import bound_exponent, radial_law

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["explorer_frame", "gradients", "growth", "needle", "one_step", "patience_frame", "rate_plot"]

DIVERGENCE = r"divergence $D_\psi(\bar W_{mm},\bar W)$"
RELATIVE = r"relative norm $\rho=\|W\|/\|W_{mm}\|$"
DASHED, DOTTED = (0, (6, 3)), (0, (1, 2))
IN_GUARANTEED = Look("guaranteed cone", "#03707f", "-", "o")
IN_WIDE = Look("cone of divergence {:g}", "#c2410c", "--", "s")
LITERAL, SHARP, SAMPLED = "#0e0e0e", "#03707f", "#c2410c"


def rate_plot(result: rates.Rates) -> Figure:
    """Draw divergence against relative norm; beside each group of lines the bound's slope and twice that slope."""
    with style():
        figure, axes = plt.subplots(2, 1, figsize=(5.6, 7.2), sharey=True, sharex=True)
        for ax, small in zip(axes, (True, False), strict=True):
            ps = [p for p in result.settings.ps if (p < 2) == small and p not in (1.1, 2.5)]
            for p in ps:
                radii = np.geomspace(6, result.reach(p), 24)
                band(ax, radii, result.divergence_at(p, radii), LOOKS[p])
            for p in ps if small else ps[:1]:
                _references(ax, result, p)
            ax.set(xscale="log", yscale="log", ylabel=DIVERGENCE, title="p below 2" if small else "p from 2 on")
        axes[0].plot([], [], color=INK, linewidth=1.1, linestyle=DASHED, label="slope of the bound")
        axes[0].plot([], [], color=INK, linewidth=1.1, linestyle=DOTTED, label="twice that slope")
        axes[1].set_xlabel(RELATIVE)
        for ax in axes:
            ax.legend(fontsize=9, loc="lower left")
    return figure


def _references(ax: Axes, result: rates.Rates, p: float) -> None:
    """The bound's slope and twice the slope, from the median at relative norm 30."""
    ends = np.array([rates.BEYOND, result.reach(p)])
    start = np.median(result.divergence_at(p, ends[:1]))
    for times, line in ((1, DASHED), (2, DOTTED)):
        fall = (ends / ends[0]) ** (-times * bound_exponent(p))
        ax.plot(ends, 1.15 * start * fall, color=INK, linewidth=1.1, linestyle=line)


def growth(result: rates.Rates) -> Figure:
    """Draw the relative norm, and its ratio to the log of the time, against that log; all exponents."""
    with style():
        figure, (upper, lower) = plt.subplots(2, 1, figsize=(5.6, 7.6), sharex=True)
        for p in result.settings.ps:
            time = np.median(result.log_time[:, result.of(p)], axis=0)
            norm = np.median(result.relative_norm[:, result.of(p)], axis=0)
            look = LOOKS[p].line_style() | {"markevery": 9}
            upper.plot(time, norm, **look)
            radii = np.geomspace(8, result.reach(p), 24)
            ratios = np.stack([result.ratio_at(p, radius) for radius in radii], axis=1)
            band(lower, radii / np.median(ratios, axis=0), ratios, LOOKS[p])
        top = float(result.log_time.max())
        upper.plot([5, top], [5, top], color=INK, linewidth=4, alpha=0.2, label="slope 1")
        axis = np.geomspace(8, top, 60)
        for p in (result.settings.ps[0], result.settings.ps[-1]):
            lower.plot(axis, radial_law(axis, p) / axis, color=INK, linewidth=1.1, linestyle=DOTTED)
        lower.plot([], [], color=INK, linewidth=1.1, linestyle=DOTTED, label="on the ray all the time")
        lower.axhline(1, color=INK, linewidth=1)
        upper.set(xscale="log", yscale="log", xlim=(4, 1.5 * top), ylim=(4, 1.5 * top), ylabel=RELATIVE, title="norm")
        lower.set(xlabel=r"$\log t$", ylabel=r"$\rho/\log t$", title=r"its ratio to $\log t$")
        upper.legend(fontsize=9, ncols=2, loc="upper left")
        lower.legend(fontsize=9, handles=lower.lines[-2:-1])
    return figure


def needle(result: cone.Cone, kept: float) -> Figure:
    """Draw how wide the guaranteed cone is, by two constants, beside the first violation and what runs need.

    Args:
        result: Constants of the cone.
        kept: Largest tested divergence from which all runs kept their tokens; drawn without the smallest exponent,
            with which none was trained.

    Returns:
        The figure.
    """
    series = (
        ("first sampled violation of Lemma 19", result.sampled, SAMPLED, "^", 0.22),
        (r"guaranteed, sharper constants", result.sharp, SHARP, "s", 0.0),
        (r"guaranteed, literal $\mu_0$", result.literal, LITERAL, "o", -0.22),
    )
    with style():
        figure, ax = plt.subplots(figsize=(5.8, 4.4))
        last = len(result.settings.ps) - 0.6
        ax.plot(
            [0.6, last],
            [kept] * 2,
            color=INK,
            linestyle=DASHED,
            linewidth=1.4,
            label="largest tested start: all runs kept",
        )
        for name, values, color, marker, shift in series:
            for at in range(len(result.settings.ps)):
                ax.plot(np.full(values[..., at].size, at + shift), values[..., at].ravel(), marker, color=color,
                        markerfacecolor="none", markersize=5, label=name if at == 0 else None)  # fmt: skip
        ax.set(yscale="log", xlabel="p", ylabel="divergence", ylim=(1e-15, 1e5))
        ax.set_xticks(range(len(result.settings.ps)), [f"{p:g}" for p in result.settings.ps])
        ax.legend(fontsize=9, loc="upper left")
    return figure


def gradients(result: cone.Cone) -> Figure:
    """Draw the constant of Lemma 20 with exponent 1, and the slack of Lemma 21 times the norm, against the norm."""
    radii = np.array(result.settings.radii)
    with style():
        figure, (upper, lower) = plt.subplots(2, 1, figsize=(5.6, 6.8), sharex=True)
        for p in result.settings.ps:
            at = result.settings.ps.index(p)
            band(upper, radii, result.log_constant(1.0)[:, :, at].min(axis=1), LOOKS[p])
        wide = replace(IN_WIDE, label=IN_WIDE.label.format(result.settings.wide))
        for product, look in zip(result.slack_products(), (IN_GUARANTEED, wide), strict=True):
            band(lower, radii, product, look)
        lower.axhline(0, color=INK, linewidth=1)
        upper.set(xscale="log", ylim=(-2.5, 1), title="Lemma 20: log of the constant")
        upper.set_ylabel(r"$\log\min(-\langle\nabla\mathcal{L},V\rangle)+\rho$")
        lower.set(
            xscale="log",
            xlabel=RELATIVE,
            title=r"Lemma 21: slack times $\rho$",
            ylim=(-0.02, 0.15),
            ylabel=r"smallest workable $\pi$, times $\rho$",
        )
        upper.legend(fontsize=8.5, loc="lower left", ncols=2)
        lower.legend(fontsize=8.5, loc="upper left")
    return figure


def one_step(result: steps.Steps) -> Figure:
    """Draw the norm of plain runs against the steps, and where Lemma 24 begins to fail."""
    with style():
        figure, (upper, lower) = plt.subplots(2, 1, figsize=(5.6, 7.2))
        late = result.steps >= 10
        for at, p in enumerate(result.settings.long_ps):
            relative = result.norm[:, at] / result.target_norm[:, at, None]
            band(upper, result.steps[late], relative[:, late], LOOKS[p])
        ends = np.array([100.0, result.steps[-1]])
        upper.plot(
            ends, 0.6 + np.log(ends / ends[0]), color=INK, linewidth=1.2, linestyle=DASHED, label="slope 1, any height"
        )
        for at, p in enumerate(result.settings.ps):
            worst = np.minimum(result.lemma_24[:, at].min(axis=0), 1.0)
            lower.plot(result.settings.step_sizes, worst, **(LOOKS[p].line_style() | {"markevery": 1}))
        lower.axhline(0, color=INK, linewidth=1)
        upper.set(xscale="log", xlabel="plain steps $k$", ylabel=RELATIVE, title="norm")
        lower.set_yscale("symlog", linthresh=1e-4, linscale=0.5)
        lower.set_yticks([-0.1, -1e-3, 0, 1e-3, 0.1])
        lower.set(xscale="log", xlabel=r"step size $\eta$", title="Lemma 24", ylim=(-1, 1))
        lower.set_ylabel(r"smallest slack, over step $\times$ norm")
        upper.legend(fontsize=9)
        lower.legend(fontsize=8, ncols=2, loc="lower left", columnspacing=1)
    return figure


def explorer_frame(result: staying.Staying, divergence: float, radius: float) -> Figure:
    """Draw the divergence along the runs from one kind of start, over the initial one."""
    first, second = result.place(divergence, radius)
    relative = result.relative(divergence, radius)
    with style():
        figure, ax = plt.subplots(figsize=(5.8, 4.0))
        ax.axhspan(1e-5, 1, color="#d9d7d0", linewidth=0)
        ax.axhline(3, color=INK, linewidth=1.2, linestyle=DASHED, label="three times the start")
        for at, p in enumerate(result.settings.ps):
            look = LOOKS[p].line_style()
            for seed, line in enumerate(relative[:, at]):
                style_of = look | {"label": look["label"] if seed == 0 else None, "linewidth": 1.1, "markersize": 3.5}
                ax.plot(result.steps + 1, np.maximum(line, 1e-5), **style_of)
                if not result.kept[seed, at, first, second]:
                    ax.plot(result.steps[-1] + 1, line[-1], "X", color="#c2410c", markersize=11)
        ax.set(xscale="log", yscale="log", xlabel="steps of equal length + 1", ylim=(1e-3, 300))
        ax.set_ylabel(r"divergence over the initial one")
        ax.legend(fontsize=9, loc="lower left", ncols=2)
    return figure


def patience_frame(result: rates.Rates, digits: float, since: float) -> Figure:
    """Draw what is left after a time: the angle for p = 2, and for every exponent the divergence over that at first.

    Args:
        result: Divergence and log of the time along the runs.
        digits: Decimal logarithm of the time.
        since: The same of the time that the divergences are divided by.

    Returns:
        The figure.
    """
    now, first = digits * np.log(10), since * np.log(10)
    angles = np.degrees(np.arccos(1 - result.divergence_after(2.0, now)))
    with style():
        figure, (angle, left) = plt.subplots(1, 2, figsize=(6.4, 3.6), width_ratios=(1, 2.2))
        beside = np.linspace(-0.25, 0.25, angles.size)
        angle.plot(beside, angles, LOOKS[2.0].marker, color=LOOKS[2.0].color, markersize=3.5, alpha=0.7)
        angle.plot(beside[[0, -1]], [np.median(angles)] * 2, color=LOOKS[2.0].color, linewidth=2.6)
        angle.set(xlim=(-0.6, 0.6), ylim=(0, 12.5), xticks=[], xlabel="p = 2", title="angle")
        angle.set_ylabel("degrees to $W_{mm}$")
        for place, p in enumerate(result.settings.ps):
            share = result.divergence_after(p, now) / result.divergence_after(p, first)
            look, beside = LOOKS[p], np.linspace(-0.25, 0.25, share.size)
            left.plot(place + beside, share, look.marker, color=look.color, markersize=3.5, alpha=0.7)
            left.plot(place + beside[[0, -1]], [np.median(share)] * 2, color=look.color, linewidth=2.6)
        left.axhline(1, color=INK, linewidth=1)
        left.set(yscale="log", ylim=(1e-3, 4), xlabel="p", title="divergence left")
        left.set_ylabel(f"over that at $t=10^{{{since:g}}}$")
        left.set_xticks(range(len(result.settings.ps)), [f"{p:g}" for p in result.settings.ps], fontsize=9)
    return figure
