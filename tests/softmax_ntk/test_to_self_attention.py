"""Self-attention as a two-layer network, what its one matrix can fit, and ways to train it."""

from pathlib import Path

import numpy as np
import pytest
import red
import torch
from torch.autograd import grad
from torch.func import jacrev
from torch.testing import assert_close

import attnbook
from attnbook import lab
from attnbook.core.rng import stream
from attnbook.softmax_ntk import self_attention as attention
from attnbook.softmax_ntk.self_attention import draw_planted, layer_loss, outputs
from attnbook.softmax_ntk.two_layer import Networks, loss_and_gradient, predict
from attnbook.train import SGD

own = lab.load_script(Path("chapters/softmax_ntk/to_self_attention.py"))
UNIFORM = torch.zeros(1, 5, 5).double()


@pytest.fixture
def layer():
    """A key-query matrix, values, three sequences of seven tokens with five entries, and labels of four outputs."""
    rng = stream(0, "test", "self_attention")
    shapes = (1, 5, 5), (1, 5, 4), (1, 3, 7, 5), (1, 21, 4)
    return [torch.from_numpy(rng.standard_normal(shape)) for shape in shapes]


def row_network(key_query, value, x):
    """The softmax network whose outputs at the tokens of a sequence are its rows, times the length."""
    return Networks("softmax", (key_query @ x.mT)[None], (x @ value).mT[None])


def test_two_tokens_and_one_entry_by_hand():
    weights = attention.attention_weights(torch.tensor([[[3.0]]]).log(), torch.tensor([[[[0.0], [1.0]]]]))
    assert_close(weights[0, 0], torch.tensor([[0.5, 0.5], [0.25, 0.75]]))


def test_a_row_is_the_two_layer_network_and_the_tensor_trick_writes_its_logits(layer):
    """Appendix H.1."""
    key_query, value, tokens = (tensor[0] for tensor in layer[:3])
    x, whole = tokens[0], outputs(*layer[:2], layer[2][:, :1])[0]
    logits = (torch.kron(x, x) @ key_query.flatten()).view(7, 7)
    assert_close(torch.softmax(logits, 1) @ x @ value, whole)
    assert_close(predict(row_network(key_query, value, x), x[None])[0].mT / 7, whole)


def test_the_gradient_is_that_of_the_neurons_added_up_along_the_keys(layer):
    """That of Claim 3.4, one row at a time."""
    key_query, value, tokens, labels = layer
    leaf, total = key_query.clone().requires_grad_(), 0
    for x, y in zip(tokens[0], labels[0].split(7), strict=True):
        network = row_network(key_query[0], value[0], x)
        for i in range(7):
            total = total + loss_and_gradient(network, x[None, i : i + 1], 7 * y[None, i, :, None])[1] @ x / 49
    assert_close(grad(layer_loss(leaf, value, tokens, labels).sum(), leaf)[0], total / 21)


def test_the_jacobian_of_rows_is_that_of_automatic_differentiation():
    """Also with keys of another size than queries, as one-hot ones are."""
    matrix, queries, keys, values = (torch.randn(*shape).double() for shape in ((5, 4), (3, 5), (3, 7, 4), (3, 7)))

    def rows(m):
        return 7 * (torch.softmax(torch.einsum("nd,dk,nlk->nl", queries, m, keys), 1) * values).sum(1)

    found = attention.row_jacobian(*(part.numpy() for part in (queries, keys, values, matrix.flatten())))
    np.testing.assert_allclose(found[0], rows(matrix))
    np.testing.assert_allclose(found[1], jacrev(rows)(matrix).flatten(1))


def test_where_values_are_solved_for_the_gradient_is_that_of_the_least_loss(layer):
    key_query, _, tokens, labels = layer
    leaf = key_query.requires_grad_()
    rows = attention.contexts(attention.attention_weights(leaf, tokens), tokens)
    least = (rows @ torch.linalg.lstsq(rows, labels).solution - labels).square().sum() / 42
    assert_close(grad(layer_loss(leaf, None, tokens, labels).sum(), leaf), grad(least, leaf))


def at_uniform_attention(tokens):
    return attention.contexts(attention.attention_weights(UNIFORM, tokens), tokens)


def test_a_singular_problem_gets_the_smallest_of_the_best_values(layer):
    rows = at_uniform_attention(layer[2])
    expected = np.linalg.lstsq(rows[0].numpy(), layer[3][0].numpy(), rcond=1e-9)[0]
    np.testing.assert_allclose(attention.solve_values(rows, layer[3])[0], expected, atol=1e-9)


@pytest.mark.parametrize(("norm", "condition"), [(0.0, 1), (2.0, 33)])
def test_a_shared_mean_makes_least_squares_ill_conditioned_at_uniform_attention(norm, condition):
    tokens = draw_planted(0, (4000, 8, 5), 3, mean_norm=norm)["tokens"]
    found = torch.linalg.cond(at_uniform_attention(torch.from_numpy(tokens)[None]))
    assert float(found) ** 2 == pytest.approx(condition, rel=0.2)


def test_wrong_shapes_are_refused_by_name(layer):
    with pytest.raises(Exception, match="labels"):  # of the function, or of the types that tests check
        layer_loss(*layer[:3], layer[3].mT)


def test_problems_differ_only_where_they_should():
    plain, mean, sharp = (draw_planted(0, (7, 5, 3), 2, **options) for options in own.PROBLEMS.values())
    assert np.linalg.norm(mean["tokens"] - plain["tokens"], axis=2) == pytest.approx(2)
    np.testing.assert_allclose(sharp["key_query"], 4 * plain["key_query"])


def test_training_together_is_the_plain_loop_with_a_step_size_for_each_matrix():
    drawn = {name: torch.from_numpy(array)[None] for name, array in draw_planted(0, (7, 5, 3), 2).items()}
    tokens, labels = drawn["tokens"], outputs(drawn["key_query"], drawn["value"], drawn["tokens"])
    leaves, unit = [drawn["start"], 0 * drawn["value"]], torch.linalg.matrix_norm(tokens.flatten(1, 2), 2) ** 2 / 35
    for _ in range(3):
        leaves = [leaf.detach().requires_grad_() for leaf in leaves]
        slopes = grad(layer_loss(*leaves, tokens, labels).sum(), leaves)
        leaves = [leaves[0] - 0.3 * slopes[0], leaves[1] - 0.7 / unit * slopes[1]]
    history = own.train_layers(drawn, "trained", SGD, np.array([[0.3, 0.7]]), 3)
    assert_close(history.parameters["key_query"], leaves[0].detach())


SOLVED = {"way": "alternating"}
RED = {
    own.layer_as_network: {"SN-H-kernel": red.scaled("rank", 0.96, length=128)},
    own.planted_attention: {"SN-H-alternating": red.scaled("evaluations", 9, problem="plain", **SOLVED)},
}
PARTS = [
    ("SN-H-kernel", red.scaled("left", 1e26, labels=10)),
    ("SN-H-kernel", red.scaled("left", 0.8, length=32)),
    ("SN-H-kernel", red.scaled("left", 1.3, length=128)),
    ("SN-H-kernel", red.scaled("left_free", 1e26)),
    ("SN-H-alternating", red.scaled("evaluations", 20, problem="common_mean", **SOLVED)),
    ("SN-H-alternating", red.scaled("distance", 99)),
]


@pytest.mark.parametrize("made", RED)
def test_every_measured_claim_of_the_chapter_can_be_turned_red(made):
    others = [part for part in PARTS if part[0] in RED[made]]
    red.assert_every_claim_turns(made.measure, made.stored(), RED[made], others)


def test_what_the_page_says_of_stored_numbers():
    coins, race = own.layer_as_network.stored(), own.planted_attention.stored()
    ten, last = coins.sel(labels=10), race.loss.isel(step=-1).sel(way="alternating").median("seed")
    assert ten.change.median("seed").diff("length").max() < 0  # with the factor the kernel comes to rest
    assert abs(ten.change_averaged.median("seed") - 1).max() < 0.2  # without it it changes by its own size
    few, many = (coins.sel(labels=count, length=128).median("seed") for count in (20, 200))
    assert few.left < 1e-20 < few.left_averaged < many.left_averaged < many.left
    assert last.sel(problem="sharp") > 100 * last.sel(problem="plain")
    assert (race.evaluations.sel(way="alternating", problem="plain") <= 200).all()


def test_the_slider_counts_the_entries_of_the_matrix():
    assert "36 of 50" in own.spectrum_text(6, 8)


def test_the_program_of_the_page_descends_on_the_least_loss(program):
    x, y, m = (tensor[None] for tensor in program["draw"](0))
    for _ in range(20):
        leaf = m.clone().requires_grad_()
        m = m - 0.4 * grad(layer_loss(leaf, None, x, y.flatten(1, 2)).sum(), leaf)[0]
    found = program["train"](*program["draw"](0), steps=20)[20] * y.square().sum() / 256
    assert_close(found, layer_loss(m, None, x, y.flatten(1, 2))[0])


@pytest.mark.slow
def test_what_the_page_says_of_changes_holds(program):
    """The rows of "Change it", on the seed of the page."""

    def last(step=200, values="solved", optimizer=program["descent"], **change):
        return program["train"](*program["draw"](0, **change), values, optimizer)[step]

    x, y, m = program["draw"](0)
    assert program["train"](x, torch.randn_like(y).sign(), m)[200] > 0.75
    assert last(values="frozen") > 1
    assert last(20, "trained", mean=2) > 20 * last(20, mean=2)
    assert last(logits=8.0) > 1e-3 > last(keys=32)
    assert last(optimizer=lambda p: torch.optim.SGD(p, lr=0.2, momentum=0.8)) < 1e-3 * last()


def test_exercises_name_the_likely_mistake():
    assert "exchanged" in repr(attnbook.check("SN-16", lambda x, q, k: k @ q.T @ x.T))
    assert "transposed" in repr(attnbook.check("SN-18", lambda x, g: x.T @ g))
