"""Film reviews and images: data by hand, noise in the place of gradients, every claim can turn. No data is needed."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import red
import torch
import xarray as xr

from attnbook import data, ledger
from attnbook.data import Images as Loaded
from attnbook.mirror_descent.real_text_and_images import baselines, comparison, figures, measures, patches, reviews
from attnbook.mirror_descent.real_text_and_images import experiments as own
from attnbook.mirror_descent.real_text_and_images import transformer as models
from attnbook.mirror_descent.real_text_and_images.transformer import Inputs, Shape

KINDS = {"reviews": own.Reviews, "images": own.Images}
# Small digits say nothing on the claims about CIFAR-10; their arrays have the same form.
ON_REAL_DATA = {"reviews": own.Reviews.at(), "images": own.Images.at(images="cifar10")}
TUNED = ["adam", "p1_1", "p2", "p3"]


@pytest.fixture(scope="module")
def stored():
    """The stored results, named as those of real data: small digits have arrays of the same form."""
    return {name: red.named(ON_REAL_DATA[name], kind.load_stored("book")) for name, kind in KINDS.items()}


def at(name, change, **where):
    """Change part of one array."""

    def changed(data):
        array = data[name].copy(deep=True)
        array.loc[where] = change(array.loc[where])
        return data.assign({name: array})

    return changed


def both(*changes):
    def changed(data):
        for change in changes:
            data = change(data)
        return data

    return changed


def falling(data):
    """Accuracies of the few reviews that fall with the step size, alike for all."""
    names, lower = ("validation_accuracy", "test_accuracy"), 0.8 - 0.1 * data.rate
    return both(*(at(name, lambda x: 0 * x + lower, case="few") for name in names))(data)


near_zero = both(
    at("near_zero", lambda x: x + 0.2, case="many", optimizer="p1_1"),
    at("near_zero", lambda x: x + 0.1, case="many", optimizer="p2"),
)
RED = {
    "reviews": {
        "MD-imdb": at("test_accuracy", lambda x: x + 0.1, case="many", optimizer="p1_1"),
        "MD-imdb-tie": at("test_accuracy", lambda x: x + 0.2, case="many", optimizer=TUNED),
        "MD-imdb-rate": falling,
        "MD-hist": near_zero,
        "MD-hist-noise": at("effective_dimension", lambda x: 1 - x, case="noise"),
        "MD-tok": at("mass", lambda x: x + 0.1, case="many", optimizer="p1_1"),
        "MD-tok-sharp": at("mass", lambda x: x + 0.1, case="many", optimizer="p1_1"),
    },
    "images": {
        "MD-vit": at("test_accuracy", lambda x: 0 * x + 0.99, optimizer=TUNED),
        "MD-vit-sparse": at("effective_dimension", lambda x: x - 0.3, optimizer="p1_1"),
        "MD-vit-matched": lambda d: d.assign(effective_dimension=1 - d.effective_dimension),
    },
}
OTHERS = {
    "reviews": [
        ("MD-hist-noise", at("effective_dimension", lambda x: 1 - x, case="many")),
        ("MD-hist-noise", at("effective_dimension", lambda x: x + 0.2, case="noise", optimizer="p1_1", rate=0)),
        ("MD-tok-sharp", at("mass", lambda x: x[..., ::-1].values * 0 + np.arange(x.size).reshape(x.shape) % 7)),
    ],
    "images": [("MD-vit-matched", at("effective_dimension", lambda x: x - 0.2, optimizer="p3", rate=1))],
}


@pytest.mark.parametrize("name", KINDS)
def test_every_claim_turns(name, stored):
    red.assert_every_claim_turns(ON_REAL_DATA[name].measurements, stored[name], RED[name], OTHERS[name])


def test_digits_say_nothing_on_the_claims_about_cifar(stored):
    assert set(own.Images.measurements(red.named(own.Images(), stored["images"]))) == {"MD-vit-matched"}


def test_a_claim_that_holds_asks_for_all_parts_of_its_rule(stored):
    """Spoil one part of a rule that a change has made true."""
    images, text = (ON_REAL_DATA[name].measurements for name in ("images", "reviews"))
    won = RED["images"]["MD-vit"](stored["images"])
    red.assert_turned(images, won, {"MD-vit": at("test_accuracy", lambda x: x + 0.3, optimizer="uniform")})
    red.assert_turned(images, won, {"MD-vit": at("test_accuracy", lambda x: x - 0.05, optimizer="p1_1")})
    ahead = RED["reviews"]["MD-imdb-tie"](stored["reviews"])
    red.assert_turned(text, ahead, {"MD-imdb-tie": at("test_accuracy", lambda x: x - 0.2, optimizer="p3")})
    gained = RED["reviews"]["MD-imdb"](stored["reviews"])
    red.assert_turned(text, gained, {"MD-imdb": at("test_accuracy", lambda x: x + 0.2, optimizer="p3")})
    red.assert_turned(text, near_zero(stored["reviews"]), {"MD-hist": at("effective_dimension", lambda x: 1 - x)})


def test_intervals_and_choices_by_hand():
    values = xr.DataArray([1.0, 2.0, 3.0], dims="seed")
    np.testing.assert_allclose(measures.interval(values), [2, 2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5], rtol=1e-6)
    validation = xr.DataArray(
        [[[[0.1, 0.2], [0.8, 0.4]]], [[[0.5, 0.5], [0.9, 0.1]]]], dims=("record", "optimizer", "rate", "seed")
    )
    test = xr.zeros_like(validation)
    test[0, 0, 1] = 7
    np.testing.assert_array_equal(
        measures.tuned(xr.Dataset({"validation_accuracy": validation, "test_accuracy": test})), [[7, 7]]
    )


def test_noise_ends_at_its_limit():
    drawn = np.random.default_rng(0).standard_normal(10**6)
    for p in (1.5, 2, 3):
        size = np.abs(drawn) ** (1 / (p - 1))
        assert size.mean() ** 2 / (size**2).mean() == pytest.approx(measures.noise_limit(p), rel=0.02)
    assert measures.noise_limit(2) == pytest.approx(2 / np.pi)


def test_noise_has_the_length_of_the_gradient_it_replaces_and_leaves_the_rest():
    shape = Shape("frozen", 6, 5, width=6, n_heads=2)
    start = models.draw_parameters(shape, (3, 4), 2)
    rng = np.random.default_rng(0)
    inputs = Inputs(
        torch.tensor(rng.standard_normal((2, 7, 5, 6)), dtype=torch.float32), torch.ones(2, 7, dtype=torch.long)
    )
    plain = comparison.clipped_gradient(shape)
    noise = {name: torch.randn(2, 6, 6) for name in models.attention_names(shape)}
    honest, noisy = plain(start, inputs)[1], comparison.drowned(plain)(start, (inputs, noise))[1]
    for name, gradient in honest.items():
        torch.testing.assert_close(noisy[name].flatten(1).norm(dim=1), gradient.flatten(1).norm(dim=1))
        if name not in noise:
            torch.testing.assert_close(noisy[name], gradient)
    direction = noisy["key0"][2] / noise["key0"][0]
    torch.testing.assert_close(direction, direction[0, 0].expand(6, 6))


def test_the_control_never_asks_and_equal_seeds_share_their_start():
    small = {"n_words": 60, "n_tokens": 7, "steps": 3, "seeds": (0, 1), "chunk": 2, "cases": ("many", "noise")}
    data = own.Reviews.at("smoke", **small).run(device="cpu")
    control = data.sel(optimizer="uniform")
    np.testing.assert_allclose(control.entropy, 1, atol=1e-6)
    np.testing.assert_allclose(control.mass, data.uniform_mass.broadcast_like(control.mass), atol=1e-6)
    assert np.isnan(control.effective_dimension.sel(matrix=["query", "all"])).all()
    apart = own.Reviews.at("smoke", **small | {"chunk": 1}).run(device="cpu")
    np.testing.assert_allclose(apart.effective_dimension, data.effective_dimension, rtol=1e-4)


def test_a_wrong_mirror_map_takes_the_order_away(monkeypatch):
    """Gradient descent in all three places."""
    small = {"n_words": 60, "n_tokens": 7, "steps": 40, "seeds": (0, 1), "chunk": 2, "cases": ("noise",)}
    rates = (own.ADAM[1:4], own.ADAM[1:4], *[(0.01, 0.03, 0.1)] * 3)
    experiment = own.Reviews.at("smoke", **small, rates=rates)
    assert measures.order(experiment.run(device="cpu").effective_dimension.sel(matrix="all"))["share_ordered"] == 1
    monkeypatch.setattr(
        comparison, "OPTIMIZERS", dict.fromkeys(["uniform", "adam"]) | dict.fromkeys(comparison.MIRROR, 2.0)
    )
    assert measures.order(experiment.run(device="cpu").effective_dimension.sel(matrix="all"))["share_ordered"] == 0


@pytest.mark.parametrize("n_tokens", [1, 3, 17])
def test_the_end_of_a_text_has_the_last_words_of_the_whole_text(n_tokens):
    labelled = data.labelled_reviews("synthetic", "", 5)
    ids = {word: row for row, word in enumerate(labelled.vectors.words, 1)}
    texts = [*labelled.test[:50], "a<br /><br />fine film", "", "film " + "unknownunknown " * 40]
    found = reviews.last_words(texts, ids, n_tokens)
    for text, row in zip(texts, found, strict=True):
        whole = [ids[word] for word in data.tokenise(text) if word in ids][-n_tokens:]
        assert row.tolist() == whole + [0] * (n_tokens - len(whole))


def test_polarity_by_hand():
    """Word 1 only in praise, word 2 only in blame, word 3 in both alike, word 4 too rarely apart, word 5 nowhere."""
    praise, blame = [[1, 3, 3, 4, 0]] * 40, [[2, 3, 3, 4, 0]] * 40
    signs = reviews.polarity(np.array(praise + blame), np.array([1] * 40 + [0] * 40), 6)
    assert signs.tolist() == [0, 1, -1, 0, 0, 0]


def test_components_keep_what_varies_most():
    loaded = reviews.load_reviews("synthetic", "", n_words=150, n_tokens=7, dimension=5)
    assert loaded.vectors.shape == (len(loaded.polar), 5) == (151, 5)
    assert not loaded.vectors[0].any()
    found = np.cov(loaded.vectors[1:].T, bias=True)
    np.testing.assert_allclose(found, np.diag(np.diag(found)), atol=1e-9)
    assert (np.diff(np.diag(found)) <= 0).all()
    assert np.diag(found).mean() == pytest.approx(1)
    with pytest.raises(ValueError, match="dimension"):
        reviews.load_reviews("synthetic", "", n_words=150, n_tokens=7, dimension=101)


def test_baselines_by_hand():
    """Mean vectors of words are their average; the penalty is the one that validation samples like best.

    With a strong penalty all samples get the class that most training samples have.
    """
    tokens = np.array([[1, 2, 0], [2, 2, 2]])
    table = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
    features = baselines.text_features([tokens] * 3, table)["mean_vector"][0]
    np.testing.assert_allclose(features, [[1, -1], [-1, 1]])
    x, labels, always = np.array([[-2.0], [-1.0], [1.0]]), np.array([0, 0, 1]), np.array([0, 0, 0])
    for validation, accuracy in ((labels, 1.0), (always, 2 / 3)):
        assert baselines.logistic_regression([x] * 3, [labels, validation, labels], (1e-6, 1e3)) == accuracy


def test_a_patch_holds_the_pixels_of_its_place_row_by_row():
    """Seven images of 6 x 6 pixels in three colours, cut into 2 x 2: patch 5 is at rows 2 and 3, columns 4 and 5."""
    whole = torch.rand(7, 6, 6, 3)
    cut = patches.cut(whole, 2)
    assert cut.shape == (7, 9, 12)
    torch.testing.assert_close(cut[:, 5], whole[:, 2:4, 4:6].reshape(7, 12))
    with pytest.raises(ValueError, match="patch"):
        patches.cut(torch.zeros(1, 8, 8, 1), 3)


def test_images_are_standardised_split_and_moved():
    sizes = {"n_train": 701, "n_validation": 103, "n_apart": 11, "n_test": 53}
    found = patches.load_images("digits", **sizes)
    train = found["train"].images
    assert train.shape == (701, 8, 8, 1)
    assert len(found["test"].images) == len(found["test"].labels) == 64
    assert abs(train.mean()) < 1e-5
    assert train.std() == pytest.approx(1, abs=1e-5)
    assert not {row.tobytes() for row in train} & {row.tobytes() for row in found["validation"].images}
    rows, moves = np.array([[[5, 9]]]), np.array([[[[1, -2, 0], [0, 0, 1]]]])
    shown = patches.batches(found["train"], 8, rows, moves)(0).tokens.numpy().reshape(2, 8, 8)
    np.testing.assert_array_equal(shown[0, 1:, :6], train[5, :7, 2:, 0])
    np.testing.assert_array_equal(shown[1], train[9, :, ::-1, 0])
    with pytest.raises(ValueError, match="n_train"):
        patches.load_images("digits", **sizes | {"n_train": 1437})


def test_the_subset_and_the_whole_of_cifar_give_the_same_images(monkeypatch):
    rng = np.random.default_rng(2)
    train, test = (rng.integers(256, size=(n, 32, 32, 3), dtype=np.uint8) for n in (50, 20))
    labels = [rng.integers(10, size=n, dtype=np.uint8) for n in (50, 20)]
    kinds = tuple("abcdefghij")
    whole = Loaded(train, labels[0], test, labels[1], kinds, "")
    subset = Loaded(train[:20], labels[0][:20], test[:5], labels[1][:5], kinds, "")
    loaded = []
    for source in (whole, subset):
        patches.load_images.cache_clear()
        monkeypatch.setattr(patches, "cifar10", lambda source=source, **_: source)
        loaded.append(patches.load_images("cifar10", n_train=13, n_validation=3, n_apart=2, n_test=5))
    patches.load_images.cache_clear()
    for name in ("train", "validation", "test"):
        for one, other in zip(loaded[0][name], loaded[1][name], strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("kind", "command"), [(own.Reviews, "imdb"), (own.Images, "cifar10")])
def test_without_data_the_error_says_how_to_get_them(kind, command, tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNBOOK_DATA", str(tmp_path))
    monkeypatch.setenv("ATTNBOOK_CACHE", str(tmp_path / "cache"))
    reviews.load_reviews.cache_clear()
    patches.load_images.cache_clear()
    with pytest.raises(data.DataError, match=f"attnbook data fetch {command}"):
        kind.at("full").run(device="cpu")


@pytest.mark.parametrize("change", [{"rates": ((1.0,),)}, {"compared": 7}, {"cases": ("none",)}, {"n_train": 10_000}])
def test_impossible_settings_are_refused_by_name(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        own.Reviews.at("smoke", **change).run(device="cpu")


def test_pictures_and_tables_show_every_optimiser(stored):
    text, images = stored["reviews"], stored["images"]
    many, rates = text.sel(case="many"), own.Reviews.at().rates
    drawn = [
        figures.sparsity({"many": (many, rates), "noise": (text.sel(case="noise"), rates)}),
        figures.accuracy_by_step_size({"many": (many, rates), "images": (images, own.Images.at().rates)}),
        figures.histograms({"many": many, "noise": text.sel(case="noise")}, own.EDGES[1:]),
        figures.pair_frame(many, 1, 3),
    ]
    assert all(figure.axes for figure in drawn)
    plt.close("all")
    assert len(figures.accuracies(many, rates, "all").rows) == 8
    assert len(figures.accuracies(images, rates, "all").rows) == 6
    assert len(figures.attention_table(many, 1).rows) == 5
    assert "Effective dimension" in figures.pair_text(many, 1, 3)


def test_claims_of_the_large_size_stand_on_it():
    for claim in ("MD-imdb", "MD-imdb-tie", "MD-hist-noise"):
        assert ledger.standing(ledger.claim(claim)).size == "full"
