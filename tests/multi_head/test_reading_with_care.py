"""The page of places to read with care: its table, its entries, its exercise, its slider."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import attnbook
from attnbook import ledger
from attnbook.multi_head import oracle
from attnbook.multi_head.reading_with_care import figures

PAGE = Path(__file__).parents[2] / "chapters" / "multi_head" / "reading_with_care.ipynb"
CELLS = json.loads(PAGE.read_text(encoding="utf-8"))["cells"]
PROSE = "\n".join("".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "markdown")


def constant(heads, p, n, *, one=1.0, logs=2.5, root=1.0):
    return (np.log(n) ** logs) * heads ** (root * (p - 0.5 * one - 0.25))


ROWS = re.findall(r"^\| (?:\[)?(\d+)\. .*$", PROSE, re.MULTILINE)


def test_the_table_has_sixteen_places_and_those_that_decide_something_an_entry():
    assert [int(number) for number in ROWS] == list(range(1, 17))
    targets = re.findall(r"\]\(#(mh-care-\d+)\)", PROSE)
    assert len(set(targets)) == 4
    assert all(f"({target})=\n" in PROSE for target in targets)


def test_the_count_in_short_is_that_of_the_table():
    rows = re.findall(r"^\| (?:\[)?\d+\. .*$", PROSE, re.MULTILINE)
    assert sum("slip, no" in row for row in rows) == 9
    assert "**Nine are harmless slips**" in PROSE


def test_entries_that_compute_have_a_demonstration_that_could_fail():
    code = ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"]
    assert sum(bool(re.search(r"^ *assert ", text, re.MULTILINE)) for text in code) == 4


def test_every_claim_named_exists():
    named = set(re.findall(r"\[(MH-[\w.-]+)\]\(", PROSE))
    assert len(named) >= 16
    assert named <= {claim.id for claim in ledger.claims()}


def test_words_that_would_blame_do_not_occur():
    assert not re.search(r"misprint|mistaken|the authors? (err|fail|forg|overlook)", PROSE, re.IGNORECASE)


def test_the_right_answer_passes():
    assert attnbook.check("MH-CARE", constant).right


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda *a: constant(*a, one=0.0), "their squared norms add up"),
        (lambda *a: constant(*a) ** 2, "take the root"),
        (lambda h, p, n: np.log(n) ** 5 * h ** (p - 1.5), "without the square"),
        (lambda *a: constant(*a, logs=5), "under the root too"),
        (lambda *a: constant(*a, one=1.5), "is the root of H"),
        (lambda h, p, n: np.log(n) ** 2.5 * h ** (p - 0.5), "is missing"),
        (lambda *a: constant(*a, logs=0), "logarithm of the number of samples is missing"),
        (lambda *a: constant(*a, root=-1.0), "sign"),
        (lambda *a: 1.0, "different"),
    ],
)
def test_wrong_answers_get_the_likely_mistake(answer, message):
    feedback = attnbook.check("MH-CARE", answer)
    assert not feedback.right
    assert message in repr(feedback)


def test_the_slider_shows_margins_that_cross_where_it_says():
    (ax,) = figures.three_margins(0.5).axes
    drawn = {line.get_label(): line.get_xydata() for line in ax.get_lines()}
    attention, tangent = (
        drawn[figures.MARGINS[margin].label] for margin in (oracle.attention_margin, oracle.first_phase_margin)
    )
    above = tangent[:, 1] > attention[:, 1]
    np.testing.assert_array_equal(above, attention[:, 0] > (4 * 5**0.5 / (10**0.5 * 0.25)) ** (1 / 3))
    figures.plt.close(ax.figure)
    assert "the order turns at S = 2.24" in figures.three_margins_text(0.5)
