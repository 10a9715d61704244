"""Metrics, descents near the minima, and the experiments on conditioning, rates and balance."""

from dataclasses import replace

import numpy as np
import pytest
import red
import torch

from attnbook.preconditioning import landscape
from attnbook.preconditioning.data import draw_problem
from attnbook.preconditioning.manifold import minimum, stack, unstack
from attnbook.preconditioning.metric import POWERS, condition_number, metric, preconditioned_spectrum
from attnbook.preconditioning.population import (
    balance_penalty,
    excess_loss,
    excess_loss_gradient,
    penalty_gradient,
    precondition,
    square_roots,
)
from attnbook.preconditioning.structure_aware_descent import figures, near_minima
from attnbook.preconditioning.structure_aware_descent.near_minima import (
    Balance,
    Conditioning,
    Convergence,
    Factorisation,
)

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
    size, one = torch.tensor([0.1, 1.0], dtype=torch.float64)
    descent = Factorisation(whitened_map, size, one, metric(covariance, M, kind))
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
    lost, _ = replace(descent, step_size=torch.tensor([0.01, 1e3]).double()).descend(start, 40)
    assert lost[-1].isfinite().tolist() == [True, False]


def test_fits_find_the_slope_of_an_exact_exponential(stored):
    result = stored["convergence"]
    slopes, explained = near_minima.log_line(np.exp(result.predicted * result.step), result.step, "record")
    np.testing.assert_allclose(slopes.transpose(*result.predicted.dims), result.predicted, rtol=1e-9)
    np.testing.assert_allclose(explained, 1)


def put(name, change, **where):
    """A change of one part of an array, chosen by its labels."""

    def changed(data):
        copied = data.copy(deep=True)
        copied[name].loc[where] = change(copied[name].loc[where])
        return copied

    return changed


def turned(values):
    """Large for small, whatever the dimension."""
    return 1 / (values + 1e-30)


RED = {
    "conditioning": {
        "PC-A7": put("difference", lambda v: v + 1e-9, kind="none", seed=3),
        "PC-C2": put("steps", lambda v: 2 * v, kind="two", kappa=10.0),
    },
    "convergence": {
        "PC-R1": put("distance", turned, outputs=5),
        "PC-REM2": put("regularised", turned, outputs=8),
        "PC-R1-square": put("excess", np.sqrt, outputs=8),
        "PC-R2": put("limit", lambda v: 0 * v.where(np.isfinite(v), 0), share=1.01, seed=2),
    },
    "balance": {
        "PC-C3": put("imbalance", lambda v: v + 1e-6, penalty=1.0, scale=3.0, seed=4),
        "PC-C4": put("iterations", lambda v: v / 10, outputs=5, penalty=1.0, scale=3.0),
    },
}
ALSO_RED = {  # a second way to fail
    "conditioning": {"PC-C2": put("condition", np.square, kind="none")},
    "convergence": {"PC-R1-square": put("excess", np.sqrt, outputs=5), "PC-R1": put("excess", np.cos, outputs=8)},
    "balance": {"PC-C4": put("iterations", lambda v: v / 10, outputs=8, penalty=0.0, scale=3.0)},
}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_changed_result_turns_each_verdict(name, stored):
    measure = EXPERIMENTS[name].at("book").measurements
    red.assert_every_claim_turns(measure, stored[name], RED[name], ALSO_RED[name].items())


@pytest.mark.parametrize("outputs", [8, 5])
def test_a_run_that_never_arrives_passes_no_rule(outputs, stored):
    never = put("iterations", lambda v: v + np.inf, outputs=outputs, scale=3.0)(stored["balance"])
    values = Balance.at("book").measurements(never)["PC-C4"].values
    assert values["large_values_save" if outputs == 8 else "square_costs"] == 0


SHORT = {
    "conditioning": Conditioning.at(
        "book", condition_numbers=(1.0, 10.0, 30.0), seeds=(0,), chunk=1, max_steps=50, compared=50
    ),
    "convergence": Convergence.at("book", step_sizes=(0.5,), limit_steps=20, seeds=(0,), chunk=1),
    "balance": Balance.at("book", steps=600, seeds=(0,), chunk=1),
}
"""What the claims below are read off is long enough, the rest is as short as can be."""


def run(name):
    return red.outcomes(SHORT[name].measurements, SHORT[name].run(device="cpu"))


def test_wrong_models_turn_claims_red(monkeypatch):
    right = {name: run(name) for name in EXPERIMENTS}
    true_step = Factorisation.step
    with monkeypatch.context() as patch:  # a regulariser of the wrong sign
        patch.setattr(Factorisation, "step", lambda self, point: true_step(replace(self, penalty=-self.penalty), point))
        wrong = {name: run(name) for name in EXPERIMENTS}
    for name, claim in (("conditioning", "PC-A7"), ("convergence", "PC-R1"), ("balance", "PC-C3")):
        assert right[name][claim] == ("identity" if claim == "PC-A7" else "reproduced")
        assert wrong[name][claim] == "not reproduced"
    with monkeypatch.context() as patch:  # one side taken for the other
        patch.setattr(near_minima, "metric", lambda c, m, kind: (torch.eye(m + c.shape[-1]).to(c), c.mT @ c))
        mistaken = run("conditioning")
        assert mistaken["PC-A7"] == "not reproduced"


@pytest.mark.parametrize(
    ("kind", "change", "name"),
    [
        (Conditioning, {"n_outputs": 4}, "n_outputs"),
        (Conditioning, {"condition_numbers": (1.0, 3.0, 10.0)}, "condition_numbers"),
        (Conditioning, {"condition_numbers": (3.0, 1.0, 10.0, 30.0)}, "condition_numbers"),
        (Convergence, {"outputs": (5, 8)}, "outputs"),
        (Convergence, {"shares": (0.9, 0.99)}, "shares"),
        (Convergence, {"step_sizes": (3.0,)}, "step_sizes"),
        (Convergence, {"records": 7}, "records"),
        (Balance, {"outputs": (8, 4)}, "outputs"),
        (Balance, {"scalings": (1.0, 3.0)}, "scalings"),
        (Balance, {"records": 2}, "records"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(kind, change, name):
    with pytest.raises(ValueError, match=name):
        kind.at("book", **change)


def test_the_pictures_draw(stored):
    drawn = [
        figures.against_condition(stored["conditioning"]),
        figures.rates(stored["convergence"]),
        figures.along_balance(stored["balance"]),
    ]
    assert all(ax.lines and ax.get_xlabel() for figure in drawn for ax in figure.axes)
    figures.plt.close("all")
