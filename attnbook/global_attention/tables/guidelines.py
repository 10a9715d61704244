"""The tables of the chapter on recurrent attention about the paper's guidelines."""

from __future__ import annotations

import numpy as np

from attnbook.core.tables import Measured, Table
from attnbook.global_attention.experiments import guidelines

__all__ = ["at_best", "at_strongest", "picked"]

NAMES = {"entropy": "entropy", "l1_scores": "L1 on the scores"}
TEACHERS = ("peaked", "spread")


def picked(result: guidelines.Guidelines) -> Table:
    """Return the test error at the L2 weight that the guideline picks, beside no penalty and the best of the path."""
    s = result.settings
    rows: list[list[str | Measured]] = []
    for i, k in enumerate(s.sparsities):
        for j, model in enumerate(("no mask", "mask")):
            errors = (result.by_guideline(i, j), result.free_loss[:, i, j], result.l2_loss[:, i, j].min(-1))
            rows.append([f"{k} of {s.n_inputs} matter, {model}", *(Measured(f"{np.median(e):.2g}") for e in errors)])
    caption = f"Median test error over {len(s.seeds)} seeds; best is the smallest of each seed."
    return Table(["network", "guideline", "no penalty", "best"], rows, caption)


def at_best(result: guidelines.Guidelines) -> Table:
    """Return what penalties on attention do at the strength with the smallest median ratio, by two statistics."""
    rows: list[list[str | Measured]] = []
    for p, t, name, losses, free in _paths(result):
        ratios = losses / free[:, None]
        at = int(np.median(ratios, axis=0).argmin())
        of_medians = np.median(losses[:, at]) / np.median(free)
        rows.append(
            [
                f"{NAMES[p]}, {TEACHERS[t]}",
                Measured(f"{name[at]:g}"),
                Measured(f"{np.median(ratios[:, at]):.2f} [{ratios[:, at].min():.2f}, {ratios[:, at].max():.2f}]"),
                Measured(f"{of_medians:.2f}"),
                Measured(f"{(ratios[:, at] < 1).sum()} of {len(free)}"),
            ]
        )
    columns = ["penalty, teacher", "strength", "median ratio", "ratio of medians", "seeds that gain"]
    caption = (
        "Error over the error without a penalty, at the strength with the smallest median ratio [smallest, largest]."
    )
    return Table(columns, rows, caption)


def at_strongest(result: guidelines.Guidelines) -> Table:
    """Return the errors themselves, without a penalty and at the largest strength, and in how many seeds it harms."""
    rows: list[list[str | Measured]] = []
    for p, t, _, losses, free in _paths(result):
        row = [
            Measured(f"{np.median(errors):.2g} [{errors.min():.2g}, {errors.max():.2g}]")
            for errors in (free, losses[:, -1])
        ]
        rows.append([f"{NAMES[p]}, {TEACHERS[t]}", *row, Measured(f"{(losses[:, -1] > free).sum()} of {len(free)}")])
    columns = ["penalty, teacher", "error without", "error, strongest", "harmed"]
    caption = "Test errors in label variances: median over seeds [smallest, largest], and how many seeds are harmed."
    return Table(columns, rows, caption)


def _paths(
    result: guidelines.Guidelines,
) -> list[tuple[str, int, tuple[float, ...], np.ndarray, np.ndarray]]:
    strengths, free = result.settings.strengths, result.free_attention_loss
    return [
        (p, t, strengths, result.attention_loss[:, t, k], free[:, t])
        for k, p in enumerate(guidelines.PENALTIES)
        for t in range(len(TEACHERS))
    ]
