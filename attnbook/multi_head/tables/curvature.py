"""What an experiment cost, for the chapters that have not moved to a folder of their own."""

from __future__ import annotations

from attnbook.core.results import Result
from attnbook.core.tables import Measured, Table

__all__ = ["cost"]


def cost(result: Result, what: str, count: int) -> Table:
    """Return how long an experiment took.

    Args:
        result: Its result.
        what: What was computed, in the plural.
        count: How many of them.

    Returns:
        A table of one row.
    """
    p = result.provenance
    row: list[str | Measured] = [
        f"{count}",
        Measured(f"{p.wall_seconds:.1f} s"),
        Measured(f"{p.peak_memory_mib:.0f} MiB"),
        Measured(p.device),
    ]
    return Table([what, "time", "peak memory of the process", "device"], [row], "Computed in float64, on one thread.")
