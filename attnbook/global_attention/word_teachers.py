r"""Sentences of random words, and teachers that label them by looking at some of the words.

A sentence has $p$ words, each a vector $x^j\in\mathbb R^t$ of standard normal entries. Every teacher is
$y = w^{(2)\top}\phi(\langle w^{(1)}, \sum_j a_j x^j\rangle)$, the truth of Theorem 6; they differ in the weights $a$:

==============  ==========================================================================================
teacher         weights
==============  ==========================================================================================
``attention``   $\mathrm{softmax}_j(q^\top x^j)$: what a word weighs depends on the word
``two_looks``   $\mathrm{softmax}_j(r(c)^\top x^j)$, where $c=\sum_j\mathrm{softmax}_j(q^\top x^j)\,x^j$ is what a
                first look found and $r$ is linear: a word's weight depends on another word
``position``    $\mathrm{softmax}_j(b_j)$: what a word weighs depends on its place
==============  ==========================================================================================

The paper states the first; the other two are this book's, to have teachers that a model cannot express.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
from jaxtyping import Float

from attnbook.core.rng import stream

__all__ = ["Mechanism", "WordTeacher", "draw_word_teacher", "order_blind_floor", "softmax"]

Mechanism: TypeAlias = Literal["attention", "two_looks", "position"]

SCALE_SAMPLES = 20_000  # sentences from which the standard deviation of the labels is computed


@dataclass(frozen=True)
class WordTeacher:
    r"""A function of sentences that looks at some of the words."""

    mechanism: Mechanism  #: What decides the weights
    query: Float[np.ndarray, " dimension"]  #: The vector $q$ of the first look, ``(dimension,)``
    #: The matrix of $r(c) = $ ``turn @ c``; it does not see the direction of $q$, ``(dimension, dimension)``
    turn: Float[np.ndarray, "dimension dimension"]
    places: Float[np.ndarray, " words"]  #: The scores $b$ of the places, ``(words,)``
    hidden: Float[np.ndarray, "width dimension"]  #: First-layer weights, ``(width, dimension)``
    #: Second-layer weights, scaled so that the labels have variance 1, ``(width,)``
    decoder: Float[np.ndarray, " width"]

    def weights(self, sentences: Float[np.ndarray, "samples words dimension"]) -> Float[np.ndarray, "samples words"]:
        """Return how much each word weighs in the label of its sentence; rows sum to one."""
        if self.mechanism == "position":
            return np.broadcast_to(softmax(self.places), sentences.shape[:2])
        first = softmax(sentences @ self.query)
        if self.mechanism == "attention":
            return first
        found = _pool(first, sentences) @ self.turn.T
        return softmax(np.einsum("swd,sd->sw", sentences, found))

    def __call__(self, sentences: Float[np.ndarray, "samples words dimension"]) -> Float[np.ndarray, " samples"]:
        """Return the clean labels of these sentences."""
        context = _pool(self.weights(sentences), sentences)
        return np.maximum(context @ self.hidden.T, 0.0) @ self.decoder


def softmax(logits: Float[np.ndarray, "*samples words"]) -> Float[np.ndarray, "*samples words"]:
    """Return the softmax over the last axis, safe for scores of any size."""
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def draw_word_teacher(
    mechanism: Mechanism, seed: int, *, n_words: int, dimension: int, width: int, focus: float
) -> WordTeacher:
    r"""Return a teacher drawn at random.

    Args:
        mechanism: What decides the weights; see the table at the top of this module.
        seed: Its seed; teachers of one seed share $q$ and the two layers.
        n_words: Words $p$ of a sentence.
        dimension: Entries $t$ of a word, at least 2.
        width: Hidden units.
        focus: Standard deviation of the scores that the softmax sees, $\|q\|$ for ``attention``; 0 gives
            all words the same weight. For ``two_looks`` it holds for the first look, and about so for the second.

    Raises:
        ValueError: If ``mechanism`` is unknown, a size is too small, or ``focus`` is negative.

    Example:
        >>> teacher = draw_word_teacher("attention", 0, n_words=3, dimension=2, width=4, focus=0.0)
        >>> teacher.weights(np.ones((1, 3, 2))).tolist() == [[1 / 3] * 3]
        True
    """
    if mechanism not in get_args(Mechanism):
        raise ValueError(f"mechanism: expected one of {', '.join(get_args(Mechanism))}, got {mechanism!r}")
    for name, size, least in (("n_words", n_words, 1), ("dimension", dimension, 2), ("width", width, 1)):
        if size < least:
            raise ValueError(f"{name}: expected at least {least}, got {size}")
    if not 0 <= focus < np.inf:
        raise ValueError(f"focus: expected a finite number of at least 0, got {focus}")
    rng = stream(seed, "word teacher")
    direction = rng.standard_normal(dimension)
    direction /= np.linalg.norm(direction)
    rotation = np.linalg.qr(rng.standard_normal((dimension, dimension)))[0]
    turn = rotation @ (np.eye(dimension) - np.outer(direction, direction))
    hidden = rng.standard_normal((width, dimension)) / np.sqrt(dimension)
    decoder = rng.standard_normal(width) / np.sqrt(width)
    places = focus * rng.standard_normal(n_words)
    # A softmax-weighted mean of words has a variance of about a half in each direction that q does not see.
    turn *= focus / np.sqrt((dimension - 1) / 2)
    raw = WordTeacher(mechanism, focus * direction, turn, places, hidden, decoder)
    labels = raw(stream(seed, "label scale").standard_normal((SCALE_SAMPLES, n_words, dimension)))
    return WordTeacher(mechanism, raw.query, turn, places, hidden, decoder / labels.std())


def order_blind_floor(
    teacher: WordTeacher,
    sentences: Float[np.ndarray, "samples words dimension"],
    shuffles: int,
    rng: np.random.Generator,
) -> float:
    """Return an unbiased estimate of the error below which no model gets that is blind to the order of words.

    Such a model answers the same for every order of the same words, and all are equally likely for independent words:
    its mean squared error is at least the mean, over sentences, of the variance of the label over orders.

    Args:
        teacher: What labels the sentences.
        sentences: Sentences of independent words of one distribution.
        shuffles: Orders of each sentence to try, at least 2.
        rng: Source of randomness.

    Returns:
        The floor, in units of the squared label.

    Raises:
        ValueError: If there are fewer than two orders.
    """
    if shuffles < 2:
        raise ValueError(f"shuffles: expected at least 2, got {shuffles}")
    labels = []
    for _ in range(shuffles):
        order = rng.permuted(np.tile(np.arange(sentences.shape[1]), (len(sentences), 1)), axis=1)
        labels.append(teacher(np.take_along_axis(sentences, order[..., None], axis=1)))
    return float(np.var(labels, axis=0, ddof=1).mean())


def _pool(weights: np.ndarray, sentences: np.ndarray) -> np.ndarray:
    return np.einsum("sw,swd->sd", weights, sentences)
