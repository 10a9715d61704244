"""Training against the plain loop."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from attnbook.softmax_ntk.descent import gradient_descent
from attnbook.softmax_ntk.ntk import ntk_gram
from attnbook.softmax_ntk.two_layer import Networks, draw_weights, predict

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


def test_each_network_stops_at_its_own_target_and_keeps_its_last_loss():
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
        assert (both.loss[steps:, k] == both.loss[steps, k]).all()
        torch.testing.assert_close(alone.networks.first_layer[0], both.networks.first_layer[k], rtol=1e-12, atol=0)


def test_divergence_is_a_result_and_leaves_the_others_alone():
    nets, x, y = networks("exp", start="paired"), double(2, 5, 7), double(2, 3, 5, seed=1)
    found = gradient_descent(nets, x, y, torch.tensor([1e3, 1e-9], dtype=torch.float64), max_steps=20)
    assert found.diverged.tolist() == [True, False]
    assert found.steps[0] < 20
    assert torch.isfinite(found.networks.first_layer).all()


def test_the_longest_step_is_that_of_one_neuron():
    nets, x, y = networks("softmax", start="paired"), double(2, 5, 7), double(2, 3, 5, seed=1)
    found = gradient_descent(nets, x, y, torch.full((2,), 1e-3, dtype=torch.float64), max_steps=1)
    moved = (found.networks.first_layer - nets.first_layer).norm(dim=1).amax(1)
    np.testing.assert_allclose(found.longest_step, moved.numpy(), rtol=1e-9)


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
