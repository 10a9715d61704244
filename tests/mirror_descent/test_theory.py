"""Potential, mirror map, divergence and lemmas: by hand, by autograd, by their identities."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbook.mirror_descent import mirror
from attnbook.mirror_descent.mirror_descent import inequalities

RNG = np.random.default_rng(0)
U, V, W = RNG.standard_normal((3, 7, 5, 3))
PS = (1.05, 1.5, 2.0, 2.5, 4.0)
EXPONENT = st.floats(1.05, 6.0)


@pytest.mark.parametrize("p", PS)
def test_mirror_map_is_the_gradient_of_the_potential(p):
    weights = torch.tensor(U, requires_grad=True)
    (weights.abs() ** p).sum().div(p).backward()
    np.testing.assert_allclose(mirror.mirror_map(U, p), weights.grad.numpy(), rtol=1e-12)


@pytest.mark.parametrize("p", PS)
def test_the_inverse_map_undoes_the_map(p):
    np.testing.assert_allclose(mirror.inverse_mirror_map(mirror.mirror_map(U, p), p), U, rtol=1e-10)


def test_norm_and_map_by_hand():
    assert mirror.entrywise_norm(np.array([[3.0], [-4.0]]), 2.0) == 5.0
    assert mirror.mirror_map(np.array([[-2.0, 0.0, 3.0]]), 3.0).tolist() == [[-4.0, 0.0, 9.0]]
    assert mirror.conjugate(1.5) == pytest.approx(3.0)
    assert mirror.effective_dimension(np.array([[1.0, -1.0], [0.0, 0.0]])) == 0.5
    assert mirror.share_above(np.array([[1.0, -0.5], [0.005, 0.02]])) == 0.75


def test_norms_do_not_overflow():
    assert mirror.entrywise_norm(np.array([[1e200, 1e200]]), 3.0) == pytest.approx(1e200 * 2 ** (1 / 3))


def test_exponents_may_differ_along_the_leading_axis():
    ps = np.array([1.1, 1.3, 1.7, 2.0, 2.3, 3.0, 5.0])
    together = mirror.bregman_divergence(U, V, ps)
    for i, p in enumerate(ps):
        assert together[i] == pytest.approx(mirror.bregman_divergence(U[i], V[i], float(p)), rel=1e-12)


@pytest.mark.parametrize("p", PS)
def test_divergence_is_its_definition(p):
    product = (mirror.mirror_map(V, p) * (U - V)).sum((1, 2))
    expected = (np.abs(U) ** p - np.abs(V) ** p).sum((1, 2)) / p - product
    np.testing.assert_allclose(mirror.bregman_divergence(U, V, p), expected, rtol=1e-10)


@pytest.mark.parametrize("p", PS)
def test_on_the_unit_sphere_divergence_is_one_minus_a_product(p):
    u, v = mirror.normalised(U, p), mirror.normalised(V, p)
    expected = 1 - (mirror.mirror_map(v, p) * u).sum((1, 2))
    np.testing.assert_allclose(mirror.bregman_divergence(u, v, p), expected, atol=1e-13)
    np.testing.assert_allclose(mirror.direction_divergence(U, 3 * V, p), expected, atol=1e-13)


def test_for_p_2_divergence_of_directions_is_one_minus_the_cosine():
    u, v = mirror.normalised(U, 2.0), mirror.normalised(V, 2.0)
    cosine = (U * V).sum((1, 2)) / np.linalg.norm(U, axis=(1, 2)) / np.linalg.norm(V, axis=(1, 2))
    np.testing.assert_allclose(mirror.bregman_divergence(u, v, 2.0), 1 - cosine, rtol=1e-12)


def test_divergence_keeps_the_digits_of_close_pairs():
    """For p = 2 it is half the squared distance: 1e-20 here, far below the rounding of the potentials."""
    assert mirror.bregman_divergence(U[0], U[0] + 1e-10, 2.0) == pytest.approx(0.5 * 15e-20, rel=1e-3)


@settings(deadline=None)
@given(EXPONENT, st.integers(0, 1000))
def test_three_point_identity(p, seed):
    u, v, w = np.random.default_rng(seed).standard_normal((3, 3, 3))
    assert abs(inequalities.three_point_error(u, v, w, p)) < 1e-9


@settings(deadline=None)
@given(EXPONENT, st.integers(0, 1000))
def test_lemmas_hold(p, seed):
    rng = np.random.default_rng(seed)
    square = rng.standard_normal((4, 3, 3))
    low, high = inequalities.norm_bounds(square, p)
    norm = mirror.entrywise_norm(square, p)
    assert (low <= norm * (1 + 1e-12)).all()
    assert (norm <= high * (1 + 1e-12)).all()
    u, v = mirror.normalised(square, p), mirror.normalised(rng.standard_normal((4, 3, 3)), p)
    divergence = mirror.bregman_divergence(u, v, p)
    for sharp in (False, True):
        assert (divergence >= inequalities.divergence_bound(u, v, p, sharp=sharp) * (1 - 1e-9)).all()
    x = rng.random(5) * 10
    y = x * rng.random(5)
    for left, middle, right in (inequalities.power_bounds(x, y, p), inequalities.slope_bounds(x, y, p)):
        assert (left <= middle + 1e-12 * np.abs(middle)).all()
        assert (middle <= right + 1e-12 * np.abs(right)).all()


@pytest.mark.parametrize("p", [2.0, 2.01, 2.5, 3.0, 4.0, 6.0, 12.0])
def test_best_constant_is_the_minimum_of_the_scalar_function(p):
    s = np.concatenate([np.linspace(-50, 50, 2_000_001), np.geomspace(50, 1e5, 10_000)])
    s = s[np.abs(s) > 1e-2]
    grid = ((np.abs(1 - s) ** p - 1) / p + s) / np.abs(s) ** p
    assert mirror.best_constant(p) == pytest.approx(grid.min(), rel=2e-6)
    assert mirror.best_constant(p) >= 1 / (p * (2 ** (p - 1) - 1)) * (1 - 1e-12)
    assert mirror.best_constant(p) > 1 / (p * 2**p)


@pytest.mark.parametrize("p", PS)
def test_single_constraint_is_met_and_any_other_vector_that_meets_it_is_longer(p):
    solution = mirror.single_constraint(U, p)
    np.testing.assert_allclose((U * solution).sum((1, 2)), 1.0, rtol=1e-12)
    other = solution + 0.1 * V
    other = other / (U * other).sum((1, 2))[:, None, None]
    assert (mirror.entrywise_norm(other, p) > mirror.entrywise_norm(solution, p)).all()


@pytest.mark.parametrize("p", [1.0, 0.0, -2.0, np.nan, np.inf])
@pytest.mark.parametrize(
    "call",
    [
        lambda p: mirror.conjugate(p),
        lambda p: mirror.mirror_map(U, p),
        lambda p: mirror.bregman_divergence(U, V, p),
        lambda p: mirror.entrywise_norm(U, p),
        lambda p: inequalities.divergence_bound(U, V, p),
        lambda p: mirror.best_constant(p),
        lambda p: inequalities.power_bounds(np.ones(3), np.ones(3), p),
    ],
)
def test_impossible_exponents_are_refused_by_name(call, p):
    with pytest.raises(ValueError, match="p: "):
        call(p)


def test_a_zero_constraint_is_refused():
    with pytest.raises(ValueError, match="constraint"):
        mirror.single_constraint(np.zeros((2, 3)), 1.5)
