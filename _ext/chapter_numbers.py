"""Counts exercises within each chapter: Exercise 1, Exercise 2. Sphinx would count through the whole part.

Equations count within their page by the setting ``math_numfig: false``; theorems carry the numbers of their papers.
"""

from __future__ import annotations

from typing import Any


def restart(app: Any, env: Any) -> list[str]:
    """Number the exercises of each page from one, in their order; no page has to be read again for it."""
    for kinds in env.toc_fignumbers.values():
        exercises = kinds.get("exercise", {})
        for number, name in enumerate(sorted(exercises, key=exercises.get), 1):
            exercises[name] = (number,)
    return []


def setup(app: Any) -> dict[str, Any]:
    """Register with Sphinx, after what counts."""
    app.connect("env-get-updated", restart, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
