r"""Maximum margin in any norm: the smallest $\|w\|_p$ with $Aw\ge b$, for many problems at once; $b=1$ unless given.

With $q$ conjugate to $p$, any $\lambda\ge0$ proves $\|w\|_p\ge b^\top\lambda/\|A^\top\lambda\|_q$ for all
feasible $w$. So a pair $(w,\lambda)$ carries its own certificate, whatever method found it; and where no feasible $w$
exists, some $\lambda$ has $A^\top\lambda=0$ and $b^\top\lambda>0$ (Farkas), which proves that. What holds neither proof
is an error of its own.

Inside, rows have length one: how long they are changes right-hand sides, not the problem. The method is an interior
point method. At $p=2$ and up to 500 constraints an exact active-set method comes first; the same certificate decides
whether its answer stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from attnbook.core.constraint_rows import DenseRows, OuterRows, Rows
from attnbook.core.interior_point import State, certified, entry_norm, in_both, in_multipliers
from attnbook.core.kernel_margin import NotSolvedError, factors, refuted

__all__ = ["InfeasibleError", "MaxMargin", "max_margin"]

# Relative gap to stop at; so small because the weights are only known to about its root.
TOLERANCE = 1e-12
# Accepted where rounding keeps a problem from that.
WORST_GAP = 1e-8
# Above as many constraints the interior point method is the faster one.
MOST_EXACT = 500
# A constraint counts as tight when it is met with less than this to spare.
TIGHT = 1e-4
# Rows of length one that cancel to so much are taken to cancel.
CANCELLED = 1e-12
# Lengths of rows whose squares can be computed.
SHORTEST, LONGEST = 1e-100, 1e100


class InfeasibleError(ValueError):
    """No weights satisfy the constraints; carries the proof, which has been checked.

    Attributes:
        problem: Number of the problem.
        combination: Non-negative multipliers whose combination of the constraints is zero, while that of the right-hand
            sides is 1. Zero means: below 1e-12 of the sum of the lengths of the rows, each times its multiplier.
    """

    def __init__(self, problem: int, combination: np.ndarray) -> None:
        self.problem, self.combination = problem, combination
        super().__init__(
            f"constraints: problem {problem} is infeasible: a convex combination of {int((combination > 0).sum())} "
            f"of its {len(combination)} rows is zero, so no w has a positive margin on all of them"
        )


@dataclass(frozen=True)
class MaxMargin:
    r"""Solutions of $\min\|w\|_p$ subject to $Aw\ge b$.

    Attributes:
        weights: Solutions, ``(problems, dimension)``; feasible to rounding, about 1e-15 of the length of a row times
            the norm.
        multipliers: Dual solutions $\lambda\ge0$ scaled to $b^\top\lambda=\|w\|_p^2$, ``(problems,
            constraints)``.
        norm: $\|w\|_p$, ``(problems,)``; the margin of $w/\|w\|_p$ is its inverse.
        gap: Certificate: no feasible weights have a norm below ``(1 - gap) * norm``, ``(problems,)``. Infinite where
            none were found; then weights are NaN.
        steps: Newton steps taken, ``(problems,)``; 0 where the active-set method was enough.
    """

    weights: Float[np.ndarray, "problems dimension"]
    multipliers: Float[np.ndarray, "problems constraints"]
    norm: Float[np.ndarray, " problems"]
    gap: Float[np.ndarray, " problems"]
    steps: Float[np.ndarray, " problems"]


def max_margin(
    constraints: Float[np.ndarray, "problems constraints dimension"] | OuterRows,
    p: float | Sequence[float] | Float[np.ndarray, " problems"],
    *,
    right: Float[np.ndarray, "problems constraints"] | None = None,
) -> MaxMargin:
    r"""Solve $\min_w\|w\|_p$ subject to $Aw\ge b$ for a stack of problems.

    Args:
        constraints: Rows $a$ of the constraints of each problem; outer products are best given as their factors. Their
            lengths may differ by any factor.
        p: Exponent of the norm, more than 1 and finite; one number, or one per problem. Between 1.03 and 10 the
            method has been tested; closer to 1 or far above, expect the ``NotSolvedError`` below.
        right: Right-hand sides $b$, none negative, at least one of each problem positive; default ones.

    Returns:
        The solutions with their certificates, gaps of at most 1e-12, or of 1e-8 where rounding forbids that.

    Raises:
        InfeasibleError: If no weights satisfy the constraints of a problem (a ``ValueError``).
        ValueError: If an argument has the wrong shape, is not finite or is outside its range.
        NotSolvedError: If a problem was neither solved to a gap of 1e-8 nor proved to be infeasible; what was found is
            its attribute ``found`` (a ``RuntimeError``).

    Example:
        >>> found = max_margin(np.array([[[3.0, 4.0]]]), p=2.0)
        >>> found.weights.round(6).tolist(), float(found.norm[0].round(6))
        ([[0.12, 0.16]], 0.2)
    """
    rows = _checked(constraints)
    exponents = _exponents(p, rows.shape[0])
    problems, count, dimension = rows.shape
    right = np.ones((problems, count)) if right is None else _checked_right(right, (problems, count))
    weights, multipliers = np.zeros((problems, dimension)), np.zeros((problems, count))
    norm, gap, steps = np.full(problems, np.inf), np.full(problems, np.inf), np.zeros(problems)
    lengths = _lengths(rows)
    # Rows of length one, right-hand sides of at most one.
    rows, bound = rows.scaled(1 / lengths), right / lengths
    scale = bound.max(axis=1, keepdims=True)
    bound /= scale
    exact = (exponents == 2) & (count <= MOST_EXACT)
    for method, chosen in ((_active_set, exact), (in_multipliers, exponents <= 2), (in_both, exponents > 2)):
        which = np.flatnonzero(chosen & ~(gap <= TOLERANCE))
        if which.size:
            solved = method(rows[which], bound[which], exponents[which], TOLERANCE)
            # An answer that came before may be the better one.
            better = ~(gap[which] <= solved["gap"])
            which = which[better]
            weights[which], multipliers[which] = solved["w"][better], solved["lam"][better]
            norm[which], gap[which], steps[which] = (solved[key][better] for key in ("norm", "gap", "steps"))
    for stuck in np.flatnonzero(~(gap <= WORST_GAP) & np.isfinite(gap)):
        own = np.array([stuck])
        corner = _corner(rows[own], bound[own], exponents[own], weights[own])
        if corner["gap"][0] < gap[stuck]:
            weights[own], multipliers[own], norm[own], gap[own] = (corner[key] for key in ("w", "lam", "norm", "gap"))
    unsolved = np.flatnonzero(~(gap <= WORST_GAP)).tolist()
    for problem in unsolved:
        combination = refuted(rows.dense(problem), bound[problem] > 0, CANCELLED) / lengths[problem]
        if combination.any():
            raise InfeasibleError(problem, combination / (right[problem] @ combination))
    weights[~np.isfinite(gap)] = np.nan
    found = MaxMargin(weights * scale, multipliers * scale / lengths, norm * scale[:, 0], gap, steps)
    if unsolved:
        worst = gap[unsolved[0]]
        how = f"solved to a gap of {worst:.1e} only" if np.isfinite(worst) else "not solved: no weights were found"
        reason = f"problem {unsolved[0]} was {how}, nor proved to be infeasible; is it nearly so, or p extreme?"
        raise NotSolvedError(f"constraints: {reason}", found)
    return found


def _active_set(rows: Rows, bound: np.ndarray, p: np.ndarray, tolerance: float) -> State:
    """The Euclidean solution in finitely many exact steps, problem by problem; no certificate where rounding wins."""
    from scipy.optimize import nnls  # here, because a machine that only trains needs no scipy

    lam = np.zeros(rows.shape[:2])
    # min |A'u - e| over u >= 0, with a last row of right-hand sides: the residual is the solution, up to a factor.
    systems = np.concatenate([factors(rows.gram()), bound[:, None]], axis=1)
    last = np.append(np.zeros(lam.shape[1]), 1.0)
    for own, system in zip(lam, systems, strict=True):
        # What this method gives up on, the interior point method solves or refutes.
        with suppress(RuntimeError):
            own[:] = nnls(system, last, maxiter=100 * len(own))[0]
    w = rows.up(lam)
    length = np.linalg.norm(w, axis=1, keepdims=True)
    found = certified({"lam": lam, "w": w, "w_norm": length, "pull_norm": length, "achieved": rows.down(w)}, bound)
    return found | {"steps": np.zeros(len(lam))}


def _corner(rows: Rows, bound: np.ndarray, p: np.ndarray, near: np.ndarray) -> State:
    """Solve one problem on the constraints that are tight nearby, whose corner rounding knows best."""
    from scipy.optimize import nnls

    tight = rows.down(near)[0] <= bound[0] + TIGHT
    chosen = rows.dense(0)[tight]
    w = np.linalg.lstsq(chosen, bound[0, tight], rcond=None)[0][None]
    length = entry_norm(w, p[:, None])
    lam = np.zeros(bound.shape)
    with suppress(RuntimeError):  # too many steps: nothing is proved
        lam[0, tight] = nnls(chosen.T, (length * np.sign(w) * np.abs(w / length) ** (p[:, None] - 1))[0])[0]
    pull_norm = entry_norm(rows.up(lam), (p / (p - 1))[:, None])
    return certified({"lam": lam, "w": w, "w_norm": length, "achieved": rows.down(w), "pull_norm": pull_norm}, bound)


def _lengths(rows: Rows) -> np.ndarray:
    """Return the lengths of the rows; 1 for rows of zeros."""
    with np.errstate(over="ignore"):
        lengths = rows.lengths()
    for problem, row in np.argwhere((lengths < SHORTEST) | (lengths > LONGEST)):
        if lengths[problem, row] or rows.dense(problem)[row].any():
            raise ValueError(
                f"constraints: expected rows of lengths from {SHORTEST:.0e} to {LONGEST:.0e}, or zero; row {row} of "
                f"problem {problem} has {lengths[problem, row]:.1e}"
            )
    return np.where(lengths > 0, lengths, 1.0)


def _checked(constraints: np.ndarray | OuterRows) -> Rows:
    if isinstance(constraints, OuterRows):
        arrays = {"constraints.left": constraints.left, "constraints.right": constraints.right}
        rows: Rows = constraints
    else:
        dense = np.asarray(constraints, dtype=np.float64)
        if dense.ndim != 3 or 0 in dense.shape:
            raise ValueError(
                f"constraints: expected (problems, constraints, dimension), none zero, got shape {dense.shape}"
            )
        arrays, rows = {"constraints": dense}, DenseRows(dense)
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise ValueError(f"{name}: expected finite numbers, got {int((~np.isfinite(array)).sum())} NaN or infinite")
    return rows


def _checked_right(right: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    bound = np.asarray(right, dtype=np.float64)
    if bound.shape != shape:
        raise ValueError(f"right: expected one number per constraint {shape}, got shape {bound.shape}")
    if not ((bound >= 0) & np.isfinite(bound)).all() or not (bound > 0).any(axis=1).all():
        raise ValueError(
            f"right: expected finite numbers of at least 0, one of each problem positive, got {bound.min()}"
        )
    return bound


def _exponents(p: float | Sequence[float] | np.ndarray, problems: int) -> np.ndarray:
    exponents = np.asarray(p, dtype=np.float64)
    if exponents.ndim and exponents.shape != (problems,):
        raise ValueError(f"p: expected one number or one per problem ({problems},), got shape {exponents.shape}")
    if not ((exponents > 1) & np.isfinite(exponents)).all():
        raise ValueError(f"p: expected finite numbers above 1, got {p!r}")
    return np.array(np.broadcast_to(exponents, problems))
