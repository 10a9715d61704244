"""The tables of the chapter on self-attention."""

from __future__ import annotations

import math

import numpy as np

from attnbook.core.tables import Measured, Table
from attnbook.softmax_ntk.attention_logits import uniform_condition
from attnbook.softmax_ntk.experiments.planted_attention import PROBLEMS, WAYS, PlantedAttention
from attnbook.softmax_ntk.figures.to_self_attention import LOOKS, SHOWN, TITLES

__all__ = ["at_equal_time", "chosen", "compared", "conditions", "finals", "maps_text", "values_text"]

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
        step = _milliseconds(result, way)
        ratios = (
            f"{_at_least(result, p, way)}{_time(result, p, way) / b:.1f}" for p, b in zip(PROBLEMS, base, strict=True)
        )
        text = f"{np.median(step):.2f} [{step.min():.2f}, {step.max():.2f}] ms"
        rows.append([LOOKS[way].label, *map(Measured, (text, *ratios))])
    caption = (
        f"Processor time of one step of {len(s.seeds)} layers together, median [least, most] of the runs of the same "
        "operations (joint descent: both starts), and time to the target, median over seeds, relative to the first "
        "row. A seed that missed counts with the whole budget; \u2265: the median has such a seed and is a lower bound."
    )
    return Table(["way", "one step", *(TITLES[p] for p in PROBLEMS)], rows, caption)


def chosen(result: PlantedAttention) -> Table:
    """Return the step sizes that tuning chose."""
    rows: list[Row] = []
    for way in WAYS:
        pairs = [result.of("chosen", problem, way) for problem in PROBLEMS]
        two = WAYS[way].values == "trained" and WAYS[way].rule == "descent"
        rows.append([LOOKS[way].label, *(Measured(f"{a:g} / {b:g}" if two else f"{a:g}") for a, b in pairs)])
    caption = (
        "Step size of the key-query matrix / of the values. The latter in units of one over the largest eigenvalue of "
        "the tokens' second moments. Adam: one rate for both."
    )
    return Table(["way", *(TITLES[p] for p in PROBLEMS)], rows, caption)


def finals(result: PlantedAttention) -> Table:
    """Return the loss of each way after the whole budget."""
    rows: list[Row] = []
    for way in WAYS:
        losses = (result.of("loss", problem, way)[:, -1] for problem in PROBLEMS)
        cells = (f"{np.median(x):.0e} [{x.min():.0e}, {x.max():.0e}]" for x in losses)
        rows.append([LOOKS[way].label, *map(Measured, cells)])
    caption = (
        f"Loss after {result.settings.steps} gradients over that of the zero output, median [smallest, largest] over "
        f"{len(result.settings.seeds)} seeds. Step sizes were chosen for the gradients to {result.settings.target:g}."
    )
    return Table(["way", *(TITLES[p] for p in PROBLEMS)], rows, caption)


def conditions(result: PlantedAttention) -> Table:
    """Return the condition number of the values' problem along training, beside what the formula says."""
    s = result.settings
    pairs = [(p, way) for p in ("plain", "common_mean") for way in ("alternating", "joint_from_zero")]
    rows: list[Row] = []
    for i, step in enumerate(s.shown_steps):
        columns = (result.of("condition", p, way)[:, i] for p, way in pairs)
        rows.append([f"{step}", *(Measured(f"{np.median(c):.0f} [{c.min():.0f}, {c.max():.0f}]") for c in columns)])
    limits = [uniform_condition(norm, s.length) for norm in (0.0, s.mean_norm)]
    caption = (
        f"On the {s.n_sequences} sequences of a layer; median [smallest, largest] over {len(s.seeds)} seeds. "
        f"For uniform attention and many sequences the formula says {limits[0]:.0f} and {limits[1]:.0f}."
    )
    return Table(["gradients", *(f"{TITLES[p]}: {LOOKS[way].label}" for p, way in pairs)], rows, caption)


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


def values_text(condition: float, target: float) -> str:
    """Return how many steps of the best fixed size the values need, at a condition number."""
    factor = (condition - 1) / (condition + 1)
    steps = math.ceil(math.log(target) / (2 * math.log(factor)) - 1e-9) if factor else 1
    return (
        f"Condition number {condition:.3g}: one step of descent keeps {factor:.3g} of the error, and it "
        f"takes {steps} to get to {target:g} of the first loss; a solve takes one."
    )


def _milliseconds(result: PlantedAttention, way: str) -> np.ndarray:
    """Of all runs that do the same at each step, wherever the values start."""
    alike = [i for i, other in enumerate(WAYS.values()) if other == WAYS[way]]
    return result.milliseconds[:, alike].ravel()


def _at_least(result: PlantedAttention, problem: str, way: str) -> str:
    """A sign where the median has a seed that missed."""
    counts = np.sort(result.of("evaluations", problem, way))
    return "\u2265 " if counts[len(counts) // 2] > result.settings.steps else ""


def _time(result: PlantedAttention, problem: str, way: str) -> float:
    needed = 1 + float(np.median(result.of("evaluations", problem, way)))  # the last one sees the target
    return needed * float(np.median(_milliseconds(result, way)))
