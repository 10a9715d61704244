"""The book in two hours and in two lines a chapter: what stands above the first heading, and what to take away.

What a chapter says before its first heading (in short, picture, slider) has the address ``#quick``. The directive
``{two-hours}`` lists the chapters of the two-hour way (``chapters/map.toml``) with links to these addresses, and each
leads on to the next, by a line that nobody else sees (``style/book.css``). ``{take-away}`` shows the first two lines of
what each chapter wants to be remembered for, beginning with those of the way.
"""

from __future__ import annotations

import re
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from book_map import MAP, Chapter, markdown, read_map, two_hours
from docutils import nodes
from sphinx import addnodes
from sphinx.util.docutils import SphinxDirective

from attnbook import ledger

QUICK = "quick"
AFTER = "reference/take_away"  # where the two-hour way ends
HEADING = re.compile(r"^## ", re.MULTILINE)
FORMULA = re.compile(r"\$[^$]+\$")
LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")
TAKE_AWAY = re.compile(r"^## To take away\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
LINES = 2  # of each chapter


def quick_text(notebook: Path) -> str:
    """Return what a chapter says above its first heading below the title."""
    return HEADING.split("\n".join(markdown(notebook)), maxsplit=1)[0]


def words(text: str) -> int:
    """Return how many words a reader sees; a formula counts as one.

    Args:
        text: MyST.

    Returns:
        Their number.

    Example:
        >>> words("# A *title*, and [two words](a.md): $x + y$.")
        6
    """
    text = re.sub(r"^\(.*\)=$", "", text, flags=re.MULTILINE)
    return len(re.findall(r"\w[\w'.,-]*", LINK.sub(r"\1", FORMULA.sub("x", text))))


def take_away(notebook: Path) -> list[str]:
    """Return the list of what a chapter wants to be remembered for, without its bullets."""
    found = TAKE_AWAY.search("\n".join(markdown(notebook)))
    items = re.split(r"^[*-] ", found[1], flags=re.MULTILINE)[1:] if found else []
    return [" ".join(item.split()) for item in items]


class TwoHours(SphinxDirective):
    """The list of the two-hour way."""

    def run(self) -> list[nodes.Node]:
        """Return how long it is, and the list."""
        root = Path(self.env.srcdir)
        chapters = read_map(root)
        way = [chapters[name] for name in two_hours(root)]
        self.env.note_dependency(str(root / MAP))
        for chapter in way:
            self.env.note_dependency(str(root / f"{chapter.page}.ipynb"))
        total = sum(words(quick_text(root / f"{chapter.page}.ipynb")) for chapter in way)
        lines = [f"{number}. {{ref}}`{label(chapter)}`" for number, chapter in enumerate(way, 1)]
        text = f"{len(way)} answers, {round(total, -2):,} words in all, each with a picture and most with a slider:"
        return self.parse_text_to_nodes("\n".join([text, "", *lines]))


class TakeAway(SphinxDirective):
    """What all chapters want to be remembered for."""

    def run(self) -> list[nodes.Node]:
        """Return two lines of each chapter: those of the two-hour way first, then the others, part by part."""
        root, text = Path(self.env.srcdir), []
        self.env.note_dependency(str(root / MAP))
        titles = {paper.name: paper.title for paper in ledger.papers()}
        found = read_map(root)
        way = [found.pop(name) for name in two_hours(root)]
        others = [(titles[paper], list(rest)) for paper, rest in groupby(found.values(), lambda one: one.paper)]
        for title, chapters in [("The two-hour way", way), *others]:
            text += [f"## {title}", ""]
            for chapter in chapters:
                notebook = root / f"{chapter.page}.ipynb"
                self.env.note_dependency(str(notebook))
                items = [f"  * {item}" for item in take_away(notebook)[:LINES]]
                text += [f"{{doc}}`/{chapter.page}`", *[item[2:] for item in items], ""]
        return self.parse_text_to_nodes("\n".join(text), allow_section_headings=True)


def label(chapter: Chapter) -> str:
    """Return the name under which other pages link to the top of a chapter."""
    return f"{QUICK}-{chapter.name.replace('/', '-')}"


def mark(app: Any, doctree: nodes.document) -> None:
    """Give the top of a chapter its address, and lead on where its quick part ends."""
    name, root = app.env.docname.removeprefix("chapters/"), Path(app.srcdir)
    chapters = read_map(root)
    if name not in chapters:
        return
    page = next(node for node in doctree.children if isinstance(node, nodes.section))
    page["ids"].append(QUICK)
    chapter = chapters[name]
    app.env.get_domain("std").note_hyperlink_target(label(chapter), app.env.docname, QUICK, page[0].astext())
    app.env.note_dependency(str(root / MAP))
    following = dict(pairwise([*two_hours(root), AFTER])).get(name)
    if following is None:
        return
    first = next(place for place, node in enumerate(page.children) if isinstance(node, nodes.section))
    page.insert(first, _onward(app.env.docname, chapters.get(following)))


def _onward(here: str, chapter: Chapter | None) -> nodes.paragraph:
    """Return the line that ends the quick part: to the next chapter, or to the summary of the book."""
    kind, target = ("ref", label(chapter)) if chapter else ("doc", f"/{AFTER}")
    link = {"refdomain": "std", "reftype": kind, "reftarget": target, "refexplicit": False}
    reference = addnodes.pending_xref("", nodes.inline(), refdoc=here, refwarn=True, **link)
    return nodes.paragraph("", "", nodes.Text("In two hours: on to "), reference, classes=["quick-onward"])


def setup(app: Any) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_directive("two-hours", TwoHours)
    app.add_directive("take-away", TakeAway)
    app.connect("doctree-read", mark)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
