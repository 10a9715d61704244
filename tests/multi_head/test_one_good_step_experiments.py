"""Experiments of the chapter on one good step: claims, wrong models that turn them red, pictures, exercises."""

from __future__ import annotations

import dataclasses
import itertools
import math

import matplotlib as mpl
import numpy as np
import pytest
import torch

import attnbook
from attnbook import ledger
from attnbook.core.figures import png
from attnbook.core.rng import stream
from attnbook.multi_head import layer, oracle, starts
from attnbook.multi_head import start_bounds as theory
from attnbook.multi_head.data import Mixture, draw_patterns
from attnbook.multi_head.experiments import (
    after_start,
    data_checks,
    first_phase,
    good_start,
    samples,
    start_margin,
    start_properties,
    worst_noise,
)
from attnbook.multi_head.figures import one_good_step as figures
from attnbook.multi_head.tables import one_good_step as tables

FIRST = dataclasses.replace(first_phase.Settings.book(), seeds=tuple(range(8)), n_first=(100, 1000, 10_000), chunk=8)
GOOD = dataclasses.replace(good_start.Settings.book(), n_samples=20, n_first=(100, 1000), heads=(1, 64), seeds=(0, 1))
MARGIN = dataclasses.replace(start_margin.Settings.smoke(), n_samples=200)
AFTER = dataclasses.replace(after_start.Settings.book(), n_samples=20, step_sizes=(1.0, 3.0), steps=80, seeds=(0, 1))


def outcomes(result):
    return {v.claim.id: v.outcome for v in ledger.check(result).verdicts}


@pytest.fixture(scope="module")
def honest():
    return (
        first_phase.run(FIRST, device="cpu"),
        good_start.run(GOOD, device="cpu"),
        start_margin.run(MARGIN, device="cpu"),
        after_start.run(AFTER, device="cpu"),
    )


def test_honest_runs_pass_and_measure_every_claim_of_the_chapter(honest):
    verdicts = {k: v for result in honest for k, v in outcomes(result).items()}
    assert "not reproduced" not in verdicts.values()
    chapter = {claim.id for claim in ledger.claims() if claim.chapter == "multi_head/one_good_step"}
    assert set(verdicts) == chapter


def test_a_step_without_the_half_turns_coefficient_and_size_red(monkeypatch):
    """The slope of the logistic loss at zero forgotten: then the coefficient would be one half."""
    right = starts.first_phase_direction
    monkeypatch.setattr(starts, "first_phase_direction", lambda *a: 2 * right(*a))
    result = first_phase.run(FIRST, device="cpu")
    verdicts = outcomes(result)
    for claim in ("MH-L2.2", "MH-L2.2-plateau", "MH-L2.3", "MH-L2.3-constant", "MH-L2.3-exact"):
        assert verdicts[claim] == "not reproduced"
    assert result.measurements()["MH-L2.2"].values["coefficient"] == pytest.approx(0.5, abs=0.01)
    assert result.measurements()["MH-L2.1"].values["largest_error_of_closed_form"] > 0.01


def test_noise_on_relevant_tokens_turns_the_data_claims_red(monkeypatch):
    right = data_checks.draw_samples

    def noisy(*args, **kwargs):
        drawn = right(*args, **kwargs)
        return dataclasses.replace(drawn, tokens=drawn.tokens * 1.1)

    monkeypatch.setattr(data_checks, "draw_samples", noisy)
    verdicts = outcomes(first_phase.run(dataclasses.replace(FIRST, n_first=(100, 1000)), device="cpu"))
    assert verdicts["MH-DATA"] == verdicts["MH-DATA-patterns"] == "not reproduced"


def test_margins_without_the_absolute_value_of_the_signs_turn_p3_red(monkeypatch):
    """A target that does not follow the signs of the heads."""
    right = start_properties._target_vector
    monkeypatch.setattr(
        start_properties, "_target_vector", lambda s, seeds, signs, where: right(s, seeds, np.abs(signs), where)
    )
    verdicts = outcomes(good_start.run(GOOD, device="cpu"))
    assert verdicts["MH-P2.3"] == "not reproduced"


def test_heads_without_the_root_turn_p2_red(monkeypatch):
    right = layer.outputs
    monkeypatch.setattr(layer, "outputs", lambda p, x: right(p, x) * p["decoder"].shape[1] ** 0.5)
    assert outcomes(good_start.run(GOOD, device="cpu"))["MH-P2.2-signs"] == "not reproduced"


def test_attention_without_the_mean_turns_the_price_of_a_residual_and_the_margins_red(monkeypatch):
    """Tokens not centred, as if softmax had no second term: the pull no longer obeys its bound, nor (7) its margin."""
    right = starts.key_query_pull
    monkeypatch.setattr(starts, "key_query_pull", lambda *a: -20 * right(*a))
    verdicts = outcomes(start_margin.run(MARGIN, device="cpu"))
    for claim in ("MH-P2.5", "MH-P2.5-ours", "MH-P2.6-sensitivity", "MH-P2.6-ours"):
        assert verdicts[claim] == "not reproduced"


def test_a_wrong_equation_seven_turns_the_exact_claims_red(monkeypatch):
    right = oracle.first_phase_margin
    monkeypatch.setattr(oracle, "first_phase_margin", lambda *a, **k: 1.001 * right(*a, **k))
    verdicts = outcomes(start_margin.run(MARGIN, device="cpu"))
    assert verdicts["MH-P2.4"] == verdicts["MH-P2.4-uniform"] == verdicts["MH-P2.5"] == "not reproduced"


def test_outputs_of_whole_networks_are_one_head_times_the_sum_of_signs(honest):
    """The shortcut behind P2, against a network with all its heads."""
    batch = samples.draw(GOOD.mixture, 5, [0])
    signs = torch.tensor([1.0, 1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
    many = starts.first_phase(batch.tokens, batch.labels, coefficients=signs)
    one = starts.first_phase(batch.tokens, batch.labels, coefficients=signs[:1])
    scaled = layer.outputs(one, batch.tokens) * signs.sum() / math.sqrt(5)
    torch.testing.assert_close(layer.outputs(many, batch.tokens), scaled)


def test_more_samples_contain_the_fewer(honest):
    """The first hundred samples are the same whatever else is asked for."""
    fewer = first_phase.run(dataclasses.replace(FIRST, n_first=(100, 1000)), device="cpu")
    np.testing.assert_allclose(fewer.residual[:, 0], honest[0].residual[:, 0])


def test_zero_and_even_starts_begin_at_log_two_and_lucky_signs_below(honest):
    loss = honest[3].first_loss
    np.testing.assert_allclose(loss[:, :2], math.log(2))
    assert (loss[:, 2] < math.log(2)).all()
    assert (loss[:, 3] > math.log(2)).all()


def test_times_rises_and_largest_losses_are_those_of_the_path():
    loss = np.array([0.7, 0.2, 0.5, 0.01, 0.3]) * np.ones((1, 4, 2, 1))
    loss[:, :, 1] = 0.9
    found = after_start._summaries(AFTER, loss)
    assert found["steps_needed"][0, 0].tolist() == [3, np.inf]
    assert found["largest_rise"][0, 0].tolist() == [pytest.approx(0.3), 0]
    assert found["largest_loss"][0, 0].tolist() == [0.7, 0.9]
    assert found["first_loss"].shape == (1, 4)


def test_starts_that_are_all_zero_turn_the_comparison_red(monkeypatch):
    right = after_start._starts
    monkeypatch.setattr(after_start, "_starts", lambda *a: {k: 0 * v for k, v in right(*a).items()})
    verdicts = outcomes(after_start.run(AFTER, device="cpu"))
    assert verdicts["MH-START-steps"] == verdicts["MH-START-unlucky"] == "not reproduced"


def test_a_step_too_large_turns_the_bounds_of_p1_and_p2_red(monkeypatch):
    """Twice the step breaks this book's bound on head norms, a sum in the place of the mean of tokens both."""
    right = starts.first_phase_direction
    monkeypatch.setattr(starts, "first_phase_direction", lambda *a: 2 * right(*a))
    assert outcomes(good_start.run(GOOD, device="cpu"))["MH-P2.1"] == "not reproduced"
    monkeypatch.setattr(starts, "first_phase_direction", lambda *a: 10 * right(*a))
    assert outcomes(good_start.run(GOOD, device="cpu"))["MH-P2.2"] == "not reproduced"


def test_the_worst_noise_lies_between_the_bound_and_the_noise_drawn(honest):
    result = honest[2]
    assert (result.worst >= result.of_cells("ours")[..., -1] - 1e-10).all()
    assert (result.worst <= result.margin[..., -1]).all()


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
    searched = worst_noise.smallest_margin(mixture, (3,), torch.device("cpu"))
    assert searched[0] == pytest.approx(min(found), rel=1e-9)


def test_the_mean_of_uniform_readings_is_the_one_of_its_coefficient(honest):
    result = honest[1]
    many = result.settings.uniform_heads.index(1024)
    assert result.reading(0.5)[many].mean() == pytest.approx(result.stated_without_noise, rel=0.01)
    assert result.relative_spread(4).shape == (2,)


def test_chunks_of_seeds_change_nothing():
    whole = good_start.run(GOOD, device="cpu")
    parts = good_start.run(dataclasses.replace(GOOD, chunk=1), device="cpu")
    np.testing.assert_allclose(whole.margin, parts.margin, rtol=1e-12)
    np.testing.assert_allclose(whole.uniform_margin, parts.uniform_margin, rtol=1e-12)


def test_pictures_and_tables_are_made_from_results(honest):
    first, good, margin, after = honest
    with mpl.rc_context({"figure.max_open_warning": 0}):
        for figure in (figures.written(first), figures.residual(first), figures.readings(good)):
            assert len(png(figure)) > 1000
        for figure in (figures.margins_in_noise(margin), figures.whole_bound(margin)):
            assert len(png(figure)) > 1000
        assert len(png(figures.explorer_frame(margin, 0.1, 4.0, 0.1))) > 1000
    for table in (
        tables.cost(honest),
        tables.residuals(first),
        tables.properties(good),
        tables.turning_points(margin),
        tables.whole_bound(margin),
        tables.samples_required(margin),
        tables.zero_or_step(margin),
        tables.steps(after),
    ):
        assert "nan" not in table._repr_html_()
    assert "nothing" in tables.explorer_text(margin, 0.1, 4.0, 0.1)
    assert margin.counts.sum(-1).tolist() == np.full((2, 2, 3, 2), 200.0).tolist()


@pytest.mark.parametrize(
    ("settings", "changes", "message"),
    [
        (first_phase.Settings, {"n_first": (5,)}, "n_first"),
        (first_phase.Settings, {"judged": 7}, "judged"),
        (first_phase.Settings, {"failure": 1.0}, "failure"),
        (first_phase.Settings, {"n_checked": 0}, "n_checked"),
        (first_phase.Settings, {"dimensions": (5,)}, "dimension"),
        (good_start.Settings, {"heads": (1, 4)}, "heads"),
        (good_start.Settings, {"n_first": (9, 3)}, "n_first"),
        (good_start.Settings, {"sign_draws": 0}, "sign_draws"),
        (start_margin.Settings, {"noises": (0.1, 0.2)}, "noises"),
        (start_margin.Settings, {"pattern_norms": (1.0, 2.0)}, "noises"),
        (start_margin.Settings, {"n_best": 3000}, "n_best"),
        (start_margin.Settings, {"bins": 0}, "bins"),
        (start_margin.Settings, {"n_first": ()}, "n_first"),
        (after_start.Settings, {"n_heads": 6}, "n_heads"),
        (after_start.Settings, {"step_sizes": (1.0, 0.5)}, "step_sizes"),
        (after_start.Settings, {"judged": 2.0}, "judged"),
        (after_start.Settings, {"steps": 0}, "steps"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(settings.book(), **changes)


def direction(tokens, labels, slope=-0.5):
    return -slope * (labels[:, None] * tokens.mean(1)).mean(0)


def pulled(tokens, label, key_query, *, centre=True):
    mean = tokens.mean(0)
    return label * (tokens - centre * mean).T @ (tokens @ (mean @ key_query))


def guaranteed(tokens, label, m, key_query, length, **options):
    g = pulled(tokens, label, key_query, **options)
    return m @ g - length * np.linalg.norm(g)


def margin(t, m, s, zeta, *, coefficient=0.25):
    attention = coefficient * t * zeta**2 * (1 - zeta) * s**4 / math.sqrt(2 * (m + 1))
    return attention + s * math.sqrt(t / 2) * zeta


RIGHT = {"MH-7": direction, "MH-8": guaranteed, "MH-9": margin}
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
    ("MH-9", lambda *a: margin(*a, coefficient=0.5), "twice as large"),
    ("MH-9", lambda t, m, s, z: margin(t, m, s, z) - s * math.sqrt(t / 2) * z, "at zero already"),
]


@pytest.mark.parametrize("exercise", RIGHT)
def test_right_answers_pass(exercise):
    assert attnbook.check(exercise, RIGHT[exercise]).right


@pytest.mark.parametrize(("exercise", "answer", "message"), WRONG)
def test_wrong_answers_get_the_likely_mistake(exercise, answer, message):
    feedback = attnbook.check(exercise, answer)
    assert not feedback.right
    assert message in repr(feedback)


def test_the_price_of_a_residual_is_far_below_the_stated_one_at_all_cells():
    for index in np.ndindex(MARGIN.shape):
        mixture = MARGIN.mixture(*index)
        assert theory.residual_price(mixture) < 0.1 * theory.stated_residual_price(mixture)
