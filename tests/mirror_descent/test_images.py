"""Images and made reviews: patches by hand, honest claims, and wrong models that turn claims red. No data is needed."""

import dataclasses

import matplotlib.pyplot as plt
import numpy as np
import pytest

from attnbook import datasets, ledger
from attnbook.datasets.images import Images
from attnbook.mirror_descent import comparison, patches
from attnbook.mirror_descent.experiments import digits, images, made_reviews, optimizer_runs
from attnbook.mirror_descent.figures import images as figures
from attnbook.mirror_descent.planted_reviews import Vocabulary, draw_reviews
from attnbook.mirror_descent.tables import images as tables

SMOKE = {module: module.Settings.smoke() for module in (images, digits, made_reviews)}


@pytest.fixture(scope="module")
def smoke():
    return {module: module.run(settings, device="cpu") for module, settings in SMOKE.items()}


@pytest.fixture(scope="module")
def cifar():
    return images.CifarImages.load_stored("paper")


@pytest.fixture(scope="module")
def stand_ins():
    return digits.DigitImages.load_stored("book"), made_reviews.MadeReviews.load_stored("book")


def failed(result):
    return {v.claim.id for v in ledger.check(result).verdicts if v.outcome == "not reproduced"}


def test_a_patch_holds_the_pixels_of_its_place_row_by_row():
    """Seven images of 6 x 6 pixels in three colours, cut into 2 x 2: patch 5 is at rows 2 and 3, columns 4 and 5."""
    whole = np.random.default_rng(0).random((7, 6, 6, 3))
    cut = patches.cut(whole, 2)
    assert cut.shape == (7, 9, 12)
    np.testing.assert_array_equal(cut[:, 5], whole[:, 2:4, 4:6].reshape(7, 12))


def test_the_mirror_image_of_patches_is_the_patches_of_the_mirror_image():
    whole = np.random.default_rng(1).random((5, 9, 9, 2))
    mirrored = patches.mirror_image(patches.cut(whole, 3), 3)
    np.testing.assert_array_equal(mirrored, patches.cut(whole[:, :, ::-1], 3))
    np.testing.assert_array_equal(patches.mirror_image(mirrored, 3), patches.cut(whole, 3))


def test_training_images_are_standardised_and_split_without_overlap():
    found = patches.load_patches("digits", patch=2, n_train=701, n_validation=103, n_test=53)
    assert found.train.shape == (701, 16, 4)
    assert abs(found.train.mean()) < 1e-5
    assert found.train.std() == pytest.approx(1, abs=1e-5)
    rows = {row.tobytes() for row in found.train}
    assert len(rows) == 701
    assert not rows & {row.tobytes() for row in found.validation}


def test_digits_have_their_own_size_again():
    from sklearn.datasets import load_digits

    original = load_digits()
    found = patches.load_patches("digits", patch=1, n_train=1200, n_validation=237, n_test=360)
    np.testing.assert_array_equal(found.test_labels, original.target[1437:])


def test_the_subset_and_the_whole_of_cifar_give_the_same_images(monkeypatch):
    rng = np.random.default_rng(2)
    train, test = (rng.integers(256, size=(n, 32, 32, 3), dtype=np.uint8) for n in (50, 20))
    labels = [rng.integers(10, size=n, dtype=np.uint8) for n in (50, 20)]
    kinds = tuple("abcdefghij")
    whole = Images(train, labels[0], test, labels[1], kinds, "")
    subset = Images(train[:17], labels[0][:17], test[:5], labels[1][:5], kinds, "")
    loaded = []
    for source in (whole, subset):
        monkeypatch.setattr(datasets, "cifar10", lambda source=source, **_: source)
        loaded.append(patches.load_patches("cifar10", patch=8, n_train=13, n_validation=3, n_test=5))
    for name in ("train", "validation", "test", "train_labels"):
        np.testing.assert_array_equal(getattr(loaded[0], name), getattr(loaded[1], name))
    assert np.abs(loaded[0].train.reshape(13, 16, 64, 3).mean(axis=(0, 1, 2))).max() < 1e-4


def test_without_cifar_the_error_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNBOOK_DATA", str(tmp_path))
    monkeypatch.setenv("ATTNBOOK_CACHE", str(tmp_path / "cache"))
    with pytest.raises(datasets.DataError, match="attnbook data fetch cifar10"):
        images.run(images.Settings.book(), device="cpu")


def test_bad_input_is_refused_by_name():
    with pytest.raises(ValueError, match="patch"):
        patches.cut(np.zeros((1, 8, 8, 1)), 3)
    with pytest.raises(ValueError, match="patches"):
        patches.mirror_image(np.zeros((1, 5, 4)), 2)
    with pytest.raises(ValueError, match="n_train"):
        patches.load_patches("digits", patch=2, n_train=1437, n_validation=1, n_test=7)
    with pytest.raises(ValueError, match="n_polar"):
        Vocabulary(n_words=40, n_polar=20)
    with pytest.raises(ValueError, match="n_telling"):
        draw_reviews([0], "train", n_reviews=3, n_tokens=3)
    with pytest.raises(ValueError, match="label_noise"):
        draw_reviews([0], "train", n_reviews=3, label_noise=0.5)


@pytest.mark.parametrize(
    "change", [{"steps": 0}, {"batch_size": 0}, {"seeds": (1, 1)}, {"rates": ((1.0,),)}, {"compared": (1.0,) * 4}]
)
def test_impossible_settings_are_refused_by_name(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        dataclasses.replace(SMOKE[digits], **change)


def test_telling_words_are_those_of_the_class_the_review_was_written_for():
    found = draw_reviews([3, 5], "train", n_reviews=501, n_tokens=11, n_telling=2, n_opposite=1, label_noise=0)
    praise = (found.words >= 20) & (found.words < 40)
    blame = found.words < 20
    own = np.where(found.labels[..., None] == 1, praise, blame)
    np.testing.assert_array_equal(found.telling, own)
    assert (found.telling.sum(axis=-1) == 2).all()
    assert ((praise | blame).sum(axis=-1) == 3).all()
    # Every place is as likely as any other.
    assert found.telling.mean(axis=(0, 1)) == pytest.approx(2 / 11, abs=0.05)


def test_common_words_follow_zipfs_law_and_the_stated_share_of_labels_is_wrong():
    found = draw_reviews([0], "test", n_reviews=4001, label_noise=0.08)
    frequencies = Vocabulary().frequencies()
    assert frequencies[0] == pytest.approx(7 * frequencies[6])
    share = (found.words == 40).mean() * 32 / 28
    assert share == pytest.approx(frequencies[0], rel=0.03)
    written = ((found.words >= 20) & (found.words < 40) & found.telling).any(axis=-1)
    assert (written != found.labels).mean() == pytest.approx(0.08, abs=0.015)


def test_another_seed_changes_no_reviews_of_the_first():
    alone, both = (draw_reviews(seeds, "train", n_reviews=7) for seeds in ([4], [4, 9]))
    np.testing.assert_array_equal(alone.words[0], both.words[0])
    assert (both.words[0] != both.words[1]).any()


@pytest.mark.parametrize("module", [images, made_reviews])
def test_seeds_trained_apart_or_together_give_the_same_numbers(smoke, module, tmp_path):
    chunk = 3 - SMOKE[module].chunk
    other = module.run(dataclasses.replace(SMOKE[module], chunk=chunk), device="cpu", workdir=tmp_path)
    np.testing.assert_allclose(other.effective_dimension, smoke[module].effective_dimension, rtol=1e-4)
    np.testing.assert_array_equal(other.test_accuracy, smoke[module].test_accuracy)


def test_digits_measure_no_claim_on_cifar_and_one_step_size_no_claim_on_tuned_ones(smoke):
    assert smoke[images].measurements() == {}
    book = images.CifarImages.load_stored("book")
    assert set(book.measurements()) == {"MD-vit-sparse", "MD-vit-matched"}


def test_attention_of_each_image_is_a_share_and_its_mean_is_that_of_all(smoke):
    result = smoke[images]
    assert (result.attention > 0).all()
    assert (result.attention.sum(axis=-1) < 1).all()
    assert (result.mean_attention.sum(axis=-1) < 1).all()


def test_a_wrong_mirror_map_turns_the_order_of_sparsity_red(monkeypatch):
    """With gradient descent in all three places nothing rises strictly; digits in place of CIFAR-10."""
    settings = dataclasses.replace(SMOKE[digits], steps=60, batch_size=32, n_train=600, width=16, patch=2)
    assert "MD-vit-order" not in failed(digits.run(settings, device="cpu"))
    monkeypatch.setattr(comparison, "OPTIMIZERS", {"adam": None, "p1_1": 2.0, "p2": 2.0, "p3": 2.0})
    settings = dataclasses.replace(
        settings, rates=((1e-3,), (0.03,), (0.03,), (0.03,)), compared=(1e-3, 0.03, 0.03, 0.03)
    )
    assert "MD-vit-order" in failed(digits.run(settings, device="cpu"))


def test_a_reversed_order_turns_claims_on_sparsity_red(cifar, stand_ins):
    assert not failed(cifar)
    red = failed(dataclasses.replace(cifar, effective_dimension=1 - cifar.effective_dimension))
    assert {"MD-vit-sparse", "MD-vit-matched", "MD-vit-place"} <= red
    for result, claim in zip(stand_ins, ("MD-vit-order", "MD-hist-standin"), strict=True):
        assert claim not in failed(result)
        swapped = dataclasses.replace(result, effective_dimension=result.effective_dimension[[0, 3, 2, 1]])
        assert claim in failed(swapped)


def test_a_lead_of_adam_would_be_seen(cifar, stand_ins):
    shift = np.array([0.1 * (name == "adam") for name, _ in cifar.settings.configurations])[:, None]
    red = failed(dataclasses.replace(cifar, test_accuracy=cifar.test_accuracy + shift))
    assert {"MD-vit", "MD-vit-resolved", "MD-vit-one-seed"} <= red
    small, _ = stand_ins
    assert "MD-vit-standin" in failed(small)
    ahead = small.test_accuracy + 0.1 * (np.arange(4) == 0)[:, None]
    assert "MD-vit-standin" not in failed(dataclasses.replace(small, test_accuracy=ahead))


def test_networks_that_guess_or_maps_that_ignore_the_start_turn_claims_red(cifar):
    assert "MD-vit-learns" in failed(dataclasses.replace(cifar, test_accuracy=0 * cifar.test_accuracy + 0.1))
    noise = np.random.default_rng(3).random(cifar.attention.shape)
    assert "MD-vit-maps" in failed(dataclasses.replace(cifar, attention=noise))


def test_attention_that_ignores_words_and_a_real_gap_turn_claims_on_made_reviews_red(stand_ins):
    _, made = stand_ins
    uniform = np.full_like(made.mass, made.uniform_mass())
    assert "MD-tok-uniform" in failed(dataclasses.replace(made, mass=uniform))
    gap = made.test_accuracy - 0.2 * (np.arange(4) == 1)[:, None]
    assert "MD-imdb-standin" in failed(dataclasses.replace(made, test_accuracy=gap))


def test_correlations_of_maps_by_hand(cifar):
    """Maps that depend on the seed alone: one between optimisers, less between seeds."""
    of_seed = np.random.default_rng(4).random((1, *cifar.attention.shape[1:]))
    same = dataclasses.replace(cifar, attention=np.repeat(of_seed, len(cifar.attention), axis=0))
    between_optimisers, between_seeds = same.map_correlations()
    np.testing.assert_allclose(between_optimisers, 1)
    first, second = of_seed[0, 0, 0], of_seed[0, 1, 0]
    assert between_seeds[0] == pytest.approx(np.corrcoef(first, second)[0, 1])


def test_step_sizes_are_chosen_by_all_seeds_and_leads_are_judged_on_the_others(cifar):
    best = cifar.chosen()
    for name in comparison.OPTIMIZERS:
        means = cifar.validation_accuracy[cifar.of(name)].mean(axis=1)
        assert best[name] == cifar.of(name)[int(means.argmax())]
    picked = cifar.chosen([2])
    lead = cifar.test_accuracy[picked["adam"]] - cifar.test_accuracy[picked["p1_1"]]
    assert cifar.one_seed_leads()[2] == pytest.approx(np.delete(lead, 2).mean())
    common = cifar.test_accuracy[best["adam"]] - cifar.test_accuracy[best["p1_1"]]
    assert cifar.one_seed_leads(picks=False)[2] == pytest.approx(np.delete(common, 2).mean())


def test_equal_places_of_step_sizes_are_compared():
    """Two places common to all three; a fourth step size of one optimiser takes part in none."""
    settings = dataclasses.replace(
        SMOKE[digits], rates=((1.0,), (1.0, 2.0), (1.0, 2.0, 3.0), (1.0, 2.0)), compared=(1.0,) * 4
    )
    empty = np.zeros((8, 2))
    result = optimizer_runs.OptimizerRuns(settings, None, empty, empty, empty)
    values = np.array([0, 1, 5, 2, 4, 9, 3, 6.0])[:, None] + np.zeros(2)
    np.testing.assert_array_equal(result.rising(values), [[1, 1], [0, 0]])


def test_figures_and_tables_show_every_optimiser(cifar, stand_ins):
    drawn = [
        figures.accuracy_by_rate(cifar),
        figures.dimensions(cifar),
        figures.attention_maps(cifar, cifar.chosen()),
        figures.stand_ins(*stand_ins),
    ]
    assert all(figure.axes for figure in drawn)
    plt.close("all")
    assert len(tables.images(cifar).rows) == len(tables.stand_ins(*stand_ins).rows) == 4
    assert len(tables.one_seed(cifar).rows) == len(cifar.settings.seeds) + 1
