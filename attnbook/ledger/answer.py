"""What ``attnbook show ID`` answers: a claim in ten readable lines, or all that the ledger has on it."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

from attnbook.core.results import Measurement
from attnbook.ledger.judging import Verdict, recorded, standing
from attnbook.ledger.plain import plain
from attnbook.ledger.rendering import SIGNS, around, at_size, number, origin, words
from attnbook.ledger.replication import replicated, replicated_size
from attnbook.ledger.schema import Claim, claim, former

__all__ = ["answer"]

LABEL = 13  # columns of the names of the lines
FEW = 6  # numbers in a line


def answer(claim_id: str, *, full: bool = False, width: int = 100) -> str:
    """Return what the ledger says about a claim, wrapped.

    Args:
        claim_id: For example ``MH-H-noise``; of a former claim it says what became of it.
        full: Whether to return the rest as well: rule, reason, notes, all numbers.
        width: Columns of the terminal.

    Returns:
        A line for each thing that is known, longer ones continued below.

    Raises:
        LedgerError: If there is no such claim and never was; the message names the nearest ids.
        ResultError: If a stored result is damaged.
    """
    became = former(claim_id)
    found = re.search(r" is part of (\S+) now$", became)
    if became and not found:
        return textwrap.fill(f"{became}.", width)
    known = claim(found[1] if found else claim_id)
    lines = [("", f"{became}.")] if found else []
    lines += [*_short(known), *(_rest(known) if full else [("more", f"attnbook show {known.id} --full")])]
    return "\n".join(_wrapped(name, text, width) for name, text in lines if text)


def _wrapped(name: str, text: str, width: int) -> str:
    indent = " " * LABEL if name else ""
    start = f"{name:<{LABEL}}" if name else ""
    options: Any = {"break_long_words": False, "break_on_hyphens": False}
    # The blanks inside formulas are no places to break a line at; only then are they blanks again.
    lines = textwrap.wrap(text, max(width, 40), initial_indent=start, subsequent_indent=indent, **options)
    return "\n".join(lines).replace("\xa0", " ")


def _short(c: Claim) -> Iterator[tuple[str, str]]:
    counts = standing(c)
    title = f". {plain(c.short)}" if c.short else ""
    yield "", f"{SIGNS[counts.outcome]} {c.id}: {counts.outcome}{title}"
    yield "says", plain(c.statement)
    yield "place", plain(c.where) + (f" ({who})" if (who := origin(c)) else "")
    if c.accept:
        book, larger = recorded(c, "book"), recorded(c, "full")
        differ = book.measurement and larger.measurement and book.outcome != larger.outcome
        for name, v in (("book size", book), ("full size", larger)):
            yield name, _verdict(c, v) + (" This verdict counts." if differ and v.size == counts.size else "")
        yield "fresh seeds", _fresh(c)
    else:
        yield counts.outcome, plain(c.checked or c.untestable)
    yield "read", f"chapters/{c.chapter}.ipynb"
    yield "run", f"attnbook run {c.experiment}" if c.experiment else ""


def _verdict(c: Claim, v: Verdict) -> str:
    """The outcome and the numbers that decide it."""
    if v.measurement is None:
        return "not run" if v.size == "book" else "no larger run is stored"
    size = "" if v.size == "book" else f", {at_size(v.size, c)}"
    seeds = f", {v.n_seeds} seeds" if v.n_seeds > 1 else ""
    deciding = [name for name in dict.fromkeys(re.findall(r"\w+", c.accept)) if name in v.measurement.values]
    more = f"; and {len(deciding) - FEW} more" if len(deciding) > FEW else ""
    return f"{v.outcome}{size}{seeds}: {_numbers(v.measurement, deciding[:FEW])}{more}."


def _numbers(measured: Measurement, names: Iterable[str]) -> str:
    return "; ".join(f"{words(name)} = {number(measured.values[name])}{around(name, measured)}" for name in names)


def _fresh(c: Claim) -> str:
    found = replicated(c)
    return f"{found}, {at_size(replicated_size(c.experiment), c)}" if found else "not tried"


def _rest(c: Claim) -> Iterator[tuple[str, str]]:
    yield "rule", c.accept
    yield "reason", plain(c.why)
    yield "set after", plain(c.trial)
    yield "with care", plain(c.note)
    yield "paper", "; ".join(f"{name} {value:g}" for name, value in c.paper_value.items())
    for size in ("book", "full"):
        if c.accept and (v := recorded(c, size)).measurement:
            yield f"all, {size}", f"{_numbers(v.measurement, v.measurement.values)}."
    yield "contains", ", ".join(c.merged)
