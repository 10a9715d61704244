"""Digits in noise: what is read off the curves, wrong networks and changed arrays that turn claims red, pictures."""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import red
import torch
import xarray as xr

import attnbook
from attnbook import lab, ledger
from attnbook.data import DataError
from attnbook.global_attention import digit_training
from attnbook.global_attention.digit_training import MODELS, Member, Training

own = lab.load_script(Path(__file__).parents[2] / "chapters" / "global_attention" / "noisy_mnist.py")
MADE = {name: getattr(own, name) for name in ("four_networks", "noisy_mnist", "smallest_step", "pixel_penalties")}


@pytest.fixture(scope="module")
def smoke(smoke_results):
    return {name: smoke_results[made.id] for name, made in MADE.items()}


@pytest.fixture
def data(smoke):
    return smoke["noisy_mnist"].copy(deep=True)


def test_a_step_size_to_read_at_must_be_there():
    with pytest.raises(ValueError, match="read_at"):
        own.noisy_mnist.run("smoke", read_at=0.3)


def test_mnist_is_not_replaced_in_silence(monkeypatch, tmp_path):
    """Where MNIST cannot be had, a run that asks for it stops; a run that does not ask for it reads no file."""
    monkeypatch.delenv("ATTNBOOK_DATA", raising=False)
    monkeypatch.setenv("ATTNBOOK_CACHE", str(tmp_path))
    monkeypatch.setenv("ATTNBOOK_OFFLINE", "1")
    with pytest.raises(DataError, match="ATTNBOOK_DATA"):
        own.load("mnist")
    monkeypatch.setattr(own, "mnist", None)
    assert len(own.load("digits").train) >= own.noisy_mnist.settings()["n_train"]


def read(data, **changes):
    """Put curves ``(record, model)`` in place of those of Figure 2 at the step size of the claims, for all seeds."""
    for name, values in changes.items():
        values = xr.DataArray(np.asarray(values), dims=("record", "model"), coords={"model": list(MODELS)})
        data[name].loc[{"panel": "figure_2", "step_size": 0.1}] = values
    return own.noisy_mnist._measured(data)


def test_steps_to_a_loss_by_hand(data):
    """Guessing until the end; attention falls to 0, the baseline to half of guessing, which sets the test target."""
    fall = np.full((data.sizes["record"], 3), np.log(10))
    fall[-1] = np.log(10) / 2, 0.0, np.log(10)
    data["accuracy"] = 0 * data.accuracy
    data.accuracy.loc[{"panel": "figure_2", "step_size": 0.1}] = 1.0
    found, (start, end) = read(data, test_loss=fall, train_loss=fall)["GA-F2"], data.step.values[-2:]
    for name, expected in (
        ("train_steps_baseline", end),
        ("train_steps_attention", (start + end) / 2),
        ("test_steps_baseline", (start + end) / 2),
        ("test_steps_attention", start + (end - start) / 4),
    ):
        np.testing.assert_allclose(found[name], expected, err_msg=name)
    never = own.steps_to(data.test_loss.sel(panel="figure_2", step_size=0.1, model="baseline"), -1.0)
    assert (never == end).all()


def test_accuracy_at_equal_training_loss_by_hand(data):
    """Losses fall tenfold per record, and one is reached halfway between two on the log axis."""
    one = data.sel(panel="figure_2", step_size=0.1, model="attention", drop=True)
    records = np.arange(one.sizes["record"])
    one["train_loss"] = one.train_loss.copy(data=np.broadcast_to(10.0 ** -records[:, None], one.train_loss.shape))
    one["accuracy"] = one.accuracy.copy(data=np.broadcast_to(one.step.values[:, None] / 100, one.accuracy.shape))
    found = own.at_equal_loss(one, xr.full_like(one.train_loss[0], 10**-2.5))
    np.testing.assert_allclose(found, one.step.values[[2, 3]].mean() / 100)


def test_settings_in_which_nobody_learned_do_not_count(data):
    in_all = data.sizes["panel"] * data.sizes["step_size"]
    data["accuracy"] = xr.full_like(data.accuracy, 0.2)
    assert own.noisy_mnist.measure(data)["GA-F2-every"].values == {
        "fraction_held": 0.0,
        "settings": 0.0,
        "not_counted": in_all,
    }
    for panel, values in (("figure_2", (0.5, 0.7, 0.7)), ("uniform", (0.5, 0.5, 0.7))):
        data.accuracy.loc[{"panel": panel, "step_size": 0.05}] = xr.DataArray(list(values), dims="model")
    half = {"fraction_held": 0.5, "settings": 2.0, "not_counted": in_all - 2}
    assert own.noisy_mnist.measure(data)["GA-F2-every"].values == half


def alone(member, panel, width=3):
    training = Training(8, own.BATCH, own.PANELS[panel][1], width, 30, 20, own.looks(8))
    return digit_training.train_members([member], own.load("digits"), training, device=torch.device("cpu")).records


def test_every_network_is_where_its_name_says(smoke):
    """A member of each panel, figure, network and penalty, trained by itself, ends where its place in the data says."""
    scene = own.PANELS["figure_2"][0]
    expected = []
    for panel, (own_scene, _) in own.PANELS.items():
        penalty = 3e-4 if panel in own.FIGURES else 1e-3
        at = {"panel": panel, "step_size": 0.1, "model": "l1_attention"}
        expected.append(("noisy_mnist", at, Member("l1_attention", 1, own_scene, 0.1, penalty), panel))
    for panel in own.FIGURES:
        member = Member("attention", 1, own.PANELS[panel][0], 0.001)
        expected.append(("smallest_step", {"panel": panel, "model": "attention"}, member, panel))
    for network, (model, *option) in own.NETWORKS.items():
        member = Member(model, 1, scene, own.STEP_SIZE, **dict.fromkeys(option, 0.01))
        expected.append(("four_networks", {"network": network}, member, "figure_2"))
    for path, (model, option) in own.PATHS.items():
        at = {"path": path, "step_size": 0.1, "strength": 1e-3}
        expected.append(("pixel_penalties", at, Member(model, 1, scene, 0.1, **{option: 1e-3}), "figure_2"))
    for name, at, member, panel in expected:
        found = smoke[name].test_loss.sel(seed=1, **at)
        np.testing.assert_allclose(found, alone(member, panel)["test_loss"][:, 0], rtol=1e-4, err_msg=str(at))


def test_penalties_are_read_at_their_best_setting_and_the_mask_also_at_equal_training_loss(smoke):
    data = smoke["pixel_penalties"].copy(deep=True)
    data["accuracy"], data["train_loss"] = 0 * data.accuracy, xr.ones_like(data.train_loss)
    last = data.sizes["record"] - 1
    for (path, size, strength), (level, loss) in {
        ("l1_mask", 0.05, 0.001): (0.9, 0.01),
        ("l1_mask", 0.1, 0.0): (0.7, 0.01),
        ("group_baseline", 0.1, 0.001): (0.8, 0.1),
        ("l2_baseline", 0.05, 0.0): (0.5, 0.01),
    }.items():
        where = {"path": path, "step_size": size, "strength": strength, "record": last}
        data.accuracy.loc[where], data.train_loss.loc[where] = level, loss
    expected = {"baseline": 0.5, "attention": 0.7, "l1_mask": 0.9, "l2_baseline": 0.5, "group_baseline": 0.8}
    found = own.pixel_penalties.measure(data)["GA-X-digits-sparse"].values
    assert found == pytest.approx(expected | {"equal_attention": 0.7})


def swapped(data):
    """Exchange baseline and attention of all curves."""
    order = [1, 0, *range(2, data.sizes["model"])]
    return data.assign({n: data[n].isel(model=order).assign_coords(model=data.model) for n in own.CURVES})


def better(path, by):
    """Change the accuracy of one kind of penalty."""
    return lambda data: data.assign(accuracy=data.accuracy + by * (data.path == path))


def far_ahead(data):
    """Attention right on all images, and the baseline guessing to the end."""
    ahead = xr.where(data.model == "attention", 1.0, 0.0)
    loss = data.test_loss.where(data.model == "attention", np.log(10))
    return data.assign(accuracy=data.accuracy + ahead, test_loss=loss)


RED = {
    **dict.fromkeys(("GA-F2", "GA-F2-every", "GA-F4", "GA-F5", "GA-F6"), swapped),
    "GA-X-digits-sparse": better("group_baseline", -0.2),
}
GREEN = dict.fromkeys(("GA-F2-every", "GA-F4", "GA-F5", "GA-F6"), far_ahead)
PARTS = (("l2_baseline", 0.2), ("l1_mask", 0.2), ("l1_mask", -0.2))  # other parts of the last rule


@pytest.mark.parametrize("size", ["book", "full"])
@pytest.mark.parametrize("name", ["noisy_mnist", "smallest_step", "pixel_penalties"])
def test_a_changed_result_turns_each_verdict(name, size):
    """Red for what holds; and for what does not a change that makes it hold."""
    made, data = MADE[name], MADE[name].stored(size)
    honest = red.outcomes(made.measure, data)
    turned = {i: (GREEN if o == "not reproduced" else RED)[i] for i, o in honest.items()}
    red.assert_turned(made.measure, data, turned)
    for path, by in PARTS if name == "pixel_penalties" else ():
        assert red.outcomes(made.measure, better(path, by)(data))["GA-X-digits-sparse"] == "not reproduced"


def test_claims_of_the_chapter_are_measured_or_say_why_not():
    mine = {c.id: c for c in ledger.claims() if c.chapter == "global_attention/noisy_mnist"}
    assert set(mine) - set(RED) == {"GA-F2-curves"} == {i for i, c in mine.items() if c.untestable}
    assert [c.id for c in mine.values() if c.source == "book"] == ["GA-X-digits-sparse"]


def test_numbers_in_the_text_are_those_of_the_stored_runs():
    """Accuracies of the four networks, the noise in their maps, MNIST's leads and steps."""
    runs = own.four_networks.stored()
    final = runs.accuracy.isel(record=-1).median("seed")
    assert [round(100 * float(final.sel(network=name))) for name in own.NETWORKS] == [64, 74, 86, 86]
    noise = runs.strength.sel(shot=[0, 400]).values[:, :, ~own.INSIDE].mean(-1)
    assert noise[:, :2].round(2).tolist() == [[0.23, 0.23], [0.33, 0.32]]
    assert (noise[1, 2:] < 0.03).all()
    found = own.pixel_penalties.measure(own.pixel_penalties.stored("full"))["GA-X-digits-sparse"].values
    assert round(100 * (found["l1_mask"] - found["group_baseline"])) == 6
    steps = own.smallest_step.measure(own.smallest_step.stored("full"))
    fewer = [1 - m.values["steps_attention"] / m.values["steps_baseline"] for m in steps.values()]
    assert [round(100 * one) for one in fewer] == [8, 31, 57]
    lead = own.leads(own.noisy_mnist.stored())
    assert (int((lead < 0.01).sum()), int(lead.count()), bool((lead < 0).any())) == (2, 15, False)


def test_pictures_draw():
    runs = own.four_networks.stored()
    mnist = own.noisy_mnist.stored("full").sel(step_size=0.1)
    drawn = [
        own.first(runs, np.zeros((24, 24)), {"mine": {100: 0.5, 400: 0.7}}),
        own.strengths(runs, 400),
        own.penalties(own.pixel_penalties.stored()),
        own.by_panel(mnist, ["figure_2"]),
        own.by_panel(own.smallest_step.stored("full"), own.FIGURES),
    ]
    assert "yours: mine" in [text.get_text() for text in drawn[0].legends[0].get_texts()]
    assert all(figure.axes for figure in drawn)
    plt.close("all")
    assert "group penalty" in own.strengths_text(runs, 400)
    assert own.named("uniform_plain") == "8 in 24, uniform noise, no momentum"


@pytest.mark.slow
@pytest.mark.parametrize("mutation", ["none", "mask never trained", "mask gradient with the wrong sign"])
def test_a_wrong_network_turns_claims_red(mutation, monkeypatch):
    """Guards that the rules can fail."""
    original, factor = digit_training._Network.gradient, {"none": 1, "mask never trained": 0}.get(mutation, -1)

    def gradient(self, parameters, batch):
        losses, found = original(self, parameters, batch)
        return losses, {**found, "mask": factor * found["mask"]}

    monkeypatch.setattr(digit_training._Network, "gradient", gradient)
    data = own.noisy_mnist.run(seeds=(0, 1), step_sizes=(0.1, 0.2), panels=("figure_2",))
    right = ledger.claim("GA-F2").verdict if mutation == "none" else "not reproduced"
    assert red.outcomes(own.noisy_mnist.measure, data)["GA-F2"] == right


@pytest.fixture(scope="module")
def page():
    """The program of the page, as it stands there."""
    notebook = json.loads((Path(own.__file__).with_suffix(".ipynb")).read_text(encoding="utf-8"))
    program = next(c for c in map("".join, (c["source"] for c in notebook["cells"])) if "def train(" in c)
    assert len([line for line in program.splitlines() if line.strip()]) <= 40
    names = {}
    exec(program, names)
    return names


def test_the_program_of_the_page_shrinks_pixels_as_the_library_does(page):
    """One step with a penalty is the step without it, and then the proximal map."""
    (_, _, plain), (_, _, shrunk) = (page["train"](steps=1, group=group) for group in (0.0, 0.2))
    expected = plain.T[None].clone()
    digit_training.shrink_columns(expected, torch.tensor([0.03 * 0.2 / 0.1]))
    torch.testing.assert_close(shrunk, expected[0].T)
    assert (shrunk.norm(dim=1) < plain.norm(dim=1)).all()


@pytest.mark.slow
def test_what_the_page_says_of_changes_and_of_optimisers(page):
    train, noisy = page["train"], page["noisy"]

    def end(**changes):
        curve, mask, _ = train(**changes)
        return list(curve.values())[-1][0], mask.abs()

    best = max(end(mask=True, l1=0.01)[0], end(group=0.01)[0])
    assert end(mask=True, group=0.01)[0] >= best - 0.01
    assert end(mask=True, lr=0.1, momentum=0.9)[0] >= end(mask=True)[0] - 0.01
    loud, faint = (lambda images, seed, sd=sd: noisy(images, seed, sd=sd) for sd in (1.0, 0.25))
    assert max(end(make=loud)[0], end(mask=True, make=loud)[0]) < 1 / 3
    assert end(mask=True, l1=0.01, make=loud)[0] > 2 / 3
    few = [end(make=faint, **how)[0] for how in ({}, {"mask": True}, {"mask": True, "l1": 0.01}, {"group": 0.01})]
    assert np.ptp(few) < 0.1
    inside = torch.as_tensor(own.INSIDE)
    for rule, smallest, on_noise in (
        ({"lr": 0.1, "steps": 1200}, (0.95, 1.0), (1.0, 1.05)),
        ({"optimizer": torch.optim.Adam, "lr": 0.03}, (0.0, 0.2), (0.65, 0.85)),
        ({"l1": 0.01}, (0.0, 0.01), (0.0, 0.02)),
    ):
        mask = end(mask=True, **rule)[1]
        assert smallest[0] <= mask.min() <= smallest[1]
        assert on_noise[0] <= mask[~inside].mean() <= on_noise[1]


def test_gradient_descent_keeps_the_difference_of_mask_and_weights(page):
    """With short steps a_k^2 - |w_k|^2 stays what it was; a penalty takes it away."""
    start = page["train"](mask=True, steps=1, lr=1e-9)
    short, penalised = (page["train"](mask=True, steps=30, lr=0.01, l1=l1) for l1 in (0.0, 0.3))
    kept = [a**2 - W.square().sum(1) for _, a, W in (start, short, penalised)]
    assert (kept[1] - kept[0]).abs().max() < 0.01 < 0.05 < (kept[2] - kept[0]).abs().max()


def shrink(weights, length):
    norms = np.linalg.norm(weights, axis=1, keepdims=True)
    return weights * np.maximum(1 - length / norms, 0)


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (lambda w, t: w * (1 - t / np.linalg.norm(w, axis=1, keepdims=True)), "not turn around"),
        (lambda w, t: w * t, "by a length"),
        (lambda w, t: np.sign(w) * np.maximum(abs(w) - t, 0), "by one factor"),
        (lambda w, t: shrink(w.T, t).T, "a pixel is a row"),
        (lambda w, t: shrink(w, t)[0], "a row for each pixel"),
    ],
)
def test_the_exercise_accepts_the_right_answer_and_names_the_mistake(wrong, hint):
    assert attnbook.check("GA-D2", shrink).right
    assert hint in attnbook.check("GA-D2", wrong).message


def test_the_exercise_takes_torch():
    def in_torch(weights, length):
        return weights * (1 - length / weights.norm(dim=1, keepdim=True)).clamp(min=0)

    assert attnbook.check("GA-D2", in_torch).right
