"""Typeset ``$...$`` in docstrings.

Docstrings are reStructuredText, which would read the backslashes and stars of a formula as its own. So each formula
is swapped for a stand-in of the same length (tables keep their columns) before the docstring is parsed, and the
stand-in for a formula node afterwards.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.transforms import SphinxTransform

FORMULA = re.compile(r"(?<!`)\$([^$`]+)\$(?!`)")
FIRST, FILL = 0xE000, "\uf8ff"  # private characters of Unicode: no text has them
STAND_IN = re.compile(f"([\ue000-\uf8fe]){FILL}*")
formulas: list[str] = []


def hide(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Swap the formulas of a docstring for stand-ins."""
    lines[:] = [FORMULA.sub(_stand_in, line) for line in lines]


def _stand_in(match: re.Match[str]) -> str:
    if match[1] not in formulas:
        formulas.append(match[1])
    return chr(FIRST + formulas.index(match[1])).ljust(len(match[0]), FILL)


class ShowFormulas(SphinxTransform):
    """Swap stand-ins for formulas."""

    default_priority = 400

    def apply(self, **_: Any) -> None:
        """Change every text that has a stand-in."""
        for text in list(self.document.findall(nodes.Text)):
            if STAND_IN.search(text):
                text.parent.replace(text, self.parts(str(text)))

    def parts(self, text: str) -> list[nodes.Node]:
        """Split a text into plain text and formulas."""
        found: list[nodes.Node] = []
        for number, part in enumerate(STAND_IN.split(text)):
            if number % 2:
                found.append(nodes.math("", formulas[ord(part) - FIRST]))
            elif part:
                found.append(nodes.Text(part))
        return found


def setup(app: Any) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("autodoc-process-docstring", hide, priority=100)
    app.add_transform(ShowFormulas)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
