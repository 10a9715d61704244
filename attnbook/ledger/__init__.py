"""The claims ledger: what the papers state, the rules that decide, what was measured, and whether it held again."""

from typing import TYPE_CHECKING, Any

from attnbook.ledger.judging import OUTCOMES, Verdict, judge, recorded, standing
from attnbook.ledger.rendering import render_values
from attnbook.ledger.replication import Replication, replicate, replicated, replicated_size
from attnbook.ledger.schema import SETTINGS, SOURCES, Claim, LedgerError, Paper, claim, claims, papers, read_paper

if TYPE_CHECKING:
    from attnbook.ledger.report import Report, check

__all__ = [
    "OUTCOMES",
    "SETTINGS",
    "SOURCES",
    "Claim",
    "LedgerError",
    "Paper",
    "Replication",
    "Report",
    "Verdict",
    "check",
    "claim",
    "claims",
    "judge",
    "papers",
    "read_paper",
    "recorded",
    "render_values",
    "replicate",
    "replicated",
    "replicated_size",
    "standing",
]


def __getattr__(name: str) -> Any:
    """Load what judges data sets when it is asked for: reading claims and stored results needs no xarray."""
    if name not in ("Report", "check"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from attnbook.ledger import report

    return getattr(report, name)
