"""The experiments on the scaling law: rules that can fail, pictures, tables, settings and exercises."""

import numpy as np
import pytest
import red

import attnbook
from attnbook import ledger
from attnbook.preconditioning.law_constants import heavy_tail_exponent
from attnbook.preconditioning.scaling_law import experiments as own
from attnbook.preconditioning.scaling_law import figures

KINDS = {
    "finite_keys": own.FiniteKeys, "gradient_oracle": own.GradientOracle, "heavy_tails": own.HeavyTails,
    "minibatch_floor": own.MinibatchFloor, "scaling_law": own.ScalingLaw,
}  # fmt: skip


@pytest.fixture(scope="module")
def stored():
    return {name: kind.load_stored("book") for name, kind in KINDS.items()}


def only(name, dimension, label, change):
    """Change one entry of one array along one of its dimensions."""
    return lambda d: d.assign({name: d[name].where(d[dimension] != label, change(d[name]))})


RED = {
    "finite_keys": {
        "PC-L8": lambda d: d.assign(derivative_error=d.derivative_error + 1e-9),
        "PC-L9": only("weight_ratio", "weight", "another", lambda ratio: 1.1 + 0 * ratio),
        "PC-L10": only("variance_ratio", "weight", "another", lambda ratio: 3 * ratio),
        "PC-L11": lambda d: d.assign(shift_ratio=3 * d.shift_ratio),
        "PC-L14": only("variance", "statistic", "s", np.sqrt),
        "PC-L15": only("squared_bias", "statistic", "s s'", np.sqrt),
        "PC-L19": only("variance", "statistic", "s s'", np.sqrt),
        "PC-L20": only("squared_bias", "statistic", "keys", np.sqrt),
        "PC-L23": only("variance", "statistic", "keys", np.sqrt),
        "PC-S1": lambda d: d.assign(coefficient=0.9 * d.coefficient),
        "PC-T4": only("gradient_bias", "point", "away from it", np.sqrt),
        "PC-T5": lambda d: d.assign(penalty_bias=np.sqrt(d.penalty_bias)),
    },
    "scaling_law": {
        "PC-L3": lambda d: d.assign(near=0.9 * d.near),
        "PC-L5": lambda d: d.assign(distance=np.sqrt(d.distance)),
        "PC-L6": lambda d: d.assign(regression=d.regression**2),
        "PC-L5-constant": lambda d: d.assign(start=1.4 * d.start),
        "PC-T2b": lambda d: d.assign(path=d.path * (1 - 0.3 * np.sin(np.pi * d.step / d.step.max()))),
    },
    "gradient_oracle": {
        "PC-T2": lambda d: d.assign(surface=d.surface.where(np.isinf(d.surface_n), 3 * d.surface**0.9)),
        "PC-T2a": lambda d: d.assign(measured=2 * d.measured),
        "PC-T2-remark": lambda d: d.assign(exact_regularised=np.sqrt(d.exact_regularised)),
        "PC-T3": lambda d: d.assign(pull=3 * d.pull),
    },
    "minibatch_floor": {"PC-X2": lambda d: d.assign(constant=d.constant.copy(data=d.constant.values[::-1]))},
    "heavy_tails": {"PC-H1": lambda d: d.assign(bias=d.bias * d.n**0.1)},
}
PARTS = {
    "finite_keys": [
        ("PC-L9", only("weight_ratio", "weight", "itself", lambda ratio: 1.1 + 0 * ratio)),
        ("PC-L10", only("variance_ratio", "weight", "itself", lambda ratio: 30 * ratio)),
        ("PC-L11", only("squared_bias", "statistic", "s", np.sqrt)),
        ("PC-S1", lambda d: d.assign(gradient_coefficient=2 * d.gradient_coefficient)),
        ("PC-S1", lambda d: d.assign(shift_error=d.shift_error + 0.1)),
        ("PC-S1", lambda d: d.assign(covariance_error=d.covariance_error + 0.1)),
        ("PC-S1", only("loss_bias", "point", "away from it", lambda bias: 0.8 * bias)),
        ("PC-T4", only("gradient_bias", "point", "at an optimum", np.sqrt)),
    ],
    "scaling_law": [
        ("PC-L3", lambda d: d.assign(inverse=d.inverse**2)),
        ("PC-T2b", lambda d: d.assign(path=d.path * (1 - d.step / d.step.max() / 2))),
        ("PC-T2b", lambda d: d.assign(path=d.path * (1 + d.step / d.step.max() / 2))),
        ("PC-T2b", lambda d: d.assign(start=d.start**2)),
        ("PC-T2b", lambda d: d.assign(path=d.path**2)),
    ],
    "gradient_oracle": [
        ("PC-T2", lambda d: d.assign(surface=np.sqrt(d.surface))),
        ("PC-T2a", lambda d: d.assign(measured=d.measured / 2)),
        ("PC-T2a", lambda d: d.assign(exact=np.sqrt(d.exact))),
        ("PC-T2a", lambda d: d.assign(exact_limit=1.1 * d.exact_limit)),
        ("PC-T2a", lambda d: d.assign(expansion=2 * d.expansion)),
    ],
    "minibatch_floor": [
        ("PC-X2", lambda d: d.assign(constant=d.constant.copy(data=d.constant.values[:, ::-1]))),
        ("PC-X2", lambda d: d.assign(decayed=d.decayed / 2)),
    ],
    "heavy_tails": [
        ("PC-H1", lambda d: d.assign(bias=np.sqrt(d.bias))),
        ("PC-H1", lambda d: d.assign(bias=d.bias / d.n**0.1)),
    ],
}  # other values of the same rules


@pytest.mark.parametrize("name", KINDS)
def test_every_measured_claim_of_the_chapter_can_be_turned_red(name, stored):
    red.assert_every_claim_turns(KINDS[name]().measurements, stored[name], RED[name], PARTS[name])


def test_every_claim_of_the_chapter_is_measured_or_says_why_not():
    mine = {c.id: c for c in ledger.claims() if c.chapter == "preconditioning/scaling_law"}
    found = {claim for claims in RED.values() for claim in claims}
    assert set(mine) - found == {"PC-L4", "PC-L12"} == {i for i, c in mine.items() if c.untestable}
    assert sum(c.source == "book" for c in mine.values()) <= 5


def test_at_feasible_n_strong_signals_and_those_next_to_the_threshold_look_as_the_chapter_says(stored):
    tails = stored["heavy_tails"]
    near = own.bias_slopes(tails)[0]
    strong = near.sel(signal=[0.7, 1.0, 1.5])
    assert (abs(strong + heavy_tail_exponent(strong.signal.values)) <= 0.12).all()
    smeared = near.sel(signal=[0.4, 0.5])
    assert ((smeared >= -0.95) & (smeared <= -0.7)).all()


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        (own.ScalingLaw, {"data_sets": ((400, 1, 1),)}, "data_sets"),
        (own.ScalingLaw, {"data_sets": ((100, 1, 1), (200, 1, 1))}, "up to 400"),
        (own.ScalingLaw, {"data_sets": ((100, 1, 1), (400, 0, 1))}, "start_sets"),
        (own.GradientOracle, {"kept": 0}, "kept"),
        (own.HeavyTails, {"last": 13}, "last"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(kind, change, message):
    with pytest.raises(ValueError, match=message):
        kind.at("book", **change)


def test_pictures_and_tables_draw(stored):
    data, oracle, keys = stored["scaling_law"], stored["gradient_oracle"], stored["finite_keys"]
    drawn = [
        figures.law(data, oracle),
        figures.steps_frame(data, oracle, 8),
        figures.approach(keys, oracle),
        figures.floors(stored["minibatch_floor"]),
        figures.slopes(stored["heavy_tails"]),
    ]
    assert all(ax.get_xlabel() and ax.get_ylabel() for figure in drawn for ax in figure.axes)
    first, last = (figures.steps_text(data, oracle, steps) for steps in (0, 36))
    assert first != last
    for table in (figures.bounds(keys), figures.one_data_set(data)):
        assert all(len(row) == len(table.columns) for row in table.rows)


def gamma(s, *, forget=""):
    if forget == "frozen":
        return max(0.0, min(1.0, 1 / 3 + 1 / (3 * s)))
    return -heavy_tail_exponent(s) if forget == "sign" else heavy_tail_exponent(s)


def steps(bias, power, start, rate, compute, *, forget=""):
    t = np.geomspace(0.1, 1e4, 200_001)
    best = t[np.argmin(bias * (compute / t) ** (-power / 2) + start * np.exp(-rate * t))]
    return {"samples": (compute / best) ** 0.5, "best": 3 * best}.get(forget, best)


ANSWERS = {"PC-8": gamma, "PC-9": steps}


@pytest.mark.parametrize("exercise", ANSWERS)
def test_right_answers_pass(exercise):
    assert attnbook.check(exercise, ANSWERS[exercise]).right


@pytest.mark.parametrize(
    ("exercise", "forget", "message"),
    [
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
