"""Reviews as the small transformer reads them: the last words of each, and one vector per word."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from attnbook.core.rng import stream
from attnbook.data import Source, labelled_reviews, tokenise
from attnbook.mirror_descent.real_text_and_images.transformer import Inputs

N_POLAR = 300
LEAST_LOG_ODDS = 0.5
DIMENSION_OF_SYNTHETIC = 100


class LastWords(NamedTuple):
    """The last known words of each review, in random order, as ids: 0 is no word, ``k`` is row ``k`` of vectors."""

    train: Int[np.ndarray, "train tokens"]
    train_labels: Int[np.ndarray, " train"]  # 1 for praise, 0 for blame
    test: Int[np.ndarray, "test tokens"]
    test_labels: Int[np.ndarray, " test"]
    vectors: Float[np.ndarray, "ids dimension"]  # that of no word is zero
    polar: Bool[np.ndarray, " ids"]  # whether the word speaks for praise or blame, by the training reviews


@lru_cache(maxsize=1)
def load_reviews(source: Source, vectors: str, *, n_words: int, n_tokens: int, dimension: int) -> LastWords:
    """Load reviews, keep their last known words, and reduce the vectors of the most frequent words."""
    found = labelled_reviews(source, vectors, DIMENSION_OF_SYNTHETIC)
    known = found.vectors.words[:n_words]
    table = _components(found.vectors.vectors[:n_words].astype(np.float64), dimension)
    ids = {word: row for row, word in enumerate(known, 1)}
    splits = {"train": (found.train, found.train_labels), "test": (found.test, found.test_labels)}
    encoded = []
    for split, (texts, labels) in splits.items():
        order = stream(0, f"order of {split} reviews").permutation(len(texts))
        encoded += [last_words([texts[i] for i in order], ids, n_tokens), labels[order].astype(np.int64)]
    train, train_labels, test, test_labels = encoded
    polar = polarity(train, train_labels, len(known) + 1) != 0
    return LastWords(train, train_labels, test, test_labels, table, polar)


def last_words(texts: Sequence[str], ids: Mapping[str, int], n_tokens: int) -> Int[np.ndarray, "texts tokens"]:
    """Look up the last known words of each text: ids in its order, then zeros."""
    table = np.zeros((len(texts), n_tokens), dtype=np.int64)
    for row, text in enumerate(texts):
        kept = [ids[word] for word in tokenise(text) if word in ids][-n_tokens:]
        table[row, : len(kept)] = kept
    return table


def polarity(
    tokens: Int[np.ndarray, "reviews tokens"], labels: Int[np.ndarray, " reviews"], n_ids: int
) -> Int[np.ndarray, " ids"]:
    """Return 1 for words of praise, -1 for words of blame, 0 for all others.

    That is 300 words with the largest z-score of their log-odds, above 0.5 in size: the log-odds over its standard
    error, with counts smoothed by one half.
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
    reviews: LastWords, rows: Int[np.ndarray, "groups steps batch"], *, device: torch.device | str = "cpu"
) -> Callable[[int], Inputs]:
    """Return the function from step to the batch of these rows of the training reviews."""
    ids, table = torch.as_tensor(reviews.train, device=device), _table(reviews, device)
    chosen = torch.as_tensor(rows, device=device)
    labels = torch.as_tensor(reviews.train_labels[rows], device=device)

    def batch(step: int) -> Inputs:
        numbers = ids[chosen[:, step]]
        return Inputs(functional.embedding(numbers, table), labels[:, step], numbers > 0)

    return batch


def parts(
    reviews: LastWords,
    tokens: Int[np.ndarray, "samples tokens"],
    labels: Int[np.ndarray, " samples"],
    *,
    device: torch.device | str = "cpu",
    size: int = 250,
) -> Iterator[tuple[Inputs, Bool[Tensor, "batch tokens"]]]:
    """Yield reviews in parts, one group for all members, with the mask of polar words."""
    table, polar = _table(reviews, device), torch.tensor(reviews.polar, device=device)
    for first in range(0, len(tokens), size):
        numbers, right = (torch.as_tensor(a[None, first : first + size], device=device) for a in (tokens, labels))
        yield Inputs(functional.embedding(numbers, table), right, numbers > 0), polar[numbers[0]]


def _table(reviews: LastWords, device: torch.device | str) -> Tensor:
    return torch.tensor(reviews.vectors, dtype=torch.float32, device=device)


def _components(vectors: np.ndarray, dimension: int) -> Float[np.ndarray, "ids dimension"]:
    """Principal components of all words, of variance one in the mean, after a row of zeros for no word."""
    if not 1 <= dimension <= vectors.shape[1]:
        raise ValueError(f"dimension: expected between 1 and {vectors.shape[1]}, that of the vectors, got {dimension}")
    centred = vectors - vectors.mean(axis=0)
    _, directions = np.linalg.eigh(centred.T @ centred)
    kept = centred @ directions[:, ::-1][:, :dimension]
    return np.concatenate([np.zeros((1, dimension)), kept / kept.std()])
