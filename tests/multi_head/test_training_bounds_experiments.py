"""The experiments on training bounds: rules that can fail, wrong models, pictures, tables, settings and exercises."""

from __future__ import annotations

import numpy as np
import pytest
import red
import torch
import whole_network

import attnbook
from attnbook import ledger
from attnbook.multi_head import convergence_bounds as theory
from attnbook.multi_head import layer
from attnbook.multi_head.generalisation_bounds import target_distance
from attnbook.multi_head.on_mixture import random_signs
from attnbook.multi_head.training_bounds import experiments as own
from attnbook.multi_head.training_bounds import figures

KINDS = {
    "certificates": own.Certificates, "inside_theorem": own.InsideTheorem,
    "segments": own.Segments, "training_bounds": own.TrainingBounds,
}  # fmt: skip


@pytest.fixture(scope="module")
def stored():
    return {name: kind.load_stored("book") for name, kind in KINDS.items()}


def scaled(**factors):
    """Multiply arrays by factors."""
    return lambda d: d.assign({name: factor * d[name] for name, factor in factors.items()})


def backwards(name):
    """Turn an array around along its second axis; by its values, as xarray would align coordinates."""
    return lambda d: d.assign({name: d[name].copy(data=d[name].values[:, ::-1])})


def flat_in_heads(name):
    return lambda d: d.assign({name: d[name] * d.heads**0.1})


RED = {
    "certificates": {"MH-T1-tracked": scaled(bound=0.4)},
    "inside_theorem": {
        "MH-T1.1-regret": scaled(average=3),
        "MH-T1.2": scaled(distance=3),
    },
    "segments": {
        "MH-P4.1": backwards("hill"),
        "MH-B13.4": scaled(lower_violation=-1),
    },
    "training_bounds": {
        "MH-T1.1": scaled(average=7),
        "MH-T1.5": flat_in_heads("largest_move"),
        "MH-A2": scaled(farther_loss=3),
        "MH-P7": scaled(target_loss=0.2),
        "MH-C3": scaled(loss=100),
    },
}
PARTS = {
    "certificates": [
        ("MH-T1-tracked", scaled(average=3)),
        ("MH-T1-tracked", scaled(bound=2)),
        ("MH-T1-tracked", scaled(largest_move=200)),
        ("MH-T1-tracked", scaled(step_size=0.4)),
        ("MH-T1-tracked", backwards("ever")),
    ],
    "inside_theorem": [
        ("MH-T1.1-regret", scaled(loss=1.2)),
        ("MH-T1.1-regret", scaled(descent=0.4)),
        ("MH-T1.1-regret", scaled(step_size=0.1)),
        ("MH-T1.1-regret", scaled(asked=1.1)),
        ("MH-T1.2", scaled(from_target=1.2 * 3)),
    ],
    "segments": [
        ("MH-P4.1", lambda d: d.assign(hill=d.hill**0.1)),
        ("MH-B13.4", lambda d: d.assign(lower_violation=0 * d.lower_violation)),
    ],
    "training_bounds": [
        ("MH-T1.1", scaled(distance=5)),
        ("MH-T1.1", scaled(margin=3)),
        ("MH-T1.5", backwards("attention")),
        ("MH-A2", scaled(needed=1.1)),
        ("MH-P7", scaled(least_loss=0.2)),
    ],
}  # other values of the same rules


@pytest.mark.parametrize("name", KINDS)
def test_every_measured_claim_of_the_chapter_can_be_turned_red(name, stored):
    red.assert_every_claim_turns(KINDS[name]().measurements, stored[name], RED[name], PARTS[name])


ALGEBRA = {"MH-T1.4", "MH-COLLAPSE", "MH-E15"}
OF_GENERALISATION = {"MH-A2", "MH-P7", "MH-C3"}


def test_every_claim_of_the_chapter_is_measured_and_at_most_three_are_ours():
    mine = {c.id: c for c in ledger.claims() if c.chapter == "multi_head/training_bounds"}
    assert set(mine) == {claim for claims in RED.values() for claim in claims} - OF_GENERALISATION | ALGEBRA
    assert {i for i, c in mine.items() if c.checked} == ALGEBRA
    assert sum(c.source == "book" for c in mine.values()) <= 3
    assert all(c.setting for c in mine.values() if c.source == "paper")


# Wrong models


def test_averages_and_distances_are_those_of_the_whole_network():
    stack = own.WideNetworks(heads=(4, 64, 128)).stack((3,), torch.device("cpu"))
    found = own.followed(stack, 0.5, (0, 5, 13), None)[0]
    counts = stack.counts[:1]
    start = whole_network.expand({n: t[:1] for n, t in stack.start.items()}, counts=counts)
    whole = {n: t.clone() for n, t in start.items()}
    tokens, labels = stack.tokens[:1], stack.labels[:1]
    losses = []
    for _ in range(13):
        leaves = {n: t.requires_grad_() for n, t in whole.items()}
        loss = torch.nn.functional.softplus(-labels * layer.outputs(leaves, tokens)).mean()
        gradient = torch.autograd.grad(loss, list(leaves.values()))
        whole = {n: (t - 0.5 * g).detach() for (n, t), g in zip(leaves.items(), gradient, strict=True)}
        losses.append(torch.nn.functional.softplus(-labels * layer.outputs(whole, tokens)).mean().item())
    np.testing.assert_allclose(found["average"][0], [found["loss"][0, 0], np.mean(losses[:5]), np.mean(losses)])
    moved = torch.cat([(whole[n] - start[n]).flatten(2) for n in ("decoder", "key_query")], dim=2)
    assert found["distance"][0, -1] == pytest.approx(moved.norm().item())
    assert found["largest_move"][0, -1] == pytest.approx(moved.norm(dim=2).max().item())


def test_both_signs_always_occur():
    assert np.array(random_signs(range(30), (2,))).tolist() == [[1.0, 1.0]] * 30


def test_other_samples_keep_their_seeds():
    problem, cpu = own.WideNetworks(heads=(4, 64), n_samples=5), torch.device("cpu")
    stack, test = problem.stack((3, 4), cpu), problem.draw((3, 4), 9, "test", cpu)
    fresh = stack.on(test)
    assert torch.equal(fresh.tokens[1:3], test.tokens)
    assert torch.equal(fresh.counts, stack.counts)
    assert torch.equal(fresh.start["decoder"], stack.start["decoder"])


def test_bounds_of_arrays_are_those_of_the_library(stored):
    data = stored["training_bounds"]
    one = data.isel(seed=2, heads=3).sel(k=1000)
    stated = own.stated_bounds(data, 0.5).isel(seed=2, heads=3).sel(k=1000)
    facts = {"margin": float(one.margin), "output_bound": max(1.0, float(one.start_output))}
    distance = float(target_distance(steps=1000, **facts))
    farther = 5 * distance**2 / (4 * 0.5 * 1000)
    assert float(stated.corollary) == pytest.approx(2 / 1000 + farther)
    assert float(stated.regret) == pytest.approx(2 * float(one.target_loss) + farther)
    third = theory.regret_bound(target_loss=1e-3, distance=float(one.needed), step_size=0.5, steps=1000)
    slack = own.TrainingBounds().measure(data.isel(heads=[0, 3], seed=[2]))["MH-C3"]
    assert slack["largest_bound_last"].item() >= third * (1 - 1e-12)
    assert slack["smallest_slack"].item() <= np.log10(third / float(one.loss.sel(step=1000))) + 1e-12
    asked = own.demands(data, np.array([1000.0])).isel(seed=2, steps=0)
    sizes = {"n_tokens": 4, "dimension": 6, "token_norm": float(one.token_norm), "head_norm": 1.0}
    heads = theory.sketch_heads(**sizes, distance=distance)
    assert float(asked.sketch_heads) == pytest.approx(heads)
    assert float(asked.step_size) == pytest.approx(1 / theory.smoothness(**sizes, n_heads=heads, distance=distance))
    assert float(asked.order_heads) == pytest.approx(theory.order_heads(**sizes, distance=distance))


def test_hypotheses_of_the_run_inside_are_met_as_printed(stored):
    """Recomputed from what is stored: heads, step size and both conditions on the target."""
    data, sizes = stored["inside_theorem"], {"n_tokens": 2, "dimension": 2, "token_norm": 1.0}
    distance = data.attrs["settings"]["distance"]
    for seed in data.seed:
        one = data.sel(seed=seed)
        eta, norm = float(one.step_size), {"distance": distance, "head_norm": 0.35}  # of the target's, at least
        assert theory.sketch_heads(**sizes, **norm | {"head_norm": 0.37}) <= 1e12
        assert eta <= 1 / theory.smoothness(**sizes, **norm, n_heads=1e12)
        assert eta >= 1 / theory.smoothness(**sizes, **norm | {"head_norm": 0.37}, n_heads=1e12)
        of_target = eta * data.attrs["settings"]["steps"] * float(one.target_loss) / distance**2
        asked = of_target, eta * float(one.loss[0]) / distance**2
        np.testing.assert_allclose(one.asked[1:], asked)


def test_too_few_heads_turn_the_run_inside_red():
    few = own.InsideTheorem.at("smoke", n_heads=1.0)
    assert few.measurements(few.run(device="cpu"))["MH-T1.1-regret"].values["largest_asked"] > 1


def test_fewest_heads_are_those_from_which_on_all_certificates_say_something(stored):
    data = stored["certificates"].isel(seed=[0, 1], heads=[0, 1, 2])
    ever = data.ever.copy(data=[[1.0, 0.5, 0.4], [0.5, 1.0, 0.5]])
    assert own.fewest_heads(data.assign(ever=ever)).values.tolist() == [3e4, 1e5]
    assert own.fewest_heads(data.assign(ever=ever + 1)).values.tolist() == [np.inf, np.inf]


def test_hills_grow_with_the_distance(stored):
    assert (stored["segments"].hill.diff("multiple") > 0).all()


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        (own.TrainingBounds, {"heads": (4, 4)}, "heads"),
        (own.TrainingBounds, {"step_size": 0.0}, "step_size"),
        (own.TrainingBounds, {"horizons": (10, 2000)}, "horizons"),
        (own.TrainingBounds, {"horizons": (10, 99)}, "horizons"),
        (own.TrainingBounds, {"first_phase_samples": 0}, "first_phase_samples"),
        (own.Certificates, {"trained": 7.0}, "trained"),
        (own.InsideTheorem, {"distance": 0.0}, "distance"),
        (own.Segments, {"multiples": (2.0, 3.0)}, "multiples"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(kind, change, message):
    with pytest.raises(ValueError, match=message):
        kind.at("book", **change)


def test_pictures_and_tables_draw(stored):
    data, certificates = stored["training_bounds"], stored["certificates"]
    drawn = [
        figures.promise(data, certificates),
        figures.certificate_frame(certificates, 1e4),
        figures.certificate_frame(certificates, 1e6),
        figures.lazy(data),
    ]
    assert all(ax.get_xlabel() for figure in drawn for ax in figure.axes)
    for figure in drawn:
        figures.plt.close(figure)
    first, last = (figures.certificate_text(certificates, n_heads) for n_heads in (1e4, 1e12))
    assert first != last
    assert "Section 6.1" in figures.asked(data, certificates)._repr_html_()
    assert [figures.power(n) for n in (1e12, 3e5)] == ["10¹²", "3 · 10⁵"]


# Exercises


def step(u, counts, x, y, eta, *, times=False, root=True):
    h = counts.sum() ** 0.5
    slopes = -y / (1 + np.exp(y * (counts @ (u @ x.T) / h))) / len(y)
    return u - eta * (counts[:, None] if times else 1) * (slopes @ x) / (h if root else 1)


RIGHT = {"MH-TB2": step, "MH-TB3": lambda e: 1 / (1 - e / 16)}
WRONG = [
    ("MH-TB2", lambda *a: step(*a, times=True), "ONE of its heads"),
    ("MH-TB2", lambda *a: step(*a, root=False), "too"),
    ("MH-TB2", lambda u, *a: 2 * u - step(u, *a), "sign"),
    ("MH-TB2", lambda u, *a: u[0], "shape"),
    ("MH-TB3", lambda e: 1 / (1 - e / 4), "HALF"),
    ("MH-TB3", lambda e: 1 / (1 - e / 8), "squared"),
    ("MH-TB3", lambda e: 1 + e / 16, "solve for M"),
]


@pytest.mark.parametrize("exercise", RIGHT)
def test_right_answers_pass(exercise):
    assert attnbook.check(exercise, RIGHT[exercise]).right


@pytest.mark.parametrize(("exercise", "answer", "message"), WRONG)
def test_wrong_answers_get_the_likely_mistake(exercise, answer, message):
    feedback = attnbook.check(exercise, answer)
    assert not feedback.right
    assert message in repr(feedback)


def test_the_slope_is_named_on_its_line_however_few_widths_there_are(smoke_results):
    """At the fourth point of the dotted line, or its last."""
    for data, place in ((smoke_results[own.TrainingBounds.id], 2), (own.TrainingBounds.load_stored("book"), 4)):
        left = figures.lazy(data).axes[0]
        (dotted,) = (line for line in left.lines if line.get_linestyle() == ":")
        (label,) = (text for text in left.texts if text.get_text() == "slope −1/2")
        assert label.xy[0] == data.heads.values[place]
        assert label.xy in list(zip(*dotted.get_data(), strict=True))
