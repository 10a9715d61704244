"""Loads the script of a training panel on the pages that have one, and on no other."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes

PANEL = re.compile(r'<div class="attnbook-train" data-kind="(\w+)"')


def kinds(doctree: nodes.document) -> set[str]:
    """Return the kinds of panels of a page."""
    return {kind for output in doctree.findall(nodes.raw) for kind in PANEL.findall(output.astext())}


def add_scripts(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Load what its panels share, then one script for each kind."""
    found = sorted(kinds(doctree)) if doctree is not None else []
    for name in (["panel"] if found else []) + found:
        app.add_js_file(f"train_{name}.js", loading_method="defer")


def setup(app: Any) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("html-page-context", add_scripts)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
