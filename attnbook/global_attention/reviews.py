"""Reviews as numbers: the ids of their known words, one after the other, and one vector per word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

from attnbook.core.rng import stream
from attnbook.data import Source, labelled_reviews, tokenise

__all__ = ["Corpus", "EncodedReviews", "encode", "load_corpus"]


@dataclass(frozen=True)
class EncodedReviews:
    """Reviews as word ids. Id 0 is padding, id ``k`` is row ``k`` of a table of vectors whose row 0 is zero."""

    ids: Int[np.ndarray, " words"]  #: The words of all reviews, one review after the other, ``(words,)``
    #: Where each review begins in ``ids``, and where the last one ends, ``(reviews + 1,)``
    starts: Int[np.ndarray, " starts"]
    labels: Float[np.ndarray, " reviews"]  #: 1 for praise, 0 for blame, ``(reviews,)``

    def __post_init__(self) -> None:
        if len(self.starts) != len(self.labels) + 1:
            raise ValueError(f"starts: expected {len(self.labels) + 1} for {len(self)} reviews, got {len(self.starts)}")

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def lengths(self) -> Int[np.ndarray, " reviews"]:
        """Number of known words of each review."""
        return np.diff(self.starts)

    def words(self, review: int | np.integer) -> Int[np.ndarray, " length"]:
        """Return the word ids of one review."""
        return self.ids[self.starts[review] : self.starts[review + 1]]

    def take(self, chosen: Int[np.ndarray, " reviews"]) -> EncodedReviews:
        """Return some reviews, in the order given."""
        rows = [self.words(review) for review in chosen]
        starts = np.cumsum([0, *map(len, rows)])
        return EncodedReviews(np.concatenate([self.ids[:0], *rows]), starts, self.labels[chosen])


@dataclass(frozen=True)
class Corpus:
    """Reviews to train and to test on, and the vectors of their words."""

    train: EncodedReviews  #: Training reviews, in the order in which the data set has them
    test: EncodedReviews  #: Test reviews, likewise
    vectors: Float[np.ndarray, "vocabulary dimension"]  #: One row per word id; row 0, padding, is zero
    source: str  #: Where reviews and vectors come from


def load_corpus(source: Source, vectors: str, *, dimension: int, n_positions: int, n_test: int) -> Corpus:
    """Return reviews and word vectors.

    Args:
        source: ``imdb`` for the Large Movie Review data, ``synthetic`` for the reviews that come with the package.
        vectors: Name of the word vectors for ``imdb``; those for ``synthetic`` are trained on the spot.
        dimension: Entries of a word vector.
        n_positions: Most words kept of a review.
        n_test: Test reviews to keep, the same at every call.

    Raises:
        DataError: If the reviews or vectors are not on this machine; the message says how to get them.
        ValueError: If a number is outside its range, or the vectors have another dimension.
    """
    found = labelled_reviews(source, vectors, dimension)
    known = found.vectors
    if known.vectors.shape[1] != dimension:
        raise ValueError(f"dimension: expected {known.vectors.shape[1]}, that of {vectors!r}, got {dimension}")
    if not 1 <= n_test <= len(found.test):
        raise ValueError(f"n_test: expected between 1 and {len(found.test)}, got {n_test}")
    if n_positions < 1:
        raise ValueError(f"n_positions: expected at least 1, got {n_positions}")
    ids = {word: row for row, word in enumerate(known.words, 1)}
    chosen = stream(0, "test reviews").permutation(len(found.test))[:n_test]
    tested = [found.test[i] for i in chosen], found.test_labels[chosen]
    train, test = (
        encode([tokenise(text) for text in texts], labels, ids, n_positions)
        for texts, labels in ((found.train, found.train_labels), tested)
    )
    return Corpus(train, test, np.concatenate([np.zeros((1, dimension)), known.vectors]), found.source)


def encode(
    texts: Sequence[Sequence[str]], labels: Sequence[float] | np.ndarray, ids: Mapping[str, int], n_positions: int
) -> EncodedReviews:
    """Look up the known words of each review, by ``ids`` from 1 on, and keep the first ``n_positions`` of them."""
    rows = [[ids[word] for word in words if word in ids][:n_positions] for words in texts]
    starts = np.cumsum([0, *map(len, rows)])
    flat = np.array([i for row in rows for i in row], dtype=np.int64)
    return EncodedReviews(flat, starts, np.asarray(labels, dtype=np.float64))
