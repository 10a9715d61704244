"""The tables of the chapter on kernel regression."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnbook.core.tables import Measured, Table
from attnbook.softmax_ntk.experiments import kernel_regression
from attnbook.softmax_ntk.experiments.runs import ACTIVATIONS, ROUNDING, slope_over_seeds
from attnbook.softmax_ntk.figures.kernel_regression import start_named
from attnbook.softmax_ntk.figures.lazy_training import LOOKS, STARTS
from attnbook.softmax_ntk.kernels import Activation

__all__ = ["circle_text", "drifts", "late_drift_text", "light_powers", "looseness", "powers", "slopes_by_start"]

Row = list[str | Measured]


def slopes_by_start(result: kernel_regression.KernelRegression) -> Table:
    """Return the slopes of the gap against the width, by scale of the weights, widths, start and network."""
    s = result.settings
    rows: list[Row] = []
    for light, widths in ((False, s.widths), (False, s.light_widths), (True, s.light_widths)):
        inside = np.isin(s.light_widths if light else s.widths, widths)
        for start in kernel_regression.STARTS:
            names: tuple[Activation, ...] = kernel_regression.SMOOTH if light else ACTIVATIONS
            cells = [_slope(widths, result.of(start, name, light=light)[:, inside]) for name in names]
            scale = s.light_scale if light else 1
            rows.append([f"{scale:g}", f"{widths[0]} to {widths[-1]}", STARTS[start].label, *cells, *[""] * light])
    caption = f"Log-log slope of the median gap against the width [slopes of single seeds]; {len(s.seeds)} seeds."
    return Table(["weight scale", "widths", "start", *(LOOKS[name].label for name in ACTIVATIONS)], rows, caption)


def powers(result: kernel_regression.KernelRegression, *ranges: tuple[int, int]) -> Table:
    """Return the slopes of the gap and of what goes into its bound.

    Args:
        result: Its weights of scale 1 are read.
        *ranges: Smallest and largest width of every part that is fitted, at least two widths in each; default all
            widths together.

    Returns:
        One row per part, start and network; slopes of medians over seeds, and their ranges over single seeds.
    """
    s = result.settings
    arrays = (result.gap, result.kernel_drift, result.point_drift, result.smallest_eigenvalue)
    rows: list[Row] = []
    for low, high in ranges or ((s.widths[0], s.widths[-1]),):
        inside = [low <= width <= high for width in s.widths]
        widths = np.array(s.widths)[inside]
        for start in kernel_regression.STARTS:
            for name in ACTIVATIONS:
                cells = [_slope(widths, result.of(start, name, what=a)[:, inside]) for a in arrays]
                rows.append([f"{low} to {high}", STARTS[start].label, LOOKS[name].label, *cells])
    caption = (
        f"Log-log slopes of medians over {len(s.seeds)} seeds against the width [slopes of single seeds]. ε_test: "
        "largest over inputs."
    )
    return Table(["widths", "start", "network", "gap", "ε_H", "ε_test", "λ"], rows, caption)


def light_powers(result: kernel_regression.KernelRegression) -> Table:
    """Return the slopes of gap, drift and smallest eigenvalue with light weights."""
    s = result.settings
    arrays = result.light_gap, result.light_drift, result.light_eigenvalue
    rows: list[Row] = []
    for start in kernel_regression.STARTS:
        for name in kernel_regression.SMOOTH:
            cells = [_slope(s.light_widths, result.of(start, name, what=a)) for a in arrays]
            rows.append([STARTS[start].label, LOOKS[name].label, *cells])
    caption = (
        f"Weights of scale {s.light_scale:g}: log-log slopes of medians over {len(s.seeds)} seeds against the width, "
        f"{s.light_widths[0]} to {s.light_widths[-1]} [slopes of single seeds]."
    )
    return Table(["start", "network", "gap", "ε_H", "λ"], rows, caption)


def _slope(widths: Sequence[int] | np.ndarray, samples: np.ndarray) -> Measured:
    value, (low, high) = slope_over_seeds(widths, np.maximum(samples, ROUNDING))
    return Measured(f"{value:.2f} [{low:.2f}, {high:.2f}]")


def looseness(result: kernel_regression.KernelRegression) -> Table:
    """Return by which factor the bound and its stages exceed the gap at the widest networks, and where it applies."""
    s = result.settings
    rows: list[Row] = []
    for i, start in enumerate(kernel_regression.STARTS):
        for j, name in enumerate(ACTIVATIONS):
            holds = result.condition_holds()[:, i, :, j]
            ratios = result.median_bound_over_gap, result.summed_over_gap, result.directed_over_gap
            cells = [f"{int(holds.sum())} of {holds.size}", *(f"{np.median(a[:, i, -1, j]):.2g}" for a in ratios)]
            cells.append(f"{result.directed_over_gap[:, i, :, j].min():.2g}")
            rows.append([STARTS[start].label, LOOKS[name].label, *map(Measured, cells)])
    caption = (
        "Condition: networks of all widths with kernel drift at most λ/2. Then factors above the gap at width "
        f"{s.widths[-1]}, medians over inputs and seeds; smallest: of the directions, over widths and seeds."
    )
    head = ["start", "network", "condition", "bound", "residuals", "directions", "smallest"]
    return Table(head, rows, caption)


def drifts(result: kernel_regression.KernelRegression) -> Table:
    """Return what goes into the bound for narrow and wide networks, by start, and what comes out."""
    s = result.settings
    rows: list[Row] = []
    arrays = (result.smallest_eigenvalue, result.kernel_drift, result.point_drift, result.gap, result.bound)
    for w in sorted({0, len(s.widths) // 2, len(s.widths) - 1}):
        for i, start in enumerate(kernel_regression.STARTS):
            for j, name in enumerate(ACTIVATIONS):
                cells: Row = [Measured(f"{np.median(a[:, i, w, j]):.2g}") for a in arrays]
                rows.append([str(s.widths[w]), STARTS[start].label, LOOKS[name].label, *cells])
    caption = (
        f"Medians over {len(s.seeds)} seeds. ε_test and gap: largest over inputs and outputs; bound: median over them. "
        "The labels of a sample have norm one."
    )
    return Table(["width", "start", "network", "λ", "ε_H", "ε_test", "gap", "bound"], rows, caption)


def circle_text(result: kernel_regression.KernelRegression, steps: int, network: str, neurons: str) -> str:
    """Return the numbers behind one picture of the slider."""
    s = result.settings
    k, i, j = s.times.index(steps), kernel_regression.STARTS.index(start_named(neurons)), ACTIVATIONS.index(network)
    gaps = np.abs(result.network[i, j, :, k] - result.machine[i, j, :, k]).max(axis=1)
    listed = ", ".join(f"{gap:.1g} at width {m}" for gap, m in zip(gaps, s.shown_widths, strict=True))
    reach = np.abs(result.machine[i, j, 0, k]).max()
    return (
        f"{LOOKS[network].label}, {neurons}, {steps} step{'s' * (steps > 1)}. The machine of width "
        f"{s.shown_widths[0]} has learned outputs up to {reach:.2g}; largest gap on the circle: {listed}."
    )


def late_drift_text(times: np.ndarray, residuals: np.ndarray, jump: float) -> str:
    """Return the numbers behind a jump of the kernel at some time: what is left to learn, and the gap it makes."""
    machine, network, allowed = residuals
    gap = (network - machine).max()
    return (
        f"Jump at time {jump:g}: {np.interp(jump, times, machine):.1%} of the residual is left. The gap reaches "
        f"{gap:.2g} of the first residual; step 3 allows {allowed.max():.2g}."
    )
