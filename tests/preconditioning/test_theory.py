"""Closed forms against automatic differentiation, whitened coordinates and simulation."""

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnbook.preconditioning import population as theory

D, M = 3, 5


def draw(*shape, seed=0):
    return torch.as_tensor(np.random.default_rng(seed).standard_normal(shape))


def covariance(seed=1, size=D):
    return theory.sample_covariance(draw(11, size, seed=seed))


def point(seed=0, batch=(7,)):
    return draw(*batch, M, D, seed=seed), draw(*batch, D, D, seed=seed + 1)


@pytest.mark.parametrize(
    ("loss", "gradient"),
    [
        (theory.balance_penalty, theory.penalty_gradient),
        (
            lambda u, v, covariance: theory.excess_loss(u, v, covariance=covariance, true_map=draw(M, D, seed=9)),
            lambda u, v, covariance: theory.excess_loss_gradient(
                u, v, covariance=covariance, true_map=draw(M, D, seed=9)
            ),
        ),
    ],
)
def test_closed_form_gradients_equal_automatic_differentiation(loss, gradient):
    layers = [layer.requires_grad_() for layer in point()]
    automatic = torch.autograd.grad(loss(*layers, covariance=covariance()).sum(), layers)
    with torch.no_grad():
        closed = gradient(*layers, covariance=covariance())
    for one, other in zip(automatic, closed, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_in_whitened_coordinates_the_covariance_drops_out():
    """Loss and penalty are those of the factorisation problem with covariance one, for the whitened map."""
    layers, true_map, one = point(), draw(M, D, seed=9), torch.eye(D, dtype=torch.float64)
    root, _ = theory.square_roots(covariance())
    whitened = theory.whiten(*layers, covariance=covariance())
    for raw, white in (
        (theory.excess_loss(*layers, covariance=covariance(), true_map=true_map),
         theory.excess_loss(*whitened, covariance=one, true_map=true_map @ root)),
        (theory.balance_penalty(*layers, covariance=covariance()), theory.balance_penalty(*whitened, covariance=one)),
        (theory.imbalance(*layers, covariance=covariance()), theory.imbalance(*whitened, covariance=one)),
    ):  # fmt: skip
        torch.testing.assert_close(raw, white, rtol=1e-10, atol=1e-10)


def test_the_two_sided_preconditioner_is_gradient_descent_in_whitened_coordinates():
    layers, true_map, one = point(), draw(M, D, seed=9), torch.eye(D, dtype=torch.float64)
    root, _ = theory.square_roots(covariance())

    def step(layers, covariance, true_map, kind):
        loss = theory.excess_loss_gradient(*layers, covariance=covariance, true_map=true_map)
        penalty = theory.penalty_gradient(*layers, covariance=covariance)
        sums = tuple(a + b for a, b in zip(loss, penalty, strict=True))
        directions = theory.precondition(sums, torch.linalg.inv(covariance), kind)
        return tuple(layer - 0.01 * direction for layer, direction in zip(layers, directions, strict=True))

    raw = theory.whiten(*step(layers, covariance(), true_map, "two"), covariance=covariance())
    white = step(theory.whiten(*layers, covariance=covariance()), one, true_map @ root, "none")
    for a, b in zip(raw, white, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_one_sided_preconditioning_multiplies_the_key_query_gradient_on_the_right():
    gradients, inverse = point(), torch.linalg.inv(covariance())
    left = theory.precondition(gradients, inverse, "left")
    assert left[0] is gradients[0]
    torch.testing.assert_close(left[1], gradients[1] @ inverse)
    untouched = theory.precondition(gradients, inverse, "none")
    assert all(one is other for one, other in zip(untouched, gradients, strict=True))
    with pytest.raises((ValueError, jaxtyping.TypeCheckError), match="kind"):
        theory.precondition(gradients, inverse, "right")


@given(st.integers(0, 10_000), st.floats(0.01, 100.0))
def test_imbalance_lies_between_zero_and_one_and_grows_when_a_layer_is_scaled_up(seed, scale):
    value, key_query = point(seed, batch=())
    assert 0 <= theory.imbalance(value * scale, key_query, covariance=covariance()) <= 1 + 1e-12
    far = theory.imbalance(1e6 * value, key_query, covariance=covariance())
    assert far == pytest.approx(1.0, abs=1e-6)


def test_spectral_factors_are_a_balanced_minimum():
    true_map = draw(2, M, D, seed=4)
    sigma = torch.stack([covariance(5), covariance(6)])
    value, key_query, values = theory.spectral_factors(true_map, sigma)
    torch.testing.assert_close(value @ sigma @ key_query, true_map, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(value.mT @ value, key_query @ sigma @ key_query.mT, rtol=1e-10, atol=1e-10)
    assert theory.balance_penalty(value, key_query, covariance=sigma).max() < 1e-20
    assert (values.diff() <= 0).all()
    gradients = theory.excess_loss_gradient(value, key_query, covariance=sigma, true_map=true_map)
    assert max(float(g.abs().max()) for g in gradients) < 1e-10


def test_with_one_input_the_factors_are_roots():
    """By hand: A = 8, covariance 4 gives A S^(1/2) = 16, so U = 4 / 2 and V = 4 / 4."""
    value, key_query, values = theory.spectral_factors(8 * torch.ones(1, 1), 4 * torch.ones(1, 1))
    assert (value.abs().item(), key_query.abs().item(), values.item()) == pytest.approx((2.0, 1.0, 16.0))


def test_with_fewer_outputs_than_inputs_the_missing_singular_values_are_zero():
    true_map = draw(2, D, seed=4)
    value, key_query, values = theory.spectral_factors(true_map, covariance())
    assert value.shape == (2, D)
    assert values[-1] == 0
    torch.testing.assert_close(value @ covariance() @ key_query, true_map, rtol=1e-10, atol=1e-10)


def test_softmax_attention_with_many_keys_is_the_linear_map():
    """The population loss, simulated: attention outputs tend to the covariance times V x."""
    rng = np.random.default_rng(0)
    sigma = covariance()
    keys = torch.as_tensor(rng.standard_normal((400_009, D))) @ torch.linalg.cholesky(sigma).mT
    key_query, query = 0.2 * draw(D, D, seed=2), draw(D, seed=3)
    attended = torch.softmax(keys @ key_query @ query, 0) @ keys
    torch.testing.assert_close(attended, sigma @ key_query @ query, atol=0.01, rtol=0)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (torch.tensor([[1.0, 0.5], [0.0, 1.0]]), "symmetric"),
        (torch.tensor([[1.0, 1.0], [1.0, 1.0]]), "positive definite"),
        (torch.tensor([[-1.0, 0.0], [0.0, 1.0]]), "positive definite"),
        (torch.tensor([[float("nan"), 0.0], [0.0, 1.0]]), "NaN"),
    ],
)
def test_a_matrix_that_is_no_covariance_is_refused(matrix, message):
    functions = {
        "check": theory.check_covariance,
        "roots": theory.square_roots,
        "whitening": lambda covariance: theory.whiten(draw(3, 2), draw(2, 2), covariance=covariance),
        "spectral start": lambda covariance: theory.spectral_factors(draw(3, 2), covariance),
    }
    for function in functions.values():
        with pytest.raises(ValueError, match=f"covariance.*{message}"):
            function(matrix)


def test_a_covariance_that_is_not_square_is_refused():
    with pytest.raises((ValueError, jaxtyping.TypeCheckError), match="covariance"):
        theory.check_covariance(torch.ones(2, 3))


def test_a_sample_covariance_needs_enough_finite_samples():
    with pytest.raises(ValueError, match="at least as many samples"):
        theory.sample_covariance(draw(2, 3))
    with pytest.raises(ValueError, match="NaN"):
        theory.sample_covariance(torch.full((5, 2), float("nan")))


def test_the_degrees_of_the_penalty_gradients_in_the_covariance():
    """Three error terms for U, four for V in the words of Theorem 5: what finite differences find."""
    value, key_query = point(batch=())
    scaled = [theory.penalty_gradient(value, key_query, covariance=c * covariance()) for c in range(8)]
    for gradients, degree in zip(zip(*scaled, strict=True), (3, 4), strict=True):
        differences = [torch.stack(gradients)]
        for _ in range(degree + 1):
            differences.append(differences[-1].diff(dim=0))
        assert differences[degree].abs().max() > 1e-3 * differences[0].abs().max()
        assert differences[degree + 1].abs().max() < 1e-9 * differences[0].abs().max()
