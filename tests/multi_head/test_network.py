"""The network against a plain loop, its closed forms against automatic differentiation."""

import math

import jaxtyping
import numpy as np
import pytest
import torch

from attnbook.core import ensemble, spectrum
from attnbook.multi_head import derivatives, layer, network

MEMBERS, HEADS, SAMPLES, TOKENS, DIMENSION = 2, 3, 7, 5, 11
SIZES = {"n_heads": HEADS, "n_tokens": TOKENS, "dimension": DIMENSION}


def draw(seed=0, scale=0.5):
    rng = np.random.default_rng(seed)
    drawn = [network.draw_parameters(**SIZES, scale=scale, rng=rng) for _ in range(MEMBERS)]
    parameters = {name: torch.tensor(np.stack([one[name] for one in drawn])) for name in drawn[0]}
    tokens = torch.tensor(rng.standard_normal((MEMBERS, SAMPLES, TOKENS, DIMENSION)))
    return parameters, (tokens, torch.tensor(rng.choice([-1.0, 1.0], (MEMBERS, SAMPLES))))


def of_first(parameters):
    return {name: tensor[0] for name, tensor in parameters.items()}


def plain_output(parameters, tokens, member, sample):
    """Equation (2), one head and one query after the other."""
    x, total = tokens[member, sample], 0.0
    for u, w in zip(parameters["decoder"][member], parameters["key_query"][member], strict=True):
        for t in range(TOKENS):
            weights = torch.softmax(torch.stack([x[t] @ w @ x[s] for s in range(TOKENS)]), 0)
            total = total + u[t] @ (weights @ x)
    return float(total) / math.sqrt(HEADS)


def test_predictions_are_those_of_a_plain_loop():
    parameters, (tokens, _) = draw()
    expected = [[plain_output(parameters, tokens, m, i) for i in range(SAMPLES)] for m in range(MEMBERS)]
    got = layer.outputs(parameters, tokens)
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)


def test_one_head_with_two_tokens_by_hand():
    """Tokens (0, log 3), w = 1 / log 3: the second query weighs its keys 1 to 3, the first 1 to 1."""
    log3 = math.log(3)
    parameters = {
        "decoder": torch.tensor([[[[2.0], [4.0]]]], dtype=torch.float64),
        "key_query": torch.tensor([[[[1 / log3]]]], dtype=torch.float64),
    }
    tokens = torch.tensor([[[[0.0], [log3]]]], dtype=torch.float64)
    weights = layer.attention_weights(parameters, tokens)[0, 0, 0]
    torch.testing.assert_close(weights, torch.tensor([[0.5, 0.5], [0.25, 0.75]], dtype=torch.float64))
    assert layer.outputs(parameters, tokens).item() == pytest.approx((2 / 2 + 4 * 3 / 4) * log3)


def test_attention_weights_sum_to_one_for_every_query():
    parameters, (tokens, _) = draw()
    weights = layer.attention_weights(parameters, tokens)
    assert weights.shape == (MEMBERS, SAMPLES, HEADS, TOKENS, TOKENS)
    torch.testing.assert_close(weights.sum(4), torch.ones(weights.shape[:4], dtype=torch.float64))


@pytest.mark.parametrize("scale", [0.1, 0.5, 3.0])
def test_closed_gradient_is_that_of_autograd(scale):
    parameters, batch = draw(scale=scale)
    expected_losses, expected = ensemble.autograd(network.losses)(parameters, batch)
    losses, gradients = network.loss_and_gradient(parameters, batch)
    torch.testing.assert_close(losses, expected_losses, rtol=1e-13, atol=0)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-10, atol=1e-15)


def test_order_of_heads_does_not_matter():
    parameters, (tokens, _) = draw()
    turned = {name: tensor.flip(1) for name, tensor in parameters.items()}
    torch.testing.assert_close(layer.outputs(parameters, tokens), layer.outputs(turned, tokens))


def test_loss_keeps_its_digits_where_predictions_are_confident():
    parameters, (tokens, _) = draw()
    sure = parameters | {"decoder": parameters["decoder"] * 40}
    outputs = layer.outputs(sure, tokens)
    expected = torch.log1p(torch.exp(-outputs.abs())).mean(1)
    assert expected.min() < 1e-3
    got = network.losses(sure, (tokens, torch.sign(outputs)))
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=0)


def test_first_heads_do_not_depend_on_their_number():
    few, many = (
        network.draw_parameters(n, TOKENS, DIMENSION, scale=1.0, rng=np.random.default_rng(0)) for n in (2, HEADS)
    )
    for name in few:
        np.testing.assert_array_equal(few[name], many[name][:2])


def test_one_step_of_gradient_descent_and_its_fall():
    parameters, batch = draw()
    history = network.gradient_descent(parameters, batch, step_size=0.1, steps=1)
    _, gradients = network.loss_and_gradient(parameters, batch)
    for name, tensor in history.parameters.items():
        torch.testing.assert_close(tensor, parameters[name] - 0.1 * gradients[name], rtol=1e-13, atol=1e-15)
    assert (history.records["train_loss"][-1] < history.records["train_loss"][0]).all()


def test_largest_head_norm_by_hand():
    parameters = {
        "decoder": torch.zeros(1, 2, 3, 5, dtype=torch.float64),
        "key_query": torch.zeros(1, 2, 5, 5, dtype=torch.float64),
    }
    parameters["decoder"][0, 0, 0, 0], parameters["decoder"][0, 1, 0, 0] = 4.0, 3.0
    parameters["key_query"][0, 1, 1, 1] = 4.0
    assert network.largest_head_norm(parameters).tolist() == [5.0]


def written_out(parameters, tokens, labels):
    """The Hessian by differentiating twice, reordered head by head."""
    stacked = (tokens.unsqueeze(0), labels.unsqueeze(0))
    product, size = spectrum.hessian_product(
        lambda p: network.losses({name: t.unsqueeze(0) for name, t in p.items()}, stacked)[0], parameters
    )
    u, w = TOKENS * DIMENSION, DIMENSION**2
    order = [
        index
        for h in range(HEADS)
        for index in [*range(h * u, (h + 1) * u), *range(HEADS * u + h * w, HEADS * u + (h + 1) * w)]
    ]
    return spectrum.dense(product, size)[np.ix_(order, order)]


def test_hessian_in_closed_form_is_that_of_autograd():
    parameters, (tokens, labels) = draw()
    hessian = derivatives.loss_hessian(of_first(parameters), tokens[0], labels[0])
    expected = written_out(of_first(parameters), tokens[0], labels[0])
    np.testing.assert_allclose(hessian.dense(), expected, rtol=0, atol=1e-10 * np.abs(expected).max())


def test_blocks_of_the_hessian_carry_one_over_the_root_of_the_heads():
    """Pairs of heads that cancel: outputs are zero whatever their number, and four times the heads halve a block."""
    parameters, (tokens, labels) = draw()
    one = {name: tensor[0, :1] for name, tensor in parameters.items()}
    pair = {"decoder": torch.cat([one["decoder"], -one["decoder"]]), "key_query": one["key_query"].repeat(2, 1, 1)}
    eight = {name: tensor.repeat(4, 1, 1) for name, tensor in pair.items()}
    few, many = (derivatives.loss_hessian(p, tokens[0], labels[0]).blocks for p in (pair, eight))
    np.testing.assert_allclose(many[:2], few / 2, rtol=0, atol=1e-12 * np.abs(few).max())


def test_decoder_has_no_curvature_of_its_own():
    parameters, (tokens, labels) = draw()
    at = TOKENS * DIMENSION
    blocks = derivatives.head_hessians(of_first(parameters), tokens[0], labels[0])
    assert (blocks[:, :at, :at] == 0).all()
    assert (blocks[:, :at, at:] != 0).any()


@pytest.mark.parametrize("function", [network.loss_and_gradient, network.losses])
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("decoder", lambda t: t[:, :0]),
        ("decoder", lambda t: t[..., :-1]),
        ("key_query", lambda t: t[:, :-1]),
        ("key_query", lambda t: t[:1]),
    ],
)
def test_parameters_that_do_not_fit_are_refused_by_name(function, name, change):
    parameters, batch = draw()
    with pytest.raises(ValueError, match=rf"parameters\['{name}'\]: expected"):
        function(parameters | {name: change(parameters[name])}, batch)


def test_missing_parameters_are_refused_by_name():
    parameters, (tokens, _) = draw()
    with pytest.raises(ValueError, match="expected 'key_query'"):
        layer.outputs({"decoder": parameters["decoder"]}, tokens)


def test_labels_and_tokens_that_cannot_be_trained_on_are_refused_by_name():
    parameters, (tokens, labels) = draw()
    with pytest.raises(ValueError, match="labels: expected 1 or -1"):
        network.gradient_descent(parameters, (tokens, labels * 2), step_size=0.1, steps=1)
    with pytest.raises((ValueError, jaxtyping.TypeCheckError), match=r"labels|batch"):
        network.losses(parameters, (tokens, labels[:, :1]))
    poisoned = tokens.clone()
    poisoned[0, 0, 0, 0] = float("nan")
    with pytest.raises(ValueError, match="tokens: 1 of"):
        network.gradient_descent(parameters, (poisoned, labels), step_size=0.1, steps=1)
    spoiled = parameters | {"decoder": parameters["decoder"] * float("nan")}
    with pytest.raises(ValueError, match="decoder"):
        network.gradient_descent(spoiled, (tokens, labels), step_size=0.1, steps=1)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"n_heads": 2.5}, "n_heads"),
        ({"n_tokens": 0}, "n_tokens"),
        ({"dimension": 0}, "dimension"),
        ({"scale": float("nan")}, "scale"),
    ],
)
def test_impossible_networks_are_refused_by_name(change, name):
    with pytest.raises(Exception, match=name):
        network.draw_parameters(**(SIZES | {"scale": 1.0} | change), rng=np.random.default_rng(0))


@pytest.mark.parametrize("step_size", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_step_sizes_are_refused(step_size):
    parameters, batch = draw()
    with pytest.raises(ValueError, match="step_size: "):
        network.gradient_descent(parameters, batch, step_size=step_size, steps=1)


def test_divergence_is_an_error():
    """Logits overflow after one huge step."""
    parameters, (tokens, labels) = draw()
    with pytest.raises(FloatingPointError, match="diverged"):
        network.gradient_descent(parameters, (tokens * 1e3, labels), step_size=1e303, steps=5)


def test_descent_stops_each_member_at_its_own_first_step_below_the_loss():
    """Beside plain gradient descent of each member for as many steps as it took."""
    start, batch = draw()
    found = network.descend_to(start, batch, step_size=0.02, loss=0.3, most_steps=50)
    losses = network.gradient_descent(start, batch, step_size=0.02, steps=50, record_at=range(51)).records["train_loss"]
    first = (losses <= 0.3).argmax(0)
    np.testing.assert_allclose(network.losses(found, batch), losses[first, [0, 1]], rtol=1e-12)
    with pytest.raises(FloatingPointError, match="loss: a member is still above"):
        network.descend_to(start, batch, step_size=0.02, loss=0.3, most_steps=1)
    for change in ({"step_size": 0.0}, {"loss": -1.0}):
        with pytest.raises(ValueError, match=next(iter(change))):
            network.descend_to(start, batch, **({"step_size": 0.02, "loss": 0.3, "most_steps": 9} | change))
