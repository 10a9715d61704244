"""The sample sizes of Theorem 1, Corollary 1 and Proposition 1."""

import numpy as np
import pytest

from attnbook.global_attention.sample_sizes import samples_needed

SIZES = {"n_inputs": 29, "n_relevant": 5, "width": 7}


def test_bound_of_theorem_1_by_hand():
    """s0=2, C1=C2=Cx=1, gamma^2=1/4, p=3, d=5: 4 * 4 * log(4) * 23."""
    got = samples_needed("attention", 0.25, n_inputs=3, n_relevant=2, width=5)
    assert got == pytest.approx(16 * np.log(4) * 23, rel=1e-14)


def test_baseline_is_attention_that_sees_every_input():
    dense = SIZES | {"n_relevant": SIZES["n_inputs"]}
    assert samples_needed("baseline", 0.01, **SIZES) == samples_needed("attention", 0.01, **dense)


def test_simplex_bound_is_theorem_1_without_the_sparsity():
    got = samples_needed("sum_to_one", 0.01, **SIZES)
    assert got == samples_needed("attention", 0.01, **(SIZES | {"n_relevant": 1}))


def test_a_known_mask_saves_its_own_parameters():
    trained, known = (samples_needed(g, 0.01, **SIZES) for g in ("attention", "known_mask"))
    p, d = SIZES["n_inputs"], SIZES["width"]
    assert known / trained == pytest.approx((p * d + d) / (p * d + p + d), rel=1e-14)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"n_relevant": 31}, "n_relevant"),
        ({"width": 0}, "width"),
        ({"error": 0.0}, "error"),
        ({"error": float("nan")}, "error"),
        ({"error": 1e9}, "error"),
        ({"guarantee": "magic"}, "guarantee"),
    ],
)
def test_arguments_out_of_range_are_refused_by_name(change, name):
    arguments = {"guarantee": "attention", "error": 0.01, **SIZES} | change
    with pytest.raises(ValueError, match=name):
        samples_needed(**arguments)
