"""The experiments on film reviews: rules that can fail, wrong networks that turn them red, pictures and exercises."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import red
import xarray as xr

import attnbook
from attnbook import lab, ledger
from attnbook.core.rng import stream
from attnbook.global_attention import review_networks
from attnbook.global_attention.token_networks import draw_flat_teacher, predict

own = lab.load_script(Path(__file__).parents[2] / "chapters" / "global_attention" / "self_attention.py")
STORED = {own.teachers: "book", own.larger_space: "book", own.imdb: "full", own.equal_steps: "full"}


@pytest.fixture(scope="module")
def stored():
    return {made.id: made.stored(size) for made, size in STORED.items()}


def moved(name, by, **where):
    """Add a number to some entries of an array."""

    def change(data):
        data = data.copy(deep=True)
        data[name].loc[where] += by
        return data

    return change


def swapped(name, dimension, first, second):
    """Exchange two entries along a dimension, under the old labels."""

    def change(data):
        labels = data[dimension].values
        there = {first: second, second: first}
        return data.assign(
            {name: data[name].sel({dimension: [there.get(x, x) for x in labels]}).assign_coords({dimension: labels})}
        )

    return change


RED = {
    own.teachers: {
        "GA-T2-self": swapped("test_loss", "model", "self_attention", "uniform_attention"),
        "GA-T2-floor": lambda d: d.assign(test_loss=0.3 * d.test_loss),
        "GA-X-attention-needed": swapped("test_loss", "model", "self_attention", "uniform_attention"),
    },
    own.larger_space: {
        "GA-T2-wider": swapped("test_loss", "student", "two layers of 512", "three layers of 256"),
        "GA-A9-expressive": swapped("test_loss", "student", "flat", "self-attention"),
    },
    own.imdb: {
        "GA-TAB2-order": swapped("test_accuracy", "network", "baseline", "self_attention"),
        "GA-TAB2-headline": moved("test_accuracy", -12.0, network="self_attention"),
        "GA-TAB2": lambda d: cells(d),
    },
    own.equal_steps: {"GA-X-steps": moved("test_accuracy", 3.0, network="self_attention")},
}


def cells(data):
    """Put the paper's own numbers into the table, which pass every rule."""
    data, paper = data.copy(deep=True), ledger.claim("GA-TAB2").paper_value
    for name, value in paper.items():
        network, size = name.rsplit("_", 1)
        data.test_accuracy.loc[{"network": network, "size": int(size)}] = value
    return data


@pytest.mark.parametrize("made", STORED, ids=lambda made: made.id)
def test_every_measured_claim_of_the_chapter_can_be_turned_red(made, stored):
    red.assert_every_claim_turns(made.measure, stored[made.id], RED[made])


@pytest.mark.parametrize("size", own.PAPER_SIZES)
def test_each_cell_is_compared_with_its_own(size, stored):
    data = cells(stored[own.imdb.id])
    assert set(red.outcomes(own.imdb.measure, data).values()) == {"reproduced in trend"}
    wrong = moved("test_accuracy", 3.1, network="baseline", size=size)(data)
    assert red.outcomes(own.imdb.measure, wrong)["GA-TAB2"] == "not reproduced"


@pytest.mark.parametrize(
    ("changes", "more"),
    [
        ({"network": "uniform_attention", "size": 875, "step": 70}, 3.0),
        ({"network": "baseline", "size": 17_500, "step": 70}, 9.0),
        ({"network": "self_attention", "size": 17_500, "step": 1400}, -6.0),
    ],
)
def test_each_part_of_the_rule_on_steps_can_fail(changes, more, stored):
    wrong = moved("test_accuracy", more, **changes)(stored[own.equal_steps.id])
    assert red.outcomes(own.equal_steps.measure, wrong)["GA-X-steps"] == "not reproduced"


def test_every_claim_of_the_chapter_is_measured_or_says_why_not():
    mine = {c.id: c for c in ledger.claims() if c.chapter == "global_attention/self_attention"}
    found = {claim for claims in RED.values() for claim in claims}
    assert set(mine) - found == {"GA-T2-all", "GA-G1-l1-softmax"}
    assert sum(c.source == "book" for c in mine.values()) == 2


def test_in_the_stored_table_the_gain_follows_steps_and_not_reviews(stored):
    """Numbers that the chapter prints."""
    gain = own.gains(stored[own.imdb.id]).median("seed").transpose("size", "epoch")
    assert gain.steps.sel(size=17_500, epoch=1) == 274
    assert gain.steps.sel(size=3500, epoch=5) == 275
    assert abs(gain.sel(size=17_500, epoch=1)) < 0.1
    assert abs(gain.sel(size=3500, epoch=5)) < 0.1
    y, shares = gain.values.ravel(), []
    for x in (gain.steps.transpose("size", "epoch").values, np.repeat(gain["size"].values, 5)):
        logs = np.log(x.ravel())
        shares.append(1 - np.var(y - np.polyval(np.polyfit(logs, y, 2), logs)) / y.var())
    assert shares == pytest.approx([0.87, 0.52], abs=0.01)


def test_batches_see_every_review_once_and_then_again():
    seen = list(own.batches(23, 5, seed=0, steps=10))
    assert [len(batch) for batch in seen] == [5, 5, 5, 5, 3] * 2
    assert sorted(np.concatenate(seen[:5])) == sorted(np.concatenate(seen[5:])) == list(range(23))


def test_labels_are_those_of_the_seed_s_own_teacher():
    drawn = [("global_attention", draw_flat_teacher(own.sizes(8), stream(seed, "t"), 6)) for seed in (3, 4)]
    inputs, labels = own.labelled(drawn, (3, 4), 17, "x")
    expected = predict("global_attention", drawn[1][1], inputs[1:].double())[0]
    np.testing.assert_allclose(labels[1], expected, atol=1e-5)


def test_the_best_restart_is_chosen_by_training_loss():
    axes = ("model", "restart")
    data = xr.Dataset({"train_loss": (axes, [[2.0, 1.0], [1.0, 2.0]]), "test_loss": (axes, [[0.0, 1.0], [2.0, 3.0]])})
    assert own.best(data).values.tolist() == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [False, True])
def test_values_with_a_wrong_gradient_lose_the_lead_on_made_reviews(wrong, monkeypatch):
    honest = review_networks.attend

    def attend(tokens, key_query, value, n_positions):
        return honest(tokens, key_query, 2 * value.detach() - value if wrong else value, n_positions)

    monkeypatch.setattr(review_networks, "attend", attend)
    found = own.equal_steps.run(seeds=(0,), sizes=(300,), read_at=(60,)).test_accuracy.squeeze()
    lead = found.sel(network="self_attention") - found.sel(network="baseline")
    assert (lead >= 10) != wrong


@pytest.mark.parametrize(
    ("experiment", "changes"),
    [
        (own.imdb, {"sizes": ()}),
        (own.imdb, {"sizes": (5, 3)}),
        (own.imdb, {"width": 0}),
        (own.equal_steps, {"step_size": 0.0}),
        (own.equal_steps, {"sizes": (2001,)}),
        (own.teachers, {"restarts": 0}),
        (own.larger_space, {"seeds": (1, 1)}),
    ],
)
def test_bad_input_is_named(experiment, changes):
    with pytest.raises(ValueError, match=f"{next(iter(changes))}: expected"):
        experiment.run("smoke", **changes)


def test_pictures_draw(stored):
    table, steps = stored[own.imdb.id], stored[own.equal_steps.id]
    drawn = [own.table(table), own.gain_frame(table, 2), own.by_steps(steps), own.students(stored[own.teachers.id])]
    assert all(ax.get_xlabel() for figure in drawn for ax in figure.axes)
    assert [len(line.get_xdata()) for line in drawn[1].axes[0].lines[:8]] == [2] * 8
    assert own.gain_text(table, 5).startswith("Epoch 5, gain in points: 0.0 with 875 reviews (70 steps)")
    plt.close("all")


def test_the_page_says_what_equal_steps_give(stored):
    accuracy = stored[own.equal_steps.id].test_accuracy
    gain = accuracy.sel(network="self_attention") - accuracy.sel(network="uniform_attention")
    last = gain.sel(step=1400).round(1)
    np.testing.assert_allclose([last.min("seed"), last.max("seed")], [[0.7, 1.6], [2.3, 2.9]])


def right_attend(queries, keys, values, key_bias, value_bias, n_positions):
    powers = np.exp(queries @ keys.T)
    padding = (n_positions - len(keys)) * np.exp(queries @ key_bias)[:, None]
    return (powers @ values + padding * value_bias) / (powers.sum(1, keepdims=True) + padding)


def right_step(pooled, delta, n_positions, step_size):
    return -step_size * n_positions * np.sign(pooled.T @ delta)


@pytest.mark.parametrize(
    ("exercise", "right", "wrong", "hint"),
    [
        ("GA-S1", right_attend, lambda *a: right_attend(*a[:4], 0 * a[4], a[5]), "into the numerator"),
        ("GA-S1", right_attend, lambda *a: right_attend(*a[:5], len(a[1])), "padding is missing"),
        ("GA-S1", right_attend, lambda *a: right_attend(*a[:3], 0 * a[3], *a[4:]), "is not 0 any more"),
        ("GA-S3", right_step, lambda *a: -right_step(*a), "the sign is reversed"),
        ("GA-S3", right_step, lambda p, d, n, s: right_step(p, d, 1, s), "n_positions times as far"),
        ("GA-S3", right_step, lambda p, d, n, s: p.T @ d, "not a step"),
    ],
)
def test_exercises_accept_the_right_answer_and_name_the_mistake(exercise, right, wrong, hint):
    assert attnbook.check(exercise, right).right
    assert hint in attnbook.check(exercise, wrong).message
