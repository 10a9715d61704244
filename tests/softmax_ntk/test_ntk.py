"""The closed-form kernel and gradient descent on a kernel against the plain way."""

import math

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attnbook.softmax_ntk.kernels import infinite_width_kernel
from attnbook.softmax_ntk.ntk import kernel_gradient_flow, ntk_gram
from attnbook.softmax_ntk.two_layer import Networks, draw_weights, neuron_derivatives, predict

ACTIVATIONS = ("softmax", "exp", "relu")


def double(*shape, seed=0):
    return torch.tensor(np.random.default_rng(seed).standard_normal(shape))


def network(activation, *, width=22, n_outputs=3, n_inputs=7, start="independent", members=1):
    rng = np.random.default_rng(5)
    weights = [draw_weights(width, n_inputs, n_outputs, rng=rng, start=start) for _ in range(members)]
    return Networks.stack(activation, weights)


def jacobian(nets, x):
    """All derivatives of all outputs, output-major, by automatic differentiation."""

    def outputs(first_layer):
        z = x[0] @ first_layer
        neurons = {"softmax": nets.width * torch.softmax(z, 1), "exp": z.exp(), "relu": z.relu()}[nets.activation]
        return (nets.signs[0] @ neurons.T).flatten()

    return torch.func.jacrev(outputs)(nets.first_layer[0]).flatten(1)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gram_is_the_product_of_jacobians(activation):
    nets, x, z = network(activation), double(1, 5, 7), double(1, 2, 7, seed=1)
    j, k = jacobian(nets, x), jacobian(nets, z)
    torch.testing.assert_close(ntk_gram(nets, x)[0], j @ j.T / 22, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(ntk_gram(nets, x, z)[0], j @ k.T / 22, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_chunks_and_neighbours_change_nothing(activation):
    nets, x = network(activation, members=3), double(3, 5, 7)
    whole = ntk_gram(nets, x)
    torch.testing.assert_close(ntk_gram(nets, x, chunk=5), whole, rtol=1e-12, atol=1e-12)
    alone = torch.cat([ntk_gram(nets.subset(np.array([k])), x[k : k + 1]) for k in range(3)])
    torch.testing.assert_close(alone, whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_no_tensor_of_the_gram_grows_with_the_width(activation):
    """But for views of the weights: nothing new has more numbers than all features of a chunk."""
    nets, x = network(activation, width=2000), double(1, 50, 7)
    made = []

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            found = function(*args, **(kwargs or {}))
            made.extend(t.numel() for t in torch.utils._pytree.tree_leaves(found) if isinstance(t, torch.Tensor))
            return found

    with Record():
        ntk_gram(nets, x, x, chunk=10)
    rows = nets.signs.shape[1] * 50
    assert max(made) <= rows**2 < 50 * 2000


def test_kernel_of_equal_logits_that_would_overflow_is_found_in_chunks():
    nets, x = network("softmax"), double(1, 5, 7)
    shifted = Networks("softmax", nets.first_layer + 1e3 * x[0, 0].sign()[None, :, None], nets.signs)
    whole = jacobian(shifted, x) @ jacobian(shifted, x).T / 22
    torch.testing.assert_close(ntk_gram(shifted, x, chunk=3)[0], whole, rtol=1e-9, atol=1e-9)


def test_kernel_of_zero_weights_is_known_by_hand():
    """All softmax neurons equal one: with signs in pairs the kernel is the inner product of inputs, per output."""
    nets = Networks("softmax", torch.zeros(1, 3, 4).double(), torch.tensor([[[1.0, -1.0, 1.0, -1.0]]]).double())
    x = double(1, 5, 3)
    torch.testing.assert_close(ntk_gram(nets, x), x @ x.mT, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_wide_networks_have_the_kernel_of_infinite_width(activation):
    nets, x = network(activation, width=16384, n_outputs=1, start="paired"), double(1, 11, 7)
    x /= x.norm(dim=2, keepdim=True)
    limit = torch.tensor(infinite_width_kernel(activation, x[0].numpy()))
    assert (ntk_gram(nets, x)[0] - limit).norm() / limit.norm() < 0.15


def test_derivatives_of_the_softmax_network_sum_to_zero_over_neurons():
    nets, x = network("softmax"), double(1, 5, 7)
    centred = nets.signs[:, :, None] - predict(nets, x)[..., None] / nets.width
    total = (centred * neuron_derivatives(nets, x)[:, None]).sum(3)
    assert total.abs().max() < 1e-12


@pytest.mark.parametrize("eta", [0.3, 1.0, 1.9])
def test_kernel_descent_equals_the_explicit_loop(eta):
    root, labels, cross = double(7, 5), double(7, seed=1), double(3, 7, seed=2)
    kernel = root @ root.T  # singular: rank five
    rate = eta / float(torch.linalg.eigvalsh(kernel)[-1])
    found = kernel_gradient_flow(kernel, labels, rate, [0, 1, 13])
    away = kernel_gradient_flow(kernel, labels, rate, [13], cross=cross)
    outputs, elsewhere = torch.zeros(7).double(), torch.zeros(3).double()
    for step in range(14):
        if step in (0, 1, 13):
            torch.testing.assert_close(found[[0, 1, 13].index(step)], outputs, rtol=1e-10, atol=1e-10)
        if step < 13:
            residual = outputs - labels
            outputs, elsewhere = outputs - rate * kernel @ residual, elsewhere - rate * cross @ residual
    torch.testing.assert_close(away[0], elsewhere, rtol=1e-9, atol=1e-9)


def test_kernel_descent_takes_members_and_their_own_step_sizes():
    root, labels = double(2, 5, 5), double(2, 5, seed=1)
    kernel, eta = root @ root.mT, torch.tensor([0.01, 0.02]).double()
    both = kernel_gradient_flow(kernel, labels, eta, [3, 5])
    for k in range(2):
        alone = kernel_gradient_flow(kernel[k], labels[k], float(eta[k]), [3, 5])
        torch.testing.assert_close(both[:, k], alone, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"scaled_step_size": 0.0}, "scaled_step_size"),
        ({"scaled_step_size": math.nan}, "scaled_step_size"),
        ({"steps": []}, "steps"),
        ({"steps": [-1]}, "steps"),
        ({"kernel": torch.full((2, 2), math.nan)}, "kernel"),
        ({"labels": torch.full((2,), math.inf)}, "labels"),
    ],
)
def test_impossible_kernel_descent_is_refused_by_name(change, name):
    arguments = {"kernel": torch.eye(2), "labels": torch.ones(2), "scaled_step_size": 0.1, "steps": [1]} | change
    with pytest.raises(ValueError, match=name):
        kernel_gradient_flow(**arguments)


def test_bad_arguments_of_the_gram_are_refused_by_name():
    with pytest.raises(ValueError, match="chunk"):
        ntk_gram(network("exp"), double(1, 5, 7), chunk=0)
    with pytest.raises(ValueError, match="inputs"):
        ntk_gram(network("exp"), double(1, 5, 3))
