"""Networks, gradients and training against automatic differentiation and the plain way."""

import math
from dataclasses import replace

import jaxtyping
import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from attnbook.softmax_ntk.descent import gradient_descent
from attnbook.softmax_ntk.ntk import ntk_gram
from attnbook.softmax_ntk.two_layer import Networks, Weights, draw_weights, loss_and_gradient, predict

# Where shapes and literals are checked, as in these tests, that check comes first.
REFUSED = (ValueError, jaxtyping.TypeCheckError)
ACTIVATIONS = ("softmax", "exp", "relu")


def double(*shape, seed=0):
    return torch.tensor(np.random.default_rng(seed).standard_normal(shape))


def networks(activation, *, members=2, width=24, start="independent"):
    rng = np.random.default_rng(7)
    return Networks.stack(activation, [draw_weights(width, 7, 3, rng=rng, start=start) for _ in range(members)])


def plain(activation, first_layer, signs, x):
    """One network, one formula."""
    z = x @ first_layer
    neurons = {"softmax": z.exp() / z.exp().sum(1, keepdim=True) * z.shape[1], "exp": z.exp(), "relu": z.clamp(min=0)}
    return signs @ neurons[activation].T


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_loss_and_gradient_are_those_of_automatic_differentiation(activation):
    nets, x, y = networks(activation), double(2, 5, 7), double(2, 3, 5, seed=1)
    losses, gradients = loss_and_gradient(nets, x, y)
    for k in range(2):
        leaf = nets.first_layer[k].clone().requires_grad_()
        loss = (plain(activation, leaf, nets.signs[k], x[k]) - y[k]).square().sum() / 2
        (expected,) = torch.autograd.grad(loss, leaf)
        torch.testing.assert_close(losses[k], loss.detach(), rtol=1e-12, atol=0)
        torch.testing.assert_close(gradients[k], expected, rtol=1e-10, atol=1e-10)


def test_the_softmax_network_is_cross_attention_times_the_width():
    nets, x = networks("softmax"), double(2, 5, 7)
    attended = scaled_dot_product_attention(x, nets.first_layer.mT, nets.signs.mT, scale=1.0) * nets.width
    torch.testing.assert_close(predict(nets, x).mT, attended, rtol=1e-12, atol=1e-12)


def test_softmax_of_equal_logits_is_the_sum_of_the_signs():
    signs = np.array([[1.0, 1.0, -1.0, 1.0]])
    nets = Networks.stack("softmax", [Weights(np.zeros((3, 4)), signs)])
    assert predict(nets, double(1, 2, 3)).tolist() == [[[2.0, 2.0]]]


def test_large_logits_do_not_overflow():
    nets = networks("softmax")
    large = replace(nets, first_layer=nets.first_layer * 1e4)
    assert torch.isfinite(predict(large, double(2, 5, 7))).all()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_paired_network_is_zero_everywhere(activation):
    assert predict(networks(activation, start="paired"), double(2, 5, 7)).abs().max() < 1e-12


def test_the_mean_weight_never_moves_and_common_shifts_change_nothing():
    nets, x, y = networks("softmax", start="paired"), double(2, 5, 7), double(2, 3, 5, seed=1)
    trained = gradient_descent(nets, x, y, torch.full((2,), 1e-3, dtype=torch.float64), max_steps=50).networks
    torch.testing.assert_close(trained.first_layer.mean(2), nets.first_layer.mean(2), rtol=0, atol=1e-12)
    assert (trained.first_layer - nets.first_layer).abs().max() > 1e-4
    shifted = replace(trained, first_layer=trained.first_layer + double(2, 7, 1, seed=3))
    torch.testing.assert_close(predict(shifted, x), predict(trained, x), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_batched_training_equals_the_plain_loop(activation):
    nets, x, y = networks(activation), double(2, 5, 7) / 3, double(2, 3, 5, seed=1)
    eta = 0.5 / (nets.width * torch.linalg.eigvalsh(ntk_gram(nets, x))[:, -1])
    found = gradient_descent(nets, x, y, eta, max_steps=17)
    for k in range(2):
        w = nets.first_layer[k].clone()
        for _ in range(17):
            w.requires_grad_()
            loss = (plain(activation, w, nets.signs[k], x[k]) - y[k]).square().sum() / 2
            w = (w - eta[k] * torch.autograd.grad(loss, w)[0]).detach()
        torch.testing.assert_close(found.networks.first_layer[k], w, rtol=1e-10, atol=1e-12)
    assert found.loss.shape == (18, 2)
    assert found.steps.tolist() == [17, 17]


def test_each_network_stops_at_its_own_target_and_has_no_loss_after_it():
    nets, x, y = networks("exp", start="paired"), double(2, 5, 7) / 3, double(2, 3, 5, seed=1)
    top = nets.width * torch.linalg.eigvalsh(ntk_gram(nets, x))[:, -1]
    both = gradient_descent(nets, x, y, torch.stack([0.2 / top[0], 1 / top[1]]), max_steps=500, target=0.5)
    assert both.reached.all()
    assert both.steps[0] > both.steps[1]
    for k, steps in enumerate(both.steps):
        alone = gradient_descent(
            nets.subset(np.array([k])), x[k : k + 1], y[k : k + 1],
            torch.stack([0.2 / top[0], 1 / top[1]])[k : k + 1], max_steps=500, target=0.5,
        )  # fmt: skip
        assert alone.steps[0] == steps
        assert both.loss[steps, k] <= 0.5 * both.loss[0, k]
        assert np.isnan(both.loss[steps + 1 :, k]).all()
        torch.testing.assert_close(alone.networks.first_layer[0], both.networks.first_layer[k], rtol=1e-12, atol=0)


def test_divergence_is_a_result_and_leaves_the_others_alone():
    nets, x, y = networks("exp", start="paired"), double(2, 5, 7), double(2, 3, 5, seed=1)
    found = gradient_descent(nets, x, y, torch.tensor([1e3, 1e-9], dtype=torch.float64), max_steps=20)
    assert found.diverged.tolist() == [True, False]
    assert found.steps[0] < 20
    assert torch.isfinite(found.networks.first_layer).all()


@pytest.mark.parametrize("start", ["paired", "opposite_signs", "independent"])
def test_starts_share_what_their_name_says(start):
    weights = draw_weights(22, 5, 3, rng=np.random.default_rng(0), start=start)
    equal = np.array_equal(weights.first_layer[:, ::2], weights.first_layer[:, 1::2])
    opposite = np.array_equal(weights.signs[:, ::2], -weights.signs[:, 1::2])
    assert (equal, opposite) == (start == "paired", start != "independent")
    assert set(np.unique(weights.signs)) == {-1.0, 1.0}


def test_weights_have_the_scale_asked_for():
    weights = draw_weights(2000, 11, 1, rng=np.random.default_rng(0), scale=2.0).first_layer
    assert weights.std() == pytest.approx(2.0, rel=0.03)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 7}, "width: .*even.*got 7; take 8"),
        ({"width": 0}, "width"),
        ({"n_inputs": 0}, "n_inputs"),
        ({"n_outputs": -1}, "n_outputs"),
        ({"scale": 0.0}, "scale"),
        ({"scale": math.nan}, "scale"),
        ({"start": "tripled"}, "start"),
    ],
)
def test_impossible_weights_are_refused_by_name(change, message):
    arguments = {"width": 8, "n_inputs": 5, "n_outputs": 3} | change
    with pytest.raises(ValueError, match=message):
        draw_weights(**arguments, rng=np.random.default_rng(0))


def test_networks_of_different_widths_unknown_activations_and_nan_weights_are_refused():
    rng = np.random.default_rng(0)
    narrow, wide = (draw_weights(m, 5, 3, rng=rng) for m in (4, 6))
    with pytest.raises(ValueError, match=r"weights.*group by width"):
        Networks.stack("softmax", [narrow, wide])
    with pytest.raises(ValueError, match="weights"):
        Networks.stack("softmax", [])
    with pytest.raises(REFUSED, match="activation"):
        Networks.stack("tanh", [narrow])
    with pytest.raises(ValueError, match="first_layer"):
        Networks("exp", torch.full((1, 5, 4), math.nan, dtype=torch.float64), torch.ones(1, 3, 4, dtype=torch.float64))


def test_wrong_shapes_and_nan_samples_are_refused_by_name():
    nets, x, y = networks("softmax"), double(2, 5, 7), double(2, 3, 5)
    with pytest.raises(ValueError, match="inputs"):
        predict(nets, double(2, 5, 6))
    with pytest.raises(ValueError, match=r"inputs.*NaN"):
        predict(nets, x * math.nan)
    with pytest.raises(REFUSED, match="labels"):
        loss_and_gradient(nets, x, y.mT)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"step_size": torch.tensor([1.0, -1.0])}, "step_size"),
        ({"step_size": torch.tensor([1.0, math.nan])}, "step_size"),
        ({"max_steps": 0}, "max_steps"),
        ({"target": 1.5}, "target"),
        ({"labels": torch.full((2, 3, 5), math.inf)}, "labels"),
        ({"labels": torch.ones(2, 5, 5)}, "labels"),
    ],
)
def test_impossible_training_is_refused_by_name(change, name):
    arguments = {"labels": torch.ones(2, 3, 5), "step_size": torch.ones(2), "max_steps": 3} | change
    with pytest.raises(ValueError, match=name):
        gradient_descent(networks("softmax"), double(2, 5, 7), **arguments)
