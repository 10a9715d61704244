"""The pictures and tables of the chapter. Each function takes data sets and computes nothing but medians."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnbook.core.figures import INK, Look, band, style
from attnbook.core.tables import Measured, Table
from attnbook.multi_head.margin_race import experiments as own

LOOKS = {
    ("plain", 0): Look("plain", "#c2410c", "-.", "^"),
    ("plain", 1): Look("plain", "#7f1d1d", ":", "D"),
    ("normalised", 0): Look("normalised", "#0b5cad", "-", "o"),
    ("normalised", 1): Look("normalised", "#0e7490", "--", "s"),
}
BY_HEADS = (("#c2410c", "-.", "^"), ("#7c3aed", ":", "D"), ("#0b5cad", "-", "o"))  # from the fewest to the most
ZERO = Look("zero start", "#5b5f66", "--", "none")
FIRST = Look("after the first phase", "#15803d", (0, (5, 1)), "none")
GLOBAL = Look("largest margin found, norm √2", "#0b5cad", "-", "o")
RANDOM = Look("random start, as large", "#c2410c", "-.", "^")
SHARE = r"margin per $\|\tilde U\|$, share of $\gamma_{attn}$"
DOTTED: dict[str, Any] = {"color": INK, "linewidth": 1.2, "linestyle": (0, (1, 1))}


def race(data: xr.Dataset) -> Figure:
    """Draw the share of the attention margin against steps, and against the norm of the value matrices."""
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(7.8, 3.0), sharey=True)
        for rule, heads, look in _networks(data):
            shares = data.fraction.sel(rule=rule, heads=heads)
            band(left, data.step, shares.values.T, look)
            left.lines[-1].set_markevery(4)
        floor = float(data.floor.median())
        left.axhline(floor, **DOTTED)
        _note(left, "dotted: best with uniform attention", (0.99, -0.3), right=True)
        left.set(xlabel="step", ylabel=SHARE, ylim=(-0.45, 1.14), xlim=(3, None))
        left.legend(fontsize=8.5, loc="upper left", bbox_to_anchor=(0, 0.91), labelspacing=0.2)
        _at_norms(right, data)
        for ax in (left, right):
            ax.set_xscale("log")
            ax.axhline(1, color=INK, linewidth=1.4)
        _note(left, r"attention margin $\gamma_{attn}$", (0.01, 1.03))
    return figure


def norm_frame(data: xr.Dataset, norm: float) -> Figure:
    """Draw where every network stands when its value matrices have one norm."""
    with style():
        figure, ax = plt.subplots(figsize=(6.4, 3.9))
        _at_norms(ax, data)
        ax.axvline(norm, color=INK, linewidth=1)
        for (_, _, look), share in zip(_networks(data), shares_at(data, norm), strict=True):
            if share is not None:
                ax.plot(norm, share, marker="o", markersize=11, color=look.color, fillstyle="none", markeredgewidth=2)
        ax.axhline(1, color=INK, linewidth=1.4)
        ax.set(xscale="log", ylabel=SHARE, ylim=(-0.25, 1.14))
        ax.legend(fontsize=9, loc="upper left", bbox_to_anchor=(0, 0.92))
    return figure


def norm_text(data: xr.Dataset, norm: float) -> str:
    """Return the numbers behind one picture of the slider."""
    found = [
        f"{look.label}: {'not there' if share is None else f'{share:.2f}'}"
        for (_, _, look), share in zip(_networks(data), shares_at(data, norm), strict=True)
    ]
    return f"Median shares where the value matrices have norm {norm:g}. " + "; ".join(found) + "."


def shares_at(data: xr.Dataset, norm: float) -> list[float | None]:
    """Return each network's median share at a norm, over the seeds that pass it where they are drawn; else none."""
    found = []
    for rule, heads, _ in _networks(data):
        runs = [_drawn(data.isel(seed=i), rule, heads) for i in range(data.sizes["seed"])]
        there = [run for run in runs if run.value_norm[0] <= norm <= run.value_norm[-1]]
        found.append(float(np.median([own.share_at_norm(run, norm) for run in there])) if there else None)
    return found


def step_sizes(data: xr.Dataset) -> Figure:
    """Draw the share of the attention margin after the trials against the step size."""
    with style():
        figure, ax = plt.subplots(figsize=(6.4, 3.6))
        for rule, heads, look in _networks(data, starts=False):
            tried = data[f"tried_{rule}"].sel(heads=heads)
            band(ax, data[f"{rule}_size"].values, tried.values.T, look)
        ax.axhline(1, color=INK, linewidth=1.4)
        ax.set(xscale="log", xlabel=r"step size $\eta$", ylabel=SHARE, ylim=(-0.06, 1.14))
        ax.legend(fontsize=9.5, loc="upper right", bbox_to_anchor=(1.0, 0.9))
    return figure


def at_starts(starts: xr.Dataset, *, key_query_scale: float = 0.3) -> Figure:
    """Draw tangent-kernel margins against the scale of random value matrices, and with coin flips for labels."""
    margins, scales = starts.sel(key_query_scale=key_query_scale), starts.value_scale.values
    with style():
        figure, axes = plt.subplots(1, 2, figsize=(7.8, 3.7), sharey=True)
        for ax, name, kind, title in zip(
            axes, ("random", "coin_flips"), ("", "_coin_flips"), ("true labels", "coin flips for labels"), strict=True
        ):
            for heads, drawn in zip(starts.heads.values, BY_HEADS, strict=False):
                band(ax, scales, margins[name].sel(heads=heads).values.T, Look(f"random, H = {heads}", *drawn))
            for start, look in (("zero", ZERO), ("first_phase", FIRST)):
                ax.axhline(float(starts[f"{start}{kind}"].median()), **_line(look))
            ax.set(xscale="log", title=title, xlabel=r"scale $\sigma_U$ of value matrices", ylim=(-0.05, None))
            ax.set_xticks(scales, [f"{scale:g}" for scale in scales])
            ax.minorticks_off()
        axes[0].set_ylabel(r"tangent margin, $\|\tilde\theta_\star\|=\sqrt{2}$")
        axes[1].legend(loc="upper left", fontsize=9.5)
    return figure


def global_margins(starts: xr.Dataset, *, key_query_scale: float = 0.3) -> Figure:
    """Draw the largest margin found at norm root two against the number of heads, beside tangent margins."""
    with style():
        figure, ax = plt.subplots(figsize=(6.4, 3.8))
        band(ax, starts.searched, starts.global_margin.max("start").values.T, GLOBAL)
        for name, look in (("zero", ZERO), ("first_phase", FIRST)):
            ax.axhline(float(starts[name].median()), **_line(replace(look, label=f"tangent margin, {look.label}")))
        random = starts.matched.sel(key_query_scale=key_query_scale)
        band(ax, starts.heads, random.values.T, replace(RANDOM, label=f"tangent margin, {RANDOM.label}"))
        ax.set(xscale="log", xlabel="number of heads $H$", ylabel="margin", ylim=(0.55, 1.35))
        ax.set_xticks(starts.searched.values, [f"{heads}" for heads in starts.searched.values])
        ax.minorticks_off()
        ax.legend(fontsize=9.5, loc="upper right")
    return figure


def ends(data: xr.Dataset) -> Table:
    """Return where every network of the race stands at the last step."""
    last = data.isel(step=-1)
    mass = (last.plus_mass + last.minus_mass) / 2
    measured = {
        "share of γ_attn": (last.fraction, 3), "attention on relevant": (mass, 3), "‖U‖": (last.value_norm, 0),
        "‖W‖": (last.key_query_norm, 1), "cos(W, W⋆)": (last.cosine, 2),
    }  # fmt: skip
    networks = _networks(data)
    rows: list[list[str | Measured]] = [
        [name, *(_spread(values.sel(rule=rule, heads=heads), digits) for rule, heads, _ in networks)]
        for name, (values, digits) in measured.items()
    ]
    caption = f"After {int(data.step[-1])} steps: median over {data.sizes['seed']} seeds [smallest, largest]."
    return Table(["", *(look.label for *_, look in networks)], rows, caption)


def starts_table(starts: xr.Dataset, *, key_query_scale: float = 0.3) -> Table:
    """Return the tangent margins of starts whose value matrices are equally large."""
    most, few = int(starts.heads[-1]), int(starts.heads[0])
    attentive = starts.matched.sel(key_query_scale=key_query_scale)
    found = {
        ZERO.label: starts.zero,
        FIRST.label: starts.first_phase,
        f"random values, uniform attention, {most} heads": starts.matched.sel(key_query_scale=0, heads=most),
        f"random values, random attention, {few} head": attentive.sel(heads=few),
        f"random values, random attention, {most} heads": attentive.sel(heads=most),
    }
    rows: list[list[str | Measured]] = [[name, _spread(values, 3)] for name, values in found.items()]
    caption = f"Median over {starts.sizes['seed']} seeds [smallest, largest]. Targets of norm √2."
    return Table(["start", "tangent margin"], rows, caption)


def _networks(data: xr.Dataset, *, starts: bool = True) -> list[tuple[str, int, Look]]:
    """Rule, number of heads and look of every network, the best first."""
    found = []
    for rule in reversed(own.RULES):
        for i, heads in enumerate(data.heads.values):
            later = ", first phase" if starts and (rule, i) == ("normalised", 1) else ""
            look = LOOKS[rule, i]
            found.append((rule, int(heads), replace(look, label=f"{look.label}, H = {heads}{later}")))
    return found


def _at_norms(ax: Axes, data: xr.Dataset) -> None:
    """Draw one line for each network and seed."""
    for rule, heads, look in _networks(data):
        for seed in range(data.sizes["seed"]):
            run = _drawn(data.isel(seed=seed), rule, heads)
            named = look.line_style() | ({} if seed == 0 else {"label": "_"}) | {"markevery": 7, "linewidth": 1}
            ax.plot(run.value_norm, run.fraction, **named)
    ax.set(xlabel=r"norm of all value matrices $\|\tilde U\|$", xlim=(0.3, None))


def _drawn(data: xr.Dataset, rule: str, heads: int) -> xr.Dataset:
    """One network; of plain descent, which starts on the wrong side, all but the first fortieth of the steps."""
    first = int(data.step[-1]) / 40 if rule == "plain" else 0
    return data.sel(rule=rule, heads=heads, step=slice(first, None))


def _line(look: Look) -> dict[str, Any]:
    return {name: value for name, value in look.line_style().items() if name != "marker"}


def _spread(samples: xr.DataArray, digits: int) -> Measured:
    low, middle, high = (f"{number:.{digits}f}" for number in np.quantile(samples, (0, 0.5, 1)))
    return Measured(f"{middle} [{low}, {high}]")


def _note(ax: Axes, text: str, at: tuple[float, float], *, right: bool = False) -> None:
    """Write beside the data: the first coordinate is a share of the width."""
    side = "right" if right else "left"
    ax.text(*at, text, transform=ax.get_yaxis_transform(), fontsize=9, ha=side, va="bottom")
