"""Experiments of the chapter on one good step: rules that can fail, pictures, settings, exercises."""

from __future__ import annotations

import itertools

import matplotlib as mpl
import numpy as np
import pytest
import red

import attnbook
from attnbook import ledger
from attnbook.core.figures import png
from attnbook.multi_head import oracle, starts
from attnbook.multi_head import start_bounds as theory
from attnbook.multi_head.one_good_step import experiments as own
from attnbook.multi_head.one_good_step import figures


@pytest.fixture(scope="module")
def stored():
    return own.StartMargin.load_stored("book")


def scaled(name, factor):
    return lambda d: d.assign({name: factor * d[name]})


def backwards(name, axis):
    return lambda d: d.assign({name: d[name].copy(data=d[name].isel({axis: slice(None, None, -1)}).values)})


RED = {
    "MH-L2.2": scaled("coefficient", 2),
    "MH-L2.3": lambda d: d.assign(typical_residual=np.sqrt(d.typical_residual)),
    "MH-P2.1": scaled("head_norm", 2),
    "MH-P2.2": scaled("output", 10),
    "MH-P2.3": backwards("uniform_margin", "heads"),
    "MH-B13.2": backwards("jacobian_error", "form"),
    "MH-P2.4": lambda d: d.assign(margin=d.margin + 1e-6),
    "MH-P2.5": lambda d: d.assign(margin=d.zero_margin),
    "MH-P2.6": scaled("step_margin", 0.3),
    "MH-P2.7": lambda d: d.assign(gain=d.gain**0.9),
    "MH-P2.5-ours": lambda d: d.assign(margin=d.zero_margin),
}
PARTS = [  # further changes that must turn a rule of several parts
    ("MH-L2.2", scaled("residual_half", 0.9)),
    ("MH-L2.3", scaled("typical_residual", 1.3)),
    ("MH-P2.3", scaled("step_margin", 0.4)),
    ("MH-P2.3", scaled("uniform_margin", 0.5)),
    ("MH-P2.6", scaled("residual", 0.01)),
    ("MH-P2.5-ours", scaled("step_margin", 0.8)),
    ("MH-P2.5-ours", scaled("worst_drop", 11)),
    ("MH-P2.5-ours", scaled("residual", 30)),
]


def test_each_claim_of_the_book_holds_and_turns_with_its_arrays(stored):
    experiment = own.StartMargin()
    verdicts = ledger.check(stored).verdicts
    assert all(v.outcome != "not reproduced" for v in verdicts)
    red.assert_every_claim_turns(experiment.measurements, stored, RED, PARTS)


def test_every_measured_claim_of_the_chapter_has_a_change_that_turns_it():
    chapter = [one for one in ledger.claims() if one.chapter == "multi_head/one_good_step"]
    assert {one.id for one in chapter if one.accept} == set(RED)
    assert {one.id for one in chapter if one.checked} == {"MH-DATA", "MH-L2.1"}
    assert sum(one.source == "book" for one in chapter) == 1


def turned():
    experiment = own.StartMargin.at("smoke")
    measured = experiment.measurements(experiment.run(device="cpu"))
    return {i: red.outcome(ledger.claim(i), m) for i, m in measured.items()}


def test_a_step_twice_as_large_turns_coefficient_and_head_norms_red(monkeypatch):
    """The slope of the logistic loss at zero forgotten: then the coefficient would be one half."""
    right = starts.first_phase_direction
    monkeypatch.setattr(starts, "first_phase_direction", lambda *a: 2 * right(*a))
    verdicts = turned()
    assert verdicts["MH-L2.2"] == verdicts["MH-P2.1"] == "not reproduced"


def test_attention_that_gains_a_fifth_turns_our_bound_on_margins_red(monkeypatch):
    right = starts.key_query_pull
    monkeypatch.setattr(starts, "key_query_pull", lambda *a: 0.2 * right(*a))
    assert turned()["MH-P2.5-ours"] == "not reproduced"


def test_a_wrong_equation_seven_turns_the_exact_claims_red(monkeypatch):
    right = oracle.first_phase_margin
    monkeypatch.setattr(oracle, "first_phase_margin", lambda *a, **k: 1.001 * right(*a, **k))
    assert turned()["MH-P2.4"] == "not reproduced"


def test_pictures_are_made_from_results(stored):
    with mpl.rc_context({"figure.max_open_warning": 0}):
        for figure in (
            figures.residual(stored), figures.margins_in_noise(stored),
            figures.cell_frame(stored, 0.1, 4.0, 0.1),
        ):  # fmt: skip
            assert len(png(figure)) > 1000


def test_the_price_of_a_residual_is_far_below_the_stated_one_at_all_cells():
    margin = own.StartMargin()
    for cell in itertools.product(margin.pattern_norms, margin.shares, margin.noises):
        mixture = margin.mixture(*cell)
        assert theory.residual_price(mixture, sharper=True) < 0.1 * theory.residual_price(mixture)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"noises": (0.1, 0.2)}, "noises"),
        ({"pattern_norms": (1.0, 4.0)}, "pattern_norms"),
        ({"n_samples": 0}, "n_samples"),
        ({"n_first": (9, 3)}, "n_first"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        own.StartMargin(**changes)


def direction(tokens, labels, slope=-0.5):
    return -slope * (labels[:, None] * tokens.mean(1)).mean(0)


def pulled(tokens, label, key_query, *, centre=True):
    mean = tokens.mean(0)
    return label * (tokens - centre * mean).T @ (tokens @ (mean @ key_query))


def guaranteed(tokens, label, m, key_query, length, **options):
    g = pulled(tokens, label, key_query, **options)
    return m @ g - length * np.linalg.norm(g)


RIGHT = {"MH-7": direction, "MH-8": guaranteed}
WRONG = [
    ("MH-7", lambda x, y, a: direction(x, y), "slope is given"),
    ("MH-7", lambda x, y, a: direction(x, y, -1), "slope of the loss is missing"),
    ("MH-7", lambda x, y, a: -direction(x, y, a), "sign is wrong"),
    ("MH-7", lambda x, y, a: direction(x, np.abs(y), a), "labels are missing"),
    ("MH-7", lambda x, y, a: x, "shape"),
    ("MH-8", lambda x, y, m, w, p: guaranteed(x, y, m, w, p, centre=False), "mean token"),
    ("MH-8", lambda x, y, m, w, p: guaranteed(x, 1, m, w, p), "label is missing"),
    ("MH-8", lambda x, y, m, w, p: guaranteed(x, y, m, w.T, p), "transpose"),
    ("MH-8", lambda x, y, m, w, p: guaranteed(x, y, m, w, 0), "residual is missing"),
    ("MH-8", lambda x, y, m, w, p: guaranteed(x, y, m, w, -p), "raises it"),
    ("MH-8", lambda x, y, m, w, p: m, "shape"),
]


@pytest.mark.parametrize("exercise", RIGHT)
def test_right_answers_pass(exercise):
    assert attnbook.check(exercise, RIGHT[exercise]).right


@pytest.mark.parametrize(("exercise", "answer", "message"), WRONG)
def test_wrong_answers_get_the_likely_mistake(exercise, answer, message):
    feedback = attnbook.check(exercise, answer)
    assert not feedback.right
    assert message in repr(feedback)
