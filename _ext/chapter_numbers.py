"""Numbers of boxes: exercises count within each chapter, theorems carry the numbers of their papers and no others.

Sphinx would count both through the whole part, and a "Theorem 9" of ours may be the paper's Theorem 1.1. Equations
count within their page by the setting ``math_numfig: false``. A box that is the paper's has the paper's name for it
alone: not "Theorem (Lemma 2 of the paper)".
"""

from __future__ import annotations

import re
from typing import Any

from sphinx_proof.proof_type import PROOF_TYPES

TITLE = re.compile(r'<span class="caption-number">([A-Z][a-z]+) </span> \((.*?)\)</p>')
NAMED = re.compile(r"(Theorem|Lemma|Corollary|Proposition|Definition|Claim|Appendix|Figure)s? [\dA-Z]")


def restart(app: Any, env: Any) -> list[str]:
    """Number the exercises of each page from one, in their order; no page has to be read again for it."""
    for kinds in env.toc_fignumbers.values():
        exercises = kinds.get("exercise", {})
        for number, name in enumerate(sorted(exercises, key=exercises.get), 1):
            exercises[name] = (number,)
    return []


def without_number(directive: Any) -> Any:
    """Return a directive whose boxes are never counted, whether their page asks for it or not."""

    class Uncounted(directive):
        def run(self) -> list[Any]:
            self.options["nonumber"] = None
            return super().run()

    return Uncounted


def name_boxes(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Write the title of a box without parentheses: the paper's name for it, or its kind and what it says."""
    if body := context.get("body"):
        context["body"] = TITLE.sub(_titled, body)


def _titled(found: re.Match[str]) -> str:
    kind, title = found.groups()
    return f"{title}</p>" if NAMED.match(title) else f'<span class="caption-number">{kind}.</span> {title}</p>'


def setup(app: Any) -> dict[str, Any]:
    """Register with Sphinx, after what counts."""
    app.setup_extension("sphinx_proof")
    for name, directive in PROOF_TYPES.items():
        app.add_directive_to_domain("prf", name, without_number(directive), override=True)
    app.connect("env-get-updated", restart, priority=900)
    app.connect("html-page-context", name_boxes, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
