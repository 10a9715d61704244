"""The experiments on the scaling law: rules that can fail, surfaces, pictures, tables and exercises."""

from dataclasses import replace

import numpy as np
import pytest

import attnbook
from attnbook import ledger
from attnbook.preconditioning.experiments import (
    compute_split,
    finite_keys,
    gradient_oracle,
    heavy_tails,
    minibatch_floor,
    scaling_law,
)
from attnbook.preconditioning.figures import scaling_law as figures
from attnbook.preconditioning.tables import scaling_law as tables
from attnbook.preconditioning.theory.scaling_law import best_split, bias_coefficient, heavy_tail_exponent

MODULES = {
    finite_keys.FiniteKeys, gradient_oracle.GradientOracle, heavy_tails.HeavyTails, minibatch_floor.MinibatchFloor,
    scaling_law.ScalingLaw,
}  # fmt: skip


@pytest.fixture(scope="module")
def stored():
    return {kind.experiment.split(".")[1]: kind.load_stored("book") for kind in MODULES}


def bump(records):
    """A dip in the middle of training that is gone at the end."""
    return 1 - 0.3 * np.sin(np.linspace(0, np.pi, records))


def outcome(result, claim):
    return next(v.outcome for v in ledger.check(result).verdicts if v.claim.id == claim)


def test_every_claim_of_the_chapter_is_measured_or_says_why_not(stored):
    mine = {c.id for c in ledger.claims() if c.chapter == "preconditioning/scaling_law"}
    measured = {claim for result in stored.values() for claim in result.measurements()}
    assert mine - measured == {"PC-T2"}
    assert measured <= mine


FAILING = [
    ("finite_keys", "PC-L8", lambda r: {"derivative_error": r.derivative_error + 1e-9}),
    ("finite_keys", "PC-L9", lambda r: {"self_ratio": 1.1 * r.self_ratio}),
    ("finite_keys", "PC-L9-other", lambda r: {"other_ratio": 1.1 * r.other_ratio}),
    ("finite_keys", "PC-L10", lambda r: {"variance_ratio": 3 * r.variance_ratio}),
    ("finite_keys", "PC-L11", lambda r: {"shift_error": r.shift_error + 0.1}),
    ("finite_keys", "PC-L14", lambda r: {"covariance_error": r.covariance_error + 0.1}),
    ("finite_keys", "PC-L14-slow", lambda r: {"covariance_error": 0 * r.covariance_error}),
    ("finite_keys", "PC-S1", lambda r: {"coefficient": 0.9 * r.coefficient}),
    ("finite_keys", "PC-S1-512", lambda r: {"coefficient": r.coefficient - 0.01}),
    ("finite_keys", "PC-S1-perturbed", lambda r: {"coefficient": r.coefficient - r.terms[..., 1]}),
    ("finite_keys", "PC-T4", lambda r: {"gradient_bias": np.sqrt(r.gradient_bias)}),
    ("finite_keys", "PC-T4-constant", lambda r: {"gradient_coefficient": 2 * r.gradient_coefficient}),
    ("finite_keys", "PC-T5", lambda r: {"penalty_bias": np.sqrt(r.penalty_bias)}),
    ("scaling_law", "PC-L5", lambda r: {"distance": np.sqrt(r.distance)}),
    ("scaling_law", "PC-L5-regression", lambda r: {"regression": r.regression**2}),
    ("scaling_law", "PC-L5-excess", lambda r: {"start": r.start**2}),
    ("scaling_law", "PC-L5-constant", lambda r: {"start": 1.4 * r.start}),
    ("scaling_law", "PC-L5-larger-signal", lambda r: {"strong": 1.4 * r.strong}),
    ("scaling_law", "PC-T2b", lambda r: {"path": r.path**2}),
    ("scaling_law", "PC-X1", lambda r: {"path": r.path * np.linspace(1, 0.5, r.path.shape[-1])}),
    ("scaling_law", "PC-X1-path", lambda r: {"path": r.path * bump(r.path.shape[-1])}),
    ("gradient_oracle", "PC-T2a", lambda r: {"predicted": np.sqrt(r.predicted)}),
    ("gradient_oracle", "PC-T2a-exact", lambda r: {"exact": np.sqrt(r.exact)}),
    ("gradient_oracle", "PC-T2a-exact-constant", lambda r: {"exact_constant": 1.1 * r.exact_constant}),
    ("gradient_oracle", "PC-T2a-fresh-slope", lambda r: {"beside": r.beside / np.array(r.settings.measured_samples)}),
    ("gradient_oracle", "PC-T2-path", lambda r: {"pull": 3 * r.pull}),
    ("gradient_oracle", "PC-T2a-measured", lambda r: {"measured": r.measured * 2}),
    ("minibatch_floor", "PC-X2", lambda r: {"constant": r.constant[:, ::-1]}),
    ("minibatch_floor", "PC-X2-batch", lambda r: {"constant": r.constant[::-1]}),
    ("minibatch_floor", "PC-X2-bias", lambda r: {"halved": r.halved / 2}),
    ("heavy_tails", "PC-H1-heavy-far", lambda r: {"bias": r.bias / r.n_samples**0.1}),
    ("heavy_tails", "PC-H1-transition-far", lambda r: {"bias": r.bias * r.n_samples**0.1}),
    ("heavy_tails", "PC-H1", lambda r: {"bias": np.sqrt(r.bias)}),
    ("heavy_tails", "PC-H1-heavy", lambda r: {"bias": r.bias / np.sqrt(r.n_samples)}),
    ("heavy_tails", "PC-H1-transition", lambda r: {"bias": np.sqrt(r.bias)}),
    ("heavy_tails", "PC-H1-transition-flat", lambda r: {"bias": r.bias / r.n_samples**0.1}),
    ("heavy_tails", "PC-H1-constant", lambda r: {"bias": 1.2 * r.bias}),
]


@pytest.mark.parametrize(("name", "claim", "change"), FAILING, ids=[claim for _, claim, _ in FAILING])
def test_a_changed_result_turns_its_claim_red(name, claim, change, stored):
    assert outcome(stored[name], claim) == "reproduced"
    assert outcome(replace(stored[name], **change(stored[name])), claim) == "not reproduced"


def test_every_measured_claim_has_a_change_that_turns_it_red(stored):
    measured = {claim for result in stored.values() for claim in result.measurements()}
    assert {claim for _, claim, _ in FAILING} == measured


def test_the_simulation_agrees_with_the_quadrature(stored):
    tails = stored["heavy_tails"]
    spread = tails.simulated.std(axis=0, ddof=1) / len(tails.settings.simulated) ** 0.5
    assert (np.abs(tails.simulated.mean(axis=0) - tails.bias[:, 0]) < 5 * spread + 0.02 * tails.bias[:, 0]).all()


def test_along_a_budget_all_points_cost_the_same_and_the_best_is_the_smallest():
    counts, steps = np.array([10.0, 30.0, 90.0]), np.arange(8)
    surface = 1 / counts[:, None] + np.exp(-steps)
    path = compute_split.along_budget(counts, surface, 2000.0)
    np.testing.assert_allclose(path.samples**2 * path.steps, 2000)
    assert path.excess[path.best] == path.excess.min()
    exact = 1 / path.samples + np.exp(-path.steps)
    np.testing.assert_allclose(path.excess, exact, rtol=0.2)
    assert path.penalty(1) == 1
    assert path.penalty(1 / path.steps[path.best]) >= 1
    assert np.isnan(path.penalty(100))
    with pytest.raises(ValueError, match="compute: expected a budget between"):
        compute_split.along_budget(counts, surface, 1.0)


def test_late_decay_and_surfaces_are_those_of_the_results(stored):
    data, oracle = stored["scaling_law"], stored["gradient_oracle"]
    start, rate = compute_split.late_decay(data, oracle)
    end = np.median(oracle.cold[:, -1], axis=0)[-1]
    np.testing.assert_allclose(start * np.exp(-rate * oracle.settings.cold_steps), end)
    one, fresh = compute_split.surfaces(data, oracle)
    assert (one.power, fresh.power) == (1.0, 2.0)
    assert one.excess.shape == (len(one.samples), data.settings.cold_steps + 1)
    assert fresh.excess.shape == (len(fresh.samples), oracle.settings.cold_steps + 1)


@pytest.mark.parametrize(
    ("module", "change", "message"),
    [
        (finite_keys, {"loss_keys": (32,)}, "loss_keys"),
        (finite_keys, {"penalty_keys": (50,)}, "penalty_keys"),
        (finite_keys, {"penalty_keys": (1, 50)}, "at least the dimension"),
        (scaling_law, {"trained_sets": (1,)}, "trained_sets"),
        (scaling_law, {"n_samples": (100, 50, 400, 800, 1600)}, "increasing"),
        (scaling_law, {"n_samples": (10, 20, 30, 40, 50)}, "at least 400"),
        (gradient_oracle, {"predicted_samples": (400,)}, "predicted_samples"),
        (gradient_oracle, {"measured_samples": (10, 20)}, "measured_samples"),
        (gradient_oracle, {"kept": 0}, "kept"),
        (heavy_tails, {"signals": (0.1, 0.2)}, "signals"),
        (heavy_tails, {"first": 9}, "first, last"),
        (heavy_tails, {"draws": 1}, "draws"),
        (heavy_tails, {"per_unit": 0}, "per_unit"),
        (gradient_oracle, {"exact_samples": (25, 50, 400)}, "exact_samples"),
        (minibatch_floor, {"batch_sizes": (50, 100)}, "batch_sizes"),
        (minibatch_floor, {"records": 7}, "records"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(module, change, message):
    with pytest.raises(ValueError, match=message):
        replace(module.Settings.book(), **change)


def test_pictures_and_tables_draw(stored):
    import matplotlib.pyplot as plt

    data, oracle, tails = stored["scaling_law"], stored["gradient_oracle"], stored["heavy_tails"]
    drawn = [
        figures.law(data, oracle),
        figures.oracle_ratio(oracle),
        figures.steps(data, oracle),
        figures.split_frame(data, oracle, 1e6),
        figures.coefficient(stored["finite_keys"]),
        figures.floors(stored["minibatch_floor"]),
        figures.slopes(tails),
        figures.tail_frame(tails, 0.7),
    ]
    assert all(ax.get_xlabel() or ax.get_ylabel() for figure in drawn for ax in figure.axes)
    plt.close("all")
    assert "1 million pairs" in tables.split_text(data, oracle, 1e6)
    assert "not covered by the runs" in tables.split_text(data, oracle, 3e5)
    assert "infinite" in tables.tail_text(tails, 0.7)
    assert "n = 2⁷ to 2¹²" in tables.tail_text(tails, 0.7)
    equal = tables.alignment(data, oracle, {100: [1.0], 1600: [0.5, 0.7]})
    assert [row[2].text for row in equal.rows] == ["2.00", "1.60"]
    for table in (
        tables.one_data_set(data),
        tables.oracle_counts(oracle),
        tables.floors(stored["minibatch_floor"]),
        tables.simulated(tails, (0.1, 0.7)),
        tables.growth(data, oracle, (1e6, 1e8)),
        tables.bounds(stored["finite_keys"]),
        tables.terms(stored["finite_keys"]),
        tables.splits(data, oracle, (1e6, 1e7)),
        tables.proof({"bias": [100.0, 120.0], "rate": [17.0]}),
        tables.approach(stored["finite_keys"]),
        tables.over_the_sum(data, oracle),
        equal,
        tables.numbers({"one": "1.0"}, "A number."),
    ):
        assert all(len(row) == len(table.columns) for row in table.rows)


def coefficient(value, key_query, *, forget=""):
    import torch

    if forget == "transpose":
        one, product = np.eye(len(key_query)), value @ key_query
        weight = np.linalg.inv(one - 2 * key_query @ key_query.T)
        return np.linalg.det(weight) ** 0.5 / 2 * ((value**2).sum() + np.trace(product.T @ product @ weight))
    right = float(
        bias_coefficient(*map(torch.as_tensor, (value, key_query)), target=torch.as_tensor(value @ key_query))
    )
    return 2 * right if forget == "half" else right


def gamma(s, *, forget=""):
    if forget == "frozen":
        return max(0.0, min(1.0, 1 / 3 + 1 / (3 * s)))
    return -heavy_tail_exponent(s) if forget == "sign" else heavy_tail_exponent(s)


def steps(*budget, forget=""):
    found = best_split(*budget)
    return found[0] if forget == "samples" else 3 * found[1] if forget == "best" else found[1]


ANSWERS = {"PC-7": coefficient, "PC-8": gamma, "PC-9": steps}


@pytest.mark.parametrize("exercise", ANSWERS)
def test_right_answers_pass(exercise):
    assert attnbook.check(exercise, ANSWERS[exercise]).right


@pytest.mark.parametrize(
    ("exercise", "forget", "message"),
    [
        ("PC-7", "transpose", "not V V"),
        ("PC-7", "half", "factor 1/2"),
        ("PC-8", "sign", "sign"),
        ("PC-8", "frozen", "beyond 2/3"),
        ("PC-9", "samples", "number of samples"),
        ("PC-9", "best", "can be reached"),
    ],
)
def test_wrong_answers_get_the_likely_mistake(exercise, forget, message):
    feedback = attnbook.check(exercise, lambda *a: ANSWERS[exercise](*a, forget=forget))
    assert not feedback.right
    assert message in repr(feedback)
