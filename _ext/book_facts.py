"""The role ``{fact}`name` ``: a number about the book itself, counted when the page is built or measured before.

Counts come from the notebooks, the ledger and the registries; sizes and the time to install from
``reference/measured.json``, which ``tools/measure_book.py`` writes; the time to build from the page on performance,
``benchmarks/book_times.md``.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from docutils import nodes

from attnbook import ledger
from attnbook.data.files import KNOWN
from attnbook.exercises import checks
from attnbook.registry import experiments
from attnbook.rooms import rooms

PAGES_WITH_FACTS = {"chapters/how_to_read", "reference/colophon", "reference/add_a_paper"}
MINIATURE = "implicit_bias"  # the paper that the page on adding one has as its example
MEASURED = (  # what tools/measure_book.py and benchmarks/book_times.py find; the last part of a name is the kind
    "date",
    "system",
    "cores",
    "install_seconds",
    "venv_mb",
    "html_mb",
    "build_seconds",
    "build_measured",
)
BUILD = re.compile(r"`make book`, from nothing \| (\d+) .*^([^|\n]+)\.$", re.DOTALL | re.MULTILINE)
COUNTED = {  # name to what is counted in the text of the notebooks
    "sliders": r'<div class=\\"attnbook-slider\\"',
    "figures": r'<figure class=\\"attnbook-figure\\"',
    "exercises": r":::\{exercise\}",
    "solutions": r":::\{solution\}",
    "boxes": r":::\{prf:\w+\}",
}


@cache  # a page asks for twenty of them
def counted(root: Path) -> dict[str, int]:
    """Return what can be counted.

    Args:
        root: Folder of the book.

    Returns:
        Name to number.
    """
    texts = [path.read_text(encoding="utf-8") for path in sorted(root.glob("chapters/*/*.ipynb"))]
    claims = ledger.claims()
    outcomes = [ledger.standing(claim).outcome for claim in claims]
    cells = [cell for text in texts for cell in json.loads(text)["cells"]]
    return {
        "chapters": len(texts),
        "code_cells": sum(cell["cell_type"] == "code" for cell in cells),
        **{name: sum(len(re.findall(pattern, text)) for text in texts) for name, pattern in COUNTED.items()},
        "checks": sum(len(checks(room)) for room in rooms().values()),
        "claims": len(claims),
        "claims_of_papers": sum(claim.source == "paper" for claim in claims),
        "paper_numbers": sum(claim.source == "paper" and bool(claim.paper_value) for claim in claims),
        "rules_after_a_look": sum(bool(claim.trial) for claim in claims),
        "rules_before": sum(bool(claim.accept) and not claim.trial for claim in claims),
        "judged": sum(bool(c.accept) and o != "pending" for c, o in zip(claims, outcomes, strict=True)),
        **{outcome.replace(" ", "_"): outcomes.count(outcome) for outcome in ledger.OUTCOMES},
        "experiments": len(experiments()),
        "data_files": len(KNOWN),
        **{f"miniature_{part}_lines": lines for part, lines in python_lines(root, MINIATURE).items()},
    }


def python_lines(root: Path, paper: str) -> dict[str, int]:
    """Return the lines of Python of a paper: its ``library``, the ``script`` of its chapters and its ``test``.

    Args:
        root: Folder with ``attnbook``, ``chapters`` and ``tests``.
        paper: Name of its folders there.

    Returns:
        Part to number of lines.
    """
    places = {"library": "attnbook", "script": "chapters", "test": "tests"}
    files = {part: (root / place / paper).rglob("*.py") for part, place in places.items()}
    return {part: sum(len(f.read_text(encoding="utf-8").splitlines()) for f in found) for part, found in files.items()}


def measured(root: Path) -> dict[str, str]:
    """Return what was measured, as text with its unit; empty where nothing was measured yet.

    Args:
        root: Folder of the book.

    Returns:
        Name to text.
    """
    file = root / "reference" / "measured.json"
    raw = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    times = root / "benchmarks" / "book_times.md"
    if times.is_file() and (build := BUILD.search(times.read_text(encoding="utf-8"))):
        raw |= {"build_seconds": float(build[1]), "build_measured": build[2]}
    kinds = {"seconds": minutes, "mb": size}
    return {name: kinds.get(name.rpartition("_")[2], str)(value) for name, value in raw.items()}


def minutes(value: float) -> str:
    """Return a time in words: 0.5 minutes, 12 minutes."""
    return f"{value / 60:.2g} minutes"


def size(value: float) -> str:
    """Return a size in words: 940 MB, 1.9 GB."""
    return f"{value / 1000:.2g} GB" if value >= 1000 else f"{value:.2g} MB" if value < 100 else f"{value:.0f} MB"


def fact(name: str, rawtext: str, text: str, lineno: int, inliner: Any, *_: Any) -> tuple[list, list]:
    """The role: the number, or ``not measured yet``."""
    root = Path(inliner.document.settings.env.srcdir)
    found = {**counted(root), **measured(root)}
    if text not in found and text not in MEASURED:
        message = inliner.reporter.error(f"fact: got {text!r}, expected one of {', '.join(found)}", line=lineno)
        return [inliner.problematic(rawtext, rawtext, message)], [message]
    return [nodes.inline(rawtext, str(found.get(text, "not measured yet")), classes=["fact"])], []


def read_again(app: Any, env: Any, *_: Any) -> list[str]:
    """Name the pages with facts, always: what they count lies all over the repository."""
    return [name for name in sorted(PAGES_WITH_FACTS) if name in env.found_docs]


def setup(app: Any) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_role("fact", fact)
    app.connect("env-get-outdated", read_again)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
