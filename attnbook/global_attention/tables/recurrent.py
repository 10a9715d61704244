"""The tables of the chapter on recurrent attention, as notebooks show them."""

from __future__ import annotations

import numpy as np

from attnbook.core.tables import Measured, Table
from attnbook.global_attention.experiments import recurrent, step_sizes
from attnbook.global_attention.experiments.recurrent_details import CHECKED, SHARES
from attnbook.global_attention.figures.recurrent import LOOKS, TITLES
from attnbook.global_attention.recurrent_bounds import Recurrence, moved_score, samples_needed, weight_counts
from attnbook.global_attention.word_training import RECURRENCES

__all__ = [
    "bound",
    "counts",
    "failures",
    "felt",
    "fits",
    "frame_text",
    "longer",
    "overlaps",
    "readings_text",
    "second_look",
    "tried",
    "unneeded",
]

FAILED = 0.9
"""A network with a larger error, in label variances, has not learned where to look."""
STEPS = ("one_step", "two_steps", "three_steps")
ASKED = 0.01
"""Error for which the bound is compared with the experiment."""


def overlaps(result: recurrent.Recurrent) -> Table:
    """Return how much the looks of teacher and model overlap: over all test sentences, and in the one shown."""
    names = (
        "teacher: 1st look and 2nd look",
        "model's step 1 and 1st look",
        "model's step 3 and 2nd look",
        "model's step 3 and 1st look",
    )
    rows: list[list[str | Measured]] = [
        [name, Measured(f"{mean:.0%}"), Measured(f"{shown:.0%}")]
        for name, mean, shown in zip(names, result.second_overlaps, result.second_shown, strict=True)
    ]
    caption = f"How much of the weight lies on the same words; mean over {result.settings.n_test} new sentences."
    return Table(["overlap", "mean", "this sentence"], rows, caption)


def counts(result: recurrent.Recurrent) -> Table:
    """Return the errors of the models of growing size, their sizes, and their weights as Theorem 6 counts them."""
    s = result.settings
    rows: list[list[str | Measured]] = []
    for name in STEPS:
        recurrence: Recurrence = RECURRENCES[name]
        counted = weight_counts(recurrence, s.dimension, s.width)
        sizes = (sum(counted.values()), recurrence.state, recurrence.score, counted["score"], counted["recurrence"])
        rows.append([LOOKS[name].label, Measured(_summary(result.of(name))), *map(str, sizes)])
    columns = ["model", "test error", "weights", "state", "score units", "d_a", "d_f"]
    caption = (
        f"Errors with {s.judged_size} training sentences, median over {len(s.seeds)} seeds [smallest, largest], and "
        f"sizes; t = {s.dimension}, d = {s.width}, and td + d = {s.width * (s.dimension + 1)} are among "
        "the weights. With one step f is not used."
    )
    return Table(columns, rows, caption)


def felt(result: recurrent.Recurrent) -> Table:
    """Return the directions in weight space that the answers feel, for each threshold."""
    s = result.settings
    rows: list[list[str | Measured]] = []
    for j, name in enumerate(CHECKED):
        medians = np.median(result.felt[:, j], axis=0)
        rows.append([LOOKS[name].label, *(Measured(f"{median:.0f}") for median in medians)])
    columns = ["directions felt", *(f"above {share:g}" for share in SHARES)]
    caption = f"Median over {len(s.seeds)} seeds; {s.judged_size} answers can feel at most {s.judged_size} directions."
    return Table(columns, rows, caption)


def bound(result: recurrent.Recurrent) -> Table:
    """Return the sample size of Theorem 6 with norm bounds and constant 1, and where the experiment gets there."""
    s = result.settings
    rows: list[list[str | Measured]] = []
    for name in STEPS:
        asked = samples_needed(ASKED, RECURRENCES[name], dimension=s.dimension, width=s.width)
        medians = np.array([np.median(result.of(name, n)) for n in s.sizes])
        enough = [n for n, median in zip(s.sizes, medians, strict=True) if median <= ASKED]
        needed = f"{enough[0]}, {asked / enough[0]:.0f} times fewer" if enough else "more than tried"
        rows.append([LOOKS[name].label, f"{asked:.0f}", Measured(needed)])
    caption = f"Bound at an error of {ASKED:g}, and the first size tried whose median error is at most that."
    return Table(["model", "bound", "experiment"], rows, caption)


def fits(result: recurrent.Recurrent) -> Table:
    """Return test and training error at the two smallest sizes: who learns, and who learns by heart."""
    s = result.settings
    rows: list[list[str | Measured]] = []
    for j, name in enumerate(recurrent.LADDER):
        row: list[str | Measured] = [LOOKS[name].label]
        for losses in (result.test_loss, result.train_loss):
            row += [Measured(_summary(losses[:, size, j])) for size in range(2)]
        rows.append(row)
    columns = ["model", *(f"{what}, {n}" for what in ("test", "training") for n in s.sizes[:2])]
    first, second = s.sizes[:2]
    caption = f"Errors with {first} and {second} sentences, in label variances: median over seeds [smallest, largest]."
    return Table(columns, rows, caption)


def failures(result: recurrent.Recurrent) -> Table:
    """Return in how many seeds each recurrent model has not learned where to look, by sample size."""
    s = result.settings
    rows: list[list[str | Measured]] = [
        [LOOKS[name].label, *(Measured(f"{(result.of(name, n) > FAILED).sum()}") for n in s.sizes)] for name in STEPS
    ]
    caption = f"Seeds of {len(s.seeds)} with a test error above {FAILED:g}, by number of sentences."
    return Table(["model", *map(str, s.sizes)], rows, caption)


def longer(result: recurrent.Recurrent) -> Table:
    """Return the errors of the flat network that trains for longer."""
    s = result.settings
    rows: list[list[str | Measured]] = [
        [f"{n}", *(Measured(_summary(result.long_loss[:, i, k])) for k in (2, 0, 1))]
        for i, n in enumerate((s.judged_size, s.sizes[-1]))
    ]
    columns = ["sentences", "training", f"test, step {s.long_steps // 4}", f"test, step {s.long_steps}"]
    caption = f"The flat network with {s.long_steps} steps instead of {s.steps}: median over seeds [smallest, largest]."
    return Table(columns, rows, caption)


def unneeded(result: recurrent.Recurrent) -> Table:
    """Return attention against mean pooling where all words weigh the same, seed by seed."""
    s = result.settings
    mean, one = (result.equal_loss[..., recurrent.OTHERS.index(name)] for name in ("mean", "one_step"))
    rows: list[list[str | Measured]] = [
        [f"{n}", Measured(_summary(one[:, i] / mean[:, i])), Measured(f"{(one < mean)[:, i].sum()}")]
        for i, n in enumerate(s.sizes)
    ]
    columns = ["sentences", "error, attention / mean pooling", "attention better in"]
    caption = f"All words alike, ratios within a seed: median over {len(s.seeds)} seeds [smallest, largest]."
    return Table(columns, rows, caption)


def second_look(result: recurrent.Recurrent) -> Table:
    """Return how many runs find the second look, and how many seeds do by their best restart."""
    rows: list[list[str | Measured]] = []
    for j, name in enumerate(("2 steps", "3 steps")):
        runs, best = result.second_loss[..., j].ravel(), result.second_best[:, j]
        found = (Measured(f"{(runs < 0.3).sum()} of {runs.size}"), Measured(f"{(best < 0.3).sum()} of {best.size}"))
        rows.append([name, *found, Measured(_summary(best))])
    columns = ["model", "runs below 0.3", "seeds below 0.3", "test error"]
    caption = (
        "A seed counts by its restart with the smallest training error; error: median over seeds [smallest, largest]."
    )
    return Table(columns, rows, caption)


def tried() -> Table:
    """Return the errors of the step sizes that were tried; the best of each row was taken."""
    rows: list[list[str | Measured]] = []
    for teacher, models in step_sizes.TRIED.items():
        for name, medians in models.items():
            marked = [f"{m:.2g}" + (" ←" if m == min(medians) else "") for m in medians]
            rows.append([f"{TITLES[teacher]}: {LOOKS[name].label}", *marked])
    seeds = step_sizes.TRIED_SEEDS
    caption = (
        f"Median test error over seeds {seeds[0]} to {seeds[-1]} with {step_sizes.SIZE} sentences for each step size; "
        "the best one, marked, was taken for all sizes. Recorded once."
    )
    return Table(["step size", *(f"{size:g}" for size in step_sizes.GRID)], rows, caption)


def frame_text(result: recurrent.Recurrent, task: str, n_sentences: int) -> str:
    """Return the numbers behind one picture of the sliders."""
    at, size = list(TITLES.values()).index(task), result.settings.sizes.index(n_sentences)
    models = ("flat", "mean", "one_step")
    rows = [recurrent.LADDER.index(m) for m in models]
    losses = (result.test_loss[..., rows], result.position_loss, result.equal_loss)[at][:, size]
    apart = np.median(result.apart[:, at, size])
    medians = ", ".join(f"{LOOKS[m].label} {np.median(losses[:, j]):.2g}" for j, m in enumerate(models))
    return (
        f"{task[:1].upper()}{task[1:]}, {n_sentences} sentences: test error {medians}. "
        f"{apart:.0%} of the attention lies on other words than the teacher's (all test sentences; all numbers are "
        f"medians over seeds, the bars are seed {result.settings.seeds[0]})."
    )


def readings_text(score: float) -> str:
    """Return the weights of four words in both readings, while the score of the last word moves."""
    _, softmax, ratios = moved_score(score)
    first, second = (", ".join(f"{w:.2f}" for w in weights) for weights in (softmax, ratios))
    return f"Score of word 4: {score:g}. Softmax weights {first}. Plain ratios {second}. Both sum to one."


def _summary(values: np.ndarray) -> str:
    return f"{np.median(values):.2g} [{values.min():.2g}, {values.max():.2g}]"
