"""The claims ledger: what the papers state, the rules that decide, and what was measured."""

from attnbook.ledger.checking import OUTCOMES, Report, Verdict, check, judge, recorded, standing
from attnbook.ledger.rendering import render_values
from attnbook.ledger.schema import KINDS, Claim, LedgerError, Paper, claim, claims, papers, read_paper

__all__ = [
    "KINDS",
    "OUTCOMES",
    "Claim",
    "LedgerError",
    "Paper",
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
    "standing",
]
