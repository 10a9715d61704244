"""Kernels at infinite width and the formulas of the theorem."""

import math

import numpy as np
import pytest

from attnbook.softmax_ntk import kernels
from attnbook.softmax_ntk import lazy_bounds as theory

INPUTS = np.random.default_rng(0).standard_normal((7, 5))
SIZES = {"n_samples": 11, "n_outputs": 3}


def test_the_denominator_removes_a_diagonal_scaling():
    d = np.exp(1.3**2 * (INPUTS**2).sum(1) / 2)
    soft, exp = (kernels.infinite_width_kernel(a, INPUTS, scale=1.3) for a in ("softmax", "exp"))
    np.testing.assert_allclose(exp, d[:, None] * soft * d, rtol=1e-12)


@pytest.mark.parametrize(("activation", "known"), [("softmax", math.e), ("exp", math.e**2), ("relu", 0.5)])
def test_kernel_of_a_unit_input_with_itself(activation, known):
    assert kernels.infinite_width_kernel(activation, np.array([[0.6, 0.8]]))[0, 0] == pytest.approx(known, rel=1e-7)


def test_relu_kernel_is_the_probability_that_both_are_on():
    w = np.random.default_rng(1).standard_normal((200_000, 5))
    on = (w @ INPUTS.T > 0).astype(float)
    expected = on.T @ on / len(w) * (INPUTS @ INPUTS.T)
    np.testing.assert_allclose(kernels.infinite_width_kernel("relu", INPUTS), expected, atol=0.03)


def test_cross_kernel_is_a_block_of_the_whole():
    for activation in ("softmax", "exp", "relu"):
        whole = kernels.infinite_width_kernel(activation, INPUTS)
        np.testing.assert_allclose(kernels.infinite_width_kernel(activation, INPUTS[:2], INPUTS[2:]), whole[:2, 2:])


def test_zero_input_has_a_zero_kernel():
    assert kernels.infinite_width_kernel("relu", np.zeros((1, 3))).tolist() == [[0.0]]


def test_theorem_scales_as_stated():
    """Twice the eigenvalue: a quarter of width and steps, twice the step size."""
    assert theory.width_of_theorem(0.2, **SIZES) / theory.width_of_theorem(0.4, **SIZES) == pytest.approx(4)
    steps = {"error": 0.01, **SIZES}
    assert theory.steps_of_theorem(0.2, **steps) / theory.steps_of_theorem(0.4, **steps) == pytest.approx(4)
    eta = {"width": 13, **SIZES}
    ratio = theory.step_size_of_theorem(0.4, **eta) / theory.step_size_of_theorem(0.2, **eta)
    assert ratio == pytest.approx(2)


def test_steps_are_two_over_the_rate_times_the_logarithm():
    """(2 / (m eta lambda)) log(nd / eps) is 20 times the formula: step size and steps belong together."""
    eta = theory.step_size_of_theorem(0.3, width=13, **SIZES)
    expected = 2 / (13 * eta * 0.3) * math.log(33 / 0.01)
    assert theory.steps_of_theorem(0.3, error=0.01, **SIZES) * 20 == pytest.approx(expected)


def test_rows_of_table_1_differ_by_one_logarithm():
    row = {"smallest_eigenvalue": 0.3, "n_samples": 11, "error": 0.1}
    (relu, steps), (soft, same) = (theory.row_of_table_1(a, **row) for a in ("relu", "softmax"))
    assert soft / relu == pytest.approx(math.log(11))
    assert steps == same


def test_movement_bound_halves_with_twice_the_width():
    arguments = {"exponent": 2.0, "residual": 3.0, **SIZES}
    assert theory.movement_bound(0.3, width=8, **arguments) == pytest.approx(
        2 * theory.movement_bound(0.3, width=16, **arguments)
    )


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: kernels.check_activation("gelu"), "activation"),
        (lambda: kernels.infinite_width_kernel("exp", INPUTS, scale=-1.0), "scale"),
        (lambda: kernels.infinite_width_kernel("exp", INPUTS * np.nan), "inputs"),
        (lambda: theory.width_of_theorem(0.0, **SIZES), "smallest_eigenvalue"),
        (lambda: theory.width_of_theorem(0.1, exponent=0.5, **SIZES), "exponent"),
        (lambda: theory.width_of_theorem(0.1, failure=1.0, **SIZES), "failure"),
        (lambda: theory.step_size_of_theorem(0.1, width=0, **SIZES), "width"),
        (lambda: theory.steps_of_theorem(0.1, error=100.0, **SIZES), "error"),
        (lambda: theory.row_of_table_1("exp", 0.1, n_samples=1, error=0.1), "n_samples"),
        (lambda: theory.loss_envelope(np.arange(3.0), smallest_eigenvalue=1.0, step_size=1.0, width=2), "step_size"),
        (lambda: theory.movement_bound(0.1, width=2, exponent=1, residual=-1, **SIZES), "residual"),
    ],
)
def test_arguments_outside_their_range_are_refused_by_name(call, name):
    with pytest.raises(ValueError, match=name):
        call()
