"""MirrorDescent as a torch optimiser like others: conventions, gradients that are no numbers, extreme exponents."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from attnbook.mirror_descent import mirror, mirror_steps
from attnbook.mirror_descent.optimizer import MirrorDescent

DOUBLES = {"dtype": torch.float64}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).double()


def backward(model, inputs=None):
    inputs = torch.arange(6.0, **DOUBLES).view(2, 3) if inputs is None else inputs
    model.zero_grad()
    model(inputs).square().mean().backward()


def flat(model):
    return torch.cat([w.detach().flatten() for w in model.parameters()]).clone()


def trained(make, steps=3):
    model = network()
    optimizer = make(model)
    for _ in range(steps):
        backward(model)
        optimizer.step()
    return model, optimizer


@settings(max_examples=12, deadline=None)
@given(
    lr=st.floats(1e-4, 0.1),
    momentum=st.sampled_from([0.0, 0.5, 0.9]),
    weight_decay=st.sampled_from([0.0, 0.01, 0.3]),
    maximize=st.booleans(),
    foreach=st.booleans(),
)
def test_p_2_is_sgd_to_the_last_bit_whatever_the_options(**options):
    ours, _ = trained(lambda m: MirrorDescent(m.parameters(), p=2.0, **options))
    plain, _ = trained(lambda m: torch.optim.SGD(m.parameters(), **options))
    assert torch.equal(flat(ours), flat(plain))


@settings(max_examples=20, deadline=None)
@given(p=st.floats(1.2, 4.0), weight_decay=st.floats(0.0, 0.5), foreach=st.booleans())
def test_weight_decay_is_the_gradient_of_the_potential(p, weight_decay, foreach):
    weight = nn.Parameter(torch.tensor([0.3, -1.2, 2.0], **DOUBLES))
    theta = mirror.mirror_map(weight.detach().numpy()[None], p)[0]
    weight.grad = torch.tensor([0.1, 0.2, -0.3], **DOUBLES)
    MirrorDescent([weight], lr=0.1, p=p, weight_decay=weight_decay, foreach=foreach).step()
    moved = theta - 0.1 * (weight.grad.numpy() + weight_decay * theta)
    expected = mirror.inverse_mirror_map(moved[None], p)[0]
    np.testing.assert_allclose(weight.detach().numpy(), expected, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("p", [1.3, 1.5, 3.0])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_pieces_of_a_large_tensor_take_the_step_of_the_whole(p, momentum, monkeypatch):
    def run(piece):
        monkeypatch.setattr(mirror_steps, "PIECE", piece)
        return flat(trained(lambda m: MirrorDescent(m.parameters(), lr=0.1, p=p, momentum=momentum))[0])

    # not bit by bit: a power at the end of a piece may be rounded otherwise than one in the middle of a vector
    torch.testing.assert_close(run(10**6), run(4), rtol=1e-12, atol=1e-15)


def test_the_root_for_narrow_weights_is_the_root():
    """Zero, tiny and huge entries included; rounded to single precision there is no difference to see."""
    theta = torch.tensor([0.0, -0.0, 1e-320, -1e-300, 1e-40, -0.7, 3.0, 1e70], **DOUBLES)
    narrow = mirror_steps.image(theta, 3.0, torch.float32).float()
    torch.testing.assert_close(narrow, mirror_steps.image(theta, 3.0).float(), rtol=2e-7, atol=0)


def test_memory_that_is_not_contiguous_takes_the_same_steps(monkeypatch):
    monkeypatch.setattr(mirror_steps, "PIECE", 4)
    values, gradient = torch.randn(5, 7, **DOUBLES), torch.randn(5, 7, **DOUBLES)
    plain, turned = nn.Parameter(values.clone()), nn.Parameter(values.t().contiguous().t())
    for weight in (plain, turned):
        weight.grad = gradient.clone()
        MirrorDescent([weight], lr=0.1, p=1.5, momentum=0.5).step()
    torch.testing.assert_close(plain, turned, rtol=0, atol=0)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_gradient_that_is_no_number_names_its_parameter_and_changes_nothing(named, value):
    model = network()
    params = model.named_parameters() if named else model.parameters()
    optimizer = MirrorDescent(params, lr=0.1, p=1.5, momentum=0.9)
    for spoilt in (False, True):
        backward(model)
        if spoilt:
            model[2].weight.grad[0, 3] = value
        before, state = flat(model), copy.deepcopy(optimizer.state_dict())
        if not spoilt:
            optimizer.step()
            continue
        name = "'2.weight' " if named else ""
        with pytest.raises(FloatingPointError, match=name + r".*parameter 2 of group 0, shape \(1, 5\).* has 1 NaN"):
            optimizer.step()
        assert torch.equal(flat(model), before)
        for number, values in state["state"].items():
            for key, kept in values.items():
                assert torch.equal(optimizer.state_dict()["state"][number][key], kept)


def test_a_bad_gradient_in_a_later_group_stops_the_first_group_too():
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = MirrorDescent([{"params": [first]}, {"params": [second], "p": 3.0}], lr=0.1)
    first.grad, second.grad = torch.ones(2), torch.tensor([1.0, float("nan")])
    with pytest.raises(FloatingPointError, match="parameter 0 of group 1"):
        optimizer.step()
    assert torch.equal(first.detach(), torch.ones(2))
    assert not optimizer.state


def test_large_gradients_are_no_errors_although_their_squares_overflow():
    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.full((3,), 3e38)
    MirrorDescent([weight], lr=1e-38).step()
    assert torch.isfinite(weight).all()


def test_the_check_can_be_left_out():
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.tensor([1.0, float("nan")])
    MirrorDescent([weight], lr=0.5, error_if_nonfinite=False).step()
    assert weight[0] == 0.5
    assert weight[1].isnan()


@settings(max_examples=60, deadline=None)
@given(
    p=st.sampled_from([1.001, 1.01, 1.1, 30.0]),
    exponent=st.integers(-300, 30),
    start=st.sampled_from([0.0, 1e-30, -0.5, 1.0]),
    normalized=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_extreme_exponents_and_gradients_leave_no_nan(p, exponent, start, normalized, dtype):
    """Weights may underflow to zero or overflow; the state in the mirror space stays a number."""
    weight = nn.Parameter(torch.tensor([start, 1.0], dtype=dtype))
    optimizer = MirrorDescent([weight], lr=0.1, p=p, normalized=normalized)
    for sign in (1.0, -1.0, -1.0):
        weight.grad = torch.tensor([sign, -sign / 3], **DOUBLES).mul(10.0**exponent).to(dtype)
        optimizer.step()
        assert not weight.isnan().any()
        assert optimizer.state[weight]["mirrored"].isfinite().all()


def test_an_entry_that_underflows_near_p_1_comes_back():
    weight = nn.Parameter(torch.ones(2, **DOUBLES))
    optimizer = MirrorDescent([weight], lr=1.0, p=1.001)
    for gradient in (0.9, -0.9):
        weight.grad = torch.full((2,), gradient, **DOUBLES)
        optimizer.step()
    np.testing.assert_allclose(weight.detach(), 1.0, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64])
def test_weights_that_are_no_real_numbers_are_refused_by_name_and_leave_no_group(dtype):
    good = nn.Parameter(torch.ones(2))
    optimizer = MirrorDescent([good], lr=0.1)
    odd = nn.Parameter(torch.ones(3, dtype=dtype), requires_grad=False)
    with pytest.raises(TypeError, match=r"parameter 1 of group 1, shape \(3,\) has type torch\."):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1)), odd]})
    assert len(optimizer.param_groups) == 1


def test_sparse_gradients_change_nothing_either():
    table, other = nn.Embedding(5, 3, sparse=True), nn.Parameter(torch.ones(2))
    table(torch.tensor([1])).sum().backward()
    other.grad = torch.ones(2)
    with pytest.raises(RuntimeError, match="parameter 1 of group 0"):
        MirrorDescent([other, *table.parameters()], lr=0.1).step()
    assert torch.equal(other.detach(), torch.ones(2))


@pytest.mark.parametrize("scheduler", ["StepLR", "CosineAnnealingLR", "OneCycleLR", "ReduceLROnPlateau", "LambdaLR"])
def test_every_kind_of_schedule_changes_the_step_size(scheduler):
    arguments = {
        "StepLR": {"step_size": 1, "gamma": 0.5},
        "CosineAnnealingLR": {"T_max": 5},
        "OneCycleLR": {"max_lr": 0.3, "total_steps": 5},
        "ReduceLROnPlateau": {"patience": 0},
        "LambdaLR": {"lr_lambda": lambda epoch: 1 / (1 + epoch)},
    }[scheduler]
    model = network()
    optimizer = MirrorDescent(model.parameters(), lr=0.1, p=1.5, momentum=0.9)
    schedule = getattr(torch.optim.lr_scheduler, scheduler)(optimizer, **arguments)
    seen = set()
    for _ in range(4):
        backward(model)
        optimizer.step()
        seen.add(optimizer.param_groups[0]["lr"])
        schedule.step(*([1.0] if scheduler == "ReduceLROnPlateau" else []))
    assert len(seen) >= 3


def test_an_exponent_may_change_between_steps():
    """The weights do not jump: a step of size zero leaves them, and the next step is that of the new exponent."""
    weight = nn.Parameter(torch.tensor([0.5, -2.0], **DOUBLES))
    optimizer = MirrorDescent([weight], lr=0.0, p=1.5, momentum=0.9)
    weight.grad = torch.ones(2, **DOUBLES)
    optimizer.step()
    optimizer.param_groups[0]["p"] = 3.0
    optimizer.step()
    np.testing.assert_allclose(weight.detach(), [0.5, -2.0], rtol=1e-12)
    torch.testing.assert_close(optimizer.state[weight]["mirrored"], torch.tensor([0.25, -4.0], **DOUBLES))
    optimizer.param_groups[0]["p"] = 1.0
    with pytest.raises(ValueError, match="p: expected a finite number above 1"):
        optimizer.step()


def test_a_stack_of_single_numbers_has_a_norm_each():
    weight = nn.Parameter(torch.tensor([1.0, 2.0], **DOUBLES))
    weight.grad = torch.tensor([3.0, -4.0], **DOUBLES)
    MirrorDescent([weight], lr=0.5, normalized=True, stacked=True).step()
    assert weight.tolist() == [0.5, 2.5]


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"normalized": True}])
def test_empty_and_scalar_parameters_are_parameters_too(options):
    empty, scalar = nn.Parameter(torch.zeros(0, 3)), nn.Parameter(torch.tensor(4.0))
    empty.grad, scalar.grad = torch.zeros(0, 3), torch.tensor(1.0)
    MirrorDescent([empty, scalar], lr=1.0, p=1.5, **options).step()
    assert scalar < 4.0


def test_step_hooks_run_and_gradients_are_cleared():
    model = network()
    optimizer = MirrorDescent(model.parameters(), lr=0.1)
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    backward(model)
    optimizer.step()
    optimizer.zero_grad()
    assert seen == ["before", "after"]
    assert all(w.grad is None for w in model.parameters())


def continued(model, optimizer):
    backward(model)
    optimizer.step()
    return flat(model)


@pytest.mark.parametrize("how", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))])
def test_a_copy_of_model_and_optimizer_goes_on_alike(how):
    both = trained(lambda m: MirrorDescent(m.named_parameters(), lr=0.05, p=1.3, momentum=0.9))
    other = how(both)
    assert torch.equal(continued(*both), continued(*other))


def saved(optimizer):
    """Through a file that may hold tensors and plain values alone."""
    stream = io.BytesIO()
    torch.save(optimizer.state_dict(), stream)
    stream.seek(0)
    return torch.load(stream, weights_only=True)


def test_saving_needs_no_pickled_objects():
    def make(model):
        return MirrorDescent(model.named_parameters(), lr=0.05, p=1.3, momentum=0.9, weight_decay=0.01)

    model, optimizer = trained(make)
    twin = copy.deepcopy(model)
    resumed = make(twin)
    resumed.load_state_dict(saved(optimizer))
    assert torch.equal(continued(model, optimizer), continued(twin, resumed))


def put_best(weight, values):
    weight.data = values.clone()


def copy_best(weight, values):
    with torch.no_grad():
        weight.copy_(values)


@pytest.mark.parametrize("p", [1.3, 2.0, 3.0])
@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("change", [put_best, copy_best])
def test_weights_that_were_changed_from_outside_are_where_the_next_step_starts(p, foreach, change):
    """As with any optimiser: the best weights that are loaded are not undone."""
    model = nn.Linear(3, 1, bias=False).double()
    optimizer = MirrorDescent(model.parameters(), lr=0.1, p=p, foreach=foreach)
    best = torch.tensor([[0.5, -2.0, 0.1]], **DOUBLES)
    backward(model)
    optimizer.step()
    change(model.weight, best)
    model.weight.grad = torch.tensor([[0.3, 0.2, -0.1]], **DOUBLES)
    optimizer.step()
    expected = mirror.inverse_mirror_map(mirror.mirror_map(best.numpy(), p) - 0.1 * model.weight.grad.numpy(), p)
    np.testing.assert_allclose(model.weight.detach(), expected, rtol=1e-12)


def test_a_model_that_loads_its_best_state_goes_on_from_there():
    model, optimizer = trained(lambda m: MirrorDescent(m.parameters(), lr=0.05, p=1.5))
    best = copy.deepcopy(model.state_dict())
    for _ in range(5):
        continued(model, optimizer)
    model.load_state_dict(best)
    fresh = network()
    fresh.load_state_dict(best)
    expected = continued(fresh, MirrorDescent(fresh.parameters(), lr=0.05, p=1.5))
    torch.testing.assert_close(continued(model, optimizer), expected, rtol=1e-12, atol=1e-15)


def test_only_the_entries_that_were_changed_are_read_again():
    """At p = 1.1 a mirror image of 1e-6 is a weight of 1e-60, zero in single precision: it is not read from there."""
    weight = nn.Parameter(torch.ones(3))
    optimizer = MirrorDescent([weight], lr=1.0, p=1.1)
    weight.grad = torch.full((3,), 1 - 1e-6)
    optimizer.step()
    kept = optimizer.state[weight]["mirrored"].clone()
    with torch.no_grad():
        weight[1] = -4.0
    weight.grad = torch.zeros(3)
    optimizer.step()
    assert torch.equal(optimizer.state[weight]["mirrored"][[0, 2]], kept[[0, 2]])
    assert weight.tolist() == pytest.approx([0.0, -4.0, 0.0], abs=1e-45)


def test_a_state_that_was_saved_with_other_weights_does_not_bring_them_back():
    _, optimizer = trained(lambda m: MirrorDescent(m.parameters(), lr=0.05, p=1.5))
    model, twin = network(), network()
    resumed = MirrorDescent(model.parameters(), lr=0.05, p=1.5)
    resumed.load_state_dict(saved(optimizer))
    expected = continued(twin, MirrorDescent(twin.parameters(), lr=0.05, p=1.5))
    torch.testing.assert_close(continued(model, resumed), expected, rtol=1e-12, atol=1e-15)


def test_a_state_from_before_newer_options_is_loaded_with_their_defaults():
    model, optimizer = trained(lambda m: MirrorDescent(m.parameters(), lr=0.05, p=1.3))
    old = saved(optimizer)
    for name in ("weight_decay", "maximize", "error_if_nonfinite", "mirrored_at"):
        del old["param_groups"][0][name]
    twin = copy.deepcopy(model)
    resumed = MirrorDescent(twin.parameters(), lr=0.05, p=1.3)
    resumed.load_state_dict(old)
    assert torch.equal(continued(model, optimizer), continued(twin, resumed))


def test_a_state_in_single_precision_is_widened_with_a_word():
    model, optimizer = trained(lambda m: MirrorDescent(m.named_parameters(), lr=0.05, p=1.3))
    narrow = saved(optimizer)
    narrow["state"][2]["mirrored"] = narrow["state"][2]["mirrored"].float()
    with pytest.warns(UserWarning, match=r"mirrored of '2.weight' .* torch.float32 and is widened to torch.float64"):
        optimizer.load_state_dict(narrow)
    assert optimizer.state[model[2].weight]["mirrored"].dtype == torch.float64


def test_a_state_of_another_shape_is_refused_by_name():
    _, optimizer = trained(lambda m: MirrorDescent(m.named_parameters(), lr=0.05))
    wrong = saved(optimizer)
    wrong["state"][0]["mirrored"] = torch.zeros(2, **DOUBLES)
    with pytest.raises(ValueError, match=r"mirrored of '0.weight' .*: expected shape \(5, 3\), got \(2,\)"):
        optimizer.load_state_dict(wrong)


def test_hooks_on_loading_see_and_change_what_is_loaded():
    model, optimizer = trained(lambda m: MirrorDescent(m.float().parameters(), lr=0.05, p=1.3), steps=0)
    backward(model, torch.ones(2, 3))
    optimizer.step()
    stored, seen = saved(optimizer), []

    def doubled(_, loaded):
        return loaded | {"state": {n: {k: 2 * v for k, v in s.items()} for n, s in loaded["state"].items()}}

    optimizer.register_load_state_dict_pre_hook(doubled)
    optimizer.register_load_state_dict_post_hook(lambda o: seen.extend(s["mirrored"].dtype for s in o.state.values()))
    optimizer.load_state_dict(stored)
    assert set(seen) == {torch.float64}
    assert torch.equal(optimizer.state[model[0].weight]["mirrored"], 2 * stored["state"][0]["mirrored"])


@pytest.mark.parametrize("value", [-0.1, float("inf"), float("nan")])
def test_impossible_weight_decay_is_refused_by_name(value):
    with pytest.raises(ValueError, match="weight_decay"):
        MirrorDescent([nn.Parameter(torch.ones(2))], lr=0.1, weight_decay=value)
