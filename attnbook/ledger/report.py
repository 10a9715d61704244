"""Judge what a result measured, and show it: the last line of a notebook's cell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import xarray as xr

from attnbook.core.experiment import Experiment
from attnbook.core.results import stored_measurements
from attnbook.ledger import rendering
from attnbook.ledger.judging import Verdict, judge
from attnbook.ledger.schema import LedgerError, claim, claims

__all__ = ["Report", "check"]


@dataclass(frozen=True)
class Report:
    """Verdicts shown as a card in notebooks and as one stable line per claim in text.

    Attributes:
        verdicts: In the order of the ledger.
    """

    verdicts: tuple[Verdict, ...]

    def __repr__(self) -> str:
        return "\n".join([*(f"{v.claim.id}: {v.outcome}" for v in self.verdicts), *rendering.own_runs(self.verdicts)])

    def _repr_html_(self) -> str:
        return f" \n{rendering.card(self.verdicts)}"  # as in a table


def check(*results: xr.Dataset, only: Sequence[str] | None = None) -> Report:
    """Judge what results measured, each by the settings that it names.

    A rule holds for the run for which it was written. So a result is shown with its numbers, but not judged, where its
    settings are those of no size of its experiment, or of the size of tests, or where a claim names another experiment.

    Args:
        *results: What the method ``run`` or ``load_stored`` of an experiment returned.
        only: Ids of the claims to show; default all that were measured.

    Returns:
        A report; the last line of a notebook cell shows it.

    Raises:
        LedgerError: If a measured claim is not in the ledger, or ``only`` names one that was not measured.
        ValueError: If a result does not name its experiment and settings.
    """
    verdicts = {v.claim.id: v for data in results for v in _verdicts(data, only)}
    for i in only or ():
        if i not in verdicts:
            raise LedgerError(f"only: {i!r} was not measured; this result measured {', '.join(verdicts)}")
    return Report(tuple(v for i, v in verdicts.items() if only is None or i in only))


def _verdicts(data: xr.Dataset, only: Sequence[str] | None) -> Iterator[Verdict]:
    """Judge a run of the book; of the reader's own runs say what was measured, and what was asked for and was not."""
    experiment = Experiment.from_data(data)
    (at, changes), name = experiment.nearest(), experiment.id.split()[0]  # what it varies, if it does
    size = {"book": "", "smoke": "the size of tests"}.get(at, f"size {at}")
    measured, missing = {}, f"{changes or size}; it leaves out what some claims need"
    try:
        measured = experiment.measurements(data)
    except ValueError as error:
        if not changes:
            raise
        missing = str(error)
    for i, found in measured.items():
        asked = claim(i)
        other = f"experiment {experiment.id}" if asked.experiment != experiment.id else ""
        if own := changes or other or (size if at == "smoke" else ""):
            said = f"{own}; not the run by which the claims are judged"
            yield Verdict(asked, at, "your run, not judged", found, said)
        else:
            yield judge(asked, found, at)
    if only is None:
        only = list(stored_measurements(name, "book" if at == "smoke" else at)) if changes else []
    for asked in claims():
        if asked.experiment == name and asked.id in only and asked.id not in measured and (changes or size):
            yield Verdict(asked, at, "your run, not measured", None, missing)
