"""Experiments on recurrent attention: training, settings, figures; a wrong model turns claims red."""

import dataclasses

import numpy as np
import pytest
import torch

from attnbook import ledger
from attnbook.core.results import over_seeds
from attnbook.global_attention import masks, recurrent_gradient, word_training
from attnbook.global_attention.experiments import (
    guidelines,
    recurrent,
    recurrent_details,
    second_look,
    step_sizes,
)
from attnbook.global_attention.figures import recurrent as figures
from attnbook.global_attention.masks import Training
from attnbook.global_attention.tables import guidelines as advice_tables
from attnbook.global_attention.tables import recurrent as tables
from attnbook.global_attention.word_training import Task, WordMember, WordSetup, train_reader

SETUP = WordSetup(n_words=5, dimension=3, teacher_width=7, width=11, n_test=13)
TASK = Task("attention", 2.5)
CPU = torch.device("cpu")


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


def test_an_l2_weight_shrinks_both_layers_and_leaves_other_members_alone():
    setup = masks.Setup(n_inputs=5, outputs=3, teacher_width=7, width=11, noise=0.0, n_test=13)
    members = [masks.Member("attention", 0, 29, 2, weight_penalty=w) for w in (0.0, 1.0)]
    training = Training(50, 17, 0.01, (50,))
    both = masks.train_members(members, setup, training, device=CPU).parameters
    alone = masks.train_members(members[:1], setup, training, device=CPU).parameters
    for name in ("hidden", "decoder"):
        assert both[name][1].norm() < 0.8 * both[name][0].norm()
        torch.testing.assert_close(both[name][:1], alone[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: train("flat", []), "members"),
        (lambda: train("magic", [WordMember(TASK, 0, 3)]), "name"),
        (lambda: WordMember(TASK, 0, 0), "n_samples"),
        (lambda: WordMember(TASK, 0, 3, strength=-1.0), "strength"),
        (lambda: Task("attention", 1.0, noise=-1.0), "noise"),
        (lambda: masks.Member("attention", 0, 3, 2, weight_penalty=-1.0), "weight_penalty"),
    ],
)
def test_impossible_requests_are_refused_by_name(call, named):
    with pytest.raises(ValueError, match=named):
        call()


@pytest.mark.parametrize(
    "change",
    [
        {"sizes": ()},
        {"sizes": (5, 3)},
        {"judged_size": 7},
        {"restarts": 0},
        {"seeds": (1, 1)},
        {"chunk": 0},
        {"ladder_step_sizes": (0.1,)},
        {"equal_step_sizes": (0.1,) * 4},
    ],
)
def test_impossible_settings_are_refused_by_name(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        dataclasses.replace(recurrent.Settings.book(), **change)


@pytest.mark.parametrize("change", [{"penalties": (1.0,)}, {"strengths": (1.0, 0.5)}, {"penalties": (0.0, 1.0)}])
def test_impossible_penalties_are_refused_by_name(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        dataclasses.replace(guidelines.Settings.book(), **change)


@pytest.mark.parametrize("module", [recurrent, guidelines])
def test_seeds_trained_in_chunks_give_the_same_numbers(module):
    whole, parts = (
        module.run(dataclasses.replace(module.Settings.smoke(), chunk=chunk), device="cpu") for chunk in (2, 1)
    )
    for name in (
        ("test_loss", "position_loss", "apart", "long_loss") if module is recurrent else ("l2_loss", "attention_loss")
    ):
        np.testing.assert_allclose(getattr(whole, name), getattr(parts, name), rtol=1e-3)


def test_the_guideline_picks_the_largest_weight_that_still_fits(smoke_results):
    """By hand: training errors .1, .2, .3 against a noise variance of .25; in the second seed none fits."""
    settings = dataclasses.replace(guidelines.Settings.smoke(), penalties=(0.1, 0.2, 0.3))
    train_loss = np.broadcast_to(np.array([[0.1, 0.2, 0.3], [0.3, 0.4, 0.5]])[:, None, None], (2, 2, 2, 3))
    losses = np.broadcast_to(np.array([5.0, 6.0, 7.0]), (2, 2, 2, 3))
    change = {"l2_loss": losses, "l2_train_loss": train_loss, "l1_loss": losses[0]}
    result = dataclasses.replace(smoke_results["global_attention.guidelines"], settings=settings, **change)
    assert result.chosen(0, 1).tolist() == [1, 0]
    assert result.by_guideline(0, 1).tolist() == [6.0, 5.0]


def test_one_statistic_picks_the_strength_and_is_judged():
    """By hand: the first strength has the smaller median error, the second the smaller median ratio."""
    losses = np.array([[4.0, 4.1], [2.0, 1.0], [3.0, 4.0]])[:, None].repeat(2, axis=1)
    free = np.array([4.0, 2.0, 8.0])[:, None].repeat(2, axis=1)
    found = guidelines._against_free(("any", "other"), losses, free)
    assert found.values["best_any"] == 0.5
    assert found.values["helped_any"] == pytest.approx(2 / 3)


def test_the_recorded_step_sizes_are_the_best_of_their_rows():
    assert step_sizes.chosen_step_sizes("attention", ("flat", "two_steps")) == (0.001, 0.1)
    for teacher, models in step_sizes.TRIED.items():
        for model, chosen in zip(models, step_sizes.chosen_step_sizes(teacher, list(models)), strict=True):
            assert models[model][step_sizes.GRID.index(chosen)] == min(models[model])
    assert not set(step_sizes.TRIED_SEEDS) & set(recurrent.Settings.book().seeds)


@pytest.mark.slow
def test_the_record_of_step_sizes_is_what_training_gives():
    s = recurrent.Settings.book()
    found = step_sizes.try_step_sizes("known", s.tasks["attention"], s.setup, device=CPU, grid=(0.03,))
    assert found[0] == pytest.approx(step_sizes.TRIED["attention"]["known"][3], rel=0.1)


def test_a_diverging_step_size_counts_as_infinite(monkeypatch):
    def diverge(*_, **__):
        raise FloatingPointError

    monkeypatch.setattr(step_sizes, "train_reader", diverge)
    assert step_sizes.try_step_sizes("flat", TASK, SETUP, device=CPU, grid=(0.1,)) == (float("inf"),)


def test_attention_of_a_model_that_weighs_all_words_alike_lies_where_such_a_teacher_looks():
    trained = train("one_step", [WordMember(TASK, seed, 19) for seed in (0, 1)]).parameters
    alike = {name: torch.zeros_like(tensor) for name, tensor in trained.items()}
    tasks = [Task("attention", 0.0), TASK]
    apart = recurrent_details.attention_apart([alike, alike], tasks, (0, 1), SETUP)
    assert apart.shape == (2, 2, 1)
    np.testing.assert_allclose(apart[:, 0], 0, atol=1e-6)
    assert (apart[:, 1] > 0.1).all()


def test_figures_and_tables_draw_from_a_smoke_result(smoke_results):
    result, paths = (smoke_results[f"global_attention.{name}"] for name in ("recurrent", "guidelines"))
    drawn = [draw(result) for draw in (figures.looks, figures.ladder, figures.other_teachers, figures.second_look)]
    drawn += [draw(paths) for draw in (figures.weight_decay, figures.penalties)]
    drawn += [figures.words_frame(result, task, 30) for task in figures.TITLES.values()]
    drawn += [figures.readings_frame(-1.9)]
    for figure in drawn:
        figure.canvas.draw()
        figures.plt.close(figure)
    assert "3936" in tables.counts(result)._repr_html_()
    assert "20 and 30 sentences" in tables.fits(result)._repr_html_()
    shown = [tables.overlaps, tables.felt, tables.bound, tables.failures, tables.longer, tables.unneeded]
    for table in [*shown, tables.second_look]:
        assert len(table(result).rows) >= 2
    for table in (advice_tables.picked, advice_tables.at_best, advice_tables.at_strongest):
        assert len(table(paths).rows) == 4
    assert tables.frame_text(result, "the place decides", 30).startswith("The place decides, 30 sentences")


SMALL = dataclasses.replace(
    recurrent.Settings.book(), sizes=(300,), seeds=(0, 1, 2), chunk=3, n_test=300, second_steps=2, steps=400
)
JUDGED = ["GA-T6-order", "GA-T6-simple", "GA-X-right-pooling"]


def outcomes(result):
    return {v.claim.id: v.outcome for v in ledger.check(result, only=JUDGED).verdicts}


@pytest.mark.slow
def test_the_honest_model_passes():
    assert set(outcomes(recurrent.run(SMALL, device="cpu")).values()) == {"reproduced"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutation", "red"), [("score never trained", JUDGED), ("gradient at the scores with the wrong sign", JUDGED)]
)
def test_a_wrong_model_turns_claims_red(mutation, red, monkeypatch):
    """Guards that the rules can fail: without a well trained score attention is no better than mean pooling."""
    honest = recurrent_gradient._through_softmax
    factor = 0.0 if mutation == "score never trained" else -1.0
    monkeypatch.setattr(recurrent_gradient, "_through_softmax", lambda *a: factor * honest(*a))
    assert word_training.loss_and_gradient is recurrent_gradient.loss_and_gradient
    mutated = outcomes(recurrent.run(SMALL, device="cpu"))
    assert [mutated[claim] for claim in red] == ["not reproduced"] * len(red)


@pytest.mark.slow
def test_without_the_context_in_the_state_no_second_look_is_found(monkeypatch):
    """Guards the claim on three steps: with W = 0 the state cannot say what the first look found."""
    honest, drawn = word_training.loss_and_gradient, word_training.initial_parameters

    def loss_and_gradient(*args, **options):
        loss, gradient = honest(*args, **options)
        return loss, gradient | {"state_context": torch.zeros_like(gradient["state_context"])}

    def initial_parameters(*args, **options):
        found = drawn(*args, **options)
        return found | {"state_context": np.zeros_like(found["state_context"])}

    monkeypatch.setattr(word_training, "loss_and_gradient", loss_and_gradient)
    monkeypatch.setattr(word_training, "initial_parameters", initial_parameters)
    s = recurrent.Settings.book()
    training = Training(s.second_steps, s.batch_size, s.second_step_size, (s.second_steps,), decay=True)
    found = second_look.train_second_look(
        s.tasks["two_looks"], s.second_size, s.seeds, 1, s.setup, training, device=CPU, progress=[None, None]
    )
    two, three = np.moveaxis(found["second_loss"][:, 0], -1, 0)
    verdict = ledger.judge(ledger.claim("GA-X-second-look"), over_seeds(two_steps=two, three_steps=three))
    assert verdict.outcome == "not reproduced"


@pytest.mark.slow
def test_an_entropy_penalty_with_the_wrong_sign_no_longer_hurts(monkeypatch):
    settings = dataclasses.replace(guidelines.Settings.book(), strengths=(0.5, 1.0), n_test=300, seeds=(0, 1, 2))

    def harm():
        losses = guidelines._train_attention(settings, CPU, settings.seeds, "entropy", None)
        return np.median(losses[:, 1, -1] / losses[:, 1, 0])

    assert harm() >= 2
    honest = recurrent_gradient.penalty_and_gradient
    monkeypatch.setattr(recurrent_gradient, "penalty_and_gradient", lambda *a: tuple(-part for part in honest(*a)))
    assert harm() < 2
