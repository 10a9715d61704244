"""The pictures of the page on places to read with care."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float

from attnbook.core.figures import INK, band, style
from attnbook.multi_head.figures.looks import LOOKS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["residuals", "three_margins"]


def residuals(
    sizes: Float[np.ndarray, " sizes"],
    readings: Mapping[str, Float[np.ndarray, "seeds sizes"]],
    plateau: float,
) -> Figure:
    """Draw what is left of the first step when the signal is taken off, for each coefficient.

    Args:
        sizes: Samples of the first step.
        readings: ``quarter`` and ``half`` to the norms of what is left.
        plateau: Where a wrong coefficient must stay.

    Returns:
        The picture.
    """
    with style():
        figure, ax = plt.subplots(figsize=(5.4, 3.6))
        for name, norms in readings.items():
            band(ax, sizes, norms, LOOKS[name])
        ax.axhline(plateau, color=INK, linewidth=1, linestyle=":")
        start = np.median(readings["quarter"][:, 0]) / 2
        slope = start * (sizes / sizes[0]) ** -0.5
        ax.plot(sizes, slope, color=INK, linewidth=1, linestyle="--")
        ax.annotate(
            "slope −1/2", (sizes[-2], slope[-2]), xytext=(0, -14), textcoords="offset points", ha="right", fontsize=10
        )
        ax.annotate(
            r"$\zeta S\sqrt{2}/4$", (sizes[0], plateau), xytext=(0, -16), textcoords="offset points", fontsize=10
        )
        ax.set(xscale="log", yscale="log", xlabel="samples of the first step, $n_1$", ylabel="norm of what is left")
        ax.legend(fontsize=9.5, loc="lower left", bbox_to_anchor=(0.0, 0.16))
    return figure


def three_margins(
    pattern_norms: Float[np.ndarray, " norms"],
    margins: Mapping[str, Float[np.ndarray, " norms"]],
    crossing: float,
) -> Figure:
    """Draw the three margins of Section 5.3 against the norm of the patterns.

    Args:
        pattern_norms: $S$.
        margins: ``attention_margin``, ``tangent_margin`` and ``linear_margin`` to their values.
        crossing: The $S$ at which the first two are predicted to be equal.

    Returns:
        The picture.
    """
    with style():
        figure, ax = plt.subplots(figsize=(5.4, 3.8))
        for name, values in margins.items():
            ax.plot(pattern_norms, values, **LOOKS[name].line_style() | {"markevery": 4})
        ax.axvline(crossing, color=INK, linewidth=1, linestyle=":")
        ax.text(crossing * 1.03, 0.06, "predicted crossing", transform=ax.get_xaxis_transform(), fontsize=10)
        ax.set(xscale="log", yscale="log", xlabel="norm of the patterns, S", ylabel="margin")
        ax.set_xticks([1, 2, 3, 4, 5, 6], ["1", "2", "3", "4", "5", "6"])
        ax.minorticks_off()
        ax.legend(fontsize=9.5, loc="upper left")
    return figure
