"""Self-attention as a two-layer network, its gradient, and three ways to train it."""

import dataclasses

import jaxtyping
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from attnbook.core.rng import stream
from attnbook.softmax_ntk import alternating, self_attention
from attnbook.softmax_ntk import attention_logits as theory
from attnbook.softmax_ntk.alternating import Way, train_layers, value_step_unit
from attnbook.softmax_ntk.exercises.to_self_attention import CHECKS
from attnbook.softmax_ntk.experiments import planted_attention, planted_settings, to_self_attention
from attnbook.softmax_ntk.figures import to_self_attention as figures
from attnbook.softmax_ntk.self_attention import (
    attention_weights,
    contexts,
    draw_layer,
    loss_and_gradients,
    outputs,
    solve_values,
)
from attnbook.softmax_ntk.tables import to_self_attention as tables

CPU = torch.device("cpu")
MEMBERS, SEQUENCES, LENGTH, DIMENSION, OUTPUTS = 2, 3, 7, 5, 4


@pytest.fixture
def layer():
    """Key-query matrices, values, tokens and labels of two layers."""
    rng = stream(0, "test", "self_attention")
    shapes = (
        (MEMBERS, DIMENSION, DIMENSION),
        (MEMBERS, DIMENSION, OUTPUTS),
        (MEMBERS, SEQUENCES, LENGTH, DIMENSION),
        (MEMBERS, SEQUENCES * LENGTH, OUTPUTS),
    )
    return [torch.from_numpy(rng.standard_normal(shape)) for shape in shapes]


def plain_loss(key_query, value, tokens, labels):
    """One member, one sequence after the other."""
    rows = [torch.softmax(x @ key_query @ x.T, dim=1) @ x @ value for x in tokens]
    return (torch.cat(rows) - labels).square().sum() / (2 * len(labels))


def test_two_tokens_and_one_entry_by_hand():
    tokens = torch.tensor([[[[0.0], [1.0]]]], dtype=torch.float64)
    weights = attention_weights(torch.tensor([[[np.log(3.0)]]]), tokens)[0, 0]
    np.testing.assert_allclose(weights, [[0.5, 0.5], [0.25, 0.75]])
    row = outputs(torch.tensor([[[np.log(3.0)]]]), torch.tensor([[[2.0]]], dtype=torch.float64), tokens)
    np.testing.assert_allclose(row[0, :, 0], [1.0, 1.5])


def test_both_gradients_equal_automatic_differentiation(layer):
    ours = loss_and_gradients(*layer)
    leaves = [t.clone().requires_grad_() for t in layer[:2]]
    losses = [plain_loss(*one) for one in zip(*leaves, *layer[2:], strict=True)]
    automatic = torch.autograd.grad(sum(losses), leaves)
    torch.testing.assert_close(ours.loss, torch.stack(losses).detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(ours.key_query, automatic[0], rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(ours.value, automatic[1], rtol=1e-10, atol=1e-13)


def test_solved_values_leave_no_gradient_and_no_better_neighbour(layer):
    key_query, value, tokens, labels = layer
    at_best = loss_and_gradients(key_query, None, tokens, labels)
    assert float(at_best.value.abs().max()) < 1e-12
    for nudge in (0.01, -0.01):
        assert (
            loss_and_gradients(key_query, at_best.at_value + nudge * value, tokens, labels).loss > at_best.loss
        ).all()


def test_singular_value_problem_gets_the_smallest_of_the_best_values():
    tokens = torch.from_numpy(stream(0, "few").standard_normal((1, 2, LENGTH, DIMENSION)))
    labels = torch.from_numpy(stream(0, "few labels").standard_normal((1, 2 * LENGTH, OUTPUTS)))
    rows = contexts(attention_weights(torch.zeros(1, DIMENSION, DIMENSION).double(), tokens), tokens)
    expected = np.linalg.lstsq(rows[0].numpy(), labels[0].numpy(), rcond=1e-9)[0]
    np.testing.assert_allclose(solve_values(rows, labels)[0], expected, atol=1e-9)


def test_tensor_trick_stacks_rows_and_not_columns():
    tokens, key_query = stream(0, "t").standard_normal((7, 3)), stream(0, "m").standard_normal((3, 3))
    got = theory.logits_by_tensor_trick(tokens, key_query)
    np.testing.assert_allclose(got, tokens @ key_query @ tokens.T)
    assert not np.allclose(got, tokens @ key_query.T @ tokens.T)


def test_condition_at_uniform_attention_grows_with_length_and_mean():
    assert theory.uniform_condition(0.0, 7) == 1
    assert theory.uniform_condition(3.0, 7) == 64


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"tokens": torch.zeros(2, 3, 7, 4).double()}, "tokens"),
        ({"tokens": torch.full((2, 3, 7, 5), np.nan).double()}, "tokens: expected finite"),
        ({"value": torch.zeros(2, 4, 4).double()}, "value"),
        ({"labels": torch.zeros(2, 20, 4).double()}, "labels"),
    ],
)
def test_wrong_shapes_are_refused_by_name(layer, change, match):
    given = dict(zip(("key_query", "value", "tokens", "labels"), layer, strict=True)) | change
    with pytest.raises((ValueError, jaxtyping.TypeCheckError), match=match):
        loss_and_gradients(**given)


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        (lambda: draw_layer(0, 3, rng=stream(0, "x")), "dimension"),
        (lambda: draw_layer(3, 3, rng=stream(0, "x"), sharpness=-1.0), "sharpness"),
        (lambda: Way("guessed"), "values"),
        (lambda: Way("solved", every=0), "every"),
        (lambda: Way("solved", rule="sgd"), "rule"),
    ],
)
def test_impossible_arguments_are_refused_by_name(wrong, name):
    with pytest.raises(ValueError, match=name):
        wrong()


def _train(layer, way, steps=5, rate=0.3):
    key_query, value, tokens, labels = layer
    rates = torch.full((len(key_query),), rate, dtype=torch.float64)
    return train_layers(
        key_query, value, tokens, labels, way=way, key_query_step=rates, value_step=rates, steps=steps, keep=(0, steps)
    )


def test_joint_descent_equals_the_plain_loop(layer):
    trained = _train(layer, Way("trained"))
    for i in range(MEMBERS):
        m, v = (t[i].clone().requires_grad_() for t in layer[:2])
        for _ in range(5):
            grads = torch.autograd.grad(plain_loss(m, v, layer[2][i], layer[3][i]), (m, v))
            m, v = ((t - 0.3 * g).detach().requires_grad_() for t, g in zip((m, v), grads, strict=True))
        torch.testing.assert_close(trained.key_query[i], m.detach(), rtol=1e-10, atol=1e-13)
        torch.testing.assert_close(trained.value[i], v.detach(), rtol=1e-10, atol=1e-13)


def test_joint_adam_equals_that_of_torch(layer):
    trained = _train(layer, Way("trained", rule="adam"), rate=0.05)
    m, v = (t[0].clone().requires_grad_() for t in layer[:2])
    optimizer = torch.optim.Adam([m, v], lr=0.05, eps=alternating.ADAM_FLOOR)
    for _ in range(5):
        optimizer.zero_grad()
        plain_loss(m, v, layer[2][0], layer[3][0]).backward()
        optimizer.step()
    torch.testing.assert_close(trained.key_query[0], m.detach(), rtol=1e-8, atol=1e-10)


def test_alternating_is_descent_on_the_loss_with_the_values_solved_for(layer):
    trained = _train(layer, Way("solved"))
    m, tokens, labels = layer[0][0].clone().requires_grad_(), layer[2][0], layer[3][0]
    for _ in range(5):
        rows = torch.cat([torch.softmax(x @ m @ x.T, dim=1) @ x for x in tokens])
        loss = (rows @ torch.linalg.lstsq(rows, labels).solution - labels).square().sum() / (2 * len(labels))
        m = (m - 0.3 * torch.autograd.grad(loss, m)[0]).detach().requires_grad_()
    torch.testing.assert_close(trained.key_query[0], m.detach(), rtol=1e-9, atol=1e-12)


def test_rare_solves_keep_the_values_in_between_and_frozen_ones_for_ever(layer):
    rare = _train(layer, Way("solved", every=3), steps=4)
    assert not torch.equal(rare.key_query, _train(layer, Way("solved"), steps=4).key_query)
    torch.testing.assert_close(_train(layer, Way("frozen")).value, layer[1])
    assert set(rare.weights) == {0, 4}


def test_a_layer_that_diverges_stops_and_leaves_the_others_alone(layer):
    key_query, value, tokens, labels = layer
    rates = torch.tensor([1e3, 0.3], dtype=torch.float64)
    trained = train_layers(
        key_query, value, tokens, labels, way=Way("trained"), key_query_step=rates, value_step=rates, steps=40
    )
    assert torch.isfinite(trained.loss).all()
    assert trained.loss[-1, 0] >= alternating.DIVERGED
    alone = _train([t[1:] for t in layer], Way("trained"), steps=40)
    torch.testing.assert_close(trained.key_query[1:], alone.key_query, rtol=1e-10, atol=1e-13)


def test_unit_of_value_steps_is_one_over_the_largest_second_moment():
    tokens = torch.tensor([[[[3.0, 0.0], [0.0, 1.0]]]], dtype=torch.float64)
    np.testing.assert_allclose(value_step_unit(tokens), [2 / 9])


@pytest.mark.parametrize(
    ("settings", "change"),
    [
        (planted_attention.Settings, {"tuning_seeds": (0,)}),
        (planted_attention.Settings, {"target": 2.0}),
        (planted_attention.Settings, {"shown_steps": (0, 500)}),
        (to_self_attention.Settings, {"few": ()}),
        (to_self_attention.Settings, {"n_sequences": 1}),
        (to_self_attention.Settings, {"chunk": 0}),
    ],
)
def test_impossible_settings_are_refused_by_name(settings, change):
    with pytest.raises(ValueError, match=next(iter(change))):
        dataclasses.replace(settings.book(), **change)


def test_unknown_problem_or_way_is_refused():
    smoke = planted_attention.Settings.smoke()
    with pytest.raises(ValueError, match="problem"):
        planted_attention.measure(smoke, "hard", "joint", device=CPU)
    with pytest.raises(ValueError, match="way"):
        planted_attention.measure(smoke, "plain", "magic", device=CPU)


def test_students_of_a_problem_differ_from_those_of_others_only_where_they_should():
    smoke = planted_attention.Settings.smoke()
    plain, mean, sharp = (planted_settings.draw(smoke, p, (0,), CPU) for p in planted_settings.PROBLEMS)
    shift = (mean.tokens - plain.tokens).flatten(0, 2)
    torch.testing.assert_close(shift, shift[:1].expand_as(shift))
    assert float(shift[0].norm()) == pytest.approx(smoke.mean_norm)
    torch.testing.assert_close(sharp.teacher, plain.teacher * smoke.sharper / smoke.sharpness)
    assert set(planted_settings.STARTS.values()) <= set(plain.values)


def test_evaluations_are_counted_to_the_first_loss_at_the_target():
    loss = torch.tensor([[1.0, 1.0], [0.5, 1.0], [0.1, 1.0], [0.2, 1.0]])
    assert planted_attention._steps_to(loss, 0.5).tolist() == [1, 4]


def test_condition_of_the_values_is_kept_along_training_and_infinite_for_one_sequence(layer):
    trained = _train(layer, Way("solved"))
    for step, matrix in ((0, layer[0]), (5, trained.key_query)):
        rows = contexts(attention_weights(matrix, layer[2]), layer[2])[1]
        eigenvalues = torch.linalg.eigvalsh(rows.mT @ rows)
        torch.testing.assert_close(trained.condition[step][1], eigenvalues[-1] / eigenvalues[0], rtol=1e-8, atol=0)
    uniform = alternating.value_condition(torch.zeros_like(layer[0]), layer[2][:, :1])
    assert (uniform > 1e12).all()


def test_figures_and_tables_draw_from_a_smoke_result(smoke_results):
    race, link = smoke_results["softmax_ntk.planted_attention"], smoke_results["softmax_ntk.to_self_attention"]
    drawn = [
        figures.one_row(race),
        figures.loss_by_budget(race),
        figures.step_windows(race),
        figures.condition(link),
        figures.found(race),
        figures.maps_frame(race, "joint, zero values", 12),
    ]
    for figure in drawn:
        assert figure.axes
        plt.close(figure)
    for table in (tables.compared, tables.at_equal_time, tables.chosen, tables.finals, tables.conditions):
        assert "<table>" in table(race)._repr_html_()
    assert "12 gradients" in tables.maps_text(race, "joint, zero values", 12)
    assert (
        race.n_networks == 3 * ((4 * 2 + 2 * 4 + 2 * 1) * 1 + 8 * 2) + 3 * 2
    )  # grids on one tuning seed; eight ways, two seeds; three ways with a longer budget
    assert race.n_programs == 2 * 3 * 8 + 3


def _fit(weights, x, y):
    return np.linalg.lstsq((weights @ x).reshape(-1, 5), y.reshape(-1, 3), rcond=1e-8)[0]


def _gradient(m, v, x, y):
    arguments = [torch.from_numpy(a[None]) for a in (m, v, x[None], y)]
    return len(x) * self_attention.loss_and_gradients(*arguments).key_query[0].numpy()


@pytest.mark.parametrize(
    ("exercise", "right", "wrong", "said"),
    [
        ("SN-16", lambda x, q, k: q @ k.T @ x.T, lambda x, q, k: k @ q.T @ x.T, "exchanged"),
        ("SN-16", lambda x, q, k: q @ k.T @ x.T, lambda x, q, k: x @ q @ k.T, "shape"),
        ("SN-17", _gradient, lambda *a: _gradient(*a) / 5, "not the mean"),
        ("SN-17", _gradient, lambda *a: _gradient(*a).T, "transpose"),
        ("SN-18", _fit, lambda w, x, y: np.linalg.lstsq(x.reshape(-1, 5), y.reshape(-1, 3))[0], "attention is missing"),
    ],
)
def test_exercises_accept_the_right_answer_and_name_the_mistake(exercise, right, wrong, said):
    assert CHECKS[exercise](right) is None
    assert said in CHECKS[exercise](wrong)
