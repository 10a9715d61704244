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


def spectra():
    """Matrices that leave Lanczos' method nothing to go on with, or more copies than a block has vectors."""
    low_rank = {f"rank {rank}": np.r_[np.linspace(1, 2, rank), np.zeros(300 - rank)] for rank in range(1, 21)}
    repeated = {f"{n} and {n} copies": np.r_[[3.0] * n, [2.0] * n, np.zeros(280 - 2 * n)] for n in (8, 9, 10, 20)}
    return low_rank | repeated | {
        "all zero": np.zeros(300),
        "multiple of the identity": np.full(300, -2.5),
        "copies above a bulk": np.r_[[3.0] * 19, np.linspace(-1, 2.8, 281)],
        "a cluster": np.r_[3 + 1e-7 * np.arange(21), np.linspace(-1, 1, 279)],
        "copies everywhere": np.repeat(np.linspace(-1, 1, 11), 13),
    }  # fmt: skip


@pytest.mark.parametrize("block", [1, 8])
@pytest.mark.parametrize("values", [pytest.param(values, id=name) for name, values in spectra().items()])
def test_no_eigenvalue_is_invented_or_left_out(values, block):
    rotation = torch.as_tensor(np.linalg.qr(np.random.default_rng(0).standard_normal((len(values), 3)))[0])
    numbers, truth = torch.as_tensor(values), np.sort(values)[::-1]

    def reflected(v):
        return v - 2 * (v @ rotation) @ rotation.T

    for count in (1, 7, 23):
        found = leading_eigenvalues(lambda v: reflected(reflected(v) * numbers), len(values), count, block=block)
        np.testing.assert_allclose(found.values, truth[:count], rtol=3e-2, atol=1e-12)
        assert (found.values <= truth[:count] + 1e-12).all()
        assert (np.abs(found.values[:, None] - values).min(axis=1) <= found.residuals + 1e-12).all()
        assert found.lowest >= truth[-1] - 1e-12


def test_least_squares_with_ten_outputs_has_ten_copies_of_each_eigenvalue():
    """At the default block of eight: the Hessian is the covariance of the inputs, once for each output."""
    inputs = np.random.default_rng(0).standard_normal((50, 2))
    small, size = torch.as_tensor(inputs.T @ inputs / 50), 300

    def product(v):
        image = torch.zeros_like(v)
        image[:, :20] = (v[:, :20].view(-1, 10, 2) @ small).flatten(1)
        return image

    found = leading_eigenvalues(product, size, 20)
    low, high = np.linalg.eigvalsh(small.numpy())
    np.testing.assert_allclose(found.values, [high] * 10 + [low] * 10, rtol=1e-9)


def test_copies_that_cannot_be_counted_are_an_error():
    numbers = torch.cat([torch.full((30,), 2.0, dtype=torch_double), torch.linspace(0, 1, 470, dtype=torch_double)])
    with pytest.raises(RuntimeError, match=r"block: .* there may be more; allow"):
        leading_eigenvalues(lambda v: v * numbers, 500, 5, block=4, most_products=100)


@pytest.mark.parametrize("size", [5, SIZE])
@pytest.mark.parametrize(
    ("product", "message"),
    [(lambda v: v.roll(1, 1), "symmetric"), (lambda v: v[:, :3], "shape"), (lambda v: v * float("nan"), "finite")],
)
def test_products_that_are_no_symmetric_matrix_are_refused(product, message, size):
    with pytest.raises(ValueError, match=f"product: expected .*{message}"):
        leading_eigenvalues(product, size, 2)


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


def test_no_convergence_is_an_error_that_says_what_to_do():
    dense, _ = matrix()
    with pytest.raises(RuntimeError, match="allow more products"):
        leading_eigenvalues(lambda v: v @ dense, SIZE, 31, block=4, tolerance=1e-10, most_products=48)
