"""Kernel machines against the plain way, linearised networks, bounds, one direction; the chapter and its program."""

import inspect
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import red
import torch
from scipy.stats import beta

import attnbook
from attnbook import lab
from attnbook.softmax_ntk.descent import gradient_descent
from attnbook.softmax_ntk.ntk import kernel_gradient_flow, ntk_gram
from attnbook.softmax_ntk.single_index import TARGETS, draw_single_index, index_learned
from attnbook.softmax_ntk.two_layer import Networks, Weights, draw_weights, predict

own = lab.load_script(Path("chapters/softmax_ntk/kernel_regression.py"))


def double(*shape, seed=0):
    return torch.tensor(np.random.default_rng(seed).standard_normal(shape))


def networks(members=2, outputs=3):
    rng = np.random.default_rng(5)
    weights = [draw_weights(22, 7, outputs, rng=rng, start="independent") for _ in range(members)]
    return Networks.stack("softmax", weights)


ROOT, LABELS, CROSS = double(5, 5), double(5, seed=1), double(3, 5, seed=2)
KERNEL = ROOT @ ROOT.mT / 5 + 0.1 * torch.eye(5)


def test_flow_is_the_matrix_exponential():
    found = kernel_gradient_flow(KERNEL, LABELS, None, [0.0, 0.7, 11.0], cross=CROSS)
    for predictions, time in zip(found, (0.0, 0.7, 11.0), strict=True):
        left = torch.linalg.matrix_exp(-time * KERNEL)
        right = CROSS @ torch.linalg.solve(KERNEL, (torch.eye(5) - left) @ LABELS)
        torch.testing.assert_close(predictions, right, rtol=1e-10, atol=1e-10)


def test_flow_of_a_singular_kernel_learns_linearly_in_time_where_the_kernel_is_blind():
    kernel, labels = torch.diag(torch.tensor([1.0, 0.0])).double(), torch.ones(2).double()
    found = kernel_gradient_flow(kernel, labels, None, [3.0], cross=torch.eye(2).double())[0]
    torch.testing.assert_close(found, torch.tensor([1 - math.exp(-3), 3.0]).double())


def test_a_diverging_step_size_is_refused_and_says_which():
    kernel = torch.stack([torch.eye(3), 5 * torch.eye(3)]).double()
    kernel_gradient_flow(kernel, torch.ones(2, 3).double(), 0.4, [7])  # the limit itself
    with pytest.raises(ValueError, match=r"scaled_step_size: .*at most 2 over .*2.0, 0.4.*diverge; or None, got 0.5"):
        kernel_gradient_flow(kernel, torch.ones(2, 3).double(), 0.5, [7])


@pytest.mark.parametrize(
    ("kernel", "change", "message"),
    [
        (KERNEL, {"labels": KERNEL}, r"labels: expected shape \(5,\), .*, got \(5, 5\)"),
        (torch.triu(KERNEL), {}, "kernel: expected a symmetric matrix"),
        (KERNEL, {"cross": double(3, 2, 5)}, "cross: expected rows of shape"),
        (KERNEL, {"steps": [0.5]}, r"steps.*None"),
    ],
)
def test_what_a_kernel_cannot_learn_from_is_refused_by_name(kernel, change, message):
    """By the function itself, as readers meet it: no annotation is checked."""
    with pytest.raises(ValueError, match=message):
        inspect.unwrap(kernel_gradient_flow)(
            kernel, **{"labels": LABELS, "scaled_step_size": 0.1, "steps": [1]} | change
        )


def jacobian(nets, k, x):
    """Of the outputs of one network in its weights, by automatic differentiation: one row for each output."""
    outputs = torch.func.jacrev(lambda weights: nets.signs[k] @ (22 * torch.softmax(x @ weights, 1)).T)
    return outputs(nets.first_layer[k]).flatten(2).flatten(0, 1)


def test_explicit_steps_of_the_linearised_network_are_the_closed_form():
    """Definition F.1: forty steps in weight space, one decomposition."""
    start, x, points, goal = networks(), double(2, 5, 7), double(2, 3, 7, seed=3), double(2, 15, seed=4)
    kernel = ntk_gram(start, x)
    eta = 1 / torch.linalg.eigvalsh(kernel)[:, -1]
    closed = kernel_gradient_flow(kernel, goal, eta, [40], cross=ntk_gram(start, points, x))[0]
    for k in range(2):
        rows, change = jacobian(start, k, x[k]), torch.zeros(7 * 22).double()
        for _ in range(40):
            change -= eta[k] / 22 * rows.T @ (rows @ change - goal[k])
        torch.testing.assert_close(jacobian(start, k, points[k]) @ change, closed[k], rtol=1e-10, atol=1e-12)


def test_the_bound_by_hand():
    found = own.bound_of_theorem(2.0, 4, 10, torch.tensor([0.2, 0.05]).double(), 0.3)
    assert found[0] == pytest.approx(0.3)  # the logarithm is that of one
    assert found[1] == pytest.approx(0.3 + 2 / 4 * math.log(4) ** 2 * 0.05)


def test_two_neurons_compute_the_step():
    x, index, _ = draw_single_index(9, 5, seed=1)
    column = 2 * np.sqrt(5) * index
    pair = Networks.stack("softmax", [Weights(np.stack([column, -column], 1), np.array([[1.0, -1.0]]))])
    outputs = predict(pair, torch.as_tensor(x)[None])[0, 0].numpy() / 2
    np.testing.assert_allclose(outputs, TARGETS["step"](np.sqrt(5) * x @ index), atol=1e-12)


def test_what_is_learned_of_the_index_by_hand():
    start = Networks.stack("softmax", [Weights(np.array([[3.0, 0.0], [0.0, 4.0]]), np.array([[1.0, -1.0]]))])
    moved = torch.tensor([[[2.0, -1.0], [0.0, 0.0]]], dtype=torch.float64)
    later = Networks("softmax", start.first_layer + moved, start.signs)
    found = index_learned(start, later, torch.tensor([[1.0, 0.0]], dtype=torch.float64))
    assert float(found["aligned"]) == pytest.approx(26 / 42)
    assert float(found["cosine"]) == float(found["signed"]) == pytest.approx(1)


def test_the_output_scale_is_a_label_scale():
    """F / s trained on y with steps eta takes the path of F trained on s y with steps eta / s^2."""
    start, x, y, s = networks(1, 1), double(1, 5, 7), double(1, 1, 5, seed=1), 4.0
    weights = start.first_layer.clone().requires_grad_()
    outputs = 22 * torch.softmax(x @ weights, dim=2) @ start.signs.mT / s
    ((outputs.mT - y).square().sum() / 2).backward()
    stepped = gradient_descent(start, x, s * y, torch.ones(1).double() * 0.3 / s**2, max_steps=1).networks
    torch.testing.assert_close(stepped.first_layer, weights.detach() - 0.3 * weights.grad, rtol=1e-9, atol=1e-9)


def test_the_best_is_chosen_by_held_out_samples_alone():
    outputs = np.array([[0.0, 3.0, 5.0], [1.0, 9.0, 5.0], [4.0, 3.0, 5.0]])  # one held out, two to test on; cut at 6
    found = own.best(outputs, np.array([0.0, 6.0]), np.array([1.2]), np.array([3.0, 5.0]), name=np.arange(3))
    assert found == {"name": 1, "error": 3**2 / 2}


RED = {
    own.coupling: {
        "SN-CURVE": red.scaled("difference", 10),
        "SN-F2": red.scaled("form", 1e-3),
        "SN-F2-every": lambda d: d.assign(gap_at=d.gap_at**0.5),
        "SN-F2-steps": red.scaled("flow", 0.3, network="exp"),
    },
    own.feature_learning: {"SN-H2": red.scaled("error", 10, learner="mean field", target="step")},
}
PARTS = {
    own.coupling: [("SN-F2", lambda d: d.assign(gap=d.gap**0.5))],
    own.feature_learning: [
        ("SN-H2", red.scaled("error", 0.2, learner="mean field", target="square")),
        ("SN-H2", red.scaled("error", 0.1, learner="lazy", target="step")),
        ("SN-H2", red.scaled("aligned", 0.5)),
        ("SN-H2", red.scaled("aligned", 3)),
        ("SN-H2", red.scaled("signed", 0.5)),
        ("SN-H2", red.scaled("cosine", 0.9)),
    ],
}


@pytest.mark.parametrize("made", RED)
def test_every_measured_claim_of_the_chapter_can_be_turned_red(made):
    red.assert_every_claim_turns(made.measure, made.stored(), RED[made], PARTS[made])


def test_the_picture_shows_what_is_the_readers_own():
    curves, samples = np.array([[1.0, 2.0, 3.0], [1.0, 2.5, 3.0]]), ([0, 180], [1.0, 2.5])
    figure = own.picture({"mine": ({8: 0.1, 32: 0.01}, curves, samples)})
    drawn = {line.get_label(): line.get_ydata().tolist() for line in figure.axes[0].lines}
    assert drawn == {"mine": [1, 2, 3], "kernel regression": [1, 2.5, 3], "samples": [1, 2.5]}


# The program that the page shows


@pytest.fixture(scope="module")
def page(program, cells):
    """With what its other cells define, without what they run."""
    for name, end in (("own", "\nyours ="), ("wave", "\nyours ="), ("one_direction", "\nnew, rows")):
        exec(next(cell for cell in cells if f"def {name}(" in cell).split(end)[0], program)
    return program


def test_the_program_of_the_page_is_the_experiment(page):
    """The same network, kernel regression and steps as the library's, from the same weights; the same labels."""
    x, y, new = (one.double() for one in page["data"](3))
    outputs, regression, _ = page["train"](8, steps=20, seed=3)
    first = page["train"](8, steps=0, seed=3)[2]
    g = torch.Generator().manual_seed(3)
    torch.randn(2, 4, generator=g)
    signs = torch.randint(2, (4,), generator=g).double() * 2 - 1
    start = Networks("softmax", first[None], torch.cat([signs, -signs])[None, None])
    found, both = own.beside(start, x[None], y[None, None], new.numpy()[None], [20])
    np.testing.assert_allclose(torch.stack([outputs, regression]), both[:, 0], atol=1e-10)
    assert page["gap"](outputs, regression, None) == pytest.approx(found["gap_at"][1][0, 0])
    np.testing.assert_allclose(own.on_a_circle.stored().labels.sel(seed=3), y, atol=1e-6)


@pytest.mark.slow
def test_what_the_page_says_of_changes_holds(page):
    def over(**options):
        gaps = page["own"](**options)[0]
        return gaps[16] / gaps[256]

    slope, bare = lambda f, y: torch.tanh(f - y), lambda z: z.softmax(1)
    for change in ({"activation": torch.tanh}, {"slope": slope}, {"make": page["wave"], "slope": slope}):
        assert over(**change) > 60
    assert 0.3 < over(activation=bare) < 3
    assert over(activation=torch.nn.functional.gelu) > 60


def test_what_the_page_says_of_its_numbers_holds():
    """Powers from -1.6 to -2.1, a bound that is thousands of gaps, errors at 50, 200 and 400 samples."""
    runs, error = own.coupling.stored(), own.feature_learning.stored().error.median("seed")
    powers = lab.slope(runs.gap.median("seed"), "width").sel(network=["softmax", "exp"])
    assert (round(float(powers.max()), 1), round(float(powers.min()), 1)) == (-1.6, -2.1)
    assert float((runs.form / runs.gap).sel(width=1024).median(["seed", "outputs"]).min()) > 2000
    step, square = error.sel(target="step"), error.sel(target="square", n=400)
    assert step.sel(n=50, learner="mean field") > step.sel(n=50, learner="kernel")
    for n in (100, 200, 400):
        assert step.sel(n=n, learner="mean field") < step.sel(n=n, learner="kernel")
    assert square.sel(learner="kernel") < square.sel(learner="lazy") < square.sel(learner="mean field")
    gaps = abs(own.on_a_circle.stored().curves.diff("model")).max("point")
    assert 14 < float((gaps.sel(size=4) / gaps.sel(size=1)).median()) < 18
    assert gaps.sel(seed=0, size=128) > 0.3


def test_weights_as_small_as_the_networks_do_not_help_kernel_regression_with_the_square(monkeypatch):
    x, index, noise = draw_single_index(400, 16, seed=0)
    new = draw_single_index(400, 16, seed=0, purpose="test")[0]
    labels, truth = (TARGETS["square"](4 * part @ index) for part in (x, new))
    labels += own.NOISE * noise
    monkeypatch.setattr(own, "SCALES", (1.0,))
    error = own.machine(x[:320], labels[:320], np.concatenate([x[320:], new]), labels[320:], truth)["error"]
    assert 0.07 < error < 0.15
    assert 1 / beta.sf(3 / 16, 1 / 2, 15 / 2) == pytest.approx(12, abs=0.5)  # squares above 1: one in twelve


@pytest.mark.slow
def test_labels_within_reach_make_the_feature_of_use_for_a_square(page, monkeypatch):
    def square(x):
        return ((4 * x[:, 0]) ** 2 - 1) / 2

    monkeypatch.setitem(page, "step", square)
    for size, seed in itertools.product((16, 32), range(5)):
        new = page["one_direction"](seed)[2].double()
        *curves, _ = page["train"](size=size, steps=100, seed=seed, make=page["one_direction"])
        network, machine = (((curve - square(new)) ** 2).mean() for curve in curves)
        assert network < 0.67 * machine


@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [
        ("SN-10", lambda kernel, y, cross, time: cross @ np.linalg.solve(kernel, y), "end of the flow"),
        ("SN-19", lambda eta, y, s: (eta / s, s * y), "one factor"),
    ],
)
def test_checks_name_a_mistake(name, wrong, said):
    assert said in repr(attnbook.check(name, wrong))
