"""The experiments of the loss-landscape chapter: changed arrays and wrong models turn claims red."""

import itertools
import math

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from red import assert_every_claim_turns

import attnbook
from attnbook import ledger
from attnbook.core.rng import stream
from attnbook.global_attention import rescaling, two_layer
from attnbook.global_attention.loss_landscape import exercises, experiments, figures, hessian
from attnbook.global_attention.loss_landscape.experiments import HessianSpectrum, LossLandscape, largest_correlation
from attnbook.global_attention.rescaling import Minimum, hessian_scaling, output, rescale
from attnbook.global_attention.two_layer import Softplus

EXPERIMENTS = (LossLandscape(), HessianSpectrum())


@pytest.fixture(scope="module")
def stored():
    return {run.id: run.load_stored("book") for run in EXPERIMENTS}


@pytest.fixture(scope="module")
def smoke(smoke_results):
    return {run.id: smoke_results[run.id] for run in EXPERIMENTS}


def times(**factors):
    """A change that multiplies arrays."""
    return lambda d: d.assign({name: d[name] * factor for name, factor in factors.items()})


def at(name, value, **where):
    """A change that sets one place of an array."""

    def change(d):
        array = d[name].astype(float).copy()
        array.loc[where] = value
        return d.assign({name: array})

    return change


def swapped(name, dimension, one, other):
    """A change that exchanges two places along a dimension."""

    def change(d):
        array = d[name].copy()
        array.loc[{dimension: one}], array.loc[{dimension: other}] = (
            d[name].sel({dimension: other}).values, d[name].sel({dimension: one}).values,
        )  # fmt: skip
        return d.assign({name: array})

    return change


RED = {
    "GA-T3-bound": times(hinge_regions=0.7),
    "GA-T3-threshold": times(reversed_up_to=1.3),
    "GA-F1-order": lambda d: d.assign(log10_bound=-d.log10_bound),
    "GA-T3-nobias": swapped("plane_regions", "biases", "with", "without"),
    "GA-T3-patterns": swapped("patterns", "network", "attention", "l1_attention"),
    "GA-T4-sharp": at("eigenvalue", 1.0, mask_factor=0.001, hidden_factor=1.0),
    "GA-T4-volume": times(log_volume=-1),
    "GA-T4-orbit": lambda d: d.assign(allowed=0 * d.allowed + 1),
    "GA-G1-l2-sharp": times(penalised_sharpness=3),
    "GA-G1-l2-escape": swapped("penalised_sharpness", "penalised", 1.0, 100.0),
    "GA-T1-norms": swapped("norm", "network", "baseline", "attention"),
    "GA-T1-norms-masked": swapped("norm", "network", "baseline", "attention"),
    "GA-A5": at("correlation", 0.05, network="attention", seed=3),
    "GA-T5-rank": at("fit_loss", 1e-9, fit_width=40, model="attention", seed=3),
    "GA-T5-generic": at("feature_rank", 29, width=30, seed=2),
    "GA-T5-argument": at("input_rank", 40, width=40, seed=2),
    "GA-T5-stuck": lambda d: d.assign(fit_gradient=d.fit_gradient + 1),
    "GA-F3-bulk": at("eigenvalues", 1.0, spectrum="attention", rank=50),
    "GA-F3-top": at("eigenvalues", 1e-3, spectrum="attention", rank=1),  # it fails, and must be made to hold
    "GA-F3-equal-loss": swapped("eigenvalues", "spectrum", "baseline", "equal_loss_folded"),
    "GA-G1-l2-accuracy": lambda d: d.assign(decay_test_accuracy=d.decay_test_accuracy[..., ::-1].drop_vars("decay")),
}


@pytest.mark.parametrize("run", EXPERIMENTS, ids=lambda run: run.id)
def test_a_changed_array_turns_its_claim(run, stored):
    own = {claim: change for claim, change in RED.items() if ledger.claim(claim).experiment == run.id}
    assert_every_claim_turns(run.measurements, stored[run.id], own)


def test_every_claim_of_the_chapter_is_measured_or_says_why_not():
    mine = {c.id: c for c in ledger.claims() if c.chapter == "global_attention/loss_landscape"}
    assert {i for i, claim in mine.items() if not claim.untestable} == set(RED)


@pytest.mark.parametrize(("rank", "turned"), [(49, False), (50, True), (51, False)])
def test_the_bulk_is_judged_by_the_eigenvalue_of_rank_50_and_no_other(rank, turned, stored):
    """Baseline and attention alike but at one rank, where attention is far lower."""
    data, run = stored["global_attention.hessian_spectrum"], HessianSpectrum()
    equal = data.eigenvalues.copy(data=np.broadcast_to(100.0 / data["rank"].values, data.eigenvalues.shape))
    changed = at("eigenvalues", 0.1, spectrum="attention", rank=rank)(data.assign(eigenvalues=equal))
    measured = run.measurements(changed)["GA-F3-bulk"]
    assert measured.values["rank_50_ratio"] == pytest.approx(0.05 if turned else 1)
    assert (ledger.judge(ledger.claim("GA-F3-bulk"), measured).outcome == "reproduced in trend") == turned


def test_the_worst_place_of_an_orbit_is_judged_not_the_best(stored):
    data, run = stored["global_attention.loss_landscape"], LossLandscape()
    one = at("eigenvalue", 1e-3, mask_factor=0.5, hidden_factor=10.0, seed=2)(data)
    assert run.measurements(one)["GA-T4-sharp"].values["smallest_eigenvalue_over_bound"] < 0.1
    one = at("gradient", 1.0, mask_factor=0.5, hidden_factor=10.0, seed=2)(data)
    assert run.measurements(one)["GA-T4-sharp"].values["largest_gradient"] == 1


@pytest.mark.parametrize(
    ("kind", "change", "name"),
    [
        (LossLandscape, {"residual_widths": (5, 60)}, "residual_widths"),
        (LossLandscape, {"fit_widths": (5,)}, "fit_widths"),
        (HessianSpectrum, {"step_sizes": ()}, "step_sizes"),
        (HessianSpectrum, {"n_eigenvalues": 1}, "n_eigenvalues"),
        (HessianSpectrum, {"weight_decays": (1e-3,)}, "weight_decays"),
        (HessianSpectrum, {"weight_decays": (0.0, 1e-2, 1e-3)}, "weight_decays"),
        (HessianSpectrum, {"images": "letters"}, "images"),
    ],
)
def test_impossible_settings_are_refused_by_name(kind, change, name):
    with pytest.raises((ValueError, TypeError), match=name):
        kind.at("book", **change)


def test_pictures_and_tables_are_made_from_a_small_result(smoke):
    landscape, spectrum = (smoke[run.id] for run in EXPERIMENTS)
    first = Minimum.draw(0)
    drawn = [
        figures.two_comparisons(spectrum),
        figures.region_bounds(LossLandscape()),
        figures.orbit_map(landscape),
        figures.orbit_frame(first, 0.1, 1.0),
        figures.fits(landscape),
    ]
    for figure in drawn:
        assert any(ax.get_xlabel() for ax in figure.axes) or figure.get_supxlabel()
        plt.close(figure)
    tables = [
        figures.comparison({"twice": spectrum, "the same": spectrum}), figures.decays(spectrum),
        figures.trained_weights(landscape),
    ]  # fmt: skip
    assert all("measured" in table._repr_html_() for table in tables)
    assert "the largest eigenvalue is 1 times" in figures.orbit_text(first, 1.0, 1.0)


def test_a_stopped_member_has_the_loss_of_the_baseline(smoke):
    data = smoke["global_attention.hessian_spectrum"]
    early = data.stopped_at < HessianSpectrum.at("smoke").steps
    excess = hessian.over_baseline(data.train_loss, "network").sel(network="equal_loss")
    assert (excess.where(early, 1) <= 1 + 1e-6).all()


def test_without_a_decay_the_networks_are_those_of_the_spectra(smoke):
    data = smoke["global_attention.hessian_spectrum"]
    np.testing.assert_allclose(
        data.decay_train_loss.isel(decay=0), data.train_loss.isel(step_size=0, network=[0, 1]), rtol=1e-4
    )


def test_the_decay_is_chosen_in_sample_and_before_the_first_that_costs_too_much(smoke):
    """A later decay that costs less by chance is not chosen, and test images are not looked at."""
    data = smoke["global_attention.hessian_spectrum"]
    share, gain = (0 * data.decay_train_accuracy + values for values in ([1.0, 0.995, 0.98, 1.0], [0.5, 0.4, 0.9, 0.9]))
    made_up = data.assign(decay_train_accuracy=share, decay_test_accuracy=gain)
    assert (hessian.allowed_decay(made_up) == 1).all()
    gains = HessianSpectrum.at("smoke").measure(made_up)["GA-G1-l2-accuracy"]
    np.testing.assert_allclose(gains["gain_attention"], -0.1)


def test_the_correlation_of_a5_is_found_where_it_is_and_nowhere_else():
    """The error is what one unit makes of one input, plus a constant; a unit that is never on counts for nothing."""
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((2003, 5))
    on = np.column_stack([inputs[:, 0] > 0, inputs[:, 1] > 0, np.zeros(2003, dtype=bool)])
    error = np.column_stack([inputs[:, 2] * on[:, 1] + 3, rng.standard_normal(2003)])
    assert largest_correlation(error, inputs, on) == pytest.approx(1)
    assert largest_correlation(error[:, 1:], inputs, on) < 0.15


def test_by_chance_the_largest_correlation_of_a5_is_a_tenth_of_what_is_found(stored):
    """Errors that have nothing to do with the network, for as many inputs, units, outputs and samples."""
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((20000, 32))
    chance = largest_correlation(rng.standard_normal((20000, 10)), inputs, inputs @ rng.standard_normal((32, 32)) > 0)
    assert 0.02 < chance < math.sqrt(2 * math.log(32 * 32 * 10) / 20000) < 0.031
    assert stored["global_attention.loss_landscape"].correlation.min() > 5 * chance


@pytest.mark.parametrize("scale", ["book", "full"])
def test_where_training_ends_is_no_minimum(scale):
    """As the page says: some curvature is negative at every end, in the median by a few per cent of the largest."""
    data = HessianSpectrum.load_stored(scale)
    assert (data.lowest < 0).all()
    assert (-data.lowest / data.eigenvalues.sel(rank=1)).median("seed").max() < 0.1


def test_dead_units_are_a_minimum_with_no_sharp_equivalent():
    """Why Theorem 4 needs a positive entry: all units off and labels zero, and the Hessian is zero everywhere."""
    ones = np.ones((5, 3))
    dead = Minimum(np.ones(3), -ones, np.ones((1, 5)), np.ones((7, 3)), np.zeros((1, 7)))
    assert dead.hessian().loss == 0
    assert dead.sharpness(1e-3, 1e3) == 0


def test_hessian_and_function_on_the_orbit_are_those_computed_there():
    """Theorem 4's identities: same function, zero gradient, Hessian scaled from both sides, eigenvalue like 1/a^2."""
    first, inputs = Minimum.draw(0), stream(0, "orbit").standard_normal((11, 7))
    for factors in itertools.product((0.01, 0.3, 10.0), (0.1, 10.0)):
        scaling = hessian_scaling(7, 5, *factors)
        np.testing.assert_allclose(output(first.network(*factors), inputs), output(first.network(), inputs), rtol=1e-12)
        there = first.hessian(*factors)
        np.testing.assert_allclose(there.dense(), first.dense * np.outer(scaling, scaling), rtol=1e-10, atol=1e-10)
        assert float(there.gradient.abs().max()) < 1e-12
    assert first.sharpness(0.001, 1.0) / first.sharpness(0.01, 1.0) == pytest.approx(100, rel=1e-3)
    images = [np.concatenate([part.ravel() for part in rescale(*parts(unit), 0.3, 5.0)]) for unit in np.eye(47)]
    assert first.log_volume(0.3, 5.0) == pytest.approx(np.linalg.slogdet(np.array(images))[1])
    assert first.log_volume(0.3, 5.0) == pytest.approx((7 - 5) * math.log(0.3) + (35 - 5) * math.log(5))


def parts(vector):
    mask, hidden, decoder = np.split(vector, [7, 42])
    return mask, hidden.reshape(5, 7), decoder[None]


def test_what_is_allowed_is_what_the_assumptions_say():
    first = Minimum.draw(1)
    for factors in itertools.product((0.2, 0.6, 1.0, 1.04, 2.0), (0.3, 1.0, 2.9, 3.1)):
        mask, hidden, decoder = first.network(*factors)
        norms = (
            np.linalg.norm(hidden) <= 3 * np.linalg.norm(first.hidden),
            np.linalg.norm(decoder) <= 3 * np.linalg.norm(first.decoder),
        )
        assert first.allowed(*factors) == (mask.max() <= 1 and all(norms))


def test_features_are_dependent_for_opposite_samples_and_for_relu_without_biases():
    rng = np.random.default_rng(0)
    half = rng.standard_normal((8, 7))
    opposite = np.concatenate([half, -half])
    made = experiments.features(opposite, rng.random(7), rng.standard_normal((23, 7)), 10.0)
    assert np.linalg.matrix_rank(made) < 16
    relu = np.maximum(rng.standard_normal((500, 3, 2)) @ rng.standard_normal((500, 2, 3)), 0)
    assert (np.linalg.matrix_rank(relu) < 3).mean() > 0.3


def test_at_zero_weights_the_gradient_vanishes_and_the_loss_does_not():
    """Why Theorem 5 needs its rank: all features are equal there."""
    rng = np.random.default_rng(0)
    labels = torch.as_tensor(rng.standard_normal((1, 11)))
    point = two_layer.Hessian(
        torch.ones(3).double(), torch.zeros(13, 3).double(), torch.zeros(1, 13).double(),
        torch.as_tensor(rng.standard_normal((11, 3))), labels - labels.mean(), activation=Softplus(), loss="squared",
    )  # fmt: skip
    assert float(point.gradient.abs().max()) < 1e-15
    assert point.loss > 0.1


def test_random_features_miss_the_share_of_the_labels_that_theory_says():
    rng, missed = np.random.default_rng(0), np.empty((40, 2))
    for at in np.ndindex(missed.shape):
        labels, hidden = rng.standard_normal(23), rng.standard_normal(((5, 23)[at[1]], 11))
        made = experiments.features(rng.standard_normal((23, 11)), rng.random(11), hidden, 10.0)
        missed[at] = np.square(made @ np.linalg.lstsq(made, labels, rcond=None)[0] - labels).sum() / (labels @ labels)
    np.testing.assert_allclose(missed.mean(0), [1 - 5 / 23, 0], atol=0.05)
    assert missed[:, 1].max() < 1e-15


# Each mutation: what is replaced by what, and the claims that must then fail.
MUTATIONS = {
    "second layer not divided": (
        (rescaling, "rescale", lambda a, w, v, f, g: (f * a, g * w, v)),
        ("GA-T4-sharp", "GA-T4-volume"),
    ),
    "scaling of the Hessian upside down": (
        (rescaling, "hessian_scaling", lambda *a: 1 / hessian_scaling(*a)),
        ("GA-T4-volume",),
    ),
    "regions not counted exactly": (
        (experiments, "count_regions", lambda n, b: len(n) + 1),
        ("GA-T3-bound", "GA-T3-nobias"),
    ),
    "features of the inputs' rank": (
        (experiments, "features", lambda x, a, w, tau: (x * a) @ w.T),
        ("GA-T5-generic", "GA-T5-argument"),
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_wrong_formula_turns_claims_red(name, stored, monkeypatch):
    """Guards that the rules can fail: the arrays are made anew with what is broken."""
    (module, attribute, wrong), red = MUTATIONS[name]
    monkeypatch.setattr(module, attribute, wrong)
    run, data = LossLandscape(map_points=3), stored["global_attention.loss_landscape"]
    seeds = tuple(data.seed.values.tolist())
    made = run._regions(seeds) | experiments.stacked("seed", (run._orbit(Minimum.draw(seed), seed) for seed in seeds))
    made |= run._random_features(seeds)
    changed = data.drop_dims(["log_mask", "log_hidden"]).assign(made)
    for claim, measured in run.measurements(changed).items():
        outcome = ledger.judge(ledger.claim(claim), measured).outcome
        assert outcome == "not reproduced" or claim not in red, claim


@pytest.mark.slow
def test_a_mask_that_is_not_trained_turns_the_claims_on_the_spectrum_red(monkeypatch):
    original = hessian._gradient_of

    def frozen(*arguments):
        gradient = original(*arguments)

        def without_mask(*at):
            losses, gradients = gradient(*at)
            gradients["mask"].zero_()
            return losses, gradients

        return without_mask

    monkeypatch.setattr(hessian, "_gradient_of", frozen)
    run = HessianSpectrum(n_train=200, side=12, n_eigenvalues=20, steps=60)
    measured = run.measurements(run.run(device="cpu"))
    for claim in ("GA-F3-bulk", "GA-F3-equal-loss"):
        assert ledger.judge(ledger.claim(claim), measured[claim]).outcome == "not reproduced", claim


@pytest.mark.parametrize(("exercise", "right", "wrong"), [
    ("GA-L1", lambda s: _first(s, 0), lambda s: _first(s, -1)),
    ("GA-L2", lambda h, p, d: _flattest(h, p, d, np.linspace(-0.3, 0.7, 81)),
     lambda h, p, d: _flattest(h, p, d, np.zeros(1))),
])  # fmt: skip
def test_exercises_accept_the_right_answer_and_name_the_mistake(exercise, right, wrong):
    assert attnbook.check(exercise, right).right
    feedback = attnbook.check(exercise, wrong)
    assert not feedback.right
    assert "the numbers are different" not in feedback.message
    assert exercise in exercises.CHECKS


def _first(s, margin):
    return next(n for n in range(s + 1, 999) if (n // s) ** s - 2 * sum(math.comb(n - 1, k) for k in range(s)) > margin)


def _flattest(hessian, p, d, logs):
    """By hand, on a grid."""
    pairs = itertools.product(np.exp(logs), repeat=2)
    scalings = [np.repeat([1 / a, 1 / b, a * b], [p, p * d, d]) for a, b in pairs]
    return min(np.linalg.eigvalsh(s[:, None] * hessian * s)[-1] for s in scalings)


def test_runs_with_more_and_fewer_eigenvalues_are_compared_at_one_rank(smoke):
    few, many = smoke[HessianSpectrum.id], HessianSpectrum.load_stored("book")
    middle = few.sizes["rank"] // 2
    assert few.sizes["rank"] < many.sizes["rank"]
    rows = [row[0] for row in figures.comparison({"few": few, "many": many}).rows]
    assert [row for row in rows if "rank" in row] == [
        f"{when}: rank {middle}{folded}" for when in ("equal steps", "equal loss") for folded in ("", ", folded")
    ]
