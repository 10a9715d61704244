"""The pictures and tables of the chapter. Each function takes data sets and computes nothing but means and medians."""

from __future__ import annotations

import math
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from attnbook.core.figures import INK, Look, band, legend_above, log_axis, style
from attnbook.core.tables import Measured, Table
from attnbook.multi_head.generalisation import experiments as own
from attnbook.multi_head.generalisation_bounds import target_distance

GAP = Look("measured gap", "#0b5cad", "-", "o")
LEFT_OUT = Look("left-out − training loss", "#c2410c", (0, (5, 2)), "s", hollow=True)
LEMMA = Look("Lemma 3, true distances", "#5b5f66", "-.", "^")
COROLLARY = Look("Corollary 2", "#111111", (0, (1, 1)), "X")
THEOREM = Look("Theorem 2, best target", "#15803d", (0, (5, 1)), "v")
RECURSION = Look("the paper's (22), unrolled", "#7c3aed", ":", "D")
PRINTED = Look("the paper's (21) as printed", "#c2410c", "--", "^")
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def gap_and_bounds(data: xr.Dataset) -> Figure:
    """Draw the gap, what the networks without one sample say, and two bounds, for few and for many heads."""
    settings = data.attrs["settings"]
    corollary = own.corollary_2(data.assign(output_bound=1.0, steps=float(settings["steps"])), settings["step_size"])
    drawn = {COROLLARY: corollary, LEMMA: own.lemma_3(data), THEOREM: data.theorem_2,
             GAP: data.test_loss - data.train_loss, LEFT_OUT: data.left_out_loss - data.train_loss}  # fmt: skip
    with style():
        figure, panels = plt.subplots(1, 2, figsize=(7.2, 3.3), sharey=True)
        for ax, heads in zip(panels, data.heads.values, strict=True):
            for look, values in drawn.items():
                band(ax, data.n, values.sel(heads=heads).transpose("seed", "n"), look)
            ax.axhline(math.log(2), color=INK, linewidth=1, linestyle=(0, (4, 4)))
            ax.annotate("log 2", (data.n[1], math.log(2)), xytext=(0, 2), textcoords="offset points", fontsize=9)
            log_axis(ax, data.n.values, "training samples n")
            ax.set(yscale="log", title=f"{_power(math.log10(heads))} heads")
        panels[0].set(ylabel="test − training loss", ylim=(4e-3, None))
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=9.5)
    return figure


def rates(data: xr.Dataset) -> Figure:
    """Draw the gap against the number of samples for both schedules."""
    gap, n = data.test_loss - data.train_loss, data.n.values
    fixed = Look(f"K = {data.attrs['settings']['steps']}", "#15803d", (0, (5, 1)), "v")
    looks = {own.K_IS_N: replace(GAP, label="K = n"), own.K_FIXED: fixed}
    with style():
        figure, ax = plt.subplots(figsize=(6.4, 4.4))
        for schedule, look in looks.items():
            band(ax, n, gap.sel(schedule=schedule), look)
        line = 1.6 * float(gap.sel(schedule=own.K_IS_N).mean("seed")[0]) * n[0] / n
        ax.plot(n, line, color=INK, linewidth=1, linestyle=":")
        ax.annotate("slope −1", (n[2], line[2]), xytext=(4, 5), textcoords="offset points", fontsize=10)
        log_axis(ax, n, "training samples n")
        ax.set(yscale="log", ylabel="test − training loss", ylim=(1e-3, None))
        figure.legend(loc="outside lower center", ncols=2, fontsize=9.5)
    return figure


def distances(near: xr.Dataset, gaps: xr.Dataset) -> Figure:
    r"""Draw how far the nearest target of loss 1/K is, over $g_0(1/K)$: clean data by K, noisy data as points."""
    clean = target_distance(steps=near.k, margin=near.margin, output_bound=near.start_output.clip(min=1))
    over = (near.needed / clean).stack(start=("seed", "heads")).transpose("start", "k")
    printed = target_distance(steps=gaps.steps, margin=gaps.margin, output_bound=gaps.output_bound)
    noisy = (gaps.needed / printed).median("seed").transpose("schedule", "n")
    look = Look("noisy data, n = 10 to 160", "#c2410c", "none", "s", hollow=True)
    with style():
        figure, ax = plt.subplots(figsize=(6.4, 3.9))
        band(ax, near.k, over, Look("nearly clean data, all starts", "#0b5cad", "-", "o"))
        ax.plot(gaps.steps.values.ravel(), noisy.values.ravel(), **look.line_style())
        for level, text in ((1, r"$g_0$, as printed"), (math.sqrt(2), r"$\sqrt{2}\,g_0$")):
            ax.axhline(level, color=INK, linewidth=1, linestyle=":")
            ax.annotate(text, (near.k.values[-1], level), xytext=(0, 3), textcoords="offset points", ha="right")
        ax.set(xscale="log", xlabel="K: a training loss of 1/K is wanted", ylabel=r"distance needed / $g_0(1/K)$")
        legend_above(ax, ncols=2, fontsize=9.5)
    return figure


def recursion_frame(paths: xr.Dataset, n_heads: int, rank: int) -> Figure:
    """Draw one distance over the steps with both envelopes; samples are ranked from 1, the least influential."""
    one, steps = paths.sel(heads=n_heads, rank=rank), paths.step.values
    looks = {"recursion": RECURSION, "printed": PRINTED, "distance": replace(GAP, label="distance, measured")}
    with style():
        figure, ax = plt.subplots(figsize=(5.6, 4.2))
        for name, look in looks.items():
            ax.plot(steps[1:], one[name][1:], markevery=max(1, len(steps) // 12), **look.line_style())
        ax.set(yscale="log", ylim=(2e-4, 2e3), xlim=(0, steps[-1]), xlabel="step k")
        ax.set(ylabel="distance of the two networks", title=f"H = {_power(math.log10(n_heads))}, sample {rank}")
        ax.set_yticks([1e-3, 1e-1, 1e1, 1e3])
        ax.minorticks_off()
        legend_above(ax, ncols=2, fontsize=9.5)
    return figure


def recursion_text(paths: xr.Dataset, n_heads: int, rank: int) -> str:
    """Return the numbers behind one picture of the slider."""
    end = paths.sel(heads=n_heads, rank=rank).isel(step=-1)
    excess = float(np.log10(end.recursion) - np.log10(end.distance))
    fits = "below that distance, so a symbol is out of place" if end.printed < end.distance else "above it here as well"
    return (
        f"{n_heads:,} heads, sample {rank}: after the last step the networks are {float(end.distance):.2g} apart, and "
        f"the paper's (22) allows {_power(excess)} times that. The paper's (21) as printed ends {fits}. The sample's "
        f"loss is {float(end.sample_loss):.2g} for the network that has seen it and {float(end.left_out_loss):.2g} for "
        "the one that has not."
    )


def conditions(stable: xr.Dataset, inside: xr.Dataset) -> Table:
    """Return what the proof of Theorem 2 needs to be at most 1, in three runs and where the theorem is tested."""
    usual, theorem = stable.attrs["settings"], inside.attrs["settings"]
    texts = {
        "step": "η", "smoothness": "η β₂", "gradient": "η β₁²",
        "pair": "segment to the reduced network, the paper's (18)", "target": "segment to the target, the paper's (18)",
        "kept": "η K L(target) / D²", "first": "η L(start) / D²",
    }  # fmt: skip
    rows: list[list[str | Measured]] = []
    for name, text in texts.items():
        last = stable[f"inside_{name}"], inside.condition.sel(name=name)
        values = [*stable[name].max(("seed", "n")).values, *(float(one.max()) for one in last)]
        rows.append([text, *(Measured(_power(math.log10(value))) for value in values)])
    runs = [(heads, usual["step_size"]) for heads in usual["heads"]]
    runs += [(usual["inside_heads"], usual["inside_step_size"]), (theorem["heads"], theorem["step_size"])]
    caption = (
        "The largest value over steps, samples, seeds and sizes; D is the distance of the target from the start. Last "
        f"column: {theorem['n_samples']} samples, {theorem['steps']} steps, noise {theorem['noise']} along patterns."
    )
    return Table(["at most 1?", *(f"{_power(math.log10(h))} heads, η = {eta:g}" for h, eta in runs)], rows, caption)


def _power(logarithm: float) -> str:
    """Write a positive number given by its logarithm to base ten: with two digits, or as a power of ten."""
    if logarithm >= 5 or logarithm < -3:
        return "10" + f"{logarithm:.0f}".translate(SUPERSCRIPT)
    rounded = float(f"{10**logarithm:.2g}")
    return f"{rounded:,.0f}" if rounded >= 10 else f"{rounded:.2g}"
