"""The chapter on rates: constants of the cone, lemmas on one step, starts in a cone, and what turns each claim red."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import red
import torch
import xarray as xr

import attnbook
from attnbook import ledger
from attnbook.mirror_descent import mirror
from attnbook.mirror_descent.attention import Batch, descend, excess_loss, loss_and_gradient, train_loss
from attnbook.mirror_descent.attention_svm import attention_svm, locally_optimal
from attnbook.mirror_descent.cone_probes import cone_starts, extreme_directions, second_choice
from attnbook.mirror_descent.data import draw_problems, plane_toy
from attnbook.mirror_descent.rates import cone, figures, one_step
from attnbook.mirror_descent.rates import experiments as own

KINDS = {"steps": own.OneStep, "cone": own.Cone, "staying": own.Staying, "rates": own.Rates}


@pytest.fixture(scope="module")
def stored():
    return {name: kind.load_stored("book") for name, kind in KINDS.items()}


def scaled(name, factor, **where):
    """Multiply part of one array."""

    def changed(data):
        array = data[name].copy(deep=True)
        array.loc[where] = factor * array.loc[where]
        return data.assign({name: array})

    return changed


def set_to(name, value, **where):
    """Set part of one array."""

    def changed(data):
        array = data[name].copy(deep=True)
        array.loc[where] = value
        return data.assign({name: array})

    return changed


TWO, THREE = {"seed": [3, 7]}, {"seed": [3, 7, 11]}
RED = {
    "steps": {
        "MD-L4": set_to("lemma_4", -1e-6, p=1.5, step_size=10.0, seed=3),
        "MD-L22": set_to("lemma_22", -1e-6, p=4.0, step_size=1000.0, **TWO),
        "MD-L23": set_to("error", 1e-9, p=2.0, step_size=0.1, **TWO),
        "MD-L24": set_to("lemma_24", -1e-6, p=1.1, step_size=0.1, **TWO),
        "MD-L25": set_to("rise", 1e-12, p=3.0, step_size=0.1, **TWO),
    },
    "cone": {
        "MD-L19": set_to("slack", -1e-6, part="12b", p=3.0, choice="second", seed=7),
        "MD-L19-tight": scaled("violated", 1.7),
        "MD-L20": set_to("not_positive", 0.001, radius=400.0, p=2.0, choice="best", **TWO),
        "MD-L20+": lambda d: d.assign(log_least=1.002 * d.log_least),
        "MD-L21": set_to("needed", 0.002, radius=400.0, p=1.75, choice="second", **THREE),
    },
    "staying": {
        "MD-L27": set_to("needed", 0.02, radius=160.0, start=0.01, p=2.0, choice="best", **THREE),
        "MD-L28": lambda d: d.assign(kept=d.kept.where(d.radius < 160, 0.0)),
    },
    "rates": {
        "MD-L29": lambda d: d.assign(divergence=d.relative_norm**-0.1),
        "MD-L30": lambda d: d.assign(plain_norm=10 + np.log(np.log(d.plain_step + 3)) + 0 * d.plain_norm),
        "MD-rate-k": scaled("plain_divergence", 3.0, plain_step=12_000),
        "MD-rate+": lambda d: d.assign(divergence=d.divergence**0.7),
        "MD-L30+": lambda d: d.assign(log_time=0.9 * d.log_time),
    },
}
PARTS = {
    "cone": [
        ("MD-L19", set_to("slack", -1e-6, part="12a", p=1.25, choice="best", seed=0)),
        ("MD-L19", set_to("slack", -1e-6, part="12c", p=2.0, choice="best", seed=0)),
        ("MD-L19-tight", scaled("violated", 0.5)),
        ("MD-L19-tight", set_to("slack_sharp", -1e-6, part="12a", p=2.0, choice="best", seed=1)),
        ("MD-L19-tight", scaled("literal", 1e6, p=[1.75, 2.0])),
        ("MD-L20", lambda d: d.assign(log_least=1.6 * d.log_least)),
    ],
    "staying": [
        ("MD-L28", set_to("kept", 0.0, radius=160.0, p=2.0, choice="best", seed=list(range(7)))),
        ("MD-L28", set_to("peak", 1.0, radius=160.0, p=3.0, choice="second", seed=list(range(12)))),
        ("MD-L28", scaled("peak", 10.0)),
    ],
    "rates": [
        ("MD-L29", lambda d: d.assign(log_time=d.log_time.where(d.step < 6000, 1e30))),
        ("MD-L30", lambda d: d.assign(plain_norm=d.plain_norm.isel(plain_step=-1) - 1e-3 * d.plain_norm)),
        ("MD-L30", lambda d: d.assign(plain_norm=11 - (d.plain_step + 1) ** -0.1 + 0 * d.plain_norm)),
        ("MD-rate-k", set_to("plain_kept", 0.0, choice="best", p=[2.0, 3.0], seed=list(range(8)))),
        ("MD-rate-k", set_to("plain_kept", 0.0, choice="second", seed=list(range(6)))),
        ("MD-rate-k", scaled("plain_divergence", 3.0, plain_step=12_000, choice="second")),
        ("MD-L30+", lambda d: d.assign(log_time=d.log_time + np.log(d.relative_norm))),
    ],
}


@pytest.mark.parametrize("name", KINDS)
def test_every_measured_claim_of_the_chapter_can_be_turned_red(name, stored):
    red.assert_every_claim_turns(KINDS[name]().measurements, stored[name], RED[name], PARTS.get(name, ()))


def test_every_claim_of_the_chapter_is_measured_and_its_findings_are_few():
    mine = [c for c in ledger.claims() if c.chapter == "mirror_descent/rates"]
    assert {c.id for c in mine} == {claim for claims in RED.values() for claim in claims}
    assert sum(c.source == "book" for c in mine) <= 5


def test_the_constants_of_the_plane_by_hand():
    """Support token 1 has the constraint 1.2 a + 0.5 b = 1; token 2 the gap 1.7 a + 0.4 b."""
    toy, selected = plane_toy(), np.array([[0]])
    svm = attention_svm(toy.tokens, toy.queries, selected, 2.0)
    gap = (1.7 * 1.2 + 0.4 * 0.5) / 1.69
    delta, pair = cone.separation(svm.margins, svm.support), cone.largest_pair(toy.tokens, toy.queries, svm.norm, 2.0)
    assert delta[0] == pytest.approx((gap - 1) / 2)
    assert pair[0] == pytest.approx(np.hypot(0.8, 0.5) / 1.3)
    radius = cone.sufficient_radius(delta, pair, toy.token_scores, selected, svm.support)
    assert radius[0] == pytest.approx(np.log(9 * pair[0] * 1.78 / 1.3) / delta[0])
    slacks = cone.gap_slacks(cone.gaps(svm.weight, toy.tokens, toy.queries, selected), svm.support, delta)
    assert [float(part[0]) for part in slacks.values()] == pytest.approx([delta[0], delta[0], 0.5])


@pytest.mark.parametrize("p", [1.4, 2.0, 3.0])
def test_the_guaranteed_divergence_is_the_formula_and_the_sharper_one_is_larger(p):
    literal = cone.guaranteed_divergence(np.array(0.03), np.array(5.0), 7, p)
    by_hand = (0.03 / 20) ** p / p if p >= 2 else (p - 1) / 2 * (0.03 / (10 * 7 ** (2 / p - 1))) ** 2
    assert literal == pytest.approx(by_hand)
    assert cone.guaranteed_divergence(np.array(0.03), np.array(5.0), 7, p, sharp=True) > literal


def test_the_largest_pair_is_the_norm_of_an_outer_product():
    problems = draw_problems([2], n_samples=3, n_tokens=5, dimension=7)
    products = problems.tokens[..., :, None] * problems.queries[:, :, None, None, :]
    expected = 1.7 * mirror.entrywise_norm(products, float(mirror.conjugate(1.6))).max()
    assert cone.largest_pair(problems.tokens, problems.queries, np.array([1.7]), 1.6)[0] == pytest.approx(expected)


def test_slacks_of_one_step_by_hand():
    """From 3 to 4 for p = 2: the mirror image moves by 1, and the loss falls by a half."""
    before, after = np.array([[3.0]]), np.array([[4.0]])
    losses, eta = (np.array(0.5), np.array(0.0)), np.array(2.0)
    found = one_step.step_slacks(before, after, losses, eta, 2.0)
    assert [float(part) for part in found] == pytest.approx([1, 0, 0, (3 - (16 - 9) / 2 + 1) / 4])
    needed = one_step.needed_slack(before, after, np.array([[0.6]]), losses, eta, 2.0)
    assert needed == pytest.approx(1 / (0.6 + 1 / 3) - 1)
    assert np.isinf(one_step.needed_slack(before, after, np.array([[-0.6]]), losses, eta, 2.0))
    error = one_step.three_point_step_error(before, after, np.array([[7.0]]), losses, np.array([[-0.5]]), eta, 2.0)
    assert error == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(("p", "expected"), [(1.5, 0.25), (2.0, np.log(16) ** 2 / 16), (3.0, np.log(16) / 16)])
def test_the_rate_has_three_cases(p, expected):
    assert one_step.rate_bound(np.array(16.0), p) == pytest.approx(expected)


@pytest.mark.parametrize("p", [1.3, 2.0, 3.5])
def test_starts_lie_where_they_should_beside_their_own_tokens(p):
    starts = cone_starts([p], [3, 5], [(0.01, 4.0), (0.05, 9.0)])
    assert starts.divergence(starts.start[None])[0] == pytest.approx(np.tile([0.01, 0.01, 0.05, 0.05], 2), rel=1e-5)
    assert starts.relative_norm(starts.start[None])[0] == pytest.approx(np.tile([4, 4, 9, 9], 2))
    one = draw_problems([3, 5])
    for choice, selected in enumerate((one.best_tokens, second_choice(one, p)[0])):
        svm = attention_svm(one.tokens, one.queries, selected, p)
        assert locally_optimal(one.token_scores, selected, svm.support).all()
        np.testing.assert_allclose(starts.weight[4 * choice : 4 * choice + 2], svm.weight, rtol=1e-6)
    assert (starts.selected[:4] != starts.selected[4:]).sum(axis=1).max() == 1
    assert starts.kept(50 * starts.weight).all()


def test_a_run_that_loses_one_token_has_not_kept_its_tokens():
    starts = cone_starts([2.0], [3], [(0.01, 4.0)])
    far = 50 * starts.weight
    selected = starts.selected.copy()
    selected[1, 4] = (selected[1, 4] + 1) % 8
    assert dataclasses.replace(starts, selected=selected).kept(far).tolist() == [True, False]


def test_a_gap_of_the_selected_token_shrinks_most_along_its_own_direction():
    problems, selected = draw_problems([3], n_samples=2, n_tokens=3, dimension=7), np.array([[2, 0]])
    index = np.broadcast_to(selected[:, None], (1, 1, 2))
    way = extreme_directions(problems, [3], 1, 1.6, selected=selected)
    random = mirror.normalised(np.random.default_rng(5).standard_normal((1, 200, 7, 7)), 1.6)
    gaps, others = (cone.gaps(w, problems.tokens[:, None], problems.queries[:, None], index) for w in (way, random))
    sample, token = np.unravel_index(gaps[0, 0].argmin(), (2, 3))
    assert gaps[0, 0, sample, token] < others[0, :, sample, token].min()


def test_time_as_a_logarithm_equals_plain_sums_while_they_fit():
    problems, p = draw_problems([1], n_samples=2, n_tokens=3, dimension=5), np.array([1.7])
    run = descend(problems, p, steps=13, step_size=0.2, normalized=True, record_at=range(14), log_time=True)
    batch, total = Batch.of(problems), 0.0
    for weight in run.records["key_query"][:13]:
        _, gradient = loss_and_gradient({"key_query": torch.tensor(weight)}, batch)
        norm = max(1.0, float(mirror.entrywise_norm(weight, 1.7)[0]))
        length = float(mirror.entrywise_norm(gradient["key_query"].numpy(), mirror.conjugate(1.7))[0])
        total += 0.2 * norm ** (1.7 - 2) / length
    assert run.records["log_time"][13, 0] == pytest.approx(np.log(total))


def test_the_excess_loss_is_a_difference_of_losses():
    problems = draw_problems([0, 1], n_samples=3, n_tokens=5, dimension=7)
    weight, batch = torch.randn(2, 7, 7, dtype=torch.float64), Batch.of(problems)
    best = torch.tensor(problems.best_tokens)
    own_scores = batch.token_scores.gather(-1, best.unsqueeze(-1)).squeeze(-1)
    expected = train_loss({"key_query": weight}, batch) - torch.nn.functional.softplus(-own_scores).mean(-1)
    assert torch.allclose(excess_loss(weight, batch, best), expected, atol=1e-14)


def test_a_step_in_the_wrong_direction_turns_the_lemmas_on_one_step_red(monkeypatch):
    ready, honest = own.OneStep.at("smoke", steps=5), one_step._along
    monkeypatch.setattr(one_step, "_along", lambda *a: 1.5 * honest(*a))
    found = ready.measurements(ready.run(device="cpu"))
    assert ledger.judge(ledger.claim("MD-L22"), found["MD-L22"]).outcome == "not reproduced"


def test_a_cone_a_thousand_times_too_wide_turns_lemma_19_red(monkeypatch):
    honest, ready = cone.guaranteed_divergence, own.Cone.at("smoke", directions=40)
    monkeypatch.setattr(cone, "guaranteed_divergence", lambda *a, **o: 1000 * honest(*a, **o) + 1e-3)
    found = ready.measurements(ready.run(device="cpu"))
    assert ledger.judge(ledger.claim("MD-L19"), found["MD-L19"]).outcome == "not reproduced"


def test_norms_from_which_something_holds_by_hand():
    holds = xr.DataArray([[0, 1, 0, 1, 1], [1, 1, 1, 1, 1], [1, 1, 1, 1, 0]], dims=("seed", "radius"))
    found = own.first_from(holds.assign_coords(radius=[2, 5, 10, 20, 40]), "radius")
    assert found.values.tolist() == [20, 2, np.inf]
    shares = own.held(found < np.inf)
    assert (float(shares["share"]), float(shares["share_low"])) == pytest.approx((2 / 3, 0.2077), rel=1e-3)


def test_the_radius_of_a_cone_takes_the_best_start_inside_it_and_asks_for_the_tokens():
    """Starts at 0.01 leave the cone of 0.1 from norm 5, those at 0.03 do not; at norm 5 one loses its tokens."""
    ready = own.Staying.at("book", divergences=(0.01, 0.03, 0.1), radii=(5.0, 20.0))
    peaks = np.array([[0.2, 0.01], [0.03, 0.03], [0.1, 0.1]])[None]
    data = xr.Dataset(
        {"peak": (("seed", "start", "radius"), peaks), "kept": (("seed", "start", "radius"), 0 * peaks + 1)}
    )
    data = data.assign_coords(start=[0.01, 0.03, 0.1], radius=[5.0, 20.0])
    assert ready.cone_radius(data).values[:, 0].tolist() == [20, 5]
    lost = data.assign(kept=data.kept.where((data.start != 0.03) | (data.radius != 5), 0))
    assert ready.cone_radius(lost).values[:, 0].tolist() == [20, 20]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: own.Rates.at("book", step_sizes=(0.1,)), "step_sizes"),
        (lambda: own.Staying.at("book", typical_norms=(0.1,)), "typical_norms"),
        (lambda: descend(draw_problems([0]), np.array([2.0]), steps=1, step_size=0.1, log_time=True), "log_time"),
    ],
)
def test_bad_input_is_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_pictures_and_tables_draw(stored):
    rates, staying = stored["rates"], stored["staying"]
    drawn = (
        figures.glance(rates),
        figures.time_frame(rates, 15, 9),
        figures.radii(staying),
        figures.exponent(stored["cone"]),
    )
    assert all(ax.get_xlabel() for figure in drawn for ax in figure.axes)
    assert "is 1 (p = 1.5), 1 (p = 1.75)" in figures.time_text(rates, 9, 9)
    table = figures.constants(stored["cone"])
    assert all(len(row) == len(table.columns) for row in table.rows)


def bound(norm, p):
    return norm ** (1 - p) if p < 2 else np.log(norm) ** (2 if p == 2 else 1) / norm


@pytest.mark.parametrize(
    ("exercise", "answer", "hint"),
    [
        ("MD-7", lambda n, p: n**-p, "not p - 1"),
        ("MD-7", lambda n, p: n ** (1 - p) if p < 2 else np.log(n) / n, "squared"),
        ("MD-7", lambda n, p: n ** (1 - p) if p < 2 else np.log(n) ** 2 / n, "only p = 2"),
        ("MD-8", np.cumsum, "log of the product"),
        ("MD-8", np.maximum.accumulate, "smaller ones count"),
        ("MD-8", lambda x: np.log(np.cumsum(np.exp(x))), "infinite"),
    ],
)
def test_right_answers_pass_and_wrong_ones_get_the_likely_mistake(exercise, answer, hint):
    assert attnbook.check("MD-7", bound).right
    assert attnbook.check("MD-8", np.logaddexp.accumulate).right
    feedback = attnbook.check(exercise, answer)
    assert not feedback.right
    assert hint in feedback.message
