"""Update rules: options for each member, refused by name when they do not fit."""

import numpy as np
import pytest

from attnbook.core.update_rules import SGD, Adam, cosine, per_member


@pytest.mark.parametrize("rule", [SGD, Adam])
def test_step_sizes_reach_their_members_in_order(rule):
    assert rule([0.3, 0.1, 0.2]).options(3) == [{"lr": 0.3}, {"lr": 0.1}, {"lr": 0.2}]
    assert rule(0.3).options(2) == [{"lr": 0.3}] * 2


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), [1.0, 2.0], [1.0, 0.0, 1.0], [[1.0] * 3]])
def test_options_that_do_not_fit_are_refused_by_name(value):
    with pytest.raises(ValueError, match=r"^momentum: expected"):
        per_member("momentum", value, 3)


def test_an_option_for_each_member_is_kept():
    np.testing.assert_array_equal(per_member("p", [1.5, 2.0, 3.0], 3), [1.5, 2.0, 3.0])


@pytest.mark.parametrize("momentum", [-0.5, 1.0, float("nan")])
def test_momentum_out_of_range_is_refused_by_name(momentum):
    with pytest.raises(ValueError, match=r"^momentum"):
        SGD(0.1, momentum=momentum)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"betas": (1.5, -2)}, "betas"),
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"betas": (float("nan"), 0.9)}, "betas"),
        ({"betas": (0.9,)}, "betas"),
        ({"eps": 0.0}, "eps"),
        ({"eps": -1e-8}, "eps"),
        ({"eps": float("nan")}, "eps"),
        ({"eps": float("inf")}, "eps"),
    ],
)
def test_options_of_adam_out_of_range_are_refused_by_name(options, name):
    with pytest.raises(ValueError, match=rf"^{name}: expected"):
        Adam(0.1, **options)


@pytest.mark.parametrize("steps", [0, -3, 2.5])
def test_a_schedule_needs_a_step(steps):
    with pytest.raises(ValueError, match=r"^steps: expected"):
        cosine(steps)


def test_cosine_falls_from_one_to_zero_by_way_of_a_half():
    factor = cosine(34)
    assert [factor(0), factor(17), factor(34)] == pytest.approx([1.0, 0.5, 0.0], abs=1e-15)
    assert all(factor(step) > factor(step + 1) > 0 for step in range(33))
