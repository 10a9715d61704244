"""The parts of a claim as MyST and HTML; ``claims_page`` puts them together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from html import escape

from attnbook import ledger
from attnbook.ledger.rendering import SIGNS, words

SCALES = {"book": "Ours, on a laptop", "paper": "Ours, full size"}


def badge(outcome: str) -> str:
    """Return a verdict as HTML: a sign and the word, so that nobody needs the colour."""
    return f'<span class="verdict verdict-{outcome.replace(" ", "-")}">{SIGNS[outcome]} {outcome}</span>'


def head(claim: ledger.Claim, outcome: str, ledger_page: str) -> str:
    """Return the first line of a claim: its id, which leads to its place on the ledger page, the place, the verdict."""
    return (
        f'<p class="claim-head"><a class="claim-id" href="{ledger_page}#{claim.id}">{claim.id}</a> '
        f'<span class="claim-where">{escape(claim.where)}</span> {badge(outcome)}</p>\n'
    )


def facts(claim: ledger.Claim) -> str:
    """Return the paper's numbers beside ours; empty while there are none."""
    rows = []
    if claim.paper_value:
        values = (f"{words(name)} {value:g}" for name, value in claim.paper_value.items())
        rows.append(("Paper", "; ".join(values)))
    for scale, label in SCALES.items():
        verdict = ledger.recorded(claim, scale)
        if verdict.measurement is not None:
            seeds = verdict.measurement.n_seeds
            how = f" ({seeds} seed{'s' * (seeds != 1)}; {verdict.outcome})"
            rows.append((label, ledger.render_values(verdict) + how))
    cells = "".join(f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in rows)
    return f'<dl class="claim-facts">{cells}</dl>' if rows else ""


def rule(claim: ledger.Claim) -> str:
    """Return how the claim is judged, its kind, and the section of the chapter that shows it."""
    judged = f"Not testable: {claim.untestable}" if claim.untestable else f"Accepted when `{claim.accept}`"
    trial = [f"The rule was set after {claim.trial}."] if claim.trial else []
    kind = f"Kind: *{claim.kind}*, {ledger.KINDS[claim.kind]}."
    parts = [judged, f"Why this rule: {claim.why}", *trial, kind, f"Shown in {{shown}}`{claim.id}`."]
    return "\n\n".join(["<details><summary>Rule and chapter</summary>", *parts, "</details>"])


def summary(outcomes: list[str]) -> str:
    """Return the number of claims, in all and for each verdict."""
    counts = Counter(outcomes)
    shown = " ".join(f'<span class="claim-count"><b>{counts[v]}</b> {badge(v)}</span>' for v in SIGNS if counts[v])
    return f'<p class="claim-summary"><span class="claim-count"><b>{len(outcomes)}</b> claims:</span> {shown}</p>'


def form(papers: list[ledger.Paper], total: int) -> str:
    """Return the search form; it stays hidden unless its script runs."""

    def select(label: str, name: str, pairs: Iterable[tuple[str, str]]) -> str:
        options = "".join(f'<option value="{escape(value)}">{escape(text)}</option>' for value, text in pairs)
        return f'<label>{label} <select name="{name}"><option value="">all</option>{options}</select></label>'

    return (
        '<form class="claim-filter" role="search" aria-label="Filter the claims" hidden onsubmit="return false">'
        + select("Paper", "paper", ((p.name, p.title) for p in papers))
        + select("Verdict", "status", ((v, v) for v in SIGNS))
        + select("Kind", "kind", ((kind, f"{kind}: {meaning}") for kind, meaning in ledger.KINDS.items()))
        + '<label>Text <input type="search" name="text" placeholder="id, place, chapter or word"></label>'
        + f'<output aria-live="polite">{total} of {total} claims shown</output>'
        + '<button type="reset">Show all</button></form>'
    )
