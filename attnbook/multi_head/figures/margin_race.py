"""The pictures of the race to the attention margin, and of margins at random starts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np

from attnbook.core.figures import INK, Look, band, style
from attnbook.multi_head.experiments.margin_race import MarginRace
from attnbook.multi_head.experiments.random_starts import RandomStarts
from attnbook.multi_head.figures.looks import LOOKS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["margin_race", "margins_at_random_starts", "shares_at_norms", "step_sizes"]

SHARE = r"margin per $\|\tilde U\|$, share of $\gamma_{attn}$"
DOTTED: dict[str, Any] = {"color": INK, "linewidth": 1.2, "linestyle": (0, (1, 1))}
# Looks of random starts, from the fewest heads to the most.
BY_HEADS = (("#c2410c", "-.", "^"), ("#7c3aed", ":", "D"), ("#0b5cad", "-", "o"))


def margin_race(result: MarginRace) -> Figure:
    """Draw the share of the attention margin, and the attention on relevant tokens, against steps."""
    settings = result.settings
    steps = np.array(settings.record_at)
    with style():
        figure, (top, bottom) = plt.subplots(2, 1, figsize=(5.8, 7.4), sharex=True, height_ratios=(1.35, 1))
        for rule in ("normalised", "plain"):
            for n_heads in settings.heads:
                at, look = result.runner(rule, n_heads), _look(rule, n_heads, settings.heads)
                if not settings.runners[at].from_zero:
                    look = replace(look, label=f"{look.label}, first phase")
                for ax, values in ((top, result.fraction), (bottom, result.mass)):
                    band(ax, steps, values[:, at], look)
                    ax.lines[-1].set_markevery(3)
        _level(top, 1, r"attention margin $\gamma_{attn}$")
        floor = float(np.median(result.floor))
        top.axhline(0, color="#9aa0a8", linewidth=0.8)
        top.axhline(floor, **DOTTED)
        _note(top, "dotted: best rule with uniform attention", (0.99, -0.3), right=True)
        _note(top, "below 0 a sample is on the wrong side", (0.99, -0.61), right=True)
        top.set(ylabel=SHARE, ylim=(-0.65, 1.16))
        top.legend(loc="center left", fontsize=9.5, bbox_to_anchor=(0.0, 0.76))
        bottom.axhline(settings.relevant_fraction, **DOTTED)
        _note(bottom, "dotted: uniform attention", (0.99, 0.02), right=True)
        bottom.set(xscale="log", xlabel="step", ylabel="attention on relevant tokens", ylim=(0, 1.06))
    return figure


def shares_at_norms(result: MarginRace) -> Figure:
    """Draw the share of the attention margin against the norm of the value matrices, one line for each seed."""
    settings = result.settings
    with style():
        figure, ax = plt.subplots(figsize=(5.8, 4.2))
        for rule in ("normalised", "plain"):
            for n_heads in settings.heads:
                at, look = result.runner(rule, n_heads), _look(rule, n_heads, settings.heads).line_style()
                late = slice(int(np.searchsorted(settings.record_at, settings.steps / 40)), None)
                for seed, (x, y) in enumerate(zip(result.value_norm[:, at], result.fraction[:, at], strict=True)):
                    chosen = late if rule == "plain" else slice(None)
                    named = look if seed == 0 else look | {"label": "_"}
                    ax.plot(x[chosen], y[chosen], **named | {"markevery": 7, "linewidth": 1})
        _level(ax, 1, r"attention margin $\gamma_{attn}$")
        ax.set(xscale="log", xlabel=r"norm of all value matrices $\|\tilde U\|$", ylabel=SHARE, ylim=(-0.25, 1.16))
        ax.set_xlim(0.3, None)
        ax.legend(loc="upper left", fontsize=9.5, bbox_to_anchor=(0.0, 0.9))
    return figure


def step_sizes(result: MarginRace) -> Figure:
    """Draw the share of the attention margin after the trials against the step size."""
    settings = result.settings
    with style():
        figure, ax = plt.subplots(figsize=(6.4, 3.8))
        for rule, sizes in (("normalised", settings.tried_normalised), ("plain", settings.tried_plain)):
            for n_heads in settings.heads:
                band(ax, np.array(sizes), result.tried_with(rule, n_heads), _look(rule, n_heads, settings.heads))
        _level(ax, 1, r"attention margin $\gamma_{attn}$")
        ax.set(xscale="log", xlabel=r"step size $\eta$", ylabel=SHARE, ylim=(-0.06, 1.16))
        ax.set_title(f"after {settings.tried_steps} steps from zero")
        ax.legend(loc="upper right", fontsize=9.5, bbox_to_anchor=(1.0, 0.9))
    return figure


def margins_at_random_starts(result: RandomStarts, *, key_query_scale: float = 0.3) -> Figure:
    """Draw tangent-kernel margins against the scale of random value matrices, and with coin flips for labels."""
    settings = result.settings
    at, scales = settings.key_query_scales.index(key_query_scale), np.array(settings.value_scales)
    looks = [Look(f"random, H = {n_heads}", *BY_HEADS[i % len(BY_HEADS)]) for i, n_heads in enumerate(settings.heads)]
    with style():
        figure, axes = plt.subplots(2, 1, figsize=(5.6, 7.4), sharex=True)
        for ax, margins, title in zip(
            axes, (result.random, result.coin_flips), ("true labels", "coin flips for labels"), strict=True
        ):
            for i, look in enumerate(looks):
                band(ax, scales, margins[:, i, at], look)
            ax.set(xscale="log", title=title, ylabel=r"largest margin, $\|\tilde\theta\|=\sqrt{2}$", ylim=(-0.05, None))
            ax.set_xticks(scales, [f"{scale:g}" for scale in scales])
            ax.minorticks_off()
        for ax, zero, first in (
            (axes[0], result.zero, result.first_phase),
            (axes[1], result.zero_coin_flips, result.first_phase_coin_flips),
        ):
            ax.axhline(float(np.median(zero)), **_line(LOOKS["zero_start"]))
            ax.axhline(float(np.median(first)), **_line(LOOKS["first_phase_start"]))
        axes[1].set_xlabel(r"scale $\sigma_U$ of value matrices")
        axes[0].legend(loc="upper left", fontsize=9.5)
    return figure


def _look(rule: str, n_heads: int, heads: tuple[int, int]) -> Look:
    look = LOOKS[f"{rule}_{'few' if n_heads == heads[0] else 'many'}"]
    return replace(look, label=f"{look.label}, H = {n_heads}")


def _line(look: Look) -> dict[str, Any]:
    return {name: value for name, value in look.line_style().items() if name != "marker"}


def _level(ax: Axes, height: float, text: str) -> None:
    ax.axhline(height, color=INK, linewidth=1.4)
    _note(ax, text, (0.01, height + 0.03))


def _note(ax: Axes, text: str, at: tuple[float, float], *, right: bool = False) -> None:
    """Write beside the data: the first coordinate is a share of the width."""
    side = "right" if right else "left"
    ax.text(*at, text, transform=ax.get_yaxis_transform(), fontsize=9.5, ha=side, va="bottom")
