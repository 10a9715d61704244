"""Recurrent attention: against plain loops, special cases by hand, penalties, formulas of the chapter."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnbook.core.rng import stream, to_tensor
from attnbook.global_attention.recurrent_networks import (
    Recurrence,
    attention_penalty,
    initial_parameters,
    looks,
    predict,
)
from attnbook.global_attention.sample_sizes import recurrent_samples

MEMBERS, SAMPLES, WORDS, DIMENSION, WIDTH = 2, 7, 11, 13, 17
KINDS = [Recurrence(steps, 3, units) for steps in (1, 2, 3, 5) for units in (0, 5)]


def draw(recurrence, members=MEMBERS):
    drawn = [initial_parameters(recurrence, DIMENSION, WIDTH, rng=stream(i, "weights")) for i in range(members)]
    return {name: to_tensor(np.stack([d[name] for d in drawn]), dtype=torch.float64) for name in drawn[0]}


def batch(members=MEMBERS):
    rng = stream(0, "batch")
    x, y = rng.standard_normal((members, SAMPLES, WORDS, DIMENSION)), rng.standard_normal((members, SAMPLES))
    return to_tensor(x, dtype=torch.float64), to_tensor(y, dtype=torch.float64)


def plain_weights(parameters, sentence, n_steps):
    """One network, one sentence, one word at a time, as the formulas stand in the text."""
    p = {name: tensor.numpy() for name, tensor in parameters.items()}
    n_state = p["score_state"].shape[1] if "score_out" in p else p["score_word"].shape[0]
    state, context, weights = np.ones(n_state), np.zeros(sentence.shape[1]), []
    for _ in range(n_steps):
        if "score_out" in p:
            e = [p["score_out"] @ np.tanh(p["score_state"] @ state + p["score_word"] @ x) for x in sentence]
        else:
            e = [state @ p["score_word"] @ x for x in sentence]
        alpha = np.exp(e) / np.exp(e).sum()
        if "state_state" in p:
            state = np.tanh(p["state_state"] @ state + p["state_context"] @ context)
        context = sum(a * x for a, x in zip(alpha, sentence, strict=True))
        weights.append(alpha)
    return weights, p["decoder"] @ np.maximum(p["hidden"] @ context, 0)


@pytest.mark.parametrize("recurrence", KINDS, ids=str)
def test_batched_attention_equals_the_formulas_word_by_word(recurrence):
    parameters, (sentences, _) = draw(recurrence), batch()
    seen, answer = (
        looks(parameters, sentences, recurrence.n_steps),
        predict(parameters, sentences, recurrence.n_steps),
    )
    for member in range(MEMBERS):
        own = {name: tensor[member] for name, tensor in parameters.items()}
        for i in range(SAMPLES):
            weights, y = plain_weights(own, sentences[member, i].numpy(), recurrence.n_steps)
            assert answer[member, i].item() == pytest.approx(y, rel=1e-10)
            for look, expected in zip(seen, weights, strict=True):
                np.testing.assert_allclose(look.weights[member, i].numpy(), expected, rtol=1e-10)


def test_one_step_with_the_product_score_is_softmax_attention_with_one_query():
    parameters, (sentences, _) = draw(Recurrence(1, 3, 0)), batch()
    query = parameters["score_word"].sum(1)  # R^T 1
    expected = torch.softmax((sentences @ query[:, None, :, None]).squeeze(3), -1)
    torch.testing.assert_close(looks(parameters, sentences, 1)[0].weights, expected)


def test_a_score_of_zero_is_mean_pooling():
    parameters, (sentences, _) = draw(Recurrence(1, 3, 5)), batch()
    parameters["score_out"].zero_()
    look = looks(parameters, sentences, 1)[0]
    torch.testing.assert_close(look.context, sentences.mean(2))


@pytest.mark.parametrize("units", [0, 5])
@pytest.mark.parametrize(("steps", "depends"), [(1, False), (2, False), (3, True)])
def test_other_words_enter_the_weights_at_the_third_step_and_not_before(steps, depends, units):
    parameters, (sentences, _) = draw(Recurrence(steps, 3, units)), batch()
    changed = sentences.clone()
    changed[:, :, 2:] = batch()[0].flip(1)[:, :, 2:]
    odds = []
    for x in (sentences, changed):
        *_, last = looks(parameters, x, steps)
        odds.append(last.logits[..., 0] - last.logits[..., 1])
    assert torch.allclose(*odds, atol=1e-12) != depends


@given(st.integers(0, 30))
def test_answers_do_not_depend_on_the_order_of_words(seed):
    parameters, (sentences, _) = draw(KINDS[-1]), batch()
    order = np.random.default_rng(seed).permutation(WORDS)
    torch.testing.assert_close(predict(parameters, sentences[:, :, order], 5), predict(parameters, sentences, 5))


def gradient(penalty, logits):
    return torch.autograd.grad(attention_penalty(penalty, logits.requires_grad_()).sum(), logits)[0]


def test_penalties_by_hand():
    """Weights 1/2, 1/4, 1/4 in one sentence, equal ones in the other; an L1 norm of weights moves nothing."""
    logits = torch.tensor([[[np.log(2), 0, 0], [0, 0, 0]]], dtype=torch.float64)
    expected = {"l1_weights": 1, "l2_weights": (3 / 8 + 1 / 3) / 2, "l1_scores": np.log(2) / 6,
                "entropy": (1.5 * np.log(2) + np.log(3)) / 2}  # fmt: skip
    assert {name: attention_penalty(name, logits).item() for name in expected} == pytest.approx(expected)
    assert gradient("l1_weights", torch.randn(1, 3, WORDS, dtype=torch.float64)).abs().max() < 1e-15
    assert gradient("entropy", torch.zeros(1, 1, WORDS, dtype=torch.float64)).abs().max() < 1e-15


@pytest.mark.parametrize("change", [{"n_steps": 0}, {"state": 0}, {"score": -1}])
def test_impossible_sizes_are_refused_by_name(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        Recurrence(**{"n_steps": 2, "state": 3, "score": 5} | change)


def test_impossible_looks_and_penalties_are_refused_by_name():
    parameters, (sentences, _) = draw(Recurrence(1, 3, 5)), batch()
    for steps in (0, 2):
        with pytest.raises(ValueError, match="n_steps"):
            looks(parameters, sentences, steps)
    with pytest.raises((ValueError, TypeError), match="penalty"):  # the shape checker of the tests may be first
        attention_penalty("l2_scores", torch.zeros(1, 1, 3))


def test_the_bound_is_proportional_to_the_weights_and_to_one_over_the_error():
    assert recurrent_samples(0.01, 3936) / recurrent_samples(0.01, 312) == pytest.approx(3936 / 312, rel=1e-12)
    halved = recurrent_samples(0.005, 312) / recurrent_samples(0.01, 312)
    assert halved == pytest.approx(2 * np.log(0.005**-0.5) / np.log(0.01**-0.5), rel=1e-12)


@pytest.mark.parametrize("change", [{"error": 0.0}, {"error": 2.0}, {"weights": 0}])
def test_impossible_bounds_are_refused_by_name(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        recurrent_samples(**{"error": 0.01, "weights": 7} | change)
