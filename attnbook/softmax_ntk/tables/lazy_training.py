"""The tables of the chapter on lazy training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from attnbook.core.results import Result
from attnbook.core.tables import Measured, Table
from attnbook.softmax_ntk.experiments import circle, lazy_training, samples, starts, step_size
from attnbook.softmax_ntk.experiments.runs import ACTIVATIONS, slope, slope_over_seeds
from attnbook.softmax_ntk.figures.lazy_training import LOOKS, STARTS

__all__ = [
    "arrived",
    "by_seeds",
    "circle_text",
    "costs",
    "growth",
    "linear_steps_text",
    "one_heavy_pair",
    "promised",
    "slopes_by_start",
    "step_sizes",
    "steps_by_width",
]

Row = list[str | Measured]


def costs(results: Mapping[str, tuple[Result, int]]) -> Table:
    """Return how many networks each experiment trained, where and in what time.

    Args:
        results: Name to result and number of networks.

    Returns:
        A table with one row per experiment.
    """
    rows: list[Row] = []
    for name, (result, networks) in results.items():
        p = result.provenance
        facts = (f"{p.wall_seconds:.1f} s", f"{p.cpu_seconds:.1f} s", f"{p.peak_memory_mib:.0f} MiB", p.device)
        rows.append([name, str(networks), *map(Measured, facts)])
    caption = "Networks of one width and one activation are trained together, as one program, on one thread."
    return Table(
        ["experiment", "networks", "time", "of the processor", "peak memory of the process", "device"], rows, caption
    )


def arrived(result: lazy_training.LazyTraining) -> Table:
    """Return how many networks of small width reached the target, and how many of their losses rose on the way."""
    s, n = result.settings, len(result.settings.seeds)
    rows: list[Row] = []
    for i, m in enumerate(s.small_widths):
        rows.append([str(m), *(Measured(f"{count:g}") for count in result.small_reached[:, i].sum(axis=0))])
    for i, m in enumerate(s.widths[:3]):
        rose = (result.monotone[:, :, i] == 0).sum(axis=0)
        counts = result.reached[:, :, i].sum(axis=0)
        texts = [
            " / ".join(f"{c:g}" + f" ({r} rose)" * bool(r) for c, r in zip(counts[:, j], rose[:, j], strict=True))
            for j in range(len(ACTIVATIONS))
        ]
        rows.append([str(m), *map(Measured, texts)])
    caption = (
        f"{' / '.join(map(str, s.outputs))} outputs: networks of {n} that reached a thousandth of the loss within "
        f"{s.max_steps} steps (in brackets: whose loss rose on the way). "
        f"Of the wider ones all did. Below {s.widths[0]}: one output only."
    )
    return Table(["width", *(LOOKS[name].label for name in ACTIVATIONS)], rows, caption)


def promised(result: lazy_training.LazyTraining) -> Table:
    """Return steps and movements of softmax beside what Lemma 5.3 promises, one output."""
    s = result.settings
    exponential = result.exponential_of_bound()[:, 0]
    shown = sorted({0, *(i for i, m in enumerate(s.widths) if m >= s.flat_from)})
    rows: list[Row] = []
    for i in shown:
        longest = result.longest_step[:, :, i, 0].max()
        moved, bound = result.largest_movement[:, 0, i, 0], result.movement_bound[:, 0, i, 0]
        numbers = (longest, np.median(moved), np.median(bound), np.median(bound / moved), np.median(exponential[:, i]))
        rows.append([str(s.widths[i]), *(Measured(f"{number:.2g}") for number in numbers)])
    caption = (
        "Softmax. Longest step: over all seeds and outputs, the lemma allows 0.01. The other columns: one output, "
        f"medians over {len(s.seeds)} seeds; B is the largest |⟨w, x⟩| of each network."
    )
    return Table(["width", "longest step", "largest movement", "bound D", "ratio", "e^3B in it"], rows, caption)


def steps_by_width(result: lazy_training.LazyTraining) -> Table:
    """Return median numbers of steps, by width and number of outputs, and how far the networks are apart."""
    s = result.settings
    rows: list[Row] = []
    for i in sorted({0, *(i for i, m in enumerate(s.widths) if m >= s.lazy_from)}):
        medians = np.median(result.steps[:, :, i], axis=0)
        cells = [" / ".join(f"{m:g}" for m in column) for column in medians.T]
        apart = " / ".join(f"{row.max() / row.min():.2g}" for row in medians)
        rows.append([str(s.widths[i]), *map(Measured, (*cells, apart))])
    caption = f"One / two outputs: median steps of {len(s.seeds)} seeds; one that never arrived has {s.max_steps}."
    return Table(["width", *(LOOKS[name].label for name in ACTIVATIONS), "most over fewest"], rows, caption)


def one_heavy_pair(result: lazy_training.LazyTraining) -> Table:
    """Return the slowest wide softmax network beside the median one: what is different about its kernel?"""
    s = result.settings
    wide = [i for i, m in enumerate(s.widths) if m >= s.flat_from]
    seed, at = np.unravel_index(np.argmax(result.steps[:, 0, wide, 0]), (len(s.seeds), len(wide)))
    chosen = wide[at]
    arrays = {
        "steps": result.steps, "smallest eigenvalue": result.smallest_eigenvalue,
        "largest eigenvalue": result.largest_eigenvalue, "largest diagonal entry": result.largest_diagonal,
        "largest share of one pair in such an entry": result.heaviest_pair,
    }  # fmt: skip
    rows: list[Row] = [
        [name, Measured(f"{np.median(a[:, 0, chosen, 0]):.3g}"), Measured(f"{a[seed, 0, chosen, 0]:.3g}")]
        for name, a in arrays.items()
    ]
    caption = Measured(
        f"{s.widths[chosen]}, seed {s.seeds[seed]}.", before="Softmax, one output; the slowest network has width "
    )
    return Table(["of the kernel at the start", "median of its width", "slowest network"], rows, caption)


def by_seeds(result: lazy_training.LazyTraining, first: int) -> Table:
    """Return what the rules on steps and drift test, from the first few seeds, the others, and all."""
    chosen = {
        f"steps of {LOOKS[name].label}": (f"SN-TM-{name}", f"max_over_min_of_mean_steps_{name}") for name in ACTIVATIONS
    }
    chosen |= {f"drift of {LOOKS[name].label}": ("SN-DH", f"slope_of_medians_{name}") for name in ("softmax", "exp")}
    n = len(result.settings.seeds)
    parts = [result.some_seeds(part).measurements() for part in (slice(first), slice(first, n), slice(n))]
    caption = "What the rules test. Steps: largest over smallest mean, over widths. Drift: slope of the medians."
    rows: list[Row] = [
        [name, *(Measured(f"{part[claim].values[value]:.3f}") for part in parts)]
        for name, (claim, value) in chosen.items()
    ]
    return Table(["one output", f"first {first} seeds", f"other {n - first}", f"all {n}"], rows, caption)


def growth(result: samples.Samples) -> Table:
    """Return with which power of the number of samples steps, condition number and bound grow."""
    sizes = np.array(result.settings.sizes)
    rows: list[Row] = []
    for j, name in enumerate(ACTIVATIONS):
        low, high = result.smallest_eigenvalue[:, :, j], result.largest_eigenvalue[:, :, j]
        grown = [slope(sizes, np.median(a, axis=0)) for a in (result.steps[:, :, j], high / low, (sizes / low) ** 2)]
        rows.append([LOOKS[name].label, *(Measured(f"{power:.2f}") for power in grown)])
    s = result.settings
    caption = f"Log-log slopes against n of medians over {len(s.seeds)} seeds; width {s.width}, one output."
    return Table(["network", "steps", "λ_max/λ", "n²/λ²"], rows, caption)


def step_sizes(result: step_size.StepSize) -> Table:
    """Return how often each step size reached the target, rose on the way or blew up."""
    s = result.settings
    rows: list[Row] = []
    for i, fraction in enumerate(s.fractions):
        cells: Row = []
        for j in range(len(ACTIVATIONS)):
            reached, diverged = result.reached[:, i, j] == 1, result.diverged[:, i, j] == 1
            typical = f" in {_with_range(result.steps[reached, i, j], '.0f')}" if reached.any() else ""
            blown = f", {diverged.sum()} blew up" if diverged.any() else ""
            cells.append(Measured(f"{reached.sum()}{typical}{blown}"))
        rows.append([f"{fraction:g}", *cells])
    caption = (
        f"Networks of {len(s.seeds)} that reached the target, in how many steps (median [fewest, most] of these), of "
        f"{s.max_steps} at most. What neither arrived nor blew up was on its way, or stuck. Width {s.width}, "
        f"{s.n_outputs} outputs."
    )
    return Table(["step size × mλ_max", *(LOOKS[name].label for name in ACTIVATIONS)], rows, caption)


def slopes_by_start(result: starts.Starts) -> Table:
    """Return the slopes of the drift against the width, by scale of the weights, start and network."""
    s = result.settings
    rows: list[Row] = []
    for light in (False, True):
        scale, widths = (s.light_scale, s.light_widths) if light else (1.0, s.widths)
        for start in starts.STARTS:
            drifts = [result.of(start, name, light=light) for name in (starts.SMOOTH if light else ACTIVATIONS)]
            cells: Row = [Measured(_slope(widths, drift)) for drift in drifts]
            rows.append([f"{scale:g}", STARTS[start].label, *cells, *[""] * light])
    caption = "Log-log slope of the median drift against the width [slopes of single seeds]."
    return Table(["weight scale", "start", *(LOOKS[name].label for name in ACTIVATIONS)], rows, caption)


def circle_text(result: circle.Circle, width: int, network: str) -> str:
    """Return the numbers behind one picture of the slider."""
    i, j = result.settings.widths.index(width), ACTIVATIONS.index(network)
    movement, drift, gap = (float(np.median(a[:, i, j])) for a in (result.movement, result.drift, result.gap))
    fitted = f"{int(result.reached[:, i, j].sum())} of {len(result.gap)} seeds fitted"
    return (
        f"{LOOKS[network].label}, {width} neurons, {fitted}. Medians over all: a neuron moves by {movement:.2g}, "
        f"the kernel changes by {100 * drift:.2g} %, the largest gap to the machine is {gap:.2g}."
    )


def linear_steps_text(factors: np.ndarray, losses: np.ndarray, target: float = 0.001) -> str:
    """Return the numbers behind one step size of the kernel machine; factors from the smallest eigenvalue on."""
    arrived = np.flatnonzero(losses <= target)
    reached = f"falls below {target:g} of the first"
    last = f"{reached} after {arrived[0]} steps" if len(arrived) else f"never {reached} in {len(losses) - 1} steps"
    return (
        f"One step keeps {factors[0]:.2f} of the residual in the slowest direction and {factors[-1]:.2f} in that of "
        f"the largest eigenvalue (negative: it changes sign). The loss {last}."
    )


def _slope(widths: Sequence[int], drift: np.ndarray) -> str:
    value, (low, high) = slope_over_seeds(widths, drift)
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"


def _with_range(values: np.ndarray, form: str) -> str:
    return f"{np.median(values):{form}} [{values.min():{form}}, {values.max():{form}}]"
