"""The slider of the page: the order of three margins, by strength of the patterns and share of relevant tokens."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from attnbook.core.figures import INK, Look, log_axis, style
from attnbook.multi_head import oracle
from attnbook.multi_head.data import Mixture

LOOKS = {
    "attention_margin": Look(r"saturated attention, $\gamma_{attn}$", "#0b5cad", "-", "o"),
    "tangent_margin": Look("linearised network, γ*", "#c2410c", "-.", "^"),
    "linear_margin": Look(r"uniform attention, $\gamma_{lin}$", "#5b5f66", "--", "s"),
}


def three_margins(relevant_fraction: float) -> Figure:
    """Draw the three margins against the norm of the patterns, without noise, for ten tokens and four patterns."""
    norms = np.geomspace(1, 6, 33)
    found = [_margins(_mixture(relevant_fraction, s)) for s in norms.tolist()]
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 2.9))
        for name, look in LOOKS.items():
            ax.plot(norms, [one[name] for one in found], markevery=4, **look.line_style())
        turn = oracle.crossing(_mixture(relevant_fraction))
        ax.axvline(turn, color=INK, linewidth=1, linestyle=":")
        ax.text(turn * 1.02, 0.06, "order turns", transform=ax.get_xaxis_transform(), fontsize=10)
        log_axis(ax, [1, 2, 3, 4, 5, 6], "norm of the patterns S")
        ax.set(yscale="log", ylabel="margin", ylim=(0.3, 3000))
        ax.legend(fontsize=9.5, loc="upper left")
    return figure


def three_margins_text(relevant_fraction: float) -> str:
    """Return the numbers behind one picture."""
    at, turn = _margins(_mixture(relevant_fraction, 3.0)), oracle.crossing(_mixture(relevant_fraction))
    return (
        f"A share of {relevant_fraction:g} of the tokens carries the label: the order turns at S = {turn:.2f}. At S = 3"
        f" the margins are {at['attention_margin']:.3g} (saturated attention), {at['tangent_margin']:.3g} (linearised) "
        f"and {at['linear_margin']:.3g} (uniform attention)."
    )


def _mixture(relevant_fraction: float, pattern_norm: float = 1.0) -> Mixture:
    return Mixture(10, 6, 4, pattern_norm, relevant_fraction)


def _margins(mixture: Mixture) -> dict[str, float]:
    of_theory = oracle.attention_margin(mixture), oracle.first_phase_margin(mixture), oracle.linear_margin(mixture)
    return dict(zip(LOOKS, of_theory, strict=True))
