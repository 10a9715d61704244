"""The pictures and tables of the chapter. Each takes a data set and computes nothing but medians."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from attnbook.core.figures import INK, LOOKS, band, log_axis, style
from attnbook.core.tables import Measured, Table, spread
from attnbook.global_attention.sample_complexity.experiments import (
    MODELS,
    PAPER_SIZES,
    PAPER_STOP,
    fit,
    margins,
    nearest_stop,
    paper_losses,
    stopped,
)

LOSS = "test loss (label variances)"
FIRST, LATE = 100, 10_000  # before the first nothing has been learned; "late" is from here on
SHADES = plt.get_cmap("cividis")(np.linspace(0, 0.85, 5))


def table_1(data: xr.Dataset, step: int) -> Figure:
    """Draw the paper's table beside ours stopped at a step, times the factor that fits best at the nearest stop."""
    with style():
        figure = plt.figure(figsize=(7.2, 3.2))
        _tables(figure, data, step)
    return figure


def stopping(data: xr.Dataset, step: int) -> Figure:
    """Draw the same at any stop, with one factor for all, and below it at which stops each rule on the table holds."""
    with style():
        figure = plt.figure(figsize=(7.2, 4.8))
        parts = figure.subfigures(2, 1, squeeze=False, height_ratios=(1.15, 1))
        _tables(parts[0, 0], data, step, lowest=5e-5)
        _rules(parts[1, 0].subplots(), data, step)
    return figure


def _tables(part: Figure | SubFigure, data: xr.Dataset, step: int, lowest: float = 5e-4) -> None:
    losses, axes = stopped(data, step), part.subplots(1, 2, sharex=True, sharey=True)
    nearest = stopped(data, nearest_stop(data))  # one factor for all stops: else losses that fall would seem to rise
    factor, whose = float(fit(nearest.median("seed"))[0]), "one seed" if losses.sizes["seed"] == 1 else "ours"
    panels = {f"the paper, step {_spaced(PAPER_STOP)}": paper_losses().expand_dims("seed"),
              f"{whose}, step {_spaced(step)}, × {factor:.3g}": losses * factor}  # fmt: skip
    for ax, (title, table) in zip(axes, panels.items(), strict=True):
        for model in MODELS:
            band(ax, np.array(PAPER_SIZES), table.sel(model=model).transpose("seed", "size").values, LOOKS[model])
        ax.set(yscale="log", ylim=(lowest, 20), title=title)
        log_axis(ax, (10_000, 20_000, 50_000), "training samples", ",")
    axes[0].set_ylabel("test loss")
    axes[0].legend(fontsize=10, loc="upper right")


def _rules(ax: Axes, data: xr.Dataset, step: int) -> None:
    """Draw a row for each rule: filled where it holds at this stop, by medians over seeds; the paper at the right."""
    late = data.isel(record=data.step.values >= FIRST)
    ours, paper = margins(late.test_loss.median("seed")), margins(paper_losses())
    for row, rule in enumerate(ours):
        holds = ours[rule].values <= 1
        for kept, fill in ((holds, INK), (~holds, "none")):
            ax.scatter(late.step[kept], np.full(kept.sum(), row), 26, marker="s", facecolor=fill, edgecolor=INK)
        ax.annotate("✓" if paper[rule] <= 1 else "✗", (1.03, row), xycoords=("axes fraction", "data"), va="center")
    ax.axvline(step, color=LOOKS["l1_attention"].color, linewidth=1.5, zorder=0)
    ax.annotate("paper", (1.0, 1.01), xycoords="axes fraction", fontsize=9.5)
    ax.set(xscale="log", ylim=(len(ours) - 0.4, -0.6), xlabel="stopped at step (filled: the rule holds)")
    ax.set_yticks(range(len(ours)), list(ours), fontsize=9.5)
    ax.grid(visible=False)


def stopping_text(data: xr.Dataset, step: int) -> str:
    """Return what Table 1 says if training stops at a step."""
    losses = stopped(data, step).median("seed")
    broken = [rule for rule, margin in margins(losses).items() if margin > 1]
    factor, off = (float(value) for value in fit(losses))
    ratio = losses.sel(model="attention", size=14_000) / losses.sel(model="baseline", size=20_000)
    return (
        f"Stopped at step {_spaced(step)} ({_seeds(data)}). Times the factor that fits best at this stop, {factor:.3g}"
        f", a typical cell is off by a factor {off:.2g}. Rules that fail: {'; '.join(broken) or 'none'}. Attention "
        f"with 14 000 samples has {float(ratio):.2f} times the error of the baseline with 20 000."
    )


def stops(data: xr.Dataset) -> list[int]:
    """Return about a dozen recorded steps, the one nearest to the paper's table and the last among them."""
    steps = data.step.values[data.step.values >= 5 * FIRST]
    picked = steps[np.unique(np.linspace(0, len(steps) - 1, 12).astype(int))]
    return sorted({*picked.tolist(), nearest_stop(data)})


def rules_held(data: xr.Dataset) -> Table:
    """Return at how many stops, at how many late ones, and whether at the last each rule on Table 1 and all hold."""
    shown = data.isel(record=data.step.values >= FIRST)
    holds = {rule: margin.values <= 1 for rule, margin in margins(shown.test_loss.median("seed")).items()}
    holds["all of them"] = np.all(list(holds.values()), axis=0)
    late, last = shown.step.values >= LATE, int(data.step[-1])
    rows = [
        [rule, f"{kept.sum()} of {len(kept)}", f"{kept[late].sum()} of {late.sum()}", "yes" if kept[-1] else "no"]
        for rule, kept in holds.items()
    ]
    nearest, off = nearest_stop(data), fit(data.test_loss.median("seed"))[1]
    over = "One seed" if data.sizes["seed"] == 1 else f"Medians over {_seeds(data)}"
    caption = (
        f"{over}. The run ends at step {_spaced(last)}, the paper's at {_spaced(PAPER_STOP)}. "
        f"Nearest to the paper's table: step {_spaced(nearest)}, where a typical cell is off by a factor "
        f"{float(off.min()):.2g} after the common one; at the last step {float(off[-1]):.2g}."
    )
    stops = (f"stops from step {FIRST} on", f"from step {_spaced(LATE)} on", f"at the last, {_spaced(last)}")
    return Table(["rule", *stops], rows, caption)


def cells(data: xr.Dataset, step: int) -> Table:
    """Return Table 1: the paper's number, and ours at a step times the common factor, with its range over seeds."""
    losses, paper = stopped(data, step), paper_losses()
    factor = float(fit(losses.median("seed"))[0])
    rows: list[list[str | Measured]] = []
    for size, here in zip(PAPER_SIZES, data.n_samples.values, strict=True):
        row: list[str | Measured] = [f"{size}" if size == here else f"{size} (here {here})"]
        for model in MODELS:
            theirs = f"paper {float(paper.sel(size=size, model=model)):.4f}, ours "
            row.append(spread(factor * losses.sel(size=size, model=model), ".2g", before=theirs))
        rows.append(row)
    caption = Measured(f"{factor:.3g}.", before=f"Test loss. Ours: stopped at step {step}, median over "
                       f"{_seeds(data)} [smallest, largest], times one fitted factor: ")  # fmt: skip
    return Table(["samples", *(LOOKS[m].label for m in MODELS)], rows, caption)


def convergence(data: xr.Dataset) -> Figure:
    """Draw Figure 7: test loss against iterations, one panel per sample size."""
    kept = data.isel(record=data.step.values >= 10)
    with style():
        figure, axes = plt.subplots(2, 3, figsize=(7.2, 4.8), sharex=True, sharey=True)
        for ax, size, here in zip(axes.flat, PAPER_SIZES, kept.n_samples.values, strict=True):
            for model in MODELS:
                curves = kept.test_loss.sel(size=size, model=model).transpose("seed", "record")
                band(ax, kept.step.values, curves.values, replace(LOOKS[model], marker=""))
            for fifth in (1, 2, 3):
                ax.axvline(int(data.snapshot) * fifth / 5, color=INK, linewidth=0.8, linestyle=":")
            ax.set(xscale="log", yscale="log", title=f"N = {_spaced(here)}")
            ax.minorticks_off()
        figure.supxlabel("iterations", fontsize=11.5)
        figure.supylabel(LOSS, fontsize=11.5)
        axes[0, 0].legend(fontsize=9)
    return figure


def errors(runs: Mapping[str, xr.DataArray]) -> Figure:
    """Draw errors ``(seed, size, model)`` against the number of samples, a panel for each run, and the slope of 1/n."""
    with style():
        figure, axes = plt.subplots(1, len(runs), figsize=(7.2, 3.9), sharey=True, squeeze=False)
        for ax, (title, losses) in zip(axes[0], runs.items(), strict=True):
            sizes = losses["size"].values
            for model in sorted(losses.model.values.tolist(), key="baseline".__eq__):  # last: another may lie on it
                look = replace(LOOKS[model], hollow=model == "baseline")
                band(ax, sizes, losses.sel(model=model).transpose("seed", "size").values, look)
            start = 1.6 * float(losses.sel(model="baseline").median("seed")[0])
            ax.plot(sizes, start * sizes[0] / sizes, color=INK, linewidth=1, linestyle=":")
            ax.annotate("1/n", (sizes[-2], start * sizes[0] / sizes[-2]), xytext=(4, 6), textcoords="offset points")
            ax.set(yscale="log", title=title)
            log_axis(ax, sizes[::2], form=",")
        axes[0, 0].set_ylabel(f"clean {LOSS}")
        axes[0, 0].legend(fontsize=9.5)
        figure.supxlabel("training samples, noisy labels", fontsize=11.5)
    return figure


def sample_curves(data: xr.Dataset) -> Figure:
    """Draw error against samples for each number of relevant inputs, one panel per model."""
    with style():
        figure, axes = plt.subplots(1, 3, sharex=True, sharey=True)
        sizes = data["size"].values
        for ax, model in zip(axes, MODELS, strict=True):
            for i, k in enumerate(data.k.values):
                losses = data.test_loss.sel(k=k, model=model)
                ax.fill_between(sizes, losses.min("seed"), losses.max("seed"), color=SHADES[i], alpha=0.2, linewidth=0)
                ax.plot(sizes, losses.median("seed"), color=SHADES[i], marker="osD^v"[i], label=f"k = {k}")
            ax.axhline(float(data.target), color=INK, linewidth=1, linestyle=":")
            ax.set(yscale="log", title=LOOKS[model].label)
            log_axis(ax, sizes[::2], form=",")
        axes[0].annotate("target", (sizes[0], float(data.target)), xytext=(0, 3), textcoords="offset points")
        axes[0].set_ylabel(f"clean {LOSS}")
        axes[1].set_xlabel("training samples, noisy labels")
        axes[0].legend(fontsize=9, title="relevant inputs")
    return figure


def _seeds(data: xr.Dataset) -> str:
    return "one seed" if data.sizes["seed"] == 1 else f"{data.sizes['seed']} seeds"


def _spaced(number: int) -> str:
    return f"{number:,}".replace(",", "\u2009")
