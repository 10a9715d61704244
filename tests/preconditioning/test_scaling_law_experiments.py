"""The experiments on the scaling law: rules that can fail, surfaces, pictures, tables and exercises."""

from dataclasses import replace

import numpy as np
import pytest

import attnbook
from attnbook import ledger
from attnbook.preconditioning.law_constants import best_split, bias_coefficient, heavy_tail_exponent
from attnbook.preconditioning.scaling_law import experiments as own
from attnbook.preconditioning.scaling_law import figures, readings, tables

KINDS = {
    "finite_keys": own.FiniteKeys, "gradient_oracle": own.GradientOracle, "heavy_tails": own.HeavyTails,
    "minibatch_floor": own.MinibatchFloor, "scaling_law": own.ScalingLaw,
}  # fmt: skip


@pytest.fixture(scope="module")
def stored():
    return {name: kind.load_stored("book") for name, kind in KINDS.items()}


@pytest.fixture(scope="module")
def measured(stored):
    return {name: KINDS[name]().measurements(data) for name, data in stored.items()}


def bump(path):
    """A dip in the middle of training that is gone at the end."""
    return path * (1 - 0.3 * np.sin(np.pi * path.step / path.step.max()))


def flipped(curves):
    """The curves of the smallest batches in the place of those of the largest."""
    return curves.copy(data=curves.values[::-1])


def test_every_claim_of_the_chapter_is_measured_or_says_why_not(measured):
    mine = {c.id for c in ledger.claims() if c.chapter == "preconditioning/scaling_law"}
    found = {claim for claims in measured.values() for claim in claims}
    assert mine - found == {"PC-T2"}
    assert found <= mine


FAILING = [
    ("finite_keys", "PC-L8", lambda d: {"derivative_error": d.derivative_error + 1e-9}),
    ("finite_keys", "PC-L9", lambda d: {"weight_ratio": d.weight_ratio.where(d.weight != "itself", 1.1)}),
    ("finite_keys", "PC-L9-other", lambda d: {"weight_ratio": d.weight_ratio.where(d.weight != "another", 1.1)}),
    ("finite_keys", "PC-L10", lambda d: {"variance_ratio": 3 * d.variance_ratio}),
    ("finite_keys", "PC-L11", lambda d: {"shift_error": d.shift_error + 0.1}),
    ("finite_keys", "PC-L14", lambda d: {"covariance_error": d.covariance_error + 0.1}),
    ("finite_keys", "PC-L14-slow", lambda d: {"covariance_error": 0 * d.covariance_error}),
    ("finite_keys", "PC-S1", lambda d: {"terms": 0.9 * d.terms}),
    ("finite_keys", "PC-S1-512", lambda d: {"terms": d.terms - 0.01 / 3}),
    ("finite_keys", "PC-S1-perturbed", lambda d: {"terms": d.terms.where(d.term != "ratio bias", 0)}),
    ("finite_keys", "PC-T4", lambda d: {"gradient_bias": np.sqrt(d.gradient_bias)}),
    ("finite_keys", "PC-T4-constant", lambda d: {"gradient_coefficient": 2 * d.gradient_coefficient}),
    ("finite_keys", "PC-T5", lambda d: {"penalty_bias": np.sqrt(d.penalty_bias)}),
    ("scaling_law", "PC-L5", lambda d: {"distance": np.sqrt(d.distance)}),
    ("scaling_law", "PC-L5-regression", lambda d: {"regression": d.regression**2}),
    ("scaling_law", "PC-L5-excess", lambda d: {"start": d.start**2}),
    ("scaling_law", "PC-L5-constant", lambda d: {"start": 1.4 * d.start}),
    ("scaling_law", "PC-L5-larger-signal", lambda d: {"strong": 1.4 * d.strong}),
    ("scaling_law", "PC-T2b", lambda d: {"path": d.path**2}),
    ("scaling_law", "PC-X1", lambda d: {"path": d.path * (1 - d.step / d.step.max() / 2)}),
    ("scaling_law", "PC-X1-path", lambda d: {"path": bump(d.path)}),
    ("gradient_oracle", "PC-T2a", lambda d: {"predicted": np.sqrt(d.predicted)}),
    ("gradient_oracle", "PC-T2a-exact", lambda d: {"exact": np.sqrt(d.exact)}),
    ("gradient_oracle", "PC-T2a-exact-constant", lambda d: {"exact_limit": 1.1 * d.exact_limit}),
    ("gradient_oracle", "PC-T2a-fresh-slope", lambda d: {"beside": d.beside / d.measured_n}),
    ("gradient_oracle", "PC-T2-path", lambda d: {"pull": 3 * d.pull}),
    ("gradient_oracle", "PC-T2a-measured", lambda d: {"measured": d.measured * 2}),
    ("minibatch_floor", "PC-X2", lambda d: {"constant": d.constant.copy(data=d.constant.values[:, ::-1])}),
    ("minibatch_floor", "PC-X2-batch", lambda d: {"constant": flipped(d.constant)}),
    ("minibatch_floor", "PC-X2-bias", lambda d: {"halved": d.halved / 2}),
    ("heavy_tails", "PC-H1-heavy-far", lambda d: {"bias": d.bias / d.n**0.1}),
    ("heavy_tails", "PC-H1-transition-far", lambda d: {"bias": d.bias * d.n**0.1}),
    ("heavy_tails", "PC-H1", lambda d: {"bias": np.sqrt(d.bias)}),
    ("heavy_tails", "PC-H1-heavy", lambda d: {"bias": d.bias / np.sqrt(d.n)}),
    ("heavy_tails", "PC-H1-transition", lambda d: {"bias": np.sqrt(d.bias)}),
    ("heavy_tails", "PC-H1-transition-flat", lambda d: {"bias": d.bias / d.n**0.1}),
    ("heavy_tails", "PC-H1-constant", lambda d: {"bias": 1.2 * d.bias}),
]


def outcome(measurements, claim):
    return ledger.judge(ledger.claim(claim), measurements[claim]).outcome


@pytest.mark.parametrize(("name", "claim", "change"), FAILING, ids=[claim for _, claim, _ in FAILING])
def test_a_changed_result_turns_its_claim_red(name, claim, change, stored, measured):
    assert outcome(measured[name], claim) == "reproduced"
    changed = stored[name].assign(change(stored[name]))
    assert outcome(KINDS[name]().measurements(changed), claim) == "not reproduced"


def test_every_measured_claim_has_a_change_that_turns_it_red(measured):
    assert {claim for _, claim, _ in FAILING} == {claim for claims in measured.values() for claim in claims}


def test_the_simulation_agrees_with_the_quadrature(stored):
    tails = stored["heavy_tails"]
    exact, draws = tails.bias.isel(n=0), tails.simulated
    error = draws.std("seed", ddof=1) / draws.sizes["seed"] ** 0.5
    assert (abs(draws.mean("seed") - exact) < 5 * error + 0.02 * exact).all()


def test_along_a_budget_all_points_cost_the_same_and_the_best_is_the_smallest():
    counts, steps = np.array([10.0, 30.0, 90.0]), np.arange(8)
    surface = readings.Surface("made", counts, 1 / counts[:, None] + np.exp(-steps), 1.0, 1.0)
    path = readings.along_budget(surface, 2000.0)
    np.testing.assert_allclose(path.samples**2 * path.steps, 2000)
    assert path.excess[path.best] == path.excess.min()
    exact = 1 / path.samples + np.exp(-path.steps)
    np.testing.assert_allclose(path.excess, exact, rtol=0.2)
    assert path.penalty(1) == 1
    assert path.penalty(1 / path.steps[path.best]) >= 1
    assert np.isnan(path.penalty(100))
    with pytest.raises(ValueError, match="compute: expected a budget between"):
        readings.along_budget(surface, 1.0)


def test_late_decay_and_surfaces_are_those_of_the_results(stored):
    data, oracle = stored["scaling_law"], stored["gradient_oracle"]
    start, rate = readings.late_decay(data, oracle)
    end = np.median(oracle.surface[:, -1, -1])
    np.testing.assert_allclose(start * np.exp(-rate * oracle.cold_step.values[-1]), end)
    one, fresh = readings.surfaces(data, oracle)
    assert (one.power, fresh.power) == (1.0, 2.0)
    assert one.excess.shape == (len(one.samples), own.ScalingLaw().cold_steps + 1)
    assert fresh.excess.shape == (len(fresh.samples), own.GradientOracle().cold_steps + 1)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        (own.FiniteKeys, {"loss_keys": (32,)}, "loss_keys"),
        (own.FiniteKeys, {"penalty_keys": (50,)}, "penalty_keys"),
        (own.FiniteKeys, {"penalty_keys": (1, 50)}, "at least the dimension"),
        (own.ScalingLaw, {"trained_sets": (1,)}, "trained_sets"),
        (own.ScalingLaw, {"n_samples": (100, 50, 400, 800, 1600)}, "increasing"),
        (own.ScalingLaw, {"n_samples": (10, 20, 30, 40, 50)}, "at least 400"),
        (own.GradientOracle, {"predicted_samples": (400,)}, "predicted_samples"),
        (own.GradientOracle, {"measured_samples": (10, 20)}, "measured_samples"),
        (own.GradientOracle, {"kept": 0}, "kept"),
        (own.GradientOracle, {"exact_samples": (25, 50, 400)}, "exact_samples"),
        (own.HeavyTails, {"signals": (0.1, 0.2)}, "signals"),
        (own.HeavyTails, {"first": 9}, "first, last"),
        (own.HeavyTails, {"draws": 0}, "draws"),
        (own.HeavyTails, {"per_unit": 0}, "per_unit"),
        (own.MinibatchFloor, {"batch_sizes": (50, 100)}, "batch_sizes"),
        (own.MinibatchFloor, {"records": 7}, "records"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(kind, change, message):
    with pytest.raises(ValueError, match=message):
        replace(kind(), **change)


def test_pictures_and_tables_draw(stored):
    data, oracle, tails = stored["scaling_law"], stored["gradient_oracle"], stored["heavy_tails"]
    keys, batches = stored["finite_keys"], stored["minibatch_floor"]
    drawn = [
        figures.law(data, oracle),
        figures.oracle_ratio(oracle),
        figures.steps(data, oracle),
        figures.split_frame(data, oracle, 1e6),
        figures.coefficient(keys),
        figures.floors(batches),
        figures.slopes(tails),
        figures.tail_frame(tails, 0.7),
    ]
    assert all(ax.get_xlabel() or ax.get_ylabel() for figure in drawn for ax in figure.axes)
    assert "1 million pairs" in tables.split_text(data, oracle, 1e6)
    assert "not covered by the runs" in tables.split_text(data, oracle, 3e5)
    assert "infinite" in tables.tail_text(tails, 0.7)
    assert "n = 2⁷ to 2¹²" in tables.tail_text(tails, 0.7)
    equal = tables.alignment(data, oracle, {100: [1.0], 1600: [0.5, 0.7]})
    assert [row[2].text for row in equal.rows] == ["2.00", "1.60"]
    assert tables.cost(data).rows[0][0] == "335"
    for table in (
        tables.one_data_set(data),
        tables.oracle_counts(oracle),
        tables.floors(batches),
        tables.simulated(tails, (0.1, 0.7)),
        tables.growth(data, oracle, (1e6, 1e8)),
        tables.bounds(keys),
        tables.terms(keys),
        tables.splits(data, oracle, (1e6, 1e7)),
        tables.proof({"bias": [100.0, 120.0], "rate": [17.0]}),
        tables.approach(keys),
        tables.over_the_sum(data, oracle),
        tables.cost(data),
        tables.origins(data=data, oracle=oracle),
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
