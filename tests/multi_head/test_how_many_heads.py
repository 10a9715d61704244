"""The number of heads: identities, measures, and the planted teacher."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from attnbook.multi_head import head_groups, layer, measures, network, one_head, starts, teacher
from attnbook.multi_head.exercises.how_many_heads import CHECKS
from attnbook.multi_head.experiments import groups
from attnbook.multi_head.figures import how_many_heads as figures
from attnbook.multi_head.objectives import logistic
from attnbook.multi_head.one_head import step_sizes, two_number_path
from attnbook.multi_head.tables import how_many_heads as tables

SIZES = {"n_tokens": 5, "dimension": 11, "n_patterns": 3, "n_first_phase": 13, "n_test": 17, "seeds": (0, 1)}
SETTINGS = groups.MixtureSettings(**SIZES, relevant_fraction=0.4, n_samples=7)
HARD = groups.MixtureSettings(**SIZES, relevant_fraction=0.2, n_samples=31)


@pytest.fixture(scope="module")
def data() -> groups.Data:
    return groups.draw_data(SETTINGS, SETTINGS.seeds, device=torch.device("cpu"))


def one(data: groups.Data, rates: dict[str, float], steps: int = 40):
    tokens, labels, _ = data.train
    return one_head.gradient_descent(starts.zero(2, 5, 11), tokens, logistic(labels), rates=rates, steps=steps)


@pytest.mark.parametrize("exponent", [0.5, 0.8, 1.0])
def test_many_heads_from_zero_are_one_head_with_two_step_sizes(data, exponent):
    """All seven heads are trained; one head is multiplied out again."""
    heads, eta = 7, 0.9
    tokens, labels, _ = data.train
    many = head_groups.gradient_descent(
        {name: t.repeat_interleave(heads, dim=1) for name, t in starts.zero(2, 5, 11).items()},
        tokens,
        logistic(labels),
        counts=torch.ones((2, heads), dtype=torch.float64),
        step_size=eta,
        steps=40,
        record=lambda p: {"size": p["decoder"].abs().amax((1, 2, 3))},
        exponent=exponent,
    ).parameters
    alone = one(data, step_sizes(eta, heads, exponent))
    scale = float(heads) ** (1 - exponent)
    torch.testing.assert_close(many["key_query"][:, 3], alone["key_query"][:, 0], rtol=0, atol=1e-14)
    torch.testing.assert_close(scale * many["decoder"][:, 3], alone["decoder"][:, 0], rtol=0, atol=1e-14)
    if exponent == 0.5:
        torch.testing.assert_close(one_head.as_many_heads(alone, heads), many, rtol=0, atol=1e-14)
        split = layer.outputs(one_head.as_many_heads(alone, heads), tokens)
        torch.testing.assert_close(split, layer.outputs(alone, tokens))


def test_infinitely_many_heads_never_move_attention(data):
    rates = step_sizes(0.5, math.inf)
    assert rates == {"decoder": 0.5, "key_query": 0.0}
    frozen = one(data, rates)
    assert not frozen["key_query"].any()
    mass = measures.relevant_mass(frozen, data.test.tokens, data.test.relevant)
    torch.testing.assert_close(mass, torch.full((2, 1), 0.4, dtype=torch.float64))


def test_at_large_steps_only_the_step_size_over_the_root_of_heads_matters():
    """Four times the step size and sixteen times the heads: the same attention; the decoder is four times as large."""
    data = groups.draw_data(HARD, HARD.seeds, device=torch.device("cpu"))
    few, many = (one(data, step_sizes(eta, h)) for eta, h in ((1e6, 1e8), (4e6, 16e8)))
    torch.testing.assert_close(few["key_query"], many["key_query"], rtol=1e-4, atol=1e-8)
    torch.testing.assert_close(4 * few["decoder"], many["decoder"], rtol=1e-4, atol=1.0)
    other = one(data, step_sizes(4e6, 4e8))
    assert (few["key_query"] - other["key_query"]).abs().max() > 0.1 * few["key_query"].abs().max()


def test_effective_heads_are_the_ratio_of_the_two_step_sizes():
    for exponent in (0.3, 0.5, 0.9):
        rates = step_sizes(0.7, 23, exponent)
        assert rates["decoder"] / rates["key_query"] == pytest.approx(23 ** (2 - 2 * exponent))


def test_relevant_mass_counts_keys_not_queries(data):
    rng = np.random.default_rng(0)
    parameters = {
        "decoder": torch.tensor(rng.standard_normal((2, 3, 5, 11))),
        "key_query": torch.tensor(rng.standard_normal((2, 3, 11, 11))),
    }
    found = measures.relevant_mass(parameters, *data.test[::2])
    x, w, relevant = data.test.tokens[1, :], parameters["key_query"][1, 2], data.test.relevant[1]
    weights = torch.softmax(x @ w @ x.mT, dim=-1)
    by_hand = np.mean([weights[i][:, relevant[i]].sum(1).mean() for i in range(17)])
    assert found[1, 2].item() == pytest.approx(by_hand, rel=1e-12)


def test_a_group_without_heads_changes_nothing(data):
    both = starts.first_phase(*data.first_phase[:2])
    plus = {name: t[:, :1] for name, t in both.items()}
    counts = torch.tensor([[1.0, 0.0]] * 2, dtype=torch.float64)
    tokens, labels, _ = data.train
    with_empty = layer.value_and_gradient(both, tokens, logistic(labels), counts=counts)
    alone = layer.value_and_gradient(plus, tokens, logistic(labels))
    torch.testing.assert_close(with_empty[0], alone[0])
    torch.testing.assert_close(with_empty[1]["decoder"][:, :1], alone[1]["decoder"])


def test_cells_are_trained_in_batches_as_one_by_one(data, monkeypatch):
    cells = [groups.Cell(h, eta) for eta in (0.3, 0.7) for h in (1, 4, 9)]
    options = {"steps": 6, "record_at": (0, 3, 6)}
    together = groups.train_cells(data, cells, "first_phase", **options)
    assert together["train_loss"].shape == (2, 6, 3)
    assert together["mass"].shape == (2, 6, 3, 2)
    monkeypatch.setattr(groups, "GROUPS_AT_ONCE", 1)
    for name, array in groups.train_cells(data, cells, "first_phase", **options).items():
        np.testing.assert_allclose(array, together[name], rtol=1e-12)
    counts = torch.tensor([[5.0, 4.0]], dtype=torch.float64)
    start = starts.first_phase(data.first_phase.tokens[1:], data.first_phase.labels[1:])
    whole = network.gradient_descent(
        head_groups.expand(start, counts=counts), (data.train.tokens[1:], data.train.labels[1:]), step_size=0.7, steps=6
    )
    assert together["train_loss"][1, 5, 2] == pytest.approx(whole.records["train_loss"][-1, 0], rel=1e-12)


def test_teacher_labels_by_the_sign_of_its_own_output():
    rng = np.random.default_rng(0)
    planted = teacher.draw_teacher(5, 3, rng=rng)
    tokens, labels = teacher.draw_labelled(planted, 29, rng=rng)
    logits = tokens @ planted["key_query"][0] @ tokens.transpose(0, 2, 1)
    weights = np.exp(logits) / np.exp(logits).sum(2, keepdims=True)
    outputs = ((weights @ tokens) * planted["decoder"][0]).sum((1, 2))
    np.testing.assert_array_equal(labels, np.sign(outputs))
    assert 5 < (labels > 0).sum() < 24


def test_an_output_of_zero_is_an_error():
    assert measures.error_rate(torch.zeros(1, 4), torch.ones(1, 4)).item() == 1


ZERO = starts.zero(2, 5, 11)


def label_none():
    rng = np.random.default_rng(0)
    return teacher.draw_labelled(teacher.draw_teacher(2, 2, rng=rng), 0, rng=rng)


def test_relevant_tokens_of_other_samples_are_refused(data):
    """By the check of shapes in tests, by the function itself elsewhere."""
    with pytest.raises((ValueError, TypeError), match="relevant"):
        measures.relevant_mass(ZERO, data.test.tokens, data.train.relevant)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d: step_sizes(0, 3), "step_size"),
        (lambda d: step_sizes(0.5, 0.5), "n_heads"),
        (lambda d: step_sizes(0.5, 2, -1), "exponent"),
        (lambda d: step_sizes(0.5, math.nan), "n_heads"),
        (lambda d: one_head.as_many_heads(ZERO, 0), "n_heads"),
        (lambda d: one(d, {"decoder": 0.5}), "rates"),
        (lambda d: one(d, step_sizes(0.5, 2), steps=0), "steps"),
        (
            lambda d: one_head.gradient_descent(
                one_head.as_many_heads(ZERO, 2), d.train.tokens, logistic(d.train.labels), rates={}, steps=1
            ),
            "one head",
        ),
        (lambda d: label_none(), "n_samples"),
        (lambda d: teacher.draw_teacher(0, 2, rng=np.random.default_rng(0)), "n_tokens"),
        (lambda d: groups.MixtureSettings(n_test=0), "n_test"),
        (lambda d: groups.MixtureSettings(seeds=(1, 1)), "seeds"),
    ],
)
def test_bad_input_is_named(call, message, data):
    with pytest.raises(ValueError, match=message):
        call(data)


def right_steps(eta, heads, c):
    return eta * heads ** (1 - 2 * c), eta / heads


def right_mass(weights, relevant):
    return (weights * relevant[:, None, :]).sum(-1).mean()


def right_collapse(counts, outputs, gradients):
    root = counts.sum() ** 0.5
    return counts @ outputs / root, gradients / root


@pytest.mark.parametrize(
    ("exercise", "right", "wrong", "hint"),
    [
        ("MH-H1", right_steps, lambda eta, h, c: (eta, eta / h), "c = 1/2 only"),
        ("MH-H1", right_steps, lambda eta, h, c: right_steps(eta, h, c)[::-1], "V first"),
        ("MH-H2", right_mass, lambda a, r: (a * r[:, :, None]).sum(-1).mean(), "queries are rows"),
        ("MH-H2", right_mass, lambda a, r: (a * r[:, None, :]).sum(-1), "one number"),
        ("MH-H3", right_collapse, lambda m, f, g: (m @ f / 3, m[:, None] * g / 3), "does not know"),
        ("MH-H3", right_collapse, lambda m, f, g: (f.sum() / 3, g / 3), "counts every head"),
    ],
)
def test_exercises_accept_the_right_answer_and_name_the_mistake(exercise, right, wrong, hint):
    assert CHECKS[exercise](right) is None
    assert hint in CHECKS[exercise](wrong)


def test_the_head_of_two_numbers_follows_the_gradient_by_automatic_differentiation():
    share, eta, heads = 0.2, 0.7, 3
    v, w = (torch.zeros((), dtype=torch.float64, requires_grad=True) for _ in range(2))
    decoder, attention = two_number_path(eta, heads, share=share, steps=40)
    for _ in range(40):
        s = torch.softmax(
            torch.stack([w + math.log(share), torch.tensor(math.log(1 - share), dtype=torch.float64)]), 0
        )[0]
        slopes = torch.autograd.grad(torch.log1p(torch.exp(-v * s)), (v, w))
        v = (v - eta * slopes[0]).detach().requires_grad_()
        w = (w - eta / heads * slopes[1]).detach().requires_grad_()
    odds = share / (1 - share) * math.exp(w.item())
    assert decoder[-1] == pytest.approx(v.item(), rel=1e-12)
    assert attention[-1] == pytest.approx(odds / (1 + odds), rel=1e-12)


@pytest.mark.parametrize(("share", "steps", "message"), [(0.0, 3, "share: expected"), (0.5, 0, "steps: expected")])
def test_the_head_of_two_numbers_refuses_what_makes_no_sense(share, steps, message):
    with pytest.raises(ValueError, match=message):
        two_number_path(0.5, 4, share=share, steps=steps)


def test_the_path_is_drawn_and_put_in_words():
    paths = {H: two_number_path(0.5, H, share=0.1, steps=100) for H in (1, 4)}
    (ax,) = figures.two_number_paths(paths, 4).axes
    assert any(np.array_equal(line.get_ydata(), paths[4][1]) for line in ax.get_lines())
    said = tables.path_text(*paths[4], 4)
    assert said.startswith("H = 4, after 100 steps")
    assert f"{paths[4][1][-1]:.2f} (at the start 0.10)" in said
