"""The pictures and tables of the chapter. Each function takes data sets and computes nothing but means and medians."""

from __future__ import annotations

import math
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnbook.core.figures import INK, Look, band, style
from attnbook.core.tables import Measured, Table
from attnbook.multi_head.generalisation import experiments as own

GAP = Look("measured gap", "#0b5cad", "-", "o")
LEFT_OUT = Look("left-out − training loss", "#c2410c", (0, (5, 2)), "s", hollow=True)
LEMMA = Look("Lemma 3, true distances", "#5b5f66", "-.", "^")
COROLLARY = Look("Corollary 2", "#111111", (0, (1, 1)), "X")
THEOREM = Look("Theorem 2, best target", "#15803d", (0, (5, 1)), "v")
COINS = Look("coin tosses, K = n", "#9d174d", "-.", "P")
RECURSION = Look("recursion (22), unrolled", "#7c3aed", ":", "D")
PRINTED = Look("(21) as it reads", "#c2410c", "--", "^")
SAMPLES = "training samples n"
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def gap_and_bounds(data: xr.Dataset) -> Figure:
    """Draw the gap, what the networks without one sample say, and two bounds, for few and for many heads."""
    gaps = {GAP: data.test_loss - data.train_loss, LEFT_OUT: data.left_out_loss - data.train_loss}
    bounds = {COROLLARY: _corollary_2(data), LEMMA: own.lemma_3(data), THEOREM: data.theorem_2}
    with style():
        figure, panels = plt.subplots(1, 2, figsize=(7.2, 3.3), sharey=True)
        for ax, heads in zip(panels, data.heads.values, strict=True):
            for look, values in (bounds | gaps).items():
                band(ax, data.n.values, values.sel(heads=heads).transpose("seed", "n").values, look)
            _guess(ax, data.n.values)
            _sample_axis(ax, data.n.values)
            ax.set(yscale="log", title=f"{head_count(heads)} heads")
        panels[0].set(ylabel="test − training loss", ylim=(4e-3, None))
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=9.5)
    return figure


def rates(data: xr.Dataset) -> Figure:
    """Draw the gap against the number of samples for both schedules, with true labels and with coin tosses."""
    gap, coins = data.test_loss - data.train_loss, data.random_test_loss - data.random_train_loss
    fixed = f"K = {data.attrs['settings']['steps']}"
    looks = (
        (replace(COINS, label=f"coin tosses, {fixed}", line=(0, (1, 1)), marker="X", hollow=True), coins, own.K_FIXED),
        (COINS, coins, own.K_IS_N),
        (replace(GAP, label="true labels, K = n"), gap, own.K_IS_N),
        (Look(f"true labels, {fixed}", "#15803d", (0, (5, 1)), "v"), gap, own.K_FIXED),
    )
    with style():
        figure, ax = plt.subplots(figsize=(6.4, 4.4))
        for look, values, schedule in looks:
            band(ax, data.n.values, values.sel(schedule=schedule).values, look)
        _slope(ax, data.n.values, 1.6 * float(gap.sel(schedule=own.K_IS_N).mean("seed")[0]), "slope −1")
        _sample_axis(ax, data.n.values)
        ax.set(yscale="log", ylabel="test − training loss", ylim=(1e-3, None))
        figure.legend(loc="outside lower center", ncols=2, fontsize=9.5)
    return figure


def distances(near: xr.Dataset, gaps: xr.Dataset) -> Figure:
    r"""Draw how far the nearest target of loss 1/K is, over $g_0(1/K)$: clean data by K, noisy data as points."""
    over = (near.needed / near.printed).stack(start=("seed", "heads")).transpose("start", "k")
    printed = (2 * gaps.output_bound + np.log(gaps.steps)) / gaps.margin
    noisy = (gaps.needed / printed).median("seed")
    with style():
        figure, ax = plt.subplots(figsize=(6.4, 3.9))
        band(ax, near.k.values, over.values, Look("nearly clean data, all starts", "#0b5cad", "-", "o"))
        look = Look("noisy data, n = 10 to 160", "#c2410c", "none", "s", hollow=True)
        ax.plot(gaps.steps.values.ravel(), noisy.transpose("schedule", "n").values.ravel(), **look.line_style())
        for level, text in ((1, r"$g_0$, as printed"), (math.sqrt(2), r"$\sqrt{2}\,g_0$")):
            ax.axhline(level, color=INK, linewidth=1, linestyle=":")
            ax.annotate(text, (near.k.values[-1], level), xytext=(0, 3), textcoords="offset points", ha="right")
        ax.set(xscale="log", xlabel="K: a training loss of 1/K is wanted", ylabel=r"distance needed / $g_0(1/K)$")
        ax.legend(loc="lower right", fontsize=9.5)
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
        ax.set(ylabel="distance of the two networks", title=f"H = {head_count(n_heads)}, sample {rank}")
        ax.set_yticks([1e-3, 1e-1, 1e1, 1e3])
        ax.minorticks_off()
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, fontsize=9.5)
    return figure


def recursion_text(paths: xr.Dataset, n_heads: int, rank: int) -> str:
    """Return the numbers behind one picture of the slider."""
    end = paths.sel(heads=n_heads, rank=rank).isel(step=-1)
    excess = float(np.log10(end.recursion) - np.log10(end.distance))
    times = f"{_power(excess)} times" if excess < 4 else f"ten to the power of {excess:.0f} times"
    fits = "below the truth: it cannot be meant" if end.printed < end.distance else "above the truth here too"
    return (
        f"{n_heads:,} heads, sample {rank}: after the last step the networks are {float(end.distance):.2g} apart, and "
        f"(22) allows {times} that. (21) as it reads ends {fits}. The sample's loss is {float(end.sample_loss):.2g} "
        f"for the network that has seen it and {float(end.left_out_loss):.2g} for the one that has not."
    )


def ladder(data: xr.Dataset) -> Table:
    """Return how the gap grows into its bounds, step by step, at the largest number of samples."""
    settings, last = data.attrs["settings"], data.isel(n=-1)
    gap = last.test_loss - last.train_loss
    logs = {
        "test − training loss, measured": np.log10(gap.mean("seed")),
        "left-out − training loss": np.log10((last.left_out_loss - last.train_loss).mean("seed")),
        "Lemma 3: twice β₁ times the measured distances": np.log10(own.lemma_3(last).mean("seed")),
        "the same with recursion (22) for the distances": (np.log10(2 * last.lipschitz) + last.log_envelope).mean(
            "seed"
        ),
        "Theorem 2, best target found": np.log10(last.theorem_2.mean("seed")),
        "Corollary 2": np.log10(_corollary_2(last).mean("seed")),
    }
    rows: list[list[str | Measured]] = [
        [name, *(Measured(_power(float(log))) for log in values.values)] for name, values in logs.items()
    ]
    caption = (
        f"n = {int(last.n)}, K = {settings['steps']} steps: means over {data.sizes['seed']} seeds, of logarithms in "
        "the row with the recursion. log 2 is 0.69."
    )
    return Table(["", *(f"{int(heads):,} heads" for heads in data.heads)], rows, caption)


def gaps_table(data: xr.Dataset) -> Table:
    """Return losses, error, gap and bounds at every size, for as many steps as samples."""
    chosen = data.sel(schedule=own.K_IS_N)
    step_size = data.attrs["settings"]["step_size"]
    gap, root = chosen.test_loss - chosen.train_loss, math.sqrt(data.sizes["seed"])
    bound = own.corollary_2(data, step_size).sel(schedule=own.K_IS_N).median("seed")
    rows: list[list[str | Measured]] = []
    for n in data.n.values:
        at = chosen.sel(n=n)
        texts = [f"{float(at[name].mean()):.3f}" for name in ("train_loss", "test_loss")]
        texts += [f"{100 * float(at.test_error.mean()):.2g} %"]
        texts += [f"{float(gap.sel(n=n).mean()):.4f} ± {float(gap.sel(n=n).std(ddof=1)) / root:.4f}"]
        texts += [f"{float(at.margin.median()):.2f}", f"{float(bound.sel(n=n)):.0f}"]
        rows.append([f"{n}", *(Measured(text) for text in texts)])
    heads = ["n = K", "training loss", "test loss", "test error", "gap", "margin γ", "Corollary 2"]
    caption = f"Means over {data.sizes['seed']} seeds, after ± the standard error; margin and bound are medians."
    return Table(heads, rows, caption)


def conditions(stable: xr.Dataset, inside: xr.Dataset) -> Table:
    """Return what the proof of Theorem 2 needs to be at most 1, in three runs and where the theorem is tested."""
    of_theorem = dict(zip(inside.name.values, inside.condition.max("seed").values, strict=True))
    texts = {
        "smoothness": "η β₂", "gradient": "η β₁²", "pair": "(18), full and reduced",
        "target": "(18), network and target", "kept": "η K L(target) / D²",
    }  # fmt: skip
    rows: list[list[str | Measured]] = []
    for name, text in texts.items():
        usual = stable[name].max(("seed", "n")).values
        values = [*usual, float(stable[f"inside_{name}"].max()), of_theorem[name]]
        rows.append([text, *(Measured(_power(math.log10(value))) for value in values)])
    settings = stable.attrs["settings"], inside.attrs["settings"]
    runs = [(int(heads), settings[0]["step_size"]) for heads in stable.heads]
    runs += [(settings[0]["inside_heads"], settings[0]["inside_step_size"])]
    runs += [(settings[1]["heads"], settings[1]["step_size"])]
    caption = "The largest value over steps, samples, seeds and sizes; D is the distance of the target from the start."
    return Table(["at most 1?", *(f"{_power(math.log10(h))} heads, η = {eta:g}" for h, eta in runs)], rows, caption)


def head_count(n_heads: float) -> str:
    """Return a number of heads for labels: in digits below a thousand, else as a power of ten."""
    power = round(math.log10(n_heads))
    return f"$10^{{{power}}}$" if n_heads >= 1000 and 10**power == n_heads else f"{n_heads:g}"


def _corollary_2(stable: xr.Dataset) -> xr.DataArray:
    """Corollary 2 for the experiment on stability, whose start returns zero."""
    settings = stable.attrs["settings"]
    return own.corollary_2(stable.assign(output_bound=1.0, steps=float(settings["steps"])), settings["step_size"])


def _guess(ax: Axes, sizes: np.ndarray) -> None:
    """Draw the loss of a network that always returns zero."""
    ax.axhline(math.log(2), color=INK, linewidth=1, linestyle=(0, (4, 4)))
    ax.annotate("log 2", (sizes[1], math.log(2)), xytext=(0, 2), textcoords="offset points", fontsize=9)


def _sample_axis(ax: Axes, sizes: np.ndarray) -> None:
    ax.set(xscale="log", xlabel=SAMPLES)
    ax.set_xticks(sizes, [f"{n}" for n in sizes])
    ax.minorticks_off()


def _slope(ax: Axes, sizes: np.ndarray, start: float, text: str) -> None:
    """Draw a reference line of slope minus one and name it."""
    values, middle = start * sizes[0] / sizes, len(sizes) // 2
    ax.plot(sizes, values, color=INK, linewidth=1, linestyle=":")
    ax.annotate(text, (sizes[middle], values[middle]), xytext=(4, 5), textcoords="offset points", fontsize=10)


def _power(logarithm: float) -> str:
    """Write a positive number given by its logarithm to base ten: with two digits, or as a power of ten."""
    if logarithm >= 5 or logarithm < -3:
        return "10" + f"{logarithm:.0f}".translate(SUPERSCRIPT)
    rounded = float(f"{10**logarithm:.2g}")
    return f"{rounded:,.0f}" if rounded >= 10 else f"{rounded:.2g}"
