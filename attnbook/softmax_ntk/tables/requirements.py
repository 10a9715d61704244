"""What a network needs: Table 1 as measured, smallest working widths, input norms, and the largest run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnbook import ledger
from attnbook.core.tables import Measured, Table
from attnbook.softmax_ntk.experiments.input_norms import InputNorms
from attnbook.softmax_ntk.experiments.lazy_training import LazyTraining
from attnbook.softmax_ntk.experiments.runs import ACTIVATIONS, slope_over_seeds
from attnbook.softmax_ntk.experiments.smallest_width import SmallestWidth
from attnbook.softmax_ntk.figures.lazy_training import LOOKS
from attnbook.softmax_ntk.kernels import infinite_width_kernel
from attnbook.softmax_ntk.lazy_bounds import row_of_table_1

__all__ = ["at_full_size", "condition_numbers", "smallest_widths", "table_1", "verdicts_at_both_sizes"]

Row = list[str | Measured]


def table_1(result: LazyTraining) -> Table:
    """Return Table 1 as measured: what each network needed, beside its row evaluated on the same data."""
    s, n = result.settings, len(result.settings.seeds)
    eigenvalues = np.median(result.infinite_eigenvalue, axis=0)
    diagonals = [float(infinite_width_kernel(name, np.eye(1, s.n_inputs))[0, 0]) for name in ACTIVATIONS]
    rows_of = [
        row_of_table_1(name, float(e), n_samples=s.n_samples, error=s.target * s.n_samples)
        for name, e in zip(ACTIVATIONS, eigenvalues, strict=True)
    ]
    widest = {name: getattr(result, name)[:, 0, -1] for name in ("steps", "rms_movement", "largest_movement")}
    bound = np.median(result.movement_bound[:, 0, -1, 0])
    cells: dict[str, Sequence[str | Measured]] = {
        "λ": _all("{:.2g}", eigenvalues),
        "λ over the diagonal": _all("{:.2g}", eigenvalues / np.array(diagonals)),
        "width: its row": _all("{:.2g}", [row[0] for row in rows_of]),
        "width: sufficed": _all("{:g}", result.smallest_working_width()),
        "steps: its row": _all("{:.2g}", [row[1] for row in rows_of]),
        "steps: taken": [Measured(_with_range(column, "g")) for column in widest["steps"].T],
        "movement: bound D": [Measured(f"{bound:.2g}"), "—", "—"],
        "movement: largest": [Measured(_with_range(column, ".2g")) for column in widest["largest_movement"].T],
        "movement: rms": [Measured(_with_range(column, ".2g")) for column in widest["rms_movement"].T],
    }
    caption = (
        "One output. Rows: in the form we reconstructed, hidden constants 1 and o(1) = 0, with λ of the kernel at "
        f"infinite width (median). Sufficed: from this width on all {n} seeds reached a thousandth. Steps and "
        f"movement: at width {s.widths[-1]}, median [smallest, largest] over seeds, at the practical step size; "
        "D, for softmax, with the measured B."
    )
    return Table(["", *(LOOKS[name].label for name in ACTIVATIONS)], [[k, *v] for k, v in cells.items()], caption)


def smallest_widths(result: SmallestWidth) -> Table:
    """Return the smallest working widths beside the rank count and the square in Table 1."""
    s, bound = result.settings, result.counting_bound()
    squares = (np.array(s.sizes) / np.median(result.infinite_eigenvalue[:, :, 0], axis=0)) ** 2
    rows: list[Row] = []
    for i, size in enumerate(s.sizes):
        widths = [Measured(_with_range(result.width[:, i, j], "g")) for j in range(len(ACTIVATIONS))]
        rows.append([str(size), f"{bound[i]:g}", *widths, Measured(f"{squares[i]:.1g}")])
    caption = (
        f"Smallest width from which on the loss falls to {s.target:g} of its start within {s.max_steps} steps: "
        f"median [smallest, largest] over {len(s.seeds)} seeds. {s.n_inputs} inputs, one output; λ: softmax kernel "
        "at infinite width."
    )
    return Table(["samples n", "2n/d_in", *(LOOKS[name].label for name in ACTIVATIONS), "n²/λ²"], rows, caption)


def condition_numbers(result: InputNorms) -> Table:
    """Return the condition numbers of the kernels at the start, by lowest input norm and weight scale."""
    s, names = result.settings, [LOOKS[name].label for name in ACTIVATIONS]
    medians = np.median(result.condition, axis=0)
    rows: list[Row] = [
        [f"{low:g}", *(Measured(f"{medians[i, k, j]:.2g}") for i in range(len(s.scales)) for j in range(3))]
        for k, low in enumerate(s.lowest)
    ]
    caption = f"Largest over smallest eigenvalue of H*: medians over {len(s.seeds)} seeds, width {s.width}."
    groups = [("", 1), *((f"weight scale {scale:g}", 3) for scale in s.scales)]
    return Table(["lowest norm", *names * len(s.scales)], rows, caption, groups)


def at_full_size(book: LazyTraining, paper: LazyTraining) -> Table:
    """Return the slopes of movement and drift in the width at two sizes, and over the widest networks alone."""
    tail = book.settings.widths[-1]
    parts = ((book, book.settings.lazy_from), (paper, paper.settings.lazy_from), (paper, tail))
    rows: list[Row] = []
    for title, name in {
        "movement, rms": "rms_movement",
        "movement, largest": "largest_movement",
        "drift": "drift",
    }.items():
        for j, activation in enumerate(ACTIVATIONS):
            cells = []
            for result, first in parts:
                chosen = [i for i, m in enumerate(result.settings.widths) if m >= first]
                widths = [result.settings.widths[i] for i in chosen]
                value, (low, high) = slope_over_seeds(widths, getattr(result, name)[:, 0, chosen, j])
                cells.append(Measured(f"{value:.2f} [{low:.2f}, {high:.2f}]"))
            rows.append([f"{title}: {LOOKS[activation].label}", *cells])
    heads = [f"{r.settings.n_samples} samples, from {first} to {r.settings.widths[-1]}" for r, first in parts]
    caption = (
        "Log-log slope of the median over seeds against the width [slopes of single seeds], one output: "
        f"{len(book.settings.seeds)} seeds here, {len(paper.settings.seeds)} in the larger run."
    )
    return Table(["against the width", *heads], rows, caption)


def verdicts_at_both_sizes(book: LazyTraining, paper: LazyTraining) -> Table:
    """Return the verdict on every rule at the book's size and in the larger run, beside the number the rule tests."""
    reports = (ledger.check(book).verdicts, ledger.check(paper, scale="paper").verdicts)
    rows: list[Row] = []
    for small, large in zip(*reports, strict=True):
        cells: list[Measured] = []
        for verdict in (small, large):
            values = verdict.measurement.values.values() if verdict.measurement else ()
            cells.append(Measured(f"{verdict.outcome} ({', '.join(f'{v:.3g}' for v in values)})"))
        rows.append([small.claim.id, *cells])
    heads = [f"{r.settings.n_samples} samples, up to width {r.settings.widths[-1]}" for r in (book, paper)]
    caption = (
        "The same rules at two sizes, with the measured values in brackets. SN-TM, SN-TAB1, SN-LAZY and SN-DH: one "
        f"output only. Outputs: {_list(book.settings.outputs)}; larger run: {_list(paper.settings.outputs)}."
    )
    return Table(["claim", *heads], rows, caption)


def _list(numbers: Sequence[int]) -> str:
    return " and ".join(map(str, numbers))


def _all(form: str, values: Sequence[float] | np.ndarray) -> list[Measured]:
    return [Measured(form.format(value)) for value in values]


def _with_range(values: np.ndarray, form: str) -> str:
    return f"{np.median(values):{form}} [{values.min():{form}}, {values.max():{form}}]"
