"""The layer and its closed-form gradient, against automatic differentiation and a plain loop."""

import numpy as np
import pytest
import torch

from attnbook.preconditioning import attention
from attnbook.preconditioning.attention import in_sample_loss_and_gradient, loss_and_gradient, predict

SEEDS, PER_SEED, B, D, M = 3, 2, 11, 5, 7


def draw(*shape, seed=0):
    return torch.as_tensor(np.random.default_rng(seed).standard_normal(shape))


def layer(n, d, m, *, scale=1.0, dtype=torch.float64):
    """One layer and its samples."""
    shapes = {"value": (m, d), "key_query": (d, d), "x": (n, d), "y": (n, m)}
    drawn = {name: draw(*shape, seed=i).to(dtype) for i, (name, shape) in enumerate(shapes.items())}
    return drawn | {"key_query": scale * drawn["key_query"]}


def plain_loss(value, key_query, x, y):
    """The definition, one query at a time."""
    total = 0.0
    for i in range(len(x)):
        scores = torch.stack([x[j] @ key_query @ x[i] for j in range(len(x))])
        attended = sum(w * key for w, key in zip(torch.softmax(scores, 0), x, strict=True))
        total = total + (value @ attended - y[i]).square().sum()
    return total / (2 * len(x))


def fast_loss(value, key_query, x, y):
    return (predict(value, key_query, x) - y).square().sum() / (2 * len(x))


def assert_same(found, loss, arguments, tolerance):
    """The loss and both gradients, by automatic differentiation."""
    layers = [arguments[name].clone().requires_grad_() for name in ("value", "key_query")]
    true = loss(*layers, arguments["x"], arguments["y"])
    pairs = [(found[0], true.detach()), *zip(found[1].values(), torch.autograd.grad(true, layers), strict=True)]
    for one, other in pairs:
        assert one.shape == other.shape
        assert float((one - other).abs().max()) <= tolerance * max(1.0, float(other.abs().max()))


@pytest.mark.parametrize("held", [1, 300, 2**18])
def test_loss_and_gradient_of_each_member_equal_the_plain_loop(held, monkeypatch):
    """Member i sees batch i modulo the number of batches, however many queries are computed at a time."""
    monkeypatch.setitem(attention.HELD, "cpu", held)
    monkeypatch.setattr(attention, "SMALLEST_BLOCK", 4)
    members = SEEDS * PER_SEED
    parameters = {"value": draw(members, M, D), "key_query": draw(members, D, D, seed=1)}
    inputs, labels = draw(SEEDS, B, D, seed=2), draw(SEEDS, B, M, seed=3)
    losses, gradients = loss_and_gradient(parameters, (inputs, labels))
    for member in range(members):
        own = {name: parameters[name][member] for name in parameters}
        own |= {"x": inputs[member % SEEDS], "y": labels[member % SEEDS]}
        found = losses[member], {name: gradient[member] for name, gradient in gradients.items()}
        assert_same(found, plain_loss, own, 1e-10)


@pytest.mark.parametrize("held", [2**17, 97 * 40, 1])
@pytest.mark.parametrize(("n", "d", "m"), [(97, 5, 7), (53, 3, 2), (1, 2, 3)])
def test_all_samples_at_once_equal_automatic_differentiation(n, d, m, held, monkeypatch):
    monkeypatch.setitem(attention.HELD, "cpu", held)
    arguments = layer(n, d, m)
    assert_same(in_sample_loss_and_gradient(**arguments), fast_loss, arguments, 1e-12)


def test_predictions_are_those_of_the_definition():
    arguments = layer(B, D, M)
    torch.testing.assert_close(fast_loss(**arguments), plain_loss(**arguments), rtol=1e-10, atol=1e-10)


def test_attention_weights_sum_to_one_and_the_score_is_key_times_v_times_query():
    """By hand: V moves the first coordinate of the query to the second of the key."""
    key_query, inputs = torch.tensor([[0.0, 0.0], [1.0, 0.0]]), torch.eye(2)
    weights = attention.attention_weights(key_query, inputs)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2))
    e = float(np.e)
    torch.testing.assert_close(weights[0], torch.tensor([1 / (1 + e), e / (1 + e)]))
    torch.testing.assert_close(weights[1], torch.tensor([0.5, 0.5]))


def test_effective_keys_run_from_one_to_all():
    inputs = draw(B, D)
    assert attention.effective_keys(torch.zeros(D, D, dtype=torch.float64), inputs) == pytest.approx(B)
    assert attention.effective_keys(1e6 * torch.eye(D, dtype=torch.float64), inputs) == pytest.approx(1.0, abs=0.2)


def test_one_sample_attends_to_itself():
    """By hand: s = x, C = 0, so the loss is that of y = Ux and V does not matter."""
    arguments = layer(1, 2, 3)
    loss, gradient = in_sample_loss_and_gradient(**arguments)
    residual = arguments["x"] @ arguments["value"].T - arguments["y"]
    torch.testing.assert_close(loss, residual.square().sum() / 2)
    assert float(gradient["key_query"].abs().max()) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_huge_scores_do_not_overflow(dtype):
    found = in_sample_loss_and_gradient(**layer(61, 5, 7, scale=1e6, dtype=dtype))
    assert all(torch.isfinite(t).all() for t in (found[0], *found[1].values()))


def test_float32_is_close_to_float64_and_no_graph_is_built():
    single = layer(211, 5, 7, scale=0.3, dtype=torch.float32)
    single["value"].requires_grad_()
    found = in_sample_loss_and_gradient(**single)
    assert found[0].dtype == torch.float32
    assert not found[1]["value"].requires_grad
    assert_same(found, fast_loss, {name: tensor.detach().double() for name, tensor in single.items()}, 2e-6)


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("value", torch.ones(7, 5), "value: expected torch.float64 on cpu"),
        ("y", torch.full((11, 7), torch.nan).double(), "y: expected finite"),
        ("x", torch.ones(11).double(), "x: expected"),
        ("x", torch.ones(0, 5).double(), "x: expected"),
        ("y", torch.ones(12, 7).double(), "y: expected"),
        ("key_query", torch.ones(5, 4).double(), "key_query: expected"),
    ],
)
def test_arguments_that_do_not_fit_are_named(name, wrong, message):
    """By the package itself: shapes in signatures are free, and unchecked, in production."""
    unchecked = getattr(in_sample_loss_and_gradient, "__wrapped__", in_sample_loss_and_gradient)
    with pytest.raises(ValueError, match=message):
        unchecked(**layer(11, 5, 7) | {name: wrong})
