"""The tables on one step of the induction."""

from __future__ import annotations

import numpy as np

from attnbook.core.tables import Measured, Table
from attnbook.softmax_ntk.experiments.one_step import TERMS, OneStep

__all__ = ["account", "gradient_bound"]

ALLOWED = ("at most 0.1", "at most −0.8", "at most 0.1", "at most 0.1")
NAMES = ("|C₀|", "C₁", "|C₂|", "C₃")


def account(result: OneStep) -> Table:
    """Return the terms of one step in the unit of the induction, beside what it allows each of them."""
    s, unit = result.settings, result.unit[:, None]
    columns = [result.terms[:, :, k] / unit for k in range(len(TERMS))]
    columns = [np.abs(c) if k in (0, 2) else c for k, c in enumerate(columns)]
    rows: list[list[str | Measured]] = []
    for name, term, allowed, sizes in zip(NAMES, TERMS, ALLOWED, columns, strict=True):
        rows.append([f"{name}: {term}", allowed, *_numbers(sizes)])
    rows.append(["sum", "at most −0.5", *_numbers(result.change / unit)])
    caption = (
        "Each term over mηλ‖F−Y‖². Worst: largest with its sign, over all steps and seeds; first and last step: "
        f"medians over {len(s.seeds)} seeds. Softmax, width {s.width}, "
        f"{s.n_outputs} outputs, step size {s.fraction:g}/(mλ_max)."
    )
    return Table(["term", "the induction allows", "worst", "first step", f"step {s.steps}"], rows, caption)


def gradient_bound(result: OneStep) -> Table:
    """Return how far the gradient of a neuron stays below Lemma D.1, with two choices of its exponential factor."""
    exponential = np.exp(3 * np.maximum(result.exponent, 1.0))[:, None]
    loose = result.gradient_ratio * result.largest_neuron / exponential
    factors = {"largest mS, measured": result.largest_neuron, "e^3B, smallest possible B": exponential}
    rows: list[list[str | Measured]] = [
        [name, Measured(f"{np.median(factor):.2g}"), Measured(f"{ratio.max():.2g}")]
        for (name, factor), ratio in zip(factors.items(), (result.gradient_ratio, loose), strict=True)
    ]
    caption = "Lemma D.1: the longest gradient of a neuron over its bound, over all steps and seeds."
    return Table(["factor in the bound", "its size (median)", "largest gradient / bound"], rows, caption)


def _numbers(sizes: np.ndarray) -> list[Measured]:
    return [Measured(f"{v:.2g}") for v in (sizes.max(), np.median(sizes[:, 0]), np.median(sizes[:, -1]))]
