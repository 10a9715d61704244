"""The tables of the chapter on self-attention, as notebooks show them."""

from __future__ import annotations

import numpy as np

from attnbook.core.tables import Measured, Table
from attnbook.global_attention.experiments import imdb, review_table
from attnbook.global_attention.figures.self_attention import LOOKS
from attnbook.global_attention.theory.self_attention import mass_on_padding

__all__ = ["accuracies", "cost", "frame_text", "padding_text", "table_2"]


def table_2(result: imdb.Imdb) -> Table:
    """Return Table 2: the paper's two columns, ours, and the controls."""
    rows: list[list[str | Measured]] = []
    for i, size in enumerate(result.settings.sizes):
        paper = imdb.paper_accuracies()[imdb.PAPER_SIZES.index(size)] if size in imdb.PAPER_SIZES else None
        row: list[str | Measured] = [f"{size}"]
        for j, model in enumerate(("baseline", "self_attention")):
            before = f"paper {paper[j]:.1f}, ours " if paper is not None else "ours "
            row.append(Measured(_spread(result.of(model)[:, i]), before=before))
        row += [Measured(_spread(result.of(model)[:, i])) for model in ("uniform_attention", "mean_pooling")]
        row.append(Measured(_spread(result.pooled_path[:, i])))
        rows.append(row)
    n = len(result.settings.seeds)
    seeds = "one seed, no spread" if n == 1 else f"median over {n} seeds [smallest, largest]"
    columns = ["reviews", "baseline", "self-attention", "uniform", "mean", "pooled"]
    caption = (
        f"Test accuracy in per cent on {result.settings.n_test} reviews after epoch {result.settings.epochs}; "
        f"ours: {seeds}. "
        "The last three columns are controls of this book: attention frozen at uniform weights, the mean of the word "
        "vectors, and self-attention with the words' own outputs switched off at test time."
    )
    return Table(columns, rows, caption)


def accuracies(result: review_table.ReviewTable) -> Table:
    """Return the accuracies of the two networks and the controls."""
    rows: list[list[str | Measured]] = [
        [LOOKS[model].label, *(Measured(_spread(column)) for column in result.of(model).T)]
        for model in review_table.MODELS
    ]
    rows.append(["self-attention, pooled path alone", *(Measured(_spread(column)) for column in result.pooled_path.T)])
    columns = ["network", *(f"{size} reviews" for size in result.settings.sizes)]
    n = len(result.settings.seeds)
    return Table(columns, rows, f"Test accuracy in per cent, median over {n} seeds [smallest, largest].")


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
    """Return the numbers behind one picture of the slider over epochs."""
    sizes = result.settings.sizes
    gaps = np.median(result.of("self_attention", epoch) - result.of("baseline", epoch), axis=0)
    shown = ", ".join(f"{gap:.1f} at {size}" for gap, size in zip(gaps, sizes, strict=True))
    return f"Epoch {epoch}: lead of self-attention over the baseline, in points: {shown}."


def padding_text(length: int, score: float, n_positions: int = 2142) -> str:
    """Return what one picture of the sliders over padding shows."""
    padding = mass_on_padding(length, n_positions, score)
    return (
        f"A review of {length} words in {n_positions} positions, every word with score {score:g}: "
        f"{100 * padding:.3g} % of the attention falls on padding."
    )


def _spread(values: np.ndarray) -> str:
    if len(values) == 1:
        return f"{values[0]:.1f}"
    return f"{np.median(values):.1f} [{values.min():.1f}, {values.max():.1f}]"
