"""Recurrent attention: against plain loops and autograd, special cases by hand, penalties, formulas of the chapter."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnbook.core import ensemble
from attnbook.core.rng import stream, to_tensor
from attnbook.global_attention.recurrent_bounds import (
    Recurrence,
    order_blind_floor,
    samples_needed,
    weight_counts,
)
from attnbook.global_attention.recurrent_gradient import (
    loss_and_gradient,
    penalty_and_gradient,
    read_loss_and_gradient,
)
from attnbook.global_attention.recurrent_networks import (
    ProductScore,
    initial_parameters,
    looks,
    predict,
    read,
    score,
)
from attnbook.global_attention.word_teachers import draw_word_teacher

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


@pytest.mark.parametrize("recurrence", KINDS, ids=str)
@pytest.mark.parametrize("penalty", ["entropy", "l1_scores", "l2_weights"])
def test_the_closed_form_gradient_is_that_of_autograd(recurrence, penalty):
    parameters, data = draw(recurrence), batch()
    strength = torch.tensor([0.3, 0.0], dtype=torch.float64)

    def penalised(p, b):
        *_, last = looks(p, b[0], recurrence.n_steps)
        extra = {
            "entropy": -(last.weights * last.weights.log()).sum(-1).mean(1),
            "l1_scores": last.logits.abs().mean((1, 2)),
            "l2_weights": last.weights.square().sum(-1).mean(1),
        }[penalty]
        return (read(p, last.context.mT) - b[1]).square().mean(1) + strength * extra

    losses, expected = ensemble.autograd(penalised)(parameters, data)
    found, gradients = loss_and_gradient(parameters, data, recurrence.n_steps, penalty=penalty, strength=strength)
    assert found[1].item() == pytest.approx(losses[1].item(), rel=1e-12)
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-10, atol=1e-12)


def test_the_gradient_of_two_layers_on_given_features_is_that_of_autograd():
    parameters, (sentences, labels) = draw(None), batch()
    data = (sentences.mean(2), labels)
    losses, expected = ensemble.autograd(lambda p, b: (read(p, b[0]) - b[1]).square().mean(1))(parameters, data)
    found, gradients = read_loss_and_gradient(parameters, data)
    torch.testing.assert_close(found, losses)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-10, atol=1e-12)


def test_one_step_with_the_product_score_is_softmax_attention_with_one_query():
    parameters, (sentences, _) = draw(Recurrence(1, 3, 0)), batch()
    query = parameters["score_word"].sum(1)  # R^T 1
    expected = torch.softmax((sentences @ query[:, None, :, None]).squeeze(3), -1)
    torch.testing.assert_close(looks(parameters, sentences, 1)[0].weights, expected)


def test_a_score_of_zero_is_mean_pooling():
    parameters, (sentences, _) = draw(Recurrence(1, 3, 5)), batch()
    parameters["score_out"].zero_()
    look = looks(parameters, sentences, 1)[0]
    torch.testing.assert_close(look.context.mT, sentences.mean(2))


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


@pytest.mark.parametrize("recurrence", KINDS, ids=str)
def test_the_dimension_of_the_bound_is_the_number_of_weights(recurrence):
    counted = weight_counts(recurrence, DIMENSION, WIDTH)
    assert sum(counted.values()) == sum(tensor[0].numel() for tensor in draw(recurrence).values())


def test_members_do_not_mix():
    parameters, (x, y) = draw(KINDS[-1]), batch()
    whole = loss_and_gradient(parameters, (x, y), 5)[1]
    alone = loss_and_gradient({name: t[1:] for name, t in parameters.items()}, (x[1:], y[1:]), 5)[1]
    for name, gradient in alone.items():
        torch.testing.assert_close(whole[name][1:], gradient, rtol=1e-12, atol=1e-14)


def test_an_l1_penalty_on_softmax_weights_moves_nothing():
    parameters, data = draw(Recurrence(1, 3, 5)), batch()
    free = loss_and_gradient(parameters, data, 1)[1]
    held = loss_and_gradient(
        parameters, data, 1, penalty="l1_weights", strength=torch.full((2,), 100.0, dtype=torch.float64)
    )[1]
    for name, gradient in free.items():
        torch.testing.assert_close(held[name], gradient, rtol=0, atol=1e-12)


def test_entropy_is_largest_for_equal_scores_and_falls_along_minus_its_gradient():
    value, gradient = penalty_and_gradient("entropy", torch.zeros(1, 1, WORDS, dtype=torch.float64))
    assert value.item() == pytest.approx(np.log(WORDS), rel=1e-12)
    assert gradient.abs().max() < 1e-15
    logits = torch.randn(1, 3, WORDS, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    before, gradient = penalty_and_gradient("entropy", logits)
    assert penalty_and_gradient("entropy", logits - 0.1 * gradient)[0] < before


def test_the_score_is_told_by_its_parameters():
    words = batch()[0].permute(0, 3, 1, 2)
    assert isinstance(score(draw(Recurrence(1, 3, 0)), words), ProductScore)
    assert not isinstance(score(draw(Recurrence(1, 3, 5)), words), ProductScore)


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
        penalty_and_gradient("l2_scores", torch.zeros(1, 1, 3))


def test_the_bound_is_proportional_to_the_weights_and_to_one_over_the_error():
    sizes = {"dimension": 6, "width": 32}
    small, large = Recurrence(1, 4, 8), Recurrence(3, 32, 64)
    ratio = samples_needed(0.01, large, **sizes) / samples_needed(0.01, small, **sizes)
    assert ratio == pytest.approx(3936 / 312, rel=1e-12)
    halved = samples_needed(0.005, small, **sizes) / samples_needed(0.01, small, **sizes)
    assert halved == pytest.approx(2 * np.log(0.005**-0.5) / np.log(0.01**-0.5), rel=1e-12)
    tamer = samples_needed(0.01, small, c_8=3.0, c_9=5.0, **sizes)
    assert tamer / samples_needed(0.01, small, **sizes) == pytest.approx(1 + np.log(15) / np.log(10), rel=1e-12)


@pytest.mark.parametrize(
    "change", [{"error": 0.0}, {"error": 2.0}, {"dimension": 0}, {"width": -1}, {"c_8": 0.0}, {"c_x": np.inf}]
)
def test_impossible_bounds_are_refused_by_name(change):
    arguments = {"error": 0.01, "recurrence": Recurrence(1, 2, 3), "dimension": 5, "width": 7}
    with pytest.raises(ValueError, match=next(iter(change))):
        samples_needed(**arguments | change)


def test_order_blind_models_lose_nothing_where_order_does_not_matter():
    sizes = {"n_words": 5, "dimension": 3, "width": 7, "sharpness": 2.5}
    x = np.random.default_rng(0).standard_normal((50, 5, 3))
    floors = [
        order_blind_floor(draw_word_teacher(m, 0, **sizes), x, shuffles=3, rng=np.random.default_rng(1))
        for m in ("attention", "position")
    ]
    assert floors[0] < 1e-25
    assert floors[1] > 0.1


def test_the_floor_of_two_words_is_the_variance_over_both_orders():
    """By hand: two words have two orders; the variance is a quarter of the squared difference."""
    t = draw_word_teacher("position", 0, n_words=2, dimension=3, width=7, sharpness=2.0)
    x = np.random.default_rng(0).standard_normal((400, 2, 3))
    exact = ((t(x) - t(x[:, ::-1])) ** 2 / 4).mean()
    assert order_blind_floor(t, x, shuffles=300, rng=np.random.default_rng(1)) == pytest.approx(exact, rel=0.02)


def test_too_few_orders_are_refused_by_name():
    t = draw_word_teacher("position", 0, n_words=2, dimension=3, width=7, sharpness=2.0)
    with pytest.raises(ValueError, match="shuffles"):
        order_blind_floor(t, np.zeros((2, 2, 3)), shuffles=1, rng=np.random.default_rng(0))
