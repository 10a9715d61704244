"""The number of heads: identities, rules that can fail, wrong models that turn them red, pictures and exercises."""

import math
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import red
import torch

import attnbook
from attnbook import lab, ledger
from attnbook.multi_head import head_groups, layer, measures, network, starts
from attnbook.multi_head.data import Mixture
from attnbook.multi_head.head_groups import one_head_step_sizes
from attnbook.multi_head.objectives import logistic

own = lab.load_script(Path(__file__).parents[2] / "chapters" / "multi_head" / "how_many_heads.py")
MADE = {
    "alternating_labels": own.alternating_labels,
    "noise_and_heads": own.noise_and_heads,
    "step_size_map": own.step_size_map,
    "attention_steps": own.attention_steps,
}
EASY, HARD = (Mixture(5, 11, 3, 1.0, share, 0.3, 0.3, 1.0) for share in (0.4, 0.2))
ZERO = starts.zero(2, 5, 11)


@pytest.fixture(scope="module")
def data():
    return own.samples(EASY, (0, 1), 7, 17)


@pytest.fixture(scope="module")
def stored():
    return {name: made.stored() for name, made in MADE.items()}


@pytest.fixture(scope="module")
def smoke(smoke_results):
    return {name: smoke_results[made.id] for name, made in MADE.items()}


def one(data, rates):
    """Train one head from zero, with a step size for each of its two matrices."""
    found = ZERO
    for _ in range(40):
        slopes = layer.value_and_gradient(found, data[0].tokens, logistic(data[0].labels))[1]
        found = {name: tensor - rates[name] * slopes[name] for name, tensor in found.items()}
    return found


@pytest.mark.parametrize("exponent", [0.5, 0.8, 1.0])
def test_many_heads_from_zero_are_one_head_with_two_step_sizes(data, exponent):
    """All seven heads are trained; one head is multiplied out again."""
    heads, eta = 7, 0.9
    many = head_groups.gradient_descent(
        {name: t.repeat_interleave(heads, dim=1) for name, t in ZERO.items()},
        data[0].tokens,
        logistic(data[0].labels),
        counts=torch.ones((2, heads), dtype=torch.float64),
        step_size=eta,
        steps=40,
        record=lambda p: {"size": p["decoder"].abs().amax((1, 2, 3))},
        exponent=exponent,
    ).parameters
    alone = one(data, one_head_step_sizes(eta, heads, exponent))
    scale = float(heads) ** (1 - exponent)
    torch.testing.assert_close(many["key_query"][:, 3], alone["key_query"][:, 0], rtol=0, atol=1e-14)
    torch.testing.assert_close(scale * many["decoder"][:, 3], alone["decoder"][:, 0], rtol=0, atol=1e-14)


def test_infinitely_many_heads_never_move_attention(data):
    rates = one_head_step_sizes(0.5, math.inf)
    assert rates == {"decoder": 0.5, "key_query": 0.0}
    frozen = one(data, rates)
    assert not frozen["key_query"].any()
    mass = measures.relevant_mass(frozen, data[1].tokens, data[1].relevant)
    torch.testing.assert_close(mass, torch.full((2, 1), 0.4, dtype=torch.float64))


def test_at_large_steps_only_the_step_size_over_the_root_of_heads_matters():
    """Four times the step size and sixteen times the heads: the same attention; the decoder is four times as large."""
    data = own.samples(HARD, (0, 1), 31, 17)
    few, many = (one(data, one_head_step_sizes(eta, h)) for eta, h in ((1e6, 1e8), (4e6, 16e8)))
    torch.testing.assert_close(few["key_query"], many["key_query"], rtol=1e-4, atol=1e-8)
    torch.testing.assert_close(4 * few["decoder"], many["decoder"], rtol=1e-4, atol=1.0)
    other = one(data, one_head_step_sizes(4e6, 4e8))
    assert (few["key_query"] - other["key_query"]).abs().max() > 0.1 * few["key_query"].abs().max()


def test_heads_and_exponent_enter_through_one_number():
    for exponent in (0.3, 0.5, 0.9):
        rates = one_head_step_sizes(0.7, 23, exponent)
        assert rates["decoder"] / rates["key_query"] == pytest.approx(23 ** (2 - 2 * exponent))


def test_relevant_mass_counts_keys_not_queries(data):
    rng = np.random.default_rng(0)
    parameters = {
        "decoder": torch.tensor(rng.standard_normal((2, 3, 5, 11))),
        "key_query": torch.tensor(rng.standard_normal((2, 3, 11, 11))),
    }
    found = measures.relevant_mass(parameters, *data[1][::2])
    x, w, relevant = data[1].tokens[1, :], parameters["key_query"][1, 2], data[1].relevant[1]
    weights = torch.softmax(x @ w @ x.mT, dim=-1)
    by_hand = np.mean([weights[i][:, relevant[i]].sum(1).mean() for i in range(17)])
    assert found[1, 2].item() == pytest.approx(by_hand, rel=1e-12)
    with pytest.raises((ValueError, TypeError), match="relevant"):
        measures.relevant_mass(ZERO, data[1].tokens, data[0].relevant)


def test_groups_are_trained_as_the_whole_network_is(data):
    """All nine heads, by the plain descent of whole networks."""
    train, test = data
    found = own.trained(train, test, 9, 0.7, 6)
    start = {name: t.repeat_interleave(9, dim=1) for name, t in ZERO.items()}
    whole = network.gradient_descent(start, train[:2], step_size=0.7, steps=6).parameters
    np.testing.assert_allclose(found["train_loss"][1], network.losses(whole, train[:2]), rtol=1e-12)
    mass = measures.relevant_mass(whole, test.tokens[:, :7], test.relevant[:, :7]).mean(1)
    np.testing.assert_allclose(found["mass"][1], mass, rtol=1e-12)


def test_networks_that_are_finished_early_would_not_have_changed(data, monkeypatch):
    finished = own.trained(*data, 16, 2048.0, 60)
    assert (finished["train_loss"][1] <= own.FINISHED).any()
    monkeypatch.setattr(own, "FINISHED", -1.0)
    for name, (_, array) in own.trained(*data, 16, 2048.0, 60).items():
        np.testing.assert_allclose(finished[name][1], array, rtol=1e-9, atol=1e-12)


def test_an_output_of_zero_is_an_error():
    assert measures.error_rate(torch.zeros(1, 4), torch.ones(1, 4)).item() == 1
    assert measures.error_rate(torch.full((1, 4), torch.nan), torch.ones(1, 4)).item() == 1


def test_alternating_labels_and_what_a_head_sees_of_them():
    """The query zero sees the mean token z / 2, the query z the share of z by the softmax of 0 and w z^2."""
    tokens, labels = own.on_a_line(torch.tensor([[0.5, 2.0, 3.0]], dtype=torch.float64))
    assert tokens[0, :, :, 0].tolist() == [[0, 0.5], [0, 2], [0, 3]]
    assert labels.tolist() == [[1, -1, 1]]
    w = torch.full((1, 1, 1, 1), 0.3, dtype=torch.float64)
    weights = layer.attention_weights({"decoder": tokens.new_zeros((1, 1, 2, 1)), "key_query": w}, tokens)
    seen = (weights @ tokens[:, :, None])[0, 1, 0, :, 0]
    assert seen.tolist() == pytest.approx([1.0, 2 / (1 + math.exp(-0.3 * 4))])


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_signs_change_at_most_as_often_as_the_proof_says(heads):
    shapes = ("decoder", 2), ("key_query", 1)
    rng, z = np.random.default_rng(heads), torch.linspace(0.01, 6, 400, dtype=torch.float64)
    tokens = own.on_a_line(z[None])[0].expand(200, -1, -1, -1)
    drawn = {name: torch.tensor(10 * rng.standard_normal((200, heads, n, 1))) for name, n in shapes}
    signs = layer.outputs(drawn, tokens) > 0
    changes = (signs[:, 1:] != signs[:, :-1]).sum(1).max()
    assert 1 <= changes <= {1: 1, 2: 2, 3: 7}[heads]
    torch.testing.assert_close(layer.outputs(drawn, -tokens), -layer.outputs(drawn, tokens))  # an odd function


def swapped(name, dimension):
    return lambda d: d.assign({name: d[name].copy(data=d[name].isel({dimension: slice(None, None, -1)}).values)})


RED = {
    "alternating_labels": {"MH-OPEN-heads": swapped("fitted", "heads")},
    "noise_and_heads": {"MH-H-noise": swapped("test_error", "level")},
    "step_size_map": {"MH-H.9-root": swapped("mass", "heads")},
}
PARTS = [
    ("noise_and_heads", "MH-H-noise", swapped("test_error", "heads")),
    *(
        ("noise_and_heads", "MH-H-noise", lambda d, i=i: d.assign(test_error=d.test_error + 0.09 * (d.level == i)))
        for i in range(3)
    ),
    ("noise_and_heads", "MH-H-noise", lambda d: d.assign(test_error=d.test_error / 2)),
    ("alternating_labels", "MH-OPEN-heads", lambda d: d.assign(fitted=d.fitted / 5)),
    ("step_size_map", "MH-H.9-root", swapped("test_error", "step_size")),
    ("step_size_map", "MH-H.9-root", swapped("test_error", "heads")),
]  # other values of the same rules


@pytest.mark.parametrize("name", RED)
def test_every_measured_claim_of_the_chapter_can_be_turned_red(name, stored):
    others = [(claim, change) for of, claim, change in PARTS if of == name]
    red.assert_every_claim_turns(MADE[name].measure, stored[name], RED[name], others)


def test_every_claim_of_the_chapter_is_measured_or_says_why_not():
    mine = {c.id: c for c in ledger.claims() if c.chapter == "multi_head/how_many_heads"}
    found = {claim for claims in RED.values() for claim in claims}
    assert set(mine) - found == {"MH-APP-G"} == {i for i, c in mine.items() if c.untestable}
    assert sum(c.source == "book" for c in mine.values()) <= 3


def test_the_map_is_indexed_by_heads_then_step_size(smoke):
    small = own.step_size_map.settings("smoke")
    data = own.samples(own.mixture(), small["seeds"], small["n_samples"], small["n_test"])
    alone = own.trained(*data, 16, 8.0, small["steps"])
    found = smoke["step_size_map"].train_loss.sel(heads=16, step_size=8.0)
    np.testing.assert_allclose(found, alone["train_loss"][1], rtol=1e-10)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: one_head_step_sizes(0, 3), "step_size"),
        (lambda: one_head_step_sizes(0.5, 0.5), "n_heads"),
        (lambda: one_head_step_sizes(0.5, 2, -1), "exponent"),
        (lambda: one_head_step_sizes(0.5, math.nan), "n_heads"),
        (lambda: own.step_size_map.run(n_test=0), "n_test"),
        (lambda: own.step_size_map.run(relevant_fraction=0.33), "relevant_fraction"),
        (lambda: own.alternating_labels.run(heads=(4, 1)), "heads"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_pictures_draw(stored):
    steps = stored["step_size_map"]
    drawn = [
        own.step_map(steps),
        own.law_frame(stored["attention_steps"], 0.5),
        own.errors(stored["attention_steps"], {"mine": {1: 0.0, 64: 0.1}}),
    ]
    assert all(ax.get_ylabel() for figure in drawn for ax in figure.axes)
    # Eight times the root of 1, 16, 256 and 4096 heads: the third to the sixth of the step sizes.
    np.testing.assert_allclose(drawn[0].axes[0].lines[0].get_xdata(), [2, 3, 4, 5])
    assert "yours: mine" in [text.get_text() for text in drawn[2].legends[0].get_texts()]
    plt.close("all")
    said = {power: own.law_text(stored["attention_steps"], power) for power in (0.0, 0.5, 1.0)}
    apart = {power: float(text.split()[-3]) for power, text in said.items()}
    assert apart[1.0] == 0 < apart[0.5] < apart[0.0]


def test_a_number_of_heads_without_a_colour_is_drawn_as_well():
    figure = own.law_frame(own.step_size_map.run("smoke", heads=(1, 7)), 0.5)
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["1 head", "7 heads"]


def test_looks_differ_in_more_than_colour():
    looks = own.BY_HEADS.values()
    for attribute in ("marker", "line", "label", "color"):
        assert len({getattr(look, attribute) for look in looks}) == len(looks), attribute


def right_steps(eta, heads, c):
    return eta * heads ** (1 - 2 * c), eta / heads


def two_heads(z, key_query=(0.2, 2.0)):
    shares = z / (1 + np.exp(-np.array(key_query)[:, None] * z**2))
    a, b, c = np.linalg.lstsq(np.stack([z / 2, *shares], axis=1), [1, -1, 1], rcond=None)[0]
    return np.array([[a, b], [0, c]]), np.array(key_query)


@pytest.mark.parametrize(
    ("exercise", "right", "wrong", "hint"),
    [
        ("MH-H1", right_steps, lambda eta, h, c: (right_steps(eta, h, c)[0], eta * h**-c), "another factor"),
        ("MH-H1", right_steps, lambda eta, h, c: right_steps(eta, h, c)[::-1], "V first"),
        ("MH-H2", two_heads, lambda z: two_heads(z, (0.5, 0.5)), "one changes its sign once"),
        ("MH-H2", two_heads, lambda z: (-two_heads(z)[0], two_heads(z)[1]), "the sign"),
        ("MH-H2", two_heads, lambda z: (np.eye(2), two_heads(z)[1]), "sample 2 of z"),
        ("MH-H2", two_heads, lambda z: two_heads(z)[::-1], "of shape (2, 2)"),
    ],
)
def test_exercises_accept_the_right_answer_and_name_the_mistake(exercise, right, wrong, hint):
    assert attnbook.check(exercise, right).right
    assert hint in attnbook.check(exercise, wrong).message


def test_attention_whose_step_grows_with_the_heads_is_that_of_one_head(stored):
    """Proposition: steps of H eta are exact, whatever the number of heads; a quarter of the attention is enough."""
    runs = stored["attention_steps"]
    for h in (16, 256, 4096):
        for name in ("mass", "test_error"):
            shifted, one = (runs[name].sel(heads=n, step_size=2.0 * n).values for n in (h, 1))
            np.testing.assert_allclose(shifted, one, atol=1e-9)
    some = runs.median("seed").sel(heads=1, step_size=0.125)
    assert some.mass < 0.27
    assert some.test_error < 0.002
