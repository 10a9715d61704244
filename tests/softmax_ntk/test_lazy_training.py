"""Lazy training: bounds by hand, the four terms of a step, kernels at rest, rules that can fail, the page's program."""

import dataclasses
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import red
import torch

import attnbook
from attnbook import lab
from attnbook.softmax_ntk.lazy_bounds import digits_until_small, required
from attnbook.softmax_ntk.ntk import ntk_gram
from attnbook.softmax_ntk.one_step import loss_terms
from attnbook.softmax_ntk.training import Problem, train
from attnbook.softmax_ntk.two_layer import Networks, Weights, predict

own = lab.load_script(Path("chapters/softmax_ntk/lazy_training.py"))


def double(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def test_formulas_of_the_theorem_by_hand():
    """Three samples, two outputs, eigenvalue 1/2: six over one half is twelve, its square 144; B = 2."""
    found = required(0.5, 3, 2, error=0.6, exponent=2.0, failure=0.06)
    wanted = 144 * math.exp(36) * math.log(100) ** 2, 0.05 / (36 * math.exp(32)), 20 * 144 * math.exp(32) * math.log(10)
    assert found == pytest.approx(wanted)
    # after these steps the envelope is at the error
    _, step_size, steps = required(0.5, 16, error=0.016)
    assert math.exp(steps * math.log1p(-0.5 * step_size / 2)) == pytest.approx(1e-3)


@pytest.mark.parametrize("constant", [1.0, 2.0])
def test_the_factor_equals_the_number_of_samples_where_it_begins_to_be_small(constant):
    log_n = digits_until_small(constant, failure=0.05) * math.log(10)
    assert 18 * constant * math.sqrt(log_n - math.log(0.05)) == pytest.approx(log_n)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: required(0.0, 3, error=1), "smallest_eigenvalue"),
        (lambda: digits_until_small(0), "constant"),
    ],
)
def test_arguments_outside_their_range_are_refused_by_name(call, name):
    with pytest.raises(ValueError, match=name):
        call()


def test_terms_are_those_of_lemma_e1_written_out_and_add_up():
    """Normaliser, first order and higher orders from their definitions; any step, of any length."""
    before = Networks("softmax", double(2, 5, 14), double(2, 3, 14, seed=1).sign())
    after = dataclasses.replace(before, first_layer=before.first_layer + 0.3 * double(2, 5, 14, seed=2))
    x, y = double(2, 7, 5, seed=3), double(2, 3, 7, seed=4)
    signs, error, found = before.signs, predict(before, x) - y, loss_terms(before, after, x, y)
    old, new = (torch.exp(x @ n.first_layer) for n in (before, after))
    alpha, beta = old.sum(2, keepdim=True), new.sum(2, keepdim=True)
    q = x @ after.first_layer - x @ before.first_layer
    parts = (14 * new * (1 / beta - 1 / alpha), 14 * old / alpha * q, 14 * old / alpha * (torch.exp(q) - 1 - q))
    wanted = [2 * (error * (signs @ part.mT)).sum((1, 2)) for part in parts]
    torch.testing.assert_close(found[:, :3], torch.stack(wanted, dim=1), rtol=1e-11, atol=1e-11)
    change = (predict(after, x) - y).square().sum((1, 2)) - error.square().sum((1, 2))
    torch.testing.assert_close(found.sum(1), change, rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match="after"):
        loss_terms(before, dataclasses.replace(after, signs=-signs), x, y)


def test_account_of_one_neuron_pair_by_hand():
    r"""One input 1, W = 0, signs 1 and -1, label 1: F = 0, mS = 1, H = 1, residual -1, and the gradient -+1.

    With $\eta m=1/2$ a neuron moves its logit by $\pm\frac14$: $F=2\tanh\frac14$ and $C_3=F^2$; $C_1=-1$, over the unit
    1/2 it is $-2$; the denominator grows by $\cosh\frac14-1$.
    """
    network = Networks.stack("softmax", [Weights(np.zeros((1, 2)), np.array([[1.0, -1.0]]))])
    one = torch.ones(1, 1, 1).double()
    run = train(Problem("softmax", 2, 1, 1), [0], device="cpu", max_steps=1)
    size, mu = torch.tensor([0.25]).double(), np.ones((1, 1))
    run = dataclasses.replace(run, start=network, inputs=one, labels=one, step_size=size, eigenvalues=mu)
    found = {name: value[0] for name, (_, value) in own.account(run, 1).items()}
    moved = 2 * math.tanh(0.25)
    assert found["leading"] == pytest.approx(1)
    assert found["longest"] == pytest.approx(0.25)
    straight, square = -2, moved**2 / 0.5
    wanted = [4 * moved * (math.cosh(0.25) - 1), straight, square, ((1 - moved) ** 2 - 1) / 0.5]
    np.testing.assert_allclose(found["terms"][[0, 1, 3, 4]], wanted)


@pytest.mark.parametrize(("activation", "remedy"), [("relu", "larger width than 2"), ("softmax", "smaller weights")])
def test_a_zero_kernel_names_seed_activation_and_remedy(activation, remedy, monkeypatch):
    monkeypatch.setattr("attnbook.softmax_ntk.training.ntk_gram", lambda *_: torch.zeros(2, 3, 3).double())
    with pytest.raises(ValueError, match=rf"kernel: that of seed 7, {activation}, is zero.*{remedy}"):
        train(Problem(activation, 2, 3, 5), (7, 1), device="cpu", max_steps=1)


@pytest.mark.parametrize("start", ["paired", "opposite_signs", "independent"])
def test_networks_that_do_not_start_at_zero_fit_their_output_plus_the_labels(start):
    run = train(Problem("softmax", 16, 5, 7, start=start), (0, 1), device="cpu", max_steps=1)
    np.testing.assert_allclose(run.descent.loss[0], 2.5, rtol=1e-9)  # five labels of norm one, halved


def test_a_kernel_at_rest_multiplies_residuals_by_a_matrix():
    problem = Problem("softmax", 32, 5, 7)
    run = train(problem, (3,), device="cpu", max_steps=1, samples=own.slowest(problem, (3,)))
    kernel, y = run.kernel[0].numpy(), run.labels[0, 0].numpy()
    np.testing.assert_allclose(kernel @ y, run.eigenvalues[0, 0] * y, atol=1e-12)  # the weakest direction
    assert y @ y == pytest.approx(5)
    y = np.arange(5.0)
    (mu,), (parts,) = own.spectrum(kernel[None], y[None])
    for length in (1.0, 0.3):
        one_step = np.eye(5) - length / mu[-1] * kernel
        left = [np.linalg.norm(np.linalg.matrix_power(one_step, t) @ y) ** 2 / (y @ y) for t in (0, 1, 6)]
        np.testing.assert_allclose(own.at_rest(mu, parts, [0, 1, 6], length), left, rtol=1e-9)


def test_curvature_is_that_of_the_sum_of_squares_written_out():
    """For exp the Hessian is the Jacobian's square and a block for each neuron: its sign times its exponentials."""
    data = own.curvature.run(seeds=(2,), widths=(6,), samples=4).sel(network="exp").squeeze()
    run = train(Problem("exp", 6, 4, 4), (2,), device="cpu", max_steps=1)
    x, w, a, y = run.inputs[0], run.start.first_layer[0], run.start.signs[0, 0], run.labels[0, 0]
    e = torch.exp(x @ w)
    jacobian = (x[:, :, None] * (a * e)[:, None]).flatten(1)
    blocks = torch.einsum("n,nr,ni,nj->rij", e @ a - y, a * e, x, x)
    whole = jacobian.T @ jacobian
    for r in range(6):
        whole[r::6, r::6] += blocks[r]
    mu = torch.linalg.eigvalsh(whole)
    assert float(data.lowest) == pytest.approx(float(mu[0] / mu[-1]))
    assert float(data.negative) == pytest.approx(float((mu < -1e-9 * mu[-1]).double().mean()))


def largest_for_smallest(data):
    """As if the theorem were told the largest eigenvalue, and all labels lay along the weakest direction."""
    return data.assign(eigenvalues=data.eigenvalues[..., ::-1], parts=0 * data.parts + (np.arange(16) == 15))


scaled = red.scaled
RED = {
    own.to_zero_loss: {
        "SN-T4.2": scaled("reached", 0, width=64),
        "SN-5.3L": scaled("over_envelope", 1.3),
        "SN-5.3W": scaled("movement", lambda length: length**-0.2),
        "SN-TAB1": scaled("steps", 2, network="exp"),
    },
    own.lemmas: {
        "SN-5.3G": scaled("longest", 1000),
        "SN-E2": scaled("terms", 1 / 8, term="sum"),
        "SN-E3": scaled("terms", 100, term="denominator"),
        "SN-E4": scaled("leading", 0.7),
        "SN-E6": scaled("terms", 1000, term="curvature"),
        "SN-E7": scaled("terms", 10, term="square"),
    },
    own.wide_enough: {"SN-WIDTH": scaled("by_outputs", lambda width: width)},
    own.curvature: {"SN-CONVEX": scaled("negative", 0.3)},
}
PARTS = [
    ("SN-T4.2", scaled("over_linear", 1.05)),
    ("SN-T4.2", lambda d: d.assign(reached=1 + 0 * d.reached)),
    ("SN-T4.2", largest_for_smallest),
    ("SN-5.3L", scaled("exponent", 0.9)),
    ("SN-5.3L", scaled("exponent", 1.2)),
    ("SN-5.3W", scaled("movement", lambda length: length**-0.5, network="relu")),
    ("SN-TAB1", scaled("size_steps", lambda steps: steps)),
    ("SN-E4", scaled("terms", 0.1, term="progress")),
    ("SN-WIDTH", scaled("by_samples", lambda width: width)),
    ("SN-WIDTH", lambda d: d.assign(by_samples=3 * d.by_samples, by_outputs=3 * d.by_outputs)),
    ("SN-CONVEX", scaled("gradient", 0.3)),
    ("SN-CONVEX", scaled("lowest", 5, network="exp")),
]  # other values of the same rules


@pytest.mark.parametrize("made", RED)
def test_every_measured_claim_of_the_chapter_can_be_turned_red(made):
    others = [part for part in PARTS if part[0] in RED[made]]
    red.assert_every_claim_turns(made.measure, made.stored(), RED[made], others)


def test_the_slowest_run_is_drawn_with_model_and_bound_as_the_page_says():
    data = own.to_zero_loss.stored()
    loss, model, _, bound = own.to_zero(data, slowest=True).axes[0].lines
    assert np.log(model.get_ydata()[40]) / np.log(bound.get_ydata()[40]) == pytest.approx(4.25, abs=0.25)
    assert loss.get_ydata()[22] == pytest.approx(model.get_ydata()[int(data.step[22])], rel=0.1)


def test_what_the_page_says_of_trails():
    """Four times as many neurons, about a quarter of the trail; the gap can be seen with 4 and not with 64."""
    trail = [(own.planar(m)[0].movement() ** 2).mean() ** 0.5 for m in (4, 16, 64, 256, 1024)]
    assert all(3.5 < longer / shorter < 4.5 for longer, shorter in itertools.pairwise(trail))
    gap = {m: abs(own.planar(m)[1] - own.planar(m)[2]).max() for m in (4, 64)}
    assert gap[4] > 0.2 > 2e-3 > gap[64]


def test_what_the_page_says_of_steps_bounds_and_squares():
    """Steps over the condition number; the bound on the movement with B = 1; the square of a step and its progress."""
    data = own.to_zero_loss.stored().sel(network="softmax").isel(width=slice(1, None))
    over = (data.steps * data.eigenvalues[..., 0] / data.eigenvalues[..., -1]).median("seed")
    assert ((over > 20) & (over < 28)).all()
    moved = data.movement.median("seed").values
    assert [round(more / less) in (8, 9, 10, 11) for more, less in itertools.pairwise(moved)] == 3 * [True]
    bound = 8 * math.exp(3) * 16 / (data.eigenvalues[..., 0] * data.width)
    assert (bound.sel(width=4096) > 500 * data.movement.sel(width=4096)).all()
    terms = own.lemmas.stored().terms.isel(length=1)
    assert float(terms.sel(term="denominator").max()) < 0.1 / 20


# The program that the page shows


@pytest.mark.parametrize(("activation", "name"), [("softmax", "softmax"), (torch.exp, "exp"), (torch.relu, "relu")])
def test_the_program_of_the_page_trains_the_networks_of_the_experiment(program, activation, name):
    activation, length = program.get(activation, activation), 0.9
    (x, y), (w, votes) = program["coin"](2), program["start"](2, 16, 32, True)
    networks = Networks(name, w[None], votes[None, None])
    kernel = ntk_gram(networks, x[None])
    torch.testing.assert_close(program["kernel"](lambda w: activation(x @ w) @ votes, w), kernel[0])
    size = length / (32 * torch.linalg.eigvalsh(kernel[0])[-1])
    found = program["train"](32, activation, seed=2, length=length)["losses"]
    losses = own.train.__globals__["gradient_descent"](networks, x[None], y[None, None], size[None], max_steps=9).loss
    np.testing.assert_allclose(found[:10], losses[:, 0] / losses[0, 0], rtol=1e-9)


@pytest.mark.slow
def test_what_the_page_says_of_changes_holds(program, cells):
    """The rows of "Change it" and what the text says of pairs, shares and long steps, on the seeds of the page."""
    train, softmax = program["train"], program["softmax"]

    def arrives(run):
        return float(run["losses"][-1]) <= 1e-24

    without = train(512, lambda z: z.softmax(dim=1))
    assert without["change"] > 0.95
    assert not arrives(without)
    three = [len(train(64, seed=seed)["losses"]) for seed in (0, 1, 2)]
    assert 2.5 < three[2] / three[0] < three[2] / three[1] < 3.5
    assert three[2] > own.to_zero_loss.stored().steps.sel(network="softmax", width=64).max() > max(three[:2])
    races = [[train(64, seed=seed, pairs=pairs) for pairs in (True, False)] for seed in range(12)]
    assert all(arrives(alone) for _, alone in races)
    assert sum(len(alone["losses"]) < len(pairs["losses"]) for pairs, alone in races) >= 9
    gelu = torch.nn.functional.gelu
    assert 10 * train(512, gelu)["change"] < min(train(512, f)["change"] for f in (softmax, torch.exp, torch.relu))
    even = [train(m, lambda z: softmax(z / 2))["change"] for m in (64, 4096)]
    assert math.log(even[0] / even[1]) / math.log(64) > 1.75
    long = {length: train(512, length=length)["losses"] for length in (2.5, 6)}
    assert all(float(loss.max()) > 1 for loss in long.values())
    assert [float(loss[-1]) <= 1e-24 for loss in long.values()] == [True, False]
    exec(next(cell for cell in cells if "def alike(" in cell).split("\n\n\n")[0], program)
    assert all(float(train(m, data=program["alike"])["losses"][-1]) > 1e-5 for m in (64, 512, 4096))
    bits = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]) / 2**0.5
    left = train(512, data=lambda seed: (bits, torch.tensor([-1.0, 1.0, 1.0, -1.0])))["losses"]
    assert float(left[-1]) == pytest.approx(0.25)


def gradient(weights, signs, x, y):
    """Without the centring."""
    neurons = len(signs) * torch.softmax(torch.as_tensor(x @ weights), 1).numpy()
    return x.T @ ((neurons @ signs - y)[:, None] * neurons * signs)


def linear_loss(kernel, y, rate, steps):
    """With half as many factors."""
    return y @ np.linalg.matrix_power(np.eye(len(y)) - rate * kernel, steps) @ y / 2


@pytest.mark.parametrize(
    ("exercise", "wrong", "message"),
    [("SN-1", gradient, "centring is missing"), ("SN-21", linear_loss, "twice as many factors")],
)
def test_checks_name_a_mistake(exercise, wrong, message):
    assert message in repr(attnbook.check(exercise, wrong))
