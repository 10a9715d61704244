"""Kernel machines against the plain way, linearised networks, bounds, one direction; the chapter and its program."""

import json
import math
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import red
import torch
from scipy.stats import beta
from sklearn.kernel_ridge import KernelRidge

import attnbook
from attnbook import lab, ledger
from attnbook.softmax_ntk.descent import gradient_descent
from attnbook.softmax_ntk.ntk import kernel_gradient_flow, ntk_gram
from attnbook.softmax_ntk.single_index import TARGETS, draw_single_index, index_learned
from attnbook.softmax_ntk.two_layer import Networks, Weights, draw_weights, predict

CHAPTER = Path(__file__).parents[2] / "chapters" / "softmax_ntk" / "kernel_regression.py"
own = lab.load_script(CHAPTER)


def double(*shape, seed=0):
    return torch.tensor(np.random.default_rng(seed).standard_normal(shape))


def positive(size):
    root = double(size, size)
    return root @ root.mT / size + 0.1 * torch.eye(size)


def networks(activation, *, members=2, outputs=3):
    rng = np.random.default_rng(5)
    weights = [draw_weights(22, 7, outputs, rng=rng, start="independent") for _ in range(members)]
    return Networks.stack(activation, weights)


KERNEL, LABELS, CROSS = positive(5), double(5, seed=1), double(3, 5, seed=2)


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


def test_steps_and_flow_end_in_kernel_regression_which_is_ridge_regression_without_a_ridge():
    limit, rate = CROSS @ torch.linalg.solve(KERNEL, LABELS), 1 / float(torch.linalg.eigvalsh(KERNEL)[-1])
    for step_size in (None, rate):
        found = kernel_gradient_flow(KERNEL, LABELS, step_size, [100_000], cross=CROSS)[0]
        torch.testing.assert_close(found, limit, rtol=1e-9, atol=1e-9)
    ridge = KernelRidge(alpha=1e-13, kernel="precomputed").fit(KERNEL.numpy(), LABELS.numpy())
    np.testing.assert_allclose(limit, ridge.predict(CROSS.numpy()), rtol=1e-8)


def test_a_diverging_step_size_is_refused_and_says_which():
    kernel = torch.stack([torch.eye(3), 5 * torch.eye(3)]).double()
    kernel_gradient_flow(kernel, torch.ones(2, 3).double(), 0.4, [7])  # the limit itself
    with pytest.raises(ValueError, match=r"scaled_step_size: .*at most 2 over .*2.0, 0.4.*diverge; or None, got 0.5"):
        kernel_gradient_flow(kernel, torch.ones(2, 3).double(), 0.5, [7])


FITS = {"kernel": positive(3), "labels": double(3), "scaled_step_size": 0.1, "steps": [1, 2, 3]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": double(3, 3)}, r"labels: expected shape \(3,\), .*, got \(3, 3\)"),
        ({"kernel": torch.triu(torch.ones(3, 3)).double()}, "kernel: expected a symmetric matrix"),
        ({"kernel": torch.diag(torch.tensor([1.0, 2.0, -1.0])).double()}, "semi-definite .* the eigenvalue -1$"),
        ({"cross": double(3, 2, 3)}, "cross: expected rows of shape"),
        (
            {"scaled_step_size": 0.1 * torch.ones(3)},
            r"scaled_step_size: expected one positive number or shape \(\), .* got tensor",
        ),
        ({"steps": [0.5]}, r"steps.*None"),
    ],
)
def test_what_a_kernel_cannot_learn_from_is_refused_by_name(change, message):
    """By the function itself, as readers meet it: no annotation is checked."""
    plain = kernel_gradient_flow
    while hasattr(plain, "__wrapped__"):
        plain = plain.__wrapped__
    plain(**FITS)
    with pytest.raises(ValueError, match=message):
        plain(**FITS | change)


def jacobian(nets, k, x):
    """Of the outputs of one softmax network in its weights, by automatic differentiation: one row for each output."""

    def outputs(first_layer):
        return nets.signs[k] @ (22 * torch.softmax(x @ first_layer, 1)).T

    return torch.func.jacrev(outputs)(nets.first_layer[k]).flatten(2).flatten(0, 1)


def test_explicit_steps_of_the_linearised_network_are_the_closed_form():
    """Definition F.1: forty steps in weight space, one decomposition."""
    start, x, points, goal = networks("softmax"), double(2, 5, 7), double(2, 3, 7, seed=3), double(2, 15, seed=4)
    kernel = ntk_gram(start, x)
    eta = 1 / torch.linalg.eigvalsh(kernel)[:, -1]
    closed = kernel_gradient_flow(kernel, goal, eta, [40], cross=ntk_gram(start, points, x))[0]
    for k in range(2):
        rows, change = jacobian(start, k, x[k]), torch.zeros(7 * 22).double()
        for _ in range(40):
            change -= eta[k] / 22 * rows.T @ (rows @ change - goal[k])
        torch.testing.assert_close(jacobian(start, k, points[k]) @ change, closed[k], rtol=1e-10, atol=1e-12)


def coupling_bound(smallest, label_norm, drift, cross_norm, moved):
    """The bound without a logarithm, in the box of the theorem."""
    return label_norm * (2 * moved / smallest + 4 * cross_norm * drift / smallest**2)


def test_bound_holds_for_two_gradient_flows_whose_kernels_are_known():
    """A machine beside one whose kernel jumps at the start and stays: both in closed form."""
    smallest = torch.linalg.eigvalsh(KERNEL)[0]
    drift, moved = double(5, 5, seed=3), double(3, 5, seed=4)
    drift = 0.5 * smallest * (drift + drift.T) / (drift + drift.T).norm()
    times = [0.1, 1.0, 10.0, 100.0]
    still = kernel_gradient_flow(KERNEL, LABELS, None, times, cross=CROSS)
    for size in (1.0, 0.1, 0.01):
        other = kernel_gradient_flow(KERNEL + size * drift, LABELS, None, times, cross=CROSS + size * moved)
        norms = LABELS.norm(), size * drift.norm(), CROSS.norm(dim=1), size * moved.norm(dim=1)
        assert ((other - still).abs() <= coupling_bound(smallest, *norms)).all()


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
    start, x, y, s = networks("softmax", members=1, outputs=1), double(1, 5, 7), double(1, 1, 5, seed=1), 4.0
    weights = start.first_layer.clone().requires_grad_()
    outputs = 22 * torch.softmax(x @ weights, dim=2) @ start.signs.mT / s
    ((outputs.mT - y).square().sum() / 2).backward()
    stepped = gradient_descent(
        start, x, s * y, torch.full((1,), 0.3 / s**2, dtype=torch.float64), max_steps=1
    ).networks.first_layer
    torch.testing.assert_close(stepped, weights.detach() - 0.3 * weights.grad, rtol=1e-9, atol=1e-9)


def test_the_best_is_chosen_by_held_out_samples_alone():
    outputs = np.array([[0.0, 3.0, 5.0], [1.0, 9.0, 5.0], [4.0, 3.0, 5.0]])  # one held out, two to test on; cut at 6
    found = own.best(outputs, np.array([0.0, 6.0]), np.array([1.2]), np.array([3.0, 5.0]), name=np.arange(3))
    assert found == {"name": 1, "error": 3**2 / 2}


@pytest.fixture(scope="module")
def stored():
    names = ("coupling", "feature_learning", "on_a_circle")
    return {name: getattr(own, name).stored() for name in names}


def scaled(name, factor, **where):
    """Multiply some entries of an array."""

    def change(d):
        return d.assign({name: d[name] * (1 + (factor - 1) * math.prod(d[k] == v for k, v in where.items()))})

    return change


RED = {
    "SN-CURVE": scaled("difference", 10),
    "SN-F2": scaled("form", 1e-3),
    "SN-F2-every": lambda d: d.assign(gap_at=d.gap_at**0.5),
    "SN-F2-steps": scaled("flow", 0.3, network="exp"),
}
PARTS = [
    ("SN-F2", lambda d: d.assign(gap=d.gap**0.5)),
]
FEATURES = [
    scaled("error", 10, learner="mean field", target="step"),
    scaled("error", 0.2, learner="mean field", target="square"),
    scaled("error", 0.1, learner="lazy", target="step"),
    scaled("aligned", 0.5),
    scaled("aligned", 3),
    scaled("signed", 0.5),
    scaled("cosine", 0.9),
]


def test_every_measured_claim_of_the_chapter_can_be_turned_red(stored):
    red.assert_every_claim_turns(own.coupling.measure, stored["coupling"], RED, PARTS)
    others = [("SN-H2", change) for change in FEATURES]
    red.assert_every_claim_turns(own.feature_learning.measure, stored["feature_learning"], dict(others), others)
    mine = {c.id for c in ledger.claims() if c.chapter == "softmax_ntk/kernel_regression"}
    assert mine == {*RED, "SN-H2", "SN-F1"}


def test_the_picture_shows_what_is_the_readers_own():
    curves, samples = np.array([[1.0, 2.0, 3.0], [1.0, 2.5, 3.0]]), ([0, 180], [1.0, 2.5])
    figure = own.picture({"mine": ({8: 0.1, 32: 0.01}, curves, samples)})
    assert "yours: mine" in [text.get_text() for text in figure.axes[1].get_legend().get_texts()]
    drawn = {line.get_label(): line.get_ydata().tolist() for line in figure.axes[0].lines}
    assert drawn == {"mine": [1, 2, 3], "kernel regression": [1, 2.5, 3], "samples": [1, 2.5]}
    plt.close(figure)


# The program that the page shows


@pytest.fixture(scope="module")
def program():
    cells = json.loads(CHAPTER.with_suffix(".ipynb").read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    names = {"source": next(source for source in sources if "def train(" in source)}
    exec(names["source"], names)
    for name in ("def own(", "def wave("):
        exec(next(source for source in sources if name in source).split("\nyours =")[0], names)
    return names


def test_the_program_of_the_page_is_the_experiment(program):
    """The same network, kernel regression and steps as the library's, from the same weights; the same labels."""
    lines = [line for line in program["source"].splitlines() if line.strip()]
    assert len(lines) <= 45
    assert "attnbook" not in program["source"]
    x, y, new = (one.double() for one in program["data"](3))
    outputs, regression, _ = program["train"](8, steps=20, seed=3)
    first = program["train"](8, steps=0, seed=3)[2]
    g = torch.Generator().manual_seed(3)
    torch.randn(2, 4, generator=g)
    signs = torch.randint(2, (4,), generator=g).double() * 2 - 1
    start = Networks("softmax", first[None], torch.cat([signs, -signs])[None, None])
    found, both = own.beside(start, x[None], y[None, None], new.numpy()[None], [20])
    np.testing.assert_allclose(torch.stack([outputs, regression]), both[:, 0], atol=1e-10)
    assert program["gap"](outputs, regression, None) == pytest.approx(found["gap_at"][1][0, 0])
    np.testing.assert_allclose(own.on_a_circle.stored().labels.sel(seed=3), y, atol=1e-6)


@pytest.mark.slow
def test_what_the_page_says_of_changes_holds(program):
    def over(**options):
        gaps = program["own"](**options)[0]
        return gaps[16] / gaps[256]

    slope, bare = lambda f, y: torch.tanh(f - y), lambda z: z.softmax(1)
    for change in ({"activation": torch.tanh}, {"slope": slope}, {"make": program["wave"], "slope": slope}):
        assert over(**change) > 60
    assert 0.3 < over(activation=bare) < 3
    assert over(activation=torch.nn.functional.gelu) > 60


def test_what_the_page_says_of_its_numbers_holds(stored):
    """Powers from -1.6 to -2.1, a bound that is thousands of gaps, errors at 50, 200 and 400 samples."""
    runs, error = stored["coupling"], stored["feature_learning"].error.median("seed")
    powers = lab.slope(runs.gap.median("seed"), "width").sel(network=["softmax", "exp"])
    assert (round(float(powers.max()), 1), round(float(powers.min()), 1)) == (-1.6, -2.1)
    assert float((runs.form / runs.gap).sel(width=1024).median(["seed", "outputs"]).min()) > 2000
    step, square = error.sel(target="step"), error.sel(target="square", n=400)
    assert step.sel(n=50, learner="mean field") > step.sel(n=50, learner="kernel")
    for n in (100, 200, 400):
        assert step.sel(n=n, learner="mean field") < step.sel(n=n, learner="kernel")
    assert square.sel(learner="kernel") < square.sel(learner="lazy") < square.sel(learner="mean field")
    gaps = abs(stored["on_a_circle"].curves.diff("model")).max("point")
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
def test_labels_within_reach_make_the_feature_of_use_for_a_square(program):
    cells = json.loads(CHAPTER.with_suffix(".ipynb").read_text(encoding="utf-8"))["cells"]
    source = next(text for text in ("".join(cell["source"]) for cell in cells) if "def one_direction(" in text)
    exec(source.split("\nnew, rows")[0], program)
    program["step"] = square = lambda x: ((4 * x[:, 0]) ** 2 - 1) / 2
    new = program["one_direction"](0)[2].double()
    for size in (16, 32):
        *curves, _ = program["train"](size=size, steps=100, make=program["one_direction"])
        network, machine = (((curve - square(new)) ** 2).mean() for curve in curves)
        assert network < 0.67 * machine


def flow(kernel, labels, cross, time, double=1):
    mu, q = np.linalg.eigh(kernel)
    return cross @ (q @ (-np.expm1(-mu * time * double) / mu * (q.T @ labels)))


@pytest.mark.parametrize(
    ("name", "right", "wrong", "said"),
    [
        ("SN-10", flow, lambda k, y, c, t: c @ np.linalg.solve(k, y), "end of the flow"),
        ("SN-10", flow, lambda *a: flow(*a, double=2), "factor 2"),
        ("SN-19", lambda eta, y, s: (eta / s**2, s * y), lambda eta, y, s: (eta / s, s * y), "one factor"),
    ],
)
def test_checks_accept_the_right_answer_and_name_a_mistake(name, right, wrong, said):
    assert attnbook.check(name, right).right
    assert said in repr(attnbook.check(name, wrong))
