"""Eigenvalues: exact where small, close where large, counted where structured."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbook.core import spectrum

SEED = np.random.default_rng(0)


def structured(rng, blocks=3, block=5, rank=7):
    inner = rng.standard_normal((blocks, block, block))
    return spectrum.BlocksPlusLowRank(
        inner + inner.transpose(0, 2, 1), rng.standard_normal((rank, blocks * block)), rng.random(rank) + 0.1
    )


def test_hessian_of_a_quadratic_by_hand():
    """x^2 + 3 x y has the Hessian ((2, 3), (3, 0)), wherever it is taken."""
    parameters = {"x": torch.tensor([5.0], dtype=torch.float64), "y": torch.tensor([[7.0]], dtype=torch.float64)}
    product, size = spectrum.hessian_product(lambda p: (p["x"].square() + 3 * p["x"] * p["y"]).sum(), parameters)
    assert spectrum.dense(product, size).tolist() == [[2.0, 3.0], [3.0, 0.0]]


def test_hessian_product_is_the_derivative_of_the_gradient():
    """Central differences of the gradient of a loss with all kinds of terms."""
    weights = torch.tensor(SEED.standard_normal((3, 5)))

    def loss(p):
        return torch.sin(p["a"] @ weights).square().sum() + p["b"].exp().prod()

    point = {"a": torch.tensor(SEED.standard_normal((2, 3))), "b": torch.tensor(SEED.standard_normal(2))}
    product, size = spectrum.hessian_product(loss, point)
    direction = SEED.standard_normal(size)

    def gradient(step):
        moved = {
            "a": point["a"] + step * torch.tensor(direction[:6]).view(2, 3),
            "b": point["b"] + step * torch.tensor(direction[6:]),
        }
        leaves = {name: tensor.requires_grad_() for name, tensor in moved.items()}
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss(leaves), list(leaves.values()))]).numpy()

    slope = (gradient(1e-6) - gradient(-1e-6)) / 2e-6
    np.testing.assert_allclose(product(direction), slope, rtol=1e-6, atol=1e-7)


def test_hessian_product_leaves_the_parameters_alone():
    parameters = {"w": torch.ones(3, dtype=torch.float64)}
    spectrum.hessian_product(lambda p: p["w"].square().sum(), parameters)
    assert not parameters["w"].requires_grad


def test_hessian_in_blocks_is_the_hessian_and_keeps_the_type_of_its_vectors():
    point = {"x": torch.tensor(SEED.standard_normal((2, 3))), "idle": torch.ones(2, dtype=torch.float64)}
    loss = lambda p: p["x"].sin().prod()  # noqa: E731  (shorter than a function of three lines)
    blocks, size = spectrum.hessian_in_blocks(loss, point)
    product, _ = spectrum.hessian_product(loss, point)
    found = blocks(torch.eye(size))
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found, spectrum.dense(product, size), rtol=1e-6, atol=1e-9)
    assert found[6:].count_nonzero() == 0


def test_hessian_of_attention_that_torch_would_fuse():
    """Fused attention has no second derivative."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, nhead=2, dim_feedforward=8, dropout=0.0, batch_first=True).double()
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    loss = lambda p: torch.func.functional_call(layer, p, (x,)).pow(3).sum()  # noqa: E731  (shorter than a function of three lines)
    own = {name: weight for name, weight in layer.named_parameters() if name == "self_attn.in_proj_weight"}
    product, size = spectrum.hessian_in_blocks(loss, own)
    direction = torch.zeros(1, size, dtype=torch.float64)
    direction[0, 3] = 1.0

    def gradient(step):
        moved = (own["self_attn.in_proj_weight"].detach() + step * direction.view(24, 8)).requires_grad_()
        return torch.autograd.grad(loss({"self_attn.in_proj_weight": moved}), moved)[0].flatten()

    slope = (gradient(1e-5) - gradient(-1e-5)) / 2e-5
    np.testing.assert_allclose(product(direction)[0], slope, rtol=1e-5, atol=1e-6)


def module_loss(model):
    x = torch.randn(9, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return lambda p: torch.func.functional_call(model, p, (x,)).pow(3).sum()


def test_frozen_parameters_are_left_out():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh(), torch.nn.Linear(2, 1)).double()
    whole, size = spectrum.hessian_product(module_loss(model), dict(model.named_parameters()))
    model[0].requires_grad_(False)
    last, left = spectrum.hessian_product(module_loss(model), dict(model.named_parameters()))
    assert (size, left) == (11, 3)
    np.testing.assert_allclose(spectrum.dense(last, left), spectrum.dense(whole, size)[8:, 8:], rtol=1e-12)


def test_batch_norm_in_training_mode_keeps_its_buffers():
    """The Hessian is that of the loss with the batch's own mean and variance."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1)).double()
    before = {name: (buffer, buffer.clone()) for name, buffer in model.named_buffers()}
    product, size = spectrum.hessian_in_blocks(module_loss(model), dict(model.named_parameters()))
    found = product(torch.eye(size, dtype=torch.float64))
    after = dict(model.named_buffers())
    assert all(after[name] is same and torch.equal(same, copy) for name, (same, copy) in before.items())
    for module in model:
        if isinstance(module, torch.nn.BatchNorm1d):
            module.track_running_stats, module.running_mean, module.running_var = False, None, None
    without, _ = spectrum.hessian_in_blocks(module_loss(model), dict(model.named_parameters()))
    torch.testing.assert_close(found, without(torch.eye(size, dtype=torch.float64)))


def test_the_hessian_of_a_linear_loss_is_zero_and_says_why():
    product, size = spectrum.hessian_product(lambda p: 3 * p["w"].sum(), {"w": torch.ones(2)})
    with pytest.warns(UserWarning, match="loss: linear"):
        assert product(np.ones(size)).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("loss", "parameters", "message"),
    [
        (lambda p: torch.ones(()), {"w": torch.ones(2)}, "loss: expected one that depends on the parameters"),
        (lambda p: torch.ones(2, requires_grad=True).sum(), {"w": torch.ones(2)}, "loss: expected one that depends"),
        (lambda p: p["w"].detach().sum(), {"w": torch.ones(2)}, "loss: expected one that depends"),
        (lambda p: p["w"].sum(), {"w": torch.nn.Parameter(torch.ones(2), requires_grad=False)}, "parameters: expected"),
        (lambda p: p["w"].sum(), {"w": torch.ones(2).long()}, "parameters: expected floating-point.*'w'"),
        (lambda p: torch.zeros(()), {}, "parameters: expected at least one"),
    ],
)
def test_a_loss_without_a_hessian_is_refused(loss, parameters, message):
    with pytest.raises(ValueError, match=message):
        spectrum.hessian_product(loss, parameters)


@pytest.mark.parametrize("loss", [lambda p: p["w"] * 2, lambda p: p["w"].sum() * float("nan")])
def test_a_loss_that_is_not_a_finite_scalar_is_refused(loss):
    with pytest.raises(ValueError, match="loss: expected a finite scalar"):
        spectrum.hessian_product(loss, {"w": torch.ones(2)})


@pytest.mark.parametrize("dense_below", [0, 1000])
def test_extreme_eigenvalues_are_those_of_the_matrix(dense_below):
    """By Lanczos' method and by decomposition, with a spectrum on both sides of zero."""
    basis, _ = np.linalg.qr(SEED.standard_normal((97, 97)))
    values = np.concatenate([[-3.0], np.linspace(-1, 1, 95), [11.0]])
    matrix = basis * values @ basis.T
    got = spectrum.extreme_eigenvalues(matrix.__matmul__, 97, dense_below=dense_below, tolerance=1e-6)
    assert got == pytest.approx((-3.0, 11.0), rel=1e-6)


@pytest.mark.parametrize(
    "values",
    [
        pytest.param(np.r_[0, np.linspace(1, 10, 2999)], id="exactly singular"),
        pytest.param(np.r_[np.zeros(2000), np.linspace(1, 10, 500)], id="500 samples in 2,500 dimensions"),
        pytest.param(np.r_[1, np.zeros(2499)], id="rank one"),
        pytest.param(np.r_[-1, np.zeros(2499)], id="minus rank one"),
        pytest.param(np.zeros(2500), id="all zero"),
        pytest.param(np.full(2500, 7.0), id="multiple of the identity"),
        pytest.param(np.r_[-1.0, np.ones(2499)], id="reflection"),
        pytest.param(np.array([2.0]), id="a number"),
        pytest.param(np.array([2.0, -1.0]), id="two numbers"),
    ],
)
def test_extreme_eigenvalues_of_singular_matrices_are_found_soon(values):
    rng, products = np.random.default_rng(0), 0
    normal = rng.standard_normal(len(values))
    normal /= np.linalg.norm(normal)

    def product(v):
        nonlocal products
        products += 1
        image = values * (v - 2 * (normal @ v) * normal)
        return image - 2 * (normal @ image) * normal

    found = spectrum.extreme_eigenvalues(product, len(values), dense_below=0)
    assert found == pytest.approx((values.min(), values.max()), rel=1e-6, abs=1e-10)
    assert values.min() - 1e-12 <= found[0] <= found[1] <= values.max() + 1e-12
    assert products < 250


@pytest.mark.parametrize("seed", [14, 126, 142, 196])
def test_the_smallest_eigenvalue_is_not_taken_for_its_neighbour(seed):
    """Nine small negative eigenvalues below a bulk: residuals are small before the lowest is seen."""
    rng = np.random.default_rng(seed)
    values = np.r_[-1e-3 * rng.random(9), rng.random(291)]
    lowest, _ = spectrum.extreme_eigenvalues(lambda v: values * v, 300, dense_below=0, tolerance=1e-2)
    assert lowest == pytest.approx(values.min(), rel=1e-2)


def test_no_convergence_of_the_extremes_is_an_error():
    numbers = np.linspace(0, 1, 3000)
    with pytest.raises(RuntimeError, match="tolerance: after 20 products"):
        spectrum.extreme_eigenvalues(lambda v: numbers * v, 3000, most_products=20)


def test_matrices_that_are_not_symmetric_are_refused_where_they_are_written_out():
    with pytest.raises(ValueError, match="product: expected a symmetric matrix"):
        spectrum.dense(lambda v: np.roll(v, 1), 5)


def test_lanczos_repeats_itself_to_the_bit():
    matrix = structured(np.random.default_rng(3), blocks=19)
    found = [spectrum.extreme_eigenvalues(matrix.product, matrix.size, dense_below=0) for _ in range(2)]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"size": 0}, "size"),
        ({"tolerance": 0.0}, "tolerance"),
        ({"tolerance": 2.0}, "tolerance"),
        ({"most_products": 0}, "most_products"),
        ({"product": lambda v: v * np.nan}, "product"),
        ({"product": lambda v: v * np.nan, "dense_below": 0}, "product"),
    ],
)
def test_impossible_arguments_are_refused_by_name(arguments, name):
    with pytest.raises(ValueError, match=f"{name}: "):
        spectrum.extreme_eigenvalues(**({"product": lambda v: v, "size": 5} | arguments))


def test_structured_matrix_by_hand():
    """diag(-1, 2) + 3 (1, 1)(1, 1)^T."""
    matrix = spectrum.BlocksPlusLowRank(np.array([[[-1.0]], [[2.0]]]), np.array([[1.0, 1.0]]), np.array([3.0]))
    assert matrix.dense().tolist() == [[2.0, 3.0], [3.0, 5.0]]
    assert matrix.product(np.array([1.0, 1.0])).tolist() == [5.0, 8.0]


@given(seed=st.integers(0, 10**6), blocks=st.integers(1, 4), block=st.integers(1, 5), rank=st.integers(1, 23))
@settings(max_examples=40, deadline=None)
def test_structured_matrix_agrees_with_itself_written_out(seed, blocks, block, rank):
    """Also where the rank exceeds the size."""
    rng = np.random.default_rng(seed)
    matrix = structured(rng, blocks, block, rank)
    full, vector = matrix.dense(), rng.standard_normal(matrix.size)
    np.testing.assert_allclose(matrix.product(vector), full @ vector, atol=1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": np.ones((2, 7))}, "rows: expected (2, 6)"),
        ({"weights": np.array([1.0, 0.0])}, "weights: expected positive"),
        ({"weights": np.array([1.0, np.nan])}, "weights: 1 of 2 entries"),
        ({"blocks": np.full((2, 3, 3), np.inf)}, "blocks: 18 of 18 entries"),
    ],
)
def test_parts_that_do_not_fit_are_refused_by_name(change, message):
    parts = {"blocks": np.zeros((2, 3, 3)), "rows": np.ones((2, 6)), "weights": np.ones(2)} | change
    with pytest.raises(ValueError, match=re.escape(message)):
        spectrum.BlocksPlusLowRank(**parts)
