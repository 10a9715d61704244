"""Networks, gradients, kernels and learning with a kernel against automatic differentiation and the plain way."""

import math
from dataclasses import replace

import jaxtyping
import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from attnbook.softmax_ntk.data import draw_sample
from attnbook.softmax_ntk.kernels import check_activation, infinite_width_kernel
from attnbook.softmax_ntk.ntk import kernel_gradient_flow, ntk_gram
from attnbook.softmax_ntk.two_layer import Networks, draw_weights, loss_and_gradient, predict

REFUSED = (ValueError, jaxtyping.TypeCheckError)  # where shapes are checked, as in tests, that check comes first
ACTIVATIONS = ("softmax", "exp", "relu")


def double(*shape, seed=0):
    return torch.tensor(np.random.default_rng(seed).standard_normal(shape))


X, Y, INPUTS = double(2, 5, 7), double(2, 3, 5, seed=1), double(7, 5).numpy()


def networks(activation, *, members=2, width=24, n_outputs=3, **options):
    options = {"rng": np.random.default_rng(7), "start": "independent"} | options
    return Networks.stack(activation, [draw_weights(width, 7, n_outputs, **options) for _ in range(members)])


def plain(activation, first_layer, signs, x):
    """One network, one formula."""
    z = x @ first_layer
    neurons = {"softmax": z.exp() / z.exp().sum(1, keepdim=True) * z.shape[1], "exp": z.exp(), "relu": z.clamp(min=0)}
    return signs @ neurons[activation].T


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_loss_and_gradient_are_those_of_automatic_differentiation(activation):
    nets = networks(activation)
    losses, gradients = loss_and_gradient(nets, X, Y)
    for k in range(2):
        leaf = nets.first_layer[k].clone().requires_grad_()
        loss = (plain(activation, leaf, nets.signs[k], X[k]) - Y[k]).square().sum() / 2
        torch.testing.assert_close(losses[k], loss.detach(), rtol=1e-12, atol=0)
        torch.testing.assert_close(gradients[k], torch.autograd.grad(loss, leaf)[0], rtol=1e-10, atol=1e-10)


def test_the_softmax_network_is_cross_attention_times_the_width():
    nets = networks("softmax")
    attended = scaled_dot_product_attention(X, nets.first_layer.mT, nets.signs.mT, scale=1.0) * nets.width
    torch.testing.assert_close(predict(nets, X).mT, attended, rtol=1e-12, atol=1e-12)


def test_large_logits_do_not_overflow():
    nets = networks("softmax")
    large = replace(nets, first_layer=nets.first_layer * 1e4)
    assert torch.isfinite(ntk_gram(large, X)).all()


@pytest.mark.parametrize("activation", ACTIVATIONS)
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


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gram_is_the_product_of_jacobians(activation):
    nets, others = networks(activation), double(2, 2, 7, seed=1)
    found, cross = ntk_gram(nets, X), ntk_gram(nets, X, others)
    for k in range(2):

        def jacobian(x, k=k):
            outputs = torch.func.jacrev(lambda w: plain(activation, w, nets.signs[k], x).flatten())
            return outputs(nets.first_layer[k]).flatten(1)

        j = jacobian(X[k])
        torch.testing.assert_close(found[k], j @ j.T / 24, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(cross[k], j @ jacobian(others[k]).T / 24, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_wide_networks_have_the_kernel_of_infinite_width(activation):
    nets = networks(activation, members=1, width=16384, n_outputs=1, start="paired", scale=0.7)
    x = double(1, 11, 7)
    x /= x.norm(dim=2, keepdim=True)
    limit = torch.tensor(infinite_width_kernel(activation, x[0].numpy(), scale=0.7))
    assert (ntk_gram(nets, x)[0] - limit).norm() / limit.norm() < 0.08


@pytest.mark.parametrize(("activation", "known"), [("softmax", math.e), ("exp", math.e**2), ("relu", 0.5)])
def test_kernel_of_a_unit_input_with_itself(activation, known):
    assert infinite_width_kernel(activation, np.array([[0.6, 0.8]]))[0, 0] == pytest.approx(known, rel=1e-7)
    assert infinite_width_kernel(activation, np.zeros((1, 3))).tolist() == [[0.0]]


@pytest.mark.parametrize("eta", [0.3, 1.0, 1.9])
def test_kernel_descent_equals_the_explicit_loop(eta):
    root, labels, cross = double(2, 7, 5), double(2, 7, seed=1), double(2, 3, 7, seed=2)
    kernel = root @ root.mT  # singular: rank five
    rate = eta / torch.linalg.eigvalsh(kernel)[:, -1]
    found = kernel_gradient_flow(kernel, labels, rate, [0, 1, 13])
    away = kernel_gradient_flow(kernel, labels, rate, [13], cross=cross)
    outputs, elsewhere = torch.zeros(2, 7).double(), torch.zeros(2, 3).double()
    for step in range(14):
        if step in (0, 1, 13):
            torch.testing.assert_close(found[[0, 1, 13].index(step)], outputs, rtol=1e-10, atol=1e-10)
        if step < 13:
            residual = rate[:, None] * (outputs - labels)
            outputs = outputs - (kernel @ residual[..., None])[..., 0]
            elsewhere = elsewhere - (cross @ residual[..., None])[..., 0]
    torch.testing.assert_close(away[0], elsewhere, rtol=1e-9, atol=1e-9)


def test_samples_are_on_spheres_and_belong_to_their_seed():
    one, again, other = (draw_sample(13, 5, 1, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_allclose(np.linalg.norm(one.inputs, axis=1), 1, rtol=1e-14)
    assert set(one.labels.ravel()) == {-1.0, 1.0}
    np.testing.assert_array_equal(one.inputs, again.inputs)
    assert not np.array_equal(one.inputs, other.inputs)


RNG = np.random.default_rng(0)
NARROW, WIDE = (draw_weights(m, 5, 3, rng=RNG) for m in (4, 6))
NAN = torch.full((1, 5, 4), math.nan).double()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: draw_weights(7, 5, 3, rng=RNG), "width: .*even.*got 7; take 8"),
        (lambda: draw_weights(8, 5, 3, rng=RNG, scale=math.nan), "scale"),
        (lambda: Networks.stack("softmax", [NARROW, WIDE]), r"weights.*group by width"),
        (lambda: Networks.stack("tanh", [NARROW]), "activation"),
        (lambda: Networks("exp", NAN, NAN), "first_layer"),
        (lambda: predict(networks("softmax"), X[..., :6]), "inputs"),
        (lambda: ntk_gram(networks("exp"), X * math.nan), r"inputs.*NaN"),
        (lambda: loss_and_gradient(networks("exp"), X, Y.mT), "labels"),
        (lambda: check_activation("gelu"), "activation"),
        (lambda: infinite_width_kernel("exp", INPUTS * np.nan), "inputs"),
    ],
)
def test_what_is_impossible_is_refused_by_name(call, message):
    with pytest.raises(REFUSED, match=message):
        call()
