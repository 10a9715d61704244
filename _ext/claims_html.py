"""The parts of a claim as MyST and HTML; ``claims_page`` puts them together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from attnbook import ledger
from attnbook.core.results import at_paper_size
from attnbook.ledger import Verdict
from attnbook.ledger.rendering import BOARDS, SIGNS, held, origin, render_values, rules, scoreboards, words


def badge(outcome: str) -> str:
    """Return a verdict as HTML: a sign and the word, so that nobody needs the colour."""
    return f'<span class="verdict verdict-{outcome.replace(" ", "-")}">{SIGNS[outcome]} {outcome}</span>'


def head(verdict: Verdict, ledger_page: str) -> str:
    """Return the first line of a claim: its id, which leads to its place on the ledger page, the place, the verdict."""
    claim = verdict.claim
    where = claim.where + (f" ({who})" if (who := origin(claim)) else "")
    again = f' <span class="claim-remark">{found}</span>' if (found := held(verdict)) else ""
    outcome = f'<span class="claim-outcome">{badge(verdict.outcome)}{again}</span>'
    return (
        f'<p class="claim-head"><a class="claim-id" href="{ledger_page}#{claim.id}">{claim.id}</a> '
        f'<span class="claim-where">{escape(where)}</span> {outcome}</p>\n'
    )


def facts(counts: Verdict) -> str:
    """Return the paper's numbers beside ours; empty while there are none.

    A result that came out otherwise than the one that counts says so.
    """
    claim, rows = counts.claim, []
    if claim.paper_value:
        values = (f"{words(name)} {value:g}" for name, value in claim.paper_value.items())
        rows.append(("Paper", "; ".join(values)))
    full = "Ours, at the paper's size" if at_paper_size(claim.experiment) else "Ours, larger"
    for size, label in {"book": "Ours, on a laptop", "full": full}.items():
        verdict = ledger.recorded(claim, size)
        if verdict.measurement is not None:
            how = f"{verdict.n_seeds} seed{'s' * (verdict.n_seeds != 1)}"
            alone = "" if verdict.outcome == counts.outcome else f"; by itself {verdict.outcome}"
            rows.append((label, f"{render_values(verdict)} ({how}{alone})"))
    cells = "".join(f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in rows)
    return f'<dl class="claim-facts">{cells}</dl>' if rows else ""


def rule(claim: ledger.Claim) -> str:
    """Return how the claim is judged, and the section of the chapter that shows it."""
    judged = f"Not testable: {claim.untestable}" if claim.untestable else f"Accepted when `{claim.accept}`"
    trial = [f"The rule was set after {claim.trial}."] if claim.trial else []
    merged = [f"Replaces the former claims {', '.join(claim.merged)}."] if claim.merged else []
    parts = [judged, f"Why this rule: {claim.why}", *trial, *merged, f"Shown in {{shown}}`{claim.id}`."]
    return "\n\n".join(["<details><summary>Rule and chapter</summary>", *parts, "</details>"])


def summary(verdicts: Sequence[Verdict]) -> str:
    """Return the two scoreboards, and how many rules are older than their measurement."""
    lines = []
    for source, counts in scoreboards(verdicts).items():
        shown = " ".join(f'<span class="claim-count"><b>{counts[v]}</b> {badge(v)}</span>' for v in SIGNS if counts[v])
        head = f'<span class="claim-count">{BOARDS[source]}: <b>{counts.total()}</b></span>'
        lines.append(f'<p class="claim-summary">{head} {shown}</p>')
    return "\n".join([*lines, f'<p class="claim-rules">{rules(verdicts)}</p>'])


def form(total: int) -> str:
    """Return the search form; it stays hidden unless its script runs."""

    def select(label: str, name: str, pairs: Iterable[tuple[str, str]]) -> str:
        options = "".join(f'<option value="{escape(value)}">{escape(text)}</option>' for value, text in pairs)
        return f'<label>{label} <select name="{name}"><option value="">all</option>{options}</select></label>'

    return (
        '<form class="claim-filter" role="search" aria-label="Filter the claims" hidden onsubmit="return false">'
        + select("Verdict", "status", ((v, v) for v in SIGNS))
        + select("Whose", "source", ledger.SOURCES.items())
        + '<label>Text <input type="search" name="text" placeholder="id, place, chapter or word"></label>'
        + f'<output aria-live="polite">{total} of {total} claims shown</output>'
        + '<button type="reset">Show all</button></form>'
    )
