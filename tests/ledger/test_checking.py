"""Rules decide, safely; cards show what was decided."""

import dataclasses
import re

import pytest

from attnbook.core.results import Measurement, stored_path
from attnbook.ledger import (
    OUTCOMES,
    Claim,
    LedgerError,
    Report,
    Verdict,
    check,
    claim,
    judge,
    recorded,
    render_values,
    standing,
)
from attnbook.ledger.rendering import MOST_OPEN, SIGNS, card, number
from attnbook.ledger.schema import EARNED


def made(accept="loss <= 0.5 * paper_loss", **changes):
    head = {"id": "XY-1", "kind": "number", "where": "Table 1", "statement": "Small.", "why": "-", "chapter": "x/y"}
    return Claim(**head | {"experiment": "x.y", "accept": accept, "paper_value": {"loss": 0.2}} | changes)


def measured(**values):
    return Measurement(values, {name: (value - 0.01, value + 0.01) for name, value in values.items()}, 5)


@pytest.mark.parametrize("earned", EARNED)
@pytest.mark.parametrize(("loss", "holds"), [(0.1, True), (0.11, False)])
def test_a_rule_that_holds_earns_the_verdict_and_no_other(earned, loss, holds):
    verdict = judge(made(verdict=earned), measured(loss=loss), "paper")
    assert verdict.outcome == (earned if holds else "not reproduced")
    assert verdict.outcome in OUTCOMES
    assert (verdict.scale, verdict.measurement) == ("paper", measured(loss=loss))


@pytest.mark.parametrize(
    ("rule", "holds"),
    [
        ("abs(loss - 0.1) < 1e-12 and not loss > 1", True),
        ("0 < loss < 0.1", False),
        ("max(loss, paper_loss) == 0.2 or loss < 0", True),
        ("sqrt(loss) ** 2 >= 0.2", False),
        ("log10(loss) <= log(loss) + 2", True),
    ],
)
def test_rules_may_use_comparisons_logic_and_a_few_functions(rule, holds):
    assert (judge(made(rule), measured(loss=0.1)).outcome == "reproduced") == holds


@pytest.mark.parametrize(
    "rule",
    [
        "los <= 1",
        "paper_los <= 1",
        "loss > 1 and los <= 1",
        "loss < 1 or los <= 1",
        "loss",
        "loss + 1",
        "'yes'",
        "None",
        "loss <=",
        "loss = 0.1",
        "loss <= 1; loss <= 2",
        "loss / (loss - loss) > 1",
        "sqrt(-loss) < 1",
        "'abc'[7] == 'd'",
        "loss < 'a'",
        "abs() < 1",
        "True)",
        "__import__('os').system('true') == 0",
        "open('/etc/passwd') is not None",
        "loss.__class__.__bases__ != 1",
        "(1).__class__ == 1",
        "abs.__self__ != 1",
        "[x for x in (1, 2)] == 1",
        "(lambda: True)()",
        "eval('True')",
        "9 ** 9 ** 9 > loss",
        "'a' * 10 ** 9 == 'b'",
        "f'{loss.__class__}' == ''",
    ],
)
def test_a_rule_that_is_wrong_or_malicious_is_refused_by_claim(rule):
    with pytest.raises(LedgerError, match=r"^XY-1: rule "):
        judge(made(rule), measured(loss=0.1))


def test_nan_never_holds_and_is_named():
    """Even under a rule that a NaN would pass."""
    with pytest.raises(LedgerError, match=r"^XY-1: measured value 'loss' is NaN$"):
        judge(made("not loss > 1"), Measurement({"error": 0.0, "loss": float("nan")}))


@pytest.mark.parametrize("reason", ["", "No data."])
def test_a_claim_without_a_rule_cannot_be_judged(reason):
    with pytest.raises(LedgerError, match=f"^XY-1: has no rule to judge by .{reason or 'no accept'}"):
        judge(made("", untestable=reason), measured(loss=0.1))


@pytest.fixture
def error_rate(smoke_results):
    return smoke_results["global_attention.error_rate"]


def test_a_check_judges_all_that_was_measured_one_line_each(error_rate):
    report = check(error_rate)
    assert [v.claim.id for v in report.verdicts] == list(error_rate.measurements())
    assert repr(report).splitlines()[2] == "GA-T1-bound: reproduced"
    assert report._repr_html_() == card(report.verdicts)


@pytest.mark.parametrize(
    ("only", "ids"),
    [
        (["GA-T1-bound"], ["GA-T1-bound"]),
        (["GA-P1", "GA-C1-free"], ["GA-C1-free", "GA-P1-gain", "GA-P1-order"]),
        ([], []),
    ],
)
def test_a_check_can_be_narrowed_to_ids_and_beginnings(only, ids, error_rate):
    assert [v.claim.id for v in check(error_rate, only=only).verdicts] == ids


def test_whole_parts_of_an_id_win_over_mere_beginnings(smoke_results):
    """PC-F1 is not PC-F10; what was measured under no whole part is found by its beginning."""
    result = smoke_results["preconditioning.structure_aware_descent"]
    figure_1 = [v.claim.id for v in check(result, only=["PC-F1"]).verdicts]
    assert figure_1 == ["PC-F1", "PC-F1-stays", "PC-F1-sgd-start", "PC-F1-sgd-end"]
    assert figure_1[1:] == [v.claim.id for v in check(result, only=["PC-F1-"]).verdicts]
    assert [v.claim.id for v in check(result, only=["PC-F2b-s"]).verdicts] == ["PC-F2b-sgd"]


@pytest.mark.parametrize("only", [["GA-T1", "GA-TAB1"], ["ga-t1"], "GA-T1-bound"])
def test_asking_for_what_was_not_measured_is_an_error(only, error_rate):
    with pytest.raises(LedgerError, match=r"^only: .* was not measured; this result measured GA-T1-rate, "):
        check(error_rate, only=only)


def test_measuring_a_claim_that_is_not_in_the_ledger_is_an_error(error_rate):
    class Other(type(error_rate)):
        def measurements(self):
            return {"GA-T1-bond": Measurement({"max_error": 0.0})}

    with pytest.raises(LedgerError, match=r"no claim 'GA-T1-bond'.*GA-T1-bound"):
        check(Other(**{f.name: getattr(error_rate, f.name) for f in dataclasses.fields(error_rate)}))


@pytest.mark.parametrize("scale", ["book", "paper"])
def test_the_recorded_verdict_is_that_of_the_stored_result(scale, error_rate, tmp_results):
    bound = claim("GA-T1-bound")
    assert recorded(bound, scale) == Verdict(bound, scale, "pending")
    error_rate.save(stored_path(error_rate.experiment, scale))
    assert recorded(bound, scale).outcome == "reproduced"
    assert recorded(bound, scale).measurement == error_rate.measurements()["GA-T1-bound"]


def test_the_verdict_that_counts_is_that_of_the_full_size_where_there_is_one(error_rate, tmp_results):
    bound = claim("GA-T1-bound")
    assert standing(bound).outcome == "pending"
    error_rate.save(stored_path(error_rate.experiment, "book"))
    assert standing(bound).scale == "book"
    error_rate.save(stored_path(error_rate.experiment, "paper"))
    assert standing(bound) == recorded(bound, "paper")


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [({"status": "pending"}, "pending"), ({"untestable": "No data.", "accept": "", "experiment": ""}, "not testable")],
)
def test_what_is_pending_or_untestable_stays_so_whatever_is_stored(changes, outcome, error_rate, tmp_results):
    error_rate.save(stored_path(error_rate.experiment, "book"))
    asked = dataclasses.replace(claim("GA-T1-bound"), **changes)
    assert recorded(asked) == Verdict(asked, "book", outcome)


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
    assert "Over 5 seeds: median" in one
    assert shown(one) != shown(card([judge(made(), measured(loss=0.5))]))


@pytest.mark.parametrize("count", [MOST_OPEN, MOST_OPEN + 1])
def test_long_cards_fold_numbers_and_rules_and_show_every_verdict(count):
    html = card([judge(made(), measured(loss=0.1))] * count)
    assert html.count("<details>") == html.count("</details>") == (count if count > MOST_OPEN else 0)
    assert html.count("✓ reproduced") == html.count('"measured"') == html.count("<code>") == count


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
    ("trials", "said"),
    [
        (("", ""), "Rules were fixed before the run."),
        (("", "one seed"), "The rule of XY-1 was set after one seed. All other rules were fixed before the run."),
        (("one seed",), "The rule of XY-0 was set after one seed."),
        (("a", "b", "a"), "The rules of XY-0 and XY-2 were set after a. The rule of XY-1 was set after b."),
        (("a", "a", "a"), "The rules of XY-0, XY-1 and XY-2 were set after a."),
    ],
)
def test_a_card_says_which_rules_were_set_after_a_trial(trials, said):
    claims = [made("loss < 1", id=f"XY-{i}", trial=trial) for i, trial in enumerate(trials)]
    html = card([judge(one, measured(loss=0.1)) for one in claims])
    assert re.search(r"smallest, largest\]\. (.*)</p></div>$", html).group(1) == said
