"""Leading eigenvalues: those of the whole matrix, with residuals that tell the truth."""

import numpy as np
import pytest
import torch

from attnbook.core.lanczos import leading_eigenvalues

SIZE = 509
torch_double = torch.float64


def matrix(seed=0, size=SIZE):
    """A symmetric matrix with decaying eigenvalues of both signs."""
    rng = np.random.default_rng(seed)
    vectors = np.linalg.qr(rng.standard_normal((size, size)))[0]
    values = np.where(np.arange(size) % 7 == 3, -1, 1) / (1 + np.arange(size)) ** 1.3
    return torch.as_tensor(vectors * values @ vectors.T), np.sort(values)[::-1]


@pytest.mark.parametrize(("count", "block"), [(1, 1), (7, 3), (31, 16)])
def test_eigenvalues_are_those_of_the_whole_matrix(count, block):
    dense, values = matrix()
    found = leading_eigenvalues(lambda v: v @ dense, SIZE, count, block=block, tolerance=1e-6)
    np.testing.assert_allclose(found.values, values[:count], rtol=1e-9)
    assert found.products < SIZE
    assert values[-1] <= found.lowest + 1e-9


def test_every_eigenvalue_lies_within_its_residual():
    dense, values = matrix()
    found = leading_eigenvalues(lambda v: v @ dense, SIZE, 23, block=4, tolerance=0.3)
    distance = np.abs(found.values[:, None] - values).min(axis=1)
    assert found.residuals.max() > 1e-8  # a loose run, so that the bound says something
    assert (distance <= found.residuals + 1e-12).all()


def test_repeated_eigenvalues_are_all_found():
    """Blocks find multiplicities that a single vector cannot see."""
    numbers = torch.cat([torch.full((5,), 2.0, dtype=torch_double), torch.linspace(0, 1, 404, dtype=torch_double)])
    found = leading_eigenvalues(lambda v: v * numbers, 409, 6, block=8, tolerance=1e-8)
    np.testing.assert_allclose(found.values, [2, 2, 2, 2, 2, 1], rtol=1e-9)


def test_small_matrices_are_decomposed_directly():
    dense, values = matrix(size=41)
    found = leading_eigenvalues(lambda v: v @ dense, 41, 41)
    np.testing.assert_allclose(found.values, values, atol=1e-13)
    assert found.products == 41


def test_single_precision_is_good_to_six_digits_of_the_largest():
    dense, values = matrix()
    single = dense.float()
    found = leading_eigenvalues(lambda v: v @ single, SIZE, 11, dtype=torch.float32, tolerance=1e-3)
    np.testing.assert_allclose(found.values, values[:11], atol=3e-6)


def test_long_runs_stay_orthogonal():
    """Vectors that lose their orthogonality show the largest eigenvalues again and again."""
    dense, values = matrix()
    single = dense.float()
    found = leading_eigenvalues(lambda v: v @ single, SIZE, 200, block=4, dtype=torch.float32, tolerance=1e-3)
    assert found.products > 300
    np.testing.assert_allclose(found.values, values[:200], atol=3e-6)


def test_the_same_call_gives_the_same_numbers():
    dense, _ = matrix()
    one, two = (leading_eigenvalues(lambda v: v @ dense, SIZE, 3) for _ in range(2))
    assert (one.values == two.values).all()


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"count": 0}, "count"),
        ({"count": SIZE + 1}, "count"),
        ({"block": 0}, "block"),
        ({"tolerance": 0.0}, "tolerance"),
        ({"most_products": 10}, "most_products"),
    ],
)
def test_impossible_arguments_are_refused_by_name(change, name):
    with pytest.raises(ValueError, match=name):
        leading_eigenvalues(lambda v: v, SIZE, **{"count": 3, **change})


def test_a_product_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="product"):
        leading_eigenvalues(lambda v: v * float("nan"), SIZE, 3)


def test_no_convergence_is_an_error_that_says_what_to_do():
    dense, _ = matrix()
    with pytest.raises(RuntimeError, match="allow more products"):
        leading_eigenvalues(lambda v: v @ dense, SIZE, 31, block=4, tolerance=1e-10, most_products=48)
