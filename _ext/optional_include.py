"""The directive ``{measurements} FILE``: a Markdown file written by a script, or a sentence when nobody ran it yet.

Its tables have many columns; a phone shows each row as a block (:func:`stack`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

STACKED = "stacked"  # in the metadata of a page: its tables are stacked


class Measurements(SphinxDirective):
    """Show a file named from the root of the repository."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the parsed file."""
        file = Path(self.env.srcdir) / self.arguments[0]
        self.env.note_dependency(str(file))  # a missing file counts as changed: the page is read again once it is there
        if file.is_file():
            self.env.metadata[self.env.docname][STACKED] = "all"
            return self.parse_text_to_nodes(file.read_text(encoding="utf-8"), allow_section_headings=True)
        return self.parse_text_to_nodes(f"*Not measured yet: `{self.arguments[0]}` does not exist.*")


def stack(app: Any, doctree: nodes.document) -> None:
    """Let a phone show each row of a page's tables as a block, in which every cell but the first names its column."""
    if STACKED not in app.env.metadata[app.env.docname]:
        return
    for table in doctree.findall(nodes.table):
        table["classes"].append("stacked-table")
        heads = [cell.astext() for cell in next(table.findall(nodes.thead)).findall(nodes.entry)]
        for row in next(table.findall(nodes.tbody)).findall(nodes.row):
            for head, cell in list(zip(heads, row.findall(nodes.entry), strict=True))[1:]:
                if cell.astext():
                    cell[0].insert(0, nodes.inline("", f"{head} ", classes=["column"]))


def setup(app: Any) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_directive("measurements", Measurements)
    app.connect("doctree-read", stack)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
