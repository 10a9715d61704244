"""Self-attention on padded reviews: without the padding, it is the same; networks on tokens."""

import dataclasses

import numpy as np
import pytest
import torch

from attnbook.global_attention import padding_free_attention
from attnbook.global_attention.padding_free_attention import attention_weights, merge_key_query
from attnbook.global_attention.token_networks import Sizes, draw_flat_teacher, draw_teacher, initial_parameters, predict

T, DV, P = 5, 3, 17
SIZES = Sizes(n_tokens=7, dimension=5, n_query=3, n_value=2, width=11)


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def attend(tokens, key_query, value, n_positions=P):
    """Outputs at words and at padding."""
    return padding_free_attention.attend(tokens, key_query, value, n_positions)


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
    expected, (words, at_padding) = padded(tokens, *matrices), attend(tokens, *matrices)
    torch.testing.assert_close(words, expected[:, :length], rtol=1e-10, atol=1e-12)
    if length < P:
        padding = at_padding.unsqueeze(1).expand(-1, P - length, -1)
        torch.testing.assert_close(padding, expected[:, length:], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("length", [1, 13, 17])
def test_gradients_equal_those_of_the_padded_network(length, matrices):
    tokens, gradient = draw(2, length, T), draw(2, P, DV, seed=3)
    expected = torch.autograd.grad((padded(tokens, *matrices) * gradient).sum(), matrices)
    words, padding = attend(tokens, *matrices)
    at_padding = gradient[:, length:].sum(1)
    found = torch.autograd.grad((words * gradient[:, :length]).sum() + (padding * at_padding).sum(), matrices)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11)


def test_zero_rows_at_the_end_of_a_review_are_padding(matrices):
    tokens = draw(1, 7, T)
    longer = torch.nn.functional.pad(tokens, (0, 0, 0, 4))
    (words, padding), (more, _) = (attend(x, *matrices) for x in (tokens, longer))
    torch.testing.assert_close(more[:, :7], words)
    torch.testing.assert_close(more[:, 7:], padding.unsqueeze(1).expand(-1, 4, -1))


def test_huge_scores_do_not_overflow_and_hugely_negative_ones_leave_all_to_padding(matrices):
    tokens = torch.ones(1, 3, T, dtype=torch.float64)
    value = matrices[1].detach()
    up, down = (sign * torch.eye(T, dtype=torch.float64) * 1e4 for sign in (1, -1))
    torch.testing.assert_close(attend(tokens, up, value)[0][0, 0], value.sum(1))
    assert attend(tokens, down, value)[0].abs().max() == 0
    no_padding = attend(tokens, down, value, 3)[0][0, 0]
    torch.testing.assert_close(no_padding, value.sum(1))


def test_one_word_with_score_zero_by_hand():
    words, padding = attend(torch.full((1, 1, 1), 6.0), torch.zeros(1, 1), torch.ones(1, 1), 3)
    assert (words.item(), padding.item()) == (2.0, 2.0)


def test_what_a_row_does_not_give_to_words_lies_on_padding(matrices):
    """All of it, and with scores of zero the share 1 - L/P."""
    tokens, key_query = draw(2, 7, T), matrices[0].detach()
    inputs = torch.nn.functional.pad(tokens, (0, 0, 0, P - 7))
    expected = torch.softmax(inputs @ key_query @ inputs.mT, -1)[:, :7, :7]
    torch.testing.assert_close(attention_weights(tokens, key_query, P), expected)
    share = 1 - attention_weights(tokens, 0 * key_query, P).sum(-1)
    torch.testing.assert_close(share, torch.full((2, 7), 1 - 7 / P, dtype=torch.float64))


def test_scores_are_queries_times_keys_over_the_root_of_their_size():
    query, key, x = draw(3, T), draw(3, T, seed=1), draw(7, T, seed=2)
    expected = (x @ query.T) @ (x @ key.T).T / 3**0.5
    torch.testing.assert_close(x @ merge_key_query(query, key) @ x.T, expected)


def test_more_words_than_positions_are_refused(matrices):
    with pytest.raises(ValueError, match="n_positions: expected at least the 7 words of a review, got 6"):
        attend(draw(1, 7, T), *(m.detach() for m in matrices), n_positions=6)


def test_an_l1_penalty_on_attention_weights_has_no_gradient():
    logits = draw(11).requires_grad_()
    (gradient,) = torch.autograd.grad(torch.softmax(logits, 0).abs().sum(), logits)
    assert gradient.abs().max() <= 1e-15


def members(model, **changes):
    drawn = initial_parameters(model, 0, 0, SIZES)
    return {name: torch.tensor(array)[None] for name, array in drawn.items()} | changes


@pytest.fixture
def inputs():
    return torch.tensor(np.random.default_rng(0).standard_normal((1, 13, 7, 5)))


def test_a_factor_moved_from_the_first_layer_into_the_values_changes_no_function(inputs):
    """So a bound that keeps the norm of one and drops that of the other cannot be right; see GA-T2-all."""
    p = members("self_attention")
    moved = p | {"value": 2 * p["value"], "hidden": p["hidden"] / 2}
    torch.testing.assert_close(*(predict("self_attention", q, inputs) for q in (p, moved)))


def test_uniform_attention_is_self_attention_without_queries(inputs):
    p = members("self_attention", query=torch.zeros(1, 3, 5).double())
    torch.testing.assert_close(*(predict(model, p, inputs) for model in ("self_attention", "uniform_attention")))


def test_a_global_mask_multiplies_inputs(inputs):
    p = members("global_attention")
    masked = predict("global_attention", p | {"mask": 2 * p["mask"]}, inputs)
    torch.testing.assert_close(masked, predict("baseline", p, 2 * inputs))


def test_labels_of_a_teacher_have_mean_zero_and_variance_one_and_weights_far_from_uniform():
    teacher, rng = draw_teacher(SIZES, np.random.default_rng(0)), np.random.default_rng(1)
    inputs = torch.tensor(rng.standard_normal((1, 20_000, 7, 5)))
    labels = predict("self_attention", teacher, inputs)
    assert (float(labels.mean()), float(labels.std())) == pytest.approx((0, 1), abs=0.05)
    weights = attention_weights(inputs[0], merge_key_query(teacher["query"][0], teacher["key"][0]), 7)
    assert weights.max(-1).values.mean() > 3 / 7


def test_near_zero_self_attention_sees_the_mean_token_only(inputs):
    """The proof that the class does not contain flat networks; at the inputs themselves it sees more."""
    p = members("self_attention")
    shuffled = inputs[:, :, torch.tensor([3, 0, 6, 1, 5, 2, 4])]
    for scale, same in ((1e-5, True), (1.0, False)):
        one, other = (predict("self_attention", p, scale * x) / scale for x in (inputs, shuffled))
        assert torch.allclose(one, other, rtol=1e-6, atol=1e-8) == same


def test_a_flat_teacher_reads_as_many_inputs_as_it_is_told():
    teacher = draw_flat_teacher(SIZES, np.random.default_rng(0), 6)
    x = draw(1, 9, 7, 5).requires_grad_()
    labels = predict("global_attention", teacher, x)
    (gradient,) = torch.autograd.grad(labels.sum(), x)
    assert (gradient.abs().sum((0, 1)) > 0).sum() == 6


def test_three_layers_by_hand(inputs):
    p = members("three_layers")
    hidden = (inputs[0].flatten(1) @ p["hidden"][0].T).relu()
    expected = (hidden @ p["middle"][0].T).relu() @ p["decoder"][0]
    torch.testing.assert_close(predict("three_layers", p, inputs)[0], expected)


def test_bad_sizes_are_refused_by_name():
    with pytest.raises(ValueError, match="n_value: expected at least 1, got 0"):
        dataclasses.replace(SIZES, n_value=0)
