r"""Random token-selection problems, and a toy problem in the plane.

==================  ====================  ==================================
paper               name here             shape (after ``problems``)
==================  ====================  ==================================
$X_{it}$            ``tokens``            ``(samples, tokens, dimension)``
$z_i$               ``queries``           ``(samples, dimension)``
$y_i$               ``labels``            ``(samples,)``, plus or minus one
$v$                 ``decoder``           ``(dimension,)``
$\gamma_{it}$       ``token_scores``      ``(samples, tokens)``
==================  ====================  ==================================

The text available to us gives no sizes. Six samples of eight tokens in ten dimensions, all vectors independent and
uniform on the unit sphere, are those of the authors' public code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from attnbook.core.rng import stream

__all__ = ["Problems", "draw_problems", "joined", "plane_joint", "plane_tokens", "plane_toy"]


@dataclass(frozen=True)
class Problems:
    """A stack of problems: in each, attention should pick one token per sample."""

    #: Tokens, ``(problems, samples, tokens, dimension)``
    tokens: Float[np.ndarray, "problems samples tokens dimension"]
    #: Query of each sample, ``(problems, samples, dimension)``
    queries: Float[np.ndarray, "problems samples dimension"]
    labels: Float[np.ndarray, "problems samples"]  #: Plus or minus one, ``(problems, samples)``
    #: The fixed head that reads the attended token, ``(problems, dimension)``
    decoder: Float[np.ndarray, "problems dimension"]

    @property
    def token_scores(self) -> Float[np.ndarray, "problems samples tokens"]:
        r"""How much each token helps the right label, $\gamma_{it}=y_iv^\top X_{it}$."""
        return self.labels[..., None] * np.einsum("pntd,pd->pnt", self.tokens, self.decoder)

    @property
    def best_tokens(self) -> np.ndarray:
        """The token of highest score of each sample, ``(problems, samples)``: the globally optimal ones."""
        return self.token_scores.argmax(axis=2)

    def repeated(self, times: int) -> Problems:
        """Return every problem several times in a row, for example once per exponent."""
        return Problems(*(np.repeat(part, times, axis=0) for part in vars(self).values()))


def draw_problems(seeds: Sequence[int], *, n_samples: int = 6, n_tokens: int = 8, dimension: int = 10) -> Problems:
    """Return one problem per seed, drawn at random.

    Args:
        seeds: Whole numbers of at least 0; the problem of a seed does not depend on the others.
        n_samples: Samples per problem; default 6, as in an early state of the first author's code.
        n_tokens: Tokens per sample; default 8, from the same source.
        dimension: Dimension of a token; default 10, from the same source.

    Raises:
        ValueError: If a size is too small or ``seeds`` is empty.

    Example:
        >>> draw_problems([0, 1], n_samples=2).tokens.shape
        (2, 2, 8, 10)
    """
    for name, size, least in (("n_samples", n_samples, 1), ("n_tokens", n_tokens, 2), ("dimension", dimension, 1)):
        if size < least:
            raise ValueError(f"{name}: expected at least {least}, got {size}")
    if not seeds:
        raise ValueError("seeds: expected at least one, got none")
    return Problems(
        np.stack([_unit(stream(s, "tokens").standard_normal((n_samples, n_tokens, dimension))) for s in seeds]),
        np.stack([_unit(stream(s, "queries").standard_normal((n_samples, dimension))) for s in seeds]),
        np.stack([stream(s, "labels").choice([-1.0, 1.0], n_samples) for s in seeds]),
        np.stack([_unit(stream(s, "decoder").standard_normal(dimension)) for s in seeds]),
    )


def plane_toy() -> Problems:
    r"""Return one sample of three tokens in the plane, with query $(1, 0)$; this book's.

    Only the first column of the key-query matrix ever moves, so that its whole path can be drawn. The first token has
    the highest score, and at the solution only the second token is at the margin: the constraint is
    $1.2\,w_1+0.5\,w_2\ge1$.
    """
    return Problems(
        tokens=np.array([[[[0.8, 0.5], [-0.4, 0.0], [-0.9, 0.1]]]]),
        queries=np.array([[[1.0, 0.0]]]),
        labels=np.array([[1.0]]),
        decoder=np.array([[1.0, 0.2]]),
    )


def plane_tokens() -> Problems:
    r"""Return one sample of six tokens in the plane, with query $(1, 0)$; this book's.

    As in :func:`plane_toy` only the first column of the key-query matrix matters, so that selecting a token means to
    be farthest out in its direction. Token 0 has the highest score; token 5 lies inside the others and cannot be
    selected; whether tokens 1 and 4 are locally optimal depends on the exponent. They were found by a search over
    random tokens with one decimal.
    """
    return Problems(
        tokens=np.array([[[[0.0, 0.7], [-1.3, 0.7], [-0.5, -0.6], [0.2, -0.9], [1.3, -0.8], [-0.3, 0.1]]]]),
        queries=np.array([[[1.0, 0.0]]]),
        labels=np.array([[1.0]]),
        decoder=np.array([[0.3, 1.0]]),
    )


def plane_joint() -> Problems:
    r"""Return three samples of two tokens in the plane, with query $(1, 0)$, for training matrix and head together.

    A toy of earlier work, as we recall it. The first token of each sample is zero; only the first column of the
    key-query matrix ever moves. With the second tokens selected the smallest head is $(0,1)$ and the smallest column
    $(\tfrac43,\tfrac13)$, whatever the exponent: in both, two constraints meet in a corner.
    """
    return Problems(
        tokens=np.array([[[[0.0, 0.0], [1.0, 1.0]], [[0.0, 0.0], [1.0, -1.0]], [[0.0, 0.0], [0.5, 1.0]]]]),
        queries=np.array([[[1.0, 0.0]] * 3]),
        labels=np.array([[1.0, -1.0, 1.0]]),
        decoder=np.array([[0.0, 1.0]]),
    )


def joined(parts: Sequence[Problems]) -> Problems:
    """Return several stacks of problems as one stack."""
    return Problems(*map(np.concatenate, zip(*(vars(part).values() for part in parts), strict=True)))


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
