r"""Where a key-query matrix and a head that are trained together point now, read off their norms.

The law: the head points to $v_{mm}$ of the tokens attended to, the matrix to $W_\kappa$
(:mod:`~attnbook.mirror_descent.relaxed_svm`). A token whose head margin is at least that of the selected one pulls
attention towards itself, by about $e^{-rm_i-a_{it}}$, $a_{it}$ the gap between the two. So the law has a condition,
Definition 3 at finite norms: each such token is kept off by more than all others are asked to be,
$a_{it}/\rho>\max(0,1-\kappa(m_i-1))$, in the solution as well as in the trained matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from attnbook.core.max_margin import InfeasibleError
from attnbook.mirror_descent import mirror
from attnbook.mirror_descent.attention_svm import SUPPORT_TOLERANCE
from attnbook.mirror_descent.relaxed_svm import HeadSVM, RelaxedSVM, head_svm, self_consistent

__all__ = ["JointDirections", "OvertakingTokenError", "attended", "joint_directions"]


class OvertakingTokenError(ValueError):
    """A token with at least the head margin of the selected one is not kept off: the joint law does not apply.

    Attributes:
        problem: Number of the problem.
        sample: Number of the sample.
        token: The token that breaks the condition.
    """

    def __init__(self, problem: int, sample: int, token: int, reason: str) -> None:
        self.problem, self.sample, self.token = problem, sample, token
        super().__init__(f"key_query: problem {problem}, sample {sample}, token {token}: {reason}")


@dataclass(frozen=True)
class JointDirections:
    r"""Where matrices and heads should point, and how far they are from it.

    Attributes:
        selected: The token that each sample attends to most, ``(problems, samples)``.
        head: The head SVM of these tokens; its ``weight`` is the direction of the head.
        key_query: The relaxed attention SVM; its ``weight`` is the direction of the matrix, its ``kappa`` the ratio.
        head_norm: $r=\|v\|_p/\|v_{mm}\|_p$, ``(problems,)``.
        relative_norm: $\rho=\|W\|_{p,p}/\|W_\kappa\|_{p,p}$, ``(problems,)``; directions are only as good as it is
            large.
        gaps: $a_{it}/\rho$ of the trained matrix for the tokens not selected, in order,
            ``(problems, samples, others)``.
        cosine_head: Cosine of $v$ and $v_{mm}$, ``(problems,)``.
        cosine_key_query: Cosine of $W$ and $W_\kappa$, ``(problems,)``.
        overtaking: Whether a token not selected breaks the condition, as ``gaps``.
    """

    selected: Int[np.ndarray, "problems samples"]
    head: HeadSVM
    key_query: RelaxedSVM
    head_norm: Float[np.ndarray, " problems"]
    relative_norm: Float[np.ndarray, " problems"]
    gaps: Float[np.ndarray, "problems samples others"]
    cosine_head: Float[np.ndarray, " problems"]
    cosine_key_query: Float[np.ndarray, " problems"]
    overtaking: Bool[np.ndarray, "problems samples others"]


def attended(
    tokens: Float[np.ndarray, "problems samples tokens dimension"],
    queries: Float[np.ndarray, "problems samples dimension"],
    key_query: Float[np.ndarray, "problems dimension dimension"],
) -> tuple[Int[np.ndarray, "problems samples"], Float[np.ndarray, "problems samples others"]]:
    """Return the token of each sample with the highest logit, and by how much the others are below it.

    Args:
        tokens: Tokens of each sample.
        queries: Query of each sample.
        key_query: Matrices $W$.

    Returns:
        Tokens from 0, and the gaps of the tokens not selected, in order.
    """
    logits = np.einsum("pstd,pde,pse->pst", tokens, key_query, queries)
    selected = logits.argmax(axis=2)
    return selected, _others(logits.max(axis=2, keepdims=True) - logits, selected)


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
        tokens: Tokens of each sample; a first axis counts problems and may be left out everywhere.
        queries: Query of each sample.
        labels: Plus or minus one.
        head: The trained head $v$.
        key_query: The trained matrix $W$, with logits $X_iWz_i$.
        p: Exponent of the mirror descent that trained them, above 1; one number, or one per problem. Default 2,
            gradient descent.
        check: Whether to raise where the condition of the law is broken; otherwise ``overtaking`` says where. Default
            true.

    Returns:
        Directions, ratio, norms and cosines; with a first axis of problems.

    Raises:
        OvertakingTokenError: If a token with at least the head margin of the selected one, under $v$ or $v_{mm}$, is
            not kept off; the message names problem, sample and token (a ``ValueError``).
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
    selected, logit_gaps = attended(tokens, queries, key_query)
    _refuse_ties(logit_gaps, selected)
    try:
        smallest = head_svm(tokens, labels, selected, p)
    except InfeasibleError as error:
        samples = ", ".join(map(str, np.flatnonzero(error.combination > SUPPORT_TOLERANCE)))
        raise ValueError(
            f"labels: problem {error.problem}: no head classifies the tokens attended to in samples {samples}"
        ) from error
    exponents = np.broadcast_to(mirror.check_exponents(p), len(tokens))
    norm = mirror.entrywise_norm(key_query, exponents)
    head_norm = mirror.entrywise_norm(head[:, None], exponents) / smallest.norm
    law = self_consistent(tokens, queries, selected, smallest, head_norm / norm, exponents)
    relative_norm = norm / law.norm
    gaps = logit_gaps / relative_norm[:, None, None]
    scores = labels[..., None] * np.einsum("pstd,pd->pst", tokens, head)
    trained = np.take_along_axis(scores, selected[..., None], axis=2) <= _others(scores, selected)
    better = trained | (smallest.margins[..., None] <= smallest.other_margins)
    asked = np.maximum(1 - law.kappa[:, None] * smallest.excess, 0.0)[..., None]
    overtaking = better & (np.minimum(gaps, law.gaps) <= asked + SUPPORT_TOLERANCE)
    if check:
        _refuse_overtaking(overtaking, selected, smallest, gaps, asked)
    cosines = _cosine(head[:, None], smallest.weight[:, None]), _cosine(key_query, law.weight)
    return JointDirections(selected, smallest, law, head_norm, relative_norm, gaps, *cosines, overtaking)


def _cosine(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.asarray((mirror.normalised(first, 2.0) * mirror.normalised(second, 2.0)).sum(axis=(-2, -1)))


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
        raise ValueError(f"key_query: problem {problem}, sample {sample}: tokens {tied} get the same attention")


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
    names = ("tokens", "queries", "labels", "head", "key_query")
    arrays = [np.asarray(array, dtype=np.float64) for array in given]
    if arrays[0].ndim == 3:
        arrays = [array[None] for array in arrays]
    if arrays[0].ndim != 4 or arrays[0].shape[2] < 2 or 0 in arrays[0].shape:
        raise ValueError(
            f"tokens: expected (problems, samples, 2 or more tokens, dimension), none zero, got {given[0].shape}"
        )
    problems, samples, _, dimension = arrays[0].shape
    shapes = (
        (problems, samples, dimension),
        (problems, samples),
        (problems, dimension),
        (problems, dimension, dimension),
    )
    for name, array, shape in zip(names[1:], arrays[1:], shapes, strict=True):
        if array.shape != shape:
            raise ValueError(f"{name}: expected {shape} to fit the tokens, got {array.shape}")
    for name, array in zip(names, arrays, strict=True):
        if not np.isfinite(array).all():
            raise ValueError(f"{name}: expected finite numbers, got {int((~np.isfinite(array)).sum())} that are not")
    if not np.isin(arrays[2], (-1.0, 1.0)).all():
        raise ValueError("labels: expected 1 and -1 only")
    return tuple(arrays)
