"""The experiments on training data: what is read off the curves, and changes and wrong models that turn claims red."""

import numpy as np
import pytest
import red
import xarray as xr

from attnbook.preconditioning import training
from attnbook.preconditioning.curves import first_time
from attnbook.preconditioning.structure_aware_descent import figures, race
from attnbook.preconditioning.structure_aware_descent.experiments import (
    Ablation,
    OptimizerRace,
    StructureAwareDescent,
    at_best_size,
)

KINDS = {"descent": StructureAwareDescent, "ablation": Ablation, "race": OptimizerRace}


@pytest.fixture(scope="module")
def smoke(smoke_results):
    return {name: smoke_results[kind.id] for name, kind in KINDS.items()}


def test_a_seed_that_never_arrives_counts_as_infinite():
    ratios, steps = np.array([[9.0, 9.0, np.inf], [1.25, 1.3, np.inf], [1.4, 1.26, np.inf]]), np.array([0.0, 7.0, 14.0])
    assert first_time(steps, ratios).tolist() == [7.0, np.inf, np.inf]
    named = xr.DataArray(ratios, dims=("record", "seed")), xr.DataArray(steps, dims="record")
    assert race.near_at(*named).values.tolist() == [7.0, np.inf, np.inf]


@pytest.mark.parametrize(
    ("kind", "change", "name"),
    [
        (StructureAwareDescent, {"noise": (0.1,)}, "noise"),
        (StructureAwareDescent, {"records": 7}, "records"),
        (Ablation, {"records": 7}, "records"),
        (Ablation, {"hard": 7.0}, "hard"),
        (OptimizerRace, {"tuning_seeds": (0,)}, "tuning_seeds"),
        (OptimizerRace, {"n_step_sizes": 0}, "n_step_sizes"),
    ],
)
def test_impossible_settings_are_refused_by_name(kind, change, name):
    with pytest.raises(ValueError, match=name):
        kind.at("book", **change)


def test_seeds_trained_in_chunks_give_the_same_curves(smoke):
    whole = StructureAwareDescent.at("smoke", chunk=2).run(device="cpu")
    np.testing.assert_allclose(whole.excess_loss, smoke["descent"].excess_loss, rtol=1e-3)


def test_the_best_step_size_is_chosen_by_the_median_and_divergence_counts():
    curves = np.ones((11, 4, 2, 3, 2))
    curves[-1, :, 0, 0] = np.array([[5.0, 5.0], [3.0, 3.2], [1.0, np.inf], [4.0, 4.0]])
    kept = at_best_size(xr.DataArray(curves, dims=("record", "size", "penalty", "kind", "seed")))
    assert kept[-1, 0, 0].values.tolist() == [3.0, 3.2]


def test_a_star_marks_what_is_best_at_the_largest_step(smoke):
    parts = smoke["ablation"].copy(deep=True)
    for name in ("weak", "strong"):
        parts[name][:] = 2.0
    parts["weak"][:, :, -1, 0, 0] = 1.5
    shown = figures.ablation_table(parts)._repr_html_()
    assert shown.count("1.5*") == parts.sizes["problem"]
    assert "2*" not in shown


def test_the_step_that_a_claim_names_is_the_first_record_from_there():
    run = StructureAwareDescent.at("book", steps=(40, 40), records=10)
    assert [run.position(0, step) for step in (0, 4, 5, 40, 300)] == [0, 1, 2, 10, 10]


def test_tuning_takes_the_lowest_or_fastest_among_stable_step_sizes():
    end = np.array([[3.0, 2.0, 1.1], [3.0, 2.5, 1.0]])
    time = np.array([[np.inf, 90.0, 20.0], [np.inf, 80.0, 10.0]])
    lost = np.array([[0, 0, 1], [0, 0, 2]])
    assert race.choose("lowest", end, time, lost) == (0, 1)
    assert race.choose("fastest", end, time, lost) == (1, 1)
    assert race.choose("fastest", end, np.full((2, 3), np.inf), lost) == (0, 1)


def test_a_short_race_says_nothing_and_a_full_one_names_its_claims(smoke):
    assert OptimizerRace.measurements(smoke["race"]) == {}
    full = red.named(OptimizerRace.at("smoke", long=True), smoke["race"])
    assert set(OptimizerRace.measurements(full)) == {"PC-F7", "PC-F8"}


def put(name, change, **where):
    """A change of one part of an array, chosen by its labels."""

    def changed(data):
        copied = data.copy(deep=True)
        copied[name].loc[where] = change(copied[name].loc[where])
        return copied

    return changed


def times(factor):
    return lambda values: values * factor


RED = {
    "PC-F1": put("excess_loss", times(9999), problem=1, descent="spectral", record=50),
    "PC-F1-sgd-start": put("excess_loss", times(1e-4), problem=1, descent="sgd", record=0),
    "PC-F1-sgd-end": put("excess_loss", times(0), problem=1, descent="sgd", record=100, seed=[1, 3, 5]),
    "PC-F1p-samples-start": put("excess_loss", times(9), problem=1, descent="spectral"),
    "PC-F2": put("excess_loss", times(9), problem=1, descent="algorithm_1", record=100, seed=[0, 1, 2, 3]),
    "PC-F10": put("effective_keys", times(9), descent="sgd", problem=1, record=100),
    "PC-F11": put("population", times(99), trained="algorithm_1", record=100),
    "PC-F3": put("weak", xr.ones_like, problem=3.0, penalty=0.0, kind="left", record=50),
    "PC-F4": put("weak", xr.ones_like, problem=10.0, penalty=1.0, kind="left", record=50),
    "PC-F6": put("spectral", times(2), spectral_condition=10.0, penalty=0.0, kind="none", record=7),
    "PC-F7": put("curves", xr.ones_like, aim="fastest", problem=1, racer="algorithm_1"),
    "PC-F8": put("curves", times(2), aim="lowest", problem=1, racer="algorithm_1", record=75),
}
ALSO_RED = {  # a second way to fail
    "PC-F1-sgd-end": put("excess_loss", xr.zeros_like, problem=0, descent="sgd", record=100),
    "PC-F10": put("imbalance", times(0.1), descent="sgd", problem=1, record=100),
    "PC-F11": put("population", times(0), trained="unregularised", record=100),
    "PC-F3": put("weak", times(2), problem=3.0, penalty=1.0, kind="none", record=50),
    "PC-F4": put("strong", xr.ones_like, condition=30.0, penalty=1.0, kind="left", record=50),
}
STORED = [("descent", "book"), ("descent", "full"), ("ablation", "book"), ("ablation", "full"), ("race", "full")]


@pytest.mark.parametrize(("name", "scale"), STORED)
def test_a_changed_result_turns_each_verdict(name, scale):
    ready, data = KINDS[name].at(scale), KINDS[name].load_stored(scale)
    own = {claim: RED[claim] for claim in ready.measurements(data)}  # each size has its own
    others = [(claim, change) for claim, change in ALSO_RED.items() if claim in own]
    red.assert_every_claim_turns(ready.measurements, data, own, others)


def test_the_pictures_draw_from_a_smoke_result(smoke):
    descent, parts = smoke["descent"], smoke["ablation"]
    drawn = [
        *(figures.training_curves(descent, problem) for problem in (0, 1)),
        figures.mechanism(descent),
        figures.conditioning_frame(parts, 30.0, 0.02),
        figures.race(smoke["race"]),
    ]
    for figure in drawn:
        assert all(ax.get_xlabel() or figure.get_supxlabel() for ax in figure.axes)
        figures.plt.close(figure)
    assert "regulariser only" in figures.ablation_table(parts)._repr_html_()
    assert "Condition number 30, step size 0.02" in figures.conditioning_text(parts, 30.0, 0.02)


def test_a_method_whose_median_diverges_keeps_its_label_and_is_named(smoke):
    lost = smoke["ablation"].copy(deep=True)
    lost["strong"][:] = np.inf
    lost["strong"].loc[{"penalty": 0, "kind": "none"}] = 2.0
    figure = figures.conditioning_frame(lost, 30.0, 0.02)
    labels = {figures.LOOKS[name].label for name in figures.PARTS.values()}
    assert set(figure.axes[0].get_legend_handles_labels()[1]) == labels
    named = {text.get_text() for text in figure.axes[0].texts if text.get_text().endswith(": median diverges")}
    assert named == {f"{label}: median diverges" for label in labels - {"SGD"}}
    assert figures.conditioning_text(lost, 30.0, 0.02).count("diverged") == 5
    figures.plt.close(figure)


def test_no_two_looks_share_a_marker_a_line_or_a_label():
    looks = list(figures.LOOKS.values())
    for name in ("marker", "line", "label", "color"):
        assert len({str(getattr(look, name)) for look in looks}) == len(looks)


# The second problem is the easier one with condition number 3, where few steps are enough.
SHORT = StructureAwareDescent.at(
    condition_numbers=(3.0, 3.0), step_sizes=(0.05, 0.04), steps=(20, 500), records=20, seeds=(0, 1), chunk=2
)


def ends_near():
    """Whether the spectral start is near-optimal, and whether Algorithm 1 comes there from a random one."""
    measured = SHORT.measurements(SHORT.run(device="cpu"))
    return measured["PC-F1"].values["start_2"] < 1.1, measured["PC-F2"].values["end_2"] < 1.25


MUTATIONS = {
    "none": (True, True),
    "penalty with the wrong sign": (True, False),
    "gradient of the wrong sign": (True, False),
    "start without a root of the covariance": (False, True),
}


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_wrong_model_does_not_arrive(mutation, monkeypatch):
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
    if mutation in patches:
        monkeypatch.setattr(training, *patches[mutation])
    assert ends_near() == MUTATIONS[mutation]
