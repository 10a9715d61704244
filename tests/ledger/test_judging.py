"""Rules decide, safely; of several results one counts."""

import dataclasses

import pytest

from attnbook.core.results import Measurement, stored_path
from attnbook.ledger import (
    OUTCOMES,
    Claim,
    LedgerError,
    Verdict,
    check,
    claim,
    judge,
    judging,
    recorded,
    standing,
)
from attnbook.ledger.rendering import card
from attnbook.ledger.schema import EARNED


def made(accept="loss <= 0.5 * paper_loss", **changes):
    head = {"id": "XY-1", "source": "paper", "where": "Table 1", "statement": "Small.", "why": "-", "chapter": "x/y"}
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


RATE = "global_attention.error_rate"


@pytest.fixture
def error_rate(smoke_results):
    """What is measured, by claim id."""
    return smoke_results.measurements(RATE)


def test_a_check_judges_all_that_was_measured_one_line_each(error_rate):
    report = check(error_rate)
    assert [v.claim.id for v in report.verdicts] == list(error_rate)
    assert repr(report).splitlines()[2] == "GA-T1-order: reproduced in trend"
    assert report._repr_html_() == card(report.verdicts)


@pytest.mark.parametrize(
    ("only", "ids"),
    [
        (["GA-T1-order"], ["GA-T1-order"]),
        (["GA-P1-order", "GA-C1-free"], ["GA-C1-free", "GA-P1-order"]),
        ([], []),
    ],
)
def test_a_check_can_be_narrowed_to_some_claims(only, ids, error_rate):
    assert [v.claim.id for v in check(error_rate, only=only).verdicts] == ids


def test_an_id_names_one_claim_and_not_those_that_begin_alike(smoke_results):
    """PC-F1 is neither PC-F10 nor PC-F1-sgd-start."""
    result = smoke_results.measurements("preconditioning.structure_aware_descent")
    assert {"PC-F1", "PC-F1-sgd-start", "PC-F10"} <= set(result)
    assert [v.claim.id for v in check(result, only=["PC-F1"]).verdicts] == ["PC-F1"]


@pytest.mark.parametrize("only", [["GA-T1"], ["GA-T1-order", "GA-TAB1"], ["ga-t1-order"], "GA-T1-order"])
def test_asking_for_what_was_not_measured_is_an_error(only, error_rate):
    with pytest.raises(LedgerError, match=r"^only: .* was not measured; this result measured GA-T1-rate, "):
        check(error_rate, only=only)


def test_measuring_a_claim_that_is_not_in_the_ledger_is_an_error():
    with pytest.raises(LedgerError, match=r"no claim 'GA-T1-oder'.*GA-T1-order"):
        check({"GA-T1-oder": Measurement({"l1_over_baseline": 0.5})})


@pytest.mark.parametrize("scale", ["book", "paper"])
def test_the_recorded_verdict_is_that_of_the_stored_result(scale, error_rate, smoke_results, tmp_results):
    order = claim("GA-T1-order")
    assert recorded(order, scale) == Verdict(order, scale, "pending")
    smoke_results.store(RATE, stored_path(RATE, scale))
    assert recorded(order, scale).outcome == "reproduced in trend"
    assert recorded(order, scale).measurement == error_rate["GA-T1-order"]


@pytest.mark.parametrize(
    ("named", "seeds", "counts"),
    [
        ("", {}, "book"),
        ("", {"book": 5}, "book"),
        ("", {"book": 5, "paper": 10}, "paper"),
        ("", {"book": 20, "paper": 5}, "book"),
        ("", {"book": 5, "large": 5, "paper": 5}, "paper"),
        ("", {"book": 5, "large": 5, "paper": 1}, "large"),
        ("paper", {"book": 20, "paper": 5}, "paper"),
        ("large", {"book": 20, "large": 5, "paper": 9}, "large"),
        ("book", {"book": 1, "paper": 9}, "book"),
        ("paper", {"book": 3, "large": 9}, "large"),
    ],
)
def test_the_verdict_that_counts_is_of_the_size_named_else_of_the_most_seeds(named, seeds, counts, monkeypatch):
    """A poorer run never outranks a better one; of equals the larger size counts."""
    stored = {scale: Measurement({"loss": 0.1}, {}, n) for scale, n in seeds.items()}
    monkeypatch.setattr(
        judging, "stored_measurements", lambda _, scale: {"XY-1": stored[scale]} if scale in stored else {}
    )
    found = standing(made(scale=named))
    assert (found.scale, found.measurement) == (counts, stored.get(counts))


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [({"status": "pending"}, "pending"), ({"untestable": "No data.", "accept": "", "experiment": ""}, "not testable")],
)
def test_what_is_pending_or_untestable_stays_so_whatever_is_stored(changes, outcome, smoke_results, tmp_results):
    smoke_results.store(RATE, stored_path(RATE, "book"))
    asked = dataclasses.replace(claim("GA-T1-order"), **changes)
    assert recorded(asked) == Verdict(asked, "book", outcome)
