"""The slider of the page: the order of three margins, by strength of the patterns and share of relevant tokens."""

from __future__ import annotations

from collections.abc import Callable

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from attnbook.core.figures import INK, Look, log_axis, style
from attnbook.multi_head import oracle
from attnbook.multi_head.data import Mixture

MARGINS: dict[Callable[[Mixture], float], Look] = {
    oracle.attention_margin: Look(r"saturated attention, $\gamma_{attn}$", "#0b5cad", "-", "o"),
    oracle.first_phase_margin: Look("linearised network, γ*", "#c2410c", "-.", "^"),
    oracle.linear_margin: Look(r"uniform attention, $\gamma_{lin}$", "#5b5f66", "--", "s"),
}


def three_margins(relevant_fraction: float) -> Figure:
    """Draw the three margins against the norm of the patterns, without noise, for ten tokens and four patterns."""
    norms = np.geomspace(1, 6, 33)
    mixtures = [_mixture(relevant_fraction, norm) for norm in norms.tolist()]
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 2.9))
        for margin, look in MARGINS.items():
            ax.plot(norms, [margin(mixture) for mixture in mixtures], markevery=4, **look.line_style())
        turn = oracle.crossing(_mixture(relevant_fraction))
        ax.axvline(turn, color=INK, linewidth=1, linestyle=":")
        ax.text(turn * 1.02, 0.06, "order turns", transform=ax.get_xaxis_transform(), fontsize=10)
        log_axis(ax, [1, 2, 3, 4, 5, 6], "norm of the patterns S")
        ax.set(yscale="log", ylabel="margin", ylim=(0.3, 3000))
        ax.legend(fontsize=9.5, loc="upper left")
    return figure


def three_margins_text(relevant_fraction: float) -> str:
    """Return the numbers behind one picture."""
    turn = oracle.crossing(_mixture(relevant_fraction))
    attention, tangent, linear = (f"{margin(_mixture(relevant_fraction, 3.0)):.3g}" for margin in MARGINS)
    return (
        f"A share of {relevant_fraction:g} of the tokens carries the label: the order turns at S = {turn:.2f}. At S = 3"
        f" the margins are {attention} (saturated attention), {tangent} (linearised) and {linear} (uniform attention)."
    )


def _mixture(relevant_fraction: float, pattern_norm: float = 1.0) -> Mixture:
    return Mixture(10, 6, 4, pattern_norm, relevant_fraction)
