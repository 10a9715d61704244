"""The tables of the chapter on the softmax network."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from attnbook.core.results import Result
from attnbook.core.tables import Measured, Table
from attnbook.softmax_ntk.experiments import denominator, softmax_network
from attnbook.softmax_ntk.experiments.runs import ACTIVATIONS, slope_over_seeds
from attnbook.softmax_ntk.figures.lazy_training import LOOKS

__all__ = [
    "attention_text",
    "conditions",
    "cost",
    "distance_by_scale",
    "identity",
    "light_slopes",
    "slopes_by_seeds",
    "spectrum_text",
]

Row = list[str | Measured]


def cost(runs: Mapping[str, tuple[Result, float]]) -> Table:
    """Return what the experiments cost.

    Args:
        runs: Name to a result and the time that it may take on one core, in seconds.

    Returns:
        The table.
    """
    rows: list[Row] = []
    for name, (result, budget) in runs.items():
        p = result.provenance
        facts = (f"{p.cpu_seconds:.1f} s", f"{p.wall_seconds:.1f} s", f"{p.peak_memory_mib} MiB", p.device)
        rows.append([name, f"{budget:.0f} s", *map(Measured, facts)])
    columns = ["experiment", "budget", "of the processor", "by the clock", "peak memory of the process", "device"]
    return Table(columns, rows, "The clock also runs while the processor is busy with other programs.")


def conditions(result: denominator.Denominator) -> Table:
    """Return condition numbers of the kernels of networks and at infinite width, by norms and weight scale."""
    s = result.settings
    finite, limit = 1 / result.finite_spectrum[..., -1], 1 / result.spectrum[..., -1]
    rows: list[Row] = []
    for i, low in enumerate(s.lowest_norms):
        for j, scale in enumerate(s.scales):
            if scale in {1.0, 2.0}:
                cells = [
                    Measured(f"{_with_range(finite[:, i, j, k])} / {_short(np.median(limit[:, i, j, k]))}")
                    for k in range(len(ACTIVATIONS))
                ]
                ratio = Measured(_with_range(finite[:, i, j, 1] / finite[:, i, j, 0]))
                rows.append(["all 1" if low == 1 else f"{low:g} to 1", f"{scale:g}", *cells, ratio])
    caption = (
        f"{s.n_samples} samples in as many dimensions; networks of {s.width} neurons, median [smallest, largest] over "
        f"{len(s.seeds)} seeds / median at infinite width. Last column: seed by seed, networks."
    )
    return Table(["norms", "σ", *(LOOKS[name].label for name in ACTIVATIONS), "exp over softmax"], rows, caption)


def identity(result: denominator.Denominator) -> Table:
    """Return how well the identity of the two kernels holds in finite networks, with pairs and without."""
    s = result.settings
    rows: list[Row] = []
    for i, width in enumerate(s.exact_widths):
        cells = [
            Measured(f"{np.median(found):.1g} [{found.min():.1g}, {found.max():.1g}]")
            for found in (result.finite_error[:, i], result.unpaired_error[:, i])
        ]
        rows.append([str(width), *cells])
    caption = (
        f"Error over the largest entry: median [smallest, largest] over {len(s.seeds)} seeds and all weight scales."
    )
    return Table(["width", "pairs", "no pairs"], rows, caption)


def slopes_by_seeds(result: softmax_network.SoftmaxNetwork, first: int) -> Table:
    """Return the slopes and last distances that the rules are about, for the first few seeds, the others, and all."""
    s, n = result.settings, len(result.settings.seeds)
    parts = (slice(first), slice(first, n), slice(n))
    last = s.widths.index(s.slope_to)
    rows: list[Row] = []
    for k, name in enumerate(ACTIVATIONS):
        far = [np.median(result.distance[part, last, k]) for part in parts]
        found = [_slope(*result.slopes(part, k)) for part in parts]
        rows.append([LOOKS[name].label, *(Measured(f"{a} / {b:.2g}") for a, b in zip(found, far, strict=True))])
    for k, name in enumerate(ACTIVATIONS):
        found = [_slope(*result.cross_slopes(part, k)) for part in parts]
        rows.append([f"{LOOKS[name].label}, between outputs", *map(Measured, found)])
    caption = (
        f"Log-log slopes of the medians [slopes of single seeds] / distance at width {s.slope_to}. Widths "
        f"{s.widths[0]} to {s.slope_to}; between outputs {s.cross_from} to {s.widths[-1]}."
    )
    return Table(["network", f"first {first} seeds", f"other {n - first}", f"all {n}"], rows, caption)


def light_slopes(result: softmax_network.SoftmaxNetwork) -> Table:
    """Return the slopes of the distance at the weight scale whose tails are light."""
    s = result.settings
    widths = s.widths[: result.light_distance.shape[1]]
    rows: list[Row] = []
    for k, name in enumerate(ACTIVATIONS):
        found = (
            slope_over_seeds(widths, part[:, : len(widths), k]) for part in (result.light_distance, result.distance)
        )
        rows.append([LOOKS[name].label, *(Measured(_slope(*one)) for one in found)])
    caption = f"Log-log slopes of the medians [of single seeds] of the distance from the limit, widths {widths[0]} to "
    return Table(["network", f"σ = {s.light_scale:g}", "σ = 1"], rows, f"{caption}{widths[-1]}.")


def distance_by_scale(result: softmax_network.SoftmaxNetwork) -> Table:
    """Return how far kernels are from their limit at one width, by weight scale, beside what the variance says."""
    s = result.settings
    rows: list[Row] = []
    for j, scale in enumerate(s.kernel_scales):
        cells: Row = []
        for k in range(len(ACTIVATIONS)):
            said = np.median(result.fluctuation_by_scale[:, j, k])
            cells.append(Measured(f"{_with_range(result.distance_by_scale[:, j, k])} / {said:.2g}"))
        rows.append([f"{scale:g}", *cells])
    caption = (
        f"Relative distance from the limit at width {s.slope_to}: median [smallest, largest] over {len(s.seeds)} "
        "seeds / root mean square by the formula."
    )
    return Table(["σ", *(LOOKS[name].label for name in ACTIVATIONS)], rows, caption)


def attention_text(result: softmax_network.SoftmaxNetwork, scale: float) -> str:
    """Return the numbers behind one picture of the attention weights."""
    s = result.settings
    at, width = s.scales.index(scale), s.effective_widths[0]
    found, first = float(np.median(result.effective[:, 0, at])), float(result.weights[at, :2].sum())
    return (
        f"Weight scale {scale:g}: the heaviest pair of this input has {100 * first:.2g} % of the attention. Effective "
        f"number: {found:.3g} of {width} (mean over {s.points} inputs, median over {len(s.seeds)} seeds)."
    )


def spectrum_text(result: denominator.Denominator, lowest_norm: float, scale: float) -> str:
    """Return the numbers behind one picture of the spectra."""
    s = result.settings
    at = (s.lowest_norms.index(lowest_norm), s.scales.index(scale))
    finite, limit = (np.median(1 / found[:, *at, :, -1], axis=0) for found in (result.finite_spectrum, result.spectrum))
    parts = ", ".join(
        f"{LOOKS[name].label} {_short(finite[k])} ({_short(limit[k])})" for k, name in enumerate(ACTIVATIONS)
    )
    norms = "all inputs of norm 1" if lowest_norm == 1 else f"norms between {lowest_norm:g} and 1"
    hidden = " The lines of softmax and exp nearly coincide." if finite[1] < 1.05 * finite[0] else ""
    return (
        f"Weight scale {scale:g}, {norms}. Condition numbers of networks (in brackets: of the limit), medians over "
        f"seeds: {parts}.{hidden}"
    )


def _with_range(values: np.ndarray) -> str:
    return f"{_short(np.median(values))} [{_short(values.min())}, {_short(values.max())}]"


def _short(value: float) -> str:
    return f"{value:.2g}" if value < 99.5 else f"{float(f'{value:.3g}'):.0f}"


def _slope(value: float, spread: tuple[float, float]) -> str:
    return f"{value:.2f} [{spread[0]:.2f}, {spread[1]:.2f}]"
