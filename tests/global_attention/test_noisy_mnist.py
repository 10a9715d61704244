"""Figures 2 and 4 to 6: what is read off the curves; wrong models turn claims red."""

import dataclasses

import numpy as np
import pytest
import torch

from attnbook import ledger
from attnbook.core.results import Clock
from attnbook.datasets import DataError
from attnbook.global_attention import digit_training as models
from attnbook.global_attention.agreement import Agreement
from attnbook.global_attention.experiments import noisy_mnist, noisy_mnist_settings
from attnbook.global_attention.experiments.noisy_mnist import FIGURES, MODELS, PANELS, PATHS, NoisyMnist, Settings
from attnbook.global_attention.figures import noisy_mnist as figures
from attnbook.global_attention.noisy_digits import Scene
from attnbook.global_attention.tables import noisy_mnist as tables

CPU = torch.device("cpu")


@pytest.fixture
def result(smoke_results):
    return smoke_results["global_attention.noisy_mnist"]


def with_figure_2(result, **curves):
    """Put curves ``(records, models)`` in place of those of Figure 2 at the step size of the claims, for all seeds."""
    at = result.settings.step_sizes.index(result.settings.read_at)
    changed = {}
    for name, curve in curves.items():
        changed[name] = getattr(result, name).copy()
        changed[name][:, :, 0, at] = curve[:, None]
    return dataclasses.replace(result, **changed)


@pytest.mark.parametrize(
    "change",
    [{"images": "letters"}, {"read_at": 0.3}, {"read_large_at": 0.3}, {"steps": 1}, {"seeds": ()}, {"chunk": 0}],
)
def test_impossible_settings_are_refused_by_name(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        dataclasses.replace(Settings.book(), **change)


def test_mnist_is_not_replaced_in_silence(monkeypatch, tmp_path):
    """Where MNIST cannot be had, a run that asks for it stops."""
    monkeypatch.delenv("ATTNBOOK_DATA", raising=False)
    monkeypatch.setenv("ATTNBOOK_CACHE", str(tmp_path))
    monkeypatch.setenv("ATTNBOOK_OFFLINE", "1")
    with pytest.raises(DataError, match="ATTNBOOK_DATA"):
        Settings.paper().load()
    assert Settings.smoke().load().stand_in
    assert Settings.book().load().stand_in


def test_book_scale_is_the_same_with_and_without_mnist_at_hand(monkeypatch, tmp_path):
    """The loader that may read ATTNBOOK_DATA is not even asked."""
    monkeypatch.setenv("ATTNBOOK_DATA", str(tmp_path))
    monkeypatch.setattr(noisy_mnist_settings, "mnist", None)
    assert len(Settings.book().load().train) >= Settings.book().n_train


def test_only_mnist_counts_for_the_claim_on_mnist(result):
    assert "GA-F2-mnist" in result.measurements()
    on_digits = dataclasses.replace(result, settings=dataclasses.replace(result.settings, images="digits"))
    assert "GA-F2-mnist" not in on_digits.measurements()


def test_steps_to_a_loss_by_hand(result):
    """Guessing until the end; attention falls to 0, the baseline to half of guessing, which sets the test target."""
    guessing, records = np.log(10), len(result.steps)
    curve = np.full((records, 3), guessing)
    curve[-1] = guessing / 2, 0.0, guessing
    accuracy = np.zeros_like(result.accuracy)
    accuracy[-1, :, 0, result.settings.step_sizes.index(result.settings.read_at)] = 1.0
    best = dataclasses.replace(with_figure_2(result, test_loss=curve, train_loss=curve), accuracy=accuracy)
    start, end = result.steps[-2:]
    np.testing.assert_allclose(best.steps_to_loss("train_loss", "figure_2")[0], [end, (start + end) / 2])
    halfway = [(start + end) / 2, start + (end - start) / 4]
    np.testing.assert_allclose(best.steps_to_loss("test_loss", "figure_2")[0], halfway)


def test_a_paired_lead_needs_every_seed(result):
    accuracy = np.zeros_like(result.accuracy)
    accuracy[-1, :, 0, 0, 1] = 0.5
    accuracy[-1, 1:, 1, 0, 1] = 0.5
    ahead = dataclasses.replace(result, accuracy=accuracy).ahead_in_every_seed()
    assert ahead.sum() == 1
    assert ahead[0, 0]


def test_networks_that_diverged_have_no_leak():
    members = [models.Member("attention", 0, Scene(7, 3), 0.1)] * 2
    weights = np.where(Scene(7, 3).patch == 1, 4.0, 1.0)[None].repeat(2, axis=0)
    weights[1, 0] = np.inf
    np.testing.assert_array_equal(noisy_mnist._leak(weights, members), [0.25, np.nan])


def test_the_balance_is_that_of_the_trained_weights(result):
    """For one network, trained by itself: squared mask entries minus squared lengths."""
    s = result.settings
    member = models.Member("attention", 1, PANELS["figure_2"].scene, s.read_at)
    alone = models.train_members([member], s.load(), s.training("figure_2"), device=CPU).parameters
    expected = alone["mask"][0].square() - alone["hidden"][0].square().sum(0)
    np.testing.assert_allclose(result.balance[1, 1], expected.numpy(), atol=2e-3)
    np.testing.assert_allclose(result.masks[1, 0], alone["mask"][0].numpy(), atol=2e-3)
    assert abs(result.balance[:, 0].mean() - (1 - s.width / 24**2)) <= 1e-3


def test_accuracy_at_equal_training_loss_by_hand(result):
    """Losses fall tenfold per record; attention is one record ahead, so it is read one record before the end."""
    records = len(result.steps)
    falling = np.log(10) * np.arange(records)
    loss = np.exp(-np.stack([falling, falling + np.log(10), falling - np.log(10)], axis=1))
    accuracy = np.stack([np.linspace(0, 0.5, records)] * 3, axis=1)
    changed = with_figure_2(result, train_loss=loss, accuracy=accuracy)
    found = changed._at_equal_training_loss()[0]
    np.testing.assert_allclose(found, [0.5, accuracy[-2, 1], 0.5])


def test_settings_in_which_nobody_learned_do_not_count(result):
    accuracy = np.full_like(result.accuracy, 0.2)
    nobody = dataclasses.replace(result, accuracy=accuracy)
    assert np.isnan(nobody.lead()).all()
    in_all = float(accuracy[0, 0, ..., 0].size)
    none = {"fraction_held": 0.0, "settings": 0.0, "not_counted": in_all}
    assert nobody.measurements()["GA-F2-every"].values == none
    accuracy = accuracy.copy()
    accuracy[-1, :, 0, 0] = 0.5, 0.7, 0.7
    accuracy[-1, :, 1, 0] = 0.5, 0.5, 0.7
    some = dataclasses.replace(result, accuracy=accuracy)
    half = {"fraction_held": 0.5, "settings": 2.0, "not_counted": in_all - 2}
    assert some.measurements()["GA-F2-every"].values == half


def test_each_network_is_read_at_its_own_best_step_size(result):
    accuracy = np.zeros_like(result.accuracy)
    accuracy[-1, :, 2] = [[0.9, 0.1, 0.3], [0.2, 0.8, 0.7]]
    changed = dataclasses.replace(result, accuracy=accuracy)
    first, second = result.settings.step_sizes
    assert changed.best_step_sizes("plain") == {"baseline": first, "attention": second, "l1_attention": second}
    np.testing.assert_array_equal(changed.best("plain"), [[0.9, 0.8, 0.7]] * 2)


def test_panels_stay_in_order_through_the_programs(result):
    """A member of each panel, trained by itself, ends where its place in the result says."""
    s, images = result.settings, result.settings.load()
    for i, panel in enumerate(PANELS):
        penalty = s.penalty_large if panel in FIGURES else s.penalty
        member = models.Member("l1_attention", 1, PANELS[panel].scene, s.step_sizes[1], penalty)
        alone = models.train_members([member], images, s.training(panel), device=CPU)
        np.testing.assert_allclose(result.test_loss[:, 1, i, 1, 2], alone.records["test_loss"][:, 0], rtol=1e-4)
    assert [PANELS[panel].scene.digit_size for panel in FIGURES] == [15, 8, 5]


def test_penalty_paths_vary_what_they_name():
    s = Settings.smoke()
    members = s.path_members((3,))
    both = [(size, value) for size in s.path_step_sizes for value in s.path]
    assert [(m.model, m.step_size, m.penalty, m.decay, m.group_lasso) for m in members] == [
        *(("l1_attention", size, value, 0.0, 0.0) for size, value in both),
        *(("l1_attention", size, value, value, 0.0) for size, value in both),
        *(("baseline", size, 0.0, value, 0.0) for size, value in both),
        *(("baseline", size, 0.0, 0.0, value) for size, value in both),
    ]
    assert dataclasses.replace(s, seeds=(0, 1, 2), chunk=2).n_programs == 2 * 6
    assert s.n_networks == 2 * (len(PANELS) * len(s.step_sizes) * len(MODELS) + len(members))


def test_figures_and_tables_draw_from_a_smoke_result(result):
    """Every plotting function takes its result and returns a figure."""
    step = float(result.steps[-1])
    drawn = [
        figures.overview(result, result.weights[-1, 0]),
        figures.gallery({"one": result.weights[-1, 0], "two": result.weights[-1, 1]}),
        figures.curves(result, "figure_5", 0.1),
        figures.accuracy_against_step_size(result, FIGURES),
        *(draw(result) for draw in (figures.lead, figures.learned_masks, figures.accuracy_against_loss)),
        figures.penalty_paths(result),
        figures.growing_weights(result, step),
    ]
    for figure in drawn:
        assert figure.axes
        figures.plt.close(figure)
    scene, pixels = PANELS["figure_2"].scene, 24**2
    found = Agreement(*np.random.default_rng(0).random((4, 2, pixels)))
    figures.plt.close(figures.agreement(found))
    for table in (
        tables.agreement(found, scene),
        tables.balance(result),
        tables.steps_to_losses(result, FIGURES),
        tables.settings_won({"made up": result}),
    ):
        assert "[" in table._repr_html_() or "made up" in table._repr_html_()
    assert "L1-attention" in tables.weights_text(result, step)
    assert "Digit of 8 in 48" in tables.curves_text(result, "figure_5", 0.1)
    assert "8 in 24" in tables.at_best_step_size(result, ("figure_2",))._repr_html_()
    assert "50.0 [40.0, 60.0]" in tables.accuracies(["8 in 24"], np.array([[[0.4, 0, 0]], [[0.6, 0, 0]]]))._repr_html_()
    masks = np.where(Scene(7, 3).patch == 1, 2.5, 0.75)[None, None]
    entries = tables.mask_entries(masks, Scene(7, 3), ["attention"])._repr_html_()
    assert entries.index("outside") < entries.index("0.75 [0.75, 0.75]") < entries.index("2.50 [2.50, 2.50]")
    assert "scikit-learn" in tables.source(Settings.book().load())._repr_html_()


def test_a_penalised_mask_that_trails_is_named(result):
    accuracy = np.zeros_like(result.accuracy)
    accuracy[-1, :, 1, 0] = 0.4, 0.6, 0.3
    behind = tables.penalty_that_trails({"a": dataclasses.replace(result, accuracy=accuracy), "b": result})
    html = behind._repr_html_()
    assert f"uniform noise at {result.settings.step_sizes[0]:g}: 30 against 60" in html
    assert html.count("uniform") == 1
    assert "none" in html


def test_verdicts_on_both_data_sets_stand_side_by_side():
    html = tables.with_and_without_mnist(["GA-F2-loss", "GA-F2-mnist", "GA-X-digits-leak"])._repr_html_()
    assert "not measured" in html  # the claim on MNIST, at book scale
    leak = html[html.index("GA-X-digits-leak") :]
    assert 0 < leak.index("✗") < leak.index("✓")  # fails on scikit-learn's digits, holds on MNIST


SMALL = dataclasses.replace(Settings.book(), seeds=(0, 1, 2))


def outcomes_of_figure_2():
    """Verdicts of the claims that Figure 2 alone decides, from the networks at its step size."""
    s, images = SMALL, SMALL.load()
    chosen = [m for m in s.members(("figure_2",), s.seeds) if m.step_size == s.read_at]
    history = models.train_members(chosen, images, s.training("figure_2"), device=CPU)
    shape = (len(s.record_at), len(s.seeds), 1, 1, len(MODELS))
    curves = {name: history.records[name].reshape(shape) for name in noisy_mnist.CURVES}
    settings = dataclasses.replace(Settings.smoke(), step_sizes=(s.read_at,), read_large_at=s.read_at, seeds=s.seeds)
    filled = NoisyMnist(
        settings=dataclasses.replace(settings, steps=s.steps),
        provenance=Clock().provenance(CPU),
        steps=np.array(s.record_at, dtype=float),
        **{name: curve.repeat(len(PANELS), axis=2) for name, curve in curves.items()},
        leak=np.ones((len(s.seeds), len(PANELS), 1, len(MODELS))),
        path_accuracy=np.zeros((len(s.seeds), len(PATHS), len(settings.path_step_sizes), len(settings.path))),
        weights=np.ones((len(s.record_at), len(MODELS), 24**2)),
        weights_large=np.ones((len(FIGURES), len(MODELS), 48**2)),
        masks=np.ones((len(s.seeds), 2, 24**2)),
        balance=np.ones((len(s.seeds), 2, 24**2)),
    )
    return {v.claim.id: v.outcome for v in ledger.check(filled).verdicts}


@pytest.fixture(scope="module")
def honest_outcomes():
    return outcomes_of_figure_2()


DECIDED = ("GA-F2-accuracy-attention", "GA-F2-accuracy-l1", "GA-F2-loss", "GA-F2-speed", "GA-X-digits-equal")


@pytest.mark.slow
def test_honest_models_pass(honest_outcomes):
    expected = {claim: ledger.claim(claim).verdict for claim in DECIDED}
    assert {claim: honest_outcomes[claim] for claim in DECIDED} == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutation", "red"),
    [
        ("mask never trained", ("GA-F2-accuracy-attention", "GA-F2-loss", "GA-F2-speed", "GA-X-digits-equal")),
        ("no penalty", ("GA-F2-accuracy-l1",)),
        ("mask gradient with the wrong sign", ("GA-F2-accuracy-attention", "GA-F2-loss", "GA-X-digits-equal")),
    ],
)
def test_a_wrong_model_turns_claims_red(mutation, red, monkeypatch):
    """Guards that the rules can fail: each mutation breaks the claims that depend on what it breaks."""
    honest, original = models.loss_and_gradient, models._Rule.__init__

    def gradient(parameters, batch, **options):
        losses, gradients = honest(parameters, batch, **options)
        if mutation == "mask gradient with the wrong sign":
            gradients["mask"] = -gradients["mask"]
        return losses, gradients

    def rule(self, members, data):
        original(self, members, data)
        if mutation == "mask never trained":
            self.trained.zero_()
        if mutation == "no penalty":
            self.penalty.zero_()

    monkeypatch.setattr(models, "loss_and_gradient", gradient)
    monkeypatch.setattr(models._Rule, "__init__", rule)
    mutated = outcomes_of_figure_2()
    for claim in red:
        assert mutated[claim] == "not reproduced", claim
