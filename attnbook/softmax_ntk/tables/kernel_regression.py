"""The tables of the chapter on kernel regression."""

from __future__ import annotations

import numpy as np

from attnbook.core.tables import Measured, Table
from attnbook.softmax_ntk.experiments import kernel_regression
from attnbook.softmax_ntk.experiments.runs import ACTIVATIONS, slope_over_seeds
from attnbook.softmax_ntk.figures.lazy_training import LOOKS, STARTS
from attnbook.softmax_ntk.theory.kernel_regression import coupling_bound_of_theorem
from attnbook.softmax_ntk.theory.kernels import Activation

__all__ = ["circle_text", "drifts", "looseness", "slopes_by_start"]

Row = list[str | Measured]


def slopes_by_start(result: kernel_regression.KernelRegression) -> Table:
    """Return the slopes of the gap against the width, by scale of the weights, start and network."""
    s = result.settings
    rows: list[Row] = []
    for light in (False, True):
        scale, widths = (s.light_scale, s.light_widths) if light else (1.0, s.widths)
        for start in kernel_regression.STARTS:
            names: tuple[Activation, ...] = kernel_regression.SMOOTH if light else ACTIVATIONS
            found = [slope_over_seeds(widths, result.of(start, name, light=light)) for name in names]
            cells: Row = [Measured(f"{value:.2f} [{low:.2f}, {high:.2f}]") for value, (low, high) in found]
            rows.append([f"{scale:g}", STARTS[start].label, *cells, *[""] * light])
    caption = (
        f"Log-log slope of the median gap against the width [slopes of single seeds]; {len(s.seeds)} seeds, widths "
        f"{s.widths[0]} to {s.widths[-1]}, light weights to {s.light_widths[-1]}."
    )
    return Table(["weight scale", "start", *(LOOKS[name].label for name in ACTIVATIONS)], rows, caption)


def looseness(result: kernel_regression.KernelRegression) -> Table:
    """Return by which factor bounds and their stages exceed the gap at the widest networks, and where they apply."""
    s = result.settings
    rows: list[Row] = []
    for i, start in enumerate(kernel_regression.STARTS):
        for j, name in enumerate(ACTIVATIONS):
            holds = result.condition_holds()[:, i, :, j]
            ratios = (
                _theorem_over_gap(result, i, j),
                *(
                    a[:, i, -1, j]
                    for a in (result.median_bound_over_gap, result.summed_over_gap, result.directed_over_gap)
                ),
            )
            cells = [f"{int(holds.sum())} of {holds.size}", f"{result.bound_over_gap[:, i, :, j].min():.1g}"]
            cells += [f"{np.median(ratio):.2g}" for ratio in ratios]
            rows.append([STARTS[start].label, LOOKS[name].label, *map(Measured, cells)])
    caption = (
        "Condition: networks of all widths with kernel drift at most λ/2. Smallest: bound over gap, over widths, seeds "
        f"and inputs. Others: factor above the gap at width {s.widths[-1]}, medians over seeds (ours and its stages: "
        "and over inputs). With logarithm: Theorem F.2 as reconstructed, hidden constants 1, over the largest gap."
    )
    head = ["start", "network", "condition", "smallest", "with logarithm", "ours", "residuals", "directions"]
    return Table(head, rows, caption)


def drifts(result: kernel_regression.KernelRegression) -> Table:
    """Return what goes into the bound for narrow and wide networks, paired, and what comes out."""
    s = result.settings
    rows: list[Row] = []
    for w in sorted({0, len(s.widths) // 2, len(s.widths) - 1}):
        for j, name in enumerate(ACTIVATIONS):
            arrays = (result.smallest_eigenvalue, result.kernel_drift, result.point_drift, result.gap, result.bound)
            cells: Row = [Measured(f"{np.median(a[:, 0, w, j]):.2g}") for a in arrays]
            rows.append([str(s.widths[w]), LOOKS[name].label, *cells])
    caption = (
        f"Paired neurons, medians over {len(s.seeds)} seeds. ε_test and gap: largest over inputs and outputs; bound: "
        "median over them. Labels have norm one."
    )
    return Table(["width", "network", "λ", "ε_H", "ε_test", "gap", "bound"], rows, caption)


def circle_text(result: kernel_regression.KernelRegression, steps: int, network: str, neurons: str) -> str:
    """Return the numbers behind one picture of the slider."""
    s = result.settings
    k, i, j = s.times.index(steps), kernel_regression.STARTS.index(neurons), ACTIVATIONS.index(network)
    gaps = np.abs(result.network[i, j, :, k] - result.machine[i, j, :, k]).max(axis=1)
    listed = ", ".join(f"{gap:.1g} at width {m}" for gap, m in zip(gaps, s.shown_widths, strict=True))
    reach = np.abs(result.machine[i, j, 0, k]).max()
    return (
        f"{LOOKS[network].label}, {STARTS[neurons].label}, {steps} step{'s' * (steps > 1)}. The machine of width "
        f"{s.shown_widths[0]} has learned outputs up to {reach:.2g}; largest gap on the circle: {listed}."
    )


def _theorem_over_gap(result: kernel_regression.KernelRegression, start: int, network: int) -> np.ndarray:
    s = result.settings
    each = [
        coupling_bound_of_theorem(
            float(eigenvalue), n_samples=s.n_samples, n_outputs=s.n_outputs, width=s.widths[-1],
            kernel_drift=float(drift), point_drift=float(point),
        )
        for eigenvalue, drift, point in zip(
            *(a[:, start, -1, network] for a in (result.smallest_eigenvalue, result.kernel_drift, result.point_drift)),
            strict=True,
        )
    ]  # fmt: skip
    return np.array(each) / result.gap[:, start, -1, network]
