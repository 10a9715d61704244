"""The chapter on the softmax network: formulas, experiment, figures, exercises; wrong models turn claims red."""

import dataclasses

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

import attnbook
from attnbook import ledger
from attnbook.softmax_ntk import at_start, two_layer
from attnbook.softmax_ntk import denominator as theory
from attnbook.softmax_ntk.experiments import softmax_network
from attnbook.softmax_ntk.figures import softmax_network as figures
from attnbook.softmax_ntk.kernels import infinite_width_kernel
from attnbook.softmax_ntk.tables import softmax_network as tables

ACTIVATIONS = ("softmax", "exp", "relu")
INPUTS = np.random.default_rng(0).standard_normal((5, 3))
INPUTS *= 0.9 / np.linalg.norm(INPUTS, axis=1, keepdims=True)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_scatter_around_the_limit_is_the_one_of_the_formula(activation):
    """Root mean squares over many networks; no outcome of a single one is used."""
    limit = at_start.output_limit(activation, INPUTS, n_outputs=2, scale=0.5)
    rng, found = np.random.default_rng(1), []
    for _ in range(400):
        kernel = at_start.initial_kernel(activation, INPUTS, width=1024, n_outputs=2, scale=0.5, rng=rng)
        distance, between = at_start.distance_from_limit(kernel, limit, n_outputs=2)
        found.append((distance, between * np.linalg.norm(kernel) / np.linalg.norm(limit)))
    rms = np.sqrt(np.square(found).mean(axis=0))
    expected = theory.kernel_fluctuation(activation, INPUTS, width=1024, n_outputs=2, scale=0.5)
    np.testing.assert_allclose(rms, expected, rtol=0.08)


def test_scatter_of_one_unit_input_is_known_by_hand():
    """One output: the variance of a pair over half the width, relative to the limit."""
    e = np.exp
    known = {"softmax": e(4) - 4 * e(2) + 4 * e(1) - 1, "exp": e(4) - 1, "relu": 1.0}
    for activation, variance in known.items():
        whole, between = theory.kernel_fluctuation(activation, np.eye(1), width=26, n_outputs=1)
        assert whole == pytest.approx(np.sqrt(variance / 13), rel=1e-6)
        assert between == 0


def test_scatter_halves_with_four_times_the_width():
    for activation in ACTIVATIONS:
        one, four = (theory.kernel_fluctuation(activation, INPUTS, width=m, n_outputs=3) for m in (22, 88))
        np.testing.assert_allclose(np.divide(one, four), 2)


def test_the_limit_has_one_block_per_output_and_zeros_between():
    limit = at_start.output_limit("exp", INPUTS, n_outputs=2, scale=0.7)
    np.testing.assert_array_equal(limit[:5, 5:], 0)
    np.testing.assert_array_equal(limit[:5, :5], limit[5:, 5:])
    assert at_start.distance_from_limit(limit, limit, n_outputs=2) == (0.0, 0.0)


def test_spectrum_starts_at_one_and_ends_at_one_over_the_condition_number():
    spectrum = at_start.limit_spectrum("relu", np.eye(7)[:4] + 0.1)
    assert spectrum[0] == 1
    assert (np.diff(spectrum) <= 0).all()
    assert 1 / spectrum[-1] == pytest.approx(np.linalg.cond(infinite_width_kernel("relu", np.eye(7)[:4] + 0.1)))


def test_scaling_maps_softmax_to_exp_and_is_one_factor_on_the_sphere():
    d = theory.denominator_scaling(INPUTS, scale=1.7)
    soft, exp = (infinite_width_kernel(a, INPUTS, scale=1.7) for a in ("softmax", "exp"))
    np.testing.assert_allclose(d[:, None] * soft * d, exp, rtol=1e-12)
    units = INPUTS / 0.9
    soft, exp = (infinite_width_kernel(a, units, scale=1.7) for a in ("softmax", "exp"))
    np.testing.assert_allclose(theory.sphere_factor(units, scale=1.7) * soft, exp, rtol=1e-12)


def test_effective_width_of_known_shares():
    logits = np.log([[0.5, 0.25, 0.25], [1 / 3, 1 / 3, 1 / 3]])
    np.testing.assert_allclose(theory.effective_width(logits), [1 / (0.25 + 2 / 16), 3])
    np.testing.assert_allclose(theory.effective_width(logits + 1e4), theory.effective_width(logits))


def test_effective_width_of_many_light_neurons_is_the_formula():
    logits = 0.6 * np.random.default_rng(0).standard_normal(200_000)
    expected = theory.expected_effective_width(200_000, scale=0.3, norm=2.0)
    assert theory.effective_width(logits) == pytest.approx(expected, rel=0.02)


def test_the_second_tail_scale_is_the_largest_of_as_many_normal_numbers():
    holds, frozen = theory.tail_scales(2 * 10**6)
    assert frozen == pytest.approx(np.sqrt(2 * np.log(10**6))) == 2 * holds


def test_a_constant_coordinate_keeps_ball_and_sphere_and_moves_the_origin():
    lifted = theory.append_constant(np.vstack([np.zeros(3), INPUTS / 0.9]), 0.28)
    np.testing.assert_allclose(np.linalg.norm(lifted, axis=1), [0.28, 1, 1, 1, 1, 1])
    assert infinite_width_kernel("softmax", lifted)[0, 0] > 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: theory.check_norms(np.array([[0.1, 0], [1.0, 1.0]])),
            "row 1 has norm 1.41421.*divide all rows by 1.41",
        ),
        (lambda: theory.append_constant(2 * np.eye(2)), "row 0 has norm 2"),
        (lambda: theory.append_constant(np.eye(2), 1.0), "constant"),
        (lambda: theory.sphere_factor(np.array([[1.0, 0], [0.3, 0.4]])), "row 1 has norm 0.5.*its own norm"),
        (lambda: theory.sphere_factor(np.zeros((1, 2))), "append a constant"),
        (lambda: theory.check_norms(np.array([[0.1], [np.nan]])), "row 1 has NaN"),
        (lambda: theory.effective_width(np.array([np.inf, 0])), "logits"),
        (lambda: theory.expected_effective_width(0), "width"),
        (lambda: theory.tail_scales(2), "width"),
        (lambda: theory.denominator_scaling(INPUTS, scale=0.0), "scale"),
        (lambda: theory.kernel_fluctuation("exp", INPUTS, width=0, n_outputs=1), "width"),
        (lambda: at_start.initial_kernel("exp", INPUTS, width=7, rng=np.random.default_rng(0)), "take 8"),
    ],
)
def test_arguments_outside_a_statement_are_refused_with_the_remedy(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_norms_may_miss_one_by_rounding():
    theory.check_norms(np.eye(3) * (1 + 1e-12), sphere=True)
    theory.check_norms(np.empty((0, 3)))


@pytest.mark.parametrize(
    "change",
    [
        {"widths": (16, 31, 64, 128, 256)},
        {"widths": (16, 32, 64, 128)},
        {"effective_widths": (64,)},
        {"slope_to": 64},
        {"cross_from": 65536},
        {"n_outputs": 1},
        {"seeds": ()},
    ],
)
def test_impossible_settings_are_refused_by_name(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        dataclasses.replace(softmax_network.Settings.book(), **change)


def test_adding_a_seed_changes_no_other(smoke_results):
    both = smoke_results["softmax_ntk.softmax_network"]
    alone = softmax_network.run(dataclasses.replace(softmax_network.Settings.smoke(), seeds=(0,)), device="cpu")
    np.testing.assert_array_equal(alone.distance[0], both.distance[0])
    np.testing.assert_array_equal(alone.effective[0], both.effective[0])


def verdicts(result):
    return {v.claim.id: v.outcome for v in ledger.check(result).verdicts}


SMALL = dataclasses.replace(
    softmax_network.Settings.book(), widths=(64, 256, 1024, 4096, 16384), cross_from=256, seeds=(0, 1, 2),
    effective_widths=(256, 4096), points=11, kernel_scales=(1.0,),
)  # fmt: skip


@pytest.fixture(scope="module")
def honest():
    return verdicts(softmax_network.run(SMALL, device="cpu"))


def no_denominator(networks, inputs):
    """Softmax neurons without their normaliser."""
    logits = torch.bmm(inputs, networks.first_layer)
    return logits.exp() if networks.activation != "relu" else (logits > 0).to(logits)


def no_centring(networks, inputs, labels):
    """Claim 3.4 as if the denominator were a constant."""
    outputs = two_layer.predict(networks, inputs)
    back = torch.bmm((outputs - labels).mT, networks.signs) * two_layer.neuron_derivatives(networks, inputs)
    return (outputs - labels).square().sum((1, 2)) / 2, torch.bmm(inputs.mT, back)


@pytest.mark.parametrize(
    ("module", "name", "wrong", "red"),
    [
        ("two_layer", "neuron_derivatives", no_denominator, {"SN-ATT-net"}),
        ("ntk", "neuron_derivatives", no_denominator, {"SN-FLOW", "SN-FLOW-order", "SN-INF-softmax"}),
        ("experiments.softmax_network", "loss_and_gradient", no_centring, {"SN-FLOW"}),
        (
            "experiments.softmax_network", "effective_width", lambda z: np.exp(z).sum(-1) / np.exp(z).max(-1),
            {"SN-EFF"},
        ),
        (
            "experiments.softmax_network", "expected_effective_width", lambda m, scale: m * np.exp(-(scale**2) / 2),
            {"SN-EFF", "SN-EFF-tails", "SN-EFF-widths"},
        ),
    ],
)  # fmt: skip
def test_a_wrong_model_turns_its_claims_red(module, name, wrong, red, honest, monkeypatch):
    monkeypatch.setattr(f"attnbook.softmax_ntk.{module}.{name}", wrong)
    found = verdicts(softmax_network.run(SMALL, device="cpu"))
    assert all(honest[claim] == "reproduced" for claim in red)
    assert all(found[claim] == "not reproduced" for claim in red)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_wrong_limit_turns_its_claim_red(activation, honest, monkeypatch):
    def wrong(name, inputs, *, n_outputs=1, scale=1.0):
        return np.kron(np.ones((n_outputs, n_outputs)), infinite_width_kernel(name, inputs, scale=scale))

    monkeypatch.setattr(softmax_network, "output_limit", wrong)
    assert verdicts(softmax_network.run(SMALL, device="cpu"))[f"SN-INF-{activation}"] == "not reproduced"


@pytest.mark.slow
def test_a_limit_that_is_wrong_by_a_few_percent_turns_the_sharp_claim_red(monkeypatch):
    """ReLU, which scatters most there; slopes and distances at weight scale 1 are too loose to see it."""
    many = dataclasses.replace(SMALL, seeds=tuple(range(12)), effective_widths=(256, 4096), points=1)
    assert verdicts(softmax_network.run(many, device="cpu"))["SN-INF-light"] == "reproduced"

    def wrong(name, inputs, **sizes):
        return at_start.output_limit(name, inputs, **sizes) * (1.05 if name == "relu" else 1)

    monkeypatch.setattr(softmax_network, "output_limit", wrong)
    assert verdicts(softmax_network.run(many, device="cpu"))["SN-INF-light"] == "not reproduced"


def test_signs_shared_by_all_outputs_turn_the_blocks_red(monkeypatch):
    def shared(*args, **kwargs):
        drawn = two_layer.draw_weights(*args, **kwargs)
        return dataclasses.replace(drawn, signs=np.repeat(drawn.signs[:1], len(drawn.signs), axis=0))

    monkeypatch.setattr(at_start, "draw_weights", shared)
    assert verdicts(softmax_network.run(SMALL, device="cpu"))["SN-INF-cross"] == "not reproduced"


def test_figures_and_tables_draw_from_a_smoke_result(smoke_results):
    result, compared = (smoke_results[f"softmax_ntk.{name}"] for name in ("softmax_network", "denominator"))
    drawn = [
        figures.kernels(result),
        figures.attention_frame(result, 1.0),
        figures.attention_frame(result, 8.0),
        figures.towards_the_limit(result),
        figures.effective_numbers(result),
        figures.spectrum_frame(compared, 0.5, 2.0),
    ]
    assert all(figure.axes for figure in drawn)
    for figure in drawn:
        plt.close(figure)
    shown = [tables.cost({"both": (result, 7)}), tables.conditions(compared), tables.identity(compared)]
    shown += [tables.distance_by_scale(result), tables.light_slopes(result)]
    assert all("<td>" in table._repr_html_() for table in [*shown, tables.slopes_by_seeds(result, 1)])
    assert "of 16" in tables.attention_text(result, 1.0)
    assert "all inputs of norm 1" in tables.spectrum_text(compared, 1.0, 1.0)
    assert "formula" not in tables.attention_text(result, 8.0)


def by_attention(weights, signs, x, *, scale=1.0, factor=8):
    return factor * torch.nn.functional.scaled_dot_product_attention(x, weights.T, signs.T, scale=scale).T


def count(logits, *, shift=True):
    powers = np.exp(logits - logits.max(axis=1, keepdims=True) * shift)
    return powers.sum(axis=1) ** 2 / (powers**2).sum(axis=1)


def shares(logits):
    return np.exp(logits) / np.exp(logits).sum(1, keepdims=True)


RIGHT = {
    "SN-4": by_attention,
    "SN-5": lambda x, sigma: infinite_width_kernel("softmax", x, scale=sigma),
    "SN-6": count,
}
WRONG = [
    ("SN-4", lambda *a: by_attention(*a, factor=1), "factor m"),
    ("SN-4", lambda *a: by_attention(*a, scale=None), "scale=1.0"),
    ("SN-4", lambda *a: by_attention(*a, scale=None, factor=1), "and the factor m"),
    ("SN-4", lambda w, a, x: 8 * a @ torch.softmax(x @ w, dim=0).T, "not over samples"),
    ("SN-4", lambda *a: by_attention(*a).T, "transpose"),
    ("SN-4", lambda *a: np.zeros(3), "shape"),
    ("SN-4", lambda *a: 0 * by_attention(*a), "different"),
    ("SN-5", lambda x, s: infinite_width_kernel("exp", x, scale=s), "kernel of exp"),
    ("SN-5", lambda x, s: np.exp(s**2 * x @ x.T), "inner product in front"),
    ("SN-5", lambda x, s: (x @ x.T) * np.exp(s * x @ x.T), "square of the scale"),
    ("SN-5", lambda x, s: (x @ x.T) * np.exp(s**2 * x @ x.T / 2), "no 1/2"),
    ("SN-5", lambda x, s: (x @ x.T) * np.exp(-(s**2) * x @ x.T), "positive"),
    ("SN-5", lambda x, s: x, "shape"),
    ("SN-6", lambda z: 1 / count(z), "inverse"),
    ("SN-6", lambda z: count(z) / z.shape[1], "over the width"),
    ("SN-6", lambda z: np.exp(-(shares(z) * np.log(shares(z))).sum(1)), "entropy"),
    ("SN-6", lambda z: 1 / shares(z).max(1), "largest weight"),
    ("SN-6", lambda z: 1 / np.square(np.exp(z)).sum(1), "sum to one first"),
    ("SN-6", lambda z: count(z, shift=False), "overflows"),
    ("SN-6", lambda z: count(z)[:2], "shape"),
]


@pytest.mark.parametrize("exercise", RIGHT)
def test_right_answers_pass(exercise):
    assert attnbook.check(exercise, RIGHT[exercise]).right


@pytest.mark.parametrize(("exercise", "answer", "message"), WRONG)
def test_wrong_answers_get_the_likely_mistake(exercise, answer, message):
    feedback = attnbook.check(exercise, answer)
    assert not feedback.right
    assert message in repr(feedback)
