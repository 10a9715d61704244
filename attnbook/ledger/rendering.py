"""Show verdicts: as HTML cards in notebooks, as short text in tables, counted on two scoreboards."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Sequence

from attnbook.core.results import Measurement, at_paper_size
from attnbook.ledger.judging import Verdict, recorded, standing
from attnbook.ledger.replication import replicated, replicated_size
from attnbook.ledger.schema import SETTINGS, SOURCES, Claim

__all__ = [
    "BOARDS",
    "SIGNS",
    "card",
    "held",
    "number",
    "origin",
    "own_runs",
    "render_values",
    "rules",
    "scoreboards",
    "stands",
    "words",
]

# A sign beside the word, so that nobody needs the colour.
SIGNS = {
    "reproduced": "✓",
    "consistent with the bound": "≤",
    "reproduced in trend": "≈",
    "contradicted": "≠",
    "not reproduced": "✗",
    "not testable": "–",
    "pending": "…",
}
OPENS = "cursor: pointer; list-style-type: disclosure-closed; list-style-position: inside"  # JupyterLab shows it bare
BOARDS = {"paper": "Statements of the papers", "book": "Findings of this book"}
SIZES = {"smoke": "at the size of tests", "book": "at the book's size", "full": "in a larger run"}


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


def origin(claim: Claim) -> str:
    """Return whose claim it is, or how the experiment lies to the hypotheses of what the paper states.

    Args:
        claim: A claim.

    Returns:
        For example ``outside the statement's hypotheses``; empty for a paper's statement whose setting is not said yet.
    """
    if claim.source == "book":
        return SOURCES["book"]
    return SETTINGS[claim.setting] if claim.setting else ""


def stands(verdict: Verdict) -> str:
    """Return the verdict that counts in words, where it is another one than this.

    Args:
        verdict: A verdict on some result.

    Returns:
        For example ``stands: not reproduced, at the paper's size over 20 seeds``; empty where the two agree or
        nothing is stored.
    """
    counts = standing(verdict.claim)
    if counts.measurement is None or counts.outcome == verdict.outcome:
        return ""
    return f"stands: {_with_size(counts)}"


def _with_size(v: Verdict) -> str:
    return f"{v.outcome}, {_at(v.size, v.claim)}" + (f" over {v.n_seeds} seeds" if v.n_seeds > 1 else "")


def _at(size: str, claim: Claim) -> str:
    """A size in words; the full one is the paper's own where the provenance of the stored result says so."""
    return "at the paper's size" if size == "full" and at_paper_size(claim.experiment) else SIZES[size]


def _larger(shown: Verdict) -> list[str]:
    """The verdicts of runs larger than the one that counts, where they are others than that one and not shown."""
    counts, sizes = standing(shown.claim), list(SIZES)
    larger = [recorded(shown.claim, size) for size in sizes[sizes.index(counts.size) + 1 :] if size != shown.size]
    return [_with_size(v) for v in larger if v.measurement and v.outcome != counts.outcome]


def held(verdict: Verdict) -> str:
    """Return how the verdict on the book's result fared on fresh seeds, with its size where another one counts.

    Args:
        verdict: A verdict.

    Returns:
        For example ``held in 5 of 5``, or ``not reproduced at the book's size (held in 5 of 5)`` where that verdict is
        not the one shown; empty while the claim has not been replicated.
    """
    found = replicated(verdict.claim)
    if found is None:
        return ""
    tried = replicated_size(verdict.claim.experiment)
    if (before := recorded(verdict.claim, tried).outcome) != verdict.outcome:
        return f"{before} {_at(tried, verdict.claim)} ({found})"
    return str(found) if tried == standing(verdict.claim).size else f"{found}, {_at(tried, verdict.claim)}"


def scoreboards(verdicts: Sequence[Verdict]) -> dict[str, Counter[str]]:
    """Count verdicts, what the papers state apart from what this book found.

    Args:
        verdicts: Verdicts.

    Returns:
        By source, in the order of :data:`BOARDS`, the number of claims with each outcome; no board without claims.
    """
    boards = {source: Counter(v.outcome for v in verdicts if v.claim.source == source) for source in BOARDS}
    return {source: board for source, board in boards.items() if board}


def rules(verdicts: Sequence[Verdict]) -> str:
    """Return how many rules are older than their measurement, and how many verdicts were tried on fresh seeds.

    Args:
        verdicts: Verdicts.

    Returns:
        One or two sentences.
    """
    ruled = [v for v in verdicts if v.claim.accept]
    after = sum(bool(v.claim.trial) for v in ruled)
    before = f"Rules written down before the measurement: {len(ruled) - after}"
    text = f"{before}; after a look at results, which the claim names: {after}."
    again = [found for v in ruled if (found := replicated(v.claim))]
    unstable = sum(found.unstable for found in again)
    tried = "1 verdict" if len(again) == 1 else f"{len(again)} verdicts"
    return f"{text} Tried again on fresh seeds: {tried}, unstable: {unstable}." if again else text


def own_runs(verdicts: Sequence[Verdict]) -> list[str]:
    """Return how runs of the reader's own differ from those of the book.

    Args:
        verdicts: Verdicts.

    Returns:
        A line for each difference, such as ``your run: steps 400 (6000); not the run by which the claims are judged``.
    """
    return list(dict.fromkeys(f"your run: {v.own}" for v in verdicts if v.own))


def card(verdicts: Sequence[Verdict]) -> str:
    """Return an HTML table with a row per claim: what is claimed and the verdict; numbers and rule are folded.

    What varies from machine to machine stands in ``<span class="measured">``, so that stored
    notebooks can be compared without it.
    """
    rows = "\n".join(map(_row, verdicts))
    seeds = max((v.n_seeds for v in verdicts), default=1)
    over = [f"Numbers over {seeds} seeds: median, or what the name says [smallest, largest]."] if seeds > 1 else []
    judged = [v for v in verdicts if not v.own]
    own = [f"{html.escape(run[0].upper() + run[1:])}." for run in own_runs(verdicts)]
    note = " ".join([*own, *over, *([rules(judged)] if judged or not own else [])])
    return f'<div class="claim-card tex2jax_process"><table><tbody>\n{rows}\n</tbody></table><p>{note}</p></div>'


def _row(v: Verdict) -> str:
    left = 'style="text-align: left"'  # JupyterLab sets tables to the right
    rule = f"Accepted when <code>{html.escape(v.claim.accept)}</code>" if v.claim.accept else ""
    trial = f"The rule was set after {_text(v.claim.trial)}." if v.claim.trial else ""
    note = f"<b>Read with care.</b> {_text(v.claim.note)}" if v.claim.note else ""
    facts = "<br>".join(filter(None, [_values(v), rule, trial, note]))
    details = f'<details><summary style="{OPENS}">numbers and rule</summary>{facts}</details>' if facts else ""
    kind = v.outcome.replace(",", "").replace(" ", "-")
    badge = f'<span class="verdict verdict-{kind}">{SIGNS.get(v.outcome, "–")} {v.outcome}</span>'
    remarks = [f'<span class="claim-remark">{remark}</span>' for remark in _remarks(v) if remark]
    where = _text(v.claim.where) + (f" ({who})" if (who := origin(v.claim)) else "")
    return (
        f'<tr class="card-head"><td {left}><b>{v.claim.id}</b> <span class="claim-where">{where}</span>'
        f"<br>{_text(v.claim.statement)}{details}</td><td {left}>{'<br>'.join([badge, *remarks])}</td></tr>"
    )


def _remarks(v: Verdict) -> list[str]:
    """What is known of other runs, which says nothing about one of the reader's own."""
    return [] if v.own else [stands(v), held(v), *_larger(v)]


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
    r"""Write a statement as HTML: names in backquotes as code, formulas in \(...\), which every front end typesets."""
    pieces = html.escape(" ".join(markdown.split()), quote=False).split("$")
    code = r"<code>\1</code>"
    return "".join(rf"\({piece}\)" if i % 2 else re.sub("`(.+?)`", code, piece) for i, piece in enumerate(pieces))
