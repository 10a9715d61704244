"""Hessians against torch's own, a Jacobian in closed form; training that shares nothing between members."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.nn import functional

from attnbook.core.rng import to_tensor
from attnbook.data import Images
from attnbook.global_attention.batches import initial_network
from attnbook.global_attention.digit_training import Member, Training
from attnbook.global_attention.loss_landscape import hessian, interpolation
from attnbook.global_attention.loss_landscape.interpolation import fit_all_weights
from attnbook.global_attention.noisy_digits import Scene, draw_noisy_digits
from attnbook.global_attention.two_layer import Hessian, Softplus, mean_loss, predict

CPU = torch.device("cpu")
MEMBERS, INPUTS, WIDTH, OUTPUTS, SAMPLES = 2, 7, 5, 3, 23
CASES = [(a, loss) for a in (torch.relu, Softplus(3.0)) for loss in ("squared", "cross_entropy")]


def draw(*shape, seed=0):
    return torch.as_tensor(np.random.default_rng(seed).standard_normal(shape))


def problem(loss):
    parameters = {
        "mask": draw(MEMBERS, INPUTS, seed=1),
        "hidden": draw(MEMBERS, WIDTH, INPUTS, seed=2),
        "decoder": draw(MEMBERS, OUTPUTS, WIDTH, seed=3),
    }
    inputs, labels = draw(1, SAMPLES, INPUTS, seed=4), draw(1, OUTPUTS, SAMPLES, seed=5)
    if loss == "cross_entropy":
        labels = functional.one_hot(labels[0].argmax(0), OUTPUTS).double().T[None]
    return parameters, inputs, labels


def plain_loss(vector, inputs, labels, activation, loss, folded=False):
    """One network's loss from all its weights in a row, written with torch's own losses."""
    mask = torch.ones(INPUTS, dtype=torch.float64) if folded else vector[:INPUTS]
    rest = vector if folded else vector[INPUTS:]
    hidden = rest[: WIDTH * INPUTS].view(WIDTH, INPUTS)
    decoder = rest[WIDTH * INPUTS :].view(OUTPUTS, WIDTH)
    before = (inputs * mask) @ hidden.T
    value = before.relu() if activation is torch.relu else functional.softplus(before, beta=activation.sharpness)
    outputs = value @ decoder.T
    if loss == "squared":
        return 0.5 * (outputs - labels.T).square().sum(1).mean()
    return functional.cross_entropy(outputs, labels.T)


@pytest.mark.parametrize(("activation", "loss"), CASES)
@pytest.mark.parametrize("folded", [False, True])
def test_hessian_is_that_of_automatic_differentiation(activation, loss, folded):
    parameters, inputs, labels = problem(loss)
    mask, hidden, decoder = (parameters[name][0] for name in ("mask", "hidden", "decoder"))
    first = hidden * mask if folded else hidden
    hessian = Hessian(None if folded else mask, first, decoder, inputs[0], labels[0], activation=activation, loss=loss)
    vector = torch.cat([*([] if folded else [mask]), first.flatten(), decoder.flatten()])
    arguments = (inputs[0], labels[0], activation, loss, folded)
    automatic = torch.autograd.functional.hessian(lambda v: plain_loss(v, *arguments), vector)
    torch.testing.assert_close(hessian.dense(), automatic, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(
        hessian.gradient, torch.func.grad(plain_loss)(vector, *arguments), rtol=1e-11, atol=1e-12
    )
    assert hessian.loss == pytest.approx(float(plain_loss(vector, *arguments)), rel=1e-12)
    assert hessian.size == len(vector)


def test_folded_hessian_does_not_see_scale_moving_between_mask_and_first_layer():
    parameters, inputs, labels = problem("cross_entropy")
    mask, hidden, decoder = (parameters[name][0] for name in ("mask", "hidden", "decoder"))
    raw, folded = [], []
    for factor in (1.0, 0.1):
        a, w = factor * mask, hidden / factor
        common = (decoder, inputs[0], labels[0])
        options = {"activation": Softplus(), "loss": "cross_entropy"}
        raw.append(Hessian(a, w, *common, **options).dense())
        folded.append(Hessian(None, w * a, *common, **options).dense())
    torch.testing.assert_close(folded[0], folded[1], rtol=1e-10, atol=1e-12)
    assert not torch.allclose(raw[0], raw[1])


def test_neighbours_that_share_a_batch_predict_as_with_their_own():
    parameters, inputs, _ = problem("squared")
    shared = predict(parameters, inputs, Softplus())
    torch.testing.assert_close(shared, predict(parameters, inputs.expand(MEMBERS, -1, -1), Softplus()))


def small_digits(seed=0):
    rng = np.random.default_rng(seed)
    images, labels = rng.integers(0, 256, (61, 5, 5), dtype=np.uint8), rng.integers(0, 10, 61, dtype=np.uint8)
    return Images(images[:43], labels[:43], images[43:], labels[43:], tuple("0123456789"), "random")


SCENE = Scene(7, 4)
TRAINING = Training(steps=13, batch_size=11, momentum=0.9, width=3, n_train=37, n_test=17, record_at=(0, 5, 13))


def data_of(*seeds):
    return {s: draw_noisy_digits(small_digits(), SCENE, n_train=37, n_test=17, seed=s) for s in seeds}


def train_classifiers(members, data, training=TRAINING, **options):
    return hessian.train_classifiers(members, data, training, sharpness=10.0, device=CPU, **options)


def test_a_member_is_trained_as_if_it_were_alone():
    models = (("baseline", 0.0), ("attention", 0.1))
    members = [Member(m, s, SCENE, 0.1, decay=decay) for s in (0, 1) for m, decay in models]
    together, alone = train_classifiers(members, data_of(0, 1)), train_classifiers([members[3]], data_of(1))
    for name, tensor in alone.parameters.items():
        torch.testing.assert_close(together.parameters[name][3], tensor[0], rtol=1e-5, atol=1e-7)


def test_first_step_is_that_of_the_plain_rule():
    """One step of SGD on the first batch, with decay on both layers."""
    member, data = Member("attention", 0, SCENE, 0.1, decay=0.2), data_of(0)
    after = train_classifiers([member], data, dataclasses.replace(TRAINING, steps=1, record_at=(0, 1))).parameters
    start = initial_network([0], 49, 3, 10)
    leaves = {name: to_tensor(start[name]).requires_grad_() for name in ("mask", "hidden", "decoder")}
    x, y = hessian._Samples(data, 11, Softplus(10.0), CPU).batch(0)
    outputs = (
        functional.softplus((x[0] * leaves["mask"][0]) @ leaves["hidden"][0].T, beta=10.0) @ leaves["decoder"][0].T
    )
    loss = functional.cross_entropy(outputs, y[0].T)
    loss = loss + 0.1 * (leaves["hidden"].square().sum() + leaves["decoder"].square().sum())
    loss.backward()
    for name, leaf in leaves.items():
        torch.testing.assert_close(after[name], leaf.detach() - 0.1 * leaf.grad, rtol=1e-5, atol=1e-6)


def test_the_mask_of_the_baseline_stays_at_ones_and_a_member_stops_at_its_loss():
    members = [Member("baseline", 0, SCENE, 0.1), Member("attention", 0, SCENE, 0.1)]
    history = train_classifiers(members, data_of(0), stop_below=np.array([1e9, 0.0]))
    assert history.stopped_at.tolist() == [0, 13]
    assert (history.parameters["mask"][0] == 1).all()
    assert (history.parameters["mask"][1] != 1).all()


def fit(width, steps=150, seed=0):
    rng = np.random.default_rng(seed)
    inputs = torch.as_tensor(rng.standard_normal((1, 11, 3))).expand(2, -1, -1)
    labels = torch.as_tensor(rng.standard_normal((1, 11))).expand(2, -1)
    start = {
        "mask": torch.ones(2, 3, dtype=torch.float64),
        "hidden": torch.as_tensor(rng.standard_normal((1, width, 3))).expand(2, -1, -1),
        "decoder": torch.as_tensor(rng.standard_normal((1, 1, width))).expand(2, -1, -1),
    }
    trained = torch.tensor([False, True])
    options = {"activation": Softplus(2.0), "trained_mask": trained}
    return fit_all_weights(start, inputs, labels, steps=steps, **options), start, inputs, labels, options


def test_as_many_units_as_samples_are_fitted_exactly():
    result, *_ = fit(13)
    assert (result.losses < 1e-20).all()
    assert (result.gradient_norms < 1e-10).all()


def test_an_untrained_mask_stays_and_a_trained_one_moves():
    result, start, *_ = fit(2)
    assert (result.parameters["mask"][0] == start["mask"][0]).all()
    assert (result.parameters["mask"][1] != start["mask"][1]).any()


def test_the_jacobian_is_that_of_automatic_differentiation():
    _, start, inputs, labels, options = fit(5, steps=1)
    at = interpolation._linearised(start, inputs, labels, options["activation"], options["trained_mask"])
    residual, jacobian = at["residual"], at["jacobian"]

    def one(mask, hidden, decoder):
        return decoder[0] @ Softplus(2.0)(hidden @ (inputs[1] * mask).T) - labels[1]

    parts = [start[name][1] for name in ("mask", "hidden", "decoder")]
    torch.testing.assert_close(residual[1], one(*parts))
    expected = torch.cat([j.flatten(1) for j in torch.func.jacrev(one, (0, 1, 2))(*parts)], 1)
    torch.testing.assert_close(jacobian[1], expected, rtol=1e-11, atol=1e-12)
    assert (jacobian[0, :, :3] == 0).all()


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: Softplus(0.0), "sharpness"),
        (lambda: train_classifiers([], {}), "members"),
        (
            lambda: train_classifiers([Member("baseline", 0, SCENE, 0.1)], data_of(0), stop_below=np.zeros(2)),
            "stop_below",
        ),
        (lambda: fit(2, steps=0), "steps"),
        (lambda: mean_loss(torch.ones(1, 2, 3), torch.ones(1, 2, 3), "absolute"), "loss"),
    ],
)
def test_bad_arguments_are_refused_by_name(call, name):
    with pytest.raises((ValueError, TypeError), match=name):  # the shape checker of the tests may be first
        call()
