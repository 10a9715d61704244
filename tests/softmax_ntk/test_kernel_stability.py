"""Stability of the kernel: moves, bounds, rank and the solver behind the chapter."""

import numpy as np
import pytest
import torch

import attnbook
from attnbook.softmax_ntk import stability_bounds as theory
from attnbook.softmax_ntk.conditioning import SingularKernelError, condition_number, rank
from attnbook.softmax_ntk.experiments.lemma_b1 import left_sides
from attnbook.softmax_ntk.experiments.perturbed import Start
from attnbook.softmax_ntk.experiments.runs import Problem
from attnbook.softmax_ntk.ntk import kernel_coefficients, ntk_gram
from attnbook.softmax_ntk.perturbations import DIRECTIONS, displaced, displacement
from attnbook.softmax_ntk.two_layer import Networks, draw_weights

CPU = torch.device("cpu")


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_every_neuron_moves_by_the_radius(direction):
    weights = 3 + rng(1).standard_normal((5, 14))  # far from the origin
    move = displacement(direction, weights, 0.7, rng=rng())
    np.testing.assert_allclose(np.linalg.norm(move, axis=0), 0.7)
    np.testing.assert_allclose(displacement(direction, weights, 1.4, rng=rng()), 2 * move)


def test_moves_are_what_their_names_say():
    weights = rng(1).standard_normal((5, 14))
    common, spread, pairs = (displacement(d, weights, 0.7, rng=rng()) for d in ("common", "spread", "gdlike"))
    np.testing.assert_array_equal(common, common[:, :1] * np.ones(14))
    assert (np.einsum("ir,ir->r", np.sign(common[:, :1].T @ weights) * common, spread) > 0).all()
    np.testing.assert_array_equal(pairs[:, ::2], -pairs[:, 1::2])


def test_moving_inward_ends_at_the_origin():
    weights = rng(1).standard_normal((5, 14))
    np.testing.assert_allclose(weights + displacement("inward", weights, 100.0, rng=rng()), 0, atol=1e-15)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"radius": -1.0}, "radius"), ({"direction": "gdlike"}, "even width")],
)
def test_impossible_moves_are_refused(change, message):
    given = {"direction": "random", "radius": 0.1} | change
    with pytest.raises(ValueError, match=message):
        displacement(given["direction"], np.ones((3, 7)), given["radius"], rng=rng())


def test_moving_networks_needs_one_generator_each():
    networks = Networks.stack("exp", [draw_weights(6, 3, 1, rng=rng())])
    with pytest.raises(ValueError, match="rngs"):
        displaced(networks, "random", 0.1, rngs=[])


def test_networks_of_all_activations_move_alike():
    starts = [Start(Problem(name, 8, 3, 5), (0, 1), CPU) for name in ("softmax", "relu")]
    first, second = (start.moved("random", 0.3).first_layer for start in starts)
    torch.testing.assert_close(first, second)


def directional_derivative(activation, direction, *, paired=True):
    """Norm of the derivative of the kernel along a move, by central differences, over the norm of the kernel."""
    start = Start(Problem(activation, 14, 5, 3, 2), (0,), CPU)
    networks = start.networks
    if not paired:
        weights = draw_weights(14, 3, 2, rng=rng(), start="independent")
        networks = Networks.stack(activation, [weights])
    small = 1e-5
    move = torch.tensor(displacement(direction, networks.first_layer[0].numpy(), small, rng=rng(2)))[None]
    ends = [
        ntk_gram(Networks(activation, networks.first_layer + sign * move, networks.signs), start.inputs)
        for sign in (1, -1)
    ]
    return float((ends[0] - ends[1]).norm() / (2 * small) / ntk_gram(networks, start.inputs).norm())


@pytest.mark.parametrize("activation", ["softmax", "exp"])
def test_pairs_cancel_the_first_order_and_only_pairs_do(activation):
    assert directional_derivative(activation, "gdlike") < 1e-9
    assert directional_derivative(activation, "gdlike", paired=False) > 1e-2
    assert directional_derivative(activation, "random") > 1e-2


def test_a_common_shift_is_invisible_to_softmax_and_not_to_exp():
    assert directional_derivative("softmax", "common") < 1e-9
    assert directional_derivative("exp", "common") > 1e-2


def test_certified_radius_is_where_the_bound_is_half_of_the_eigenvalue():
    sizes = {"n_samples": 7, "n_outputs": 3, "exponent": 1.3}
    radius = theory.certified_radius(0.9, **sizes)
    assert theory.kernel_change_bound(radius, **sizes) == pytest.approx(0.45)


def test_exponent_of_the_definition_is_at_least_one():
    assert theory.exponent_of_definition(2, 1, scale=0.01) == 1.0
    assert theory.exponent_of_definition(7, 3, scale=2.0) == pytest.approx(4 * np.sqrt(np.log(210)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.kernel_change_bound(0.0, n_samples=3, n_outputs=1, exponent=1.0), "radius"),
        (lambda: theory.kernel_change_bound(0.1, n_samples=3, n_outputs=1, exponent=0.5), "exponent"),
        (lambda: theory.lemma_b1_bounds(exponent=1.0, radius=0.01, width=8), "radius"),
        (lambda: theory.exponent_of_definition(3, 1, failure=1.0), "failure"),
        (lambda: theory.smallest_full_width(0, 1, n_inputs=3), "n_samples"),
        (lambda: theory.relu_change_bound(-1.0, n_samples=3), "radius"),
    ],
)
def test_arguments_outside_their_range_are_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_left_sides_of_the_lemma_for_two_neurons_by_hand():
    """One sample at 1; logits log 1 and log 3 become log 1 and log 6: softmax 1/4, 3/4 to 1/7, 6/7."""
    inputs, weights, moved = np.ones((1, 1)), np.log([[1.0, 3.0]]), np.log([[1.0, 6.0]])
    expected = [
        np.log(3), np.log(6), 2 * np.log(2), 3, 6, 0.75, 3, 3, 1 / 4 - 1 / 7, 3 / 4, 6 / 7, 3 / 28, 6 / 28,
    ]  # fmt: skip
    np.testing.assert_allclose(left_sides(inputs, weights, moved), expected, rtol=1e-12)


def test_bounds_of_the_lemma_by_hand():
    e = np.exp
    expected = [2, 2.005, 0.01, e(2), e(2.005), 0.02, 0.005 * e(2.005), 0.035 * e(2.005), 0.005 / 7 * e(6.01),
                e(4) / 7, e(4.01) / 7, 0.005 / 7 * e(8.015), 0.005 * e(8.015)]  # fmt: skip
    np.testing.assert_allclose(theory.lemma_b1_bounds(exponent=2.0, radius=0.005, width=7), expected)


@pytest.mark.parametrize(("pairs", "n_outputs"), [(3, 1), (7, 2), (11, 3)])
def test_rank_of_a_paired_network_is_the_sum_over_sign_patterns(pairs, n_outputs):
    start = Start(Problem("softmax", 2 * pairs, 13, 2, n_outputs), (0, 1, 2), CPU)
    for kernel, signs in zip(start.kernel, start.networks.signs.numpy(), strict=True):
        bound = theory.rank_bound_of_signs(signs, n_samples=13, n_inputs=2)
        assert rank(kernel).item() == bound
        assert bound <= theory.rank_bound(13, n_outputs, n_inputs=2, width=2 * pairs)


def test_a_singular_kernel_is_refused_with_rank_size_and_the_width_that_works():
    kernel = Start(Problem("softmax", 4, 13, 3, 1), (0,), CPU).kernel[0]
    with pytest.raises(SingularKernelError, match=r"rank 6 of 13.*= 10") as caught:
        kernel_coefficients(kernel, torch.ones(13).double(), n_inputs=3)
    assert (caught.value.rank, caught.value.size, caught.value.width) == (6, 13, 10)
    with pytest.raises(SingularKernelError, match="pass n_inputs"):
        kernel_coefficients(kernel, torch.ones(13).double())
    assert condition_number(kernel).isinf()


@pytest.mark.parametrize(
    ("kernel", "labels", "message"),
    [
        (torch.eye(3) * torch.nan, torch.ones(3), "finite"),
        (torch.eye(3), torch.full((3,), torch.inf), "labels"),
    ],
)
def test_what_cannot_be_solved_is_refused(kernel, labels, message):
    with pytest.raises(ValueError, match=message):
        kernel_coefficients(kernel, labels)


def test_condition_number_of_a_diagonal_matrix():
    assert condition_number(torch.diag(torch.tensor([3.0, 5.0, 45.0]))).item() == pytest.approx(15)


def first_order(weights, moves, x, *, forget=""):
    neurons, along = np.exp(x @ weights), x @ moves
    change = (neurons * along) @ neurons.T
    change = change if forget == "half" else change + change.T
    return change / (1 if forget == "mean" else weights.shape[1]) * (x @ x.T)


def rank_by_signs(signs, n_samples, n_inputs, *, forget=""):
    equal = (signs[0, ::2] == signs[1, ::2]).sum()
    counts = (equal, signs.shape[1] // 2 - equal)
    if forget == "cap":
        return sum(n_inputs * pairs for pairs in counts)
    if forget == "pairs":
        return sum(min(n_samples, 2 * n_inputs * pairs) for pairs in counts)
    return sum(min(n_samples, n_inputs * pairs) for pairs in counts)


def safe_radius(kernel, c, *, forget=""):
    return np.linalg.eigvalsh(kernel)[-1 if forget == "smallest" else 0] / (1 if forget == "half" else 2) / c


@pytest.mark.parametrize(
    ("exercise", "answer", "forget", "named"),
    [
        ("SN-7", first_order, "half", "both factors move"),
        ("SN-7", first_order, "mean", "average over neurons"),
        ("SN-8", rank_by_signs, "cap", "no pattern gives more"),
        ("SN-8", rank_by_signs, "pairs", "count pairs"),
        ("SN-9", safe_radius, "smallest", "largest eigenvalue"),
        ("SN-9", safe_radius, "half", "whole eigenvalue"),
    ],
)
def test_exercises_accept_the_solution_and_name_the_mistake(exercise, answer, forget, named):
    assert "right" in repr(attnbook.check(exercise, answer))
    assert named in repr(attnbook.check(exercise, lambda *given: answer(*given, forget=forget)))
