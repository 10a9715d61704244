"""Kernels at infinite width against what is known of them on the sphere."""

import numpy as np
import pytest

from attnbook.softmax_ntk.kernels import infinite_width_kernel


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def on_sphere(rng, count, dimension):
    x = rng.standard_normal((count, dimension))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def test_relu_kernel_is_linear_plus_even(rng):
    x = on_sphere(rng, 7, 5)
    odd = infinite_width_kernel("relu", x) - infinite_width_kernel("relu", x, -x)
    np.testing.assert_allclose(odd, x @ x.T / 2, atol=1e-12)


def test_a_smaller_scale_makes_the_staircase_steeper(rng):
    spectra = [np.linalg.eigvalsh(infinite_width_kernel("softmax", on_sphere(rng, 31, 4), scale=s)) for s in (0.5, 4.0)]
    assert spectra[0][-1] / spectra[0][0] > 100 * spectra[1][-1] / spectra[1][0]
