"""MirrorDescent: its own formula, gradient descent at p = 2, torch's conventions, and what is refused."""

import copy
import io
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from attnbook.core import ensemble
from attnbook.mirror_descent import mirror
from attnbook.mirror_descent.optimizer import MirrorDescent, MirrorRule

RNG = np.random.default_rng(0)
START = torch.tensor(RNG.standard_normal((3, 5)))
TARGET = torch.tensor(RNG.standard_normal((3, 5)))


def train(make, *, steps=7, start=START, dtype=torch.float64):
    weight = nn.Parameter(start.clone().to(dtype))
    optimizer = make([weight])
    for _ in range(steps):
        optimizer.zero_grad()
        (weight - TARGET.to(dtype)).pow(4).sum().backward()
        optimizer.step()
    return weight.detach(), optimizer


@pytest.mark.parametrize("p", [1.1, 1.5, 2.0, 3.0])
def test_steps_are_those_of_the_formula(p):
    """The state stays in the mirror space; theory's NumPy maps are the oracle."""
    weight, _ = train(lambda w: MirrorDescent(w, lr=0.01, p=p))
    theta = mirror.mirror_map(START.numpy(), p)
    for _ in range(7):
        w = mirror.inverse_mirror_map(theta, p)
        theta = theta - 0.01 * 4 * (w - TARGET.numpy()) ** 3
    np.testing.assert_allclose(weight.numpy(), mirror.inverse_mirror_map(theta, p), rtol=1e-9, atol=1e-14)


def test_one_step_by_hand():
    """With p = 3 the mirror image of 2 is 4; 4 - 0.5 * 26 = -9, the mirror image of -3."""
    weight = nn.Parameter(torch.tensor([2.0]))
    optimizer = MirrorDescent([weight], lr=0.5, p=3.0)
    weight.grad = torch.tensor([26.0])
    optimizer.step()
    assert weight.item() == -3.0


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("foreach", [False, True])
def test_p_2_is_gradient_descent_to_the_last_bit(momentum, foreach):
    ours, _ = train(lambda w: MirrorDescent(w, lr=0.01, momentum=momentum, foreach=foreach))
    plain, _ = train(lambda w: torch.optim.SGD(w, lr=0.01, momentum=momentum, foreach=foreach))
    assert torch.equal(ours, plain)


def test_p_2_in_single_precision_is_gradient_descent_up_to_rounding():
    ours, _ = train(lambda w: MirrorDescent(w, lr=0.01), dtype=torch.float32)
    plain, _ = train(lambda w: torch.optim.SGD(w, lr=0.01), dtype=torch.float32)
    torch.testing.assert_close(ours, plain)


@pytest.mark.parametrize("p", [1.2, 2.0, 4.0])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_together_and_one_by_one_take_the_same_steps(p, momentum):
    def run(foreach):
        weights = [nn.Parameter(START.clone()), nn.Parameter(TARGET[0].clone())]
        optimizer = MirrorDescent(weights, lr=0.1, p=p, momentum=momentum, foreach=foreach)
        for _ in range(3):
            optimizer.zero_grad()
            sum((w.cos()).sum() for w in weights).backward()
            optimizer.step()
        return weights

    for one, other in zip(run(False), run(True), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-15)


def test_tiny_entries_survive_in_single_precision():
    """At p = 1.1 a mirror image of 1e-6 is a weight of 1e-60: zero in float32, but not forgotten."""
    weight = nn.Parameter(torch.ones(1))
    optimizer = MirrorDescent([weight], lr=1.0, p=1.1)
    for gradient in (1 - 1e-6, -(1 - 1e-6)):
        weight.grad = torch.tensor([gradient], dtype=torch.float64).float()
        optimizer.step()
    assert weight.item() == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize("p", [1.3, 3.0])
def test_normalized_steps_do_not_see_the_scale_of_the_gradient(p):
    def run(scale):
        weight = nn.Parameter(START.clone())
        optimizer = MirrorDescent([weight], lr=0.1, p=p, normalized=True)
        for _ in range(5):
            weight.grad = scale * (weight.detach() - TARGET)
            optimizer.step()
        return weight.detach()

    torch.testing.assert_close(run(1.0), run(1e-200), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("p", [1.3, 2.0, 3.0])
def test_a_normalized_step_is_the_formula_with_the_dual_norm(p):
    weight = nn.Parameter(5 * START.clone())
    weight.grad = TARGET.clone()
    before = weight.detach().numpy().copy()
    MirrorDescent([weight], lr=0.1, p=p, normalized=True).step()
    gradient = TARGET.numpy() / mirror.entrywise_norm(TARGET.numpy(), p / (p - 1))
    length = 0.1 * max(1.0, float(mirror.entrywise_norm(before, p))) ** (p - 2)
    expected = mirror.inverse_mirror_map(mirror.mirror_map(before, p) - length * gradient, p)
    np.testing.assert_allclose(weight.detach().numpy(), expected, rtol=1e-10)


@pytest.mark.parametrize("p", [1.3, 2.0, 3.0])
def test_a_normalized_step_that_keeps_the_direction_moves_the_weights_by_the_step_over_p_minus_one(p):
    before = 100 * START.numpy() / mirror.entrywise_norm(START.numpy(), p)
    weight = nn.Parameter(torch.tensor(before))
    weight.grad = -torch.tensor(mirror.mirror_map(before, p))
    MirrorDescent([weight], lr=0.01, p=p, normalized=True).step()
    moved = mirror.entrywise_norm(weight.detach().numpy() - before, p)
    assert moved == pytest.approx(0.01 / (p - 1), rel=1e-3)


def test_a_zero_gradient_moves_nothing():
    weight = nn.Parameter(START.clone())
    weight.grad = torch.zeros_like(weight)
    MirrorDescent([weight], lr=0.1, p=1.5, normalized=True).step()
    torch.testing.assert_close(weight.detach(), START, rtol=1e-12, atol=0)


def test_stacked_models_have_norms_of_their_own():
    """A stack of two takes the same steps as each alone."""

    def run(start, stacked):
        weight = nn.Parameter(start.clone())
        optimizer = MirrorDescent([weight], lr=0.1, p=1.5, normalized=True, stacked=stacked)
        for _ in range(4):
            weight.grad = weight.detach().sin()
            optimizer.step()
        return weight.detach()

    pair = torch.stack([START, 7 * TARGET])
    together = run(pair, stacked=True)
    for alone, row in zip(pair, together, strict=True):
        torch.testing.assert_close(run(alone, stacked=False), row, rtol=1e-12, atol=1e-14)


def test_groups_have_their_own_exponent_and_step_size():
    first, second, third = (nn.Parameter(START.clone()) for _ in range(3))
    optimizer = MirrorDescent([{"params": [first], "p": 1.5}, {"params": [second], "lr": 0.3}], lr=0.1)
    optimizer.add_param_group({"params": [third], "p": 3.0, "momentum": 0.5})
    for weight in (first, second, third):
        weight.grad = TARGET.clone()
    optimizer.step()
    for weight, lr, p in ((first, 0.1, 1.5), (second, 0.3, 2.0), (third, 0.1, 3.0)):
        expected = mirror.inverse_mirror_map(mirror.mirror_map(START.numpy(), p) - lr * TARGET.numpy(), p)
        np.testing.assert_allclose(weight.detach().numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_state_survives_saving_at_full_precision(dtype):
    """A run that is saved, loaded into a new optimiser and continued is the run that was not interrupted."""
    make = partial(MirrorDescent, lr=0.01, p=1.2, momentum=0.9)
    whole, _ = train(make, steps=8, dtype=dtype)
    weight, optimizer = train(make, steps=4, dtype=dtype)
    stream = io.BytesIO()
    torch.save(optimizer.state_dict(), stream)
    stream.seek(0)
    resumed = nn.Parameter(weight.clone())
    other = make([resumed])
    other.load_state_dict(torch.load(stream))
    assert {value.dtype for value in other.state[resumed].values()} == {torch.float64}
    for _ in range(4):
        other.zero_grad()
        (resumed - TARGET.to(dtype)).pow(4).sum().backward()
        other.step()
    assert torch.equal(resumed.detach(), whole)


def test_a_loaded_state_shares_no_memory_with_the_saved_one():
    _, optimizer = train(lambda w: MirrorDescent(w, lr=0.01, p=1.2))
    saved = optimizer.state_dict()
    kept = copy.deepcopy(saved["state"][0]["mirrored"])
    other = MirrorDescent([nn.Parameter(START.clone())], lr=0.01, p=1.2)
    other.load_state_dict(saved)
    other.param_groups[0]["params"][0].grad = TARGET.clone()
    other.step()
    assert torch.equal(saved["state"][0]["mirrored"], kept)


def test_a_closure_is_called_with_gradients_on_and_its_loss_returned():
    weight = nn.Parameter(START.clone())
    optimizer = MirrorDescent([weight], lr=0.1, p=1.5)

    def closure():
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == pytest.approx(START.square().sum().item())
    assert not torch.equal(weight.detach(), START)


def test_weights_without_a_gradient_stay():
    used, unused = nn.Parameter(START.clone()), nn.Parameter(TARGET.clone())
    used.grad = TARGET.clone()
    optimizer = MirrorDescent([used, unused], lr=0.1, p=1.5)
    optimizer.step()
    assert torch.equal(unused.detach(), TARGET)
    assert unused not in optimizer.state


def test_torch_schedulers_work():
    weight = nn.Parameter(START.clone())
    optimizer = MirrorDescent([weight], lr=0.4, p=1.5)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    weight.grad = TARGET.clone()
    optimizer.step()
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.2


def test_sparse_gradients_are_refused_with_the_remedy():
    table = nn.Embedding(5, 3, sparse=True)
    table(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse=False"):
        MirrorDescent(table.parameters(), lr=0.1).step()


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"lr": -0.1}, "lr"),
        ({"lr": float("nan")}, "lr"),
        ({"lr": 0.1, "p": 1.0}, "p: "),
        ({"lr": 0.1, "p": 0.5}, "p: "),
        ({"lr": 0.1, "p": float("inf")}, "p: "),
        ({"lr": 0.1, "momentum": 1.0}, "momentum"),
        ({"lr": 0.1, "foreach": True, "normalized": True}, "foreach"),
    ],
)
def test_impossible_options_are_refused_by_name(options, name):
    with pytest.raises(ValueError, match=name):
        MirrorDescent([nn.Parameter(START.clone())], **options)
    with pytest.raises(ValueError, match=name):
        MirrorDescent([{"params": [nn.Parameter(START.clone())], **options}], lr=0.1)


@pytest.mark.parametrize("normalized", [False, True])
def test_members_of_an_ensemble_train_as_if_alone(normalized):
    """Each with its own exponent and step size, through core.ensemble."""
    ps, sizes = [1.2, 2.0, 2.0, 3.0], [0.01, 0.02, 0.02, 0.03]
    starts = torch.tensor(np.random.default_rng(1).standard_normal((4, 3, 5)))
    gradient = ensemble.autograd(lambda parameters, _: (parameters["w"] - TARGET).pow(4).sum((1, 2)))
    history = ensemble.train(
        gradient,
        {"w": starts},
        lambda _: None,
        optimizer=MirrorRule(sizes, ps, momentum=0.5, normalized=normalized),
        steps=6,
        record=lambda parameters: {"w": parameters["w"]},
    )
    for i, (p, lr) in enumerate(zip(ps, sizes, strict=True)):
        make = partial(MirrorDescent, lr=lr, p=p, momentum=0.5, normalized=normalized)
        alone, _ = train(make, steps=6, start=starts[i])
        torch.testing.assert_close(history.parameters["w"][i], alone, rtol=1e-11, atol=1e-13)


def test_a_projection_after_each_step_of_an_ensemble_is_not_undone():
    """Each member, with an exponent of its own, is the plain loop that projects its weights."""

    def project(parameters):
        parameters["w"].clamp_(-0.5, 0.5)

    starts, ps = torch.stack([START, TARGET]), [1.5, 3.0]
    gradient = ensemble.autograd(lambda parameters, _: (parameters["w"] - 2).pow(2).sum((1, 2)))
    history = ensemble.train(
        gradient,
        {"w": starts},
        lambda _: None,
        optimizer=MirrorRule(0.01, ps),
        steps=6,
        record=lambda parameters: {"w": parameters["w"]},
        project=project,
    )
    for found, w, p in zip(history.parameters["w"], starts.numpy(), ps, strict=True):
        for _ in range(6):
            w = mirror.inverse_mirror_map(mirror.mirror_map(w, p) - 0.01 * 2 * (w - 2), p).clip(-0.5, 0.5)
        np.testing.assert_allclose(found, w, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        (MirrorRule([0.1, 0.2]), "step_size"),
        (MirrorRule(-1.0), "step_size"),
        (MirrorRule(0.1, [2.0, 2.0]), "p: "),
        (MirrorRule(0.1, 1.0), "p: "),
        (MirrorRule(0.1, momentum=2.0), "momentum"),
    ],
)
def test_rules_that_fit_no_ensemble_are_refused_by_name(rule, name):
    with pytest.raises(ValueError, match=name):
        rule.options(3)
