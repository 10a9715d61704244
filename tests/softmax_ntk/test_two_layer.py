"""Networks, gradients, kernels and training against automatic differentiation and the plain way."""

import math
from dataclasses import replace

import jaxtyping
import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.testing import assert_close

from attnbook.softmax_ntk.data import draw_sample
from attnbook.softmax_ntk.descent import gradient_descent
from attnbook.softmax_ntk.kernels import infinite_width_kernel
from attnbook.softmax_ntk.ntk import kernel_gradient_flow, ntk_gram
from attnbook.softmax_ntk.two_layer import Networks, draw_weights, loss_and_gradient, predict

REFUSED = (ValueError, jaxtyping.TypeCheckError)  # where shapes are checked, as in tests, that check comes first
every = pytest.mark.parametrize("activation", ["softmax", "exp", "relu"])


def double(*shape, seed=0):
    return torch.tensor(np.random.default_rng(seed).standard_normal(shape))


X, Y, RNG = double(2, 5, 7) / 2, double(2, 3, 5, seed=1), np.random.default_rng(0)


def networks(activation, *, members=2, width=24, n_outputs=3, **options):
    options = {"rng": np.random.default_rng(7), "start": "independent"} | options
    return Networks.stack(activation, [draw_weights(width, 7, n_outputs, **options) for _ in range(members)])


def plain(activation, first_layer, signs, x):
    """One network, one formula."""
    z = x @ first_layer
    neurons = {"softmax": z.exp() / z.exp().sum(1, keepdim=True) * z.shape[1], "exp": z.exp(), "relu": z.clamp(min=0)}
    return signs @ neurons[activation].T


def differentiated(nets, k, weights):
    """Loss and gradient of one network by automatic differentiation."""
    leaf = weights.clone().requires_grad_()
    loss = (plain(nets.activation, leaf, nets.signs[k], X[k]) - Y[k]).square().sum() / 2
    return loss.detach(), torch.autograd.grad(loss, leaf)[0]


def unit_steps(nets):
    """For each network one over the largest eigenvalue."""
    return 1 / (nets.width * torch.linalg.eigvalsh(ntk_gram(nets, X))[:, -1])


@every
def test_loss_and_gradient_are_those_of_automatic_differentiation(activation):
    nets = networks(activation)
    losses, gradients = loss_and_gradient(nets, X, Y)
    for k in range(2):
        loss, gradient = differentiated(nets, k, nets.first_layer[k])
        assert_close(losses[k], loss, rtol=1e-12, atol=0)
        assert_close(gradients[k], gradient, rtol=1e-10, atol=1e-10)


def test_the_softmax_network_is_cross_attention_times_the_width_and_large_logits_do_not_overflow():
    nets = networks("softmax")
    attended = scaled_dot_product_attention(X, nets.first_layer.mT, nets.signs.mT, scale=1.0) * nets.width
    assert_close(predict(nets, X).mT, attended, rtol=1e-12, atol=1e-12)
    assert torch.isfinite(ntk_gram(replace(nets, first_layer=nets.first_layer * 1e4), X)).all()


@every
def test_a_paired_network_is_zero_everywhere(activation):
    assert predict(networks(activation, start="paired"), X).abs().max() < 1e-12


@pytest.mark.parametrize("start", ["paired", "opposite_signs", "independent"])
def test_starts_share_what_their_name_says(start):
    weights = draw_weights(22, 5, 3, rng=np.random.default_rng(0), scale=2.0, start=start)
    assert weights.first_layer.std() == pytest.approx(2.0, rel=0.2)
    equal = np.array_equal(weights.first_layer[:, ::2], weights.first_layer[:, 1::2])
    opposite = np.array_equal(weights.signs[:, ::2], -weights.signs[:, 1::2])
    assert (equal, opposite) == (start == "paired", start != "independent")
    assert set(np.unique(weights.signs)) == {-1.0, 1.0}


@every
def test_gram_is_the_product_of_jacobians(activation):
    nets, others = networks(activation), double(2, 2, 7, seed=1)
    found, cross = ntk_gram(nets, X), ntk_gram(nets, X, others)
    for k in range(2):

        def jacobian(x, k=k):
            outputs = torch.func.jacrev(lambda w: plain(activation, w, nets.signs[k], x).flatten())
            return outputs(nets.first_layer[k]).flatten(1)

        j = jacobian(X[k])
        assert_close(found[k], j @ j.T / 24, rtol=1e-10, atol=1e-10)
        assert_close(cross[k], j @ jacobian(others[k]).T / 24, rtol=1e-10, atol=1e-10)


@every
def test_wide_networks_have_the_kernel_of_infinite_width(activation):
    nets = networks(activation, members=1, width=16384, n_outputs=1, start="paired", scale=0.7)
    x = torch.nn.functional.normalize(double(1, 11, 7), dim=2)
    limit = torch.tensor(infinite_width_kernel(activation, x[0].numpy(), scale=0.7))
    assert (ntk_gram(nets, x)[0] - limit).norm() / limit.norm() < 0.08


@pytest.mark.parametrize(("activation", "known"), [("softmax", math.e), ("exp", math.e**2), ("relu", 0.5)])
def test_kernel_of_a_unit_input_with_itself(activation, known):
    assert infinite_width_kernel(activation, np.array([[0.6, 0.8]]))[0, 0] == pytest.approx(known, rel=1e-7)
    assert infinite_width_kernel(activation, np.zeros((1, 3))).tolist() == [[0.0]]


@pytest.mark.parametrize("eta", [0.3, 1.0, 1.9])
def test_kernel_descent_equals_the_explicit_loop(eta):
    root, labels, cross = double(2, 7, 5), double(2, 7, 1, seed=1), double(2, 3, 7, seed=2)
    kernel = root @ root.mT  # singular: rank five
    rate, counts = eta / torch.linalg.eigvalsh(kernel)[:, -1], [0, 1, 13]
    found = kernel_gradient_flow(kernel, labels[..., 0], rate, counts)
    away = kernel_gradient_flow(kernel, labels[..., 0], rate, counts, cross=cross)
    outputs, elsewhere = torch.zeros(2, 7, 1).double(), torch.zeros(2, 3, 1).double()
    for step in range(14):
        if step in counts:
            assert_close(found[counts.index(step)], outputs[..., 0], rtol=1e-10, atol=1e-10)
            assert_close(away[counts.index(step)], elsewhere[..., 0], rtol=1e-9, atol=1e-9)
        residual = rate[:, None, None] * (outputs - labels)
        outputs, elsewhere = outputs - kernel @ residual, elsewhere - cross @ residual


def test_samples_are_on_spheres_and_belong_to_their_seed():
    one, again, other = (draw_sample(13, 5, 1, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_allclose(np.linalg.norm(one.inputs, axis=1), 1, rtol=1e-14)
    assert set(one.labels.ravel()) == {-1.0, 1.0}
    np.testing.assert_array_equal(one.inputs, again.inputs)
    assert not np.array_equal(one.inputs, other.inputs)


@every
def test_batched_training_equals_the_plain_loop(activation):
    nets = networks(activation)
    eta = unit_steps(nets) / 2
    found = gradient_descent(nets, X, Y, eta, max_steps=17)
    for k in range(2):
        w = nets.first_layer[k]
        for _ in range(17):
            w = w - eta[k] * differentiated(nets, k, w)[1]
        assert_close(found.networks.first_layer[k], w, rtol=1e-10, atol=1e-12)
    assert found.loss.shape == (18, 2)
    assert found.steps.tolist() == [17, 17]


def test_the_mean_weight_never_moves_and_common_shifts_change_nothing():
    nets = networks("softmax", start="paired")
    trained = gradient_descent(nets, X, Y, torch.full((2,), 1e-3).double(), max_steps=50).networks
    assert_close(trained.first_layer.mean(2), nets.first_layer.mean(2), rtol=0, atol=1e-12)
    assert (trained.first_layer - nets.first_layer).abs().max() > 1e-4
    shifted = replace(trained, first_layer=trained.first_layer + double(2, 7, 1, seed=3))
    assert_close(predict(shifted, X), predict(trained, X), rtol=1e-10, atol=1e-12)


def test_each_network_stops_at_its_own_target_and_has_no_loss_after_it():
    nets, options = networks("exp", start="paired"), {"max_steps": 2000, "target": 0.5}
    eta = unit_steps(nets) * torch.tensor([0.2, 1.0])
    both = gradient_descent(nets, X, Y, eta, **options)
    assert both.reached.all()
    assert both.steps[0] > both.steps[1]
    for k, steps in enumerate(both.steps):
        alone = gradient_descent(nets.subset(np.array([k])), X[[k]], Y[[k]], eta[[k]], **options)
        assert alone.steps[0] == steps
        assert both.loss[steps, k] <= 0.5 * both.loss[0, k]
        assert np.isnan(both.loss[steps + 1 :, k]).all()
        assert_close(alone.networks.first_layer[0], both.networks.first_layer[k], rtol=1e-12, atol=0)


def test_divergence_is_a_result_and_leaves_the_others_alone():
    steps = torch.tensor([1e3, 1e-9]).double()
    found = gradient_descent(networks("exp", start="paired"), 2 * X, Y, steps, max_steps=20)
    assert found.diverged.tolist() == [True, False]
    assert found.steps[0] < 20
    assert torch.isfinite(found.networks.first_layer).all()


def descend(labels=Y, step=1.0, **options):
    return gradient_descent(networks("softmax"), X, labels, torch.tensor([1.0, step]), max_steps=3, **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: draw_weights(7, 5, 3, rng=RNG), "width: .*even.*got 7; take 8"),
        (lambda: draw_weights(8, 5, 3, rng=RNG, scale=math.nan), "scale"),
        (lambda: Networks.stack("exp", [draw_weights(m, 5, 3, rng=RNG) for m in (4, 6)]), r"weights.*group by width"),
        (lambda: networks("tanh"), "activation"),
        (lambda: Networks("exp", math.nan * X, X), "first_layer"),
        (lambda: predict(networks("softmax"), X[..., :6]), "inputs"),
        (lambda: ntk_gram(networks("exp"), X * math.nan), r"inputs.*NaN"),
        (lambda: loss_and_gradient(networks("exp"), X, Y.mT), "labels"),
        (lambda: descend(step=-1.0), "step_size"),
        (lambda: descend(target=1.5), "target"),
        (lambda: descend(labels=math.inf * Y), "labels"),
    ],
)
def test_what_is_impossible_is_refused_by_name(call, message):
    with pytest.raises(REFUSED, match=message):
        call()
