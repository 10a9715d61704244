"""The race to the attention margin, margins at random starts and the search for the global margin, by other means."""

from __future__ import annotations

import math

import numpy as np
import pytest
import red
import torch
import whole_network

import attnbook
from attnbook import ledger
from attnbook.core.kernel_margin import kernel_margin
from attnbook.core.rng import stream
from attnbook.multi_head import layer, network, oracle, starts
from attnbook.multi_head.data import draw, draw_patterns
from attnbook.multi_head.margin_race import experiments as own
from attnbook.multi_head.margin_race import figures, root_two
from attnbook.multi_head.margin_race.exercises import two_samples
from attnbook.multi_head.margin_race.root_two import tangent_margins

KINDS = {"margin_race": own.MarginRace, "random_starts": own.RandomStarts}
RACE = own.MarginRace.at("smoke", steps=13, early_step=5)
SMALL = {"n_samples": 23, "seeds": (0, 1, 2), "heads": (1, 16), "searched": (1, 3), "free_heads": 3}
STARTS = own.RandomStarts.at("book", **SMALL, search_starts=1, search_steps=2)


@pytest.fixture(scope="module")
def stored():
    return {name: kind.load_stored("book") for name, kind in KINDS.items()}


@pytest.fixture(scope="module")
def race():
    return RACE.run(device="cpu")


@pytest.fixture(scope="module")
def margins():
    return STARTS.run(device="cpu")


def at(name, change, **where):
    """Change part of one array."""

    def changed(data):
        array = data[name].copy(deep=True)
        array.loc[where] = change(array.loc[where])
        return data.assign({name: array})

    return changed


RED = {
    "margin_race": {
        "MH-X.2": at("fraction", lambda x: 0.98 * x, rule="normalised", heads=1),
        "MH-X.1-equal-norm": at("fraction", lambda x: 0.5 * x, rule="normalised"),
        "MH-X.3": lambda d: d.assign(cosine=d.cosine**4),
    },
    "random_starts": {
        "MH-X.5": lambda d: d.assign(matched=d.matched[::-1].assign_coords(key_query_scale=d.key_query_scale)),
        "MH-X.5-labels": lambda d: d.assign(coin_flips=0 * d.coin_flips),
        "MH-X.6": lambda d: d.assign(bound=1.1 * d.bound),
    },
}
PARTS = {
    "margin_race": [
        ("MH-X.2", at("fraction", lambda x: 0.98 * x, rule="normalised", heads=16)),
        ("MH-X.2", lambda d: d.assign(fraction=1.001 * d.fraction)),
        ("MH-X.2", lambda d: d.assign(tried_plain=1.2 * d.tried_plain)),
        ("MH-X.2", lambda d: d.assign(tried_plain=d.tried_plain + 0.5)),
        ("MH-X.1-equal-norm", at("tried_plain", lambda x: x - 0.06, plain_size=10.0, heads=16)),
        ("MH-X.1-equal-norm", lambda d: d.assign(tried_plain_norm=0 * d.tried_plain_norm + 8)),
        ("MH-X.3", lambda d: d.assign(plus_mass=0.9 * d.plus_mass)),
        ("MH-X.3", lambda d: d.assign(key_query_norm=d.value_norm)),
        ("MH-X.3", lambda d: d.assign(cosine=d.cosine * (1 + 0.03 * (d.step == 1000)))),
    ],
    "random_starts": [
        ("MH-X.5", at("random", lambda x: 0 * x, heads=8, key_query_scale=1.0, value_scale=0.3)),
        ("MH-X.5", lambda d: d.assign(random=0.8 * d.random)),
        ("MH-X.5", at("matched", lambda x: 1.1 * x, heads=64, key_query_scale=0.0)),
        ("MH-X.5-labels", at("coin_flips", lambda x: 0 * x, heads=1)),
        ("MH-X.5-labels", lambda d: d.assign(zero_coin_flips=d.zero)),
        ("MH-X.5-labels", lambda d: d.assign(first_phase_coin_flips=0 * d.zero)),
        ("MH-X.6", lambda d: d.assign(global_margin=d.global_margin[::-1].assign_coords(searched=d.searched))),
        ("MH-X.6", lambda d: d.assign(free_margin=1.05 * d.free_margin)),
        ("MH-X.6", lambda d: d.assign(first_phase=1.2 * d.first_phase)),
        ("MH-X.6", lambda d: d.assign(global_margin=d.global_margin * (1 - 0.05 * (d.start == 1)))),
    ],
}  # other values of the same rules


@pytest.mark.parametrize("name", KINDS)
def test_every_measured_claim_of_the_chapter_can_be_turned_red(name, stored):
    data = stored[name].assign_coords(start=range(3)) if name == "random_starts" else stored[name]
    red.assert_every_claim_turns(KINDS[name]().measurements, data, RED[name], PARTS[name])


def test_every_claim_of_the_chapter_is_measured_or_says_why_not():
    mine = {c.id: c for c in ledger.claims() if c.chapter == "multi_head/margin_race"}
    measured = {claim for claims in RED.values() for claim in claims}
    assert set(mine) - measured == {"MH-X.7"} == {i for i, c in mine.items() if c.untestable}
    findings = [c for c in mine.values() if c.source == "book" and "open question:" not in c.where]
    assert len(findings) <= 3


def by_autograd(rule, step_size, drawn, signs, direction, steps):
    """Margin per norm after training all heads of one network, with nothing in closed form."""
    tokens, labels, heads = drawn.tokens[0], drawn.labels[0], len(signs)
    values = (signs[:, None, None] * direction.expand(heads, *tokens.shape[1:])).requires_grad_()
    key_query = torch.zeros(heads, tokens.shape[2], tokens.shape[2], dtype=torch.float64, requires_grad=True)

    def outputs():
        logits = torch.einsum("ntd,hde,nse->nhts", tokens, key_query, tokens)
        return torch.einsum("htd,nhts,nsd->n", values, logits.softmax(3), tokens) / math.sqrt(heads)

    for _ in range(steps):
        exponents = -labels * outputs()
        loss = exponents.logsumexp(0) if rule == "normalised" else (1 + exponents.exp()).log().mean()
        for weight, slope in zip((values, key_query), torch.autograd.grad(loss, (values, key_query)), strict=True):
            weight.data -= step_size * slope
    return ((labels * outputs()).min() / values.norm()).item()


@pytest.mark.parametrize("rule", own.RULES)
@pytest.mark.parametrize("heads", RACE.heads)
def test_every_network_is_a_whole_one_trained_by_automatic_differentiation(race, rule, heads):
    drawn = draw(RACE.mixture, RACE.n_samples, (1,))
    first = draw(RACE.mixture, RACE.first_phase_samples, (1,), purpose="first phase")
    direction = starts.first_phase_direction(first.tokens, first.labels)[0]
    signs = torch.zeros(heads, dtype=torch.float64)
    if (rule, heads) == ("normalised", RACE.heads[1]):
        signs = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(heads // 2)
    size = {"plain": RACE.plain_step_size, "normalised": RACE.normalised_step_size}[rule]
    expected = by_autograd(rule, size, drawn, signs, direction, RACE.steps) / oracle.attention_margin(RACE.mixture)
    found = race.fraction.sel(rule=rule, heads=heads, seed=1).isel(step=-1)
    assert float(found) == pytest.approx(expected, rel=1e-6)


def test_every_trial_is_a_network_from_zero_with_its_own_step_size(race):
    drawn = draw(RACE.mixture, RACE.n_samples, (1,))
    for rule, heads, size in (("plain", 16, 30.0), ("normalised", 1, 0.8)):
        still = torch.zeros(heads, dtype=torch.float64)
        expected = by_autograd(rule, size, drawn, still, torch.zeros(RACE.dimension), RACE.steps)
        found = race[f"tried_{rule}"].sel({"heads": heads, f"{rule}_size": size, "seed": 1})
        assert float(found) * oracle.attention_margin(RACE.mixture) == pytest.approx(expected, rel=1e-6)


def test_the_floor_is_the_exact_margin_of_linear_rules_on_mean_tokens(race):
    drawn = draw(RACE.mixture, RACE.n_samples, RACE.seeds)
    for mean, y, floor in zip(drawn.tokens.mean(2).numpy(), drawn.labels.numpy(), race.floor.values, strict=True):
        expected = math.sqrt(RACE.n_tokens) * kernel_margin(mean @ mean.T, y).margin
        assert floor * oracle.attention_margin(RACE.mixture) == pytest.approx(expected, rel=1e-6)


def test_the_oracle_with_saturated_attention_has_the_whole_attention_margin_and_cosine_one():
    drawn = draw(RACE.mixture, RACE.n_samples, (0,))
    patterns = draw_patterns(RACE.mixture, rng=stream(0, "patterns"))
    target = torch.as_tensor(oracle.key_query(patterns))
    decoder = torch.as_tensor(oracle.decoder(patterns, RACE.n_tokens))
    parameters = {"decoder": decoder[None, None], "key_query": 100 * target[None, None]}
    seen = own.look(parameters, drawn, torch.ones(1, 1, dtype=torch.float64), target[None])
    assert seen["fraction"].item() == pytest.approx(oracle.attention_margin(RACE.mixture), rel=1e-9)
    assert seen["cosine"].item() == pytest.approx(1)
    assert seen["plus_mass"].item() == pytest.approx(1)


def test_a_lead_at_equal_norm_is_read_off_a_straight_line_over_the_logarithm(race):
    """The other passes norm 1 at share 0.2 and norm 100 at 0.6; one trial ends at norm 10 with 0.7, one beyond."""
    made, n = race.copy(deep=True), race.sizes["step"]
    made.value_norm[:], made.fraction[:] = np.logspace(0, 2, n)[:, None, None, None], 0.0
    made.fraction.loc[{"rule": "normalised"}] = np.linspace(0.2, 0.6, n)[:, None, None]
    made.tried_plain_norm[:], made.tried_plain[:] = 10.0, 0.7
    made.tried_plain_norm.loc[{"plain_size": 300.0}] = 101.0
    leads = own.leads_at_equal_norm(made)
    np.testing.assert_allclose(leads.sel(plain_size=[1.0, 10.0, 30.0, 100.0]), 0.3)
    np.testing.assert_allclose(leads.sel(plain_size=300.0), 0.1)  # beyond its end, where it has 0.6


@pytest.mark.parametrize("rule", own.RULES)
def test_what_races_from_zero_is_one_of_the_trials(race, rule):
    size = {"plain": RACE.plain_step_size, "normalised": RACE.normalised_step_size}[rule]
    for name, tried in (("fraction", f"tried_{rule}"), ("value_norm", f"tried_{rule}_norm")):
        end = race[name].sel(rule=rule, heads=RACE.heads[0]).isel(step=-1)
        np.testing.assert_array_equal(end, race[tried].sel({"heads": RACE.heads[0], f"{rule}_size": size}))


def test_plain_descent_races_with_the_step_size_that_served_one_head_best(stored):
    tried = stored["margin_race"].tried_plain.sel(heads=1).median("seed")
    best = int(tried.argmax("plain_size"))
    assert float(tried.plain_size[best]) == own.MarginRace().plain_step_size
    assert 0 < best < len(tried) - 1


def margin_by_autograd(entries, drawn, member, labels):
    weights = {name: torch.tensor(array[None], dtype=torch.float64) for name, array in entries.items()}
    rows = torch.func.jacrev(lambda p: layer.outputs(p, drawn.tokens[member : member + 1])[0])(weights)
    features = torch.cat([row.flatten(1) for row in rows.values()], dim=1).numpy()
    return math.sqrt(2) * kernel_margin(features @ features.T, labels).margin


@pytest.mark.parametrize("heads", STARTS.heads)
def test_margins_at_random_starts_are_those_of_features_by_automatic_differentiation(margins, heads):
    drawn = draw(STARTS.mixture, STARTS.n_samples, STARTS.seeds)
    entries = network.draw_parameters(
        heads, STARTS.n_tokens, STARTS.dimension, scale=1.0, rng=stream(2, "random start")
    )
    flips, labels = stream(2, "coin flips").choice([1.0, -1.0], STARTS.n_samples), drawn.labels[2].numpy()
    one = margins.sel(heads=heads, seed=2)
    scaled = {"decoder": 0.3 * entries["decoder"], "key_query": 1.0 * entries["key_query"]}
    for name, y in (("random", labels), ("coin_flips", flips)):
        found = float(one[name].sel(key_query_scale=1.0, value_scale=0.3))
        assert found == pytest.approx(margin_by_autograd(scaled, drawn, 2, y), rel=1e-6)
    equal = {"decoder": float(one.matched_scale) * entries["decoder"], "key_query": 0 * entries["key_query"]}
    found = float(one.matched.sel(key_query_scale=0))
    assert found == pytest.approx(margin_by_autograd(equal, drawn, 2, labels), rel=1e-6)


def test_the_first_phase_margin_is_that_of_two_heads_of_opposite_sign(margins):
    drawn = draw(STARTS.mixture, STARTS.n_samples, STARTS.seeds)
    first = draw(STARTS.mixture, STARTS.first_phase_samples, STARTS.seeds, purpose="first phase")
    later = {name: tensor[1].numpy() for name, tensor in starts.first_phase(first.tokens, first.labels).items()}
    expected = margin_by_autograd(later, drawn, 1, drawn.labels[1].numpy())
    assert float(margins.first_phase[1]) == pytest.approx(expected, rel=1e-6)
    norm = np.linalg.norm(later["decoder"][0]) / math.sqrt(STARTS.n_tokens * STARTS.dimension)
    assert float(margins.matched_scale[1]) == pytest.approx(norm)


@pytest.fixture(scope="module")
def found():
    """Networks of one kind of head, three each, and of two kinds, one each, found by a short search."""
    drawn = draw(STARTS.mixture, STARTS.n_samples, (0, 1))
    networks = {}
    for kinds, each in ((1, 3.0), (2, 1.0)):
        rng, counts = np.random.default_rng(0), torch.full((2, kinds), each, dtype=torch.float64)
        start = {
            "decoder": torch.as_tensor(rng.standard_normal((2, kinds, STARTS.n_tokens, STARTS.dimension))),
            "key_query": torch.as_tensor(rng.standard_normal((2, kinds, STARTS.dimension, STARTS.dimension))),
        }
        parameters = root_two.best_networks(start, drawn.tokens, drawn.labels, counts=counts, steps=150)
        networks[kinds] = parameters, counts
    return drawn, networks


@pytest.mark.parametrize("kinds", [1, 2])
def test_networks_found_have_norm_root_two_and_a_margin_under_the_bound(found, kinds):
    drawn, (parameters, counts) = found[0], found[1][kinds]
    whole = whole_network.expand(parameters, counts=counts)
    norm = torch.cat([part.flatten(1) for part in whole.values()], dim=1).norm(dim=1)
    np.testing.assert_allclose(norm, math.sqrt(2))
    margin = (drawn.labels * layer.outputs(whole, drawn.tokens)).amin(1).numpy()
    uniform = tangent_margins(starts.zero(2, STARTS.n_tokens, STARTS.dimension), drawn.tokens, drawn.labels.numpy())
    assert (margin > uniform).all()  # what uniform attention has at the same norm
    assert (margin < root_two.upper_bound(drawn.tokens, drawn.labels, heads=whole["decoder"].shape[1])).all()
    # The output is linear in U, so the direction of U alone has this tangent margin.
    values = whole["decoder"].flatten(1).norm(dim=1).numpy()
    assert (tangent_margins(whole, drawn.tokens, drawn.labels.numpy()) >= math.sqrt(2) * margin / values - 1e-9).all()


def test_the_bound_falls_to_the_margin_of_uniform_attention_like_one_over_the_root_of_heads():
    tokens = torch.tensor([[[[3.0, 0.0], [3.0, 0.0]], [[-3.0, 0.0], [-3.0, 0.0]]]], dtype=torch.float64)
    labels = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    # Two tokens of norm 3: the margin per norm is 3 sqrt 2, the bound 6 + sqrt(2 / H) 27.
    np.testing.assert_allclose(root_two.upper_bound(tokens, labels, heads=8), 6 + 27 / 2)
    np.testing.assert_allclose(root_two.upper_bound(tokens, labels, heads=1e20), 6)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        (own.MarginRace, {"heads": (4, 4)}, "heads"),
        (own.MarginRace, {"tried_plain": (3.0, 1.0)}, "tried_plain"),
        (own.MarginRace, {"tried_normalised": ()}, "tried_normalised"),
        (own.MarginRace, {"plain_step_size": 2.0}, "tried_plain"),
        (own.MarginRace, {"tried_plain": (0.0, 10.0, 100.0)}, "tried_plain"),
        (own.MarginRace, {"normalised_step_size": 2.0}, "tried_normalised"),
        (own.MarginRace, {"early_step": 5000}, "early_step"),
        (own.RandomStarts, {"heads": ()}, "heads"),
        (own.RandomStarts, {"key_query_scales": (0.3, 0.0)}, "key_query_scales"),
        (own.RandomStarts, {"value_scales": (0.0, 0.3)}, "value_scales"),
        (own.RandomStarts, {"search_steps": 0}, "search_steps"),
        (own.RandomStarts, {"free_heads": 3}, "searched"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(kind, change, message):
    with pytest.raises(ValueError, match=message):
        kind.at("book", **change)


def test_pictures_and_tables_draw(stored):
    race, starts_ = stored["margin_race"], stored["random_starts"]
    drawn = [
        figures.race(race),
        figures.race(race, 8.0),
        figures.at_starts(starts_),
        figures.global_margins(starts_),
    ]
    assert all(ax.get_xlabel() for figure in drawn for ax in figure.axes)
    for figure in drawn:
        for ax in figure.axes:
            named = [line for line in ax.lines if not line.get_label().startswith("_")]
            looks = {(line.get_color(), line.get_linestyle(), line.get_marker()) for line in named}
            assert len(looks) == len(named) == len({line.get_label() for line in named})
    assert figures.norm_text(race, 8.0) != figures.norm_text(race, 15.0)


def beyond(tokens, labels):
    plus, minus, noisy = tokens[0, 0], tokens[1, 0], tokens[1, 1]
    a, c = plus, -noisy
    share = (a @ a - a @ c) / ((a - c) @ (a - c))
    return np.tile(a + share * (c - a), (2, 1)), 30 * np.outer(tokens.sum((0, 1)), plus - minus)


def the_oracle(tokens, labels):
    plus, minus, other = tokens[0, 0], tokens[1, 0], tokens[0, 1]
    key_query = np.outer(plus, plus) + np.outer(minus, minus) + np.outer(other, plus + minus)
    return np.tile(plus - minus, (2, 1)), 50 * key_query


def weights(margins):
    shares = np.exp(margins.min() - margins)
    return shares / shares.sum()


@pytest.mark.parametrize(
    ("exercise", "answer", "hint"),
    [
        ("MH-RACE", the_oracle, "which token could be better"),
        ("MH-RACE", lambda x, y: (beyond(x, y)[0], 0 * beyond(x, y)[1]), "make W larger"),
        ("MH-RACE", lambda x, y: (-beyond(x, y)[0], beyond(x, y)[1]), "wrong side"),
        ("MH-RACE", lambda x, y: (np.tile(x[0, 0] - 0.2 * x[1, 1], (2, 1)), beyond(x, y)[1]), "which U"),
        ("MH-RACE", lambda x, y: (0 * beyond(x, y)[0], beyond(x, y)[1]), "must not be zero"),
        ("MH-RACE", lambda x, y: (beyond(x, y)[0][0], beyond(x, y)[1]), "shape"),
        ("MH-WEIGHTS", lambda m: np.exp(-m) / np.exp(-m).sum(), "subtract the smallest"),
        ("MH-WEIGHTS", lambda m: weights(-m), "the sign"),
        ("MH-WEIGHTS", lambda m: 1 / (1 + np.exp(m)), "divide by the loss"),
        ("MH-WEIGHTS", lambda m: weights(np.log1p(np.exp(m))), "exponential one"),
        ("MH-WEIGHTS", lambda m: 1.0, "shape"),
    ],
)
def test_right_answers_pass_and_wrong_ones_get_the_likely_mistake(exercise, answer, hint):
    assert attnbook.check("MH-RACE", beyond).right
    assert attnbook.check("MH-WEIGHTS", weights).right
    feedback = attnbook.check(exercise, answer)
    assert not feedback.right
    assert hint in repr(feedback)


def test_the_two_samples_obey_the_bounds_of_the_mixture():
    tokens, _ = two_samples()
    plus, minus, other, noise = tokens[0, 0], tokens[1, 0], tokens[0, 1], tokens[1, 1] - tokens[0, 1]
    np.testing.assert_allclose(np.stack([plus, minus, other]) @ np.stack([plus, minus, other]).T, np.eye(3), atol=1e-12)
    assert abs(noise @ plus) <= 0.2 + 1e-12
    assert abs(noise @ other) <= 0.2 + 1e-12
    assert noise @ minus == pytest.approx(0, abs=1e-12)
