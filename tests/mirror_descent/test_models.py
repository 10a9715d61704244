"""Data, attention, its gradient, and training."""

import numpy as np
import pytest
import torch
from torch import nn

from attnbook.core import ensemble
from attnbook.mirror_descent import mirror
from attnbook.mirror_descent.attention import (
    Batch,
    attention_weights,
    descend,
    log_scaled_gradient,
    loss_and_gradient,
    train_loss,
)
from attnbook.mirror_descent.attention_svm import attention_svm
from attnbook.mirror_descent.data import draw_problems, joined, plane_toy
from attnbook.mirror_descent.optimizer import MirrorDescent

SIZES = {"n_samples": 5, "n_tokens": 3, "dimension": 7}
PROBLEMS = draw_problems([0, 1], **SIZES)
BATCH = Batch.of(PROBLEMS)
KEY_QUERY = torch.tensor(np.random.default_rng(0).standard_normal((2, 7, 7)))


def plain_loss(key_query, problems, i):
    """What a user would write for one problem, sample by sample."""
    total = 0.0
    for n in range(5):
        tokens = torch.tensor(problems.tokens[i, n])
        weights = torch.softmax(tokens @ key_query @ torch.tensor(problems.queries[i, n]), 0)
        output = torch.tensor(problems.decoder[i]) @ tokens.T @ weights
        total = total + torch.log1p(torch.exp(-problems.labels[i, n] * output))
    return total / 5


def test_problems_have_unit_vectors_and_signs():
    own = draw_problems([3], **SIZES)
    for vectors in (own.tokens, own.queries, own.decoder):
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=-1), 1.0)
    assert set(np.unique(own.labels)) <= {-1.0, 1.0}


def test_the_problem_of_a_seed_does_not_depend_on_the_others():
    alone = draw_problems([1], **SIZES)
    assert np.array_equal(alone.tokens[0], PROBLEMS.tokens[1])
    assert np.array_equal(alone.labels[0], PROBLEMS.labels[1])


def test_scores_and_best_tokens_by_hand():
    toy = plane_toy()
    np.testing.assert_allclose(toy.token_scores, [[[0.9, -0.4, -0.88]]])
    assert toy.best_tokens.tolist() == [[0]]
    assert joined([toy.repeated(2), toy]).tokens.shape == (3, 1, 3, 2)


def test_the_loss_is_that_of_the_plain_loop():
    expected = [plain_loss(KEY_QUERY[i], PROBLEMS, i) for i in range(2)]
    torch.testing.assert_close(train_loss({"key_query": KEY_QUERY}, BATCH), torch.stack(expected), rtol=1e-12, atol=0)


@pytest.mark.parametrize("size", [0.0, 1.0, 30.0])
def test_the_gradient_is_that_of_autograd(size):
    """At 30 attention is nearly saturated and autograd still has digits."""
    parameters = {"key_query": size * KEY_QUERY}
    losses, gradients = loss_and_gradient(parameters, BATCH)
    expected_losses, expected = ensemble.autograd(train_loss)(parameters, BATCH)
    torch.testing.assert_close(losses, expected_losses, rtol=1e-12, atol=0)
    scale = expected["key_query"].abs().max()
    torch.testing.assert_close(gradients["key_query"] / scale, expected["key_query"] / scale, rtol=0, atol=1e-10)


def test_the_scaled_gradient_is_the_gradient_and_survives_where_that_underflows():
    """Far out only the rival closest to winning is left: an outer product with its query."""
    scaled, log_scale = log_scaled_gradient(5 * KEY_QUERY, BATCH)
    _, exact = loss_and_gradient({"key_query": 5 * KEY_QUERY}, BATCH)
    torch.testing.assert_close(scaled * log_scale.exp()[:, None, None], exact["key_query"], rtol=1e-10, atol=1e-15)
    toy, key_query = Batch.of(plane_toy()), torch.tensor([[[1.2e4, 0.0], [0.5e4, 0.0]]], dtype=torch.float64)
    assert loss_and_gradient({"key_query": key_query}, toy)[1]["key_query"].abs().max() == 0
    free, _ = log_scaled_gradient(key_query, toy)
    direction = -torch.tensor([1.2, 0.5], dtype=torch.float64) / 1.3
    torch.testing.assert_close(free[0, :, 0] / free[0].norm(), direction, rtol=1e-12, atol=0)


@pytest.mark.parametrize("normalized", [False, True])
def test_training_together_is_training_each_alone_with_autograd(normalized):
    ps = np.array([1.5, 3.0])
    history = descend(PROBLEMS, ps, steps=9, step_size=0.1, normalized=normalized, start=KEY_QUERY.numpy())
    for i, p in enumerate(ps):
        weight = nn.Parameter(KEY_QUERY[i].clone())
        optimizer = MirrorDescent([weight], lr=0.1, p=float(p), normalized=normalized)
        for _ in range(9):
            optimizer.zero_grad()
            plain_loss(weight, PROBLEMS, i).backward()
            optimizer.step()
        torch.testing.assert_close(history.parameters["key_query"][i], weight.detach(), rtol=1e-9, atol=1e-11)


def test_records_are_those_of_their_steps():
    history = descend(PROBLEMS, np.array([1.5, 3.0]), steps=4, step_size=0.1, record_at=(0, 4))
    first, last = history.records["key_query"]
    assert np.array_equal(first, np.zeros((2, 7, 7)))
    assert not np.array_equal(first, last)


def test_trained_attention_picks_the_tokens_its_svm_is_asked_for():
    history = descend(PROBLEMS, np.array([2.0, 2.0]), steps=300, step_size=0.2, normalized=True)
    last = history.parameters["key_query"]
    selected = attention_weights(last, BATCH).argmax(-1).numpy()
    solution = attention_svm(PROBLEMS.tokens, PROBLEMS.queries, selected, 2.0).weight
    cosine = (mirror.normalised(solution, 2.0) * mirror.normalised(last.numpy(), 2.0)).sum((1, 2))
    assert (cosine > 0.98).all()


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"n_samples": 0}, "n_samples"),
        ({"n_tokens": 1}, "n_tokens"),
        ({"dimension": 0}, "dimension"),
        ({"seeds": []}, "seeds"),
        ({"seeds": [-1]}, "seed"),
    ],
)
def test_impossible_problems_are_refused_by_name(change, name):
    arguments = {"seeds": [0], **change}
    with pytest.raises(ValueError, match=name):
        draw_problems(arguments.pop("seeds"), **arguments)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"p": np.array([1.0, 2.0])}, "p: "),
        ({"p": np.array([2.0])}, "p: "),
        ({"step_size": -0.1}, "step_size"),
        ({"steps": 0}, "steps"),
        ({"start": np.zeros((2, 3, 3))}, "start"),
    ],
)
def test_impossible_descents_are_refused_by_name(change, name):
    arguments = {"p": np.array([2.0, 2.0]), "steps": 2, "step_size": 0.1} | change
    with pytest.raises(ValueError, match=name):
        descend(PROBLEMS, **arguments)
