"""What a chapter shows of the ledger: a sign after a sentence, and one folded table at its end.

A writer types ``[✓](#what-we-checked "MH-H-noise")`` behind the sentence that a claim supports. The link leads to the
heading of that name, in the built book to the claim's row in the table that stands there, which
``ledger.checked("multi_head/how_many_heads")`` shows, and from there to the ledger; who points at the sign sees the
claim. The sign is that of the verdict that counts, which :func:`wrong_signs` checks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from attnbook.ledger.judging import recorded, standing
from attnbook.ledger.rendering import OPENS, SIGNS, badge, origin, text_as_html
from attnbook.ledger.schema import APART, Claim, LedgerError, claim, claims

__all__ = ["PLACE", "SIGN", "Checked", "checked", "wrong_signs"]

PLACE = "what-we-checked"
SIGN = re.compile(rf"\[([{''.join(SIGNS.values())}])\]\(([^)\s]*)(?: \"([^\"]*)\")?\)")
HEADS = ("", "claim", "in the paper", "book size", "full size")


@dataclass(frozen=True)
class Checked:
    """What was checked in a chapter, as a folded table in notebooks and as one stable line per claim in text.

    Attributes:
        claims: The claims; those that are results come first.
    """

    claims: tuple[Claim, ...]

    def __repr__(self) -> str:
        return "\n".join(f"{SIGNS[outcome]} {c.id}: {outcome}" for c in self.claims if (outcome := standing(c).outcome))

    def _repr_html_(self) -> str:
        head = "".join(f'<th style="text-align: left">{name}</th>' for name in HEADS)
        rows = "\n".join(map(_row, self.claims))
        said = f"{(count := len(self.claims))} claim{'s' * (count != 1)}"
        fold = f'<summary style="{OPENS}">What we checked: {said}</summary>'
        table = f"<table><thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table>"
        return f' \n<details class="claim-card checked tex2jax_process">{fold}{table}</details>'


def checked(chapter: str) -> Checked:
    """Return what was checked in a chapter: the last line of its last code cell.

    Verdicts are those of the stored results, at the book's size and at full size.

    Args:
        chapter: For example ``multi_head/how_many_heads``.

    Returns:
        Its claims, results first, then identities, mended slips, assumptions and what is not testable.

    Raises:
        LedgerError: If the ledger has no claim of this chapter.
    """
    found = [c for c in claims() if c.chapter == chapter]
    if not found:
        known = ", ".join(sorted({c.chapter for c in claims()}))
        raise LedgerError(f"chapter: expected one of {known}, got {chapter!r}")
    return Checked(tuple(sorted(found, key=lambda c: not _is_result(c))))


def wrong_signs(text: str) -> list[str]:
    """Return what is wrong with the signs in a text.

    Args:
        text: Markdown of a chapter.

    Returns:
        A sentence for each sign that is not that of the verdict of the claim it names, or names none.
    """
    return [f"{found[0]}: {wrong}" for found in SIGN.finditer(text) if (wrong := _wrong(*found.groups()))]


def _wrong(sign: str, target: str, name: str | None) -> str:
    if target != f"#{PLACE}" or not name:
        return f'expected [{sign}](#{PLACE} "..."), with the id of a claim in the quotation marks'
    try:
        outcome = standing(claim(name)).outcome
    except LedgerError as error:
        return str(error)
    return "" if SIGNS[outcome] == sign else f"the verdict of {name} is {outcome!r}, expected [{SIGNS[outcome]}]"


def _is_result(c: Claim) -> bool:
    return bool(c.experiment) and standing(c).outcome not in APART


def _row(c: Claim) -> str:
    """One claim: its sign, what it says with a link to the ledger, its place, its verdict at two sizes."""
    counts = standing(c)
    link = f'<a class="claim-id" href="../../reference/claims_{c.paper}.md#{c.id}">{c.id}</a>'
    where = text_as_html(c.where) if c.source == "paper" else origin(c)
    said = [SIGNS[counts.outcome], f"{text_as_html(c.line)} {link}", f'<span class="claim-where">{where}</span>']
    if _is_result(c):
        said += [badge(v.outcome) if v.measurement else "–" for v in (recorded(c, size) for size in ("book", "full"))]
    cells = "".join(f'<td style="text-align: left">{cell}</td>' for cell in said)
    rest = "" if len(said) > 3 else f'<td style="text-align: left" colspan="2">{badge(counts.outcome)}</td>'
    return f'<tr id="{c.id}">{cells}{rest}</tr>'
