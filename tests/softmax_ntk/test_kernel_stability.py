"""What keeps kernels still: directions, bounds and Lemma B.1 by hand, first order by differences, the program."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import red
import torch

import attnbook
from attnbook import lab
from attnbook.softmax_ntk import stability_bounds as bounds
from attnbook.softmax_ntk.descent import gradient_descent
from attnbook.softmax_ntk.ntk import ntk_gram
from attnbook.softmax_ntk.perturbations import DIRECTIONS, displaced, displacement
from attnbook.softmax_ntk.training import Problem, starting_networks
from attnbook.softmax_ntk.two_layer import Networks, logits, loss_and_gradient, predict

own = lab.load_script(Path("chapters/softmax_ntk/kernel_stability.py"))


def steeper(name, power, **where):
    """A change of one array by a power of the radius or of the width."""
    return red.scaled(name, lambda part: part["radius" if "radius" in part.dims else "width"] ** power, **where)


RED = {
    "SN-PERT": red.scaled("drift", 2, network="exp"),
    "SN-L5.1": red.scaled("change", 1e20),
    "SN-LAM-positive": red.scaled("smallest", -1),
    "SN-B2": red.scaled("entry", 1e20),
    "SN-E5": red.scaled("left", 0.4),
    "SN-L5.1-order": steeper("change", 0.1, direction="random"),
    "SN-L5.1m-worst": steeper("by_width", -0.3, direction="spread"),
    "SN-L5.1-relu": red.scaled("change", 50, network="relu"),
    "SN-L5.1R-gdlike": steeper("change", 0.2, start="paired"),
}
PARTS = [
    ("SN-PERT", red.scaled("change", 3, network="exp")),
    ("SN-PERT", red.scaled("part", 10)),
    ("SN-PERT", red.scaled("without", 0.5)),
    ("SN-PERT", red.scaled("change", 1e4)),
    ("SN-L5.1R-gdlike", steeper("change", 0.2, start="independent")),
    ("SN-L5.1R-gdlike", red.scaled("drift", 30, start="paired")),
    ("SN-L5.1R-gdlike", steeper("drift", 0.6)),
    ("SN-L5.1R-gdlike", red.scaled("drift", 3, network="relu", start="paired")),
]  # other values of the same rules


def test_every_measured_claim_of_the_chapter_can_be_turned_red():
    red.assert_every_claim_turns(own.kernel_movement.measure, own.kernel_movement.stored(), RED, PARTS)


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


@pytest.mark.parametrize("activation", ["softmax", "exp"])
def test_the_gradient_moves_the_farthest_neuron_by_the_radius_and_pulls_pairs_apart(activation):
    for start in ("paired", "independent"):
        networks, x, y = starting_networks(Problem(activation, 14, 5, 3, 2, start=start), (0, 1))
        y = y + predict(networks, x)
        move = displaced(networks, "gradient", 0.3, seeds=(0, 1), sample=(x, y)).first_layer - networks.first_layer
        gradient = loss_and_gradient(networks, x, y)[1]
        torch.testing.assert_close(move, -0.3 * gradient / gradient.norm(dim=1).amax(1)[:, None, None])
        together = float((move[..., ::2] + move[..., 1::2]).norm() / move.norm())
        shared = float(move.sum(2).norm() / move.norm())
        assert (together < 1e-14) == (start == "paired")
        assert (shared < 1e-14) == (activation == "softmax" or start == "paired")


def test_bounds_by_hand():
    """B = 1, R = 0.002, n = 3, d = 2; e^10 is 22026.4658."""
    found = bounds.kernel_change_bound(0.002, n_samples=3, n_outputs=2, exponent=1.0)
    assert found == pytest.approx(0.012 * 22026.4658)


def test_products_exceed_the_union_bound_less_often_than_it_allows():
    """Lemma B.1, part 1: the bound of the exercise is Definition 4.1 with a constant that is large enough."""
    n, m, failure = 5, 40, 0.3
    networks, x, _ = starting_networks(Problem("softmax", m, n, 3, start="independent"), range(200))
    largest = logits(networks, x).abs().amax((1, 2))
    bound = (2 * np.log(2 * n * m / failure)) ** 0.5
    assert 0 < float((largest > bound).double().mean()) < failure
    constant = bound / np.log(n / failure) ** 0.5
    assert bounds.exponent_of_definition(n, 1, constant=constant, failure=failure) == pytest.approx(bound)


def test_arguments_outside_their_range_are_refused_by_name():
    with pytest.raises(ValueError, match="even width"):
        displacement("opposite", np.ones((3, 7)), 0.1, rng=np.random.default_rng(0))
    networks, _, _ = starting_networks(Problem("exp", 4, 3, 2), (0,))
    with pytest.raises(ValueError, match="sample: expected inputs and labels"):
        displaced(networks, "gradient", 0.1, seeds=(0,))


def test_the_last_parts_of_lemma_b1_follow_from_part_1():
    networks, x, _ = starting_networks(Problem("softmax", 64, 9, 3, start="independent"), (0,))
    z, moved = (logits(displaced(networks, "spread", r, seeds=(0,)), x)[0] for r in (0.0, 0.009))
    b, r, apart = z.abs().max(), 0.009, (z.softmax(1) - moved.softmax(1)).abs()
    assert 64 * apart.max() < r * (4 * b + 3 * r).exp() > apart.sum(1).max()  # parts 12 and 13


def test_a_move_of_a_reader_has_a_panel_of_its_own():
    figure = own.movement(own.kernel_movement.stored(), {"mine": {"sideways": {0.01: 0.2}}})
    assert figure.axes[3].get_title(loc="left") == "sideways"
    assert figure.axes[3].lines[0].get_ydata() == [0.2]
    with pytest.raises(TypeError, match="yours: expected a dictionary"):
        own.movement(own.kernel_movement.stored(), {"mine": {0.01: 0.1}})


def test_the_slider_shows_what_the_page_says():
    for move, distance, softmax, exp in (("shared", 0.25, 0.0, 47.1), ("random", 0.1, 1.8, 2.7)):
        said = [text.get_text() for text in own.plane(move, distance).axes[1].get_legend().get_texts()]
        assert said == [f"softmax changes by {softmax}%", f"exp changes by {exp}%"]


def test_numbers_of_the_page_are_those_that_are_stored():
    stored = own.kernel_movement.stored()
    at = (stored.change / stored.norm).sel(start="paired", radius=0.01)
    softmax, exp = (at.sel(network=name) for name in ("softmax", "exp"))
    ratio = {to: float((exp / softmax).sel(direction=to).median()) for to in ("random", "gradient")}
    assert ratio == pytest.approx({"random": 1.3, "gradient": 2.0}, abs=0.05)
    medians = softmax.median("seed")
    assert medians.sel(direction="random") / medians.sel(direction="gradient") == pytest.approx(35, rel=0.05)
    ends = stored.sel(start="paired", network="softmax").median("seed")
    falls = {name: float(ends[name].sel(width=128) / ends[name].sel(width=8192)) for name in ("farthest", "drift")}
    assert falls == pytest.approx({"farthest": 23, "drift": 670}, rel=0.03)
    exp = stored.sel(network="exp", width=1024)
    assert float((exp.without / exp.drift).median("seed").min()) > 0.99
    both = stored.drift.sel(width=1024, network=["softmax", "exp"])
    twins = (both.sel(start="independent") / both.sel(start="paired")).median("seed")
    assert twins.values == pytest.approx([51, 72], abs=0.5)
    slopes = lab.slope((stored.change / stored.norm).sel(direction="random", radius=slice(None, 0.3)), "radius")
    assert abs(slopes.sel(network=["softmax", "exp"]).median("seed") - 1).max() < 0.05
    far = stored.sel(start="paired", width=1024).farthest.median("seed")
    assert far.sel(network=["softmax", "exp"]).values == pytest.approx([0.014, 0.009], abs=5e-4)
    inward = stored.left.sel(network="softmax", direction="inward", radius=1).median("seed")
    assert (abs(inward - 0.5) < 0.03).all()


def test_the_kernel_of_the_program_is_that_of_the_library(program):
    for name, activation in (("softmax", program["softmax"]), ("relu", torch.relu)):
        net = program["start"](14, activation, seed=3)
        expected = ntk_gram(Networks(name, net.w[None], net.votes[None, None]), net.x[None])[0]
        torch.testing.assert_close(program["kernel"](net, net.w), expected)


def test_the_training_of_the_program_is_that_of_the_library(program):
    net = program["start"](64, torch.exp, pairs=False)
    networks, sample = Networks("exp", net.w[None], net.votes[None, None]), (net.x[None], net.y[None, None])
    step_size = 1 / (64 * torch.linalg.eigvalsh(ntk_gram(networks, sample[0]))[:, -1])
    expected = gradient_descent(networks, *sample, step_size, max_steps=3000, target=1e-6)
    assert expected.reached.all()
    torch.testing.assert_close(program["train"](net), expected.networks.first_layer[0] - net.w)


def test_two_neurons_by_hand(program):
    votes, x = torch.tensor([1.0, -1.0]).double(), torch.ones(1, 1).double()
    for activation, shared, opposite in ((torch.exp, 1.221, 1.020), (program["softmax"], 1, 0.980)):
        net = SimpleNamespace(votes=votes, outputs=lambda w, activation=activation: activation(x @ w) @ votes)
        found = [program["kernel"](net, torch.tensor([[0.1, w]]).double()).item() for w in (0.1, -0.1)]
        assert found == pytest.approx([shared, opposite], abs=5e-4)


@pytest.mark.slow
def test_what_the_page_says_of_changes_holds(program):
    start, change, train = (program[name] for name in ("start", "change", "train"))

    def trained(*settings, **others):
        return change(net := start(*settings, **others), train(net))

    plain, relu = trained(), trained(activation=torch.relu)
    assert trained(activation=torch.nn.functional.gelu) < plain / 5
    same_size = {"activation": lambda z: torch.exp(z - 0.5)}  # outputs as large as those of softmax
    assert trained(**same_size) / plain == pytest.approx(1.73, abs=0.05)
    tries = [
        trained(256, pairs=pairs, seed=seed, **same_size) / trained(256, pairs=pairs, seed=seed)
        for pairs in (True, False)
        for seed in range(5)
    ]
    assert 1.3 < min(tries) < max(tries) < 2.55
    assert 0.5 < trained(activation=torch.relu, pairs=False) / relu < 2
    assert trained(activation=lambda z: z.softmax(dim=1)) > 0.99
    net, rates = start(), {}
    one = torch.nn.functional.normalize(torch.randn_like(net.w), dim=0)
    one[:, 1::2] = 0
    for name, move in (("inward", -net.w / net.w.norm(dim=0).max()), ("one of each pair", one)):
        rates[name] = change(net, 0.1 * move) / change(net, 0.01 * move)
    assert list(rates.values()) == pytest.approx([10, 10], rel=0.05)


def shares(shares, move, x):
    """Without the denominator."""
    return shares * (x @ move)


def test_the_exercises_name_the_mistake():
    assert "denominator" in repr(attnbook.check("SN-8", shares))
    assert "either sign" in repr(attnbook.check("SN-22", lambda n, m, failure: (2 * np.log(n * m / failure)) ** 0.5))
