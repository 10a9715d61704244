"""Experiments, pictures and exercises of the chapter on margins; wrong models turn claims red."""

from __future__ import annotations

import dataclasses
import math

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest

import attnbook
from attnbook import ledger
from attnbook.multi_head import oracle
from attnbook.multi_head.data import Mixture
from attnbook.multi_head.experiments import (
    attention_maps,
    feasibility,
    linear_rules,
    margin_order,
    margins,
    oracle_logits,
)
from attnbook.multi_head.figures import margins as figures
from attnbook.multi_head.figures.looks import LOOKS
from attnbook.multi_head.tables import margins as tables

NOISY = Mixture(10, 11, 5, 1.5, 0.3, label_noise=0.2, other_noise=0.3, free_noise=0.7)
EXPERIMENTS = (oracle_logits, linear_rules, margins, margin_order, feasibility)


def outcomes(result):
    return {v.claim.id: v.outcome for v in ledger.check(result).verdicts}


def test_honest_measurements_pass():
    for experiment in EXPERIMENTS:
        assert "not reproduced" not in outcomes(experiment.run(experiment.Settings.smoke(), device="cpu")).values()


def test_every_claim_of_the_first_half_is_measured():
    measured = {
        claim
        for experiment in EXPERIMENTS
        for claim in experiment.run(experiment.Settings.smoke(), device="cpu").measurements()
    }
    expected = {
        claim.id
        for claim in ledger.claims()
        if claim.chapter == "multi_head/margins" and not claim.id.startswith("MH-X.")
    }
    assert expected - measured == {"MH-B13.6"}
    assert measured <= expected


def test_transposed_oracle_turns_claims_red(monkeypatch):
    """Queries and keys exchanged: no irrelevant query finds the relevant tokens."""
    right = oracle.key_query
    monkeypatch.setattr(oracle, "key_query", lambda patterns: right(patterns).T)
    verdicts = outcomes(oracle_logits.run(oracle_logits.Settings.smoke(), device="cpu"))
    for claim in ("MH-B13.13", "MH-E8-gap", "MH-P3.1-gap", "MH-P3.1-corner", "MH-P3.1-law"):
        assert verdicts[claim] == "not reproduced"


def test_wrong_constants_turn_claims_red(monkeypatch):
    right = oracle.stated_scale
    monkeypatch.setattr(oracle, "stated_scale", lambda *a: 0.4 * right(*a))
    verdicts = outcomes(margins.run(margins.Settings.smoke(), device="cpu"))
    assert verdicts["MH-P3.1"] == verdicts["MH-P3.1-needed"] == "not reproduced"


def test_quiet_samples_are_not_taken_for_loud_ones(monkeypatch):
    right = linear_rules._best_on_drawn
    quiet = {"label_noise": 0.0, "other_noise": 0.0}
    monkeypatch.setattr(linear_rules, "_best_on_drawn", lambda m, *a: right(dataclasses.replace(m, **quiet), *a))
    verdicts = outcomes(linear_rules.run(linear_rules.Settings.smoke(), device="cpu"))
    assert verdicts["MH-A3-linear-drawn"] == "not reproduced"


def test_a_tighter_bound_than_the_sharp_one_is_refuted(monkeypatch):
    right = oracle.sharp_scale
    monkeypatch.setattr(oracle, "sharp_scale", lambda *a: 0.95 * right(*a))
    verdicts = outcomes(margins.run(margins.Settings.smoke(), device="cpu"))
    assert verdicts["MH-P3.1-sharp"] == "not reproduced"


def test_larger_margins_than_the_stated_ones_are_refuted(monkeypatch):
    linear, attention = oracle.linear_margin, oracle.attention_margin
    monkeypatch.setattr(oracle, "linear_margin", lambda m: 1.02 * linear(m) + 0.01)
    monkeypatch.setattr(oracle, "attention_margin", lambda m, **k: 1.2 * attention(m, **k))
    verdicts = outcomes(linear_rules.run(linear_rules.Settings.smoke(), device="cpu"))
    assert verdicts["MH-A3-linear"] == verdicts["MH-A3-linear-best"] == "not reproduced"
    verdicts = outcomes(margins.run(margins.Settings.smoke(), device="cpu"))
    assert verdicts["MH-P3.2"] == verdicts["MH-P3.2-uniform"] == "not reproduced"


def test_a_first_step_of_twice_the_length_moves_the_crossing(monkeypatch):
    """The reading with one half in the place of one quarter."""
    right = margin_order.tangent_features

    def wrong(parameters, tokens):
        return right({**parameters, "decoder": 2 * parameters["decoder"]}, tokens)

    monkeypatch.setattr(margin_order, "tangent_features", wrong)
    verdicts = outcomes(margin_order.run(margin_order.Settings.smoke(), device="cpu"))
    assert verdicts["MH-ORD"] == verdicts["MH-ORD-step"] == "not reproduced"


def test_a_weaker_head_condition_turns_feasibility_red(monkeypatch):
    right = feasibility.allowed_constant
    monkeypatch.setattr(feasibility, "allowed_constant", lambda *a, **k: 100 * right(*a, **k))
    verdicts = outcomes(feasibility.run(feasibility.Settings.smoke(), device="cpu"))
    assert verdicts["MH-53.1"] == verdicts["MH-53.1-constant"] == "not reproduced"


def test_figures_and_tables_show_the_results(monkeypatch):
    mpl.use("Agg")
    found = [experiment.run(experiment.Settings.smoke(), device="cpu") for experiment in EXPERIMENTS]
    logits, linear, prop, order, heads = found
    drawn = [
        figures.oracle_logits(logits),
        figures.gaps(logits),
        figures.separation(linear),
        figures.needed_scale(prop),
        figures.margins_and_steps(order),
        figures.feasibility_map(heads),
    ]
    assert [len(figure.axes) for figure in drawn] == [1] * 6
    ax = drawn[4].axes[0]
    np.testing.assert_allclose(ax.lines[0].get_ydata(), order.of_network[-1])
    norms = np.linspace(1, 4, 5)
    curves = {(0.5, 0.0): oracle.three_margins(Mixture(10, 12, 4, relevant_fraction=0.5), norms)}
    drawn.append(figures.order_frame(curves, norms, 0.5, 0.0))
    assert "γ_attn from S = 2.5 on" in tables.order_text(curves, norms, 0.5, 0.0)
    for table, rows in (
        (tables.proposition_3(prop), 3),
        (tables.noisy_cells(order), 3),
        (tables.room_for_constants(heads), 2),
    ):
        assert len(table.rows) == rows
        assert {len(row) for row in table.rows} == {len(table.columns)}
    for figure in drawn:
        plt.close(figure)


@pytest.mark.parametrize(
    "together",
    [
        ("attention_margin", "tangent_margin", "linear_margin"),
        ("inside_noise", "corner_noise", "hard_noise"),
        ("plain_few", "plain_many", "normalised_few", "normalised_many"),
    ],
)
def test_looks_of_one_picture_differ_in_more_than_colour(together):
    for attribute in ("marker", "line", "color"):
        assert len({getattr(LOOKS[name], attribute) for name in together}) == len(together), attribute


def test_the_attention_map_saturates_at_the_stated_scale():
    settings = attention_maps.Settings()
    start, end = (attention_maps.attention_map(settings, share, 0.125, hard=True) for share in (0.0, 1.0))
    np.testing.assert_allclose(start.weights, 0.1)
    assert start.leak == pytest.approx(0.8)
    assert end.leak <= settings.leak
    assert end.margin > 0.95
    drawn = attention_maps.attention_map(settings, 0.5, 0.125)
    np.testing.assert_allclose(drawn.weights.sum(1), 1.0)
    assert drawn.leak == pytest.approx(drawn.weights[:, 2:].sum(1).max())
    plt.close(figures.attention_map(end))
    assert "Worst leak" in tables.map_text(end)


def key_query(label, other, *, transpose=False, irrelevant=True):
    w = label.T @ label + irrelevant * np.outer(other.sum(0), label.sum(0))
    return w.T if transpose else w


def scale(gaps, k, leak, *, odds=None, keys=None):
    target = (keys or k) * (leak / (1 - leak) if odds is None else leak)
    low, high = 0.0, 1e4
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if np.exp(-middle * gaps).sum() > target else (low, middle)
    return high


@pytest.mark.parametrize(("exercise", "answer"), [("MH-ORACLE", key_query), ("MH-SATURATE", scale)])
def test_right_answers_pass(exercise, answer):
    assert attnbook.check(exercise, answer).right


@pytest.mark.parametrize(
    ("exercise", "answer", "message"),
    [
        ("MH-ORACLE", lambda *a: key_query(*a, transpose=True), "transpose"),
        ("MH-ORACLE", lambda *a: key_query(*a, irrelevant=False), "irrelevant queries"),
        ("MH-ORACLE", lambda label, other: label, "tokens to tokens"),
        ("MH-SATURATE", lambda *a: scale(*a, odds=False), "not 1"),
        ("MH-SATURATE", lambda *a: scale(*a, keys=1), "each of the relevant"),
        (
            "MH-SATURATE",
            lambda g, k, e: max(0.0, math.log(len(g) * (1 - e) / (k * e)) / g.min()),
            "not the smallest",
        ),
    ],
)
def test_wrong_answers_get_the_likely_mistake(exercise, answer, message):
    feedback = attnbook.check(exercise, answer)
    assert not feedback.right
    assert message in repr(feedback)
