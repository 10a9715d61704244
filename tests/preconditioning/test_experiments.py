"""What the experiments read off their curves; wrong models turn claims red."""

import dataclasses

import numpy as np
import pytest
import torch

from attnbook import ledger
from attnbook.preconditioning import training
from attnbook.preconditioning.experiments import ablation, optimizer_race, structure_aware_descent
from attnbook.preconditioning.experiments.curves import first_time, loss_ratio, stage
from attnbook.preconditioning.figures import structure_aware_descent as figures
from attnbook.preconditioning.tables import structure_aware_descent as tables

# The second problem is the easier one with condition number 3, where few steps are enough.
SHORT = dataclasses.replace(
    structure_aware_descent.Settings.book(),
    condition_numbers=(3.0, 3.0),
    step_sizes=(0.05, 0.04),
    steps=(20, 500),
    records=20,
    seeds=(0, 1),
    chunk=2,
)


@pytest.fixture(scope="module")
def smoke():
    modules = {"descent": structure_aware_descent, "ablation": ablation, "race": optimizer_race}
    return {name: module.run(module.Settings.smoke(), device="cpu") for name, module in modules.items()}


def test_a_seed_that_never_arrives_counts_as_infinite():
    ratios = np.array([[9.0, 9.0, np.inf], [1.25, 1.3, np.inf], [1.4, 1.26, np.inf]])
    assert first_time(np.array([0.0, 7.0, 14.0]), ratios).tolist() == [7.0, np.inf, np.inf]
    assert loss_ratio(np.array([0.0, 1.0, np.inf]), 0.5).tolist() == [1.0, 3.0, np.inf]


def test_stages_report_their_progress_together():
    seen = []
    for number in range(3):
        stage(lambda done, total: seen.append(done / total), number, 3)(5, 5)
    assert seen == pytest.approx([1 / 3, 2 / 3, 1.0], abs=1e-3)
    assert stage(None, 0, 3) is None


@pytest.mark.parametrize(
    ("module", "change", "name"),
    [
        (structure_aware_descent, {"noise": (0.1,)}, "noise"),
        (structure_aware_descent, {"records": 7}, "records"),
        (structure_aware_descent, {"seeds": ()}, "seeds"),
        (ablation, {"weak_conditions": (3.0,)}, "weak_conditions"),
        (ablation, {"records": 7}, "records"),
        (ablation, {"hard_condition": 7.0}, "hard_condition"),
        (optimizer_race, {"tuning_seeds": (0,)}, "tuning_seeds"),
        (optimizer_race, {"n_step_sizes": 0}, "n_step_sizes"),
        (optimizer_race, {"records": 7}, "records"),
    ],
)
def test_impossible_settings_are_refused_by_name(module, change, name):
    with pytest.raises(ValueError, match=name):
        dataclasses.replace(module.Settings.book(), **change)


def test_seeds_trained_in_chunks_give_the_same_curves(smoke):
    whole = structure_aware_descent.run(
        dataclasses.replace(structure_aware_descent.Settings.smoke(), chunk=2), device="cpu"
    )
    np.testing.assert_allclose(whole.excess_loss, smoke["descent"].excess_loss, rtol=1e-3)


def test_a_run_with_one_problem_speaks_of_the_larger_problem_only():
    one = dataclasses.replace(
        structure_aware_descent.Settings.smoke(),
        **{name: getattr(structure_aware_descent.Settings.smoke(), name)[:1]
           for name in ("condition_numbers", "largest", "noise", "step_sizes", "steps")},
    )  # fmt: skip
    measured = structure_aware_descent.run(one, device="cpu").measurements()
    assert {"PC-F1p", "PC-F1p-random", "PC-F1p-sgd"} < set(measured)
    assert "PC-F1" not in measured


def test_the_best_step_size_is_chosen_by_the_median_and_divergence_counts(smoke):
    result = smoke["ablation"]
    curves = np.ones((11, 4, 6, 2))
    curves[-1, :, 0] = np.array([[5.0, 5.0], [3.0, 3.2], [1.0, np.inf], [4.0, 4.0]])
    assert result.best(curves)[0] == 1
    assert result.at_best(curves)[-1, 0].tolist() == [3.0, 3.2]


def test_queries_are_counted_in_the_bin_of_their_number_of_keys(smoke):
    settings, bins = smoke["descent"].settings, structure_aware_descent.BINS
    keys = np.full((11, 5, 2, 7), 20.0)  # every query of every member attends to all keys of the batch
    keys[:, structure_aware_descent.DESCENTS.index("sgd")] = 1.0
    keys[-1, :, 1] = np.inf  # a seed that has diverged is not counted
    counts = structure_aware_descent._key_counts(settings, keys)
    assert counts.shape == (len(settings.snapshots), 3, bins, 2)
    assert counts[0, :, 0, 0].tolist() == [7, 0, 0]
    assert counts[0, :, -1, 0].tolist() == [0, 7, 7]
    assert counts[-1].sum(axis=(0, 1)).tolist() == [21, 0]


def test_every_query_is_in_the_film_and_its_mean_in_the_curves(smoke):
    result = smoke["descent"]
    batch, seeds = result.settings.batch_size, len(result.settings.seeds)
    assert (result.key_counts.sum(2) == batch).all()
    np.testing.assert_allclose(result.key_shares(0).sum(-1), 1)
    low, high = result.settings.key_bins[:-1], result.settings.key_bins[1:]
    means = result.effective_keys[
        -1, 0, [structure_aware_descent.DESCENTS.index(n) for n in structure_aware_descent.FILM]
    ]
    counts = result.key_counts[0] / batch
    assert means.shape == (3, seeds)
    assert ((low @ counts <= means + 1e-6) & (means <= high @ counts + 1e-6)).all()


def test_a_step_size_outside_a_grid_was_not_tried(smoke):
    race = smoke["race"]
    size = race.settings.step_sizes("adam")[0]
    end, time, lost = race.at_step_size(0, "adam", size)
    assert (end, time, lost) == (race.tuned_end[0, 4, 0, 0], race.tuned_time[0, 4, 0, 0], race.tuned_lost[0, 4, 0, 0])
    assert race.at_step_size(0, "shampoo", size) is None


def test_tuning_takes_the_lowest_or_fastest_among_stable_step_sizes():
    end = np.array([[3.0, 2.0, 1.1], [3.0, 2.5, 1.0]])
    time = np.array([[np.inf, 90.0, 20.0], [np.inf, 80.0, 10.0]])
    lost = np.array([[0, 0, 1], [0, 0, 2]])
    assert optimizer_race._choose("lowest", end, time, lost) == (0, 1)
    assert optimizer_race._choose("fastest", end, time, lost) == (1, 1)
    assert optimizer_race._choose("fastest", end, np.full((2, 3), np.inf), lost) == (0, 1)


def test_a_short_race_says_nothing_and_a_full_one_names_all_claims(smoke):
    assert smoke["race"].measurements() == {}
    full = dataclasses.replace(smoke["race"], settings=dataclasses.replace(smoke["race"].settings, full=True))
    assert set(full.measurements()) == {"PC-F7", "PC-F7-never", "PC-F7-muon", "PC-F8", "PC-F8-adam"}


def test_figures_and_tables_draw_from_a_smoke_result(smoke):
    descent, parts, race = smoke["descent"], smoke["ablation"], smoke["race"]
    drawn = [
        *(figures.training_curves(descent, problem) for problem in (0, 1)),
        *(draw(descent) for draw in (figures.larger_problem, figures.mechanism, figures.population_gradient)),
        figures.ablation_by_step_size(parts),
        figures.conditioning_frame(parts, 30.0, 0.02),
        *(figures.keys_frame(descent, step) for step in descent.settings.snapshots),
        *(figures.race(race, problem) for problem in (0, 1)),
    ]
    for figure in drawn:
        assert all(ax.get_xlabel() or figure.get_supxlabel() for ax in figure.axes)
        figures.plt.close(figure)
    assert "<td>40</td>" in tables.loss_along_training(descent)._repr_html_()
    assert "2, κ = 10" in tables.distances(descent)._repr_html_()
    assert "Shampoo-like" in tables.without_regulariser(race)._repr_html_()
    assert "Muon-like + regulariser" in tables.race(race, 0)._repr_html_()
    assert "not tried" in tables.equal_step_size(race)._repr_html_()
    assert tables.keys_text(descent, 4).startswith("Step 4: keys per query")
    assert tables.conditioning_start(parts)["condition_number"] == 30.0
    assert "Condition number 30, step size 0.02" in tables.conditioning_text(parts, 30.0, 0.02)


def test_a_method_whose_median_diverges_keeps_its_label_and_is_named(smoke):
    strong = np.full_like(smoke["ablation"].strong, np.inf)
    strong[..., 0, :] = 2.0
    lost = dataclasses.replace(smoke["ablation"], strong=strong)
    figure = figures.conditioning_frame(lost, 30.0, 0.02)
    (ax,) = figure.axes
    labels = {figures.LOOKS[name].label for name in figures.PARTS}
    assert set(ax.get_legend_handles_labels()[1]) == labels
    named = {text.get_text() for text in ax.texts if text.get_text().endswith(": median diverges")}
    assert named == {f"{label}: median diverges" for label in labels - {"SGD"}}
    figures.plt.close(figure)


def test_no_two_looks_share_a_marker_a_line_or_a_label():
    looks = list(figures.LOOKS.values())
    for name in ("marker", "line", "label", "color"):
        assert len({str(getattr(look, name)) for look in looks}) == len(looks)


def outcomes(only):
    result = structure_aware_descent.run(SHORT, device="cpu")
    return {v.claim.id: v.outcome for v in ledger.check(result, only=only).verdicts}


MUTATIONS = {
    "penalty with the wrong sign": ("PC-F2b",),
    "gradient of the wrong sign": ("PC-F2b",),
    "start without a root of the covariance": ("PC-F1",),
}


@pytest.mark.slow
def test_honest_models_pass():
    assert "not reproduced" not in outcomes(["PC-F1", "PC-F2b"]).values()


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_wrong_model_turns_claims_red(mutation, monkeypatch):
    """Guards that the rules can fail: each mutation breaks the claims that depend on what it breaks."""
    penalty, gradient, start = training.penalty_gradient, training.loss_and_gradient, training.spectral_init

    def negated(*layers, covariance):
        return tuple(-g for g in penalty(*layers, covariance=covariance))

    def flipped(parameters, batch):
        losses, gradients = gradient(parameters, batch)
        return losses, {"value": gradients["value"], "key_query": -gradients["key_query"]}

    def shifted(x, y):
        value, key_query = start(x, y)
        return value @ training.sample_covariance(x), key_query

    patches = {
        "penalty with the wrong sign": ("penalty_gradient", negated),
        "gradient of the wrong sign": ("loss_and_gradient", flipped),
        "start without a root of the covariance": ("spectral_init", shifted),
    }
    monkeypatch.setattr(training, *patches[mutation])
    for claim in MUTATIONS[mutation]:
        assert outcomes([claim])[claim] == "not reproduced", claim


@pytest.mark.parametrize("closed_form", ["loss_and_gradient", "excess_loss_gradient", "penalty_gradient"])
def test_a_wrong_closed_form_turns_its_claim_red(closed_form, monkeypatch):
    honest = getattr(structure_aware_descent, closed_form)

    def doubled(*args, **kwargs):
        found = honest(*args, **kwargs)
        if isinstance(found[1], dict):
            return found[0], {name: 2 * g for name, g in found[1].items()}
        return tuple(2 * g for g in found)

    monkeypatch.setattr(structure_aware_descent, closed_form, doubled)
    errors = structure_aware_descent._gradient_errors(structure_aware_descent.Settings.smoke())
    which = ["loss_and_gradient", "excess_loss_gradient", "penalty_gradient"].index(closed_form)
    assert (errors > 1e-3).tolist() == [i == which for i in range(3)]


def test_the_table_of_factorisations_counts_the_diverged_and_finds_the_minimum():
    target = torch.eye(3).repeat(2, 1, 1)
    broken = torch.stack([torch.eye(3), torch.full((3, 3), float("nan"))])
    shown = tables.factorisations({"exact": (target, target), "one lost": (broken, target)}, target, 1.0)._repr_html_()
    assert shown.count("0 [0, 0]") == 2
    assert "0 of 2" in shown
    assert "1 of 2" in shown


def test_the_table_of_problems_gives_each_its_best_loss():
    shown = tables.problems(structure_aware_descent.Settings.book())._repr_html_()
    assert "<td>0.0016</td>" in shown
    assert "<td>0.04</td>" in shown
