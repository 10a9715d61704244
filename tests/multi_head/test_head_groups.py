"""Groups of equal heads, the starts they come from, and what is minimised."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import whole_network

from attnbook.multi_head import head_groups, layer, network, starts, tangent_kernel
from attnbook.multi_head.data import Drawn, Mixture, draw
from attnbook.multi_head.objectives import log_sum_exp, logistic

MIXTURE = Mixture(n_tokens=5, dimension=7, n_patterns=3, label_noise=0.1, other_noise=0.1, free_noise=0.3)
SEEDS = (0, 1)


def drawn_samples(n_samples: int = 11, purpose: str = "samples") -> Drawn:
    return draw(MIXTURE, n_samples, SEEDS, purpose=purpose)


def counts_of(*each: float) -> torch.Tensor:
    return torch.tensor([each] * len(SEEDS), dtype=torch.float64)


def train(start: dict[str, torch.Tensor], drawn: Drawn, counts: torch.Tensor, **options: float):
    return head_groups.gradient_descent(
        start,
        drawn.tokens,
        logistic(drawn.labels),
        counts=counts,
        step_size=0.5,
        steps=50,
        record=lambda p: {"norm": head_groups.norm(p, counts=counts)},
        **options,
    )


@pytest.mark.parametrize("each", [(3.0, 1.0), (8.0, 8.0)])
def test_groups_train_exactly_as_the_whole_network(each: tuple[float, float]) -> None:
    drawn, counts = drawn_samples(), counts_of(*each)
    start = starts.first_phase(*drawn_samples(30, "first phase")[:2])
    groups = train(start, drawn, counts)
    whole = network.gradient_descent(whole_network.expand(start, counts=counts), drawn[:2], step_size=0.5, steps=50)
    for name, tensor in whole_network.expand(groups.parameters, counts=counts).items():
        torch.testing.assert_close(tensor, whole.parameters[name], rtol=0, atol=1e-13)
    largest = sum(tensor.square().sum((1, 2, 3)) for tensor in whole.parameters.values()).sqrt()
    np.testing.assert_allclose(groups.records["norm"][-1], largest.numpy(), rtol=1e-12)


@pytest.mark.parametrize("each", [(2.0, 2.0), (5.0, 11.0)])
def test_each_group_is_one_head_with_two_step_sizes(each: tuple[float, float]) -> None:
    """MH-COLLAPSE: the decoder m U / sqrt(H) takes steps of size eta m / H, the key-query matrix of eta / m."""
    drawn, counts = drawn_samples(), counts_of(*each)
    start = starts.first_phase(*drawn_samples(30, "first phase")[:2])
    m, heads = counts[:, :, None, None], sum(each)
    one = {"decoder": m / heads**0.5 * start["decoder"], "key_query": start["key_query"]}
    rates = {"decoder": 0.5 * m / heads, "key_query": 0.5 / m}
    for _ in range(50):  # outputs are sums over these heads: the scaling has the exponent 0
        gradient = layer.value_and_gradient(one, drawn.tokens, logistic(drawn.labels), exponent=0.0)[1]
        one = {name: one[name] - rates[name] * gradient[name] for name in one}
    groups = train(start, drawn, counts).parameters
    torch.testing.assert_close(one["decoder"], m / heads**0.5 * groups["decoder"], rtol=0, atol=1e-13)
    torch.testing.assert_close(one["key_query"], groups["key_query"], rtol=0, atol=1e-13)


@pytest.mark.parametrize("exponent", [0.5, 1.0])
def test_gradient_of_a_group_is_that_of_one_of_its_heads(exponent: float) -> None:
    drawn, counts = drawn_samples(), counts_of(2.0, 5.0)
    rng = np.random.default_rng(0)
    groups = {
        "decoder": torch.tensor(rng.standard_normal((2, 2, 5, 7))),
        "key_query": torch.tensor(rng.standard_normal((2, 2, 7, 7))),
    }
    whole = {name: t.requires_grad_() for name, t in whole_network.expand(groups, counts=counts).items()}
    out = layer.outputs(whole, drawn.tokens, exponent=exponent)
    loss = torch.nn.functional.softplus(-drawn.labels * out).mean(1)
    expected = torch.autograd.grad(loss.sum(), list(whole.values()))
    value, gradient = layer.value_and_gradient(
        groups, drawn.tokens, logistic(drawn.labels), counts=counts, exponent=exponent
    )
    torch.testing.assert_close(value, loss.detach())
    for name, full in zip(whole, expected, strict=True):
        for group, head in enumerate((0, 2)):
            torch.testing.assert_close(gradient[name][:, group], full[:, head], rtol=1e-10, atol=1e-13)


def test_million_million_heads_move_less_and_predict_almost_the_same_as_a_million() -> None:
    drawn, start = drawn_samples(), starts.first_phase(*drawn_samples(30, "first phase")[:2])
    found = {h: train(start, drawn, counts_of(h / 2, h / 2)) for h in (1e6, 1e12)}
    moved = {
        h: head_groups.norm({n: t - start[n] for n, t in f.parameters.items()}, counts=counts_of(0.5, 0.5)).numpy()
        for h, f in found.items()
    }
    np.testing.assert_allclose(moved[1e12] * 1e3, moved[1e6], rtol=1e-3)


def test_leaving_a_sample_out_is_giving_it_no_weight() -> None:
    drawn = drawn_samples()
    weights = torch.full((2, 11), 1 / 11, dtype=torch.float64)
    weights[:, 4] = 0.0
    keep = [i for i in range(11) if i != 4]
    parameters = starts.first_phase(*drawn_samples(30, "first phase")[:2])
    without = layer.value_and_gradient(parameters, drawn.tokens, logistic(drawn.labels, weights))
    fewer = layer.value_and_gradient(parameters, drawn.tokens[:, keep], logistic(drawn.labels[:, keep]))
    torch.testing.assert_close(without[0], fewer[0] * 10 / 11)
    torch.testing.assert_close(without[1]["key_query"], fewer[1]["key_query"] * 10 / 11)


def test_log_sum_exp_is_the_mean_exponential_and_survives_margins_of_a_thousand() -> None:
    labels = torch.tensor([[1.0, -1.0, 1.0]], dtype=torch.float64)
    out = torch.tensor([[0.3, 0.7, -0.2]], dtype=torch.float64, requires_grad=True)
    value, slopes = log_sum_exp(labels)(out)
    expected = torch.log((-labels * out).exp().mean(1))
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(slopes, torch.autograd.grad(expected.sum(), out)[0])
    far = log_sum_exp(labels)(torch.tensor([[3000.0, -4000.0, 5000.0]], dtype=torch.float64))
    torch.testing.assert_close(far[0], torch.tensor([-3000.0 - math.log(3)], dtype=torch.float64))


def test_first_phase_is_one_gradient_step_from_zero_with_step_alpha_root_heads() -> None:
    tokens, labels, _ = drawn_samples(30, "first phase")
    alpha = torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)
    zero = {name: t.repeat(1, 3, 1, 1) for name, t in starts.zero(2, 5, 7).items()}
    _, gradient = network.loss_and_gradient(zero, (tokens, labels))
    found = starts.first_phase(tokens, labels, coefficients=alpha)
    for name in found:
        step = -alpha[None, :, None, None] * math.sqrt(3) * gradient[name]
        torch.testing.assert_close(found[name], step, rtol=1e-12, atol=1e-15)


def test_tangent_features_are_gradients_of_the_output() -> None:
    rng, tokens = np.random.default_rng(1), drawn_samples(3).tokens
    parameters = {
        "decoder": torch.tensor(rng.standard_normal((2, 3, 5, 7))),
        "key_query": torch.tensor(rng.standard_normal((2, 3, 7, 7))),
    }
    features = tangent_kernel.tangent_features(parameters, tokens)
    leaves = {name: t.clone().requires_grad_() for name, t in parameters.items()}
    out = layer.outputs(leaves, tokens)
    got = torch.autograd.grad(out[1, 2], list(leaves.values()))
    expected = torch.cat([g[1].flatten(1) for g in got], dim=1).flatten()
    torch.testing.assert_close(features[1, 2], expected)


def test_tangent_kernel_of_groups_is_that_of_the_whole_network() -> None:
    tokens, counts = drawn_samples(4).tokens, counts_of(3.0, 2.0)
    start = starts.first_phase(*drawn_samples(30, "first phase")[:2])
    few = tangent_kernel.tangent_features(start, tokens, counts=counts)
    all_heads = tangent_kernel.tangent_features(whole_network.expand(start, counts=counts), tokens)
    torch.testing.assert_close(few @ few.mT, all_heads @ all_heads.mT)


def test_sign_counts() -> None:
    assert starts.even_sign_counts(7).tolist() == [4.0, 3.0]
    assert starts.even_sign_counts(1).tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: starts.even_sign_counts(0), "n_heads"),
        (lambda: starts.even_sign_counts(2.5), "n_heads"),
        (lambda: starts.first_phase(*drawn_samples()[:2], coefficients=torch.zeros(0)), "coefficients"),
        (lambda: train(starts.zero(2, 5, 7), drawn_samples(), counts_of(0.0)), "counts"),
        (lambda: train(starts.zero(2, 5, 7), drawn_samples(), counts_of(1.0, 1.0)), "counts"),
        (lambda: train(starts.zero(2, 5, 7), drawn_samples(), counts_of(1.0), exponent=-1.0), "exponent"),
        (
            lambda: train(
                starts.zero(2, 5, 7),
                Drawn(drawn_samples().tokens * math.nan, drawn_samples().labels, None),
                counts_of(1.0),
            ),
            "tokens",
        ),
    ],
)
def test_bad_input_is_named(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
