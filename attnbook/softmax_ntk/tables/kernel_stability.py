"""The tables of the chapter on the stability of the kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from attnbook.core.results import Result
from attnbook.core.tables import Measured, Table
from attnbook.softmax_ntk.experiments import eigenvalue_radius, fading, kernel_movement, smallest_eigenvalues
from attnbook.softmax_ntk.experiments.runs import ACTIVATIONS, slope_over_seeds
from attnbook.softmax_ntk.figures.kernel_stability import DIRECTIONS, named
from attnbook.softmax_ntk.figures.lazy_training import LOOKS
from attnbook.softmax_ntk.perturbations import Direction
from attnbook.softmax_ntk.stability_bounds import relu_change_bound

__all__ = [
    "bounds",
    "changes",
    "costs",
    "degrees_text",
    "faded",
    "full_rank",
    "losses",
    "radii",
    "spectrum_text",
    "width_slopes",
]

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
        f"{s.n_outputs} outputs, width {s.width}. Of {result.change[..., 2].size} ReLU networks "
        "moved over all radii, those of which no neuron switched: "
    )
    unmoved = Measured(f"{int((result.change[..., 2] == 0).sum())}.", before=caption)
    return Table(["neurons move", *(LOOKS[name].label for name in ACTIVATIONS)], rows, unmoved)


def width_slopes(result: kernel_movement.KernelMovement) -> Table:
    """Return the log-log slopes of the relative change against the width, by direction and network."""
    s = result.settings
    rows: list[Row] = []
    for i, direction in enumerate(kernel_movement.DIRECTIONS):
        cells: Row = [DIRECTIONS[direction].label]
        for j, name in enumerate(ACTIVATIONS):
            unchanged = (direction, name) == ("common", "softmax")
            slope = 0.0 if unchanged else slope_over_seeds(s.widths, result.by_width[:, :, i, j])[0]
            cells.append("rounding error" if unchanged else Measured(f"{slope:.2f}"))
        rows.append(cells)
    relu = result.by_width[..., ACTIVATIONS.index("relu")]
    caption = Measured(
        f"{int((relu == 0).sum())}.",
        before=f"Slopes of the medians over {len(s.seeds)} seeds, widths {s.widths[0]} to {s.widths[-1]}, "
        f"R = {s.radius:g}. Of {relu.size} ReLU networks, those of which no neuron switched: ",
    )
    return Table(["neurons move", *(LOOKS[name].label for name in ACTIVATIONS)], rows, caption)


def bounds(result: kernel_movement.KernelMovement) -> Table:
    """Return bounds on the change of the kernel beside the changes measured: the closest that any network came."""
    s = result.settings
    softmax = result.change[:, len(s.allowed) - 1, :, 0].max(axis=1)
    rows: list[Row] = []
    for label, exponent in (("softmax, the measured B", None), ("softmax, B = 1", 1.0)):
        closest = float((result.bounds(exponent=exponent)[:, -1] / softmax).min())
        rows.append([label, f"{s.radius:g}", Measured(f"{closest:.1g}")])
    for at in (len(s.allowed) - 1, 0):
        bound = relu_change_bound(s.allowed[at], n_samples=s.n_samples)
        closest = bound / float(result.one_output[:, at].max())
        rows.append(["ReLU, 2nR, one output", f"{s.allowed[at]:g}", Measured(f"{closest:.1g}")])
    caption = f"Smallest ratio over {len(s.seeds)} seeds and the four directions; width {s.width}."
    return Table(["bound", "R", "bound / measured change"], rows, caption)


def losses(result: eigenvalue_radius.EigenvalueRadius, direction: Direction | None = None) -> Table:
    """Return how many networks lost half of the smallest eigenvalue within the radii tried, and where it began.

    Args:
        result: The experiment.
        direction: Which direction, by number of samples; default all, sizes together.

    Returns:
        The table.
    """
    s, lost = result.settings, result.first_loss()
    shown = eigenvalue_radius.DIRECTIONS if direction is None else (direction,)
    rows: list[Row] = []
    for one in shown:
        found = lost[:, :, :, eigenvalue_radius.DIRECTIONS.index(one)]
        for k, d in enumerate(s.outputs):
            if direction is None:
                rows.append([f"{DIRECTIONS[one].label}, {d}", *_counts(found[:, k])])
            else:
                rows += [[f"{n}, {d}", *_counts(found[:, k, j])] for j, n in enumerate(s.sizes)]
    networks = len(s.seeds) * (len(s.sizes) if direction is None else 1)
    caption = (
        f"Networks of {networks} that had lost half at some radius up to {s.radii[-1]:g} (in brackets: smallest "
        f"and largest first such radius). Width {s.width}, {s.n_inputs} inputs."
    )
    head = "direction, outputs" if direction is None else "samples, outputs"
    return Table([head, *(LOOKS[name].label for name in ACTIVATIONS)], rows, caption)


def faded(found: Sequence[fading.Look]) -> Table:
    """Return a column for each network that lost half of its smallest eigenvalue in a random direction."""
    quantities = {
        "left, all outputs": [f"{look.left:.2g}" for look in found],
        "left, each output alone (the smaller)": [f"{look.left_alone:.2g}" for look in found],
        "eigenvector on one sample": [f"{look.on_one_sample:.1%}" for look in found],
        "its heaviest neuron": [f"{look.heaviest:.0%}" for look in found],
        "its outputs: cosine": [f"{look.cosine:.3f}" for look in found],
        "the same, median sample": [f"{look.cosine_median:.2f}" for look in found],
    }
    rows: list[Row] = [[name, *map(Measured, cells)] for name, cells in quantities.items()]
    heads = [f"seed {look.seed}, {look.n_samples} samples" for look in found]
    return Table(["", *heads], rows, "At the largest radius; left: smallest eigenvalue after the move over before.")


def radii(result: eigenvalue_radius.EigenvalueRadius) -> Table:
    """Return the radius of Claim E.5 beside the largest one that did no harm in any direction tried."""
    s, certified = result.settings, result.certified()
    safe = result.last_harmless()[..., ACTIVATIONS.index("softmax")].min(axis=3)
    rows: list[Row] = []
    for k, d in enumerate(s.outputs):
        for j, n in enumerate(s.sizes):
            one, other = certified[:, k, j], safe[:, k, j]
            cells = (f"{one.max():.0e}", f"{other.min():.2g}", f"{(other / one).min():.0e}")
            rows.append([f"{n}, {d}", *map(Measured, cells)])
    caption = (
        f"Softmax, {len(s.seeds)} seeds. Harmless: at every radius tried up to there at least half was left, in all of "
        f"{len(eigenvalue_radius.DIRECTIONS)} directions."
    )
    return Table(["samples, outputs", "largest certified", "smallest harmless", "smallest ratio"], rows, caption)


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


def degrees_text(softmax: np.ndarray, relu: np.ndarray, scale: float) -> str:
    """Return the numbers behind two spectra at infinite width, each from the largest eigenvalue."""
    soft, other = (float(f"{values[0] / values[-1]:.2g}") for values in (softmax, relu))
    below = int((softmax / softmax[0] < relu[-1] / relu[0]).sum())
    return (
        f"Weight scale {scale:g}: condition number {soft:,.0f} for softmax and {other:,.0f} for ReLU. "
        f"{below} of {len(softmax)} eigenvalues of softmax lie below the smallest of ReLU."
    )


def _left(share: float) -> str:
    return "0 (singular)" if share < 1e-6 else f"{share:.2g}"


def _counts(lost: np.ndarray) -> list[Measured]:
    return [Measured(_count(lost[..., j])) for j in range(len(ACTIVATIONS))]


def _count(values: np.ndarray) -> str:
    found = values[np.isfinite(values)]
    return f"{len(found)}" + (f" ({found.min():.2g} to {found.max():.2g})" if len(found) else "")


def _with_range(values: np.ndarray, form: str) -> str:
    return f"{np.median(values):{form}} [{values.min():{form}}, {values.max():{form}}]"
