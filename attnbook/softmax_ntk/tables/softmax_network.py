"""The tables of the chapter on the softmax network."""

from __future__ import annotations

import numpy as np

from attnbook.core.tables import Measured, Table
from attnbook.softmax_ntk.experiments import softmax_network
from attnbook.softmax_ntk.experiments.runs import ACTIVATIONS
from attnbook.softmax_ntk.figures.lazy_training import LOOKS
from attnbook.softmax_ntk.theory.softmax_network import expected_effective_width, tail_scales

__all__ = ["attention_text", "conditions", "cost", "distance_by_scale", "slopes_by_seeds", "spectrum_text"]

Row = list[str | Measured]


def cost(result: softmax_network.SoftmaxNetwork) -> Table:
    """Return how many kernels were computed, where and in what time."""
    kernels = result.distance.size + result.distance_by_scale.size + len(result.pictured_widths())
    p = result.provenance
    facts = (f"{p.wall_seconds:.1f} s", f"{p.cpu_seconds:.1f} s", f"{p.peak_memory_mib} MiB", p.device)
    columns = ["kernels of networks", "time", "of the processor", "peak memory of the process", "device"]
    caption = f"The widest network has {result.settings.widths[-1]} neurons; a few thousand are held at a time."
    return Table(columns, [[str(kernels), *map(Measured, facts)]], caption)


def conditions(result: softmax_network.SoftmaxNetwork) -> Table:
    """Return condition numbers of the kernels at infinite width, by norms of the inputs and weight scale."""
    s = result.settings
    condition = 1 / result.spectrum[..., -1]
    rows: list[Row] = []
    for i, low in enumerate(s.lowest_norms):
        for j, scale in enumerate(s.kernel_scales):
            if scale in {1.0, 2.0}:
                cells = [Measured(_with_range(condition[:, i, j, k])) for k in range(len(ACTIVATIONS))]
                rows.append(["all 1" if low == 1 else f"{low:g} to 1", f"{scale:g}", *cells])
    caption = f"{s.kernel_samples} samples in as many dimensions; median [smallest, largest] over {len(s.seeds)} seeds."
    return Table(["norms of the inputs", "σ", *(LOOKS[name].label for name in ACTIVATIONS)], rows, caption)


def slopes_by_seeds(result: softmax_network.SoftmaxNetwork, first: int) -> Table:
    """Return the slopes of the distance from the limit, from the first few seeds, the others, and all."""
    s, n = result.settings, len(result.settings.seeds)
    rows: list[Row] = []
    for k, name in enumerate(ACTIVATIONS):
        found = [result.slopes(part, k) for part in (slice(first), slice(first, n), slice(n))]
        cells = [Measured(f"{value:.2f} [{low:.2f}, {high:.2f}]") for value, (low, high) in found]
        rows.append([LOOKS[name].label, *cells])
    caption = f"Log-log slopes of the medians, widths {s.widths[0]} to {s.slope_to} [slopes of single seeds]."
    return Table(["network", f"first {first} seeds", f"other {n - first}", f"all {n}"], rows, caption)


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
        f"Weight scale {scale:g}: the heaviest pair has {100 * first:.2g} % of the attention. Effective number: "
        f"{found:.3g} of {width} (median over seeds); the formula says "
        f"{expected_effective_width(width, scale=scale):.2g}, and holds up to scale {tail_scales(width)[0]:.1f}."
    )


def spectrum_text(result: softmax_network.SoftmaxNetwork, lowest_norm: float, scale: float) -> str:
    """Return the numbers behind one picture of the spectra."""
    s = result.settings
    at = (s.lowest_norms.index(lowest_norm), s.kernel_scales.index(scale))
    found = np.median(1 / result.spectrum[:, *at, :, -1], axis=0)
    parts = ", ".join(f"{LOOKS[name].label} {found[k]:.3g}" for k, name in enumerate(ACTIVATIONS))
    norms = "all inputs of norm 1" if lowest_norm == 1 else f"norms between {lowest_norm:g} and 1"
    return f"Weight scale {scale:g}, {norms}. Condition numbers (median over seeds): {parts}."


def _with_range(values: np.ndarray) -> str:
    return f"{_short(np.median(values))} [{_short(values.min())}, {_short(values.max())}]"


def _short(value: float) -> str:
    return f"{value:.2g}" if value < 100 else f"{value:.0f}"
