"""Batched training: the same numbers as each network by itself."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnbook.core.ensemble import CHECK_EVERY, autograd, log_spaced, train
from attnbook.core.rng import stream, to_tensor
from attnbook.core.update_rules import SGD, Adam, cosine

MEMBERS, INPUTS, WIDTH, SAMPLES = 3, 5, 7, 11
STEPS = CHECK_EVERY + 3
SIZES = (0.02, 0.05, 0.05)


def draw(seed, name, *shape, step=0):
    return to_tensor(stream(seed, name, step).standard_normal(shape), dtype=torch.float64)


def initial(member):
    return {"hidden": draw(member, "hidden", WIDTH, INPUTS), "decoder": draw(member, "decoder", WIDTH)}


def batch_of(member, step):
    return draw(member, "inputs", SAMPLES, INPUTS, step=step), draw(member, "labels", SAMPLES, step=step)


def losses(parameters, batch):
    """One two-layer network per leading index; works for stacked and for single ones."""
    inputs, labels = batch
    hidden = (inputs @ parameters["hidden"].mT).tanh()
    return ((hidden @ parameters["decoder"].unsqueeze(-1)).squeeze(-1) - labels).square().mean(-1)


def stacked(members=range(MEMBERS)):
    values = [initial(member) for member in members]
    return {name: torch.stack([value[name] for value in values]) for name in values[0]}


def stacked_batches(members):
    return lambda step: tuple(map(torch.stack, zip(*(batch_of(m, step) for m in members), strict=True)))


def norms(parameters):
    return {"norm": parameters["hidden"].norm(dim=(1, 2))}


def run(optimizer, members=range(MEMBERS), **options):
    options = {"steps": STEPS, "record": norms} | options
    return train(autograd(losses), stacked(members), stacked_batches(members), optimizer=optimizer, **options)


def plain_loop(member, make, *, cosine_decay):
    """What a user would write for one network."""
    parameters = {name: value.requires_grad_() for name, value in initial(member).items()}
    optimizer = make(list(parameters.values()), SIZES[member])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS) if cosine_decay else None
    for step in range(STEPS):
        optimizer.zero_grad()
        losses(parameters, batch_of(member, step)).backward()
        optimizer.step()
        if schedule:
            schedule.step()
    return {name: value.detach() for name, value in parameters.items()}


RULES = {
    "sgd": (SGD(SIZES), lambda p, lr: torch.optim.SGD(p, lr)),
    "momentum": (SGD(SIZES, momentum=0.9), lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9)),
    "adam": (Adam(SIZES), lambda p, lr: torch.optim.Adam(p, lr)),
    "adam with its own constants": (
        Adam(SIZES, betas=(0.7, 0.97), eps=1e-3),
        lambda p, lr: torch.optim.Adam(p, lr, betas=(0.7, 0.97), eps=1e-3),
    ),
}


@pytest.mark.parametrize("cosine_decay", [False, True], ids=["constant", "cosine"])
@pytest.mark.parametrize("rule", RULES)
def test_batched_training_equals_separate_plain_loops(rule, cosine_decay):
    ours, make = RULES[rule]
    history = run(ours, schedule=cosine(STEPS) if cosine_decay else None)
    for member in range(MEMBERS):
        for name, expected in plain_loop(member, make, cosine_decay=cosine_decay).items():
            torch.testing.assert_close(history.parameters[name][member], expected, rtol=0, atol=1e-12)


def test_the_memory_layout_of_parameters_and_gradients_does_not_matter():
    """Fused optimisers walk through memory, whatever the strides say."""
    start = stacked()
    other = {name: value.mT.contiguous().mT for name, value in start.items() if name == "hidden"}
    ends = [
        train(autograd(losses), chosen, stacked_batches(range(MEMBERS)), optimizer=Adam(0.05), steps=3, record=norms)
        for chosen in (start, start | other)
    ]
    assert torch.equal(ends[0].parameters["hidden"], ends[1].parameters["hidden"])


@pytest.mark.parametrize(("rule", "width", "off"), [(SGD, INPUTS, 0.0), (Adam, 16, 0.0), (Adam, INPUTS, 1e-13)])
def test_adding_a_member_changes_no_other(rule, width, off):
    """Not a bit; torch's fused Adam rounds the last bit otherwise where members do not fill whole vector registers."""
    target = draw(0, "target", MEMBERS, width)

    def end(members):
        loss = autograd(lambda p, chosen: (p["weights"] - target[chosen]).square().square().sum(1))
        start = {"weights": draw(1, "start", MEMBERS, width)[members]}
        return train(loss, start, lambda _: members, optimizer=rule(0.01), steps=STEPS, record=dict).parameters

    difference = end([0, 2])["weights"] - end([0, 1, 2])["weights"][[0, 2]]
    assert difference.abs().max() <= off


def test_members_with_a_step_size_each_equal_members_that_share_it():
    shared, listed = run(Adam(0.05)), run(Adam([0.05] * MEMBERS))
    assert torch.equal(shared.parameters["hidden"], listed.parameters["hidden"])


def test_a_closed_form_gives_what_autograd_gives():
    """Least squares: the gradient is known by hand."""
    target = draw(0, "target", MEMBERS, INPUTS)

    def by_hand(parameters, batch):
        residual = parameters["weights"] - target
        return 0.5 * residual.square().sum(1), {"weights": residual}

    oracle = autograd(lambda p, _: 0.5 * (p["weights"] - target).square().sum(1))
    start = {"weights": draw(1, "start", MEMBERS, INPUTS)}
    ends = [
        train(rule, start, lambda _: None, optimizer=SGD(0.1), steps=STEPS, record=dict).parameters["weights"]
        for rule in (by_hand, oracle)
    ]
    torch.testing.assert_close(*ends, rtol=0, atol=1e-14)
    torch.testing.assert_close(ends[0] - target, 0.9**STEPS * (start["weights"] - target), rtol=1e-10, atol=1e-14)


def test_initial_tensors_are_not_changed_and_not_shared():
    start = stacked()
    before = {name: value.clone() for name, value in start.items()}
    end = train(
        autograd(losses), start, stacked_batches(range(MEMBERS)), optimizer=SGD(0.05), steps=2, record=norms
    ).parameters
    for name, value in start.items():
        assert torch.equal(value, before[name])
        assert not torch.equal(end[name], value)
        assert not end[name].requires_grad


@pytest.mark.parametrize("device", ["cpu"] + ["cuda"] * torch.cuda.is_available())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_everything_stays_where_and_what_the_tensors_are(device, dtype):
    start = {"weights": torch.ones(MEMBERS, INPUTS, dtype=dtype, device=device)}
    rule = autograd(lambda p, _: p["weights"].square().sum(1))
    history = train(rule, start, lambda _: None, optimizer=SGD(0.01), steps=2, record=dict)
    assert history.parameters["weights"].dtype == dtype
    assert history.parameters["weights"].device.type == device
    assert history.records["weights"].dtype == np.float64


def test_records_hold_the_values_at_their_steps_the_first_and_the_last_among_them():
    history = run(SGD(0.05), record_at=(STEPS, 0, 17))
    assert history.steps.tolist() == [0, 17, STEPS]
    assert history.records["norm"].shape == (3, MEMBERS)
    for row, parameters in ((0, stacked()), (1, run(SGD(0.05), steps=17).parameters), (2, history.parameters)):
        np.testing.assert_array_equal(history.records["norm"][row], norms(parameters)["norm"])
    assert history.stopped_at.tolist() == [STEPS] * MEMBERS


def test_records_are_log_spaced_by_default_and_progress_moves_with_the_steps():
    seen = []
    history = run(SGD(0.05), progress=lambda done, total: seen.append((done, total)))
    assert tuple(history.steps) == log_spaced(STEPS, 12)
    assert seen == [(step, STEPS) for step in range(STEPS + 1)]


def test_stopped_members_keep_their_values_under_a_constraint():
    """The constraint is applied before the values of stopped members are put back."""
    weights = {"w": torch.ones(2, 3)}
    history = train(
        autograd(lambda p, _: (p["w"] ** 2).sum(1)),
        weights,
        lambda step: None,
        optimizer=SGD(0.01),
        steps=5,
        record=lambda p: {"w": p["w"].sum(1)},
        project=lambda p: p["w"].mul_(0.9),
        stop=lambda _: torch.tensor([True, False]),
    )
    assert torch.equal(history.parameters["w"][0], weights["w"][0])
    assert history.parameters["w"][1].max() < 0.6


def test_divergence_in_the_last_step_is_noticed():
    """No later loss shows it, but the recorded statistic does."""
    with pytest.raises(FloatingPointError, match="member 0"):
        train(
            autograd(lambda p, _: (p["w"] ** 2).sum(1)),
            {"w": torch.ones(1, 3)},
            lambda step: None,
            optimizer=SGD(3e38),
            steps=1,
            record=lambda p: {"w": p["w"].sum(1)},
        )


def test_divergence_in_the_last_step_is_noticed_where_nothing_is_recorded_after_it():
    def rule(parameters, step):
        return parameters["w"].sum(1), {"w": parameters["w"] * float("nan")}

    with pytest.raises(FloatingPointError, match="before step 1: w of member 0 is not finite"):
        train(rule, {"w": torch.ones(1, 3)}, lambda _: None, optimizer=SGD(1.0), steps=1, record=dict, record_at=[0])


@pytest.mark.parametrize("rule", [SGD, Adam])
def test_frozen_layers_stay_and_the_others_train_as_beside_a_constant(rule):
    """As torch stacks models some of whose layers require no gradient."""
    start = stacked()
    start["decoder"].requires_grad_()  # the hidden layer does not
    history = run_from(start, autograd(losses), rule(0.05))
    assert torch.equal(history.parameters["hidden"], start["hidden"])
    alone = autograd(lambda p, batch: losses(p | {"hidden": start["hidden"]}, batch))
    expected = run_from({"decoder": start["decoder"].detach()}, alone, rule(0.05))
    assert torch.equal(history.parameters["decoder"], expected.parameters["decoder"])
    assert not history.parameters["decoder"].requires_grad


def run_from(start, gradient, optimizer):
    options = {"steps": 5, "record": lambda p: {"norm": p["decoder"].norm(dim=1)}}
    return train(gradient, start, stacked_batches(range(MEMBERS)), optimizer=optimizer, **options)


@pytest.mark.parametrize("steps", [np.int64(5), np.uint8(5)])
def test_whole_numbers_of_numpy_are_whole_numbers(steps):
    assert torch.equal(run(SGD(0.05), steps=steps).parameters["hidden"], run(SGD(0.05), steps=5).parameters["hidden"])
    assert cosine(steps)(1) == cosine(5)(1)


def test_batches_are_asked_for_once_per_step_in_order():
    asked = []

    def batches(step):
        asked.append(step)
        return stacked_batches(range(MEMBERS))(step)

    train(autograd(losses), stacked(), batches, optimizer=SGD(0.05), steps=13, record=norms)
    assert asked == list(range(13))


def test_a_projection_holds_after_every_step():
    def unit(parameters):
        parameters["decoder"].div_(parameters["decoder"].norm(dim=1, keepdim=True))

    history = run(
        SGD(0.05), project=unit, record=lambda p: {"norm": p["decoder"].norm(dim=1)}, record_at=range(1, STEPS + 1)
    )
    np.testing.assert_allclose(history.records["norm"], 1.0, rtol=1e-14)


class StopAt:
    """Stops each member at its own recorded step."""

    def __init__(self, *ends, record_at):
        self.ends, self.steps = torch.tensor(ends), iter(record_at)

    def __call__(self, statistics):
        return self.ends <= next(self.steps)


@pytest.mark.parametrize("optimizer", [SGD(SIZES, momentum=0.9), Adam(SIZES)], ids=["momentum", "adam"])
def test_a_stopped_member_equals_a_shorter_run_and_disturbs_no_other(optimizer):
    at = (0, 17, 31, STEPS)
    history = run(optimizer, record_at=at, stop=StopAt(17, STEPS + 1, 31, record_at=at))
    assert history.stopped_at.tolist() == [17, STEPS, 31]
    for member, end in enumerate(history.stopped_at.tolist()):
        shorter = run(optimizer, steps=end)
        for name, value in history.parameters.items():
            assert torch.equal(value[member], shorter.parameters[name][member])
    frozen = history.records["norm"][1:, 0]
    assert (frozen == frozen[0]).all()


def test_training_ends_when_all_members_are_done():
    at = (0, 17, 31, STEPS)
    history = run(SGD(0.05), record_at=at, stop=StopAt(31, 17, 31, record_at=at))
    assert history.steps.tolist() == [0, 17, 31]
    assert history.stopped_at.tolist() == [31, 17, 31]


def test_members_done_at_the_start_take_no_step():
    history = run(SGD(0.05), record_at=(0, STEPS), stop=StopAt(0, 0, 0, record_at=(0,)))
    assert history.stopped_at.tolist() == [0] * MEMBERS
    assert torch.equal(history.parameters["hidden"], stacked()["hidden"])


def growing(parameters, batch):
    return parameters["weights"].square().sum(1), {"weights": -parameters["weights"]}


@pytest.mark.parametrize(
    "last", [CHECK_EVERY - 7, 5 * CHECK_EVERY + 1], ids=["before the first check", "between checks"]
)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_divergence_names_the_exact_step_member_and_step_size(last, bad):
    """The first bad loss is named, not one that follows from it."""

    def rule(parameters, step):
        value, gradient = growing(parameters, step)
        value[1] = bad if step >= last - 4 else 1.0
        value[0] = bad if step >= last - 3 else 1.0
        return value, gradient

    start = {"weights": torch.ones(MEMBERS, INPUTS)}
    with pytest.raises(FloatingPointError, match=rf"step {last - 4}: the loss of b is {bad} with step size 1e-05;"):
        train(
            rule, start, lambda step: step, optimizer=SGD([1e-3, 1e-5, 1e-7]), steps=last,
            record=dict, record_at=[0], names=["a", "b", "c"],
        )  # fmt: skip


def test_real_divergence_stops_the_run_and_members_have_numbers_by_default():
    """Weights double at each step: the squares overflow float32 at step 64, (2^64)^2."""
    start = {"weights": torch.ones(2, 1)}
    with pytest.raises(FloatingPointError, match="step 64: the loss of member 1 is inf with step size 1;"):
        train(growing, start, lambda _: None, optimizer=SGD([1e-9, 1.0]), steps=10_000, record=dict)


def test_a_loss_that_is_not_finite_after_a_member_stopped_is_no_divergence():
    def rule(parameters, step):
        value, gradient = growing(parameters, step)
        value[2] = float("nan") if step >= 17 else 1.0
        return value, gradient | {"weights": gradient["weights"] * value[:, None]}

    at = (0, 17, STEPS)
    start = {"weights": torch.ones(MEMBERS, INPUTS)}
    stop = StopAt(STEPS, STEPS, 17, record_at=at)
    history = train(
        rule, start, lambda step: step, optimizer=SGD(1e-3), steps=STEPS, record=dict, record_at=at, stop=stop
    )
    assert history.parameters["weights"].isfinite().all()


FINE = torch.ones(MEMBERS, INPUTS)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"parameters": {}}, "parameters"),
        ({"parameters": {"weights": torch.tensor(1.0)}}, "parameters"),
        ({"parameters": {"weights": torch.ones(0, INPUTS)}}, "parameters"),
        ({"parameters": {"weights": FINE, "bias": torch.ones(2)}}, "parameters"),
        ({"parameters": {"weights": FINE.long()}}, "parameters['weights']"),
        ({"parameters": {"weights": FINE.cfloat()}}, "parameters['weights']"),
        ({"parameters": {"weights": FINE * float("nan")}}, "parameters['weights']"),
        ({"parameters": {"weights": FINE * float("inf")}}, "parameters['weights']"),
        ({"steps": 0}, "steps"),
        ({"steps": -5}, "steps"),
        ({"steps": 2.0}, "steps"),
        ({"steps": True}, "steps"),
        ({"record_at": ()}, "record_at"),
        ({"record_at": (-1, 2)}, "record_at"),
        ({"record_at": (0, 2.5)}, "record_at"),
        ({"record_at": (8,)}, "record_at"),
        ({"optimizer": SGD(0.0)}, "step_size"),
        ({"optimizer": SGD(-0.1)}, "step_size"),
        ({"optimizer": Adam(float("nan"))}, "step_size"),
        ({"optimizer": Adam(float("inf"))}, "step_size"),
        ({"optimizer": SGD([0.1, 0.1])}, "step_size"),
        ({"optimizer": SGD([0.1, 0.1, -0.1])}, "step_size"),
        ({"optimizer": SGD([[0.1, 0.1, 0.1]])}, "step_size"),
        ({"names": ["a", "b"]}, "names"),
        ({"value_and_grad": lambda p, _: (p["weights"].sum(), p)}, "value_and_grad"),
        ({"value_and_grad": lambda p, _: (torch.ones(2), p)}, "value_and_grad"),
        ({"value_and_grad": lambda p, _: (torch.ones(MEMBERS), {})}, "value_and_grad"),
        ({"value_and_grad": lambda p, _: (torch.ones(MEMBERS), {"weights": torch.ones(MEMBERS, 2)})}, "value_and_grad"),
        ({"record": lambda p: {"loss": torch.tensor(1.0)}}, "record"),
        ({"stop": lambda s: torch.ones(2, dtype=torch.bool)}, "stop"),
        ({"stop": lambda s: torch.ones(MEMBERS)}, "stop"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_value_error_that_names_the_argument(change, name):
    options = {
        "value_and_grad": growing, "parameters": {"weights": FINE}, "batches": lambda _: None,
        "optimizer": SGD(0.1), "steps": 7, "record": dict,
    }  # fmt: skip
    with pytest.raises(ValueError) as caught:
        train(**(options | change))
    assert str(caught.value).startswith(name)


@given(st.integers(1, 10**6), st.integers(2, 60), st.data())
def test_log_spaced_steps_increase_from_zero_to_the_last(last, count, data):
    also = data.draw(st.lists(st.integers(0, last), max_size=5))
    steps = log_spaced(last, count, also=also)
    assert steps[0] == 0
    assert steps[-1] == last
    assert list(steps) == sorted(set(steps))
    assert set(also) <= set(steps)
    assert len(log_spaced(last, count)) <= max(count, 3)
    ratios = np.diff(np.log(log_spaced(last, count)[1:]))
    assert count < 4 or (ratios <= np.log(last) / (count - 2) + np.log(3)).all()


@pytest.mark.parametrize(
    ("arguments", "name"),
    [((0, 5), "last"), ((5, 1), "count"), ((-3, 5), "last")],
)
def test_log_spaced_refuses_sizes_out_of_range(arguments, name):
    with pytest.raises(ValueError, match=name):
        log_spaced(*arguments)


@pytest.mark.parametrize("also", [(-1,), (8,)])
def test_log_spaced_refuses_steps_beyond_the_run(also):
    with pytest.raises(ValueError, match="also"):
        log_spaced(7, 3, also=also)


def test_divergence_can_be_a_result():
    """The growing member is marked and recorded as infinity; the other trains on as if alone."""

    def growing(parameters, _):
        return parameters["w"].square().sum(1), {"w": -2 * parameters["w"]}

    start = {"w": torch.ones(2, 3, dtype=torch.float64)}
    history = train(
        growing,
        start,
        lambda _: None,
        optimizer=SGD([1e-9, 1.0]),
        steps=1000,
        record_at=(0, 10, 1000),
        record=lambda p: {"norm": p["w"].norm(dim=1), "change": p["w"] - p["w"]},
        on_divergence="record",
    )
    assert history.diverged.tolist() == [False, True]
    assert np.isfinite(history.records["norm"]).tolist() == [[True, True], [True, True], [True, False]]
    assert not np.isnan(history.records["change"]).any()


class TwoOptions:
    """A rule with an option of its own."""

    def options(self, members):
        return [{"lr": 0.05, "momentum": m} for m in (0.0, 0.5, 0.5)[:members]]

    def build(self, groups):
        assert [group["momentum"] for group in groups] == [0.0, 0.5]
        return torch.optim.SGD(groups)


def test_a_rule_may_have_options_of_its_own_for_each_member():
    history = run(TwoOptions())
    for member, momentum in enumerate((0.0, 0.5, 0.5)):
        alone = run(SGD(0.05, momentum=momentum))
        for name, tensor in history.parameters.items():
            torch.testing.assert_close(tensor[member], alone.parameters[name][member], rtol=1e-12, atol=1e-12)


def test_a_recorded_parameter_is_a_copy_of_its_time():
    """Float64 on the CPU is not converted: without a copy every record would show the last step."""
    history = run(SGD(0.05), record=lambda parameters: {"hidden": parameters["hidden"]}, record_at=(0, STEPS))
    first, last = history.records["hidden"]
    assert np.array_equal(first, stacked()["hidden"].numpy())
    assert not np.array_equal(first, last)
