"""Random numbers: the same everywhere, other for every seed and purpose."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from attnbook.core.rng import stream, to_tensor

SEEDS = st.integers(0, 2**63)
NAMES = st.lists(st.text(max_size=7) | st.integers(0, 10**6), max_size=3)


def first(seed, names):
    return stream(seed, *names).random(3).tolist()


@pytest.mark.parametrize(
    ("arguments", "uniform", "normal"),
    [
        ((0,), (0.6369616873214543, 0.2697867137638703), (0.1257302210933933, -0.1321048632913019)),
        ((0, "inputs"), (0.8528885155994668, 0.7564551188786739), (0.9144221318184707, -0.05263590264252375)),
        ((7, "batches", 10_000), (0.5420134744132253, 0.3510971122657699), (-0.1712211521899002, -2.094389233991916)),
    ],
)
def test_first_draws_never_change(arguments, uniform, normal):
    """Every stored result rests on these numbers."""
    assert tuple(stream(*arguments).random(2)) == uniform
    np.testing.assert_allclose(stream(*arguments).standard_normal(2), normal, rtol=1e-15)


@given(SEEDS, NAMES)
def test_same_seed_and_purpose_give_the_same_numbers(seed, names):
    assert first(seed, names) == first(seed, names)


@given(SEEDS, SEEDS, NAMES, NAMES)
def test_another_seed_or_purpose_gives_other_numbers(seed, other, names, others):
    same = seed == other and list(map(str, names)) == list(map(str, others))
    assert (first(seed, names) == first(other, others)) == same


def test_where_one_name_ends_matters():
    assert first(0, ["ab", "c"]) != first(0, ["a", "bc"]) != first(0, ["abc"])


def test_numpy_seeds_count_as_whole_numbers():
    assert first(np.int64(5), ["x"]) == first(5, ["x"])


@pytest.mark.parametrize("seed", [-1, 1.0, True, "0", None, np.nan])
def test_bad_seeds_are_refused_by_name(seed):
    with pytest.raises(ValueError, match="seed"):
        stream(seed, "inputs")


@given(hnp.arrays(np.float64, hnp.array_shapes(max_side=5), elements=st.floats(-1e30, 1e30)))
def test_tensors_hold_the_draws_cast_once_and_share_no_memory(values):
    exact, cast = to_tensor(values, dtype=torch.float64), to_tensor(values)
    assert cast.dtype == torch.float32
    np.testing.assert_array_equal(cast, values.astype(np.float32))
    before = values.copy()
    values += 1.0
    np.testing.assert_array_equal(exact, before)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
def test_what_is_not_a_finite_number_of_the_dtype_is_refused(bad):
    with pytest.raises(ValueError, match="values: 1 of 3"):
        to_tensor([1.0, bad, 2.0])
