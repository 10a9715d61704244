"""The chapter on the population loss: the set of minima, its curvature, Theorem 1, and what turns claims red."""

import warnings

import numpy as np
import pytest
import red
import torch

from attnbook import ledger
from attnbook.preconditioning import landscape, manifold
from attnbook.preconditioning.optimizer import warn_about_assumptions
from attnbook.preconditioning.population import (
    balance_penalty,
    excess_loss,
    sample_covariance,
    spectral_factors,
    square_roots,
)
from attnbook.preconditioning.population_loss import figures, geometry, simulation
from attnbook.preconditioning.population_loss.exercises import CHECKS
from attnbook.preconditioning.population_loss.experiments import Landscape, Minima, PopulationLoss

D, M = 3, 5
VALUES = (0.5, 0.3, 0.2)


def draw(*shape, seed=0):
    return torch.as_tensor(np.random.default_rng(seed).standard_normal(shape))


def whitened_map(outputs=M, seed=3):
    left = torch.linalg.qr(draw(outputs, D, seed=seed)).Q
    right = torch.linalg.qr(draw(D, D, seed=seed + 1)).Q
    return left * torch.tensor(VALUES, dtype=torch.float64) @ right.T


def covariance():
    return sample_covariance(draw(11, D, seed=7))


def turned(point):
    return point @ torch.linalg.qr(draw(D, D, seed=8)).Q


def test_stacking_whitens_and_unstacking_undoes_it():
    layers = draw(2, M, D), draw(2, D, D, seed=1)
    point = manifold.stack(*layers, covariance=covariance())
    assert point.shape == (2, M + D, D)
    for one, other in zip(manifold.unstack(point, covariance=covariance()), layers, strict=True):
        torch.testing.assert_close(one, other)


def test_the_loss_of_a_point_is_that_of_its_layers():
    layers, true_map = (draw(7, M, D), draw(7, D, D, seed=1)), draw(M, D, seed=2)
    root, _ = square_roots(covariance())
    expected = excess_loss(*layers, covariance=covariance(), true_map=true_map)
    expected = expected + balance_penalty(*layers, covariance=covariance())
    point = manifold.stack(*layers, covariance=covariance())
    torch.testing.assert_close(landscape.regularised_loss(point, true_map @ root), expected)


def test_gradient_and_curvature_equal_automatic_differentiation():
    point, direction, target = draw(M + D, D), draw(M + D, D, seed=1), whitened_map()
    loss = landscape.regularised_loss(point.requires_grad_(), target)
    (slope,) = torch.autograd.grad(loss, point, create_graph=True)
    (product,) = torch.autograd.grad((slope * direction).sum(), point)
    point = point.detach()
    torch.testing.assert_close(landscape.gradient(point, target), slope.detach())
    torch.testing.assert_close(landscape.curvature(point, direction, target), product)


def test_the_nearest_minimum_is_a_minimum_and_no_rotation_is_nearer():
    points, target = draw(13, M + D, D, seed=5), whitened_map()
    closest = manifold.nearest(points, target)
    assert landscape.regularised_loss(closest, target).max() < 1e-20
    turns, skew = torch.linalg.qr(draw(200, 1, D, D, seed=6)).Q, draw(200, 1, D, D, seed=7)
    small = torch.linalg.matrix_exp(1e-2 * (skew - skew.mT))
    for others in (manifold.minimum(target) @ turns, closest @ small):
        assert (torch.linalg.matrix_norm(others - points) > torch.linalg.matrix_norm(closest - points)).all()


def test_by_hand_one_number_each():
    """A S^(1/2) = 4: minima are +-(2, 2); from (3, 1) the nearest is (2, 2), at distance root two."""
    one = torch.ones(1, 1).double()
    assert torch.allclose(manifold.nearest(torch.tensor([[3.0], [1.0]]), 4 * torch.ones(1, 1)), 2 * torch.ones(2, 1))
    point = manifold.stack(3 * one, one, covariance=one)
    away = point - manifold.nearest(point, 4 * one)
    assert float(torch.linalg.matrix_norm(away)) == pytest.approx(2**0.5)


@pytest.mark.parametrize("outputs", [D, M])
@pytest.mark.parametrize("penalty", [0.0, 0.3, 1.0])
def test_the_spectrum_is_that_of_the_hessian(outputs, penalty):
    target = whitened_map(outputs)
    point = turned(manifold.minimum(target))
    hessian = torch.autograd.functional.hessian(lambda z: landscape.regularised_loss(z, target, penalty), point)
    eigenvalues = torch.linalg.eigvalsh(hessian.reshape(point.numel(), -1))
    predicted = landscape.hessian_spectrum(torch.tensor(VALUES, dtype=torch.float64), outputs, penalty)
    torch.testing.assert_close(eigenvalues, predicted, rtol=0, atol=1e-12)


def test_sideways_removes_the_rotations_and_nothing_else():
    base, skew = turned(manifold.minimum(whitened_map())), draw(D, D, seed=9)
    along = base @ (skew - skew.mT)
    assert manifold.sideways(along, base).abs().max() < 1e-12
    away = manifold.sideways(draw(7, M + D, D), base)
    product = base.mT @ away
    torch.testing.assert_close(product, product.mT)
    torch.testing.assert_close((away * along).sum((-2, -1)), torch.zeros(7).double(), rtol=0, atol=1e-12)


def test_what_leads_away_sideways_leads_away_from_the_nearest_minimum():
    target = whitened_map()
    base = manifold.minimum(target)
    length = torch.full((7,), (1.99 * 0.2) ** 0.5).double()
    away = geometry.of_length(draw(7, M + D, D), base, length)
    torch.testing.assert_close(manifold.nearest(base + away, target), base.expand(7, -1, -1))


@pytest.mark.parametrize(("outputs", "r"), [(M, 0.1), (M, 0.8), (M, 8 / 9), (D, 0.1), (D, 0.8), (D, 2.0)])
def test_the_worst_direction_attains_the_bound_or_shrinks_the_column(outputs, r):
    target = whitened_map(outputs)
    base = manifold.minimum(target)
    away = geometry.worst_direction(base, r)
    assert float(away.square().sum()) == pytest.approx(0.2 * r)
    ratio = float((landscape.gradient(base + away, target) * away).sum()) / (0.2 * 0.2 * r)
    bound = landscape.one_point_bound if outputs == M else landscape.shrinking_ratio
    assert ratio == pytest.approx(float(bound(torch.tensor(r))), abs=1e-6)


@pytest.mark.parametrize(("r", "expected"), [(0.0, 2.0), (2.0, 0.0), (0.5, 0.75)])
def test_the_shrinking_ratio_by_hand(r, expected):
    assert float(landscape.shrinking_ratio(torch.tensor(r))) == pytest.approx(expected)


def test_the_smoothness_bound_holds_everywhere():
    target = whitened_map()
    points = 3 * draw(500, M + D, D)
    away = points - manifold.nearest(points, target)
    length = torch.linalg.matrix_norm(away)
    ratio = torch.linalg.matrix_norm(landscape.gradient(points, target)) / (0.5 * length)
    assert (ratio <= landscape.growing_ratio(length.square() / 0.2, 0.4)).all()


@pytest.mark.parametrize(
    ("true_map", "message"),
    [
        (0.1 * draw(2, D), "Assumption 2"),
        (0.1 * draw(M, 1) @ torch.ones(1, D).double(), "linearly dependent"),
        (9 * draw(M, D), r"from 0.5 on.*Assumption 3"),
    ],
)
def test_failed_assumptions_are_named(true_map, message):
    with pytest.warns(UserWarning, match=message):
        warn_about_assumptions(spectral_factors(true_map, covariance())[2], len(true_map))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_about_assumptions(spectral_factors(0.01 * draw(M, D), covariance())[2], M)


def test_bad_settings_and_arguments_are_refused():
    with pytest.raises(ValueError, match="n_outputs"):
        landscape.hessian_spectrum(torch.ones(3), 2)
    wrong = {
        Landscape: ({"outputs": (5, 5)}, {"spreads": (2.0,)}, {"squared_distances": (0.1,)}, {"seeds": ()}),
        PopulationLoss: ({"sample_sizes": (32,)}, {"seeds": (1, 1)}),
        Minima: ({"n_outputs": 2}, {"hessian_outputs": (2,)}),
    }
    for kind, several in wrong.items():
        for bad in several:
            with pytest.raises(ValueError, match=next(iter(bad))):
                kind.at(**bad)


def test_pictures_and_sentences_show_what_was_measured(smoke_results):
    data = smoke_results[Landscape.id]
    assert "below 2.17" in figures.line_text(10, 0.7)
    text = figures.theorem_text(data, "m > d", 0.5)
    assert "m > d, weakest over strongest singular value 0.5" in text
    assert "63 % of the way" in text
    for figure in (figures.line_frame(10, 0.7), figures.theorem_frame(data, "m = d", 1.0)):
        assert figure.axes
        figures.plt.close(figure)


def test_the_simulated_loss_does_not_use_the_formula():
    """Attention by a plain loop gives the same attended inputs."""
    keys, key_query = np.random.default_rng(0).standard_normal((3, 7, 2)), np.array([[0.3, 0.1], [-0.2, 0.4]])
    for data, got in zip(keys, simulation.attend(keys, key_query), strict=True):
        weights = np.array([np.exp(key @ key_query @ data[0]) for key in data])
        np.testing.assert_allclose(got, weights @ data / weights.sum())


def test_moments_by_hand_in_one_dimension():
    """With a whitened V of 0.3: 1 / sqrt(1 - 2 k 0.09), 1 / sqrt(1 - 2 k 0.3) and 1 / 0.7, up to the sign of V."""
    drawn, closed = simulation.moments(1, 0.3, 300_000, np.random.default_rng(1))
    v = 0.3 * np.sign(drawn[2] - 1)
    expected = [0.82**-0.5, 0.64**-0.5, (1 - v) ** -0.5, (1 - 2 * v) ** -0.5, 1 / (1 - v)]
    np.testing.assert_allclose(closed, expected)
    np.testing.assert_allclose(drawn, closed, rtol=0.02)


def test_the_way_to_the_other_piece_passes_the_lowest_saddle():
    """The lowest straight one ends at the minimum with the weakest column turned around: it passes at the saddle."""
    target, turns = whitened_map(), torch.linalg.qr(draw(7, D, D, seed=6)).Q
    turns[0, :, 0] *= -1  # one of the other orientation
    assert float(geometry.barrier(manifold.minimum(target), turns, target)) == pytest.approx(0.2**2 / 2)


def test_convexity_in_one_layer_and_not_in_both():
    error, bent = geometry.convexity(draw(7, M + D, D), whitened_map())
    assert error < 1e-12
    assert bent == 1
    assert geometry.convexity(manifold.minimum(whitened_map())[None], whitened_map())[0] < 1e-12


def test_the_one_sided_ratio_meets_its_limit_for_small_displacements():
    values = torch.tensor([0.4, 0.3, 0.2], dtype=torch.float64)
    assert geometry.one_sided_ratio(values, 5, 10.0, 11, np.random.default_rng(0)) == pytest.approx(1.0, abs=0.01)


# For each claim a change of the stored arrays that turns it red; a factor, or a function of the data.
RED = {
    PopulationLoss: {
        "PC-A1": lambda d: d.assign(tilt_error=d.tilt_error + 0.01),
        "PC-A2": lambda d: d.assign(loss_gap=d.loss_gap + 0.0004 * (d.point == "a minimum")),
        "PC-A2-finite": lambda d: d.assign(loss_gap=d.loss_gap - 0.0006 * (d.n == 512)),
        "PC-A4": lambda d: d.assign(moments=d.moments * (1 + 0.02 * (d.moment == "E exp(1 q)"))),
    },
    Minima: {
        "PC-A5": lambda d: d.assign(gradient_error=d.gradient_error + 1e-6),
        "PC-T1-convex": lambda d: d.assign(bent=1 - d.bent),
        "PC-T1.1": lambda d: d.assign(minimum_gradient=d.minimum_gradient + 1e-6),
        "PC-T1.1-connected": lambda d: d.assign(barrier=0.99 * d.barrier),
        "PC-T1.2": lambda d: d.assign(smallest_eigenvalue=-d.smallest_eigenvalue),
        "PC-T1.2-singular": lambda d: d.assign(weakest=d.weakest / 1.2),
        "PC-T1.3-saddle": lambda d: d.assign(saddle_distance=d.saddle_distance + 1e-6),
        "PC-T1.5": lambda d: d.assign(eigenvalue_error=d.eigenvalue_error + 1e-6),
    },
    Landscape: {
        "PC-T1.3": lambda d: d.assign(found_smallest=0.99 * d.found_smallest),
        "PC-T1.3-sharp": lambda d: d.assign(beyond=1.1 * d.beyond),
        "PC-T1.3-square": lambda d: d.assign(found_smallest=d.found_smallest + 0.02),
        "PC-T1.3-left-sharp": lambda d: d.assign(one_sided=1.05 * d.one_sided),
        "PC-T1.4": lambda d: d.assign(random_largest=3 * d.random_largest),
        "PC-T1.4-sharp": lambda d: d.assign(found_largest=0.9 * d.found_largest),
        "PC-L2": lambda d: d.assign(largest_loss=2 * d.largest_loss),
    },
}
ALSO = {  # of claims whose rule has several parts
    PopulationLoss: {
        "PC-A2": lambda d: d.assign(loss_gap=d.loss_gap + 0.001 * (d.point == "another point")),
        "PC-A4": lambda d: d.assign(moments=d.moments * (1 + 0.02 * (d.moment == "E exp(xᵀVx − q/2)"))),
    },
    Minima: {
        "PC-T1-convex": lambda d: d.assign(convexity_error=d.convexity_error + 1e-6),
        "PC-T1.1": lambda d: d.assign(product_residual=d.product_residual + 1e-6),
        "PC-T1.1-connected": lambda d: d.assign(barrier=1.01 * d.barrier),
        "PC-T1.2": lambda d: d.assign(asymmetry=d.asymmetry + 1e-6),
        "PC-T1.2-singular": lambda d: d.assign(strongest=1.2 * d.strongest),
        "PC-T1.3-saddle": lambda d: d.assign(saddle_gradient=d.saddle_gradient + 1e-6),
    },
    Landscape: {
        "PC-T1.3": lambda d: d.assign(one_sided=0.4 * d.one_sided),
        "PC-T1.3-sharp": lambda d: d.assign(worst=1.001 * d.worst),
        "PC-T1.3-square": lambda d: d.assign(random_smallest=0.1 * d.random_smallest),
        "PC-T1.3-left-sharp": lambda d: d.assign(one_sided=0.9 * d.one_sided),
        "PC-T1.4-sharp": lambda d: d.assign(random_largest=3 * d.random_largest),
    },
}


@pytest.mark.parametrize("kind", RED)
def test_stored_claims_hold_and_each_part_of_each_rule_can_fail(kind):
    data, measure = kind.load_stored("book"), kind.at("book").measurements
    assert all(v.outcome == v.claim.verdict for v in ledger.check(data).verdicts)
    red.assert_every_claim_turns(measure, data, RED[kind], ALSO[kind].items())


def test_what_happens_beyond_the_radius_concerns_only_claims_about_all_distances():
    data = Landscape.load_stored("book")
    outside = data.distance > landscape.RADIUS
    far = {name: data[name].where(~outside, 0.5 * data[name]) for name in ("worst", "random_smallest")}
    assert failed(data.assign(far), Landscape, "book") == {"PC-T1.3-square"}


def failed(data, kind, scale):
    """Claims that are red."""
    return {i for i, outcome in red.outcomes(kind.at(scale).measurements, data).items() if outcome == "not reproduced"}


def test_a_wrong_projection_turns_lemma_1_red(monkeypatch):
    """The minimum farthest from a point has a symmetric product with it, too."""
    honest = manifold.nearest
    monkeypatch.setattr(manifold, "nearest", lambda *a: -honest(*a))
    assert "PC-T1.2" in failed(Minima.at("smoke").run(device="cpu"), Minima, "smoke")


@pytest.mark.parametrize(
    ("factor", "claims"),
    [
        (0.5, {"PC-T1.3", "PC-T1.3-sharp", "PC-T1.3-left-sharp", "PC-T1.4-sharp"}),
        (2, {"PC-T1.4", "PC-T1.4-sharp", "PC-T1.3-sharp"}),
    ],
)
def test_a_gradient_of_the_wrong_length_turns_theorem_1_red(factor, claims, monkeypatch):
    honest = landscape.gradient
    monkeypatch.setattr(landscape, "gradient", lambda *a: factor * honest(*a))
    assert claims <= failed(Landscape.at("smoke", search_steps=60).run(device="cpu"), Landscape, "smoke")


RIGHT = {
    "PC-4": lambda query, key_query: np.tanh(key_query @ query),
    "PC-6": lambda s, m: (min(s) * (1 if m > len(s) else 2), 2 * max(s)),
}


@pytest.mark.parametrize("exercise", RIGHT)
def test_right_answers_pass(exercise):
    assert CHECKS[exercise](RIGHT[exercise]) is None


@pytest.mark.parametrize(
    ("exercise", "answer", "message"),
    [
        ("PC-4", lambda z, V: V @ z, "Gaussian keys"),
        ("PC-4", lambda z, V: np.tanh(V.T @ z), "untransposed"),
        ("PC-4", lambda z, V: np.sinh(V @ z), "divide by cosh"),
        ("PC-4", lambda z, V: 0.0, "shape"),
        ("PC-6", lambda s, m: (min(s), 2 * max(s)), "without spare outputs"),
        ("PC-6", lambda s, m: (2 * min(s), 2 * max(s)), "spare output"),
        ("PC-6", lambda s, m: (min(s), max(s)), "s_1"),
        ("PC-6", lambda s, m: (0, 2 * max(s)), "rotations"),
        ("PC-6", lambda s, m: 0.0, "shape"),
    ],
)
def test_wrong_answers_get_their_mistake_named(exercise, answer, message):
    assert message in CHECKS[exercise](answer)
