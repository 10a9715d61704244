"""The networks and their batched training against the plain way."""

import numpy as np
import pytest
import torch
from torch import nn

from attnbook.core import ensemble
from attnbook.core.rng import stream, to_tensor
from attnbook.global_attention.batches import BLOCK
from attnbook.global_attention.masks import (
    Member,
    Setup,
    Training,
    allowance,
    effective_weights,
    loss_and_gradient,
    train_members,
)
from attnbook.global_attention.two_layer import predict

CPU = torch.device("cpu")
SETUP = Setup(n_inputs=7, outputs=3, teacher_width=5, width=11, noise=0.1, n_test=13)
STEPS = BLOCK + 17  # crosses a block of batches
MODELS = ("baseline", "attention", "l1_attention", "sum_to_one", "limited", "group_penalty", "oracle")


def members(seeds=(0, 1), sizes=(19, 23)):
    return [Member(m, seed, n, 2, penalty=0.03) for seed in seeds for n in sizes for m in MODELS]


def train(chosen, *, steps=STEPS, dtype=torch.float64, **options):
    training = Training(steps, batch_size=5, step_size=0.01, record_at=(0, steps), **options)
    return train_members(chosen, SETUP, training, device=CPU, dtype=dtype)


def random_parameters(count):
    rng = np.random.default_rng(0)
    shapes = {"mask": (count, 7), "hidden": (count, 11, 7), "decoder": (count, 3, 11)}
    return {name: to_tensor(rng.standard_normal(shape), dtype=torch.float64) for name, shape in shapes.items()}


def plain_training(member, rule):
    """One network by nn.Parameter, autograd and torch.optim: what a user would write."""
    teacher, rng = SETUP.teacher(member.seed, member.n_relevant), stream(member.seed, "initial weights")
    hidden = nn.Parameter(torch.tensor(rng.standard_normal((11, 7)) / np.sqrt(7)))
    decoder = nn.Parameter(torch.tensor(rng.standard_normal((3, 11)) / np.sqrt(11)))
    mask = nn.Parameter(torch.tensor(teacher.mask if member.model == "oracle" else np.ones(7)))
    mask.requires_grad_(member.model not in ("baseline", "group_penalty", "oracle"))
    x_all = stream(member.seed, "inputs").standard_normal((23, 7))
    y_all = teacher(x_all) + SETUP.noise * stream(member.seed, "noise").standard_normal((23, 3))
    optimizer = getattr(torch.optim, rule)([p for p in (mask, hidden, decoder) if p.requires_grad], lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for step in range(STEPS):
        block, within = divmod(step, BLOCK)
        drawn = stream(member.seed, "batches", member.n_samples, block).random((BLOCK, 5))
        chosen = (drawn[within] * member.n_samples).astype(int)
        x, y = torch.tensor(x_all[chosen]), torch.tensor(y_all[chosen])
        loss = (torch.relu((x * mask) @ hidden.T) @ decoder.T - y).square().mean()
        if member.model == "l1_attention":
            loss = loss + member.penalty * mask.abs().sum()
        if member.model == "group_penalty":
            loss = loss + member.penalty * hidden.norm(dim=0).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if member.model == "sum_to_one":
            with torch.no_grad():
                mask.clamp_(min=0)
                mask.div_(mask.mean())
        if member.model == "limited":
            with torch.no_grad():
                strength = mask.abs() * hidden.norm(dim=0)
                order = strength.argsort(descending=True)
                mask.clamp_(0, 1)[order[allowance(step, STEPS, 7, 2) :]] = 0
    return {"mask": mask.detach(), "hidden": hidden.detach(), "decoder": decoder.detach()}


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["Adam", "SGD"])
def test_ensemble_equals_training_each_network_alone(rule):
    """To 1e-12 in float64, for every model, seed and sample size; the step size falls along a cosine."""
    chosen = members()
    history = train(chosen, decay=True, rule=rule)
    for i, member in enumerate(chosen):
        for name, expected in plain_training(member, rule).items():
            torch.testing.assert_close(history.parameters[name][i], expected, rtol=1e-10, atol=1e-12, msg=str(member))


def test_adding_a_member_changes_no_other():
    """Up to the rounding of matrix products of another batch size, whether or not neighbours share a batch."""
    few = train(members(seeds=(0,), sizes=(23,)))
    many = train(members(seeds=(0, 1), sizes=(23,)))
    uneven = train([*members(seeds=(0,), sizes=(23,)), Member("attention", 3, 17, 2)])
    for name, tensor in few.parameters.items():
        torch.testing.assert_close(tensor, many.parameters[name][: len(tensor)], rtol=0, atol=1e-13)
        torch.testing.assert_close(tensor, uneven.parameters[name][: len(tensor)], rtol=0, atol=1e-13)


def test_same_members_twice_give_the_same_bits():
    first, second = (train(members(), dtype=torch.float32) for _ in range(2))
    assert np.array_equal(first.records["test_loss"], second.records["test_loss"])


@pytest.mark.parametrize("groups", [2, 6])
def test_closed_gradient_is_that_of_autograd(groups):
    """Whether batches are shared by neighbours (2 batches for 6 members) or not."""
    parameters, rng = random_parameters(6), np.random.default_rng(1)
    x, y = torch.tensor(rng.standard_normal((groups, 5, 7))), torch.tensor(rng.standard_normal((groups, 3, 5)))
    share = 6 // groups
    x_each, y_each = x.repeat_interleave(share, 0), y.repeat_interleave(share, 0)
    oracle = ensemble.autograd(lambda p, _: (predict(p, x_each, torch.relu) - y_each).square().mean((1, 2)))
    losses, gradients = loss_and_gradient(parameters, (x, y))
    expected_losses, expected = oracle(parameters, None)
    torch.testing.assert_close(losses, expected_losses, rtol=1e-13, atol=0)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-11, atol=1e-13)


def test_network_of_one_unit_by_hand():
    """f(x) = 3 max(2 (5 a1 - 7 a2), 0) with a = (1, 1/2): 3 * 2 * 1.5 = 9; and 0 for the opposite input."""
    parameters = {
        "mask": torch.tensor([[1.0, 0.5]]),
        "hidden": torch.tensor([[[2.0, 2.0]]]),
        "decoder": torch.tensor([[[3.0]]]),
    }
    x = torch.tensor([[[5.0, -7.0], [-5.0, 7.0]]])
    assert predict(parameters, x, torch.relu).tolist() == [[[9.0, 0.0]]]
    assert effective_weights(parameters).tolist() == [[2.0, 1.0]]


def test_models_of_a_seed_start_as_the_same_function():
    first = train([Member(m, 0, 19, 2) for m in MODELS], steps=1).records["test_loss"][0]
    assert len(set(first[:-1])) == 1
    assert first[-1] != first[0]  # the oracle starts at the true mask


def test_masks_obey_their_model():
    final = train(members(seeds=(0,), sizes=(19,))).parameters["mask"]
    truth = torch.tensor(SETUP.teacher(0, 2).mask)
    baseline, attention, _, simplex, limited, _, oracle = final
    assert torch.equal(baseline, torch.ones(7, dtype=torch.float64))
    assert not torch.equal(attention, baseline)
    assert simplex.min() >= 0
    assert simplex.mean().item() == pytest.approx(1.0)
    assert torch.equal(oracle, truth)
    assert int((limited > 0).sum()) == 2
    assert limited.max() <= 1


def test_test_loss_is_measured_against_clean_labels():
    """A network that is the teacher has no error, however noisy the training labels are."""
    history = train([Member("baseline", 0, 19, 2)], steps=1)
    inputs = stream(0, "test inputs").standard_normal((13, 7))
    labels = torch.tensor(SETUP.teacher(0, 2)(inputs)).T
    # Undo the one step by evaluating the recorded initial function by hand.
    rng = stream(0, "initial weights")
    hidden, decoder = rng.standard_normal((11, 7)) / np.sqrt(7), rng.standard_normal((3, 11)) / np.sqrt(11)
    by_hand = (torch.tensor(decoder @ np.maximum(hidden @ inputs.T, 0)) - labels).square().mean()
    assert history.records["test_loss"][0, 0] == pytest.approx(by_hand.item(), rel=1e-12)
    bias = (torch.tensor(decoder @ np.maximum(hidden @ inputs.T, 0)) - labels).mean(1).square().mean().sqrt()
    assert history.records["bias"][0, 0] == pytest.approx(bias.item(), rel=1e-12)


def test_the_gradient_conserves_the_balance_of_mask_and_columns():
    """Mask times its derivative is the product of column and derivative, so a^2 and |w|^2 change alike."""
    parameters, rng = random_parameters(2), np.random.default_rng(2)
    batch = torch.tensor(rng.standard_normal((1, 5, 7))), torch.tensor(rng.standard_normal((1, 3, 5)))
    gradients = loss_and_gradient(parameters, batch)[1]
    of_columns = (parameters["hidden"] * gradients["hidden"]).sum(1)
    torch.testing.assert_close(parameters["mask"] * gradients["mask"], of_columns, rtol=1e-12, atol=1e-14)


def test_a_limit_falls_from_all_inputs_to_what_may_stay():
    found = [allowance(step, 100, 32, 4) for step in range(100)]
    assert found[:11] == [32] * 11
    assert found[50:] == [4] * 50
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("magic", 0, 5, 2), "model"),
        (("attention", 0, 0, 2), "n_samples"),
        (("attention", 0, 5, -2), "n_relevant"),
        (("attention", 0, 5, 2, -0.1), "penalty"),
        (("attention", 0, 5, 2, float("nan")), "penalty"),
        (("limited", 0, 5, 2, 0.0, 0), "limit"),
    ],
)
def test_impossible_members_are_refused_by_name(arguments, name):
    with pytest.raises(ValueError, match=name):
        Member(*arguments)


def test_more_relevant_inputs_than_inputs_are_refused():
    with pytest.raises(ValueError, match="n_relevant"):
        train([Member("attention", 0, 19, 8)])


def test_a_rule_that_does_not_exist_and_a_limit_above_the_inputs_are_refused():
    with pytest.raises(ValueError, match="rule: expected Adam or SGD"):
        Training(3, 5, 0.01, (3,), rule="magic")
    with pytest.raises(ValueError, match="limit: expected at most n_inputs = 7, got 8"):
        train([Member("limited", 0, 19, 2, limit=8)])


def test_no_members_are_refused():
    with pytest.raises(ValueError, match="members"):
        train([])


def test_divergence_names_the_network():
    training = Training(200, batch_size=5, step_size=1e30, record_at=(200,))
    with pytest.raises(FloatingPointError, match=r"attention \(seed 0, 19 samples"):
        train_members([Member("attention", 0, 19, 2)], SETUP, training, device=CPU)
