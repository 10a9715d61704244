"""The directive ``{room-reference} attnbook.<room>``: every module of a room, its library first, then its chapters."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Any

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective


class RoomReference(SphinxDirective):
    """The documentation of all modules, under a heading for the library and one for each chapter."""

    required_arguments = 1
    option_spec = {"level": directives.positive_int}  # noqa: RUF012  (docutils asks for a class variable)

    def run(self) -> list[nodes.Node]:
        """Return the parsed text."""
        text = reference(self.arguments[0], self.options.get("level", 2))
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def reference(room: str, level: int = 2) -> str:
    """Return the reference of a room as Markdown.

    Args:
        room: Its package.
        level: Depth of the headings.

    Returns:
        Headings and directives.
    """
    return "\n\n".join(
        f"{'#' * level} {heading}\n\n```{{eval-rst}}\n"
        + "\n\n".join(f".. automodule:: {name}\n   :members:" for name in names)
        + "\n```"
        for heading, names in modules(room).items()
        if names
    )


def modules(room: str) -> dict[str, list[str]]:
    """Return the modules of a room by heading: ``Library``, then the name of each folder."""
    found: dict[str, list[str]] = {"Library": []}
    for module in pkgutil.iter_modules(import_module(room).__path__):
        name = f"{room}.{module.name}"
        if module.ispkg:
            inner = pkgutil.iter_modules(import_module(name).__path__)
            found[f"`{module.name}`"] = [f"{name}.{one.name}" for one in inner]
        else:
            found["Library"].append(name)
    return found


def setup(app: Any) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_directive("room-reference", RoomReference)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
