r"""The $\ell_p$ attention SVM: the smallest key-query matrix that picks given tokens with margin one.

.. math:: W^\alpha_{mm}=\arg\min_W\|W\|_{p,p}\quad\text{subject to}\quad(X_{i\alpha_i}-X_{it})^\top Wz_i\ge1

for all samples $i$ and tokens $t\ne\alpha_i$.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from attnbook.core.max_margin import max_margin

__all__ = ["AttentionSVM", "attention_svm", "locally_optimal"]

# A token counts as support when its margin exceeds one by less than this.
SUPPORT_TOLERANCE = 1e-6


@dataclass(frozen=True)
class AttentionSVM:
    r"""Solutions of the attention SVM for a stack of problems, with what proves them.

    Attributes:
        weight: $W^\alpha_{mm}$, ``(problems, dimension, dimension)``.
        norm: $\|W^\alpha_{mm}\|_{p,p}$, ``(problems,)``.
        margins: $(X_{i\alpha_i}-X_{it})^\top W^\alpha_{mm}z_i$, ``(problems, samples, tokens)``; infinite at the
            selected token.
        multipliers: Dual solution, ``(problems, samples, tokens)``, zero at the selected token; its sum is the squared
            norm.
        support: Support tokens (Definition 3): margin one up to 1e-6, ``(problems, samples, tokens)``.
        gap: Certificate: no matrix with these margins has a norm below ``(1 - gap) * norm``, ``(problems,)``.
    """

    weight: Float[np.ndarray, "problems dimension dimension"]
    norm: Float[np.ndarray, " problems"]
    margins: Float[np.ndarray, "problems samples tokens"]
    multipliers: Float[np.ndarray, "problems samples tokens"]
    support: Bool[np.ndarray, "problems samples tokens"]
    gap: Float[np.ndarray, " problems"]


def attention_svm(
    tokens: Float[np.ndarray, "problems samples tokens dimension"],
    queries: Float[np.ndarray, "problems samples dimension"],
    selected: Int[np.ndarray, "problems samples"],
    p: float | Sequence[float] | Float[np.ndarray, " problems"],
) -> AttentionSVM:
    """Solve the attention SVM for many problems, each with its own selected tokens and exponent.

    Args:
        tokens: Tokens of each sample.
        queries: Query of each sample.
        selected: Token that each sample should attend to, from 0.
        p: Exponent above 1; one number, or one per problem.

    Returns:
        The solutions; see :func:`attnbook.core.max_margin.max_margin` for accuracy and range of exponents.

    Raises:
        InfeasibleError: If no matrix selects these tokens (a ``ValueError`` that carries the proof).
        ValueError: If shapes do not fit, a number is not finite or outside its range.
        RuntimeError: If a feasible problem was not solved to a gap of 1e-8.

    Example:
        >>> tokens = np.array([[[[3.0], [0.0]]]])
        >>> float(attention_svm(tokens, np.array([[[1.0]]]), np.array([[0]]), p=2.0).weight[0, 0, 0].round(6))
        0.333333
    """
    constraints, others = _constraints(tokens, queries, selected)
    problems, samples, n_tokens, dimension = tokens.shape
    solved = max_margin(constraints.reshape(problems, -1, dimension**2), p)
    weight = solved.weights.reshape(problems, dimension, dimension)
    margins, multipliers = np.full((problems, samples, n_tokens), np.inf), np.zeros((problems, samples, n_tokens))
    shape = (problems, samples, n_tokens - 1)
    achieved = (constraints.reshape(problems, -1, dimension**2) @ solved.weights[..., None])[..., 0]
    np.put_along_axis(margins, others, achieved.reshape(shape), axis=2)
    np.put_along_axis(multipliers, others, solved.multipliers.reshape(shape), axis=2)
    support = margins <= 1 + SUPPORT_TOLERANCE
    return AttentionSVM(weight, solved.norm, margins, multipliers, support, solved.gap)


def locally_optimal(
    token_scores: Float[np.ndarray, "problems samples tokens"],
    selected: Int[np.ndarray, "problems samples"],
    support: Bool[np.ndarray, "problems samples tokens"],
) -> Bool[np.ndarray, " problems"]:
    """Return whether the selected tokens are locally optimal: each has a higher score than its support tokens.

    Args:
        token_scores: How much each token helps the right label.
        selected: Selected token of each sample.
        support: Support tokens of the attention SVM of these tokens.

    Returns:
        Definition 3, problem by problem.
    """
    own = np.take_along_axis(token_scores, selected[..., None], axis=2)
    return ((own > token_scores) | ~support).all(axis=(1, 2))


def _constraints(tokens: np.ndarray, queries: np.ndarray, selected: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Outer products of token difference and query, ``(problems, samples, tokens - 1, d, d)``, and the other tokens."""
    tokens, queries = np.asarray(tokens, dtype=np.float64), np.asarray(queries, dtype=np.float64)
    if tokens.ndim != 4 or tokens.shape[2] < 2:
        raise ValueError(f"tokens: expected (problems, samples, 2 or more tokens, dimension), got {tokens.shape}")
    problems, samples, n_tokens, dimension = tokens.shape
    if queries.shape != (problems, samples, dimension):
        raise ValueError(f"queries: expected {(problems, samples, dimension)} to fit the tokens, got {queries.shape}")
    for name, values in (("tokens", tokens), ("queries", queries)):
        if not np.isfinite(values).all():
            raise ValueError(
                f"{name}: expected finite numbers, got {int((~np.isfinite(values)).sum())} NaN or infinite"
            )
    if selected.shape != (problems, samples) or not np.issubdtype(selected.dtype, np.integer):
        raise ValueError(
            f"selected: expected whole numbers {(problems, samples)}, got {selected.dtype} {selected.shape}"
        )
    if (selected < 0).any() or (selected >= n_tokens).any():
        raise ValueError(f"selected: expected token numbers from 0 to {n_tokens - 1}, got up to {selected.max()}")
    others = np.arange(n_tokens - 1) + (np.arange(n_tokens - 1) >= selected[..., None])
    chosen = np.take_along_axis(tokens, selected[..., None, None], axis=2)
    difference = chosen - np.take_along_axis(tokens, others[..., None], axis=2)
    return difference[..., :, None] * queries[:, :, None, None, :], others
