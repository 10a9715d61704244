"""The directives ``{chapters}`` and ``{connections}``, and what every chapter's page gets from the map.

``{chapters}`` is a table of all chapters, or with ``:part:`` of one paper's: question, prerequisites, time, claims.
``{connections}`` is a table of the links between results of different papers, with ``:part:`` of those that leave
one paper's chapters; ``:diagram:`` draws them.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar

import connections_svg
from book_map import MAP, Chapter, duration, full_size_seconds, linked, read_map, seconds
from chapter_cache import TIMES
from claims_page import fingerprint
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx import addnodes
from sphinx.util.docutils import SphinxDirective

from attnbook import ledger
from attnbook.ledger.rendering import SIGNS, scoreboards


class FromMap(SphinxDirective):
    """What both directives share: the chapters of the map, and that the page is read again when it changes."""

    option_spec: ClassVar = {"part": directives.unchanged_required, "diagram": directives.flag}

    def chapters(self) -> dict[str, Chapter]:
        """Return all chapters by name."""
        root = Path(self.env.srcdir)
        self.env.note_dependency(str(root / MAP))
        found = read_map(root)
        if (part := self.options.get("part")) and part not in {c.paper for c in found.values()}:
            raise self.error(f"part: the map has no part {part!r}")
        return found

    def wanted(self, chapter: Chapter) -> bool:
        """Tell whether the option ``:part:`` chooses this chapter."""
        return self.options.get("part", chapter.paper) == chapter.paper


class Chapters(FromMap):
    """A table of chapters."""

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        self.env.metadata[self.env.docname] |= {"ledger": fingerprint(self.env), TIMES: "of chapters"}
        found = self.chapters()
        rows = [self.row(chapter, found) for chapter in found.values() if self.wanted(chapter)]
        text = "\n".join(["| chapter | question | needs | time | claims |", "|---|---|---|---|---|", *rows])
        return self.parse_text_to_nodes(f"```{{table}}\n:class: chapter-table\n{text}\n```")

    def row(self, chapter: Chapter, found: dict[str, Chapter]) -> str:
        """Write one row."""
        notebook = Path(self.env.srcdir) / f"{chapter.page}.ipynb"
        self.env.note_dependency(str(notebook))
        times = time_of(self.env, chapter)
        if longer := duration(full_size_seconds(chapter.name)):
            times += f"<br>*full size {longer}*"
        cells = [f"{{doc}}`/{chapter.page}`", chapter.question, linked(chapter.needs, found) or "none", times]
        return f"| {' | '.join(cells)} | {verdicts(chapter.name)} |"


def time_of(env: Any, chapter: Chapter) -> str:
    """Return how long the run took whose outputs the page of a chapter shows: this book's, else the notebook's own."""
    run = env.attnbook_runs.get(chapter.page, {})
    stored = Path(env.srcdir) / f"{chapter.page}.ipynb"
    return duration(run.get("execution_seconds") or seconds(stored))


def verdicts(chapter: str) -> str:
    """Return the number of claims of a chapter, the paper's apart from this book's, and how many have each verdict."""
    boards = scoreboards([ledger.standing(c) for c in ledger.claims() if c.chapter == chapter])
    lines = []
    for source, counts in boards.items():
        signs = [f'{counts[v]}&nbsp;<abbr title="{v}">{SIGNS[v]}</abbr>' for v in SIGNS if counts[v]]
        lines.append(f"{source} {counts.total()}: {' '.join(signs)}")
    return "<br>".join(lines)


class Questions(FromMap):
    """The chapters by the questions that they ask."""

    def run(self) -> list[nodes.Node]:
        """Return a list of parts, each with the list of its chapters."""
        self.env.note_dependency(str(Path(self.env.srcdir) / MAP))
        lines = []
        for number, (paper, chapters) in enumerate(groupby(self.chapters().values(), lambda one: one.paper), 1):
            lines += [f"{number}. {{doc}}`/chapters/{paper}/index`", ""]
            lines += [*(f"   - {{doc}}`/{chapter.page}`" for chapter in chapters), ""]
        return self.parse_text_to_nodes("\n".join(lines))


class Connections(FromMap):
    """The links between results of different papers."""

    def run(self) -> list[nodes.Node]:
        """Return the table, or the diagram, which is drawn when the names of pages are known."""
        found = self.chapters()
        if "diagram" in self.options:
            return [connections_svg.diagram()]
        lines = []
        for chapter in filter(self.wanted, found.values()):
            for target, why in chapter.next:
                link = f"{{doc}}`{found[target].short} </{found[target].page}>`"
                first = f"{{doc}}`{chapter.short} </{chapter.page}>`"
                lines.append(f"| {first} | {link} | {why} |")
        text = "\n".join(["| after | read | because |", "|---|---|---|", *lines])
        return self.parse_text_to_nodes(f"```{{table}}\n:class: next-table\n{text}\n```")


def add_to_chapter(app: Any, doctree: nodes.document) -> None:
    """Put prerequisites and time below the title of a chapter, and the next results at its end."""
    name = app.env.docname.removeprefix("chapters/")
    root = Path(app.srcdir)
    chapter = read_map(root).get(name)
    sections = [node for node in doctree.children if isinstance(node, nodes.section)]
    if chapter is None or not sections:
        return
    app.env.note_dependency(str(root / MAP))
    page = sections[0]
    page.insert(1, _facts(chapter, time_of(app.env, chapter)))
    if chapter.next:
        page.append(_next(chapter))


def _facts(chapter: Chapter, time: str) -> nodes.paragraph:
    line = nodes.paragraph("", classes=["chapter-facts"])
    if chapter.needs:
        line += nodes.Text("Builds on ")
        for number, name in enumerate(chapter.needs):
            line += [nodes.Text(" and "), _link(chapter, name)] if number else [_link(chapter, name)]
        line += nodes.Text(". ")
    else:
        line += nodes.Text("Needs no other chapter. ")
    if time:
        line += nodes.Text(f"This page's code runs for about {time}, training included. ")
    line += [nodes.Text("Symbols: "), _link(chapter, "notation"), nodes.Text(".")]
    return line


def _next(chapter: Chapter) -> nodes.container:
    items = nodes.bullet_list()
    for name, why in chapter.next:
        items += nodes.list_item("", nodes.paragraph("", "", _link(chapter, name), nodes.Text(f". {why}")))
    head = nodes.paragraph("", "", nodes.strong("", "The same question in other parts"))
    return nodes.container("", head, items, classes=["chapter-next"])


def _link(chapter: Chapter, name: str) -> nodes.Node:
    """Return a link from a chapter to a page below ``chapters/`` that shows its title."""
    to = {"refdomain": "std", "reftype": "doc", "reftarget": f"/chapters/{name}", "refexplicit": False}
    return addnodes.pending_xref("", nodes.inline(), refdoc=chapter.page, refwarn=True, **to)


def setup(app: Any) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_directive("chapters", Chapters)
    app.add_directive("connections", Connections)
    app.add_directive("questions", Questions)
    app.connect("doctree-read", add_to_chapter)
    app.connect("doctree-resolved", connections_svg.draw)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
