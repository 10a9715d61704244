"""Show verdicts: as HTML cards in notebooks, as short text in tables."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnbook.ledger.checking import Verdict

__all__ = ["SIGNS", "card", "number", "render_values"]

# A sign beside the word, so that nobody needs the colour.
SIGNS = {
    "reproduced": "✓",
    "reproduced in trend": "≈",
    "contradicted": "✗",
    "not reproduced": "✗",
    "not testable": "–",
    "pending": "…",
}


def number(value: float) -> str:
    """Return a number with three significant digits.

    Args:
        value: Any number.

    Returns:
        Text such as ``0.0103``, ``12.5`` or ``3.1e-16``.

    Example:
        >>> number(0.010312), number(2.0), number(3.14159e-16)
        ('0.0103', '2', '3.14e-16')
    """
    return f"{value:.3g}"


def render_values(verdict: Verdict) -> str:
    """Return what was measured as short text.

    Args:
        verdict: A verdict with or without a measurement.

    Returns:
        For example ``attention 0.0051 [0.0042, 0.0062]``: median and range over seeds.
    """
    if verdict.measurement is None:
        return ""
    spread = verdict.measurement.spread
    parts = []
    for name, value in verdict.measurement.values.items():
        around = f" [{number(spread[name][0])}, {number(spread[name][1])}]" if name in spread else ""
        parts.append(f"{name.replace('_', ' ')} {number(value)}{around}")
    return "; ".join(parts)


def card(verdicts: Sequence[Verdict]) -> str:
    """Return an HTML table: claim, the paper's numbers, ours, the rule, the verdict.

    What varies from machine to machine stands in ``<span class="measured">``, so that stored
    notebooks can be compared without it.
    """
    rows = "\n".join(_row(v) for v in verdicts)
    seeds = max((v.measurement.n_seeds for v in verdicts if v.measurement), default=1)
    heads = "".join(f"<th>{head}</th>" for head in ("claim", "the paper", "ours", "rule", "verdict"))
    return (
        f'<div class="claim-card"><table><thead><tr>{heads}</tr></thead><tbody>\n{rows}\n</tbody></table>'
        f"<p>Medians over {seeds} seeds, [smallest, largest].</p></div>"
    )


def _row(v: Verdict) -> str:
    style = v.outcome.replace(" ", "-")
    return (
        f"<tr><td><b>{v.claim.id}</b><br>{html.escape(v.claim.where)}</td>"
        f"<td>{_paper(v.claim.paper_value)}</td>"
        f'<td><span class="measured">{html.escape(render_values(v))}</span></td>'
        f"<td><code>{html.escape(v.claim.accept)}</code></td>"
        f'<td><span class="verdict verdict-{style}">{SIGNS[v.outcome]} {v.outcome}</span></td></tr>'
    )


def _paper(values: Mapping[str, float]) -> str:
    return (
        html.escape("; ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in values.items())) or "no number"
    )
