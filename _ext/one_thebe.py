"""Drop scripts that a page would load twice.

sphinx-thebe 0.3.1 writes its settings twice; the second copy is a JavaScript error on every page.
"""

from __future__ import annotations

from typing import Any


def drop_repeats(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Keep the first of all equal scripts of a page."""
    seen, kept = [], []
    for script in context.get("script_files", []):
        key = (str(getattr(script, "filename", script) or ""), sorted(getattr(script, "attributes", {}).items()))
        if key not in seen:
            seen.append(key)
            kept.append(script)
    context["script_files"][:] = kept


def setup(app: Any) -> dict[str, Any]:
    """Register with Sphinx, after all extensions that add scripts."""
    app.connect("html-page-context", drop_repeats, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
