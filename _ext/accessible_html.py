"""Mend what a screen reader stumbles over in the HTML of the theme and of docutils.

The arrows that unfold the pages of a chapter in the sidebar are icons without a text; a reader would hear "button" and
nothing else. The bibliography is called a list, but its entries are not list items. Browsers may break a line between a
formula and the full stop after it, and in a table within 1e-04.
"""

from __future__ import annotations

import re
from typing import Any

TOGETHER = re.compile(
    r'\(?<span class="math notranslate nohighlight">[^<]*</span>[.,;:!?)]+'
    r"|\\\((?:(?!\\\))[^<>])*\\\)[.,;:!?)]+(?=[^<>]*<)"  # a formula in a claim card; not in an attribute
    r"|[-\d.]+e-\d+(?=[^<>]*</td>)"  # a small number in a table
    r"|\([\d.]+ to [\d.]+\)(?=[^<>]*</(?:p|td)>)"  # a range
    r"|held in \d+ of \d+(?=[^<>]*</span>)"  # in a claim card
)


def name_toggles(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Let the sidebar's maker give each arrow the title of the chapter that it unfolds."""
    make = context.get("generate_toctree_html")
    if make is None:
        return

    def named(*args: Any, **options: Any) -> Any:
        tree = make(*args, **options)
        for entry in tree.select("li:has(> a):has(> details)"):
            title = entry.find("a", recursive=False).get_text(strip=True)
            entry.select_one("details > summary")["aria-label"] = f"Pages of {title}"
        return tree

    context["generate_toctree_html"] = named


def free_citations(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Take the role of a list from the box around the entries of the bibliography."""
    if body := context.get("body"):
        context["body"] = body.replace('<div role="list" class="citation-list">', '<div class="citation-list">')


def keep_together(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Keep on one line what reads as one: see ``TOGETHER``."""
    if body := context.get("body"):
        context["body"] = TOGETHER.sub(r'<span class="unbroken">\g<0></span>', body)


def setup(app: Any) -> dict[str, Any]:
    """Register with Sphinx, after the theme."""
    app.connect("html-page-context", name_toggles, priority=900)
    app.connect("html-page-context", free_citations, priority=900)
    app.connect("html-page-context", keep_together, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
