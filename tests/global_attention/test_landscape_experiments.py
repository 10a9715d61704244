"""The experiments of the loss-landscape chapter: wrong formulas and wrong models turn claims red."""

import dataclasses
import itertools
import math

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

import attnbook
from attnbook import ledger
from attnbook.global_attention import classifiers, rescaling, two_layer
from attnbook.global_attention.biased_networks import FirstLayers
from attnbook.global_attention.experiments import (
    hessian_spectrum,
    landscape_regions,
    landscape_rescaling,
    landscape_samples,
    loss_landscape,
)
from attnbook.global_attention.experiments.hessian_settings import NETWORKS, PATHS, SPECTRA
from attnbook.global_attention.figures import loss_landscape as figures
from attnbook.global_attention.masks import Member
from attnbook.global_attention.regions import pieces_on_segments
from attnbook.global_attention.tables import loss_landscape as tables

LANDSCAPE = dataclasses.replace(
    loss_landscape.Settings.book(),
    steps=20,
    n_samples=100,
    segments=50,
    map_points=3,
    fit_widths=(5, 10, 40),
    pattern_inputs=100,
    seeds=(0, 1),
)


def outcomes(result):
    return {v.claim.id: v.outcome for v in ledger.check(result).verdicts}


@pytest.mark.parametrize(
    "change", [{"segment_sparsities": (1, 5)}, {"residual_widths": (5, 60)}, {"seeds": ()}, {"seeds": (1, 1)}]
)
def test_impossible_settings_of_the_landscape_are_refused_by_name(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        dataclasses.replace(LANDSCAPE, **change)


@pytest.mark.parametrize("change", [
    {"step_sizes": ()}, {"n_eigenvalues": 1}, {"seeds": (1, 1)}, {"chunk": 0},
    {"weight_decays": ()}, {"weight_decays": (1e-3,)}, {"weight_decays": (0.0, 1e-2, 1e-3)},
])  # fmt: skip
def test_impossible_settings_of_the_spectrum_are_refused_by_name(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        dataclasses.replace(hessian_spectrum.Settings.book(), **change)


def test_figures_and_tables_draw_from_a_smoke_result(smoke_results):
    landscape, spectrum = (smoke_results[f"global_attention.{n}"] for n in ("loss_landscape", "hessian_spectrum"))
    widths = np.array([10, 20, 30])
    drawn = [
        *(draw(spectrum) for draw in (figures.two_comparisons, figures.ratios, figures.along_training)),
        *(draw(landscape) for draw in (figures.planes, figures.segments, figures.orbit_map)),
        *(draw(landscape) for draw in (figures.few_samples, figures.fits)),
        figures.orbit_frame(landscape, 0.1, 1.0),
        figures.region_bounds(widths, {2: np.log10(widths), 7: np.log10(widths)}, {2: 15.0}),
    ]
    for figure in drawn:
        assert any(ax.get_xlabel() for ax in figure.axes) or figure.get_supxlabel()
        plt.close(figure)
    for table in (tables.comparison, tables.by_step_size, tables.where_training_ends, tables.decays, tables.solver):
        assert "measured" in table(spectrum)._repr_html_()
    for table in (tables.trained_pieces, tables.stuck):
        assert "measured" in table(landscape)._repr_html_()
    assert all(sign in tables.verdicts(spectrum, spectrum)._repr_html_() for sign in "✓✗")
    assert "the same to rounding" in tables.orbit_text(landscape, 0.1, 1.0)


def test_looks_of_one_picture_differ_in_more_than_colour():
    raw = figures.LOOKS["attention"]
    assert figures.FOLDED.line != raw.line
    assert figures.FOLDED.marker != raw.marker


def test_a_stopped_member_has_the_loss_of_the_baseline(smoke_results):
    """Where attention came down that far, it stopped at the first look below."""
    result = smoke_results["global_attention.hessian_spectrum"]
    early = result.stopped_at < result.settings.steps
    assert (result.loss_ratio("equal_loss")[early[:, 0]] <= 1 + 1e-6).all()


def test_the_path_begins_where_the_networks_are_equal_and_ends_where_the_spectra_are_taken(smoke_results):
    result = smoke_results["global_attention.hessian_spectrum"]
    start, last = result.path_top[..., 0], result.path_top[..., -1]
    np.testing.assert_allclose(start[:, :, PATHS.index("attention_folded")], start[:, :, 0], rtol=1e-3)
    np.testing.assert_array_equal(last[:, :, 0], result.eigenvalues[:, :, SPECTRA.index("baseline"), 0])
    np.testing.assert_array_equal(result.path_loss[:, :, :2, -1], result.train_loss[:, :, :2])
    assert (result.path_sum >= result.path_top).all()


def test_the_decay_is_chosen_in_sample_and_before_the_first_that_costs_too_much(smoke_results):
    """A later decay that costs less by chance is not chosen, and test images are not looked at."""
    result = smoke_results["global_attention.hessian_spectrum"]
    shape = result.decay_accuracy.shape
    share = np.broadcast_to([1.0, 0.995, 0.98, 1.0], shape)
    gain = np.broadcast_to([0.5, 0.4, 0.9, 0.9], shape)
    made_up = dataclasses.replace(result, decay_train_accuracy=share, decay_accuracy=gain)
    assert (made_up.allowed_decay() == 1).all()
    np.testing.assert_allclose(made_up.decay_gain(), -0.1)


def test_without_a_penalty_the_decayed_networks_are_those_of_the_spectra(smoke_results):
    result = smoke_results["global_attention.hessian_spectrum"]
    np.testing.assert_allclose(result.decay_loss[:, :, 0], result.train_loss[:, 0, :2], rtol=1e-4)


def test_a_mask_of_zeros_leaves_no_bend_where_only_ignored_inputs_move():
    """Known by hand: the units see the first two of five inputs only, so the others switch none of them."""
    rng = np.random.default_rng(0)
    normals = rng.standard_normal((1, 7, 5)) * np.array([1, 1, 0, 0, 0])
    layers = FirstLayers(normals, rng.standard_normal((1, 7)))
    relevant = np.array([True, True, False, False, False])
    counts = landscape_regions._counts(layers, [Member("baseline", 3, 11, 2)], [relevant], 13, 17)
    assert counts["ignored_pieces"] == [1.0]
    assert counts["pieces"][0] > 1
    assert 1 < counts["patterns"][0] <= 17


def test_dead_units_are_a_minimum_with_no_sharp_equivalent():
    """Why Theorem 4 needs a positive entry: all units off and labels zero, and the Hessian is zero everywhere."""
    ones = np.ones((5, 3))
    dead = landscape_rescaling.Minimum(np.ones(3), -ones, np.ones((1, 5)), np.ones((7, 3)), np.zeros((1, 7)))
    assert dead.hessian().loss == 0
    assert dead.sharpness(1e-3, 1e3) == 0


def test_spectra_are_those_of_the_networks_they_name(smoke_results):
    """Folding changes a trained mask's spectrum, and only that; ratios of the baseline to itself are one."""
    result = smoke_results["global_attention.hessian_spectrum"]
    assert result.eigenvalues.shape[2] == len(SPECTRA)
    assert result.accuracy.shape[2] == len(NETWORKS)
    assert not np.allclose(result.spectrum("attention"), result.spectrum("attention_folded"), rtol=1e-3)
    assert (result.ratio("baseline", "sum") == 1).all()


@pytest.fixture(scope="module")
def honest():
    landscape_regions.exact_claims.cache_clear()
    return outcomes(loss_landscape.run(LANDSCAPE, device="cpu"))


# Each mutation: what is replaced by what, and the claims that must then fail.
MUTATIONS = {
    "second layer not divided": (
        (landscape_rescaling, "rescale", lambda a, w, v, f, g: (f * a, g * w, v)),
        ("GA-T4-function", "GA-T4-hessian", "GA-T4-volume-factor", "GA-T4-volume", "GA-T4-orbit"),
    ),
    "a map that shrinks volumes": (
        (landscape_rescaling, "rescale", lambda a, w, v, f, g: rescaling.rescale(a, w, v, 1 / f, 1 / g)),
        ("GA-T4-volume-factor", "GA-T4-volume"),
    ),
    "scaling of the Hessian upside down": (
        (landscape_rescaling, "hessian_scaling", lambda *a: 1 / rescaling.hessian_scaling(*a)),
        ("GA-T4-hessian",),
    ),
    "regions not counted exactly": (
        (landscape_regions, "count_regions", lambda n, b: len(n) + 1),
        ("GA-T3-count", "GA-T3-nobias", "GA-T3-maximum", "GA-T3-zeros"),
    ),
    "integer breakpoints": (
        (landscape_regions, "hinge_network", lambda n, s: integer_hinges(n, s)),
        ("GA-T3-pieces",),
    ),
    "features of fewer inputs' rank": (
        (landscape_samples, "softplus_features", lambda x, a, w, tau: (x * a) @ w.T),
        ("GA-T5-rank", "GA-T5-generic", "GA-T5-argument"),
    ),
    "features without linear relations": (
        (
            landscape_samples,
            "softplus_features",
            lambda x, a, w, tau: np.sin((x * a) @ w.T) ** 2 + ((x * a) @ w.T) ** 3,
        ),
        ("GA-T5-antipodal",),
    ),
    "biases that decide": (
        (landscape_regions, "pieces_on_segments", lambda n, b, x, z: pieces_on_segments(n, b + 3, x, z)),
        ("GA-T3-segment",),
    ),
    "derivative of softplus missing": (
        (two_layer.Softplus, "slope", lambda self, u: torch.ones_like(u)),
        ("GA-D1-gradient",),
    ),
}


def integer_hinges(width, kept):
    q = width // kept
    normals = np.kron(np.eye(kept), np.ones((q, 1)))
    return normals, np.tile(-np.arange(q, dtype=float), kept), np.ones(q * kept)


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_wrong_formula_turns_claims_red(name, honest, monkeypatch):
    """Guards that the rules can fail: each mutation breaks the claims that depend on what it breaks."""
    (module, attribute, wrong), red = MUTATIONS[name]
    landscape_regions.exact_claims.cache_clear()
    monkeypatch.setattr(module, attribute, wrong)
    mutated = outcomes(loss_landscape.run(LANDSCAPE, device="cpu"))
    landscape_regions.exact_claims.cache_clear()
    for claim in red:
        assert honest[claim] != "not reproduced", claim
        assert mutated[claim] == "not reproduced", claim


@pytest.mark.slow
def test_a_mask_that_is_not_trained_turns_the_claims_on_the_spectrum_red(monkeypatch):
    small = dataclasses.replace(hessian_spectrum.Settings.book(), n_train=200, side=12, n_eigenvalues=20, steps=60)
    original = classifiers._Options.__init__

    def frozen(self, members, device):
        original(self, members, device)
        self.trained.zero_()

    monkeypatch.setattr(classifiers._Options, "__init__", frozen)
    mutated = outcomes(hessian_spectrum.run(small, device="cpu"))
    for claim in ("GA-F3-bulk", "GA-F3-equal-loss", "GA-F3-equal-loss-accuracy", "GA-F3-l1"):
        assert mutated[claim] == "not reproduced", claim


@pytest.mark.parametrize(("exercise", "right", "wrong"), [
    ("GA-L1", lambda s: _first(s, 0), lambda s: _first(s, -1)),
    ("GA-L2", lambda h, p, d: _flattest(h, p, d, np.linspace(-0.3, 0.7, 81)),
     lambda h, p, d: _flattest(h, p, d, np.zeros(1))),
    ("GA-L3", lambda w, v, a: 2 * np.linalg.norm(w) * np.linalg.norm(v) / a,
     lambda w, v, a: np.linalg.norm(w) * np.linalg.norm(v) / a),
])  # fmt: skip
def test_exercises_accept_the_right_answer_and_name_the_mistake(exercise, right, wrong):
    assert attnbook.check(exercise, right).right
    feedback = attnbook.check(exercise, wrong)
    assert not feedback.right
    assert "the numbers are different" not in feedback.message


def _central(n, s):
    return sum(2 * math.comb(n - 1, k) for k in range(s))


def _first(s, margin):
    return next(n for n in range(s + 1, 999) if (n // s) ** s - _central(n, s) > margin)


def _flattest(hessian, p, d, logs):
    """By hand, on a grid."""
    pairs = itertools.product(np.exp(logs), repeat=2)
    scalings = [np.repeat([1 / a, 1 / b, a * b], [p, p * d, d]) for a, b in pairs]
    return min(np.linalg.eigvalsh(s[:, None] * hessian * s)[-1] for s in scalings)


def test_the_float_type_of_the_closed_forms_is_that_of_the_weights():
    half = two_layer.Hessian(
        None, torch.ones(2, 3), torch.ones(1, 2), torch.ones(5, 3), torch.ones(1, 5),
        activation=two_layer.ReLU(), loss="squared",
    )  # fmt: skip
    assert half.dense().dtype == torch.float32
