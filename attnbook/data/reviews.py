"""The Large Movie Review data (IMDB) as plain texts, the tokeniser, and synthetic reviews that take their place."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int8

from attnbook.data import synthetic
from attnbook.data.files import Forms, obtain
from attnbook.data.reading import DataError, files_of_tar, readable

__all__ = ["SPLITS", "Reviews", "imdb", "tokenise"]

SPLITS = ("train", "test", "unsup")
TOKEN = re.compile(r"[a-z0-9]+(?:'[a-z]+)?")
MEMBER = re.compile(r"aclImdb/(train|test)/(pos|neg|unsup)/(\d+)_(\d+)\.txt")
LABELS = {"neg": 0, "pos": 1, "unsup": -1}
RATINGS = {-1: {0}, 0: {1, 2, 3, 4}, 1: {7, 8, 9, 10}}

Row = tuple[int, int, int, str]
"""(label, id, rating, text), which is also the order of the rows."""


@dataclass(frozen=True)
class Reviews:
    """Film reviews, sorted by label and then by number: shuffle them before use.

    Attributes:
        texts: The reviews, unchanged, with their ``<br />`` tags.
        labels: 0 negative, 1 positive, -1 unknown.
        ratings: Stars, 1 to 10; 0 unknown.
        source: Where the reviews come from; show it beside every result.
        stand_in: Whether they only take the place of the real reviews.
    """

    texts: tuple[str, ...]
    labels: Int8[np.ndarray, " reviews"]
    ratings: Int8[np.ndarray, " reviews"]
    source: str
    stand_in: bool = False


def tokenise(text: str) -> list[str]:
    """Return the words of a text in order: lower case, letters a-z and digits, an apostrophe inside, no ``<br />``.

    A text without a letter a-z or digit has no word.

    Example:
        >>> tokenise("Don't miss it!<br /><br />10/10")
        ["don't", 'miss', 'it', '10', '10']
    """
    return TOKEN.findall(text.lower().replace("<br />", " "))


def imdb(
    splits: Sequence[str] = ("train", "test"), *, download: bool = True, stand_in: bool = True
) -> dict[str, Reviews]:
    """Return the Large Movie Review data: 25,000 train and test reviews, 50,000 without label (Maas et al., ACL 2011).

    Read from ``imdb/imdb_<split>.jsonl.gz``, or from the original archive without unpacking it to disk (all of it, so
    ask for all splits at once). 123 texts are in both train and test: that is how the data are. The stand-in are 2,000,
    1,000 and 2,000 synthetic reviews of 65 words on average, of which 8 are words of praise or blame, four in five of
    them rightly so: logistic regression on word counts reaches a test accuracy of 0.92. ``source`` says which they are.

    Args:
        splits: Some of train, test and unsup.
        download: Whether 84 MB may be downloaded where neither ``ATTNBOOK_DATA`` nor the cache has them.
        stand_in: Whether the stand-in may take their place; if not, an error is raised.

    Raises:
        ValueError: If a split is unknown or none is asked for.
        DataError: If a file is damaged, a review is not UTF-8, or nothing was found and no stand-in is wanted.
    """
    if not splits or not set(splits) <= set(SPLITS):
        raise ValueError(f"splits: got {tuple(splits)}, expected some of {', '.join(SPLITS)}")

    def from_lines(*files: Path) -> dict[str, list[Row]]:
        return dict(zip(splits, map(_read_lines, files), strict=True))

    def from_archive(file: Path) -> dict[str, list[Row]]:
        rows: dict[str, list[Row]] = {split: [] for split in splits}
        for split, row in _read_archive(file):
            rows.get(split, []).append(row)
        return {split: _some(found, file) for split, found in rows.items()}

    def synthetic_rows() -> tuple[dict[str, list[Row]], str]:
        return {split: list(synthetic.reviews(split)) for split in splits}, "synthetic reviews instead of IMDB"

    forms: Forms[dict[str, list[Row]]] = {
        tuple(f"imdb/imdb_{split}.jsonl.gz" for split in splits): from_lines,
        ("imdb/aclImdb_v1.tar.gz",): from_archive,
    }
    found, source, made = obtain("IMDB", forms, download=download, stand_in=synthetic_rows if stand_in else None)
    return {split: _reviews(rows, source, made) for split, rows in found.items()}


def _reviews(rows: list[Row], source: str, stand_in: bool) -> Reviews:
    labels, _, ratings, texts = zip(*sorted(rows), strict=True)
    return Reviews(texts, np.array(labels, np.int8), np.array(ratings, np.int8), source, stand_in)


def _read_lines(file: Path) -> list[Row]:
    """Read one JSON object per line, with ``id``, ``label``, ``rating`` and ``text``."""
    rows = []
    with readable(file), gzip.open(file) as lines:
        for number, line in enumerate(lines, 1):
            where = f"{file}, line {number}"
            try:
                entry: Any = json.loads(_decoded(line, where))
                row = entry["label"], entry["id"], entry["rating"], entry["text"]
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                raise DataError(f"{where}: not a JSON object with id, label, rating and text: {error!r}") from error
            rows.append(_checked(row, where))
    return _some(rows, file)


def _read_archive(file: Path) -> Iterator[tuple[str, Row]]:
    """Read ``aclImdb/<train or test>/<pos, neg or unsup>/<id>_<rating>.txt`` from the archive, in one pass."""
    for name, content in files_of_tar(file, MEMBER.fullmatch):
        folder, kind, number, rating = MEMBER.fullmatch(name).groups()  # type: ignore[union-attr]  # it is wanted
        where = f"{file}, {name}"
        row = LABELS[kind], int(number), int(rating), _decoded(content, where)
        yield "unsup" if kind == "unsup" else folder, _checked(row, where)


def _decoded(raw: bytes, where: str) -> str:
    """The data are UTF-8 throughout; a byte that is not means damage, so it is not replaced in silence."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8 at byte {error.start}; convert the review to UTF-8") from error


def _checked(row: tuple[Any, Any, Any, Any], where: str) -> Row:
    label, number, rating, text = row
    whole = all(type(value) is int for value in (label, number, rating))
    if not whole or rating not in RATINGS.get(label, ()) or not isinstance(text, str):
        raise DataError(f"{where}: label {label!r} and rating {rating!r} do not fit, or the text is none")
    return label, number, rating, text


def _some(rows: list[Row], file: Path) -> list[Row]:
    if not rows:
        raise DataError(f"{file}: no reviews of a split that was asked for")
    return rows
