"""Lazy training: bounds by hand, the account of one step, zero kernels, rules that can fail, pictures, exercises."""

import dataclasses
import math

import numpy as np
import pytest
import red
import torch

import attnbook
from attnbook import ledger
from attnbook.softmax_ntk import lazy_bounds as theory
from attnbook.softmax_ntk.conditioning import ZeroKernelError
from attnbook.softmax_ntk.lazy_training import experiments as own
from attnbook.softmax_ntk.lazy_training import figures
from attnbook.softmax_ntk.one_step import account, loss_terms
from attnbook.softmax_ntk.sweeps import slope
from attnbook.softmax_ntk.training import Problem, train
from attnbook.softmax_ntk.two_layer import Networks, Weights, draw_weights, loss_and_gradient, predict

KINDS = {
    "lazy_training": own.LazyTraining, "one_step": own.OneStep, "starts": own.Starts,
    "step_size": own.StepSize,
}  # fmt: skip
CPU = torch.device("cpu")
SIZES = {"n_samples": 3, "n_outputs": 2}


@pytest.fixture(scope="module")
def stored():
    return {name: kind.load_stored("book") for name, kind in KINDS.items()}


def double(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


@pytest.fixture
def step():
    """Two networks of five inputs, three outputs and fourteen neurons, before and after a large step."""
    before = Networks("softmax", double(2, 5, 14), double(2, 3, 14, seed=1).sign())
    after = dataclasses.replace(before, first_layer=before.first_layer + 0.3 * double(2, 5, 14, seed=2))
    return before, after, double(2, 7, 5, seed=3), double(2, 3, 7, seed=4)


def test_formulas_of_the_theorem_by_hand():
    """Three samples, two outputs, eigenvalue 1/2, B = 1 and 2: six over one half is twelve, its square 144."""
    assert theory.width_of_theorem(0.5, failure=0.06, **SIZES) == pytest.approx(144 * math.exp(18) * math.log(100) ** 2)
    assert theory.steps_of_theorem(0.5, error=0.6, exponent=2, **SIZES) == pytest.approx(
        144 * math.exp(32) * math.log(10)
    )
    assert theory.step_size_of_theorem(0.5, width=8, **SIZES) == pytest.approx(0.05 / (8 * 36 * math.exp(16)))
    bound = theory.movement_bound(0.5, width=8, exponent=2, residual=3, n_samples=3, n_outputs=3)
    assert bound == pytest.approx(8 / 0.5 * math.exp(6) * 3 * 3 / 8)
    assert theory.row_of_table_1("relu", 0.5, n_samples=3, error=0.3) == pytest.approx(
        (36 * math.log(3), 36 * math.log(10))
    )
    assert theory.row_of_table_1("exp", 0.5, n_samples=3, error=0.3)[0] == pytest.approx(36 * math.log(3) ** 2)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: theory.width_of_theorem(0.0, **SIZES), "smallest_eigenvalue"),
        (lambda: theory.width_of_theorem(0.1, exponent=0.5, **SIZES), "exponent"),
        (lambda: theory.width_of_theorem(0.1, failure=1.0, **SIZES), "failure"),
        (lambda: theory.step_size_of_theorem(0.1, width=0, **SIZES), "width"),
        (lambda: theory.steps_of_theorem(0.1, error=100.0, **SIZES), "error"),
        (lambda: theory.row_of_table_1("exp", 0.1, n_samples=1, error=0.1), "n_samples"),
        (lambda: theory.loss_envelope(np.arange(3.0), smallest_eigenvalue=1.0, step_size=1.0, width=2), "step_size"),
        (lambda: theory.movement_bound(0.1, width=2, exponent=1, residual=-1, **SIZES), "residual"),
    ],
)
def test_arguments_outside_their_range_are_refused_by_name(call, name):
    with pytest.raises(ValueError, match=name):
        call()


def test_terms_are_those_of_lemma_e1_written_out_and_add_up(step):
    """Normaliser, first order and higher orders from their definitions; any step, of any length."""
    before, after, x, y = step
    signs, error = before.signs, predict(before, x) - y
    old, new = (torch.exp(x @ n.first_layer) for n in (before, after))
    alpha, beta = old.sum(2, keepdim=True), new.sum(2, keepdim=True)
    q, m = (x @ after.first_layer) - (x @ before.first_layer), 14
    parts = (m * new * (1 / beta - 1 / alpha), m * old / alpha * q, m * old / alpha * (torch.exp(q) - 1 - q))
    wanted = [2 * (error * (signs @ part.mT)).sum((1, 2)) for part in parts]
    found = loss_terms(*step)
    torch.testing.assert_close(found[:, :3], torch.stack(wanted, dim=1), rtol=1e-11, atol=1e-11)
    change = (predict(after, x) - y).square().sum((1, 2)) - error.square().sum((1, 2))
    torch.testing.assert_close(found.sum(1), change, rtol=1e-12, atol=1e-12)
    assert not loss_terms(before, before, x, y).any()


def test_account_of_one_neuron_pair_by_hand():
    r"""One input 1, W = 0, signs 1 and -1, label 1: F = 0, mS = 1, H = 1, residual -1, and the gradient -+1.

    With $\eta m=1/2$ a neuron moves its logit by $\pm\frac14$: $F=2\tanh\frac14$ and $C_3=F^2$; $C_1=-1$, over the unit
    1/2 it is $-2$.
    """
    network = Networks.stack("softmax", [Weights(np.zeros((1, 2)), np.array([[1.0, -1.0]]))])
    one = torch.ones(1, 1, 1).double()
    terms, leading = account(network, one, one, torch.tensor([0.25]).double(), steps=1)
    moved = 2 * math.tanh(0.25)
    assert terms[0, 0, 1].item() == pytest.approx(-2)
    assert terms[0, 0, 3].item() == pytest.approx(moved**2 / 0.5)
    assert terms.sum().item() == pytest.approx(((1 - moved) ** 2 - 1) / 0.5)
    assert leading.item() == pytest.approx(1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b, a, x, y: (dataclasses.replace(b, activation="exp"), a, x, y), "softmax networks, got exp"),
        (lambda b, a, x, y: (b, dataclasses.replace(a, signs=-a.signs), x, y), "after: .*signs differ"),
        (lambda b, a, x, y: (b, a, x, y[:, :2]), "labels: expected"),
    ],
)
def test_wrong_networks_and_shapes_are_refused_by_name(step, change, message):
    with pytest.raises(ValueError, match=message):
        loss_terms(*change(*step))


def test_gradient_of_a_neuron_is_below_lemma_d1_and_the_paired_start_is_zero():
    x, y = double(1, 7, 5, seed=3) / 3, double(1, 3, 7, seed=4)
    network = Networks.stack("softmax", [draw_weights(14, 5, 3, rng=np.random.default_rng(0))])
    loss, gradient = loss_and_gradient(network, x, y)
    residual = float((2 * loss).sqrt())
    assert residual == pytest.approx(float(y.norm()))  # Lemma D.3
    largest = 14 * torch.softmax(x @ network.first_layer, dim=2).max()
    assert gradient.norm(dim=1).max() <= 2 * largest * math.sqrt(21) * residual


@pytest.mark.parametrize(("activation", "remedy"), [("relu", "larger width than 2"), ("softmax", "smaller weights")])
def test_a_zero_kernel_names_width_activation_and_remedy(activation, remedy, monkeypatch):
    from attnbook.softmax_ntk import training

    monkeypatch.setattr(training, "ntk_gram", lambda networks, inputs: torch.zeros(2, 3, 3).double())
    with pytest.raises(ZeroKernelError, match=rf"member 0, activation {activation}, width 2, is zero.*{remedy}"):
        train(Problem(activation, 2, 3, 5), (0, 1), device=CPU, max_steps=1)


@pytest.mark.parametrize("start", own.STARTS)
def test_networks_that_do_not_start_at_zero_fit_their_output_plus_the_labels(start):
    run = train(Problem("softmax", 16, 5, 7, start=start), (0, 1), device=CPU, max_steps=1)
    np.testing.assert_allclose(run.descent.loss[0], 2.5, rtol=1e-9)  # five labels of norm one, halved


def test_slope_of_a_power_is_its_exponent(stored):
    width = stored["starts"].width
    assert slope(7.0 * width**-1.5, "width").item() == pytest.approx(-1.5)


def test_only_the_norms_of_inputs_differ_and_they_lie_between_the_lowest_and_one():
    unit, half = own.LazyTraining().draw(3, 1.0), own.LazyTraining().draw(3, 0.5)
    norms = np.linalg.norm(half.inputs, axis=1)
    np.testing.assert_allclose(half.inputs / norms[:, None], unit.inputs)
    assert 0.5 <= norms.min() < 0.7 < norms.max() <= 1


def entry(name, dimension, label, change):
    """Change one entry of one array along one of its dimensions."""
    return lambda d: d.assign({name: d[name].where(d[dimension] != label, change(d[name]))})


def exchanged(values, dimension):
    """Turn an array around along a dimension and leave its coordinates."""
    return values.copy(data=values.isel({dimension: slice(None, None, -1)}).transpose(*values.dims).values)


def first_wide(name, factor):
    return lambda d: d.assign({name: d[name].where(d.width < d.width[-1], factor * d[name])})


RED = {
    "lazy_training": {
        "SN-T4.2": entry("reached", "width", 64, lambda r: 0 * r),
        "SN-TAB1": entry("steps", "network", "exp", lambda s: 2 * s),
        "SN-5.3L": lambda d: d.assign(bound_ratio=1.3 * d.bound_ratio),
        "SN-5.3W": lambda d: d.assign(rms_movement=d.rms_movement**0.8),
        "SN-5.3G": first_wide("longest_step", 10),
        "SN-NORM": lambda d: d.assign(norm_steps=exchanged(d.norm_steps, "network")),
    },
    "one_step": {
        "SN-E2": lambda d: d.assign(terms=d.terms / 8),
        "SN-E3": entry("terms", "term", "normaliser", lambda t: 100 * t),
        "SN-E4": lambda d: d.assign(leading=0.7 * d.leading),
        "SN-E6": entry("terms", "term", "higher orders", lambda t: 1000 * t),
        "SN-E7": lambda d: d.assign(by_fraction=4 * d.by_fraction),
        "SN-E3-pairs": lambda d: d.assign(terms=exchanged(d.terms, "start")),
    },
    "starts": {"SN-UNP": lambda d: d.assign(drift=d.drift**0.8)},
    "step_size": {"SN-ETA": lambda d: d.assign(reached=1 - d.reached)},
}
PARTS = {
    "lazy_training": [
        ("SN-TAB1", lambda d: d.assign(sample_steps=d.sample_steps**3)),
        ("SN-5.3L", lambda d: d.assign(monotone=0 * d.monotone)),
        ("SN-5.3W", lambda d: d.assign(movement_bound=d.movement_bound / 1e6)),
        ("SN-5.3W", entry("rms_movement", "network", "relu", np.sqrt)),
        ("SN-NORM", entry("norm_steps", "network", "relu", lambda s: 4 * s)),
    ],
    "one_step": [
        ("SN-E4", lambda d: d.assign(terms=d.terms / 8)),
        ("SN-E3-pairs", entry("terms", "start", "independent", lambda t: t / 100)),
        ("SN-E3-pairs", entry("terms", "width", 4096, lambda t: 30 * t)),
    ],
    "starts": [
        ("SN-UNP", entry("drift", "network", "relu", lambda d: d**0.8)),
        ("SN-UNP", entry("drift", "scale", 0.3, lambda d: d**0.8)),
        ("SN-UNP", lambda d: d.assign(drift=d.drift.where(d.scale < 1, exchanged(d.drift, "start")))),
    ],
    "step_size": [
        ("SN-ETA", lambda d: d.assign(rises=1 - d.rises)),
        ("SN-ETA", lambda d: d.assign(sharpness=2 * d.sharpness)),
        ("SN-ETA", entry("rises", "fraction", 2.2, lambda r: 0 * r)),
    ],
}  # other values of the same rules


@pytest.mark.parametrize("name", KINDS)
def test_every_measured_claim_of_the_chapter_can_be_turned_red(name, stored):
    red.assert_every_claim_turns(KINDS[name]().measurements, stored[name], RED[name], PARTS[name])


def test_every_claim_of_the_chapter_is_measured_or_says_why_not():
    mine = {c.id: c for c in ledger.claims() if c.chapter == "softmax_ntk/lazy_training"}
    found = {claim for claims in RED.values() for claim in claims}
    assert set(mine) - found == {"SN-E1"} == {i for i, c in mine.items() if c.checked}
    assert sum(c.source == "book" for c in mine.values()) <= 5


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        (own.LazyTraining, {"lazy_from": 4096}, "lazy_from"),
        (own.LazyTraining, {"curve_width": 100}, "curve_width"),
        (own.OneStep, {"fractions": (2.2,)}, r"fractions: .*diverges"),
        (own.StepSize, {"usable": 1.7}, "usable"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(kind, change, message):
    with pytest.raises(ValueError, match=message):
        kind.at("book", **change)


def test_pictures_and_tables_draw(stored):
    lazy, steps = stored["lazy_training"], stored["one_step"]
    drawn = [
        figures.harmless(lazy, steps), figures.account_frame(steps, 256, "paired"), figures.envelope(lazy),
        figures.drift_by_start(stored["starts"]), figures.step_sizes(stored["step_size"]),
    ]  # fmt: skip
    assert all(ax.get_xlabel() for figure in drawn for ax in figure.axes)
    assert figures.account_text(steps, 64, "paired") != figures.account_text(steps, 64, "independent")
    for table in (figures.varied(steps), figures.table_1(lazy)):
        assert all(len(row) == len(table.columns) for row in table.rows)


def gradient(weights, signs, x, y, *, forget=""):
    logits = x @ weights
    neurons = len(signs) * np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    output = neurons @ signs
    centred = signs - (0 if forget == "centre" else output[:, None] / len(signs))
    return x.T @ ((output - y)[:, None] * neurons * centred)


def kernel_change(weights, x, z, move, *, forget=""):
    neurons, both = np.exp(weights.T @ (x + z)), x if forget == "both" else x + z
    change = (1 if forget == "product" else x @ z) * neurons * (move.T @ both)
    return change.sum() if forget == "average" else change.mean()


ANSWERS = {"SN-1": gradient, "SN-12": kernel_change}


@pytest.mark.parametrize("exercise", ANSWERS)
def test_right_answers_pass(exercise):
    assert attnbook.check(exercise, ANSWERS[exercise]).right


@pytest.mark.parametrize(
    ("exercise", "forget", "message"),
    [
        ("SN-1", "centre", "centring is missing"),
        ("SN-12", "average", "average over neurons"),
        ("SN-12", "product", "inner product"),
        ("SN-12", "both", "both inputs"),
    ],
)
def test_wrong_answers_get_the_likely_mistake(exercise, forget, message):
    feedback = attnbook.check(exercise, lambda *a: ANSWERS[exercise](*a, forget=forget))
    assert not feedback.right
    assert message in repr(feedback)
