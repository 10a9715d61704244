"""Linear regions, rescalings and few samples: against counting by hand and by other means."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbook.global_attention.regions import (
    count_regions,
    count_regions_in_box,
    crossover_width,
    hinge_network,
    largest_region_count,
    log10_region_counts,
    pieces_on_segments,
    region_bound,
)
from attnbook.global_attention.rescaling import (
    allowed_triangle,
    hessian_scaling,
    least_penalty_factor,
    log_volume_factor,
    rescale,
    rescaled_sharpness,
)
from attnbook.global_attention.small_samples import relative_residual, softplus_features

RNG = np.random.default_rng(7)


def patterns(normals, offsets, points):
    """Distinct activation patterns among random points: a lower bound on the number of regions."""
    return len(np.unique(points @ normals.T + offsets > 0, axis=0))


def test_three_lines_make_seven_regions_parallel_ones_four_and_central_ones_six():
    square = np.array([[1.0, 0], [0, 1], [1, 1]])
    assert count_regions(square, np.array([0.0, 0, -1])) == 7
    assert count_regions(square, np.zeros(3)) == 6
    assert count_regions(np.array([[1.0, 0], [2, 0], [-1, 0]]), np.array([0.0, 1, 2])) == 4


def test_repeated_and_empty_hyperplanes_cut_once_or_not_at_all():
    normals = np.array([[1.0, 2], [-3, -6], [0, 0]])
    assert count_regions(normals, np.array([1.0, -3, 5])) == 2


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 7), st.integers(1, 3), st.integers(0, 1000))
def test_random_hyperplanes_reach_the_maximum(units, inputs, seed):
    rng = np.random.default_rng(seed)
    normals, offsets = rng.standard_normal((units, inputs)), rng.standard_normal(units)
    assert count_regions(normals, offsets) == largest_region_count(units, inputs)
    assert count_regions(normals, 0 * offsets) == largest_region_count(units, inputs, biases=False)


def test_no_region_that_random_points_find_is_missed():
    normals, offsets = RNG.standard_normal((5, 2)), RNG.standard_normal(5)
    points = RNG.uniform(-3, 3, (200_000, 2))
    assert patterns(normals, offsets, points) == count_regions_in_box(normals, offsets, 3.0)


def test_a_box_that_holds_everything_counts_everything_and_a_tiny_one_nothing():
    normals, offsets = RNG.standard_normal((11, 2)), RNG.standard_normal(11)
    assert count_regions_in_box(normals, offsets, 1e9) == count_regions(normals, offsets)
    assert count_regions_in_box(normals, offsets, 1e-9) == 1
    axes = np.array([[1.0, 0], [0, 1]])
    assert count_regions_in_box(axes, np.array([0.0, 0]), 1.0) == 4
    assert count_regions_in_box(axes, np.array([-1.0, 0]), 1.0) == 2  # a line along the edge cuts nothing


@pytest.mark.parametrize(("width", "kept"), [(6, 2), (11, 2), (9, 3)])
def test_the_construction_of_the_proof_has_q_plus_one_pieces_per_axis(width, kept):
    normals, offsets, decoder = hinge_network(width, kept)
    q = width // kept
    assert count_regions(normals, offsets) == (q + 1) ** kept > region_bound(width, kept)
    x = np.arange(-1, q, 1 / 8)[:, None] * np.eye(kept)[0]
    slopes = np.diff(np.maximum(x @ normals.T + offsets, 0) @ decoder) / np.diff(x[:, 0])
    assert sorted(set(slopes.round(6))) == [-1.0, 0.0, 1.0]


def test_pieces_on_a_segment_are_those_of_the_function_on_a_fine_grid():
    normals, offsets, decoder = RNG.standard_normal((13, 3)), RNG.standard_normal(13), RNG.standard_normal(13)
    start, end = RNG.standard_normal((2, 1, 3))
    t = np.linspace(0, 1, 200_001)[:, None]
    values = np.maximum((start + t * (end - start)) @ normals.T + offsets, 0) @ decoder
    bends = np.abs(np.diff(values, 2)) > 1e-9
    groups = 1 + (np.diff(np.flatnonzero(bends)) > 1).sum() if bends.any() else 0
    assert pieces_on_segments(normals, offsets, start, end).tolist() == [1 + groups]


def test_many_maxima_at_once_equal_those_one_by_one():
    for biases in (True, False):
        table = log10_region_counts([3, 17, 211], 5, biases=biases)
        for i, width in enumerate((3, 17, 211)):
            for kept in range(1, 6):
                exact = math.log10(largest_region_count(width, kept, biases=biases))
                assert table[i, kept - 1] == pytest.approx(exact, rel=1e-10)


def test_the_bound_is_below_the_maximum_with_biases_and_above_it_without_them_for_two_inputs():
    widths = range(3, 200)
    assert all(region_bound(n, 2) <= largest_region_count(n, 2) for n in widths)
    above = [n for n in widths if region_bound(n, 2) > largest_region_count(n, 2, biases=False)]
    assert above == list(range(10, 200))


def test_at_the_crossover_both_bounds_are_equal():
    n = crossover_width(101, 7)
    assert 7 * math.log(n / 7) == pytest.approx(101 * math.log(n / 101), rel=1e-12)


def network(p=7, d=5, outputs=3):
    return RNG.random(p) + 0.1, RNG.standard_normal((d, p)), RNG.standard_normal((outputs, d))


def outputs_of(net, x):
    mask, hidden, decoder = net
    return decoder @ np.maximum((hidden * mask) @ x.T, 0)


def test_a_rescaled_relu_network_is_the_same_function():
    net, x = network(), RNG.standard_normal((11, 7))
    np.testing.assert_allclose(outputs_of(rescale(*net, 0.03, 50.0), x), outputs_of(net, x), rtol=1e-12)


def test_volume_factor_is_the_determinant_of_the_inverse_hessian_scaling():
    """Weights move by the inverse of what the Hessian is scaled with."""
    scaling = hessian_scaling(7, 5, 0.3, 11.0, outputs=2)
    assert log_volume_factor(7, 5, 0.3, 11.0, outputs=2) == pytest.approx(-np.log(scaling).sum(), rel=1e-12)


def test_rescaled_softplus_makes_up_for_the_rescaling():
    mask, hidden, decoder = network(outputs=1)
    x = RNG.standard_normal((13, 7))
    before = softplus_features(x, mask, hidden, 5.0) @ decoder[0]
    new = rescale(mask, hidden, decoder, 0.2, 3.0)
    after = softplus_features(x, new[0], new[1], rescaled_sharpness(5.0, 0.2, 3.0)) @ new[2][0]
    np.testing.assert_allclose(after, before, rtol=1e-12)


def test_corners_of_the_allowed_part_use_up_two_bounds_each():
    net = network(outputs=1)
    corners = allowed_triangle(*net, c_hidden=50.0, c_decoder=40.0)
    for factors, tight in zip(np.exp(corners), ((0, 1), (1, 2), (0, 2)), strict=True):
        mask, hidden, decoder = rescale(*net, *factors)
        slack = np.array([mask.max(), np.linalg.norm(hidden) / 50, np.linalg.norm(decoder) / 40])
        np.testing.assert_allclose(slack[list(tight)], 1.0, rtol=1e-12)
        assert (slack <= 1 + 1e-12).all()


def test_no_other_factor_has_a_smaller_penalty():
    _, hidden, decoder = network()

    def penalty(factor):
        return np.square(factor * hidden).sum() + np.square(decoder / (0.3 * factor)).sum()

    best = least_penalty_factor(hidden, decoder, 0.3)
    assert all(penalty(best) < penalty(best * other) for other in (0.9, 0.99, 1.01, 1.1))
    assert penalty(best) == pytest.approx(2 * np.linalg.norm(hidden) * np.linalg.norm(decoder) / 0.3)


def test_residual_is_the_part_of_the_labels_outside_the_features():
    assert relative_residual(np.eye(5)[:, :2], np.array([1.0, 1, 1, 1, 1])) == pytest.approx(0.6)
    assert relative_residual(RNG.standard_normal((7, 7)), RNG.standard_normal(7)) < 1e-20


def test_softplus_features_stay_finite_far_out():
    features = softplus_features(np.array([[1e5], [-1e5]]), np.ones(1), np.ones((1, 1)), 10.0)
    np.testing.assert_allclose(features, [[1e5], [0.0]], atol=1e-12)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: region_bound(0, 1), "width"),
        (lambda: largest_region_count(3, 0), "n_inputs"),
        (lambda: log10_region_counts([3], 0), "most_inputs"),
        (lambda: log10_region_counts([0], 3), "widths"),
        (lambda: crossover_width(5, 5), "n_relevant"),
        (lambda: hinge_network(3, 3), "width"),
        (lambda: count_regions(np.full((1, 2), np.nan), np.zeros(1)), "normals"),
        (lambda: count_regions_in_box(np.eye(2), np.zeros(2), 0.0), "half_width"),
        (lambda: rescale(*network(), 0.0, 1.0), "mask_factor"),
        (lambda: hessian_scaling(3, 2, 1.0, -1.0), "hidden_factor"),
        (lambda: log_volume_factor(3, 2, 1.0, math.inf), "hidden_factor"),
        (lambda: rescaled_sharpness(1.0, -1.0, 1.0), "mask_factor"),
        (lambda: allowed_triangle(-network()[0], *network()[1:], c_hidden=9.0, c_decoder=9.0), "mask"),
        (lambda: allowed_triangle(*network(), c_hidden=0.0, c_decoder=9.0), "c_hidden"),
        (lambda: allowed_triangle(*network(), c_hidden=1e-3, c_decoder=1e-3), "c_hidden"),
        (lambda: least_penalty_factor(np.zeros((2, 3)), np.ones((1, 2)), 1.0), "hidden"),
        (lambda: relative_residual(np.eye(2), np.zeros(2)), "labels"),
        (lambda: softplus_features(np.ones((1, 1)), np.ones(1), np.ones((1, 1)), 0.0), "sharpness"),
    ],
)
def test_bad_arguments_are_refused_by_name(call, name):
    with pytest.raises(ValueError, match=name):
        call()
