"""Synthetic reviews whose telling words are known: a few words of praise or blame among common words.

They take the place of film reviews where there are no files. They are ours and easy; what they show about attention on
telling words is exact, because it is known which words tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from attnbook.core.rng import stream

__all__ = ["PlantedReviews", "Vocabulary", "draw_reviews"]


@dataclass(frozen=True)
class Vocabulary:
    """Words by number: first the words of blame, then the words of praise, then the common words.

    Attributes:
        n_words: Words in all; default 400.
        n_polar: Words of blame, and as many of praise; default 20.
        exponent: The k-th common word is drawn with a probability that falls as k to minus this power; default 1, the
            law of Zipf.
    """

    n_words: int = 400
    n_polar: int = 20
    exponent: float = 1.0

    def __post_init__(self) -> None:
        if self.n_polar < 1 or self.n_words <= 2 * self.n_polar:
            raise ValueError(
                f"n_words, n_polar: expected common words beside twice n_polar polar ones, got {self.n_words} and "
                f"{self.n_polar}"
            )

    def frequencies(self) -> Float[np.ndarray, " common"]:
        """Return the probability of each common word."""
        weights = np.arange(1, self.n_words - 2 * self.n_polar + 1) ** -self.exponent
        return weights / weights.sum()


@dataclass(frozen=True)
class PlantedReviews:
    """Reviews of equal length.

    Attributes:
        words: Word numbers, ``(seeds, reviews, tokens)``.
        labels: 0 blame, 1 praise, some of them wrong, ``(seeds, reviews)``.
        telling: Whether the word speaks for the class that the review was written for, ``(seeds, reviews, tokens)``.
    """

    words: Int[np.ndarray, "seeds reviews tokens"]
    labels: Int[np.ndarray, "seeds reviews"]
    telling: Bool[np.ndarray, "seeds reviews tokens"]


def draw_reviews(
    seeds: Sequence[int],
    part: str,
    *,
    n_reviews: int,
    n_tokens: int = 32,
    n_telling: int = 3,
    n_opposite: int = 1,
    label_noise: float = 0.08,
    vocabulary: Vocabulary | None = None,
) -> PlantedReviews:
    """Draw synthetic reviews.

    Args:
        seeds: One set of reviews per seed.
        part: Name of the set, for example ``train``; other names, other reviews.
        n_reviews: Reviews per seed.
        n_tokens: Words per review; default 32.
        n_telling: Words of the review's class; default 3.
        n_opposite: Words of the other class; default 1.
        label_noise: Share of wrong labels, at random; default 0.08.
        vocabulary: The words; default 400 with 20 of blame and 20 of praise.

    Returns:
        The reviews; the places of all words are random.

    Raises:
        ValueError: If the polar words do not fit into a review, or ``label_noise`` is no share below one half.
    """
    vocabulary = vocabulary or Vocabulary()
    n_common = n_tokens - n_telling - n_opposite
    if min(n_reviews, n_telling) < 1 or n_opposite < 0 or n_common < 0:
        raise ValueError(
            f"n_reviews, n_tokens, n_telling, n_opposite: expected room for at least one telling word, "
            f"got {n_reviews}, {n_tokens}, {n_telling} and {n_opposite}"
        )
    if not 0 <= label_noise < 0.5:
        raise ValueError(f"label_noise: expected at least 0 and less than one half, got {label_noise!r}")
    found = []
    for seed in seeds:
        rng = stream(seed, "planted reviews", part)
        label = rng.integers(2, size=(n_reviews, 1))
        own, other = (
            side * vocabulary.n_polar + rng.integers(vocabulary.n_polar, size=(n_reviews, count))
            for side, count in ((label, n_telling), (1 - label, n_opposite))
        )
        common = rng.choice(vocabulary.frequencies().size, size=(n_reviews, n_common), p=vocabulary.frequencies())
        words = np.concatenate([own, other, common + 2 * vocabulary.n_polar], axis=1)
        places = rng.permuted(np.tile(np.arange(n_tokens), (n_reviews, 1)), axis=1)
        wrong = rng.random(n_reviews) < label_noise
        found.append((np.take_along_axis(words, places, axis=1), label[:, 0] ^ wrong, places < n_telling))
    return PlantedReviews(*(np.stack(arrays) for arrays in zip(*found, strict=True)))
