"""What is known of each chapter without building it: ``chapters/map.toml``, and the times stored in the notebooks."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from attnbook import ledger

MAP = Path("chapters") / "map.toml"
WAY = "two_hours"  # the key of the map that is no part
SHORT = {  # where the name of the notebook would be badly spelled
    "noisy_mnist": "noisy MNIST",
    "self_attention": "self-attention",
    "structure_aware_descent": "structure-aware descent",
    "to_self_attention": "to self-attention",
}


@dataclass(frozen=True)
class Chapter:
    """A chapter as the map has it.

    Attributes:
        name: ``paper/notebook``, as in the ledger.
        question: What it asks.
        needs: Names of the chapters it builds on.
        next: Pairs: name of a chapter of another part, and a sentence that says why it continues this one.
        own_letters: Symbols that it uses in another sense than the page of notation.
        asked: Words by which readers look for it, in small letters.
    """

    name: str
    question: str
    needs: tuple[str, ...]
    next: tuple[tuple[str, str], ...]
    own_letters: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()

    @property
    def page(self) -> str:
        """Name of its page."""
        return f"chapters/{self.name}"

    @property
    def paper(self) -> str:
        """Short name of its paper."""
        return self.name.split("/")[0]

    @property
    def short(self) -> str:
        """A name that fits into a table."""
        stem = self.name.split("/")[1]
        return SHORT.get(stem) or stem.replace("_", " ")


def read_map(root: Path) -> dict[str, Chapter]:
    """Return all chapters by name, in the order of the book."""
    raw = _raw(root)
    return {
        f"{paper}/{stem}": Chapter(
            f"{paper}/{stem}",
            entry["question"],
            tuple(entry["needs"]),
            tuple((a, b) for a, b in entry["next"]),
            tuple(entry.get("own_letters", ())),
            tuple(entry.get("asked", ())),
        )
        for paper, entries in raw.items()
        if paper != WAY
        for stem, entry in entries.items()
    }


def two_hours(root: Path) -> list[str]:
    """Return the names of the chapters on the two-hour way, in its order."""
    return _raw(root)[WAY]


def _raw(root: Path) -> dict[str, Any]:
    return _parsed((root / MAP).read_text(encoding="utf-8"))


_parsed = cache(tomllib.loads)


def markdown(notebook: Path) -> list[str]:
    """Return the text cells of a notebook."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]


def seconds(notebook: Path) -> float | None:
    """Return how long the stored run of a notebook took, from the first cell's start to the last one's end.

    Args:
        notebook: A notebook file.

    Returns:
        Seconds; None when the notebook stores no times.
    """
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    times = [cell["metadata"].get("execution", {}) for cell in cells if cell["cell_type"] == "code"]
    starts = [_moment(t["iopub.execute_input"]) for t in times if "iopub.execute_input" in t]
    ends = [_moment(t["shell.execute_reply"]) for t in times if "shell.execute_reply" in t]
    return (max(ends) - min(starts)).total_seconds() if starts and ends else None


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def full_size_seconds(chapter: str) -> float:
    """Return the time of the full-size runs that the claims of a chapter quote, 0 when it has none."""
    from attnbook.core.results import stored_path

    experiments = {c.experiment for c in ledger.claims() if c.chapter == chapter and c.experiment}
    files = [path for name in sorted(experiments) if (path := stored_path(name, "full")).is_file()]
    return sum(json.loads(file.read_text(encoding="utf-8"))["provenance"]["wall_seconds"] for file in files)


def duration(value: float | None) -> str:
    """Write a time as a reader says it.

    Returns:
        Text; empty for no time.

    Example:
        >>> duration(33.3), duration(124.7), duration(5400.0), duration(None)
        ('35 s', '2 min', '1.5 h', '')
    """
    if not value:
        return ""
    if value < 95:
        return f"{max(5, 5 * round(value / 5))} s"
    return f"{value / 60:.0f} min" if value < 5000 else f"{value / 3600:.1f} h"


def linked(names: Iterable[str], chapters: dict[str, Chapter]) -> str:
    """Write links with short names, as MyST."""
    return ", ".join(f"{{doc}}`{chapters[name].short} </{chapters[name].page}>`" for name in names)
