"""The chapter on the softmax network: formulas, rules that can fail, the program of the page and exercises."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import red
import torch

import attnbook
from attnbook import lab
from attnbook.softmax_ntk import two_layer
from attnbook.softmax_ntk.kernels import infinite_width_kernel
from attnbook.softmax_ntk.ntk import ntk_gram

own = lab.load_script(Path("chapters/softmax_ntk/softmax_network.py"))
ACTIVATIONS = ("softmax", "exp", "relu")
X, Y = (torch.from_numpy(np.random.default_rng(s).standard_normal((1, 5, n)) / 3) for s, n in ((0, 3), (1, 2)))


RED = {
    own.competition: {"SN-EFF": lambda d: d.assign(at_work=d.at_work.roll(width=1))},
    own.three_networks: {"SN-SUPERIOR": red.scaled("steps", 0.4, network="softmax")},
}
PARTS = [
    ("SN-EFF", red.scaled("at_work", 1.5, scale=0.25)),
    ("SN-EFF", red.scaled("at_work", 3, scale=8.0, width=65536)),
    ("SN-EFF", red.scaled("at_work", 1 / 3, scale=2.0)),
    ("SN-SUPERIOR", red.scaled("steps", 0.7, shortest=0.5, width=4096, network="exp")),
    ("SN-SUPERIOR", red.scaled("steps", 2, shortest=0.5, network="relu")),
    ("SN-SUPERIOR", red.scaled("steps", 0.5, shortest=1.0, width=64, network="relu")),
    ("SN-SUPERIOR", red.scaled("condition", 0.6, network="exp", scale=1.0)),
    ("SN-SUPERIOR", red.scaled("condition", 0.3, network="exp", scale=2.0)),
]


@pytest.mark.parametrize("made", RED)
def test_every_measured_claim_of_the_chapter_can_be_turned_red(made):
    others = [part for part in PARTS if part[0] in RED[made]]
    red.assert_every_claim_turns(made.measure, made.stored(), RED[made], others)


@pytest.mark.parametrize("scale", [0.25, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("start", ["paired", "independent"])
def test_the_exp_kernel_is_the_softmax_kernel_between_denominators_if_neurons_are_in_pairs(scale, start):
    for width in (22, 64):
        drawn = two_layer.draw_weights(width, 3, 2, rng=np.random.default_rng(2), scale=scale, start=start)
        soft, exp = (ntk_gram(two_layer.Networks.stack(a, [drawn]), X)[0].numpy() for a in ("softmax", "exp"))
        mean = np.tile(np.exp(X[0].numpy() @ drawn.first_layer).mean(1), 2)
        error = np.abs(mean[:, None] * soft * mean - exp).max() / np.abs(exp).max()
        assert (error < 1e-12) == (start == "paired")


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_one_small_step_moves_the_outputs_by_the_kernel_up_to_second_order(activation):
    """Definitions 3.5 and 3.6: what first order leaves shrinks like the square of the step."""
    drawn = two_layer.draw_weights(14, 3, 2, rng=np.random.default_rng(2), start="independent")
    networks = two_layer.Networks.stack(activation, [drawn])
    gradient = two_layer.loss_and_gradient(networks, X, Y.mT)[1]
    before = two_layer.predict(networks, X)
    first_order = -(ntk_gram(networks, X)[0] @ (before - Y.mT).flatten()).view_as(before)
    rest = []
    for size in (1e-5, 1e-6):
        after = dataclasses.replace(networks, first_layer=networks.first_layer - size / 14 * gradient)
        rest.append(float((two_layer.predict(after, X) - before - size * first_order).norm()))
    assert rest[0] <= 1e-3 * 1e-5 * float(first_order.norm())
    assert rest[1] <= 0.02 * rest[0] + 1e-13


def test_the_number_at_work_of_known_shares():
    logits = np.log([[0.5, 0.25, 0.25], [1 / 3, 1 / 3, 1 / 3]])
    np.testing.assert_allclose(own.at_work(logits + 1e4), [1 / (0.25 + 2 / 16), 3])
    light = 0.6 * np.random.default_rng(0).standard_normal(200_000)
    assert own.at_work(light) == pytest.approx(own.expected(200_000, 0.6), rel=0.02)


# The page


def test_the_program_of_the_page_is_descent_on_the_networks_of_the_library(program):
    (x, y), (w, votes) = program["data"](0, 0.5), program["start"](0, 64, 1)
    network = two_layer.Networks("softmax", w[None], votes[None, None])
    kernel = ntk_gram(network, x[None])
    torch.testing.assert_close(program["kernel"](w, votes, x, program["softmax"]), kernel[0])
    eta = 1 / (64 * torch.linalg.eigvalsh(kernel)[:, -1])
    over, steps = own.descend(network, x[None], y[None, None], eta.numpy(), 1e-2, 9, 30)
    losses = program["train"](neurons=64, steps=30)
    np.testing.assert_allclose(over[:, 0], losses[:10], rtol=1e-9)
    assert losses[steps[0]] <= 1e-2 < losses[steps[0] - 1]


def test_numbers_in_the_text_are_those_of_the_stored_runs():
    work, three = own.competition.stored(), own.three_networks.stored()
    shown = {s: 1 / float((work.share.isel(seed=0).sel(scale=s) ** 2).sum()) for s in (1.0, 4.0)}
    steps = three.steps.median("seed")
    different = steps.sel(shortest=0.5)
    said = [f"{f(different.sel(network=n)):.0f}" for n in ACTIVATIONS for f in (np.min, np.max)]
    frozen = work.at_work.sel(scale=8).median("seed")
    text = Path(own.__file__).with_suffix(".ipynb").read_text(encoding="utf-8")
    assert f"{shown[1.0]:.0f} of the 64" in text
    assert 3.5 < shown[4.0] < 4.5
    assert "softmax needs {} to {} steps, exp {} to {}, but ReLU only {} to {}".format(*said) in text
    wide = [f"{float(steps.sel(shortest=1, width=4096, network=n)):.0f}" for n in ACTIVATIONS]
    assert "{} and {} instead of {}".format(*wide) in text
    assert f"256 neurons have about {frozen[0]:.0f} at work and 65536 neurons about {frozen[2]:.0f} " in text


@pytest.mark.slow
def test_what_the_page_says_of_changes_holds(program):
    train, softmax = program["train"], program["softmax"]
    assert train(shortest=1.0)[60] < 1e-4 * train()[60]
    assert train(torch.exp, scale=2)[100] > 0.01
    heavy = train(scale=2)
    assert train()[100] < heavy[100] < 0.01
    np.testing.assert_allclose(train(lambda z: softmax(2 * z)), heavy, rtol=1e-6)
    light = [np.log(train(f, scale=0.1)) for f in (softmax, torch.exp)]
    np.testing.assert_allclose(*light, atol=0.1)
    assert train(torch.abs)[20] < 0.1 * train(torch.relu)[20]


@pytest.mark.parametrize(
    ("exercise", "answer", "message"),
    [
        ("SN-5", lambda x, s: infinite_width_kernel("exp", x, scale=s), "kernel of exp"),
        ("SN-6", lambda z: np.exp(2 * z).sum(1) / np.exp(z).sum(1) ** 2, "inverse"),
        ("SN-6", lambda z: np.exp(z).sum(1) ** 2 / np.exp(2 * z).sum(1), "overflows"),
    ],
)
def test_wrong_answers_get_the_likely_mistake(exercise, answer, message):
    assert message in repr(attnbook.check(exercise, answer))
