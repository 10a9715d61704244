"""Experiments on recurrent attention: training, settings, readings, pictures; what is wrong turns claims red."""

import numpy as np
import pytest
import red
import torch
import xarray as xr

from attnbook import ledger
from attnbook.core.results import Measurement
from attnbook.global_attention.masks import Training
from attnbook.global_attention.recurrent import depth, experiments, figures, guidelines, word_training
from attnbook.global_attention.recurrent.experiments import Depth, Guidelines, Recurrent
from attnbook.global_attention.recurrent.word_training import Task, WordMember, WordSetup, train_reader
from attnbook.global_attention.word_teachers import draw_word_teacher

SETUP = WordSetup(n_words=5, dimension=3, teacher_width=7, width=11, n_test=13)
TASK = Task("attention", 2.5)
CPU = torch.device("cpu")
KINDS = {"recurrent": Recurrent, "guidelines": Guidelines, "depth": Depth}


@pytest.fixture(scope="module")
def smoke(smoke_results):
    return {name: smoke_results[kind.id] for name, kind in KINDS.items()}


def train(name, members, steps=20, **options):
    training = Training(steps, 17, 0.01, (steps,), decay=True)
    return train_reader(name, members, SETUP, training, device=CPU, **options)


@pytest.mark.parametrize("name", ["flat", "two_steps"])
def test_a_network_trains_the_same_alone_and_in_company(name):
    members = [WordMember(TASK, seed, n) for seed in (0, 1) for n in (19, 23)]
    together, alone = train(name, members), train(name, members[2:3])
    np.testing.assert_allclose(together.test_loss[:, 2:3], alone.test_loss, rtol=1e-4)
    np.testing.assert_allclose(together.train_loss[2:3], alone.train_loss, rtol=1e-4)


def test_known_weights_and_mean_pooling_agree_where_all_words_weigh_the_same():
    members = [WordMember(Task("attention", 0.0), 0, 29)]
    np.testing.assert_allclose(train("mean", members).test_loss, train("known", members).test_loss, rtol=1e-4)


def test_noise_is_on_training_labels_only():
    """At step 0, before any training, noise changes nothing about the test error."""
    losses = [train("mean", [WordMember(Task("attention", 2.5, noise), 0, 29)], steps=1) for noise in (0.0, 3.0)]
    assert losses[1].train_loss > 2 * losses[0].train_loss


def test_an_l2_weight_shrinks_all_weights_of_attention_and_leaves_other_members_alone():
    members = [WordMember(TASK, 0, 29, weight_penalty=w) for w in (0.0, 1.0)]
    both, alone = train("one_step", members, 200).parameters, train("one_step", members[:1], 200).parameters
    for name, tensor in both.items():
        assert tensor[1].norm() < 0.8 * tensor[0].norm()
        torch.testing.assert_close(tensor[:1], alone[name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: WordMember(TASK, 0, 0), "n_samples"),
        (lambda: WordMember(TASK, 0, 3, strength=-1.0), "strength"),
        (lambda: WordMember(TASK, 0, 3, weight_penalty=-1.0), "weight_penalty"),
        (lambda: Task("attention", 1.0, noise=-1.0), "noise"),
        (lambda: Recurrent.at("book", sizes=()), "sizes"),
        (lambda: Recurrent.at("book", sizes=(5, 3)), "sizes"),
        (lambda: Recurrent.at("book", judged_size=7), "judged_size"),
        (lambda: Recurrent.at("book", restarts=0), "restarts"),
        (lambda: Recurrent.at("book", shuffles=1), "shuffles"),
        (lambda: Guidelines.at("book", penalties=(1.0,)), "penalties"),
        (lambda: Guidelines.at("book", penalties=(0.0, 1.0)), "penalties"),
        (lambda: Guidelines.at("book", strengths=(1.0, 0.5)), "strengths"),
        (lambda: Depth.at("book", judged_size=500), "sizes"),
        (lambda: Depth.at("book", sizes=(500, 1000, 3000)), "sizes"),
    ],
)
def test_impossible_requests_are_refused_by_name(call, named):
    with pytest.raises(ValueError, match=named):
        call()


@pytest.mark.parametrize("name", KINDS)
def test_seeds_trained_in_chunks_give_the_same_numbers(name, smoke):
    whole = KINDS[name].at("smoke", chunk=2).run(device="cpu")
    for array in whole.data_vars:
        if "seed" in whole[array].dims:
            np.testing.assert_allclose(whole[array], smoke[name][array], rtol=1e-3, atol=1e-5)


def test_the_guideline_picks_the_largest_weight_that_still_fits():
    """By hand: training errors .1, .2, .3 against a noise variance of .25; in the second seed none fits."""
    train_loss = xr.DataArray([[0.1, 0.2, 0.3], [0.3, 0.4, 0.5]], dims=("seed", "penalty"))
    assert guidelines.chosen(train_loss, 0.5).values.tolist() == [1, 0]


def test_one_statistic_picks_the_strength_and_is_judged():
    """By hand: the first strength has the smaller median error, the second the smaller median ratio."""
    losses = xr.DataArray([[4.0, 4.1], [2.0, 1.0], [3.0, 4.0]], dims=("seed", "strength"))
    free = xr.DataArray([4.0, 2.0, 8.0], dims="seed")
    best = guidelines.at_best_strength(losses / free)
    assert float(best.median()) == 0.5
    assert float((best < 1).mean()) == pytest.approx(2 / 3)


def test_the_guideline_is_judged_where_networks_fit_and_nowhere_else():
    """By hand: the first two seeds fit, at the first weight, the third at none; a teacher that no seed fits fails."""
    run = Guidelines.at("smoke")
    test = np.array([[[3.0, 2.0], [1.0, 1.0]], [[4.0, 4.0], [1.0, 1.0]], [[9.0, 1.0], [1.0, 1.0]]])
    train = np.array([[[0.2, 0.3], [9.0, 9.0]], [[0.2, 0.3], [9.0, 9.0]], [[0.5, 0.6], [9.0, 9.0]]])
    axes = ("seed", "teacher", "penalty")
    data = run.load_stored("book").isel(seed=slice(3), penalty=slice(2))
    found = run.measure(data.assign(l2_attention_loss=(axes, test), l2_attention_train_loss=(axes, train)))
    values = found["GA-G1-l2-attention"]
    assert float(values["over_best_peaked"]) == np.median([1.5, 1.0])
    assert float(values["fitted_peaked"]) == pytest.approx(2 / 3)
    assert float(values["over_best_spread"]) == float(values["over_free_spread"]) == np.inf


@pytest.mark.slow
def test_a_step_size_is_the_best_of_its_neighbours_on_other_seeds():
    run, found = Recurrent.at("book"), {}
    members = [WordMember(run.task("attention"), seed, 300) for seed in (10, 11, 12, 13, 14)]
    for step_size in (0.01, 0.03, 0.1):
        training = Training(600, 32, step_size, (600,), decay=True)
        found[step_size] = np.median(train_reader("one_step", members, run.setup, training, device=CPU).test_loss[-1])
    assert min(found, key=found.get) == experiments.STEP_SIZES["attention"]["one_step"]


def test_order_blind_models_lose_nothing_where_order_does_not_matter():
    sizes = {"n_words": 5, "dimension": 3, "width": 7, "sharpness": 2.5}
    x = np.random.default_rng(0).standard_normal((50, 5, 3))
    floors = [
        experiments.order_blind_floor(x, draw_word_teacher(m, 0, **sizes), 3, np.random.default_rng(1))
        for m in ("attention", "position")
    ]
    assert floors[0] < 1e-25
    assert floors[1] > 0.1


def test_the_floor_of_two_words_is_the_variance_over_both_orders():
    """By hand: two words have two orders; the variance is a quarter of the squared difference."""
    t = draw_word_teacher("position", 0, n_words=2, dimension=3, width=7, sharpness=2.0)
    x = np.random.default_rng(0).standard_normal((400, 2, 3))
    exact = ((t(x) - t(x[:, ::-1])) ** 2 / 4).mean()
    assert experiments.order_blind_floor(x, t, 300, np.random.default_rng(1)) == pytest.approx(exact, rel=0.02)


def test_attention_of_a_model_that_weighs_all_words_alike_lies_where_such_a_teacher_looks():
    run = Recurrent.at("smoke")
    members = [WordMember(TASK, seed, 19) for seed in (0, 1) for _ in run.sizes]
    trained = train_reader("one_step", members, run.setup, Training(1, 17, 0.01, (1,)), device=CPU)
    alike = trained._replace(parameters={name: torch.zeros_like(t) for name, t in trained.parameters.items()})
    apart = run._weights(dict.fromkeys(("attention", "position", "equal"), alike), (0, 1))["apart"][1]
    assert apart.shape == (2, 3, 2)
    np.testing.assert_allclose(apart[:, 2], 0, atol=1e-6)
    assert (apart[:, :2] > 0.1).all()


def test_a_deep_mask_stays_between_zero_and_one_and_is_one_without_attention(monkeypatch):
    kept = {}

    def keep(own, *_):
        return kept.setdefault(len(kept), own["mask"]).sum()

    monkeypatch.setattr(depth, "largest_gradient_correlation", keep)
    Depth.at("smoke", steps=40, step_sizes=(0.1,), seeds=(0,), penalty=1.0).run(device="cpu")
    baseline, plain, penalised = (torch.cat([kept[i] for i in range(first, 6, 3)]) for first in range(3))
    assert (baseline == 1).all()
    assert ((plain >= 0) & (plain <= 1)).all()
    assert (penalised == 0).float().mean() > 0.5


def test_figures_and_tables_draw_from_a_smoke_result(smoke):
    data, paths, deep = smoke.values()
    drawn = [draw(data) for draw in (figures.ladder, figures.other_teachers)]
    drawn += [draw(paths) for draw in (figures.weight_decay, figures.penalties)]
    drawn += [figures.words_frame(data, task, 30) for task in figures.TITLES]
    drawn += [figures.three_layers(deep)]
    for figure in drawn:
        figure.canvas.draw()
        figures.plt.close(figure)
    assert "3936" in figures.models(Recurrent.at("smoke"), data)._repr_html_()
    assert len(figures.second_looks(data).rows) == 2
    assert figures.words_text(data, "the place decides", 30).startswith("The place decides, 30 sentences")


def turned(name, axis, *others):
    """The values of arrays turned around along an axis, its labels left where they are."""

    def change(data):
        arrays = {n: data[n].copy(data=np.flip(data[n].values, data[n].dims.index(axis))) for n in (name, *others)}
        return data.assign(arrays)

    return change


def scaled(name, factor, **where):
    """The values of an array multiplied, where a label is given only there."""
    return lambda data: data.assign({name: data[name] * xr.where(_at(data[name], where), factor, 1.0)})


def _at(array, where):
    chosen = xr.DataArray(True)
    for name, label in where.items():
        chosen = chosen & (array[name] == label)
    return chosen


RED = {
    "recurrent": {
        "GA-T6-order": turned("test_loss", "model"),
        "GA-T6-simple": turned("test_loss", "model"),
        "GA-T6-complex": turned("test_loss", "model"),
        "GA-G1-inconsistent": turned("position_loss", "other"),
        "GA-X-right-pooling": turned("test_loss", "model"),
        "GA-X-attention-unneeded": scaled("equal_loss", 10, other="mean"),
        "GA-X-second-look": turned("second_loss", "second", "second_train_loss"),
    },
    "guidelines": {
        "GA-G1-l2-attention": turned("l2_attention_train_loss", "penalty"),
        "GA-G1-sparse-attention": scaled("attention_loss", 0.1, kind="entropy"),
        "GA-X-attention-penalties": turned("attention_loss", "kind"),
    },
    "depth": {"GA-G1-three-layers": turned("test_loss", "model")},
}


@pytest.mark.parametrize("name", KINDS)
def test_a_change_of_its_arrays_turns_every_claim(name):
    experiment = KINDS[name].at("book")
    red.assert_every_claim_turns(experiment.measurements, experiment.load_stored("book"), RED[name])


SMALL = Recurrent.at(
    sizes=(300,), seeds=tuple(range(9)), chunk=9, n_test=300, steps=400, long_steps=1200,
    second_size=300, second_steps=1, restarts=1, shuffles=2,
)  # fmt: skip
JUDGED = ["GA-T6-order", "GA-T6-simple", "GA-X-right-pooling"]
FACTORS = (1.0, 0.0, -1.0)  # on the gradients of scores: of the first three seeds, the next three and the last


@pytest.mark.slow
def test_a_score_that_is_not_trained_or_trained_away_turns_claims_red(monkeypatch):
    """Guards that the rules can fail: without a well trained score attention is no better than mean pooling."""
    honest, factors = word_training._gradient, torch.tensor(FACTORS).repeat_interleave(3)

    def gradient(*args):
        own = honest(*args)

        def changed(*at):
            losses, found = own(*at)
            scores = {name: g for name, g in found.items() if name.startswith(("score", "state"))}
            return losses, found | {name: torch.einsum("m,m...->m...", factors, g) for name, g in scores.items()}

        return changed

    monkeypatch.setattr(word_training, "_gradient", gradient)
    data = SMALL.run(device="cpu")
    for number, factor in enumerate(FACTORS):
        measured = SMALL.measurements(data.isel(seed=slice(3 * number, 3 * number + 3)))
        found = [ledger.judge(ledger.claim(claim), measured[claim]).outcome for claim in JUDGED]
        assert found == [ledger.claim(claim).verdict if factor == 1 else "not reproduced" for claim in JUDGED], factor


@pytest.mark.slow
def test_without_the_context_in_the_state_no_second_look_is_found(monkeypatch):
    """Guards the claim on three steps: with W = 0 the state cannot say what the first look found."""
    honest = word_training.looks

    def looks(parameters, *args):
        found = {name: 0 * value for name, value in parameters.items() if name == "state_context"}  # not with one step
        return honest(parameters | found, *args)

    monkeypatch.setattr(word_training, "looks", looks)
    monkeypatch.setattr(
        word_training, "predict", lambda p, x, n_steps: word_training.read(p, looks(p, x, n_steps)[-1].context)
    )
    few = {"sizes": (100,), "judged_size": 100, "steps": 1, "long_steps": 1, "n_test": 300}
    run = Recurrent.at("book", restarts=1, **few)
    two, three = run.run(device="cpu").second_loss.squeeze("restart").transpose("second", "seed").values
    measured = Measurement({"smallest_two_steps": two.min(), "found": float((three <= 0.5 * two).mean())})
    verdict = ledger.judge(ledger.claim("GA-X-second-look"), measured)
    assert verdict.outcome == "not reproduced"


@pytest.mark.slow
def test_an_entropy_penalty_with_the_wrong_sign_no_longer_hurts(monkeypatch):
    run = Guidelines.at("book", strengths=(0.5, 1.0), penalties=(1e-3, 1e-2), n_test=300, seeds=(0, 1, 2), steps=200)

    def harm():
        return run.measurements(run.run(device="cpu"))["GA-X-attention-penalties"].values["strongest_entropy"]

    assert harm() >= 2
    honest = word_training.attention_penalty
    monkeypatch.setattr(word_training, "attention_penalty", lambda *a: -honest(*a))
    assert harm() < 2
