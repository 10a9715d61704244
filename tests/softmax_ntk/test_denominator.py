"""Networks with and without the denominator: the identity of their kernels; wrong comparisons turn claims red."""

import dataclasses

import numpy as np
import pytest
import torch

from attnbook import ledger
from attnbook.softmax_ntk import descent, two_layer
from attnbook.softmax_ntk.experiments import denominator
from attnbook.softmax_ntk.ntk import ntk_gram


def verdicts(result):
    return {v.claim.id: v.outcome for v in ledger.check(result).verdicts}


FEW = dataclasses.replace(denominator.Settings.book(), n_samples=7, width=4096, exact_widths=(22, 34), seeds=(0, 1))


@pytest.fixture(scope="module")
def compared():
    return verdicts(denominator.run(FEW, device="cpu"))


def test_the_identity_of_finite_networks_is_known_by_hand():
    """Two pairs, one input: the mean exponential is that of e and 1, and each kernel one mean square."""
    drawn = two_layer.Weights(np.array([[1.0, 1.0, 0.0, 0.0]]), np.array([[1.0, -1.0, 1.0, -1.0]]))
    x = torch.ones(1, 1, 1, dtype=torch.float64)
    soft, exp = (float(ntk_gram(two_layer.Networks.stack(name, [drawn]), x)) for name in ("softmax", "exp"))
    mean = (np.e + 1) / 2
    assert exp == pytest.approx((np.e**2 + 1) / 2)
    assert mean**2 * soft == pytest.approx(exp)
    assert denominator._identity_error(drawn, np.ones((1, 1)), 1.0) < 1e-14


def without_pairs(*args, **kwargs):
    return two_layer.draw_weights(*args, **{**kwargs, "start": "independent"})


def centred(networks, *args, **kwargs):
    """Training whose updates sum to zero, as those of softmax do."""
    found = descent.gradient_descent(networks, *args, **kwargs)
    change = found.networks.first_layer - networks.first_layer
    moved = networks.first_layer + change - change.mean(2, keepdim=True)
    return dataclasses.replace(found, networks=dataclasses.replace(networks, first_layer=moved))


@pytest.mark.parametrize(
    ("name", "wrong", "red"),
    [
        ("denominator_scaling", lambda x: np.exp((x**2).sum(1)), {"SN-KEXP"}),
        ("sphere_factor", lambda x: 1.0, {"SN-KEXP-sphere"}),
        ("draw_weights", without_pairs, {"SN-KEXP-finite", "SN-INV-origin-others"}),
        (
            "draw_weights", lambda *a, **k: two_layer.draw_weights(*a, **{**k, "start": "paired"}),
            {"SN-KEXP-unpaired"},
        ),
        (
            "_scaled",
            lambda a, drawn, scale: two_layer.Networks.stack("exp" if a == "softmax" else a, [drawn]),
            {"SN-KEXP-finite", "SN-COND"},
        ),
        ("gradient_descent", centred, {"SN-INV-others"}),
    ],
)  # fmt: skip
def test_a_wrong_comparison_turns_its_claims_red(name, wrong, red, compared, monkeypatch):
    monkeypatch.setattr(denominator, name, wrong)
    found = verdicts(denominator.run(FEW, device="cpu"))
    assert all(compared[claim] == "reproduced" for claim in red)
    assert {claim for claim in red if found[claim] == "not reproduced"} == red


def test_condition_numbers_of_wide_networks_are_those_of_the_limit():
    wide = denominator.run(dataclasses.replace(FEW, width=65536, scales=(0.3, 1.0, 2.0), seeds=(0,)), device="cpu")
    np.testing.assert_allclose(wide.finite_spectrum[:, :, 0], wide.spectrum[:, :, 0], rtol=0.1, atol=1e-3)


def test_comparison_refuses_settings_that_its_claims_are_not_about():
    with pytest.raises(ValueError, match="lowest_norms, scales"):
        dataclasses.replace(FEW, scales=(1.0,))
