r"""The $\ell_p$ attention SVM: the smallest key-query matrix that picks given tokens with margin one.

.. math:: W^\alpha_{mm}=\arg\min_W\|W\|_{p,p}\quad\text{subject to}\quad(X_{i\alpha_i}-X_{it})^\top Wz_i\ge1

for all samples $i$ and tokens $t\ne\alpha_i$.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int

from attnbook.core.constraint_rows import OuterRows
from attnbook.core.kernel_margin import NotSolvedError
from attnbook.core.max_margin import InfeasibleError, MaxMargin, max_margin

__all__ = [
    "AttentionSVM",
    "TokenConflictError",
    "attention_constraints",
    "attention_svm",
    "check_tokens",
    "locally_optimal",
    "on_margin",
]

SUPPORT_TOLERANCE = 1e-6  # a token counts as support when its margin exceeds one by less than this
ROUNDING = 1e-12  # or by less than this share of the length of its row times the norm of the solution

Tokens: TypeAlias = Float[np.ndarray, "problems samples tokens dimension"]
Queries: TypeAlias = Float[np.ndarray, "problems samples dimension"]
Selected: TypeAlias = Int[np.ndarray, "problems samples"]
PerProblem: TypeAlias = Float[np.ndarray, " problems"]
PerToken: TypeAlias = Float[np.ndarray, "problems samples tokens"]
Marked: TypeAlias = Bool[np.ndarray, "problems samples tokens"]


class TokenConflictError(InfeasibleError):
    """No matrix selects these tokens together; says which of them conflict, and carries the proof.

    Attributes:
        problem: Number of the problem.
        conflict: Weights with sum 1, ``(samples, tokens)``: the differences of selected and other tokens, each times
            its query, weighted by these cancel. Tokens of weight zero have no part in the conflict.
    """

    def __init__(
        self, problem: int, conflict: Float[np.ndarray, "samples tokens"], selected: np.ndarray, reason: str
    ) -> None:
        super().__init__(problem, conflict.ravel())
        self.conflict = conflict
        pairs = [
            f"sample {i}: token {selected[i]} above {', '.join(map(str, np.flatnonzero(row)))}"
            for i, row in enumerate(conflict)
            if row.any()
        ]
        shown = "; ".join(pairs[:6]) + (f"; and {len(pairs) - 6} more samples" if len(pairs) > 6 else "")
        self.args = (f"selected: problem {problem} is infeasible: {reason} ({shown})",)


@dataclass(frozen=True)
class AttentionSVM:
    r"""Solutions of the attention SVM for a stack of problems, with what proves them."""

    weight: Float[np.ndarray, "problems dimension dimension"]  #: $W^\alpha_{mm}$, ``(problems, dimension, dimension)``
    norm: PerProblem  #: $\|W^\alpha_{mm}\|_{p,p}$, ``(problems,)``
    #: $(X_{i\alpha_i}-X_{it})^\top W^\alpha_{mm}z_i$, ``(problems, samples, tokens)``; infinite at the selected token
    margins: PerToken
    #: Dual solution, ``(problems, samples, tokens)``, zero at the selected token; its sum is the squared norm
    multipliers: PerToken
    #: Support tokens of Definition 3, margin one up to 1e-6 or to rounding, ``(problems, samples, tokens)``
    support: Marked
    gap: PerProblem  #: Certificate: no matrix with these margins has a norm below ``(1 - gap) * norm``, ``(problems,)``


def attention_svm(
    tokens: Tokens, queries: Queries, selected: Selected, p: float | Sequence[float] | PerProblem
) -> AttentionSVM:
    """Return the solutions of the attention SVM for many problems, each with its own selected tokens and exponent.

    See :func:`attnbook.core.max_margin.max_margin` for accuracy and range of exponents.

    Args:
        tokens: Tokens of each sample.
        queries: Query of each sample.
        selected: Token that each sample should attend to, from 0.
        p: Exponent above 1 and finite; one number, or one per problem. At 2 an exact active-set method is used.

    Raises:
        TokenConflictError: If no matrix selects these tokens: a query is zero, a token equals the selected one, or the
            tokens conflict (a ``ValueError`` that names them and carries the proof).
        ValueError: If shapes do not fit, or a number is not finite or outside its range.
        NotSolvedError: If a problem was neither solved to a gap of 1e-8 nor proved to be infeasible; its attribute
            ``found`` has the best solutions, an :class:`AttentionSVM` (a ``RuntimeError``).

    Example:
        >>> tokens = np.array([[[[3.0], [0.0]]]])
        >>> float(attention_svm(tokens, np.array([[[1.0]]]), np.array([[0]]), p=2.0).weight[0, 0, 0].round(6))
        0.333333

        Six samples of eight tokens in ten dimensions, as in the authors' early code; the best tokens:

        >>> from attnbook.mirror_descent.data import draw_problems
        >>> one = draw_problems([0])
        >>> found = attention_svm(one.tokens, one.queries, one.best_tokens, p=2.0)
        >>> round(float(found.norm[0]), 3), bool(found.gap[0] < 1e-8)
        (2.709, True)
    """
    tokens, queries, selected = _checked(tokens, queries, selected)
    rows, others = _rows(tokens, queries, selected)
    _refuse_ties(rows, others, selected)
    try:
        return _solution(max_margin(rows, p), rows, selected)
    except InfeasibleError as error:
        conflict = np.zeros(tokens.shape[1:3])
        proof = error.combination.reshape(others.shape[1:])
        np.put_along_axis(conflict, others[error.problem], proof, axis=1)
        reason = "to select these tokens is to ask for margins that cancel"
        raise TokenConflictError(error.problem, conflict, selected[error.problem], reason) from error
    except NotSolvedError as error:
        error.found = _solution(error.found, rows, selected)
        raise


def _solution(solved: MaxMargin, rows: OuterRows, selected: np.ndarray) -> AttentionSVM:
    """What was found, by token."""
    other = np.arange(rows.left.shape[2] + 1) != selected[..., None]
    shape = other.shape
    achieved = rows.down(solved.weights)
    margins, multipliers, support = np.full(shape, np.inf), np.zeros(shape), np.zeros(shape, dtype=bool)
    margins[other], multipliers[other] = achieved.ravel(), solved.multipliers.ravel()
    support[other] = on_margin(achieved, rows.lengths(), solved.norm).ravel()
    weight = solved.weights.reshape(len(selected), rows.left.shape[3], -1)
    return AttentionSVM(weight, solved.norm, margins, multipliers, support, solved.gap)


def on_margin(
    margins: Float[np.ndarray, "problems rows"], lengths: Float[np.ndarray, "problems rows"], norm: PerProblem
) -> Bool[np.ndarray, "problems rows"]:
    """Return which margins are one as far as can be told: what rounding does grows with the lengths of the rows."""
    return np.asarray(margins <= 1 + SUPPORT_TOLERANCE + ROUNDING * lengths * norm[:, None])


def locally_optimal(token_scores: PerToken, selected: Selected, support: Marked) -> Bool[np.ndarray, " problems"]:
    """Return whether selected tokens are locally optimal (Definition 3): each scores higher than its support tokens.

    ``support`` are those of the attention SVM of the selected tokens.
    """
    own = np.take_along_axis(token_scores, selected[..., None], axis=2)
    return ((own > token_scores) | ~support).all(axis=(1, 2))


def _rows(tokens: np.ndarray, queries: np.ndarray, selected: np.ndarray) -> tuple[OuterRows, np.ndarray]:
    """Differences from the selected token and queries, whose outer products are the rows, and the other tokens."""
    others = np.arange(tokens.shape[2] - 1) + (np.arange(tokens.shape[2] - 1) >= selected[..., None])
    chosen = np.take_along_axis(tokens, selected[..., None, None], axis=2)
    return OuterRows(chosen - np.take_along_axis(tokens, others[..., None], axis=2), queries), others


def attention_constraints(
    tokens: Tokens, queries: Queries, selected: Selected
) -> Float[np.ndarray, "problems constraints entries"]:
    r"""Return the rows $\mathrm{vec}\big((X_{i\alpha_i}-X_{it})z_i^\top\big)$ of the attention SVM.

    One per sample and token not selected, sample by sample; arguments and errors as :func:`attention_svm`.
    """
    rows, _ = _rows(*_checked(tokens, queries, selected))
    return np.stack([rows.dense(problem) for problem in range(rows.shape[0])])


def _refuse_ties(rows: OuterRows, others: np.ndarray, selected: np.ndarray) -> None:
    """Refuse samples whose selected token ties with another for every matrix."""
    tied = (rows.lengths() == 0).reshape(others.shape)
    if not tied.any():
        return
    problem, sample = np.argwhere(tied)[0][:2]
    conflict = np.zeros((tied.shape[1], tied.shape[2] + 1))
    own = others[problem, sample][tied[problem, sample]]
    conflict[sample, own] = 1 / len(own)
    if not rows.right[problem, sample].any():
        reason = f"the query of sample {sample} is zero, so all its tokens get the same attention"
    else:
        reason = f"in sample {sample} the selected token has a duplicate, which always gets the same attention"
    raise TokenConflictError(int(problem), conflict, selected[problem], reason)


def check_tokens(tokens: np.ndarray, **others: tuple[np.ndarray, tuple[int, ...]]) -> None:
    """Refuse tokens of a wrong shape, arrays that do not fit them, and numbers that are not finite.

    Args:
        tokens: Should be ``(problems, samples, tokens, dimension)``.
        **others: Other arrays by name, each with the axes of the tokens that its axes should be as long as.

    Raises:
        ValueError: Naming the array.
    """
    if tokens.ndim != 4 or tokens.shape[2] < 2 or 0 in tokens.shape:
        raise ValueError(
            f"tokens: expected (problems, samples, 2 or more tokens, dimension), none zero, got {tokens.shape}"
        )
    for name, (values, axes) in {"tokens": (tokens, (0, 1, 2, 3)), **others}.items():
        if values.shape != (shape := tuple(tokens.shape[axis] for axis in axes)):
            raise ValueError(f"{name}: expected {shape} to fit the tokens, got {values.shape}")
        if wrong := int((~np.isfinite(values)).sum()):
            raise ValueError(f"{name}: expected finite numbers, got {wrong} NaN or infinite")


def _checked(
    tokens: np.ndarray, queries: np.ndarray, selected: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    tokens, queries = np.asarray(tokens, dtype=np.float64), np.asarray(queries, dtype=np.float64)
    selected = np.asarray(selected)
    check_tokens(tokens, queries=(queries, (0, 1, 3)))
    problems, samples, n_tokens, _ = tokens.shape
    if selected.shape != (problems, samples) or not np.issubdtype(selected.dtype, np.integer):
        raise ValueError(
            f"selected: expected whole numbers {(problems, samples)}, got {selected.dtype} {selected.shape}"
        )
    if len(wrong := selected[(selected < 0) | (selected >= n_tokens)]):
        raise ValueError(f"selected: expected token numbers from 0 to {n_tokens - 1}, got {wrong[0]}")
    return tokens, queries, selected
