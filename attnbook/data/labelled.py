"""Reviews with labels together with the vectors of their words, real or synthetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from attnbook.data import synthetic
from attnbook.data.reading import DataError
from attnbook.data.reviews import imdb
from attnbook.data.word_vectors import Embeddings, embeddings, train_embeddings

__all__ = ["LabelledReviews", "Source", "labelled_reviews"]

Source: TypeAlias = Literal["imdb", "synthetic"]
"""``imdb`` for the Large Movie Review data, ``synthetic`` for the reviews that come with the package."""


@dataclass(frozen=True)
class LabelledReviews:
    """Texts of both splits and vectors of their words.

    Attributes:
        train: Training texts, in the order in which the data set has them: sorted by label.
        train_labels: 1 for praise, 0 for blame.
        test: Test texts, likewise.
        test_labels: Their labels.
        vectors: Word vectors, most frequent word first.
        source: Where reviews and vectors come from; show it beside every result.
    """

    train: Sequence[str]
    train_labels: np.ndarray
    test: Sequence[str]
    test_labels: np.ndarray
    vectors: Embeddings
    source: str


def labelled_reviews(source: Source, vectors: str, dimension: int) -> LabelledReviews:
    """Return texts, labels and word vectors that are on this machine, without a download.

    Args:
        source: Which reviews.
        vectors: Name of the word vectors for ``imdb``; those for ``synthetic`` are trained on the spot.
        dimension: Entries of a word vector for ``synthetic``.

    Raises:
        DataError: If the reviews or vectors are not on this machine; the message says how to get them.
    """
    if source == "imdb":
        try:
            reviews = imdb(("train", "test"), download=False, stand_in=False)
            known = embeddings(vectors, download=False, stand_in=False)
        except DataError as error:
            get = "`attnbook data fetch imdb`, then `attnbook data train-vectors`"
            raise DataError(f"{error}; to get reviews and word vectors: {get}") from error
        train, test = reviews["train"], reviews["test"]
        where = f"{train.source}; {known.source}"
        return LabelledReviews(train.texts, train.labels, test.texts, test.labels, known, where)
    splits = {split: synthetic.reviews(split) for split in synthetic.SIZES}
    texts = {split: tuple(text for *_, text in rows) for split, rows in splits.items()}
    labels = {split: np.array([label for label, *_ in rows]) for split, rows in splits.items()}
    where = "synthetic reviews and word vectors trained on them, not IMDB"
    known = train_embeddings(texts["unsup"], dimension)
    return LabelledReviews(texts["train"], labels["train"], texts["test"], labels["test"], known, where)
