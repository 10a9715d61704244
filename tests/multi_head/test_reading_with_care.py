"""The page of places to read with care: every entry has a demonstration that could fail; its exercise; its pictures."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import attnbook
from attnbook import ledger
from attnbook.multi_head.figures import reading_with_care
from attnbook.multi_head.figures.looks import LOOKS

PAGE = Path(__file__).parents[2] / "chapters" / "multi_head" / "reading_with_care.ipynb"
CELLS = json.loads(PAGE.read_text(encoding="utf-8"))["cells"]
PROSE = "\n".join("".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "markdown")


def constant(heads, p, n, *, one=1.0, logs=2.5, root=1.0):
    return (np.log(n) ** logs) * heads ** (root * (p - 0.5 * one - 0.25))


def entries():
    """The cells of each entry, by its number."""
    found, current = {}, None
    for cell in CELLS:
        text = "".join(cell["source"])
        heading = re.search(r"^## (\d+)\. ", text, re.MULTILINE) if cell["cell_type"] == "markdown" else None
        if heading:
            current = found.setdefault(int(heading[1]), [])
        elif cell["cell_type"] == "markdown" and re.search(r"^## ", text, re.MULTILINE):
            current = None
        if current is not None:
            current.append(cell)
    return found


def test_thirteen_entries_each_with_a_demonstration_that_could_fail():
    found = entries()
    assert sorted(found) == list(range(1, 14))
    for number, cells in found.items():
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        assert any(re.search(r"^ *assert ", text, re.MULTILINE) for text in code), number
        assert any(cell["outputs"] for cell in cells if cell["cell_type"] == "code"), number


def test_the_overview_links_to_every_entry():
    rows = re.findall(r"^\| \[(\d+)\. [^\]]*\]\(#(mh-care-\d+)\)", PROSE, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 14))
    assert all(f"({target})=\n## {number}. " in PROSE for number, target in rows)


def test_the_count_in_the_introduction_is_that_of_the_table():
    rows = re.findall(r"^\| \[\d+\. .*$", PROSE, re.MULTILINE)
    assert sum("harmless slip" in row for row in rows) == 8
    assert "Eight of the thirteen are harmless slips" in PROSE


def test_every_claim_named_exists():
    named = set(re.findall(r"\[(MH-[\w.-]+)\]\(", PROSE))
    assert len(named) > 15
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


def test_pictures_show_the_numbers_they_are_given():
    sizes = np.array([100.0, 1000.0, 10000.0])
    half, quarter = np.full((2, 3), 0.7), np.array([[3.0, 2.0, 1.0]] * 2)
    (ax,) = reading_with_care.residuals(sizes, {"half": half, "quarter": quarter}, 0.7).axes
    drawn = {line.get_label(): line.get_ydata() for line in ax.get_lines()}
    np.testing.assert_allclose(drawn[LOOKS["quarter"].label], quarter[0])
    margins = {"attention_margin": sizes, "tangent_margin": sizes**2, "linear_margin": sizes / 2}
    (ax,) = reading_with_care.three_margins(sizes, margins, 300.0).axes
    drawn = {line.get_label(): line.get_ydata() for line in ax.get_lines()}
    np.testing.assert_allclose(drawn[LOOKS["tangent_margin"].label], sizes**2)


def test_slider_pictures_show_the_numbers_they_are_given():
    losses = np.linspace(0, 2, 5)
    (ax,) = reading_with_care.bracket(losses, {"shown": 1.5 * losses, "read": 1 + losses / 2}, 10_000).axes
    drawn = {line.get_label(): line.get_ydata() for line in ax.get_lines()}
    np.testing.assert_allclose(drawn["as shown"], 1.5 * losses)
    np.testing.assert_allclose(drawn["our reading"], 1 + losses / 2)
    (ax,) = reading_with_care.distance_gone(losses, {"quarter": losses + 1, "half": losses + 2}, "B = 1").axes
    assert ax.get_title(loc="left") == "B = 1"
    np.testing.assert_allclose(ax.get_lines()[1].get_ydata(), losses + 2)
