"""Data, attention, gradient, training, and the attention SVM."""

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
    loss_and_gradient,
    scale_free_gradient,
    train_loss,
)
from attnbook.mirror_descent.attention_svm import attention_svm, locally_optimal
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


def test_problems_have_unit_vectors_signs_and_the_query_asked_for():
    own, first = (draw_problems([3], queries=kind, **SIZES) for kind in ("independent", "first_token"))
    for vectors in (own.tokens, own.queries, own.decoder):
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=-1), 1.0)
    assert set(np.unique(own.labels)) <= {-1.0, 1.0}
    assert np.array_equal(first.queries, first.tokens[:, :, 0])
    assert np.array_equal(first.tokens, own.tokens)


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


def test_the_scale_free_gradient_has_the_direction_of_the_gradient():
    parameters = {"key_query": 5 * KEY_QUERY}
    _, exact = loss_and_gradient(parameters, BATCH)
    _, free = scale_free_gradient(parameters, BATCH)
    ratio = exact["key_query"].flatten(1).norm(dim=1) / free["key_query"].flatten(1).norm(dim=1)
    torch.testing.assert_close(free["key_query"] * ratio[:, None, None], exact["key_query"], rtol=1e-10, atol=1e-15)


def test_the_scale_free_gradient_survives_where_the_gradient_underflows():
    """Direction far out: only the rival closest to winning is left, and it is an outer product with its query."""
    toy = Batch.of(plane_toy())
    key_query = torch.tensor([[[1.2e4, 0.0], [0.5e4, 0.0]]], dtype=torch.float64)
    _, exact = loss_and_gradient({"key_query": key_query}, toy)
    _, free = scale_free_gradient({"key_query": key_query}, toy)
    assert exact["key_query"].abs().max() == 0
    direction = free["key_query"][0, :, 0] / free["key_query"][0].norm()
    torch.testing.assert_close(direction, -torch.tensor([1.2, 0.5], dtype=torch.float64) / 1.3, rtol=1e-12, atol=0)


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


@pytest.mark.parametrize("p", [1.1, 2.0, 5.0])
def test_the_svm_of_one_constraint_is_its_closed_form(p):
    problem = draw_problems([5], n_samples=1, n_tokens=2, dimension=3)
    found = attention_svm(problem.tokens, problem.queries, np.array([[1]]), p)
    constraint = np.outer(problem.tokens[0, 0, 1] - problem.tokens[0, 0, 0], problem.queries[0, 0])
    np.testing.assert_allclose(found.weight[0], mirror.single_constraint(constraint, p), rtol=1e-9, atol=1e-12)
    assert found.support.tolist() == [[[True, False]]]


def test_margins_multipliers_and_support_belong_to_their_tokens():
    """Recomputed token by token; multipliers live on support tokens and rebuild the solution through the mirror."""
    selected = np.array([[0, 1, 2, 0, 1], [2, 2, 0, 1, 0]])
    found = attention_svm(PROBLEMS.tokens, PROBLEMS.queries, selected, 1.5)
    for i in range(2):
        total = np.zeros((7, 7))
        for n in range(5):
            chosen = PROBLEMS.tokens[i, n, selected[i, n]]
            for t in range(3):
                if t == selected[i, n]:
                    assert found.margins[i, n, t] == np.inf
                    assert found.multipliers[i, n, t] == 0
                    continue
                difference = chosen - PROBLEMS.tokens[i, n, t]
                margin = difference @ found.weight[i] @ PROBLEMS.queries[i, n]
                assert found.margins[i, n, t] == pytest.approx(margin, rel=1e-10)
                assert found.support[i, n, t] == (margin <= 1 + 1e-6)
                if not found.support[i, n, t]:
                    assert found.multipliers[i, n, t] < 1e-5
                total += found.multipliers[i, n, t] * np.outer(difference, PROBLEMS.queries[i, n])
        mirrored = mirror.mirror_map(found.weight[i], 1.5) * found.norm[i] ** (2 - 1.5)
        np.testing.assert_allclose(mirrored, total, atol=1e-6 * np.abs(total).max())


def test_trained_attention_picks_the_tokens_its_svm_is_asked_for():
    history = descend(PROBLEMS, np.array([2.0, 2.0]), steps=300, step_size=0.2, normalized=True)
    last = history.parameters["key_query"]
    selected = attention_weights(last, BATCH).argmax(-1).numpy()
    solution = attention_svm(PROBLEMS.tokens, PROBLEMS.queries, selected, 2.0).weight
    cosine = (mirror.normalised(solution, 2.0) * mirror.normalised(last.numpy(), 2.0)).sum((1, 2))
    assert (cosine > 0.98).all()


def test_local_optimality_by_hand():
    """A support token with a higher score breaks it; one that is no support token does not."""
    scores, selected = np.array([[[1.0, 2.0, 0.0]]] * 2), np.array([[0], [0]])
    support = np.array([[[False, True, False]], [[False, False, True]]])
    assert locally_optimal(scores, selected, support).tolist() == [False, True]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"n_samples": 0}, "n_samples"),
        ({"n_tokens": 1}, "n_tokens"),
        ({"dimension": 0}, "dimension"),
        ({"queries": "magic"}, "queries"),
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
        ({"selected": np.array([[3, 0, 0, 0, 0]] * 2)}, "selected"),
        ({"selected": np.array([[-1, 0, 0, 0, 0]] * 2)}, "selected"),
        ({"p": 1.0}, "p: "),
        ({"tokens": np.full((2, 5, 3, 7), np.nan)}, "tokens"),
        ({"queries": np.full((2, 5, 7), np.inf)}, "queries"),
        ({"tokens": np.zeros((2, 5, 1, 7))}, "tokens"),
        ({"tokens": np.zeros((2, 5, 3, 7))}, "infeasible"),
    ],
)
def test_impossible_svms_are_refused_by_name(change, name):
    arguments = {
        "tokens": PROBLEMS.tokens,
        "queries": PROBLEMS.queries,
        "selected": np.zeros((2, 5), dtype=int),
        "p": 2.0,
    }
    with pytest.raises(ValueError, match=name):
        attention_svm(**(arguments | change))


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
