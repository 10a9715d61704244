"""The directive ``{care}``: one place of a paper that should be read with care, with its running evidence.

    ```{care} range
    MH-ORD MH-ORD-linear
    ```

The argument is a sort of :data:`SORTS`; the content names claims. Their notes are the text, each once; statements,
verdicts, numbers and the sections that show them are folded below. ``{care} rest`` with the short name of a paper as
content gathers all notes of its claims that no other ``{care}`` before it on the page has shown.
"""

from __future__ import annotations

from html import escape
from typing import Any, ClassVar

import claims_html as write
from claims_page import fingerprint, ledger_page
from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from attnbook import ledger

SORTS = {
    "slip": "a slip of the text, no conclusion changes",
    "factor": "a factor",
    "range": "holds in a smaller range",
    "reading": "depends on the reading",
    "missing": "a formula or setting is missing",
    "open": "not verified",
    "fine": "right, with a remark",
}


class Care(SphinxDirective):
    """A place to read with care."""

    required_arguments = 1
    has_content = True
    option_spec: ClassVar = {}

    def run(self) -> list[nodes.Node]:
        """Return the notes and, folded, the claims behind them."""
        metadata = self.env.metadata[self.env.docname]
        metadata["ledger"] = fingerprint(self.env)
        shown = self.env.temp_data.setdefault("care", set())
        sort, names = self.arguments[0], " ".join(self.content).split()
        if sort == "rest":
            return self.parse_text_to_nodes(self.rest(names[0], shown))
        if sort not in SORTS:
            raise self.error(f"expected one of {', '.join(SORTS)}, got {sort!r}")
        shown.update(names)
        return self.parse_text_to_nodes(self.place(sort, [ledger.claim(name) for name in names]))

    def place(self, sort: str, claims: list[ledger.Claim]) -> str:
        """Write one place: its sort, the notes, the evidence."""
        notes = list(dict.fromkeys(" ".join(c.note.split()) for c in claims if c.note))
        if not notes:
            raise self.error(f"none of {', '.join(c.id for c in claims)} has a note")
        summary = " ".join(f"{c.id} {write.badge(ledger.standing(c).outcome)}" for c in claims)
        places = dict.fromkeys(c.where for c in claims)
        head = f'<p class="care-sort">{escape("; ".join([SORTS[sort], *places]))}</p>'
        fold = f'<details class="care"><summary>Evidence: {summary}</summary>'
        return "\n\n".join([head, *notes, fold, *map(self.evidence, claims), "</details>"])

    def evidence(self, claim: ledger.Claim) -> str:
        """Write one claim: place and verdict, statement, numbers, and the section that shows it."""
        page = self.env.app.builder.get_relative_uri(self.env.docname, ledger_page(claim.paper))
        verdict = ledger.standing(claim)
        shown = f"Shown in {{shown}}`{claim.id}`."
        return "\n\n".join(filter(None, [write.head(verdict, page), claim.statement, write.facts(verdict), shown]))

    def rest(self, paper: str, shown: set[str]) -> str:
        """List the other notes of a paper, each with the claims it belongs to."""
        page = self.env.app.builder.get_relative_uri(self.env.docname, ledger_page(paper))
        found: dict[str, list[str]] = {}
        for claim in ledger.claims():
            if claim.paper == paper and claim.note and claim.id not in shown:
                link = f'<a class="claim-id" href="{page}#{claim.id}">{claim.id}</a>'
                found.setdefault(" ".join(claim.note.split()), []).append(link)
        return "\n".join(f"- {note} <span class='care-ids'>{' '.join(ids)}</span>" for note, ids in found.items())


def setup(app: Any) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_directive("care", Care)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
