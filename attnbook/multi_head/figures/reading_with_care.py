"""The pictures of the page on places to read with care."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float

from attnbook.core.figures import INK, Look, band, style
from attnbook.multi_head.figures.looks import LOOKS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["bracket", "distance_gone", "residuals", "three_margins"]


def bracket(
    losses: Float[np.ndarray, " losses"],
    factors: Mapping[str, Float[np.ndarray, " losses"]],
    n_heads: int,
) -> Figure:
    r"""Draw the factor of eq. (21) against the loss, with the bracket as shown and as we read it.

    Args:
        losses: $\max\hat L^{\neg i}$.
        factors: ``shown`` and ``read`` to the factor.
        n_heads: $H$, for the title.

    Returns:
        The picture.
    """
    with style():
        figure, ax = plt.subplots(figsize=(5.4, 3.6))
        ax.axhspan(0, 1, color="#e5e7eb", zorder=0)
        ax.plot(losses, factors["read"], markevery=8, **Look("our reading", *_rest(LOOKS["quarter"])).line_style())
        ax.plot(losses, factors["shown"], markevery=8, **Look("as shown", *_rest(LOOKS["half"])).line_style())
        ax.axvline(np.log(2), color=INK, linewidth=1, linestyle=":")
        ax.annotate(
            "log 2", (np.log(2), 2.35), xytext=(4, 0), textcoords="offset points", ha="left", va="top", fontsize=10
        )
        ax.annotate("below one: impossible here", (1.97, 0.06), ha="right", fontsize=10)
        ax.set(xlim=(0, 2), ylim=(0, 2.4), xlabel=r"largest loss on the segment, max $\hat{L}^{\neg i}$")
        ax.set(ylabel="allowed growth of the distance", title=f"H = {n_heads:,.0f}".replace(",", "\u202f"))
        ax.legend(fontsize=9.5, loc="upper left")
    return figure


def distance_gone(
    gone: Float[np.ndarray, " distances"], losses: Mapping[str, Float[np.ndarray, " distances"]], title: str
) -> Figure:
    r"""Draw the loss of the worst sample, times $K$, against the distance gone towards the target of Corollary 2.

    Args:
        gone: Distances in units of $g_0$.
        losses: ``quarter`` (outputs start at $-B_\Phi$) and ``half`` (at twice that) to the loss times $K$.
        title: Which $B_\Phi$ and $K$.

    Returns:
        The picture.
    """
    labels = {"quarter": r"from $-B_\Phi$", "half": r"from $-2B_\Phi$"}
    with style():
        figure, ax = plt.subplots(figsize=(5.4, 3.6))
        ax.axhspan(1e-9, 1, color="#e5e7eb", zorder=0)
        for name, label in labels.items():
            ax.plot(gone, losses[name], markevery=10, **Look(label, *_rest(LOOKS[name])).line_style())
        for at, text in ((1.0, "$g_0$"), (2**0.5, r"$\sqrt{2}\,g_0$")):
            ax.axvline(at, color=INK, linewidth=1, linestyle=":")
            ax.annotate(text, (at, 3e-4), xytext=(4, 0), textcoords="offset points", fontsize=10.5)
        ax.annotate("small enough", (0.02, 1), xytext=(0, -13), textcoords="offset points", fontsize=10)
        ax.set(yscale="log", xlim=(0, 1.7), ylim=(1e-4, 1e8), xlabel=r"distance gone, over $g_0$")
        ax.set(ylabel="largest loss, times K", title=title)
        ax.legend(fontsize=9.5, loc="upper right")
    return figure


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


def _rest(look: Look) -> tuple[str, str | tuple[int, tuple[int, ...]], str]:
    return look.color, look.line, look.marker
