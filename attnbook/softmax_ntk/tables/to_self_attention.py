"""The tables of the chapter on self-attention."""

from __future__ import annotations

import numpy as np

from attnbook.core.tables import Measured, Table
from attnbook.softmax_ntk.experiments.planted_attention import PROBLEMS, WAYS, PlantedAttention
from attnbook.softmax_ntk.experiments.to_self_attention import ToSelfAttention
from attnbook.softmax_ntk.figures.to_self_attention import LOOKS, SHOWN, TITLES

__all__ = ["at_equal_time", "chosen", "compared", "maps_text", "ranks"]

Row = list[str | Measured]


def compared(result: PlantedAttention) -> Table:
    """Return how many gradients each way needed on each problem, and how many seeds never arrived."""
    s = result.settings
    rows: list[Row] = []
    for way in WAYS:
        cells: Row = []
        for problem in PROBLEMS:
            counts = result.of("evaluations", problem, way)
            missed = int((counts > s.steps).sum())
            text = f"{np.median(counts):.0f} [{counts.min():.0f}, {counts.max():.0f}]"
            cells.append(Measured("none" if missed == len(counts) else text + f", {missed} missed" * bool(missed)))
        rows.append([LOOKS[way].label, *cells])
    caption = (
        f"Gradients of the key-query matrix until the loss is {s.target:g} of that of the zero output: median "
        f"[fewest, most] over {len(s.seeds)} seeds. One that missed counts as {s.steps + 1}; none: all missed."
    )
    return Table(["way", *(TITLES[p] for p in PROBLEMS)], rows, caption)


def at_equal_time(result: PlantedAttention) -> Table:
    """Return what a gradient costs, and the processor time to the target, relative to alternating."""
    s = result.settings
    base = [_time(result, problem, "alternating") for problem in PROBLEMS]
    rows: list[Row] = []
    for way in WAYS:
        if way in ("frozen", "known"):
            continue
        step = float(np.median(result.milliseconds[:, list(WAYS).index(way)]))
        ratios = (f"{_time(result, p, way) / b:.2f}" for p, b in zip(PROBLEMS, base, strict=True))
        rows.append([LOOKS[way].label, *map(Measured, (f"{step:.2f} ms", *ratios))])
    caption = (
        f"Processor time of one step of {len(s.seeds)} layers together, and time to the target, median over seeds, "
        "relative to the first row. A seed that missed counts with the whole budget."
    )
    return Table(["way", "one step", *(TITLES[p] for p in PROBLEMS)], rows, caption)


def chosen(result: PlantedAttention) -> Table:
    """Return the step sizes that tuning chose."""
    rows: list[Row] = []
    for way in WAYS:
        pairs = [result.of("chosen", problem, way) for problem in PROBLEMS]
        two = WAYS[way].values == "trained" and WAYS[way].rule == "descent"
        rows.append([LOOKS[way].label, *(Measured(f"{a:g} / {b:g}" if two else f"{a:g}") for a, b in pairs)])
    caption = "Step size of the key-query matrix / of the values, in their unit. Adam: one rate for both."
    return Table(["way", *(TITLES[p] for p in PROBLEMS)], rows, caption)


def ranks(result: ToSelfAttention) -> Table:
    """Return the rank of the values' problem at uniform attention."""
    rows: list[Row] = [
        [str(n), Measured("/".join(f"{r:g}" for r in sorted(set(column))))]
        for n, column in zip(result.settings.few, result.uniform_rank.T, strict=True)
    ]
    caption = f"Contexts have {result.settings.dimension} entries; {len(result.settings.seeds)} seeds, all alike."
    return Table(["sequences", "directions"], rows, caption)


def maps_text(result: PlantedAttention, way: str, steps: int) -> str:
    """Return the numbers behind one picture of the slider; the way by its label."""
    s, i = result.settings, list(WAYS).index(SHOWN[way])
    student = result.maps[i, s.shown_steps.index(steps)]
    gap = np.abs(student - result.teacher_map).max()
    loss = float(result.loss[0, i, 0, s.records.tolist().index(steps)])
    return (
        f"{way}, {steps} gradients: loss {loss:.2g} of that of the zero output, "
        f"largest difference of an attention weight {gap:.2g}."
    )


def _time(result: PlantedAttention, problem: str, way: str) -> float:
    milliseconds = float(np.median(result.milliseconds[:, list(WAYS).index(way)]))
    return (1 + float(np.median(result.of("evaluations", problem, way)))) * milliseconds  # the last one sees the target
