"""The chapter on samples: values known by hand, rules that can fail, the program of the page, pictures."""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import red
import torch
import xarray as xr

from attnbook import lab, ledger

CHAPTER = Path(__file__).parents[2] / "chapters" / "global_attention" / "sample_complexity.py"
own = lab.load_script(CHAPTER)
MADE = {name: getattr(own, name) for name in ("error_rate", "sparsity", "wrong_limit", "table_1", "width", "silencing")}


@pytest.fixture(scope="module")
def stored():
    return {name: made.stored() for name, made in MADE.items()}


def named(made, data, size="book"):
    return data.assign_attrs(experiment=made.id, settings=lab.plain(made.settings(size)))


def measured(made, data):
    return {claim: one.values for claim, one in made.measure(named(made, data)).items()}


def grid(values, **axes):
    """Two seeds with the same losses."""
    axes = {name: list(axis) for name, axis in axes.items()}
    return xr.Dataset({"test_loss": (("seed", *axes), np.stack([values, values]))}, axes)


def test_samples_needed_are_interpolated_on_log_axes():
    """1/n reaches 1/45 at 45, whatever a later rise; 1/(2n) is there with the fewest samples; 1 never is."""
    curves = [[1 / 30, 1 / 40, 1 / 50, 1 / 20], [1 / 60, 1 / 80, 1 / 100, 1 / 120], [1.0] * 4]
    found = own.needed(grid(np.array(curves), model=range(3), size=[30, 40, 50, 60]).test_loss, 1 / 45)
    np.testing.assert_allclose(found[0], [45, 30, np.inf])


def test_savings_by_hand():
    """No mask has 64/n for every teacher, a limited one 2k/n; so it saves 32/k."""
    sizes, teachers = np.array(own.SIZES) * 1.0, [2, 4, 8, 16, 32]
    losses = np.array([[[64 / n, 2 * k / n, 2 * k / n] for n in sizes] for k in teachers])
    data = grid(losses, relevant=teachers, size=own.SIZES, model=["no mask", "limited mask", "told"])
    found = measured(own.sparsity, data)
    assert found["GA-X-phase"] == pytest.approx({f"saving_{k}": 32 / k for k in teachers})
    assert found["GA-X-law"] == pytest.approx({"least_over_law": 1, "most_over_law": 1})


def test_errors_are_compared_where_the_rules_say():
    """With 32 samples the limited mask is far off, which the rules leave out; the slope is that of the middle."""
    sizes, models = np.array(own.SIZES) * 1.0, list(own.MODELS)
    factors = {"limited mask": 0.2, "told": 0.1, "L1 mask": 0.25, "group penalty": 0.5, "mask with sum one": 0.9}
    losses = np.stack([factors.get(m, 1.0) * 40 / sizes for m in models], axis=1)
    losses[0, models.index("limited mask")], losses[-1, models.index("limited mask")] = 50.0, 0.2 * 40 / 4096
    strength = np.tile(np.r_[np.ones(4), np.zeros(28)], (2, 8, 7, 1))
    strength[:, 3, models.index("limited mask"), 0] = 0
    strength[..., models.index("free mask"), 4:] = 0.5
    data = grid(losses, size=own.SIZES, model=models).assign(
        strength=(("seed", "size", "model", "input"), strength),
        truth=(("seed", "input"), np.tile(np.arange(32) < 4, (2, 1)) * 1.0),
        bias=(("seed", "size", "model"), np.full((2, 8, 7), 0.01)),
    )
    found = measured(own.error_rate, data)
    assert found["GA-T1-order"] == pytest.approx({"limited_over_no_mask": 0.2})
    assert found["GA-T1-rate"] == found["GA-T1-tight"] == pytest.approx({"slope_limited": -1})
    assert found["GA-P1-order"] == pytest.approx({"told_over_limited": 0.5, "told_over_free": 0.1})
    assert found["GA-P1-gain"] == pytest.approx({"limited_over_told": 2, "share_found": 6 / 7})
    assert found["GA-C1-order"]["sum_to_one_over_no_mask"] == pytest.approx(0.9)
    assert found["GA-C1-free"]["sum_to_one_over_free_mask"] == pytest.approx(0.9)
    assert found["GA-A6"]["bias_over_bound"] == pytest.approx(2 * 0.01 / (0.2 * 40 / 4096) ** 0.5)
    assert found["GA-X-support"] == pytest.approx({"off_over_on_free": 0.5, "off_over_on_L1": 0})
    assert found["GA-X-group"] == pytest.approx({"saving_group": 2, "saving_l1": 4})


def table(losses, steps):
    data = grid(np.moveaxis(losses, 0, -1), size=own.PAPER_SIZES, model=own.THREE, step=steps)
    return data.transpose("step", "seed", "size", "model")


def test_cells_of_table_1_are_read_where_they_are():
    """Every cell and every step has a number of its own: a neighbouring row, column or step gives another."""
    cells = 10 * np.arange(6)[:, None] + np.arange(3) + 1.0
    steps = [0, 1000, 2500, 6000]
    found = measured(own.table_1, table(np.stack([cells + 1000 * i for i in range(4)]), steps))
    assert found["GA-TAB1"]["attention_16000"] == 2022
    assert found["GA-TAB1-headline"] == {"attention_14000": 2012, "baseline_20000": 2041, "thousand_steps": 2.5}
    l1 = {"l1_10000": 2003, "attention_10000": 2002, "l1_20000": 2043, "thousand_steps": 2.5}
    assert found["GA-TAB1-l1"] == l1


def test_speed_is_the_time_to_a_loss():
    """No mask is a record later than a free one at three losses, L1 is later at one; 0.0003 is never reached."""
    paths = {"no mask": [1, 0.5, 0.05, 0.005, 5e-4], "free mask": [1, 0.05, 5e-3, 5e-4, 5e-4]}
    paths["L1 mask"] = [1, 0.5, 5e-3, 5e-4, 5e-4]
    losses = np.stack([np.tile(paths[m], (6, 1)) for m in own.THREE], axis=2).transpose(1, 0, 2)
    data = table(losses, [0, 1000, 2500, 4000, 6000])
    times = own.time_to(data.test_loss).isel(seed=0, size=2)
    assert times.sel(model="no mask").values.tolist() == [2500, 4000, 6000, np.inf]
    found = measured(own.table_1, data)
    assert found["GA-F7-attention"]["fraction_held"] == 1
    assert found["GA-F7-l1"]["fraction_held"] == pytest.approx(2 / 3)


def test_steps_recorded_do_not_depend_on_how_long_training_lasts():
    short, long = (set(own.recorded(n, 5000)) for n in (10_000, 400_000))
    assert short == {step for step in long if step <= 10_000}
    assert {1000, 2000, 3000, 4000, 5000, 10_000} < short
    assert max(long) == 400_000


def swapped(one, other):
    def change(data):
        names = [{one: other, other: one}.get(m, m) for m in data.model.values.tolist()]
        return data.assign(test_loss=data.test_loss.sel(model=names).assign_coords(model=data.model))

    return change


def reversed_along(dimension):
    return lambda data: data.assign(test_loss=data.test_loss.copy(data=np.flip(
        data.test_loss.values, data.test_loss.dims.index(dimension)
    )))  # fmt: skip


LIMITED, TOLD, NO = {"model": "limited mask"}, {"model": "told"}, {"model": "no mask"}
RED = {
    "error_rate": {
        "GA-T1-rate": reversed_along("size"),
        "GA-T1-tight": red.scaled("test_loss", lambda loss: loss, **LIMITED),
        "GA-T1-order": swapped("no mask", "limited mask"),
        "GA-P1-order": swapped("told", "free mask"),
        "GA-P1-gain": red.scaled("test_loss", 1.2, **LIMITED),
        "GA-C1-order": red.scaled("test_loss", 1.5, model="mask with sum one"),
        "GA-C1-free": red.scaled("test_loss", 1.5, model="mask with sum one"),
        "GA-A6": red.scaled("bias", 5),
        "GA-X-support": lambda data: data.assign(truth=1 - data.truth),
        "GA-X-group": swapped("no mask", "group penalty"),
    },
    "sparsity": {
        "GA-X-phase": reversed_along("relevant"),
        "GA-X-law": red.scaled("test_loss", 3, relevant=2, **NO),
    },
    "wrong_limit": {"GA-G1-dense-l1": red.scaled("test_loss", 0.05, relevant=32, limit=16)},
    "table_1": {
        "GA-TAB1": swapped("no mask", "free mask"),
        "GA-TAB1-headline": red.scaled("test_loss", 10, model="free mask", size=14_000),
        "GA-TAB1-l1": red.scaled("test_loss", 10, model="L1 mask", size=10_000),
        "GA-F7-attention": swapped("no mask", "free mask"),
        "GA-F7-l1": swapped("L1 mask", "free mask"),
    },
    "width": {"GA-TAB1-race": reversed_along("width")},
}
PARTS = [
    ("error_rate", "GA-P1-order", red.scaled("test_loss", 1.2, **TOLD)),
    ("error_rate", "GA-P1-gain", red.scaled("strength", 0, **LIMITED)),
    ("error_rate", "GA-X-group", red.scaled("test_loss", 3, model="group penalty")),
    ("sparsity", "GA-X-law", red.scaled("test_loss", 4, relevant=16, **LIMITED)),
    ("wrong_limit", "GA-G1-dense-l1", red.scaled("test_loss", 0.2, relevant=32, limit=16, size=4096)),
    ("width", "GA-TAB1-race", swapped("no mask", "free mask")),
    ("width", "GA-TAB1-race", red.scaled("test_loss", 5, width=16)),
    ("width", "GA-TAB1-race", red.scaled("test_loss", 3, width=16, size=10_000)),
    ("width", "GA-TAB1-race", red.scaled("test_loss", 2, width=128, part="half")),
]  # other values of the same rules


@pytest.mark.parametrize("name", RED)
def test_every_claim_of_the_chapter_can_be_turned_red(name, stored):
    others = [(claim, change) for of, claim, change in PARTS if of == name]
    red.assert_every_claim_turns(MADE[name].measure, stored[name], RED[name], others)


def test_every_claim_of_the_chapter_is_measured_or_says_why_not():
    mine = {c.id: c for c in ledger.claims() if c.chapter == "global_attention/sample_complexity"}
    found = {claim for claims in RED.values() for claim in claims}
    assert set(mine) - found == {"GA-T1-all"} == {i for i, c in mine.items() if c.untestable}
    assert sum(c.source == "book" for c in mine.values()) == 3


def test_the_long_run_reaches_no_loss_later_with_a_mask(stored):
    held = {
        c: m.values["fraction_held"] for c, m in own.table_1.measure(own.table_1.stored("full")).items() if "F7" in c
    }
    assert held == {"GA-F7-attention": 1, "GA-F7-l1": 1}


def test_numbers_of_the_page(stored):
    """A free mask saves a sixth; with 4,096 samples the penalty costs half of the error more."""
    runs = stored["error_rate"]
    samples, error = own.needed(runs.test_loss).median("seed"), runs.test_loss.median("seed")
    assert 1 - samples.sel(model="free mask") / samples.sel(**NO) == pytest.approx(1 / 6, abs=0.015)
    found = [float(samples.sel(**model)) for model in (LIMITED, NO)]
    assert found == pytest.approx([135, 1100], rel=0.02)  # the landing page, too
    last = error.sel(size=4096)
    assert last.sel(model="L1 mask") > 1.5 * last.sel(**LIMITED)
    long = own.error_rate.stored("full").test_loss
    saved = own.needed(long).median("seed")
    assert saved.sel(**NO) / saved.sel(**LIMITED) == pytest.approx(6, abs=0.2)
    assert saved.sel(**NO) / saved.sel(model="L1 mask") == pytest.approx(2.5, abs=0.1)
    ratio = (long.sel(**LIMITED) / long.sel(**NO)).median("seed")
    assert ratio.sel(size=64) > 0.6
    assert ratio.sel(size=slice(128, None)).max() <= 0.16
    few = error.sel(size=32)
    assert few.sel(**LIMITED) > few.sel(model="L1 mask")
    assert error.sel(size=slice(32, 128)).sel(**NO).min() > 0.9


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: own.table_1.run("smoke", sizes=(5, 7, 9)), "sizes"),
        (lambda: own.table_1.run("smoke", snapshot=9999), "snapshot"),
        (lambda: own.table_1.run("smoke", n_relevant=32), "n_relevant"),
        (lambda: own.error_rate.run(sizes=(500, 250)), "sizes"),
        (lambda: own.error_rate.run(penalty=-1), "penalty"),
        (lambda: own.wrong_limit.run("smoke", limits=(33,)), "limit"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_pictures_draw(stored):
    drawn = [
        own.errors(stored["error_rate"], yours={"mine": {100: 0.2}}),
        own.by_relevant(stored["sparsity"], 8),
        own.saving_picture(stored["sparsity"]),
        own.by_width(stored["width"], 64),
    ]
    assert all(ax.get_ylabel() for figure in drawn for ax in figure.axes)
    assert "yours: mine" in [text.get_text() for text in drawn[0].legends[0].get_texts()]
    np.testing.assert_allclose(drawn[2].axes[0].lines[1].get_ydata(), [1, 4, 16, 64, 256])
    plt.close("all")
    assert own.samples_text(stored["sparsity"], 32).startswith("32 of 32 inputs matter.")
    assert "3328 weights, 1560 labels" in own.width_text(stored["width"], 128)


@pytest.fixture(scope="module")
def page():
    cells = json.loads(CHAPTER.with_suffix(".ipynb").read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    names = {"source": next(source for source in sources if "def strongest(" in source)}
    exec(names["source"], names)
    exec(next(source for source in sources if "def group(" in source).split("yours = ")[0], names)
    return names


def test_the_program_of_the_page_is_short_and_keeps_the_strongest(page):
    assert len([line for line in page["source"].splitlines() if line.strip()]) <= 40
    assert "attnbook" not in page["source"]
    mask, hidden = torch.tensor([-2.0, 0.5, 3.0]), torch.tensor([[3.0, 0, 0], [4.0, 1.0, 2.0]])
    assert page["strongest"](mask, hidden, 2).tolist() == [0, 0, 1]  # strengths 10, 0.5 and 6


@pytest.mark.slow
def test_what_the_page_says_of_changes_holds(page):
    """The rows of "Change it", three seeds."""

    def error(**options):
        return np.array([page["train"](256, seed=seed, **options)[0] for seed in range(3)])

    noisy = {"make": lambda seed: page["data"](seed, noise=1.0)}
    expected = [
        ({"keep": 8}, 0.055, 0.075),
        ({"keep": 3}, 0.19, 0.3),
        ({"mask": torch.ones(32), "penalty": page["group"]}, 0.03, 0.045),
        ({"keep": 4, "optimizer": lambda weights: torch.optim.SGD(weights, lr=0.3)}, 0.025, 0.04),
        ({"keep": 4, **noisy}, 0.065, 0.105),
        ({"mask": torch.ones(32), **noisy}, 1.15, 2.0),
    ]
    for options, least, most in expected:
        found = error(**options)
        assert least < found.min(), options
        assert found.max() < most, options
