"""The pictures of the chapter on recurrent attention. Functions take results and compute only medians and ratios."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import matplotlib.pyplot as plt
import numpy as np

from attnbook.core.figures import BACKGROUND, INK, Look, band, style
from attnbook.global_attention.experiments import guidelines, recurrent
from attnbook.global_attention.recurrent_bounds import moved_score

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "LOOKS",
    "ladder",
    "looks",
    "other_teachers",
    "penalties",
    "readings_frame",
    "second_look",
    "weight_decay",
    "words_frame",
]

LOSS = "test loss (label variances)"
LOOKS: Mapping[str, Look] = {
    "flat": Look("flat network", "#5b5f66", "--", "s"),
    "mean": Look("mean pooling", "#7c3aed", ":", "D"),
    "one_step": Look("attention, 1 step", "#0b5cad", "-", "o"),
    "two_steps": Look("2 steps", "#0e7490", "-.", "^"),
    "three_steps": Look("3 steps, large", "#1f2937", (0, (3, 1, 1, 1, 1, 1)), "P"),
    "known": Look("weights known", "#15803d", (0, (5, 1)), "v"),
    "floor": Look("floor without order", "#9d174d", (0, (1, 1)), "X"),
}
"""How each model looks."""
HELPED = Look("right direction", "#0f766e", "-", "o")
HURT = Look("wrong direction", "#a16207", "-.", "^")
SOFTMAX = Look("softmax", "#0b5cad", "-", "o")
RATIOS = Look("plain ratios", "#9d174d", (0, (5, 1)), "X")
TASKS = ("attention", "position", "equal")
TITLES = {
    "attention": "the word decides",
    "position": "the place decides",
    "equal": "all words alike",
}
"""What decides the teacher's weights."""


def looks(result: recurrent.Recurrent) -> Figure:
    """Draw where the teacher looks in one sentence, and where the trained model looks, step by step."""
    rows = np.concatenate([result.second_truth, result.second_looks])
    names = ["teacher, 1st look", "teacher, 2nd look", *(f"model, step {k + 1}" for k in range(len(rows) - 2))]
    with style():
        figure, ax = plt.subplots(figsize=(5.6, 3.2))
        image = ax.imshow(rows, aspect="auto", vmin=0, vmax=1, cmap="cividis")
        for i, row in enumerate(rows):
            for j, weight in enumerate(row):
                if weight >= 0.1:
                    color = INK if weight > 0.6 else "white"
                    text = f"{weight:.1f}".removeprefix("0")
                    ax.text(j, i, text, ha="center", va="center", color=color, fontsize=11)
        ax.axhline(1.5, color="white", linewidth=3)
        ax.set_yticks(range(len(rows)), names)
        ax.set_xticks(range(rows.shape[1]), [f"{j + 1}" for j in range(rows.shape[1])])
        ax.set_xlabel("word of the sentence")
        ax.grid(visible=False)
        figure.colorbar(image, ax=ax, label="attention weight")
    return figure


def ladder(result: recurrent.Recurrent) -> Figure:
    """Draw the error against training sentences on the attention teacher: too simple, right, and more complex."""
    panels = {
        "too simple, and right": (("flat", "mean", "one_step"), ("known",)),
        "more steps, more weights": (("two_steps", "three_steps"), ("one_step", "known")),
    }
    with style():
        figure, axes = plt.subplots(2, 1, figsize=(5.2, 7.4), sharex=True, sharey=True)
        sizes = np.array(result.settings.sizes)
        for ax, (title, (compared, beside)) in zip(axes, panels.items(), strict=True):
            for model in compared:
                band(ax, sizes, result.test_loss[..., recurrent.LADDER.index(model)], LOOKS[model])
            for model in beside:
                medians = np.median(result.test_loss[..., recurrent.LADDER.index(model)], axis=0)
                ax.plot(sizes, medians, **LOOKS[model].line_style())
            ax.axvline(result.settings.judged_size, color=INK, linewidth=1, linestyle=":")
            ax.set(xscale="log", yscale="log", title=title)
            _name_sizes(ax, result)
            _legend(ax, "lower left")
        axes[0].set_ylim(bottom=result.test_loss.min() / 20)  # room for the legend
        axes[-1].set_xlabel("training sentences")
        figure.supylabel(LOSS, fontsize=11.5)
    return figure


def other_teachers(result: recurrent.Recurrent) -> Figure:
    """Draw the error where the weights depend on places, and where all words weigh the same."""
    with style():
        figure, axes = plt.subplots(2, 1, sharex=True, sharey=True, figsize=(5.2, 6.8))
        sizes = np.array(result.settings.sizes)
        for ax, task in zip(axes, TASKS[1:], strict=True):
            losses = result.position_loss if task == "position" else result.equal_loss
            for j, model in enumerate(recurrent.OTHERS):
                band(ax, sizes, losses[..., j], LOOKS[model])
            ax.set(xscale="log", yscale="log", title=TITLES[task])
            _name_sizes(ax, result)
        floor = np.repeat(result.position_floor[:, None], len(sizes), axis=1)
        band(axes[0], sizes, floor, LOOKS["floor"])
        axes[-1].set_xlabel("training sentences")
        figure.supylabel(LOSS, fontsize=11.5)
        _legend(axes[0], "lower left")
    return figure


def second_look(result: recurrent.Recurrent) -> Figure:
    """Draw each restart on the teacher that looks twice: training error and test error."""
    with style():
        figure, ax = plt.subplots(figsize=(5.2, 3.8))
        for j, look in enumerate((LOOKS["two_steps"], LOOKS["three_steps"])):
            train, test = result.second_train_loss[..., j].ravel(), result.second_loss[..., j].ravel()
            (marks,) = ax.plot(train, test, color=look.color, marker=look.marker, linestyle="none", fillstyle="none")
            marks.set(label=f"{j + 2} steps", markersize=9, markeredgewidth=1.6)
        low = min(result.second_train_loss.min(), result.second_loss.min())
        ends = np.array([low / 1.3, 1.2])
        ax.plot(ends, ends, color=INK, linewidth=1, linestyle=":")
        ax.set(xscale="log", yscale="log", xlabel="training error (label variances)", ylabel=LOSS)
        _legend(ax, "upper left")
    return figure


def readings_frame(score: float) -> Figure:
    """Draw the weights of four words, as a softmax and as plain ratios, while the score of the last word moves.

    Args:
        score: Score of the last word; not where the four cancel.

    Returns:
        A figure with the weights of all words, and with that of the first one for all scores of the last.
    """
    logits, softmax, ratios = moved_score(score)
    names = [f"word {j + 1}\nscore {value:g}" for j, value in enumerate(logits)]
    with style():
        figure, (above, below) = plt.subplots(2, 1, figsize=(5.2, 5.8))
        for look, weights, side in ((SOFTMAX, softmax, -0.2), (RATIOS, ratios, 0.2)):
            face = look.color if look is SOFTMAX else "none"
            above.bar(np.arange(4) + side, weights, 0.4, color=face, edgecolor=look.color, linewidth=1.6)
        above.axhline(0, color=INK, linewidth=1)
        above.set_xticks(range(4), names, fontsize=10)
        above.set_ylabel("weight")
        pole = score - logits.sum()
        for look, weights, j in ((SOFTMAX, softmax, 0), (RATIOS, ratios, 1)):
            for stretch in (np.linspace(-4, pole - 0.02, 200), np.linspace(pole + 0.02, 3, 200)):
                below.plot(stretch, [moved_score(x)[1 + j][0] for x in stretch], color=look.color, linestyle=look.line)
            below.plot(score, weights[0], **look.line_style(), markersize=10)
        below.axvline(pole, color=INK, linewidth=1, linestyle=":")
        below.set(xlabel="score of word 4", ylabel="weight of word 1", xlim=(-4, 3))
        for ax in (above, below):
            ax.set_yscale("symlog", linthresh=1)
            ax.set(ylim=(-40, 40), yticks=(-10, -1, 0, 1, 10))
            ax.set_yticklabels(["−10", "−1", "0", "1", "10"])
        above.set_title("weights: softmax ■, plain ratios □", fontsize=11)
        _legend(below, "lower right")
    return figure


def weight_decay(result: guidelines.Guidelines) -> Figure:
    """Draw training and test error of the network with a mask against the L2 weight, and what the guideline picks."""
    s = result.settings
    x = np.array(s.penalties)
    with style():
        figure, axes = plt.subplots(2, 1, sharex=True, sharey=True, figsize=(5.2, 6.8))
        for i, (ax, k) in enumerate(zip(axes, s.sparsities, strict=True)):
            band(ax, x, result.l2_loss[:, i, 0], Look("no mask, test", "#5b5f66", "--", "s"))
            band(ax, x, result.l2_loss[:, i, 1], Look("mask, test", "#0b5cad", "-", "o"))
            band(ax, x, result.l2_train_loss[:, i, 1], Look("mask, training", "#0b5cad", ":", "D", hollow=True))
            ax.axhline(s.noise**2, color=INK, linewidth=1, linestyle=":")
            picked = x[int(np.median(result.chosen(i, 1)))]
            ax.axvline(picked, color=INK, linewidth=1, linestyle="--")
            ax.set(xscale="log", yscale="log", title=f"{k} of {s.n_inputs} inputs matter")
        axes[0].annotate("noise", (x[0], s.noise**2), xytext=(0, 4), textcoords="offset points", fontsize=9)
        axes[-1].set_xlabel("L2 weight")
        figure.supylabel("error (label variances)", fontsize=11.5)
        for ax in axes:
            _legend(ax, "upper left")
    return figure


def penalties(result: guidelines.Guidelines) -> Figure:
    """Draw the error over the error without a penalty: whom three penalties help, and whom they hurt."""
    s = result.settings
    entropy, scores = (result.attention_loss[:, :, guidelines.PENALTIES.index(p)] for p in guidelines.PENALTIES)
    free = result.free_attention_loss[..., None]
    sparse, dense = (f"{k} of {s.n_inputs} matter" for k in s.sparsities)
    panels = [
        ("L1 on the mask", s.penalties, result.l1_loss / result.free_loss[:, :, 1:], (sparse, dense)),
        ("entropy", s.strengths, entropy / free, ("peaked teacher", "spread teacher")),
        ("L1 on the scores", s.strengths, (scores / free)[:, ::-1], ("spread teacher", "peaked teacher")),
    ]
    with style():
        figure, axes = plt.subplots(3, 1, sharey=True, figsize=(5.2, 9.0))
        for ax, (title, strengths, ratios, names) in zip(axes, panels, strict=True):
            for j, (name, look) in enumerate(zip(names, (HELPED, HURT), strict=True)):
                band(ax, np.array(strengths), ratios[:, j], replace(look, label=f"{name} ({look.label})"))
            ax.axhline(1, color=INK, linewidth=1)
            ax.set(xscale="log", yscale="log", title=title)
            _legend(ax, "upper left")
        figure.supylabel("error / error without penalty", fontsize=11.5)
        axes[0].set_yticks((0.1, 0.2, 0.5, 1, 2, 5, 10, 20), ("0.1", "0.2", "0.5", "1", "2", "5", "10", "20"))
        axes[0].minorticks_off()
        figure.supxlabel("strength of the penalty", fontsize=10.5)
    return figure


def words_frame(result: recurrent.Recurrent, task: str, n_sentences: int) -> Figure:
    """Draw, for one kind of teacher and one number of sentences, weights of teacher and model, and the errors.

    Args:
        result: A result.
        task: One of the three titles of the teachers.
        n_sentences: One of the sizes.

    Returns:
        The figure.
    """
    at, size = list(TITLES.values()).index(task), result.settings.sizes.index(n_sentences)
    models = ("flat", "mean", "one_step")
    ladder_rows = [recurrent.LADDER.index(m) for m in models]
    losses = (result.test_loss[..., ladder_rows], result.position_loss, result.equal_loss)[at]
    shown = result.shown_weights[at, size]
    with style():
        figure = plt.figure(figsize=(5.2, 6.2))
        grid = figure.add_gridspec(2 * len(shown), 1)
        for i, weights in enumerate(shown):
            ax = figure.add_subplot(grid[i, 0])
            places = np.arange(len(weights))
            ax.bar(places - 0.2, result.shown_truth[at, i], 0.4, color="none", edgecolor=INK)
            ax.bar(places + 0.2, weights, 0.4, color=LOOKS["one_step"].color)
            ax.set(ylim=(0, 1.05), yticks=(0, 1), xticks=places)
            ax.set_xticklabels([f"{j + 1}" for j in places] if i == len(shown) - 1 else [])
            ax.grid(visible=False)
            if i == 0:
                ax.set_title("weights: teacher □, learned ■", fontsize=11)
        ax.set_xlabel("word")
        below = figure.add_subplot(grid[len(shown) :, 0])
        for j, model in enumerate(models):
            look = LOOKS[model]
            medians = np.median(losses[..., j], axis=0)
            below.plot(result.settings.sizes, medians, color=look.color, linestyle=look.line, label=look.label)
            below.plot(n_sentences, medians[size], color=look.color, marker=look.marker, markersize=10)
        below.axvline(n_sentences, color=INK, linewidth=1, linestyle=":")
        below.set(xscale="log", yscale="log", xlabel="training sentences", ylabel=LOSS, ylim=(0.0003, 3))
        below.set_xticks((100, 1000), ("100", "1000"))
        below.minorticks_off()
        _legend(below, "lower left")
    return figure


def _legend(ax: Axes, where: Literal["lower left", "lower right", "upper left"]) -> None:
    """A legend that no line runs through."""
    ax.legend(fontsize=10, loc=where, frameon=True, facecolor=BACKGROUND, edgecolor="none", framealpha=0.9)


def _name_sizes(ax: Axes, result: recurrent.Recurrent) -> None:
    s = result.settings
    named = (s.sizes[0], s.judged_size, *(n for n in s.sizes if n > 2 * s.judged_size))
    ax.set_xticks(s.sizes, [f"{n}" if n in named else "" for n in s.sizes])
    ax.minorticks_off()
