"""Token selection: lemmas by hand, searches of the path, what is certified, and every claim of the chapter in red."""

from decimal import Decimal, localcontext

import matplotlib.pyplot as plt
import numpy as np
import pytest
import red
import torch
import xarray as xr

import attnbook
from attnbook import ledger
from attnbook.mirror_descent import attention as models
from attnbook.mirror_descent import mirror
from attnbook.mirror_descent.attention_svm import attention_svm
from attnbook.mirror_descent.data import Problems, draw_problems, plane_tokens
from attnbook.mirror_descent.token_selection import experiments as own
from attnbook.mirror_descent.token_selection import figures
from attnbook.mirror_descent.token_selection import objective as theory
from attnbook.mirror_descent.token_selection import regularisation_path as paths

PROBLEMS = draw_problems([0, 1], n_samples=3, n_tokens=5, dimension=7)
WEIGHTS = np.random.default_rng(2).standard_normal((2, 7, 7))
ONE = Problems(*(part[:1] for part in vars(PROBLEMS).values()))
KINDS = {kind.id.partition(".")[2]: kind for kind in (own.Objective, own.TokenSelection, own.RegularisationPath)}


def log_excess(weights, problem):
    return paths._Sample.of(problem).log_excess(weights)


@pytest.fixture(scope="module")
def stored():
    return {name: kind.load_stored("book") for name, kind in KINDS.items()}


@pytest.mark.parametrize("name", theory.LOSSES)
def test_loss_slope_and_gradient_are_those_of_automatic_differentiation(name):
    losses = {
        "logistic": lambda m: torch.nn.functional.softplus(-m),
        "exponential": lambda m: (-m).exp(),
        "linear": lambda m: -m,
    }
    weights, loss, m = torch.tensor(WEIGHTS, requires_grad=True), theory.LOSSES[name], np.linspace(-3, 3, 13)
    attention = models.attention_weights(weights, models.Batch.of(PROBLEMS))
    value = losses[name]((attention * torch.tensor(PROBLEMS.token_scores)).sum(-1)).mean(-1)
    (gradient,) = torch.autograd.grad(value.sum(), weights)
    np.testing.assert_allclose(theory.training_loss(WEIGHTS, PROBLEMS, loss), value.detach(), rtol=1e-12)
    np.testing.assert_allclose(theory.loss_gradient(WEIGHTS, PROBLEMS, loss), gradient, atol=1e-13)
    np.testing.assert_allclose(loss.slope(m), (loss.value(m + 1e-6) - loss.value(m - 1e-6)) / 2e-6, rtol=1e-8)
    np.testing.assert_allclose(loss.steepest(m[:1]), np.abs(loss.slope(m)).max())


def test_the_bounds_of_lemma_16_by_hand():
    """One sample with scores 2 and -1, exponential loss; then two samples, linear loss."""
    one = Problems(np.array([[[[2.0], [-1.0]]]]), np.ones((1, 1, 1)), np.ones((1, 1)), np.ones((1, 1)))
    low, high = theory.loss_bounds(one, theory.LOSSES["exponential"])
    np.testing.assert_allclose([low[0], high[0]], np.exp([-2.0, 1.0]))
    two = Problems(np.array([[[[2.0], [-1.0]]] * 2]).reshape(1, 2, 2, 1), np.ones((1, 2, 1)), np.array([[1.0, -1.0]]),
                   np.ones((1, 1)))  # fmt: skip
    np.testing.assert_allclose(theory.loss_bounds(two, theory.LOSSES["linear"]), [[-1.5], [1.5]])


@pytest.mark.parametrize("p", [1.1, 2.0, 6.0])
def test_the_bound_of_lemma_18_is_attained_by_two_opposite_tokens_at_zero(p):
    rng, linear = np.random.default_rng(7), theory.LOSSES["linear"]
    token, query, decoder = rng.standard_normal(4), rng.standard_normal((1, 1, 4)), rng.standard_normal((1, 4))
    opposite = Problems(np.stack([token, -token])[None, None], query, np.ones((1, 1)), decoder)
    gradient = theory.loss_gradient(np.zeros((1, 4, 4)), opposite, linear)
    norm = mirror.entrywise_norm(gradient, float(mirror.conjugate(p)))
    np.testing.assert_allclose(norm, theory.gradient_bound(opposite, p, linear), rtol=1e-12)


def test_the_covariance_lemma_by_hand():
    """Two tokens of equal weight: covariance a g / 4 against a g / 2; the bound a g / 4 is attained."""
    left, right = theory.covariance_error(np.zeros(2), np.array([3.0, 0.0]), np.array([2.0, 0.0]))
    assert left == right == pytest.approx(1.5)


def test_far_out_the_gradient_as_it_reads_has_no_digit_and_the_packages_has_nearly_all():
    """Against the same formula with eighty decimal digits."""
    weights = 80 * attention_svm(ONE.tokens, ONE.queries, ONE.best_tokens, 2.0).weight
    exact = many_digits(weights[0], ONE)
    plain = theory.loss_gradient(weights, ONE, theory.LOSSES["logistic"])[0]
    _, careful = models.loss_and_gradient({"key_query": torch.tensor(weights)}, models.Batch.of(ONE))
    largest = np.abs(exact).max()
    assert np.abs(plain - exact).max() > 0.1 * largest
    np.testing.assert_allclose(careful["key_query"][0] / largest, exact / largest, atol=1e-10)


def many_digits(weights, problem):
    exact = np.vectorize(Decimal, otypes=[object])
    with localcontext() as context:
        context.prec = 80
        total, scores = exact(np.zeros(weights.shape)), exact(problem.token_scores[0])
        for x, z, score in zip(exact(problem.tokens[0]), exact(problem.queries[0]), scores, strict=True):
            powers = np.array([h.exp() for h in x.dot(exact(weights).dot(z))], dtype=object)
            s = powers / powers.sum()
            slope = -1 / (1 + (s * score).sum().exp()) / len(scores)
            total = total + np.multiply.outer((s * (score - (s * score).sum()) * slope).dot(x), z)
        return np.asarray(total, dtype=np.float64)


def test_training_holds_beyond_the_break_even_and_leaves_below_it():
    """Token E of the plane, p = 2, whose slack is the margin of token A above one."""
    plane, e = plane_tokens(), np.array([[4]])
    svm = attention_svm(plane.tokens, plane.queries, e, 2.0)
    slack, lead = theory.break_even(plane, 4, support=3, better=0)
    assert slack == pytest.approx(svm.margins[0, 0, 0] - 1, abs=1e-8)
    start = np.array([0.98, 1.02])[:, None, None] * lead / slack * svm.weight
    run = models.descend(plane.repeated(2), np.full(2, 2.0), steps=900, step_size=0.2, normalized=True, start=start)
    ends = theory.attention(run.records["key_query"][-1], plane.repeated(2))[:, 0].argmax(-1)
    assert ends.tolist() == [0, 4]
    with pytest.raises(ValueError, match="better: expected scores that rise"):
        theory.break_even(plane, 4, support=0, better=3)


def test_the_logarithm_of_the_excess_has_its_gradient():
    value, gradient = log_excess(WEIGHTS[0], ONE)
    low, _ = theory.loss_bounds(ONE, theory.LOSSES["logistic"])
    plain = theory.training_loss(WEIGHTS[:1], ONE, theory.LOSSES["logistic"])
    assert value == pytest.approx(float(np.log(plain - low)[0]), rel=1e-10)
    for entry in ((0, 0), (3, 5), (6, 1)):
        move = np.zeros((7, 7))
        move[entry] = 1e-6
        sides = [log_excess(WEIGHTS[0] + sign * move, ONE)[0] for sign in (1, -1)]
        assert gradient[entry] == pytest.approx((sides[0] - sides[1]) / 2e-6, abs=1e-7)


def test_the_excess_keeps_its_digits_far_out():
    """Two tokens on a line at distance two: attention of the other one is 1 / (1 + exp(2 w))."""
    line = Problems(np.array([[[[1.0], [-1.0]]]]), np.ones((1, 1, 1)), np.ones((1, 1)), np.ones((1, 1)))
    other = 1 / (1 + Decimal(400).exp())  # the excess is 2 other / (1 + e) to first order
    expected = float((2 * other / (1 + Decimal(1).exp())).ln())
    assert log_excess(np.array([[200.0]]), line)[0] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("p", [1.5, 3.0])
def test_a_path_ends_on_its_sphere_at_a_stationary_point(p):
    found = paths.follow(ONE, p, np.array([4.0, 8.0]), paths.interpolant(ONE), most_steps=500)
    np.testing.assert_allclose(mirror.entrywise_norm(found.weights, p), [4.0, 8.0], rtol=1e-10)
    assert found.slope.max() < 1e-3
    for weights in found.weights:
        gradient, outwards = log_excess(weights, ONE)[1], mirror.mirror_map(mirror.normalised(weights, p), p)
        aligned = gradient / np.linalg.norm(gradient) + outwards / np.linalg.norm(outwards)
        assert np.linalg.norm(aligned) < 1e-3


def test_the_interpolant_has_all_margins_equal_to_one():
    weights = paths.interpolant(ONE)
    for x, z, best in zip(ONE.tokens[0], ONE.queries[0], ONE.best_tokens[0], strict=True):
        np.testing.assert_allclose(np.delete((x[best] - x) @ weights @ z, best), 1.0, atol=1e-10)


def test_the_certificate_by_hand():
    """Scores 1 and -1 on a line: the best token's slope is 1 / (1 + e), and its rival costs 2."""
    line = Problems(np.array([[[[1.0], [-1.0]]]]), np.ones((1, 1, 1)), np.ones((1, 1)), np.ones((1, 1)))
    radius = float(theory.selecting_radius(line)[0])
    assert radius == pytest.approx(np.log(2 * (1 + np.e)))
    low, high = theory.excess_bounds(line, 3.0)
    assert low[0] == pytest.approx(2 / (1 + np.e) / (1 + np.exp(3.0)))
    assert high[0] == pytest.approx(2 * np.exp(-3.0))
    # W = rho / 2 is the smallest matrix of relative norm rho; nothing else has its norm but its opposite.
    assert np.log(low[0]) <= log_excess(np.array([[1.5]]), line)[0] <= np.log(high[0])
    # At the radius the upper bound is the price of a wrong token.
    assert theory.excess_bounds(line, radius)[1][0] == pytest.approx(1 / (1 + np.e))


@pytest.mark.parametrize("p", [1.5, 2.0, 3.0])
def test_what_is_no_worse_than_the_ray_has_the_certified_direction_and_not_the_other_way_round(p):
    """The certificate convicts and never acquits: some matrices of that direction cannot be minimisers."""
    svm = attention_svm(ONE.tokens, ONE.queries, ONE.best_tokens, p)
    bounds, ray, rng = theory.excess_bounds(ONE, 80.0), mirror.normalised(svm.weight[0], p), np.random.default_rng(0)
    certified = theory.certified_divergence(80.0, np.log(bounds[1] / bounds[0]))[0]
    assert 0 < certified < 0.5
    acquitted = convicted = 0
    for size in np.geomspace(1e-4, 1, 200):
        unit = mirror.normalised(ray + size * np.abs(ray).max() * rng.standard_normal(ray.shape), p)
        near = mirror.bregman_divergence(unit, ray, p) <= certified
        no_worse = log_excess(80.0 * svm.norm[0] * unit, ONE)[0] <= np.log(bounds[1][0])
        assert near or not no_worse
        acquitted, convicted = acquitted + no_worse, convicted + (near and not no_worse)
    assert min(acquitted, convicted) > 10
    low, high = theory.excess_bounds(ONE, 1.0)
    assert np.isinf(theory.certified_divergence(1.0, np.log(high / low))[0])


def test_the_stored_paths_have_the_certified_direction(stored):
    """At p = 2, where the order of both matrices does not matter; far out the truth is much nearer."""
    path = stored["regularisation_path"]
    bounds, found = path.bounds.transpose("bound", "seed", ...).values, own.better(path).divergence.sel(p=2.0)
    for number, norm in enumerate(path.relative_norm.values):
        certified = theory.certified_divergence(float(norm), (bounds[1] - bounds[0])[:, number])
        assert (found.isel(relative_norm=number).values <= certified).all()
    assert certified.max() < 0.2


def test_shares_have_the_ends_of_wilson():
    """Ten of ten: the lower end is 10 / (10 + 1.96^2); half of four, by the formula."""
    low = own.shares("x", 1.0, 10)["low_x"]
    assert float(low) == pytest.approx(10 / (10 + 1.96**2))
    half = own.shares("x", 0.5, 4)
    assert float(half["low_x"]) == pytest.approx(0.5 - 1.96 * np.sqrt(0.25 / 4 + 1.96**2 / 64) / (1 + 1.96**2 / 4))
    assert float(half["low_x"] + half["high_x"]) == pytest.approx(1)


def replaced(name, value, **where):
    """Replace part of one array by a number."""

    def changed(data):
        array = data[name].copy(deep=True)
        array.loc[where] = value
        return data.assign({name: array})

    return changed


def on(choices, **changes):
    """Replace arrays where a choice is of a kind."""

    def changed(data):
        kinds = {"rival": (data.local > 0) & own.rivals(data), "not local": data.local == 0}
        return data.assign({name: data[name].where(~kinds[choices], value) for name, value in changes.items()})

    return changed


def better_walk(name, value):
    """Replace what the path has, whichever walk it is."""
    return lambda data: data.assign({name: data[name] * 0 + value})


LAST = {"relative_norm": 80.0}
RED = {
    "objective": {
        "MD-L16": lambda d: d.assign(violation=-d.violation),
        "MD-L17": lambda d: d.assign(gradient_error=d.gradient_error + 1e-9),
        "MD-L18": lambda d: d.assign(ratio=10 * d.ratio),
        "MD-cov": lambda d: d.assign(covariance=1.01 * d.covariance),
    },
    "token_selection": {
        "MD-SVM-dual": lambda d: d.assign(gap=d.gap + 1e-7),
        "MD-opt-local": lambda d: d.assign(local=1 - d.local),
        "MD-local-norm": lambda d: d.assign(local=d.local.isel(p=0, drop=True).broadcast_like(d.local)),
        "MD-local-kept": on("rival", kept=0.0),
    },
    "regularisation_path": {
        "MD-RP": replaced("best_tokens", 0.9, **LAST),
        "MD-RP-certified": lambda d: d.assign(selecting_radius=3 * d.selecting_radius),
        "MD-RP-start": replaced("started_tokens", 1.0, **LAST),
    },
}
PARTS = {
    "objective": [("MD-L16", lambda d: d.assign(slack=d.slack + 1e-6))],
    "token_selection": [
        ("MD-SVM-dual", lambda d: d.assign(smallest_margin=0.99 * d.smallest_margin)),
        ("MD-opt-local", on("not local", local=1.0)),
        ("MD-opt-local", on("rival", local=0.0)),
        ("MD-local-norm", replaced("plane_attention", 1.0, official_p=3.0)),
        ("MD-local-norm", replaced("plane_attention", 0.0, official_p=1.5)),
        ("MD-local-kept", on("rival", kept=1.0)),
        ("MD-local-kept", on("not local", kept=1.0)),
        ("MD-local-kept", lambda d: d.assign(slack=100 * d.slack)),
        ("MD-local-kept", lambda d: d.assign(kept=d.kept.where(d.when == d.when[-1], 1 - d.kept))),
    ],
    "regularisation_path": [
        ("MD-RP", lambda d: d.assign(divergence=10 * d.divergence)),
        ("MD-RP", lambda d: d.assign(divergence=d.divergence**0.5 / 100)),
        ("MD-RP", better_walk("steepness", 1.0)),
        ("MD-RP-certified", lambda d: d.assign(bounds=d.bounds - 20)),
        ("MD-RP-certified", lambda d: d.assign(bounds=d.bounds + 10 * (d.bound == "lower"))),
        ("MD-RP-certified", lambda d: d.assign(bounds=d.bounds + 1000 * (d.bound == "upper"))),
        ("MD-RP-start", replaced("best_tokens", 1.0, walk="outwards")),
        ("MD-RP-start", replaced("best_tokens", 0.0, walk="outwards")),
        ("MD-RP-start", lambda d: d.assign(started_excess=d.started_excess + xr.DataArray([0, 1, 2], dims="start"))),
        ("MD-RP-start", replaced("started_slope", 1.0, **LAST)),
    ],
}  # other values of the same rules


@pytest.mark.parametrize("name", KINDS)
def test_every_measured_claim_of_the_chapter_can_be_turned_red(name, stored):
    red.assert_every_claim_turns(KINDS[name]().measurements, stored[name], RED[name], PARTS[name])


def test_every_claim_of_the_chapter_is_measured():
    mine = {c.id: c for c in ledger.claims() if c.chapter == "mirror_descent/token_selection"}
    assert set(mine) == {claim for claims in RED.values() for claim in claims}
    assert sum(c.source == "book" for c in mine.values()) <= 4


def test_a_kept_choice_is_one_whose_every_token_is_kept(monkeypatch):
    """Training that moves one token of two, always: nothing is kept."""
    half = own.TokenSelection.at("smoke", chunk=2)
    kept = half.run(device="cpu").kept
    assert 0 < float(kept.mean()) < 1
    honest = half._attended

    def wrong(self, problems, ps, at, **options):
        moved = honest(problems, ps, at, **options)
        moved[:, :, :1] = np.roll(moved[:, :, :1], 1, axis=-1)
        return moved

    monkeypatch.setattr(own.TokenSelection, "_attended", wrong)
    assert not (half.run(device="cpu").kept * kept).any()


def test_slack_is_that_of_the_nearest_token_of_higher_score_whatever_is_nearer(stored):
    """Recomputed token by token for one problem; choices of best tokens have none."""
    data, e = stored["token_selection"].sel(seed=3, p=1.5), own.TokenSelection()
    samples, tokens, dimension = e.small
    one = draw_problems([3], n_samples=samples, n_tokens=tokens, dimension=dimension)
    for number, choice in enumerate(data.choice.values):
        selected, expected = np.array([[int(digit) for digit in choice]]), np.inf
        weight = attention_svm(one.tokens, one.queries, selected, 1.5).weight[0]
        for i, a in enumerate(selected[0]):
            for t in range(tokens):
                if one.token_scores[0, i, t] > one.token_scores[0, i, a]:
                    margin = (one.tokens[0, i, a] - one.tokens[0, i, t]) @ weight @ one.queries[0, i]
                    expected = min(expected, margin - 1)
        assert float(data.slack[number]) == pytest.approx(expected, abs=1e-6)
        assert np.isinf(expected) == (number == int(data.best))


def test_a_path_that_starts_from_the_wrong_tokens_is_red(monkeypatch):
    honest, few = paths.interpolant, {"seeds": (0, 1), "ps": (2.0,), "starts": 1, "relative_norms": (10.0, 80.0)}
    monkeypatch.setattr(paths, "interpolant", lambda problem: -honest(problem))
    path = own.RegularisationPath.at("book", **few)
    found = path.measurements(path.run(device="cpu"))
    assert not ledger.judge(ledger.claim("MD-RP"), found["MD-RP"]).outcome.startswith("reproduced")
    assert found["MD-RP"].values["divergence"] > 0.01


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: theory.gradient_bound(ONE, 1.0, theory.LOSSES["linear"]), "p: "),
        (lambda: paths.follow(ONE, 1.0, np.array([1.0]), WEIGHTS[0], most_steps=5), "p: "),
        (lambda: own.TokenSelection(ps=()), "ps"),
        (lambda: own.TokenSelection(tried=(2.0, 1.5)), "tried"),
        (lambda: own.TokenSelection(steps=3), "steps"),
        (lambda: own.RegularisationPath(ps=()), "ps"),
        (lambda: own.RegularisationPath(relative_norms=(2.0, 1.0)), "relative_norms"),
        (lambda: own.Objective(ps=(1.0,)), "ps"),
        (lambda: own.Objective(norms=()), "norms"),
    ],
)
def test_impossible_arguments_are_refused_by_name(call, name):
    with pytest.raises(ValueError, match=name):
        call()


def test_in_the_first_picture_the_dashed_line_touches_the_support_tokens_and_no_other(stored):
    """By a pixel at least, counted from the edge of the token and of the line."""
    figure = figures.fate(stored["token_selection"])
    figure.draw_without_rendering()
    for ax, support in zip(figure.axes, ("CF", "AF"), strict=True):
        (dashed,) = (line for line in ax.lines if line.get_linestyle() == "--")
        start, end = ax.transData.transform(dashed.get_xydata())
        tokens = ax.transData.transform(ax.collections[0].get_offsets())
        across = np.array([start[1] - end[1], end[0] - start[0]]) / np.linalg.norm(end - start)
        away = abs((tokens - start) @ across)
        radius = (ax.collections[0].get_sizes()[0] ** 0.5 + dashed.get_linewidth()) / 2 * figure.dpi / 72
        assert "".join(np.array(list(figures.NAMES))[away < radius + 1]) == support
    plt.close()


@pytest.mark.parametrize("token", list("ABCDE"))
def test_the_arrow_of_a_solution_ends_in_the_picture(token, stored):
    ax = figures.explorer_frame(stored["token_selection"], 3.0, token).axes[0]
    (arrow,) = (text for text in ax.texts if text.arrow_patch)
    (left, right), (low, high) = ax.get_xlim(), ax.get_ylim()
    plt.close()
    assert left < arrow.xy[0] < right
    assert low < arrow.xy[1] < high


def test_pictures_and_tables_draw_what_was_measured(stored):
    chosen = stored["token_selection"]
    drawn = [
        figures.fate(chosen),
        figures.explorer_frame(chosen, 3.0, "B"),
        figures.far_enough(chosen),
        figures.walks(stored["regularisation_path"]),
    ]
    assert all(ax.get_xlabel() for figure in drawn[:1] + drawn[2:] for ax in figure.axes)
    plt.close("all")
    assert "not locally optimal: A beats it" in figures.explorer_text(chosen, 3.0, "B")
    assert "C, E beat it" in figures.explorer_text(chosen, 3.0, "D")
    assert "higher score: 0.07" in figures.explorer_text(chosen, 1.5, "B")
    rows = figures.fates(chosen).rows
    assert sum(int(row[1].text) for row in rows) == chosen.local.size
    assert [cell.text for cell in rows[0][3:]] == [rows[0][1].text] * 3


def gradient(weights, tokens, query, scores, *, derivative=True):
    powers = np.exp(tokens @ weights @ query)
    s = powers / powers.sum()
    centred = scores - s @ scores if derivative else scores
    return -np.outer(tokens.T @ (s * centred), query) / (1 + np.exp(s @ scores))


def local(scores, chosen, margins):
    return bool(((scores[np.arange(len(chosen)), chosen][:, None] > scores) | (margins > 1)).all())


@pytest.mark.parametrize(
    ("exercise", "answer", "mistake"),
    [
        ("MD-TS-1", lambda *a: -gradient(*a), "sign"),
        ("MD-TS-1", lambda *a: gradient(*a).T, "transposed"),
        ("MD-TS-1", lambda *a: gradient(*a, derivative=False), "derivative"),
        ("MD-TS-1", lambda w, x, z, g: w[0], "shape"),
        ("MD-TS-3", lambda *a: not local(*a), "reversed"),
        ("MD-TS-3", lambda *a: True, "every sample"),
        ("MD-TS-3", lambda g, a, m: (g[np.arange(2), a] >= g.max(1)).all(), "not all tokens"),
    ],
)
def test_right_answers_pass_and_wrong_ones_get_the_likely_mistake(exercise, answer, mistake):
    assert attnbook.check(exercise, {"MD-TS-1": gradient, "MD-TS-3": local}[exercise]).right
    feedback = attnbook.check(exercise, answer)
    assert not feedback.right
    assert mistake in feedback.message
