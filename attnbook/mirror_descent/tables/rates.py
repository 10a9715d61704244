"""The tables of the chapter on rates."""

from __future__ import annotations

import numpy as np

from attnbook.core.tables import Measured, Table
from attnbook.mirror_descent.experiments import cone, rates, staying
from attnbook.mirror_descent.rate_bounds import bound_exponent

__all__ = ["constants", "explorer_text", "exponents", "patience_text", "starts"]

# A relative norm that every run of the table passes.
FARTHER = 100.0


def constants(result: cone.Cone) -> Table:
    """Return what the literal constants mean, by exponent: medians over seeds and both choices of tokens."""
    rows: list[list[str | Measured]] = []
    for at, p in enumerate(result.settings.ps):
        literal = result.literal[..., at].ravel()
        ratio = (result.sampled / result.sharp)[..., at].ravel()
        rows.append(
            [
                f"{p:g}",
                Measured(f"{np.median(result.delta[..., at]):.1g}"),
                Measured(f"{np.median(literal):.0e}"),
                Measured(f"{np.median(result.sharp[..., at]):.0e}"),
                Measured(
                    "{} ({} to {})".format(
                        *(f"{float(f'{r:.2g}'):g}" for r in (np.median(ratio), ratio.min(), ratio.max()))
                    )
                ),
                Measured(f"{np.median(result.radius[..., at]):.0f}"),
            ]
        )
    heads = ["p", "δ", "literal μ₀", "sharper μ₀", "viol. / sharper", "norm ρ"]
    caption = (
        f"Medians over {len(result.settings.seeds)} problems with two choices of tokens each. Viol.: the first sampled "
        "violation, over the sharper μ₀, with the range over problems and choices. Last: our sufficient norm for Lemma "
        "20 as a relative norm, with C = 1."
    )
    return Table(heads, rows, caption)


def exponents(result: rates.Rates) -> Table:
    """Return bound and measurement side by side, by exponent, with ranges over seeds."""
    rows: list[list[str | Measured]] = []
    for p in result.settings.ps:
        slopes = result.slopes(p), result.slopes(p, beyond=FARTHER)
        steps = result.log_time[:, result.of(p), -1] / np.log(10)
        rows.append(
            [
                f"{p:g}",
                f"{-bound_exponent(p):.3g}",
                *(Measured(f"{np.median(v):.2f} ({v.min():.2f} to {v.max():.2f})") for v in slopes),
                Measured(f"{np.median(steps):.0f} ({steps.min():.0f} to {steps.max():.0f})"),
            ]
        )
    heads = ["p", "bound", f"slope, ρ > {rates.BEYOND:g}", f"slope, ρ > {FARTHER:g}", "log₁₀ t at the end"]
    caption = (
        f"Median and range over {len(result.settings.seeds)} seeds. Slope of the log of the divergence against the "
        "log of the norm, beyond two relative norms ρ; t is the sum of the plain step sizes."
    )
    return Table(heads, rows, caption)


def starts(result: staying.Staying) -> Table:
    """Return what becomes of the runs, by divergence and relative norm of their start."""
    rows: list[list[str | Measured]] = []
    for first, divergence in enumerate(result.settings.divergences):
        row: list[str | Measured] = [f"{divergence:g}"]
        for second, radius in enumerate(result.settings.radii):
            relative = result.relative(divergence, radius)
            beyond, outside = (relative.max(axis=-1) > 3).sum(), (relative[..., -1] > 1).sum()
            row.append(Measured(f"{result.kept[:, :, first, second].sum():.0f} / {beyond} / {outside}"))
        rows.append(row)
    heads = ["start", *(f"ρ = {radius:g}" for radius in result.settings.radii)]
    caption = (
        f"Of {result.kept[:, :, 0, 0].size} runs per divergence and relative norm ρ of the start, all exponents: how "
        "many keep their tokens / exceed three times the divergence of the start / end outside it."
    )
    return Table(heads, rows, caption)


def explorer_text(result: staying.Staying, divergence: float, radius: float) -> str:
    """Return the numbers behind one picture of the slider."""
    first, second = result.place(divergence, radius)
    relative, kept = result.relative(divergence, radius), result.kept[:, :, first, second]
    return (
        f"Start at divergence {divergence:g}, relative norm {radius:g}: of {kept.size} runs {kept.sum():.0f} keep "
        f"their tokens; the divergence rises to at most {relative.max():.3g} times the initial one and ends at "
        f"{np.median(relative[..., -1]):.2g} times it in the median; {(relative[..., -1] > 1).sum()} runs end farther "
        "off than they started."
    )


def patience_text(result: rates.Rates, digits: float, since: float) -> str:
    """Return the numbers behind one picture of the slider on time."""
    now, first = digits * np.log(10), since * np.log(10)
    at = result.of(2.0)
    pairs = zip(result.log_time[:, at, 1:], result.relative_norm[:, at, 1:], strict=True)
    norm = np.median([np.interp(now, time, norms) for time, norms in pairs])
    angles = np.degrees(np.arccos(1 - result.divergence_after(2.0, now)))
    left = [np.median(result.divergence_after(p, now) / result.divergence_after(p, first)) for p in result.settings.ps]
    shares = ", ".join(f"{share:.2g} (p = {p:g})" for p, share in zip(result.settings.ps, left, strict=True))
    return (
        f"Time 10 to the {digits:g}. For p = 2 the relative norm is {norm:.0f} and the angle {np.median(angles):.2g} "
        f"degrees (medians; seeds: {angles.min():.2g} to {angles.max():.2g}). Left of the divergence at 10 to the "
        f"{since:g}, medians: {shares}."
    )
