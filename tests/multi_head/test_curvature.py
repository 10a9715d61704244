"""Bounds at points whose answer is known."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbook.multi_head import curvature_bounds, derivatives

RNG = np.random.default_rng(0)
X, U = RNG.standard_normal((7, 5)), RNG.standard_normal((7, 5))


def norms(tokens, decoder, key_query):
    x = torch.tensor(tokens)[None]
    head = {"decoder": torch.tensor(decoder)[None], "key_query": torch.tensor(key_query)[None]}
    matrix = derivatives.head_hessians(head, x, torch.ones(1, dtype=torch.float64))[0]
    return float(derivatives.head_gradients(head, x).norm()), float(torch.linalg.matrix_norm(matrix, 2))


@given(seed=st.integers(0, 10**6), size=st.floats(0.1, 10), dimension=st.sampled_from([1, 2, 3, 5]))
@settings(max_examples=40, deadline=None)
def test_bounds_hold_and_the_dimension_free_one_is_at_most_half(seed, size, dimension):
    rng = np.random.default_rng(seed)
    tokens, decoder = size * rng.standard_normal((3, dimension)), rng.standard_normal((3, dimension)) / size
    gradient, hessian = norms(tokens, decoder, rng.standard_normal((dimension, dimension)) / size)
    assert gradient <= curvature_bounds.gradient_bound(tokens, decoder)
    assert hessian <= curvature_bounds.dimension_free_hessian_bound(tokens, decoder) * (1 + 1e-12)
    ours, paper = (
        f(tokens, decoder) for f in (curvature_bounds.dimension_free_hessian_bound, curvature_bounds.hessian_bound)
    )
    assert 2 * ours <= paper * (1 + 1e-12)


def test_dimension_free_bound_is_attained():
    """Half of the tokens each way, no decoder, uniform attention: the norm is sqrt(T) R^3, exactly."""
    tokens = 1.3 * np.array([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    _, hessian = norms(tokens, np.zeros((4, 2)), np.zeros((2, 2)))
    assert hessian == pytest.approx(curvature_bounds.dimension_free_hessian_bound(tokens, np.zeros((4, 2))), rel=1e-12)


def test_largest_cumulant_bounds_every_law_on_the_square_and_is_reached():
    """Mixed third cumulants of random laws on up to five points, many of them corners; and the law that attains it."""
    rng = np.random.default_rng(3)
    weights = rng.dirichlet(np.full(5, 0.4), 20_000)
    p, s = np.clip(rng.uniform(-3, 3, (2, 20_000, 5)), -1, 1)
    centred = s - (weights * s).sum(1, keepdims=True)
    cumulants = (weights * (p - (weights * p).sum(1, keepdims=True)) * centred**2).sum(1)
    assert 0.7 < abs(cumulants).max() <= curvature_bounds.LARGEST_CUMULANT
    few = (1 - 1 / np.sqrt(3)) / 2
    w, s = np.array([few, 1 - few]), np.array([-1.0, 1.0])
    p = -s
    assert w @ ((p - w @ p) * (s - w @ s) ** 2) == pytest.approx(curvature_bounds.LARGEST_CUMULANT, rel=1e-12)


def test_the_decoder_term_is_attained():
    """Tokens both ways, attention mostly to the own sign, a decoder far larger than the mixed part."""
    signs = np.array([1.0, -1.0, 1.0, -1.0, 1.0, -1.0])
    few = (1 - 1 / np.sqrt(3)) / 2
    tokens, decoder = signs[:, None] * [[1.0, 0.0]], -1e8 * signs[:, None] * [[1.0, 0.0]]
    preference = np.log(1 / few - 1) / 2
    _, hessian = norms(tokens, decoder, np.diag([preference, 0.0]))
    assert hessian == pytest.approx(curvature_bounds.dimension_free_hessian_bound(tokens, decoder), rel=1e-6)


def test_constants_by_hand():
    """T = 4, d = 9, H = 16, R = 1, B = 1: beta_1 = 2 * 3, beta_3 = 12 (9 + 1), beta_2 = 30 + 9, beta_3' = 2 (c + 1)."""
    got = curvature_bounds.loss_constants(n_tokens=4, dimension=9, n_heads=16, token_norm=1.0, largest_head_norm=1.0)
    assert got == curvature_bounds.LossConstants(6.0, 39.0, 120.0, 2 * (curvature_bounds.LARGEST_CUMULANT + 1))


def test_powers_in_the_constants_by_hand():
    """R = 2, B = 1.5: beta_1 = 4 * 13, beta_3 = 12 * 8 * 55, beta_2 = 5280 / 4 + 676, beta_3' = 16 (6 c + 1)."""
    got = curvature_bounds.loss_constants(n_tokens=4, dimension=9, n_heads=16, token_norm=2.0, largest_head_norm=1.5)
    expected = (52.0, 1996.0, 5280.0, 16 * (6 * curvature_bounds.LARGEST_CUMULANT + 1))
    assert got == pytest.approx(expected, rel=1e-14)


def test_bounds_of_proposition_1_by_hand():
    """T = 2, d = 3, R = 5, largest entry 4, values 3 and 8."""
    tokens, decoder = np.array([[3.0, 4.0, 0.0], [0.0, 0.0, 0.0]]), np.array([[1.0, 0.0, 0.0], [0.0, 2.0, 5.0]])
    assert curvature_bounds.gradient_bound(tokens, decoder) == pytest.approx(2 * 25 * 11 + 5 * 2**0.5, rel=1e-14)
    hessian = 6 * 3 * 25 * 16 * 11 + 2 * 6**0.5 * 25 * 4
    assert curvature_bounds.hessian_bound(tokens, decoder) == pytest.approx(hessian, rel=1e-14)
    free = curvature_bounds.LARGEST_CUMULANT * 625 * 11 + 2**0.5 * 125
    assert curvature_bounds.dimension_free_hessian_bound(tokens, decoder) == pytest.approx(free, rel=1e-14)


def test_condition_18_by_hand():
    """beta_3 = 120 and the root of H is 4, so that 2 * 120 / (60 * 4) = 1."""
    sizes = {"n_tokens": 4, "dimension": 9, "n_heads": 16, "token_norm": 1.0, "head_norm": 1.0}
    assert curvature_bounds.allowed_distance(**sizes) == pytest.approx(1 / 60**0.5)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"n_heads": 0}, "n_heads"),
        ({"n_tokens": 0}, "n_tokens"),
        ({"dimension": -1}, "dimension"),
        ({"token_norm": 0.5}, "token_norm"),
        ({"token_norm": float("nan")}, "token_norm"),
        ({"largest_head_norm": -1.0}, "largest_head_norm"),
        ({"largest_head_norm": float("inf")}, "largest_head_norm"),
    ],
)
def test_arguments_out_of_range_are_refused_by_name(change, name):
    good = {"n_tokens": 2, "dimension": 3, "n_heads": 5, "token_norm": 1.0, "largest_head_norm": 1.0}
    with pytest.raises(ValueError, match=f"{name}: "):
        curvature_bounds.loss_constants(**(good | change))


@pytest.mark.parametrize(
    "bound",
    [curvature_bounds.gradient_bound, curvature_bounds.hessian_bound, curvature_bounds.dimension_free_hessian_bound],
)
def test_entries_that_are_not_finite_are_refused_by_name(bound):
    with pytest.raises(ValueError, match="tokens: 35 of 35"):
        bound(X * np.nan, U)
    with pytest.raises(ValueError, match="decoder: 35 of 35"):
        bound(X, U * np.inf)
