"""The pictures and tables of the chapter. Each function takes data sets and computes nothing but means."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from attnbook.core.figures import INK, Look, band, style
from attnbook.core.tables import Measured, Table
from attnbook.mirror_descent.looks import LOOKS as BY_EXPONENT
from attnbook.mirror_descent.real_text_and_images import measures
from attnbook.mirror_descent.real_text_and_images.comparison import MIRROR, OPTIMIZERS
from attnbook.mirror_descent.real_text_and_images.transformer import ATTENTION

LOOKS: Mapping[str, Look] = {
    "uniform": Look("uniform attention", "#8a6d00", (0, (5, 1)), "D"),
    "adam": Look("Adam", "#6b6b6b", (0, (4, 1, 1, 1, 1, 1)), "X"),
    "p1_1": BY_EXPONENT[1.1],
    "p2": BY_EXPONENT[2.0],
    "p3": BY_EXPONENT[3.0],
}
BASELINES = {"mean_vector": "mean word vector", "bag_of_words": "bag of words", "tf_idf": "tf-idf", "pixels": "pixels"}
START = 0.75  # effective dimension of entries uniform between two bounds
PLACES = "step size of p = 1.1 and 2 (p = 3: a tenth)"


def sparsity(panels: Mapping[str, tuple[xr.Dataset, tuple[tuple[float, ...], ...]]]) -> Figure:
    """Draw the effective dimension against step size, one panel for each pair of a data set and its step sizes."""
    with style():
        figure, axes = plt.subplots(1, len(panels), figsize=(3.9 * len(panels), 3.1), sharey=True, squeeze=False)
        for ax, (title, (data, rates)) in zip(axes[0], panels.items(), strict=True):
            steps = np.asarray(rates[list(OPTIMIZERS).index("p2")])
            for name in MIRROR:
                band(ax, steps, data.effective_dimension.sel(matrix="all", optimizer=name).values.T, LOOKS[name])
                limit = measures.noise_limit(float(name[1:].replace("_", ".")))
                ax.axhline(limit, color=LOOKS[name].color, linewidth=0.8)
            ax.axhline(START, color=INK, linewidth=1, linestyle=(0, (1, 3)))
            ax.set(xscale="log", xlabel=PLACES, ylim=(-0.03, 0.95), title=title)
        axes[0, 0].set_ylabel("effective dimension")
        axes[0, 0].legend(fontsize=9, loc="lower left")
    return figure


def accuracy_by_step_size(panels: Mapping[str, tuple[xr.Dataset, tuple[tuple[float, ...], ...]]]) -> Figure:
    """Draw test accuracy at the end against the place of the step size, with the strongest rival as a line."""
    with style():
        figure, axes = plt.subplots(1, len(panels), figsize=(3.9 * len(panels), 3.3), squeeze=False)
        for ax, (title, (data, rates)) in zip(axes[0], panels.items(), strict=True):
            places = np.arange(len(rates[0]))
            for shift, name in zip(np.linspace(-0.16, 0.16, len(OPTIMIZERS)), OPTIMIZERS, strict=True):
                own = 100 * data.test_accuracy.isel(record=-1).sel(optimizer=name)
                mean, lower, _ = measures.interval(own)
                ax.errorbar(places + shift, mean, mean - lower, linewidth=1.4, **LOOKS[name].line_style())
            best = max(float(accuracy.mean()) for accuracy in measures.baselines(data).values())
            ax.axhline(100 * best, color=INK, linewidth=1)
            ax.set(title=title, xlabel="place of the step size")
            ax.set_xticks(places, [f"{place + 1}" for place in places])
            low = 100 * float(data.test_accuracy.isel(record=-1).drop_sel(optimizer="adam").mean("seed").min())
            ax.set_ylim(bottom=low - 2.5)
        axes[0, 0].set_ylabel("test accuracy in per cent")
        axes[0, 0].legend(fontsize=8.5, loc="lower left")
    return figure


def histograms(cases: Mapping[str, xr.Dataset], sizes: np.ndarray) -> Figure:
    """Draw how the entries of the value and the key matrix are distributed by size; mean over seeds."""
    with style():
        figure, axes = plt.subplots(1, len(cases), figsize=(3.9 * len(cases), 3.0), sharey=True, squeeze=False)
        for ax, (title, data) in zip(axes[0], cases.items(), strict=True):
            for name in MIRROR:
                own = data.histogram.sel(optimizer=name).isel(matrix_alone=ATTENTION.index("value")).mean("seed")
                ax.plot(sizes, np.where(own > 0, own, np.nan), **LOOKS[name].line_style())
            ax.set(xscale="log", yscale="log", title=title, xlabel="size of an entry over the largest")
        axes[0, 0].set_ylabel("share of entries")
        axes[0, 0].legend(fontsize=9, loc="upper left")
    return figure


def pair_frame(data: xr.Dataset, one: int, two: int) -> Figure:
    """Draw accuracy and sparsity, seed by seed, for one place of the step size of p = 1.1 and one of p = 2."""
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(6.8, 3.3))
        for name, place in (("p1_1", one), ("p2", two)):
            run, look = data.sel(optimizer=name).isel(rate=place - 1), LOOKS[name]
            accuracy, dimension = 100 * run.test_accuracy.isel(record=-1), run.effective_dimension.sel(matrix="all")
            for ax, values in ((left, accuracy), (right, dimension)):
                ax.plot(data.seed, values, look.marker, color=look.color, label=look.label)
                ax.axhline(float(values.mean()), color=look.color, linestyle=look.line, linewidth=1.2)
        both = data.sel(optimizer=["p1_1", "p2"])
        ends = 100 * both.test_accuracy.isel(record=-1), both.effective_dimension.sel(matrix="all")
        for ax, values, name in ((left, ends[0], "test accuracy, per cent"), (right, ends[1], "effective dimension")):
            spread = 0.05 * float(values.max() - values.min())
            ax.set(xlabel="seed", ylabel=name, ylim=(float(values.min()) - spread, float(values.max()) + spread))
        figure.legend(*left.get_legend_handles_labels(), fontsize=10, loc="outside lower center", ncols=2)
    return figure


def pair_text(data: xr.Dataset, one: int, two: int) -> str:
    """Return the numbers behind one picture of the slider."""
    first, second = data.sel(optimizer="p1_1").isel(rate=one - 1), data.sel(optimizer="p2").isel(rate=two - 1)
    gain = 100 * (first.test_accuracy - second.test_accuracy).isel(record=-1)
    mean, lower, upper = (float(x) for x in measures.interval(gain))
    dense = [float(x.effective_dimension.sel(matrix="all").mean()) for x in (first, second)]
    who = "p = 1.1 is ahead" if lower > 0 else "gradient descent is ahead" if upper < 0 else "neither is ahead"
    return (
        f"Gain of p = 1.1: {mean:+.2f} points [{lower:+.2f}, {upper:+.2f}], so {who}. "
        f"Effective dimension {dense[0]:.2f} for p = 1.1 and {dense[1]:.2f} for p = 2."
    )


def accuracies(data: xr.Dataset, rates: tuple[tuple[float, ...], ...], caption: str) -> Table:
    """Tabulate accuracy at each optimiser's choice, gains over gradient descent, and the baselines."""
    tuned, chosen = 100 * measures.tuned(data), measures.choice(data)
    rows: list[list[str | Measured]] = []
    for k, name in enumerate(OPTIMIZERS):
        own = tuned.sel(optimizer=name)
        place, record = (int(chosen[axis].sel(optimizer=name)) for axis in ("rate", "record"))
        when = f"{rates[k][place]:g}, {100 * (record + 1) // data.sizes['record']} %"
        gain = "" if name == "p2" else _interval(own - tuned.sel(optimizer="p2"))
        rows.append([LOOKS[name].label, Measured(when), _interval(own, sign=False), gain])
    for features, accuracy in measures.baselines(data).items():
        own = 100 * accuracy.broadcast_like(data.seed)
        gain = _interval(own - tuned.sel(optimizer="p2"))
        rows.append([f"{BASELINES[features]}, logistic regression", "", _interval(own, sign=False), gain])
    return Table(["attention or rival", "step size, end at", "test accuracy, %", "minus p = 2, points"], rows, caption)


def attention_table(data: xr.Dataset, place: int) -> Table:
    """Tabulate where the class token looks, at comparable step sizes."""
    run = data.isel(rate=place)
    rows: list[list[str | Measured]] = []
    for name in OPTIMIZERS:
        values = (100 * run[key].sel(optimizer=name) for key in ("mass", "top", "entropy"))
        rows.append([LOOKS[name].label, *(_interval(value, sign=False) for value in values)])
    columns = ["", "attention on telling words, %", "most attended word tells, %", "entropy, % of uniform"]
    return Table(columns, rows, "Means over seeds and their 95 per cent intervals.")


def _interval(values: xr.DataArray, *, sign: bool = True) -> Measured:
    mean, lower, upper = (float(x) for x in measures.interval(values))
    form = "+.2f" if sign else ".2f"
    return Measured(f"{mean:{form}} [{lower:{form}}, {upper:{form}}]" if upper > lower else f"{mean:{form}}")
