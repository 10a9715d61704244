"""Gives the search the text of all pages, from which it shows excerpts also where pages are opened from disk.

Sphinx's search fetches each page that it finds, which browsers refuse to pages on a disk. Here the texts are one script
that only the page of the search loads; what is shown of them says ``search_order.js``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docutils import nodes

MARK = "\ue000"  # on both sides of an anchor, which stands before its text
HIDDEN = (nodes.raw, nodes.comment, nodes.math_block, nodes.literal_block)


def text(doctree: nodes.Node) -> str:
    """Return the text of a page with its anchors, without displayed formulas and code."""
    found: list[str] = []
    for node in doctree.findall():
        if isinstance(node, nodes.Element):
            found += [f"{MARK}{name}{MARK}" for name in node["ids"]]
            found += [" "] * (not isinstance(node, nodes.Inline))
        elif isinstance(node, nodes.Text) and not isinstance(node.parent, HIDDEN):
            found.append(node)
    return " ".join("".join(found).split())


def keep_text(app: Any, doctree: nodes.document) -> None:
    """Keep the text of a page with what Sphinx keeps of it from build to build."""
    vars(app.env).setdefault("page_texts", {})[app.env.docname] = text(doctree)


def write_texts(app: Any, exception: Exception | None) -> None:
    """Write the script."""
    if exception is None and app.builder.format == "html":
        texts = {page: said for page, said in app.env.page_texts.items() if page in app.env.found_docs}
        script = f"const PAGE_TEXTS = {json.dumps(texts, ensure_ascii=False)};\n"
        (Path(app.outdir) / "_static" / "search_texts.js").write_text(script, encoding="utf-8")


def add_script(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Load it where it is needed."""
    if pagename == "search":
        app.add_js_file("search_texts.js")


def setup(app: Any) -> dict[str, Any]:
    """Register with Sphinx, after what changes pages."""
    app.connect("doctree-read", keep_text, priority=900)
    app.connect("html-page-context", add_script)
    app.connect("build-finished", write_texts)
    return {"version": "1", "parallel_read_safe": False, "parallel_write_safe": True}
