"""The predictor and its closed-form gradient, against automatic differentiation and a plain loop."""

import numpy as np
import pytest
import torch

from attnbook.preconditioning import attention as models

SEEDS, PER_SEED, B, D, M = 3, 2, 11, 5, 7


def draw(*shape, seed=0):
    return torch.as_tensor(np.random.default_rng(seed).standard_normal(shape))


@pytest.fixture
def problem():
    members = SEEDS * PER_SEED
    parameters = {"value": draw(members, M, D), "key_query": draw(members, D, D, seed=1)}
    return parameters, (draw(SEEDS, B, D, seed=2), draw(SEEDS, B, M, seed=3))


def plain_loss(value, key_query, x, y):
    """The definition, one query at a time."""
    total = 0.0
    for i in range(len(x)):
        scores = torch.stack([x[j] @ key_query @ x[i] for j in range(len(x))])
        attended = sum(w * key for w, key in zip(torch.softmax(scores, 0), x, strict=True))
        total = total + (value @ attended - y[i]).square().sum()
    return total / (2 * len(x))


@pytest.mark.parametrize("cached", [1, 300, 2**18])
def test_loss_and_gradient_of_each_member_equal_the_plain_loop(problem, cached, monkeypatch):
    """Member i sees batch i modulo the number of batches, however many are computed at a time."""
    monkeypatch.setattr(models, "CACHED", cached)
    parameters, (inputs, labels) = problem
    losses, gradients = models.loss_and_gradient(parameters, (inputs, labels))
    for member in range(SEEDS * PER_SEED):
        layers = [parameters[name][member].clone().requires_grad_() for name in ("value", "key_query")]
        loss = plain_loss(*layers, inputs[member % SEEDS], labels[member % SEEDS])
        automatic = torch.autograd.grad(loss, layers)
        torch.testing.assert_close(losses[member], loss.detach(), rtol=1e-10, atol=1e-10)
        for name, expected in zip(("value", "key_query"), automatic, strict=True):
            torch.testing.assert_close(gradients[name][member], expected, rtol=1e-10, atol=1e-10)


def test_predictions_are_those_of_the_definition(problem):
    parameters, (inputs, labels) = problem
    value, key_query = parameters["value"][0], parameters["key_query"][0]
    residual = models.predict(value, key_query, inputs[0]) - labels[0]
    expected = plain_loss(value, key_query, inputs[0], labels[0])
    torch.testing.assert_close(residual.square().sum() / (2 * B), expected, rtol=1e-10, atol=1e-10)


def test_attention_weights_sum_to_one_and_the_score_is_key_times_v_times_query():
    """By hand: V moves the first coordinate of the query to the second of the key."""
    key_query = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    inputs = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    weights = models.attention_weights(key_query, inputs)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2))
    e = float(np.e)
    torch.testing.assert_close(weights[0], torch.tensor([1 / (1 + e), e / (1 + e)]))
    torch.testing.assert_close(weights[1], torch.tensor([0.5, 0.5]))


def test_effective_keys_run_from_one_to_all():
    inputs = draw(B, D)
    assert models.effective_keys(torch.zeros(D, D, dtype=torch.float64), inputs) == pytest.approx(B)
    assert models.effective_keys(1e6 * torch.eye(D, dtype=torch.float64), inputs) == pytest.approx(1.0, abs=0.2)


def test_huge_scores_do_not_overflow():
    parameters = {"value": draw(1, M, D).float(), "key_query": 1e3 * draw(1, D, D, seed=1).float()}
    losses, gradients = models.loss_and_gradient(
        parameters, (draw(1, B, D, seed=2).float(), draw(1, B, M, seed=3).float())
    )
    assert torch.isfinite(losses).all()
    assert all(torch.isfinite(g).all() for g in gradients.values())
