"""The tables of the chapter on self-attention, as notebooks show them."""

from __future__ import annotations

import numpy as np

from attnbook.core.tables import Measured, Table
from attnbook.global_attention.attention_bounds import mass_on_padding
from attnbook.global_attention.experiments import imdb, review_steps, review_table
from attnbook.global_attention.figures.self_attention import LOOKS

__all__ = [
    "accuracies",
    "cost",
    "frame_text",
    "gains",
    "padding_text",
    "step_sizes",
    "table_2",
    "training",
]


def table_2(result: imdb.Imdb) -> Table:
    """Return Table 2: the paper's two columns, ours, and the two controls that are trained."""
    rows: list[list[str | Measured]] = []
    for i, size in enumerate(result.settings.sizes):
        paper = imdb.paper_accuracies()[imdb.PAPER_SIZES.index(size)] if size in imdb.PAPER_SIZES else None
        row: list[str | Measured] = [f"{size}"]
        for j, model in enumerate(("baseline", "self_attention")):
            row += ["" if paper is None else f"{paper[j]:.1f}", Measured(_spread(result.of(model)[:, i]))]
        row += [Measured(_spread(result.of(model)[:, i])) for model in ("uniform_attention", "mean_pooling")]
        rows.append(row)
    s = result.settings
    groups = [("", 1), ("baseline", 2), ("self-attention", 2), ("uniform", 1), ("mean", 1)]
    columns = ["N", "paper", "ours", "paper", "ours", "ours", "ours"]
    caption = (
        f"Test accuracy in per cent on {s.n_test} reviews after epoch {s.epochs} with N training reviews; "
        f"ours: {_seeds(result)}. "
        "The last two columns are controls of this book: attention frozen at uniform weights, and the mean of the "
        f"word vectors (after {s.epochs * s.pooling_passes} epochs, with a step size of its own). "
    )
    return Table(columns, rows, Measured(f"Data: {result.source}.", before=caption), groups)


def gains(result: imdb.Imdb) -> Table:
    """Return by how much self-attention is ahead of each control, and where its attention falls."""
    trained, uniform = result.of("self_attention"), result.of("uniform_attention")
    differences = (
        trained - uniform,
        trained - result.of("mean_pooling"),
        trained - result.pooled_path,
        result.pooled_path - uniform,
    )
    rows: list[list[str | Measured]] = [
        [
            f"{size}",
            *(Measured(_spread(difference[:, i], signed=True)) for difference in differences),
            Measured(_spread(100 * result.real_mass[:, i, 1])),
        ]
        for i, size in enumerate(result.settings.sizes)
    ]
    error = 100 * np.sqrt(0.85 * 0.15 / result.settings.n_test)
    groups = [("", 1), ("self-attention minus", 3), ("pooled path minus", 1), ("on words", 1)]
    columns = ["N", "uniform", "mean", "pooled path", "uniform", "%"]
    caption = (
        f"Differences of test accuracies in points for N training reviews; {_seeds(result)}. Pooled path: the same "
        "trained network with the words' own outputs switched off at test time. A single accuracy near 85 % has a "
        f"standard error of {error:.1f} points from the choice of test reviews alone. Last column: mean share of a "
        "word's attention that falls on words, after training; before, it is "
    )
    return Table(columns, rows, Measured(f"{100 * result.real_mass[..., 0].mean():.1f} %.", before=caption), groups)


def training(result: review_table.ReviewTable) -> Table:
    """Return how far each network was trained: losses at the end, accuracies after the first and the last epoch."""
    sizes, last = result.settings.sizes, result.settings.epochs
    rows: list[list[str | Measured]] = [
        [
            LOOKS[model].label,
            *(Measured(_spread(result.train_loss[:, i, j, -1], "{:.3f}")) for i in (0, -1)),
            *(Measured(_spread(result.of(model, epoch)[:, -1])) for epoch in (1, last)),
        ]
        for j, model in enumerate(review_table.MODELS)
    ]
    groups = [("", 1), ("training loss", 2), (f"accuracy, {sizes[-1]} reviews", 2)]
    columns = ["network", f"{sizes[0]} reviews", f"{sizes[-1]} reviews", "epoch 1", f"epoch {last}"]
    caption = f"Mean cross-entropy in the last epoch, and test accuracy in per cent; {_seeds(result)}."
    return Table(columns, rows, caption, groups)


def step_sizes(result: review_steps.ReviewSteps) -> Table:
    """Return the accuracies on reviews set apart for each step size."""
    s = result.settings
    rows: list[list[str | Measured]] = [
        [
            LOOKS[model].label,
            f"{s.pooling_step_size if model == 'mean_pooling' else s.step_size:g}",
            *(Measured(_spread(accuracies[:, j])) for accuracies in result.accuracy),
        ]
        for j, model in enumerate(review_table.MODELS)
    ]
    columns = ["network", "step size of Table 2", *(f"times {factor:g}" for factor in s.factors)]
    caption = (
        f"Accuracy in per cent on {s.n_test} training reviews set apart, after training on {s.sizes[0]} others: "
        f"median over {len(s.seeds)} seeds that Table 2 does not use [smallest, largest]."
    )
    return Table(columns, rows, caption)


def accuracies(result: review_table.ReviewTable) -> Table:
    """Return the accuracies of the two networks and the controls, and what attention adds seed by seed."""
    rows: list[list[str | Measured]] = [
        [LOOKS[model].label, *(Measured(_spread(column)) for column in result.of(model).T)]
        for model in review_table.MODELS
    ]
    rows.append(["self-attention, pooled path alone", *(Measured(_spread(column)) for column in result.pooled_path.T)])
    gain = result.of("self_attention") - result.of("uniform_attention")
    rows.append(
        [
            "self-attention minus uniform, seed by seed",
            *(Measured(_spread(column, signed=True)) for column in gain.T),
        ]
    )
    columns = ["network", *(f"{size} reviews" for size in result.settings.sizes)]
    return Table(
        columns, rows, f"Test accuracy in per cent on {result.settings.n_test} test reviews, {_seeds(result)}."
    )


def cost(result: review_table.ReviewTable) -> Table:
    """Return how many networks were trained on what, and in what time."""
    p = result.provenance
    row: list[str | Measured] = [
        f"{result.test_accuracy[..., 0].size}",
        result.source,
        Measured(f"{p.wall_seconds:.1f} s"),
        Measured(f"{p.peak_memory_mib} MiB"),
        Measured(p.device),
    ]
    columns = ["networks", "data", "time", "peak memory of the process", "device"]
    return Table(columns, [row], "The networks were trained one after the other.")


def frame_text(result: review_table.ReviewTable, epoch: int) -> str:
    """Return the numbers behind one picture of the slider over epochs: for the fewest, some and the most reviews."""
    trained, parts = result.of("self_attention", epoch), []
    last = len(result.settings.sizes) - 1
    shown = sorted({0, last // 2, last})
    for model in ("baseline", "uniform_attention", "mean_pooling"):
        leads = np.median(trained - result.of(model, epoch), axis=0)[shown]
        parts.append(f"over {LOOKS[model].label} " + ", ".join(f"{lead:.1f}" for lead in leads))
    sizes = ", ".join(str(result.settings.sizes[i]) for i in shown)
    return f"Epoch {epoch}: lead of self-attention in points, for {sizes} reviews: {'; '.join(parts)}."


def padding_text(length: int, score: float, n_positions: int = 2142) -> str:
    """Return what one picture of the sliders over padding shows."""
    padding = mass_on_padding(length, n_positions, score)
    return (
        f"A review of {length} words in {n_positions} positions, every word with score {score:g}: "
        f"{100 * padding:.3g} % of the attention of each word falls on padding."
    )


def _spread(values: np.ndarray, form: str = "{:.1f}", *, signed: bool = False) -> str:
    form = "{:+.1f}" if signed else form
    if len(values) == 1:
        return form.format(values[0])
    return f"{form.format(np.median(values))} [{form.format(values.min())}, {form.format(values.max())}]"


def _seeds(result: review_table.ReviewTable) -> str:
    n = len(result.settings.seeds)
    middle = "mean" if n == 2 else "median"
    return "one seed, no spread" if n == 1 else f"{middle} over {n} seeds [smallest, largest]"
