"""The experiments of the softmax paper: settings, figures; wrong models turn claims red."""

import dataclasses

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnbook import ledger
from attnbook.core.results import Measurement
from attnbook.softmax_ntk import descent
from attnbook.softmax_ntk.experiments import circle, identities, lazy_training, runs, samples, starts, step_size
from attnbook.softmax_ntk.figures import lazy_training as figures
from attnbook.softmax_ntk.tables import lazy_training as tables
from attnbook.softmax_ntk.tables import requirements
from attnbook.softmax_ntk.two_layer import loss_and_gradient

CPU = torch.device("cpu")
SMALL = dataclasses.replace(
    lazy_training.Settings.book(), widths=(16, 32, 128, 512, 1024, 2048), small_widths=(8,), outputs=(1,),
    short_steps_from=1024, flat_from=512, seeds=(0, 2), chunk=2,
)  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "change"),
    [
        (lazy_training.Settings, {"widths": (16, 31)}),
        (lazy_training.Settings, {"widths": (32, 16)}),
        (lazy_training.Settings, {"lazy_from": 4096}),
        (lazy_training.Settings, {"seeds": ()}),
        (samples.Settings, {"sizes": (4,)}),
        (starts.Settings, {"widths": (4, 4)}),
        (starts.Settings, {"light_widths": (4,)}),
        (step_size.Settings, {"usable": 1.7}),
        (step_size.Settings, {"curve_fractions": (7.0,)}),
        (circle.Settings, {"widths": (8, 4)}),
        (circle.Settings, {"slope_from": 1024}),
        (identities.Settings, {"chunk": 0}),
    ],
)
def test_impossible_settings_are_refused_by_name(settings, change):
    with pytest.raises(ValueError, match=next(iter(change))):
        dataclasses.replace(settings.book(), **change)


def test_seeds_in_chunks_give_the_same_numbers(smoke_results):
    smoke = lazy_training.Settings.smoke()
    whole = lazy_training.run(dataclasses.replace(smoke, chunk=2), device="cpu")
    parts = smoke_results["softmax_ntk.lazy_training"]
    np.testing.assert_allclose(whole.rms_movement, parts.rms_movement, rtol=1e-9)
    np.testing.assert_array_equal(whole.steps, parts.steps)


def test_a_few_seeds_of_a_result_are_the_result_of_a_few_seeds(smoke_results):
    first = smoke_results["softmax_ntk.lazy_training"].some_seeds(slice(1))
    alone = lazy_training.run(dataclasses.replace(lazy_training.Settings.smoke(), seeds=(0,)), device="cpu")
    assert {k: m.values for k, m in first.measurements().items()} == pytest.approx(
        {k: pytest.approx(dict(m.values)) for k, m in alone.measurements().items()}
    )


def test_the_bound_on_the_movement_is_its_exponential_factor_times_the_rest(smoke_results):
    result = smoke_results["softmax_ntk.lazy_training"]
    s = result.settings
    rest = 8 / result.smallest_eigenvalue[..., 0] * s.n_samples / np.array(s.widths)  # labels of norm one
    np.testing.assert_allclose(result.exponential_of_bound() * rest, result.movement_bound[..., 0])


def test_heaviest_pair_is_all_of_a_network_of_two_neurons():
    run = runs.train(runs.Problem("softmax", 2, 3, 5), (0,), device=CPU, max_steps=1)
    np.testing.assert_allclose(lazy_training._heaviest_pair(run), 1)


def test_smallest_working_width_is_the_one_from_which_on_all_seeds_arrive(smoke_results):
    result = smoke_results["softmax_ntk.lazy_training"]
    small, reached = np.ones((2, 1, 3)), np.ones((2, 1, 3, 3))
    reached[1, 0, 1, 1] = 0  # exp, width 32
    reached[0, 0, 2, 2] = 0  # ReLU, the widest
    made = dataclasses.replace(result, small_reached=small, reached=reached)
    assert made.smallest_working_width().tolist() == [2, 64, np.inf]


def test_networks_that_do_not_start_at_zero_fit_their_output_plus_the_labels():
    for start in starts.STARTS:
        run = runs.train(runs.Problem("softmax", 16, 5, 7, start=start), (0, 1), device=CPU, max_steps=1)
        np.testing.assert_allclose(run.descent.loss[0], 2.5, rtol=1e-9)  # five labels of norm one, halved


def test_slope_of_a_power_is_its_exponent():
    x = np.array([2.0, 3.0, 5.0])
    assert runs.slope(x, 7 * x**-1.5) == pytest.approx(-1.5)
    named = runs.slopes(x, cube=np.stack([x**-3, x**-3]))
    assert named.values["slope_of_medians_cube"] == pytest.approx(-3)
    value, (low, high) = runs.slope_over_seeds(x, np.stack([x**-1, x**-2, x**-3]))
    assert (low, high) == (pytest.approx(-3), pytest.approx(-1))
    assert value == pytest.approx(-2)


def test_figures_and_tables_draw_from_a_smoke_result(smoke_results):
    lazy, more, steps, three, round_ = (
        smoke_results[f"softmax_ntk.{name}"] for name in ("lazy_training", "samples", "step_size", "starts", "circle")
    )
    drawn = [
        *(draw(lazy) for draw in (figures.lazier, figures.envelope, figures.exponents, figures.steps_against_width)),
        figures.steps_against_samples(more),
        figures.loss_by_step_size(steps),
        figures.drift_by_start(three),
        *(figures.circle_frame(round_, 8, name) for name in runs.ACTIVATIONS),
    ]
    for figure in drawn:
        assert figure.axes
        plt.close(figure)
    made = [make(lazy) for make in (requirements.table_1, tables.one_heavy_pair, tables.arrived, tables.promised)]
    made += [tables.steps_by_width(lazy), tables.by_seeds(lazy, 1), tables.growth(more), tables.step_sizes(steps)]
    for table in (*made, tables.costs({"lazy": (lazy, 7)})):
        assert "<table>" in table._repr_html_()
    assert "pairs" in tables.slopes_by_start(three)._repr_html_()
    assert "8 neurons" in tables.circle_text(round_, 8, "relu")


@pytest.mark.parametrize("looks", [figures.LOOKS, figures.STARTS])
def test_looks_differ_without_colour(looks):
    for part in ("marker", "line", "label"):
        assert len({getattr(look, part) for look in looks.values()}) == len(looks)


def outcomes(result):
    return {v.claim.id: v.outcome for v in ledger.check(result).verdicts}


@pytest.fixture(scope="module")
def honest():
    return outcomes(lazy_training.run(SMALL, device="cpu"))


WRONG_MODELS = {
    "gradient with the wrong sign": (lambda n, g: -g, ("SN-T4.2", "SN-C4.3", "SN-T4.2-monotone", "SN-5.3L")),
    "neurons that never move": (lambda n, g: g * 0, ("SN-T4.2", "SN-C4.3", "SN-5.3L")),
    "steps that grow with the width": (lambda n, g: g * n.width / 32, ("SN-T4.2-monotone", "SN-5.3G")),
}


@pytest.mark.slow
@pytest.mark.parametrize("mutation", WRONG_MODELS)
def test_a_wrong_model_turns_claims_red(mutation, honest, monkeypatch):
    """Guards that the rules can fail: each mutation breaks the claims that depend on what it breaks."""
    change, red = WRONG_MODELS[mutation]

    def wrong(networks, inputs, labels):
        losses, gradient = loss_and_gradient(networks, inputs, labels)
        return losses, change(networks, gradient)

    monkeypatch.setattr(descent, "loss_and_gradient", wrong)
    mutated = outcomes(lazy_training.run(dataclasses.replace(SMALL, max_steps=60, curve_steps=20), device="cpu"))
    for claim in red:
        assert honest[claim] == "reproduced", claim
        assert mutated[claim] == "not reproduced", claim


def test_a_gradient_without_centring_turns_the_identities_red(monkeypatch):
    """What exp would do, in a softmax network."""

    def wrong(networks, inputs, labels):
        neurons = networks.width * torch.softmax(inputs @ networks.first_layer, dim=2)
        residual = networks.signs @ neurons.mT - labels
        return residual.square().sum((1, 2)) / 2, inputs.mT @ (neurons * (residual.mT @ networks.signs))

    monkeypatch.setattr(identities, "loss_and_gradient", wrong)
    monkeypatch.setattr(descent, "loss_and_gradient", wrong)
    found = outcomes(identities.run(identities.Settings.smoke(), device="cpu"))
    assert found["SN-GRAD"] == found["SN-INV-mean"] == "not reproduced"
    assert found["SN-NTK"] == "reproduced"


def test_a_ratio_is_that_of_medians_and_its_range_that_of_seeds():
    """By hand: medians 6 and 2; seed by seed 1, 6 and 3."""
    measured = runs.ratio_over_seeds("gain", np.array([2.0, 6.0, 15.0]), np.array([2.0, 1.0, 5.0]))
    assert measured == Measurement({"gain": 3.0}, {"gain": (1.0, 6.0)}, 3)


@given(st.lists(st.tuples(st.floats(0.5, 1e6), st.floats(0.5, 1e6)), min_size=1, max_size=7), st.floats(0.5, 8.0))
def test_a_ratio_does_not_depend_on_the_unit(pairs, unit):
    above, below = np.array(pairs).T
    plain, scaled = runs.ratio_over_seeds("r", above, below), runs.ratio_over_seeds("r", above * unit, below * unit)
    assert scaled.values["r"] == pytest.approx(plain.values["r"], rel=1e-12)
