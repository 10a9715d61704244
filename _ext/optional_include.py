"""The directive ``{measurements} FILE``: a Markdown file written by a script, or a sentence when nobody ran it yet.

Its tables have many columns; a phone shows each row as a block (:func:`stacked`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective


class Measurements(SphinxDirective):
    """Show a file named from the root of the repository."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the parsed file."""
        file = Path(self.env.srcdir) / self.arguments[0]
        self.env.note_dependency(str(file))  # a missing file counts as changed: the page is read again once it is there
        if file.is_file():
            return stacked(self.parse_text_to_nodes(file.read_text(encoding="utf-8"), allow_section_headings=True))
        return self.parse_text_to_nodes(f"*Not measured yet: `{self.arguments[0]}` does not exist.*")


def stacked(found: list[nodes.Node]) -> list[nodes.Node]:
    """Let a phone show each row of these tables as a block, in which every cell but the first names its column."""
    for table in (table for node in found for table in node.findall(nodes.table)):
        table["classes"].append("stacked-table")
        heads = [cell.astext() for cell in next(table.findall(nodes.thead)).findall(nodes.entry)]
        for row in next(table.findall(nodes.tbody)).findall(nodes.row):
            for head, cell in list(zip(heads, row.findall(nodes.entry), strict=True))[1:]:
                if cell.astext():
                    cell[0].insert(0, nodes.inline("", f"{head} ", classes=["column"]))
    return found


def setup(app: Any) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_directive("measurements", Measurements)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
