"""Known mistakes come first, then a constant factor; else the numbers are shown."""

import numpy as np
import pytest

from attnbook.core.feedback import likely_mistake

RIGHT = np.array([3.0, 0.0, -7.0])
DIFFERENT = "the numbers are different"


@pytest.mark.parametrize("factor", [2.0, 1 / 7, -1.0, 0.37, -1e9, 1e-9])
def test_constant_factor_is_named(factor):
    assert likely_mistake(factor * RIGHT, RIGHT) == (
        f"right up to a constant factor: these are {factor:.4g} times the right numbers"
    )


def test_known_mistake_comes_before_the_factor():
    assert likely_mistake(-RIGHT, RIGHT, {"another": RIGHT + 1, "the sign": -RIGHT, "later": -RIGHT}) == "the sign"


@pytest.mark.parametrize(
    "got",
    [
        2 * RIGHT + [0, 1e-3, 0],
        0 * RIGHT,
        RIGHT + 1e-9,  # near enough to be 1 times the right numbers, which would help nobody
        2 * RIGHT[:2],
        2 * RIGHT[:, None],
        np.array([6.0, np.nan, -14.0]),
        np.array([np.inf, 0.0, -np.inf]),
        np.array([True, False, True]),
    ],
    ids=["one entry is off", "zero", "one", "other length", "other shape", "nan", "infinite", "truth values"],
)
def test_what_is_no_constant_factor(got):
    assert likely_mistake(got, RIGHT).startswith(DIFFERENT)


@pytest.mark.parametrize("factor", [2, 7, -1, 1 / 7, -1 / 2])
def test_single_number_off_by_a_whole_factor(factor):
    assert f"{factor:.4g} times the right" in likely_mistake(np.array(0.3 * factor), 0.3)


@pytest.mark.parametrize("got", [0.3 * 2.5, 0.3 * 7.001, 0.3 * 123.4, 0.3 / 2.01])
def test_single_number_is_not_any_multiple(got):
    assert likely_mistake(np.array(got), 0.3).startswith(DIFFERENT)


def test_tolerance_reaches_mistakes_and_factor():
    assert likely_mistake(np.array(2.004), 1.0, {"known": 2.0}).startswith(DIFFERENT)
    assert likely_mistake(np.array(2.004), 1.0, {"known": 2.0}, rtol=0.01) == "known"
    assert "2.004 times" in likely_mistake(np.array(2.004), 1.0, rtol=0.01)


def test_tiny_numbers_are_told_apart():
    assert likely_mistake(np.array([1e-10, 3e-10]), [1e-10, 1e-10], {"wrong": [1e-10, 2e-10]}).startswith(DIFFERENT)
