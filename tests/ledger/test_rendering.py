"""Cards and scoreboards show what was decided, whose claim it is, which verdict counts and whether it held again."""

import re

import pytest

from attnbook.core.results import Measurement
from attnbook.core.tables import Table
from attnbook.ledger import OUTCOMES, Claim, Replication, Report, Verdict, judge, render_values, rendering
from attnbook.ledger.rendering import BOARDS, SIGNS, card, number, rules, scoreboards


def made(accept="loss <= 0.5 * paper_loss", **changes):
    head = {"id": "XY-1", "source": "paper", "where": "Table 1", "statement": "Small.", "why": "-", "chapter": "x/y"}
    return Claim(**head | {"experiment": "x.y", "accept": accept, "paper_value": {"loss": 0.2}} | changes)


def measured(**values):
    return Measurement(values, {name: (value - 0.01, value + 0.01) for name, value in values.items()}, 5)


def test_measured_values_in_short():
    """Median and range over seeds; nothing for what was not measured."""
    spread = Measurement({"l1_loss": 0.0123456, "steps": 1234567.0}, {"l1_loss": (0.01, 0.02)}, 5)
    verdict = Verdict(made(), "book", "reproduced", spread)
    assert render_values(verdict) == "l1 loss 0.0123 [0.01, 0.02]; steps 1.23e+06"
    assert render_values(Verdict(made(), "book", "pending")) == ""
    assert number(0.0) == "0"
    alone = Verdict(made(), "book", "reproduced", Measurement({"loss": 0.5, "n": 17500.0}, {"loss": (0.5, 0.5)}, 1))
    assert render_values(alone) == "loss 0.5 (one seed); n 17500"


def shown(html):
    return re.sub(r'<span class="measured">[^<]*</span>', "*", html)


def test_a_card_marks_what_was_measured_and_nothing_else():
    one, other = (card([judge(made(), measured(loss=loss))]) for loss in (0.05, 0.06))
    assert one != other
    assert shown(one) == shown(other)
    assert "paper 0.2" in shown(one)
    assert "[0.04, 0.06]" in one
    assert "over 5 seeds: median" in one
    assert shown(one) != shown(card([judge(made(), measured(loss=0.5))]))


@pytest.mark.parametrize("count", [1, 7])
def test_a_card_has_a_row_per_claim_with_its_verdict_and_folds_numbers_and_rule(count):
    html = card([judge(made(), measured(loss=0.1))] * count)
    assert html.count("<tr") == html.count("<details>") == html.count("</details>") == count
    assert html.count("✓ reproduced") == html.count('"measured"') == html.count("<code>") == count
    before = re.sub(r"<details>.*?</details>", "", html)
    assert "<code>" not in before
    assert before.count("✓ reproduced") == count


def test_what_opens_looks_so_in_jupyterlab_too():
    """Whose styles take the triangle away; a folded output has its first line as a label, which is no HTML then."""
    report = Report((judge(made(), measured(loss=0.1)),))
    assert '<summary style="cursor: pointer; list-style-type: disclosure-closed;' in report._repr_html_()
    for shown_there in (report, Table(["a"], [["b"]], "c.")):
        assert shown_there._repr_html_().splitlines()[0].strip() == ""


def test_a_card_escapes_and_sets_formulas():
    risky = made("loss < 1 and loss >= 0", where="<b>Table</b> & 1", statement="If $a<b$,\n  then <i>c</i>.")
    html = card([judge(risky, measured(loss=0.1))])
    assert "&lt;b&gt;Table&lt;/b&gt; &amp; 1" in html
    assert r"If \(a&lt;b\), then &lt;i&gt;c&lt;/i&gt;." in html
    assert "<code>loss &lt; 1 and loss &gt;= 0</code>" in html


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_every_outcome_has_a_sign_and_a_class_so_that_colour_is_not_needed(outcome):
    html = Report((Verdict(made(), "book", outcome),))._repr_html_()
    assert f'class="verdict verdict-{outcome.replace(" ", "-")}">{SIGNS[outcome]} {outcome}<' in html


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"source": "book"}, "Table 1 (a finding of this book)"),
        ({"setting": "inside"}, "Table 1 (inside the statement's hypotheses)"),
        ({"setting": "outside"}, "Table 1 (outside the statement's hypotheses)"),
        ({"setting": "vacuous"}, "Table 1 (the statement is vacuous here)"),
        ({}, "Table 1"),
    ],
)
def test_a_card_says_whose_claim_it_is_or_how_the_experiment_lies_to_its_hypotheses(changes, said):
    html = card([judge(made(**changes), measured(loss=0.1))])
    assert f'<span class="claim-where">{said}</span>' in html


@pytest.mark.parametrize(
    ("outcome", "remark"),
    [
        ("reproduced", None),
        ("not reproduced", "stands: not reproduced, at the paper&#x27;s size over 20 seeds"),
        ("pending", None),
    ],
)
def test_a_card_of_a_run_says_which_verdict_stands_where_it_is_another_one(outcome, remark, monkeypatch):
    stored = None if outcome == "pending" else Measurement({"loss": 0.3}, {}, 20)
    monkeypatch.setattr(rendering, "standing", lambda claim: Verdict(claim, "full", outcome, stored))
    monkeypatch.setattr(rendering, "at_paper_size", lambda experiment: True)
    html = card([judge(made(), measured(loss=0.1))])
    assert ("stands" in html) == (remark is not None)
    assert "✓ reproduced" in html
    if remark:
        assert remark.replace("&#x27;", "'") in html


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Replication(5, 5), "held in 5 of 5"),
        (Replication(4, 5), "held in 4 of 5"),
        (Replication(3, 5), "unstable: held in 3 of 5"),
    ],
)
def test_a_card_says_how_often_the_verdict_held_on_fresh_seeds(found, said, monkeypatch):
    verdict = judge(made(), measured(loss=0.1))
    monkeypatch.setattr(rendering, "replicated", lambda claim: found)
    monkeypatch.setattr(rendering, "recorded", lambda claim, scale: verdict)
    assert f'<span class="claim-remark">{said}</span>' in card([verdict])


@pytest.mark.parametrize(
    ("loss", "said"),
    [(0.1, "held in 5 of 5, at the book's size"), (0.2, "not reproduced at the book's size (held in 5 of 5)")],
)
def test_a_card_names_size_and_verdict_of_the_replication_where_others_count(loss, said, monkeypatch):
    """What held five times may be another verdict than the one that stands."""
    counts, tried = (judge(made(), measured(loss=value), scale) for value, scale in ((0.1, "full"), (loss, "book")))
    monkeypatch.setattr(rendering, "replicated", lambda claim: Replication(5, 5))
    monkeypatch.setattr(rendering, "replicated_size", lambda experiment: "book")
    monkeypatch.setattr(rendering, "recorded", lambda claim, scale: tried)
    monkeypatch.setattr(rendering, "standing", lambda claim: counts)
    assert f'<span class="claim-remark">{said}</span>' in card([counts])


@pytest.mark.parametrize(
    ("loss", "shown", "said"),
    [
        (0.2, "book", "not reproduced, in a larger run over 5 seeds"),
        (0.1, "book", None),  # the larger run agrees
        (0.2, "full", None),  # the card is that of the larger run
    ],
)
def test_a_card_says_so_where_a_larger_run_has_another_verdict_than_the_one_that_counts(loss, shown, said, monkeypatch):
    found = {size: judge(made(), measured(loss=value), size) for size, value in (("book", 0.1), ("full", loss))}
    monkeypatch.setattr(rendering, "standing", lambda claim: found["book"])
    monkeypatch.setattr(rendering, "recorded", lambda claim, size: found.get(size, Verdict(claim, size, "pending")))
    html = card([found[shown]])
    assert ("in a larger run" in html) == (said is not None)
    assert said is None or f'<span class="claim-remark">{said}</span>' in html


def test_what_the_papers_state_and_what_this_book_found_are_counted_apart():
    ours, lost = made(id="XY-2", source="book"), made("", id="XY-3", untestable="No data.", experiment="")
    verdicts = [
        judge(made(), measured(loss=0.1)),
        judge(ours, measured(loss=0.9)),
        Verdict(lost, "book", "not testable"),
    ]
    boards = scoreboards(verdicts)
    assert list(boards) == list(BOARDS)
    assert boards["paper"] == {"reproduced": 1, "not testable": 1}
    assert boards["book"] == {"not reproduced": 1}
    assert list(scoreboards(verdicts[:1])) == ["paper"]


def test_note_of_a_claim_stands_in_its_row():
    html = card([judge(made(id="XY-1", note="Only for $n<3$; see `share`."), measured(loss=0.1))])
    assert r"<b>Read with care.</b> Only for \(n&lt;3\); see <code>share</code>." in html


def test_rules_set_after_a_look_are_counted_apart_and_named_in_their_rows(monkeypatch):
    claims = [made(id=f"XY-{i}", trial=trial) for i, trial in enumerate(["", "one seed", "$n=3$ & more"])]
    verdicts = [judge(claim, measured(loss=0.1)) for claim in claims]
    assert rules(verdicts) == (
        "Rules written down before the measurement: 1; after a look at results, which the claim names: 2."
    )
    html = card(verdicts)
    assert html.count("The rule was set after") == 2
    assert r"The rule was set after \(n=3\) &amp; more." in html
    found = {"XY-0": Replication(3, 5), "XY-1": Replication(5, 5), "XY-2": None}
    monkeypatch.setattr(rendering, "replicated", lambda claim: found[claim.id])
    assert rules(verdicts).endswith("Tried again on fresh seeds: 2 verdicts, unstable: 1.")
