"""Rules decide, safely; of several results one counts."""

import dataclasses

import pytest
import red
from toy_experiment import Toy

from attnbook.core.results import Measurement, stored_measurements, stored_path
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
from attnbook.preconditioning.structure_aware_descent.experiments import StructureAwareDescent
from attnbook.registry import experiment


def made(accept="loss <= 0.5 * paper_loss", **changes):
    head = {"id": "XY-1", "source": "paper", "where": "Table 1", "statement": "Small.", "why": "-", "chapter": "x/y"}
    return Claim(**head | {"experiment": "x.y", "accept": accept, "paper_value": {"loss": 0.2}} | changes)


def measured(**values):
    return Measurement(values, {name: (value - 0.01, value + 0.01) for name, value in values.items()}, 5)


@pytest.mark.parametrize("earned", EARNED)
@pytest.mark.parametrize(("loss", "holds"), [(0.1, True), (0.11, False)])
def test_a_rule_that_holds_earns_the_verdict_and_no_other(earned, loss, holds):
    verdict = judge(made(verdict=earned), measured(loss=loss), "full")
    assert verdict.outcome == (earned if holds else "not reproduced")
    assert verdict.outcome in OUTCOMES
    assert (verdict.size, verdict.measurement) == ("full", measured(loss=loss))


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


RATE, LONG = "global_attention.error_rate", "global_attention.sample_complexity"
ErrorRate, Table1 = experiment(RATE), experiment(LONG)
BOOK = ErrorRate.load_stored("book")
OWN = "your run, not judged"


def test_a_check_judges_all_that_was_measured_one_line_each():
    report, measured = check(BOOK), stored_measurements(RATE, "book")
    assert [(v.claim.id, v.size, v.measurement) for v in report.verdicts] == [
        (i, "book", m) for i, m in measured.items()
    ]
    assert repr(report).splitlines()[2] == "GA-T1-order: reproduced in trend"
    assert report._repr_html_().strip() == card(report.verdicts)


@pytest.mark.parametrize(
    ("only", "ids"),
    [
        (["GA-T1-order"], ["GA-T1-order"]),
        (["GA-P1-order", "GA-C1-free"], ["GA-C1-free", "GA-P1-order"]),
        ([], []),
    ],
)
def test_a_check_can_be_narrowed_to_some_claims(only, ids):
    assert [v.claim.id for v in check(BOOK, only=only).verdicts] == ids


def test_an_id_names_one_claim_and_not_those_that_begin_alike():
    """PC-F1 is neither PC-F10 nor PC-F1-sgd-start."""
    result = StructureAwareDescent.load_stored("book")
    assert {"PC-F1", "PC-F1-sgd-start", "PC-F10"} <= {v.claim.id for v in check(result).verdicts}
    assert [v.claim.id for v in check(result, only=["PC-F1"]).verdicts] == ["PC-F1"]


@pytest.mark.parametrize("only", [["GA-T1"], ["GA-T1-order", "GA-TAB1"], ["ga-t1-order"], "GA-T1-order"])
def test_asking_for_what_was_not_measured_is_an_error(only):
    with pytest.raises(LedgerError, match=r"^only: .* was not measured; this result measured GA-T1-rate, "):
        check(BOOK, only=only)


def test_measuring_a_claim_that_is_not_in_the_ledger_is_an_error():
    with pytest.raises(LedgerError, match="no claim 'TY-1' in the ledger"):
        check(Toy.at("full").run(device="cpu"))


def test_the_size_is_that_of_the_data_whatever_the_session_says():
    """At the paper's size TAB1 fails, at the book's it holds: the data's settings decide, not the session's."""
    found = {size: check(Table1.load_stored(size), only=["GA-TAB1"]).verdicts[0] for size in ("book", "full")}
    assert {size: (v.size, v.outcome) for size, v in found.items()} == {
        "book": ("book", "reproduced in trend"), "full": ("full", "not reproduced"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (BOOK.isel(seed=[1, 3]), "seeds 1, 3 (0, 1, 2, 3, 4)"),
        (red.named(ErrorRate(steps=400, noise=0.25), BOOK), "noise 0.25 (0.5), steps 400 (1000)"),
        (red.named(ErrorRate.at("full", noise=0.25), BOOK), "size full, noise 0.25 (0.5)"),
        (red.named(ErrorRate.at("smoke"), BOOK), "size smoke, seeds 0, 1, 2, 3, 4 (0, 1)"),
        (red.named(ErrorRate.at("smoke"), BOOK.isel(seed=[0, 1])), "the size of tests"),
    ],
    ids=["seeds", "settings", "full", "small", "tests"],
)
def test_a_run_of_other_settings_is_shown_and_not_judged(data, said):
    report = check(data, only=["GA-T1-rate", "GA-T1-order"])
    said = f"{said}; not the run by which the claims are judged"
    assert repr(report) == f"GA-T1-rate: {OWN}\nGA-T1-order: {OWN}\nyour run: {said}"
    html = report._repr_html_()
    assert html.count(f"– {OWN}") == html.count("Accepted when <code>") == 2
    assert html.count(f"Your run: {said}.") == 1
    assert 'class="measured"' in html
    assert "held in" not in html
    assert "stands" not in html
    assert "✓" not in html


def test_how_seeds_are_grouped_makes_a_run_no_other():
    assert repr(check(red.named(ErrorRate(chunk=2), BOOK))) == repr(check(BOOK))


def test_an_experiment_that_varies_one_of_the_book_is_not_judged():
    """Classes that inherit the id, that repeat it, as a copy of the source does, and with an id of their own."""

    class Mine(ErrorRate):
        noise = 1.0

    class Copy(ErrorRate):
        id = RATE

    class Other(ErrorRate):
        id = "mine.other"

    assert (Mine.id, Copy.id, ErrorRate.id) == (f"{RATE} (Mine)", f"{RATE} (Copy)", RATE)
    for kind in (Mine, Copy, Other):
        report = check(red.named(kind(), BOOK), only=["GA-T1-order"])
        assert repr(report) == (
            f"GA-T1-order: {OWN}\nyour run: experiment {kind.id}; not the run by which the claims are judged"
        )
        with pytest.raises(ValueError, match=r"^data: expected what Mine\.run or load_stored returned"):
            Mine.measurements(BOOK)


def test_what_other_settings_leave_out_is_said_in_a_line():
    """A panel that a claim reads is missing: xarray's own message has a hundred lines."""
    kind, two = experiment("global_attention.noisy_mnist"), ["GA-F2", "GA-F2-every"]
    few = kind.at("book", panels=("figure_4",))
    report = check(red.named(few, kind.load_stored("book").sel(panel=["figure_4"])), only=two)
    lines = repr(report).splitlines()
    assert lines[:2] == [f"{claim}: your run, not measured" for claim in two]
    assert lines[2].startswith("your run: panels figure_4 (figure_2, ")
    assert "the claims cannot be measured from it: KeyError: not all values found in index 'panel'" in lines[2]
    assert len(lines) == 3
    assert "– your run, not measured" in report._repr_html_()


def test_a_claim_of_another_size_is_said_to_be_missing_and_stops_no_chapter():
    """The larger run of this experiment measures no PC-F10; at the book's size such a question is an error."""
    larger = StructureAwareDescent.load_stored("full")
    assert repr(check(larger, only=["PC-F2", "PC-F10"])) == (
        "PC-F2: reproduced in trend\nPC-F10: your run, not measured\n"
        "your run: size full; it leaves out what some claims need"
    )


@pytest.mark.parametrize("scale", ["book", "full"])
def test_the_recorded_verdict_is_that_of_the_stored_result(scale, smoke_results, tmp_results):
    order = claim("GA-T1-order")
    assert recorded(order, scale) == Verdict(order, scale, "pending")
    smoke_results.store(RATE, stored_path(RATE, scale))
    assert recorded(order, scale).outcome == "reproduced in trend"
    assert recorded(order, scale).measurement == smoke_results.measurements(RATE)["GA-T1-order"]


@pytest.mark.parametrize(
    ("named", "seeds", "counts"),
    [
        ("", {}, "book"),
        ("", {"book": 5}, "book"),
        ("", {"book": 5, "full": 10}, "full"),
        ("", {"book": 20, "full": 5}, "book"),
        ("", {"book": 5, "full": 5}, "full"),
        ("full", {"book": 20, "full": 5}, "full"),
        ("book", {"book": 1, "full": 9}, "book"),
        ("full", {"book": 3}, "book"),
    ],
)
def test_the_verdict_that_counts_is_of_the_size_named_else_of_the_most_seeds(named, seeds, counts, monkeypatch):
    """A poorer run never outranks a better one; of equals the larger size counts."""
    stored = {scale: Measurement({"loss": 0.1}, {}, n) for scale, n in seeds.items()}
    monkeypatch.setattr(
        judging, "stored_measurements", lambda _, scale: {"XY-1": stored[scale]} if scale in stored else {}
    )
    found = standing(made(size=named))
    assert (found.size, found.measurement) == (counts, stored.get(counts))


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [({"status": "pending"}, "pending"), ({"untestable": "No data.", "accept": "", "experiment": ""}, "not testable")],
)
def test_what_is_pending_or_untestable_stays_so_whatever_is_stored(changes, outcome, smoke_results, tmp_results):
    smoke_results.store(RATE, stored_path(RATE, "book"))
    asked = dataclasses.replace(claim("GA-T1-order"), **changes)
    assert recorded(asked) == Verdict(asked, "book", outcome)
