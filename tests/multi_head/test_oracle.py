"""Oracle parameters and the margins stated for them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attnbook.multi_head import oracle
from attnbook.multi_head.data import Mixture, draw_patterns, draw_samples

MIXTURE = Mixture(10, 13, 5, pattern_norm=2.0, relevant_fraction=0.4, label_noise=0.1, other_noise=0.1, free_noise=0.5)


def test_norms_are_the_stated_ones() -> None:
    patterns = draw_patterns(MIXTURE, rng=np.random.default_rng(0))
    assert np.linalg.norm(oracle.key_query(patterns)) == pytest.approx(4 * math.sqrt(12))
    assert np.linalg.norm(oracle.decoder(patterns, 10)) == pytest.approx(2 * math.sqrt(20))


def test_irrelevant_queries_look_at_relevant_keys() -> None:
    patterns = draw_patterns(MIXTURE, rng=np.random.default_rng(0))
    logits = patterns.other @ oracle.key_query(patterns) @ np.concatenate([patterns.label, patterns.other]).T
    np.testing.assert_allclose(logits[:, :2], 16.0)
    np.testing.assert_allclose(logits[:, 2:], 0.0, atol=1e-12)


def test_uniform_attention_has_at_least_the_linear_margin() -> None:
    rng = np.random.default_rng(1)
    patterns = draw_patterns(MIXTURE, rng=rng)
    drawn = draw_samples(MIXTURE, patterns, 2000, rng=rng)
    margins = drawn.labels * (drawn.tokens.sum(1) @ oracle.value_direction(patterns)) / (2 * math.sqrt(20))
    assert oracle.linear_margin(MIXTURE) <= margins.min() < 1.1 * oracle.linear_margin(MIXTURE)


def test_without_leak_or_noise_the_margins_are_those_known_by_hand() -> None:
    quiet = Mixture(10, 7, 4, pattern_norm=2.0, relevant_fraction=0.4)
    assert oracle.attention_margin(quiet) == pytest.approx(2 * math.sqrt(5))
    assert oracle.attention_margin(quiet, leak=0.5) == pytest.approx(math.sqrt(5))
    assert oracle.linear_margin(quiet) == pytest.approx(0.4 * 2 * math.sqrt(5))
    expected = 10 * 0.16 * 0.6 * 16 / (4 * math.sqrt(10)) + 0.8 * math.sqrt(5)
    assert oracle.first_phase_margin(quiet) == pytest.approx(expected)
    assert oracle.first_phase_margin(quiet, residual=0.01) == pytest.approx(expected - 0.01 * 10**2.5 * 8)


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="leak"):
        oracle.attention_margin(MIXTURE, leak=1.5)
    with pytest.raises(ValueError, match="residual"):
        oracle.first_phase_margin(MIXTURE, residual=-1.0)
