"""The tables of the race to the attention margin, and of margins at random starts."""

from __future__ import annotations

import numpy as np

from attnbook.core.tables import Measured, Table
from attnbook.multi_head.experiments.margin_race import MarginRace
from attnbook.multi_head.experiments.random_starts import RandomStarts
from attnbook.multi_head.figures.looks import LOOKS

__all__ = ["ends", "starts"]


def ends(result: MarginRace) -> Table:
    """Return where every network of the race stands at the last step.

    Args:
        result: The race.

    Returns:
        A table with one column for each network.
    """
    settings = result.settings
    measured = {
        "share of γ_attn": (result.fraction, 3),
        "attention on relevant": (result.mass, 3),
        "‖U‖": (result.value_norm, 0),
        "‖W‖": (result.key_query_norm, 0),
        "cos(W, W⋆)": (result.cosine, 2),
    }
    names = [f"{one.rule}, H = {one.n_heads}" for one in settings.runners]
    rows: list[list[str | Measured]] = [
        ["start", *("zero" if one.from_zero else "first phase" for one in settings.runners)],
        ["step size", *(f"{one.step_size:g}" for one in settings.runners)],
    ]
    for name, (values, digits) in measured.items():
        rows.append([name, *(Measured(_range(values[:, i, -1], digits)) for i in range(len(names)))])
    caption = f"After {settings.steps} steps: median over {len(result.floor)} seeds [smallest, largest]."
    return Table(["", *names], rows, caption)


def starts(result: RandomStarts, *, key_query_scale: float = 0.3) -> Table:
    """Return the margins of starts whose value matrices are equally large.

    Args:
        result: The margins.
        key_query_scale: Scale of the key-query matrices of the random starts, one of the settings.

    Returns:
        A table with one row for each start.

    Raises:
        ValueError: If the scale is not one of the settings.
    """
    settings = result.settings
    if key_query_scale not in settings.key_query_scales:
        raise ValueError(f"key_query_scale: expected one of {settings.key_query_scales}, got {key_query_scale}")
    at, most = settings.key_query_scales.index(key_query_scale), settings.heads[-1]
    found = {
        LOOKS["zero_start"].label: result.zero,
        LOOKS["first_phase_start"].label: result.first_phase,
        f"random values, uniform attention, {most} heads": result.matched[:, -1, settings.key_query_scales.index(0.0)],
        f"random values, random attention, {settings.heads[0]} head": result.matched[:, 0, at],
        f"random values, random attention, {most} heads": result.matched[:, -1, at],
    }
    rows: list[list[str | Measured]] = [[name, Measured(_range(values, 3))] for name, values in found.items()]
    caption = (
        f"Largest margin for targets of norm √2: median over {len(result.zero)} seeds [smallest, largest]. Random "
        "value matrices are as large as those after the first phase; random attention has key-query entries of "
        f"standard deviation {key_query_scale:g}."
    )
    return Table(["start", "tangent-kernel margin"], rows, caption)


def _range(values: np.ndarray, digits: int) -> str:
    return f"{np.median(values):.{digits}f} [{values.min():.{digits}f}, {values.max():.{digits}f}]"
