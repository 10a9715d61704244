"""Recurrent attention: plain loops, special cases by hand, rules that can fail, the page's program, exercises."""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import red
import torch
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

import attnbook
from attnbook import lab, ledger
from attnbook.core.rng import stream, to_tensor
from attnbook.global_attention.recurrent_networks import Recurrence, initial_parameters, looks, read
from attnbook.global_attention.sample_sizes import recurrent_samples

own = lab.load_script(Path(__file__).parents[2] / "chapters" / "global_attention" / "recurrent.py")
MADE = {name: getattr(own, name) for name in ("ladder", "focus", "place", "second_look", "penalties")}

MEMBERS, SAMPLES, WORDS, DIMENSION, WIDTH = 2, 7, 11, 13, 17
KINDS = [Recurrence(steps, 3, units) for steps in (1, 2, 3, 5) for units in (0, 5)]


def draw(recurrence, members=MEMBERS):
    drawn = [initial_parameters(recurrence, DIMENSION, WIDTH, rng=stream(i, "weights")) for i in range(members)]
    return {name: to_tensor(np.stack([d[name] for d in drawn]), dtype=torch.float64) for name in drawn[0]}


def batch(members=MEMBERS):
    rng = stream(0, "batch")
    x, y = rng.standard_normal((members, SAMPLES, WORDS, DIMENSION)), rng.standard_normal((members, SAMPLES))
    return to_tensor(x, dtype=torch.float64), to_tensor(y, dtype=torch.float64)


def predict(parameters, sentences, n_steps):
    return read(parameters, looks(parameters, sentences, n_steps)[-1].context)


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


def test_one_step_with_the_product_score_is_softmax_attention_with_one_query():
    parameters, (sentences, _) = draw(Recurrence(1, 3, 0)), batch()
    query = parameters["score_word"].sum(1)  # R^T 1
    expected = torch.softmax((sentences @ query[:, None, :, None]).squeeze(3), -1)
    torch.testing.assert_close(looks(parameters, sentences, 1)[0].weights, expected)


def test_a_score_of_zero_is_mean_pooling():
    parameters, (sentences, _) = draw(Recurrence(1, 3, 5)), batch()
    parameters["score_out"].zero_()
    look = looks(parameters, sentences, 1)[0]
    torch.testing.assert_close(look.context, sentences.mean(2))


@pytest.mark.parametrize("units", [0, 5])
@pytest.mark.parametrize(("steps", "depends"), [(1, False), (2, False), (3, True)])
def test_other_words_enter_the_weights_at_the_third_step_and_not_before(steps, depends, units):
    parameters, (sentences, _) = draw(Recurrence(steps, 3, units)), batch()
    changed = sentences.clone()
    changed[:, :, 2:] = batch()[0].flip(1)[:, :, 2:]
    odds = []
    for x in (sentences, changed):
        *_, last = looks(parameters, x, steps)
        odds.append(last.weights[..., 0] / last.weights[..., 1])
    assert torch.allclose(*odds, rtol=1e-10) != depends


@given(st.integers(0, 30))
def test_answers_do_not_depend_on_the_order_of_words(seed):
    parameters, (sentences, _) = draw(KINDS[-1]), batch()
    order = np.random.default_rng(seed).permutation(WORDS)
    torch.testing.assert_close(predict(parameters, sentences[:, :, order], 5), predict(parameters, sentences, 5))


@pytest.mark.parametrize("change", [{"n_steps": 0}, {"state": 0}, {"score": -1}])
def test_impossible_sizes_are_refused_by_name(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        Recurrence(**{"n_steps": 2, "state": 3, "score": 5} | change)


def test_impossible_looks_are_refused_by_name():
    parameters, (sentences, _) = draw(Recurrence(1, 3, 5)), batch()
    for steps in (0, 2):
        with pytest.raises(ValueError, match="n_steps"):
            looks(parameters, sentences, steps)


def test_the_bound_is_proportional_to_the_weights_and_to_one_over_the_error():
    assert recurrent_samples(0.01, 3936) / recurrent_samples(0.01, 312) == pytest.approx(3936 / 312, rel=1e-12)
    halved = recurrent_samples(0.005, 312) / recurrent_samples(0.01, 312)
    assert halved == pytest.approx(2 * np.log(0.005**-0.5) / np.log(0.01**-0.5), rel=1e-12)


@pytest.mark.parametrize("change", [{"error": 0.0}, {"error": 2.0}, {"weights": 0}])
def test_impossible_bounds_are_refused_by_name(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        recurrent_samples(**{"error": 0.01, "weights": 7} | change)


@pytest.fixture(scope="module")
def stored():
    return {name: made.stored() for name, made in MADE.items()}


def fit(members, model="one_step", focus=2.5, steps=20, **options):
    return own.fit(model, "attention", focus, members, steps, 30, **options)


def test_a_network_trains_the_same_alone_and_in_company():
    members = [own.Member(seed, n, rate) for seed in (0, 1) for n, rate in ((19, 0.01), (23, 0.1))]
    together, alone = fit(members), fit(members[2:3])
    for name, errors in alone.items():
        np.testing.assert_allclose(together[name][2:3], errors, rtol=1e-4)


def test_known_weights_and_mean_pooling_agree_where_all_words_weigh_the_same():
    mean, known = (fit([own.Member(0, 29)], model, focus=0.0) for model in ("mean", "known"))
    np.testing.assert_allclose(mean["test"], known["test"], rtol=1e-4)


def test_noise_is_on_training_and_validation_labels_and_not_on_the_test():
    (_, clean), (_, noisy) = (own.labelled("mean", own.teacher("attention", 2.5, 0), 0, what, 4000, 0.5)
                              for what in ("test", "train"))  # fmt: skip
    assert clean.var() == pytest.approx(1, abs=0.1)
    assert noisy.var() == pytest.approx(1.25, abs=0.1)


def test_an_l2_penalty_shrinks_what_is_trained_and_leaves_other_members_alone():
    both = fit([own.Member(0, 29), own.Member(0, 29, l2=1.0)], steps=200)
    free = fit([own.Member(0, 29)], steps=200)
    assert both["train"][0] == pytest.approx(free["train"][0], rel=1e-3)
    assert both["train"][1] > 2 * both["train"][0]


def test_the_largest_penalty_that_fits_is_chosen():
    """By hand: the noise has variance 1/4; in the second seed no network fits."""
    train = xr.DataArray([[0.1, 0.2, 0.3], [0.3, 0.4, 0.5]], dims=("seed", "l2"))
    assert own.chosen(train).values.tolist() == [1, 0]


def test_the_best_run_is_that_of_the_validation_sentences():
    data = xr.Dataset({"test": (("seed", "run"), [[3.0, 1.0]]), "validation": (("seed", "run"), [[0.1, 0.2]])})
    assert own.best_runs(data).item() == 3.0


def test_needs_are_read_off_the_median_curve(stored):
    """By hand: an error of 5 / n is 0.05 at a hundred sentences, for every model."""
    runs = stored["ladder"]
    found = own.needs(runs.assign(test_error=0 * runs.test_error + 50 / runs["size"]))
    assert [needed for _, needed, _, _ in found] == pytest.approx([1000] * 3)
    assert [weights for *_, weights in found] == [312, 456, 3936]
    assert [round(bound) for *_, bound, _ in found] == [9347, 13661, 117912]


def test_numbers_that_the_page_names(stored):
    assert stored["focus"].top.median("seed").sel(focus=[0.0, 0.25, 2.5]).isel(model=0).values == pytest.approx(
        [0.1, 0.14, 0.6], abs=0.01
    )
    needed = [round(n, -2) for _, n, _, _ in own.needs(stored["ladder"])]
    assert needed == [1100, 900, 800]
    paths = stored["penalties"]
    assert 0.5 < (paths.l2_test / paths.free).median("seed").min() < 0.65


def changed(name, **where):
    """Multiply an array where all labels are these."""

    def change(data, factor):
        chosen = xr.DataArray(True)
        for axis, label in where.items():
            chosen = chosen & (data[name][axis] == label)
        return data.assign({name: data[name] * xr.where(chosen, factor, 1.0)})

    return lambda factor: lambda data: change(data, factor)


RED = {
    "ladder": {
        "GA-T6-order": changed("test_error", model="two_steps")(9),
        "GA-T6-simple": changed("test_error", model="mean")(0.5),
        "GA-T6-complex": changed("test_error", model="three_steps")(2),
        "GA-P1-known-weights": changed("test_error", model="known")(2),
    },
    "focus": {"GA-X-attention-unneeded": changed("test_error", model="mean", size=300)(2)},
    "place": {"GA-G1-inconsistent": changed("test_error", model="flat")(4)},
    "second_look": {"GA-T6-looks": changed("test", model="product_three")(9)},
    "penalties": {"GA-G1-l2-attention": changed("l2_test")(2), "GA-G1-sparse-attention": changed("entropy_test")(0.2)},
}
PARTS = [
    ("ladder", "GA-T6-order", changed("test_error", model="one_step")(9)),
    ("ladder", "GA-T6-order", changed("test_error", model="three_steps")(9)),
    ("ladder", "GA-T6-order", changed("test_error", model="flat")(0.1)),
    ("ladder", "GA-T6-complex", changed("test_error", model="three_steps", size=300)(2)),
    ("ladder", "GA-T6-complex", changed("test_error", model="three_steps", size=1000)(3)),
    ("focus", "GA-X-attention-unneeded", changed("test_error", model="one_step", size=100)(0.5)),
    ("place", "GA-G1-inconsistent", changed("floor")(2)),
    ("place", "GA-G1-inconsistent", changed("floor")(0.5)),
    ("second_look", "GA-T6-looks", changed("test", model="product_two")(0.3)),
    ("penalties", "GA-G1-l2-attention", changed("free")(0.5)),
]


@pytest.mark.parametrize("name", RED)
def test_every_measured_claim_of_the_chapter_can_be_turned(name, stored):
    others = [(claim, change) for of, claim, change in PARTS if of == name]
    red.assert_every_claim_turns(MADE[name].measure, stored[name], RED[name], others)


def test_every_claim_of_the_chapter_is_measured_or_says_why_not():
    mine = {c.id: c for c in ledger.claims() if c.chapter == "global_attention/recurrent"}
    found = {claim for claims in RED.values() for claim in claims}
    assert set(mine) - found == {"GA-T6-all", "GA-G1-three-layers"} == {i for i, c in mine.items() if c.untestable}
    assert [c.id for c in mine.values() if c.source == "book"] == ["GA-X-attention-unneeded"]


def test_pictures_draw(stored):
    drawn = [
        own.errors(stored["ladder"], {"mine": {100: 0.5, 300: 0.1}}),
        own.errors(stored["place"]),
        own.bounds(stored["ladder"]),
        own.focus_frame(stored["focus"], 0.25),
        own.advice(stored["penalties"]),
    ]
    assert "yours: mine" in [text.get_text() for text in drawn[0].axes[0].get_legend().get_texts()]
    assert all(ax.get_xlabel() for figure in drawn for ax in figure.axes)
    plt.close("all")
    assert "of mean pooling is 1.6 times" in own.focus_text(stored["focus"], 0.25)
    assert "of attention, 1 step is 1.5 times" in own.focus_text(stored["focus"], 0.0)


def count(s, a, t, d):
    return t * d + d + a * (s + t + 1) + s * (s + t)


@pytest.mark.parametrize(
    ("exercise", "right", "wrong", "hint"),
    [
        ("GA-R2", count, lambda s, a, t, d: t * d + d + a * (s + t + 1), "recurrence is missing"),
        ("GA-R2", count, lambda s, a, t, d: count(s, a, t, d) - a, "vector v"),
        ("GA-R2", lambda *sizes: torch.tensor(count(*sizes)), lambda *sizes: np.zeros(2), "one number"),
        ("GA-R3", lambda lag: lag + 2, lambda lag: lag + 1, "the state has seen c_1"),
        ("GA-R3", lambda lag: lag + 2, lambda lag: lag + 3, "too many"),
    ],
)
def test_exercises_accept_the_right_answer_and_name_the_mistake(exercise, right, wrong, hint):
    assert attnbook.check(exercise, right).right
    assert hint in attnbook.check(exercise, wrong).message


def test_the_dimension_of_the_bound_is_the_number_of_weights():
    drawn = initial_parameters(Recurrence(3, 5, 7), 11, 13, rng=np.random.default_rng(0))
    assert count(5, 7, 11, 13) == sum(array.size for array in drawn.values())


@pytest.fixture(scope="module")
def program():
    """The names that the page's program defines."""
    page = Path(own.__file__).with_suffix(".ipynb").read_text(encoding="utf-8")
    cells = ["".join(c["source"]) for c in json.loads(page)["cells"] if c["cell_type"] == "code"]
    shown = [
        cell for cell in cells if "def sentences(" in cell or "def error_of(" in cell or "def mean_pooling(" in cell
    ]
    assert all(len([line for line in cell.splitlines() if line.strip()]) <= 40 for cell in shown[:2])
    names = {}
    exec("\n".join([*shown[:2], shown[2].split("yours =")[0]]), names)
    return names


def test_the_page_s_attention_is_that_of_the_library(program):
    torch.manual_seed(0)
    net = program["Attention"](3, 4, 8)
    names = {"P": "score_state", "R": "score_word", "U": "state_state", "W": "state_context"}
    weights = {new: getattr(net, old).weight[None] for old, new in names.items()}
    weights |= {"score_out": net.v.weight, "hidden": net.read[0].weight[None], "decoder": net.read[2].weight}
    x = torch.randn(5, 10, 6)
    torch.testing.assert_close(net(x), predict(weights, x[None], 3)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_what_the_page_says_of_changes(program):
    error, attention = program["error_of"], program["Attention"]
    usual = {n: error(attention, n) for n in (300, 1000)}
    assert error(lambda: attention(3, 32, 64), 1000) < 2 * usual[1000]
    assert error(attention, 1000, noise=0.0) < 0.3 * usual[1000]
    assert error(program["mean_pooling"], 300, focus=0.0) < 0.1
    assert error(attention, 3000, places=True) > 0.5
    assert error(attention, 300, decay=0.02) < 0.7 * usual[300]
