"""Reviews as the small transformer reads them: the last words of each, and one vector per word."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnbook import datasets
from attnbook.core.rng import stream
from attnbook.datasets import Source
from attnbook.mirror_descent.transformer import Inputs

__all__ = ["LastWords", "batches", "load_reviews", "parts", "polarity"]

# Texts are cut before they are split into words: this many characters per wanted word, then twice as many, and so on.
CHARACTERS = 12
N_POLAR = 300
LEAST_LOG_ODDS = 0.5
DIMENSION_OF_SYNTHETIC = 100


@dataclass(frozen=True)
class LastWords:
    """The last known words of each review as ids. Id 0 is no word, id ``k`` is row ``k`` of the vectors.

    Attributes:
        train: Training reviews, in random order.
        train_labels: 1 for praise, 0 for blame.
        test: Test reviews, in random order.
        test_labels: Their labels.
        vectors: One vector per id; that of no word is zero.
        words: The word of each id; the first is empty.
        polar: Whether the word speaks for praise or blame, by :func:`polarity` on the training reviews.
        source: Where reviews and vectors come from.
    """

    train: Int[np.ndarray, "train tokens"]
    train_labels: Int[np.ndarray, " train"]
    test: Int[np.ndarray, "test tokens"]
    test_labels: Int[np.ndarray, " test"]
    vectors: Float[np.ndarray, "ids dimension"]
    words: tuple[str, ...]
    polar: Bool[np.ndarray, " ids"]
    source: str


@lru_cache(maxsize=1)
def load_reviews(source: Source, vectors: str, *, n_words: int, n_tokens: int, dimension: int) -> LastWords:
    """Load reviews, keep the last words of each, and reduce the word vectors to their principal components.

    Args:
        source: ``imdb`` or ``synthetic``.
        vectors: Name of the word vectors for ``imdb``.
        n_words: How many of the most frequent words are known; others are left out.
        n_tokens: Most words kept of a review.
        dimension: Principal components kept, scaled to variance one in the mean.

    Returns:
        The reviews.

    Raises:
        DataError: If the data are not on this machine.
        ValueError: If more components are wanted than the vectors have.
    """
    found = datasets.labelled_reviews(source, vectors, DIMENSION_OF_SYNTHETIC)
    known = found.vectors.words[:n_words]
    table = _components(found.vectors.vectors[:n_words].astype(np.float64), dimension)
    ids = {word: row for row, word in enumerate(known, 1)}
    encoded = []
    for split, texts, labels in (
        ("train", found.train, found.train_labels),
        ("test", found.test, found.test_labels),
    ):
        order = stream(0, f"order of {split} reviews").permutation(len(texts))
        encoded += [last_words([texts[i] for i in order], ids, n_tokens), labels[order].astype(np.int64)]
    train, train_labels, test, test_labels = encoded
    polar = polarity(train, train_labels, len(known) + 1) != 0
    return LastWords(train, train_labels, test, test_labels, table, ("", *known), polar, found.source)


def last_words(texts: Sequence[str], ids: Mapping[str, int], n_tokens: int) -> Int[np.ndarray, "texts tokens"]:
    """Look up the last known words of each text.

    Args:
        texts: Texts.
        ids: Word to id, 1 or larger; other words are left out.
        n_tokens: Most words kept.

    Returns:
        Ids in the order of the text, then zeros.

    Example:
        >>> last_words(["a fine, fine film"], {"fine": 1, "film": 2}, 4)
        array([[1, 1, 2, 0]])
    """
    table = np.zeros((len(texts), n_tokens), dtype=np.int64)
    for row, text in enumerate(texts):
        kept = _end(text, ids, n_tokens)
        table[row, : len(kept)] = kept
    return table


def polarity(
    tokens: Int[np.ndarray, "reviews tokens"], labels: Int[np.ndarray, " reviews"], n_ids: int
) -> Int[np.ndarray, " ids"]:
    """Find the words that tell praise from blame: 300 of the largest z-score of their log-odds, above 0.5 in size.

    Counts are smoothed by one half. The z-score is the log-odds over its standard error.

    Args:
        tokens: Ids of training reviews, 0 for no word.
        labels: 1 or 0.
        n_ids: Number of ids.

    Returns:
        1 for words of praise, -1 for words of blame, 0 for all others.
    """
    counts = np.stack([np.bincount(tokens[labels == label].ravel(), minlength=n_ids) for label in (0, 1)])
    counts[:, 0] = 0
    smooth = counts + 0.5
    odds = np.log(smooth / (smooth.sum(axis=1, keepdims=True) - smooth))
    log_odds = odds[1] - odds[0]
    z = np.abs(log_odds) / np.sqrt((1 / smooth).sum(axis=0))
    z[(np.abs(log_odds) <= LEAST_LOG_ODDS) | (counts.sum(axis=0) == 0)] = 0
    chosen = np.argsort(-z, kind="stable")[:N_POLAR]
    signs = np.zeros(n_ids, dtype=np.int64)
    signs[chosen] = np.where(z[chosen] > 0, np.sign(log_odds[chosen]), 0)
    return signs


def batches(
    reviews: LastWords,
    rows: Int[np.ndarray, "groups steps batch"],
    *,
    frozen: bool,
    device: torch.device | str = "cpu",
) -> Callable[[int], Inputs]:
    """Return the function from step to batch.

    Args:
        reviews: The reviews.
        rows: Training reviews that each group sees at each step.
        frozen: Whether to give vectors of words, not ids.
        device: Where the batch is wanted; all training reviews are kept there.

    Returns:
        For :func:`attnbook.core.ensemble.train`.
    """
    ids, table = torch.as_tensor(reviews.train, device=device), _table(reviews, device)
    chosen = torch.as_tensor(rows, device=device)
    labels = torch.as_tensor(reviews.train_labels[rows], device=device)

    def batch(step: int) -> Inputs:
        numbers = ids[chosen[:, step]]
        tokens = torch.nn.functional.embedding(numbers, table) if frozen else numbers
        return Inputs(tokens, labels[:, step], numbers > 0)

    return batch


def parts(
    reviews: LastWords,
    tokens: Int[np.ndarray, "samples tokens"],
    labels: Int[np.ndarray, " samples"],
    *,
    frozen: bool,
    device: torch.device | str = "cpu",
    size: int = 250,
) -> Iterator[tuple[Inputs, Bool[Tensor, "batch tokens"]]]:
    """Yield reviews in parts, one group for all members, with the mask of polar words.

    Args:
        reviews: Vectors and polar words.
        tokens: Ids.
        labels: Labels.
        frozen: Whether to give vectors of words, not ids.
        device: Where they are wanted.
        size: Reviews per part.

    Yields:
        Inputs, and which words are polar.
    """
    table, polar = _table(reviews, device), torch.tensor(reviews.polar, device=device)
    for first in range(0, len(tokens), size):
        numbers = torch.as_tensor(tokens[None, first : first + size], device=device)
        shown = torch.nn.functional.embedding(numbers, table) if frozen else numbers
        yield (
            Inputs(shown, torch.as_tensor(labels[None, first : first + size], device=device), numbers > 0),
            polar[numbers[0]],
        )


def _table(reviews: LastWords, device: torch.device | str) -> Tensor:
    return torch.tensor(reviews.vectors, dtype=torch.float32, device=device)


def _components(vectors: np.ndarray, dimension: int) -> Float[np.ndarray, "ids dimension"]:
    """Principal components of all words, with a row of zeros for no word before them."""
    if not 1 <= dimension <= vectors.shape[1]:
        raise ValueError(f"dimension: expected between 1 and {vectors.shape[1]}, that of the vectors, got {dimension}")
    centred = vectors - vectors.mean(axis=0)
    _, directions = np.linalg.eigh(centred.T @ centred)
    kept = centred @ directions[:, ::-1][:, :dimension]
    return np.concatenate([np.zeros((1, dimension)), kept / kept.std()])


def _end(text: str, ids: Mapping[str, int], n_tokens: int) -> list[int]:
    """The last known words; only the end of a text is split, cut at a space, so that no word is cut."""
    wanted = CHARACTERS * n_tokens
    while True:
        start = text.rfind(" ", 0, max(len(text) - wanted, 0)) + 1 if wanted < len(text) else 0
        kept = [ids[word] for word in datasets.tokenise(text[start:]) if word in ids][-n_tokens:]
        if start == 0 or len(kept) == n_tokens:
            return kept
        wanted *= 2
