"""What attention separates: the oracle, samples made against rules, the theorem's condition, and the race."""

import dataclasses
import json
import math
import re
from itertools import pairwise
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import red
import torch
import xarray as xr
from scipy.optimize import brentq

import attnbook
from attnbook import lab, ledger
from attnbook.core.kernel_margin import NotSeparableError, kernel_margin
from attnbook.multi_head import hard_samples, oracle
from attnbook.multi_head.data import Mixture, draw, draw_patterns, draw_samples
from attnbook.multi_head.feasibility import allowed_constant
from attnbook.multi_head.measures import leak_and_margin, logit_gaps

CHAPTERS = Path(__file__).parents[2] / "chapters" / "multi_head"
own = lab.load_script(CHAPTERS / "separation.py")
MADE = {
    made.id.split(".")[1]: made
    for made in (own.linear_rules, own.scaled_attention, own.margin_race, own.equal_norm, own.oracle_target)
}
NOISY = Mixture(10, 11, 5, 1.5, 0.3, label_noise=0.2, other_noise=0.3, free_noise=0.7)
PATTERNS = draw_patterns(NOISY, rng=np.random.default_rng(5))


@pytest.fixture(scope="module")
def stored():
    return {name: made.stored() for name, made in MADE.items()}


def inside(mixture, patterns, drawn):
    """All bounds of the mixture hold, and relevant tokens have no noise."""
    tokens, square = drawn.tokens[~drawn.relevant], mixture.pattern_norm**2
    with_other = tokens @ patterns.other.T
    with_other -= square * (np.arange(5) == with_other.argmax(1)[:, None])
    assert np.abs(tokens @ patterns.label.T).max() <= mixture.label_noise + 1e-12
    assert np.abs(with_other).max() <= mixture.other_noise / mixture.n_patterns + 1e-12
    own_pattern = patterns.label[(drawn.labels < 0).astype(int)][:, None]
    relevant = np.broadcast_to(own_pattern, drawn.tokens.shape)[drawn.relevant]
    np.testing.assert_array_equal(drawn.tokens[drawn.relevant], relevant)


def test_corner_noise_is_at_its_bounds_and_takes_every_sign():
    drawn = draw_samples(NOISY, PATTERNS, 101, rng=np.random.default_rng(3), corners=True)
    inside(NOISY, PATTERNS, drawn)
    label = drawn.tokens[~drawn.relevant] @ PATTERNS.label.T
    np.testing.assert_allclose(np.abs(label), NOISY.label_noise)
    assert {tuple(row) for row in np.sign(label)} == {(1, 1), (1, -1), (-1, 1), (-1, -1)}


def test_which_factor_of_the_oracle_holds_the_queries():
    """The slip of Section 5.2: with the labels K and Q as printed, irrelevant queries would see no difference."""
    both, every = PATTERNS.label.sum(0), np.concatenate([PATTERNS.label, PATTERNS.other])
    others = np.concatenate([PATTERNS.label, np.tile(both, (5, 1))])
    np.testing.assert_allclose(every.T @ others, oracle.key_query(PATTERNS))  # queries first
    printed = (every.T @ others).T
    np.testing.assert_allclose(PATTERNS.other @ printed @ PATTERNS.label.T, 0, atol=1e-12)


@pytest.mark.parametrize(("law", "power"), [(lambda s: 0.1, 2), (lambda s: 0.1 * s, 3), (lambda s: s**2 / 8, 4)])
def test_logits_grow_with_the_powers_of_eq_8(law, power):
    norms, relevant, irrelevant = np.array([64.0, 256.0]), [], []
    for s in norms:
        mixture = Mixture(10, 7, 4, s, 0.4, law(s), law(s))
        patterns = draw_patterns(mixture, rng=np.random.default_rng(0))
        drawn = draw_samples(mixture, patterns, 200, rng=np.random.default_rng(1))
        logits = drawn.tokens @ oracle.key_query(patterns) @ drawn.tokens.swapaxes(1, 2)
        keys = np.broadcast_to(drawn.relevant[:, None], logits.shape)
        relevant.append(logits[keys].mean())
        irrelevant.append(np.abs(logits[~keys]).max())
    for values, expected in ((relevant, 4), (irrelevant, power)):
        assert np.diff(np.log(values)) / np.diff(np.log(norms)) == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_samples_against_linear_rules_keep_the_bounds_and_have_the_stated_mean(sign):
    made = hard_samples.against_linear_rules(NOISY, PATTERNS, sign=sign)
    inside(NOISY, PATTERNS, made)
    assert made.tokens.shape == (20, 10, 11)
    assert (made.relevant.sum(1) == 3).all()
    mean = (made.labels[:, None, None] * made.tokens).mean(0)
    factor = (0.3 - sign * 2 * 0.7 * 0.2 / 1.5**2) / 2
    np.testing.assert_allclose(mean, factor * oracle.decoder(PATTERNS, 10), atol=1e-12)


def test_linear_rules_have_the_linear_margin_or_none():
    def best(mixture):
        made = [hard_samples.against_linear_rules(mixture, PATTERNS, sign=sign) for sign in (1.0, -1.0)]
        features = np.concatenate([one.tokens.reshape(20, -1) for one in made])
        return kernel_margin(features @ features.T, np.concatenate([one.labels for one in made])).margin

    assert best(NOISY) == pytest.approx(oracle.linear_margin(NOISY))
    loud = dataclasses.replace(NOISY, label_noise=0.6)
    assert oracle.linear_margin(loud) < 0
    with pytest.raises(NotSeparableError):
        best(loud)


def test_samples_against_attention_keep_the_bounds_and_attain_the_worst_gap():
    made = hard_samples.against_attention(NOISY, PATTERNS)
    inside(NOISY, PATTERNS, made)
    gaps = logit_gaps(made, oracle.key_query(PATTERNS))
    assert gaps.min() == pytest.approx(oracle.worst_gap(NOISY))
    worst = gaps[:, NOISY.n_relevant, 1:]  # the made query, all keys but itself
    np.testing.assert_allclose(worst, oracle.worst_gap(NOISY))


def test_no_corner_of_the_noise_has_a_gap_below_the_worst():
    drawn = draw_samples(NOISY, PATTERNS, 997, rng=np.random.default_rng(7), corners=True)
    gaps = logit_gaps(drawn, oracle.key_query(PATTERNS))
    assert oracle.worst_gap(NOISY) - 1e-9 <= gaps.min() < 1.02 * oracle.worst_gap(NOISY)


def test_the_worst_gap_is_known_by_hand_where_it_matters():
    """17 / 32 at the most noise, under the unit oracle of order S^2; zero at 1 - 1 / sqrt 2."""
    at = Mixture(10, 7, 4, label_noise=0.125, other_noise=0.125)
    assert oracle.worst_gap(at) == 17 / 32
    z = 1 - 1 / math.sqrt(2)
    assert oracle.worst_gap(dataclasses.replace(at, label_noise=z, other_noise=z)) == pytest.approx(0, abs=1e-12)
    larger = Mixture(10, 7, 4, 3.0, label_noise=9 / 8, other_noise=9 / 8)
    norms = [np.linalg.norm(oracle.key_query(draw_patterns(m, rng=np.random.default_rng(0)))) for m in (at, larger)]
    assert oracle.worst_gap(larger) / norms[1] == pytest.approx(9 * oracle.worst_gap(at) / norms[0])


def test_leak_and_margin_agree_with_a_plain_softmax():
    rng = np.random.default_rng(11)
    drawn = draw_samples(NOISY, PATTERNS, 13, rng=rng)
    u, w = rng.standard_normal((10, 11)), 0.3 * rng.standard_normal((11, 11))
    leaks, margins = [], []
    for x, y, relevant in zip(drawn.tokens, drawn.labels, drawn.relevant, strict=True):
        weights = np.exp(x @ w @ x.T)
        weights /= weights.sum(1, keepdims=True)
        leaks.append(weights[:, ~relevant].sum(1).max())
        margins.append(y * np.sum(u * (weights @ x)))
    assert leak_and_margin(drawn, u, w) == pytest.approx((max(leaks), min(margins)))


def test_eq_11_is_an_equality_for_uniform_attention_and_needs_the_square():
    """The slip of Section 7: at S = 2 the margin has the square of the pattern norm, not the norm."""
    mixture = Mixture(20, 16, 4, 2.0, 0.1, 0.5, 0.5, 0.3)
    patterns = draw_patterns(mixture, rng=np.random.default_rng(0))
    made, u = hard_samples.against_linear_rules(mixture, patterns), oracle.decoder(patterns, 20)
    margin = leak_and_margin(made, u / np.linalg.norm(u), np.zeros((16, 16)))[1]
    assert margin == pytest.approx(oracle.attention_margin(mixture, leak=0.9))
    printed = 2 * math.sqrt(10) * (1 - 0.9 - 2 * 0.9 * 0.5 / 2)
    assert abs(printed - margin) > 0.5
    at = Mixture(20, 16, 4, label_noise=0.125, other_noise=0.125)
    assert oracle.attention_margin(at, leak=0.01) == pytest.approx(0.9875 * oracle.attention_margin(at))


def test_scales_are_those_known_by_hand():
    at = Mixture(10, 7, 1, pattern_norm=2.0, relevant_fraction=0.5, label_noise=0.5, other_noise=0.5)
    assert oracle.stated_scale(at, 0.1) == pytest.approx(8 * 2 / 12 * math.log(10))
    assert oracle.stated_scale(dataclasses.replace(at, relevant_fraction=1.0), 0.1) == 0.0


GRID = np.logspace(0, 8, 81)[:, None], np.logspace(0, 16, 161)


@pytest.mark.parametrize("n", [100.0, 1e6])
def test_the_oracle_is_no_target_under_eq_12_nor_under_the_sum(n):
    """By hand the largest constant of (12) is 2 / (3 sqrt 3) / (S log(n)^2), at half of (S log n)^2 heads."""
    found = allowed_constant(*GRID, n)
    assert found.max() < 1
    assert allowed_constant(*GRID, n, condition="sum").max() < 1
    s, heads = np.array(11.0), np.logspace(0, 12, 12001)
    best = allowed_constant(s, heads, n)
    assert best.max() == pytest.approx(2 / (3 * math.sqrt(3)) / (11 * math.log(n) ** 2), rel=1e-6)
    assert heads[best.argmax()] == pytest.approx((11 * math.log(n)) ** 2 / 2, rel=1e-2)
    for c in (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0):
        assert allowed_constant(*GRID, n, scaling=c).max() < 1
        printed = allowed_constant(*GRID, n, scaling=c, target_scaling=0.5).max()
        assert (printed >= 1) == (c > 1)


def test_eq_3_as_printed_allows_the_oracle_where_the_chapter_says():
    for n in (20.0, 320.0, 1e6):
        s = np.array([0.99, 1.0, 7.0]) * 4 * math.log(n) ** 2
        product = allowed_constant(s, (s * math.log(n)) ** 2, n, condition="product")
        np.testing.assert_allclose(product, [0.99, 1.0, 7.0])


def test_corollary_2_follows_from_the_sum_not_from_the_product():
    """Heads of norm up to B_2 + g_0 at the target, B_2 + 4 g_0 on the way, at a distance g_0."""
    at_start, far = np.meshgrid(np.logspace(0, 4, 41), np.logspace(0, 4, 41))
    assert ((at_start + 4 * far) * far**2 <= 5 * at_start**2 * far**3).all()
    assert ((at_start + far) * far**3 / (at_start**2 * far**3)).max() > 1000


@pytest.mark.parametrize("condition", ["distance", "product", "sum"])
def test_the_conditions_agree_with_heads_written_out(condition):
    s, h, n, c = 3.0, 7, 100.0, 0.75
    head = math.hypot(math.log(n) / s * h ** (c - 1), s**-2)
    distance = math.sqrt(sum(head**2 for _ in range(h)))
    right = {"distance": distance**3, "product": head * distance**3, "sum": (head + distance) * distance**2}
    found = allowed_constant(np.array(s), np.array(float(h)), n, scaling=c, condition=condition)
    assert found == pytest.approx(h**c / s**5 / right[condition])


@pytest.mark.parametrize("n", [100.0, 1e6])
def test_the_exponents_of_the_display_in_section_5_3(n):
    """Where (12) is an equality for W_h = C H^-p after each of the text's lower bounds on S, by bisection."""
    log_log_n = math.log(math.log(n))

    def equal(p, h, power_of_s):
        def spare(log_c):
            return math.log(h) / 2 - 5 * power_of_s(log_c) - 3 * (log_c + (0.5 - p) * math.log(h))

        return brentq(spare, -1e3, 1e3, xtol=1e-12)

    for p in (0.25, 0.5, 1.0, 2.0, 3.0):
        saturation, case = [], []
        for h in (10.0, 1e4, 1e8):
            saturation.append(equal(p, h, lambda log_c, p=p, h=h: (p * math.log(h) - log_c) / 2))
            case.append(equal(p, h, lambda log_c, p=p, h=h: log_log_n - log_c + (p - 0.5) * math.log(h)))
            assert case[-1] == pytest.approx((p - 0.75) * math.log(h) + 2.5 * log_log_n, abs=1e-9)
            assert saturation[-1] < case[-1]  # the two exclude each other
        for one, other in pairwise(saturation):
            assert (other - one) / math.log(1e4 if other == saturation[2] else 1e3) == pytest.approx(p - 2)


def swapped(name, dimension):
    return lambda d: d.assign({name: d[name].copy(data=d[name].isel({dimension: slice(None, None, -1)}).values)})


def scaled(**factors):
    return lambda d: d.assign({name: factor * d[name] for name, factor in factors.items()})


RED = {
    "linear_rules": {"MH-A3-linear": swapped("uniform", "noise")},
    "margins": {"MH-P3.1": swapped("leak", "epsilon"), "MH-P3.2": swapped("margin", "norm")},
    "margin_race": {"MH-X.2": scaled(normalised_share=0.98)},
    "equal_norm": {"MH-X.1-equal-norm": scaled(share=0.9)},
    "oracle_target": {"MH-53.4": scaled(mass=2)},
}
PARTS = [
    ("linear_rules", "MH-A3-linear", swapped("best", "fraction")),
    ("linear_rules", "MH-A3-linear", lambda d: d.assign(uniform=d.uniform + 0.01)),
    ("margins", "MH-P3.2", scaled(margin=0.98)),
    ("margins", "MH-P3.2", swapped("uniform", "fraction")),
    ("margin_race", "MH-X.2", scaled(plain_share=1.2)),
    ("margin_race", "MH-X.2", scaled(normalised_cosine=0.95)),
    ("margin_race", "MH-X.2", scaled(normalised_mass=0.98)),
    ("margin_race", "MH-X.2", scaled(normalised_key_query_norm=1.5)),
    ("margin_race", "MH-X.2", swapped("normalised_share", "step")),
    ("equal_norm", "MH-X.1-equal-norm", lambda d: d.assign(share=d.share + 0.02 * (d.heads == 16))),
    ("equal_norm", "MH-X.1-equal-norm", lambda d: d.assign(share=d.normalised_share, normalised_share=d.share)),
    ("equal_norm", "MH-X.1-equal-norm", lambda d: d.assign(share=d.share + 0.1 * (d.heads == 1))),
    ("oracle_target", "MH-53.4", scaled(loss=2)),
    ("oracle_target", "MH-53.4", scaled(share=3)),
]  # other values of the same rules


@pytest.mark.parametrize("name", RED)
def test_every_measured_claim_of_the_chapter_can_be_turned_red(name, stored):
    others = [(claim, change) for of, claim, change in PARTS if of == name]
    red.assert_every_claim_turns(MADE[name].measure, stored[name], RED[name], others)


def test_every_claim_of_the_chapter_is_measured_or_says_why_not():
    mine = {c.id: c for c in ledger.claims() if c.chapter == "multi_head/separation"}
    found = {claim for claims in RED.values() for claim in claims}
    assert set(mine) - found == {i for i, c in mine.items() if c.untestable or c.checked}
    findings = [c for c in mine.values() if c.source == "book" and "open question:" not in c.where]
    assert len(findings) <= 2


def by_autograd(rule, step_size, drawn, heads, steps):
    """Margin per norm of all decoders after training all heads of one network, with nothing in closed form."""
    tokens, labels = drawn.tokens[0], drawn.labels[0]
    t, d = tokens.shape[1:]
    values = torch.zeros(heads, t, d, dtype=torch.float64, requires_grad=True)
    key_query = torch.zeros(heads, d, d, dtype=torch.float64, requires_grad=True)

    def outputs():
        logits = torch.einsum("ntd,hde,nse->nhts", tokens, key_query, tokens)
        return torch.einsum("htd,nhts,nsd->n", values, logits.softmax(3), tokens) / math.sqrt(heads)

    for _ in range(steps):
        exponents = -labels * outputs()
        loss = exponents.logsumexp(0) if rule == "normalised" else (1 + exponents.exp()).log().mean()
        for weight, slope in zip((values, key_query), torch.autograd.grad(loss, (values, key_query)), strict=True):
            weight.data -= step_size * slope
    return ((labels * outputs()).min() / values.norm()).item(), values.norm().item()


@pytest.mark.parametrize(("rule", "size"), [("plain", 30.0), ("normalised", 0.8)])
@pytest.mark.parametrize("heads", [1, 16])
def test_what_races_is_a_whole_network_trained_by_automatic_differentiation(rule, size, heads):
    found = own.raced(own.FEW, 7, (1,), heads, rule, size, 13, [5, 13]).isel(step=-1, seed=0)
    margin, norm = by_autograd(rule, size, draw(own.FEW, 7, (1,)), heads, 13)
    assert float(found.share) * own.LIMIT == pytest.approx(margin, rel=1e-6)
    assert float(found.norm) == pytest.approx(norm, rel=1e-6)


def test_the_best_average_is_the_exact_margin_of_linear_rules_on_mean_tokens():
    drawn = draw(own.FEW, 20, (0, 1))
    for mean, y, found in zip(
        drawn.tokens.mean(2).numpy(), drawn.labels.numpy(), own.best_average(*drawn[:2]), strict=True
    ):
        assert found == pytest.approx(math.sqrt(10) * kernel_margin(mean @ mean.T, y).margin, rel=1e-6)


def test_the_share_at_equal_norm_is_read_off_a_straight_line(monkeypatch):
    """Normalised descent has norm 2k and share k / 100 after k steps; plain descent passes norm 7."""

    def made(mixture, n, seeds, heads, rule, size, steps, record_at):
        k = np.array(record_at, dtype=float)
        norm = 2 * k if rule == "normalised" else 7 * k / k[0]
        dims = {"norm": norm, "share": k / 100}
        return xr.Dataset({name: (("step", "seed"), x[:, None]) for name, x in dims.items()}, {"step": list(record_at)})

    monkeypatch.setattr(own, "raced", made)
    data = own.equal_norm.run("smoke", seeds=(0,), heads=(1,), normalised_steps=20, every=1).isel(seed=0, heads=0)
    assert data.normalised_share.values[[0, -1]] == pytest.approx([0.035, 0.2])  # the second: beyond its end


def test_a_pattern_norm_is_a_number_of_heads():
    """Steps of 1 / (2 S^2) and (S log n)^2 heads are steps of 1 / 2 and log(n)^2 heads at S = 1."""
    at = own.oracle_target.run("smoke", seeds=(0,), n_samples=(12,)).isel(n=0, seed=0, time=-1)
    alone = own.raced(own.FEW, 12, (0,), math.log(12) ** 2, "plain", 0.5, 120, [120]).isel(step=0, seed=0)
    for name in ("share", "mass", "loss"):
        assert float(at[name]) == pytest.approx(float(alone[name]), rel=1e-6)


def test_two_samples_with_helpful_noise_have_a_margin_above_the_oracles():
    """The query with noise looks at itself: it points away from the other label, and no other reads its pattern."""
    plus, minus, nu = np.eye(3)
    tokens, labels = np.array([[plus, nu], [minus, nu + 0.2 * nu - 0.2 * plus]]), np.array([1.0, -1.0])
    w = 60 * (np.outer(plus, plus) + np.outer(minus, minus) + np.outer(nu, plus - minus))
    weights = torch.softmax(torch.from_numpy(tokens @ w @ tokens.swapaxes(1, 2)), 2).numpy()
    seen = (labels[:, None, None] * (weights @ tokens)).reshape(2, -1)
    assert kernel_margin(seen @ seen.T, np.ones(2)).margin > oracle.attention_margin(Mixture(2, 3, 1, 1.0, 0.5))


def test_pictures_draw(stored):
    drawn = [
        own.race(stored["margin_race"], {"mine": {1: 0.0, 64: 0.1}}),
        own.separation(stored["linear_rules"]),
        own.equal_norms(stored["equal_norm"], 109),
    ]
    assert all(ax.get_ylabel() for figure in drawn for ax in figure.axes)
    named = [line for line in drawn[1].axes[0].lines if not line.get_label().startswith("_")]
    assert len({(line.get_color(), str(line.get_linestyle()), line.get_marker()) for line in named}) == len(named) == 5
    plt.close("all")
    assert "of 60 seeds" in own.lead_text(stored["equal_norm"], 4000)


def cells():
    return json.loads((CHAPTERS / "separation.ipynb").read_text(encoding="utf-8"))["cells"]


def test_numbers_of_the_page_are_those_of_the_stored_runs(stored):
    text = " ".join("".join(cell["source"]) for cell in cells())
    race, norms = (stored[name].isel(step=-1).median("seed") for name in ("margin_race", "equal_norm"))
    assert "about fifty times as long" in text
    further = race.normalised_norm.sel(heads=1, normalised_size=own.NORMALISED) / norms.norm.sel(heads=1)
    assert 45 < further < 55
    for n, name in re.findall(r"the ([\d,]+) heads in the (\w+) row", text):
        assert name == "first"
        assert int(n.replace(",", "")) == round((4 * math.log(20) ** 3) ** 2)


@pytest.mark.slow
def test_the_table_of_changes_says_what_happens():
    """A few of its rows, for the first of the seeds."""
    code = ["".join(c["source"]) for c in cells() if c["cell_type"] == "code"]
    space = {}
    exec(next(one for one in code if "def descend" in one).replace("range(3)", "range(1)"), space)
    page = "".join("".join(cell["source"]) for cell in cells() if cell["cell_type"] == "markdown")
    expected = {
        "descend(logistic, SGD(100.0))": (0.05, 0.2),
        "descend(lambda m: (1 - m).clamp(min=0).mean(1), SGD(1.0))": (0.08, 0.22),
    }
    for call, (low, high) in expected.items():
        assert f"`{call}`" in page
        assert low < list(eval(call, space).values())[-1] < high, call


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: oracle.stated_scale(NOISY, 0.0), "leak"),
        (lambda: oracle.worst_gap(dataclasses.replace(NOISY, label_noise=2.0)), "too large"),
        (lambda: allowed_constant(np.array(0.0), np.array(1.0), 10.0), "pattern_norm"),
        (lambda: allowed_constant(np.array(1.0), np.array(0.5), 10.0), "n_heads"),
        (lambda: allowed_constant(np.array(1.0), np.array(1.0), 1.0), "n_samples"),
        (lambda: hard_samples.against_attention(Mixture(5, 7, 3, 1.0, 1.0), PATTERNS), "irrelevant"),
        (
            lambda: logit_gaps(hard_samples.against_linear_rules(Mixture(5, 11, 5, 1.0, 1.0), PATTERNS), np.eye(11)),
            "drawn",
        ),
        (lambda: own.equal_norm.run(every=0), "every"),
        (lambda: own.margin_race.run(plain_sizes=(3.0, 1.0)), "plain_sizes"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def weights(margins):
    pull = np.exp(margins.min() - margins)
    return pull / pull.sum()


def scale(gaps, k, leak, *, odds=None, keys=None):
    target = (keys or k) * (leak / (1 - leak) if odds is None else leak)
    return brentq(lambda x: np.exp(-x * gaps).sum() - target, 0, 1e4)


def torch_weights(margins):
    return torch.softmax(-torch.from_numpy(margins), 0)


@pytest.mark.parametrize(
    ("exercise", "right", "wrong", "hint"),
    [
        ("MH-WEIGHTS", weights, lambda m: weights(-m), "the sign"),
        ("MH-WEIGHTS", torch_weights, lambda m: np.exp(-m) / np.exp(-m).sum(), "subtract the smallest"),
        ("MH-WEIGHTS", weights, lambda m: 1 / (1 + np.exp(np.minimum(m, 700))), "divide by the loss"),
        ("MH-SATURATE", scale, lambda *a: scale(*a, odds=False), "not 1"),
        ("MH-SATURATE", lambda *a: torch.tensor(scale(*a)), lambda *a: scale(*a, keys=1), "each of the relevant"),
        ("MH-SATURATE", scale, lambda g, k, e: math.log(len(g) * (1 - e) / (k * e)) / g.min(), "not the smallest"),
    ],
)
def test_exercises_accept_the_right_answer_and_name_the_mistake(exercise, right, wrong, hint):
    assert attnbook.check(exercise, right).right
    assert hint in attnbook.check(exercise, wrong).message
