"""The directive ``{claims}``: shows claims of the ledger, with what has been measured about them.

    ```{claims}
    :paper: global_attention
    ```

Options choose claims: ``:paper:``, ``:chapter:`` (``paper/chapter``), ``:status:`` (a verdict), ``:notes:`` (only claims
to be read with care). Others change what is shown: ``:summary:`` only counts them by verdict, ``:brief:`` leaves out rules
and numbers, ``:filter:`` writes the search form for all claims of the page.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from html import escape
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective

LEDGER_PAGE = "reference/claims"
SCALES = {"book": "Ours, on a laptop", "paper": "Ours, full size"}
VERDICTS = ("reproduced", "reproduced in trend", "not reproduced", "contradicted", "not testable", "pending")


class Claims(SphinxDirective):
    """Render claims as MyST, parsed in place, so that formulas and links work as in any other text."""

    option_spec: ClassVar = {
        **dict.fromkeys(("paper", "chapter", "status"), directives.unchanged_required),
        **dict.fromkeys(("summary", "notes", "brief", "filter"), directives.flag),
    }

    def run(self) -> list[nodes.Node]:
        """Return the nodes of the chosen claims."""
        from attnbook import ledger

        self.env.metadata[self.env.docname]["ledger"] = fingerprint(self.env)
        if "status" in self.options and self.options["status"] not in VERDICTS:
            raise self.error(f"status: expected one of {', '.join(VERDICTS)}, got {self.options['status']!r}")
        papers = [p for p in ledger.papers() if self.options.get("paper", p.name) == p.name]
        if not papers:
            raise self.error(f"paper: the ledger has no paper {self.options.get('paper')!r}")
        chosen = [(c, v) for p in papers for c in p.claims if self.wanted(c, v := ledger.recorded(c, c.scale))]
        if "filter" in self.options:
            return self.parse_text_to_nodes(_form(papers, len(chosen)))
        if "summary" in self.options:
            return self.parse_text_to_nodes(_summary([v for _, v in chosen]))
        return self.parse_text_to_nodes("\n\n".join(self.card(c, v) for c, v in chosen) or "None so far.")

    def wanted(self, claim: Any, verdict: Any) -> bool:
        """Tell whether the options choose this claim."""
        options = self.options
        return (
            options.get("chapter", claim.chapter) == claim.chapter
            and options.get("status", verdict.outcome) == verdict.outcome
            and (bool(claim.note) or "notes" not in options)
        )

    def card(self, claim: Any, verdict: Any) -> str:
        """Write one claim: its head, the statement, and below it the numbers, the rule and the chapter."""
        here = self.env.docname == LEDGER_PAGE
        page = "" if here else self.env.app.builder.get_relative_uri(self.env.docname, LEDGER_PAGE)
        if here:
            self.env.get_domain("std").note_hyperlink_target(claim.id.lower(), LEDGER_PAGE, claim.id, claim.id)
        text = escape(f"{claim.id} {claim.where} {claim.statement}".lower().replace("\n", " "))
        parts = [
            f'<section class="claim" id="{claim.id}" data-paper="{claim.paper}" data-status="{verdict.outcome}"'
            + (f' data-text="{text}">' if here else ">"),
            f'<p class="claim-head"><a class="claim-id" href="{page}#{claim.id}">{claim.id}</a> '
            f'<span class="claim-where">{escape(claim.where)}</span> {badge(verdict.outcome)}</p>\n',
            claim.statement,
        ]
        if "brief" not in self.options:
            parts += [_facts(claim), self.rule(claim)]
        if claim.note and ("brief" not in self.options or "notes" in self.options):
            parts.append(f"**Read with care.** {claim.note}")
        return "\n\n".join(filter(None, parts)) + "\n\n</section>"

    def rule(self, claim: Any) -> str:
        """Write how the claim is judged, and where."""
        page = f"chapters/{claim.chapter}"
        known = page in self.env.found_docs
        chapter = f"{{doc}}`/{page}`" if known else f"`{claim.chapter}` (coming)"
        rule = f"Not testable: {claim.untestable}" if claim.untestable else f"`{claim.accept}`"
        return (
            f"<details><summary>Rule and chapter</summary>\n\nAccepted when: {rule}\n\nWhy this rule: {claim.why}\n\n"
            f"Chapter: {chapter}\n\n</details>"
        ).replace("Accepted when: Not testable", "Not testable")


def badge(outcome: str) -> str:
    """Return a verdict as HTML: a sign and the word, so that nobody needs the colour."""
    from attnbook.ledger.rendering import SIGNS

    return f'<span class="verdict verdict-{outcome.replace(" ", "-")}">{SIGNS[outcome]} {outcome}</span>'


def fingerprint(env: Any) -> str:
    """Return a digest of the ledger, the results and the list of pages: what a page with claims depends on."""
    root, total = Path(env.srcdir), hashlib.sha256(repr(sorted(env.found_docs)).encode())
    folders = root / "attnbook" / "ledger", root / "results"
    files = [file for folder in folders for file in folder.rglob("*.*") if file.suffix in (".json", ".py", ".toml")]
    for file in sorted([Path(__file__), *files]):
        total.update(file.name.encode() + file.read_bytes())
    return total.hexdigest()


def _facts(claim: Any) -> str:
    """The paper's numbers beside ours; empty while there are none."""
    from attnbook import ledger

    rows = []
    if claim.paper_value:
        rows.append(("Paper", "; ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in claim.paper_value.items())))
    for scale, label in SCALES.items():
        verdict = ledger.recorded(claim, scale)
        if verdict.measurement is not None:
            seeds = verdict.measurement.n_seeds
            how = f" ({seeds} seed{'s' * (seeds != 1)}; {verdict.outcome})"
            rows.append((label, ledger.render_values(verdict) + how))
    cells = "".join(f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in rows)
    return f'<dl class="claim-facts">{cells}</dl>' if rows else ""


def _summary(verdicts: list[Any]) -> str:
    counts = Counter(v.outcome for v in verdicts)
    shown = " ".join(f'<span class="claim-count"><b>{counts[v]}</b> {badge(v)}</span>' for v in VERDICTS if counts[v])
    return f'<p class="claim-summary"><span class="claim-count"><b>{len(verdicts)}</b> claims:</span> {shown}</p>'


def _form(papers: list[Any], total: int) -> str:
    def options(pairs: Any) -> str:
        return "".join(f'<option value="{escape(value)}">{escape(text)}</option>' for value, text in pairs)

    return (
        '<form class="claim-filter" role="search" aria-label="Filter the claims" hidden onsubmit="return false">'
        f'<label>Paper <select name="paper">{options([("", "all"), *((p.name, p.title) for p in papers)])}</select></label>'
        f'<label>Verdict <select name="status">{options([("", "all"), *((v, v) for v in VERDICTS)])}</select></label>'
        '<label>Text <input type="search" name="text" placeholder="id, place or word"></label>'
        f'<output aria-live="polite">{total} of {total} claims shown</output></form>'
    )


def read_again(app: Any, env: Any, added: set[str], changed: set[str], removed: set[str]) -> list[str]:
    """Name the pages that show claims and were read before the ledger, a result or the list of pages changed."""
    shown = {name: meta["ledger"] for name, meta in env.metadata.items() if "ledger" in meta}
    now = fingerprint(env) if shown else ""
    return [name for name, before in shown.items() if before != now and name in env.found_docs]


def add_filter(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Load the script of the filter on the ledger page alone."""
    if pagename == LEDGER_PAGE:
        app.add_js_file("claims.js", loading_method="defer")


def setup(app: Any) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_directive("claims", Claims)
    app.connect("env-get-outdated", read_again)
    app.connect("html-page-context", add_filter)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
