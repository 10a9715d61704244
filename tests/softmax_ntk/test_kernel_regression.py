"""Kernel machines against the plain way, linearised networks, bounds, one direction; the chapter and its program."""

import json
import math
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import red
import torch
from sklearn.kernel_ridge import KernelRidge

import attnbook
from attnbook import lab, ledger
from attnbook.softmax_ntk.descent import gradient_descent
from attnbook.softmax_ntk.linearised import change_of_weights, coupling_bound, outputs_and_change
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


def regression(kernel, labels, cross):
    """Definition F.1."""
    return cross @ torch.linalg.solve(kernel, labels)


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
    limit, rate = regression(KERNEL, LABELS, CROSS), 1 / float(torch.linalg.eigvalsh(KERNEL)[-1])
    for step_size in (None, rate):
        found = kernel_gradient_flow(KERNEL, LABELS, step_size, [100_000], cross=CROSS)[0]
        torch.testing.assert_close(found, limit, rtol=1e-9, atol=1e-9)
    ridge = KernelRidge(alpha=1e-13, kernel="precomputed").fit(KERNEL.numpy(), LABELS.numpy())
    np.testing.assert_allclose(limit, ridge.predict(CROSS.numpy()), rtol=1e-8)


def test_a_diverging_step_size_is_refused_and_says_which():
    kernel = torch.stack([torch.eye(3), 5 * torch.eye(3)]).double()
    kernel_gradient_flow(kernel, torch.ones(2, 3).double(), 0.4, [7])  # the limit itself
    with pytest.raises(ValueError, match=r"scaled_step_size: 0.5 diverges.*member 1.*0.4"):
        kernel_gradient_flow(kernel, torch.ones(2, 3).double(), 0.5, [7])


FITS = {"kernel": positive(3), "labels": double(3), "scaled_step_size": 0.1, "steps": [1, 2, 3]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": double(3, 3)}, r"labels: expected shape \(3,\), .*, got \(3, 3\)"),
        ({"kernel": torch.triu(torch.ones(3, 3)).double()}, "kernel: expected a symmetric matrix"),
        ({"kernel": torch.diag(torch.tensor([1.0, 2.0, -1.0])).double()}, "semi-definite .* the eigenvalue -1$"),
        ({"cross": double(3, 2, 3)}, "cross: expected shape"),
        ({"scaled_step_size": 0.1 * torch.ones(3)}, r"scaled_step_size: expected one number .* \(\), got \(3,\)"),
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


@pytest.mark.parametrize("activation", ["softmax", "exp", "relu"])
def test_linearised_network_is_the_derivative_by_automatic_differentiation(activation):
    nets, x, coefficients = networks(activation), double(2, 5, 7), double(2, 3, 5, seed=1)
    change = double(*nets.first_layer.shape, seed=2)
    both, back = outputs_and_change(nets, x, change), change_of_weights(nets, x, coefficients)
    for k in range(2):

        def outputs(first_layer, k=k):
            z = x[k] @ first_layer
            neurons = {"softmax": 22 * torch.softmax(z, 1), "exp": z.exp(), "relu": z.relu()}[activation]
            return nets.signs[k] @ neurons.T

        jacobian = torch.func.jacrev(outputs)(nets.first_layer[k])
        torch.testing.assert_close(both[0][k], outputs(nets.first_layer[k]), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(both[1][k], (jacobian * change[k]).sum((2, 3)), rtol=1e-10, atol=1e-10)
        backward = (jacobian * coefficients[k, :, :, None, None]).sum((0, 1))
        torch.testing.assert_close(back[k], backward / 22, rtol=1e-10, atol=1e-10)


def test_explicit_steps_of_the_linearised_network_are_the_closed_form():
    """Definition F.1: forty steps in weight space, one decomposition."""
    start, x, points, goal = networks("softmax"), double(2, 5, 7), double(2, 3, 7, seed=3), double(2, 3, 5, seed=4)
    kernel, change = ntk_gram(start, x), torch.zeros_like(start.first_layer)
    eta = 1 / torch.linalg.eigvalsh(kernel)[:, -1]
    closed = kernel_gradient_flow(kernel, goal.flatten(1), eta, [40], cross=ntk_gram(start, points, x))[0]
    for _ in range(40):
        residual = outputs_and_change(start, x, change)[1] - goal
        change -= eta[:, None, None] * change_of_weights(start, x, residual)
    found = outputs_and_change(start, points, change)[1].flatten(1)
    torch.testing.assert_close(found, closed, rtol=1e-10, atol=1e-12)


def test_bad_shapes_of_the_linearised_network_are_refused_by_name():
    nets, x = networks("exp"), double(2, 5, 7)
    with pytest.raises(ValueError, match="coefficients"):
        change_of_weights(nets, x, double(2, 4, 5))
    with pytest.raises(ValueError, match="change"):
        outputs_and_change(nets, x, double(2, 7, 21))


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


def test_bounds_known_by_hand():
    assert coupling_bound(2.0, 3.0, 0.1, 5.0, 0.2) == pytest.approx(2 * 0.2 * 3 / 2 + 4 * 5 * 0.1 * 3 / 4)
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
    "SN-F2-ladder": scaled("directed_over_gap", 0.5),
}
PARTS = [
    ("SN-F2", lambda d: d.assign(gap=d.gap**0.5)),
    ("SN-F2-ladder", scaled("directed_over_gap", 8)),
    ("SN-F2-ladder", scaled("summed_over_gap", 0.1)),
    ("SN-F2-ladder", scaled("bound_over_gap", 0.01)),
    ("SN-F2-ladder", scaled("smallest_bound_over_gap", 1e-3)),
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


def test_the_picture_shows_what_is_the_readers_own(stored):
    figure = own.picture(stored["on_a_circle"], 16, {"mine": {8: 0.1, 32: 0.01}})
    assert "yours: mine" in [text.get_text() for text in figure.axes[1].get_legend().get_texts()]
    plt.close(figure)


# The program that the page shows


@pytest.fixture(scope="module")
def program():
    cells = json.loads(CHAPTER.with_suffix(".ipynb").read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    names = {"source": next(source for source in sources if "def train(" in source)}
    exec(names["source"], names)
    return names


def test_the_program_of_the_page_is_the_experiment(program):
    """The same network, kernel machine and steps as the library's, from the same weights."""
    lines = [line for line in program["source"].splitlines() if line.strip()]
    assert len(lines) <= 45
    assert "attnbook" not in program["source"]
    x, y, new = (one.double() for one in program["data"](3))
    outputs, machine, _ = program["train"](8, steps=20, seed=3)
    first = program["train"](8, steps=0, seed=3)[2]
    g = torch.Generator().manual_seed(3)
    torch.randn(2, 4, generator=g)
    signs = torch.randint(2, (4,), generator=g).double() * 2 - 1
    start = Networks("softmax", first[None], torch.cat([signs, -signs])[None, None])
    found, both = own.beside(start, x[None], y[None, None], new.numpy()[None], [20])
    np.testing.assert_allclose(torch.stack([outputs, machine]), both[:, 0], atol=1e-10)
    assert program["gap"](8, steps=20, seed=3) == pytest.approx(found["gap_at"][1][0, 0])


@pytest.mark.slow
def test_what_the_page_says_of_changes_holds(program):
    gap, narrow, wide = program["gap"], 32, 512
    for smooth in (torch.tanh, torch.nn.functional.gelu):
        assert gap(narrow, smooth) / gap(wide, smooth) > 40
    assert 0.3 < gap(narrow, lambda z: z.softmax(1)) / gap(wide, lambda z: z.softmax(1)) < 3
    assert 0.3 < gap(narrow, size=narrow) / gap(wide, size=wide) < 3
    assert gap(narrow, steps=3) < 1e-3


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
