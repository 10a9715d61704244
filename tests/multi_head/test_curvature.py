"""Curvature: bounds at points whose answer is known, Lemma 1, rules that can fail, the chapter and its program."""

import json
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
from attnbook.multi_head import curvature_bounds, derivatives, layer, network
from attnbook.multi_head.data import Mixture, draw

RNG = np.random.default_rng(0)
X, U = RNG.standard_normal((7, 5)), RNG.standard_normal((7, 5))
CHAPTER = Path(__file__).parents[2] / "chapters" / "multi_head" / "curvature.py"
own = lab.load_script(CHAPTER)
MIXTURE = Mixture(5, 8, 3, 1.0, 0.2, 0.1, 0.1, 0.3)


def norms(tokens, decoder, key_query):
    x = torch.tensor(tokens)[None]
    head = {"decoder": torch.tensor(decoder)[None], "key_query": torch.tensor(key_query)[None]}
    matrix = derivatives.head_hessians(head, x, torch.ones(1, dtype=torch.float64))[0]
    return float(derivatives.head_gradients(head, x).norm()), float(torch.linalg.matrix_norm(matrix, 2))


@given(seed=st.integers(0, 10**6), size=st.floats(0.1, 10), dimension=st.sampled_from([1, 2, 3, 5]))
@settings(max_examples=40, deadline=None)
def test_bounds_hold_and_the_dimension_free_one_is_at_most_half(seed, size, dimension):
    rng = np.random.default_rng(seed)
    tokens, decoder = size * rng.standard_normal((3, dimension)), rng.standard_normal((3, dimension)) / size
    gradient, hessian = norms(tokens, decoder, rng.standard_normal((dimension, dimension)) / size)
    assert gradient <= curvature_bounds.gradient_bound(tokens, decoder)
    assert hessian <= curvature_bounds.dimension_free_hessian_bound(tokens, decoder) * (1 + 1e-12)
    ours, paper = (
        f(tokens, decoder) for f in (curvature_bounds.dimension_free_hessian_bound, curvature_bounds.hessian_bound)
    )
    assert 2 * ours <= paper * (1 + 1e-12)


def test_dimension_free_bound_is_attained():
    """Half of the tokens each way, no decoder, uniform attention: the norm is sqrt(T) R^3, exactly."""
    tokens = 1.3 * np.array([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    _, hessian = norms(tokens, np.zeros((4, 2)), np.zeros((2, 2)))
    assert hessian == pytest.approx(curvature_bounds.dimension_free_hessian_bound(tokens, np.zeros((4, 2))), rel=1e-12)


def test_largest_cumulant_bounds_every_law_on_the_square_and_is_reached():
    """Mixed third cumulants of random laws on up to five points, many of them corners; and the law that attains it."""
    rng = np.random.default_rng(3)
    weights = rng.dirichlet(np.full(5, 0.4), 20_000)
    p, s = np.clip(rng.uniform(-3, 3, (2, 20_000, 5)), -1, 1)
    centred = s - (weights * s).sum(1, keepdims=True)
    cumulants = (weights * (p - (weights * p).sum(1, keepdims=True)) * centred**2).sum(1)
    assert 0.7 < abs(cumulants).max() <= curvature_bounds.LARGEST_CUMULANT
    few = (1 - 1 / np.sqrt(3)) / 2
    w, s = np.array([few, 1 - few]), np.array([-1.0, 1.0])
    p = -s
    assert w @ ((p - w @ p) * (s - w @ s) ** 2) == pytest.approx(curvature_bounds.LARGEST_CUMULANT, rel=1e-12)


def test_powers_in_the_constants_by_hand():
    """R = 2, B = 1.5: beta_1 = 4 * 13, beta_3 = 12 * 8 * 55, beta_2 = 5280 / 4 + 676, beta_3' = 16 (6 c + 1)."""
    got = curvature_bounds.loss_constants(n_tokens=4, dimension=9, n_heads=16, token_norm=2.0, largest_head_norm=1.5)
    expected = (52.0, 1996.0, 5280.0, 16 * (6 * curvature_bounds.LARGEST_CUMULANT + 1))
    assert got == pytest.approx(expected, rel=1e-14)


def test_bounds_of_proposition_1_by_hand():
    """T = 2, d = 3, R = 5, largest entry 4, values 3 and 8."""
    tokens, decoder = np.array([[3.0, 4.0, 0.0], [0.0, 0.0, 0.0]]), np.array([[1.0, 0.0, 0.0], [0.0, 2.0, 5.0]])
    assert curvature_bounds.gradient_bound(tokens, decoder) == pytest.approx(2 * 25 * 11 + 5 * 2**0.5, rel=1e-14)
    hessian = 6 * 3 * 25 * 16 * 11 + 2 * 6**0.5 * 25 * 4
    assert curvature_bounds.hessian_bound(tokens, decoder) == pytest.approx(hessian, rel=1e-14)
    free = curvature_bounds.LARGEST_CUMULANT * 625 * 11 + 2**0.5 * 125
    assert curvature_bounds.dimension_free_hessian_bound(tokens, decoder) == pytest.approx(free, rel=1e-14)


def test_condition_18_by_hand():
    """beta_3 = 120 and the root of H is 4, so that 2 * 120 / (60 * 4) = 1."""
    sizes = {"n_tokens": 4, "dimension": 9, "n_heads": 16, "token_norm": 1.0, "head_norm": 1.0}
    assert curvature_bounds.allowed_distance(**sizes) == pytest.approx(1 / 60**0.5)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"n_heads": 0}, "n_heads"),
        ({"token_norm": 0.5}, "token_norm"),
        ({"token_norm": float("nan")}, "token_norm"),
        ({"largest_head_norm": -1.0}, "largest_head_norm"),
    ],
)
def test_arguments_out_of_range_are_refused_by_name(change, name):
    good = {"n_tokens": 2, "dimension": 3, "n_heads": 5, "token_norm": 1.0, "largest_head_norm": 1.0}
    with pytest.raises(ValueError, match=f"{name}: "):
        curvature_bounds.loss_constants(**(good | change))


@pytest.mark.parametrize(
    "bound",
    [curvature_bounds.gradient_bound, curvature_bounds.hessian_bound, curvature_bounds.dimension_free_hessian_bound],
)
def test_entries_that_are_not_finite_are_refused_by_name(bound):
    with pytest.raises(ValueError, match="tokens: 35 of 35"):
        bound(X * np.nan, U)
    with pytest.raises(ValueError, match="decoder: 35 of 35"):
        bound(X, U * np.inf)


# Lemma 1 and the footnotes


def test_formulas_of_lemma_1_are_right_and_the_printed_jacobian_is_not():
    """All four as the text prints them, at normal entries; the text reads v v^T where phi phi^T is meant."""
    x, u, a, b, c, w = (torch.tensor(RNG.standard_normal(shape)) for shape in ((7, 5), (7, 5), 7, 5, 5, (5, 5)))
    u.requires_grad_(), w.requires_grad_()
    in_u, in_w = torch.autograd.grad((u * ((x @ w @ x.T).softmax(1) @ x)).sum(), (u, w), create_graph=True)
    (mixed,) = torch.autograd.grad(a @ in_u @ b, w, retain_graph=True)
    (curvature,) = torch.autograd.grad(c @ in_w @ b, w)
    u, w = u.detach(), w.detach()
    logits, values, along = x @ w @ x.T, u @ x.T, x @ b
    phi = logits.softmax(1)
    right, printed = (torch.diag_embed(phi) - p[:, :, None] * p[:, None] for p in (phi, logits))
    d = along * values - (phi @ along)[:, None] * values - (phi * values).sum(1, keepdim=True) * along

    def summed(weights, rows, jacobian):
        return x.T @ (weights[:, None] * torch.einsum("ts,tsr,rj->tj", rows, jacobian, x))

    found = [
        (phi @ x, in_u),
        (summed(torch.ones(7), values, right), in_w),
        (summed(a, along.expand(7, 7), right), mixed),
        (summed(x @ c, d, right), curvature),
    ]
    assert max(((got - true).norm() / true.norm()).item() for got, true in found) < 1e-12
    assert (summed(torch.ones(7), values, printed) - in_w).norm() > in_w.norm()


def squareplus(margins):
    return ((margins.square() + 4).sqrt() - margins) / 2


def steep(margins):
    return torch.nn.functional.softplus(-2 * margins)


SELF_BOUNDED = {squareplus: (0.5, 1.0, 0.25), steep: (2.0, 2.0, 1.0)}  # |l'| <= C l, |l'| <= G, l'' <= s
POINTS = [("random", 0.5), ("random", 2.0), *((name, 0.0) for name in own.NEAR)]


def over_the_bounds(point, scale, loss=None, basis=None, heads=2):
    """Gradient, Hessian norm and negative curvature over Corollary 1, with a loss, for decoders basis times vectors."""
    tokens, labels = draw(MIXTURE, 12, [3])[:2]
    tokens = own.near_tokens(point, tokens, labels) if scale == 0 else tokens
    basis = torch.eye(5, dtype=torch.float64) if basis is None else basis
    start = network.random_networks([np.random.default_rng(5)], (heads, basis.shape[1], 8), scale=scale)
    flat = torch.cat([*start.values()], dim=2)

    def value(theta):
        u, w = theta.view_as(flat).tensor_split([basis.shape[1]], dim=2)
        margins = labels * layer.outputs({"decoder": basis @ u, "key_query": w}, tokens)
        return (loss or network.logsigmoid)(margins).mean() * (1 if loss else -1)

    found, gradient = value(flat.flatten()), torch.func.grad(value)(flat.flatten())
    ends = torch.linalg.eigvalsh(torch.func.jacrev(torch.func.grad(value))(flat.flatten()))
    sizes = {"n_tokens": 5, "dimension": 8, "n_heads": heads, "token_norm": max(1.0, float(tokens.norm(dim=3).max()))}
    norm = float(network.largest_head_norm(start))
    beta = curvature_bounds.loss_constants(**sizes, largest_head_norm=norm)
    c, g, s = SELF_BOUNDED.get(loss, (1.0, 1.0, 0.25))
    stated = c * beta.gradient * found, g * beta.curvature / heads**0.5 + s * beta.gradient**2
    ratios = gradient.norm() / stated[0], ends.abs().max() / stated[1]
    return [*map(float, ratios), float(-ends[0] * heads**0.5 / (c * beta.curvature * found))]


@pytest.mark.parametrize("loss", SELF_BOUNDED)
def test_other_self_bounded_losses_keep_corollary_1_with_their_own_constants(loss):
    t = torch.linspace(-30, 30, 2001, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(loss(t).sum(), t, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), t)
    c, g, s = SELF_BOUNDED[loss]
    assert (slope.abs() <= c * loss(t) * (1 + 1e-12)).all()
    assert slope.abs().max() <= g
    assert 0 <= bend.min() <= bend.max() <= s + 1e-12
    ratios = {point: over_the_bounds(*point, loss) for point in POINTS}
    assert max(map(max, ratios.values())) <= 1 + 1e-12
    if loss is squareplus:
        assert ratios["equal tokens", 0.0][0] == pytest.approx(1, rel=1e-12)


def test_pooling_and_the_last_token_keep_corollary_1_where_norms_are_measured_right():
    """Pooling in an orthonormal basis, and with the norm of one vector for all tokens, where part 1 fails."""
    last, pooled = torch.eye(5, dtype=torch.float64)[:, -1:], torch.ones(5, 1, dtype=torch.float64)
    for basis in (last, pooled / 5**0.5):
        assert max(max(over_the_bounds(*point, basis=basis)) for point in POINTS) <= 1
    plain = over_the_bounds("equal tokens", 0.0, basis=pooled)
    assert plain[0] == pytest.approx(0.5 * 5 / (5**0.5 * math.log(2)), rel=1e-12)
    assert plain[0] > 1


# The experiments


@pytest.fixture(scope="module")
def stored():
    return {"single_head": own.single_head.stored(), "curvature": own.curvature.stored()}


def only(name, change, **at):
    """Change one array at one label of each dimension named."""

    def changed(data):
        array = data[name].copy(deep=True)
        array.loc[at] = change(array.loc[at])
        return data.assign({name: array})

    return changed


def steeper(name, power, **at):
    """Let a curvature fall with another power of the number of heads."""
    return lambda d: only(name, lambda found: found * d.heads.astype(float) ** power, **at)(d)


SMALL, LARGE = {"scale": 0.5, "point": "random"}, {"scale": 2.0, "point": "random"}
RED = {
    "single_head": {
        "MH-P1.1": only("ratio", lambda ratio: 2 * ratio, bound="gradient"),
        "MH-P1.2": only("ratio", lambda ratio: 3 * ratio, bound="Hessian"),
        "MH-P1.3": only("ratio", lambda ratio: 1.01 * ratio, bound="Hessian without dimension"),
    },
    "curvature": {
        "MH-C1.1": lambda d: d.assign(gradient_norm=1.5 * d.gradient_norm),
        "MH-C1.2": lambda d: d.assign(largest=2 * d.largest),
        "MH-C1.3": lambda d: d.assign(smallest=10 * d.smallest),
        "MH-C1.4": steeper("smallest", 0.08, **SMALL),
        "MH-FN4": lambda d: d.assign(smallest=10 * d.smallest),
        "MH-B13.12": only("smallest", abs, scale=0.5, point="lone", heads=256),
    },
}
PARTS = {
    "single_head": [
        ("MH-P1.3", lambda d: d.assign(decoder_share=1 - d.decoder_share.clip(0.06))),
        ("MH-P1.3", lambda d: d.assign(decoder_share=d.decoder_share.clip(0, 0.94))),
    ],
    "curvature": [
        ("MH-C1.2", lambda d: d.assign(smallest=-2 * d.largest)),
        ("MH-C1.4", steeper("smallest", 0.1, **LARGE)),
        ("MH-C1.4", steeper("smallest", 0.08, scale=0.5, point="equal")),
        ("MH-C1.4", steeper("typical_head", 0.12, **SMALL)),
        ("MH-C1.4", steeper("typical_head", -0.15, **LARGE)),
        ("MH-C1.4", lambda d: d.assign(worst_head=1.05 * d.worst_head)),
        ("MH-B13.12", steeper("smallest", 0.3, scale=2.0, point="trained")),
    ],
}  # other values of the same rules


@pytest.mark.parametrize("name", RED)
def test_every_measured_claim_of_the_chapter_can_be_turned_red(name, stored):
    red.assert_every_claim_turns(getattr(own, name).measure, stored[name], RED[name], PARTS[name])


def test_every_claim_of_the_chapter_is_measured_or_tested():
    mine = {c.id: c for c in ledger.claims() if c.chapter == "multi_head/curvature"}
    assert set(mine) - {i for claims in RED.values() for i in claims} == {i for i, c in mine.items() if c.checked}
    assert [i for i, c in mine.items() if c.source == "book" and c.verdict != "identity"] == ["MH-C1.4"]


def test_heads_without_the_factor_before_them_turn_the_law_red(monkeypatch):
    """Blocks that do not carry one over the root of the number of heads."""
    right = derivatives.head_hessians
    monkeypatch.setattr(derivatives, "head_hessians", lambda p, x, w: right(p, x, w) * len(p["decoder"]) ** 0.5)
    found = own.curvature.measure(own.curvature.run("smoke", seeds=(0,), heads=(1, 4, 16)))
    assert ledger.judge(ledger.claim("MH-C1.4"), found["MH-C1.4"]).outcome == "not reproduced"


def test_small_and_large_hessians_take_different_ways_to_the_same_eigenvalues(monkeypatch):
    """Put together from Lemma 1, or by differentiating twice."""
    change = {"seeds": (0,), "heads": (1, 4), "start_scales": (0.5,)}
    closed = own.curvature.run("smoke", **change)
    monkeypatch.setattr(own, "LARGEST_BLOCK", 0)
    automatic = own.curvature.run("smoke", **change)
    np.testing.assert_allclose(closed.smallest, automatic.smallest, rtol=3e-3, atol=1e-12)
    np.testing.assert_allclose(closed.largest, automatic.largest, rtol=3e-3)
    assert "MH-C1.4" not in own.curvature.measure(automatic)


def test_a_lone_head_computes_the_same_for_every_number_of_heads_and_is_the_trained_one():
    batch = draw(MIXTURE, 11, (0,))[:2]

    def start(heads):
        return network.random_networks([np.random.default_rng(0)], (heads, 5, 8), scale=0.5)

    found = {n: own.networks(start, n, batch, 1.0, 10, 0.3) for n in (1, 3, 7)}
    outputs = [layer.outputs(at["lone"][0], batch[0]) for at in found.values()]
    torch.testing.assert_close(outputs[0], outputs[1])
    torch.testing.assert_close(outputs[0], outputs[2])
    for name, tensor in found[1]["trained"][0].items():
        torch.testing.assert_close(found[1]["lone"][0][name], tensor)


def test_bounds_come_near_where_they_should_by_hand(stored):
    """Zero weights, R = 1, T = 5, d = 8: the slope of the loss is 1/2, attention uniform, three tokens against two."""
    data = stored["curvature"].isel(seed=0, scale=0, heads=-1)
    equal, opposite = data.sel(point="equal tokens"), data.sel(point="opposite tokens")
    assert float(equal.gradient_norm) == pytest.approx(math.sqrt(5) / 2)
    assert float(equal.largest) == pytest.approx(5 / 4, rel=2e-3)
    assert float(equal.smallest) == pytest.approx(0, abs=1e-12)
    assert float(opposite.worst_head) == pytest.approx(math.sqrt(5) * (1 - 1 / 25) / 2 / math.sqrt(256))


def test_two_parts_add_up_and_the_rest_falls_like_the_root():
    lowest = []
    for n_heads in (2, 8):
        bowl, rest = own.two_parts(n_heads)
        assert np.linalg.eigvalsh(bowl)[0] > -1e-12
        lowest.append(np.linalg.eigvalsh(rest)[0])
        assert not rest[: len(rest) // n_heads, len(rest) // n_heads :].any()
    assert lowest[0] == pytest.approx(2 * lowest[1], rel=1e-9)


def test_what_the_page_says_in_words(stored):
    data = stored["curvature"].median("seed").sel(scale=0.5)
    lone, trained = (-data.smallest.sel(point=point) for point in ("lone", "trained"))
    assert lone[-1] / lone[-2] > 0.9 > lone[1] / lone[0]
    assert (np.diff(data.loss.sel(point="trained")) > 0).all()
    assert trained.sel(heads=16) > trained.sel(heads=1)
    power = lab.slope(own.relative(stored["curvature"]), "heads").sel(**SMALL).median()
    assert 0.53 < 4**power < 0.57  # "about 54 %"
    over = own.ratios(stored["curvature"], stored["curvature"].head_norm)["curvature"]
    assert 1 / over.sel(point=list(own.POINTS[:4])).max() > 3000  # "thousands of times"
    assert stored["single_head"].ratio.sel(bound="Hessian").max() < 0.5  # "at most half of the paper's"
    equal = stored["curvature"].loss.sel(point="equal")
    assert ((equal <= 0.2) & (equal > 0.15)).all()
    worse = (stored["curvature"].worst_head / stored["curvature"].typical_head).sel(heads=256, point="random")
    assert abs(worse.sel(scale=0.5) - 1.4).max() < 0.1
    assert (worse.sel(scale=2.0) > 1.9).all()
    assert worse.sel(scale=2.0).median() > 2
    found = stored["curvature"].sel(**SMALL).median(["seed", "heads"])
    assert (round(float(found.token_norm), 2), round(float(found.head_norm), 1)) == (1.08, 5.8)
    sizes = {"n_tokens": 5, "dimension": 8, "n_heads": 1, "token_norm": 1.08, "largest_head_norm": 5.8}
    beta = curvature_bounds.loss_constants(**sizes)
    assert (round(beta.gradient), round(beta.curvature, -1)) == (35, 930)


def test_pictures_and_tables_show_what_is_stored_and_what_is_yours(stored):
    figure = own.law(stored["curvature"], {"mine": {1: 0.1, 16: 0.03}})
    assert "yours: mine" in [text.get_text() for text in figure.legends[0].get_texts()]
    assert all(ax.get_xlabel() for ax in own.parts_frame(2).axes)
    plt.close("all")
    assert "worst over median" in own.slopes(stored["curvature"])._repr_html_()
    assert "without dimension" in own.slack(stored["curvature"])._repr_html_()


def test_an_odd_number_of_tokens_is_refused_by_name():
    with pytest.raises(ValueError, match="n_tokens: expected an even number, got 5"):
        own.single_head.run("smoke", n_tokens=5)


# The program that the page shows


@pytest.fixture(scope="module")
def program():
    cells = json.loads(CHAPTER.with_suffix(".ipynb").read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    names = {"source": next(source for source in sources if "def eigenvalue(" in source)}
    exec(names["source"], names)
    layers = next(source for source in sources if "layers = {" in source)
    exec(layers.split("rows = []")[0], names)
    yield names
    torch.set_default_dtype(torch.float32)


def test_the_program_of_the_page_is_short_and_has_the_network_of_the_experiment(program):
    assert len([line for line in program["source"].splitlines() if line.strip()]) <= 40
    assert "attnbook" not in program["source"]
    theta, f = program["network"](3, 1)
    x, y = program["data"](1)
    mine = {"decoder": theta[None, :, :5], "key_query": theta[None, :, 5:]}
    torch.testing.assert_close(f(theta), network.losses(mine, (x[None], y[None]))[0])
    hessian = derivatives.loss_hessian({name: t[0] for name, t in mine.items()}, x, y).dense()
    ends = np.linalg.eigvalsh(hessian)
    assert program["eigenvalue"](f, theta) == pytest.approx(ends[0], rel=0.02)
    assert program["eigenvalue"](f, theta, "LA") == pytest.approx(ends[-1], rel=0.02)


def test_the_data_of_the_page_are_the_mixture(program):
    """Norms of tokens and their products within a sample, which a rotation does not change."""
    mine, book = program["data"](0, n=4000)[0], draw(MIXTURE, 4000, [0]).tokens[0]
    for of in (lambda x: x.norm(dim=2), lambda x: (x[:, :1] @ x[:, 1:].mT)[:, 0], lambda x: x.mean(1).norm(dim=1)):
        quantiles = torch.tensor([0.1, 0.3, 0.7, 0.9])
        torch.testing.assert_close(*(of(x).flatten().quantile(quantiles) for x in (mine, book)), rtol=0.02, atol=0.02)


@pytest.mark.slow
def test_what_the_page_says_of_changes_holds(program):
    """The rows of "Change it" and of the two divisors: medians of three seeds, from 4 to 64 heads."""

    def fall(**options):
        few, many = ([program["curvature"](h, s, **options) for s in range(3)] for h in (4, 64))
        return np.median(few) / np.median(many)

    attention, layers = program["attention"], program["layers"]
    assert 2.5 < fall() < 4.5
    assert 2.5 < fall(make=lambda s: program["data"](s, noise=0.5, free=1.0)) < 4.5
    assert 3.5 < fall(layer=layers["linear attention"]) < 4.5
    assert 2.5 < fall(layer=layers["GELU neurons"]) < 4.5
    assert 10 < fall(layer=layers["softmax, divided by H"]) < 18
    assert abs(program["curvature"](4, layer=lambda t, x: attention(t, x, lambda z: 0 * z + 0.2))) < 1e-12
    ratios = {}
    for name in ("softmax attention", "softmax, divided by H"):
        for heads in (4, 64):
            theta, f = program["network"](heads, layer=layers[name])
            ratios[name, heads] = -program["eigenvalue"](f, theta) / program["eigenvalue"](f, theta, "LA")
    assert ratios["softmax attention", 64] < 0.3 * ratios["softmax attention", 4]
    assert ratios["softmax, divided by H", 64] > 0.8 * ratios["softmax, divided by H", 4]


# The exercises


def gradient(x, u, w, *, forget=""):
    weights = (x @ w @ x.T).softmax(1)
    values = u @ x.T
    mean = (weights * values).sum(1, keepdim=True)
    mean = 0.0 if forget == "mean" else mean
    result = x.T @ (weights * (values - mean)) @ x
    return result.T if forget == "transpose" else result


def spread(u, w, n):
    return torch.stack([u / n**0.5] * n), torch.stack([w] * n)


@pytest.mark.parametrize(
    ("exercise", "right", "wrong", "message"),
    [
        ("MH-1", gradient, lambda *a: gradient(*a, forget="mean"), "subtract from each row"),
        ("MH-1", gradient, lambda *a: gradient(*a, forget="transpose"), "transpose"),
        ("MH-3", spread, lambda u, w, n: (torch.stack([u] * n), torch.stack([w] * n)), "times what it was"),
        ("MH-3", spread, lambda u, w, n: (spread(u, w, n)[0], torch.stack([w / n] * n)), "not linear"),
        ("MH-3", spread, lambda u, w, n: (np.arange(n)[:, None, None] * u.numpy(), spread(u, w, n)[1]), "equal"),
    ],
)
def test_exercises_accept_the_right_answer_and_name_the_mistake(exercise, right, wrong, message):
    assert attnbook.check(exercise, right).right
    assert message in attnbook.check(exercise, wrong).message
