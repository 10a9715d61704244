r"""Self-attention of Section 3.2 on padded reviews, computed on the real words only.

A review of $L$ words is padded with zero vectors to $P$ positions; attention as in equations (4) and (5) has no biases.
So a padded key has score 0 and value 0, and all padded queries have the same output. With $R = XMX^\top$ and
$V = XW_V^\top$ over the *real* words,

$$o_z = \frac{\sum_j e^{R_{zj}}V_j}{\sum_j e^{R_{zj}} + (P-L)},\qquad o_{pad} = \frac1P\sum_j V_j ,$$

exactly what the padded computation gives, at $L^2$ in place of $P^2$ operations. Words are rows: $X$ is ``tokens``, $P$
is ``n_positions`` (the paper's $p$), $M=w^{Q\top}w^K/\sqrt{d_q}$ is ``key_query``, and $W_V=w^V$ is ``value``.
"""

from __future__ import annotations

from typing import TypeAlias

from jaxtyping import Float
from torch import Tensor

__all__ = ["attend", "attention_weights", "merge_key_query"]

Tokens: TypeAlias = Float[Tensor, "reviews words dimension"]
Projection: TypeAlias = Float[Tensor, "query dimension"]
Square: TypeAlias = Float[Tensor, "dimension dimension"]


def merge_key_query(query: Projection, key: Projection) -> Square:
    r"""Return $M = w^{Q\top}w^K/\sqrt{d_q}$, all of queries and keys that the scores $x_i^\top M x_j$ depend on."""
    return query.mT @ key / query.shape[0] ** 0.5


def attention_weights(tokens: Tokens, key_query: Square, n_positions: int) -> Float[Tensor, "reviews words words"]:
    r"""Return how much each word (row) attends to each word, $a^{(z)}_j$ of equation (4); the rest lies on padding.

    The score 0 of padding enters the maximum that keeps the exponentials finite.

    Args:
        tokens: Word vectors; a shorter review ends in rows of zeros, which are padding like any other.
        key_query: Scores are ``x_i @ key_query @ x_j``; see :func:`merge_key_query`.
        n_positions: Positions $P$ after padding, at least ``words``; 2142 in Table 2.

    Raises:
        ValueError: If the reviews are longer than ``n_positions``.

    Example:
        >>> import torch
        >>> attention_weights(torch.ones(1, 1, 2), torch.zeros(2, 2), n_positions=4).item()
        0.25
    """
    missing = n_positions - tokens.shape[1]
    if missing < 0:
        raise ValueError(f"n_positions: expected at least the {tokens.shape[1]} words of a review, got {n_positions}")
    scores = tokens @ key_query @ tokens.mT
    largest = scores.detach().amax(-1, keepdim=True)
    if missing:
        largest = largest.clamp(min=0)
    powers = scores.sub(largest).exp_()
    empty = missing * (-largest).exp() if missing else 0.0
    return powers / (powers.sum(-1, keepdim=True) + empty)


def attend(
    tokens: Tokens, key_query: Square, value: Float[Tensor, "value dimension"], n_positions: int
) -> tuple[Float[Tensor, "reviews words value"], Float[Tensor, "reviews value"]]:
    """Return what self-attention over all padded positions gives, from the real words alone.

    That is the outputs at words (where a review has no word any more, that of padding), and those at every padded
    position; ``value`` is the value matrix, all else and what is raised as for :func:`attention_weights`.
    """
    values = tokens @ value.mT
    return attention_weights(tokens, key_query, n_positions) @ values, values.sum(1) / n_positions
