"""The tables of the chapter on the stability of the kernel."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from attnbook.core.results import Result
from attnbook.core.tables import Measured, Table
from attnbook.softmax_ntk.experiments import eigenvalue_radius, kernel_movement, smallest_eigenvalues
from attnbook.softmax_ntk.experiments.runs import ACTIVATIONS
from attnbook.softmax_ntk.figures.kernel_stability import DIRECTIONS, named
from attnbook.softmax_ntk.figures.lazy_training import LOOKS
from attnbook.softmax_ntk.theory.kernel_stability import relu_change_bound

__all__ = ["bounds", "changes", "costs", "full_rank", "losses", "radii", "spectrum_text"]

Row = list[str | Measured]


def changes(result: kernel_movement.KernelMovement) -> Table:
    """Return the relative change of the kernel at the lemma's largest radius, by direction and network."""
    s = result.settings
    at = s.radii.index(s.radius)
    rows: list[Row] = []
    for direction in kernel_movement.DIRECTIONS:
        cells = [result.relative(direction, name)[:, at] for name in ACTIVATIONS]
        rows.append([DIRECTIONS[direction].label, *(Measured(_with_range(c, ".1e")) for c in cells)])
    caption = (
        f"Change over norm at R = {s.radius:g}, median [range] over {len(s.seeds)} seeds; {s.n_samples} samples, "
        f"{s.n_outputs} outputs, width {s.width}."
    )
    return Table(["neurons move", *(LOOKS[name].label for name in ACTIVATIONS)], rows, caption)


def bounds(result: kernel_movement.KernelMovement) -> Table:
    """Return bounds on the change of the kernel beside the largest change measured."""
    s = result.settings
    largest = float(result.change[:, len(s.allowed) - 1, :, 0].max())
    measured_b = result.bounds()[:, -1]
    relu = relu_change_bound(s.radius, n_samples=s.n_samples)
    moved = float(result.one_output[:, -1].max())
    b = f"{np.median(result.exponent):.1f}"
    rows: list[Row] = [
        ["softmax, the measured B", Measured(b), *_compared(float(np.median(measured_b)), largest)],
        ["softmax, B = 1", "1", *_compared(float(result.bounds(exponent=1.0)[0, -1]), largest)],
        ["ReLU, 2nR, one output", "", *_compared(relu, moved)],
    ]
    caption = f"At R = {s.radius:g}. Largest change over seeds and the four directions; B: the median over seeds."
    return Table(["bound", "B", "its value", "largest change", "bound / change"], rows, caption)


def losses(result: eigenvalue_radius.EigenvalueRadius) -> Table:
    """Return in how many networks the smallest eigenvalue lost half within the radii tried, and where it began."""
    s, lost = result.settings, result.first_loss()
    rows: list[Row] = []
    for i, direction in enumerate(eigenvalue_radius.DIRECTIONS):
        for k, d in enumerate(s.outputs):
            for j, n in enumerate(s.sizes):
                cells = [Measured(_count(lost[:, k, j, i, a])) for a in range(len(ACTIVATIONS))]
                rows.append([DIRECTIONS[direction].label, str(d), str(n), *cells])
    caption = (
        f"Networks of {len(s.seeds)} that had lost half at some radius up to {s.radii[-1]:g} (in brackets: smallest "
        f"and largest first such radius). Width {s.width}, {s.n_inputs} inputs."
    )
    return Table(["direction", "outputs", "samples", *(LOOKS[name].label for name in ACTIVATIONS)], rows, caption)


def radii(result: eigenvalue_radius.EigenvalueRadius) -> Table:
    """Return the radius of Claim E.5 beside the largest one that did no harm in any direction tried."""
    s, safe, certified = result.settings, result.last_harmless()[..., 0].min(axis=3), result.certified()
    rows: list[Row] = []
    for k, d in enumerate(s.outputs):
        for j, n in enumerate(s.sizes):
            one, other = certified[:, k, j], safe[:, k, j]
            cells = (f"{np.median(one):.0e}", _with_range(other, ".2g"), f"{np.median(other / one):.0e}")
            rows.append([str(d), str(n), *map(Measured, cells)])
    caption = "Softmax; medians over seeds. Harmless: at every radius tried up to there at least half was left."
    return Table(["outputs", "samples", "certified", "harmless in three directions", "ratio"], rows, caption)


def full_rank(result: smallest_eigenvalues.SmallestEigenvalues) -> Table:
    """Return by width how many kernels of paired networks have full rank."""
    s = result.settings
    rows: list[Row] = []
    for i, m in enumerate(s.rank_widths):
        ranks = result.ranks[:, i]
        full = int((ranks == s.rank_size * s.rank_outputs).sum())
        cells = (_with_range(ranks, ".0f"), f"{full}", f"{int((ranks == result.sign_bound[:, i]).sum())}")
        rows.append([str(m), f"{result.counting_bound()[i]:.0f}", *map(Measured, cells)])
    caption = (
        f"Softmax at the start, {s.rank_size} samples, {s.rank_inputs} inputs, {s.rank_outputs} outputs: full rank is "
        f"{s.rank_size * s.rank_outputs}. Rank: median [range]; networks of {len(s.seeds)}."
    )
    return Table(["width", "counting bound", "rank", "full", "equal to the sum over signs"], rows, caption)


def costs(results: Mapping[str, Result]) -> Table:
    """Return where and in what time each experiment ran."""
    rows: list[Row] = []
    for name, result in results.items():
        p = result.provenance
        facts = (f"{p.wall_seconds:.1f} s", f"{p.cpu_seconds:.1f} s", f"{p.peak_memory_mib:.0f} MiB", p.device)
        rows.append([name, *map(Measured, facts)])
    caption = "Nothing is trained: kernels of all seeds are computed together, on one thread."
    return Table(["experiment", "time", "of the processor", "peak memory of the process", "device"], rows, caption)


def spectrum_text(result: eigenvalue_radius.EigenvalueRadius, direction: str, radius: float) -> str:
    """Return the numbers behind one picture of the slider."""
    at = list(DIRECTIONS).index(named(direction)), result.settings.shown_radii.index(radius)
    after = result.spectra[0, *at, 0]
    left = after / result.spectra_before[0, 0]
    parts = [f"{LOOKS[name].label} {_left(share)}" for name, share in zip(ACTIVATIONS, left, strict=True)]
    return (
        f"{direction}, R = {radius:g}. The smallest eigenvalue after the move, as a multiple of "
        f"before: {', '.join(parts)}."
    )


def _left(share: float) -> str:
    return "0 (singular)" if share < 1e-6 else f"{share:.2g}"


def _compared(bound: float, change: float) -> tuple[Measured, Measured, Measured]:
    return Measured(f"{bound:.2g}"), Measured(f"{change:.2g}"), Measured(f"{bound / change:.1g}")


def _count(values: np.ndarray) -> str:
    found = values[np.isfinite(values)]
    return f"{len(found)}" + (f" ({found.min():.2g} to {found.max():.2g})" if len(found) else "")


def _with_range(values: np.ndarray, form: str) -> str:
    return f"{np.median(values):{form}} [{values.min():{form}}, {values.max():{form}}]"
