"""Show verdicts: as HTML cards in notebooks, as short text in tables."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnbook.core.results import Measurement
    from attnbook.ledger.checking import Verdict

__all__ = ["SIGNS", "card", "number", "render_values", "words"]

# A sign beside the word, so that nobody needs the colour.
SIGNS = {
    "reproduced": "✓",
    "reproduced in trend": "≈",
    "contradicted": "≠",
    "not reproduced": "✗",
    "not testable": "–",
    "pending": "…",
}


# What of a claim is this book's own, by kind.
OWN = {
    "exploration": "this book's measurement",
    "exact": "algebra",
    "theorem": "this book's test of it",
    "qualitative": "this book's test of it",
}
# Longer cards show the verdicts at once and fold the numbers.
MOST_OPEN = 4


def number(value: float) -> str:
    """Return a number with three significant digits; whole numbers of up to five digits are written out.

    Args:
        value: Any number.

    Returns:
        Text such as ``0.0103``, ``12.5``, ``17500`` or ``3.1e-16``.

    Example:
        >>> number(0.010312), number(2.0), number(17500.0), number(3.14159e-16)
        ('0.0103', '2', '17500', '3.14e-16')
    """
    return f"{value:.0f}" if abs(value) < 1e5 and float(value).is_integer() else f"{value:.3g}"


def words(name: str) -> str:
    """Return the name of a measured value as it is read: an exponent p at its end gets its sign and its point.

    Args:
        name: A name in snake case.

    Returns:
        Text.

    Example:
        >>> words("max_angle_error"), words("share_p1_5"), words("slope_p3")
        ('max angle error', 'share, p = 1.5', 'slope, p = 3')
    """
    name = re.sub(r"_p(\d+)(?:_(\d+))?$", lambda found: ", p = " + ".".join(filter(None, found.groups())), name)
    return name.replace("_", " ")


def _around(name: str, measurement: Measurement) -> str:
    """The range over seeds, or that there was one only; nothing for what no seed enters."""
    if name not in measurement.spread:
        return ""
    low, high = measurement.spread[name]
    return f" [{number(low)}, {number(high)}]" if measurement.n_seeds > 1 else " (one seed)"


def render_values(verdict: Verdict) -> str:
    """Return what was measured as short text.

    Args:
        verdict: A verdict with or without a measurement.

    Returns:
        For example ``attention 0.0051 [0.0042, 0.0062]``: median and range over seeds.
    """
    if verdict.measurement is None:
        return ""
    measured = verdict.measurement
    return "; ".join(
        f"{words(name)} {number(value)}{_around(name, measured)}" for name, value in measured.values.items()
    )


def card(verdicts: Sequence[Verdict]) -> str:
    """Return an HTML table: statement and verdict of each claim, the paper's numbers beside ours, the rule.

    What varies from machine to machine stands in ``<span class="measured">``, so that stored
    notebooks can be compared without it.
    """
    fold = len(verdicts) > MOST_OPEN
    rows = "\n".join(_block(v, fold) for v in verdicts)
    seeds = max((v.measurement.n_seeds for v in verdicts if v.measurement), default=1)
    over = f"Over {seeds} seeds: median, or what the name says [smallest, largest]. " if seeds > 1 else ""
    note = f"<p>{over}{when}</p>" if (when := _when(verdicts)) or over else ""
    return f'<div class="claim-card tex2jax_process"><table><tbody>\n{rows}\n</tbody></table>{note}</div>'


def _when(verdicts: Sequence[Verdict]) -> str:
    """Say when the rules were set: before any number was known, or after a trial."""
    trials: dict[str, list[str]] = {}
    for v in verdicts:
        if v.claim.trial:
            trials.setdefault(_text(v.claim.trial), []).append(v.claim.id)
    after = [f"{_rules_of(ids)} set after {trial}." for trial, ids in trials.items()]
    ruled = sum(bool(v.claim.accept) for v in verdicts)
    others = ["Rules were fixed before the run."] if sum(map(len, trials.values())) < ruled else []
    if after and others:
        others = ["All other rules were fixed before the run."]
    return " ".join([*after, *others])


def _rules_of(ids: Sequence[str]) -> str:
    if len(ids) == 1:
        return f"The rule of {ids[0]} was"
    return f"The rules of {', '.join(ids[:-1])} and {ids[-1]} were"


def _block(v: Verdict, fold: bool) -> str:
    """Two rows: what is claimed and the verdict; what was measured and the rule, folded in long cards."""
    style = v.outcome.replace(" ", "-")
    kind = OWN.get(v.claim.kind, "")
    where = _text(v.claim.where) + (f" ({kind})" if kind else "")
    values, rule = _values(v), f"<code>{html.escape(v.claim.accept)}</code>"
    if fold:
        values = f"<details><summary>numbers and rule</summary>{values}<br>rule {rule}</details>"
        rule = ""
    return (
        f'<tr class="card-head"><td><b>{v.claim.id}</b> <span class="claim-where">{where}</span>'
        f"<br>{_text(v.claim.statement)}</td>"
        f'<td><span class="verdict verdict-{style}">{SIGNS[v.outcome]} {v.outcome}</span></td></tr>\n'
        f'<tr class="card-values"><td>{values}</td><td>{rule}</td></tr>'
    )


def _values(v: Verdict) -> str:
    measured = v.measurement.values if v.measurement else {}
    lines = []
    for name in dict.fromkeys([*v.claim.paper_value, *measured]):
        parts = [f"<i>{html.escape(words(name))}</i>"]
        if name in v.claim.paper_value:
            parts.append(f"paper {v.claim.paper_value[name]:g}")
        if v.measurement and name in measured:
            around = _around(name, v.measurement)
            parts.append(f'ours <b><span class="measured">{number(measured[name])}{around}</span></b>')
        lines.append(" · ".join(parts))
    return "<br>".join(lines)


def _text(markdown: str) -> str:
    r"""Escape a statement and give its formulas the delimiters \(...\) that every front end typesets."""
    pieces = html.escape(" ".join(markdown.split()), quote=False).split("$")
    return "".join(piece if i % 2 == 0 else rf"\({piece}\)" for i, piece in enumerate(pieces))
