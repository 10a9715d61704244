"""Word vectors by name: from a file, from GloVe's archive, or trained on the synthetic reviews."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

from attnbook.datasets import synthetic
from attnbook.datasets.files import DataError, Form, obtain
from attnbook.datasets.training import train_embeddings
from attnbook.datasets.unpacking import in_zip
from attnbook.datasets.word_vectors import Embeddings, read_embeddings

__all__ = ["GLOVE", "embeddings"]

GLOVE = "glove6B_100d"
NAMES = ("imdb_ppmi_svd_100d", "imdb_word2vec_100d", GLOVE)
DIMENSION = 100
NAME = re.compile(r"\w[\w.-]*", re.ASCII)

Content = tuple[tuple[str, ...], np.ndarray]


def embeddings(name: str = "imdb_ppmi_svd_100d", *, download: bool = True, stand_in: bool = True) -> Embeddings:
    """Return word vectors by name; ``source`` says where they come from.

    A name stands for the file ``embeddings/<name>.npz`` in ``ATTNBOOK_DATA`` or in the cache: ``imdb_ppmi_svd_100d``
    (make it with ``attnbook data embeddings``), ``imdb_word2vec_100d``, or one of yours with arrays ``words`` and
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
    forms: list[Form[Content]] = [Form((f"embeddings/{name}.npz",), lambda files: read_embeddings(files[0]))]
    if name == GLOVE:
        forms.append(Form(("embeddings/glove.6B.zip",), _read_glove))
    made = _small(name) if stand_in and name in NAMES else None
    found = obtain(f"word vectors {name}", forms, download=download, stand_in=made)
    return Embeddings(*found.content, found.source, found.stand_in)


def _small(name: str) -> Callable[[], tuple[Content, str]]:
    def make() -> tuple[Content, str]:
        made = train_embeddings((text for *_, text in synthetic.reviews("unsup")), DIMENSION)
        return (made.words, made.vectors), f"vectors trained on synthetic reviews instead of {name}"

    return make


def _read_glove(files: list[Path]) -> Content:
    """Read a text of one word and its numbers per line."""
    (file,) = files
    words, rows = [], []
    with in_zip(file, f"glove.6B.{DIMENSION}d.txt") as (lines,):
        for number, line in enumerate(lines, 1):
            word, *numbers = line.decode("utf-8").rstrip().rsplit(" ", DIMENSION)
            if len(numbers) != DIMENSION:
                raise DataError(f"{file}, line {number}: {len(numbers)} numbers, expected {DIMENSION}")
            words.append(word)
            rows.append(np.array(numbers, np.float32))
        if not rows:
            raise DataError(f"{file}: no word vectors")
        made = Embeddings(tuple(words), np.stack(rows), str(file))
    return made.words, made.vectors
