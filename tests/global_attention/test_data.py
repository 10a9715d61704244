"""The teacher that makes the data."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbook.global_attention.masks import Setup, _relu_covariance

SIZES = {"n_inputs": 11, "outputs": 2, "teacher_width": 5, "width": 3, "noise": 0.0, "n_test": 1}


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@given(p=st.integers(1, 13), data=st.data())
@settings(max_examples=30, deadline=None)
def test_mask_has_exactly_the_relevant_inputs(p, data):
    k = data.draw(st.integers(1, p))
    mask = Setup(**SIZES | {"n_inputs": p}).teacher(0, k).mask
    assert sorted(mask) == [0.0] * (p - k) + [1.0] * k


def test_irrelevant_inputs_do_not_change_the_labels():
    teacher = Setup(**SIZES).teacher(0, 3)
    x = rng(1).standard_normal((7, 11))
    changed = x + 100 * (1 - teacher.mask)
    np.testing.assert_array_equal(teacher(x), teacher(changed))


def test_labels_have_unit_variance_on_average_over_outputs():
    teacher = Setup(**SIZES | {"n_inputs": 13, "outputs": 11}).teacher(0, 5)
    labels = teacher(rng(1).standard_normal((200_000, 13)))
    assert labels.var(axis=0).mean() == pytest.approx(1.0, rel=0.01)


def test_relu_covariance_is_that_of_samples():
    factor = rng().standard_normal((3, 3))
    samples = np.maximum(rng(1).standard_normal((400_000, 3)) @ factor.T, 0)
    np.testing.assert_allclose(_relu_covariance(factor @ factor.T), np.cov(samples.T), atol=0.03)


def test_relu_covariance_of_one_standard_normal_is_known():
    """E max(u,0)^2 = 1/2 and E max(u,0) = 1/sqrt(2 pi)."""
    np.testing.assert_allclose(_relu_covariance(np.eye(1)), [[0.5 - 1 / (2 * np.pi)]], rtol=1e-14)


@pytest.mark.parametrize("n_relevant", [0, 12])
def test_impossible_sparsities_are_refused_by_name(n_relevant):
    with pytest.raises(ValueError, match="n_relevant"):
        Setup(**SIZES).teacher(0, n_relevant)


def test_setup_gives_the_same_teacher_each_time_and_another_for_another_seed():
    setup = Setup(**SIZES)
    np.testing.assert_array_equal(setup.teacher(0, 3).hidden, setup.teacher(0, 3).hidden)
    assert not np.array_equal(setup.teacher(0, 3).hidden, setup.teacher(1, 3).hidden)


@pytest.mark.parametrize(
    "change", [{"n_inputs": 0}, {"outputs": -1}, {"width": 0}, {"n_test": 0}, {"noise": -1.0}, {"noise": float("nan")}]
)
def test_impossible_setups_are_refused_by_name(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        Setup(**(SIZES | change))
