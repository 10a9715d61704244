"""Kernel machines against the plain way, linearised networks, bounds; rules that can fail, pictures, exercises."""

import math

import numpy as np
import pytest
import red
import torch
from sklearn.kernel_ridge import KernelRidge

import attnbook
from attnbook import ledger
from attnbook.softmax_ntk.conditioning import SingularKernelError
from attnbook.softmax_ntk.kernel_regression import coupling, figures
from attnbook.softmax_ntk.kernel_regression.experiments import KernelRegression
from attnbook.softmax_ntk.linearised import change_of_weights, outputs_and_change
from attnbook.softmax_ntk.ntk import kernel_coefficients, kernel_gradient_flow, ntk_gram
from attnbook.softmax_ntk.regression_bounds import coupling_bound, coupling_bound_of_theorem
from attnbook.softmax_ntk.training import Problem, train
from attnbook.softmax_ntk.two_layer import Networks, draw_weights, predict

ACTIVATIONS = ("softmax", "exp", "relu")


def double(*shape, seed=0):
    return torch.tensor(np.random.default_rng(seed).standard_normal(shape))


def positive(size, *, members=()):
    root = double(*members, size, size)
    return root @ root.mT / size + 0.1 * torch.eye(size)


def regression(kernel, labels, cross):
    """Definition F.1."""
    return (cross @ kernel_coefficients(kernel, labels).unsqueeze(-1)).squeeze(-1)


def networks(activation, *, start="independent", members=2):
    rng = np.random.default_rng(5)
    return Networks.stack(activation, [draw_weights(22, 7, 3, rng=rng, start=start) for _ in range(members)])


def test_flow_is_the_matrix_exponential():
    kernel, labels, cross = positive(5), double(5, seed=1), double(3, 5, seed=2)
    found = kernel_gradient_flow(kernel, labels, None, [0.0, 0.7, 11.0], cross=cross)
    for predictions, time in zip(found, (0.0, 0.7, 11.0), strict=True):
        left = torch.linalg.matrix_exp(-time * kernel)
        right = cross @ torch.linalg.solve(kernel, (torch.eye(5) - left) @ labels)
        torch.testing.assert_close(predictions, right, rtol=1e-10, atol=1e-10)


def test_flow_is_the_limit_of_ever_smaller_steps():
    kernel, labels = positive(5), double(5, seed=1)
    flow = kernel_gradient_flow(kernel, labels, None, [2.0])
    errors = [
        (kernel_gradient_flow(kernel, labels, 2.0 / steps, [steps]) - flow).abs().max() for steps in (100, 1000, 10000)
    ]
    assert errors[1] / errors[0] == pytest.approx(0.1, rel=0.05)
    assert errors[2] / errors[1] == pytest.approx(0.1, rel=0.05)


def test_flow_of_a_singular_kernel_learns_linearly_in_time_where_the_kernel_is_blind():
    kernel, labels = torch.diag(torch.tensor([1.0, 0.0])).double(), torch.ones(2).double()
    cross = torch.eye(2).double()
    found = kernel_gradient_flow(kernel, labels, None, [3.0], cross=cross)[0]
    torch.testing.assert_close(found, torch.tensor([1 - math.exp(-3), 3.0]).double())


def test_steps_and_flow_end_in_kernel_regression():
    kernel, labels, cross = positive(5, members=(2,)), double(2, 5, seed=1), double(2, 3, 5, seed=2)
    limit = regression(kernel, labels, cross)
    rate = 1 / torch.linalg.eigvalsh(kernel)[:, -1]
    for step_size, times in ((None, [1e5]), (rate, [100000])):
        found = kernel_gradient_flow(kernel, labels, step_size, times, cross=cross)[0]
        torch.testing.assert_close(found, limit, rtol=1e-9, atol=1e-9)


def test_kernel_regression_is_ridge_regression_without_a_ridge():
    kernel, labels, cross = positive(7), double(7, seed=1), double(3, 7, seed=2)
    ridge = KernelRidge(alpha=1e-13, kernel="precomputed").fit(kernel.numpy(), labels.numpy())
    found = regression(kernel, labels, cross)
    np.testing.assert_allclose(found, ridge.predict(cross.numpy()), rtol=1e-8)


def test_kernel_regression_fits_the_samples():
    kernel, labels = positive(7), double(7, seed=1)
    torch.testing.assert_close(regression(kernel, labels, kernel), labels, rtol=1e-9, atol=1e-9)


def test_all_times_at_once_equal_one_time_each():
    kernel, labels, cross = positive(5, members=(2,)), double(2, 5, seed=1), double(2, 3, 5, seed=2)
    every = kernel_gradient_flow(kernel, labels, 0.1, [0, 3, 17], cross=cross)
    for k, steps in enumerate((0, 3, 17)):
        one = kernel_gradient_flow(kernel, labels, 0.1, [steps], cross=cross)[0]
        torch.testing.assert_close(every[k], one, rtol=1e-12, atol=1e-12)


def test_a_diverging_step_size_is_refused_and_says_which():
    kernel = torch.stack([torch.eye(3), 5 * torch.eye(3)]).double()
    kernel_gradient_flow(kernel, torch.ones(2, 3).double(), 0.4, [7])  # the limit itself
    with pytest.raises(ValueError, match=r"scaled_step_size: 0.5 diverges.*member 1.*0.4"):
        kernel_gradient_flow(kernel, torch.ones(2, 3).double(), 0.5, [7])


def test_half_a_step_is_refused_and_half_a_unit_of_time_is_not():
    kernel, labels = torch.eye(2).double(), torch.ones(2).double()
    with pytest.raises(ValueError, match=r"steps.*None"):
        kernel_gradient_flow(kernel, labels, 0.5, [0.5])
    assert kernel_gradient_flow(kernel, labels, None, [0.5])[0, 0] == pytest.approx(1 - math.exp(-0.5))
    for times in ([math.nan], [math.inf], [-1.0]):
        with pytest.raises(ValueError, match="steps"):
            kernel_gradient_flow(kernel, labels, None, times)


FITS = {"kernel": positive(3), "labels": double(3), "scaled_step_size": 0.1, "steps": [1, 2, 3]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": double(3, 3)}, r"labels: expected shape \(3,\), .*, got \(3, 3\)"),
        ({"labels": double(1)}, "labels: expected shape"),
        ({"kernel": double(3)}, "kernel: expected a square"),
        ({"kernel": double(2, 3)}, "kernel: expected a square"),
        ({"kernel": torch.triu(torch.ones(3, 3)).double()}, "kernel: expected a symmetric matrix"),
        ({"kernel": torch.diag(torch.tensor([1.0, 2.0, -1.0])).double()}, "semi-definite .* the eigenvalue -1$"),
        ({"kernel": positive(3).float().log()}, "kernel"),
        ({"cross": double(2, 4)}, "cross: expected shape"),
        ({"cross": double(1)}, "cross: expected shape"),
        ({"cross": double(3, 2, 3)}, "cross: expected shape"),
        ({"scaled_step_size": 0.1 * torch.ones(3)}, r"scaled_step_size: expected one number .* \(\), got \(3,\)"),
        ({"scaled_step_size": -0.1}, "scaled_step_size"),
        ({"scaled_step_size": math.nan}, "scaled_step_size"),
        ({"steps": [[1, 2, 3]]}, "steps"),
        ({"steps": 3}, "steps"),
    ],
)
def test_what_a_kernel_cannot_learn_from_is_refused_by_name(change, message):
    """By the function itself, as readers meet it: no annotation is checked. The first: label i goes with no time i."""
    plain = kernel_gradient_flow
    while hasattr(plain, "__wrapped__"):
        plain = plain.__wrapped__
    plain(**FITS)
    with pytest.raises(ValueError, match=message):
        plain(**FITS | change)


def test_rounding_makes_no_kernel_indefinite_or_uneven():
    """A blind direction whose eigenvalue is a rounding error below zero, entries that differ in their last digits."""
    kernel = torch.ones(40, 40).double() + 1e-13 * double(40, 40)
    found = kernel_gradient_flow(kernel, torch.ones(40).double(), None, [1.0])
    torch.testing.assert_close(found, torch.full((1, 40), 1 - math.exp(-40)).double(), rtol=1e-9, atol=0)


def test_an_indefinite_kernel_is_not_called_singular():
    kernel = torch.diag(torch.tensor([1.0, -0.5])).double()
    with pytest.raises(ValueError, match="positive semi-definite"):
        kernel_coefficients(kernel, torch.ones(2).double())


def test_a_singular_kernel_names_its_rank_and_the_width_that_mends_it():
    nets = Networks.stack("softmax", [draw_weights(4, 3, 1, rng=np.random.default_rng(0))])
    kernel = ntk_gram(nets, double(1, 11, 3))
    with pytest.raises(SingularKernelError, match=r"rank 6 of 11.*= 8") as caught:
        kernel_coefficients(kernel, double(1, 11), n_inputs=3)
    assert (caught.value.rank, caught.value.size, caught.value.width) == (6, 11, 8)
    with pytest.raises(SingularKernelError, match="pass n_inputs"):
        kernel_coefficients(kernel, double(1, 11))
    with pytest.raises(ValueError, match="kernel"):
        kernel_coefficients(torch.full((2, 2), math.nan), torch.ones(2))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_linearised_network_is_the_derivative_by_automatic_differentiation(activation):
    nets, x, coefficients = networks(activation), double(2, 5, 7), double(2, 3, 5, seed=1)
    change = double(*nets.first_layer.shape, seed=2)
    for k in range(2):

        def outputs(first_layer, k=k):
            z = x[k] @ first_layer
            neurons = {"softmax": 22 * torch.softmax(z, 1), "exp": z.exp(), "relu": z.relu()}[activation]
            return nets.signs[k] @ neurons.T

        value = outputs(nets.first_layer[k])
        jacobian = torch.func.jacrev(outputs)(nets.first_layer[k])
        forward = (jacobian * change[k]).sum((2, 3))
        backward = (jacobian * coefficients[k, :, :, None, None]).sum((0, 1))
        both = outputs_and_change(nets, x, change)
        torch.testing.assert_close(both[0][k], value, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(both[1][k], forward, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(change_of_weights(nets, x, coefficients)[k], backward / 22, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_kernel_regression_in_weight_space_needs_no_kernel_to_predict(activation):
    nets, x, new = networks(activation, members=1), double(1, 5, 7), double(1, 2, 7, seed=3)
    kernel, cross = ntk_gram(nets, x), ntk_gram(nets, new, x)
    labels = double(1, 15, seed=4)
    coefficients = kernel_coefficients(kernel, labels)
    change = change_of_weights(nets, x, coefficients.unflatten(1, (3, 5)))
    found = outputs_and_change(nets, new, change)[1].flatten(1)
    torch.testing.assert_close(found, regression(kernel, labels, cross), rtol=1e-9, atol=1e-9)


def test_one_common_change_of_all_softmax_neurons_changes_nothing():
    nets, x = networks("softmax"), double(2, 5, 7)
    common = double(2, 7, 1, seed=1).expand(2, 7, 22)
    assert outputs_and_change(nets, x, common)[1].abs().max() < 1e-12


def test_bad_shapes_of_the_linearised_network_are_refused_by_name():
    nets, x = networks("exp"), double(2, 5, 7)
    with pytest.raises(ValueError, match="coefficients"):
        change_of_weights(nets, x, double(2, 4, 5))
    with pytest.raises(ValueError, match="change"):
        outputs_and_change(nets, x, double(2, 7, 21))
    with pytest.raises(ValueError, match="inputs"):
        change_of_weights(nets, double(2, 5, 6), double(2, 3, 5))


def test_bound_holds_for_two_gradient_flows_whose_kernels_are_known():
    """A machine beside one whose kernel jumps at the start and stays: both in closed form."""
    kernel, labels, cross = positive(5), double(5, seed=1), double(3, 5, seed=2)
    smallest = float(torch.linalg.eigvalsh(kernel)[0])
    drift, point_drift = double(5, 5, seed=3), double(3, 5, seed=4)
    drift = 0.5 * smallest * (drift + drift.T) / (drift + drift.T).norm()
    times = [0.1, 1.0, 10.0, 100.0]
    still = kernel_gradient_flow(kernel, labels, None, times, cross=cross)
    for size in (1.0, 0.1, 0.01):
        moved = kernel_gradient_flow(
            kernel + size * drift, labels, None, times, cross=cross + size * 0.1 * point_drift
        )  # fmt: skip
        bound = coupling_bound(
            torch.tensor(smallest), label_norm=labels.norm(), cross_norm=cross.norm(dim=1),
            kernel_drift=size * drift.norm(), point_drift=size * 0.1 * point_drift.norm(dim=1),
        )  # fmt: skip
        assert ((moved - still).abs() <= bound).all()


def test_bounds_known_by_hand():
    values = {"label_norm": 3.0, "cross_norm": 5.0, "kernel_drift": 0.1, "point_drift": 0.2}
    tensors = {name: torch.tensor(value) for name, value in values.items()}
    assert float(coupling_bound(torch.tensor(2.0), **tensors)) == pytest.approx(2 * 0.2 * 3 / 2 + 4 * 5 * 0.1 * 3 / 4)
    sizes = {"n_samples": 4, "n_outputs": 1, "width": 10}
    eigenvalue, point = torch.tensor([2.0, 0.3]).double()
    found = coupling_bound_of_theorem(
        eigenvalue, **sizes, kernel_drift=torch.tensor([0.2, 0.05]).double(), point_drift=point
    )
    assert found[0] == pytest.approx(0.3)  # the logarithm is that of one
    assert found[1] == pytest.approx(0.3 + 2 / 4 * math.log(4) ** 2 * 0.05)


def flow(kernel, labels, cross, time):
    mu, q = np.linalg.eigh(kernel)
    return cross @ (q @ (-np.expm1(-mu * time) / mu * (q.T @ labels)))


def linearised(weights, signs, x, change, *, centre=1.0, factor=8):
    neurons = np.exp(x @ weights)
    neurons *= factor / neurons.sum(1, keepdims=True)
    moved = neurons * (x @ change)
    return moved @ signs - centre * (neurons @ signs) * moved.sum(1) / factor


@pytest.mark.parametrize(("exercise", "answer"), [("SN-10", flow), ("SN-11", linearised)])
def test_right_answers_pass(exercise, answer):
    assert attnbook.check(exercise, answer).right


@pytest.mark.parametrize(
    ("exercise", "answer", "words"),
    [
        ("SN-10", lambda k, y, c, t: c @ np.linalg.solve(k, y), "end of the flow"),
        ("SN-10", lambda k, y, c, t: flow(k, y, c, 2 * t), "factor 2"),
        ("SN-10", lambda k, y, c, t: -flow(k, y, c, t), "minus"),
        ("SN-10", lambda k, y, c, t: c @ np.linalg.solve(k, y) - flow(k, y, c, t), "missing"),
        ("SN-10", lambda k, y, c, t: y, "shape"),
        ("SN-11", lambda w, a, x, v: linearised(w, a, x, v, centre=0), "centring"),
        ("SN-11", lambda w, a, x, v: linearised(w, a, x, v) / 8, "factor m"),
        ("SN-11", lambda w, a, x, v: x, "shape"),
    ],
)
def test_wrong_answers_get_the_likely_mistake(exercise, answer, words):
    verdict = attnbook.check(exercise, answer)
    assert not verdict.right
    assert words in str(verdict)


def test_prediction_of_the_package_is_that_of_the_network():
    nets, x = networks("relu"), double(2, 5, 7)
    torch.testing.assert_close(outputs_and_change(nets, x, nets.first_layer)[0], predict(nets, x))


def test_explicit_steps_of_the_linearised_network_are_the_closed_form():
    """Definition F.1, for a network that does not start at zero: forty steps in weight space, one decomposition."""
    begun = train(Problem("softmax", 32, 5, 7, 2, start="independent"), (0, 1), device="cpu", max_steps=1)
    points, eta = double(2, 3, 7), begun.step_size * 32
    labels, cross = begun.labels - begun.first_outputs(), ntk_gram(begun.start, points, begun.inputs)
    closed = kernel_gradient_flow(begun.kernel, labels.flatten(1), eta, [40], cross=cross)[0]
    change = torch.zeros_like(begun.start.first_layer)
    for _ in range(40):
        residual = outputs_and_change(begun.start, begun.inputs, change)[1] - labels
        change -= eta[:, None, None] * change_of_weights(begun.start, begun.inputs, residual)
    torch.testing.assert_close(
        outputs_and_change(begun.start, points, change)[1].flatten(1), closed, rtol=1e-10, atol=1e-12
    )


def test_network_and_machine_start_together_and_stages_of_the_bound_are_ordered():
    begun = train(Problem("softmax", 64, 5, 7, start="independent"), (0, 1), device="cpu", max_steps=1)
    points = torch.stack([torch.from_numpy(coupling.unseen(3, 7, seed=s)) for s in (0, 1)])
    found = coupling.couple(begun, points, steps=30, record=(0, 5, 30))
    np.testing.assert_allclose(found["curve"][:, 0], 1)
    assert (found["directed_over_gap"] >= 1).all()
    assert (found["summed_over_gap"] > found["directed_over_gap"]).all()
    assert (found["bound_over_gap"] > found["summed_over_gap"]).all()
    same = coupling.learned(begun, begun.inputs[0], [0, 30])
    np.testing.assert_allclose(same[:, 0], 0, atol=1e-12)
    np.testing.assert_allclose(same[0, 1], same[1, 1], atol=0.2)


def test_divergence_names_step_member_and_step_size(monkeypatch):
    begun = train(Problem("exp", 16, 5, 7), (0, 1), device="cpu", max_steps=1)
    monkeypatch.setattr(coupling, "change_of_weights", lambda net, *a: torch.full_like(net.first_layer, math.nan))
    with pytest.raises(FloatingPointError, match=r"step 0, member 0, step size"):
        coupling.couple(begun, double(2, 3, 7), steps=3, record=(0,))


@pytest.fixture(scope="module")
def stored():
    return KernelRegression.load_stored("book")


def light(name, power):
    return lambda d: d.assign({name: d[name].where(d.scale == 1, d[name] ** power)})


RED = {
    "SN-CURVE": lambda d: d.assign(curve=d.curve.where(d.model == "machine", 1.05 * d.curve)),
    "SN-F2": lambda d: d.assign(form=d.form / 1000),
    "SN-F2-ladder": lambda d: d.assign(directed_over_gap=d.directed_over_gap / 2),
    "SN-F2-paired": lambda d: d.assign(gap=d.gap.copy(data=d.gap.values[:, :, ::-1])),
}
PARTS = [
    ("SN-F2", lambda d: d.assign(gap=np.sqrt(d.gap))),
    ("SN-F2-ladder", lambda d: d.assign(directed_over_gap=4 * d.directed_over_gap)),
    ("SN-F2-ladder", lambda d: d.assign(summed_over_gap=d.summed_over_gap / 10)),
    ("SN-F2-ladder", lambda d: d.assign(bound_over_gap=d.bound_over_gap / 100)),
    ("SN-F2-ladder", lambda d: d.assign(smallest_bound_over_gap=d.smallest_bound_over_gap / 1000)),
    ("SN-F2-paired", light("kernel_drift", 0.7)),
]  # other values of the same rules


def test_every_measured_claim_of_the_chapter_can_be_turned_red(stored):
    red.assert_every_claim_turns(KernelRegression().measurements, stored, RED, PARTS)


def test_every_claim_of_the_chapter_is_measured_or_says_why_not():
    mine = {c.id: c for c in ledger.claims() if c.chapter == "softmax_ntk/kernel_regression"}
    assert set(mine) - set(RED) == {"SN-F1"} == {i for i, c in mine.items() if c.checked}


@pytest.mark.parametrize(
    "change", [{"curve_width": 100}, {"shown_widths": (3,)}, {"record": (5, 3)}, {"times": (301,)}]
)
def test_settings_that_make_no_sense_are_refused_by_name(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        KernelRegression.at("book", **change)


def test_a_name_in_the_legend_has_one_colour_at_all_places_of_the_slider(stored):
    drawn = [figures.circle_frame(stored, 300, name, "pairs") for name in figures.LOOKS]
    lines = [line for figure in drawn for line in figure.axes[0].get_legend().get_lines()]
    assert len({line.get_label() for line in lines}) == len({line.get_color() for line in lines}) == len(drawn) + 1


def test_pictures_and_tables_draw(stored):
    drawn = [
        figures.network_and_machine(stored), figures.circle_frame(stored, 300, "relu", "pairs"),
        figures.ladder(stored), figures.gap_by_start(stored),
    ]  # fmt: skip
    assert all(figure.axes for figure in drawn)
    assert figures.circle_text(stored, 1, "relu", "pairs") != figures.circle_text(stored, 1, "relu", "independent")
    table = figures.looseness(stored)
    assert all(len(row) == len(table.columns) for row in table.rows)
