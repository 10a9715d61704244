"""The chapter on the softmax network: formulas, rules that can fail, pictures and exercises."""

import dataclasses
import math

import matplotlib.pyplot as plt
import numpy as np
import pytest
import red
import torch

import attnbook
from attnbook import ledger
from attnbook.softmax_ntk import denominator as theory
from attnbook.softmax_ntk import two_layer
from attnbook.softmax_ntk.kernels import infinite_width_kernel
from attnbook.softmax_ntk.ntk import ntk_gram
from attnbook.softmax_ntk.softmax_network import experiments as own
from attnbook.softmax_ntk.softmax_network import figures
from attnbook.softmax_ntk.training import Problem, starting_networks

ACTIVATIONS = ("softmax", "exp", "relu")
INPUTS = np.random.default_rng(0).standard_normal((5, 3))
INPUTS *= 0.9 / np.linalg.norm(INPUTS, axis=1, keepdims=True)
KINDS = {"softmax_network": own.SoftmaxNetwork, "denominator": own.Denominator}


@pytest.fixture(scope="module")
def stored():
    return {name: kind.load_stored("book") for name, kind in KINDS.items()}


def at(name, place, change):
    """Change the entries of one array at one place."""

    def changed(data):
        moved = data[name].copy(deep=True)
        moved.loc[place] = change(moved.loc[place])
        return data.assign({name: moved})

    return changed


RED = {
    "softmax_network": {
        "SN-INF": at("distance", {"network": "relu"}, lambda x: 1.5 * x),
        "SN-EFF": lambda d: d.assign(effective=d.effective.roll(effective_width=1)),
    },
    "denominator": {
        "SN-KEXP-finite": at("identity_error", {"pairs": True}, lambda x: x + 1e-9),
        "SN-COND": at("condition", {"network": "exp"}, lambda x: x / 3),
    },
}
PARTS = {
    "softmax_network": [
        ("SN-INF", lambda d: d.assign(distance=d.distance * d.width**0.1, fluctuation=d.fluctuation * d.width**0.1)),
        ("SN-INF", lambda d: d.assign(between=d.between * d.width**0.1)),
        ("SN-INF", lambda d: d.assign(between=d.between / d.width**0.1)),
        ("SN-EFF", at("effective", {"sigma": 0.25}, lambda x: 1.5 * x)),
        ("SN-EFF", at("effective", {"sigma": 8.0, "effective_width": 65536}, lambda x: 3 * x)),
        ("SN-EFF", at("effective", {"sigma": 2.0}, lambda x: x / 3)),
    ],
    "denominator": [
        ("SN-KEXP-finite", at("identity_error", {"pairs": False}, lambda x: 1e-4 * x)),
        ("SN-COND", at("limit", {"network": "exp"}, lambda x: 1.1 * x)),
        ("SN-COND", at("condition", {"network": "exp", "scale": 2.0}, lambda x: x / 3)),
    ],
}  # other values of the same rules


@pytest.mark.parametrize("name", KINDS)
def test_every_measured_claim_of_the_chapter_can_be_turned_red(name, stored):
    red.assert_every_claim_turns(KINDS[name]().measurements, stored[name], RED[name], PARTS[name])


def test_every_claim_of_the_chapter_is_measured():
    mine = {c.id: c for c in ledger.claims() if c.chapter == "softmax_ntk/softmax_network"}
    measured = {claim for claims in RED.values() for claim in claims}
    assert set(mine) - measured == {"SN-GRAD", "SN-FLOW"} == {i for i, c in mine.items() if c.checked}
    assert sum(c.source == "book" for c in mine.values()) <= 5


def without_denominator(networks, inputs, chunk):
    """Softmax neurons without their normaliser, which is taken to be the number of neurons, and uncentred."""
    total = torch.full(inputs.shape[:2], math.log(networks.width), dtype=inputs.dtype)
    return total, inputs.new_zeros((*networks.signs.shape[:2], inputs.shape[1]))


def test_a_wrong_model_turns_its_claim_red(monkeypatch):
    few = own.Denominator.at(n_samples=7, width=256, exact_widths=(22,), seeds=(0, 1))
    honest = red.outcomes(few.measurements, few.run(device="cpu"))
    monkeypatch.setattr("attnbook.softmax_ntk.ntk._denominators", without_denominator)
    found = red.outcomes(few.measurements, few.run(device="cpu"))
    assert found["SN-KEXP-finite"] != honest["SN-KEXP-finite"]


def test_training_never_moves_the_mean_weight_of_softmax_and_does_that_of_exp():
    """Without pairs, by the gradient: over neurons it sums to zero for softmax only."""
    x, y = (torch.from_numpy(np.random.default_rng(s).standard_normal((1, 5, n))) for s, n in ((0, 3), (1, 2)))
    drawn = two_layer.draw_weights(14, 3, 2, rng=np.random.default_rng(2), start="independent")
    for activation, still in (("softmax", True), ("exp", False)):
        networks = two_layer.Networks.stack(activation, [drawn])
        gradient = two_layer.loss_and_gradient(networks, x, y.mT)[1]
        assert (float(gradient.mean(2).norm() / gradient.norm()) < 1e-14) == still


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_one_small_step_moves_the_outputs_by_the_kernel_up_to_second_order(activation):
    """Definitions 3.5 and 3.6: what first order leaves shrinks like the square of the step."""
    x, y = (torch.from_numpy(np.random.default_rng(s).standard_normal((1, 5, n)) / 3) for s, n in ((0, 3), (1, 2)))
    drawn = two_layer.draw_weights(14, 3, 2, rng=np.random.default_rng(2), start="independent")
    networks = two_layer.Networks.stack(activation, [drawn])
    before, gradient = two_layer.predict(networks, x), two_layer.loss_and_gradient(networks, x, y.mT)[1]
    first_order = -(ntk_gram(networks, x)[0] @ (before - y.mT).flatten()).view_as(before)
    rest = []
    for size in (1e-5, 1e-6):
        moved = dataclasses.replace(networks, first_layer=networks.first_layer - size / 14 * gradient)
        rest.append(float((two_layer.predict(moved, x) - before - size * first_order).norm()))
    assert rest[0] <= 1e-3 * 1e-5 * float(first_order.norm())
    assert rest[1] <= 0.02 * rest[0] + 1e-13


def one_kernel(activation, rng, *, width, n_outputs, scale):
    drawn = two_layer.draw_weights(width, 3, n_outputs, rng=rng)
    return own.kernels([activation], drawn, INPUTS, scale)[0]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_scatter_around_the_limit_is_the_one_of_the_formula(activation):
    """Root mean squares over many networks; no outcome of a single one is used."""
    limit = theory.output_limit(activation, INPUTS, n_outputs=2, scale=0.5)
    rng, found = np.random.default_rng(1), []
    for _ in range(400):
        kernel = one_kernel(activation, rng, width=1024, n_outputs=2, scale=0.5)
        distance, between = theory.distance_from_limit(kernel, limit, n_outputs=2)
        found.append((distance, between * np.linalg.norm(kernel) / np.linalg.norm(limit)))
    expected = theory.kernel_fluctuation(activation, INPUTS, width=1024, n_outputs=2, scale=0.5)
    np.testing.assert_allclose(np.sqrt(np.square(found).mean(axis=0)), expected, rtol=0.08)


def test_scatter_of_one_unit_input_is_known_by_hand():
    """One output: the variance of a pair over half the width, relative to the limit."""
    e = np.exp
    known = {"softmax": e(4) - 4 * e(2) + 4 * e(1) - 1, "exp": e(4) - 1, "relu": 1.0}
    for activation, variance in known.items():
        whole, between = theory.kernel_fluctuation(activation, np.eye(1), width=26, n_outputs=1)
        assert whole == pytest.approx(np.sqrt(variance / 13), rel=1e-6)
        assert between == 0


def test_the_limit_has_one_block_per_output_and_zeros_between():
    limit = theory.output_limit("exp", INPUTS, n_outputs=2, scale=0.7)
    np.testing.assert_array_equal(limit[:5, 5:], 0)
    np.testing.assert_array_equal(limit[:5, :5], limit[5:, 5:])
    assert theory.distance_from_limit(limit, limit, n_outputs=2) == (0.0, 0.0)


def test_starting_networks_share_samples_and_weights_between_activations_and_scales():
    one, x, _ = starting_networks(Problem("exp", 6, 4, 3, 2), (0, 1))
    other, z, _ = starting_networks(Problem("relu", 6, 4, 3, 2, scale=2.0), (1, 2))
    torch.testing.assert_close(2 * one.first_layer[1], other.first_layer[0])
    torch.testing.assert_close(x[1], z[0])
    torch.testing.assert_close(one.first_layer[:, :, ::2], one.first_layer[:, :, 1::2])


def test_scaling_maps_softmax_to_exp_and_is_one_factor_on_the_sphere():
    d = np.exp(1.7**2 * (INPUTS**2).sum(1) / 2)
    soft, exp = (infinite_width_kernel(a, INPUTS, scale=1.7) for a in ("softmax", "exp"))
    np.testing.assert_allclose(d[:, None] * soft * d, exp, rtol=1e-12)
    soft, exp = (infinite_width_kernel(a, INPUTS / 0.9, scale=1.7) for a in ("softmax", "exp"))
    np.testing.assert_allclose(np.exp(1.7**2) * soft, exp, rtol=1e-12)


def test_the_identity_of_finite_networks_by_hand():
    """Two pairs, one input: the mean exponential is that of e and 1, and each kernel one mean square."""
    drawn = two_layer.Weights(np.array([[1.0, 1.0, 0.0, 0.0]]), np.array([[1.0, -1.0, 1.0, -1.0]]))
    soft, exp = own.kernels(["softmax", "exp"], drawn, np.ones((1, 1)), 1.0)
    assert exp.item() == pytest.approx((np.e**2 + 1) / 2)
    assert soft.item() == pytest.approx(exp.item() / ((np.e + 1) / 2) ** 2)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_at_the_zero_input_a_paired_network_stays_zero_whatever_its_weights(activation):
    drawn = two_layer.draw_weights(8, 3, 2, rng=np.random.default_rng(0))
    moved = two_layer.Weights(np.random.default_rng(1).standard_normal((3, 8)), drawn.signs)
    x = torch.zeros(1, 2, 3, dtype=torch.float64)
    networks = two_layer.Networks.stack(activation, [moved])
    assert two_layer.predict(networks, x).abs().max() <= 1e-12
    assert ntk_gram(networks, x).abs().max() == 0


def test_effective_width_of_known_shares():
    logits = np.log([[0.5, 0.25, 0.25], [1 / 3, 1 / 3, 1 / 3]])
    np.testing.assert_allclose(theory.effective_width(logits), [1 / (0.25 + 2 / 16), 3])
    np.testing.assert_allclose(theory.effective_width(logits + 1e4), theory.effective_width(logits))
    light = 0.6 * np.random.default_rng(0).standard_normal(200_000)
    expected = theory.expected_effective_width(200_000, scale=0.3, norm=2.0)
    assert theory.effective_width(light) == pytest.approx(expected, rel=0.02)


def test_the_second_tail_scale_is_the_largest_of_as_many_normal_numbers():
    holds, frozen = theory.tail_scales(2 * 10**6)
    assert frozen == pytest.approx(np.sqrt(2 * np.log(10**6))) == 2 * holds


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.effective_width(np.array([np.inf, 0])), "logits"),
        (lambda: theory.expected_effective_width(0), "width"),
        (lambda: theory.tail_scales(2), "width"),
        (lambda: theory.kernel_fluctuation("exp", INPUTS, width=8, n_outputs=1, scale=0.0), "scale"),
        (lambda: theory.kernel_fluctuation("exp", INPUTS, width=0, n_outputs=1), "width"),
        (lambda: own.SoftmaxNetwork.at(widths=(32, 16)), "widths"),
        (lambda: own.SoftmaxNetwork.at(effective_widths=(64,)), "effective_widths"),
        (lambda: own.SoftmaxNetwork.at(n_outputs=1), "n_outputs"),
    ],
)
def test_arguments_outside_their_range_are_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_pictures_and_tables_draw(stored):
    data = stored["softmax_network"]
    drawn = [
        figures.attention_frame(data, 1.0),
        figures.attention_frame(data, 8.0),
        figures.towards_the_limit(data),
        figures.effective_numbers(data),
    ]
    assert all(ax.get_xlabel() for figure in drawn for ax in figure.axes)
    assert len(figures.kernels(data).axes) == 5
    first = [ax.get_xlabel() for ax in figures.denominator(stored["denominator"]).axes[:3]]
    assert first == ["samples, by length", "length of the input", "samples, by length"]
    assert len(figures.conditions(stored["denominator"]).rows) == 6
    assert "of 256" in figures.attention_text(data, 1.0)


@pytest.mark.parametrize("sigma", [0.25, 1.0, 8.0])
def test_the_bar_of_the_effective_number_lies_in_the_picture(sigma, stored):
    (ax,) = figures.attention_frame(stored["softmax_network"], sigma).axes
    bar, low, high = ax.lines[0].get_xdata()[0], *ax.get_xlim()
    plt.close()
    assert low < bar < high


def test_the_first_picture_divides_one_kernel_into_the_other(stored):
    data = stored["denominator"]
    exp, soft = data.kernel.sel(shown="exp").values, data.kernel.sel(shown="softmax").values
    np.testing.assert_allclose(exp / np.outer(data.factor, data.factor), soft, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(data.kernel_condition, [np.linalg.cond(exp), np.linalg.cond(soft)])


def count(logits, *, shift=True):
    powers = np.exp(logits - logits.max(axis=1, keepdims=True) * shift)
    return powers.sum(axis=1) ** 2 / (powers**2).sum(axis=1)


def shares(logits):
    return np.exp(logits) / np.exp(logits).sum(1, keepdims=True)


WRONG = [
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


@pytest.mark.parametrize(("exercise", "answer", "message"), WRONG)
def test_right_answers_pass_and_wrong_ones_get_the_likely_mistake(exercise, answer, message):
    right = {"SN-5": lambda x, sigma: infinite_width_kernel("softmax", x, scale=sigma), "SN-6": count}[exercise]
    assert attnbook.check(exercise, right).right
    feedback = attnbook.check(exercise, answer)
    assert not feedback.right
    assert message in repr(feedback)


def test_the_table_of_condition_numbers_has_the_norms_and_scales_of_the_run(smoke_results):
    data = smoke_results[own.Denominator.id]
    rows = figures.conditions(data).rows
    assert [row[:2] for row in rows] == [["all 1", "1"], ["all 1", "2"], ["0.5 to 1", "1"], ["0.5 to 1", "2"]]
    assert len(figures.conditions(own.Denominator.load_stored("book")).rows) == 6
