"""The tables of this chapter, as notebooks show them."""

from __future__ import annotations

import numpy as np

from attnbook.core.tables import Measured, Table
from attnbook.global_attention.experiments.hessian_spectrum import NETWORKS, SPECTRA, HessianSpectrum
from attnbook.global_attention.experiments.loss_landscape import LossLandscape
from attnbook.global_attention.theory.rescaling import log_volume_factor

__all__ = ["by_step_size", "comparison", "orbit_text", "penalties", "where_training_ends"]


def comparison(result: HessianSpectrum) -> Table:
    """Return attention over baseline for several measures of sharpness, raw and folded, in both comparisons."""
    names = ("attention", "attention_folded", "equal_loss", "equal_loss_folded")
    measures = {"largest eigenvalue": "top", "eigenvalue of rank 50": "middle", "sum of the leading 100": "sum"}
    rows: list[list[str | Measured]] = [
        [label, *(_spread(result.ratio(name, measure)) for name in names)] for label, measure in measures.items()
    ]
    networks = [name.removesuffix("_folded") for name in names]
    rows.append(["training loss", *(_spread(result.loss_ratio(name)) for name in networks)])
    rows.append(["test accuracy, difference in points", *(_spread(100 * result.gain(name)) for name in networks)])
    columns = ["attention over baseline", "equal steps", "equal steps, folded", "equal loss", "equal loss, folded"]
    caption = f"Median over {len(result.eigenvalues)} seeds [smallest, largest] of the ratio seed by seed."
    return Table(columns, rows, caption)


def by_step_size(result: HessianSpectrum) -> Table:
    """Return the same ratios for every step size that was run."""
    rows: list[list[str | Measured]] = []
    for i, step_size in enumerate(result.settings.step_sizes):
        cells = [
            result.ratio("attention", "top", i),
            result.ratio("attention", "middle", i),
            result.ratio("equal_loss", "top", i),
            result.ratio("equal_loss", "middle", i),
            result.ratio("equal_loss_folded", "sum", i),
            100 * result.gain("equal_loss", step_size=i),
        ]
        rows.append([f"{step_size:g}", *map(_spread, cells)])
    columns = [
        "step size", "equal steps: largest", "equal steps: rank 50", "equal loss: largest", "equal loss: rank 50",
        "equal loss: folded sum", "equal loss: accuracy, points",
    ]  # fmt: skip
    caption = f"Attention over baseline: median over {len(result.eigenvalues)} seeds [smallest, largest]."
    return Table(columns, rows, caption)


def where_training_ends(result: HessianSpectrum) -> Table:
    """Return how far from a minimum each network is where its Hessian is taken."""
    labels = {"baseline": "baseline", "attention": "attention", "equal_loss": "attention, stopped at equal loss",
              "l1_attention": "L1-attention"}  # fmt: skip
    rows: list[list[str | Measured]] = []
    for name, label in labels.items():
        at = SPECTRA.index(name)
        lowest = result.lowest[:, 0, at] / result.eigenvalues[:, 0, at, 0]
        rows.append([
            label,
            _spread(result.train_loss[:, 0, NETWORKS.index(name)]),
            _spread(result.gradient_norm[:, 0, at]),
            _spread(lowest),
        ])  # fmt: skip
    columns = ["network", "training loss", "norm of the gradient", "lowest eigenvalue over the largest"]
    caption = "Median over seeds [smallest, largest]. The lowest eigenvalue is at most what is shown."
    return Table(columns, rows, caption)


def penalties(result: HessianSpectrum) -> Table:
    """Return training loss and test accuracy with and without a penalty."""
    labels = {
        "baseline": "baseline", "baseline_decay": "baseline, L2 on both layers", "attention": "attention",
        "attention_decay": "attention, L2 on both layers", "l1_attention": "attention, L1 on the mask",
    }  # fmt: skip
    rows: list[list[str | Measured]] = [
        [
            label,
            _spread(result.train_loss[:, 0, NETWORKS.index(name)]),
            _spread(100 * result.accuracy[:, 0, NETWORKS.index(name)]),
        ]
        for name, label in labels.items()
    ]
    caption = "Median over seeds [smallest, largest], after equal numbers of steps; the loss without the penalty."
    return Table(["network", "training loss", "test accuracy, %"], rows, caption)


def orbit_text(result: LossLandscape, mask_factor: float, hidden_factor: float) -> str:
    """Return the numbers behind one picture of the slider on Theorem 4."""
    s = result.settings
    i, j = s.mask_factors.index(mask_factor), s.hidden_factors.index(hidden_factor)
    start = s.mask_factors.index(1.0), s.hidden_factors.index(1.0)
    change = np.abs(result.orbit_outputs[i, j] - result.orbit_outputs[start]).max()
    ratio = result.orbit_eigenvalues[i, j, 0] / result.orbit_eigenvalues[(*start, 0)]
    volume = log_volume_factor(s.minimum_inputs, s.minimum_width, mask_factor, hidden_factor) / np.log(10)
    unchanged = "to rounding" if change < 1e-10 else f"up to {change:.1e}"
    return (
        f"Mask times {mask_factor:g}, first layer times {hidden_factor:g}, second layer divided by both: "
        f"the function is the same {unchanged}, the largest eigenvalue is {ratio:.3g} times what it was, "
        f"and volumes of weights change by a factor of ten to the {volume:.3g}."
    )


def _spread(values: np.ndarray) -> Measured:
    return Measured(f"{np.median(values):.2g} [{values.min():.2g}, {values.max():.2g}]")
