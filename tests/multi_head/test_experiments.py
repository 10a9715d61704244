"""Experiments of this part: their settings, their pictures, and wrong models that turn claims red."""

import dataclasses

import matplotlib as mpl
import numpy as np
import pytest
import torch

from attnbook import ledger
from attnbook.core.figures import BACKGROUND
from attnbook.multi_head import curvature_bounds, derivatives, network
from attnbook.multi_head.experiments import curvature, eigenvalues, large_weights, points, samples, single_head
from attnbook.multi_head.figures import curvature as figures
from attnbook.multi_head.figures.looks import LOOKS
from attnbook.multi_head.tables import curvature as tables

CPU = torch.device("cpu")
HEADS = dataclasses.replace(single_head.Settings.book(), seeds=(0, 1), formula_draws=2, bound_draws=15)
POINTS = dataclasses.replace(curvature.Settings.book(), seeds=(0, 1), heads=(1, 4, 16))


def outcomes(result):
    return {v.claim.id: v.outcome for v in ledger.check(result).verdicts}


@pytest.fixture(scope="module")
def honest():
    return single_head.run(HEADS, device="cpu"), curvature.run(POINTS, device="cpu")


def test_honest_formulas_and_bounds_pass(honest):
    """But for the claim that draws come within one per cent of a bound, which needs more draws."""
    verdicts = outcomes(honest[0]) | outcomes(honest[1])
    verdicts.pop("MH-P1.3-attained")
    assert "not reproduced" not in verdicts.values()


def test_every_claim_of_the_chapter_is_measured(honest):
    """Those on the derivatives, on one head, and on the loss; one at the larger size only."""
    measured = set(honest[0].measurements()) | set(honest[1].measurements())
    expected = {
        claim.id for claim in ledger.claims() if claim.id.startswith(("MH-L1.", "MH-P1.", "MH-C1.", "MH-B13.12"))
    }
    assert expected - measured == {"MH-C1.4-full-size"}
    assert measured <= expected


@pytest.mark.parametrize(
    ("function", "red"),
    [
        ("decoder_gradient", "MH-L1.1"),
        ("key_query_gradient", "MH-L1.1-key-query"),
        ("mixed_curvature", "MH-L1.3"),
        ("curvature_in_key_query", "MH-L1.4"),
    ],
)
def test_a_formula_with_a_wrong_factor_turns_its_claim_red(function, red, monkeypatch):
    right = getattr(derivatives, function)
    monkeypatch.setattr(derivatives, function, lambda *a, **k: 1.001 * right(*a, **k))
    few = dataclasses.replace(HEADS, bound_draws=1, formula_draws=1)
    assert outcomes(single_head.run(few, device="cpu"))[red] == "not reproduced"


def test_a_gradient_without_the_mean_turns_its_claim_red(monkeypatch):
    """The softmax Jacobian without its second term, in the form for all heads at once."""
    monkeypatch.setattr(torch.Tensor, "addcmul_", lambda self, *a, **k: self)
    few = dataclasses.replace(HEADS, bound_draws=1, formula_draws=1)
    assert outcomes(single_head.run(few, device="cpu"))["MH-L1.5"] == "not reproduced"


def test_bounds_without_room_turn_their_claims_red(monkeypatch):
    for bound in ("gradient_bound", "hessian_bound", "dimension_free_hessian_bound"):
        right = getattr(curvature_bounds, bound)
        monkeypatch.setattr(curvature_bounds, bound, lambda *a, right=right: 0.1 * right(*a))
    verdicts = outcomes(single_head.run(dataclasses.replace(HEADS, formula_draws=1), device="cpu"))
    for claim in ("MH-P1.1", "MH-P1.2", "MH-P1.3"):
        assert verdicts[claim] == "not reproduced"


def test_heads_without_the_factor_before_them_turn_the_slopes_red(monkeypatch):
    """Blocks that do not carry one over the root of the number of heads."""
    right = derivatives.block_weights

    def wrong(parameters, tokens, labels):
        return right(parameters, tokens, labels) * len(parameters["decoder"]) ** 0.5

    monkeypatch.setattr(derivatives, "block_weights", wrong)
    verdicts = outcomes(curvature.run(POINTS, device="cpu"))
    for claim in ("MH-C1.4", "MH-C1.4-random", "MH-C1.4-flat"):
        assert verdicts[claim] == "not reproduced"


def test_small_and_large_hessians_take_different_ways_to_the_same_eigenvalues(monkeypatch):
    """Put together from Lemma 1, or by differentiating twice."""
    settings = dataclasses.replace(curvature.Settings.smoke(), seeds=(0,))
    closed = curvature.run(settings, device="cpu")
    monkeypatch.setattr(curvature, "LARGEST_BLOCK", 0)
    automatic = curvature.run(settings, device="cpu")
    np.testing.assert_allclose(closed.smallest, automatic.smallest, rtol=3e-3)
    np.testing.assert_allclose(closed.largest, automatic.largest, rtol=3e-3)


def test_a_lone_head_computes_the_same_for_every_number_of_heads():
    settings = curvature.Settings.smoke()
    batch = samples.draw(settings.mixture, settings.n_samples, settings.seeds, device=CPU)[:2]
    outputs = [
        network.predict(points.draw_points(settings, n, settings.seeds, batch)["lone"], batch[0]) for n in (1, 3, 7)
    ]
    torch.testing.assert_close(outputs[0], outputs[1])
    torch.testing.assert_close(outputs[0], outputs[2])


def test_with_one_head_lone_and_trained_are_the_same_point():
    settings = curvature.Settings.smoke()
    batch = samples.draw(settings.mixture, settings.n_samples, settings.seeds, device=CPU)[:2]
    found = points.draw_points(settings, 1, settings.seeds, batch)
    for name, tensor in found["trained"].items():
        torch.testing.assert_close(found["lone"][name], tensor)


def test_seeds_in_chunks_give_the_same_curvature():
    whole, parts = (
        curvature.run(dataclasses.replace(curvature.Settings.smoke(), chunk=chunk), device="cpu") for chunk in (2, 1)
    )
    np.testing.assert_allclose(whole.smallest, parts.smallest, rtol=1e-4)
    np.testing.assert_allclose(whole.loss, parts.loss, rtol=1e-10)


def test_equal_points_have_equal_loss_and_worst_heads_are_worse_than_typical(honest):
    result = honest[1]
    at = points.POINTS.index("equal")
    assert (result.loss[:, at] <= POINTS.equal_loss).all()
    assert (result.loss[:, at] > 0.85 * POINTS.equal_loss).all()
    assert (result.worst_head >= result.typical_head).all()
    # The bowl only lifts: the whole is at most as negative as its worst block.
    assert (-result.smallest <= result.worst_head * 1.002).all()


def test_large_weights_measure_the_same_network_under_other_names():
    """Same run, other claim ids."""
    settings = dataclasses.replace(large_weights.Settings.smoke(), seeds=(0,))
    result = large_weights.run(settings, device="cpu")
    assert settings.scale == 2.0
    assert set(result.measurements()) == {f"MH-SCALE-{name}" for name in ("bound", "slope", "flat")}


def test_every_eigenvalue_is_counted_once():
    settings = eigenvalues.Settings.smoke()
    result = eigenvalues.run(settings, device="cpu")
    sizes = np.array(settings.heads) * settings.n_parameters
    np.testing.assert_array_equal(result.counts.sum(axis=3), np.broadcast_to(sizes, (1, 3, 2)))
    assert (result.smallest < 0).all()


def test_counts_repeat_and_survive_a_round_trip(tmp_path):
    first, second = (eigenvalues.run(eigenvalues.Settings.smoke(), device="cpu") for _ in range(2))
    first.save(tmp_path / "result.json")
    loaded = eigenvalues.Eigenvalues.load(tmp_path / "result.json")
    for name in ("counts", "negative", "smallest"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
        np.testing.assert_allclose(getattr(loaded, name), getattr(first, name), rtol=1e-5)


def test_slopes_are_those_of_power_laws(honest):
    result = honest[1]
    law = 3.0 * np.array(POINTS.heads) ** -0.7 * np.ones_like(result.loss)
    np.testing.assert_allclose(result.slopes_of(law), -0.7, rtol=1e-12)


@pytest.mark.parametrize(
    ("settings", "change"),
    [
        (curvature.Settings.book(), {"heads": (4,)}),
        (curvature.Settings.book(), {"heads": (4, 1)}),
        (curvature.Settings.book(), {"heads": (0, 1)}),
        (curvature.Settings.book(), {"n_samples": 0}),
        (curvature.Settings.book(), {"equal_loss": 0.0}),
        (curvature.Settings.book(), {"relevant_fraction": 0.3}),
        (curvature.Settings.book(), {"dimension": 5}),
        (curvature.Settings.book(), {"seeds": ()}),
        (eigenvalues.Settings.book(), {"bin_width": 0.0}),
        (eigenvalues.Settings.book(), {"bins_below": 0}),
        (single_head.Settings.book(), {"n_tokens": 5}),
        (single_head.Settings.book(), {"dimensions": (4, 2)}),
        (single_head.Settings.book(), {"bound_draws": 0}),
        (single_head.Settings.book(), {"chunk": 0}),
    ],
)
def test_impossible_settings_are_refused_by_name(settings, change):
    with pytest.raises(ValueError, match=next(iter(change))):
        dataclasses.replace(settings, **change)


def test_figures_and_tables_draw_from_smoke_results(smoke_results):
    """Every plotting function of the chapter takes its result and returns a figure."""
    one, loss = (smoke_results[f"multi_head.{n}"] for n in ("single_head", "curvature"))
    counts = eigenvalues.run(eigenvalues.Settings.smoke(), device="cpu")
    drawn = [
        figures.single_head_bounds(one),
        figures.bound_ladder(one, loss),
        *(
            draw(loss)
            for draw in (
                figures.curvature_and_bounds,
                figures.typical_and_largest_head,
                figures.curvature_without_the_loss,
                figures.lone_head,
            )
        ),
        figures.explorer_frame(counts, "trained", 4),
    ]
    for figure in drawn:
        assert all(ax.get_xlabel() for ax in figure.axes)
        figures.plt.close(figure)
    assert "relative to the loss" in tables.slopes(loss)._repr_html_()
    assert "from the bound" in tables.step_sizes(loss)._repr_html_()
    assert "kept the norm" in tables.heads_promised(loss)._repr_html_()
    assert "Hessians" in tables.cost(loss, "Hessians", 3)._repr_html_()
    assert "H = 4" in tables.explorer_text(counts, "lone", 4)


def test_looks_of_one_chapter_differ_in_more_than_colour_and_all_are_legible():
    own = ("random", "trained", "equal", "lone", "curvature", "dimension_free_curvature", "typical", "worst")
    for attribute in ("marker", "line", "label", "color"):
        values = [getattr(LOOKS[name], attribute) for name in own]
        assert len(set(values)) == len(values), attribute

    def luminance(color):
        channels = np.array(mpl.colors.to_rgb(color))
        return float(np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
                     @ [0.2126, 0.7152, 0.0722])  # fmt: skip

    for look in LOOKS.values():
        assert (luminance(BACKGROUND) + 0.05) / (luminance(look.color) + 0.05) >= 4.5, look.label
