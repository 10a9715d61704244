"""The tables of the chapter on recurrent attention, as notebooks show them."""

from __future__ import annotations

import numpy as np

from attnbook.core.tables import Measured, Table
from attnbook.global_attention.experiments import recurrent
from attnbook.global_attention.figures.recurrent import LOOKS, TITLES
from attnbook.global_attention.models.word_training import RECURRENCES
from attnbook.global_attention.theory.recurrent import Recurrence, weight_counts

__all__ = ["counts", "fits", "frame_text"]


def counts(result: recurrent.Recurrent) -> Table:
    """Return the weights of each model as Theorem 6 counts them, beside the directions that its answers feel."""
    s = result.settings
    rows: list[list[str | Measured]] = []
    for j, name in enumerate(("one_step", "two_steps", "three_steps")):
        recurrence: Recurrence = RECURRENCES[name]
        counted = weight_counts(recurrence, s.dimension, s.width)
        rows.append(
            [
                LOOKS[name].label,
                *(f"{counted[part]}" for part in ("layers", "score", "recurrence")),
                f"{sum(counted.values())}",
                Measured(f"{np.median(result.felt[:, j]):.0f} {_range(result.felt[:, j], '.0f')}"),
                Measured(_summary(result.of(name))),
            ]
        )
    columns = ["model", "td + d", "score", "recurrence", "weights", "directions felt", "test error"]
    caption = (
        f"Weights, directions and errors with {s.judged_size} training sentences: median over "
        f"{len(s.seeds)} seeds [smallest, largest]."
    )
    return Table(columns, rows, caption)


def fits(result: recurrent.Recurrent) -> Table:
    """Return training and test error at the two smallest sizes: who learns, and who learns by heart."""
    s = result.settings
    rows: list[list[str | Measured]] = []
    for j, name in enumerate(recurrent.LADDER):
        row: list[str | Measured] = [LOOKS[name].label]
        for size in range(2):
            row.append(Measured(_summary(result.train_loss[:, size, j])))
            row.append(Measured(_summary(result.test_loss[:, size, j])))
        rows.append(row)
    columns = ["model", *(f"{what}, {n} sentences" for n in s.sizes[:2] for what in ("training", "test"))]
    caption = "Training and test error in label variances: median over seeds [smallest, largest]."
    return Table(columns, rows, caption)


def frame_text(result: recurrent.Recurrent, task: str, n_sentences: int) -> str:
    """Return the numbers behind one picture of the sliders."""
    at, size = list(TITLES.values()).index(task), result.settings.sizes.index(n_sentences)
    models = ("flat", "mean", "one_step")
    rows = [recurrent.LADDER.index(m) for m in models]
    losses = (result.test_loss[..., rows], result.position_loss, result.equal_loss)[at][:, size]
    apart = np.abs(result.shown_weights[at, size] - result.shown_truth[at]).sum(-1).mean() / 2
    medians = ", ".join(f"{LOOKS[m].label} {np.median(losses[:, j]):.2g}" for j, m in enumerate(models))
    return (
        f"{task[:1].upper()}{task[1:]}, {n_sentences} sentences: test error {medians}. "
        f"{apart:.0%} of the attention lies on other words than the teacher's."
    )


def _summary(values: np.ndarray) -> str:
    return f"{np.median(values):.2g} {_range(values, '.2g')}"


def _range(values: np.ndarray, form: str) -> str:
    return f"[{values.min():{form}}, {values.max():{form}}]"
