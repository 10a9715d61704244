"""Problems meet the assumptions exactly as asked; every seed has its own."""

import dataclasses

import numpy as np
import pytest

from attnbook.preconditioning.data import Setup, draw_problem

SETUP = Setup(dimension=3, n_outputs=5, condition_number=7.0, largest=0.3, smallest=0.1, noise=0.2, n_samples=11)


def test_covariance_and_map_have_the_condition_number_and_singular_values_asked_for():
    values = np.array([0.5, 0.3, 0.2])
    problem = draw_problem(3, 5, condition_number=7.0, singular_values=values, noise=0.1, rng=np.random.default_rng(0))
    assert np.linalg.cond(problem.covariance) == pytest.approx(7.0, rel=1e-10)
    np.testing.assert_allclose(problem.covariance, problem.covariance.T, atol=1e-15)
    root = np.linalg.cholesky(problem.covariance)
    np.testing.assert_allclose(np.linalg.svd(problem.true_map @ root, compute_uv=False), values, rtol=1e-10)


def test_condition_number_one_is_the_identity():
    problem = dataclasses.replace(SETUP, condition_number=1.0).problem(0)
    np.testing.assert_allclose(problem.covariance, np.eye(3), atol=1e-14)


def test_samples_have_the_covariance_and_noise_of_the_problem():
    setup = dataclasses.replace(SETUP, n_samples=200_003)
    problem, (x, y) = setup.problem(0), setup.draw(0)
    np.testing.assert_allclose(x.T @ x / len(x), problem.covariance, atol=0.03)
    assert np.std(y - x @ problem.true_map.T) == pytest.approx(0.2, rel=0.01)


def test_a_seed_is_reproducible_and_its_inputs_do_not_depend_on_the_noise():
    (x, y), (again, _) = SETUP.draw(3), SETUP.draw(3)
    np.testing.assert_array_equal(x, again)
    louder, labels = dataclasses.replace(SETUP, noise=1.0).draw(3)
    np.testing.assert_array_equal(x, louder)
    assert not np.allclose(y, labels)
    assert not np.allclose(x, SETUP.draw(4)[0])


def test_best_loss_is_half_the_noise_of_all_outputs():
    assert SETUP.best_loss == pytest.approx(0.5 * 5 * 0.04)


@pytest.mark.parametrize(
    "change",
    [
        {"dimension": 0},
        {"n_outputs": 0},
        {"n_samples": 0},
        {"noise": 0.0},
        {"noise": float("nan")},
        {"condition_number": 0.5},
        {"condition_number": float("inf")},
        {"largest": 0.05},
        {"smallest": 0.0},
    ],
)
def test_impossible_sizes_are_refused_by_name(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        dataclasses.replace(SETUP, **change)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"condition_number": 0.9}, "condition_number"),
        ({"singular_values": np.ones(2)}, "singular_values"),
        ({"singular_values": np.array([1.0, 1.0, -1.0])}, "singular_values"),
        ({"noise": -1.0}, "noise"),
    ],
)
def test_impossible_problems_are_refused_by_name(change, name):
    good = {"condition_number": 2.0, "singular_values": np.ones(3), "noise": 0.1, "rng": np.random.default_rng(0)}
    with pytest.raises(ValueError, match=name):
        draw_problem(3, 5, **(good | change))
