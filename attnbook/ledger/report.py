"""Judge what a result measured, and show it: the last line of a notebook's cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from attnbook.core.results import Measurement
from attnbook.ledger import rendering
from attnbook.ledger.judging import Verdict, judge
from attnbook.ledger.schema import LedgerError, claim

__all__ = ["Measured", "Report", "check"]


class Measured(Protocol):
    """Whatever says what it measured, by claim id."""

    def measurements(self) -> Mapping[str, Measurement]:
        """Return what was measured, by claim id."""


@dataclass(frozen=True)
class Report:
    """Verdicts shown as a card in notebooks and as one stable line per claim in text.

    Attributes:
        verdicts: In the order of the ledger.
    """

    verdicts: tuple[Verdict, ...]

    def __repr__(self) -> str:
        return "\n".join(f"{v.claim.id}: {v.outcome}" for v in self.verdicts)

    def _repr_html_(self) -> str:
        return f" \n{rendering.card(self.verdicts)}"  # as in a table


def check(
    result: Measured | Mapping[str, Measurement], only: Sequence[str] | None = None, scale: str = "book"
) -> Report:
    """Judge everything a result measured.

    Args:
        result: A result of an experiment, or what it measured.
        only: Ids of the claims to show; default all that were measured.
        scale: Scale at which the result was obtained.

    Returns:
        A report; the last line of a notebook cell shows it.

    Raises:
        LedgerError: If a measured claim is not in the ledger, or ``only`` names none that was measured.
    """
    measured = result if isinstance(result, Mapping) else result.measurements()
    for i in only or ():
        if i not in measured:
            raise LedgerError(f"only: {i!r} was not measured; this result measured {', '.join(measured)}")
    return Report(tuple(judge(claim(i), measured[i], scale) for i in measured if only is None or i in only))
