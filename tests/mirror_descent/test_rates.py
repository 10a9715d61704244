"""The chapter on rates: constants of the cone, lemmas on one step, time as a logarithm, and what turns claims red."""

import dataclasses

import numpy as np
import pytest
import torch

from attnbook import ledger
from attnbook.mirror_descent import cone, mirror, one_step, rate_bounds
from attnbook.mirror_descent.attention import Batch, descend, excess_loss, loss_and_gradient, train_loss
from attnbook.mirror_descent.attention_svm import attention_svm
from attnbook.mirror_descent.cone_probes import at_divergence, extreme_directions
from attnbook.mirror_descent.data import draw_problems
from attnbook.mirror_descent.exercises.rates import CHECKS
from attnbook.mirror_descent.experiments import cone as cone_experiment
from attnbook.mirror_descent.experiments import rates as rates_experiment
from attnbook.mirror_descent.experiments import staying as staying_experiment
from attnbook.mirror_descent.experiments import steps as steps_experiment


def failed(result):
    return {v.claim.id for v in ledger.check(result).verdicts if v.outcome == "not reproduced"}


@pytest.mark.parametrize("p", [1.3, 2.0, 3.5])
def test_matrices_at_the_edge_of_a_cone_have_its_divergence(p):
    problems = draw_problems([3, 5], n_samples=2, n_tokens=3, dimension=7)
    svm = attention_svm(problems.tokens, problems.queries, problems.best_tokens, p)
    center = mirror.normalised(svm.weight, p)
    edge = at_divergence(center[:, None], extreme_directions(problems, [3, 5], 11, p), p, 0.01)
    assert np.allclose(mirror.entrywise_norm(edge, p), 1)
    assert np.allclose(mirror.bregman_divergence(center[:, None], edge, p), 0.01, rtol=1e-5)


@pytest.mark.parametrize("p", [1.4, 2.0, 3.0])
def test_the_guaranteed_divergence_is_the_formula_and_the_sharper_one_is_larger(p):
    literal = cone.guaranteed_divergence(np.array(0.03), np.array(5.0), 7, p)
    by_hand = (0.03 / 20) ** p / p if p >= 2 else (p - 1) / 2 * (0.03 / (10 * 7 ** (2 / p - 1))) ** 2
    assert np.isclose(literal, by_hand, rtol=1e-12)
    assert cone.guaranteed_divergence(np.array(0.03), np.array(5.0), 7, p, sharp=True) > literal


def test_the_largest_pair_is_the_norm_of_an_outer_product():
    problems = draw_problems([2], n_samples=3, n_tokens=5, dimension=7)
    products = problems.tokens[..., :, None] * problems.queries[:, :, None, None, :]
    expected = 1.7 * mirror.entrywise_norm(products, float(mirror.conjugate(1.6))).max()
    found = cone.largest_pair(problems.tokens, problems.queries, np.array([1.7]), 1.6)
    assert np.isclose(found[0], expected, rtol=1e-12)


def test_time_as_a_logarithm_equals_plain_sums_while_they_fit():
    problems, p = draw_problems([1], n_samples=2, n_tokens=3, dimension=5), np.array([1.7])
    run = descend(problems, p, steps=13, step_size=0.2, normalized=True, record_at=range(14), log_time=True)
    batch, total = Batch.of(problems), 0.0
    for k in range(13):
        weight = run.records["key_query"][k]
        _, gradient = loss_and_gradient({"key_query": torch.tensor(weight)}, batch)
        norm = max(1.0, float(mirror.entrywise_norm(weight, 1.7)[0]))
        length = float(mirror.entrywise_norm(gradient["key_query"].numpy(), mirror.conjugate(1.7))[0])
        total += 0.2 * norm ** (1.7 - 2) / length
    assert np.isclose(run.records["log_time"][13, 0], np.log(total), atol=1e-10)


def test_the_excess_loss_is_a_difference_of_losses():
    problems = draw_problems([0, 1], n_samples=3, n_tokens=5, dimension=7)
    weight, batch = torch.randn(2, 7, 7, dtype=torch.float64), Batch.of(problems)
    best = torch.tensor(problems.best_tokens)
    own = batch.token_scores.gather(-1, best.unsqueeze(-1)).squeeze(-1)
    expected = train_loss({"key_query": weight}, batch) - torch.nn.functional.softplus(-own).mean(-1)
    assert torch.allclose(excess_loss(weight, batch, best), expected, atol=1e-14)


@pytest.mark.parametrize(("p", "expected"), [(1.5, 0.25), (2.0, np.log(16) ** 2 / 16), (3.0, np.log(16) / 16)])
def test_the_rate_has_three_cases(p, expected):
    assert np.isclose(rate_bounds.bound(np.array(16.0), p), expected)


def test_the_radial_law_is_exact_for_p_2():
    times = np.array([1.0, 7.0, 40.0])
    assert np.allclose(rate_bounds.radial_law(times, 2.0), np.log1p(np.exp(times)), rtol=1e-4)


def test_bad_input_is_refused():
    problems = draw_problems([0], n_samples=2, n_tokens=3, dimension=5)
    with pytest.raises(ValueError, match="log_time"):
        descend(problems, np.array([2.0]), steps=1, step_size=0.1, log_time=True)
    with pytest.raises(ValueError, match="norm"):
        rate_bounds.bound(np.array([1.0]), 2.0)
    with pytest.raises(ValueError, match="two points"):
        rate_bounds.log_log_slope(np.array([1.0, 2.0]), np.array([1.0, 2.0]), beyond=5.0)
    with pytest.raises(ValueError, match="divergence"):
        at_divergence(np.eye(3), np.eye(3), 2.0, 0.0)
    with pytest.raises(ValueError, match="seeds"):
        extreme_directions(problems, [0, 1], 3, 2.0)


def test_a_gap_of_the_selected_token_shrinks_most_along_its_own_direction():
    problems = draw_problems([3], n_samples=2, n_tokens=3, dimension=7)
    selected = np.array([[2, 0]])
    way = extreme_directions(problems, [3], 1, 1.6, selected=selected)
    index = np.broadcast_to(selected[:, None], (1, 1, 2))
    gaps = cone.gaps(way, problems.tokens[:, None], problems.queries[:, None], index)
    random = mirror.normalised(np.random.default_rng(5).standard_normal((1, 200, 7, 7)), 1.6)
    others = cone.gaps(random, problems.tokens[:, None], problems.queries[:, None], index)
    sample, token = np.unravel_index(gaps[0, 0].argmin(), (2, 3))
    assert gaps[0, 0, sample, token] < others[0, :, sample, token].min()


def test_a_step_in_the_wrong_direction_turns_the_lemmas_on_one_step_red(monkeypatch):
    settings = dataclasses.replace(steps_experiment.Settings.smoke(), short_steps=5)
    honest = one_step._along
    assert not {"MD-L22", "MD-L24"} & failed(steps_experiment.run(settings, device="cpu"))
    monkeypatch.setattr(one_step, "_along", lambda *a: 1.5 * honest(*a))
    assert "MD-L22" in failed(steps_experiment.run(settings, device="cpu"))


def test_a_cone_a_thousand_times_too_wide_turns_lemma_19_red(monkeypatch):
    honest = cone.guaranteed_divergence
    settings = dataclasses.replace(cone_experiment.Settings.smoke(), directions=40)
    monkeypatch.setattr(cone, "guaranteed_divergence", lambda *a, **o: 1000 * honest(*a, **o) + 1e-3)
    assert {"MD-L19-12a", "MD-L19-sharp"} <= failed(cone_experiment.run(settings, device="cpu"))


def test_runs_that_leave_the_cone_turn_lemma_28_red():
    result = staying_experiment.Staying.load_stored("book")
    claims = {"MD-L28", "MD-L28-far", "MD-L28-tokens"}
    assert not claims & failed(result)
    gone = result.divergence.copy()
    gone[..., -1] = 4 * gone[..., 0]
    assert claims <= failed(dataclasses.replace(result, divergence=gone, kept=0 * result.kept))


def test_a_time_with_the_wrong_power_of_the_norm_turns_the_growth_red():
    result = rates_experiment.Rates.load_stored("book")
    assert "MD-L30+" not in failed(result)
    assert "MD-L30+" in failed(dataclasses.replace(result, log_time=0.8 * result.log_time))


@pytest.mark.parametrize("slower", [lambda k: np.log(np.log(k + 3)), lambda k: 1 - (k + 1) ** -0.1])
def test_growth_slower_than_a_logarithm_turns_lemma_30_red(slower):
    result = steps_experiment.Steps.load_stored("paper")
    assert "MD-L30" not in failed(result)
    shape = slower(result.steps) / slower(result.steps[-1])
    assert "MD-L30" in failed(dataclasses.replace(result, norm=result.norm[..., -1:] * shape))


def test_a_direction_that_hardly_turns_turns_the_rates_red():
    result = rates_experiment.Rates.load_stored("book")
    claims = {"MD-L29-below2", "MD-L29-at2", "MD-L29-above2", "MD-rate-k-at2"}
    assert not claims & failed(result)
    assert claims <= failed(dataclasses.replace(result, divergence=result.relative_norm**-0.1))


@pytest.mark.parametrize("name", ["MD-7", "MD-8", "MD-9"])
def test_a_wrong_answer_is_told_what_is_wrong(name):
    assert CHECKS[name](lambda *a: np.asarray(a[0], dtype=float) * 0.9)
