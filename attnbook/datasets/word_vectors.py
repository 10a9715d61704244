"""Word vectors and the file that holds them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from numpy.lib.format import read_array

from attnbook.datasets.files import DataError, cache_folder
from attnbook.datasets.reviews import tokenise
from attnbook.datasets.unpacking import in_zip

__all__ = ["Embeddings", "read_embeddings", "store_embeddings"]


@dataclass(frozen=True)
class Embeddings:
    """Word vectors. Two sets order their words differently: map words to rows by :meth:`encode` only.

    Attributes:
        words: The words, most frequent first.
        vectors: One row per word.
        source: Where they come from; show it beside every result.
        stand_in: Whether they only take the place of the vectors that were asked for.
    """

    words: tuple[str, ...]
    vectors: Float[np.ndarray, "words dimension"]
    source: str
    stand_in: bool = False

    def __post_init__(self) -> None:
        if self.vectors.ndim != 2 or len(self.vectors) != len(self.words) or not self.vectors.size:
            raise ValueError(f"vectors: {self.vectors.shape}, expected ({len(self.words)} words, dimension)")
        if len(self.rows) != len(self.words):
            raise ValueError(f"words: {len(self.words) - len(self.rows)} of {len(self.words)} are there twice")
        if not np.isfinite(self.vectors).all():
            raise ValueError("vectors: some entries are NaN or infinite")

    @cached_property
    def rows(self) -> Mapping[str, int]:
        """Word to row."""
        return {word: row for row, word in enumerate(self.words)}

    def encode(self, text: str) -> Int[np.ndarray, " tokens"]:
        """Return the rows of the words of a text, in order; words that are not known are left out.

        A text that is empty or without a known word has no row: check for length 0 before you average.
        """
        known = (self.rows.get(word) for word in tokenise(text))
        return np.array([row for row in known if row is not None], np.int32)

    def nearest(self, word: str, count: int = 5) -> list[str]:
        """Return so many other words with the largest cosine to a word, the nearest first.

        Raises:
            ValueError: If the word is not known.
        """
        if word not in self.rows:
            raise ValueError(f"word: {word!r} has no vector here")
        row = self.rows[word]
        lengths = np.linalg.norm(self.vectors, axis=1)
        cosines = self.vectors @ self.vectors[row] / np.maximum(lengths, 1e-12)
        order = np.argsort(-cosines, kind="stable")
        return [self.words[k] for k in order[order != row][:count]]


def read_embeddings(file: Path) -> tuple[tuple[str, ...], np.ndarray]:
    """Return words, and their vectors in float32, from an ``.npz`` file with arrays ``words`` and ``vec``.

    Its members carry checksums of their own, which are compared.

    Raises:
        DataError: If the file is damaged, or the arrays do not belong together.
    """
    with in_zip(file, "words.npy", "vec.npy") as arrays:
        words, vectors = map(read_array, arrays)  # which reads no pickle
        if words.dtype.kind != "U" or vectors.dtype.kind != "f":
            raise DataError(f"{file}: words {words.dtype} and vec {vectors.dtype}, expected text and floating point")
        made = Embeddings(tuple(words.tolist()), vectors.astype(np.float32), str(file))
    return made.words, made.vectors


def store_embeddings(made: Embeddings, name: str) -> Path:
    """Return the file of the user cache in which word vectors are kept by name, whole or not at all, in float32.

    :func:`~attnbook.datasets.pretrained.embeddings` finds them there.

    Raises:
        DataError: If the cache cannot be written.
    """
    path = cache_folder() / "embeddings" / f"{name}.npz"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".part-") as folder:
            part = Path(folder) / path.name
            np.savez_compressed(part, words=np.array(made.words), vec=made.vectors.astype(np.float32))
            part.replace(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror}; set ATTNBOOK_CACHE to another folder") from error
    return path
