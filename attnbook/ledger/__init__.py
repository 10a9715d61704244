"""The claims ledger: what the papers state, the rules that decide, what was measured, and whether it held again."""

from attnbook.ledger.answer import answer
from attnbook.ledger.judging import OUTCOMES, Verdict, judge, recorded, standing
from attnbook.ledger.rendering import render_values
from attnbook.ledger.replication import Replication, replicate, replicated, replicated_size
from attnbook.ledger.report import Report, check
from attnbook.ledger.schema import (
    SETTINGS,
    SOURCES,
    Claim,
    LedgerError,
    Paper,
    claim,
    claims,
    former,
    papers,
    read_paper,
)
from attnbook.ledger.signs import Checked, checked, wrong_signs

__all__ = [
    "OUTCOMES",
    "SETTINGS",
    "SOURCES",
    "Checked",
    "Claim",
    "LedgerError",
    "Paper",
    "Replication",
    "Report",
    "Verdict",
    "answer",
    "check",
    "checked",
    "claim",
    "claims",
    "former",
    "judge",
    "papers",
    "read_paper",
    "recorded",
    "render_values",
    "replicate",
    "replicated",
    "replicated_size",
    "standing",
    "wrong_signs",
]
