"""Reviews: the tokeniser, the two file formats, what is refused, and the stand-in."""

import gzip
import io
import json
import re
import tarfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbook.data import DataError, imdb, tokenise
from attnbook.data.synthetic import SIZES, _vocabulary

ROWS = {
    "train": [(0, 0, 2, "Dull.<br />"), (0, 11, 4, "Été raté, 10€"), (1, 2, 10, "Fine!"), (1, 13, 7, "")],
    "test": [(0, 5, 1, "No."), (1, 3, 9, "Yes.")],
    "unsup": [(-1, 0, 0, "So so."), (-1, 7, 0, "日本")],
}
ARCHIVE = "imdb/aclImdb_v1.tar.gz"


def lines(rows):
    entries = [dict(zip(("label", "id", "rating", "text"), row, strict=True)) for row in rows]
    return gzip.compress("".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries).encode())


def archive(members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def original():
    """The rows under the names of the original archive, in an order of its own, beside files that are no reviews."""
    members = {"aclImdb/README": b"hello", "aclImdb/train/urls_pos.txt": b"http", "aclImdb/imdb.vocab": b"the"}
    for split, rows in ROWS.items():
        for label, number, rating, text in reversed(rows):
            kind = {0: "neg", 1: "pos", -1: "unsup"}[label]
            folder = "test" if split == "test" else "train"
            members[f"aclImdb/{folder}/{kind}/{number}_{rating}.txt"] = text.encode()
    return members


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        ("  ?! ", []),
        ("Don't miss it!<br /><br />10/10", ["don't", "miss", "it", "10", "10"]),
        ("'quoted' o'clock's dogs'", ["quoted", "o'clock", "s", "dogs"]),
        ("I'd've", ["i'd", "ve"]),
        ("90's movie2", ["90's", "movie2"]),
        ("caf\u00e9 na\u00efve", ["caf", "na", "ve"]),
        ("a<br/>b <BR />c", ["a", "br", "b", "c"]),
        ("don\u2019t", ["don", "t"]),
    ],
)
def test_words_are_runs_of_letters_and_digits(text, words):
    assert tokenise(text) == words


@given(st.text())
def test_any_text_has_only_clean_words_and_they_are_its_own_words(text):
    words = tokenise(text)
    assert all(re.fullmatch(r"[a-z0-9]+('[a-z]+)?", word) for word in words)
    assert tokenise(" ".join(words)) == words


def check(found):
    for split, rows in ROWS.items():
        reviews = found[split]
        assert list(zip(reviews.labels, reviews.ratings, reviews.texts, strict=True)) == [
            (label, rating, text) for label, _, rating, text in rows
        ]
        assert not reviews.stand_in
        assert "of your own" in reviews.source


def test_lines_and_archive_give_the_same_reviews_in_the_same_order(data, write):
    write(data, ARCHIVE, archive(original()))
    check(imdb(("train", "test", "unsup")))
    for split, rows in ROWS.items():
        write(data, f"imdb/imdb_{split}.jsonl.gz", lines(rows[::-1]))
    (data / ARCHIVE).unlink()
    check(imdb(("train", "test", "unsup")))
    assert list(imdb()) == ["train", "test"]
    assert list(imdb(["unsup"])) == ["unsup"]


def test_nothing_is_unpacked_to_disk(data, write):
    write(data, ARCHIVE, archive(original() | {"../outside.txt": b"", "aclImdb/train/pos/../../x_1.txt": b""}))
    imdb()
    assert [str(path.relative_to(data.parent)) for path in data.parent.rglob("*") if path.is_file()] == [
        f"data/{ARCHIVE}"
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("aclImdb/train/pos/3_8.txt", b"caf\xe9", "aclImdb/train/pos/3_8.txt: not UTF-8 at byte 3; convert"),
        ("aclImdb/train/pos/3_4.txt", b"", "aclImdb/train/pos/3_4.txt: label 1 and rating 4 do not fit"),
        ("aclImdb/train/unsup/3_4.txt", b"", "aclImdb/train/unsup/3_4.txt: label -1 and rating 4 do not fit"),
    ],
)
def test_a_bad_review_of_the_archive_is_named(name, content, message, data, write):
    write(data, ARCHIVE, archive(original() | {name: content}))
    with pytest.raises(DataError, match=f"aclImdb_v1.tar.gz, {message}"):
        imdb()


@pytest.mark.parametrize(
    "content", [archive(original())[:-9], archive(original())[:400], b"no archive", b"", gzip.compress(b"text")]
)
def test_a_damaged_archive_is_named(content, data, write):
    write(data, ARCHIVE, content)
    with pytest.raises(DataError, match=r"aclImdb_v1.tar.gz: (damaged, cut off|no reviews)"):
        imdb()


def test_an_archive_without_a_split_is_named(data, write):
    write(data, ARCHIVE, archive({name: text for name, text in original().items() if "/test/" not in name}))
    with pytest.raises(DataError, match=r"aclImdb_v1.tar.gz: no reviews of a split"):
        imdb()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lines(ROWS["test"])[:-9], ": damaged, cut off"),
        (gzip.compress(b""), ": no reviews"),
        (gzip.compress(b'{"label": 0'), ", line 1: not a JSON object with id, label, rating and text"),
        (gzip.compress(b"[]"), ", line 1: not a JSON object"),
        (gzip.compress(b'{"label": 0, "id": 1, "rating": 1}'), ", line 1: .*'text'"),
        (lines([*ROWS["test"], (0, 1, 1, 7)]), ", line 3: label 0 and rating 1 do not fit, or the text is none"),
        (lines([(0, 1, 1, "a"), (2, 1, 1, "b")]), ", line 2: label 2 and rating 1"),
        (lines([([], 1, 1, "b")]), r", line 1: label \[\]"),
        (lines([(True, 1, 7, "b")]), ", line 1: label True"),
        (lines(ROWS["test"][:1])[:0] + gzip.compress(b'{"text": "caf\xe9"}'), ", line 1: not UTF-8 at byte 13"),
    ],
)
def test_bad_lines_are_named(content, message, data, write):
    write(data, "imdb/imdb_test.jsonl.gz", content)
    with pytest.raises(DataError, match=f"imdb_test.jsonl.gz{message}"):
        imdb(["test"])


@pytest.mark.parametrize("splits", [(), ("train", "valid"), "train"])
def test_unknown_splits_are_refused(splits):
    with pytest.raises(ValueError, match=r"splits: got .* expected some of train, test, unsup"):
        imdb(splits)


def test_synthetic_reviews_take_the_place_of_imdb():
    found = imdb(("train", "test", "unsup"), download=False)
    for split, reviews in found.items():
        assert reviews.stand_in
        assert reviews.source == "stand-in: synthetic reviews instead of IMDB (downloads are switched off)"
        assert len(reviews.texts) == SIZES[split]
        assert all(tokenise(text) for text in reviews.texts)
    assert np.bincount(found["train"].labels).tolist() == [1000, 1000]
    assert set(found["unsup"].labels) == {-1}
    for label, ratings in ((0, {1, 2, 3, 4}), (1, {7, 8, 9, 10})):
        assert set(found["train"].ratings[found["train"].labels == label]) == ratings
    assert found["train"].texts[0].startswith("We watched this western again with friends, and it was tired. I found")
    with pytest.raises(DataError, match="IMDB: not in ATTNBOOK_DATA"):
        imdb(download=False, stand_in=False)


def test_four_in_five_words_of_praise_or_blame_fit_the_label():
    _, words = _vocabulary()
    assert not set(words["praise"]) & set(words["blame"])
    reviews = imdb(["train"], download=False)["train"]
    fits = total = 0
    for text, label in zip(reviews.texts, reviews.labels, strict=True):
        for word in tokenise(text):
            praise = word in words["praise"]
            total += praise or word in words["blame"]
            fits += praise if label else word in words["blame"]
    assert abs(fits / total - 0.8) < 0.01
    assert total > 7 * len(reviews.texts)
