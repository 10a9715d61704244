"""What the sliders of the chapters show: theory against training and by hand, and pictures that draw."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from attnbook.mirror_descent import mirror
from attnbook.mirror_descent.attention import descend
from attnbook.mirror_descent.attention_svm import attention_svm
from attnbook.mirror_descent.data import plane_joint, plane_tokens
from attnbook.mirror_descent.experiments.few_reviews import FewReviews
from attnbook.mirror_descent.experiments.joint_training import JointTraining
from attnbook.mirror_descent.experiments.rates import Rates
from attnbook.mirror_descent.figures import joint_training as joint_figures
from attnbook.mirror_descent.figures import mirror_descent as lens_figures
from attnbook.mirror_descent.figures import rates as rate_figures
from attnbook.mirror_descent.figures import reviews as review_figures
from attnbook.mirror_descent.figures import token_selection as token_figures
from attnbook.mirror_descent.holding import two_rivals
from attnbook.mirror_descent.relaxed_svm import relaxed_svm
from attnbook.mirror_descent.tables import joint_training as joint_tables
from attnbook.mirror_descent.tables import mirror_descent as lens_tables
from attnbook.mirror_descent.tables import rates as rate_tables
from attnbook.mirror_descent.tables import reviews as review_tables
from attnbook.mirror_descent.tables import token_selection as token_tables

PLANE = plane_tokens()
CASE = two_rivals(PLANE, 4, 3, 0)


def test_the_drift_changes_sign_at_the_break_even():
    assert CASE.drift(np.array(CASE.break_even)) == pytest.approx(0, abs=1e-12)
    assert CASE.drift(np.array([CASE.break_even - 0.1])) < 0 < CASE.drift(np.array([CASE.break_even + 0.1]))


def test_the_slack_is_the_margin_of_the_better_token_above_one():
    found = attention_svm(PLANE.tokens, PLANE.queries, np.array([[4]]), 2.0)
    assert CASE.slack == pytest.approx(found.margins[0, 0, 0] - 1, abs=1e-8)
    np.testing.assert_allclose(found.weight[0, :, 0], CASE.support / (CASE.support @ CASE.support), atol=1e-8)


def test_training_drifts_as_the_formula_says_and_parts_at_the_break_even():
    ray = attention_svm(PLANE.tokens, PLANE.queries, np.array([[4]]), 2.0).weight
    norms = np.array([0.98, 1.02]) * CASE.break_even / CASE.slack
    run = descend(
        PLANE.repeated(2), np.full(2, 2.0), steps=900, step_size=0.2, normalized=True,
        start=norms[:, None, None] * ray, record_at=range(901),
    )  # fmt: skip
    columns = run.records["key_query"][..., 0]
    extra = columns @ (CASE.better - CASE.support)
    np.testing.assert_allclose(extra[1] - extra[0], 0.2 * CASE.drift(extra[0]), atol=1e-3)
    assert extra[-1, 0] < 0 < CASE.break_even < extra[-1, 1]


def test_scores_in_another_order_are_refused():
    with pytest.raises(ValueError, match="better: expected scores that rise"):
        two_rivals(PLANE, 4, 0, 3)


def test_a_push_adds_in_the_mirror_space():
    start, push = np.random.default_rng(0).standard_normal((2, 5, 3))
    after = mirror.pushed(start, push, 1.5)
    np.testing.assert_allclose(mirror.mirror_map(after, 1.5), mirror.mirror_map(start, 1.5) + push, rtol=1e-10)
    np.testing.assert_allclose(mirror.pushed(start, push, 2.0), start + push, rtol=1e-12)


def test_with_three_pushes_p_1_1_is_longer_and_farther_off_than_p_2_with_a_hundred():
    text = lens_tables.lens_text(1.1, 3)
    assert "3 pushes" in text
    constraint, weights = lens_figures.lens_directions(1.1, 3)
    _, others = lens_figures.lens_directions(2.0, 100)
    assert np.linalg.norm(weights, axis=1).min() > np.linalg.norm(others, axis=1).max()
    farthest = [
        np.min(w @ ray / np.linalg.norm(w, axis=1) / np.linalg.norm(ray))
        for w, ray in ((weights, mirror.inverse_mirror_map(constraint[None], 1.1)[0]), (others, constraint))
    ]
    assert farthest[0] < farthest[1]


def test_an_easy_first_sample_changes_nothing_and_an_easy_second_one_turns_the_column():
    three = plane_joint()
    rows = three.tokens[0, :, 1] - three.tokens[0, :, 0]
    right = np.ones((3, 3, 1))
    right[1, 0], right[2, 1] = 0.25, 0.5
    problems = three.repeated(3)
    second = np.ones((3, 3), dtype=int)
    columns = relaxed_svm(problems.tokens, problems.queries, second, right, 2.0).weight[..., 0]
    np.testing.assert_allclose(columns, [[4 / 3, 1 / 3], [4 / 3, 1 / 3], [1.0, 0.5]], atol=1e-6)
    shown = (rows, right[2, :, 0], columns[0], columns[2])
    assert "turns by 12.5 degrees" in joint_tables.easy_text(*shown)
    assert "gaps are 1.50, 0.50, 1.00" in joint_tables.easy_text(*shown)
    plt.close(joint_figures.easy_frame(*shown))


def test_what_a_ratio_asks_for_falls_with_the_head_margin():
    run = JointTraining.load_stored("book")
    seed = joint_figures.shown_seed(run)
    asked = joint_figures.asked_for(run, seed, 0, 2.0)
    np.testing.assert_allclose(asked[np.argmin(run.margins[seed, 0])], 1, atol=1e-3)
    assert (np.diff(asked[np.argsort(run.margins[seed, 0])]) <= 0).all()


def test_divergence_after_a_time_is_what_was_recorded_then():
    far = Rates.load_stored("paper")
    at = far.of(2.0)
    seed, record = 3, 40
    then = far.divergence_after(2.0, float(far.log_time[seed, at, record]))
    assert then[seed] == pytest.approx(far.divergence[seed, at, record])
    assert "Time 10 to the 9." in rate_tables.patience_text(far, 9, 6)
    assert ": 1 (p = 1.1)" in rate_tables.patience_text(far, 6, 6)


def test_the_pair_of_step_sizes_decides_who_wins():
    few = FewReviews.load_stored("paper")
    rates = few.settings.rates[1]
    gains = np.array([
        [(few.test_accuracy[few.at("p1_1", a)] - few.test_accuracy[few.at("p2", b)]).mean() for b in rates]
        for a in rates
    ])  # fmt: skip
    smaller = np.subtract.outer(rates, rates) < 0
    assert (gains[smaller] > 0).all()
    assert (gains[~smaller] < 0).all()
    assert "p = 1.1 gains" in review_tables.pair_text(few, rates[0], rates[-1])
    assert "p = 1.1 loses" in review_tables.pair_text(few, rates[-1], rates[0])


def test_pictures_draw():
    few, far = FewReviews.load_stored("paper"), Rates.load_stored("paper")
    paths = np.array([[2.0, 1.0, -1.0], [6.0, 7.0, 8.0]])
    drawn = [
        token_figures.holding_frame(CASE, paths, (40.0, 120.0), 40.0),
        lens_figures.lens_frame(1.5, 3),
        rate_figures.patience_frame(far, 9, 6),
        review_figures.pair_frame(few, 0.01, 0.03),
    ]
    assert all(len(figure.axes) == 2 for figure in drawn)
    plt.close("all")
    assert "A is ahead of E" in token_tables.holding_text(CASE, paths, (40.0, 120.0), 40.0)
    assert "E is kept" in token_tables.holding_text(CASE, paths, (40.0, 120.0), 120.0)
