"""Kernels at infinite width."""

import math

import numpy as np
import pytest

from attnbook.softmax_ntk import kernels

INPUTS = np.random.default_rng(0).standard_normal((7, 5))


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


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: kernels.check_activation("gelu"), "activation"),
        (lambda: kernels.infinite_width_kernel("exp", INPUTS, scale=-1.0), "scale"),
        (lambda: kernels.infinite_width_kernel("exp", INPUTS * np.nan), "inputs"),
    ],
)
def test_arguments_outside_their_range_are_refused_by_name(call, name):
    with pytest.raises(ValueError, match=name):
        call()
