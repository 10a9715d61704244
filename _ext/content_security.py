"""Forbid the pages, in each page's head, whatever does not come from the book itself.

A browser then refuses foreign scripts, styles, pictures, fonts and requests, even if an output or a later version of
the theme should ask for one. Scripts and styles inside a page stay allowed: the theme, the settings of MathJax and the
sliders are such. ``file:`` is for pages that are opened without a server; a page from a server cannot reach it.
"""

from __future__ import annotations

from typing import Any

INLINE = "'self' 'unsafe-inline' file:"
RULES = {
    "default-src": "'self' data: blob: file:",
    "script-src": INLINE,
    "style-src": INLINE,
    "object-src": "'none'",
    "base-uri": "'none'",
    "form-action": "'self' file:",
}
POLICY = "; ".join(f"{name} {sources}" for name, sources in RULES.items())


def add_policy(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Write the policy before everything that it is about."""
    tag = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    context["metatags"] = f"\n{tag}\n{context.get('metatags', '')}"


def setup(app: Any) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("html-page-context", add_policy)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
