"""Bad minima, linear pieces, exact fits: closed forms against samples, counts against formulas, rules that can fail."""

import itertools
import math
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import red
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import attnbook
from attnbook import lab, ledger
from attnbook.global_attention import population
from attnbook.global_attention.regions import count_regions, crossover_width, hinge_network, region_bound
from attnbook.global_attention.two_layer import Hessian, Softplus

own = lab.load_script(Path(__file__).parents[2] / "chapters" / "global_attention" / "counting.py")
MADE = {name: getattr(own, name) for name in ("bad_minima", "trained_networks", "exact_fits")}
EYE = torch.eye(8, dtype=torch.float64)


@pytest.fixture(scope="module")
def stored():
    return {name: made.stored() for name, made in MADE.items()}


def network(units=5, seed=0):
    g = torch.Generator().manual_seed(seed)
    shapes = (2, units, 8), (2, units)
    return [torch.randn(*shape, generator=g, dtype=torch.float64) for shape in shapes]


def on_the_sphere(n=200_000):
    x = torch.randn(n, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return x * math.sqrt(8) / x.norm(dim=1, keepdim=True)


def test_population_loss_is_the_mean_over_inputs_on_the_sphere():
    (rows, decoder), x = network(), on_the_sphere()
    errors = [(x @ r.T).relu() @ u - x.relu().sum(1) for r, u in zip(rows, decoder, strict=True)]
    means = torch.stack([e.square().mean() for e in errors])
    torch.testing.assert_close(population.population_loss(rows, decoder), means, rtol=0.01, atol=0)
    assert population.label_variance(8) == pytest.approx(x.relu().sum(1).var().item(), rel=0.01)
    torch.testing.assert_close(population.mean_relu(rows[0]), (x @ rows[0].T).relu().mean(0), rtol=0.01, atol=0)
    assert population.mean_products(EYE, EYE)[0][0, :2].tolist() == pytest.approx([0.5, 1 / (2 * math.pi)])


def test_its_gradient_is_that_of_automatic_differentiation_and_zero_at_the_teacher():
    rows, decoder = (part.requires_grad_() for part in network())
    automatic = torch.autograd.grad(population.population_loss(rows, decoder).sum(), (rows, decoder))
    for one, other in zip(population.population_gradient(rows.detach(), decoder.detach()), automatic, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    assert max(float(g.abs().max()) for g in population.population_gradient(EYE, EYE.sum(0))) < 1e-6


def test_what_is_seen_of_a_network_agrees_with_samples():
    (rows, decoder), x = ([part[0] for part in network(8)], on_the_sphere(100_000))
    seen = own.look_at(rows, decoder, 9)
    error = (x @ rows.T).relu() @ decoder - x.relu().sum(1)
    on = (x @ rows.T > 0).double()
    slopes = (on[:, :, None] * x[:, None]).flatten(1)
    correlations = torch.corrcoef(torch.cat([error[None], slopes.T]))[0, 1:]
    assert seen["correlation"] == pytest.approx(correlations.abs().max().item(), abs=0.01)
    assert seen["mean_error"] == pytest.approx((error.mean().abs() / error.std()).item(), abs=0.01)
    unit = rows / rows.norm(dim=1, keepdim=True)
    assert seen["least_variance"] == pytest.approx(
        torch.linalg.eigvalsh(torch.cov((x @ unit.T).relu().T))[0].item(), abs=0.005
    )
    assert np.isnan(seen["directions"][8]).all()
    np.testing.assert_allclose(np.linalg.norm(seen["directions"][:8], axis=1), 1)


def test_curvatures_are_those_of_differences_of_the_gradient():
    rows, decoder = (part[0] for part in network(3))
    flat, columns = torch.cat([rows.flatten(), decoder]), []
    for step in 1e-5 * torch.eye(27, dtype=torch.float64):
        ends = [population.population_gradient(v[:24].view(3, 8), v[24:]) for v in (flat + step, flat - step)]
        plus, minus = (torch.cat([part.flatten() for part in end]) for end in ends)
        columns.append((plus - minus) / 2e-5)
    values = torch.linalg.eigvalsh(torch.stack(columns))
    seen = own.look_at(rows, decoder, 3)
    assert seen["lowest_curvature"] == pytest.approx(values[0].item(), rel=1e-5)
    assert seen["first_curvature"] == pytest.approx(values[3].item(), rel=1e-4, abs=1e-6)


def test_a_network_at_a_bad_end_stays_there_and_one_near_the_teacher_finds_it(stored):
    rows, decoder = (part[0] for part in network(8, seed=3))
    end = own.settled(EYE + 0.05 * rows, EYE.sum(0) + 0.05 * decoder, 500)
    assert end[2] < own.FOUND * 1.01
    worst = stored["bad_minima"].sel(width=8, way="no mask")
    cosines = worst.directions.values[:, :8]
    missing = cosines.max(1).argmin(1)
    for one, k in zip(cosines, missing, strict=True):  # what the chapter says of its picture
        up = np.sort(one[:, k])
        assert up[0] < -0.8
        assert (abs(up[1:] - 0.22) < 0.01).all()
        assert (np.sort(one.max(1))[1:] > 0.96).all()


def test_what_the_chapter_says_of_bad_ends(stored):
    data = stored["bad_minima"]
    bad = (data.error >= own.BAD) & (data.gradient <= own.AT_REST)
    assert (bad == (data.error >= own.BAD)).all()  # whatever is bad is at rest
    assert 0.1 < bad.sel(width=8, way="no mask").mean() < 0.15
    assert int(bad.sel(width=9).sum()) == 1
    assert not bad.sel(width=[10, 12]).any()
    assert abs(data.error.where(bad).sel(width=8) - 0.0208).max() < 1e-4


def largest_region_count(width, n_inputs, biases=True):
    """Zaslavsky's: with biases in general position; without them all planes pass through the origin."""
    if biases:
        return sum(math.comb(width, k) for k in range(n_inputs + 1))
    return 2 * sum(math.comb(width - 1, k) for k in range(n_inputs))


def test_three_lines_make_seven_regions_parallel_ones_four_and_central_ones_six():
    square = np.array([[1.0, 0], [0, 1], [1, 1]])
    assert count_regions(square, np.array([0.0, 0, -1])) == 7
    assert count_regions(square, np.zeros(3)) == 6
    assert count_regions(np.array([[1.0, 0], [2, 0], [-1, 0]]), np.array([0.0, 1, 2])) == 4
    repeated = np.array([[1.0, 2], [-3, -6], [0, 0]])
    assert count_regions(repeated, np.array([1.0, -3, 5])) == 2


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 7), st.integers(1, 3), st.integers(0, 1000))
def test_random_hyperplanes_reach_the_maximum(units, inputs, seed):
    rng = np.random.default_rng(seed)
    normals, offsets = rng.standard_normal((units, inputs)), rng.standard_normal(units)
    assert count_regions(normals, offsets) == largest_region_count(units, inputs)
    assert count_regions(normals, 0 * offsets) == largest_region_count(units, inputs, biases=False)


@pytest.mark.parametrize(("width", "kept"), [(6, 2), (8, 2), (10, 2), (12, 2), (9, 3), (12, 3)])
def test_the_construction_of_the_proof_has_q_plus_one_pieces_per_axis(width, kept):
    normals, offsets, decoder = hinge_network(width, kept)
    q = width // kept
    assert count_regions(normals, offsets) == (q + 1) ** kept > region_bound(width, kept)
    x = np.arange(-1, q, 1 / 8)[:, None] * np.eye(kept)[0]
    slopes = np.diff(np.maximum(x @ normals.T + offsets, 0) @ decoder) / np.diff(x[:, 0])
    assert sorted(set(slopes.round(6))) == [-1.0, 0.0, 1.0]


def test_the_bound_needs_biases_for_two_inputs():
    widths = range(3, 200)
    assert all(region_bound(n, 2) <= largest_region_count(n, 2) for n in widths)
    above = [n for n in widths if region_bound(n, 2) > largest_region_count(n, 2, biases=False)]
    assert above == list(range(10, 200))
    counts = largest_region_count(16, 2, biases=False), region_bound(16, 2), largest_region_count(16, 2)
    assert counts == (32, 64, 137)
    assert all(region_bound(n, 8) <= largest_region_count(n, 8, biases=False) for n in range(9, 5001))


def test_the_bounds_of_figure_1_and_the_width_of_c3():
    at_5000 = [region_bound(5000, s) for s in (5, 10, 20, 50, 80, 100)]
    assert all(b >= 10**11 * a for a, b in itertools.pairwise(at_5000))
    settled = []
    for kept in (5, 10, 20, 50, 80):
        width = crossover_width(100, kept)
        for n in (0.9 * width, 1.1 * width):
            assert (kept * math.log(n / kept) <= 100 * math.log(n / 100)) == (n > width)
        settled.append(max(n for n in range(1, 5001) if region_bound(n, kept) > region_bound(n, 100)) / width)
    assert max(settled) == pytest.approx(2.04, abs=0.005)
    assert region_bound(199, 100) == 1
    assert crossover_width(100, 50) == pytest.approx(200)


def test_only_entries_that_are_exactly_zero_lower_the_number_of_regions():
    rng = np.random.default_rng(7)
    normals, offsets = rng.standard_normal((7, 4)), rng.standard_normal(7)
    full, tiny, zero = (count_regions(normals * [1, 1, m, m], offsets) for m in (1, 1e-6, 0))
    assert tiny == full > zero == largest_region_count(7, 2)


def softplus_features(rng, n, p, d):
    before = (rng.standard_normal((n, p)) * rng.random(p)) @ rng.standard_normal((p, d))
    return before, Softplus(10.0)(torch.from_numpy(before)).numpy()


@pytest.mark.parametrize("width", [5, 10, 20, 30, 39, 40, 41, 60])
def test_softplus_features_have_full_rank_and_what_enters_them_has_not(width):
    before, after = softplus_features(np.random.default_rng(width), 40, 20, width)
    assert np.linalg.matrix_rank(after) == min(width, 40)
    assert np.linalg.matrix_rank(before) == min(width, 20)


def fitted(width, steps=150):
    rng, (n, p) = np.random.default_rng(0), (11, 3)
    start = np.concatenate([np.ones(p), rng.standard_normal(width * (p + 1))])
    one = [torch.from_numpy(np.stack([a, a])) for a in (start, rng.standard_normal((n, p)), rng.standard_normal(n))]
    return own.fit(*one, torch.tensor([False, True]), Softplus(2.0), steps), one


def test_as_many_units_as_samples_are_fitted_exactly_and_the_mask_of_the_baseline_stays():
    (weights, gradients), (_start, x, y) = fitted(13)
    assert (gradients < 1e-10).all()
    outputs = Softplus(2.0)((x[1] * weights[1, :3]) @ weights[1, 3:42].view(13, 3).T) @ weights[1, 42:]
    torch.testing.assert_close(outputs, y[1], rtol=0, atol=1e-9)
    assert (weights[0, :3] == 1).all()
    assert (weights[1, :3] != 1).any()


def test_the_gradient_of_a_fit_is_that_of_the_loss():
    (weights, gradients), (_, x, y) = fitted(2, steps=4)
    mask, first, last = weights[1].split([3, 6, 2])
    parts = mask, first.view(2, 3), last[None], x[1], y[1][None]
    point = Hessian(*parts, activation=Softplus(2.0), loss="squared")
    assert gradients[1].item() == pytest.approx(point.gradient.norm().item(), rel=1e-9)


def test_pieces_and_fits_are_what_the_chapter_says(stored):
    pieces = stored["trained_networks"].patterns.median("seed")
    assert pieces.sel(network="baseline").isel(samples=-1) < 0.3 * pieces.sel(network="baseline").isel(samples=0)
    fits = stored["exact_fits"]
    assert (fits.loss.sel(width=[10, 20, 40]) <= own.FITTED).all()


RED = {
    "bad_minima": {"GA-A5": red.scaled("correlation", 20), "GA-B-init": red.scaled("error", 0.1)},
    "trained_networks": {
        "GA-A5-covariance": lambda d: d.assign(least_variance=d.least_variance + 0.01),
        "GA-T3-patterns": red.scaled("patterns", 4, network="l1_attention"),
    },
    "exact_fits": {"GA-T5-stuck": red.scaled("gradient", 1e6)},
}
PARTS = [
    ("bad_minima", "GA-A5", red.scaled("first_curvature", 0.01)),
    ("bad_minima", "GA-A5", red.scaled("lowest_curvature", 1e4)),
    ("bad_minima", "GA-A5", red.scaled("least_variance", 0.1)),
    ("bad_minima", "GA-A5", red.scaled("error", 0.1)),
    ("trained_networks", "GA-T3-patterns", red.scaled("error", 20, network="l1_attention")),
    ("exact_fits", "GA-T5-stuck", lambda d: d.assign(loss=d.loss + 1e-6)),
]


@pytest.mark.parametrize("name", RED)
def test_every_measured_claim_of_the_chapter_can_be_turned_red(name, stored):
    others = [(claim, change) for of, claim, change in PARTS if of == name]
    red.assert_every_claim_turns(MADE[name].measure, stored[name], RED[name], others)


def test_every_claim_of_the_chapter_is_measured_or_says_why_not():
    mine = {c.id: c for c in ledger.claims() if c.chapter == "global_attention/counting"}
    found = {claim for claims in RED.values() for claim in claims}
    assert set(mine) - found == {i for i, c in mine.items() if c.checked}
    assert sum(c.source == "book" for c in mine.values()) == 1


def test_pictures_draw(stored):
    data = stored["bad_minima"]
    figures = [
        own.arrows({"mine": np.eye(3), "stuck": data.directions[0, 0, 0].values}),
        own.by_width(data, 8),
        own.region_bounds(),
    ]
    assert all(ax.get_ylabel() for figure in figures for ax in figure.axes[:1])
    plt.close("all")
    assert own.by_width_text(data, 10).startswith("10 units: 0 of 180")


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: region_bound(0, 1), "width"),
        (lambda: crossover_width(5, 5), "n_relevant"),
        (lambda: hinge_network(3, 3), "width"),
        (lambda: count_regions(np.full((1, 2), np.nan), np.zeros(1)), "normals"),
        (lambda: own.bad_minima.run(starts=0), "starts"),
        (lambda: own.exact_fits.run(widths=(5, 3)), "widths"),
    ],
)
def test_bad_arguments_are_refused_by_name(call, name):
    with pytest.raises(ValueError, match=name):
        call()


def first(s, margin):
    return next(n for n in range(s + 1, 999) if region_bound(n, s) - largest_region_count(n, s, False) > margin)


def rank(m, p, d):
    """By a random network."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((m, p))
    before = np.concatenate([x, -x]) @ rng.standard_normal((p, d))
    return np.linalg.matrix_rank(Softplus(1.0)(torch.from_numpy(before)).numpy(), tol=1e-8)


@pytest.mark.parametrize(
    ("exercise", "right", "wrong", "hint"),
    [
        ("GA-L1", lambda s: first(s, 0), lambda s: first(s, -1), "no failure"),
        ("GA-L4", rank, lambda m, p, d: min(2 * m, d), "a pair adds only"),
        ("GA-L4", rank, lambda m, p, d: min(m, d), "of which there are p"),
    ],
)
def test_exercises_accept_the_right_answer_and_name_the_mistake(exercise, right, wrong, hint):
    assert attnbook.check(exercise, right).right
    assert hint in attnbook.check(exercise, wrong).message
