"""The chapter on the population loss: the set of minima, its curvature, Theorem 1, and what turns claims red."""

import warnings

import numpy as np
import pytest
import torch

from attnbook import ledger
from attnbook.preconditioning import assumptions, landscape, manifold
from attnbook.preconditioning.population import balance_penalty, excess_loss, sample_covariance, square_roots
from attnbook.preconditioning.population_loss import checks, contraction, figures, simulation, tables
from attnbook.preconditioning.population_loss.exercises import CHECKS
from attnbook.preconditioning.population_loss.experiments import Landscape, Minima, PopulationLoss
from attnbook.preconditioning.population_loss.valley import Valley

D, M = 3, 5


def draw(*shape, seed=0):
    return torch.as_tensor(np.random.default_rng(seed).standard_normal(shape))


def whitened_map(values=(0.5, 0.3, 0.2), outputs=M, seed=3):
    left = torch.linalg.qr(draw(outputs, len(values), seed=seed)).Q
    right = torch.linalg.qr(draw(len(values), len(values), seed=seed + 1)).Q
    return left * torch.tensor(values, dtype=torch.float64) @ right.T


def covariance():
    return sample_covariance(draw(11, D, seed=7))


def failed(data, kind, scale="book", **wrong):
    """Claims that are red, with some arrays replaced."""
    verdicts = ledger.check(kind.at(scale).measurements(data.assign(wrong))).verdicts
    return {v.claim.id for v in verdicts if v.outcome == "not reproduced"}


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


def test_the_nearest_minimum_is_a_minimum_and_none_is_nearer():
    points, target = draw(13, M + D, D, seed=5), whitened_map()
    closest = manifold.nearest(points, target)
    assert landscape.regularised_loss(closest, target).max() < 1e-20
    turns = torch.linalg.qr(draw(200, 1, D, D, seed=6)).Q
    others = torch.linalg.matrix_norm(manifold.minimum(target) @ turns - points)
    assert (others > torch.linalg.matrix_norm(closest - points)).all()


def test_a_transposed_rotation_would_not_be_nearest():
    """The mistake that a wrong order of the two factors makes."""
    point, start = draw(M + D, D, seed=5), manifold.minimum(whitened_map())
    left, _, right = torch.linalg.svd(start.mT @ point)
    wrong = start @ (left @ right).mT
    right_one = manifold.nearest(point, whitened_map())
    assert torch.linalg.matrix_norm(wrong - point) > torch.linalg.matrix_norm(right_one - point) + 0.01


def test_by_hand_one_number_each():
    """A S^(1/2) = 4: minima are +-(2, 2); from (3, 1) the nearest is (2, 2), at distance root two."""
    one = torch.ones(1, 1).double()
    assert torch.allclose(manifold.nearest(torch.tensor([[3.0], [1.0]]), 4 * torch.ones(1, 1)), 2 * torch.ones(2, 1))
    with pytest.warns(UserWarning, match="Assumption 3"):
        far = manifold.distance(3 * one, one, covariance=one, true_map=4 * one)
    assert float(far) == pytest.approx(2**0.5)


def test_project_keeps_what_is_a_minimum_already():
    true_map = 0.1 * draw(M, D, seed=2)
    layers = manifold.project(draw(M, D), draw(D, D, seed=1), covariance=covariance(), true_map=true_map)
    again = manifold.project(*layers, covariance=covariance(), true_map=true_map)
    for one, other in zip(layers, again, strict=True):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(layers[0] @ covariance() @ layers[1], true_map)


@pytest.mark.parametrize("outputs", [D, M])
@pytest.mark.parametrize("penalty", [0.0, 0.3, 1.0])
def test_the_spectrum_is_that_of_the_hessian(outputs, penalty):
    target = whitened_map(outputs=outputs)
    point = manifold.minimum(target) @ torch.linalg.qr(draw(D, D, seed=8)).Q
    hessian = torch.autograd.functional.hessian(lambda z: landscape.regularised_loss(z, target, penalty), point)
    eigenvalues = torch.linalg.eigvalsh(hessian.reshape(point.numel(), -1))
    predicted = landscape.hessian_spectrum(torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), outputs, penalty)
    torch.testing.assert_close(eigenvalues, predicted, rtol=0, atol=1e-12)


def test_sideways_removes_the_rotations_and_nothing_else():
    base = manifold.minimum(whitened_map()) @ torch.linalg.qr(draw(D, D, seed=8)).Q
    skew = draw(D, D, seed=9)
    along = base @ (skew - skew.mT)
    assert manifold.sideways(along, base).abs().max() < 1e-12
    away = manifold.sideways(draw(7, M + D, D), base)
    product = base.mT @ away
    torch.testing.assert_close(product, product.mT)
    torch.testing.assert_close((away * along).sum((-2, -1)), torch.zeros(7).double(), rtol=0, atol=1e-12)


def test_what_leads_away_sideways_leads_away_from_the_nearest_minimum():
    target = whitened_map()
    base = manifold.minimum(target)
    away = manifold.sideways(draw(7, M + D, D), base)
    away = away * ((1.99 * 0.2) ** 0.5 / torch.linalg.matrix_norm(away))[:, None, None]
    torch.testing.assert_close(manifold.nearest(base + away, target), base.expand(7, -1, -1))


@pytest.mark.parametrize("r", [0.1, 0.5, 0.8, 8 / 9])
def test_the_worst_direction_attains_the_bound_with_a_spare_output(r):
    target = whitened_map()
    base = manifold.minimum(target)
    away = landscape.worst_direction(base, r)
    assert float(away.square().sum()) == pytest.approx(0.2 * r)
    ratio = float((landscape.gradient(base + away, target) * away).sum()) / (0.2 * 0.2 * r)
    assert ratio == pytest.approx(1 - 5 * r / 8)


@pytest.mark.parametrize("r", [0.1, 0.8, 2.0])
def test_without_a_spare_output_the_column_shrinks(r):
    target = whitened_map(outputs=D)
    base = manifold.minimum(target)
    away = landscape.worst_direction(base, r)
    ratio = float((landscape.gradient(base + away, target) * away).sum()) / (0.2 * 0.2 * r)
    assert ratio == pytest.approx(float(landscape.shrinking_ratio(torch.tensor(r))), abs=1e-6)


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


def test_moments_by_hand_and_where_they_are_infinite():
    whitened = torch.diag(torch.tensor([0.3, -0.2], dtype=torch.float64))
    assert float(assumptions.normaliser_moment(whitened, 2.0)) == pytest.approx((0.64 * 0.84) ** -0.5)
    assert float(assumptions.score_moment(whitened, 1.0)) == pytest.approx((0.4 * 1.4) ** -0.5)
    assert float(assumptions.self_moment(whitened)) == pytest.approx(1 / (0.7 * 1.2))
    assert torch.isinf(assumptions.normaliser_moment(whitened, 6.0))
    assert torch.isinf(assumptions.self_square_moment(whitened))
    assert float(assumptions.self_square_moment(whitened / 2)) == pytest.approx((0.445 * 1.42) ** -0.5)
    assert torch.isinf(assumptions.score_moment(torch.eye(2).double() / 2, 1.0))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"value": draw(2, D), "true_map": 0.1 * draw(2, D)}, "Assumption 2"),
        ({"true_map": 0.1 * draw(M, 1) @ torch.ones(1, D).double()}, "linearly dependent"),
        ({"true_map": 9 * draw(M, D)}, r"from 0.5 on.*Assumption 3"),
    ],
)
def test_failed_assumptions_are_named(changes, message):
    good = {"value": draw(M, D), "key_query": draw(D, D), "covariance": covariance(), "true_map": 0.01 * draw(M, D)}
    for function in (manifold.project, manifold.distance):
        with pytest.warns(UserWarning, match=message):
            function(**(good | changes))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        manifold.distance(**good)


@pytest.mark.parametrize("wrong", [torch.ones(D, D), torch.eye(D) + torch.eye(D).roll(1, 0), torch.eye(D) * torch.nan])
def test_what_is_no_covariance_is_refused(wrong):
    with pytest.raises(ValueError, match="covariance"):
        manifold.distance(draw(M, D), draw(D, D), covariance=wrong.double(), true_map=draw(M, D))


def test_bad_settings_and_arguments_are_refused():
    with pytest.raises(ValueError, match="n_outputs"):
        landscape.hessian_spectrum(torch.ones(3), 2)
    with pytest.raises(ValueError, match="singular_values"):
        landscape.hessian_spectrum(torch.zeros(3), 3)
    with pytest.raises(ValueError, match="variance"):
        Valley(-1.0)
    with pytest.raises(ValueError, match="penalty"):
        Valley(1.0, penalty=-1.0)
    wrong = {
        Landscape: ({"outputs": (5, 5)}, {"spreads": (2.0,)}, {"squared_distances": (0.1,)}, {"seeds": ()}),
        PopulationLoss: ({"sample_sizes": (32,)}, {"loss_singular_values": (0.1,)}, {"loss_draws": 1}),
        Minima: ({"n_outputs": 2}, {"hessian_outputs": (2,)}),
    }
    for kind, several in wrong.items():
        for bad in several:
            with pytest.raises(ValueError, match=next(iter(bad))):
                kind.at(**bad)


def test_points_on_the_edge_are_there_and_worst_where_they_should_be():
    values = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    points, target = contraction.edge_points(values, M, n_random=7, rng=np.random.default_rng(0))
    closest = manifold.nearest(points, target)
    length = (points - closest).square().sum((-2, -1))
    torch.testing.assert_close(length, torch.full((9,), 0.16).double())
    back, steep = contraction.ratios(points - closest, closest, target, values)
    assert float(back[0]) == pytest.approx(0.5)
    assert float(steep[1]) == pytest.approx(float(landscape.growing_ratio(torch.tensor(0.8), 0.4)))
    assert (back > 0.5 - 1e-9).all()
    assert (steep < steep[1] + 1e-9).all()


def test_steps_to_shrink_by_hand_and_when_there_are_none():
    """One number each: near the minimum 1 each step multiplies the distance by 1 - 2 eta."""
    start, one = torch.full((1, 2, 1), 1 + 1e-6).double(), torch.ones(1, 1).double()
    assert contraction.steps_to_shrink(start, one, 0.25, factor=7.9).tolist() == [3]
    with pytest.raises(FloatingPointError, match="step_size"):
        contraction.steps_to_shrink(start, one, 1.2, most=20)


def test_tables_and_moving_figures_show_what_was_measured():
    data = Landscape.at("smoke").run(device="cpu")
    assert "below 2.17" in tables.line_text(10, 0.7)
    assert "m > d, weakest over strongest singular value 0.5" in tables.theorem_text(data, "m > d", 0.5)
    for figure in (figures.line_frame(10, 0.7), figures.theorem_frame(data, "m = d", 1.0)):
        assert figure.axes
        figures.plt.close(figure)
    assert "4.297" in tables.bounds(data)._repr_html_()
    assert "<td>0.50</td>" in tables.worst_together((1.0,))._repr_html_()
    assert "89 %" in tables.to_the_saddle(data)._repr_html_()
    assert "m = d" in tables.one_sided(data)._repr_html_()
    assert "none" in tables.line_reach(0.35, (10_000,))._repr_html_()
    assert "12 of 12" in tables.starts({"near": [0.1] * 12})._repr_html_()


@pytest.mark.parametrize("coordinates", ["original", "whitened"])
def test_a_valley_is_the_loss_and_its_curvature_that_of_the_loss(coordinates):
    valley = Valley(4.0, coordinates, 0.7, signal=0.9)
    u, v = valley.minimum
    step, offsets = 1e-4, np.array([-1, 0, 1])
    first, second = np.meshgrid(u + step * offsets, v + step * offsets, indexing="ij")
    loss = valley.loss(first, second)
    assert loss[1, 1] == pytest.approx(0, abs=1e-20)
    mixed = (loss[2, 2] - loss[2, 0] - loss[0, 2] + loss[0, 0]) / 4
    hessian = np.array([[loss[2, 1] + loss[0, 1], mixed], [mixed, loss[1, 2] + loss[1, 0]]]) / step**2
    np.testing.assert_allclose(np.linalg.eigvalsh(hessian), valley.curvatures, rtol=1e-3)
    assert np.linalg.norm(valley.descend((1.1, 0.9), 400)[-1] - np.array([u, v])) < 1e-3


def test_the_simulated_loss_does_not_use_the_formula():
    """Attention by a plain loop gives the same attended inputs."""
    keys, key_query = np.random.default_rng(0).standard_normal((3, 7, 2)), np.array([[0.3, 0.1], [-0.2, 0.4]])
    for data, got in zip(keys, simulation.attend(keys, key_query), strict=True):
        weights = np.array([np.exp(key @ key_query @ data[0]) for key in data])
        np.testing.assert_allclose(got, weights @ data / weights.sum())


def test_degrees_of_polynomials_are_found():
    c = torch.arange(8, dtype=torch.float64)
    assert checks.polynomial_degree(torch.full((8, 2), 3.0)) == 0
    assert checks.polynomial_degree((c**4 - 5 * c).outer(torch.ones(2).double())) == 4


def test_the_one_sided_ratio_meets_its_limit_for_small_displacements():
    values = torch.tensor([0.4, 0.3, 0.2], dtype=torch.float64)
    rng = np.random.default_rng(0)
    assert contraction.one_sided_ratio(values, 5, 10.0, 11, rng) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("kind", [Landscape, Minima, PopulationLoss])
def test_all_stored_claims_hold(kind):
    assert not failed(kind.load_stored("book"), kind)


def test_a_wrong_projection_turns_lemma_1_red(monkeypatch):
    """The minimum farthest from a point has a symmetric product with it, too."""
    honest = manifold.nearest
    monkeypatch.setattr(manifold, "nearest", lambda *a: -honest(*a))
    red = failed(Minima.at("smoke").run(device="cpu"), Minima, "smoke")
    assert {"PC-T1.2-nearest", "PC-T1.2-positive"} <= red
    assert "PC-T1.2" not in red


@pytest.mark.parametrize(
    ("factor", "claims"),
    [
        (0.5, {"PC-T1.3", "PC-T1.3-sharp", "PC-T1.3-left-sharp", "PC-T1.4-sharp"}),
        (2, {"PC-T1.4", "PC-T1.4-sharp", "PC-T1.3-tight"}),
    ],
)
def test_a_gradient_of_the_wrong_length_turns_theorem_1_red(factor, claims, monkeypatch):
    honest = landscape.gradient
    monkeypatch.setattr(landscape, "gradient", lambda *a: factor * honest(*a))
    assert claims <= failed(Landscape.at("smoke", search_steps=60).run(device="cpu"), Landscape, "smoke")


def test_each_rule_on_theorem_1_can_fail():
    data = Landscape.load_stored("book")
    outside = data.distance > landscape.RADIUS
    far = {name: data[name].where(~outside, 0.5 * data[name]) for name in ("worst", "random_smallest")}
    assert failed(data, Landscape, **far) == {"PC-T1.3-square"}  # the others speak of the neighbourhood only
    for name, factor, red in (
        ("one_sided", 0.4, {"PC-T1.3-left", "PC-T1.3-left-sharp"}),
        ("one_sided", 0.5, {"PC-T1.3-left-sharp"}),
        ("one_sided", 1.05, {"PC-T1.3-left-sharp"}),
        ("beyond", 1.1, {"PC-T1.3-sharp"}),
        ("found_smallest", 0.9, {"PC-T1.3", "PC-T1.3-sharp", "PC-T1.3-square"}),
        ("found_largest", 0.9, {"PC-T1.4-sharp"}),
        ("random_largest", 3.0, {"PC-T1.4", "PC-T1.4-sharp"}),
    ):
        assert failed(data, Landscape, **{name: factor * data[name]}) == red
    loose = {name: 2 * data[name] for name in ("worst", "random_smallest", "found_smallest")}
    assert failed(data, Landscape, **loose) == {"PC-T1.3-tight", "PC-T1.3-sharp", "PC-T1.3-square"}


def test_each_rule_on_the_minima_can_fail():
    data = Minima.load_stored("book")
    zeros = {
        "gradient_error": "PC-A5", "product_residual": "PC-T1.1", "balance_residual": "PC-T1.1",
        "minimum_gradient": "PC-T1.1-gradient", "asymmetry": "PC-T1.2", "eigenvalue_error": "PC-T1.5",
        "saddle_gradient": "PC-T1.3-saddle", "saddle_distance": "PC-T1.3-saddle",
    }  # fmt: skip
    for name, claim in zeros.items():
        assert failed(data, Minima, **{name: data[name] + 1e-3}) == {claim}
    for weight, layer in ((w, layer) for w in data.weight for layer in data.layer):
        wrong = data.degrees + ((data.weight == weight) & (data.layer == layer))
        assert failed(data, Minima, degrees=wrong) == {"PC-REG"}
    assert failed(data, Minima, nearer=0.9 / data.nearer) == {"PC-T1.2-nearest"}
    for name in ("smallest_eigenvalue", "change"):
        assert failed(data, Minima, **{name: -data[name] - 1e-3}) == {"PC-T1.2-positive"}


def test_each_rule_on_the_simulation_can_fail():
    data = PopulationLoss.load_stored("book")
    assert failed(data, PopulationLoss, tilt_error=data.tilt_error + 0.01) == {"PC-A1"}
    assert failed(data, PopulationLoss, loss_gap=data.loss_gap + 0.001) == {"PC-A2", "PC-A2-points"}
    at_minimum = data.loss_gap + 0.0004 * (data.point == "a minimum")
    assert failed(data, PopulationLoss, loss_gap=at_minimum) == {"PC-A2-points"}
    groups = {"PC-A4": "q)", "PC-A4-score": "xᵀVx)", "PC-A4-self": "q/2)"}
    for moment in data.moment.values:
        claim = next(claim for claim, end in groups.items() if moment.split(" ")[-1] == end)
        wrong = data.moments * (1 + 0.02 * (data.moment == moment))
        assert failed(data, PopulationLoss, moments=wrong) == {claim}


RIGHT = {
    "PC-4": lambda query, key_query: np.tanh(key_query @ query),
    "PC-5": lambda point, minimum: _procrustes(point, minimum),
    "PC-6": lambda s, m: (min(s) * (1 if m > len(s) else 2), 2 * max(s)),
}


def _procrustes(point, minimum):
    left, _, right = np.linalg.svd(minimum.T @ point)
    return minimum @ left @ right


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
        ("PC-5", lambda z, m: m, "rotated"),
        ("PC-5", lambda z, m: m @ np.linalg.lstsq(m, z, rcond=None)[0], "least squares"),
        ("PC-5", lambda z, m: z, "no minimum"),
        ("PC-6", lambda s, m: (min(s), 2 * max(s)), "without spare outputs"),
        ("PC-6", lambda s, m: (2 * min(s), 2 * max(s)), "spare output"),
        ("PC-6", lambda s, m: (min(s), max(s)), "s_1"),
        ("PC-6", lambda s, m: (0, 2 * max(s)), "rotations"),
    ],
)
def test_wrong_answers_get_their_mistake_named(exercise, answer, message):
    assert message in CHECKS[exercise](answer)
