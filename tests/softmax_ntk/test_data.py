"""Inputs and labels on unit spheres."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbook.softmax_ntk.data import draw_sample, sphere


@given(count=st.integers(1, 7), dimension=st.integers(1, 11))
@settings(max_examples=20, deadline=None)
def test_points_have_unit_norm(count, dimension):
    points = sphere(count, dimension, rng=np.random.default_rng(0))
    assert points.shape == (count, dimension)
    np.testing.assert_allclose(np.linalg.norm(points, axis=1), 1, rtol=1e-14)


def test_labels_of_one_output_are_signs():
    assert set(draw_sample(13, 5, 1, seed=0).labels.ravel()) == {-1.0, 1.0}


def test_samples_belong_to_their_seed():
    np.testing.assert_array_equal(draw_sample(3, 5, 2, seed=1).inputs, draw_sample(3, 5, 2, seed=1).inputs)
    assert not np.array_equal(draw_sample(3, 5, 2, seed=1).inputs, draw_sample(3, 5, 2, seed=2).inputs)


@pytest.mark.parametrize(("sizes", "name"), [((0, 5), "count"), ((3, 0), "dimension")])
def test_impossible_sizes_are_refused_by_name(sizes, name):
    with pytest.raises(ValueError, match=name):
        sphere(*sizes, rng=np.random.default_rng(0))
