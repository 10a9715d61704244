"""Theory and closed forms of the chapter on one good step, against oracles that share no code with them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from attnbook.core.kernel_margin import kernel_margin
from attnbook.core.rng import stream
from attnbook.multi_head import layer, oracle, starts
from attnbook.multi_head import start_bounds as theory
from attnbook.multi_head.data import Mixture, draw, draw_patterns, draw_samples
from attnbook.multi_head.objectives import logistic
from attnbook.multi_head.one_good_step.experiments import jacobian_errors, truth
from attnbook.multi_head.tangent_kernel import tangent_features

CPU = torch.device("cpu")

NOISY = Mixture(5, 11, 3, pattern_norm=1.5, relevant_fraction=0.4, label_noise=0.2, other_noise=0.25, free_noise=0.6)


def decoder_part(tokens, labels, decoder):
    return labels * torch.einsum("bnd,bd->bn", tokens.mean(2), decoder.sum(1))


def network(parameters, tokens):
    """Multi-head attention written out from the definition."""
    decoder, key_query = parameters
    attended = torch.softmax(tokens @ key_query @ tokens.T, dim=-1) @ tokens
    return (decoder * attended).sum() / math.sqrt(len(decoder))


def network_margins(batch, true, row, alpha):
    """Margins of the target in a network whose heads have the rows alpha_h m, from its features."""
    n_heads, n_tokens, dimension = len(alpha), *batch.tokens.shape[2:]
    scale = torch.tensor(alpha, dtype=torch.float64)[None, :, None, None]
    parameters = {
        "decoder": scale * row[:, None, None].expand(-1, n_heads, n_tokens, -1),
        "key_query": row.new_zeros((len(row), n_heads, dimension, dimension)),
    }
    heads = [torch.cat([true.decoder.flatten(1), np.sign(a) * true.key_query.flatten(1)], dim=1) for a in alpha]
    features = tangent_features(parameters, batch.tokens)
    return batch.labels * torch.einsum("bnf,bf->bn", features, torch.cat(heads, dim=1) / n_heads**0.5)


def test_the_step_by_the_gradient_is_the_closed_form() -> None:
    """MH-L2.1: the key-query matrices stay zero, all rows are equal, heads differ by their coefficient only."""
    first, alpha = draw(NOISY, 50, [3], purpose="first phase"), torch.tensor([1.0, -1.0, 0.3], dtype=torch.float64)
    zero = {name: tensor.expand(-1, 3, -1, -1) for name, tensor in starts.zero(1, 5, 11).items()}
    gradient = layer.value_and_gradient(zero, first.tokens, logistic(first.labels))[1]
    formula = starts.first_phase(first.tokens, first.labels, coefficients=alpha)
    for name, tensor in gradient.items():
        stepped = -(alpha * 3**0.5)[:, None, None] * tensor
        torch.testing.assert_close(stepped, formula[name], rtol=0, atol=1e-14)
    assert (formula["decoder"] == formula["decoder"][:, :, :1]).all()


@pytest.mark.parametrize(
    "quiet",
    [
        Mixture(10, 6, 4, pattern_norm=2.0, relevant_fraction=0.4),
        Mixture(7, 11, 3, pattern_norm=1.5, relevant_fraction=3 / 7),
        Mixture(5, 13, 2, pattern_norm=3.0, relevant_fraction=1.0),  # every token carries the label
    ],
)
def test_without_noise_whole_networks_have_the_margin_of_equation_seven_under_both_readings(quiet) -> None:
    """Signs with zeta/4; uniform on [-1, 1] with zeta/2, in expectation: linear in alpha on each half."""
    batch, true = draw(quiet, 20, [3]), truth(quiet, [3], CPU)
    stated, row = oracle.first_phase_margin(quiet), quiet.relevant_fraction * true.signal
    signs = network_margins(batch, true, row / 4, [1.0, -1.0, -1.0])
    uniform = sum(network_margins(batch, true, row / 2, [alpha]) for alpha in (-0.5, 0.5)) / 2
    for found in (signs, uniform):
        np.testing.assert_allclose(found.numpy(), stated, rtol=1e-10)


@pytest.mark.parametrize("alpha", [(1.0,), (-1.0, 1.0, 1.0), (0.3, -0.8)])
def test_the_two_parts_are_the_margin_of_the_target_by_automatic_differentiation(alpha) -> None:
    """Slope of a whole network in the direction of the target, for signs and for other coefficients."""
    batch, true = draw(NOISY, 7, [3]), truth(NOISY, [3], CPU)
    u, w = true.decoder[0], true.key_query[0]
    m = torch.randn(NOISY.dimension, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    scale = torch.tensor(alpha, dtype=torch.float64)
    decoder = scale[:, None, None] * m.expand(len(alpha), NOISY.n_tokens, -1)
    key_query = torch.zeros(len(alpha), NOISY.dimension, NOISY.dimension, dtype=torch.float64)
    towards = u.expand_as(decoder) / len(alpha) ** 0.5, scale.sign()[:, None, None] * w / len(alpha) ** 0.5
    expected = []
    for x, y in zip(batch.tokens[0], batch.labels[0], strict=True):
        at = decoder.clone().requires_grad_(), key_query.clone().requires_grad_()
        gradients = torch.autograd.grad(network(at, x), at)
        expected.append(float(y * sum((g * t).sum() for g, t in zip(gradients, towards, strict=True))))
    zero = decoder_part(batch.tokens, batch.labels, u[None])
    pull = starts.key_query_pull(batch.tokens, batch.labels, w[None])
    found = zero[0] + scale.abs().mean() * (pull[0] @ m)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10)
    whole = network_margins(batch, true, m[None], alpha)
    np.testing.assert_allclose(whole[0].numpy(), expected, rtol=1e-10)


def test_with_random_signs_no_margin_depends_on_the_number_of_heads_and_equal_signs_grow_like_its_root() -> None:
    """Of the paper's target and of the best one; outputs are one head's times the sum of the signs."""
    batch, true, first = draw(NOISY, 7, [3]), truth(NOISY, [3], CPU), draw(NOISY, 50, [3], purpose="first phase")
    m = starts.first_phase_direction(first.tokens, first.labels)
    one = starts.first_phase(first.tokens, first.labels, coefficients=torch.ones(1))
    single, best, margins = layer.outputs(one, batch.tokens), [], []
    for signs in ([1.0], [-1.0, 1.0, 1.0], [1.0, -1.0] * 4):
        many = starts.first_phase(first.tokens, first.labels, coefficients=torch.tensor(signs))
        features = tangent_features(many, batch.tokens)[0]
        best.append(2**0.5 * kernel_margin((features @ features.T).numpy(), batch.labels[0].numpy()).margin)
        margins.append(network_margins(batch, true, m, signs).numpy())
        outputs = layer.outputs(many, batch.tokens)
        torch.testing.assert_close(outputs, single * sum(signs) / len(signs) ** 0.5, atol=1e-12, rtol=0)
    np.testing.assert_allclose(margins, margins[:1] * 3, rtol=1e-10)
    np.testing.assert_allclose(best, best[:1] * 3, rtol=1e-8)
    equal = starts.first_phase(first.tokens, first.labels, coefficients=torch.ones(9))
    torch.testing.assert_close(layer.outputs(equal, batch.tokens), 3 * single)


def test_the_exact_size_is_the_mean_over_many_first_phases() -> None:
    rng = np.random.default_rng(0)
    patterns = draw_patterns(NOISY, rng=rng)
    drawn = draw_samples(NOISY, patterns, 40_000, rng=rng)
    each = drawn.labels[:, None] * drawn.tokens.mean(1) / 2 - 0.1 * oracle.value_direction(patterns)
    found = each.reshape(8000, 5, -1).mean(1)
    assert theory.residual_size(NOISY, 5) == pytest.approx(math.sqrt((found**2).sum(1).mean()), rel=0.01)


def test_sizes_known_by_hand() -> None:
    """One token that is the label's pattern: p is half of plus or minus the mean of both patterns."""
    alone = Mixture(1, 3, 1, relevant_fraction=1.0)
    assert theory.residual_size(alone, 1) == pytest.approx(math.sqrt(1 / 8))
    assert theory.residual_bound(alone, 4, failure=math.exp(-3)) == pytest.approx(2 * math.sqrt(3))
    assert theory.head_norm_bound(NOISY, 0.5) == pytest.approx(math.sqrt(5) * 2)
    assert theory.head_norm_bound(Mixture(1, 3, 1, pattern_norm=0.5, relevant_fraction=1.0), 0.0) == 1.0
    assert theory.head_norm_bound(alone, 0.0, sharper=True) == pytest.approx(math.sqrt(2) / 4)
    assert theory.output_bound(alone, 1.0, n_samples=2, failure=2 * math.exp(-2)) == pytest.approx(4.0)
    ours = theory.output_bound(alone, 0.0, n_samples=5, failure=2 * math.exp(-2), sharper=True)
    assert ours == pytest.approx(math.sqrt(2) / 2)
    assert theory.residual_price(Mixture(4, 6, 2, pattern_norm=2.0, relevant_fraction=0.5)) == 32 * 8
    assert theory.residual_price(Mixture(4, 6, 2, pattern_norm=2.0, relevant_fraction=0.5), sharper=True) == 4 * 8


def adversarial(mixture: Mixture, patterns, rng) -> tuple[np.ndarray, float]:
    """A sample whose noise sits at random corners of what is allowed."""
    k = mixture.n_tokens - mixture.n_relevant
    y = float(rng.choice([1.0, -1.0]))
    everything = np.concatenate([patterns.label, patterns.other])
    bounds = np.r_[[mixture.label_noise] * 2, [mixture.other_noise / mixture.n_patterns] * mixture.n_patterns]
    shared = rng.choice([1.0, -1.0], len(bounds)) if rng.random() < 0.5 else 1.0
    corners = rng.choice([1.0, -1.0], (k, len(bounds))) if np.isscalar(shared) else np.tile(shared, (k, 1))
    noise = corners * bounds @ everything / mixture.pattern_norm**2
    plain = patterns.other[rng.integers(mixture.n_patterns, size=k)] + noise
    label = np.tile(patterns.label[int(y < 0)], (mixture.n_relevant, 1))
    return np.concatenate([label, plain]), y


@pytest.mark.parametrize("share", [0.2, 0.6, 1.0])
def test_our_bound_holds_at_the_worst_corners_and_at_any_residual(share) -> None:
    mixture = Mixture(5, 7, 3, pattern_norm=1.7, relevant_fraction=share, label_noise=0.36, other_noise=0.36)
    rng = np.random.default_rng(1)
    patterns = draw_patterns(mixture, rng=rng)
    u, w = oracle.decoder(patterns, 5), oracle.key_query(patterns)
    drawn = [adversarial(mixture, patterns, rng) for _ in range(3000)]
    tokens, labels = torch.tensor(np.stack([x for x, _ in drawn]))[None], torch.tensor([[y for _, y in drawn]])
    zero = decoder_part(tokens, labels, torch.tensor(u / np.linalg.norm(u))[None])
    pull = starts.key_query_pull(tokens, labels, torch.tensor(w / np.linalg.norm(w))[None])
    signal = zero + share / 4 * pull @ torch.tensor(oracle.value_direction(patterns))
    assert (signal >= theory.margin_bound(mixture) - 1e-12).all()
    worst = signal - 0.3 * pull.norm(dim=2)
    assert (worst >= theory.margin_bound(mixture, residual=0.3) - 1e-12).all()
    assert theory.margin_bound(mixture) >= oracle.first_phase_margin(mixture)


def test_without_noise_our_bound_is_equation_seven() -> None:
    quiet = Mixture(7, 9, 3, pattern_norm=1.3, relevant_fraction=3 / 7)
    assert theory.margin_bound(quiet) == pytest.approx(oracle.first_phase_margin(quiet), rel=1e-13)


def test_targets_have_norm_one_and_belong_to_the_samples() -> None:
    true, drawn = truth(NOISY, [3, 5], CPU), draw(NOISY, 6, [3, 5])
    np.testing.assert_allclose(true.decoder.flatten(1).norm(dim=1), 1.0)
    np.testing.assert_allclose(true.key_query.flatten(1).norm(dim=1), 1.0)
    for member, seed in enumerate((3, 5)):
        label = torch.tensor(draw_patterns(NOISY, rng=stream(seed, "patterns")).label)
        torch.testing.assert_close(label[0] - label[1], true.signal[member])
        relevant = drawn.tokens[member][drawn.relevant[member]]
        assert torch.cdist(relevant, label).amin(1).max() == 0


def test_the_softmax_jacobian_at_zero_carries_one_over_the_number_of_tokens() -> None:
    """Without it the error is the missing factor less one."""
    assert jacobian_errors(4) == pytest.approx([0.0, 3.0], abs=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.residual_size(NOISY, 0), "n_samples"),
        (lambda: theory.residual_bound(NOISY, 0), "n_samples"),
        (lambda: theory.residual_bound(NOISY, 5, failure=1.0), "failure"),
        (lambda: theory.head_norm_bound(NOISY, -0.1), "residual"),
        (lambda: theory.head_norm_bound(NOISY, math.inf, sharper=True), "residual"),
        (lambda: theory.output_bound(NOISY, 0.1, n_samples=0), "n_samples"),
        (lambda: theory.output_bound(NOISY, 0.1, n_samples=5, failure=0.0), "failure"),
        (lambda: theory.margin_bound(NOISY, residual=-1.0), "residual"),
        (lambda: theory.margin_bound(Mixture(5, 7, 3, relevant_fraction=0.4, label_noise=0.2)), "label_noise"),
    ],
)
def test_bad_input_is_named(call, message) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_the_law_of_the_sum_of_signs_is_that_of_all_sign_vectors():
    sums = abs(np.array(list(itertools.product((-1, 1), repeat=5))).sum(1)) / math.sqrt(5)
    for failure in (0.01, 0.1, 0.3, 0.5, 0.9):
        assert theory.sign_quantile(5, failure) == np.quantile(sums, 1 - failure, method="inverted_cdf")
    with pytest.raises(ValueError, match="n_heads: expected a whole number of at least 1, got 0"):
        theory.sign_quantile(0, 0.05)
    with pytest.raises(ValueError, match="failure: expected a number above 0 and below 1, got 1"):
        theory.sign_quantile(4, 1.0)


def test_quantiles_of_the_sum_of_signs_by_hand():
    """Four heads: 0 with probability 6/16, one with 8/16, two with 2/16."""
    assert [theory.sign_quantile(4, failure) for failure in (0.7, 0.2, 0.125, 0.05)] == [0.0, 1.0, 1.0, 2.0]
    assert theory.sign_quantile(1, 0.05) == 1.0
