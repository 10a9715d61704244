"""Tells the footer of every page (``book_footer.html``) the version, and whether a PDF lies beside the pages."""

from __future__ import annotations

import os
from typing import Any

from attnbook import __version__


def add(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Say which version it is; the publishing job makes the PDF after the pages and sets ``ATTNBOOK_PDF=1``."""
    context.update(book_version=__version__, book_pdf=os.environ.get("ATTNBOOK_PDF") == "1")


def setup(app: Any) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("html-page-context", add)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
