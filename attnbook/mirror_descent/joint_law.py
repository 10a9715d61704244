r"""Where a key-query matrix and a head that are trained together point now, read off their norms.

The law: the head points to $v_{mm}$ of the tokens attended to, the matrix to $W_\kappa$
(:mod:`~attnbook.mirror_descent.relaxed_svm`). A token whose head margin is at least that of the selected one pulls
attention towards itself, by about $e^{-rm_i-a_{it}}$, $a_{it}$ the gap between the two. So the law has a condition,
Definition 3 at finite norms: each such token is kept off by more than all others are asked to be,
$a_{it}/\rho>\max(0,1-\kappa(m_i-1))$, in the solution as well as in the trained matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from jaxtyping import Bool, Float

from attnbook.core.max_margin import InfeasibleError
from attnbook.mirror_descent import mirror
from attnbook.mirror_descent.attention_svm import SUPPORT_TOLERANCE, PerProblem, Selected, check_tokens
from attnbook.mirror_descent.relaxed_svm import HeadSVM, Others, RelaxedSVM, head_svm, self_consistent

__all__ = ["JointDirections", "JointLawError", "NearConflictError", "OvertakingTokenError", "joint_directions"]


class JointLawError(ValueError):
    """The joint law does not apply.

    Attributes:
        problem: Number of the problem.
        sample: Number of the sample.
        token: The token that is in the way.
    """

    def __init__(self, problem: int, sample: int, token: int, reason: str) -> None:
        self.problem, self.sample, self.token = problem, sample, token
        super().__init__(f"key_query: problem {problem}, sample {sample}, token {token}: {reason}")


class OvertakingTokenError(JointLawError):
    """A token with at least the head margin of the selected one is not kept off."""


class NearConflictError(JointLawError):
    """The tokens attended to are so nearly in conflict that no target can be computed; names the nearest rival."""


@dataclass(frozen=True)
class JointDirections:
    r"""Where matrices and heads should point, and how far they are from it."""

    selected: Selected  #: The token that each sample attends to most, ``(problems, samples)``
    head: HeadSVM  #: The head SVM of these tokens; its ``weight`` is the direction of the head
    #: The relaxed attention SVM; its ``weight`` is the direction of the matrix, its ``kappa`` the ratio
    key_query: RelaxedSVM
    head_norm: PerProblem  #: $r=\|v\|_p/\|v_{mm}\|_p$, ``(problems,)``
    #: $\rho=\|W\|_{p,p}/\|W_\kappa\|_{p,p}$, ``(problems,)``; directions are only as good as it is large
    relative_norm: PerProblem
    #: $a_{it}/\rho$ of the trained matrix for the tokens not selected, in order, ``(problems, samples, others)``
    gaps: Others
    cosine_head: PerProblem  #: Cosine of $v$ and $v_{mm}$, ``(problems,)``
    cosine_key_query: PerProblem  #: Cosine of $W$ and $W_\kappa$, ``(problems,)``
    #: Whether a token not selected breaks the condition, as ``gaps``
    overtaking: Bool[np.ndarray, "problems samples others"]


def joint_directions(
    tokens: Float[np.ndarray, "*problems samples tokens dimension"],
    queries: Float[np.ndarray, "*problems samples dimension"],
    labels: Float[np.ndarray, "*problems samples"],
    head: Float[np.ndarray, "*problems dimension"],
    key_query: Float[np.ndarray, "*problems dimension dimension"],
    p: mirror.Exponents = 2.0,
    *,
    check: bool = True,
) -> JointDirections:
    r"""Return where a head and a key-query matrix should point, given what they attend to and how large they are.

    For a head and a matrix that were trained together, from any run: the directions follow from the tokens attended
    to, the norms and $p$. The law is this book's; it has been measured, not proved.

    Args:
        tokens: Tokens of each sample; a first axis counts problems: it may be left out, and what is returned has it.
        queries: Query of each sample.
        labels: Plus or minus one.
        head: The trained head $v$.
        key_query: The trained matrix $W$, with logits $X_iWz_i$.
        p: Exponent of the mirror descent that trained them, above 1; one number, or one per problem. Default 2,
            gradient descent.
        check: Whether to raise where the condition of the law is broken; otherwise ``overtaking`` says where. Default
            true.

    Raises:
        OvertakingTokenError: If a token with at least the head margin of the selected one, under $v$ or $v_{mm}$, is
            not kept off; the message names problem, sample and token (a ``ValueError``).
        NearConflictError: If the tokens attended to are so nearly in conflict that the targets of a problem cannot be
            computed, whatever ``check``; names the token that is kept off least (a ``ValueError``).
        ValueError: If shapes do not fit, a number is not finite or outside its range, two tokens of a sample tie for
            attention, or no head classifies what is attended to; the message names the argument and the sample.

    Example:
        >>> import numpy as np
        >>> tokens = np.array([[[1.0, 1.0], [0.0, 0.0]], [[1.0, -4.0], [0.0, 0.0]]])
        >>> queries, labels = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([1.0, -1.0])
        >>> head, key_query = np.array([2.0, 2.0]), np.array([[5.0, 0.0], [5.0, -2.0]])
        >>> found = joint_directions(tokens, queries, labels, head, key_query)
        >>> found.head.weight.round(3).tolist(), found.head.margins.round(3).tolist()
        ([[0.5, 0.5]], [[1.0, 1.5]])
        >>> found.head_norm.round(3).tolist(), found.key_query.kappa.round(3).tolist()
        ([4.0], [0.399])
        >>> found.key_query.weight[0].round(3).tolist()
        [[0.5, 0.047], [0.5, -0.188]]
    """
    tokens, queries, labels, head, key_query = _checked(tokens, queries, labels, head, key_query)
    logits = np.einsum("pstd,pde,pse->pst", tokens, key_query, queries)
    selected = logits.argmax(axis=2)
    logit_gaps = _others(logits.max(axis=2, keepdims=True) - logits, selected)
    _refuse_ties(logit_gaps, selected)
    exponents = np.broadcast_to(mirror.check_exponents(p), len(tokens))
    lengths = mirror.entrywise_norm(head[:, None], exponents), mirror.entrywise_norm(key_query, exponents)
    given = (tokens, queries, labels, selected, *lengths, exponents)
    try:
        smallest, law = _targets(given)
    except (InfeasibleError, RuntimeError) as error:
        _refuse_near_conflict(given, logit_gaps / lengths[1][:, None, None], error)
    head_norm, relative_norm = lengths[0] / smallest.norm, lengths[1] / law.norm
    gaps = logit_gaps / relative_norm[:, None, None]
    scores = labels[..., None] * np.einsum("pstd,pd->pst", tokens, head)
    trained = np.take_along_axis(scores, selected[..., None], axis=2) <= _others(scores, selected)
    better = trained | (smallest.margins[..., None] <= smallest.other_margins)
    asked = np.maximum(1 - law.kappa[:, None] * smallest.excess, 0.0)[..., None]
    overtaking = better & (np.minimum(gaps, law.gaps) <= asked + SUPPORT_TOLERANCE)
    if check:
        _refuse_overtaking(overtaking, selected, smallest, gaps, asked)
    cosine = 1 - mirror.direction_divergence(key_query, law.weight, 2.0)
    cosine_head = 1 - mirror.direction_divergence(head[:, None], smallest.weight[:, None], 2.0)
    return JointDirections(selected, smallest, law, head_norm, relative_norm, gaps, cosine_head, cosine, overtaking)


def _targets(given: tuple[np.ndarray, ...]) -> tuple[HeadSVM, RelaxedSVM]:
    """The smallest heads, and the matrices of the law."""
    tokens, queries, labels, selected, head_length, length, p = given
    try:
        smallest = head_svm(tokens, labels, selected, p)
    except InfeasibleError as error:
        samples = ", ".join(map(str, np.flatnonzero(error.combination)))
        raise ValueError(
            f"labels: problem {error.problem}: no head classifies the tokens attended to in samples {samples}"
        ) from error
    return smallest, self_consistent(tokens, queries, selected, smallest, head_length / smallest.norm / length, p)


def _others(values: np.ndarray, selected: np.ndarray) -> np.ndarray:
    """The values of the tokens not selected, in order."""
    return values[np.arange(values.shape[2]) != selected[..., None]].reshape(*selected.shape, -1)


def _token(selected: np.ndarray, place: np.ndarray) -> tuple[int, int, int]:
    """Problem, sample and number of the token at a place among those not selected."""
    problem, sample, other = (int(number) for number in place)
    return problem, sample, other + int(other >= selected[problem, sample])


def _refuse_ties(gaps: np.ndarray, selected: np.ndarray) -> None:
    for place in np.argwhere(gaps <= 0)[:1]:
        problem, sample, token = _token(selected, place)
        tied = f"{selected[problem, sample]} and {token}"
        raise ValueError(
            f"key_query: problem {problem}, sample {sample}: tokens {tied} get the same attention, expected one ahead"
        )


def _refuse_near_conflict(given: tuple[np.ndarray, ...], gaps: np.ndarray, error: Exception) -> NoReturn:
    """Name a problem that fails alone, and the token that its matrix of norm one keeps off least."""
    problem = int(gaps.min(axis=(1, 2)).argmin())
    for number in range(len(gaps)):
        try:
            _targets(tuple(array[number : number + 1] for array in given))
        except (InfeasibleError, RuntimeError):
            problem = number
            break
    own = gaps[problem]
    place = np.array([problem, *np.unravel_index(own.argmin(), own.shape)])
    reason = f"kept off by {own.min():.1e} of the norm of the matrix only, and no target could be computed ({error})"
    raise NearConflictError(*_token(given[3], place), reason) from error


def _refuse_overtaking(
    overtaking: np.ndarray, selected: np.ndarray, head: HeadSVM, gaps: np.ndarray, asked: np.ndarray
) -> None:
    for place in np.argwhere(overtaking)[:1]:
        at = tuple(place)
        raise OvertakingTokenError(
            *_token(selected, place),
            f"its head margin, {head.other_margins[at]:.3g}, is at least about that of the selected token "
            f"{selected[at[:2]]}, {head.margins[at[:2]]:.3g}, and the matrix keeps it off by {gaps[at]:.3g} where the "
            f"joint law needs more than {float(asked[at[:2]][0]):.3g}",
        )


def _checked(*given: np.ndarray) -> tuple[np.ndarray, ...]:
    """All arguments as stacks of problems, or an error that names the one that does not fit."""
    tokens, queries, labels, head, key_query = (np.asarray(array, dtype=np.float64) for array in given)
    if tokens.ndim == 3:
        tokens, queries, labels, head, key_query = (a[None] for a in (tokens, queries, labels, head, key_query))
    check_tokens(
        tokens,
        queries=(queries, (0, 1, 3)),
        labels=(labels, (0, 1)),
        head=(head, (0, 3)),
        key_query=(key_query, (0, 3, 3)),
    )
    if not np.isin(labels, (-1.0, 1.0)).all():
        raise ValueError("labels: expected 1 and -1 only")
    return tokens, queries, labels, head, key_query
