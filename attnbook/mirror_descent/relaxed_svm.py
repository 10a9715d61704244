r"""The attention SVM with a right-hand side per sample, the head SVM, and the ratio that ties them together.

A sample that the head already classifies with more than its smallest margin has a smaller loss, hence a smaller pull
on attention. So the key-query matrix trained with the head points to

.. math:: W_\kappa=\arg\min_W\|W\|_{p,p}\quad\text{such that}\quad(X_{i\alpha_i}-X_{it})^\top Wz_i\ge1-\kappa(m_i-1)

where $m_i\ge1$ is the margin of sample $i$ under the smallest head $v_{mm}$ with margins of at least one, and $\kappa$
is the relative norm of the head, $\|v\|_p/\|v_{mm}\|_p$, over that of the matrix, $\|W\|_{p,p}/\|W_\kappa\|_{p,p}$.

In all functions ``tokens``, ``queries``, ``selected`` and ``p``, one exponent or one per problem, are those of
:func:`~attnbook.mirror_descent.attention_svm.attention_svm`, and ``labels`` are plus or minus one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Float

from attnbook.core.max_margin import max_margin
from attnbook.mirror_descent import mirror
from attnbook.mirror_descent.attention_svm import (
    PerProblem,
    Queries,
    Selected,
    Tokens,
    attention_constraints,
    on_margin,
)

__all__ = ["HeadSVM", "RelaxedSVM", "head_svm", "relaxed_svm", "right_hand_sides", "self_consistent"]

MOST_SWEEPS = 120  # Newton's method comes from the left and is quadratic: it needs about five steps
NEWTON = 12  # after so many, intervals are halved: the norm jumps where a constraint drops out that was still tight
CLOSE = 1e-7  # relative; the norms of the solutions are certified to 1e-8 at worst

PerSample: TypeAlias = Float[np.ndarray, "problems samples"]
Others: TypeAlias = Float[np.ndarray, "problems samples others"]


@dataclass(frozen=True)
class HeadSVM:
    r"""Smallest heads that give every selected token margin one."""

    weight: Float[np.ndarray, "problems dimension"]  #: $v_{mm}$, ``(problems, dimension)``
    norm: PerProblem  #: $\|v_{mm}\|_p$, ``(problems,)``
    margins: PerSample  #: $m_i=y_iX_{i\alpha_i}^\top v_{mm}\ge1$, ``(problems, samples)``
    #: $m_{it}=y_iX_{it}^\top v_{mm}$ of the tokens not selected, in order, ``(problems, samples, others)``
    other_margins: Others
    multipliers: PerSample  #: Dual solution, ``(problems, samples)``; its sum is the squared norm
    #: Whether a sample has margin one up to 1e-6 or to rounding, ``(problems, samples)``
    support: Bool[np.ndarray, "problems samples"]

    @property
    def excess(self) -> PerSample:
        """By how much each margin exceeds one, zero on the margin."""
        return np.where(self.support, 0.0, self.margins - 1)


@dataclass(frozen=True)
class RelaxedSVM:
    r"""Solutions of the attention SVM with a right-hand side per sample."""

    weight: Float[np.ndarray, "problems dimension dimension"]  #: $W_\kappa$, ``(problems, dimension, dimension)``
    norm: PerProblem  #: $\|W_\kappa\|_{p,p}$, ``(problems,)``
    #: $(X_{i\alpha_i}-X_{it})^\top W_\kappa z_i$ for the tokens not selected, in order, ``(problems, samples, others)``
    gaps: Others
    multipliers: Others  #: Dual solution, of the same shape; zero where the right-hand side is negative
    kappa: PerProblem  #: The ratio in the right-hand sides, ``(problems,)``; NaN where they were given


def head_svm(tokens: Tokens, labels: PerSample, selected: Selected, p: mirror.Exponents) -> HeadSVM:
    r"""Return the solutions of $\min\|v\|_p$ subject to $y_iX_{i\alpha_i}^\top v\ge1$ ($\ell_p$-SVM) for many problems.

    Raises:
        InfeasibleError: If no head classifies the selected tokens (a ``ValueError``).

    Example:
        >>> import numpy as np
        >>> tokens = np.array([[[[3.0, 4.0], [0.0, 1.0]]]])
        >>> head_svm(tokens, np.array([[-1.0]]), np.array([[0]]), 2.0).weight.round(6).tolist()
        [[-0.12, -0.16]]
    """
    rows = labels[..., None] * np.take_along_axis(tokens, selected[..., None, None], axis=2)[:, :, 0]
    found = max_margin(rows, np.broadcast_to(mirror.check_exponents(p), len(rows)))
    scores = labels[..., None] * np.einsum("pstd,pd->pst", tokens, found.weights)
    margins = np.take_along_axis(scores, selected[..., None], axis=2)[..., 0]
    others = np.arange(tokens.shape[2]) != selected[..., None]
    rest = scores[others].reshape(*selected.shape, -1)
    support = on_margin(margins, np.linalg.norm(rows, axis=2), found.norm)
    return HeadSVM(found.weights, found.norm, margins, rest, found.multipliers, support)


def relaxed_svm(tokens: Tokens, queries: Queries, selected: Selected, right: Others, p: mirror.Exponents) -> RelaxedSVM:
    r"""Return the solutions of the attention SVM with right-hand side $b_{it}$, ``right``, in place of one.

    There is one for each token not selected, in order; at least one of each problem is positive. Constraints with a
    negative one are left out.

    Raises:
        ValueError: If no right-hand side of a problem is positive, or shapes do not fit.
        InfeasibleError: If the constraints contradict each other.

    Example:
        >>> import numpy as np
        >>> tokens = np.array([[[[3.0], [0.0]]]])
        >>> found = relaxed_svm(tokens, np.array([[[1.0]]]), np.array([[0]]), np.array([[[0.5]]]), p=2.0)
        >>> float(found.weight[0, 0, 0].round(6))
        0.166667
    """
    rows = attention_constraints(tokens, queries, selected)
    problems, samples, n_tokens, dimension = tokens.shape
    shape = (problems, samples, n_tokens - 1)
    if right.shape != shape:
        raise ValueError(f"right: expected one number per token not selected {shape}, got shape {right.shape}")
    bound = right.reshape(problems, -1)
    asked = bound >= 0
    # In place of a constraint that is left out stands a copy of the one that asks most.
    most = bound.argmax(axis=1)[:, None]
    copies, copied = np.take_along_axis(rows, most[..., None], axis=1), np.take_along_axis(bound, most, axis=1)
    exponents = np.broadcast_to(mirror.check_exponents(p), problems)
    solved = max_margin(np.where(asked[..., None], rows, copies), exponents, right=np.where(asked, bound, copied))
    multipliers = np.where(asked, solved.multipliers, 0.0)
    surplus = np.where(asked, 0.0, solved.multipliers).sum(axis=1, keepdims=True)
    np.put_along_axis(multipliers, most, np.take_along_axis(multipliers, most, axis=1) + surplus, axis=1)
    gaps = (rows @ solved.weights[..., None])[..., 0]
    weight = solved.weights.reshape(problems, dimension, dimension)
    nothing = np.full(problems, np.nan)
    return RelaxedSVM(weight, solved.norm, gaps.reshape(shape), multipliers.reshape(shape), nothing)


def right_hand_sides(head: HeadSVM, kappa: PerProblem) -> Others:
    r"""Return $b_{it}=1-\kappa(m_i-1)$, but not below zero where the head needs attention to keep off a token.

    A negative right-hand side would let token $t$ overtake the selected one. The strongest pull back that the sample
    can then have is about $e^{-rm_{it}}$, $r$ the relative norm of the head. It outweighs those that count,
    $e^{-r-\rho}$, where $\kappa(m_{it}-1)<1$: there the right-hand side stops at zero. Elsewhere nothing holds the
    token back.

    A negative one that is left says that the constraint is left out. An infinite $\kappa$ gives what is left in the
    limit.

    Example:
        >>> import numpy as np
        >>> one = np.ones((1, 1))
        >>> head = HeadSVM(one, one[0], 1.5 * one, np.array([[[0.2, 1.1, 1.4]]]), 0 * one, one > 1)
        >>> right_hand_sides(head, np.array([4.0])).tolist()
        [[[0.0, 0.0, -1.0]]]
    """
    # No product of an infinite ratio and an excess of zero.
    times = np.where(head.support, 0.0, kappa[:, None])
    relaxed = np.broadcast_to((1 - times * head.excess)[..., None], head.other_margins.shape)
    with np.errstate(divide="ignore"):
        held = head.other_margins - 1 < (1 / kappa)[:, None, None]
    return np.asarray(np.where(held, np.maximum(relaxed, 0.0), relaxed))


def self_consistent(
    tokens: Tokens, queries: Queries, selected: Selected, head: HeadSVM, ratio: PerProblem, p: mirror.Exponents
) -> RelaxedSVM:
    r"""Return the solutions for the $\kappa$ that is the ratio of relative norms: $\kappa=c\,\|W_\kappa\|_{p,p}$.

    Here $c=\|v\|_p/(\|v_{mm}\|_p\|W\|_{p,p})$ is ``ratio``, and ``head`` the head SVM of these tokens. Right-hand
    sides do not grow with $\kappa$, so neither does $\|W_\kappa\|$: there is at most one such $\kappa$. Newton's method
    from zero approaches it from below, since the norm is convex until a constraint drops out; intervals are halved
    where it leaves them. Where a constraint that is tight drops out, $\|W_\kappa\|$ may jump across; then $\kappa$ is
    the place of the jump, and the constraint counts.

    Raises:
        ValueError: If a ratio is negative or not finite.
        RuntimeError: If the iteration does not settle.
    """
    ratio = np.asarray(ratio, dtype=np.float64)
    if not ((ratio >= 0) & np.isfinite(ratio)).all():
        raise ValueError(f"ratio: expected finite numbers of at least 0, got {ratio.min()} to {ratio.max()}")
    kappa, low, high = np.zeros(len(ratio)), np.zeros(len(ratio)), np.full(len(ratio), np.inf)
    for sweep in range(MOST_SWEEPS):
        right = right_hand_sides(head, kappa)
        found = relaxed_svm(tokens, queries, selected, right, p)
        short = ratio * found.norm - kappa
        close = CLOSE * np.maximum(kappa, 1.0)
        unsettled = ~((np.abs(short) <= close) | ((high - low <= close) & (kappa == low)))
        if not unsettled.any():
            return replace(found, kappa=kappa)
        low, high = np.where(short > 0, kappa, low), np.where(short > 0, high, kappa)
        # The norm falls with kappa at the rate of the multipliers (those of half its square) over itself.
        fall = (np.where(right > 0, found.multipliers, 0.0) * head.excess[..., None]).sum(axis=(1, 2)) / found.norm
        newton = kappa + short / (1 + ratio * fall)
        kappa = np.where(unsettled, _next(newton, low, high, close, halve=sweep > NEWTON), kappa)
    raise RuntimeError(f"kappa did not settle: it still changes by {np.abs(short).max():.1e}")


def _next(newton: np.ndarray, low: np.ndarray, high: np.ndarray, close: np.ndarray, *, halve: bool) -> np.ndarray:
    """Newton's point while it stays inside, else the middle; the lower end where the norm jumps across the ratio."""
    outside = (newton <= low) | (newton >= high) | halve
    inside = np.where(outside & np.isfinite(high), (low + np.minimum(high, 1e300)) / 2, newton)
    return np.asarray(np.where(high - low <= close, low, inside))
