"""The tokenised mixture obeys its bounds on every draw."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbook.multi_head.data import Mixture, draw_patterns, draw_samples

MIXTURE = Mixture(
    n_tokens=7,
    dimension=11,
    n_patterns=5,
    pattern_norm=1.7,
    relevant_fraction=3 / 7,
    label_noise=0.3,
    other_noise=0.2,
    free_noise=0.9,
)


def draw(mixture=MIXTURE, n_samples=131, seed=0):
    rng = np.random.default_rng(seed)
    patterns = draw_patterns(mixture, rng=rng)
    return patterns, draw_samples(mixture, patterns, n_samples, rng=rng)


def test_patterns_are_orthogonal_and_of_equal_norm():
    patterns, _ = draw()
    rows = np.concatenate([patterns.label, patterns.other])
    np.testing.assert_allclose(rows @ rows.T, 1.7**2 * np.eye(7), atol=1e-13)


def test_relevant_tokens_are_the_pattern_of_their_label_without_noise():
    patterns, samples = draw()
    assert (samples.relevant.sum(axis=1) == MIXTURE.n_relevant).all()
    for label, pattern in zip((1.0, -1.0), patterns.label, strict=True):
        tokens = samples.tokens[samples.labels == label][samples.relevant[samples.labels == label]]
        assert len(tokens)
        assert (tokens == pattern).all()


@given(seed=st.integers(0, 10**6), free=st.sampled_from([0.0, 0.4]), norm=st.floats(0.5, 4.0))
@settings(max_examples=25, deadline=None)
def test_noise_obeys_all_bounds_of_the_assumption(seed, free, norm):
    """Products with patterns, norm of the noise, norm of the tokens."""
    mixture = dataclasses.replace(MIXTURE, free_noise=free, pattern_norm=norm)
    patterns, samples = draw(mixture, 29, seed)
    tokens = samples.tokens[~samples.relevant]
    nearest = patterns.other[(tokens @ patterns.other.T).argmax(axis=1)]
    noise = tokens - nearest
    assert np.abs(noise @ patterns.label.T).max() <= mixture.label_noise + 1e-12
    assert np.abs(noise @ patterns.other.T).max() <= mixture.other_noise / 5 + 1e-12
    assert np.linalg.norm(noise, axis=1).max() <= mixture.noise_norm + 1e-12
    assert np.linalg.norm(samples.tokens, axis=2).max() <= mixture.token_norm + 1e-12


def test_positions_labels_and_patterns_all_occur():
    patterns, samples = draw(n_samples=997)
    assert abs(samples.labels.mean()) < 0.15
    assert np.abs(samples.relevant.mean(axis=0) - 3 / 7).max() < 0.08
    nearest = (samples.tokens[~samples.relevant] @ patterns.other.T).argmax(axis=1)
    assert np.bincount(nearest).min() > 600


def test_without_noise_every_token_is_a_pattern():
    quiet = dataclasses.replace(MIXTURE, label_noise=0.0, other_noise=0.0, free_noise=0.0)
    patterns, samples = draw(quiet)
    rows = np.concatenate([patterns.label, patterns.other])
    distances = np.linalg.norm(samples.tokens[:, :, None] - rows, axis=3).min(axis=2)
    assert distances.max() < 1e-12
    assert quiet.noise_norm == 0


def test_norm_bounds_by_hand():
    """S = 2, Z_mu = 1, Z_nu = 2, M = 4, Z_perp = 1: Z^2 = (2 + 1) / 4 + 1, R^2 = 4 + 1.75 + 1."""
    mixture = Mixture(5, 7, 4, 2.0, 0.2, 1.0, 2.0, 1.0)
    assert mixture.noise_norm**2 == pytest.approx(1.75)
    assert mixture.token_norm**2 == pytest.approx(6.75)
    assert Mixture(5, 7, 4, 0.1).token_norm == 1


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"n_tokens": 0}, "n_tokens"),
        ({"n_patterns": 0}, "n_patterns"),
        ({"dimension": 7}, "dimension"),  # no room for free noise
        ({"dimension": 6, "free_noise": 0.0}, "dimension"),
        ({"relevant_fraction": 0.5}, "relevant_fraction"),  # 3.5 tokens
        ({"relevant_fraction": 0.0}, "relevant_fraction"),
        ({"relevant_fraction": 8 / 7}, "relevant_fraction"),
        ({"relevant_fraction": float("nan")}, "relevant_fraction"),
        ({"pattern_norm": 0.0}, "pattern_norm"),
        ({"pattern_norm": float("inf")}, "pattern_norm"),
        ({"label_noise": -0.1}, "label_noise"),
        ({"other_noise": float("nan")}, "other_noise"),
        ({"free_noise": float("inf")}, "free_noise"),
    ],
)
def test_impossible_mixtures_are_refused_by_name(change, name):
    with pytest.raises(ValueError, match=f"{name}: "):
        dataclasses.replace(MIXTURE, **change)


def test_patterns_of_another_mixture_and_no_samples_are_refused():
    rng = np.random.default_rng(0)
    patterns = draw_patterns(dataclasses.replace(MIXTURE, n_patterns=3), rng=rng)
    with pytest.raises(ValueError, match="patterns: "):
        draw_samples(MIXTURE, patterns, 5, rng=rng)
    with pytest.raises(ValueError, match="n_samples: "):
        draw_samples(MIXTURE, draw_patterns(MIXTURE, rng=rng), 0, rng=rng)
