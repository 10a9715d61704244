"""The directive ``{costs}``: how long each experiment takes at each size, from the provenance of stored results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from claims_page import fingerprint
from docutils import nodes
from optional_include import STACKED
from sphinx.util.docutils import SphinxDirective

from attnbook.registry import experiments

COLUMNS = (
    "experiment", "book: one core, min", "full: one core, min", "full: GPU, min", "full: MiB", "the full size is"
)  # fmt: skip


class Costs(SphinxDirective):
    """The table of times."""

    def run(self) -> list[nodes.Node]:
        """Return the table; the page is read again when a result changes."""
        self.env.metadata[self.env.docname]["ledger"] = fingerprint(self.env)
        results = Path(self.env.srcdir) / "results"
        self.env.metadata[self.env.docname][STACKED] = "all"
        return self.parse_text_to_nodes(f"{table(results)}\n\n{accelerators(results)}")


def table(results: Path) -> str:
    """Return the table of times as Markdown.

    Args:
        results: Folder of stored results.

    Returns:
        A row for each experiment, in the order of the registry.
    """
    rule = ["---", *["---:"] * 4, "---"]
    rows = (row(name, "full" in kind.has(), results) for name, kind in experiments().items())
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (COLUMNS, rule, *rows))


def row(name: str, has_full: bool, results: Path) -> tuple[str, ...]:
    """Return the cells of an experiment; it says so where there is no full size, or no stored run."""
    book, full = (provenance(results, size, name) for size in ("book", "full"))
    if not has_full:
        return f"`{name}`", minutes(book, "cpu"), "", "", "", "*no full size*"
    own = "the paper's own" if full.get("paper_size") else "a larger run of this book"
    memory = str(full.get("peak_memory_mib", "not stored"))
    return f"`{name}`", minutes(book, "cpu"), minutes(full, "cpu"), minutes(full, "cuda"), memory, own


def minutes(run: dict[str, Any], device: str) -> str:
    """Return how long a run took there: processor time on a CPU, elapsed time on a GPU; empty if it ran elsewhere."""
    if not run.get("device", "").startswith(device):
        return ""
    value = run["cpu_seconds" if device == "cpu" else "wall_seconds"] / 60
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 0.1 else "under 0.1"


def provenance(results: Path, size: str, name: str) -> dict[str, Any]:
    """Return where a stored result comes from; nothing where there is none."""
    file = results / size / f"{name}.json"
    return json.loads(file.read_text(encoding="utf-8"))["provenance"] if file.is_file() else {}


def accelerators(results: Path) -> str:
    """Say in one line which GPUs the table means: their names are too wide for it."""
    devices = {provenance(results, "full", name).get("device", "") for name in experiments()}
    names = sorted(device for device in devices if "(" in device)
    return f"GPUs: {', '.join(names)}." if names else ""


def setup(app: Any) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_directive("costs", Costs)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
