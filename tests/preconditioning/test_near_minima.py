"""Metrics, descents near the minima, and the experiments on conditioning, rates and balance."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from attnbook import ledger
from attnbook.preconditioning import landscape
from attnbook.preconditioning.data import draw_problem
from attnbook.preconditioning.manifold import minimum, stack, unstack
from attnbook.preconditioning.metric import POWERS, condition_number, metric, preconditioned_spectrum
from attnbook.preconditioning.population import (
    balance_penalty,
    excess_loss,
    excess_loss_gradient,
    imbalance,
    penalty_gradient,
    precondition,
    square_roots,
)
from attnbook.preconditioning.structure_aware_descent import (
    descents,
    factorisation,
    figures,
    near_minima,
    reading,
    tables,
)
from attnbook.preconditioning.structure_aware_descent.factorisation import Factorisation
from attnbook.preconditioning.structure_aware_descent.near_minima import Balance, Conditioning, Convergence

D, M = 3, 5
VALUES = np.array([0.5, 0.3, 0.2])
EXPERIMENTS = {"conditioning": Conditioning, "convergence": Convergence, "balance": Balance}


def problem(seed=0, kappa=7.0, outputs=M):
    """Covariance and true map."""
    drawn = draw_problem(
        D, outputs, condition_number=kappa, singular_values=VALUES, noise=0.0, rng=np.random.default_rng(seed)
    )
    return torch.tensor(drawn.covariance), torch.tensor(drawn.true_map)


def draw(*shape, seed=1):
    return torch.tensor(np.random.default_rng(seed).standard_normal(shape))


@pytest.fixture(scope="module")
def stored():
    return {name: kind.load_stored("book") for name, kind in EXPERIMENTS.items()}


@pytest.fixture(scope="module")
def smoke():
    return {name: kind.at("smoke").run(device="cpu") for name, kind in EXPERIMENTS.items()}


def outcomes(name, data):
    return {v.claim.id: v.outcome for v in ledger.check(EXPERIMENTS[name].at("book").measurements(data)).verdicts}


@pytest.mark.parametrize("kind", POWERS)
def test_a_step_in_the_original_coordinates_is_a_step_in_the_metric(kind):
    covariance, true_map = problem()
    whitened_map, start = true_map @ square_roots(covariance)[0], draw(M + D, D)
    layers = unstack(start, covariance=covariance)
    losses = excess_loss_gradient(*layers, covariance=covariance, true_map=true_map)
    penalties = penalty_gradient(*layers, covariance=covariance)
    sums = tuple(a + b for a, b in zip(losses, penalties, strict=True))
    moved = (
        layer - 0.1 * change
        for layer, change in zip(layers, precondition(sums, torch.linalg.inv(covariance), kind), strict=True)
    )
    descent = Factorisation.preconditioned(whitened_map, torch.tensor(0.1, dtype=torch.float64), covariance, kind)
    excess, after = descent.step(start)
    torch.testing.assert_close(after, stack(*moved, covariance=covariance), atol=1e-11, rtol=1e-11)
    assert float(excess) == pytest.approx(float(excess_loss(*layers, covariance=covariance, true_map=true_map)))


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.5])
def test_the_slope_is_that_of_the_regularised_loss_for_each_member_alone(penalty):
    maps, points, sizes = (
        draw(4, M, D),
        draw(4, M + D, D, seed=2),
        torch.tensor([0.1, 0.2, 0.3, 0.7], dtype=torch.float64),
    )
    _, after = Factorisation(maps, sizes, torch.full((4,), penalty).double()).step(points)
    for target, point, size, moved in zip(maps, points, sizes, after, strict=True):
        leaf = point.clone().requires_grad_()
        (slope,) = torch.autograd.grad(landscape.regularised_loss(leaf, target, penalty), leaf)
        torch.testing.assert_close(moved, point - size * slope)


@pytest.mark.parametrize("kind", POWERS)
def test_the_spectrum_is_that_of_the_hessian_by_automatic_differentiation(kind):
    """Without preconditioner in the original coordinates, one-sided in those stretched by the root on one side."""
    covariance, true_map = problem()
    root, inverse = square_roots(covariance)
    whitened_map = true_map @ root
    base = minimum(whitened_map) @ torch.linalg.qr(draw(D, D)).Q
    before, after = metric(covariance, M, kind)
    roots = square_roots(before)[0], square_roots(after)[0]

    def loss(flat):
        point = roots[0] @ flat.view(M + D, D) @ roots[1]
        layers = point[:M] @ inverse, inverse @ point[M:].T @ inverse
        fit = excess_loss(*layers, covariance=covariance, true_map=true_map)
        return fit + balance_penalty(*layers, covariance=covariance)

    at = torch.linalg.inv(roots[0]) @ base @ torch.linalg.inv(roots[1])
    expected = torch.linalg.eigvalsh(torch.autograd.functional.hessian(loss, at.flatten()))
    found = preconditioned_spectrum(base, whitened_map, covariance=covariance, kind=kind)
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)
    if kind == "none":
        value, key_query = unstack(base, covariance=covariance)
        torch.testing.assert_close(at, torch.cat([value, key_query.T]))
    if kind == "two":
        torch.testing.assert_close(found, landscape.hessian_spectrum(torch.tensor(VALUES), M), atol=1e-10, rtol=0)
        assert float(condition_number(found, D)) == pytest.approx(2 * 0.5 / 0.2)


def test_many_spectra_at_once_are_those_of_each_alone():
    pairs = [problem(seed) for seed in range(4)]
    covariance, true_map = (torch.stack(part) for part in zip(*pairs, strict=True))
    whitened_map = true_map @ square_roots(covariance)[0]
    base = minimum(whitened_map)
    together = preconditioned_spectrum(base, whitened_map, covariance=covariance, kind="none")
    for i in range(4):
        alone = preconditioned_spectrum(base[i], whitened_map[i], covariance=covariance[i], kind="none")
        torch.testing.assert_close(together[i], alone)


def test_an_unknown_preconditioner_is_refused():
    with pytest.raises((ValueError, TypeError), match="kind"):
        metric(torch.eye(2), 3, "both")


def test_a_descent_keeps_what_was_asked_and_stops_when_all_have_arrived():
    one = torch.ones(2, dtype=torch.float64)
    descent = Factorisation(draw(2, M, D), 0.01 * one, one)
    start = draw(2, M + D, D, seed=5)
    losses, points = descent.descend(start, 7, keep=(0, 2, 7))
    assert losses.shape == (8, 2)
    torch.testing.assert_close(points[0], start)
    expected = start
    for _ in range(2):
        _, expected = descent.step(expected)
    torch.testing.assert_close(points[1], expected)
    assert len(descent.descend(start, 7, until=losses[3] * 1.0001)[0]) <= 4
    assert descent.descend(start, 0)[1].shape == (0, 2, M + D, D)
    lost, _ = replace(descent, step_size=torch.tensor([0.01, 1e3]).double()).descend(start, 40)
    assert lost[-1].isfinite().tolist() == [True, False]
    for change, message in (({"max_steps": -1}, "max_steps"), ({"keep": (3, 2)}, "keep"), ({"keep": (8,)}, "keep")):
        with pytest.raises(ValueError, match=message):
            descent.descend(start, **({"max_steps": 7} | change))


def test_steps_predicted_by_hand():
    assert near_minima.predicted_steps(np.array([2.0])) == pytest.approx(np.log(1e6) / np.log(4))


def test_fits_find_the_slope_of_an_exact_exponential(stored):
    result = stored["convergence"]
    slopes, explained = reading.fit(np.exp(result.predicted * result.step), result.step)
    np.testing.assert_allclose(slopes.transpose(*result.predicted.dims), result.predicted, rtol=1e-9)
    np.testing.assert_allclose(explained, 1)


def test_the_closed_form_fits_and_is_balanced_for_the_estimate():
    covariance, true_map = problem()
    assert descents.closed_form_imbalance(covariance, true_map, covariance) == pytest.approx(0, abs=1e-12)
    x = draw(40, D) @ square_roots(covariance)[0]
    estimate = x.T @ x / 40
    level = descents.closed_form_imbalance(covariance, true_map, estimate)
    settled = descents.settled_imbalance(covariance, true_map, estimate, 0.5, 400)
    assert 0.01 < float(level) == pytest.approx(float(settled), rel=1e-9)


def test_scaled_layers_keep_the_product_and_lose_the_balance(stored):
    excess, unbalanced = (stored["balance"][name].isel(record=0).values for name in ("excess", "imbalance"))
    np.testing.assert_allclose(excess, np.broadcast_to(excess[..., :1], excess.shape), rtol=1e-6)
    squares = stored["balance"].scale.values ** 2
    expected = np.abs(squares - 1 / squares) / (squares + 1 / squares)
    np.testing.assert_allclose(unbalanced[..., expected > 0.5], np.broadcast_to(
        expected[expected > 0.5], unbalanced[..., expected > 0.5].shape), atol=0.02)  # fmt: skip
    one = torch.eye(D).double()
    assert float(imbalance(3 * one, one / 3, covariance=one)) == pytest.approx((9 - 1 / 9) / (9 + 1 / 9))


NOT_REPRODUCED = {"PC-R1-square", "PC-C4", "PC-C4-rate"}


def test_every_stored_claim_has_the_outcome_that_the_chapter_tells(stored):
    found = {claim: outcome for name in stored for claim, outcome in outcomes(name, stored[name]).items()}
    assert {claim for claim, outcome in found.items() if outcome != "reproduced"} == NOT_REPRODUCED


def _without_regulariser(r):
    return {"iterations": _turned(r.iterations, "penalty")}


def _predicted(r):
    return {"excess": np.exp(r.predicted * r.step) + 0 * r.seed}


def _turned(values, along):
    """The same with the entries along a dimension the other way round."""
    return values.copy(data=values.isel({along: slice(None, None, -1)}).values)


CHANGES = [
    ("conditioning", "PC-A7", lambda r: {"difference": r.difference + 1e-9}),
    ("conditioning", "PC-A7-metric", lambda r: {"difference": r.difference + 1e-9}),
    ("conditioning", "PC-C1", lambda r: {"condition": r.condition**2}),
    ("conditioning", "PC-C1-left", lambda r: {"condition": r.condition**2}),
    ("conditioning", "PC-C1-none", lambda r: {"condition": r.condition**2}),
    ("conditioning", "PC-C1-bound", lambda r: {"condition": r.condition**2}),
    ("conditioning", "PC-C2", lambda r: {"steps": _turned(r.steps, "kind")}),
    ("conditioning", "PC-C2-left", lambda r: {"steps": r.steps**2}),
    ("conditioning", "PC-C2-predicted", lambda r: {"steps": 2 * r.steps}),
    ("convergence", "PC-R1", lambda r: {"excess": np.sqrt(r.excess)}),
    ("convergence", "PC-R1-square", _predicted),
    ("convergence", "PC-R1-square-next", lambda r: {"excess": np.sqrt(r.excess)}),
    ("convergence", "PC-R1-distance", lambda r: {"distance": np.sqrt(r.distance)}),
    ("convergence", "PC-R2", lambda r: {"limit": 0 * r.limit.where(np.isfinite(r.limit), 0)}),
    ("convergence", "PC-R2-divergence", lambda r: {"limit": _turned(r.limit, "share")}),
    ("balance", "PC-A10", lambda r: {"start_residuals": r.start_residuals + 1e-9}),
    ("balance", "PC-C3", lambda r: {"imbalance": _turned(r.imbalance, "penalty")}),
    ("balance", "PC-C3-conserved", lambda r: {"imbalance": _turned(r.imbalance, "penalty")}),
    ("balance", "PC-C3-noise", lambda r: {"noisy": r.noisy**2}),
    ("balance", "PC-C3-noise-level", lambda r: {"noisy": 1.01 * r.noisy}),
    ("balance", "PC-C4", _without_regulariser),
    ("balance", "PC-C4-square", _without_regulariser),
    ("balance", "PC-C4-keys", _without_regulariser),
    ("balance", "PC-C4-spare", _without_regulariser),
    ("balance", "PC-C4-rate", lambda r: {"spare_slopes": 0 * r.spare_slopes + Balance.at("book").spare_slope}),
]


@pytest.mark.parametrize(("name", "claim", "change"), CHANGES, ids=[claim for _, claim, _ in CHANGES])
def test_a_changed_result_turns_its_verdict(name, claim, change, stored):
    """Red for what holds, and for what does not hold a change that makes it hold: no rule is without a choice."""
    changed = outcomes(name, stored[name].assign(change(stored[name])))[claim]
    assert changed == ("reproduced" if claim in NOT_REPRODUCED else "not reproduced")


def test_every_measured_claim_has_such_a_change_and_belongs_to_the_chapter(stored):
    measured = {claim for name in stored for claim in outcomes(name, stored[name])}
    assert {claim for _, claim, _ in CHANGES} == measured
    chapter = {c.id for c in ledger.claims() if c.chapter == "preconditioning/structure_aware_descent"}
    assert measured <= chapter


SHORT = {
    "conditioning": Conditioning.at(
        "book", condition_numbers=(1.0, 3.0, 10.0, 30.0), descended=4, seeds=(0,), chunk=1,
        max_steps=3000, compared=50,
    ),
    "convergence": Convergence.at("book", step_sizes=(0.5,), limit_steps=400, seeds=(0,), chunk=1),
    "balance": Balance.at("book", steps=1000, seeds=(0,), chunk=1, noisy_steps=80),
}  # fmt: skip


def run(name):
    return {
        v.claim.id: v.outcome for v in ledger.check(SHORT[name].measurements(SHORT[name].run(device="cpu"))).verdicts
    }


def test_wrong_models_turn_claims_red(monkeypatch):
    right = {name: run(name) for name in EXPERIMENTS}
    true_step = Factorisation.step
    with monkeypatch.context() as patch:  # a regulariser of the wrong sign
        patch.setattr(Factorisation, "step", lambda self, point: true_step(replace(self, penalty=-self.penalty), point))
        wrong = {name: run(name) for name in EXPERIMENTS}
    for name, claim in (("conditioning", "PC-A7"), ("convergence", "PC-R1-distance"), ("balance", "PC-C3")):
        assert right[name][claim] == "reproduced"
        assert wrong[name][claim] == "not reproduced"
    with monkeypatch.context() as patch:  # one side taken for the other
        patch.setattr(factorisation, "metric", lambda c, m, kind: (torch.eye(m + c.shape[-1]).to(c), c.mT @ c))
        mistaken = run("conditioning")
    assert right["conditioning"]["PC-A7-metric"] == "reproduced"
    assert mistaken["PC-A7-metric"] == "not reproduced"


@pytest.mark.parametrize(
    ("kind", "change", "name"),
    [
        (Conditioning, {"n_outputs": 4}, "n_outputs"),
        (Conditioning, {"condition_numbers": (1.0, 3.0, 10.0)}, "condition_numbers"),
        (Conditioning, {"condition_numbers": (3.0, 1.0, 10.0, 30.0)}, "condition_numbers"),
        (Conditioning, {"descended": 3}, "descended"),
        (Conditioning, {"records": 1}, "records"),
        (Convergence, {"outputs": (5, 8)}, "outputs"),
        (Convergence, {"shares": (0.9, 1.1)}, "shares"),
        (Convergence, {"step_sizes": (3.0,)}, "step_sizes"),
        (Convergence, {"records": 7}, "records"),
        (Balance, {"outputs": (8, 4)}, "outputs"),
        (Balance, {"scalings": (1.0, 3.0)}, "scalings"),
        (Balance, {"records": 2}, "records"),
        (Balance, {"n_samples": (3, 100)}, "n_samples"),
        (Balance, {"seeds": ()}, "seeds"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(kind, change, name):
    with pytest.raises(ValueError, match=name):
        kind.at("book", **change)


@pytest.mark.parametrize("scale", ["smoke", "book"])
def test_pictures_and_tables_draw(scale, smoke, stored):
    import matplotlib.pyplot as plt

    results = smoke if scale == "smoke" else stored
    conditioned, near, unbalanced = (results[name] for name in ("conditioning", "convergence", "balance"))
    drawn = [
        figures.against_condition(conditioned),
        figures.rates(near),
        figures.along_balance(unbalanced),
        figures.curvature_frame(conditioned, 10.0),
    ]
    assert all(ax.lines for figure in drawn for ax in figure.axes)
    assert all(any(ax.get_xlabel() for ax in figure.axes) for figure in drawn)
    plt.close("all")
    for table in (tables.slopes(near), tables.arrivals(unbalanced)):
        assert all(len(row) == len(table.columns) for row in table.rows)
    assert "one-sided preconditioner" in tables.curvature_text(conditioned, 10.0)


def test_looks_differ_without_colour():
    looks = list(figures.KINDS.values())
    assert len({look.marker for look in looks}) == len({look.line for look in looks}) == len(looks)
