"""Experiments, pictures and exercises of the chapter on margins; wrong models turn claims red."""

import math

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import red

import attnbook
from attnbook import ledger
from attnbook.multi_head import oracle
from attnbook.multi_head.margins import cells, figures
from attnbook.multi_head.margins import experiments as own

KINDS = {
    "oracle_logits": own.OracleLogits, "linear_rules": own.LinearRules, "margins": own.ScaledAttention,
    "margin_order": own.MarginOrder, "feasibility": own.Feasibility,
}  # fmt: skip


@pytest.fixture(scope="module")
def stored():
    return {name: kind.load_stored("book") for name, kind in KINDS.items()}


def times(**powers):
    """Multiply arrays by a power of the pattern norm."""
    return lambda d: d.assign({name: d[name] * d.norm**power for name, power in powers.items()})


def scaled(**factors):
    return lambda d: d.assign({name: factor * d[name] for name, factor in factors.items()})


def moved(**distances):
    return lambda d: d.assign({name: d[name] + distance for name, distance in distances.items()})


def mirrored(name, axis):
    """Turn an array around along one axis, with its coordinates in place."""
    return lambda d: d.assign({name: d[name].copy(data=np.flip(d[name].values, d[name].get_axis_num(axis)))})


RED = {
    "oracle_logits": {
        "MH-B13.13": lambda d: d.assign(as_query=d.as_key, as_key=d.as_query),
        "MH-E8": times(relevant=-1),
        "MH-E8-noise": mirrored("irrelevant", "law"),
        "MH-E8-gap": times(gap=-0.1),
        "MH-P3.1-law": mirrored("corner_gap", "noise"),
    },
    "linear_rules": {
        "MH-A3-linear": mirrored("uniform", "noise"),
        "MH-A3-linear-best": mirrored("best", "fraction"),
    },
    "margins": {
        "MH-P3.1": mirrored("leak", "epsilon"),
        "MH-P3.2": mirrored("margin", "norm"),
        "MH-B13.7": mirrored("worst_uniform", "norm"),
    },
    "margin_order": {
        "MH-ORD": mirrored("tangent", "step"),
        "MH-ORD-linear": lambda d: d.assign(noisy_tangent=d.noisy_uniform, noisy_uniform=d.noisy_tangent),
        "MH-ORD-gap": mirrored("uniform", "fraction"),
    },
    "feasibility": {
        "MH-53.1": moved(scaled=1),
        "MH-53.3": lambda d: d.assign(scaled=d.scaled_printed),
        "MH-B13.6": lambda d: d.assign(limits=d.limits * d.few_heads**0.5),
    },
}
PARTS = {
    "oracle_logits": [
        ("MH-E8", times(irrelevant=1)),
        ("MH-E8-gap", scaled(gap=0.7)),
        ("MH-P3.1-law", moved(corner_gap=0.01)),
        ("MH-P3.1-law", moved(corner_gap=-0.01)),
    ],
    "linear_rules": [
        ("MH-A3-linear", moved(uniform=0.01)),
    ],
    "margins": [
        ("MH-P3.2", scaled(margin=0.98)),
        ("MH-P3.2", mirrored("uniform", "fraction")),
    ],
    "margin_order": [
        ("MH-ORD", mirrored("tangent", "norm")),
        ("MH-ORD", scaled(tangent=0)),
        ("MH-ORD-gap", mirrored("tangent", "fraction")),
        ("MH-ORD-gap", lambda d: d.assign(uniform=d.tangent.sel(step=1.0))),
    ],
    "feasibility": [
        ("MH-53.3", mirrored("scaled_printed", "c")),
        ("MH-B13.6", mirrored("limits", "condition")),
        ("MH-B13.6", lambda d: d.assign(limits=d.limits * np.log(d.n) ** 0.5)),
    ],
}  # other values of the same rules


@pytest.mark.parametrize("name", KINDS)
def test_every_measured_claim_of_the_chapter_can_be_turned_red(name, stored):
    red.assert_every_claim_turns(KINDS[name]().measurements, stored[name], RED[name], PARTS[name])


def test_every_claim_of_the_chapter_is_measured():
    mine = {c.id: c for c in ledger.claims() if c.chapter == "multi_head/margins" and not c.id.startswith("MH-X.")}
    assert set(mine) == {claim for claims in RED.values() for claim in claims}
    assert sum(c.source == "book" for c in mine.values()) == 2


def outcomes(name):
    ready = KINDS[name].at("smoke")
    return red.outcomes(ready.measurements, ready.run(device="cpu"))


@pytest.mark.parametrize("name", KINDS)
def test_honest_measurements_of_small_size_pass(name):
    assert "not reproduced" not in outcomes(name).values()


def test_transposed_oracle_turns_claims_red(monkeypatch):
    """Queries and keys exchanged: no irrelevant query finds the relevant tokens."""
    right = oracle.key_query
    monkeypatch.setattr(oracle, "key_query", lambda patterns: right(patterns).T)
    with np.errstate(invalid="ignore"):  # a negative gap has no power of the pattern norm
        verdicts = outcomes("oracle_logits")
    assert verdicts["MH-B13.13"] == verdicts["MH-P3.1-law"] == "not reproduced"


def test_a_wrong_constant_turns_the_claim_red(monkeypatch):
    stated = oracle.stated_scale
    monkeypatch.setattr(oracle, "stated_scale", lambda *a: 0.4 * stated(*a))
    assert outcomes("margins")["MH-P3.1"] == "not reproduced"


def test_a_first_step_of_twice_the_length_moves_the_crossing(monkeypatch):
    """The reading with one half in the place of one quarter."""
    right = cells.tangent_features

    def wrong(parameters, tokens):
        return right({**parameters, "decoder": 2 * parameters["decoder"]}, tokens)

    monkeypatch.setattr(cells, "tangent_features", wrong)
    assert outcomes("margin_order")["MH-ORD"] == "not reproduced"


def test_every_line_of_a_picture_looks_different(stored):
    mpl.use("Agg")
    drawn = {
        figures.separation: "linear_rules", figures.margins_and_steps: "margin_order",
    }  # fmt: skip
    for draw, name in drawn.items():
        figure = draw(stored[name])
        for ax in figure.axes:
            named = [line for line in ax.lines if not line.get_label().startswith("_")]
            looks = {(line.get_color(), str(line.get_linestyle()), line.get_marker()) for line in named}
            assert len(looks) == len(named) >= 3, (draw.__name__, looks)
        plt.close(figure)


def test_the_attention_map_saturates_at_the_stated_scale():
    start, end = (cells.attention_map(share, hard=True) for share in (0.0, 1.0))
    np.testing.assert_allclose(start.weights, 0.1)
    assert start.leak == pytest.approx(0.8)
    assert end.leak <= 0.1
    assert end.margin > 0.95
    drawn = cells.attention_map(0.5, hard=False)
    np.testing.assert_allclose(drawn.weights.sum(1), 1.0)
    assert drawn.leak == pytest.approx(drawn.weights[:, 2:].sum(1).max())
    plt.close(figures.attention_map(end))
    assert "Worst leak" in figures.map_text(end)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        (own.OracleLogits, {"noise_shares": (0.1,)}, "noise_shares"),
        (own.OracleLogits, {"pattern_norms": (1.0,)}, "pattern_norms"),
        (own.LinearRules, {"noise_shares": (0.1, 0.0)}, "noise_shares"),
        (own.MarginOrder, {"pattern_norms": (2.0, 1.0)}, "pattern_norms"),
        (own.MarginOrder, {"steps": (2.0,)}, "steps"),
        (own.Feasibility, {"n_samples": (1.0,)}, "n_samples"),
        (own.Feasibility, {"scalings": (0.25, 1.0)}, "scalings"),
    ],
)
def test_bad_settings_are_named(kind, change, message):
    with pytest.raises(ValueError, match=message):
        kind(**change)


def key_query(label, other, *, transpose=False, irrelevant=True):
    w = label.T @ label + irrelevant * np.outer(other.sum(0), label.sum(0))
    return w.T if transpose else w


def scale(gaps, k, leak, *, odds=None, keys=None):
    target = (keys or k) * (leak / (1 - leak) if odds is None else leak)
    low, high = 0.0, 1e4
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if np.exp(-middle * gaps).sum() > target else (low, middle)
    return high


@pytest.mark.parametrize(("exercise", "answer"), [("MH-ORACLE", key_query), ("MH-SATURATE", scale)])
def test_right_answers_pass(exercise, answer):
    assert attnbook.check(exercise, answer).right


@pytest.mark.parametrize(
    ("exercise", "answer", "message"),
    [
        ("MH-ORACLE", lambda *a: key_query(*a, transpose=True), "transpose"),
        ("MH-ORACLE", lambda *a: key_query(*a, irrelevant=False), "irrelevant queries"),
        ("MH-ORACLE", lambda label, other: label, "tokens to tokens"),
        ("MH-SATURATE", lambda *a: scale(*a, odds=False), "not 1"),
        ("MH-SATURATE", lambda *a: scale(*a, keys=1), "each of the relevant"),
        (
            "MH-SATURATE",
            lambda g, k, e: max(0.0, math.log(len(g) * (1 - e) / (k * e)) / g.min()),
            "not the smallest",
        ),
    ],
)
def test_wrong_answers_get_the_likely_mistake(exercise, answer, message):
    feedback = attnbook.check(exercise, answer)
    assert not feedback.right
    assert message in repr(feedback)
