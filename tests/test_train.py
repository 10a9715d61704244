"""Members of a batched program train exactly as each network does alone."""

import numpy as np
import pytest
import torch

from attnbook import train as t

SIZES = [0.05, 0.02, 0.3]


def problem(seed=0):
    """Three small networks, each with its own data."""
    g = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(3, *shape, generator=g, dtype=torch.float64) for shape in ((7, 5), (7,)))
    start = {name: torch.randn(3, *shape, generator=g, dtype=torch.float64) for name, shape in
             {"w": (5, 2), "v": (2,)}.items()}  # fmt: skip
    return x, y, start


def losses(x, y):
    return lambda p, _: ((torch.tanh(x @ p["w"]) @ p["v"][:, :, None]).squeeze(2) - y).square().mean(1)


def run(optimizer, steps=20, **options):
    x, y, start = problem()
    return t.train(t.autograd(losses(x, y)), start, optimizer=optimizer, steps=steps, record=dict, **options)


def alone(member, make, steps=20):
    """One network, one loop, torch's own optimiser."""
    x, y, start = problem()
    p = {name: tensor[member : member + 1].clone().requires_grad_() for name, tensor in start.items()}
    optimizer = make(p.values(), SIZES[member])
    for _ in range(steps):
        optimizer.zero_grad()
        losses(x[member : member + 1], y[member : member + 1])(p, None).sum().backward()
        optimizer.step()
    return {name: tensor.detach()[0] for name, tensor in p.items()}


@pytest.mark.parametrize(
    ("ours", "torchs"),
    [
        (t.SGD, lambda p, lr: torch.optim.SGD(p, lr=lr)),
        (lambda size: t.SGD(size, momentum=0.9), lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9)),
        (t.Adam, lambda p, lr: torch.optim.Adam(p, lr=lr)),
        (lambda size: t.Adam(size, (0.5, 0.7), 1e-3), lambda p, lr: torch.optim.Adam(p, lr, (0.5, 0.7), 1e-3)),
    ],
    ids=["SGD", "momentum", "Adam", "Adam, other options"],
)
def test_each_member_trains_as_it_would_alone_with_its_own_step_size(ours, torchs):
    together = run(ours(SIZES)).parameters
    for member in range(3):
        for name, tensor in alone(member, torchs).items():
            torch.testing.assert_close(together[name][member], tensor, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("rule", [t.SGD, t.Adam])
def test_one_step_size_for_all_is_the_same_as_one_for_each(rule):
    one, each = run(rule(0.02)).parameters, run(rule([0.02, 0.02, 0.02 * (1 + 1e-15)])).parameters
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, each[name], rtol=1e-12, atol=1e-13)


def test_the_reader_can_bring_an_optimiser_of_torch():
    found = run(lambda tensors: torch.optim.AdamW(tensors, lr=0.02, weight_decay=0.1)).parameters
    apart = alone(1, lambda p, lr: torch.optim.AdamW(p, lr=lr, weight_decay=0.1))
    torch.testing.assert_close(found["w"][1], apart["w"], rtol=1e-12, atol=1e-13)


def test_a_schedule_scales_every_step_size():
    halved = run(t.SGD(SIZES), schedule=lambda step: 0.5).parameters
    torch.testing.assert_close(halved["w"], run(t.SGD([size / 2 for size in SIZES])).parameters["w"])


def test_members_that_are_done_keep_their_values_and_the_run_ends_with_the_last():
    found = run(t.SGD(SIZES), stop=lambda r: torch.tensor([True, False, False]), record_at=[3, 10, 20])
    assert found.stopped_at.tolist() == [3, 20, 20]
    np.testing.assert_array_equal(found.records["w"][0, 0], found.records["w"][2, 0])
    assert (found.records["w"][0, 1] != found.records["w"][2, 1]).all()
    assert run(t.SGD(SIZES), stop=lambda r: torch.ones(3, dtype=torch.bool), record_at=[0, 9]).steps.tolist() == [0]


def test_a_constraint_holds_after_every_step():
    found = run(t.SGD(SIZES), project=lambda p: p["w"].clamp_(-0.3, 0.3), record_at=range(1, 21))
    assert np.abs(found.records["w"]).max() == 0.3


def test_divergence_is_an_error_that_names_member_step_and_step_size_or_a_result():
    wild = t.SGD([0.01, 0.01, 1e200])
    with pytest.raises(FloatingPointError, match=r"step \d+: the loss of c is inf with step size 1e\+200"):
        run(wild, names=["a", "b", "c"])
    found = run(wild, on_divergence="record")
    assert found.diverged.tolist() == [False, False, True]
    assert np.isinf(found.records["w"][-1, 2]).all()
    torch.testing.assert_close(found.parameters["w"][:2], run(t.SGD([0.01, 0.01, 0.01])).parameters["w"][:2])


def test_start_values_are_left_alone():
    x, y, start = problem()
    before = {name: tensor.clone() for name, tensor in start.items()}
    t.train(t.autograd(losses(x, y)), start, optimizer=t.Adam(0.1), steps=3, record=dict)
    assert all(torch.equal(before[name], start[name]) for name in start)


BAD = [
    ({"steps": 0}, "steps: .* got 0"), ({"steps": True}, "steps"), ({"steps": 2.5}, "steps: .* got 2.5"),
    ({"record_at": [30]}, "record_at: .*20, got"), ({"optimizer": t.SGD(-1.0)}, "step_size: .* got -1"),
    ({"optimizer": t.SGD([0.1, 0.2])}, r"step_size: .*\(3,\), got shape \(2,\)"),
    ({"optimizer": t.SGD(float("nan"))}, "step_size"), ({"names": ["a"]}, "names: .* 3, got 1"),
    ({"record": lambda p: {"w": p["w"][:1]}}, "record: 'w' needs the leading member axis"),
    ({"stop": lambda r: torch.zeros(3)}, "stop: expected a mask"),
    ({"value_and_grad": lambda p, b: (torch.zeros(2), p)}, "value_and_grad: expected one loss per member"),
    ({"value_and_grad": lambda p, b: (torch.zeros(3), {"w": p["v"]})}, "value_and_grad: expected gradients"),
    ({"parameters": {"w": torch.zeros(0, 2)}}, "parameters: "), ({"parameters": {}}, "parameters: "),
    ({"parameters": {"w": torch.zeros(3), "v": torch.zeros(2)}}, "parameters: all need the same leading member axis"),
    ({"parameters": {"w": torch.full((3,), float("nan"))}}, r"parameters\['w'\]: expected finite"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "said"), BAD, ids=[said for _, said in BAD])
def test_a_bad_argument_is_named(change, said):
    x, y, start = problem()
    good = {"value_and_grad": t.autograd(losses(x, y)), "parameters": start, "optimizer": t.SGD(0.1), "steps": 20}
    with pytest.raises(ValueError, match=said):
        t.train(**{**good, "record": dict, **change})


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: t.SGD(0.1, momentum=1.0), "momentum: .* got 1.0"),
        (lambda: t.Adam(0.1, betas=(1.5, -2)), r"betas: .* got \(1.5, -2\)"),
        (lambda: t.Adam(0.1, eps=0.0), "eps: .* got 0.0"),
        (lambda: t.log_spaced(0, 3), "last"),
        (lambda: t.log_spaced(9, 3, also=[10]), "also"),
    ],
)
def test_a_bad_option_is_named(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_whole_numbers_of_numpy_are_whole_numbers():
    assert run(t.SGD(0.1), steps=np.int64(2)).steps.tolist() == [0, 1, 2]


def test_frozen_parameters_stay_where_they_are():
    x, y, start = problem()
    start["w"].requires_grad_()
    for optimizer in (t.Adam(0.1), lambda tensors: torch.optim.SGD(tensors, lr=0.1)):
        found = t.train(t.autograd(losses(x, y)), start, optimizer=optimizer, steps=3, record=dict).parameters
        assert torch.equal(found["v"], start["v"])
        assert not torch.equal(found["w"], start["w"])


def test_damage_of_the_last_step_that_nothing_records_is_an_error():
    def value_and_grad(p, _):
        return p["w"].sum(1), {"w": torch.full_like(p["w"], float("inf"))}

    start = {"w": torch.zeros(2, 3, dtype=torch.float64)}
    with pytest.raises(FloatingPointError, match=r"before step 1: w of member 0 is not finite"):
        t.train(value_and_grad, start, optimizer=t.SGD(0.1), steps=1, record=dict, record_at=[0])
