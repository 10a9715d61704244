"""The chapter on the stability of the kernel: formulas, moves, rules that can fail, pictures and exercises."""

import math

import numpy as np
import pytest
import red
import torch

import attnbook
from attnbook import ledger
from attnbook.softmax_ntk import lazy_bounds
from attnbook.softmax_ntk import stability_bounds as theory
from attnbook.softmax_ntk.conditioning import SingularKernelError, rank
from attnbook.softmax_ntk.kernel_stability import experiments as own
from attnbook.softmax_ntk.kernel_stability import figures
from attnbook.softmax_ntk.ntk import kernel_coefficients, ntk_gram
from attnbook.softmax_ntk.perturbations import DIRECTIONS, displaced, displacement
from attnbook.softmax_ntk.training import Problem, starting_networks
from attnbook.softmax_ntk.two_layer import Networks, Weights, draw_weights

KINDS = {
    "kernel_movement": own.KernelMovement, "eigenvalue_radius": own.EigenvalueRadius, "lemma_b1": own.LemmaB1,
    "smallest_eigenvalues": own.SmallestEigenvalues,
}  # fmt: skip


@pytest.fixture(scope="module")
def stored():
    return {name: kind.load_stored("book") for name, kind in KINDS.items()}


def only(name, change, **where):
    """Change the entries of one array at some labels."""

    def changed(data):
        chosen = math.prod((data[k] == v).astype(int) for k, v in where.items()) == 1
        return data.assign({name: data[name].where(~chosen, change(data[name]))})

    return changed


def faster(dimension, power):
    """Multiply by a power of the size."""
    return lambda array: array * array[dimension].astype(float) ** power


RED = {
    "kernel_movement": {
        "SN-L5.1": lambda d: d.assign(change=1e4 * d.change),
        "SN-L5.1-order": only("change", faster("radius", 0.2), direction="random"),
        "SN-L5.1m-worst": only("by_width", faster("width", -0.3), direction="spread"),
        "SN-L5.1-relu": lambda d: d.assign(by_size=100 * d.by_size),
        "SN-L5.1R-gdlike": only("change", np.sqrt, direction="gdlike"),
        "SN-L5.1R-common": lambda d: d.assign(change=d.change.roll(network=1)),
    },
    "eigenvalue_radius": {
        "SN-E5": lambda d: d.assign(exponent=0 * d.exponent),
        "SN-E5-inward": lambda d: d.assign(after=d.after.roll(direction=1)),
    },
    "lemma_b1": {
        "SN-B1-1": lambda d: d.assign(largest_logit=1.2 * d.largest_logit),
        "SN-B2": only("ladder", lambda ladder: 1e20 * ladder, rung=own.RUNGS[1]),
    },
    "smallest_eigenvalues": {
        "SN-LAM-positive": lambda d: d.assign(rank=d.sign_bound - 1),
    },
}  # fmt: skip
PARTS = {
    "kernel_movement": [
        ("SN-L5.1-order", lambda d: d.assign(by_size=d.by_size * d["size"] ** 0.6)),
        ("SN-L5.1-order", lambda d: d.assign(by_size=d.by_size * d["output"] ** 0.3)),
        ("SN-L5.1m-worst", only("by_width", faster("width", 0.2), direction="random")),
        ("SN-L5.1m-worst", only("by_width", faster("width", -0.2), direction="common")),
        ("SN-L5.1R-gdlike", lambda d: d.assign(unpaired=d.unpaired**2)),
        ("SN-L5.1R-gdlike", only("change", faster("radius", 0.5), network="relu")),
        ("SN-L5.1R-common", only("change", lambda change: 3 * change, network="exp")),
    ],
    "eigenvalue_radius": [("SN-E5-inward", lambda d: d.assign(after=0 * d.after))],
    "lemma_b1": [
        ("SN-B1-1", only("largest_logit", lambda logit: 0.9 * logit, width=65536)),
        ("SN-B2", only("ladder", lambda ladder: 10 * ladder, rung=own.RUNGS[2])),
        ("SN-B2", only("ladder", np.sqrt, rung=own.RUNGS[3])),
    ],
    "smallest_eigenvalues": [
        ("SN-LAM-positive", lambda d: d.assign(smallest=-d.smallest)),
        ("SN-LAM-positive", lambda d: d.assign(rank=0 * d["rank"] + 48, sign_bound=0 * d["rank"] + 48)),
    ],
}  # other values of the same rules


@pytest.mark.parametrize("name", KINDS)
def test_every_measured_claim_of_the_chapter_can_be_turned_red(name, stored):
    red.assert_every_claim_turns(KINDS[name]().measurements, stored[name], RED[name], PARTS[name])


def test_every_claim_of_the_chapter_is_measured():
    mine = {c.id: c for c in ledger.claims() if c.chapter == "softmax_ntk/kernel_stability"}
    assert set(mine) == {claim for claims in RED.values() for claim in claims}
    assert sum(c.source == "book" for c in mine.values()) <= 4


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_every_neuron_moves_by_the_radius_as_its_direction_says(direction):
    weights = 3 + rng(1).standard_normal((5, 14))  # far from the origin
    move = displacement(direction, weights, 0.7, rng=rng())
    np.testing.assert_allclose(np.linalg.norm(move, axis=0), 0.7)
    np.testing.assert_allclose(displacement(direction, weights, 1.4, rng=rng()), 2 * move)
    if direction == "common":
        np.testing.assert_array_equal(move, move[:, :1] * np.ones(14))
    if direction == "spread":
        assert (np.abs(move[:, :1].T @ (weights + move)) > np.abs(move[:, :1].T @ weights)).all()
    if direction == "gdlike":
        np.testing.assert_array_equal(move[:, ::2], -move[:, 1::2])
    if direction == "inward":
        np.testing.assert_allclose(weights + displacement(direction, weights, 100.0, rng=rng()), 0, atol=1e-14)


def test_impossible_moves_are_refused():
    for given, message in (({"radius": -1.0}, "radius"), ({"direction": "gdlike"}, "even width")):
        with pytest.raises(ValueError, match=message):
            displacement(given.get("direction", "random"), np.ones((3, 7)), given.get("radius", 0.1), rng=rng())
    with pytest.raises(ValueError, match="seeds"):
        displaced(Networks.stack("exp", [draw_weights(6, 3, 1, rng=rng())]), "random", 0.1, seeds=[])


def directional_derivative(activation, direction, *, start="paired"):
    """Norm of the derivative of the kernel along a move, by central differences, over the norm of the kernel."""
    networks, inputs, _ = starting_networks(Problem(activation, 14, 5, 3, 2, start=start), (0,))
    small = 1e-5
    move = torch.tensor(displacement(direction, networks.first_layer[0].numpy(), small, rng=rng(2)))[None]
    ends = [ntk_gram(Networks(activation, networks.first_layer + k * move, networks.signs), inputs) for k in (1, -1)]
    return float((ends[0] - ends[1]).norm() / (2 * small) / ntk_gram(networks, inputs).norm())


@pytest.mark.parametrize("activation", ["softmax", "exp"])
def test_pairs_cancel_the_first_order_and_only_pairs_do(activation):
    assert directional_derivative(activation, "gdlike") < 1e-9
    assert directional_derivative(activation, "gdlike", start="independent") > 1e-2
    assert directional_derivative(activation, "gdlike", start="opposite_signs") > 1e-2
    assert directional_derivative(activation, "random") > 1e-2


def test_a_common_shift_is_invisible_to_softmax_and_not_to_exp():
    assert directional_derivative("softmax", "common") < 1e-9
    assert directional_derivative("exp", "common") > 1e-2


def test_bounds_by_hand():
    """B = 1, R = 0.002, n = 3, d = 2, eigenvalue 0.5; e^10 is 22026.4658."""
    sizes = {"n_samples": 3, "n_outputs": 2, "exponent": 1.0}
    assert theory.kernel_change_bound(0.002, **sizes) == pytest.approx(0.012 * 22026.4658)
    assert theory.certified_radius(0.5, **sizes) == pytest.approx(0.25 / (6 * 22026.4658))
    by_pieces = theory.bound_by_pieces(0.002, exponent=1.0)
    assert by_pieces == pytest.approx(0.002 * (16 * 54.59815 + 8 * 403.42879 + 4 * 2980.95799))
    for b in (1.0, 2.0, 4.0):
        assert theory.bound_by_pieces(1.0, exponent=b) < math.exp(10 * b)
    assert theory.exponent_of_definition(2, 1, scale=0.01) == 1.0
    assert theory.exponent_of_definition(7, 3, scale=2.0) == pytest.approx(4 * np.sqrt(np.log(210)))


def test_the_movement_bound_by_hand():
    """Eigenvalue 0.5, n d = 6, B = 2, residual 3, width 100: 8 / 0.5 e^6 sqrt(6) 3 / 100, e^6 being 403.4288."""
    found = lazy_bounds.Theorem(0.5, 3, 2, exponent=2.0).movement(100, 3.0)
    assert found == pytest.approx(16 * 403.4288 * 2.4494897 * 0.03)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.kernel_change_bound(0.0, n_samples=3, n_outputs=1, exponent=1.0), "radius"),
        (lambda: theory.kernel_change_bound(0.1, n_samples=3, n_outputs=1, exponent=0.5), "exponent"),
        (lambda: theory.bound_by_pieces(0.1, exponent=0.5), "exponent"),
        (lambda: theory.lemma_b1_bounds(exponent=1.0, radius=0.01, width=8), "radius"),
        (lambda: theory.exponent_of_definition(3, 1, failure=1.0), "failure"),
        (lambda: own.KernelMovement.at(radii=(0.1, 0.01)), "radii"),
        (lambda: own.KernelMovement.at(radius=0.02), "radius"),
        (lambda: own.EigenvalueRadius.at(sizes=(8, 16)), "sizes"),
        (lambda: own.SmallestEigenvalues.at(rank_widths=(24, 16)), "rank_widths"),
        (lambda: own.LemmaB1.at(smallest_radius=0.01), "smallest_radius"),
        (lambda: own.LemmaB1.at(widths=(64,)), "widths"),
    ],
)
def test_arguments_outside_their_range_are_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_both_sides_of_lemma_b1_by_hand():
    """One sample at 1; logits log 1 and log 3 become log 1 and log 6: softmax 1/4, 3/4 to 1/7, 6/7."""
    inputs, weights, moved = np.ones((1, 1)), np.log([[1.0, 3.0]]), np.log([[1.0, 6.0]])
    left = [np.log(3), np.log(6), 2 * np.log(2), 3, 6, 0.75, 3, 3, 1 / 4 - 1 / 7, 3 / 4, 6 / 7, 3 / 28, 6 / 28]
    np.testing.assert_allclose(theory.lemma_b1_left_sides(inputs, weights, moved), left, rtol=1e-12)
    e = np.exp
    right = [2, 2.005, 0.01, e(2), e(2.005), 0.02, 0.005 * e(2.005), 0.035 * e(2.005), 0.005 / 7 * e(6.01),
             e(4) / 7, e(4.01) / 7, 0.005 / 7 * e(8.015), 0.005 * e(8.015)]  # fmt: skip
    np.testing.assert_allclose(theory.lemma_b1_bounds(exponent=2.0, radius=0.005, width=7), right)


def test_parts_2_to_13_follow_from_part_1(stored):
    """Algebra, with the measured B; part 1 has the B of the definition."""
    assert float(stored["lemma_b1"].ratio.isel(part=slice(1, None)).max()) <= 1 + 1e-12


def test_five_pieces_add_up_to_the_change_and_lie_below_their_bounds():
    x, drawn = rng().standard_normal((5, 3)), draw_weights(8, 3, 2, rng=rng(1), start="independent")
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    moved = drawn.first_layer + displacement("random", drawn.first_layer, 0.009, rng=rng(2))
    ends = [Networks.stack("softmax", [Weights(w, drawn.signs)]) for w in (drawn.first_layer, moved)]
    before, after = (ntk_gram(networks, torch.tensor(x[None]))[0].numpy() for networks in ends)
    pieces = theory.five_pieces(x, drawn.signs, drawn.first_layer, moved)
    np.testing.assert_allclose(pieces.sum(0), before - after, atol=1e-12)
    b = np.exp(max(abs(x @ w).max() for w in (drawn.first_layer, moved)))
    bounds = 0.009 * np.exp(5 * 0.009) * np.array([16 * b**4, 2 * b**8, 2 * b**8, 4 * b**6, 4 * b**6])
    assert (abs(pieces).max((1, 2)) <= bounds).all()


@pytest.mark.parametrize(("pairs", "n_outputs"), [(3, 1), (7, 2), (11, 3)])
def test_rank_of_a_paired_network_is_the_sum_over_sign_patterns(pairs, n_outputs):
    sizes = {"n_samples": 13, "n_inputs": 2}
    networks, x, _ = starting_networks(Problem("softmax", 2 * pairs, 13, 2, n_outputs), (0, 1, 2))
    for kernel, signs in zip(ntk_gram(networks, x), networks.signs.numpy(), strict=True):
        bound = theory.rank_bound_of_signs(signs, **sizes)
        assert rank(kernel).item() == bound <= theory.rank_bound(13, n_outputs, n_inputs=2, width=2 * pairs)


def test_a_singular_kernel_is_refused_with_rank_size_and_the_width_that_works():
    networks, x, _ = starting_networks(Problem("softmax", 4, 13, 3), (0,))
    kernel = ntk_gram(networks, x)[0]
    with pytest.raises(SingularKernelError, match=r"rank 6 of 13.*= 10") as caught:
        kernel_coefficients(kernel, torch.ones(13).double(), n_inputs=3)
    assert (caught.value.rank, caught.value.size, caught.value.width) == (6, 13, 10)
    with pytest.raises(SingularKernelError, match="pass n_inputs"):
        kernel_coefficients(kernel, torch.ones(13).double())
    for bad, labels, message in ((torch.eye(3) * torch.nan, 1.0, "finite"), (torch.eye(3), torch.inf, "labels")):
        with pytest.raises(ValueError, match=message):
            kernel_coefficients(bad, torch.full((3,), labels))


def test_the_first_loss_is_the_first_radius_below_half():
    made = own.EigenvalueRadius.at("smoke", radii=(0.01, 1.0, 4.0)).run(device="cpu")
    made["before"][:], made["after"][:] = 1.0, 1.0
    made["after"].loc[{"seed": 0, "radius": 4.0}] = 0.4
    made["after"].loc[{"seed": 1, "radius": 1.0}] = 0.4
    assert np.unique(own.first_loss(made).sel(seed=0)) == 4.0
    assert np.unique(own.first_loss(made).sel(seed=1)) == 1.0
    made["after"][:] = 0.6
    assert np.isinf(own.first_loss(made)).all()


def test_networks_with_fewer_outputs_and_samples_are_the_first_of_those_with_more():
    kind = own.EigenvalueRadius.at("smoke", outputs=(1, 3), sizes=(5, 18), radii=(0.01,), seeds=(0, 1), chunk=2)
    found = kind.run(device="cpu")
    for name in ("softmax", "exp", "relu"):
        networks, x, _ = starting_networks(Problem(name, 64, 18, 17, 3), (0,))
        one = Networks(name, networks.first_layer, networks.signs[:, :1])
        expected = np.linalg.eigvalsh(ntk_gram(one, x)[0].numpy())[0]
        place = {"network": name, "seed": 0, "output": 1, "size": 18}
        assert float(found.before.sel(place)) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_pictures_and_tables_draw(stored):
    moved, far = stored["kernel_movement"], stored["eigenvalue_radius"]
    drawn = [
        figures.movement(moved),
        figures.lost(stored["lemma_b1"]),
        figures.eigenvalue_frame(far, "all alike", 64),
        figures.ranks(stored["smallest_eigenvalues"]),
    ]
    assert all(ax.get_xlabel() for figure in drawn for ax in figure.axes)
    assert len(figures.changes(moved, 0.01).rows) == 4
    assert "softmax 16 of 16" in figures.eigenvalue_text(far, "inward", 64)
    for part in ("marker", "line", "label"):
        assert len({getattr(look, part) for look in figures.DIRECTIONS.values()}) == len(figures.DIRECTIONS)


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
    return sum(min(n_samples, (2 if forget == "pairs" else 1) * n_inputs * pairs) for pairs in counts)


@pytest.mark.parametrize(
    ("exercise", "answer", "forget", "named"),
    [
        ("SN-7", first_order, "half", "both factors move"),
        ("SN-7", first_order, "mean", "average over neurons"),
        ("SN-8", rank_by_signs, "cap", "no pattern gives more"),
        ("SN-8", rank_by_signs, "pairs", "count pairs"),
    ],
)
def test_exercises_accept_the_solution_and_name_the_mistake(exercise, answer, forget, named):
    assert "right" in repr(attnbook.check(exercise, answer))
    assert named in repr(attnbook.check(exercise, lambda *given: answer(*given, forget=forget)))
