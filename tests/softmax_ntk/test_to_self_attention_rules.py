"""Rules of the claims on self-attention: wrong models and exchanged ways turn them red."""

import dataclasses

import numpy as np
import pytest

from attnbook import ledger
from attnbook.softmax_ntk import attention_logits as theory
from attnbook.softmax_ntk import self_attention
from attnbook.softmax_ntk.experiments import planted_attention, planted_settings, to_self_attention
from attnbook.softmax_ntk.self_attention import attention_weights, contexts, loss_and_gradients


def _uncentred(key_query, value, tokens, labels):
    right = loss_and_gradients(key_query, value, tokens, labels)
    weights = attention_weights(key_query, tokens)
    rows = contexts(weights, tokens)
    error = (rows @ right.at_value - labels) @ right.at_value.mT
    back = weights * (error.unflatten(1, tokens.shape[1:3]) @ tokens.mT)
    return right._replace(key_query=(tokens.mT @ (back @ tokens)).sum(1) / rows.shape[1])


def test_a_gradient_without_its_centring_turns_claims_red(monkeypatch):
    monkeypatch.setattr(to_self_attention, "loss_and_gradients", _uncentred)
    wrong = to_self_attention.run(to_self_attention.Settings.smoke(), device="cpu").measurements()
    assert wrong["SN-H-gradient"].values["max_relative_error"] > 1e-3
    assert wrong["SN-ATT-row"].values["max_error"] < 1e-12


def test_exchanged_queries_and_keys_turn_claims_red(monkeypatch):
    def exchanged(tokens, key_query, *rest):
        return self_attention.row_as_network(tokens, key_query.T, *rest)

    monkeypatch.setattr(to_self_attention, "row_as_network", exchanged)
    monkeypatch.setattr(
        to_self_attention, "logits_by_tensor_trick", lambda x, m: theory.logits_by_tensor_trick(x, m.T.copy())
    )
    wrong = ledger.check(to_self_attention.run(to_self_attention.Settings.smoke(), device="cpu"), only=["SN-ATT"])
    assert [verdict.outcome for verdict in wrong.verdicts] == ["not reproduced"] * 2


def _red(changed):
    return {v.claim.id for v in ledger.check(changed).verdicts if v.outcome == "not reproduced"}


def _exchange(stored, *pairs):
    ways = list(planted_settings.WAYS)
    order = list(range(len(ways)))
    for a, b in pairs:
        i, j = ways.index(a), ways.index(b)
        order[i], order[j] = order[j], order[i]
    names = ("loss", "evaluations", "distance", "chosen", "tuned", "condition", "milliseconds")
    return dataclasses.replace(stored, **{name: getattr(stored, name)[:, order] for name in names})


@pytest.mark.parametrize(
    ("pairs", "red"),
    [
        (
            [("alternating", "joint"), ("frozen", "known"), ("alternating_adam", "joint_adam")],
            {"frozen", "known", "alternating", "zero", "mean", "mean-zero", "adam-mean", "stuck", "rarely-mean"},
        ),
        ([("alternating", "joint_from_zero")], {"zero", "mean-zero", "sharp"}),
        ([("every_tenth", "joint")], {"rarely"}),
        ([("alternating", "joint_adam")], {"adam", "adam-sharp"}),
        ([("known", "joint_adam")], {"adam-sharp", "adam"}),
    ],
)
def test_rules_on_the_race_fail_when_ways_are_exchanged(pairs, red):
    stored = planted_attention.PlantedAttention.load_stored("book")
    assert _red(stored) == set()
    assert {f"SN-H-{name}" for name in red} <= _red(_exchange(stored, *pairs))


def test_rules_on_traps_and_on_the_planted_matrix_fail_without_traps_and_with_another_matrix():
    stored = planted_attention.PlantedAttention.load_stored("book")
    assert _red(dataclasses.replace(stored, later_loss=0 * stored.later_loss)) == {"SN-H-traps"}
    assert _red(dataclasses.replace(stored, distance=1 + stored.distance)) == {"SN-H-found"}


def test_ratios_are_taken_seed_by_seed_and_misses_are_counted():
    stored = planted_attention.PlantedAttention.load_stored("book")
    above, below = (stored.of("evaluations", "common_mean", way) for way in ("joint", "alternating"))
    measured = stored.measurements()["SN-H-mean"].values
    assert measured["evaluations_joint_over_alternating"] == np.median(above / below)
    assert measured["missed_joint"] == (above > stored.settings.steps).sum()


def test_a_kernel_of_lower_rank_turns_its_claim_red(monkeypatch):
    monkeypatch.setattr(to_self_attention, "_kernel_rank", lambda s, *rest: s.dimension**2 - 1)
    wrong = ledger.check(to_self_attention.run(to_self_attention.Settings.smoke(), device="cpu"), only=["SN-H-kernel"])
    assert [verdict.outcome for verdict in wrong.verdicts] == ["not reproduced"]
