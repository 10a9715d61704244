"""Every measured claim can fail: some change of what was measured turns its verdict."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import red

from attnbook import ledger
from attnbook.core.results import Measurement

CANNOT_FAIL = json.loads((Path(__file__).parent / "cannot_fail.json").read_text(encoding="utf-8"))
"""By paper, the rules that no move of their values turns. This list may only shrink."""


@pytest.mark.parametrize("paper", ledger.papers(), ids=lambda paper: paper.name)
def test_every_rule_can_fail(paper):
    verdicts = [v for v in map(ledger.standing, paper.claims) if v.measurement]
    assert verdicts
    assert [v.claim.id for v in verdicts if not red.can_turn(v)] == CANNOT_FAIL.get(paper.name, [])


def made(accept, **values):
    claim = dataclasses.replace(ledger.claims()[0], accept=accept, paper_value={"loss": 0.2}, verdict="reproduced")
    return ledger.judge(claim, Measurement(values))


@pytest.mark.parametrize(
    ("accept", "values", "can"),
    [
        ("ratio <= 1", {"ratio": 0.4}, True),
        ("ratio <= 1", {"ratio": 1e-4}, False),
        ("abs(loss - paper_loss) < 0.01", {"loss": 0.2}, True),
        ("ours < theirs", {"ours": 0.1, "theirs": 1e6}, True),
        ("share == 1", {"share": 0.7}, True),
        ("gap > 0", {"gap": 1e9}, True),
        ("gap ** 2 >= 0", {"gap": 3.0}, False),
        ("log10(gap) < 99", {"gap": 3.0}, False),
    ],
)
def test_a_rule_that_cannot_fail_is_found(accept, values, can):
    assert red.can_turn(made(accept, **values)) == can


ARRAYS = {"loss": np.geomspace(1, 1e-3, 7) * np.ones((3, 1)), "error": np.full(3, 1e-15), "unread": np.arange(5.0)}


def measure(arrays):
    """The start over the end, which turns around; an error far from its bound, which nothing general turns."""
    loss, error = arrays["loss"], arrays["error"]
    fall, largest = np.median(loss[:, -1] / loss[:, 0]), np.max(error)
    return {"XY-fall": Measurement({"fall": float(fall)}), "XY-error": Measurement({"error": float(largest)})}


@pytest.fixture
def toys(monkeypatch):
    """A ledger of two claims."""
    rules = {"XY-fall": "fall < 0.01", "XY-error": "error < 1e-9"}
    monkeypatch.setattr(ledger, "claim", lambda i: dataclasses.replace(ledger.claims()[0], id=i, accept=rules[i]))


def test_a_claim_that_no_rearrangement_of_the_arrays_turns_is_found(toys):
    honest = measure(ARRAYS)
    assert red.never_turned(measure, ARRAYS) == ["XY-error"]
    assert red.never_turned(lambda _: honest, ARRAYS) == ["XY-error", "XY-fall"]


def test_a_change_of_its_own_must_turn_a_claim(toys):
    red.assert_turned(measure, ARRAYS, {"XY-error": lambda arrays: arrays | {"error": np.ones(3)}})
    with pytest.raises(AssertionError, match=r"^XY-error: still "):
        red.assert_turned(measure, ARRAYS, {"XY-error": lambda arrays: arrays | {"unread": np.ones(3)}})
