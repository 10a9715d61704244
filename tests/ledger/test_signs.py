"""Signs in a chapter's text agree with the ledger, and its folded table has a row for each claim."""

import re

import pytest

from attnbook import ledger
from attnbook.core.results import Measurement
from attnbook.ledger import Claim, LedgerError, Verdict, checked, signs, wrong_signs
from attnbook.ledger.rendering import SIGNS

CHAPTER = "toy/errors"


@pytest.fixture
def toys(monkeypatch):
    """Call with the outcome of each claim of a chapter at the book's size, and at full size if it has one."""

    def toys(**outcomes):
        def made(name, outcome):
            rule = {"checked": "A test."} if outcome == "met" else {"accept": "x < 1", "experiment": "toy.errors"}
            text = f"Says {name} of $x<1$. More."
            head = {"id": f"XY-{name}", "source": "paper", "where": "Lemma 1", "statement": text, "why": "-"}
            return Claim(**head, **rule, chapter=CHAPTER, paper="toy")

        found = {f"XY-{name}": (made(name, outcomes[name][0]), outcomes[name]) for name in outcomes}

        def verdict(c, place):
            outcome = found[c.id][1][min(place, len(found[c.id][1]) - 1)]
            there = place < len(found[c.id][1]) and not c.checked
            return Verdict(c, "book", outcome, Measurement({}) if there else None)

        def claim(i):
            if i not in found:
                raise LedgerError(f"claim_id: no claim {i!r} in the ledger")
            return found[i][0]

        monkeypatch.setattr(signs, "claims", lambda: [c for c, _ in found.values()])
        monkeypatch.setattr(signs, "claim", claim)
        monkeypatch.setattr(signs, "recorded", lambda c, size: verdict(c, ["book", "full"].index(size)))
        monkeypatch.setattr(signs, "standing", lambda c: verdict(c, 1))

    return toys


def rows(chapter=CHAPTER):
    """The cells of each row as text, by the id of the row."""
    html = checked(chapter)._repr_html_()
    found = re.findall(r'<tr id="([^"]+)">(.*?)</tr>', html)
    return {i: [re.sub("<[^>]+>", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)] for i, row in found}


def test_a_row_has_sign_statement_place_and_the_verdicts_of_both_sizes(toys):
    toys(one=("reproduced", "not reproduced"), two=("reproduced in trend",), three=("met",), four=("reproduced",))
    assert rows() == {
        "XY-one": ["✗", r"Says one of \(x&lt;1\). XY-one", "Lemma 1", "✓ reproduced", "✗ not reproduced"],
        "XY-two": ["≈", r"Says two of \(x&lt;1\). XY-two", "Lemma 1", "≈ reproduced in trend", "–"],
        "XY-four": ["✓", r"Says four of \(x&lt;1\). XY-four", "Lemma 1", "✓ reproduced", "–"],
        "XY-three": ["○", r"Says three of \(x&lt;1\). XY-three", "Lemma 1", "○ met"],  # no result comes last
    }
    assert repr(checked(CHAPTER)).splitlines()[0] == "✗ XY-one: not reproduced"
    assert 'href="../../reference/claims_toy.md#XY-one"' in checked(CHAPTER)._repr_html_()


@pytest.mark.parametrize("outcome", [*SIGNS])
def test_a_sign_is_right_for_one_outcome_only_and_the_message_says_which(outcome, toys):
    toys(one=(outcome,))
    for other, sign in SIGNS.items():
        typed = f'[{sign}](#what-we-checked "XY-one")'
        said = wrong_signs(f"It holds {typed}, and $x$ [(3)](#md-3) [here](#there).")
        right = f"{typed}: the verdict of XY-one is {outcome!r}, expected [{SIGNS[outcome]}]"
        assert said == ([] if other == outcome else [right])


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ('[✓](#what-we-checked "banana")', "claim_id: no claim 'banana' in the ledger"),
        ('[✓](#what-we-checked "SN-6.DIGITS")', "claim_id: SN-6.DIGITS was dropped, because: "),
        ("[✓](#what-we-checked)", 'expected [✓](#what-we-checked "..."), with the id of a claim'),
        ("[✓](#MH-H-noise)", 'expected [✓](#what-we-checked "..."), with the id of a claim'),
        ('[≠](page.ipynb "MH-H-noise")', 'expected [≠](#what-we-checked "..."), with the id of a claim'),
    ],
)
def test_a_sign_without_a_claim_is_named(typed, says):
    (said,) = wrong_signs(f"A {typed}.")
    assert said.startswith(f"{typed}: {says}")


def test_a_chapter_without_claims_is_refused():
    with pytest.raises(LedgerError, match=r"^chapter: expected one of .*multi_head/how_many_heads.*, got 'toy/none'$"):
        checked("toy/none")


def test_no_two_verdicts_have_the_same_sign():
    assert set(SIGNS) == set(ledger.OUTCOMES)
    assert len(set(SIGNS.values())) == len(SIGNS)
