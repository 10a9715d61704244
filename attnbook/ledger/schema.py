"""The claims ledger: what a paper states, where, and the rule by which we judge it.

One TOML file per paper (``chapters/<paper>/claims.toml`` of the checkout) holds a ``[paper]`` table and a list of
``[[claim]]`` tables. Reading one checks every field, so that a typing error is reported with
the claim and the field it is in, and never turns into a claim that is silently not checked.
"""

from __future__ import annotations

import itertools
import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from attnbook.core.places import checkout

__all__ = ["SETTINGS", "SOURCES", "Claim", "LedgerError", "Paper", "claim", "claims", "papers", "read_paper"]

SOURCES = {"paper": "what the paper states", "book": "a finding of this book"}
SETTINGS = {
    "": "not said yet",
    "inside": "inside the statement's hypotheses",
    "outside": "outside the statement's hypotheses",
    "vacuous": "the statement is vacuous here",
}
EARNED = ("reproduced", "consistent with the bound", "reproduced in trend", "contradicted")
LESS = ("consistent with the bound", "reproduced in trend")  # the most that an experiment outside can earn
SIZES = ("", "book", "full")
ID = re.compile(r"[A-Z]{2}-[A-Za-z0-9][A-Za-z0-9.+-]*")


class LedgerError(ValueError):
    """A claim, a ledger file or a stored result is not what the ledger expects."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One statement and the rule that decides about it; without a ``trial`` the rule is older than the measurement.

    Attributes:
        id: Stable identifier as on the paper's card, for example ``GA-TAB1-headline``.
        source: One of :data:`SOURCES`: who says so.
        where: Place in the paper ("Table 1, n = 20000").
        statement: What is claimed, Markdown with ``$LaTeX$``.
        why: One sentence: why the rule is the right one, what the setting leaves open.
        chapter: Notebook that shows it, ``paper/chapter`` without suffix.
        experiment: Registered experiment that measures it; empty for a claim that is not testable.
        accept: Expression in the names of the measured values and of ``paper_<name>`` for each
            entry of ``paper_value``; true when the claim holds.
        paper_value: The paper's numbers by name; empty when the paper gives none.
        setting: One of :data:`SETTINGS`: where the experiment lies, for what the paper states. Where it is outside the
            hypotheses, or the statement vacuous, a rule that holds earns no more than one of :data:`LESS`.
        verdict: What a claim earns when its rule holds: ``reproduced``, ``consistent with the bound`` (a bound is not
            exceeded), ``reproduced in trend`` or ``contradicted`` (the rule then tests the corrected statement).
        status: ``pending`` while its chapter, or the run that it asks for, is missing; else empty.
        size: The size that the statement is about, ``book`` or ``full``; empty when it names none.
        untestable: Reason why it cannot be tested; empty for all others.
        note: How to read the statement with care, in fair wording; may be empty.
        trial: What had been measured in a trial when the rule was set, as an end of the sentence "The rule was set
            after ..."; empty for a rule set without one.
        merged: Ids of earlier claims that this one replaces.
        paper: Short name of the paper, taken from the file.
    """

    id: str
    source: str
    where: str
    statement: str
    why: str
    chapter: str
    experiment: str = ""
    accept: str = ""
    paper_value: Mapping[str, float] = field(default_factory=dict)
    setting: str = ""
    verdict: str = "reproduced"
    status: str = ""
    size: str = ""
    untestable: str = ""
    note: str = ""
    trial: str = ""
    merged: Sequence[str] = ()
    paper: str = ""

    @property
    def pending(self) -> bool:
        """Whether the chapter of this claim is still to be written."""
        return self.status == "pending"


@dataclass(frozen=True, kw_only=True)
class Paper:
    """A paper and its claims.

    Attributes:
        name: Folder name, for example ``global_attention``.
        part: Number of its part in the book, from 1.
        title: Title of the paper.
        prefix: First two letters of its claim ids.
        citation: Key in ``chapters/references.bib``.
        claims: The claims in the order of the file.
    """

    name: str
    part: int
    title: str
    prefix: str
    citation: str
    claims: tuple[Claim, ...]


def read_paper(path: Path) -> Paper:
    """Read and check one ledger file.

    Args:
        path: A file ``<paper>/claims.toml``.

    Returns:
        The paper with its claims.

    Raises:
        LedgerError: If the file is not TOML, or a field is missing, unknown, of the wrong type or
            has a value outside its range; the message names file, claim and field.
    """
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise LedgerError(f"{_named(path)}: cannot be read as TOML: {error}") from error
    _only_known(raw, {"paper", "claim"}, _named(path))
    head, entries = raw.get("paper", {}), raw.get("claim", [])
    if not isinstance(head, dict) or not isinstance(entries, list):
        raise LedgerError(f"{_named(path)}: needs one [paper] table and a list of [[claim]] tables")
    _only_known(head, {"part", "title", "prefix", "citation"}, f"{_named(path)}, [paper]")
    part = head.get("part")
    if isinstance(part, bool) or not isinstance(part, int) or part < 1:
        raise LedgerError(f"{_named(path)}, [paper]: field 'part' must be a whole number from 1, got {part!r}")
    for name in ("title", "prefix", "citation"):
        if not isinstance(head.get(name), str) or not head[name]:
            raise LedgerError(f"{_named(path)}, [paper]: field {name!r} must be a text, got {head.get(name)!r}")
    found = tuple(_claim(entry, path, number) for number, entry in enumerate(entries, 1))
    ids = _ids(found)
    _no_repeats(ids, _named(path))
    for one in ids:
        if not one.startswith(head["prefix"] + "-"):
            raise LedgerError(f"{_named(path)}, {one}: id must start with {head['prefix']!r} and a hyphen")
    return Paper(name=path.parent.name, claims=found, **head)


def papers() -> tuple[Paper, ...]:
    """Return all papers of the ledger, in the order of the book's parts."""
    return _read_all(checkout() / "chapters")


def claims() -> tuple[Claim, ...]:
    """Return all claims of all papers."""
    return tuple(c for paper in papers() for c in paper.claims)


def claim(claim_id: str) -> Claim:
    """Return the claim with this id.

    Args:
        claim_id: For example ``GA-TAB1-headline``.

    Returns:
        The claim.

    Raises:
        LedgerError: If no ledger file has such a claim; the message names the nearest ids, or the claim that an older
            one was merged into.
    """
    import difflib

    known = {c.id: c for c in claims()}
    if claim_id not in known:
        if successor := next((c.id for c in known.values() if claim_id in c.merged), None):
            raise LedgerError(f"claim_id: {claim_id} was merged into {successor}")
        near = difflib.get_close_matches(str(claim_id), known, n=3, cutoff=0.4)
        hint = f"; did you mean {', '.join(near)}?" if near else "; expected one of those that `attnbook list` shows"
        raise LedgerError(f"claim_id: no claim {claim_id!r} in the ledger{hint}")
    return known[claim_id]


@cache
def _read_all(folder: Path) -> tuple[Paper, ...]:
    found = tuple(sorted(map(read_paper, folder.glob("*/claims.toml")), key=lambda paper: paper.part))
    for one, other in itertools.pairwise(found):
        if one.part == other.part:
            raise LedgerError(f"{one.name}, {other.name}: both are part {one.part}")
    _no_repeats(_ids(c for paper in found for c in paper.claims), "ledger")
    return found


def _named(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def _ids(claims: Iterable[Claim]) -> list[str]:
    """All ids, those of merged claims too."""
    return [one for c in claims for one in (c.id, *c.merged)]


def _claim(entry: Any, path: Path, number: int) -> Claim:
    known_as = f" ({entry['id']})" if isinstance(entry, dict) and "id" in entry else ""
    where = f"{_named(path)}, claim {number}{known_as}"
    if not isinstance(entry, dict):
        raise LedgerError(f"{where}: must be a table, got {type(entry).__name__}")
    known = {f.name: f for f in fields(Claim) if f.name != "paper"}
    _only_known(entry, set(known), where)
    for name, spec in known.items():
        required = spec.default is MISSING and spec.default_factory is MISSING
        if required and not entry.get(name):
            raise LedgerError(f"{where}: field {name!r} is missing or empty")
        if name in entry and name not in {"paper_value", "merged"} and not isinstance(entry[name], str):
            raise LedgerError(f"{where}: field {name!r} must be a text, got {entry[name]!r}")
    _check_values(entry, where)
    return Claim(**{**entry, "merged": tuple(entry.get("merged", ()))}, paper=path.parent.name)


def _check_values(entry: Mapping[str, Any], where: str) -> None:
    if not ID.fullmatch(entry["id"]):
        raise LedgerError(f"{where}: field 'id' must look like GA-TAB1-headline, got {entry['id']!r}")
    _one_of(entry["source"], SOURCES, "source", where)
    _one_of(entry.get("setting", ""), SETTINGS if entry["source"] == "paper" else ("",), "setting", where)
    tested = entry.get("setting") not in ("outside", "vacuous") or entry.get("untestable")
    _one_of(entry.get("verdict", "reproduced"), EARNED if tested else LESS, "verdict", where)
    _one_of(entry.get("status", ""), ("", "pending"), "status", where)
    _one_of(entry.get("size", ""), SIZES, "size", where)
    merged = entry.get("merged", [])
    if not isinstance(merged, list) or not all(isinstance(one, str) and ID.fullmatch(one) for one in merged):
        raise LedgerError(f"{where}: field 'merged' must be a list of ids, got {merged!r}")
    numbers = entry.get("paper_value", {})
    if not isinstance(numbers, dict):
        raise LedgerError(f"{where}: field 'paper_value' must be a table of numbers, got {numbers!r}")
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise LedgerError(f"{where}: paper_value.{name} must be a finite number, got {value!r}")
    if entry.get("untestable"):
        if entry.get("accept") or entry.get("experiment"):
            raise LedgerError(f"{where}: an untestable claim has neither 'accept' nor 'experiment'")
    elif not entry.get("accept") or not entry.get("experiment"):
        raise LedgerError(f"{where}: fields 'accept' and 'experiment' are needed (or 'untestable' with a reason)")


def _one_of(value: str, allowed: Iterable[str], name: str, where: str) -> None:
    if value not in allowed:
        raise LedgerError(f"{where}: field {name!r} must be one of {', '.join(map(repr, allowed))}, got {value!r}")


def _only_known(table: Mapping[str, Any], known: set[str], where: str) -> None:
    unknown = sorted(set(table) - known)
    if unknown:
        raise LedgerError(f"{where}: unknown field {unknown[0]!r}; known are {', '.join(sorted(known))}")


def _no_repeats(ids: list[str], where: str) -> None:
    for one in ids:
        if ids.count(one) > 1:
            raise LedgerError(f"{where}: claim {one} is listed twice")
