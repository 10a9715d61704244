"""The picture of one step of the induction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np

from attnbook.core.figures import INK, Look, style
from attnbook.softmax_ntk.experiments.one_step import TERMS, OneStep

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["TERM_LOOKS", "shares"]

TERM_LOOKS: Mapping[str, Look] = {
    "normaliser": Look("normaliser, $|C_0|$", "#9d174d", "-", "D"),
    "higher orders": Look("higher orders, $|C_2|$", "#0f766e", "--", "P"),
    "squared change": Look("squared change, $C_3$", "#a16207", "-.", "s"),
}
# What Lemma 5.3's induction leaves to each of them, 0.1 of 0.8.
ALLOWED = 1 / 8


def shares(result: OneStep) -> Figure:
    """Draw the size of the other three terms relative to the first-order term, step by step."""
    sizes, steps = result.shares(), np.arange(result.settings.steps)
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.8))
        for name, look in TERM_LOOKS.items():
            values = sizes[:, :, TERMS.index(name)]
            ax.fill_between(steps, values.min(axis=0), values.max(axis=0), color=look.color, alpha=0.18, linewidth=0)
            ax.plot(steps, np.median(values, axis=0), **look.line_style(), markevery=max(1, len(steps) // 10))
        ax.axhline(ALLOWED, color=INK, linestyle=":", linewidth=1)
        ax.annotate(
            "the induction leaves room for an eighth", (steps[-1], ALLOWED), xytext=(0, 5),
            textcoords="offset points", ha="right", fontsize=10,
        )  # fmt: skip
        ax.set(yscale="log", xlabel="step", ylabel="size / first-order term", ylim=(3e-10, 3))
        ax.legend(loc="lower left", fontsize=10)
    return figure
