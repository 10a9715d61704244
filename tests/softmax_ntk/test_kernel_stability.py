"""How far kernels move: directions, bounds and Lemma B.1 by hand, first order by differences, the page's program."""

import json
from pathlib import Path

import numpy as np
import pytest
import red
import torch

import attnbook
from attnbook import lab, ledger
from attnbook.softmax_ntk import stability_bounds as bounds
from attnbook.softmax_ntk.ntk import ntk_gram
from attnbook.softmax_ntk.perturbations import DIRECTIONS, displaced, displacement
from attnbook.softmax_ntk.training import Problem, starting_networks
from attnbook.softmax_ntk.two_layer import Networks, logits, loss_and_gradient

CHAPTER = Path(__file__).parents[2] / "chapters" / "softmax_ntk" / "kernel_stability.py"
own = lab.load_script(CHAPTER)
MADE = {made.id: made for made in (own.kernel_movement, own.many_networks)}


@pytest.fixture(scope="module")
def stored():
    return {name: made.stored() for name, made in MADE.items()}


def scaled(name, factor=1.0, power=0.0, along="radius", **where):
    """Multiply an array, at some labels, by a factor and a power of a dimension."""

    def changed(data):
        moved, copy = factor * data[name] * data[along] ** power, data.copy(deep=True)
        copy[name].loc[where] = moved.loc[where]
        return copy

    return changed


RED = {
    "softmax_ntk.kernel_movement": {
        "SN-PERT": scaled("change", 2, network="exp"),
        "SN-L5.1": scaled("change", 1e20),
        "SN-LAM-positive": scaled("smallest", -1),
        "SN-B2": scaled("entry", 1e20),
        "SN-E5": scaled("left", 0.4),
        "SN-L5.1-order": scaled("change", power=0.1, direction="random"),
        "SN-L5.1m-worst": scaled("by_width", power=-0.3, along="width", direction="spread"),
        "SN-L5.1R-gdlike": scaled("change", power=0.2, start="paired"),
    },
    "softmax_ntk.many_networks": {"SN-B1-1": scaled("largest", 2), "SN-L5.1-relu": scaled("change", 50)},
}
PARTS = [
    ("SN-PERT", scaled("change", 0.7, network="exp")),
    ("SN-L5.1R-gdlike", scaled("change", power=0.2, start="independent")),
]  # other values of the same rules


@pytest.mark.parametrize("name", MADE)
def test_every_measured_claim_of_the_chapter_can_be_turned_red(name, stored):
    red.assert_every_claim_turns(MADE[name].measure, stored[name], RED[name], PARTS if "movement" in name else [])


def test_every_claim_of_the_chapter_is_measured():
    mine = {c.id for c in ledger.claims() if c.chapter == "softmax_ntk/kernel_stability"}
    assert mine == {claim for claims in RED.values() for claim in claims}


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_every_neuron_moves_by_the_radius_as_its_direction_says(direction):
    weights = 3 + np.random.default_rng(1).standard_normal((5, 14))  # far from the origin
    move, far = (displacement(direction, weights, r, rng=np.random.default_rng(0)) for r in (0.7, 70.0))
    assert np.linalg.norm(move, axis=0) == pytest.approx(0.7)
    same, opposite = np.ptp(move, axis=1).max() < 1e-12, np.abs(move[:, ::2] + move[:, 1::2]).max() < 1e-12
    assert (same, opposite) == (direction == "shared", direction == "opposite")
    np.testing.assert_allclose(far, -weights if direction == "inward" else 100 * move)
    if direction == "spread":
        assert (np.abs(move[:, 0] @ (weights + move)) > np.abs(move[:, 0] @ weights)).all()


def rate(activation, direction, start):
    """Derivative of the kernel along a move, by a difference: its norm over that of the kernel."""
    networks, x, _ = starting_networks(Problem(activation, 14, 5, 3, 2, start=start), (0,))
    before, after = (ntk_gram(displaced(networks, direction, r, seeds=(0,)), x) for r in (0.0, 1e-6))
    return float((after - before).norm() / before.norm() / 1e-6)


@pytest.mark.parametrize("activation", ["softmax", "exp"])
def test_pairs_cancel_the_first_order_and_shared_moves_are_free_for_softmax_only(activation):
    assert rate(activation, "opposite", "paired") < 1e-4
    assert rate(activation, "opposite", "independent") > 1e-2
    assert rate(activation, "random", "paired") > 1e-2
    assert (rate(activation, "shared", "independent") < 1e-4) == (activation == "softmax")


def test_gradient_descent_on_a_softmax_network_makes_no_shared_move():
    moves = {}
    for name in ("softmax", "exp"):
        networks, x, y = starting_networks(Problem(name, 14, 5, 3, 2, start="independent"), (0, 1))
        gradient = loss_and_gradient(networks, x, y)[1]
        moves[name] = float(gradient.sum(2).norm() / gradient.norm())
    assert moves["softmax"] < 1e-14 < 1e-3 < moves["exp"]


def test_bounds_by_hand():
    """B = 1, R = 0.002, n = 3, d = 2; e^10 is 22026.4658."""
    found = bounds.kernel_change_bound(0.002, n_samples=3, n_outputs=2, exponent=1.0)
    assert found == pytest.approx(0.012 * 22026.4658)


def test_the_exponent_of_the_theorem_is_what_a_union_bound_needs_at_its_width():
    b = bounds.exponent_of_theorem(11, 2, scale=0.5, failure=0.05, smallest_eigenvalue=0.7)
    width = (22 / 0.7 * np.log(22 / 0.05)) ** 2 * np.exp(18 * b)
    assert 2 * 11 * width * np.exp(-(b**2) / (2 * 0.5**2)) == pytest.approx(0.05)


def test_arguments_outside_their_range_are_refused_by_name():
    for direction, radius, message in (("random", -1.0, "radius"), ("opposite", 0.1, "even width")):
        with pytest.raises(ValueError, match=message):
            displacement(direction, np.ones((3, 7)), radius, rng=np.random.default_rng(0))


def test_the_last_parts_of_lemma_b1_follow_from_part_1():
    networks, x, _ = starting_networks(Problem("softmax", 64, 9, 3, start="independent"), (0,))
    z, moved = (logits(displaced(networks, "spread", r, seeds=(0,)), x)[0] for r in (0.0, 0.009))
    b, r, apart = z.abs().max(), 0.009, (z.softmax(1) - moved.softmax(1)).abs()
    assert 64 * apart.max() < r * (4 * b + 3 * r).exp() > apart.sum(1).max()  # parts 12 and 13


def test_pictures_draw_and_say_what_the_page_says(stored):
    data = stored["softmax_ntk.kernel_movement"]
    figure = own.movement(data, {"mine": {"shared": {0.01: 0.1}}})
    assert [len(ax.lines) for ax in figure.axes] == [4, 5, 4]
    assert own.plane_text("random", 0.1).endswith("softmax 1.8%, exp 2.7%.")
    assert own.plane_text("opposite", 0.1).endswith("softmax 0.4%, exp 0.8%.")
    inward = data.left.sel(network="softmax", direction="inward", radius=1).median("seed")
    assert (abs(inward - 0.5) < 0.03).all()


@pytest.fixture(scope="module")
def program():
    """The names that the visible program defines."""
    cells = json.loads(CHAPTER.with_suffix(".ipynb").read_text(encoding="utf-8"))["cells"]
    source = next("".join(cell["source"]) for cell in cells if "def change(" in "".join(cell["source"]))
    names, before = {}, torch.get_default_dtype()
    exec(source, names)
    yield names
    torch.set_default_dtype(before)


def test_the_kernel_of_the_program_is_that_of_the_library(program):
    x, w, votes = program["start"](3, m=14, samples=5, inputs=3)
    for name, activation in (("softmax", program["softmax"]), ("relu", torch.relu)):
        expected = ntk_gram(Networks(name, w[None], votes[None, None]), x[None])[0]
        torch.testing.assert_close(program["kernel"](w, votes, x, activation), expected)


def test_two_neurons_by_hand(program):
    votes, x = torch.tensor([1.0, -1.0]).double(), torch.ones(1, 1).double()
    for activation, shared, opposite in ((torch.exp, 1.221, 1.020), (program["softmax"], 1, 0.980)):
        found = [program["kernel"](torch.tensor([[0.1, w]]).double(), votes, x, activation).item() for w in (0.1, -0.1)]
        assert found == pytest.approx([shared, opposite], abs=5e-4)


@pytest.mark.slow
def test_what_the_page_says_of_changes_holds(program):
    change, gelu = program["change"], torch.nn.functional.gelu
    for kind in ("random", "opposite"):
        assert change(kind, 0.01, gelu) < change(kind, 0.01) / 2
    plain = change("random", 0.01)
    assert change("random", 0.01, torch.relu) > 3 * plain
    assert 50 < change("opposite", 0.01, pairs=False) / change("opposite", 0.01) < 200
    assert change("random", 0.01, m=16384) < plain / 2
    assert 1.5 < change("random", 0.01, scale=2) / plain < 3


def shares(shares, move, x, mean=True):
    rates = x @ move
    return shares * (rates - (shares @ rates if mean else 0))


def test_the_exercise_accepts_the_solution_and_names_the_mistake():
    assert "right" in repr(attnbook.check("SN-8", shares))
    assert "denominator" in repr(attnbook.check("SN-8", lambda *given: shares(*given, mean=False)))
    assert "right" in repr(attnbook.check("SN-22", lambda n, m, failure: (2 * np.log(2 * n * m / failure)) ** 0.5))
    assert "either sign" in repr(attnbook.check("SN-22", lambda n, m, failure: (2 * np.log(n * m / failure)) ** 0.5))
