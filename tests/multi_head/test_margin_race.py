"""The race to the attention margin and the margins at random starts, against oracles of their own."""

from __future__ import annotations

import dataclasses
import math

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from attnbook import ledger
from attnbook.core.kernel_margin import kernel_margin
from attnbook.core.rng import stream
from attnbook.multi_head import exercises, network, objectives, oracle, starts
from attnbook.multi_head.data import draw_patterns
from attnbook.multi_head.exercises.margin_race import two_samples
from attnbook.multi_head.experiments import margin_race, random_starts, samples
from attnbook.multi_head.figures import margin_race as figures
from attnbook.multi_head.tables import margin_race as tables

RACE = dataclasses.replace(margin_race.Settings.smoke(), steps=13, early_step=5, tried_steps=3)
# Eight times the step size, an eighth of the steps.
SHORT = dataclasses.replace(
    margin_race.Settings.book(),
    n_samples=11,
    normalised_step_size=0.4,
    steps=500,
    early_step=250,
    tried_plain=(10.0, 300.0),
    tried_normalised=(0.8,),
    tried_steps=500,
    seeds=(0, 1),
)
STARTS = dataclasses.replace(random_starts.Settings.book(), n_samples=23, seeds=(0, 1, 2), heads=(1, 16))


def outcomes(result) -> dict[str, str]:
    return {v.claim.id: v.outcome for v in ledger.check(result).verdicts}


@pytest.fixture(scope="module")
def race():
    return margin_race.run(RACE, device="cpu")


@pytest.fixture(scope="module")
def margins():
    return random_starts.run(STARTS, device="cpu")


def by_autograd(runner, drawn, signs: torch.Tensor, direction: torch.Tensor, steps: int) -> float:
    """Margin per norm after training all heads of one network, with nothing in closed form."""
    tokens, labels, heads = drawn.tokens[0], drawn.labels[0], len(signs)
    values = (signs[:, None, None] * direction.expand(heads, *tokens.shape[1:])).requires_grad_()
    key_query = torch.zeros(heads, tokens.shape[2], tokens.shape[2], dtype=torch.float64, requires_grad=True)

    def outputs() -> torch.Tensor:
        logits = torch.einsum("ntd,hde,nse->nhts", tokens, key_query, tokens)
        return torch.einsum("htd,nhts,nsd->n", values, logits.softmax(3), tokens) / math.sqrt(heads)

    for _ in range(steps):
        exponents = -labels * outputs()
        loss = exponents.logsumexp(0) if runner.rule == "normalised" else (1 + exponents.exp()).log().mean()
        for weight, slope in zip((values, key_query), torch.autograd.grad(loss, (values, key_query)), strict=True):
            weight.data -= runner.step_size * slope
    return ((labels * outputs()).min() / values.norm()).item()


@pytest.mark.parametrize("number", range(4))
def test_every_runner_is_a_whole_network_trained_by_automatic_differentiation(race, number: int) -> None:
    runner, seed = RACE.runners[number], RACE.seeds[1:2]
    drawn = samples.draw(RACE.mixture, RACE.n_samples, seed)
    first = samples.draw(RACE.mixture, RACE.first_phase_samples, seed, purpose="first phase")
    signs = torch.zeros(runner.n_heads, dtype=torch.float64)
    if not runner.from_zero:
        signs = torch.tensor([1.0, -1.0] * (runner.n_heads // 2), dtype=torch.float64)
    direction = starts.first_phase_direction(first.tokens, first.labels)[0]
    expected = by_autograd(runner, drawn, signs, direction, RACE.steps) / oracle.attention_margin(RACE.mixture)
    assert race.fraction[1, number, -1] == pytest.approx(expected, rel=1e-9)


def test_trials_of_the_race_s_own_step_size_are_the_race_at_that_step() -> None:
    settings = dataclasses.replace(RACE, tried_plain=(10.0,), tried_normalised=(0.05,), tried_steps=RACE.early_step)
    found = margin_race.run(settings, device="cpu")
    early = settings.record_at.index(settings.early_step)
    for rule, n_heads in (("plain", 1), ("plain", 16), ("normalised", 1)):
        np.testing.assert_allclose(
            found.tried_with(rule, n_heads)[:, 0], found.fraction[:, found.runner(rule, n_heads), early], rtol=1e-12
        )


def test_after_one_step_from_zero_attention_is_uniform_and_no_better_than_the_floor(race) -> None:
    """The key-query matrix has no gradient where the value matrix is zero."""
    one = race.runner("normalised", 1)
    np.testing.assert_allclose(race.mass[:, one, 0], RACE.relevant_fraction, rtol=1e-12)
    assert (race.fraction[:, one, 0] <= race.floor + 1e-12).all()


def test_the_floor_is_the_largest_margin_of_a_rule_on_mean_tokens(race) -> None:
    drawn = samples.draw(RACE.mixture, RACE.n_samples, RACE.seeds)
    means, labels = drawn.tokens.mean(2).numpy(), drawn.labels.numpy()
    for i, (mean, y) in enumerate(zip(means, labels, strict=True)):
        expected = math.sqrt(RACE.n_tokens) * kernel_margin(mean @ mean.T, y).margin
        assert race.floor[i] * oracle.attention_margin(RACE.mixture) == pytest.approx(expected, rel=1e-6)


def test_the_oracle_with_saturated_attention_has_the_whole_attention_margin_and_cosine_one() -> None:
    drawn = samples.draw(RACE.mixture, RACE.n_samples, (0,))
    patterns = draw_patterns(RACE.mixture, rng=stream(0, "patterns"))
    target = torch.as_tensor(oracle.key_query(patterns))
    parameters = {
        "decoder": torch.as_tensor(oracle.decoder(patterns, RACE.n_tokens))[None, None],
        "key_query": 100 * target[None, None],
    }
    seen = margin_race._look(parameters, drawn, torch.ones(1, 1, dtype=torch.float64), target[None])
    assert seen["fraction"].item() == pytest.approx(oracle.attention_margin(RACE.mixture), rel=1e-9)
    assert seen["cosine"].item() == pytest.approx(1)
    assert seen["plus_mass"].item() == pytest.approx(1)


def test_normalised_descent_gets_there_and_plain_descent_does_not() -> None:
    verdicts = outcomes(margin_race.run(SHORT, device="cpu"))
    assert "not reproduced" not in verdicts.values()


def test_a_lead_at_equal_norm_is_read_off_a_straight_line_over_the_logarithm(race) -> None:
    """The other passes norm 1 at share 0.2 and norm 100 at 0.6; the runner ends at norm 10 with 0.7."""
    norm, share = np.zeros_like(race.fraction), np.zeros_like(race.fraction)
    norm[:], share[:, 1] = np.logspace(0, 2, norm.shape[2]), np.linspace(0.2, 0.6, norm.shape[2])
    norm[:, 0, -1], share[:, 0, -1] = 10, 0.7
    made = dataclasses.replace(race, value_norm=norm, fraction=share)
    np.testing.assert_allclose(made.lead_at_equal_norm(0, 1), 0.3)


def test_plain_descent_in_another_direction_would_be_seen_at_equal_norm() -> None:
    stored = margin_race.MarginRace.load_stored("book")
    plain = [stored.runner("plain", n_heads) for n_heads in stored.settings.heads]
    share = stored.fraction.copy()
    share[:, plain] *= 0.5
    verdicts = outcomes(dataclasses.replace(stored, fraction=share))
    assert verdicts["MH-X.1-equal-norm"] == "not reproduced"
    assert outcomes(stored)["MH-X.1-equal-norm"] == "reproduced"


def test_without_normalisation_the_claims_on_it_turn_red(monkeypatch) -> None:
    monkeypatch.setattr(objectives, "log_sum_exp", objectives.logistic)
    verdicts = outcomes(margin_race.run(SHORT, device="cpu"))
    for claim in ("MH-X.1-tuned", "MH-X.2", "MH-X.2-fast", "MH-X.2-mass"):
        assert verdicts[claim] == "not reproduced"


def test_a_margin_not_divided_by_the_norm_breaks_the_limit(monkeypatch) -> None:
    monkeypatch.setattr(margin_race.head_groups, "norm", lambda parameters, *, counts: counts.new_ones(len(counts)))
    assert outcomes(margin_race.run(SHORT, device="cpu"))["MH-X.2-limit"] == "not reproduced"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": (4, 4)}, "heads"),
        ({"tried_plain": (3.0, 1.0)}, "tried_plain"),
        ({"tried_normalised": ()}, "tried_normalised"),
        ({"plain_step_size": 0.0}, "plain_step_size"),
        ({"early_step": 5000}, "early_step"),
        ({"seeds": (1, 1)}, "seeds"),
    ],
)
def test_settings_of_the_race_name_what_is_wrong(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(margin_race.Settings.book(), **change)


def test_objectives_side_by_side_are_each_alone() -> None:
    rng = np.random.default_rng(0)
    outputs = torch.as_tensor(rng.standard_normal((5, 7)))
    labels = torch.as_tensor(rng.choice([1.0, -1.0], (5, 7)))
    parts = objectives.logistic(labels[:2]), objectives.log_sum_exp(labels[2:])
    value, slopes = objectives.side_by_side([(2, parts[0]), (3, parts[1])])(outputs)
    for rows, part in zip((slice(0, 2), slice(2, 5)), parts, strict=True):
        torch.testing.assert_close((value[rows], slopes[rows]), part(outputs[rows]), rtol=0, atol=0)


def test_objectives_side_by_side_need_members_for_each() -> None:
    part = objectives.logistic(torch.ones(1, 2))
    for wrong in ([], [(0, part)]):
        with pytest.raises(ValueError, match="parts"):
            objectives.side_by_side(wrong)
    with pytest.raises(ValueError, match="expected those of 1 members, got 2"):
        objectives.side_by_side([(1, part)])(torch.zeros(2, 2))


def margin_by_autograd(entries: dict[str, np.ndarray], drawn, member: int, labels: np.ndarray) -> float:
    weights = {name: torch.tensor(array[None], dtype=torch.float64) for name, array in entries.items()}
    rows = torch.func.jacrev(lambda p: network.predict(p, drawn.tokens[member : member + 1])[0])(weights)
    features = torch.cat([row.flatten(1) for row in rows.values()], dim=1).numpy()
    return math.sqrt(2) * kernel_margin(features @ features.T, labels).margin


@pytest.mark.parametrize("heads", [0, 1])
def test_margins_at_random_starts_are_those_of_features_by_automatic_differentiation(margins, heads: int) -> None:
    drawn = samples.draw(STARTS.mixture, STARTS.n_samples, STARTS.seeds)
    entries = network.draw_parameters(
        STARTS.heads[heads], STARTS.n_tokens, STARTS.dimension, scale=1.0, rng=stream(2, "random start")
    )
    flips = stream(2, "coin flips").choice([1.0, -1.0], STARTS.n_samples)
    scaled = {"decoder": 0.3 * entries["decoder"], "key_query": 1.0 * entries["key_query"]}
    found = margin_by_autograd(scaled, drawn, 2, drawn.labels[2].numpy())
    assert margins.random[2, heads, 2, 1] == pytest.approx(found, rel=1e-6)
    assert margins.coin_flips[2, heads, 2, 1] == pytest.approx(margin_by_autograd(scaled, drawn, 2, flips), rel=1e-6)
    equal = {"decoder": margins.matched_scale[2] * entries["decoder"], "key_query": 0 * entries["key_query"]}
    found = margin_by_autograd(equal, drawn, 2, drawn.labels[2].numpy())
    assert margins.matched[2, heads, 0] == pytest.approx(found, rel=1e-6)


def test_the_first_phase_margin_is_that_of_two_heads_of_opposite_sign(margins) -> None:
    drawn = samples.draw(STARTS.mixture, STARTS.n_samples, STARTS.seeds)
    first = samples.draw(STARTS.mixture, STARTS.first_phase_samples, STARTS.seeds, purpose="first phase")
    later = {name: tensor[1].numpy() for name, tensor in starts.first_phase(first.tokens, first.labels).items()}
    expected = margin_by_autograd(later, drawn, 1, drawn.labels[1].numpy())
    assert margins.first_phase[1] == pytest.approx(expected, rel=1e-6)
    expected_norm = np.linalg.norm(later["decoder"][0]) / math.sqrt(STARTS.n_tokens * STARTS.dimension)
    assert margins.matched_scale[1] == pytest.approx(expected_norm)


def test_the_seeds_computed_together_change_no_margin(margins) -> None:
    alone = random_starts.run(dataclasses.replace(STARTS, chunk=1), device="cpu")
    np.testing.assert_allclose(alone.random, margins.random, rtol=1e-9)
    np.testing.assert_allclose(alone.coin_flips, margins.coin_flips, rtol=1e-9)


def test_without_random_attention_the_claims_on_it_turn_red(monkeypatch) -> None:
    right = random_starts._kernel_parts
    monkeypatch.setattr(random_starts, "_kernel_parts", lambda settings, scale, *rest: right(settings, 0.0, *rest))
    verdicts = outcomes(random_starts.run(dataclasses.replace(STARTS, n_samples=40), device="cpu"))
    for claim in ("MH-X.5-compare", "MH-X.5-equal-norm"):
        assert verdicts[claim] == "not reproduced"


def test_value_matrices_without_a_scale_turn_the_claim_on_it_red(monkeypatch) -> None:
    right = random_starts._margins
    monkeypatch.setattr(random_starts, "_margins", lambda kernels, labels: 0 * right(kernels, labels))
    verdicts = outcomes(random_starts.run(STARTS, device="cpu"))
    for claim in ("MH-X.5", "MH-X.5-scale", "MH-X.5-spread", "MH-X.5-labels", "MH-X.5-labels-few"):
        assert verdicts[claim] == "not reproduced"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": ()}, "heads"),
        ({"key_query_scales": (0.3, 0.0)}, "key_query_scales"),
        ({"value_scales": (0.0, 0.3)}, "value_scales"),
        ({"n_samples": 0}, "n_samples"),
        ({"chunk": 0}, "chunk"),
    ],
)
def test_settings_of_random_starts_name_what_is_wrong(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(random_starts.Settings.book(), **change)


def test_every_line_of_a_picture_looks_different(race, margins) -> None:
    for figure in (
        figures.margin_race(race),
        figures.shares_at_norms(race),
        figures.step_sizes(race),
        figures.margins_at_random_starts(margins),
    ):
        for ax in figure.axes:
            named = [line for line in ax.lines if not line.get_label().startswith("_")]
            looks = {(line.get_color(), line.get_linestyle(), line.get_marker()) for line in named}
            assert len(looks) == len(named) == len({line.get_label() for line in named})
        plt.close(figure)


def test_tables_show_every_network_and_mark_what_was_measured(race, margins) -> None:
    ends, at_starts = tables.ends(race), tables.starts(margins)
    assert len(ends.columns) == 1 + len(RACE.runners)
    assert all(len(row) == len(ends.columns) for row in ends.rows)
    assert at_starts._repr_html_().count('class="measured"') == len(at_starts.rows)
    with pytest.raises(ValueError, match="key_query_scale"):
        tables.starts(margins, key_query_scale=0.5)


def beyond(tokens: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    plus, minus, noisy = tokens[0, 0], tokens[1, 0], tokens[1, 1]
    a, c = plus, -noisy
    share = (a @ a - a @ c) / ((a - c) @ (a - c))
    return np.tile(a + share * (c - a), (2, 1)), 30 * np.outer(tokens.sum((0, 1)), plus - minus)


def the_oracle(tokens: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    plus, minus, other = tokens[0, 0], tokens[1, 0], tokens[0, 1]
    key_query = np.outer(plus, plus) + np.outer(minus, minus) + np.outer(other, plus + minus)
    return np.tile(plus - minus, (2, 1)), 50 * key_query


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (the_oracle, "which token could be better"),
        (lambda x, y: (beyond(x, y)[0], 0 * beyond(x, y)[1]), "make W larger"),
        (lambda x, y: (-beyond(x, y)[0], beyond(x, y)[1]), "wrong side"),
        (lambda x, y: (np.tile(x[0, 0] - 0.2 * x[1, 1], (2, 1)), beyond(x, y)[1]), "which U"),
        (lambda x, y: (0 * beyond(x, y)[0], beyond(x, y)[1]), "must not be zero"),
        (lambda x, y: (beyond(x, y)[0][0], beyond(x, y)[1]), "shape"),
    ],
)
def test_two_samples_can_exceed_the_attention_margin_and_the_check_says_what_is_missing(answer, hint: str) -> None:
    check = exercises.CHECKS["MH-RACE"]
    assert check(beyond) is None
    assert hint in (check(answer) or "")


def test_the_two_samples_obey_the_bounds_of_the_mixture() -> None:
    tokens, _ = two_samples()
    plus, minus, other, noise = tokens[0, 0], tokens[1, 0], tokens[0, 1], tokens[1, 1] - tokens[0, 1]
    np.testing.assert_allclose(np.stack([plus, minus, other]) @ np.stack([plus, minus, other]).T, np.eye(3), atol=1e-12)
    assert abs(noise @ plus) <= 0.2 + 1e-12
    assert abs(noise @ other) <= 0.2 + 1e-12
    assert noise @ minus == pytest.approx(0, abs=1e-12)


def test_plain_descent_races_with_the_step_size_that_served_one_head_best() -> None:
    stored = margin_race.MarginRace.load_stored("book")
    medians = np.median(stored.tried_with("plain", 1), axis=0)
    best = stored.settings.tried_plain[int(medians.argmax())]
    assert best == stored.settings.plain_step_size
    assert best not in (stored.settings.tried_plain[0], stored.settings.tried_plain[-1])
