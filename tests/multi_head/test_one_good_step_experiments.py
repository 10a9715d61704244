"""Experiments of the chapter on one good step: rules that can fail, pictures, settings, exercises."""

from __future__ import annotations

import itertools
import math

import matplotlib as mpl
import numpy as np
import pytest
import red
import torch

import attnbook
from attnbook import ledger
from attnbook.core.figures import png
from attnbook.core.rng import stream
from attnbook.multi_head import oracle, starts
from attnbook.multi_head import start_bounds as theory
from attnbook.multi_head.data import Mixture, draw_patterns
from attnbook.multi_head.one_good_step import experiments as own
from attnbook.multi_head.one_good_step import figures, start

KINDS = {"first_phase": own.FirstPhase, "start_margin": own.StartMargin, "after_start": own.AfterStart}


@pytest.fixture(scope="module")
def stored():
    return {name: kind.load_stored("book") for name, kind in KINDS.items()}


def scaled(name, factor):
    return lambda d: d.assign({name: factor * d[name]})


def only(name, factor, start):
    """Scale what an array holds of one start."""
    return lambda d: d.assign({name: d[name].where(d.start != start, factor * d[name])})


RED = {
    "first_phase": {
        "MH-DATA": lambda d: d.assign(violation=d.violation + 1e-4),
        "MH-L2.1": lambda d: d.assign(step_error=d.step_error + 1e-9),
        "MH-L2.2": scaled("coefficient", 2),
        "MH-L2.3": lambda d: d.assign(residual=np.sqrt(d.residual)),
        "MH-L2.3-exact": scaled("residual", 1.2),
    },
    "start_margin": {
        "MH-P2.1": scaled("head_norm", 2),
        "MH-P2.2": scaled("output", 10),
        "MH-P2.3": lambda d: d.assign(
            uniform_margin=d.uniform_margin.isel(heads=slice(None, None, -1)).assign_coords(heads=d.heads)
        ),
        "MH-B13.2": lambda d: d.assign(jacobian_error=d.jacobian_error.copy(data=d.jacobian_error.values[::-1])),
        "MH-P2.4": lambda d: d.assign(noise_free_error=d.noise_free_error + 1e-6),
        "MH-P2.5": lambda d: d.assign(margin=d.zero_margin),
        "MH-P2.6": scaled("step_margin", 0.3),
        "MH-P2.7": lambda d: d.assign(gain=d.gain**0.9),
        "MH-P2.5-ours": lambda d: d.assign(margin=d.zero_margin),
        "MH-P2.3-zero": lambda d: d.assign(best=d.best_zero, best_zero=d.best),
    },
    "after_start": {
        "MH-START-steps": lambda d: d.assign(steps_needed=d.steps_needed.copy(data=d.steps_needed.values[:, ::-1]))
    },
}
PARTS = {  # further changes that must turn a rule of several parts
    "first_phase": [
        ("MH-DATA", lambda d: d.assign(relevant_error=d.relevant_error + 1e-15)),
        ("MH-DATA", lambda d: d.assign(gram_error=d.gram_error + 1e-9)),
        ("MH-L2.1", lambda d: d.assign(key_query_entry=d.key_query_entry + 1e-9)),
        ("MH-L2.1", lambda d: d.assign(row_difference=d.row_difference + 1e-9)),
        ("MH-L2.2", scaled("residual_half", 0.9)),
        ("MH-L2.3-exact", lambda d: d.assign(residual_by_dimension=d.residual_by_dimension * d.d**0.5)),
    ],
    "start_margin": [
        ("MH-P2.3", scaled("step_margin", 0.4)),
        ("MH-P2.3", scaled("uniform_margin", 0.5)),
        ("MH-P2.6", scaled("residual", 0.01)),
        ("MH-P2.5-ours", scaled("worst", 1.1)),
        ("MH-P2.5-ours", scaled("step_margin", 0.8)),
        ("MH-P2.5-ours", scaled("worst_drop", 11)),
        ("MH-P2.5-ours", scaled("residual", 30)),
    ],
    "after_start": [
        ("MH-START-steps", lambda d: d.assign(largest_rise=-d.largest_rise)),
        ("MH-START-steps", scaled("first_loss", 0.9)),
        ("MH-START-steps", only("steps_needed", 1.3, start="unlucky")),
        ("MH-START-steps", only("steps_needed", 1.4, start="zero")),
    ],
}


@pytest.mark.parametrize("name", KINDS)
def test_each_claim_of_the_book_holds_and_turns_with_its_arrays(name, stored):
    experiment, data = KINDS[name].at("book"), stored[name]
    verdicts = ledger.check(experiment.measurements(data)).verdicts
    assert all(v.outcome != "not reproduced" for v in verdicts)
    red.assert_every_claim_turns(experiment.measurements, data, RED[name], PARTS[name])


def test_every_measured_claim_of_the_chapter_has_a_change_that_turns_it():
    chapter = {one.id for one in ledger.claims() if one.chapter == "multi_head/one_good_step" and one.accept}
    assert chapter == {claim for changes in RED.values() for claim in changes}


def turned(kind, *, scale="smoke"):
    experiment = kind.at(scale)
    return {
        i: red.outcome(ledger.claim(i), m) for i, m in experiment.measurements(experiment.run(device="cpu")).items()
    }


def test_a_step_twice_as_large_turns_coefficient_size_and_head_norms_red(monkeypatch):
    """The slope of the logistic loss at zero forgotten: then the coefficient would be one half."""
    right = starts.first_phase_direction
    monkeypatch.setattr(starts, "first_phase_direction", lambda *a: 2 * right(*a))
    verdicts = turned(own.FirstPhase) | turned(own.StartMargin)
    for claim in ("MH-L2.1", "MH-L2.2", "MH-L2.3-exact", "MH-P2.1"):
        assert verdicts[claim] == "not reproduced"


def test_noise_on_relevant_tokens_turns_the_data_claim_red(monkeypatch):
    right = start.draw
    monkeypatch.setattr(start, "draw", lambda *a, **k: (one := right(*a, **k))._replace(tokens=one.tokens * 1.1))
    assert turned(own.FirstPhase)["MH-DATA"] == "not reproduced"


def test_attention_that_gains_a_fifth_turns_our_bound_on_margins_red(monkeypatch):
    right = starts.key_query_pull
    monkeypatch.setattr(starts, "key_query_pull", lambda *a: 0.2 * right(*a))
    assert turned(own.StartMargin)["MH-P2.5-ours"] == "not reproduced"


def test_a_wrong_equation_seven_turns_the_exact_claims_red(monkeypatch):
    right = oracle.first_phase_margin
    monkeypatch.setattr(oracle, "first_phase_margin", lambda *a, **k: 1.001 * right(*a, **k))
    assert turned(own.StartMargin)["MH-P2.4"] == "not reproduced"


def test_starts_that_are_all_zero_turn_the_comparison_red(monkeypatch):
    right = own.AfterStart._starts
    monkeypatch.setattr(own.AfterStart, "_starts", lambda *a: {k: 0 * v for k, v in right(*a).items()})
    assert turned(own.AfterStart)["MH-START-steps"] == "not reproduced"


def test_zero_and_even_starts_begin_at_log_two_and_lucky_signs_below(stored):
    loss = stored["after_start"].first_loss
    np.testing.assert_allclose(loss.sel(start=["zero", "even"]), math.log(2), rtol=1e-12)
    assert (loss.sel(start="lucky") < math.log(2)).all()


def test_times_rises_and_largest_losses_are_those_of_the_path():
    loss = np.array([0.7, 0.2, 0.5, 0.01, 0.3]) * np.ones((1, 4, 2, 1))
    loss[:, :, 1] = 0.9
    found = {name: array for name, (_, array) in own.summaries(loss, 0.01).items()}
    assert found["steps_needed"][0, 0].tolist() == [3, np.inf]
    assert found["largest_rise"][0, 0].tolist() == [pytest.approx(0.3), 0]
    assert found["largest_loss"][0, 0].tolist() == [0.7, 0.9]
    assert found["first_loss"].shape == (1, 4)


def test_fewer_samples_are_the_first_of_the_more(monkeypatch):
    """Also where they are drawn in pieces."""
    mixture, cpu = own.FirstPhase().mixture, torch.device("cpu")
    whole = own.directions(mixture, (30, 70), (1, 2), cpu)
    torch.testing.assert_close(own.directions(mixture, (30,), (1, 2), cpu)[0], whole[0])
    monkeypatch.setattr(own, "AT_ONCE", 30)
    torch.testing.assert_close(own.directions(mixture, (30,), (1, 2), cpu)[0], whole[0])
    assert not torch.allclose(own.directions(mixture, (70,), (1, 2), cpu)[0], whole[1])  # other streams


def test_the_search_finds_the_worst_of_all_corners_where_these_can_be_listed():
    """Two tokens, one other pattern: three coefficients of noise, eight corners for each label."""
    mixture = Mixture(2, 3, 1, pattern_norm=2.0, relevant_fraction=0.5, label_noise=0.4, other_noise=0.4)
    patterns = draw_patterns(mixture, rng=stream(3, "patterns"))
    u, w = oracle.decoder(patterns, 2), oracle.key_query(patterns)
    u, w = u / np.linalg.norm(u), w / np.linalg.norm(w)
    m, found = 0.5 / 4 * oracle.value_direction(patterns), []
    basis = np.concatenate([patterns.label, patterns.other]) / 4
    for label, signs in itertools.product((0, 1), itertools.product((-0.4, 0.4), repeat=3)):
        tokens = np.stack([patterns.label[label], patterns.other[0] + np.array(signs) @ basis])
        y = 1 - 2 * label
        found.append(y * u.sum(0) @ tokens.mean(0) + m @ pulled(tokens, y, w))
    searched = start.worst_margin(mixture, (3,), torch.device("cpu"))
    assert searched[0] == pytest.approx(min(found), rel=1e-9)


def test_pictures_tables_and_bounds_are_made_from_results(stored):
    first, margin, after = (kind.at("book") for kind in KINDS.values())
    data = stored["start_margin"]
    with mpl.rc_context({"figure.max_open_warning": 0}):
        for figure in (
            figures.residual(first, stored["first_phase"]), figures.margins_in_noise(margin, data),
            figures.whole_bound(margin, data), figures.explorer_frame(margin, data, 0.1, 4.0, 0.1),
        ):  # fmt: skip
            assert len(png(figure)) > 1000
    for table in (
        figures.zero_or_step(margin, data), figures.samples_required(margin),
        figures.steps(after, stored["after_start"]),
    ):  # fmt: skip
        assert "nan" not in table._repr_html_()
    assert "nothing" in figures.explorer_text(margin, data, 0.1, 4.0, 0.1)
    assert (data.counts.sum("bin") == margin.n_samples).all()


def test_the_price_of_a_residual_is_far_below_the_stated_one_at_all_cells():
    margin = own.StartMargin()
    for cell in itertools.product(margin.shares, margin.pattern_norms, margin.noises):
        mixture = margin.mixture(*cell)
        assert theory.residual_price(mixture) < 0.1 * theory.stated_residual_price(mixture)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        (own.FirstPhase, {"n_first": (5,)}, "n_first"),
        (own.FirstPhase, {"judged": 7}, "judged"),
        (own.FirstPhase, {"n_checked": 0}, "n_checked"),
        (own.FirstPhase, {"dimensions": (5,)}, "dimension"),
        (own.StartMargin, {"noises": (0.1, 0.2)}, "noises"),
        (own.StartMargin, {"pattern_norms": (1.0, 2.0)}, "pattern_norms"),
        (own.StartMargin, {"n_best": 3000}, "n_best"),
        (own.StartMargin, {"n_samples": 0}, "n_samples"),
        (own.StartMargin, {"n_first": (9, 3)}, "n_first"),
        (own.AfterStart, {"n_heads": 6}, "n_heads"),
        (own.AfterStart, {"step_sizes": (1.0, 0.5)}, "step_sizes"),
        (own.AfterStart, {"judged": 2.0}, "judged"),
        (own.AfterStart, {"steps": 0}, "steps"),
    ],
)
def test_settings_that_make_no_sense_are_refused(kind, changes, message):
    with pytest.raises(ValueError, match=message):
        kind.at("book", **changes)


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
