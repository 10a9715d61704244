"""Token selection: formulas against independent ones, searches, and wrong models that turn claims red."""

import dataclasses
from decimal import Decimal
from itertools import product

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from attnbook import ledger
from attnbook.mirror_descent import attention as models
from attnbook.mirror_descent import mirror
from attnbook.mirror_descent import objective as theory
from attnbook.mirror_descent import regularisation_path as paths
from attnbook.mirror_descent.attention_svm import attention_svm, locally_optimal, selectable
from attnbook.mirror_descent.data import Problems, draw_problems, plane_tokens
from attnbook.mirror_descent.experiments import objective, regularisation_path, rivals, token_selection
from attnbook.mirror_descent.figures import token_selection as figures
from attnbook.mirror_descent.tables import token_selection as tables

PROBLEMS = draw_problems([0, 1], n_samples=3, n_tokens=5, dimension=7)
WEIGHTS = np.random.default_rng(2).standard_normal((2, 7, 7))
ONE = Problems(*(part[:1] for part in vars(PROBLEMS).values()))


@pytest.fixture(scope="module")
def smoke():
    modules = (objective, regularisation_path, rivals, token_selection)
    return {module: module.run(module.Settings.smoke(), device="cpu") for module in modules}


def failed(result):
    return {v.claim.id for v in ledger.check(result).verdicts if v.outcome == "not reproduced"}


@pytest.mark.parametrize("name", theory.LOSSES)
def test_loss_and_gradient_are_those_of_automatic_differentiation(name):
    losses = {
        "logistic": lambda m: torch.nn.functional.softplus(-m),
        "exponential": lambda m: (-m).exp(),
        "linear": lambda m: -m,
    }
    weights = torch.tensor(WEIGHTS, requires_grad=True)
    attention = models.attention_weights(weights, models.Batch.of(PROBLEMS))
    value = losses[name]((attention * torch.tensor(PROBLEMS.token_scores)).sum(-1)).mean(-1)
    (gradient,) = torch.autograd.grad(value.sum(), weights)
    np.testing.assert_allclose(theory.training_loss(WEIGHTS, PROBLEMS, theory.LOSSES[name]), value.detach(), rtol=1e-12)
    np.testing.assert_allclose(theory.loss_gradient(WEIGHTS, PROBLEMS, theory.LOSSES[name]), gradient, atol=1e-13)


@pytest.mark.parametrize("name", theory.LOSSES)
def test_slopes_are_derivatives_and_the_steepest_is_at_the_low_end(name):
    loss, m = theory.LOSSES[name], np.linspace(-3, 3, 13)
    np.testing.assert_allclose(loss.slope(m), (loss.value(m + 1e-6) - loss.value(m - 1e-6)) / 2e-6, rtol=1e-8)
    np.testing.assert_allclose(loss.steepest(m[:1]), np.abs(loss.slope(m)).max())


def test_the_covariance_lemma_by_hand():
    """Two tokens of equal weight: covariance a g / 4 against a g / 2; the bound a g / 4 is attained."""
    left, right = theory.covariance_error(np.zeros(2), np.array([3.0, 0.0]), np.array([2.0, 0.0]))
    assert left == pytest.approx(1.5)
    assert right == pytest.approx(1.5)


def test_the_count_of_choices_is_that_of_brute_force():
    """Four samples of two tokens on a line: one entry, two of sixteen choices; in the plane all of them."""
    line = draw_problems([0], n_samples=4, n_tokens=2, dimension=1)
    tokens = np.random.default_rng(5).standard_normal((1, 4, 2, 1))
    choices = np.array(list(product(range(2), repeat=4)))
    possible = selectable(tokens.repeat(16, axis=0), line.queries.repeat(16, axis=0), choices)
    assert possible.mean() == theory.share_of_choices(4, 1) == 1 / 8
    assert theory.share_of_choices(4, 2) == 1
    assert theory.share_of_choices(18, 3) == 0.5
    with pytest.raises(ValueError, match="n_samples"):
        theory.share_of_choices(0, 3)


def test_selectable_agrees_with_the_solver_and_refuses_ties():
    tokens = plane_tokens().tokens.repeat(6, axis=0)
    queries = plane_tokens().queries.repeat(6, axis=0)
    assert selectable(tokens, queries, np.arange(6)[:, None]).tolist() == [True] * 5 + [False]
    assert not selectable(tokens, 0 * queries, np.arange(6)[:, None]).any()


def test_norms_decide_which_tokens_of_the_plane_are_locally_optimal():
    """Token B at p = 1.5, not at p = 3."""
    problem = plane_tokens().repeated(2)
    selected = np.array([[1], [1]])
    found = attention_svm(problem.tokens, problem.queries, selected, [1.5, 3.0])
    assert locally_optimal(problem.token_scores, selected, found.support).tolist() == [True, False]


def test_local_optimality_is_not_enough_when_a_better_token_is_just_off_the_margin():
    """Token E at p = 2: its slack is far below one fifth, so that 80 norms out is not far enough."""
    result = token_selection.TokenSelection.load_stored("book")
    at, e = result.of(2.0), 4
    assert result.plane_local[at, e] == 1
    assert result.plane_attention[at, e, -1].argmax() == 0
    margins = attention_svm(plane_tokens().tokens, plane_tokens().queries, np.array([[e]]), 2.0).margins
    assert 1 < margins[0, 0, 0] < 1.0625


def test_the_logarithm_of_the_excess_has_its_gradient():
    value, gradient = paths.log_excess(WEIGHTS[0], ONE)
    low, _ = theory.loss_bounds(ONE, theory.LOSSES["logistic"])
    plain = theory.training_loss(WEIGHTS[:1], ONE, theory.LOSSES["logistic"])
    assert value == pytest.approx(float(np.log(plain - low)[0]), rel=1e-10)
    for entry in ((0, 0), (3, 5), (6, 1)):
        move = np.zeros((7, 7))
        move[entry] = 1e-6
        sides = [paths.log_excess(WEIGHTS[0] + sign * move, ONE)[0] for sign in (1, -1)]
        assert gradient[entry] == pytest.approx((sides[0] - sides[1]) / 2e-6, abs=1e-7)


def test_the_excess_keeps_its_digits_far_out():
    """Two tokens on a line at distance two: attention of the other one is 1 / (1 + exp(2 w))."""
    line = Problems(np.array([[[[1.0], [-1.0]]]]), np.ones((1, 1, 1)), np.ones((1, 1)), np.ones((1, 1)))
    other = 1 / (1 + Decimal(400).exp())  # the excess is 2 other / (1 + e) to first order
    expected = float((2 * other / (1 + Decimal(1).exp())).ln())
    assert paths.log_excess(np.array([[200.0]]), line)[0] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("p", [1.5, 3.0])
def test_a_path_ends_on_its_sphere_at_a_stationary_point(p):
    found = paths.follow(ONE, p, np.array([4.0, 8.0]), paths.interpolant(ONE)[None])
    np.testing.assert_allclose(mirror.entrywise_norm(found.weights, p), [4.0, 8.0], rtol=1e-10)
    for weights in found.weights:
        _, gradient = paths.log_excess(weights, ONE)
        assert found.slope.max() < 1e-3
        outwards = mirror.mirror_map(mirror.normalised(weights, p), p)
        aligned = gradient / np.linalg.norm(gradient) + outwards / np.linalg.norm(outwards)
        assert np.linalg.norm(aligned) < 1e-3


def test_the_interpolant_has_all_margins_equal_to_one():
    weights = paths.interpolant(ONE)
    for x, z, best in zip(ONE.tokens[0], ONE.queries[0], ONE.best_tokens[0], strict=True):
        margins = np.delete((x[best] - x) @ weights @ z, best)
        np.testing.assert_allclose(margins, 1.0, atol=1e-10)


def test_the_certified_radius_is_one_beyond_which_a_wrong_token_costs_more():
    radius = float(theory.selecting_radius(ONE)[0])
    _, high = theory.excess_bounds(ONE, radius + 1e-9)
    deficits = np.sort(theory.score_deficits(ONE)[0], axis=-1)[:, 1]
    slopes = 1 / (1 + np.exp(ONE.token_scores[0].max(-1)))
    assert high[0] <= (deficits * slopes).min() / 2 / 3
    low, high = theory.excess_bounds(PROBLEMS, 3.0)
    assert (low < high).all()


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: theory.excess_bounds(ONE, 0.0), "relative_norm"),
        (lambda: theory.gradient_bound(ONE, 1.0, theory.LOSSES["linear"]), "p: "),
        (lambda: paths.log_excess(WEIGHTS[0], PROBLEMS), "problems"),
        (lambda: paths.follow(ONE, 1.0, np.array([1.0]), WEIGHTS[:1]), "p: "),
        (lambda: paths.follow(ONE, 2.0, np.array([0.0]), WEIGHTS[:1]), "radii"),
        (lambda: paths.follow(ONE, 2.0, np.array([1.0]), 0 * WEIGHTS[:1]), "starts"),
        (lambda: token_selection.Settings(ps=(2.0,)), "ps"),
        (lambda: token_selection.Settings(choices=0), "choices"),
        (lambda: token_selection.Settings(relative_norms=(2.0, 1.0)), "relative_norms"),
        (lambda: rivals.Settings(relative_norms=(2.0, 1.0)), "relative_norms"),
        (lambda: rivals.Settings(steps=3), "steps"),
        (lambda: rivals.run(dataclasses.replace(rivals.Settings.smoke(), seeds=(1,)), device="cpu"), "seeds"),
        (lambda: regularisation_path.Settings(ps=(1.5,)), "ps"),
        (lambda: regularisation_path.Settings(relative_norms=(1.0,)), "relative_norms"),
        (lambda: regularisation_path.Settings(starts=0), "starts"),
        (lambda: objective.Settings(ps=(1.0,)), "ps"),
        (lambda: objective.Settings(draws=0), "draws"),
    ],
)
def test_impossible_arguments_are_refused_by_name(call, name):
    with pytest.raises(ValueError, match=name):
        call()


def test_wrong_lemmas_turn_claims_red(monkeypatch):
    """A factor two in the gradient, both sides of Lemma 16 exchanged, a cube for a square in the covariance lemma."""
    gradient, bounds, covariance = theory.loss_gradient, theory.loss_bounds, theory.covariance_error

    def smaller(logits, direction, scores):
        left, right = covariance(logits, direction, scores)
        return left, right * (right / (np.ptp(direction, axis=-1) * np.ptp(scores, axis=-1))) ** 0.5

    monkeypatch.setattr(theory, "loss_gradient", lambda *given: 2 * gradient(*given))
    monkeypatch.setattr(theory, "loss_bounds", lambda *given: bounds(*given)[::-1])
    monkeypatch.setattr(theory, "covariance_error", smaller)
    settings = dataclasses.replace(objective.Settings.book(), seeds=(0, 1))
    red = failed(objective.run(settings, device="cpu"))
    assert {"MD-L16", "MD-L16-tight", "MD-L18-tight", "MD-cov"} <= red


def test_a_transposed_gradient_turns_claims_red(monkeypatch):
    honest = models._scaled_gradient

    def wrong(key_query, batch):
        losses, gradients, log_scale = honest(key_query, batch)
        return losses, gradients.mT, log_scale

    monkeypatch.setattr(models, "_scaled_gradient", wrong)
    settings = dataclasses.replace(objective.Settings.book(), seeds=(0, 1))
    assert {"MD-L17", "MD-L17-autograd", "MD-L17-digits"} <= failed(objective.run(settings, device="cpu"))


def test_the_wrong_dual_norm_turns_claims_red(monkeypatch):
    honest = token_selection.attention_svm
    monkeypatch.setattr(token_selection, "attention_svm", lambda t, q, s, p: honest(t, q, s, mirror.conjugate(p)))
    result = token_selection.run(token_selection.Settings.smoke(), device="cpu")
    assert {"MD-SVM-dual", "MD-SVM-single"} <= failed(result)


def test_support_tokens_that_are_never_found_turn_claims_red(monkeypatch):
    for module in (token_selection, rivals):
        monkeypatch.setattr(module, "locally_optimal", lambda g, s, support: locally_optimal(g, s, support & False))
    settings = dataclasses.replace(token_selection.Settings.book(), seeds=(0, 1), steps=300, pairs=(3,), choices=2)
    assert "MD-opt-local" in failed(token_selection.run(settings, device="cpu"))
    fewer = dataclasses.replace(rivals.Settings.book(), seeds=tuple(range(6)), steps=600)
    assert "MD-local-kept" in failed(rivals.run(fewer, device="cpu"))


def test_slack_to_the_nearest_token_whatever_its_score_is_another_number():
    """One sample: margin 1.2 of a worse token, 1.5 of a better one; only the better one pulls away."""
    case = Problems(np.array([[[[1.0], [0.5], [2.0]]]]), np.ones((1, 1, 1)), np.ones((1, 1)), np.ones((1, 1)))
    slack = rivals._slack(case, np.array([[0]]), np.array([[[np.inf, 1.2, 1.5]]]))
    np.testing.assert_allclose(slack, [0.5])


def test_crowded_problems_lose_choices_only_beyond_their_entries():
    settings = token_selection.Settings.book()
    for samples, _, dimension in settings.crowded:
        assert samples > dimension
    (n, t, d), (beyond, t_beyond, d_beyond) = settings.crowded
    assert n * (t - 1) <= d**2
    assert beyond * (t_beyond - 1) > 2 * d_beyond**2


def test_the_worst_tokens_as_best_turn_the_path_red(monkeypatch):
    settings = dataclasses.replace(regularisation_path.Settings.book(), seeds=(0, 1), ps=(2.0,), starts=1)
    assert failed(regularisation_path.run(settings, device="cpu")) <= {"MD-RP-outwards"}
    honest = paths.interpolant
    monkeypatch.setattr(paths, "interpolant", lambda problem: -honest(problem))
    red = failed(regularisation_path.run(dataclasses.replace(settings, relative_norms=(10.0, 80.0)), device="cpu"))
    assert {"MD-RP", "MD-RP-bracket"} <= red


def test_figures_and_tables_draw_what_was_measured(smoke):
    chosen, path = smoke[token_selection], smoke[regularisation_path]
    for draw, result in (
        (figures.fate, chosen),
        (figures.far_enough, smoke[rivals]),
        (figures.capacity, chosen),
        (figures.rounding, smoke[objective]),
        (figures.path_far, path),
    ):
        plt.close(draw(result))
    plt.close(figures.walks(path))
    plt.close(figures.explorer_frame(chosen, 3.0, "B"))
    assert "not locally optimal: A beats it" in tables.explorer_text(chosen, 3.0, "B")
    assert "C, E beat it" in tables.explorer_text(chosen, 3.0, "D")
    assert "slack 0.07" in tables.explorer_text(chosen, 1.5, "B")
    assert len(tables.fates(chosen).rows) == 3 * len(chosen.settings.tried)
    assert len(tables.lost(path).rows) == len(path.settings.ps)
