"""Linear regions, rescalings and few samples: against counting by hand and by other means."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbook.global_attention.regions import count_regions, crossover_width, hinge_network, region_bound
from attnbook.global_attention.rescaling import Minimum, hessian_scaling, rescale

RNG = np.random.default_rng(7)


def largest_region_count(width, n_inputs, biases=True):
    """Zaslavsky's: with biases in general position; without them all planes pass through the origin."""
    if biases:
        return sum(math.comb(width, k) for k in range(n_inputs + 1))
    return 2 * sum(math.comb(width - 1, k) for k in range(n_inputs))


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


@pytest.mark.parametrize(("width", "kept"), [(6, 2), (11, 2), (9, 3)])
def test_the_construction_of_the_proof_has_q_plus_one_pieces_per_axis(width, kept):
    normals, offsets, decoder = hinge_network(width, kept)
    q = width // kept
    assert count_regions(normals, offsets) == (q + 1) ** kept > region_bound(width, kept)
    x = np.arange(-1, q, 1 / 8)[:, None] * np.eye(kept)[0]
    slopes = np.diff(np.maximum(x @ normals.T + offsets, 0) @ decoder) / np.diff(x[:, 0])
    assert sorted(set(slopes.round(6))) == [-1.0, 0.0, 1.0]


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


def test_a_rescaled_softplus_network_is_the_same_only_with_the_sharpness_rescaled():
    mask, hidden, decoder = network(outputs=1)
    x = RNG.standard_normal((13, 7))

    def outputs(net, sharpness):
        return net[2] @ np.logaddexp(0, sharpness * (net[1] * net[0]) @ x.T) / sharpness

    before, new = outputs((mask, hidden, decoder), 5.0), rescale(mask, hidden, decoder, 0.2, 3.0)
    np.testing.assert_allclose(outputs(new, 5.0 / (0.2 * 3.0)), before, rtol=1e-12)
    assert np.abs(outputs(new, 5.0) - before).max() > 1e-2


def test_only_entries_that_are_exactly_zero_lower_the_number_of_regions():
    normals, offsets = RNG.standard_normal((7, 4)), RNG.standard_normal(7)
    full, tiny, zero = (count_regions(normals * [1, 1, m, m], offsets) for m in (1, 1e-6, 0))
    assert tiny == full > zero == largest_region_count(7, 2)


def test_the_bound_lies_below_the_maximum_and_crosses_at_the_width_of_c3():
    for kept in (5, 20, 50, 100):
        assert all(region_bound(n, kept) <= largest_region_count(n, kept) for n in (101, 300, 1000, 5000))
    for kept in (5, 20, 50, 80):
        for share in (0.9, 1.1):
            n = share * crossover_width(100, kept)
            assert (kept * math.log(n / kept) <= 100 * math.log(n / 100)) == (share > 1)


def test_no_other_factor_has_a_smaller_penalty():
    minimum = Minimum.draw(0)

    def penalty(factor):
        return np.square(factor * minimum.hidden).sum() + np.square(minimum.decoder / (0.3 * factor)).sum()

    best = minimum.least_penalty_factor(0.3)
    assert all(penalty(best) < penalty(best * other) for other in (0.9, 0.99, 1.01, 1.1))
    least = 2 * np.linalg.norm(minimum.hidden) * np.linalg.norm(minimum.decoder) / 0.3
    assert penalty(best) == pytest.approx(least) == pytest.approx(minimum.least_penalty(0.3)[0])


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: region_bound(0, 1), "width"),
        (lambda: crossover_width(5, 5), "n_relevant"),
        (lambda: hinge_network(3, 3), "width"),
        (lambda: count_regions(np.full((1, 2), np.nan), np.zeros(1)), "normals"),
        (lambda: rescale(*network(), 0.0, 1.0), "mask_factor"),
        (lambda: hessian_scaling(3, 2, 1.0, -1.0), "hidden_factor"),
    ],
)
def test_bad_arguments_are_refused_by_name(call, name):
    with pytest.raises(ValueError, match=name):
        call()
