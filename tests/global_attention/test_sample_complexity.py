"""The chapter on sample complexity: values known by hand, settings, pictures; wrong models turn claims red."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import red
import xarray as xr

from attnbook import ledger
from attnbook.core.results import plain
from attnbook.global_attention import masks as models
from attnbook.global_attention.sample_complexity import experiments, figures
from attnbook.global_attention.sample_complexity.experiments import (
    MODELS,
    PAPER_SIZES,
    EarlyStop,
    ErrorRate,
    SampleComplexity,
    Sparsity,
    fit,
    margins,
    nearest_stop,
    paper_losses,
    samples_for,
    stopped,
)

SMALL = SampleComplexity(seeds=(0, 1), n_test=512, steps=1500, snapshot=1500)
KINDS = (SampleComplexity, ErrorRate, Sparsity)


def swapped(one, other):
    """Exchange two models."""

    def change(data):
        names = [{one: other, other: one}.get(m, m) for m in data.model.values]
        return data.assign(test_loss=data.test_loss.sel(model=names).assign_coords(model=data.model))

    return change


def changed(change, **at):
    """Change the losses of some networks."""

    def of(data):
        losses = data.test_loss.copy()
        losses.loc[at] = change(losses.loc[at])
        return data.assign(test_loss=losses)

    return of


def reversed_along(dimension):
    def change(data):
        losses = data.test_loss
        return data.assign(test_loss=(losses.dims, np.flip(losses.values, losses.dims.index(dimension))))

    return change


RED = {
    SampleComplexity: {
        "GA-TAB1": swapped("baseline", "attention"),
        "GA-TAB1-headline": changed(lambda loss: loss * 10, model="attention", size=14_000),
        "GA-TAB1-l1": changed(lambda loss: loss * 10, model="l1_attention", size=10_000),
        "GA-TAB1-race": swapped("baseline", "attention"),
        "GA-F7-attention": swapped("baseline", "attention"),
        "GA-F7-l1": swapped("l1_attention", "attention"),
        "GA-X-support": lambda data: data.assign(truth=1 - data.truth),
    },
    ErrorRate: {
        "GA-T1-rate": reversed_along("size"),
        "GA-T1-tight": changed(lambda loss: loss**2, model="l1_attention"),
        "GA-T1-order": swapped("baseline", "attention"),
        "GA-C1-order": changed(lambda loss: loss * 2, model="sum_to_one"),
        "GA-C1-free": changed(lambda loss: loss * 3, model="sum_to_one"),
        "GA-P1-order": swapped("oracle", "baseline"),
        "GA-P1-gain": swapped("oracle", "baseline"),
    },
    Sparsity: {"GA-X-phase": reversed_along("k"), "GA-G1-dense-l1": swapped("baseline", "l1_attention")},
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_claim_of_the_stored_results_can_turn_red(kind):
    red.assert_every_claim_turns(kind.at("book").measurements, kind.load_stored("book"), RED[kind])


@pytest.mark.parametrize(
    "change",
    [{"sizes": (5, 7, 9)}, {"snapshot": 0}, {"snapshot": 9999}, {"seeds": ()}, {"chunk": 0}, {"n_relevant": 32}],
)
def test_impossible_settings_of_table_1_are_refused_by_name(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        SampleComplexity.at("book", **change)


def test_impossible_sizes_and_sparsities_are_refused_by_name():
    with pytest.raises(ValueError, match="sizes"):
        ErrorRate.at("book", sizes=(500, 250, 1000))
    with pytest.raises(ValueError, match="sparsities"):
        Sparsity.at("book", sparsities=(2, 4))


def test_steps_recorded_do_not_depend_on_how_long_training_lasts():
    short, long = (set(SampleComplexity.at("full", steps=n, snapshot=5000).recorded) for n in (10_000, 400_000))
    assert short == {step for step in long if step <= 10_000}
    assert {1000, 2000, 3000, 4000, 5000, 10_000} < short
    assert max(long) == 400_000


# Values known by hand.


def table(cells, seeds=2):
    """Losses (seed, size, model), 1 but for the given cells; the seeds differ by plus and minus a hundredth."""
    losses = np.ones((seeds, 6, 3))
    for (model, size), loss in cells.items():
        losses[:, PAPER_SIZES.index(size), MODELS.index(model)] = loss
    return losses * np.linspace(0.99, 1.01, seeds)[:, None, None]


def table_1_data(losses, steps=(0, 200, 400, 600, 800, 1000, 2000)):
    """Data of Table 1 with these losses, ``(record, seed, size, model)``, read at step 1000."""
    truth = np.array([[1.0, 0.0, 0.0, 1.0]] * losses.shape[1])
    weights = np.where(truth == 1, 8.0, 2.0)[:, None, None] * np.ones((1, 6, 3, 1))
    weights[:, :, 2] = np.where(truth == 1, 4.0, 0.1)[:, None]
    axes, sizes = ("seed", "size", "model"), list(PAPER_SIZES)
    made = xr.Dataset(
        {"test_loss": (("record", *axes), losses), "weights": ((*axes, "input"), weights),
         "truth": (("seed", "input"), truth)},
        {"size": sizes, "model": list(MODELS), "step": ("record", list(steps)), "snapshot": 1000,
         "n_samples": ("size", sizes)},
    )  # fmt: skip
    return red.named(SampleComplexity(), made)


def test_cells_are_read_where_they_stand():
    """Every cell has a number of its own, and so has every step: a neighbouring row, column or step gives another."""
    own = {(m, n): 10 * i + j + 1.0 for i, n in enumerate(PAPER_SIZES) for j, m in enumerate(MODELS)}
    losses = np.stack([table(own) + 1000 * record for record in range(7)])
    measured = SampleComplexity.measurements(table_1_data(losses))
    found = measured["GA-TAB1"].values
    assert found["baseline_10000"] == pytest.approx(5001)
    assert found["attention_16000"] == pytest.approx(5022)
    assert found["l1_50000"] == pytest.approx(5053)
    expected = {"attention_14000": 5012, "baseline_20000": 5041, "thousand_steps": 1}
    assert measured["GA-TAB1-headline"].values == pytest.approx(expected)
    expected = {"l1_10000": 5003, "attention_10000": 5002, "l1_20000": 5043, "thousand_steps": 1}
    assert measured["GA-TAB1-l1"].values == pytest.approx(expected)
    assert measured["GA-X-support"].values == pytest.approx({"off_over_on_attention": 0.25, "off_over_on_l1": 0.025})


def test_figure_7_counts_sizes_at_three_checkpoints():
    """Attention is ahead in four of six sizes at the first checkpoint, in all at the others; L1 in one of eighteen."""
    losses = np.stack([table({("attention", n): 0.5 for n in PAPER_SIZES}) for _ in range(7)])
    losses[1, :, :2, 1], losses[3, :, 5, 2] = 2.0, 0.1
    losses[[0, 4, 5, 6]] = 1.0  # not looked at
    measured = SampleComplexity.measurements(table_1_data(losses))
    assert measured["GA-F7-attention"].values["fraction_held"] == pytest.approx(16 / 18)
    assert measured["GA-F7-l1"].values["fraction_held"] == pytest.approx(3 / 18)  # two more where attention is at 2


def test_the_race_by_hand():
    """Attention ties once at the smallest size after step 0; the baseline's column falls by 1, 8, 16 and then 4."""
    losses = np.ones((5, 1, 6, 3))
    losses[1:, 0, 1:, 1] = 0.125
    losses[:, 0, 0, 0] = [100, 1, 4, 8, 2]
    losses[2:, 0, 4, 0] = 0.5
    data = table_1_data(losses, steps=(0, 1, 10, 100, 1000))
    found = {name: float(value[0]) for name, value in experiments.race(data).items()}
    assert found == pytest.approx({"share_ahead": 23 / 24, "largest_fall": 16, "last_fall": 4})


def test_a_common_factor_is_found_and_leaves_nothing():
    factor, off = fit(paper_losses() / 7)
    assert (float(factor), float(off)) == pytest.approx((7, 1))
    half = paper_losses() * xr.DataArray([2.0, 1, 1, 0.5, 1, 1], dims="size")  # a third of the cells by a factor 2
    assert [float(x) for x in fit(half)] == pytest.approx([1, 2 ** np.sqrt(1 / 3)])


TABLE_CLAIMS = {"GA-TAB1": (0, 1, 3, 4), "GA-TAB1-headline": (5,), "GA-TAB1-l1": (2, 6)}


def test_pictures_show_the_ledgers_rules():
    """The margins of the pictures and the rules of the claims agree, on the paper's table and on random ones."""
    rng, seen = np.random.default_rng(0), set()
    for scale in (0.0, *[0.3] * 20, *[1.5] * 20):
        losses = paper_losses() * np.exp(scale * rng.standard_normal((6, 3)))
        data = table_1_data(np.broadcast_to(losses.values, (7, 1, 6, 3)))
        measured, of_rules = SampleComplexity.measurements(data), list(margins(losses).values())
        for claim, rows in TABLE_CLAIMS.items():
            holds = ledger.judge(ledger.claim(claim), measured[claim]).outcome != "not reproduced"
            assert holds == all(float(of_rules[row]) <= 1 for row in rows), claim
            seen.add((claim, holds))
    assert len(seen) == 6
    assert all(float(margin) <= 1 for margin in margins(paper_losses()).values())


def error_rates():
    """Baseline n^-3 to n = 1000 and n^-1 from there; the others a factor of it that is known at each size."""
    sizes = np.array([250, 500, 1000, 2000, 4000, 8000])
    baseline = np.where(sizes < 1000, (sizes / 1000.0) ** -3, (sizes / 1000.0) ** -1)
    factors = {
        "baseline": np.ones(6), "attention": [0.5, 0.9, 0.5, 0.4, 0.4, 0.4], "l1_attention": [0.4] * 3 + [0.3] * 3,
        "sum_to_one": [0.9, 0.8, 0.7, 0.6, 0.8, 1.0], "oracle": [0.01, 0.09, 0.05, 0.1, 0.2, 0.6],
    }  # fmt: skip
    losses = np.stack([baseline * np.asarray(factors[m]) for m in ErrorRate.models], axis=-1)
    coordinates = {"size": sizes, "model": list(ErrorRate.models)}
    made = xr.Dataset({"test_loss": (("seed", "size", "model"), np.stack([losses, losses]))}, coordinates)
    return red.named(ErrorRate(), made)


def test_rates_by_hand():
    """Slopes over the three largest sizes only; the worst ratio, not the best; few samples are the smallest three."""
    found = {claim: m.values for claim, m in ErrorRate.measurements(error_rates()).items()}
    assert found["GA-T1-rate"] == pytest.approx({f"slope_{m}": -1 for m in ("baseline", "attention", "l1")})
    assert found["GA-T1-tight"]["slope_known_mask"] == pytest.approx(-1 + np.log(6) / np.log(4))
    assert found["GA-T1-order"] == pytest.approx({"attention_over_baseline": 0.9, "l1_over_baseline": 0.4})
    assert found["GA-C1-order"] == pytest.approx({"sum_to_one_over_baseline": 0.9999999999}, rel=1e-6)
    assert found["GA-C1-free"] == pytest.approx({"sum_to_one_over_attention": 2.0})
    assert found["GA-P1-order"] == pytest.approx({"share_known_best": 5 / 6, "known_over_best_trained": 2.0})
    assert found["GA-P1-gain"] == pytest.approx({"known_over_attention": 0.1})


def sparsity_data(sizes=(30, 40, 50), target=0.02):
    """The baseline's error is 1/n for the sparse teacher; L1 halves it; with the dense teacher nobody gets there."""
    losses = np.ones((2, 2, 3, 3))
    losses[:, 0] = 1 / np.array(sizes)[:, None]
    losses[:, 0, :, 2] /= 2
    losses[:, 1, 0, 2], losses[:, 1, 2, 1], losses[:, 1, 2, 2] = 0.25, 1.5, 3.0
    coordinates = {"size": list(sizes), "model": list(MODELS), "k": [4, 32], "target": target}
    return red.named(Sparsity(), xr.Dataset({"test_loss": (("seed", "k", "size", "model"), losses)}, coordinates))


def test_samples_needed_are_interpolated_on_log_axes():
    """1/n reaches 1/45 at 45 and 1/(2n) below the smallest size; an error of 1 never does."""
    needed = samples_for(sparsity_data(target=1 / 45)).transpose("k", "model")
    np.testing.assert_allclose(needed[0], [45, 45, 30], rtol=1e-12)
    assert np.isinf(needed[1]).all()


def test_dense_teacher_and_savings_by_hand():
    found = {claim: m.values for claim, m in Sparsity.measurements(sparsity_data(target=1 / 45)).items()}
    expected = {"l1_over_baseline": 3, "attention_over_baseline": 1.5, "l1_over_baseline_few_samples": 0.25}
    assert found["GA-G1-dense-l1"] == pytest.approx(expected)
    assert found["GA-X-phase"] == pytest.approx({"saving_sparsest": 1.5, "saving_dense_at_most": 1})


# Words and pictures.


def test_stopping_text_compares_the_cells_of_the_headline():
    cells = {("attention", 14_000): 3.0, ("baseline", 20_000): 4.0}
    data = table_1_data(np.stack([table({}), *[table(cells)] * 6]))
    text = figures.stopping_text(data, 200)
    assert "0.75 times the error" in text
    assert "step 200 (2 seeds)" in text
    assert "baseline falls threefold" in text
    assert "headline:" not in text
    with pytest.raises(ValueError, match="nothing recorded at 7"):
        figures.stopping_text(data, 7)


def test_the_slider_of_stops_has_one_factor_and_no_loss_leaves_its_axes():
    """What falls in training falls in the picture."""
    data = SampleComplexity.load_stored("full")
    factor, _ = fit(stopped(data, nearest_stop(data)).median("seed"))
    for step in figures.stops(data)[::5]:
        ax, losses = figures.stopping(data, step).axes[1], stopped(data, step).median("seed")
        drawn = np.stack([line.get_ydata() for line in ax.lines])
        plt.close()
        np.testing.assert_allclose(drawn, factor * losses.transpose("model", "size"))
        assert ax.get_ylim()[0] < drawn.min() < drawn.max() < ax.get_ylim()[1]


def test_rules_are_counted_over_stops():
    """The paper's own table at the last but one, else a constant one, for which four rules hold, too."""
    constant, paper = np.ones((6, 3)), paper_losses().values
    losses = np.stack([constant] * 5 + [paper / 7, constant])[:, None]
    table = figures.rules_held(table_1_data(losses, steps=(0, 200, 400, 600, 8000, 10_000, 177_828)))
    held = {rule: counts for rule, *counts in table.rows}
    assert held["all of them"] == held["baseline falls threefold to 20 000"] == ["1 of 6", "1 of 2", "no"]
    assert held["headline: attention 14 000, baseline 20 000"] == ["6 of 6", "2 of 2", "yes"]
    assert table.columns[-1] == "at the last, 177\u2009828"
    assert "One seed. The run ends at step 177\u2009828, the paper's at 400\u2009000" in table.caption
    assert "step 10\u2009000, where a typical cell is off by a factor 1 after" in table.caption
    assert figures.stops(table_1_data(losses)) == [600, 800, 1000, 2000]


@pytest.mark.parametrize("kind", [SampleComplexity, EarlyStop])
@pytest.mark.parametrize("size", ["book", "full"])
def test_settings_say_what_was_run(kind, size):
    """Seeds, steps and snapshot of the stored tables, of which the longest need not be as long as the paper's."""
    ready, data = kind.at(size), kind.load_stored(size)
    assert data.settings == plain(ready)
    assert data.seed.values.tolist() == list(ready.seeds)
    assert (int(data.step[-1]), int(data.snapshot)) == (ready.steps, ready.snapshot)


def test_the_stops_are_as_the_page_says():
    """One seed obeys all rules early and never late, five seeds' medians never; a mask stays ahead to the end."""
    tables = [figures.rules_held(kind.load_stored("full")).rows for kind in (SampleComplexity, EarlyStop)]
    long, five = ({rule: counts for rule, *counts in rows} for rows in tables)
    assert not long["all of them"][0].startswith("0 ")
    assert long["all of them"][1].startswith("0 ")
    assert five["all of them"][0].startswith("0 ")
    few, late = map(int, long["baseline falls threefold to 20 000"][1].split(" of "))
    assert few < late / 2
    assert long["headline: attention 14 000, baseline 20 000"][2] == "yes"


def test_pictures_and_tables_are_drawn_from_smoke_results(smoke_results):
    table_1, rate, sparsity = (smoke_results[kind.id] for kind in KINDS)
    drawn = [
        figures.convergence(table_1),
        *(draw(table_1, 20) for draw in (figures.table_1, figures.stopping)),
        figures.errors({"short": rate.test_loss, "long": rate.test_loss}),
        figures.errors({"dense": sparsity.test_loss.isel(k=-1)}),
        figures.sample_curves(sparsity),
    ]
    for figure in drawn:
        assert all(ax.get_xlabel() or figure.get_supxlabel() or ax.get_subplotspec() for ax in figure.axes)
        figures.plt.close(figure)
    assert "paper 2.1063" in figures.cells(table_1, 20)._repr_html_()


# Wrong models.


def outcomes(data):
    return {i: ledger.judge(ledger.claim(i), m).outcome for i, m in SMALL.measurements(data).items()}


@pytest.fixture(scope="module")
def honest_outcomes():
    return outcomes(SMALL.run(device="cpu"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutation", "red"),
    [
        ("mask never trained", ("GA-TAB1", "GA-F7-attention", "GA-X-support")),
        ("penalty with the wrong sign", ("GA-TAB1-l1", "GA-F7-l1", "GA-X-support")),
        ("mask gradient with the wrong sign", ("GA-TAB1", "GA-TAB1-headline")),
    ],
)
def test_a_wrong_model_turns_claims_red(mutation, red, honest_outcomes, monkeypatch):
    """Guards that the rules can fail: each mutation breaks the claims that depend on what it breaks."""
    honest = models.loss_and_gradient

    def gradient(parameters, batch):
        losses, gradients = honest(parameters, batch)
        if mutation == "mask gradient with the wrong sign":
            gradients["mask"] = -gradients["mask"]
        return losses, gradients

    original = models._mask_rule

    def rule(members, to):
        trained, penalty = original(members, to)
        if mutation == "mask never trained":
            trained.zero_()
        return trained, -penalty if mutation == "penalty with the wrong sign" else penalty

    monkeypatch.setattr(models, "loss_and_gradient", gradient)
    monkeypatch.setattr(models, "_mask_rule", rule)
    mutated = outcomes(SMALL.run(device="cpu"))
    for claim in red:
        assert honest_outcomes[claim] != "not reproduced"
        assert mutated[claim] == "not reproduced", claim
