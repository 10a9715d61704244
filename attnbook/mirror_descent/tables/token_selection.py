"""The tables of the chapter on token selection, as notebooks show them."""

from __future__ import annotations

import numpy as np

from attnbook.core.tables import Measured, Table
from attnbook.mirror_descent.data import plane_tokens
from attnbook.mirror_descent.experiments import regularisation_path, token_selection
from attnbook.mirror_descent.figures.token_selection import NAMES
from attnbook.mirror_descent.holding import TwoRivals

__all__ = ["explorer_text", "fates", "holding_text", "lost"]


def fates(result: token_selection.TokenSelection) -> Table:
    """Return, by exponent, which choices of the small problems are locally optimal, and which training keeps."""
    norms, others = result.settings.relative_norms, result.others()
    rows: list[list[str | Measured]] = []
    for at, p in enumerate(result.settings.tried):
        local = result.local[:, at] > 0
        kinds = {
            "best tokens": local & ~others,
            "other, locally optimal": local & others,
            "not locally optimal": ~local,
        }
        for kind, which in kinds.items():
            kept = result.kept[:, :, at].transpose(0, 2, 1)[which].sum(axis=0)
            margin = f"{np.median(result.margin[:, at][which]):.2f}" if which.any() else "none"
            cells = [f"{which.sum()}", margin, *(f"{count:.0f}" for count in kept)]
            rows.append([f"{p:g}", kind, *map(Measured, cells)])
    caption = (
        f"All choices of {len(result.best)} problems: their number, their median margin at unit norm, and how many "
        f"training keeps from starts at relative norm {', '.join(f'{norm:g}' for norm in norms)}, after "
        f"{result.settings.steps} steps."
    )
    heads = ["p", "choice", "number", "margin", *(f"{norm:g}" for norm in norms)]
    return Table(heads, rows, caption, [("", 4), ("kept from", len(norms))])


def lost(result: regularisation_path.RegularisationPath) -> Table:
    """Return, by exponent, how many walks end with all best tokens, how far from the solution, and at what slope."""
    rows: list[list[str | Measured]] = []
    wrong = (result.best_tokens[..., -1] < 1).sum(axis=1)
    far, slopes = result.better("divergence")[..., -1], result.slopes()
    for at, p in enumerate(result.settings.ps):
        counts = [Measured(f"{count}") for count in wrong[:, at]]
        middle = Measured(f"{np.median(far[:, at]):.1g} ({far[:, at].min():.1g} to {far[:, at].max():.1g})")
        slope = Measured(f"{np.median(slopes[:, at]):.2f} ({slopes[:, at].min():.2f} to {slopes[:, at].max():.2f})")
        rows.append([f"{p:g}", *counts, middle, slope])
    started = result.started_tokens[..., -1] < 1
    caption = Measured(
        f"{started.sum()} of {started.size}.",
        f"Of {len(far)} seeds, at relative norm {result.settings.relative_norms[-1]:g}; median and range over seeds. "
        f"The slope is that of log divergence over log radius from relative norm {regularisation_path.FAR:g} on. "
        "Random starts lost, p = 2: ",
    )
    heads = ["p", "lost outwards", "lost inwards", "divergence, walk of lower loss", "slope"]
    return Table(heads, rows, caption)


def explorer_text(result: token_selection.TokenSelection, p: float, token: str) -> str:
    """Return the numbers behind one picture of the slider."""
    at, chosen = result.of(p), NAMES.index(token)
    solution, scores = result.plane[at, chosen], plane_tokens().token_scores[0, 0]
    support = [name for name, is_support in zip(NAMES, result.plane_support[at, chosen], strict=True) if is_support]
    better = [name for name in support if scores[NAMES.index(name)] >= scores[chosen]]
    margin = (np.abs(solution) ** p).sum() ** (-1 / p)
    beat = "beats" if len(better) == 1 else "beat"
    local = bool(result.plane_local[at, chosen])
    verdict = "locally optimal" if local else f"not locally optimal: {', '.join(better)} {beat} it"
    end = NAMES[int(result.plane_attention[at, chosen, -1].argmax())]
    far = result.settings.relative_norms[-1]
    leads = (plane_tokens().tokens[0, 0, chosen] - plane_tokens().tokens[0, 0]) @ solution
    slack = (leads[scores > scores[chosen]] - 1).min(initial=np.inf)
    near = f" The nearest token of higher score has slack {slack:.2f}; times {far:g}: {far * slack:.1f}."
    return (
        f"p = {p:g}: margin {margin:.2f}; support tokens of {token}: {', '.join(support)}; {token} is {verdict}. "
        f"Training from {far:g} times this solution ends at {end}."
    ) + (near if local and np.isfinite(slack) else "")


def holding_text(case: TwoRivals, leads: np.ndarray, relative_norms: tuple[float, ...], norm: float) -> str:
    """Return the numbers behind one picture; ``leads`` are those of E over A along training, ``(norms, steps)``."""
    here, end = norm * case.slack, leads[relative_norms.index(norm), -1]
    side = "below" if here < case.break_even else "above"
    fate = "A is ahead of E" if end < 0 else "E is kept"
    return (
        f"Start at relative norm {norm:g}: the extra lead is {norm:g} times the slack {case.slack:.3f}, "
        f"{here:.2f}, {side} the break-even of {case.break_even:.2f}, which belongs to relative norm "
        f"{case.break_even / case.slack:.0f}. After {leads.shape[1] - 1} steps: {fate}."
    )
