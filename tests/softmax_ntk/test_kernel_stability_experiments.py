"""Experiments on the stability of the kernel: settings, figures; wrong models turn claims red."""

import dataclasses

import matplotlib.pyplot as plt
import numpy as np
import pytest

from attnbook import ledger
from attnbook.softmax_ntk.experiments import (
    eigenvalue_radius,
    fading,
    kernel_movement,
    lemma_b1,
    perturbed,
    smallest_eigenvalues,
    summaries,
)
from attnbook.softmax_ntk.experiments.runs import Problem, place
from attnbook.softmax_ntk.figures import kernel_stability as figures
from attnbook.softmax_ntk.ntk import ntk_gram
from attnbook.softmax_ntk.tables import kernel_stability as tables

SMALL = dataclasses.replace(
    kernel_movement.Settings.book(), width=256, radii=(0.001, 0.003, 0.01), widths=(64, 128, 256),
    sizes=(8, 32), outputs=(1, 4), seeds=(0, 1, 2), chunk=3,
)  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "change"),
    [
        (kernel_movement.Settings, {"radii": (0.1, 0.01)}),
        (kernel_movement.Settings, {"radius": 0.02}),
        (kernel_movement.Settings, {"widths": (8, 16)}),
        (kernel_movement.Settings, {"seeds": ()}),
        (eigenvalue_radius.Settings, {"radii": (0.0, 1.0)}),
        (eigenvalue_radius.Settings, {"sizes": ()}),
        (smallest_eigenvalues.Settings, {"scales": (1.0, 3.0)}),
        (smallest_eigenvalues.Settings, {"rank_widths": (8, 16)}),
        (smallest_eigenvalues.Settings, {"sizes": (4,)}),
        (lemma_b1.Settings, {"smallest_radius": 0.01}),
        (lemma_b1.Settings, {"chunk": 0}),
    ],
)
def test_impossible_settings_are_refused_by_name(settings, change):
    with pytest.raises(ValueError, match=next(iter(change))):
        dataclasses.replace(settings.book(), **change)


@pytest.mark.parametrize("module", [kernel_movement, eigenvalue_radius], ids=["movement", "radius"])
def test_seeds_in_chunks_give_the_same_numbers(module, smoke_results):
    parts = smoke_results[f"softmax_ntk.{module.__name__.rsplit('.', 1)[1]}"]
    whole = module.run(dataclasses.replace(parts.settings, chunk=2), device="cpu")
    name = "change" if module is kernel_movement else "after"
    np.testing.assert_allclose(getattr(whole, name), getattr(parts, name), rtol=1e-7, atol=1e-12)


def test_first_loss_is_the_first_radius_below_half(smoke_results):
    result = smoke_results["softmax_ntk.eigenvalue_radius"]
    before, after = np.ones_like(result.before), np.ones_like(result.after)
    after[0, :, :, 1] = 0.4
    after[1, :, :, 0] = 0.4
    made = dataclasses.replace(result, before=before, after=after)
    small, large = result.settings.radii
    assert np.unique(made.first_loss()[0]).tolist() == [large]
    assert np.unique(made.last_harmless()[0]).tolist() == [small]
    assert np.unique(made.first_loss()[1]).tolist() == [small]
    assert np.unique(made.last_harmless()[1]).tolist() == [0.0]
    safe = dataclasses.replace(made, after=np.ones_like(after))
    assert np.isinf(safe.first_loss()).all()
    assert np.unique(safe.last_harmless()).tolist() == [large]


def test_extent_of_slopes_leaves_out_points_where_nothing_moved():
    x = [1.0, 2.0, 4.0]
    samples = [np.array([[1.0, 2.0, 4.0], [0.0, 2.0, 4.0]]), np.array([[1.0, 4.0, 16.0], [1.0, 4.0, 16.0]])]
    found = summaries.extent("slope", x, [*samples[1:], np.stack([samples[0][0]] * 2)])
    assert found.values == {"min_slope": pytest.approx(1), "max_slope": pytest.approx(2)}
    assert summaries.extent("slope", x, samples[:1]).spread["max_slope"] == (pytest.approx(1), pytest.approx(1))


def test_figures_and_tables_draw_from_a_smoke_result(smoke_results):
    moved, far, parts, small = (
        smoke_results[f"softmax_ntk.{name}"]
        for name in ("kernel_movement", "eigenvalue_radius", "lemma_b1", "smallest_eigenvalues")
    )
    drawn = [
        figures.movement(moved),
        figures.movement_against_width(moved),
        figures.eigenvalue_left(far, 32, 1),
        figures.parts_of_lemma(parts),
        figures.condition_numbers(small),
        figures.scale_and_rank(small),
        figures.spectrum_frame(far, "all alike", 4.0),
    ]
    for figure in drawn:
        assert figure.axes
        plt.close(figure)
    made = (tables.changes(moved), tables.bounds(moved), tables.losses(far), tables.radii(far))
    more = (tables.width_slopes(moved), tables.losses(far, "spread"), tables.faded(fading.looks(far)))
    for table in (*made, *more, tables.full_rank(small), tables.costs({"moved": moved})):
        assert "<table>" in table._repr_html_()
    assert "inward, R = 4" in tables.spectrum_text(far, "inward", 4.0)


def test_looks_differ_without_colour():
    for part in ("marker", "line", "label"):
        assert len({getattr(look, part) for look in figures.DIRECTIONS.values()}) == len(figures.DIRECTIONS)


def outcomes(result):
    return {v.claim.id: v.outcome for v in ledger.check(result).verdicts}


def without_denominator(networks, inputs):
    """The kernel of a softmax network that forgets its denominator: that of exp."""
    exp = dataclasses.replace(networks, activation="exp")
    return ntk_gram(exp if networks.activation == "softmax" else networks, inputs)


def test_a_softmax_without_its_denominator_turns_its_claims_red(monkeypatch):
    """Guards that the rules can fail."""
    honest = outcomes(kernel_movement.run(SMALL, device="cpu"))
    monkeypatch.setattr(perturbed, "ntk_gram", without_denominator)
    wrong = outcomes(kernel_movement.run(SMALL, device="cpu"))
    for claim in ("SN-L5.1R-common-softmax", "SN-L5.1s-relative"):
        assert honest[claim] == "reproduced", claim
        assert wrong[claim] == "not reproduced", claim


def test_pairs_that_do_not_share_their_weights_turn_the_cancellation_red(monkeypatch):
    draw = perturbed.draw_weights
    monkeypatch.setattr(perturbed, "draw_weights", lambda *a, **k: draw(*a, **k, start="opposite_signs"))
    assert outcomes(kernel_movement.run(SMALL, device="cpu"))["SN-L5.1R-gdlike"] == "not reproduced"


def test_moves_twice_as_long_break_the_lemma_where_it_is_tight(monkeypatch):
    settings = dataclasses.replace(lemma_b1.Settings.book(), seeds=(1, 2), chunk=2, width=128)
    honest = outcomes(lemma_b1.run(settings, device="cpu"))
    monkeypatch.setattr(lemma_b1, "INSIDE", 2.0)
    wrong = outcomes(lemma_b1.run(settings, device="cpu"))
    for claim in ("SN-B1-2", "SN-B1-3", "SN-B1-6"):
        assert honest[claim] == "reproduced"
    assert wrong["SN-B1-2"] == wrong["SN-B1-3"] == wrong["SN-B1-6"] == "not reproduced"


def test_unpaired_networks_exceed_the_rank_of_pairs(monkeypatch):
    draw = perturbed.draw_weights
    monkeypatch.setattr(perturbed, "draw_weights", lambda *a, **k: draw(*a, **k, start="independent"))
    found = outcomes(smallest_eigenvalues.run(smallest_eigenvalues.Settings.smoke(), device="cpu"))
    assert found["SN-RANK-signs"] == "not reproduced"


def test_networks_with_fewer_outputs_are_the_first_of_those_with_more():
    settings = dataclasses.replace(
        eigenvalue_radius.Settings.smoke(), outputs=(1, 3), sizes=(5, 7), radii=(0.01,), seeds=(0,)
    )
    found = eigenvalue_radius.run(settings, device="cpu")
    for i, activation in enumerate(("softmax", "exp", "relu")):
        start = perturbed.Start(Problem(activation, 64, 7, 17, 3), (0,), place("cpu"))
        one = dataclasses.replace(start.networks, signs=start.networks.signs[:, :1])
        for networks, j in ((one, 0), (start.networks, 1)):
            kernel = ntk_gram(networks, start.inputs)[0].numpy()
            assert found.before[0, j, 1, i] == pytest.approx(np.linalg.eigvalsh(kernel)[0], rel=1e-9, abs=1e-12)


def test_a_single_pair_gives_both_outputs_the_same_features():
    look = fading.look_at(Problem("softmax", 2, 3, 5, 2), 1, 0.5)
    assert look.cosine == pytest.approx(1)
    assert look.cosine_median == pytest.approx(1)
    assert 0.5 <= look.heaviest <= 1


def test_a_lost_eigenvalue_is_looked_at_in_networks_with_two_outputs(smoke_results):
    result = smoke_results["softmax_ntk.eigenvalue_radius"]
    settings = dataclasses.replace(result.settings, outputs=(1, 2), seeds=(0,))
    found = eigenvalue_radius.run(settings, device="cpu")
    random, softmax = eigenvalue_radius.DIRECTIONS.index("random"), 0
    after = found.before[..., None, None, :] * np.ones_like(found.after)
    after[0, :, 2, -1, random, softmax] = 0
    (look,) = fading.looks(dataclasses.replace(found, after=after))
    assert (look.seed, look.n_samples) == (0, settings.sizes[2])
    ratio = found.ratio()[0, 1, 2, -1, random, softmax]
    assert look.left == pytest.approx(ratio, rel=1e-6)
