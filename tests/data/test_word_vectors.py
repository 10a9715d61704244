"""Word vectors: files, GloVe's archive, training, the stand-in."""

import io
import zipfile
from collections import Counter
from math import log

import numpy as np
import pytest

from attnbook.data import DataError, Embeddings, embeddings, store_embeddings, tokenise, train_embeddings

VECTORS = np.array([[1.0, 0.0, 0.5], [0.9, 0.1, 0.5], [-1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 1.0, -1.0]], np.float32)
WORDS = ("good", "great", "bad", "the", "film")
TEXTS = [
    "A b a c d, a b e!", "c a b<br />a d", "", "e e d a c b", "a", "unique words only here", "d c b a b c d e", "b e"
]  # fmt: skip


def npz(**arrays):
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def test_a_file_of_words_and_vectors_is_read(data, write):
    write(data, "embeddings/my-own.2d.npz", npz(words=np.array(WORDS), vec=VECTORS.astype(np.float16), counts=1))
    found = embeddings("my-own.2d")
    assert found.words == WORDS
    assert found.vectors.dtype == np.float32
    np.testing.assert_allclose(found.vectors, VECTORS, atol=1e-3)
    assert found.source == "word vectors my-own.2d, from ATTNBOOK_DATA (files of your own, read without a checksum)"
    assert not found.stand_in


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (npz(words=np.array(WORDS)), "vec"),
        (npz(words=np.array(WORDS), vec=VECTORS[:4]), r"vectors: \(4, 3\), expected \(5 words, dimension\)"),
        (npz(words=np.array(["a"] * 5), vec=VECTORS), "words: 4 of 5 are there twice"),
        (npz(words=np.array(WORDS), vec=VECTORS * np.nan), "vectors: some entries are NaN or infinite"),
        (npz(words=np.arange(5), vec=VECTORS), "words int64 and vec float32, expected text and floating point"),
        (npz(words=np.array(WORDS, object), vec=VECTORS), "allow_pickle=False"),
        (npz(words=np.array(WORDS), vec=VECTORS)[:-40], "damaged, cut off"),
        (npz(words=np.array(WORDS), vec=VECTORS).replace(VECTORS.tobytes()[:9], b"x" * 9), "damaged.*CRC"),
        (b"no zip", "damaged, cut off"),
    ],
)
def test_other_files_are_refused_by_name(content, message, data, write):
    write(data, "embeddings/mine.npz", content)
    with pytest.raises(DataError, match=f"mine.npz: .*{message}"):
        embeddings("mine")


def test_texts_become_rows_of_known_words():
    found = Embeddings(WORDS, VECTORS, "test")
    assert found.encode("The GOOD, the bad<br />the unknown film").tolist() == [3, 0, 3, 2, 3, 4]
    for empty in ("", "??", "nothing known"):
        assert found.encode(empty).tolist() == []
        assert found.vectors[found.encode(empty)].shape == (0, 3)


def test_another_order_of_words_gives_the_same_vectors():
    found, other = Embeddings(WORDS, VECTORS, "test"), Embeddings(WORDS[::-1], VECTORS[::-1], "test")
    text = "the film: great, not bad"
    np.testing.assert_array_equal(found.vectors[found.encode(text)], other.vectors[other.encode(text)])


def test_nearest_words_by_hand():
    found = Embeddings(WORDS, VECTORS, "test")
    assert found.nearest("good", 4) == ["great", "the", "film", "bad"]
    assert found.nearest("good", 99) == ["great", "the", "film", "bad"]
    with pytest.raises(ValueError, match="word: 'banana' has no vector here"):
        found.nearest("banana")


def test_stored_vectors_are_found_again(cache):
    made = Embeddings(WORDS, VECTORS, "test")
    path = store_embeddings(made, "mine")
    store_embeddings(made, "mine")
    assert [file.name for file in path.parent.iterdir()] == ["mine.npz"]
    found = embeddings("mine")
    np.testing.assert_array_equal(found.vectors, VECTORS)
    assert found.words == WORDS
    assert found.source.startswith("word vectors mine, from the user cache")


def test_vectors_that_cannot_be_stored_leave_nothing(cache, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(DataError, match=r"mine.npz: cannot be written: No space left on device; set ATTNBOOK_CACHE"):
        store_embeddings(Embeddings(WORDS, VECTORS, "test"), "mine")
    assert list((cache / "embeddings").iterdir()) == []


def glove(text, name="glove.6B.100d.txt"):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("glove.6B.50d.txt", "the 1\n")
        archive.writestr(name, text)
    return out.getvalue()


def row(word, first=1.5, n=100):
    return " ".join([word, *map(str, np.arange(n) + first)]) + "\n"


def test_the_archive_of_glove_is_read(data, write):
    write(data, "embeddings/glove.6B.zip", glove(row("the") + row("na\u00efve", -7.25) + row("1 1/2")))
    found = embeddings("glove6B_100d")
    assert found.words == ("the", "na\u00efve", "1 1/2")
    np.testing.assert_array_equal(found.vectors, np.array([[1.5], [-7.25], [1.5]]) + np.arange(100))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (glove(row("the") + row("cut", n=99)), ", line 2: 99 numbers, expected 100"),
        (glove(row("the") + "\n"), ", line 2: 0 numbers"),
        (glove(row("the").replace(" 1.5", " x")), ": damaged"),
        (glove(row("the") * 2), ": damaged.*there twice"),
        (glove(b"\xe9 1\n"), ": damaged.*utf-8"),
        (glove(""), ": no word vectors"),
        (glove(row("the"), "other.txt"), r": damaged.*glove.6B.100d.txt"),
        (glove(row("the"))[:-30], ": damaged"),
    ],
)
def test_other_archives_are_refused_by_name(content, message, data, write):
    write(data, "embeddings/glove.6B.zip", content)
    with pytest.raises(DataError, match=f"glove.6B.zip{message}"):
        embeddings("glove6B_100d")


@pytest.mark.parametrize("name", ["", "../secret", "a/b", ".hidden", "a b"])
def test_a_name_is_no_path(name):
    with pytest.raises(ValueError, match="name: got "):
        embeddings(name)


def test_only_the_books_own_vectors_have_a_stand_in():
    found = embeddings("imdb_word2vec_100d", download=False)
    assert found.stand_in
    assert found.source == (
        "stand-in: vectors trained on synthetic reviews instead of imdb_word2vec_100d (there is nothing to download)"
    )
    assert found.vectors.shape[1] == 100
    assert len(found.encode("A brilliant plot, but a dull ending.")) == 6
    again = embeddings(download=False)
    np.testing.assert_array_equal(found.vectors, again.vectors)
    with pytest.raises(DataError, match="word vectors imdb_wrd2vec: not in ATTNBOOK_DATA nor in the user cache"):
        embeddings("imdb_wrd2vec", download=False)
    with pytest.raises(DataError, match="downloads are switched off"):
        embeddings("glove6B_100d", download=False, stand_in=False)


def by_hand(texts, min_count, window, power):
    """The matrix of the docstring, counted with plain loops."""
    tokens = [tokenise(text) for text in texts]
    counts = Counter(word for text in tokens for word in text)
    words = sorted((w for w, n in counts.items() if n >= min_count), key=lambda w: (-counts[w], w))
    c = np.zeros((len(words), len(words)))
    for text in tokens:
        kept = [words.index(w) for w in text if w in words]
        for i, first in enumerate(kept):
            for j, second in enumerate(kept):
                if 0 < abs(i - j) <= window:
                    c[first, second] += 1 / abs(i - j)
    context = c.sum(axis=0) ** power
    m = np.zeros_like(c)
    for i, j in np.argwhere(c):
        m[i, j] = max(0.0, log(c[i, j] / c[i].sum()) - log(context[j] / context.sum()))
    return words, m


@pytest.mark.parametrize(("min_count", "window", "power"), [(2, 2, 0.75), (1, 5, 1.0), (2, 1, 0.5)])
def test_trained_vectors_are_the_singular_vectors_of_the_matrix_counted_by_hand(min_count, window, power):
    words, matrix = by_hand(TEXTS, min_count, window, power)
    made = train_embeddings(TEXTS, 3, min_count=min_count, window=window, context_power=power)
    assert list(made.words) == words
    left, values, _ = np.linalg.svd(matrix)
    expected = left[:, :3] * np.sqrt(values[:3])
    np.testing.assert_allclose(made.vectors @ made.vectors.T, expected @ expected.T, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(made.vectors, axis=0), np.sqrt(values[:3]), rtol=1e-5)
    largest = made.vectors[np.abs(made.vectors).argmax(axis=0), np.arange(3)]
    assert (largest > 0).all()


def test_training_is_repeatable_and_takes_any_iterable():
    once, again = train_embeddings(TEXTS, 2, min_count=2), train_embeddings(iter(TEXTS), 2, min_count=2)
    np.testing.assert_array_equal(once.vectors, again.vectors)
    assert once.source == "trained here"


def test_the_most_frequent_words_are_kept_in_order():
    made = train_embeddings(TEXTS, 1, n_words=3, min_count=1)
    assert made.words == ("a", "b", "c")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dimension": 0}, "dimension: expected at least 1, got 0"),
        ({"dimension": 5}, "dimension: got 5, expected less than the 5 words kept"),
        ({"n_words": 0}, "n_words: expected at least 1"),
        ({"min_count": 0}, "min_count: expected at least 1"),
        ({"window": 0}, "window: expected at least 1"),
        ({"context_power": 0.0}, "context_power: expected above 0"),
        ({"context_power": 1.5}, "context_power: expected above 0"),
        ({"texts": []}, "expected less than the 0 words kept"),
        ({"texts": ["", "!"]}, "expected less than the 0 words kept"),
        ({"texts": ["a", "b", "a", "b"]}, "texts: no two of the words kept stand near each other"),
    ],
)
def test_bad_arguments_of_training_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        train_embeddings(**{"texts": TEXTS, "dimension": 1, "min_count": 2} | options)


def test_texts_without_any_surprise_have_vectors_of_length_zero_or_more_and_no_nan():
    made = train_embeddings(["a b c d"] * 5, 3, min_count=1)
    assert np.isfinite(made.vectors).all()
