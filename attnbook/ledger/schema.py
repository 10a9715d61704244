"""The claims ledger: what a paper states, where, and the rule by which we judge it.

One TOML file per paper (``chapters/<paper>/claims.toml`` of the checkout) holds a ``[paper]`` table, a list of
``[[claim]]`` tables and, for former claims that are part of no other, ``[[dropped]]`` tables with ``ids`` and
``because``. Reading one checks every field, so that a typing error is reported with the claim and the field it is in,
and never turns into a claim that is silently not checked.

Nothing here needs more than Python: ``attnbook show`` answers in half a second.
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

__all__ = [
    "SETTINGS",
    "SOURCES",
    "Claim",
    "LedgerError",
    "Paper",
    "claim",
    "claims",
    "former",
    "papers",
    "read_paper",
]

SOURCES = {"paper": "what the paper states", "book": "a finding of this book"}
SETTINGS = {
    "": "not said yet",
    "inside": "inside the statement's hypotheses",
    "outside": "outside the statement's hypotheses",
    "vacuous": "the statement is vacuous here",
}
EARNED = ("reproduced", "consistent with the bound", "reproduced in trend", "contradicted")
LESS = ("consistent with the bound", "reproduced in trend")  # the most that an experiment outside can earn
APART = ("identity", "slip", "met")  # no results, and counted apart from them
SIZES = ("", "book", "full")
ID = re.compile(r"[A-Z]{2}-[A-Za-z0-9][A-Za-z0-9.+-]*")
HEAD = {"part": 1, "title": "", "prefix": "", "citation": ""}


class LedgerError(ValueError):
    """A claim, a ledger file or a stored result is not what the ledger expects."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One statement and the rule that decides about it; without a ``trial`` the rule is older than the measurement.

    It has an ``experiment`` and a rule, ``accept``; or it is an identity or an assumption that tests hold the code to,
    which ``checked`` names; or it is ``untestable``, with the reason.

    Attributes:
        id: Stable identifier as on the paper's card, for example ``GA-TAB1-headline``.
        source: One of :data:`SOURCES`: who says so.
        where: Place in the paper ("Table 1, n = 20000").
        statement: What is claimed, Markdown with ``$LaTeX$``.
        why: One sentence: why the rule is the right one, what the setting leaves open.
        chapter: Notebook that shows it, ``paper/chapter`` without suffix.
        experiment: Registered experiment that measures it.
        accept: Expression in the names of the measured values and of ``paper_<name>`` for each
            entry of ``paper_value``; true when the claim holds.
        paper_value: The paper's numbers by name; empty when the paper gives none.
        setting: One of :data:`SETTINGS`: where the experiment lies, for what the paper states. Where it is outside the
            hypotheses, or the statement vacuous, a rule that holds earns no more than one of :data:`LESS`.
        verdict: What a claim earns when its rule holds: ``reproduced``, ``consistent with the bound`` (a bound is not
            exceeded), ``reproduced in trend``, ``contradicted`` (the rule then tests the corrected statement); or one
            of :data:`APART`: ``identity`` (proved, and checked in code), ``slip`` (a misprint, mended), ``met`` (an
            assumption).
        status: ``pending`` while its chapter, or the run that it asks for, is missing; else empty.
        size: The size that the statement is about, ``book`` or ``full``; empty when it names none.
        checked: How tests hold the code to an identity or an assumption that has no experiment.
        untestable: Reason why it cannot be tested; empty for all others.
        note: How to read the statement with care, in fair wording; may be empty.
        trial: What had been measured in a trial when the rule was set, as an end of the sentence "The rule was set
            after ..."; empty for a rule set without one.
        short: The statement in one line, for tables; empty where its first sentence will do, see :attr:`line`.
        merged: Ids of earlier claims that this one contains.
        paper: Short name of the paper, taken from the folder.
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
    checked: str = ""
    untestable: str = ""
    note: str = ""
    trial: str = ""
    short: str = ""
    merged: Sequence[str] = ()
    paper: str = ""

    @property
    def pending(self) -> bool:
        """Whether the chapter of this claim is still to be written."""
        return self.status == "pending"

    @property
    def line(self) -> str:
        """The statement in one line, as ``short`` has it, else its first sentence."""
        text = " ".join(self.statement.split())
        ends = (found.end() for found in re.finditer(r"[.!?]['\"”]?(?= )", text))
        return self.short or next((text[:end] for end in ends if text[:end].count("$") % 2 == 0), text)


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
        dropped: Ids of former claims that are part of no other, each with the reason.
    """

    name: str
    part: int
    title: str
    prefix: str
    citation: str
    claims: tuple[Claim, ...]
    dropped: Mapping[str, str] = field(default_factory=dict)


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
    paper, name = path.parent.name, f"{path.parent.name}/{path.name}"
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise LedgerError(f"{name}: cannot be read as TOML: {error}") from error
    _only_known(raw, {"paper", "claim", "dropped"}, name)
    head, entries, gone = raw.get("paper", {}), raw.get("claim", []), raw.get("dropped", [])
    if not isinstance(head, dict) or not isinstance(entries, list) or not isinstance(gone, list):
        raise LedgerError(f"{name}: needs one [paper] table and lists of [[claim]] and [[dropped]] tables")
    _check(head, HEAD, set(HEAD), f"{name}, [paper]")
    if head["part"] < 1:
        raise LedgerError(f"{name}, [paper]: field 'part' must be a whole number from 1, got {head['part']}")
    found = tuple(_claim(entry, f"{name}, claim {number}", paper) for number, entry in enumerate(entries, 1))
    dropped = dict(
        pair for number, entry in enumerate(gone, 1) for pair in _dropped(entry, f"{name}, dropped {number}")
    )
    ids = [*_ids(found), *dropped]
    _no_repeats(ids, name)
    for one in ids:
        if not one.startswith(head["prefix"] + "-"):
            raise LedgerError(f"{name}, {one}: id must start with {head['prefix']!r} and a hyphen")
    return Paper(name=paper, claims=found, dropped=dropped, **head)


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
        LedgerError: If no ledger file has such a claim; the message names the nearest ids, or what became of it.
    """
    import difflib

    for found in _of(claim_id):
        if found.id == claim_id:
            return found
    if became := former(claim_id):
        raise LedgerError(f"claim_id: {became}")
    every = {one.lower(): one for p in papers() for one in (*_ids(p.claims), *p.dropped)}
    near = [every[one] for one in difflib.get_close_matches(str(claim_id).lower(), every, n=3, cutoff=0.4)]
    hint = f"; did you mean {', '.join(near)}?" if near else "; expected one of those that `attnbook list` shows"
    raise LedgerError(f"claim_id: no claim {claim_id!r} in the ledger{hint}")


def former(claim_id: str) -> str:
    """Return what became of a claim that is no longer one, as a sentence without its point.

    Args:
        claim_id: For example ``SN-6.DIGITS``.

    Returns:
        Which claim contains it now, or why it was dropped; nothing for other ids.
    """
    for c in _of(claim_id):
        if claim_id in c.merged:
            return f"{claim_id} is part of {c.id} now"
    paper = _paper(checkout() / "chapters", claim_id[:3])
    why = paper.dropped.get(claim_id) if paper else None
    return f"{claim_id} was dropped, because: {why}" if why else ""


def _of(claim_id: str) -> tuple[Claim, ...]:
    """The claims of the paper whose prefix an id has."""
    paper = _paper(checkout() / "chapters", str(claim_id)[:3])
    return paper.claims if paper else ()


@cache
def _paper(folder: Path, prefix: str) -> Paper | None:
    """Read the one paper with this prefix; reading all takes a fifth of the time in which `attnbook show` answers."""
    line = re.compile(rf'^prefix = "{re.escape(prefix[:-1])}"$', re.MULTILINE)
    files = (file for file in folder.glob("*/claims.toml") if line.search(file.read_text(encoding="utf-8")))
    return next(map(read_paper, files), None)


@cache
def _read_all(folder: Path) -> tuple[Paper, ...]:
    found = tuple(sorted(map(read_paper, folder.glob("*/claims.toml")), key=lambda paper: paper.part))
    for one, other in itertools.pairwise(found):
        if one.part == other.part:
            raise LedgerError(f"{one.name}, {other.name}: both are part {one.part}")
    _no_repeats([one for paper in found for one in (*_ids(paper.claims), *paper.dropped)], "ledger")
    return found


def _ids(claims: Iterable[Claim]) -> list[str]:
    """All ids, those of merged claims too."""
    return [one for c in claims for one in (c.id, *c.merged)]


def _claim(entry: Any, where: str, paper: str) -> Claim:
    if not isinstance(entry, dict):
        raise LedgerError(f"{where}: must be a table, got {type(entry).__name__}")
    if "id" in entry:
        where = f"{where} ({entry['id']})"
    known: dict[str, Any] = {f.name: "" for f in fields(Claim)} | {"paper_value": {}, "merged": []}
    del known["paper"]
    _check(entry, known, {f.name for f in fields(Claim) if f.default is f.default_factory is MISSING}, where)
    outside = entry.get("setting") in ("outside", "vacuous")
    way = [name for name in ("accept", "checked", "untestable") if entry.get(name)]
    allowed = {
        "source": SOURCES,
        "setting": SETTINGS if entry["source"] == "paper" else ("",),
        "verdict": APART if way == ["checked"] else (*(LESS if outside and way == ["accept"] else EARNED), *APART),
        "status": ("", "pending"),
        "size": SIZES,
    }
    for name, values in allowed.items():
        if (value := entry.get(name, "reproduced" if name == "verdict" else "")) not in values:
            raise LedgerError(f"{where}: field {name!r} must be one of {', '.join(map(repr, values))}, got {value!r}")
    if len(way) != 1 or bool(entry.get("experiment")) != (way == ["accept"]):
        raise LedgerError(f"{where}: needs 'accept' and 'experiment', or only 'checked', or only 'untestable'")
    for one in (entry["id"], *entry.get("merged", ())):
        _check_id(one, "id" if one == entry["id"] else "merged", where)
    for name, value in entry.get("paper_value", {}).items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise LedgerError(f"{where}: paper_value.{name} must be a finite number, got {value!r}")
    return Claim(**{**entry, "merged": tuple(entry.get("merged", ()))}, paper=paper)


def _dropped(entry: Any, where: str) -> list[tuple[str, str]]:
    if not isinstance(entry, dict):
        raise LedgerError(f"{where}: must be a table, got {type(entry).__name__}")
    _check(entry, {"ids": [], "because": ""}, {"ids", "because"}, where)
    for one in entry["ids"]:
        _check_id(one, "ids", where)
    return [(one, entry["because"]) for one in entry["ids"]]


def _check(table: Mapping[str, Any], known: Mapping[str, Any], required: set[str], where: str) -> None:
    """Check that a table has the required fields, no unknown one, and values of the types of those in ``known``."""
    _only_known(table, set(known), where)
    kinds = {str: "a text", int: "a whole number", dict: "a table", list: "a list"}
    for name, example in known.items():
        if name in required and table.get(name) in (None, "", []):
            raise LedgerError(f"{where}: field {name!r} is missing or empty")
        if name in table and type(table[name]) is not type(example):
            raise LedgerError(f"{where}: field {name!r} must be {kinds[type(example)]}, got {table[name]!r}")


def _check_id(value: Any, name: str, where: str) -> None:
    if not isinstance(value, str) or not ID.fullmatch(value):
        raise LedgerError(f"{where}: field {name!r} must be an id such as GA-TAB1-headline, got {value!r}")


def _only_known(table: Mapping[str, Any], known: set[str], where: str) -> None:
    unknown = sorted(set(table) - known)
    if unknown:
        raise LedgerError(f"{where}: unknown field {unknown[0]!r}; known are {', '.join(sorted(known))}")


def _no_repeats(ids: list[str], where: str) -> None:
    for one in ids:
        if ids.count(one) > 1:
            raise LedgerError(f"{where}: claim {one} is listed twice")
