"""A test that looks at many things names each that is wrong."""

import pytest
from each import each


def even(number):
    assert number % 2 == 0, "odd"


def test_all_that_is_wrong_is_named_and_what_is_right_is_not():
    with pytest.raises(
        AssertionError, match=r"^2 of 4:\nno 3: AssertionError: odd\b(.*\n)+no 5: AssertionError: odd\b"
    ):
        each([2, 3, 4, 5], even, "no {}".format)
    each([2, 4], even)


def test_an_error_in_a_check_is_named_like_a_failure():
    with pytest.raises(AssertionError, match=r"^1 of 2:\n0: ZeroDivisionError: "):
        each([1, 0], lambda number: 1 / number)


def test_what_should_raise_and_does_not_is_named():
    def check(number):
        with pytest.raises(ZeroDivisionError):
            1 / number

    with pytest.raises(AssertionError, match=r"^1 of 2:\n7: Failed: DID NOT RAISE"):
        each([0, 7], check)


def test_nothing_to_look_at_fails():
    with pytest.raises(AssertionError, match="nothing to look at"):
        each([], even)


def test_what_stays_together_is_known_to_who_shares_it_out(request):
    """pytest-xdist goes by the name of a test: without its group, each would go to any process."""
    if not request.config.getoption("loadgroup", default=False):
        pytest.skip("all tests run in one process")
    assert request.node.nodeid.endswith("@tests/test_each.py")
