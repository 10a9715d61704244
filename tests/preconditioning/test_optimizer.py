"""Algorithm 1 as tools, and the rivals: known by hand, equal to plain loops, strict about their input."""

import copy
import pickle

import jaxtyping
import numpy as np
import pytest
import torch

from attnbook.core import ensemble
from attnbook.preconditioning.attention import in_sample_loss_and_gradient, predict
from attnbook.preconditioning.optimizer import (
    MuonLike,
    ShampooLike,
    StructureAwareGD,
    spectral_init,
)
from attnbook.preconditioning.population import (
    balance_penalty,
    penalty_gradient,
    precondition,
    sample_covariance,
)

D, M, N = 3, 5, 23


def draw(*shape, seed=0):
    return torch.as_tensor(np.random.default_rng(seed).standard_normal(shape))


@pytest.fixture
def data():
    x = draw(N, D)
    return x, 0.1 * x @ draw(D, M, seed=1) + 0.01 * draw(N, M, seed=2)


def leaves(seed=3):
    return (0.3 * draw(M, D, seed=seed)).requires_grad_(), draw(D, D, seed=seed + 1).requires_grad_()


@pytest.mark.parametrize("preconditioner", ["none", "left", "two"])
def test_one_step_is_the_preconditioned_gradient_of_loss_and_penalty(data, preconditioner):
    """The penalty's gradient is added in closed form; automatic differentiation of the sum is the oracle."""
    x, y = data
    covariance = sample_covariance(x)
    value, key_query = leaves()
    before = value.detach().clone(), key_query.detach().clone()
    loss = (predict(value, key_query, x) - y).square().sum() / (2 * N)
    total = loss + 0.7 * balance_penalty(value, key_query, covariance=covariance)
    gradients = torch.autograd.grad(total, (value, key_query), retain_graph=True)
    optimizer = StructureAwareGD(
        value, key_query, covariance=covariance, step_size=0.1, preconditioner=preconditioner, penalty=0.7
    )
    loss.backward()
    optimizer.step()
    directions = precondition(gradients, torch.linalg.inv(covariance), preconditioner)
    for old, new, direction in zip(before, (value, key_query), directions, strict=True):
        torch.testing.assert_close(new.detach(), old - 0.1 * direction, rtol=1e-10, atol=1e-10)


def test_it_trains_an_attention_layer_and_takes_closures_and_schedulers(data):
    x, y = data
    value, key_query = (layer.clone().requires_grad_() for layer in spectral_init(x, 2 * y))
    optimizer = StructureAwareGD(value, key_query, covariance=sample_covariance(x), step_size=0.5)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)

    def closure():
        optimizer.zero_grad()
        loss = (predict(value, key_query, x) - y).square().sum() / (2 * N)
        loss.backward()
        return loss

    losses = []
    for _ in range(50):
        losses.append(float(optimizer.step(closure).detach()))
        scheduler.step()
    assert losses[-1] < 0.5 * losses[0]
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.5 * 0.99**50)


@pytest.mark.parametrize("how", ["state_dict", "deepcopy", "pickle"])
def test_training_goes_on_from_a_copy_as_if_nothing_had_happened(data, how):
    """Whoever loads the state need not know the covariance: here the new optimiser was given another one."""
    x, y = data

    def steps(layers, optimizer, count):
        for _ in range(count):
            _, gradient = in_sample_loss_and_gradient(*layers, x, y)
            layers[0].grad, layers[1].grad = gradient["value"], gradient["key_query"]
            optimizer.step()

    layers = leaves()
    optimizer = StructureAwareGD(*layers, covariance=sample_covariance(x), step_size=0.1)
    steps(layers, optimizer, 2)
    if how == "state_dict":
        copied = tuple(layer.detach().clone().requires_grad_() for layer in layers)
        other = StructureAwareGD(*copied, covariance=torch.eye(D), step_size=0.9)
        other.load_state_dict(optimizer.state_dict())
    else:
        other = copy.deepcopy(optimizer) if how == "deepcopy" else pickle.loads(pickle.dumps(optimizer))
        copied = tuple(other.param_groups[0]["params"])
    for these, rule in ((layers, optimizer), (copied, other)):
        steps(these, rule, 3)
    for one, another in zip(layers, copied, strict=True):
        assert torch.equal(one, another)


def test_a_second_pair_of_layers_is_refused():
    optimizer = StructureAwareGD(*leaves(), covariance=torch.eye(D), step_size=0.1)
    with pytest.raises(ValueError, match="one optimiser per layer"):
        optimizer.add_param_group({"params": list(leaves())})


def test_stacked_layers_are_trained_as_if_alone(data):
    x, y = data
    covariance = sample_covariance(x)

    def train(value, key_query, x, y):
        layers = value.clone().requires_grad_(), key_query.clone().requires_grad_()
        optimizer = StructureAwareGD(*layers, covariance=covariance, step_size=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            ((predict(*layers, x) - y).square().sum() / (2 * N)).backward()
            optimizer.step()
        return [layer.detach() for layer in layers]

    values, key_queries = 0.3 * draw(2, M, D, seed=5), 0.3 * draw(2, D, D, seed=6)
    together = train(values, key_queries, x.expand(2, -1, -1), y.expand(2, -1, -1))
    for member in range(2):
        alone = train(values[member], key_queries[member], x, y)
        for stacked, single in zip(together, alone, strict=True):
            torch.testing.assert_close(stacked[member], single, rtol=1e-10, atol=1e-10)


def test_the_spectral_start_interpolates_least_squares_and_is_balanced(data):
    x, y = data
    value, key_query = spectral_init(x, y)
    covariance = sample_covariance(x)
    least_squares = torch.linalg.lstsq(x, y).solution.mT
    torch.testing.assert_close(value @ covariance @ key_query, least_squares, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(value.mT @ value, key_query @ covariance @ key_query.mT, rtol=1e-10, atol=1e-10)


def test_a_stack_of_data_sets_gives_a_stack_of_starts_in_the_dtype_of_the_inputs(data):
    x, y = data
    value, key_query = spectral_init(torch.stack([x, 2 * x]).float(), torch.stack([y, y]).float())
    assert (value.dtype, value.shape, key_query.shape) == (torch.float32, (2, M, D), (2, D, D))
    torch.testing.assert_close(value[0], spectral_init(x, y)[0].float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (draw(N, D), draw(N - 1, M), "y: expected one label per input"),
        (draw(2, D), draw(2, M), "inputs: expected at least as many samples"),
        (torch.full((N, D), float("nan")), draw(N, M), "x: expected finite"),
        (draw(N, D), torch.full((N, M), float("inf")), "y: expected finite"),
        (draw(N, 1).expand(N, D), draw(N, M), "covariance: expected a positive definite"),
    ],
)
def test_data_without_a_spectral_start_are_refused(x, y, message):
    with pytest.raises(ValueError, match=message):
        spectral_init(x, y)


def test_what_is_no_matrix_of_real_numbers_is_refused_by_name(data):
    """By the annotations while tests run, by the function itself for readers."""
    x, y = data
    for one, other, name in ((x[:, 0], y, "x"), (x, y[:, 0], "y"), (x.long(), y, "x")):
        with pytest.raises((ValueError, jaxtyping.TypeCheckError), match=rf"\b{name}\b"):
            spectral_init(one, other)


def test_violated_assumptions_are_named(data):
    x, y = data
    with pytest.warns(UserWarning, match=r"singular value .* is .*; from 0\.5 on .*Assumption 3.*divide the labels"):
        spectral_init(x, 100 * y)
    with pytest.warns(UserWarning, match=r"Assumption 2 fails.*guaranteed rate degenerates to zero"):
        spectral_init(x, 0.1 * y[:, :2])
    value = (0.1 * draw(2, D)).requires_grad_()
    with pytest.warns(UserWarning, match="Assumption 2 fails"):
        StructureAwareGD(value, draw(D, D).requires_grad_(), covariance=sample_covariance(x), step_size=0.1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"value": draw(M)}, "value: expected finite matrices"),
        ({"value": torch.full((M, D), float("nan"))}, "value: expected finite"),
        ({"key_query": draw(D, D + 1)}, "key_query: expected"),
        ({"covariance": torch.eye(D + 1)}, "covariance: expected"),
        ({"covariance": torch.ones(D, D)}, "covariance: expected a positive definite"),
        ({"covariance": torch.triu(torch.ones(D, D))}, "covariance: expected a symmetric"),
        ({"step_size": 0.0}, "step_size"),
        ({"step_size": float("nan")}, "step_size"),
        ({"preconditioner": "right"}, "preconditioner"),
        ({"penalty": -1.0}, "penalty"),
    ],
)
def test_impossible_arguments_are_refused_by_name(change, message):
    value, key_query = leaves()
    arguments = {"value": value, "key_query": key_query, "covariance": torch.eye(D), "step_size": 0.1}
    with pytest.raises(ValueError, match=message):
        StructureAwareGD(**(arguments | change))


def test_a_step_without_gradients_is_refused():
    value, key_query = leaves()
    with pytest.raises(RuntimeError, match="backward"):
        StructureAwareGD(value, key_query, covariance=torch.eye(D), step_size=0.1).step()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["value", "key_query"])
def test_a_gradient_that_is_no_number_is_refused_by_name_and_changes_nothing(name, value):
    layers = dict(zip(("value", "key_query"), leaves(), strict=True))
    before = {key: layer.detach().clone() for key, layer in layers.items()}
    optimizer = StructureAwareGD(**layers, covariance=torch.eye(D), step_size=0.1)
    for layer in layers.values():
        layer.grad = torch.ones_like(layer)
    layers[name].grad[1, 2] = value
    message = rf"gradient of {name} has 1 NaN or infinite among its {layers[name].numel()} entries; nothing"
    with pytest.raises(FloatingPointError, match=message):
        optimizer.step()
    for key, layer in layers.items():
        assert torch.equal(layer.detach(), before[key])


def test_the_polar_factor_is_orthogonal_and_the_root_is_a_root():
    """By hand: after one gradient PDR^T the roots of Shampoo leave PR^T, too."""
    factor = MuonLike(0.1).direction(draw(2, M, D), {})
    torch.testing.assert_close(factor.mT @ factor, torch.eye(D, dtype=torch.float64).expand(2, -1, -1))
    square = draw(2, D, D, seed=1)
    roots = ShampooLike(0.1, floor=1e-12).direction(square, {})
    torch.testing.assert_close(roots, MuonLike(0.1).direction(square, {}), rtol=1e-8, atol=1e-8)
    one = torch.diag(torch.tensor([3.0, -0.5])).double()
    torch.testing.assert_close(MuonLike(0.1).direction(one, {}), one.sign())


def inverse_fourth_root(matrix, floor):
    eigenvalues, axes = torch.linalg.eigh(matrix)
    return (axes * eigenvalues.clamp(min=floor).pow(-0.25)) @ axes.mT


def train(rule, gradients, start):
    """Feed a fixed list of gradients to a rule through the batched trainer."""
    history = ensemble.train(
        lambda p, step: (torch.zeros(len(start)), {"w": gradients[step]}),
        {"w": start},
        lambda step: step,
        optimizer=rule,
        steps=len(gradients),
        record=lambda p: {"w": p["w"]},
        on_divergence="record",
    )
    return history.parameters["w"]


@pytest.mark.parametrize("rule", [MuonLike([0.1, 0.3]), ShampooLike([0.1, 0.3])])
def test_rivals_train_each_member_as_the_plain_loop_does(rule):
    start, gradients = draw(2, M, D), list(draw(3, 2, M, D, seed=1))
    together = train(rule, gradients, start)
    for member, size in enumerate((0.1, 0.3)):
        w, velocity = start[member].clone(), torch.zeros(M, D)
        left, right = torch.zeros(M, M), torch.zeros(D, D)
        for stacked in gradients:
            g = stacked[member]
            if isinstance(rule, MuonLike):
                velocity = 0.95 * velocity + g
                u, _, v = torch.linalg.svd(g + 0.95 * velocity, full_matrices=False)
                w = w - size * u @ v
            else:
                left, right = left + g @ g.mT, right + g.mT @ g
                w = w - size * inverse_fourth_root(left, 1e-6) @ g @ inverse_fourth_root(right, 1e-6)
        torch.testing.assert_close(together[member], w, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("rule", [MuonLike(0.1), ShampooLike(0.1)])
def test_a_diverged_member_does_not_stop_the_others(rule):
    gradients = draw(1, 2, M, D)
    gradients[0, 0] = float("nan")
    moved = train(rule, list(gradients), torch.zeros(2, M, D, dtype=torch.float64))
    assert moved[0].isnan().all()  # it has no direction, which is not the same as to stand still
    assert torch.isfinite(moved[1]).all()
    assert moved[1].abs().max() > 0


def test_impossible_rules_are_refused_by_name():
    with pytest.raises(ValueError, match="momentum"):
        MuonLike(0.1, momentum=1.0)
    with pytest.raises(ValueError, match="floor"):
        ShampooLike(0.1, floor=0.0)
    for rule in (MuonLike, ShampooLike):
        with pytest.raises(ValueError, match="step_size"):
            rule([0.1, -0.1]).options(2)


def test_the_penalty_gradient_points_away_from_balance():
    """By hand, one by one: U = 3, V = 1, covariance 1 give B = 8 and gradients 12 and -4."""
    one = torch.ones(1, 1)
    gradients = penalty_gradient(3 * one, one, covariance=one)
    assert [g.item() for g in gradients] == [12.0, -4.0]
