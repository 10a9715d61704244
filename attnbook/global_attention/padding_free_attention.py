r"""Self-attention of Section 3.2 on padded reviews, computed on the real words only.

A review of $L$ words is padded with zero vectors to $P$ positions; attention as in equations (4) and (5) has no biases.
So a padded key has score 0 and value 0, and all padded queries have the same output. With $R = XMX^\top$ and
$V = XW_V^\top$ over the *real* words,

$$o_z = \frac{\sum_j e^{R_{zj}}V_j}{\sum_j e^{R_{zj}} + (P-L)},\qquad o_{pad} = \frac1P\sum_j V_j ,$$

exactly what the padded computation gives, at $L^2$ in place of $P^2$ operations. Words are rows; $X$ is ``tokens``.

===================  ====================  =====================================================
paper                name here             meaning
===================  ====================  =====================================================
$p$                  ``n_positions``       positions after padding, $P$ above
$t$                  ``dimension``         entries of a word vector
$w^Q$, $w^K$         ``query``, ``key``    ``(n_query, dimension)``
$M$                  ``key_query``         $w^{Q\top}w^K/\sqrt{d_q}$, ``(dimension, dimension)``
$w^V$                ``value``             ``(n_value, dimension)``
===================  ====================  =====================================================
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["attend_with_gradient", "attention_weights", "merge_key_query"]

WayBack = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Gradients at words and padding to those of the two matrices."""


def merge_key_query(
    query: Float[Tensor, "query dimension"], key: Float[Tensor, "query dimension"]
) -> Float[Tensor, "dimension dimension"]:
    r"""Return $M = w^{Q\top}w^K/\sqrt{d_q}$, all of queries and keys that the scores $x_i^\top M x_j$ depend on."""
    return query.mT @ key / query.shape[0] ** 0.5


def attention_weights(
    tokens: Float[Tensor, "reviews words dimension"],
    key_query: Float[Tensor, "dimension dimension"],
    n_positions: int,
) -> Float[Tensor, "reviews words words"]:
    r"""Return how much each word attends to each word, $a^{(z)}_j$ of equation (4); the rest of a row lies on padding.

    The score 0 of padding enters the maximum that keeps the exponentials finite.

    Args:
        tokens: Word vectors; a shorter review ends in rows of zeros, which are padding like any other.
        key_query: Scores are ``x_i @ key_query @ x_j``; see :func:`merge_key_query`.
        n_positions: Positions $P$ after padding, at least ``words``; 2142 in Table 2.

    Returns:
        Weights between 0 and 1; row ``z`` belongs to the word that attends.

    Raises:
        ValueError: If the reviews are longer than ``n_positions``.

    Example:
        >>> attention_weights(torch.ones(1, 1, 2), torch.zeros(2, 2), n_positions=4).item()
        0.25
    """
    missing = n_positions - tokens.shape[1]
    if missing < 0:
        raise ValueError(f"n_positions: expected at least the {tokens.shape[1]} words of a review, got {n_positions}")
    scores = tokens @ key_query @ tokens.mT
    largest = scores.detach().amax(-1, keepdim=True)
    if not missing:
        powers = scores.sub(largest).exp_()
        return powers / powers.sum(-1, keepdim=True)
    largest = largest.clamp(min=0)
    powers = scores.sub(largest).exp_()
    return powers / (powers.sum(-1, keepdim=True) + missing * (-largest).exp())


def attend_with_gradient(
    tokens: Float[Tensor, "reviews words dimension"],
    key_query: Float[Tensor, "dimension dimension"],
    value: Float[Tensor, "value dimension"],
    n_positions: int,
) -> tuple[Float[Tensor, "reviews words value"], Float[Tensor, "reviews value"], WayBack]:
    r"""Return what self-attention over all padded positions gives, from the real words alone, and the way back.

    With $A$ the weights and $G$ the gradient at the outputs $O = AV$: $\nabla V = A^\top G + g_{pad}/P$,
    $\nabla S = A\odot(GV^\top - \mathrm{rowsum}(G\odot O))$, $\nabla M = X^\top\,\nabla S\,X$ and
    $\nabla w^V = \nabla V^\top X$. Padded keys have $V = 0$ and a score that no parameter moves, so they add nothing.
    Autograd works through the outputs as well.

    Args:
        tokens: As for :func:`attention_weights`.
        key_query: As for :func:`attention_weights`.
        value: Value matrix.
        n_positions: As for :func:`attention_weights`.

    Returns:
        The outputs at words (where a review has no word any more, that of padding), those at every padded position, and
        a function from the gradients at words and padding to those of ``key_query`` and ``value``, summed over reviews.
        It may be called once, and writes over the gradient at words.

    Raises:
        ValueError: If the reviews are longer than ``n_positions``.
    """
    weights, values = attention_weights(tokens, key_query, n_positions), tokens @ value.mT
    words = weights @ values

    def backward(at_words: Tensor, at_padding: Tensor) -> tuple[Tensor, Tensor]:
        at_values = torch.baddbmm(at_padding.unsqueeze(1) / n_positions, weights.mT, at_words)
        at_scores = at_words @ values.mT
        at_scores -= at_words.mul_(words).sum(-1, keepdim=True)
        at_scores *= weights
        flat = tokens.flatten(0, 1)
        return flat.mT @ (at_scores @ tokens).flatten(0, 1), at_values.flatten(0, 1).mT @ flat

    return words, values.sum(1) / n_positions, backward
