"""The pictures and tables of the chapter. They take data sets and compute only medians and ratios."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnbook.core.figures import BACKGROUND, INK, LOOKS, Look, band, style
from attnbook.core.rng import stream
from attnbook.core.tables import Measured, Table, spread
from attnbook.global_attention.recurrent.depth import MODELS, at_best_step_size
from attnbook.global_attention.recurrent.experiments import LADDER, OTHERS, Recurrent, second_best
from attnbook.global_attention.recurrent.guidelines import PENALTIES, TEACHERS, chosen
from attnbook.global_attention.recurrent.word_training import READERS
from attnbook.global_attention.recurrent_networks import Recurrence, initial_parameters
from attnbook.global_attention.sample_sizes import recurrent_samples

READ: Mapping[str, Look] = {
    "flat": Look("flat network", "#5b5f66", "--", "s"),
    "mean": Look("mean pooling", "#7c3aed", ":", "D"),
    "one_step": Look("attention, 1 step", "#0b5cad", "-", "o"),
    "two_steps": Look("2 steps", "#0e7490", "-.", "^"),
    "three_steps": Look("3 steps, large", "#1f2937", (0, (3, 1, 1, 1, 1, 1)), "P"),
    "known": Look("weights known", "#15803d", (0, (5, 1)), "v"),
    "floor": Look("floor without order", "#111111", (0, (1, 1)), "X"),
}
WAYS = (("#0f766e", "-", "o"), ("#a16207", "-.", "^"))  # towards what the teacher does, away from it
TITLES = {"the word decides": "attention", "the place decides": "position", "all words alike": "equal"}  # to tasks
BANDS = ("one_step", "three_steps")  # models whose range over seeds is drawn where there are many
LOSS = "test error (label variances)"
KINDS = {"entropy": "entropy", "l1_scores": "L1 of the scores", "l2_weights": "L2 of the weights"}
FOUND = 0.3  # a network with a smaller error has found the second look
ASKED = 0.01  # error for which the bound is compared with the experiment


def ladder(data: xr.Dataset) -> Figure:
    """Draw the error against training sentences on the attention teacher, from too simple to too complex."""
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.7))
        for model in LADDER:
            losses = data.test_loss.sel(model=model)
            if model in BANDS:
                band(ax, data.size.values, losses.values, READ[model])
            else:
                ax.plot(data.size, losses.median("seed"), **READ[model].line_style())
        ax.plot(data.size, 3 / data.size, color=INK, linewidth=1, linestyle=":", label="slope of 1 / sentences")
        _against_size(ax, data, "training sentences")
        ax.legend(fontsize=10, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def other_teachers(data: xr.Dataset) -> Figure:
    """Draw the error where the weights depend on places, and where all words weigh the same."""
    with style():
        figure, axes = plt.subplots(1, 2, sharex=True, sharey=True, figsize=(7.2, 3.7))
        for ax, title in zip(axes, ("the place decides", "all words alike"), strict=True):
            for model in OTHERS:
                band(ax, data.size.values, data[f"{TITLES[title]}_loss"].sel(other=model).values, READ[model])
            _against_size(ax, data, "training sentences")
            ax.set_title(title)
        floor = np.full(data.sizes["size"], float(data.position_floor.median()))
        axes[0].plot(data.size, floor, **READ["floor"].line_style())
        axes[1].set_ylabel("")
        _legend(axes[0], "lower left")
    return figure


def weight_decay(data: xr.Dataset) -> Figure:
    """Draw training and test error against the L2 weight, and the weight that the guideline picks."""
    noise, weights = data.attrs["settings"]["noise"], data.penalty.values
    with style():
        figure, axes = plt.subplots(1, 2, sharex=True, sharey=True, figsize=(7.2, 3.4))
        for ax, teacher in zip(axes, TEACHERS, strict=True):
            own = data.sel(teacher=teacher)
            train = own.l2_attention_train_loss
            band(ax, weights, own.l2_attention_loss.values, Look("test", "#0b5cad", "-", "o"))
            band(ax, weights, train.values, Look("training", "#5b5f66", ":", "D", hollow=True))
            ax.axhline(noise**2, color=INK, linewidth=1, linestyle=":")
            ax.axvline(weights[int(np.median(chosen(train, noise)))], color=INK, linewidth=1, linestyle="--")
            ax.set(xscale="log", yscale="log", xlabel="L2 weight", title=f"{teacher} teacher")
        axes[0].annotate("noise", (weights[-1], noise**2), xytext=(-20, 3), textcoords="offset points")
        axes[0].set_ylabel("error (label variances)")
        _legend(axes[1], "upper left")
    return figure


def penalties(data: xr.Dataset) -> Figure:
    """Draw the error over the error without a penalty: whom three penalties on attention help, and whom they hurt."""
    ratios = data.attention_loss / data.free_attention_loss
    with style():
        figure, axes = plt.subplots(1, 3, sharex=True, sharey=True, figsize=(7.2, 3.6))
        for ax, kind in zip(axes, PENALTIES, strict=True):
            # Entropy pushes to one word, the others to all words alike.
            towards = TEACHERS if kind == "entropy" else TEACHERS[::-1]
            for teacher, way in zip(towards, WAYS, strict=True):
                band(ax, data.strength.values, ratios.sel(kind=kind, teacher=teacher).values, Look(teacher, *way))
            ax.axhline(1, color=INK, linewidth=1)
            ax.set(xscale="log", yscale="log", ylim=(0.4, 60), title=KINDS[kind])
            _legend(ax, "upper left")
        axes[0].set_yticks((0.5, 1, 2, 5, 10, 20), ("0.5", "1", "2", "5", "10", "20"))
        axes[0].minorticks_off()
        axes[0].set_ylabel("error / error without penalty")
        axes[1].set_xlabel("strength of the penalty")
    return figure


def three_layers(data: xr.Dataset) -> Figure:
    """Draw the error of three-layer networks against training samples, each model at its best step size."""
    with style():
        figure, ax = plt.subplots(figsize=(6.0, 3.6))
        for model in MODELS:
            band(ax, data.size.values, at_best_step_size(data).test_loss.sel(model=model).values, LOOKS[model])
        _against_size(ax, data, "training samples")
        _legend(ax, "lower left")
    return figure


def words_frame(data: xr.Dataset, task: str, n_sentences: int) -> Figure:
    """Draw weights of teacher and one-step model in new sentences; ``task`` is one of the titles."""
    name = TITLES[task]
    shown, truth = data.shown_weights.sel(task=name, size=n_sentences).values, data.shown_truth.sel(task=name).values
    places = 1 + np.arange(shown.shape[1])
    with style():
        figure, axes = plt.subplots(1, len(shown), sharey=True, figsize=(7.2, 2.5))
        for ax, weights, true in zip(axes, shown, truth, strict=True):
            ax.bar(places - 0.2, true, 0.4, color="none", edgecolor=INK, label="teacher")
            ax.bar(places + 0.2, weights, 0.4, color=READ["one_step"].color, label="learned")
            ax.set(ylim=(0, 1.05), xticks=places, xlabel="word of the sentence")
            ax.grid(visible=False)
        axes[0].set_ylabel("attention weight")
        _legend(axes[0], "upper left")
    return figure


def words_text(data: xr.Dataset, task: str, n_sentences: int) -> str:
    """Return the numbers behind one picture of the slider."""
    name = TITLES[task]
    apart = float(data.apart.sel(task=name, size=n_sentences).median())
    losses = data.test_loss.rename(model="other") if name == "attention" else data[f"{name}_loss"]
    medians = losses.sel(size=n_sentences).median("seed")
    errors = ", ".join(f"{READ[model].label} {float(medians.sel(other=model)):.2g}" for model in OTHERS)
    return (
        f"{task[:1].upper()}{task[1:]}, {n_sentences} sentences: {apart:.0%} of the attention is on other words than "
        f"the teacher's. Test error: {errors} (medians over seeds and all new sentences; the bars are the first seed)."
    )


def models(run: Recurrent, data: xr.Dataset) -> Table:
    """Return weights, the sample size of Theorem 6 with norm bounds and constant 1, and what the experiment needs."""
    rows: list[list[str | Measured]] = []
    for name in ("one_step", "two_steps", "three_steps"):
        recurrence, losses = READERS[name], data.test_loss.sel(model=name)
        assert isinstance(recurrence, Recurrence)
        drawn = initial_parameters(recurrence, run.dimension, run.width, rng=stream(0, "any weights"))
        enough = losses["size"][losses.median("seed") <= ASKED]
        needed = f"{int(enough[0])}" if len(enough) else "more"
        error, failed = spread(losses.sel(size=run.judged_size), ".2g"), f"{int((losses.isel(size=0) > 0.9).sum())}"
        counted = sum(array.size for array in drawn.values())
        bound = f"{recurrent_samples(ASKED, counted):.0f}"
        rows.append([READ[name].label, f"{counted}", bound, error, Measured(needed), Measured(failed)])
    columns = ["model", "weights", f"bound for {ASKED:g}", f"error at {run.judged_size}", f"reached {ASKED:g} with",
               f"failed at {run.sizes[0]}"]  # fmt: skip
    caption = (
        f"Errors: median over {data.sizes['seed']} seeds [smallest, largest]; reached: the first size tried whose "
        "median error is small enough; failed: seeds with an error above 0.9. Bound with norms and constant 1."
    )
    return Table(columns, rows, caption)


def second_looks(data: xr.Dataset) -> Table:
    """Return how many runs find the second look, and how many seeds do by their best restart."""
    rows: list[list[str | Measured]] = []
    for name, label in zip(data.second.values, ("2 steps", "3 steps"), strict=True):
        runs, best = data.second_loss.sel(second=name), second_best(data).sel(second=name)
        counts = (f"{int((losses < FOUND).sum())} of {losses.size}" for losses in (runs, best))
        rows.append([label, *map(Measured, counts), spread(best, ".2g")])
    columns = ["model", f"runs below {FOUND:g}", f"seeds below {FOUND:g}", "test error"]
    caption = "A seed counts by its restart with the smallest training error; median over seeds [smallest, largest]."
    return Table(columns, rows, caption)


def _against_size(ax: Axes, data: xr.Dataset, what: str) -> None:
    ax.set(xscale="log", yscale="log", xlabel=what, ylabel=LOSS)
    ax.set_xticks(data.size.values, [f"{n}" if n != 200 else "" for n in data.size.values])
    ax.minorticks_off()


def _legend(ax: Axes, where: Literal["lower left", "upper left"]) -> None:
    ax.legend(fontsize=10, loc=where, frameon=True, facecolor=BACKGROUND, edgecolor="none", framealpha=0.9)
