"""The directive ``{costs}``: what each experiment has cost at each size, from the provenance of stored results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from book_map import duration
from claims_page import fingerprint
from docutils import nodes
from optional_include import STACKED
from sphinx.util.docutils import SphinxDirective

from attnbook.registry import experiments

SIZES = ("book", "full")
COLUMNS = ("experiment", "size", "groups", "processor time", "elapsed", "MiB", "device")


class Costs(SphinxDirective):
    """The table of costs."""

    def run(self) -> list[nodes.Node]:
        """Return the table; the page is read again when a result changes."""
        self.env.metadata[self.env.docname]["ledger"] = fingerprint(self.env)
        results = Path(self.env.srcdir) / "results"
        self.env.metadata[self.env.docname][STACKED] = "all"
        return self.parse_text_to_nodes(f"{table(results)}\n\n{accelerators(results)}")


def table(results: Path) -> str:
    """Return the table of costs as Markdown.

    Args:
        results: Folder of stored results.

    Returns:
        A row for each experiment and size, in the order of the registry.
    """
    rule = ["---"] * 2 + ["---:"] * 4 + ["---"]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (COLUMNS, rule, *rows(results)))


def accelerators(results: Path) -> str:
    """Say in one line which accelerators the last column means: their full names are too wide for it."""
    stored = (
        json.loads(file.read_text(encoding="utf-8")) for size in SIZES for file in (results / size).glob("*.json")
    )
    names = sorted({run["device"] for each in stored if "(" in (run := each["provenance"])["device"]})
    return f"Accelerators: {', '.join(names)}." if names else ""


def rows(results: Path) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each stored result."""
    for name in experiments():
        for size in SIZES:
            file = results / size / f"{name}.json"
            if file.is_file():
                stored = json.loads(file.read_text(encoding="utf-8"))
                run = stored["provenance"]
                groups = len(run.get("groups", ())) or 1  # runs of the first edition were one
                spent = (duration(run[f"{clock}_seconds"]) or "under 5 s" for clock in ("cpu", "wall"))
                yield (
                    f"`{name}`",
                    size,
                    str(groups),
                    *spent,
                    str(run["peak_memory_mib"]),
                    run["device"].partition(" ")[0],
                )


def setup(app: Any) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_directive("costs", Costs)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
