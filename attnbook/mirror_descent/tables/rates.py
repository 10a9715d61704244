"""The tables of the chapter on rates."""

from __future__ import annotations

import numpy as np

from attnbook.core.tables import Measured, Table
from attnbook.mirror_descent.experiments import cone, rates, staying
from attnbook.mirror_descent.theory.rates import bound_exponent

__all__ = ["constants", "explorer_text", "exponents"]


def constants(result: cone.Cone) -> Table:
    """Return what the literal constants mean, by exponent: medians over seeds and both choices of tokens."""
    rows: list[list[str | Measured]] = []
    for at, p in enumerate(result.settings.ps):
        literal = result.literal[..., at].ravel()
        angle = f"{np.degrees(np.arccos(1 - np.median(literal))):.2g}" if p == 2 else "-"
        ratio = (result.sampled / result.literal)[..., at].ravel()
        rows.append(
            [
                f"{p:g}",
                Measured(f"{np.median(result.delta[..., at]):.1g}"),
                Measured(f"{np.median(literal):.0e}"),
                Measured(f"{np.median(result.sharp[..., at]):.0e}"),
                Measured(f"{ratio.min():.2g} to {ratio.max():.2g}"),
                Measured(angle),
                Measured(f"{np.median(result.radius[..., at]):.0f}"),
            ]
        )
    heads = [
        "p",
        "δ",
        "literal μ₀",
        "sharper μ₀",
        "first violation over literal μ₀",
        "angle (degrees)",
        "ρ of R_δ, C = 1",
    ]
    caption = (
        f"Medians over {len(result.settings.seeds)} problems with two choices of tokens each; the ratio from its "
        "smallest to its largest value. The angle is the half opening of the literal cone: for p = 2 the divergence is "
        "one minus its cosine. Last: R_δ as a relative norm, with C = 1."
    )
    return Table(heads, rows, caption)


def exponents(result: rates.Rates) -> Table:
    """Return bound and measurement side by side, by exponent, with ranges over seeds."""
    rows: list[list[str | Measured]] = []
    for p in result.settings.ps:
        slope, grown, ratio = result.slopes(p), result.growth(p), result.ratio_at(p)
        steps = result.log_time[:, result.of(p), -1] / np.log(10)
        rows.append(
            [
                f"{p:g}",
                f"{-bound_exponent(p):.3g}",
                f"{-2 * bound_exponent(p):.3g}",
                *(Measured(f"{np.median(v):.2f} ({v.min():.2f} to {v.max():.2f})") for v in (slope, grown, ratio)),
                Measured(f"10^{np.median(steps):.0f}"),
            ]
        )
    heads = ["p", "bound", "twice", "slope of log D", "growth of the norm", "ρ over log t at ρ = 20", "plain time t"]
    caption = (
        f"Median and range over {len(result.settings.seeds)} seeds. Slope against the log of the norm beyond relative "
        f"norm {rates.BEYOND:g}; growth: slope of the relative norm ρ against log t beyond {rates.GROWING:g}; last: "
        "the sum of the plain step sizes at the end."
    )
    return Table(heads, rows, caption)


def explorer_text(result: staying.Staying, divergence: float, radius: float) -> str:
    """Return the numbers behind one picture of the slider."""
    first, second = result.place(divergence, radius)
    relative, kept = result.relative(divergence, radius), result.kept[:, :, first, second]
    return (
        f"Start at divergence {divergence:g}, relative norm {radius:g}: of {kept.size} runs {kept.sum():.0f} keep "
        f"their tokens; the divergence rises to at most {relative.max():.3g} times the initial one and ends at "
        f"{np.median(relative[..., -1]):.2g} times it in the median."
    )
