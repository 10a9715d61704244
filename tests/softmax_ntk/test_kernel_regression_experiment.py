"""The experiment on the gap between networks and kernel machines: settings, figures; wrong models turn claims red."""

import dataclasses
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from attnbook import ledger
from attnbook.softmax_ntk.data import draw_sample
from attnbook.softmax_ntk.experiments import coupling, kernel_regression
from attnbook.softmax_ntk.experiments.runs import Problem
from attnbook.softmax_ntk.figures import kernel_regression as figures
from attnbook.softmax_ntk.linearised import change_of_weights
from attnbook.softmax_ntk.tables import kernel_regression as tables

CPU = torch.device("cpu")
SMALL = dataclasses.replace(
    kernel_regression.Settings.book(), n_samples=7, n_inputs=11, n_points=5, steps=40, record=(0, 5, 40),
    widths=(64, 128, 256), light_widths=(16, 32), curve_width=256, shown_widths=(64,), times=(40,), n_angles=5,
    linear_width=16, linear_steps=10, seeds=(0, 1, 2), chunk=3,
)  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"widths": (32, 16)},
        {"light_widths": (16,)},
        {"curve_width": 100},
        {"shown_widths": (100,)},
        {"shown_widths": ()},
        {"record": (0, 400)},
        {"times": (3, 1)},
        {"seeds": ()},
    ],
)
def test_impossible_settings_are_refused_by_name(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        dataclasses.replace(kernel_regression.Settings.book(), **change)


def test_seeds_in_chunks_give_the_same_numbers(smoke_results):
    smoke = kernel_regression.Settings.smoke()
    whole = kernel_regression.run(dataclasses.replace(smoke, chunk=2), device="cpu")
    parts = smoke_results["softmax_ntk.kernel_regression"]
    np.testing.assert_allclose(whole.gap, parts.gap, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(whole.network, parts.network, rtol=1e-9)


def couple(problem, **changes):
    chosen = {
        "device": CPU, "steps": 20, "n_points": 3, "record": (0, 20), "watched": np.eye(2, problem.n_inputs),
        "times": (0, 20),
    }  # fmt: skip
    return coupling.couple(problem, (0, 1), **(chosen | changes))


def test_network_and_machine_start_together_and_learn_about_the_same():
    coupled = couple(Problem("softmax", 64, 5, 7, 2, start="independent"))
    assert coupled.gap[0].max() < 1e-12
    assert (coupled.gap[20] > 1e-6).all()
    assert np.abs(coupled.network[0]).max() < 1e-12  # what is kept is what has been learned
    np.testing.assert_allclose(coupled.network[1], coupled.machine[1], atol=0.1)
    np.testing.assert_allclose(coupled.gap.max(axis=0), coupled.largest_gap.max(axis=1))
    np.testing.assert_allclose(coupled.loss[0], coupled.machine_loss[0])


def test_stages_of_the_bound_are_ordered_and_above_the_gap():
    coupled = couple(Problem("exp", 256, 5, 7, 2), steps=60, record=tuple(range(61)), times=(0,))
    assert (coupled.directed >= 0.9 * coupled.largest_gap).all()  # up to the second order of a step
    assert (coupled.summed >= coupled.directed).all()
    assert (coupled.bound >= coupled.summed).all()


def test_picture_passes_through_two_samples():
    settings = kernel_regression.Settings.book()
    points, angle, labels = settings.circle()
    sample = draw_sample(16, 8, 2, seed=0)
    np.testing.assert_allclose(points[0], sample.inputs[0])
    np.testing.assert_allclose(np.linalg.norm(points, axis=1), 1)
    across = (sample.inputs[1] - np.cos(angle) * sample.inputs[0]) / np.sin(angle)
    quarter = np.flatnonzero(np.isclose(settings.angles, np.pi / 2))
    np.testing.assert_allclose(points[quarter], [across], atol=1e-12)
    second = np.flatnonzero(settings.angles == angle)
    np.testing.assert_allclose(points[second], sample.inputs[1:2], atol=1e-12)
    np.testing.assert_array_equal(labels, sample.labels[0, :2])


def test_figures_and_tables_draw_from_a_smoke_result(smoke_results):
    result = smoke_results["softmax_ntk.kernel_regression"]
    draws = (
        figures.network_and_machine, figures.gap_by_start, figures.gap_by_step, figures.bound_ladder,
        figures.loss_curves, partial(figures.circle_frame, steps=20, network="exp", neurons="independent"),
    )  # fmt: skip
    for draw in draws:
        figure = draw(result)
        assert figure.axes
        plt.close(figure)
    for make in (tables.slopes_by_start, tables.powers, tables.light_powers, tables.looseness, tables.drifts):
        assert "<table>" in make(result)._repr_html_()
    text = tables.circle_text(result, 1, "relu", "independent")
    assert "ReLU, independent, 1 step." in text
    assert "exp, pairs, 20 steps." in tables.circle_text(result, 20, "exp", "pairs")
    assert "width 16" in text


def outcomes(result):
    return {v.claim.id: v.outcome for v in ledger.check(result).verdicts}


@pytest.fixture(scope="module")
def honest():
    return outcomes(kernel_regression.run(SMALL, device="cpu"))


def uncentred(networks, inputs, coefficients):
    if networks.activation != "softmax":
        return change_of_weights(networks, inputs, coefficients)
    neurons = torch.softmax(inputs @ networks.first_layer, dim=2)
    return inputs.mT @ (neurons * (coefficients.mT @ networks.signs))


def scaled(factor, networks, inputs, coefficients):
    return factor * change_of_weights(networks, inputs, coefficients)


def test_a_wrong_model_turns_claims_red(honest, monkeypatch):
    """Guards that the rules can fail: a network that learns slower than its machine."""
    monkeypatch.setattr(coupling, "change_of_weights", partial(scaled, 0.9))
    mutated = outcomes(kernel_regression.run(SMALL, device="cpu"))
    for claim in ("SN-F1", "SN-CURVE", "SN-F2", "SN-F2-paired"):
        assert honest[claim] != "not reproduced", claim
        assert mutated[claim] == "not reproduced", claim


def test_divergence_names_step_member_and_step_size(monkeypatch):
    monkeypatch.setattr(coupling, "change_of_weights", partial(scaled, -1.0))
    with pytest.raises(FloatingPointError, match=r"step \d+, member \d, step size"):
        couple(Problem("exp", 16, 5, 7, 2), steps=60)


def test_a_gradient_without_centring_shows_where_the_output_is_not_zero(monkeypatch):
    """At the paired start centring does nothing; away from it the linearised steps leave the closed form."""
    run = partial(
        coupling.linear_error, seeds=(0,), device=CPU, steps=20, n_points=3,
        problem=Problem("softmax", 16, 5, 7, 2, start="independent"),
    )  # fmt: skip
    assert run().max() < 1e-10
    monkeypatch.setattr(coupling, "change_of_weights", uncentred)
    assert run().max() > 1e-3


@pytest.mark.parametrize(
    ("claim", "field", "factor"),
    [
        ("SN-F2-bound", "bound_over_gap", 1e-9),
        ("SN-F2-ladder", "directed_over_gap", 0.5),
        ("SN-F2-ladder", "directed_over_gap", 4.0),
        ("SN-F1", "linear_error", 1e9),
        ("SN-CURVE-relu", "curve", 2.0),
    ],
)
def test_rules_fail_on_numbers_that_contradict_them(claim, field, factor):
    stored = kernel_regression.KernelRegression.load_stored("book")
    made = dataclasses.replace(stored, **{field: getattr(stored, field) * factor})
    assert outcomes(stored)[claim] == "reproduced"
    assert outcomes(made)[claim] == "not reproduced"


def test_slopes_of_made_gaps_are_read_off_by_start_and_network():
    stored = kernel_regression.KernelRegression.load_stored("book")
    widths = np.array(stored.settings.widths, dtype=float)
    powers = np.array([[-2.0, -2.0, -1.0], [-1.0, -1.0, -1.0]])
    gap = np.broadcast_to(widths[:, None] ** powers[:, None], stored.gap.shape).copy()
    assert outcomes(dataclasses.replace(stored, gap=gap))["SN-F2-paired"] == "reproduced"
    assert outcomes(dataclasses.replace(stored, gap=gap[:, ::-1].copy()))["SN-F2-paired"] == "not reproduced"
    assert outcomes(dataclasses.replace(stored, gap=gap[..., ::-1].copy()))["SN-F2-first-order"] == "not reproduced"


def test_powers_of_made_drifts_are_read_off_by_part_and_judged():
    stored = kernel_regression.KernelRegression.load_stored("book")
    widths = np.array(stored.settings.widths, dtype=float)
    drift = np.where(widths <= 256, widths**-1.5, 256**0.5 * widths**-2.0)[:, None]
    made = dataclasses.replace(stored, kernel_drift=np.broadcast_to(drift, stored.gap.shape).copy())
    table = tables.powers(made, (64, 256), (256, 1024))._repr_html_()
    assert "-1.50 [-1.50, -1.50]" in table
    assert "-2.00 [-2.00, -2.00]" in table
    assert outcomes(made)["SN-F2-drift"] == "reproduced"
    for power in (-1.0, -2.0):
        drift = np.broadcast_to((widths**power)[:, None], stored.gap.shape).copy()
        assert outcomes(dataclasses.replace(stored, kernel_drift=drift))["SN-F2-drift"] == "not reproduced"


def test_light_drifts_are_judged_by_start():
    stored = kernel_regression.KernelRegression.load_stored("book")
    widths = np.array(stored.settings.light_widths, dtype=float)
    powers = np.array([-2.0, -1.5])[:, None, None]
    drift = np.broadcast_to(widths[:, None] ** powers, stored.light_drift.shape).copy()
    assert outcomes(dataclasses.replace(stored, light_drift=drift))["SN-F2-light-drift"] == "reproduced"
    assert outcomes(dataclasses.replace(stored, light_drift=drift[:, ::-1].copy()))["SN-F2-light-drift"] != "reproduced"


def test_the_range_beside_a_slope_is_that_of_its_own_network():
    stored = kernel_regression.KernelRegression.load_stored("book")
    found = stored.measurements()["SN-F2-first-order"]
    widths = stored.settings.widths
    relu = kernel_regression.slope_over_seeds(widths, stored.of("paired", "relu"))
    assert (found.values["max_slope"], found.spread["max_slope"]) == relu
