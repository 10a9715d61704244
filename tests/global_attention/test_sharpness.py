"""Sharpness: the algebra of Theorem 4, training against plain torch, rules that can fail, exercises, the page."""

import itertools
import json
import math
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from red import outcome, scaled
from torch.nn import functional

import attnbook
from attnbook import lab, ledger
from attnbook.core.rng import stream, to_tensor
from attnbook.data import Images
from attnbook.global_attention.batches import Batches, initial_network
from attnbook.global_attention.digit_classifiers import accuracy, loss_hessian, train_classifiers, weights_at
from attnbook.global_attention.noisy_digits import Scene, draw_noisy_digits
from attnbook.global_attention.rescaling import Minimum, hessian_scaling, output, rescale

ROOT = Path(__file__).parents[2]
own = lab.load_script(ROOT / "chapters" / "global_attention" / "sharpness.py")
MADE = {name: getattr(own, name) for name in ("hessian_spectrum", "weight_decay", "orbit", "norms")}
CPU = torch.device("cpu")
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # in forward derivatives
FACTORS = list(itertools.product((0.01, 0.3, 10.0), (0.1, 10.0)))


@pytest.fixture(scope="module")
def stored():
    return {name: made.stored() for name, made in MADE.items()}


@pytest.fixture(scope="module")
def smoke(smoke_results):
    return {name: smoke_results[made.id] for name, made in MADE.items()}


@pytest.mark.parametrize("seed", [0, 1])
def test_theorem_4_same_function_no_gradient_and_a_hessian_scaled_from_both_sides(seed):
    first, inputs = Minimum.draw(seed), stream(seed, "orbit").standard_normal((11, 7))
    delta = first.dense.diagonal()[:7].max()
    for factors in FACTORS:
        scaling = hessian_scaling(7, 5, *factors)
        np.testing.assert_allclose(output(first.network(*factors), inputs), output(first.network(), inputs), rtol=1e-12)
        there = first.hessian(*factors)
        np.testing.assert_allclose(there.dense(), first.dense * np.outer(scaling, scaling), rtol=1e-10, atol=1e-10)
        assert float(there.gradient.abs().max()) < 1e-12
        assert np.linalg.eigvalsh(there.dense().numpy())[-1] >= (1 - 1e-9) * delta / factors[0] ** 2
    assert first.sharpness(0.001, 1.0) / first.sharpness(0.01, 1.0) == pytest.approx(100, rel=1e-3)


def parts(vector):
    mask, hidden, decoder = np.split(vector, [7, 42])
    return mask, hidden.reshape(5, 7), decoder[None]


def test_theorem_4_volumes_grow_and_losses_around_the_minimum_stay():
    first, rng = Minimum.draw(0), np.random.default_rng(0)
    images = [np.concatenate([part.ravel() for part in rescale(*parts(unit), 0.3, 5.0)]) for unit in np.eye(47)]
    volume = -np.log(hessian_scaling(7, 5, 0.3, 5.0)).sum()
    assert volume == pytest.approx(np.linalg.slogdet(np.array(images))[1])
    assert volume == pytest.approx((7 - 5) * math.log(0.3) + (35 - 5) * math.log(5))
    for _ in range(10):
        near = [array + 0.01 * rng.standard_normal(array.shape) for array in first.network()]
        both = tuple(near), rescale(*near, 1.0, 1e3)
        losses = [np.square(output(at, first.inputs) - first.labels).mean() for at in both]
        assert losses[0] > 1e-6
        assert losses[1] == pytest.approx(losses[0], rel=1e-10)


def test_dead_units_are_a_minimum_with_no_sharp_equivalent():
    """Why Theorem 4 needs a positive entry: all units off and labels zero, and the Hessian is zero everywhere."""
    ones = np.ones((5, 3))
    dead = Minimum(np.ones(3), -ones, np.ones((1, 5)), np.ones((7, 3)), np.zeros((1, 7)))
    assert dead.hessian().loss == 0
    assert dead.sharpness(1e-3, 1e3) == 0


@pytest.mark.parametrize("seed", [0, 1])
def test_the_least_penalty_vanishes_as_the_mask_grows_and_the_sharpness_does_not(seed):
    """The line of least penalty: the penalty is 1 / a times its value at one, entries of the first layer a times."""
    first = Minimum.draw(seed)

    def penalty(mask_factor, hidden_factor):
        return sum(np.square(layer).sum() for layer in first.network(mask_factor, hidden_factor)[1:])

    at_one, block = first.least_penalty_factor(1.0), slice(7, 42)
    for grown in (10.0, 100.0):
        factor = first.least_penalty_factor(grown)
        assert penalty(grown, factor) == pytest.approx(penalty(1.0, at_one) / grown)
        assert penalty(grown, factor) < min(penalty(grown, 1.01 * factor), penalty(grown, 0.99 * factor))
        diagonal = first.dense.diagonal()[block] * hessian_scaling(7, 5, grown, factor)[block] ** 2
        expected = grown * first.dense.diagonal()[block] * hessian_scaling(7, 5, 1.0, at_one)[block] ** 2
        np.testing.assert_allclose(diagonal, expected, rtol=1e-12)
        assert first.sharpness(grown, factor) >= (1 - 1e-9) * diagonal.max()


def test_what_is_allowed_is_what_the_assumptions_say():
    first = Minimum.draw(1)
    for factors in itertools.product((0.2, 0.6, 1.0, 1.04, 2.0), (0.3, 1.0, 2.9, 3.1)):
        mask, hidden, decoder = first.network(*factors)
        norms = (
            np.linalg.norm(hidden) <= 3 * np.linalg.norm(first.hidden),
            np.linalg.norm(decoder) <= 3 * np.linalg.norm(first.decoder),
        )
        assert first.allowed(*factors) == (mask.max() <= 1 and all(norms))


def small_data(seed=0):
    rng = np.random.default_rng(seed)
    images, labels = rng.integers(0, 256, (61, 5, 5), dtype=np.uint8), rng.integers(0, 10, 61, dtype=np.uint8)
    pictures = Images(images[:43], labels[:43], images[43:], labels[43:], tuple("0123456789"), "random")
    return draw_noisy_digits(pictures, Scene(7, 4), n_train=37, n_test=17, seed=seed)


def trained(attends, decays, **changes):
    options = {"width": 3, "step_size": 0.1, "steps": 13, "record_every": 5, "device": CPU} | changes
    return train_classifiers(small_data(), 0, attends, decays, **options)


def plain_outputs(weights, inputs):
    before = (torch.as_tensor(inputs).to(weights["mask"]) * weights["mask"]) @ weights["hidden"].T
    return functional.softplus(before, beta=10.0, threshold=40.0) @ weights["decoder"].T


def test_networks_are_trained_as_plain_torch_trains_them():
    """One with a mask and a decay, beside another; torch's own SGD, losses and batches."""
    history, data = trained((False, True), (0.0, 0.2)), small_data()
    rows, start = Batches([(0,)], [37], [0], 64, CPU), initial_network([0], 49, 3, 10)
    leaves = {name: to_tensor(start[name][0]).requires_grad_() for name in ("mask", "hidden", "decoder")}
    labels, rule = torch.as_tensor(data.train_labels), torch.optim.SGD(leaves.values(), lr=0.1, momentum=0.9)
    for step in range(13):
        chosen = rows(step)[0]
        rule.zero_grad()
        loss = functional.cross_entropy(plain_outputs(leaves, data.train[chosen]), labels[chosen])
        (loss + 0.1 * (leaves["hidden"].square().sum() + leaves["decoder"].square().sum())).backward()
        rule.step()
    last = weights_at(history, -1, 1, device=CPU)
    for name, leaf in leaves.items():
        torch.testing.assert_close(last[name], leaf.detach(), rtol=1e-4, atol=1e-5)
    final = functional.cross_entropy(plain_outputs(last, data.train), labels)
    assert history.records["train_loss"][-1, 1] == pytest.approx(final.item(), rel=1e-5)
    right = plain_outputs(last, data.test).argmax(1).numpy() == data.test_labels
    assert accuracy(last, data.test, data.test_labels) == right.mean()
    assert history.steps.tolist() == [0, 5, 10, 13]
    assert (history.records["mask"][:, 0] == 1).all()
    assert (history.records["mask"][-1, 1] != 1).all()


@pytest.mark.parametrize("folded", [False, True])
def test_hessians_are_those_of_automatic_differentiation(folded):
    data, last = small_data(), weights_at(trained((False, True), (0.0, 0.0)), -1, 1, device=CPU)
    weights = {name: tensor.double() for name, tensor in last.items()}
    names = ["hidden", "decoder"] if folded else ["mask", "hidden", "decoder"]
    fixed = weights | (
        {"mask": torch.ones(49).double(), "hidden": weights["hidden"] * weights["mask"]} if folded else {}
    )

    def loss(vector):
        split = vector.split([fixed[name].numel() for name in names])
        at = fixed | {name: part.view_as(fixed[name]) for name, part in zip(names, split, strict=True)}
        return functional.cross_entropy(plain_outputs(at, data.train), torch.as_tensor(data.train_labels))

    point = torch.cat([fixed[name].flatten() for name in names])
    expected = torch.func.hessian(loss)(point)
    found = loss_hessian(last, data, folded=folded).dense().double()
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def test_attention_is_stopped_at_the_first_record_with_the_loss_of_the_baseline():
    data = own.hessian_spectrum.run("smoke", steps=60, width=8, seeds=(0,))
    goal, stop = data.train_loss.sel(network="baseline").item(), data.stopped_at.item()
    options = {"width": 8, "step_size": 0.1, "steps": 60, "record_every": 5, "device": CPU}
    history = train_classifiers(own.noisy("digits", 53, 47, 9, 0), 0, (False, True), (0.0, 0.0), **options)
    assert 0 < stop < 60
    assert data.train_loss.sel(network="equal_loss") <= goal
    assert (history.records["train_loss"][history.steps < stop, 1] > goal).all()


def test_without_a_decay_the_networks_are_those_of_the_spectra(smoke):
    found, other = smoke["weight_decay"].train_loss.isel(decay=0), smoke["hessian_spectrum"].train_loss
    np.testing.assert_allclose(found, other.isel(step_size=0, network=[0, 1]), rtol=1e-4)


def test_the_decay_is_chosen_in_sample_and_before_the_first_that_takes_too_much(smoke):
    """A later decay that takes less by chance is not chosen, and test images are not looked at."""
    data = smoke["weight_decay"]
    share, gain = (0 * data.train_accuracy + values for values in ([1.0, 0.995, 0.98, 1.0], [0.5, 0.4, 0.9, 0.9]))
    made_up = data.assign(train_accuracy=share, test_accuracy=gain)
    assert (own.allowed_decay(made_up) == 1).all()
    values = own.weight_decay.measure(made_up)["GA-G1-l2-accuracy"].values
    assert values["gain_attention"] == pytest.approx(-0.1)
    assert values["best_gain_attention"] == pytest.approx(0.4)


def swapped(name, dimension, one, other):
    def change(data):
        found = data[name].copy()
        found.loc[{dimension: one}], found.loc[{dimension: other}] = (
            data[name].sel({dimension: other}).values,
            data[name].sel({dimension: one}).values,
        )
        return data.assign({name: found})

    return change


RED = {
    "GA-T4-orbit": lambda d: d.assign(allowed=0 * d.allowed + 1),
    "GA-G1-l2-sharp": scaled("penalised_sharpness", 3),
    "GA-T1-norms": swapped("norm", "model", "baseline", "attention"),
    "GA-T1-norms-masked": swapped("norm", "model", "baseline", "attention"),
    "GA-F3-bulk": scaled("eigenvalues", 2, spectrum="attention", rank=50),
    "GA-F3-top": scaled("eigenvalues", 0.1, spectrum="attention", rank=1),  # it fails, and must be made to hold
    "GA-F3-equal-loss": swapped("eigenvalues", "spectrum", "baseline", "equal_loss_folded"),
    "GA-G1-l2-accuracy": lambda d: d.assign(test_accuracy=1 - d.test_accuracy),
}


@pytest.mark.parametrize("claim", RED)
def test_a_changed_array_turns_its_claim(claim, stored):
    made = MADE[ledger.claim(claim).experiment.split(".")[1]]
    data = stored[made.id.split(".")[1]]
    before, after = (made.measure(each)[claim] for each in (data, RED[claim](data)))
    assert outcome(ledger.claim(claim), after) not in (None, outcome(ledger.claim(claim), before))


def test_every_claim_of_the_chapter_is_measured_or_says_why_not():
    mine = [claim for claim in ledger.claims() if claim.chapter == "global_attention/sharpness"]
    assert {claim.id for claim in mine if claim.experiment} == set(RED)
    assert {claim.id for claim in mine if claim.verdict == "identity"} == {
        "GA-T4-sharp",
        "GA-T4-volume",
        "GA-G1-l2-escape",
    }


@pytest.mark.parametrize("size", ["book", "full"])
def test_numbers_of_the_page(size):
    data = own.hessian_spectrum.stored(size)
    assert (data.lowest < 0).all()  # where training ends is no minimum
    assert (-data.lowest / data.eigenvalues.sel(rank=1)).median("seed").max() < 0.1
    ratio = own.over_baseline(data.eigenvalues, "spectrum").median("seed")
    assert (ratio.sel(rank=50, spectrum="attention") < 1).all()
    assert (ratio.sel(rank=1, spectrum="attention") > 1).all()
    assert (ratio.sel(rank=1, spectrum=["equal_loss", "equal_loss_folded"]) > 1.1).all()
    gain = data.accuracy.sel(network="equal_loss") - data.accuracy.sel(network="baseline")
    assert (gain.median("seed") > 0.02).all()


def test_a_reader_s_ratios_are_drawn_and_the_slider_s_question_has_its_answer(stored):
    figure, first = own.ratios(stored["hessian_spectrum"], {"mine": 1.5}), Minimum.draw(0)
    assert "yours: mine" in [text.get_text() for text in figure.legends[0].get_texts()]
    plt.close("all")
    assert "the largest eigenvalue is 1 times" in own.orbit_text(first, 1.0, 1.0)
    found = [first.sharpness(a, b) / first.sharpness(1.0, 1.0) for a in (0.03, 0.3, 1.0, 3.0) for b in (0.1, 1.0, 10.0)]
    assert min(found) > 0.1
    assert max(found) > 100


def by_hand(hessian, p, d, logs):
    pairs = itertools.product(np.exp(logs), repeat=2)
    scalings = [np.repeat([1 / a, 1 / b, a * b], [p, p * d, d]) for a, b in pairs]
    return min(np.linalg.eigvalsh(s[:, None] * hessian * s)[-1] for s in scalings)


def relative(hessian, weights):
    return np.linalg.eigvalsh(weights[:, None] * hessian * weights)[-1]


@pytest.mark.parametrize(
    ("exercise", "right", "wrong", "hint"),
    [
        ("GA-L2", lambda *a: by_hand(*a, np.linspace(-0.3, 0.7, 81)), lambda *a: by_hand(*a, [0.0]), "at the start"),
        ("GA-L3", relative, lambda h, w: np.linalg.eigvalsh(h)[-1], "rescaling changes it"),
        ("GA-L3", relative, lambda h, w: relative(h, 1 / w), "divided"),
        ("GA-L3", relative, lambda h, w: relative(h, w**2), "once, not twice"),
        ("GA-L3", relative, lambda h, w: relative(h, np.ones(7)) * (w @ w), "its own"),
    ],
)
def test_exercises_accept_the_right_answer_and_name_the_mistake(exercise, right, wrong, hint):
    assert attnbook.check(exercise, right).right
    assert hint in attnbook.check(exercise, wrong).message


def test_the_relative_sharpness_is_one_number_for_the_whole_orbit():
    first = Minimum.draw(0)
    found = []
    for factors in [(1.0, 1.0), *FACTORS]:
        weights = np.concatenate([part.ravel() for part in first.network(*factors)])
        found.append(relative(first.hessian(*factors).dense().numpy(), weights))
    np.testing.assert_allclose(found, found[0], rtol=1e-9)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: rescale(*Minimum.draw(0).network(), 0.0, 1.0), "mask_factor"),
        (lambda: hessian_scaling(7, 5, 1.0, math.inf), "hidden_factor"),
        (lambda: trained((True,), (0.0, 0.1)), "decays"),
        (lambda: own.weight_decay.run("smoke", decays=(0.1, 0.2)), "decays"),
        (lambda: own.hessian_spectrum.run("smoke", images="letters"), "images"),
        (lambda: own.hessian_spectrum.run("smoke", step_sizes=()), "step_sizes"),
    ],
)
def test_bad_input_is_named(call, name):
    with pytest.raises((ValueError, TypeError), match=name):
        call()


def test_a_softplus_network_is_the_same_only_with_its_sharpness_rescaled():
    mask, hidden, decoder = Minimum.draw(0).network()
    inputs = stream(0, "softplus").standard_normal((13, 7))

    def outputs(network, sharpness):
        return network[2] @ np.logaddexp(0, sharpness * (network[1] * network[0]) @ inputs.T) / sharpness

    before, new = outputs((mask, hidden, decoder), 5.0), rescale(mask, hidden, decoder, 0.2, 3.0)
    np.testing.assert_allclose(outputs(new, 5.0 / (0.2 * 3.0)), before, rtol=1e-12)
    assert np.abs(outputs(new, 5.0) - before).max() > 1e-2


@pytest.fixture(scope="module")
def page():
    """The program of the page, and its networks of one seed."""
    cells = json.loads((ROOT / "chapters/global_attention/sharpness.ipynb").read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    program = next(source for source in sources if "def sharpness" in source)
    assert sum(bool(line.strip()) for line in program.splitlines()) <= 40
    found: dict = {}
    exec(program, found)  # the book's own
    return found


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "Adam"])
def test_the_page_s_program_does_what_its_table_says(page, optimizer):
    """Equal steps, equal loss, another optimiser, a longer run, and scale moved between mask and first layer."""
    train, sharpness, layers = page["train"], page["sharpness"], ("first", "second")
    options = {} if optimizer == "sgd" else {"optimizer": lambda weights: torch.optim.Adam(weights, lr=0.003)}
    x, y, *_ = page["data"](1)
    baseline, attention = train(x, y, mask=False, **options), train(x, y, **options)
    goal = functional.cross_entropy(page["outputs"](baseline, x), y)
    stopped, flat = train(x, y, until=goal, **options), sharpness(baseline, x, y, layers)
    assert 0.7 < sharpness(attention, x, y) / flat < 1.3
    assert sharpness(stopped, x, y) / flat > 1.4
    if optimizer == "sgd":
        moved = stopped | {"mask": 10 * stopped["mask"], "first": stopped["first"] / 10}
        torch.testing.assert_close(page["outputs"](moved, x), page["outputs"](stopped, x), rtol=1e-3, atol=1e-3)
        assert sharpness(moved, x, y) > 30 * sharpness(stopped, x, y)
        longer = sharpness(train(x, y, mask=False, steps=1200), x, y, layers)
        assert 0.4 < longer / flat < 0.65
        assert longer < sharpness(attention, x, y)


def test_the_page_s_sharpness_is_the_largest_eigenvalue(page):
    x, y, *_ = page["data"](0, n=53)
    w = page["train"](x, y, steps=11)
    small = {"first": w["first"][:, 200:205], "second": w["second"], "mask": w["mask"][200:205]}
    x = x[:, 200:205]
    sizes = [small[name].numel() for name in ("mask", "first", "second")]

    def loss(vector):
        split = zip(("mask", "first", "second"), vector.split(sizes), strict=True)
        return functional.cross_entropy(page["outputs"]({k: v.view_as(small[k]) for k, v in split}, x), y)

    whole = torch.func.hessian(loss)(torch.cat([small[k].flatten() for k in ("mask", "first", "second")]))
    assert page["sharpness"](small, x, y, products=300) == pytest.approx(
        torch.linalg.eigvalsh(whole)[-1].item(), rel=1e-2
    )
