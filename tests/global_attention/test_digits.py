"""The networks of the noisy digits and their batched training against the plain way."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn
from torch.nn import functional

from attnbook import data
from attnbook.core.rng import stream
from attnbook.global_attention.digit_training import (
    CLASSES,
    MODELS,
    Member,
    Training,
    shrink_columns,
    train_members,
)
from attnbook.global_attention.noisy_digits import Scene, draw_noisy_digits

CPU = torch.device("cpu")
SCENES = (Scene(7, 3), Scene(7, 5, "uniform"))
TRAINING = Training(steps=23, batch_size=5, momentum=0.9, width=11, n_train=29, n_test=13, record_at=(0, 23))


@pytest.fixture(scope="module")
def digits():
    return data.digits()


def members(seeds=(0, 1), scenes=SCENES, step_sizes=(0.03, 0.2)):
    return [
        Member(model, seed, scene, step_size, penalty=0.02, decay=0.01, group_lasso=0.003 * (seed % 2))
        for seed in seeds
        for scene in scenes
        for step_size in step_sizes
        for model in MODELS
    ]


def train(chosen, images, training=TRAINING, dtype=torch.float64):
    return train_members(chosen, images, training, device=CPU, dtype=dtype)


def images_of(member, digits, part):
    """Images and labels of a member."""
    drawn = draw_noisy_digits(digits, member.scene, n_train=29, n_test=13, seed=member.seed)
    return torch.tensor(getattr(drawn, part)), torch.tensor(getattr(drawn, f"{part}_labels"))


def plain_training(member, digits, training=TRAINING):
    """One network by nn.Parameter, autograd and torch.optim.SGD: what a user would write."""
    rng = stream(member.seed, "initial weights")
    pixels, width = member.scene.n_pixels, training.width
    hidden = nn.Parameter(torch.tensor(rng.standard_normal((width, pixels)) / np.sqrt(pixels)))
    decoder = nn.Parameter(torch.tensor(rng.standard_normal((CLASSES, width)) / np.sqrt(width)))
    mask = nn.Parameter(torch.ones(pixels, dtype=torch.float64), requires_grad=member.model != "baseline")
    biases = [nn.Parameter(torch.zeros(n, dtype=torch.float64)) for n in (width, CLASSES)]
    free = [p for p in (mask, hidden, decoder, *biases) if p.requires_grad]
    optimizer = torch.optim.SGD(free, lr=member.step_size, momentum=training.momentum)
    x_all, y_all = images_of(member, digits, "train")
    rows = stream(member.seed, "batches").integers(training.n_train, size=(training.steps, training.batch_size))
    for chosen in rows:
        x, y = x_all[chosen], y_all[chosen]
        z = torch.relu((x * mask) @ hidden.T + biases[0]) @ decoder.T + biases[1]
        loss = functional.cross_entropy(z, y)
        loss = loss + member.decay / 2 * (hidden.square().sum() + decoder.square().sum())
        if member.model == "l1_attention":
            loss = loss + member.penalty * mask.abs().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            length = member.step_size * member.group_lasso / (1 - training.momentum)
            for k, norm in enumerate(hidden.norm(dim=0).tolist()):
                hidden[:, k] *= max(0.0, 1 - length / norm) if norm else 0.0
    names = ("mask", "hidden", "decoder", "hidden_bias", "decoder_bias")
    return {name: p.detach() for name, p in zip(names, (mask, hidden, decoder, *biases), strict=True)}


def test_ensemble_equals_training_each_network_alone(digits):
    """To 1e-12 in float64, for every model, seed, scene and step size, with penalties and weight decay."""
    chosen = members()
    history = train(chosen, digits)
    assert not history.diverged.any()
    for i, member in enumerate(chosen):
        for name, expected in plain_training(member, digits).items():
            torch.testing.assert_close(history.parameters[name][i], expected, rtol=1e-10, atol=1e-12, msg=str(member))


def test_members_in_any_order_of_models_end_as_they_do_alone(digits):
    chosen = [Member(model, 0, SCENES[0], 0.1) for model in ("attention", "baseline", "l1_attention", "baseline")]
    history = train(chosen, digits)
    for i, member in enumerate(chosen):
        one = train([member], digits)
        np.testing.assert_allclose(history.records["test_loss"][:, i], one.records["test_loss"][:, 0], rtol=1e-11)
        torch.testing.assert_close(history.parameters["mask"][i], one.parameters["mask"][0], rtol=1e-11, atol=0)


def test_shrinking_minimises_the_penalty_plus_half_the_squared_way():
    start = np.random.default_rng(0).standard_normal((3, 5))
    for by in (0.3, 1.1):
        found = torch.tensor(start[None].copy())
        shrink_columns(found, torch.tensor([by], dtype=torch.float64))

        def cost(w, by=by):
            w = w.reshape(start.shape)
            return by * np.linalg.norm(w, axis=0).sum() + 0.5 * np.square(w - start).sum()

        best = minimize(cost, 0.5 * start.ravel(), tol=1e-12)
        assert cost(found[0].numpy().ravel()) <= best.fun + 1e-9
        np.testing.assert_allclose(found[0].numpy().ravel(), best.x, atol=2e-3)


def test_a_group_penalty_silences_whole_pixels(digits):
    """A strong one all of them, none at all none."""
    chosen = [Member("baseline", 0, SCENES[0], 0.1, group_lasso=weight) for weight in (0.0, 0.02, 5.0)]
    hidden = train(chosen, digits).parameters["hidden"]
    silent = (hidden == 0).all(dim=1).sum(dim=1).tolist()
    assert silent[0] == 0
    assert 0 < silent[1] < 49
    assert silent[2] == 49


def test_networks_of_a_seed_start_as_the_same_function(digits):
    history = train(members(seeds=(0,), scenes=SCENES[:1]), digits)
    for name in ("test_loss", "train_loss", "accuracy"):
        assert np.ptp(history.records[name][0]) <= 1e-13
    assert len(set(history.records["test_loss"][-1])) == len(MODELS) * 2


def test_records_are_measured_on_the_images_they_name(digits):
    """Of the network by hand that the plain loop ends with."""
    (member,) = chosen = [Member("attention", 1, SCENES[1], 0.1)]
    history = train(chosen, digits)
    p = plain_training(member, digits)
    for name, part in (("test_loss", "test"), ("train_loss", "train")):
        x, y = images_of(member, digits, part)
        z = torch.relu((x * p["mask"]) @ p["hidden"].T + p["hidden_bias"]) @ p["decoder"].T + p["decoder_bias"]
        assert history.records[name][-1, 0] == pytest.approx(functional.cross_entropy(z, y).item(), rel=1e-9)
        if part == "test":
            assert history.records["accuracy"][-1, 0] == pytest.approx((z.argmax(1) == y).double().mean().item())
    weights = (p["mask"].abs() * p["hidden"].norm(dim=0)).numpy()
    np.testing.assert_allclose(history.records["strength"][-1, 0], weights, rtol=1e-9)


def test_adding_a_member_changes_no_other(digits):
    few, many = train(members(seeds=(1,)), digits), train(members(seeds=(0, 1)), digits)
    for name, tensor in few.parameters.items():
        torch.testing.assert_close(tensor, many.parameters[name][-len(tensor) :], rtol=0, atol=1e-13)


def test_divergence_is_a_result_and_stays_with_its_network(digits):
    """A step size far too large ends in infinite losses of that network only."""
    alone = train([Member("attention", 0, SCENES[0], 0.1)], digits)
    both = train([Member("attention", 0, SCENES[0], 1e200), Member("attention", 0, SCENES[0], 0.1)], digits)
    assert both.diverged.tolist() == [True, False]
    assert np.isinf(both.records["test_loss"][-1, 0])
    np.testing.assert_allclose(both.records["test_loss"][:, 1], alone.records["test_loss"][:, 0], rtol=1e-12)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"model": "magic"}, "model"),
        ({"step_size": 0.0}, "step_size"),
        ({"step_size": float("nan")}, "step_size"),
        ({"penalty": -0.1}, "penalty"),
        ({"decay": float("inf")}, "decay"),
        ({"group_lasso": -1.0}, "group_lasso"),
    ],
)
def test_impossible_members_are_refused_by_name(change, name):
    with pytest.raises(ValueError, match=name):
        Member(**{"model": "attention", "seed": 0, "scene": SCENES[0], "step_size": 0.1} | change)


@pytest.mark.parametrize(
    "chosen",
    [
        [],
        [Member("baseline", 0, SCENES[0], 0.1), *members(seeds=(1,), scenes=SCENES[:1])],
        [Member("baseline", seed, SCENES[0], 0.1) for seed in (0, 1, 0)],
        [Member("baseline", 0, Scene(7, 3), 0.1), Member("baseline", 0, Scene(8, 3), 0.1)],
    ],
)
def test_members_that_do_not_fit_together_are_refused(chosen, digits):
    with pytest.raises(ValueError, match="members"):
        train(chosen, digits)


@pytest.mark.parametrize("change", [{"n_train": 1438}, {"n_test": 361}, {"width": 0}, {"momentum": 1.0}, {"steps": 0}])
def test_impossible_trainings_are_refused_by_name(change, digits):
    fields = {**TRAINING.__dict__, **change}
    with pytest.raises(ValueError, match=next(iter(change))):
        train(members(seeds=(0,)), digits, Training(**fields))
