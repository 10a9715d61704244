"""Makes symbols findable: each row of the tables of notation gets an address and an entry that the search reads.

A formula is entered as a reader would type it: without backslashes and braces, as ``gamma_star`` or ``lambda_min``.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx import addnodes

PAGE = "chapters/notation"
TYPED = re.compile(r"[A-Za-z][\w* ]*")


def typed(formula: str) -> str:
    r"""Return how a symbol is typed without LaTeX, or nothing for a formula that is no symbol.

    Args:
        formula: LaTeX.

    Returns:
        Text.

    Example:
        >>> typed(r"\gamma_\star"), typed(r"W=W_QW_K^\top"), typed(r"\tilde\theta"), typed(r"\frac12")
        ('gamma_star', 'W', 'tilde theta', '')
    """
    text = re.sub(r"\(\\cdot\)|\\mathcal|\\mathbb|\\mathrm", "", formula.split("=")[0].split("\\in")[0])
    text = re.sub(r"\\(tilde|bar|hat)", r"\1 ", text)
    text = " ".join(re.sub(r"[{}\\^]", "", text).split())
    return text if TYPED.fullmatch(text) and not text.startswith(("frac", "Vert")) else ""


def enter_symbols(app: Any, doctree: nodes.document) -> None:
    """Enter the first column of every table of the page of notation."""
    if app.env.docname != PAGE:
        return
    for number, row in enumerate(doctree.findall(nodes.row)):
        names = [typed(formula.astext()) for formula in row[0].findall(nodes.math)]
        anchor = f"symbol-{number}"
        row["ids"].append(anchor)  # symbol_links leads to rows of symbols that nobody can type, too
        if entries := [("single", name, anchor, "main", None) for name in dict.fromkeys(names) if name]:
            row[0].insert(0, addnodes.index(entries=entries))


def setup(app: Any) -> dict[str, Any]:
    """Register with Sphinx; at this point the printed index, in which symbols would be in the way, is collected."""
    app.connect("doctree-read", enter_symbols, priority=100)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
