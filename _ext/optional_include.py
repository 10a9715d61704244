"""The directive ``{measurements} FILE``: a Markdown file written by a script, or a sentence when nobody ran it yet."""

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
            return self.parse_text_to_nodes(file.read_text(encoding="utf-8"), allow_section_headings=True)
        return self.parse_text_to_nodes(f"*Not measured yet: `{self.arguments[0]}` does not exist.*")


def setup(app: Any) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_directive("measurements", Measurements)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
