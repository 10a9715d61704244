"""The gradient in blocks, against automatic differentiation with all weights at once."""

import numpy as np
import pytest
import torch

from attnbook.preconditioning import in_sample
from attnbook.preconditioning.attention import loss_and_gradient, predict
from attnbook.preconditioning.in_sample import in_sample_loss_and_gradient

FORMS = {"moments": 10**6, "two products": 0}


def draw(n, d, m, *, scale=1.0, dtype=torch.float64):
    rng = np.random.default_rng(n)
    shapes = {"value": (m, d), "key_query": (d, d), "x": (n, d), "y": (n, m)}
    drawn = {name: torch.as_tensor(rng.standard_normal(shape)).to(dtype) for name, shape in shapes.items()}
    return drawn | {"key_query": scale * drawn["key_query"]}


def oracle(value, key_query, x, y):
    layers = [layer.clone().requires_grad_() for layer in (value, key_query)]
    loss = (predict(*layers, x) - y).square().sum() / (2 * len(x))
    return loss.detach(), torch.autograd.grad(loss, layers)


def assert_same(found, expected, tolerance):
    (loss, gradients), (true_loss, true_gradients) = found, expected
    pairs = [(loss, true_loss), *zip((gradients["value"], gradients["key_query"]), true_gradients, strict=True)]
    for one, other in pairs:
        assert one.shape == other.shape
        assert float((one - other).abs().max()) <= tolerance * max(1.0, float(other.abs().max()))


@pytest.fixture(params=FORMS, autouse=True)
def form(request, monkeypatch):
    monkeypatch.setattr(in_sample, "LARGEST_BY_MOMENTS", FORMS[request.param])


@pytest.mark.parametrize("block", [None, 1, 7, 16, 97, 1000])
@pytest.mark.parametrize(("n", "d", "m"), [(97, 5, 7), (53, 3, 2), (1, 2, 3)])
def test_loss_and_gradient_equal_automatic_differentiation(n, d, m, block):
    arguments = draw(n, d, m)
    assert_same(in_sample_loss_and_gradient(**arguments, block=block), oracle(**arguments), 1e-12)


def test_one_sample_attends_to_itself():
    """By hand: s = x, C = 0, so the loss is that of y = Ux and V does not matter."""
    arguments = draw(1, 2, 3)
    loss, gradient = in_sample_loss_and_gradient(**arguments)
    residual = arguments["x"] @ arguments["value"].T - arguments["y"]
    torch.testing.assert_close(loss, residual.square().sum() / 2)
    torch.testing.assert_close(gradient["value"], residual.T @ arguments["x"])
    assert float(gradient["key_query"].abs().max()) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_huge_scores_do_not_overflow(dtype):
    found = in_sample_loss_and_gradient(**draw(61, 5, 7, scale=1e6, dtype=dtype), block=13)
    assert all(torch.isfinite(t).all() for t in (found[0], *found[1].values()))
    if dtype == torch.float64:  # scores of 300 and more; in float32 ties at the top would be decided by rounding
        moderate = draw(61, 5, 7, scale=100.0)
        assert_same(in_sample_loss_and_gradient(**moderate, block=13), oracle(**moderate), 1e-11)


def test_float32_is_close_to_float64():
    single = draw(211, 5, 7, scale=0.3, dtype=torch.float32)
    double = {name: tensor.double() for name, tensor in single.items()}
    found, expected = in_sample_loss_and_gradient(**single), oracle(**double)
    assert found[0].dtype == torch.float32
    assert_same(found, expected, 2e-6)


def test_it_is_the_gradient_that_training_uses():
    arguments = draw(31, 5, 7)
    layers = {name: arguments[name].unsqueeze(0) for name in ("value", "key_query")}
    losses, gradients = loss_and_gradient(layers, (arguments["x"].unsqueeze(0), arguments["y"].unsqueeze(0)))
    expected = losses[0], (gradients["value"][0], gradients["key_query"][0])
    assert_same(in_sample_loss_and_gradient(**arguments), expected, 1e-12)


def test_layers_that_require_gradients_are_welcome():
    arguments = draw(11, 5, 7)
    arguments["value"].requires_grad_()
    _, gradient = in_sample_loss_and_gradient(**arguments)
    arguments["value"].grad = gradient["value"]
    assert not gradient["value"].requires_grad


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"value": torch.ones(7, 5)}, "value: expected torch.float64 on cpu"),
        ({"y": torch.full((11, 7), torch.nan).double()}, "y: expected finite"),
        ({"block": 0}, "block: expected at least 1"),
    ],
)
def test_bad_arguments_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        in_sample_loss_and_gradient(**draw(11, 5, 7) | change)


@pytest.mark.parametrize(
    ("name", "shape"), [("x", (11,)), ("x", (0, 5)), ("y", (12, 7)), ("key_query", (5, 4)), ("value", (7, 4))]
)
def test_shapes_that_do_not_fit_are_named(name, shape):
    """Checked by the package itself too: shapes in signatures are free, and unchecked, in production."""
    with pytest.raises(ValueError, match=f"{name}: expected"):
        in_sample._check(**draw(11, 5, 7) | {name: torch.ones(shape, dtype=torch.float64)}, block=None)
