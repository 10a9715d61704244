"""Film reviews: words and polarity by hand, honest claims, wrong models turn claims red. No data is needed."""

import dataclasses
import json

import matplotlib.pyplot as plt
import numpy as np
import pytest

from attnbook import datasets, ledger
from attnbook.core.results import results_folder
from attnbook.mirror_descent import comparison
from attnbook.mirror_descent import reviews as data
from attnbook.mirror_descent.experiments import few_reviews, reviews
from attnbook.mirror_descent.experiments.optimizer_runs import gain
from attnbook.mirror_descent.figures import reviews as figures
from attnbook.mirror_descent.tables import reviews as tables

SMOKE = {module: module.Settings.smoke() for module in (few_reviews, reviews)}


@pytest.fixture(scope="module")
def smoke():
    return {module: module.run(settings, device="cpu") for module, settings in SMOKE.items()}


@pytest.fixture(scope="module")
def stored():
    return few_reviews.FewReviews.load_stored("book"), reviews.Reviews.load_stored("book")


def as_if_real(result, **change):
    return dataclasses.replace(result, settings=dataclasses.replace(result.settings, reviews="imdb"), **change)


def failed(result):
    return {v.claim.id for v in ledger.check(result).verdicts if v.outcome == "not reproduced"}


@pytest.mark.parametrize("n_tokens", [1, 3, 17])
def test_the_end_of_a_text_has_the_last_words_of_the_whole_text(n_tokens):
    labelled = datasets.labelled_reviews("synthetic", "", 5)
    ids = {word: row for row, word in enumerate(labelled.vectors.words, 1)}
    texts = [*labelled.test[:150], "a<br /><br />fine film", "", "film " + "unknownunknown " * 40]
    found = data.last_words(texts, ids, n_tokens)
    for text, row in zip(texts, found, strict=True):
        whole = [ids[word] for word in datasets.tokenise(text) if word in ids][-n_tokens:]
        assert row.tolist() == whole + [0] * (n_tokens - len(whole))


def test_polarity_by_hand():
    """Word 1 only in praise, word 2 only in blame, word 3 in both alike, word 4 too rarely apart, word 5 nowhere."""
    praise, blame = [[1, 3, 3, 4, 0]] * 40, [[2, 3, 3, 4, 0]] * 40
    signs = data.polarity(np.array(praise + blame), np.array([1] * 40 + [0] * 40), 6)
    assert signs.tolist() == [0, 1, -1, 0, 0, 0]


def test_components_keep_what_varies_most_and_are_of_equal_size():
    loaded = data.load_reviews("synthetic", "", n_words=150, n_tokens=7, dimension=5)
    assert loaded.vectors.shape == (len(loaded.words), 5)
    assert not loaded.vectors[0].any()
    np.testing.assert_allclose(np.cov(loaded.vectors[1:].T, bias=True), np.eye(5), atol=1e-9)
    with pytest.raises(ValueError, match="dimension"):
        data.load_reviews("synthetic", "", n_words=150, n_tokens=7, dimension=101)


def test_without_reviews_the_error_says_how_to_get_them(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNBOOK_DATA", str(tmp_path))
    monkeypatch.setenv("ATTNBOOK_CACHE", str(tmp_path / "cache"))
    data.load_reviews.cache_clear()
    with pytest.raises(datasets.DataError, match="attnbook data fetch imdb"):
        reviews.run(reviews.Settings.book(), device="cpu")


@pytest.mark.parametrize(
    "change", [{"n_words": 0}, {"steps": 0}, {"seeds": (1, 1)}, {"rates": ((1.0,),)}, {"compared": (1.0,) * 4}]
)
def test_impossible_settings_are_refused_by_name(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        dataclasses.replace(SMOKE[few_reviews], **change)


@pytest.mark.parametrize("change", [{"n_train": 10_000}, {"n_test": 10_000}])
def test_more_reviews_than_there_are_is_an_error(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        few_reviews.run(dataclasses.replace(SMOKE[few_reviews], **change), device="cpu")


def test_synthetic_reviews_measure_no_claim_on_real_ones(smoke):
    assert all(result.measurements() == {} for result in smoke.values())


def test_seeds_trained_apart_or_together_give_the_same_numbers(smoke, tmp_path):
    apart = few_reviews.run(dataclasses.replace(SMOKE[few_reviews], chunk=1), device="cpu", workdir=tmp_path)
    np.testing.assert_allclose(apart.effective_dimension, smoke[few_reviews].effective_dimension, rtol=1e-4)
    np.testing.assert_allclose(apart.mass, smoke[few_reviews].mass, rtol=1e-4)
    again = few_reviews.run(dataclasses.replace(SMOKE[few_reviews], chunk=1), device="cpu", workdir=tmp_path)
    np.testing.assert_array_equal(again.test_accuracy, apart.test_accuracy)


def test_a_wrong_mirror_map_turns_the_order_of_sparsity_red(monkeypatch):
    """A run on synthetic reviews has the order too; with gradient descent in all three places it is gone."""
    change = {"steps": 150, "width": 16, "n_layers": 1, "learned": False, "seeds": (0, 1, 2), "chunk": 3}
    settings = dataclasses.replace(SMOKE[reviews], n_words=200, n_train=500, batch_size=32, n_tokens=24, **change)
    assert "MD-hist" not in failed(as_if_real(reviews.run(settings, device="cpu")))
    monkeypatch.setattr(comparison, "OPTIMIZERS", {"adam": None, "p1_1": 2.0, "p2": 2.0, "p3": 2.0})
    assert {"MD-hist", "MD-hist-clear"} <= failed(as_if_real(reviews.run(settings, device="cpu")))


def test_exchanged_optimisers_turn_claims_red(stored):
    few, many = stored
    order = [0, 3, 2, 1]
    swapped = {name: getattr(many, name)[order] for name in ("effective_dimension", "near_zero")}
    assert {"MD-hist", "MD-hist-key", "MD-hist-value", "MD-hist-clear"} <= failed(dataclasses.replace(many, **swapped))
    backwards = few.effective_dimension[::-1]
    assert "MD-hist-rates" in failed(dataclasses.replace(few, effective_dimension=backwards))


def test_accuracy_that_ignores_the_step_size_turns_claims_red(stored):
    few, _ = stored
    flat = np.full_like(few.test_accuracy, 0.75)
    red = failed(dataclasses.replace(few, test_accuracy=flat))
    assert {"MD-imdb-rate", "MD-imdb-unmatched", "MD-imdb-one-seed"} <= red


def test_attention_that_ignores_words_or_differs_by_optimiser_turns_claims_red(stored):
    few, many = stored
    uniform = np.full_like(many.mass, many.uniform_mass[0])
    assert {"MD-tok-words", "MD-tok", "MD-tok-top1"} & failed(dataclasses.replace(many, mass=uniform)) >= {
        "MD-tok-words",
        "MD-tok",
    }
    ahead = few.mass + 0.05 * (np.arange(len(few.mass)) < 7)[:, None]
    assert "MD-tok-curve" in failed(dataclasses.replace(few, mass=ahead))


def test_a_real_gain_of_accuracy_and_attention_would_be_seen(stored):
    """The paper's claims could hold: a clear gain in every seed is called one."""
    _, many = stored
    rates = tuple((rate, 2 * rate) for (rate,) in many.settings.rates)
    settings = dataclasses.replace(many.settings, rates=rates)
    doubled = {
        name: np.repeat(getattr(many, name), 2, axis=0)
        for name in ("validation_accuracy", "effective_dimension", "near_zero", "entropy")
    }
    better = np.repeat(np.array([0.80, 0.82, 0.80, 0.80]), 2)[:, None] + np.zeros(len(settings.seeds))
    mass = np.repeat(np.array([0.1, 0.2, 0.1, 0.1]), 2)[:, None] + np.zeros(len(settings.seeds))
    good = dataclasses.replace(many, settings=settings, test_accuracy=better, mass=mass, top=mass, **doubled)
    assert {"MD-imdb", "MD-imdb-p3"} <= set(good.measurements())
    assert not {"MD-imdb", "MD-imdb-p3", "MD-tok", "MD-tok-top1"} & failed(good)
    worse = dataclasses.replace(good, test_accuracy=better[[0, 1, 4, 5, 2, 3, 2, 3]])
    assert {"MD-imdb", "MD-imdb-p3"} <= failed(worse)


def test_paired_gain_by_hand():
    found = gain(np.array([3.0, 5.0]), np.array([2.0, 2.0]), "gain")
    assert found.values["gain"] == 2
    np.testing.assert_allclose([found.values["standard_deviation"], found.values["standard_error"]], [2**0.5, 1])
    assert found.spread == {"gain": (1.0, 3.0)}


def test_rates_picked_on_one_seed_are_judged_on_the_others(stored):
    few, _ = stored
    picked = few.chosen([1])
    difference = few.test_accuracy[picked["p1_1"]] - few.test_accuracy[picked["p2"]]
    np.testing.assert_allclose(few.one_seed_gains()[1], np.delete(difference, 1).mean())


def test_figures_and_tables_show_every_result(smoke, stored):
    few, many = stored
    drawn = [
        figures.accuracy_by_rate(few),
        figures.choices(few),
        figures.histograms(many),
        figures.dimensions({"many": many, "small": smoke[reviews]}),
        figures.mass_by_entropy(few),
        figures.attended(many),
        figures.picking_frame(few, 2),
    ]
    assert all(figure.axes for figure in drawn)
    plt.close("all")
    assert len(tables.accuracies(many, many.compared).rows) == len(tables.looked_at(many).rows) == 4
    assert len(tables.fair_and_unfair(few).rows) == len(few.settings.rates[1])
    assert "Seed 2 picks" in tables.picking_text(few, 2)


def test_only_the_most_attended_words_are_kept_in_order_of_attention(smoke):
    """Ten words of each review, sorted: what is stored is no running text."""
    result = smoke[reviews]
    assert result.attention.shape[1:] == (2, 10)
    assert len(result.words) == 20
    mean = result.attention[list(result.compared.values())].mean(axis=0)
    assert (np.diff(mean, axis=-1) <= 0).all()


def test_no_stored_result_holds_an_image_or_a_running_review():
    for path in results_folder().glob("*/mirror_descent.*.json"):
        raw = json.loads(path.read_text())
        assert "pictures" not in raw
        assert len(raw.get("words", ())) <= 20
