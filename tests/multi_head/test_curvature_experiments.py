"""The experiments on curvature: rules that can fail, the points measured, pictures, settings and exercises."""

import dataclasses
import math

import matplotlib as mpl
import numpy as np
import pytest
import red
import torch

import attnbook
from attnbook import ledger
from attnbook.core.figures import BACKGROUND
from attnbook.core.rng import stream
from attnbook.multi_head import derivatives, layer
from attnbook.multi_head.curvature import experiments as own
from attnbook.multi_head.curvature import figures, points
from attnbook.multi_head.data import draw
from attnbook.multi_head.experiment_parts import random_networks

KINDS = {"single_head": own.SingleHead, "curvature": own.Curvature, "variants": own.Variants}


@pytest.fixture(scope="module")
def stored():
    return {name: kind.load_stored("book") for name, kind in KINDS.items()}


def only(name, change, **at):
    """Change one array at one label of each dimension named."""

    def changed(data):
        array = data[name].copy(deep=True)
        array.loc[at] = change(array.loc[at])
        return data.assign({name: array})

    return changed


def steeper(power, **at):
    """Let the most negative curvature fall with another power of the number of heads."""
    return lambda d: only("smallest", lambda found: found * d.heads.astype(float) ** power, **at)(d)


RED = {
    "single_head": {
        "MH-L1.1": only("errors", lambda error: error + 1e-9, formula="mixed"),
        "MH-L1.2": only("errors", lambda error: error / 100, formula="printed key_query"),
        "MH-P1.1": only("ratio", lambda ratio: 2 * ratio, bound="gradient"),
        "MH-P1.2": only("ratio", lambda ratio: 3 * ratio, bound="Hessian"),
        "MH-P1.3": only("ratio", lambda ratio: 1.01 * ratio, bound="Hessian without dimension"),
    },
    "curvature": {
        "MH-C1.1": lambda d: d.assign(gradient_norm=1.5 * d.gradient_norm),
        "MH-C1.2": lambda d: d.assign(largest=2 * d.largest),
        "MH-C1.3": lambda d: d.assign(smallest=10 * d.smallest),
        "MH-C1.4": steeper(0.2, scale=0.5, point="trained"),
        "MH-SCALE-slope": steeper(-0.1, scale=2.0, point="trained"),
        "MH-FN4": lambda d: d.assign(smallest=10 * d.smallest),
        "MH-B13.12": only("smallest", abs, scale=0.5, point="lone", heads=256),
    },
    "variants": {
        "MH-FN1": only("ratio", lambda ratio: 4 * ratio, variant="last token", bound="gradient"),
        "MH-FN3": only("ratio", lambda ratio: 3 * ratio, variant="squareplus", bound="gradient"),
    },
}
PARTS = {
    "single_head": [
        ("MH-L1.1", only("errors", lambda error: error + 1e-9, formula="decoder")),
        ("MH-L1.1", only("errors", lambda error: error + 1e-9, formula="curvature")),
        ("MH-L1.2", only("errors", lambda error: error + 1e-9, formula="key_query")),
        ("MH-P1.3", lambda d: d.assign(decoder_share=1 - d.decoder_share.clip(0.06))),
        ("MH-P1.3", lambda d: d.assign(decoder_share=d.decoder_share.clip(0, 0.94))),
    ],
    "curvature": [
        ("MH-C1.2", lambda d: d.assign(smallest=-2 * d.largest)),
        ("MH-C1.4", steeper(-0.2, scale=0.5, point="random")),
        ("MH-C1.4", steeper(0.1, scale=0.5, point="equal")),
        ("MH-FN4", lambda d: d.assign(gradient_norm=1.5 * d.gradient_norm)),
        ("MH-FN4", lambda d: d.assign(largest=2 * d.largest)),
        ("MH-B13.12", steeper(0.3, scale=2.0, point="trained")),
    ],
    "variants": [
        ("MH-FN1", only("ratio", lambda ratio: 2 * ratio, variant="pooling", bound="gradient")),
        ("MH-FN1", only("ratio", lambda ratio: ratio / 2, variant="pooling, plain", bound="gradient")),
        ("MH-FN3", only("ratio", lambda ratio: 10 * ratio, variant="squareplus", bound="smoothness")),
        ("MH-FN3", only("ratio", lambda ratio: 15 * ratio, variant="squareplus", bound="curvature")),
    ],
}  # other values of the same rules


@pytest.mark.parametrize("name", KINDS)
def test_every_measured_claim_of_the_chapter_can_be_turned_red(name, stored):
    red.assert_every_claim_turns(KINDS[name]().measurements, stored[name], RED[name], PARTS[name])


def test_every_claim_of_the_chapter_is_measured():
    mine = {c.id: c for c in ledger.claims() if c.chapter == "multi_head/curvature"}
    assert set(mine) == {claim for claims in RED.values() for claim in claims}
    assert sum(c.source == "book" for c in mine.values()) <= 3


def test_heads_without_the_factor_before_them_turn_the_law_red(monkeypatch):
    """Blocks that do not carry one over the root of the number of heads."""
    right = derivatives.head_hessians
    monkeypatch.setattr(derivatives, "head_hessians", lambda p, x, w: right(p, x, w) * len(p["decoder"]) ** 0.5)
    experiment = own.Curvature(seeds=(0, 1), heads=(1, 4, 16), start_scales=(0.5,))
    found = experiment.measurements(experiment.run(device="cpu"))
    assert ledger.judge(ledger.claim("MH-C1.4"), found["MH-C1.4"]).outcome == "not reproduced"
    assert "MH-SCALE-slope" not in found


@pytest.fixture(scope="module")
def small():
    experiment = own.Curvature.at("smoke", seeds=(0,), start_scales=(0.5,))
    return experiment, draw(experiment.mixture, experiment.n_samples, experiment.seeds)[:2]


def test_formulas_of_lemma_1_are_right_and_the_printed_jacobian_is_not():
    errors = dict(zip(points.FORMULAS, points.formula_errors(7, 5, 3, 0), strict=True))
    assert errors.pop("printed key_query") > 1
    assert len(errors) == 4
    assert max(errors.values()) < 1e-12


def test_small_and_large_hessians_take_different_ways_to_the_same_eigenvalues(monkeypatch, small):
    """Put together from Lemma 1, or by differentiating twice."""
    closed = small[0].run(device="cpu")
    monkeypatch.setattr(points, "LARGEST_BLOCK", 0)
    automatic = small[0].run(device="cpu")
    np.testing.assert_allclose(closed.smallest, automatic.smallest, rtol=3e-3, atol=1e-12)
    np.testing.assert_allclose(closed.largest, automatic.largest, rtol=3e-3)


def test_a_lone_head_computes_the_same_for_every_number_of_heads_and_is_the_trained_one(small):
    experiment, batch = small
    found = {n: points.draw_points(experiment, 0.5, n, (0,), batch) for n in (1, 3, 7)}
    outputs = [layer.outputs(*at["lone"][:1], batch[0]) for at in found.values()]
    torch.testing.assert_close(outputs[0], outputs[1])
    torch.testing.assert_close(outputs[0], outputs[2])
    for name, tensor in found[1]["trained"][0].items():
        torch.testing.assert_close(found[1]["lone"][0][name], tensor)


def test_equal_points_have_equal_loss_and_worst_heads_are_worse_than_typical(stored):
    data, most = stored["curvature"], own.Curvature().equal_loss
    equal = data.loss.sel(point="equal")
    assert ((equal <= most) & (equal > 0.75 * most)).all()
    assert (data.worst_head >= data.typical_head).all()
    # The bowl only lifts: the whole is at most as negative as its worst block.
    assert (-data.smallest <= data.worst_head * 1.002 + 1e-12).all()


def test_what_the_chapter_says_in_words(stored):
    """One head at work keeps its curvature; after equally many steps the loss and at first the curvature grow."""
    data = stored["curvature"].sel(scale=0.5)
    last = (own.relative(data).isel(heads=-1) / own.relative(data).isel(heads=-2)).median("seed")
    assert last.sel(point="lone") > 0.9
    assert last.sel(point="trained") < 0.67
    trained = data.sel(point="trained").median("seed")
    assert (np.diff(trained.loss) > 0).all()
    assert trained.smallest.sel(heads=16) < trained.smallest.sel(heads=1)
    typical = own.slope(data.typical_head / data.loss).median("seed")
    assert abs(typical.sel(point="random") + 0.5) < 0.05
    assert typical.sel(point="trained") < -0.55
    heads = (own.constants(data, data.head_norm)["curvature"] / own.relative(data)).sel(point="trained", heads=1) ** 2
    assert heads.min() > 1e7


def test_slopes_are_those_of_power_laws(stored):
    law = 3.0 * stored["curvature"].heads.astype(float) ** -0.7
    np.testing.assert_allclose(own.slope(law), -0.7, rtol=1e-12)


def test_bounds_come_near_where_they_should_by_hand(stored):
    """Zero weights, R = 1, T = 5, d = 8: the slope of the loss is 1/2, attention uniform."""
    data = stored["curvature"].isel(seed=0, scale=0, heads=-1)
    equal, opposite = data.sel(point="equal tokens"), data.sel(point="opposite tokens")
    assert float(equal.gradient_norm) == pytest.approx(math.sqrt(5) / 2)
    assert float(equal.largest) == pytest.approx(5 / 4, rel=2e-3)
    assert float(equal.smallest) == pytest.approx(0, abs=1e-12)
    variance = 1 - 1 / 25  # of three tokens up and two down
    assert float(opposite.worst_head) == pytest.approx(math.sqrt(5) * variance / 2 / math.sqrt(256))


def test_variants_at_equal_tokens_by_hand():
    """Five tokens of norm one, zero weights: |grad| is 1/2 times the root of the tokens that the decoder reads."""
    batch = draw(own.Curvature().mixture, 6, [0])[:2]
    found = {v: points.variant_ratios(v, 4, "equal tokens", 0, batch)[0] for v in points.VARIANTS}
    bound = math.sqrt(5) * math.log(2)
    expected = {
        "last token": 0.5 / bound, "pooling": 0.5 * math.sqrt(5) / bound, "pooling, plain": 0.5 * 5 / bound,
        "squareplus": 0.5,
    }  # fmt: skip
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("variant", points.VARIANTS)
def test_variants_measure_what_autograd_finds(variant, monkeypatch):
    """Gradient and Hessian in what is trained, with all constants put to one."""
    ones = type("Ones", (), {"gradient": 1.0, "smoothness": 1.0, "curvature": 1.0})
    monkeypatch.setattr(points, "loss_constants", lambda **_: ones)
    tokens, labels = draw(own.Curvature().mixture, 6, [0])[:2]
    rows = torch.tensor(points.rows_of(variant, 5))
    start = random_networks([stream(3, "random point")], (2, rows.shape[1], 8), scale=0.5)
    shapes = [tensor.shape for tensor in start.values()]
    value = points.squareplus if variant == "squareplus" else lambda margins: (1 + (-margins).exp()).log()

    def loss(flat):
        u, w = (part.view(shape) for part, shape in zip(flat.split([s.numel() for s in shapes]), shapes, strict=True))
        return value(labels * layer.outputs({"decoder": rows @ u, "key_query": w}, tokens)).mean()

    flat = torch.cat([tensor.flatten() for tensor in start.values()]).requires_grad_()
    found = loss(flat)
    (gradient,) = torch.autograd.grad(found, flat)
    eigenvalues = torch.linalg.eigvalsh(torch.autograd.functional.hessian(loss, flat.detach()))
    found = found.detach()
    expected = [gradient.norm() / found, eigenvalues.abs().max(), -eigenvalues[0] * math.sqrt(2) / found]
    got = points.variant_ratios(variant, 2, "random", 3, (tokens, labels))
    np.testing.assert_allclose(got, [float(x) for x in expected], rtol=1e-9)


def test_squareplus_is_self_bounded():
    t = torch.linspace(-30, 30, 2001, dtype=torch.float64, requires_grad=True)
    loss = points.squareplus(t)
    (slope,) = torch.autograd.grad(loss.sum(), t, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), t)
    assert (slope.abs() <= 0.5 * loss * (1 + 1e-12)).all()
    assert slope.abs().max() <= 1
    assert 0 <= curvature.min() <= curvature.max() <= 0.25 + 1e-12


def test_two_parts_add_up_and_the_rest_falls_like_the_root():
    for n_heads in (2, 8):
        bowl, rest, loss = points.two_parts(n_heads)
        assert loss == math.log(2)
        assert np.linalg.eigvalsh(bowl)[0] > -1e-12
        assert np.linalg.eigvalsh(rest)[0] * math.sqrt(n_heads / 2) == pytest.approx(
            np.linalg.eigvalsh(points.two_parts(2)[1])[0], rel=1e-9
        )
    assert "3.5% of the entries of the rest are not zero" in figures.parts_text(16)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (own.Curvature, {"heads": (4,)}),
        (own.Curvature, {"heads": (4, 1)}),
        (own.Curvature, {"heads": (0, 1)}),
        (own.Curvature, {"start_scales": (0.0,)}),
        (own.Curvature, {"equal_loss": 0.0}),
        (own.Curvature, {"relevant_fraction": 0.3}),
        (own.Curvature, {"dimension": 5}),
        (own.SingleHead, {"n_tokens": 5}),
        (own.SingleHead, {"dimensions": (4, 2)}),
    ],
)
def test_impossible_settings_are_refused_by_name(kind, change):
    with pytest.raises(ValueError, match=next(iter(change))):
        dataclasses.replace(kind(), **change)


def test_figures_and_tables_draw_what_is_stored(stored):
    data, single = stored["curvature"], stored["single_head"]
    drawn = [figures.law(data), figures.one_head(single), figures.parts_frame(2)]
    for figure in drawn:
        assert all(ax.get_xlabel() for ax in figure.axes)
        figures.plt.close(figure)
    line = drawn[0].axes[0].get_lines()[0].get_ydata()
    bound = own.constants(data, data.head_norm)["curvature"].sel(scale=0.5, point="trained").median("seed")
    np.testing.assert_allclose(line, bound / np.sqrt(data.heads))
    assert "part 3, most negative" in figures.slack(data)._repr_html_()
    assert "trained to equal loss" in figures.slopes(data)._repr_html_()


def test_looks_differ_in_more_than_colour_and_are_legible():
    looks = figures.LOOKS.values()
    for attribute in ("marker", "line", "label", "color"):
        assert len({getattr(look, attribute) for look in looks}) == len(looks), attribute

    def luminance(color):
        channels = np.array(mpl.colors.to_rgb(color))
        linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    for look in looks:
        assert (luminance(BACKGROUND) + 0.05) / (luminance(look.color) + 0.05) >= 4.5, look.label


def gradient(x, u, w, *, forget=""):
    logits = x @ (w.T if forget == "swap" else w) @ x.T
    weights = np.exp(logits - logits.max())
    weights /= weights.sum(1, keepdims=True)
    values = u @ x.T
    mean = (weights * values).sum(1, keepdims=True)
    if forget == "mean":
        mean = 0.0
    if forget == "plain mean":
        mean = values.mean(1, keepdims=True)
    result = x.T @ (weights * (values - mean)) @ x
    return result.T if forget == "transpose" else result


def spread(u, w, n):
    return np.repeat(u[None], n, 0) / n**0.5, np.repeat(w[None], n, 0)


@pytest.mark.parametrize(("exercise", "answer"), [("MH-1", gradient), ("MH-3", spread)])
def test_right_answers_pass(exercise, answer):
    assert attnbook.check(exercise, answer).right


@pytest.mark.parametrize(
    ("exercise", "answer", "message"),
    [
        ("MH-1", lambda *a: gradient(*a, forget="mean"), "subtract from each row"),
        ("MH-1", lambda *a: gradient(*a, forget="plain mean"), "weighted by attention"),
        ("MH-1", lambda *a: gradient(*a, forget="swap"), "swapped"),
        ("MH-1", lambda *a: gradient(*a, forget="transpose"), "transpose"),
        ("MH-1", lambda x, u, w: x, "shape"),
        ("MH-1", lambda x, u, w: np.zeros((3, 3)), "different"),
        ("MH-3", lambda u, w, n: (np.repeat(u[None], n, 0), np.repeat(w[None], n, 0)), "times what it was"),
        ("MH-3", lambda u, w, n: (np.repeat(u[None], n, 0), np.repeat(w[None] / n, n, 0)), "not linear"),
        ("MH-3", lambda u, w, n: (u, w), "of shapes"),
        ("MH-3", lambda u, w, n: (np.arange(n)[:, None, None] * u, np.repeat(w[None], n, 0)), "equal"),
    ],
)
def test_wrong_answers_get_the_likely_mistake(exercise, answer, message):
    feedback = attnbook.check(exercise, answer)
    assert not feedback.right
    assert message in repr(feedback)
