"""The miniature: formulas against PyTorch and by hand, rules that can fail, losses of the chapter, exercises."""

import json
import math
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import red
import torch

import attnbook
from attnbook import lab, ledger
from attnbook.implicit_bias.logistic import descend_growing, draw_samples, expansion, value_and_gradient

FOLDER = Path(__file__).parents[2] / "chapters" / "implicit_bias"
own = lab.load_script(FOLDER / "max_margin_direction.py")
TWO = np.array([[[1.0, 0.0], [0.0, 2.0]]])  # the smallest case


@pytest.fixture(scope="module")
def stored():
    return own.direction.stored()


def descended(samples, steps, step_size=0.5):
    """Weights of plain gradient descent, by PyTorch."""
    z, w = torch.tensor(samples), torch.zeros(samples.shape[::2], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=step_size)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.softplus(-torch.einsum("psa,pa->ps", z, w)).mean(1).sum().backward()
        optimizer.step()
    return w.detach().numpy()


def test_the_closed_form_is_what_automatic_differentiation_gives():
    z, w = torch.randn(3, 7, 2, dtype=torch.float64), torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    loss = torch.nn.functional.softplus(-torch.einsum("psa,pa->ps", z, w)).mean(1)
    found, gradients = value_and_gradient({"w": w}, z)
    torch.testing.assert_close(found, loss, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradients["w"], torch.autograd.grad(loss.sum(), w)[0], rtol=1e-12, atol=1e-15)


def test_the_experiment_trains_as_pytorch_does(smoke_results):
    data = smoke_results["implicit_bias.direction"]
    samples = data.samples.isel(clearance=1).transpose("seed", "sample", "axis").values
    weights = data.weights.isel(clearance=1).sel(step=32).transpose("seed", "axis")
    np.testing.assert_allclose(weights, descended(samples, 32), rtol=1e-12)


def test_direction_and_fixed_part_of_two_samples_are_known_by_hand():
    best, fixed = expansion(TWO, 0.5)
    np.testing.assert_allclose(best, [[1, 0.5]], rtol=1e-12)
    np.testing.assert_allclose(fixed, [[-math.log(4), 0]], atol=1e-12)
    w = descended(TWO, 1000)
    np.testing.assert_allclose(w, best * math.log(1000) + fixed, atol=0.02)


def test_every_drawn_sample_keeps_its_distance_and_two_are_nearest():
    samples = np.array([draw_samples(11, 3.0, seed) for seed in range(5)])
    best, fixed = expansion(samples, 0.3)
    margins = np.sort(np.einsum("psa,pa->ps", samples, best), axis=1)
    np.testing.assert_allclose(margins[:, :2], 1, rtol=1e-9)
    assert (margins[:, 2:] > 3).all()
    np.testing.assert_allclose(np.linalg.norm(best, axis=1), 2, rtol=1e-9)
    pulls = 0.3 / 11 * np.exp(-np.einsum("psa,pa->ps", samples, fixed))
    near = np.einsum("psa,pa->ps", samples, best) < 1.5
    np.testing.assert_allclose(np.einsum("ps,psa->pa", pulls * near, samples), best, rtol=1e-9)


def test_steps_that_grow_stay_on_the_path_and_end_at_the_prediction():
    samples = np.array([draw_samples(5, 2.0, seed) for seed in range(4)])
    best, fixed = expansion(samples, 0.5)
    weights, reached = descend_growing(samples, 0.5, [1000.0, 1e30], 0.1)
    plain = own.degrees(descended(samples, 1000), best)
    np.testing.assert_allclose(own.degrees(weights[0], best), plain, rtol=0.02)
    np.testing.assert_allclose(weights[1], own.expanded(best, fixed, reached[1]), atol=0.05)
    assert ((reached[1] >= 1e30) & (reached[1] < 1.1e30)).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: draw_samples(1, 2.0, 0), "n_samples, clearance: expected"),
        (lambda: draw_samples(5, math.nan, 0), "n_samples, clearance: expected"),
        (lambda: expansion(TWO, 0.0), "step_size: expected"),
        (lambda: expansion(TWO[:, :1], 0.5), "samples: expected 2 that support .* got 1"),
        (lambda: expansion(np.array([[[1.0, 1.0], [1.0, -1.0], [1.0, 0.0]]]), 0.5), "samples: expected 2"),
        (lambda: expansion(np.concatenate([TWO, -TWO], axis=1), 0.5), "infeasible"),
        (lambda: descend_growing(TWO, math.nan, [10.0], 0.1), "step_size: expected"),
        (lambda: descend_growing(TWO, 0.5, [10.0], -1.0), "pace: expected"),
        (lambda: descend_growing(TWO, 0.5, [10.0, 5.0], 0.1), "times: expected"),
        (lambda: descend_growing(TWO, 0.5, [1e200], 0.1), "times: expected"),
        (lambda: own.direction.run(steps=10), "steps"),
        (lambda: own.direction.run(clearances=(2.0,)), "clearances"),
        (lambda: own.direction.run(late=(1e9, 1e8)), "late"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def exchanged(data):
    return data.isel(clearance=[1, 0])


RED = {
    "IB-DIR": exchanged,
    "IB-CROWDED": exchanged,
    "IB-LATE": lambda d: d.assign(late_angle=d.late_angle.copy(data=d.late_angle.values[::-1])),
    "IB-NORM": lambda d: d.assign(norm=1.2 * d.norm),
    "IB-LOSS": lambda d: d.assign(loss=1.05 * d.loss),
}
PARTS = [
    ("IB-DIR", lambda d: d.assign(angle=-d.angle)),
    ("IB-DIR", lambda d: d.assign(angle=1.2 * d.angle)),
    ("IB-LATE", exchanged),
    ("IB-LATE", lambda d: d.assign(angle=1.1 * d.angle)),
    ("IB-LATE", lambda d: d.assign(late_angle=d.late_angle.where(d.late < 1e30, 2 * d.late_angle))),
    ("IB-NORM", lambda d: d.assign(norm=d.norm.where(d.clearance > 1, 1.2 * d.norm))),
    ("IB-NORM", lambda d: d.assign(norm=d.norm.where(d.clearance < 2, 1.2 * d.norm))),
    ("IB-LOSS", exchanged),
]  # other values of the same rules


def test_every_claim_can_be_turned(stored):
    red.assert_every_claim_turns(own.direction.measure, stored, RED, PARTS)
    assert {c.id for c in ledger.claims() if c.chapter == "implicit_bias/max_margin_direction"} == set(RED)
    np.testing.assert_allclose(stored.margin, 0.5)


def test_one_good_half_does_not_pass_for_both(stored):
    """The median would: half of the crowded problems are put where theory says, the others far away."""
    good = stored.assign(angle=stored.predicted * (1 + 9 * (stored.seed % 2)))
    measured = own.direction.measure(good)["IB-DIR"].values
    assert measured == {"share": 0.5}


def program():
    """The program of the chapter, without its last lines, which train for two seconds."""
    cells = json.loads((FOLDER / "max_margin_direction.ipynb").read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return next(text for text in code if "def train" in text).split("yours =")[0]


def after(steps, loss=None, change=("", "")):
    """The angle to the max-margin line after so many steps of the chapter's program, changed as its table says."""
    names = {}
    text = program()
    assert change[0] in text
    exec(text.replace(*change), names)
    path = names["train"](names["z"], *([loss] if loss else []), steps=steps)
    return [names["degrees"](path[step], names["best"]) for step in (steps // 2, steps)]


def squared_hinge(m):
    return (1 - m).clamp(min=0) ** 2


def test_another_loss_does_what_the_table_says():
    logistic, polynomial = after(1000)[1], after(1000, lambda m: (1 + m * m).sqrt() - m)
    assert after(1000, lambda m: torch.exp(-m))[1] == pytest.approx(logistic, rel=0.05)
    assert polynomial == pytest.approx([7.3, 7.3], abs=0.2)
    assert after(600, squared_hinge)[1] < 0.01
    assert after(600, squared_hinge, ("seed=3", "seed=2")) == pytest.approx([9.4, 9.4], abs=0.1)
    assert after(1000, None, ("* gradient", "* gradient / gradient.norm()"))[1] < 0.1


def test_the_program_of_the_chapter_is_the_experiment(stored):
    one = stored.isel(clearance=0, seed=own.SHOWN)
    assert after(100)[1] == pytest.approx(abs(float(one.angle.sel(step=100))), rel=1e-6)


def test_pictures_draw(stored):
    mine = {step: torch.tensor([1.0, step]) for step in (1, 2, 3, 10)}
    drawn = [own.training(stored), own.angles(stored, {"mine": mine}), own.problems(stored)]
    drawn.append(own.lines_frame(stored, 100))
    assert all(ax.get_ylabel() for figure in drawn for ax in figure.axes)
    assert drawn[1].axes[0].lines[-1].get_label() == "yours: mine"
    assert drawn[1].axes[0].lines[-1].get_xdata().tolist() == [1, 2, 3, 10]
    plt.close("all")
    assert own.lines_text(stored, 1000).startswith("Steps: 1,000. Angle to the max-margin line: 4.6 degrees")
    assert [row[0] for row in own.counts(stored).rows] == ["clear", "crowded"]
    assert [row[0] for row in own.late_counts(stored).rows] == ["10⁵", "10¹⁰", "10²⁰", "10⁴⁰", "10⁸⁰"]


def fixed_part(z, step_size, by=lambda eta, alpha: eta / (2 * alpha)):
    alpha = np.linalg.solve(z.T, np.linalg.solve(z, np.ones(2)))
    return np.linalg.solve(z, np.log(by(step_size, alpha)))


@pytest.mark.parametrize(
    ("exercise", "answer", "hint"),
    [
        ("IB-1", lambda steps, fraction: steps ** (1 / fraction), None),
        ("IB-1", lambda steps, fraction: steps / fraction, "fell like 1/t"),
        ("IB-2", fixed_part, None),
        ("IB-2", lambda z, eta: fixed_part(z, eta, lambda eta, alpha: eta / alpha), "the loss is a mean"),
        ("IB-2", lambda z, eta: -fixed_part(z, eta), "the sign"),
        ("IB-2", lambda z, eta: fixed_part(z, eta, lambda eta, alpha: eta / 2 + 0 * alpha), "its own alpha"),
        ("IB-2", lambda z, eta: 0.0, "two weights is wanted"),
    ],
)
def test_exercises_accept_the_right_answer_and_name_the_mistake(exercise, answer, hint):
    found = attnbook.check(exercise, answer)
    assert found.right if hint is None else hint in found.message
