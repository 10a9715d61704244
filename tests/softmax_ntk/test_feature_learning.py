"""Single-index targets and what is learnt of the index; the experiment's rules, settings, pictures and exercises."""

import numpy as np
import pytest
import red
import torch

import attnbook
from attnbook import ledger
from attnbook.softmax_ntk.descent import gradient_descent
from attnbook.softmax_ntk.feature_learning import experiments as own
from attnbook.softmax_ntk.feature_learning import figures
from attnbook.softmax_ntk.single_index import TARGETS, draw_single_index, index_learnt
from attnbook.softmax_ntk.two_layer import Networks, Weights, predict

E = own.FeatureLearning


@pytest.fixture(scope="module")
def data():
    return E.load_stored("book")


def scaled(name, factor, **where):
    """Multiply some entries of an array."""

    def change(d):
        inside = True
        for dimension, label in where.items():
            inside = inside & (d[dimension] == label)
        return d.assign({name: d[name].where(~inside, factor * d[name])})

    return change


def error(factor, learner, target="step"):
    return scaled("error", factor, learner=learner, target=target)


RED = {
    "SN-H2": error(10, "mean field"),
    "SN-H2-size": lambda d: d.assign(dial_error=d.dial_error.copy(data=d.dial_error.values[::-1])),
    "SN-H2-index": lambda d: d.assign(cosine=d.cosine[:, ::-1] / 2),
    "SN-H2-square": error(10, "kernel", "square"),
}
PARTS = [
    ("SN-H2", error(3, "mean field")),
    ("SN-H2-size", lambda d: d.assign(dial_movement=0 * d.dial_movement + 1)),
    ("SN-H2-size", lambda d: d.assign(dial_aligned=d.dial_aligned / 2)),
    ("SN-H2-size", lambda d: d.assign(dial_aligned=3 * d.dial_aligned)),
    ("SN-H2-size", lambda d: d.assign(dial_signed=1 - d.dial_signed)),
    ("SN-H2-size", error(0.1, "large steps", "square")),
    ("SN-H2-index", error(0.5, "lazy")),
    *[("SN-H2-index", error(4, "kernel, stretched", target)) for target in TARGETS],
    ("SN-H2-square", error(0.2, "mean field", "square")),
]


def test_every_claim_of_the_chapter_can_be_turned_red(data):
    red.assert_every_claim_turns(E().measurements, data, RED, PARTS)
    assert set(RED) == {c.id for c in ledger.claims() if c.chapter == "softmax_ntk/feature_learning"}


def test_the_output_scale_is_a_label_scale():
    """F / s trained on y with steps eta takes the path of F trained on s y with steps eta / s^2."""
    sample = draw_single_index(12, 3, noise=0.1, seed=0)
    inputs, labels = torch.as_tensor(sample.inputs)[None], torch.as_tensor(np.tanh(sample.projections))[None, None]
    rng, scale, step_size = np.random.default_rng(0), 4.0, 0.3
    start = Networks.stack("softmax", [Weights(rng.standard_normal((3, 6)), rng.choice([-1.0, 1.0], (1, 6)))])
    weights = start.first_layer.clone().requires_grad_()
    outputs = 6 * torch.softmax(inputs @ weights, dim=2) @ start.signs.mT / scale
    ((outputs.mT - labels).square().sum() / 2).backward()
    eta = torch.tensor([step_size / scale**2], dtype=torch.float64)
    stepped = gradient_descent(start, inputs, scale * labels, eta, max_steps=1).networks.first_layer
    assert torch.allclose(stepped, weights.detach() - step_size * weights.grad, atol=1e-12)


def test_two_neurons_compute_the_step():
    sample = draw_single_index(9, 5, noise=0, seed=1)
    column = 2 * np.sqrt(5) * sample.index
    network = Networks.stack("softmax", [Weights(np.stack([column, -column], 1), np.array([[1.0, -1.0]]))])
    outputs = predict(network, torch.as_tensor(sample.inputs)[None])[0, 0].numpy() / network.width
    np.testing.assert_allclose(outputs, TARGETS["step"](sample.projections), atol=1e-12)


def test_the_index_is_shared_and_its_samples_are_not():
    train, test = (draw_single_index(50, 4, noise=0.1, seed=3, purpose=purpose) for purpose in ("train", "test"))
    np.testing.assert_array_equal(train.index, test.index)
    assert np.linalg.norm(train.index) == pytest.approx(1)
    assert abs(train.inputs @ test.inputs.T).max() < 1 - 1e-6
    with pytest.raises(ValueError, match="noise"):
        draw_single_index(5, 4, noise=-1, seed=0)


def test_what_is_learnt_of_the_index_by_hand():
    start = Networks.stack("softmax", [Weights(np.array([[3.0, 0.0], [0.0, 4.0]]), np.array([[1.0, -1.0]]))])
    moved = torch.tensor([[[2.0, -1.0], [0.0, 0.0]]], dtype=torch.float64)
    later = Networks("softmax", start.first_layer + moved, start.signs)
    learnt = index_learnt(start, later, torch.tensor([[1.0, 0.0]], dtype=torch.float64))
    assert float(learnt["movement"]) == pytest.approx(np.sqrt(5) / 5)
    assert float(learnt["aligned"]) == pytest.approx(26 / 42)
    assert float(learnt["cosine"]) == pytest.approx(1)
    assert float(learnt["signed"]) == 1


def test_of_runs_and_records_the_smallest_held_out_error_is_kept():
    held = np.array([[[3.0], [2.0], [9.0], [1.0]], [[4.0], [1.0], [0.0], [5.0]]]).reshape(2, 4)
    chosen = own.pick({"held": held, "error": 10 * held}, 2, 1)
    assert chosen["error"].tolist() == [[10.0], [0.0]]


@pytest.mark.parametrize(
    ("change", "message"),
    [({"samples": (50, 80)}, "samples"), ({"held_out": 0.6}, "held_out")],
)
def test_settings_that_make_no_sense_are_refused_by_name(change, message):
    with pytest.raises(ValueError, match=message):
        E.at("book", **change)


def test_pictures_and_tables_draw(data):
    drawn = [figures.samples(data, "step", "square"), figures.samples(data, "wave"), figures.dial_frame(data, 8)]
    assert all(ax.get_xlabel() for figure in drawn for ax in figure.axes)
    assert figures.dial_text(data, 8) != figures.dial_text(data, 64)
    table = figures.learnt(data)
    assert all(len(row) == len(table.columns) for row in table.rows)


def same_path(step_size, labels, scale, *, forget=""):
    power = 1 if forget == "factor" else 2
    return step_size / scale**power, labels / scale if forget == "labels" else scale * labels


def two_neurons(index, *, forget=""):
    column = {"half": 1, "sign": -2}.get(forget, 2) * np.sqrt(len(index)) * index
    return np.stack([column, -column], axis=1)[:, : 1 if forget == "one" else 2]


ANSWERS = {"SN-19": same_path, "SN-20": two_neurons}


@pytest.mark.parametrize("exercise", ANSWERS)
def test_right_answers_pass(exercise):
    assert attnbook.check(exercise, ANSWERS[exercise]).right


@pytest.mark.parametrize(
    ("exercise", "forget", "message"),
    [
        ("SN-19", "factor", "one factor"),
        ("SN-19", "labels", "labels grow"),
        ("SN-20", "half", "half as steep"),
        ("SN-20", "sign", "exchanged"),
        ("SN-20", "one", "shape"),
    ],
)
def test_wrong_answers_get_the_likely_mistake(exercise, forget, message):
    feedback = attnbook.check(exercise, lambda *a: ANSWERS[exercise](*a, forget=forget))
    assert not feedback.right
    assert message in repr(feedback)
