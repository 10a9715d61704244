"""Links the first use of each symbol in a chapter to its row on the page of notation.

Only a formula that is the symbol, or begins by saying what it equals or where it lies, becomes a link. The rows of the
chapter's part come before the rows common to all parts. Left alone are letters to which a part gives two meanings,
common rows with three letters (which of them it is depends on the paper), and a chapter's own letters
(``chapters/map.toml``). Where a row has as many meanings between semicolons as symbols, each symbol has its own.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from book_map import Chapter, read_map
from docutils import nodes
from symbol_index import PAGE

from attnbook import ledger

COMMON = "Common to all parts"
PARTS = {paper.name: f"Part {paper.part}:" for paper in ledger.papers()}
CELLS = re.compile(r"(?<!\\)\|")
FORMULA = re.compile(r"\$(.+?)\$")


def symbols(text: str, heading: str) -> dict[str, tuple[str, str]]:
    r"""Return the symbols of one section of the page of notation.

    Args:
        text: The page's Markdown.
        heading: How the section's heading begins.

    Returns:
        Symbol, without blanks, to its anchor and its meaning; without symbols that have two rows.

    Example:
        >>> page = "## Part 1: A\n| symbol | in words |\n|---|---|\n| $n$, $m$ | a number; a size |\n| $m$ | a mass |"
        >>> symbols(page, "Part 1:")
        {'n': ('symbol-1', 'a number')}
    """
    found: dict[str, list[tuple[str, str]]] = {}
    section, number = "", -1
    for line in text.splitlines():
        if line.startswith("## "):
            section = line[3:]
        if not line.startswith("|") or line.startswith("|---"):
            continue
        number += 1  # counted through all tables, their heads among them, as symbol_index does
        if section.startswith(heading):
            first, meaning = CELLS.split(line)[1:3]
            formulas, meanings = FORMULA.findall(first), meaning.split(";")
            if heading == COMMON and len(formulas) > 2:
                continue
            if len(meanings) != len(formulas):
                meanings = [meaning] * len(formulas)
            for formula, words in zip(formulas, meanings, strict=True):
                found.setdefault(name(formula), []).append((f"symbol-{number}", words.strip().replace("$", "")))
    return {symbol: rows[0] for symbol, rows in found.items() if len(rows) == 1}


def name(formula: str) -> str:
    r"""Return the symbol that a formula begins with, without blanks, if the rest says what it equals or where it lies.

    Args:
        formula: LaTeX.

    Returns:
        The part before the first sign of equality or membership.

    Example:
        >>> name(r"W = W_QW_K^\top"), name(r"a\in\mathbb R^p"), name(r"\sigma(\cdot)"), name("X^{*}")
        ('W', 'a', '\\sigma', 'X^*')
    """
    head = re.split(r"=|\\in(?![a-z])", formula)[0].replace(r"(\cdot)", "")
    return re.sub(r"\s|\\[,;!]", "", head).replace("{*}", "*")


def known_in(chapter: Chapter, text: str) -> dict[str, tuple[str, str]]:
    """Return the symbols that a chapter uses as the page of notation, of this text, has them; see :func:`symbols`."""
    own = {name(letter) for letter in chapter.own_letters}
    known = symbols(text, COMMON) | symbols(text, PARTS[chapter.paper])
    return {symbol: row for symbol, row in known.items() if symbol not in own}


def link_symbols(app: Any, doctree: nodes.document) -> None:
    """Turn the first use of each symbol in a chapter into a link with the symbol's meaning."""
    chapter = read_map(Path(app.srcdir)).get(app.env.docname.removeprefix("chapters/"))
    if chapter is None:
        return
    app.env.note_dependency(app.env.doc2path(PAGE))
    known = known_in(chapter, Path(app.env.doc2path(PAGE)).read_text(encoding="utf-8"))
    for formula in list(doctree.findall(nodes.math)):
        if linkable(formula) and (row := known.pop(name(formula.astext()), None)):
            anchor, meaning = row
            address = f"{app.builder.get_relative_uri(app.env.docname, PAGE)}#{anchor}"
            link = nodes.reference("", "", refuri=address, internal=True, reftitle=meaning, classes=["symbol"])
            formula.replace_self(link)
            link += formula


def linkable(formula: nodes.math) -> bool:
    """Whether a formula stands in running text: no heading, no link, nothing that is shown a second time elsewhere."""
    parent = formula.parent
    while parent is not None:
        if isinstance(parent, nodes.title | nodes.reference | nodes.caption | nodes.term | nodes.table):
            return False
        parent = parent.parent
    return True


def setup(app: Any) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("doctree-read", link_symbols)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
