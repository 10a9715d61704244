"""Self-attention on padded reviews: without the padding, it is the same; the bounds of Theorem 2."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbook.core.figures import BACKGROUND
from attnbook.global_attention.attention_bounds import (
    bound_after_moving_a_factor,
    l1_gradient_of_softmax,
    mass_on_padding,
    samples_needed,
)
from attnbook.global_attention.experiments.exactness import padding_free_errors, uniform_attention_error
from attnbook.global_attention.figures.self_attention import LOOKS
from attnbook.global_attention.padding_free_attention import (
    attend,
    attend_with_gradient,
    attention_weights,
    merge_key_query,
    padding_mass,
)

T, DV, P = 5, 3, 17
SIZES = {"n_tokens": 7, "dimension": 5, "width": 11, "n_query": 3, "n_value": 2}


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def padded(tokens, key_query, value, n_positions=P):
    """All positions, as the paper writes it."""
    inputs = torch.nn.functional.pad(tokens, (0, 0, 0, n_positions - tokens.shape[1]))
    return torch.softmax(inputs @ key_query @ inputs.mT, -1) @ (inputs @ value.mT)


@pytest.fixture
def matrices():
    return draw(T, T, seed=1).requires_grad_(), draw(DV, T, seed=2).requires_grad_()


@pytest.mark.parametrize("length", [1, 2, 13, 16, 17])
@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_padding_free_attention_equals_padded(length, scale, matrices):
    tokens = draw(2, length, T) * scale
    expected, found = padded(tokens, *matrices), attend(tokens, *matrices, n_positions=P)
    torch.testing.assert_close(found.words, expected[:, :length], rtol=1e-10, atol=1e-12)
    if length < P:
        padding = found.padding.unsqueeze(1).expand(-1, P - length, -1)
        torch.testing.assert_close(padding, expected[:, length:], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("length", [1, 13, 17])
def test_gradients_by_hand_and_by_autograd_equal_those_of_the_padded_network(length, matrices):
    tokens, gradient = draw(2, length, T), draw(2, P, DV, seed=3)
    at_words, at_padding = gradient[:, :length], gradient[:, length:].sum(1)
    expected = torch.autograd.grad((padded(tokens, *matrices) * gradient).sum(), matrices)
    found = attend(tokens, *matrices, n_positions=P)
    automatic = torch.autograd.grad((found.words * at_words).sum() + (found.padding * at_padding).sum(), matrices)
    with torch.no_grad():
        _, backward = attend_with_gradient(tokens, *matrices, n_positions=P)
        by_hand = backward(at_words.clone(), at_padding)
    for gradients in (automatic, by_hand):
        for one, other in zip(gradients, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11)


def test_zero_rows_at_the_end_of_a_review_are_padding(matrices):
    tokens = draw(1, 7, T)
    longer = torch.nn.functional.pad(tokens, (0, 0, 0, 4))
    short, long = (attend(x, *matrices, n_positions=P) for x in (tokens, longer))
    torch.testing.assert_close(long.words[:, :7], short.words)
    torch.testing.assert_close(long.words[:, 7:], short.padding.unsqueeze(1).expand(-1, 4, -1))


def test_huge_scores_do_not_overflow_and_hugely_negative_ones_leave_all_to_padding(matrices):
    tokens = torch.ones(1, 3, T, dtype=torch.float64)
    value = matrices[1].detach()
    up, down = (sign * torch.eye(T, dtype=torch.float64) * 1e4 for sign in (1, -1))
    torch.testing.assert_close(attend(tokens, up, value, P).words[0, 0], value.sum(1))
    assert attend(tokens, down, value, P).words.abs().max() == 0
    no_padding = attend(tokens, down, value, 3).words[0, 0]
    torch.testing.assert_close(no_padding, value.sum(1))


def test_one_word_with_score_zero_by_hand():
    found = attend(torch.full((1, 1, 1), 6.0), torch.zeros(1, 1), torch.ones(1, 1), n_positions=3)
    assert (found.words.item(), found.padding.item()) == (2.0, 2.0)


def test_rows_of_attention_and_padding_sum_to_one(matrices):
    tokens, key_query = draw(2, 7, T), matrices[0].detach()
    weights, padding = attention_weights(tokens, key_query, P), padding_mass(tokens, key_query, P)
    torch.testing.assert_close(weights.sum(-1) + padding, torch.ones(2, 7, dtype=torch.float64))
    assert (weights >= 0).all()


def test_scores_are_queries_times_keys_over_the_root_of_their_size():
    query, key, x = draw(3, T), draw(3, T, seed=1), draw(7, T, seed=2)
    expected = (x @ query.T) @ (x @ key.T).T / 3**0.5
    torch.testing.assert_close(x @ merge_key_query(query, key) @ x.T, expected)


@pytest.mark.parametrize("function", [attend, attend_with_gradient])
def test_more_words_than_positions_are_refused(function, matrices):
    with pytest.raises(ValueError, match="n_positions: expected at least the 7 words of a review, got 6"):
        function(draw(1, 7, T), *(m.detach() for m in matrices), n_positions=6)


def test_both_identities_of_the_chapter_hold_to_rounding():
    assert max(padding_free_errors(n_positions=11)) <= 1e-12
    assert uniform_attention_error() <= 1e-12


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 60), st.integers(0, 60), st.floats(-5, 5))
def test_mass_on_padding_is_that_of_equal_scores(length, padding, score):
    """In one dimension with x = 1, key_query = score."""
    n_positions = length + padding
    tokens = torch.ones(1, length, 1, dtype=torch.float64)
    expected = padding_mass(tokens, torch.full((1, 1), score, dtype=torch.float64), n_positions)[0, 0].item()
    assert mass_on_padding(length, n_positions, score) == pytest.approx(expected, abs=1e-12)


def test_mass_on_padding_by_hand_and_at_the_ends():
    assert mass_on_padding(230, 2142) == pytest.approx(1 - 230 / 2142)
    assert (mass_on_padding(0, 5), mass_on_padding(5, 5)) == (1.0, 0.0)
    assert mass_on_padding(3, 5, 1e6) == pytest.approx(0, abs=1e-300)
    with pytest.raises(ValueError, match="length: expected between 0 and n_positions = 5, got 6"):
        mass_on_padding(6, 5)


def test_bound_of_theorem_2_by_hand():
    """All norms 1, error 1/e^2: the logarithm is log 7 + 1; 42+11+30+10 parameters... counted one by one."""
    parameters = 7 * 2 * 11 + 11 + 2 * 3 * 5 + 2 * 5
    expected = np.exp(2) * (np.log(7) + 1) * parameters
    assert samples_needed("printed", np.exp(-2), **SIZES) == pytest.approx(expected)
    assert samples_needed("proof", np.exp(-2), **SIZES) == pytest.approx(expected * 35**2)


def test_bound_grows_with_the_powers_of_the_theorem():
    ratio = {}
    for name in ("c_hidden", "c_decoder", "c_inputs", "c_value"):
        new, old = (samples_needed("proof", 1e-30, **SIZES, **{name: c}) for c in (2.0, 1.0))
        logs = np.log(2 * 7e15) / np.log(7e15)
        ratio[name] = np.log2(new / old / logs)
    assert ratio == pytest.approx({"c_hidden": 4, "c_decoder": 2, "c_inputs": 4, "c_value": 4})


@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_only_the_proof_s_bound_is_blind_to_a_factor_that_changes_no_function(factor):
    ratios = bound_after_moving_a_factor(factor)
    assert ratios["proof_bound_ratio"] == pytest.approx(1, abs=1e-12)
    assert ratios["printed_bound_ratio"] == pytest.approx(factor**-4)


@pytest.mark.parametrize(
    ("change", "name"),
    [({"error": 0.0}, "error"), ({"error": 1e9}, "error"), ({"width": 0}, "width"), ({"form": "x"}, "form")],
)
def test_bad_arguments_of_the_bound_are_refused_by_name(change, name):
    with pytest.raises(ValueError, match=name):
        samples_needed(**({"form": "proof", "error": 0.1, **SIZES} | change))


def test_an_l1_penalty_on_attention_weights_has_no_gradient():
    assert l1_gradient_of_softmax(np.random.default_rng(0), 13) <= 1e-15


def test_networks_can_be_told_apart_without_colour():
    def luminance(color):
        channels = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        return float(
            np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
            @ [0.2126, 0.7152, 0.0722]
        )

    for look in LOOKS.values():
        assert (luminance(BACKGROUND) + 0.05) / (luminance(look.color) + 0.05) >= 4.5
    for one, other in itertools.combinations(LOOKS.values(), 2):
        assert one.marker != other.marker
        assert one.line != other.line
