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
    "first order": Look("first order, $|C_1|$", INK, ":", "o"),
    "squared change": Look("squared change, $C_3$", "#a16207", "-.", "s"),
}
# What Lemma 5.3's induction asks of the first-order term and allows each of the others.
ASKED, ALLOWED = 0.8, 0.1


def shares(result: OneStep) -> Figure:
    """Draw the sizes of the four terms in the unit of the induction, step by step."""
    sizes, steps = np.abs(result.terms) / result.unit[:, None, None], np.arange(result.settings.steps)
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.8))
        for name, look in TERM_LOOKS.items():
            values = sizes[:, :, TERMS.index(name)]
            ax.fill_between(steps, values.min(axis=0), values.max(axis=0), color=look.color, alpha=0.18, linewidth=0)
            ax.plot(steps, np.median(values, axis=0), **look.line_style(), markevery=max(1, len(steps) // 10))
        for level, text in ((ASKED, f"asked of $|C_1|$: {ASKED:g}"), (ALLOWED, f"allowed to the others: {ALLOWED:g}")):
            ax.axhline(level, color=INK, linestyle=":", linewidth=1)
            at, side = (steps[-1], "right") if level == ASKED else (steps[0], "left")
            ax.annotate(text, (at, level), xytext=(0, -13), textcoords="offset points", ha=side, fontsize=10)
        ax.set(yscale="log", xlabel="step", ylabel=r"size / $m\eta\lambda\|e\|^2$", ylim=(1e-7, 60))
        ax.legend(loc="center right", bbox_to_anchor=(1, 0.53), ncols=2, fontsize=10)
    return figure
