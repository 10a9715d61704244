"""The tables of the chapter on lazy training."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attnbook.core import tables
from attnbook.core.results import Result
from attnbook.core.tables import Measured, Table
from attnbook.softmax_ntk.experiments import circle, lazy_training, starts, step_size
from attnbook.softmax_ntk.experiments.runs import ACTIVATIONS
from attnbook.softmax_ntk.figures.lazy_training import LOOKS, STARTS
from attnbook.softmax_ntk.theory.lazy_training import Activation, row_of_table_1

__all__ = ["circle_text", "cost", "one_heavy_neuron", "slopes_by_start", "step_sizes", "table_1"]


def cost(result: Result, networks: int) -> Table:
    """Return how many networks an experiment trained, where and in what time."""
    shared = "Networks of one width and one activation were trained together, as one program."
    return replace(tables.cost(result, networks), caption=shared)


def table_1(result: lazy_training.LazyTraining) -> Table:
    """Return Table 1 as measured: what each network needed, beside its row evaluated on the same data."""
    s, working = result.settings, result.smallest_working_width()
    rows: list[list[str | Measured]] = []
    for j, name in enumerate(ACTIVATIONS):
        eigenvalue = float(np.median(result.infinite_eigenvalue[:, j]))
        width, steps = row_of_table_1(name, eigenvalue, n_samples=s.n_samples, error=s.target * s.n_samples)
        widest = result.steps[:, 0, -1, j]
        taken = f"{np.median(widest):g} [{widest.min():g}, {widest.max():g}]"
        numbers = (f"{eigenvalue:.2g}", f"{width:.2g}", f"{working[j]:g}", f"{steps:.2g}", taken)
        rows.append([LOOKS[name].label, *map(Measured, numbers)])
    head = ["network", "λ", "width, its row", "width that sufficed", "steps, its row", "steps taken"]
    caption = (
        "One output. Rows: in the form we reconstructed, hidden constants 1 and o(1) = 0, with λ of the kernel at "
        f"infinite width. Sufficed: from this width on all {len(s.seeds)} seeds reached a thousandth of the loss. "
        f"Steps taken: at width {s.widths[-1]}, median [fewest, most] over seeds, at the practical step size."
    )
    return Table(head, rows, caption)


def one_heavy_neuron(result: lazy_training.LazyTraining) -> Table:
    """Return the slowest wide softmax network beside the median one: what is different about its kernel?"""
    s = result.settings
    wide = [i for i, m in enumerate(s.widths) if m >= s.flat_from]
    seed, at = np.unravel_index(np.argmax(result.steps[:, 0, wide, 0]), (len(s.seeds), len(wide)))
    chosen = wide[at]
    arrays = {
        "steps": result.steps, "largest eigenvalue": result.largest_eigenvalue,
        "smallest eigenvalue": result.smallest_eigenvalue,
    }  # fmt: skip
    rows: list[list[str | Measured]] = [
        [name, Measured(f"{np.median(a[:, 0, chosen, 0]):.3g}"), Measured(f"{a[seed, 0, chosen, 0]:.3g}")]
        for name, a in arrays.items()
    ]
    caption = Measured(f"{s.widths[chosen]}.", before="Softmax, one output; the slowest network has width ")
    return Table(["of the kernel at the start", "median of its width", "slowest network"], rows, caption)


def step_sizes(result: step_size.StepSize) -> Table:
    """Return how often each step size reached the target, rose on the way or blew up."""
    rows: list[list[str | Measured]] = []
    for i, fraction in enumerate(result.settings.fractions):
        cells: list[str | Measured] = []
        for j in range(len(ACTIVATIONS)):
            reached, diverged = result.reached[:, i, j] == 1, result.diverged[:, i, j] == 1
            typical = f" in {np.median(result.steps[reached, i, j]):.0f} steps" if reached.any() else ""
            blown = f", {diverged.sum()} blew up" if diverged.any() else ""
            cells.append(Measured(f"{reached.sum()} trained{typical}{blown}"))
        rows.append([f"{fraction:g}", *cells])
    caption = (
        f"Of {len(result.settings.seeds)} networks each, at most {result.settings.max_steps} steps. "
        "What neither trained nor blew up was still on its way, or stuck."
    )
    return Table(["step size × mλ_max(H*)", *(LOOKS[name].label for name in ACTIVATIONS)], rows, caption)


def slopes_by_start(result: starts.Starts) -> Table:
    """Return the slopes of the drift against the width, by start and network."""
    rows: list[list[str | Measured]] = [
        [STARTS[start].label, *(Measured(_slope(result, start, name)) for name in ACTIVATIONS)]
        for start in starts.STARTS
    ]
    caption = "Log-log slope of the median drift against the width [slopes of single seeds]."
    return Table(["start", *(LOOKS[name].label for name in ACTIVATIONS)], rows, caption)


def circle_text(result: circle.Circle, width: int, network: str) -> str:
    """Return the numbers behind one picture of the slider."""
    i, j = result.settings.widths.index(width), ACTIVATIONS.index(network)
    movement, drift, gap = (float(np.median(a[:, i, j])) for a in (result.movement, result.drift, result.gap))
    fitted = f"{int(result.reached[:, i, j].sum())} of {len(result.gap)} seeds fitted"
    return (
        f"{LOOKS[network].label}, {width} neurons, {fitted}. Medians: a neuron moves by {movement:.2g}, "
        f"the kernel changes by {100 * drift:.2g} %, the largest gap to the machine is {gap:.2g}."
    )


def _slope(result: starts.Starts, start: str, name: Activation) -> str:
    value, (low, high) = result.slope(start, name)  # type: ignore[arg-type]
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"
