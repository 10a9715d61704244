"""Margins of the oracle parameters: formulas against brute force."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from attnbook.core.kernel_margin import NotSeparableError, kernel_margin
from attnbook.multi_head import feasibility as conditions
from attnbook.multi_head import hard_samples, oracle
from attnbook.multi_head.data import Mixture, draw_patterns, draw_samples
from attnbook.multi_head.margins import experiments as own
from attnbook.multi_head.measures import leak_and_margin, logit_gaps

NOISY = Mixture(10, 11, 5, 1.5, 0.3, label_noise=0.2, other_noise=0.3, free_noise=0.7)


def products(mixture, patterns, drawn):
    """Products of the noise of irrelevant tokens with the label patterns, and with the others."""
    tokens = drawn.tokens[~drawn.relevant]
    square = mixture.pattern_norm**2
    with_other = tokens @ patterns.other.T
    return tokens @ patterns.label.T, with_other - square * (np.arange(5) == with_other.argmax(1)[:, None])


def inside(mixture, patterns, drawn):
    label, other = products(mixture, patterns, drawn)
    assert np.abs(label).max() <= mixture.label_noise + 1e-12
    assert np.abs(other).max() <= mixture.other_noise / mixture.n_patterns + 1e-12
    own = np.where(drawn.labels[:, None] > 0, patterns.label[0], patterns.label[1])
    np.testing.assert_array_equal(
        drawn.tokens[drawn.relevant], np.broadcast_to(own[:, None], drawn.tokens.shape)[drawn.relevant]
    )


def test_corner_noise_lies_at_its_bounds_and_takes_every_sign():
    rng = np.random.default_rng(3)
    patterns = draw_patterns(NOISY, rng=rng)
    drawn = draw_samples(NOISY, patterns, 101, rng=rng, corners=True)
    label, other = products(NOISY, patterns, drawn)
    np.testing.assert_allclose(np.abs(label), NOISY.label_noise)
    np.testing.assert_allclose(np.abs(other), NOISY.other_noise / 5)
    assert {tuple(row) for row in np.sign(label)} == {(1, 1), (1, -1), (-1, 1), (-1, -1)}


def test_noise_inside_its_bounds_is_what_it_was_without_the_option():
    patterns = draw_patterns(NOISY, rng=np.random.default_rng(0))
    one, other = (draw_samples(NOISY, patterns, 7, rng=np.random.default_rng(1), **k) for k in ({}, {"corners": False}))
    np.testing.assert_array_equal(one.tokens, other.tokens)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_samples_against_linear_rules_keep_the_bounds_and_have_the_stated_mean(sign):
    patterns = draw_patterns(NOISY, rng=np.random.default_rng(5))
    made = hard_samples.against_linear_rules(NOISY, patterns, sign=sign)
    inside(NOISY, patterns, made)
    assert made.tokens.shape == (20, 10, 11)
    assert (made.relevant.sum(1) == 3).all()
    mean = (made.labels[:, None, None] * made.tokens).mean(0)
    factor = (0.3 - sign * 2 * 0.7 * 0.2 / 1.5**2) / 2
    np.testing.assert_allclose(mean, factor * oracle.decoder(patterns, 10), atol=1e-12)


def test_samples_against_attention_keep_the_bounds_and_attain_the_worst_gap():
    patterns = draw_patterns(NOISY, rng=np.random.default_rng(5))
    made = hard_samples.against_attention(NOISY, patterns)
    inside(NOISY, patterns, made)
    gaps = logit_gaps(made, oracle.key_query(patterns))
    assert gaps.min() == pytest.approx(oracle.worst_gap(NOISY))
    worst = gaps[:, NOISY.n_relevant, 1:]  # the made query, all keys but itself
    np.testing.assert_allclose(worst, oracle.worst_gap(NOISY))


def test_no_corner_of_the_noise_has_a_gap_below_the_worst():
    rng = np.random.default_rng(7)
    patterns = draw_patterns(NOISY, rng=rng)
    gaps = logit_gaps(draw_samples(NOISY, patterns, 997, rng=rng, corners=True), oracle.key_query(patterns))
    assert oracle.worst_gap(NOISY) - 1e-9 <= gaps.min() < 1.02 * oracle.worst_gap(NOISY)


def test_the_worst_gap_is_known_by_hand_where_it_matters():
    at = dataclasses.replace(Mixture(10, 7, 4), label_noise=0.125, other_noise=0.125)
    assert oracle.worst_gap(at) == 17 / 32
    z = 1 - 1 / math.sqrt(2)
    assert oracle.worst_gap(dataclasses.replace(at, label_noise=z, other_noise=z)) == pytest.approx(0, abs=1e-12)


def test_linear_rules_have_the_linear_margin_or_none():
    patterns = draw_patterns(NOISY, rng=np.random.default_rng(5))
    made = [hard_samples.against_linear_rules(NOISY, patterns, sign=s) for s in (1.0, -1.0)]
    features = np.concatenate([one.tokens.reshape(20, -1) for one in made])
    labels = np.concatenate([one.labels for one in made])
    assert kernel_margin(features @ features.T, labels).margin == pytest.approx(oracle.linear_margin(NOISY))
    loud = dataclasses.replace(NOISY, label_noise=0.6)
    made = [hard_samples.against_linear_rules(loud, patterns, sign=s) for s in (1.0, -1.0)]
    features = np.concatenate([one.tokens.reshape(20, -1) for one in made])
    assert oracle.linear_margin(loud) < 0
    with pytest.raises(NotSeparableError):
        kernel_margin(features @ features.T, labels)


def max_margin_rule(features, labels):
    """The shortest mixture of the signed features, by the weights of the solver."""
    weights = kernel_margin(features @ features.T, labels).weights
    return (weights * labels) @ features


def test_leak_and_margin_agree_with_a_plain_softmax():
    rng = np.random.default_rng(11)
    patterns = draw_patterns(NOISY, rng=rng)
    drawn = draw_samples(NOISY, patterns, 13, rng=rng)
    u, w = rng.standard_normal((10, 11)), 0.3 * rng.standard_normal((11, 11))
    leaks, outputs = [], []
    for x, y, relevant in zip(drawn.tokens, drawn.labels, drawn.relevant, strict=True):
        weights = np.exp(x @ w @ x.T)
        weights /= weights.sum(1, keepdims=True)
        leaks.append(weights[:, ~relevant].sum(1).max())
        outputs.append(y * np.sum(u * (weights @ x)))
    assert leak_and_margin(drawn, u, w) == pytest.approx((max(leaks), min(outputs)))


def test_scales_are_those_known_by_hand():
    at = Mixture(10, 7, 1, pattern_norm=2.0, relevant_fraction=0.5, label_noise=0.5, other_noise=0.5)
    assert oracle.stated_scale(at, 0.1) == pytest.approx(8 * 2 / 12 * math.log(10))
    assert oracle.stated_scale(dataclasses.replace(at, relevant_fraction=1.0), 0.1) == 0.0


def test_ratios_to_the_bounds_do_not_depend_on_the_pattern_norm():
    """With noise in proportion to its square; an identity of what Proposition 3 states."""
    ready = own.ScaledAttention.at("smoke", seeds=(0,))
    data = ready.run(device="cpu")
    bound = ready.stated(
        ("norm", "fraction", "epsilon"),
        lambda s, zeta, leak: oracle.attention_margin(ready.mixture(s, zeta, own.EIGHTH), leak=leak),
    )
    for ratio in (data.leak, data.margin / bound):
        np.testing.assert_allclose(ratio.sel(norm=1.0), ratio.sel(norm=2.0), rtol=1e-9)


def test_without_noise_irrelevant_logits_are_zero():
    quiet = own.OracleLogits.at("smoke", seeds=(0,)).run(device="cpu").irrelevant.sel(law="none")
    assert float(quiet.max()) < 1e-10


def test_the_margins_cross_where_it_is_said():
    base = Mixture(10, 12, 4, relevant_fraction=0.3)
    at = dataclasses.replace(base, pattern_norm=oracle.crossing(base))
    assert oracle.first_phase_margin(at) == pytest.approx(oracle.attention_margin(at))
    assert oracle.step_crossing(at) == pytest.approx(1)
    other = dataclasses.replace(base, pattern_norm=1.7)
    c, linear = oracle.step_crossing(other), oracle.linear_margin(other)
    assert linear + c * (oracle.first_phase_margin(other) - linear) == pytest.approx(oracle.attention_margin(other))


def test_the_head_condition_agrees_with_heads_written_out():
    s, h, n = 3.0, 7, 100.0
    decoder, key_query = math.log(n) / (s * math.sqrt(h)), s**-2.0
    norm = math.sqrt(sum(decoder**2 + key_query**2 for _ in range(h)))
    at = (np.array(s), np.array(float(h)), n)
    assert conditions.allowed_constant(*at) == pytest.approx(math.sqrt(h) / s**5 / norm**3)


def test_the_largest_constant_is_the_maximum_over_heads():
    heads = np.logspace(0, 8, 8001)
    s, n = np.array(11.0), 50.0
    best = conditions.allowed_constant(s, heads, n)
    by_hand = 2 / (3 * math.sqrt(3)) / (11 * math.log(n) ** 2)
    assert best.max() == pytest.approx(by_hand, rel=1e-6)
    assert heads[best.argmax()] == pytest.approx((11 * math.log(n)) ** 2 / 2, rel=1e-2)


def test_another_scaling_of_the_heads_agrees_with_heads_written_out():
    s, h, n, c = 3.0, 7, 100.0, 0.75
    decoder, key_query = math.log(n) / s * h ** (c - 1), s**-2.0
    norm = math.sqrt(h * (decoder**2 + key_query**2))
    at = (np.array(s), np.array(float(h)), n)
    assert conditions.allowed_constant(*at, scaling=c) == pytest.approx(h**c / s**5 / norm**3)
    printed = conditions.allowed_constant(*at, scaling=c, target_scaling=0.5)
    as_printed = math.sqrt((math.log(n) / s) ** 2 + h * s**-4)
    assert printed == pytest.approx(h**c / s**5 / as_printed**3)


def test_the_limits_of_the_constant_are_those_of_the_display_by_hand():
    p, h, n = 0.5, 16.0, 100.0
    largest, smallest = conditions.constant_limits(p, h, n)
    assert largest == pytest.approx(16**-1.5)  # H^(p - 2)
    assert smallest == pytest.approx(math.log(100) ** 2.5 / 2)  # log^(5/2) n H^(p - 3/4)
    shown = math.log(n) ** 5 / smallest**2 * h ** (2 * p - 1)  # the line before, as it is printed
    assert math.sqrt(h) == pytest.approx(shown)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: oracle.stated_scale(NOISY, 0.0), "leak"),
        (lambda: oracle.worst_gap(dataclasses.replace(NOISY, label_noise=2.0)), "too large"),
        (lambda: oracle.step_crossing(Mixture(5, 7, 3, relevant_fraction=1.0)), "irrelevant"),
        (lambda: conditions.allowed_constant(np.array(0.0), np.array(1.0), 10.0), "pattern_norm"),
        (lambda: conditions.allowed_constant(np.array(1.0), np.array(0.5), 10.0), "n_heads"),
        (lambda: conditions.allowed_constant(np.array(1.0), np.array(1.0), 1.0), "n_samples"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_samples_without_irrelevant_tokens_are_refused():
    full = Mixture(5, 7, 3, relevant_fraction=1.0)
    patterns = draw_patterns(full, rng=np.random.default_rng(0))
    with pytest.raises(ValueError, match="irrelevant"):
        hard_samples.against_attention(full, patterns)
    drawn = draw_samples(full, patterns, 3, rng=np.random.default_rng(0))
    with pytest.raises(ValueError, match="relevant tokens"):
        logit_gaps(drawn, np.eye(7))
