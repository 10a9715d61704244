"""What a network needs: the pictures on the smallest working width and on input norms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np

from attnbook.core.figures import INK, band, style
from attnbook.softmax_ntk.experiments.input_norms import InputNorms
from attnbook.softmax_ntk.experiments.runs import ACTIVATIONS
from attnbook.softmax_ntk.experiments.smallest_width import SmallestWidth
from attnbook.softmax_ntk.figures.lazy_training import LOOKS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["smallest_widths", "steps_against_norm"]


def smallest_widths(result: SmallestWidth) -> Figure:
    """Draw the smallest working width against the number of samples, one dot per network, beside the counting bound."""
    sizes = np.array(result.settings.sizes)
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.6))
        ax.plot(sizes, result.counting_bound(), color=INK, linewidth=1, linestyle=":")
        middle = (sizes[len(sizes) // 2], result.counting_bound()[len(sizes) // 2])
        ax.annotate("$2n/d_{in}$", middle, xytext=(-8, 10), textcoords="offset points", ha="right")
        for j, name in enumerate(ACTIVATIONS):
            widths, look = result.width[:, :, j], LOOKS[name]
            at = sizes * 2 ** (0.05 * (j - 1))
            ax.plot(np.broadcast_to(at, widths.shape).T, widths.T, look.marker, color=look.color, alpha=0.35)
            ax.plot(at, np.median(widths, axis=0), **look.line_style())
        known = result.width[np.isfinite(result.width)]
        ticks = [m for m in result.settings.widths if known.min() / 1.5 <= m <= 1.5 * known.max()]
        ax.set(xscale="log", yscale="log", xlabel="samples", ylabel="smallest working width")
        ax.set_xticks(sizes, [str(n) for n in sizes])
        ax.set_yticks(ticks, [str(m) for m in ticks])
        ax.minorticks_off()
        ax.legend()
    return figure


def steps_against_norm(result: InputNorms) -> Figure:
    """Draw the steps to the target against the lowest input norm, one panel per weight scale."""
    lowest, s = np.array(result.settings.lowest), result.settings
    with style():
        figure, axes = plt.subplots(1, len(s.scales), figsize=(7.2, 3.9), sharey=True, squeeze=False)
        for i, (ax, scale) in enumerate(zip(axes[0], s.scales, strict=True)):
            ax.axhline(s.max_steps, color=INK, linewidth=0.8, linestyle=":")
            for j, name in enumerate(ACTIVATIONS):
                band(ax, lowest, result.steps[:, i, :, j], LOOKS[name])
            ax.set(yscale="log", title=f"weight scale {scale:g}", xlabel="lowest input norm", xlim=(1.05, 0.15))
            ax.set_xticks(lowest, [f"{low:g}" for low in lowest])
        axes[0, 0].annotate("given up", (1, s.max_steps), xytext=(0, -13), textcoords="offset points", fontsize=10)
        axes[0, 0].set_ylabel("steps to a thousandth")
        axes[0, 0].legend(loc="center left", bbox_to_anchor=(0.0, 0.68))
    return figure
