r"""Word vectors by name, from a file or GloVe's archive, or trained on texts.

They are trained by positive pointwise mutual information, then a truncated singular value decomposition:

===============  ==============================  ==================================
symbol           name here                       shape
===============  ==============================  ==================================
$C_{ij}$         ``counts``                      ``(words, words)``
$M_{ij}$         ``information``                 ``(words, words)``
===============  ==============================  ==================================
"""

from __future__ import annotations

import re
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from attnbook.core.places import cache_folder
from attnbook.core.rng import stream
from attnbook.data import synthetic
from attnbook.data.files import obtain
from attnbook.data.reading import DataError, arrays_of_npz, readable
from attnbook.data.reviews import tokenise

__all__ = ["Embeddings", "embeddings", "store_embeddings", "train_embeddings"]

GLOVE = "glove6B_100d"
NAMES = ("imdb_ppmi_svd_100d", "imdb_word2vec_100d", GLOVE)
DIMENSION = 100
NAME = re.compile(r"\w[\w.-]*", re.ASCII)


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


def embeddings(name: str = "imdb_ppmi_svd_100d", *, download: bool = True, stand_in: bool = True) -> Embeddings:
    """Return word vectors by name; ``source`` says where they come from.

    A name stands for the file ``embeddings/<name>.npz`` in ``ATTNBOOK_DATA`` or in the cache: ``imdb_ppmi_svd_100d``
    (make it with ``attnbook data train-vectors``), ``imdb_word2vec_100d``, or one of yours with arrays ``words`` and
    ``vec``. The vectors ``glove6B_100d`` may also come from Stanford's archive ``embeddings/glove.6B.zip`` (400,000
    words, about 12 s to read). These three have a stand-in: 100 components trained at once on the synthetic reviews,
    which have some 220 different words.

    Args:
        name: Name of the file without its ending.
        download: Whether 862 MB may be downloaded for ``glove6B_100d``; nothing else can be.
        stand_in: Whether the stand-in may take their place; if not, an error is raised.

    Raises:
        ValueError: If the name cannot be that of a file.
        DataError: If a file is damaged, or nothing was found and no stand-in is wanted.
    """
    if not NAME.fullmatch(name):
        raise ValueError(f"name: got {name!r}, expected letters, digits, '_', '-' and '.'")

    def small() -> tuple[Embeddings, str]:
        made = train_embeddings((text for *_, text in synthetic.reviews("unsup")), DIMENSION)
        return made, f"vectors trained on synthetic reviews instead of {name}"

    forms: dict[tuple[str, ...], Callable[[Path], Embeddings]] = {(f"embeddings/{name}.npz",): _read_npz}
    if name == GLOVE:
        forms |= {("embeddings/glove.6B.zip",): _read_glove}
    made = small if stand_in and name in NAMES else None
    found, source, is_made = obtain(f"word vectors {name}", forms, download=download, stand_in=made)
    return replace(found, source=source, stand_in=is_made)


def store_embeddings(made: Embeddings, name: str) -> Path:
    """Return the file of the user cache in which word vectors are kept by name, whole or not at all, in float32.

    :func:`embeddings` finds them there.

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


def train_embeddings(
    texts: Iterable[str],
    dimension: int = 100,
    *,
    n_words: int = 30_000,
    min_count: int = 5,
    window: int = 5,
    context_power: float = 0.75,
    source: str = "trained here",
) -> Embeddings:
    r"""Return word vectors trained on texts, in float32, most frequent word first.

    With $C_{ij} = \sum 1/\text{distance}$ over all places where $j$ stands within ``window`` words of $i$,
    $M_{ij} = \max\bigl(0, \log \frac{C_{ij}}{\sum_k C_{ik}} - \log \frac{c_j^\alpha}{\sum_k c_k^\alpha}\bigr)$,
    where $c_j = \sum_i C_{ij}$ and $\alpha$ is ``context_power``. The vectors are the rows of $U\sqrt S$ for
    $M \approx U S V^\top$. The solver starts from a fixed vector, and the largest entry of each column is made
    positive, so the result is repeatable. The 75,000 reviews of IMDB take about a minute and 1.5 GB.

    Args:
        texts: The texts; empty ones are fine.
        dimension: Number of components, at least 1 and less than the number of words kept.
        n_words: The most frequent words to keep; equally frequent ones in alphabetical order.
        min_count: How often a word must occur to be kept.
        window: Largest distance of two words that count as neighbours. Words that are not kept take no place.
        context_power: Exponent of the context frequencies; below 1 it tempers rare words.
        source: What to say about where the vectors come from.

    Raises:
        ValueError: If an argument is out of range, or too few words are kept.
    """
    for name, value in {"dimension": dimension, "n_words": n_words, "min_count": min_count, "window": window}.items():
        if value < 1:
            raise ValueError(f"{name}: expected at least 1, got {value}")
    if not 0 < context_power <= 1:
        raise ValueError(f"context_power: expected above 0 and at most 1, got {context_power}")
    words, rows, text_of = _kept(texts, n_words, min_count)
    if dimension >= len(words):
        raise ValueError(f"dimension: got {dimension}, expected less than the {len(words)} words kept of these texts")
    information = _information(_counts(rows, text_of, len(words), window), context_power)
    if not information.nnz:
        raise ValueError("texts: no two of the words kept stand near each other, expected some")
    return Embeddings(words, _components(information, dimension), source)


def _read_npz(file: Path) -> Embeddings:
    """Read a file with arrays ``words`` and ``vec``; the vectors become float32."""
    words, vectors = arrays_of_npz(file, "words", "vec")
    if words.dtype.kind != "U" or vectors.dtype.kind != "f":
        raise DataError(f"{file}: words {words.dtype} and vec {vectors.dtype}, expected text and floating point")
    with readable(file):
        return Embeddings(tuple(words.tolist()), vectors.astype(np.float32), str(file))


def _read_glove(file: Path) -> Embeddings:
    """Read a text of one word and its numbers per line."""
    words, rows = [], []
    with readable(file), zipfile.ZipFile(file) as archive:
        with archive.open(f"glove.6B.{DIMENSION}d.txt") as lines:
            for number, line in enumerate(lines, 1):
                word, *numbers = line.decode("utf-8").rstrip().rsplit(" ", DIMENSION)
                if len(numbers) != DIMENSION:
                    raise DataError(f"{file}, line {number}: {len(numbers)} numbers, expected {DIMENSION}")
                words.append(word)
                rows.append(np.array(numbers, np.float32))
        if not rows:
            raise DataError(f"{file}: no word vectors")
        return Embeddings(tuple(words), np.stack(rows), str(file))


def _kept(texts: Iterable[str], n_words: int, min_count: int) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """The words kept, the row of each occurrence of one of them, and the number of the text it is in."""
    seen: dict[str, int] = {}
    by_text = [np.array([seen.setdefault(word, len(seen)) for word in tokenise(text)], np.int32) for text in texts]
    if not seen:
        return (), np.empty(0, np.int32), np.empty(0, np.int32)
    occurrences = np.concatenate(by_text)
    text_of = np.repeat(np.arange(len(by_text), dtype=np.int32), [len(ids) for ids in by_text])
    frequency = np.bincount(occurrences)
    frequent = [(-count, word) for word, count in zip(seen, frequency.tolist(), strict=True) if count >= min_count]
    words = tuple(word for _, word in sorted(frequent)[:n_words])
    row_of = np.full(len(seen), -1, np.int32)
    row_of[[seen[word] for word in words]] = np.arange(len(words))
    rows = row_of[occurrences]
    return words, rows[rows >= 0], text_of[rows >= 0]


def _counts(rows: np.ndarray, text_of: np.ndarray, n_words: int, window: int) -> Any:
    """Weighted counts of neighbours, as a symmetric sparse matrix."""
    from scipy.sparse import coo_array, csr_array

    counts = csr_array((n_words, n_words))
    for distance in range(1, window + 1):
        together = text_of[:-distance] == text_of[distance:]
        left, right = rows[:-distance][together], rows[distance:][together]
        counts += coo_array((np.full(len(left), 1.0 / distance), (left, right)), shape=counts.shape).tocsr()
    return counts + counts.T


def _information(counts: Any, context_power: float) -> Any:
    """Positive pointwise mutual information; a word without neighbours has none."""
    information = counts.tocoo()
    of_word, of_context = counts.sum(axis=1), counts.sum(axis=0) ** context_power
    row, column = information.coords
    joint = information.data * of_context.sum() / (of_word[row] * of_context[column])
    information.data = np.maximum(np.log(joint), 0.0)
    information = information.tocsr()
    information.eliminate_zeros()
    return information


def _components(information: Any, dimension: int) -> np.ndarray:
    from scipy.sparse.linalg import svds

    start = stream(0, "singular vectors").standard_normal(information.shape[0])
    left, values, _ = svds(information, k=dimension, v0=start)
    left, values = left[:, ::-1], values[::-1]
    signs = np.sign(left[np.abs(left).argmax(axis=0), np.arange(dimension)])
    return (left * signs * np.sqrt(np.maximum(values, 0.0))).astype(np.float32)
