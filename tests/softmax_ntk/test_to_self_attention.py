"""Self-attention as a two-layer network, its gradient, and ways to train it."""

import itertools

import jaxtyping
import numpy as np
import pytest
import red
import torch

import attnbook
from attnbook import ledger
from attnbook.core.rng import stream
from attnbook.softmax_ntk import alternating
from attnbook.softmax_ntk.alternating import (
    Way,
    train_layers,
    uniform_condition,
    value_condition,
    value_step_unit,
    values_descent,
)
from attnbook.softmax_ntk.self_attention import (
    attention_weights,
    contexts,
    draw_layer,
    loss_and_gradients,
    outputs,
    row_as_network,
    solve_values,
)
from attnbook.softmax_ntk.to_self_attention import experiments as own
from attnbook.softmax_ntk.to_self_attention import figures
from attnbook.softmax_ntk.two_layer import Networks, predict

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


def test_at_uniform_attention_the_values_problem_has_the_condition_number_of_the_formula():
    """Many sequences of seven tokens, norms of the mean from none to a large one; and few sequences are singular."""
    assert uniform_condition(3.0, 7) == 64
    centred = stream(0, "many").standard_normal((4000, 7, 5))
    for norm in (0.0, 1.0, 4.0):
        tokens = torch.from_numpy(centred + norm * np.eye(5)[0])[None]
        found = value_condition(torch.zeros(1, 5, 5).double(), tokens)
        assert float(found) == pytest.approx(uniform_condition(norm, 7), rel=0.25)
    assert float(value_condition(torch.zeros(1, 5, 5).double(), torch.from_numpy(centred[None, :3]))) > 1e12


def test_descent_on_the_values_is_descent_and_without_a_shared_mean_one_step_is_a_solve():
    """The same path by the gradient of a quadratic with the curvatures of contexts at uniform attention."""
    mean = np.array([1.7, 0.0])
    moments = np.outer(mean, mean) + np.eye(2) / 5
    errors, step = np.ones(2), 2 / np.trace(moments)
    path = [errors]
    for _ in range(4):
        errors = errors - step * moments @ errors
        path.append(errors)
    np.testing.assert_allclose(values_descent(1.7, 5, steps=4), np.stack(path), rtol=1e-10)
    assert not values_descent(0.0, 8, steps=1)[1].any()
    with pytest.raises(ValueError, match="mean_norm"):
        values_descent(-1.0, 2, steps=1)


def test_what_cannot_be_known_of_queries_and_keys_changes_no_attention_weight(layer):
    """A change of basis of both, and a shift of one column where all tokens share a 1."""
    query, key, mix = (torch.from_numpy(stream(0, name).standard_normal((1, 5, 5))) for name in ("q", "k", "mix"))
    tokens = layer[2][:1].clone()
    tokens[..., 0] = 1
    plain = attention_weights(query @ key.mT, tokens)
    shift = torch.zeros(1, 5, 5).double()
    shift[..., 0] = query[..., 1]
    other = (query @ mix) @ (key @ torch.linalg.inv(mix).mT).mT
    torch.testing.assert_close(attention_weights(other, tokens), plain, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(attention_weights(query @ key.mT + shift, tokens), plain, rtol=1e-9, atol=1e-12)


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


@pytest.mark.parametrize("rates", [[0.1], [0.1, -0.1], [0.1, np.nan], [[0.1, 0.1]]])
@pytest.mark.parametrize("name", ["key_query_step", "value_step"])
def test_step_sizes_that_fit_no_layers_are_refused_by_name(layer, name, rates):
    sizes = {"key_query_step": torch.full((MEMBERS,), 0.1).double(), "value_step": torch.full((MEMBERS,), 0.1).double()}
    with pytest.raises((ValueError, jaxtyping.TypeCheckError), match=name):
        train_layers(*layer, way=Way("trained"), steps=1, **sizes | {name: torch.tensor(rates).double()})


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


def test_frozen_values_stay(layer):
    torch.testing.assert_close(_train(layer, Way("frozen")).value, layer[1])


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


RACE = own.PlantedAttention.at("smoke")


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (own.PlantedAttention, {"tuning_seeds": (0,)}),
        (own.PlantedAttention, {"target": 2.0}),
        (own.PlantedAttention, {"shown_steps": (0, 500)}),
        (own.LayerAsNetwork, {"sequences": 1}),
    ],
)
def test_impossible_settings_are_refused_by_name(kind, change):
    with pytest.raises(ValueError, match=next(iter(change))):
        kind(**change)


def test_students_of_a_problem_differ_from_those_of_others_only_where_they_should():
    plain, mean, sharp = (RACE.draw(problem, (0,), CPU) for problem in own.PROBLEMS)
    shift = (mean["tokens"] - plain["tokens"]).flatten(0, 2)
    torch.testing.assert_close(shift, shift[:1].expand_as(shift))
    assert float(shift[0].norm()) == pytest.approx(RACE.mean_norm)
    torch.testing.assert_close(sharp["teacher"], plain["teacher"] * RACE.sharper / RACE.sharpness)
    for start in {"zero", *own.STARTS.values()}:
        assert plain[f"values_{start}"].shape == plain["values_teacher"].shape
    taught = outputs(plain["teacher"], plain["values_teacher"], plain["tokens"])
    torch.testing.assert_close(plain["labels"], taught)


def test_tuning_takes_the_pair_with_the_fewest_gradients_on_its_own_seeds():
    """Against training each pair alone; ties go to the lower loss, which is not what decides here."""
    grid = {"key_query_steps": (0.2, 0.5, 2.0), "value_steps": (0.5, 1.0, 2.0)}
    race = own.PlantedAttention.at("smoke", target=0.5, **grid)
    data, tried = race.draw("plain", race.tuning_seeds, CPU), {}
    for pair in itertools.product(race.key_query_steps, race.value_steps):
        loss = race._train("joint", data, [pair], race.steps).loss
        tried[pair] = own.steps_to(loss, race.target)[0], float(loss[-1, 0])
    best = min(tried, key=tried.get)
    assert race.tune("plain", "joint", CPU) == best != min(tried, key=lambda pair: tried[pair][1])


def test_evaluations_are_counted_to_the_first_loss_at_the_target():
    loss = torch.tensor([[1.0, 1.0], [0.5, 1.0], [0.1, 1.0], [0.2, 1.0]])
    assert own.steps_to(loss, 0.5).tolist() == [1, 4]


def test_condition_of_the_values_is_kept_along_training(layer):
    trained = _train(layer, Way("solved"))
    for step, matrix in ((0, layer[0]), (5, trained.key_query)):
        rows = contexts(attention_weights(matrix, layer[2]), layer[2])[1]
        eigenvalues = torch.linalg.eigvalsh(rows.mT @ rows)
        torch.testing.assert_close(trained.condition[step][1], eigenvalues[-1] / eigenvalues[0], rtol=1e-8, atol=0)


KINDS = {kind.id: kind for kind in (own.LayerAsNetwork, own.PlantedAttention)}


@pytest.fixture(scope="module")
def stored():
    return {name: kind.load_stored("book") for name, kind in KINDS.items()}


def exchanged(one, other):
    """Exchange two ways."""

    def changed(data):
        names = [{one: other, other: one}.get(str(way), str(way)) for way in data.way.values]
        return data.assign(data[["loss", "evaluations"]].sel(way=names).assign_coords(way=data.way))

    return changed


def scaled(name, factor, **where):
    def changed(data):
        array = data[name].copy(deep=True)
        array.loc[where] = factor * array.loc[where]
        return data.assign({name: array})

    return changed


RED = {
    "softmax_ntk.layer_as_network": {
        "SN-H-kernel": lambda d: d.assign(spectrum=d.spectrum.where(d["index"] != 24, 0.0)),
    },
    "softmax_ntk.planted_attention": {
        "SN-H-alternating": exchanged("alternating", "frozen"),
        "SN-H-frozen": exchanged("frozen", "known"),
        "SN-H-mean": exchanged("alternating", "joint_from_zero"),
        "SN-H-sharp": exchanged("alternating", "joint_adam"),
    },
}
PARTS = {
    "softmax_ntk.layer_as_network": [
        ("SN-H-kernel", scaled("spectrum", 1e9, index=30)),
    ],
    "softmax_ntk.planted_attention": [
        ("SN-H-alternating", scaled("evaluations", 9, problem="plain", way="alternating")),
        ("SN-H-alternating", scaled("evaluations", 20, problem="common_mean", way="alternating")),
        ("SN-H-alternating", lambda d: d.assign(distance=1 + d.distance)),
        ("SN-H-frozen", scaled("evaluations", 20, way="known", problem="sharp")),
        ("SN-H-frozen", scaled("loss", 0.1, way="frozen", problem="sharp")),
        ("SN-H-mean", scaled("evaluations", 0.3, problem="common_mean", way="joint")),
        ("SN-H-mean", scaled("evaluations", 0.5, problem="common_mean", way="joint_from_zero")),
        ("SN-H-mean", scaled("evaluations", 0.5, problem="plain", way="joint_from_zero")),
        ("SN-H-mean", scaled("evaluations", 2, problem="plain", way="joint_from_zero")),
        ("SN-H-mean", scaled("condition", 0.1, problem="common_mean")),
        ("SN-H-sharp", scaled("evaluations", 2, problem="sharp", way="joint_from_zero")),
        ("SN-H-sharp", scaled("evaluations", 0.5, problem="sharp", way="joint_from_zero")),
        ("SN-H-sharp", scaled("evaluations", 2, problem="sharp", way="joint_adam")),
        ("SN-H-sharp", scaled("evaluations", 0.3, problem="common_mean", way="joint_adam")),
        ("SN-H-sharp", scaled("loss", 1e6, problem="plain", way="joint_adam")),
    ],
}  # other values of the same rules


@pytest.mark.parametrize("name", KINDS)
def test_every_measured_claim_of_the_chapter_can_be_turned_red(name, stored):
    data = stored[name]
    if "index" in data.dims:
        data = data.assign_coords(index=range(data.sizes["index"]))
    red.assert_every_claim_turns(KINDS[name]().measurements, data, RED[name], PARTS[name])


def test_every_claim_of_the_chapter_is_measured():
    mine = {c.id for c in ledger.claims() if c.chapter == "softmax_ntk/to_self_attention"}
    assert mine == {"SN-ATT-row", *(claim for claims in RED.values() for claim in claims)}


def test_ratios_are_taken_seed_by_seed_with_misses_as_one_more_than_the_budget(stored):
    data = stored["softmax_ntk.planted_attention"]
    above, below = (data.evaluations.sel(problem="common_mean", way=way).values for way in ("joint", "alternating"))
    measured = own.PlantedAttention().measurements(data)["SN-H-mean"].values
    assert measured["random_over_solved"] == np.median(above / below)
    assert above.max() == own.PlantedAttention().steps + 1


def test_a_row_of_attention_is_the_two_layer_network_and_the_tensor_trick_writes_its_logits(layer):
    """Appendix H.1; with queries and keys exchanged neither holds."""
    key_query, value, x = (tensor[0].numpy() for tensor in (layer[0], layer[1], layer[2][0]))
    whole = outputs(layer[0][:1], layer[1][:1], layer[2][:1, :1])[0].numpy()
    for matrix, right in ((key_query, True), (key_query.T, False)):
        network = Networks.stack("softmax", [row_as_network(x, matrix, value)])
        row = predict(network, torch.from_numpy(x[None]))[0].T.numpy() / LENGTH
        logits = (np.kron(x, x) @ matrix.ravel()).reshape(LENGTH, LENGTH)
        weights = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        for found in (row, weights @ x @ value):
            assert np.allclose(found, whole, rtol=0, atol=1e-12) == right


def test_pictures_and_tables_draw(stored):
    race = stored["softmax_ntk.planted_attention"]
    assert [len(figure.axes) for figure in (figures.race(race), figures.values_frame(2.0, 8))] == [2, 2]
    for table in (figures.compared(race), figures.finals(race)):
        assert all(len(row) == len(table.columns) for row in table.rows)
    assert "takes 38 to" in figures.values_text(2.0, 8)
    assert "takes 1 to" in figures.values_text(0.0, 8)


def fit(weights, x, y):
    return np.linalg.lstsq((weights @ x).reshape(-1, 5), y.reshape(-1, 3), rcond=1e-8)[0]


@pytest.mark.parametrize(
    ("exercise", "right", "wrong", "said"),
    [
        ("SN-16", lambda x, q, k: q @ k.T @ x.T, lambda x, q, k: k @ q.T @ x.T, "exchanged"),
        ("SN-16", lambda x, q, k: q @ k.T @ x.T, lambda x, q, k: x @ q @ k.T, "shape"),
        ("SN-18", fit, lambda w, x, y: np.linalg.lstsq(x.reshape(-1, 5), y.reshape(-1, 3))[0], "attention is missing"),
    ],
)
def test_exercises_accept_the_right_answer_and_name_the_mistake(exercise, right, wrong, said):
    assert attnbook.check(exercise, right).right
    assert said in repr(attnbook.check(exercise, wrong))
