"""The directive ``{claims}``: shows claims of the ledger, with what has been measured about them.

    ```{claims}
    :paper: global_attention
    ```

``:paper:``, ``:chapter:`` (``paper/chapter``), ``:status:`` (a verdict) and ``:notes:`` (only claims to be read with
care) choose claims. ``:summary:`` only counts them by verdict, ``:brief:`` leaves out rules and numbers, ``:filter:``
writes the search form for all claims of the page. The ledger has a page for each paper, to which the links of claims
lead; its first page counts.
"""

from __future__ import annotations

import hashlib
from functools import cache
from html import escape
from pathlib import Path
from typing import Any, ClassVar

import claims_html as write
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx import addnodes
from sphinx.util.docutils import SphinxDirective

from attnbook import ledger

LEDGER = "reference/claims"

# Hundreds of formulas are typeset when they come into view.
LAZY = "window.MathJax.loader = {load: ['ui/lazy']};"


def ledger_page(paper: str) -> str:
    """Return the name of the page that shows all claims of a paper."""
    return f"{LEDGER}_{paper}"


class Claims(SphinxDirective):
    """Render claims as MyST, parsed in place, so that formulas and links work as in any other text."""

    option_spec: ClassVar = {
        **dict.fromkeys(("paper", "chapter", "status"), directives.unchanged_required),
        **dict.fromkeys(("summary", "notes", "brief", "filter"), directives.flag),
    }

    def run(self) -> list[nodes.Node]:
        """Return the nodes of the chosen claims."""
        self.env.metadata[self.env.docname]["ledger"] = fingerprint(self.env)
        if (status := self.options.get("status")) not in (None, *write.SIGNS):
            raise self.error(f"status: expected one of {', '.join(write.SIGNS)}, got {status!r}")
        papers = [p for p in ledger.papers() if self.options.get("paper", p.name) == p.name]
        if not papers:
            raise self.error(f"paper: the ledger has no paper {self.options.get('paper')!r}")
        verdicts = [ledger.standing(c) for paper in papers for c in paper.claims]
        chosen = [v for v in verdicts if self.wanted(v)]
        return [*self.index(chosen), *self.parse_text_to_nodes(self.text(papers, chosen))]

    def index(self, chosen: list[ledger.Verdict]) -> list[nodes.Node]:
        """Enter the claims of the ledger page into the index: the search reads it, too."""
        if not self.env.docname.startswith(f"{LEDGER}_") or {"filter", "summary"} & set(self.options):
            return []
        entries = [("single", i, v.claim.id, "main", None) for v in chosen for i in (v.claim.id, *v.claim.merged)]
        return [addnodes.index(entries=entries)]

    def wanted(self, verdict: ledger.Verdict) -> bool:
        """Tell whether the options choose this claim."""
        options, claim = self.options, verdict.claim
        return (
            options.get("chapter", claim.chapter) == claim.chapter
            and options.get("status", verdict.outcome) == verdict.outcome
            and (bool(claim.note) or "notes" not in options)
        )

    def text(self, papers: list[ledger.Paper], chosen: list[ledger.Verdict]) -> str:
        """Write what the options ask for."""
        if "filter" in self.options:
            return write.form(len(chosen))
        if "summary" in self.options:
            home = f"{ledger_page(papers[0].name)}.html".split("/")[-1]
            begin = f'<div data-prefix="{papers[0].prefix}" data-page="{home}">' if len(papers) == 1 else "<div>"
            return f"{begin}\n{write.summary(chosen)}\n</div>"
        return "\n\n".join(map(self.card, chosen)) or "None so far."

    def card(self, verdict: ledger.Verdict) -> str:
        """Write one claim: its head, the statement, and below it the numbers, the rule and the note."""
        claim, here, page, search = verdict.claim, self.env.docname, "", ""
        home = ledger_page(claim.paper)
        if here == home:  # the place that all links to a claim lead to
            self.env.get_domain("std").note_hyperlink_target(claim.id.lower(), here, claim.id, claim.id)
            ids = " ".join([claim.id, *claim.merged])
            words = f"{ids} {claim.where} {claim.chapter} {claim.statement}".lower().replace("\n", " ")
            search = f' data-source="{claim.source}" data-text="{escape(words)}"'
        else:
            page = self.env.app.builder.get_relative_uri(here, home)
        brief, notes = "brief" in self.options, "notes" in self.options
        status = f'data-status="{verdict.outcome}"'
        parts = [
            f'<section class="claim" id="{claim.id}" data-paper="{claim.paper}" {status}{search}>',
            "".join(f'<span id="{old}"></span>' for old in claim.merged if search),
            write.head(verdict, page),
            claim.statement,
            "" if brief else write.facts(verdict),
            "" if brief else write.rule(claim),
            f"**Read with care.** {claim.note}" if claim.note and (notes or not brief) else "",
            "</section>",
        ]
        return "\n\n".join(filter(None, parts))


def fingerprint(env: Any) -> str:
    """Return a digest of what a page with claims depends on: the ledger, the results and the list of pages."""
    return _digest(Path(env.srcdir), frozenset(env.found_docs))


@cache
def _digest(root: Path, pages: frozenset[str]) -> str:
    """Read all these files once in a build."""
    total = hashlib.sha256(repr(sorted(pages)).encode())
    kinds = "chapters/*/claims.toml", "attnbook/ledger/*.py", "results/**/*.json", "_ext/claims*.py"
    for file in sorted(file for kind in kinds for file in root.glob(kind)):
        total.update(file.relative_to(root).as_posix().encode() + file.read_bytes())
    return total.hexdigest()


def read_again(app: Any, env: Any, added: set[str], changed: set[str], removed: set[str]) -> list[str]:
    """Name the pages that show claims and were read before the ledger, a result or the list of pages changed."""
    shown = {name: meta["ledger"] for name, meta in env.metadata.items() if "ledger" in meta}
    now = fingerprint(env) if shown else ""
    return [name for name, before in shown.items() if before != now and name in env.found_docs]


def add_filter(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Load the script of the filter on the pages of the ledger alone."""
    if pagename.startswith(LEDGER):
        app.add_js_file("claims.js", loading_method="defer", priority=100)  # ready before the formulas are
        app.add_js_file(None, body=LAZY, priority=501)  # after MathJax's settings, before MathJax


def setup(app: Any) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_directive("claims", Claims)
    app.connect("env-get-outdated", read_again)
    app.connect("html-page-context", add_filter)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
