"""The experiments on generalisation: rules that can fail, wrong models, pictures, tables, settings and exercises."""

import dataclasses
import math

import numpy as np
import pytest
import red

import attnbook
from attnbook import ledger
from attnbook.multi_head import generalisation_bounds as theory
from attnbook.multi_head import leave_one_out
from attnbook.multi_head.generalisation import experiments as own
from attnbook.multi_head.generalisation import figures, left_out
from attnbook.multi_head.training_bounds.experiments import TrainingBounds

KINDS = {
    "generalisation_gap": own.GeneralisationGap, "stability": own.Stability, "inside_theorem_2": own.InsideTheorem2,
}  # fmt: skip
FEW = {"seeds": (0, 1), "sizes": (5, 7), "inside_steps": 20, "test_samples": 200}


@pytest.fixture(scope="module")
def stored():
    return {name: kind.load_stored("book") for name, kind in KINDS.items()}


def scaled(**factors):
    """Multiply some arrays."""
    return lambda d: d.assign({name: factor * d[name] for name, factor in factors.items()})


def backwards(*names, axis="n"):
    """Turn some arrays around along an axis; by their values, as xarray would align coordinates."""
    turned = {axis: slice(None, None, -1)}
    return lambda d: d.assign({name: d[name].copy(data=d[name].isel(turned).values) for name in names})


RED = {
    "generalisation_gap": {
        "MH-T2.1": backwards("test_loss", "train_loss"),
        "MH-T2.3": backwards("test_loss"),
        "MH-T2.2": scaled(margin=100),
        "MH-C4": scaled(test_loss=1000),
    },
    "stability": {
        "MH-ST.1": backwards("distance"),
        "MH-ST.2": scaled(recursion=2),
        "MH-ST.2-unrolled": backwards("log_envelope", axis="heads"),
        "MH-ST.2-expansive": scaled(expansive=10),
        "MH-ST.3": lambda d: d.assign(printed=d.corrected),
        "MH-ST.4": scaled(lipschitz=0.01),
        "MH-ST.5": scaled(stability_bound=0.01),
        "MH-LOO": scaled(left_out_loss=2),
    },
    "inside_theorem_2": {"MH-T2.2-target": scaled(condition=2)},
}
PARTS = {
    "generalisation_gap": [],
    "stability": [
        ("MH-ST.2", scaled(inside_recursion=2)),
        ("MH-ST.2", scaled(inside_smoothness=10)),
        ("MH-ST.2-unrolled", scaled(forcing_used=3)),
        ("MH-ST.2-unrolled", scaled(log_envelope=3)),
        ("MH-ST.2-unrolled", scaled(log_envelope=0.3)),
        ("MH-ST.2-expansive", scaled(inside_expansive=1.01)),
        ("MH-ST.3", scaled(corrected=1.1)),
        ("MH-ST.5", scaled(inside_stability_bound=0.01)),
        ("MH-ST.5", scaled(inside_target=1000)),
        ("MH-LOO", lambda d: d.assign(left_out_loss=d.train_loss)),
        ("MH-LOO", scaled(lipschitz=0.1)),
    ],
    "inside_theorem_2": [
        ("MH-T2.2-target", lambda d: d.assign(test_loss=d.test_loss + 1)),
        ("MH-T2.2-target", scaled(theorem_2=5)),
    ],
}  # other values of the same rules


@pytest.mark.parametrize("name", KINDS)
def test_every_measured_claim_of_the_chapter_can_be_turned_red(name, stored):
    red.assert_every_claim_turns(KINDS[name]().measurements, stored[name], RED[name], PARTS[name])


def test_every_claim_of_the_chapter_is_measured():
    mine = {c.id: c for c in ledger.claims() if c.chapter == "multi_head/generalisation"}
    targets = {"MH-A2", "MH-P7", "MH-C3"}  # measured with the training of the chapter before
    assert set(mine) == {claim for claims in RED.values() for claim in claims} | targets
    assert {claim.experiment for claim in mine.values() if claim.id in targets} == {TrainingBounds.id}
    assert sum(c.source == "book" for c in mine.values()) == 2


def outcomes(experiment):
    measured = experiment.measurements(experiment.run(device="cpu"))
    return {claim: ledger.judge(ledger.claim(claim), m).outcome for claim, m in measured.items()}


def test_networks_that_leave_out_another_sample_turn_the_left_out_gap_red(monkeypatch):
    right = leave_one_out.leave_one_out_weights
    monkeypatch.setattr(leave_one_out, "leave_one_out_weights", lambda n: right(n)[[0, *range(2, n + 1), 1]])
    assert outcomes(own.Stability(**FEW))["MH-LOO"] == "not reproduced"


def test_a_recursion_without_most_of_its_last_term_turns_red(monkeypatch):
    right = left_out.followed
    monkeypatch.setattr(
        left_out, "followed", lambda *a: dataclasses.replace(one := right(*a), forcing=0.1 * one.forcing)
    )
    verdicts = outcomes(own.Stability(**FEW))
    assert verdicts["MH-ST.2"] == verdicts["MH-ST.2-unrolled"] == "not reproduced"


def test_factors_a_tenth_too_small_turn_the_step_red(monkeypatch):
    """Inside its conditions eq. (20) is nearly attained."""
    right = theory.recursion_factors
    monkeypatch.setattr(theory, "recursion_factors", lambda **o: {name: 0.9 * f for name, f in right(**o).items()})
    assert outcomes(own.Stability(**FEW))["MH-ST.2-expansive"] == "not reproduced"


def test_the_constants_are_those_of_the_larger_network_by_hand():
    """T = 4, d = 6, H = 4, B = 0.5: beta_1 = root T R (2 R^2 B + 1), beta_3 with root d and d."""
    experiment = own.InsideTheorem2()
    r, b = experiment.mixture.token_norm, 0.5
    found = experiment.constants(np.array(4.0), np.array([b]))
    gradient, curvature = 2 * r * (2 * r**2 * b + 1), 4 * 6**0.5 * r**3 * (3 * 6**0.5 * r**2 * b + 1)
    expected = {"gradient": gradient, "smoothness": curvature / 2 + gradient**2 / 4, "curvature": curvature}
    assert {name: value.item() for name, value in found.items()} == pytest.approx(expected)


def test_corollaries_2_and_4_and_lemma_3_on_their_data_sets(stored):
    gaps, stable = (stored[name] for name in ("generalisation_gap", "stability"))
    one = gaps.sel(schedule=own.K_FIXED, n=40).isel(seed=0)
    second, fourth = (f(gaps, 0.5).sel(schedule=own.K_FIXED, n=40)[0] for f in (own.corollary_2, own.corollary_4))
    facts = {"n_samples": 40, "steps": 200, "step_size": 0.5}
    far = (2 * max(1.0, float(one.output_bound)) + math.log(200)) / float(one.margin)
    assert float(second) == pytest.approx(17 * far**2 / (0.5 * 40))
    target = {"target_loss": 1 / 200, "target_distance": float(one.needed)}
    assert float(fourth) == pytest.approx(float(theory.theorem_2(**facts, **target)))
    assert float(own.lemma_3(stable)[0, 0, 0]) == 2 * float(stable.lipschitz[0, 0, 0] * stable.distance[0, 0, 0])


def test_a_run_by_seeds_is_the_run_together():
    small = FEW | {"steps": 6, "inside_steps": 4}
    one, both = (own.Stability(**small, chunk=chunk).run(device="cpu") for chunk in (1, 2))
    for name in ("distance", "test_loss", "left_out_loss", "recursion", "margin", "inside_recursion"):
        np.testing.assert_allclose(one[name], both[name], rtol=1e-9)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        (own.GeneralisationGap, {"sizes": (10,)}, "at least 2"),
        (own.GeneralisationGap, {"sizes": (1, 20)}, "sizes: expected 2 or more increasing numbers of at least 2"),
        (own.GeneralisationGap, {"steps": 100}, "steps: expected at least the largest size"),
        (own.GeneralisationGap, {"test_samples": 0}, "test_samples"),
        (own.Stability, {"sizes": (20, 10)}, "increasing"),
        (own.Stability, {"heads": (5, 4)}, "increasing"),
        (own.InsideTheorem2, {"first_phase_samples": 0}, "first_phase_samples"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(kind, change, message):
    with pytest.raises(ValueError, match=message):
        kind.at("book", **change)


def test_pictures_and_tables_draw(stored):
    near, gaps, stable = TrainingBounds.load_stored("book"), stored["generalisation_gap"], stored["stability"]
    paths = left_out.example_paths(own.Stability(first_phase_samples=50), 0.5, n_samples=5, steps=10)
    drawn = [
        figures.gap_and_bounds(stable),
        figures.rates(gaps),
        figures.distances(near, gaps),
        figures.recursion_frame(paths, 10**8, 5),
    ]
    assert all(ax.get_xlabel() for figure in drawn for ax in figure.axes)
    assert figures.recursion_text(paths, 4, 1) != figures.recursion_text(paths, 10**8, 5)
    table = figures.conditions(stable, stored["inside_theorem_2"])
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert len(table.rows) == len(own.CONDITIONS)


def left_out_gap(full, reduced):
    return np.diag(reduced).mean() - full.mean()


def unrolled(alpha, forcing, *, start=1.0):
    found = [0.0]
    for a, g in zip(alpha, forcing, strict=True):
        found.append((start + a) * found[-1] + g)
    return found


@pytest.mark.parametrize(("exercise", "answer"), [("MH-GEN-1", left_out_gap), ("MH-GEN-2", unrolled)])
def test_right_answers_pass(exercise, answer):
    assert attnbook.check(exercise, answer).right


@pytest.mark.parametrize(
    ("exercise", "answer", "message"),
    [
        ("MH-GEN-1", lambda full, reduced: -left_out_gap(full, reduced), "way round"),
        ("MH-GEN-1", lambda full, reduced: reduced.mean() - full.mean(), "diagonal"),
        ("MH-GEN-1", lambda full, reduced: np.diag(reduced).mean(), "subtracted"),
        ("MH-GEN-1", lambda full, reduced: np.abs(np.diag(reduced) - full).mean(), "cancel"),
        ("MH-GEN-2", lambda alpha, forcing: unrolled(alpha, forcing, start=0.0), "1 + alpha"),
        ("MH-GEN-2", lambda alpha, forcing: unrolled(alpha, forcing)[1:], "6 values"),
        ("MH-GEN-2", lambda alpha, forcing: [0.0, *np.cumsum(forcing)], "with the factors"),
    ],
)
def test_wrong_answers_get_the_likely_mistake(exercise, answer, message):
    feedback = attnbook.check(exercise, answer)
    assert not feedback.right
    assert message in repr(feedback)
