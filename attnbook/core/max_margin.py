r"""Maximum margin in any norm: the smallest $\|w\|_p$ with $Aw\ge1$, for many problems at once.

With $q$ conjugate to $p$, any $\lambda\ge0$ proves $\|w\|_p\ge\mathbf 1^\top\lambda/\|A^\top\lambda\|_q$ for all feasible $w$.
So a pair $(w,\lambda)$ carries its own certificate, whatever method found it; and where no feasible $w$ exists, some $\lambda$
has $A^\top\lambda=0$ (Gordan), which proves that.

The method is a primal-dual interior point method on $\frac12\|w\|_p^2$. For $p\le2$ it works in $\lambda$, where the dual
objective is twice differentiable, and for $p>2$ in $(w,\lambda)$.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

__all__ = ["InfeasibleError", "MaxMargin", "max_margin"]

State: TypeAlias = dict[str, np.ndarray]

MOST_STEPS = 100
# Accepted where rounding keeps a problem from the tolerance asked for.
WORST_GAP = 1e-8
CENTRING = 0.1
TO_BOUNDARY = 0.995


class InfeasibleError(ValueError):
    """No weights satisfy the constraints; carries the proof.

    Attributes:
        problem: Number of the problem.
        combination: Non-negative multipliers with sum 1 whose combination of the constraints is zero.
    """

    def __init__(self, problem: int, combination: np.ndarray, residual: float) -> None:
        self.problem, self.combination = problem, combination
        super().__init__(
            f"constraints: problem {problem} is infeasible: a convex combination of {int((combination > 0).sum())} of "
            f"its {len(combination)} constraints is zero (to {residual:.0e}), so no w has a positive margin on all of them"
        )


@dataclass(frozen=True)
class MaxMargin:
    r"""Solutions of $\min\|w\|_p$ subject to $Aw\ge1$.

    Attributes:
        weights: Solutions, ``(problems, dimension)``; feasible to rounding.
        multipliers: Dual solutions $\lambda\ge0$ scaled to $\mathbf 1^\top\lambda=\|w\|_p^2$, ``(problems, constraints)``.
        norm: $\|w\|_p$, ``(problems,)``; the margin of $w/\|w\|_p$ is its inverse.
        gap: Certificate: no feasible weights have a norm below ``(1 - gap) * norm``, ``(problems,)``.
        steps: Newton steps taken, ``(problems,)``.
    """

    weights: Float[np.ndarray, "problems dimension"]
    multipliers: Float[np.ndarray, "problems constraints"]
    norm: Float[np.ndarray, " problems"]
    gap: Float[np.ndarray, " problems"]
    steps: Float[np.ndarray, " problems"]


def max_margin(
    constraints: Float[np.ndarray, "problems constraints dimension"],
    p: float | Sequence[float] | Float[np.ndarray, " problems"],
    *,
    tolerance: float = 1e-12,
) -> MaxMargin:
    r"""Solve $\min_w\|w\|_p$ subject to $Aw\ge1$ for a stack of problems.

    Args:
        constraints: Rows $a$ of the constraints $a^\top w\ge1$ of each problem.
        p: Exponent of the norm, more than 1 and finite; one number, or one per problem. Between 1.03 and 10 the
            method has been tested; closer to 1 or far above, expect the ``RuntimeError`` below.
        tolerance: Relative gap to stop at; default 1e-12, because the weights are only known to about its root.

    Returns:
        The solutions with their certificates. Where rounding forbids ``tolerance`` the gap is larger, but at most 1e-8.

    Raises:
        InfeasibleError: If no weights satisfy the constraints of a problem (a ``ValueError``).
        ValueError: If an argument has the wrong shape, is not finite or is outside its range.
        RuntimeError: If a feasible problem was not solved to a gap of 1e-8.

    Example:
        >>> found = max_margin(np.array([[[3.0, 4.0]]]), p=2.0)
        >>> found.weights.round(6).tolist(), float(found.norm[0].round(6))
        ([[0.12, 0.16]], 0.2)
    """
    rows, exponents = _check(constraints, p, tolerance)
    problems, count, dimension = rows.shape
    weights, multipliers = np.zeros((problems, dimension)), np.zeros((problems, count))
    norm, gap, steps = np.full(problems, np.inf), np.full(problems, np.inf), np.zeros(problems)
    # Rows of size one: the solution scales with their inverse.
    scale = np.linalg.norm(rows, axis=2).max(axis=1)
    for kernel, chosen in ((_Dual, exponents <= 2), (_Primal, exponents > 2)):
        which = np.flatnonzero(chosen & (scale > 0))
        if which.size:
            solved = _interior_point(kernel(rows[which] / scale[which, None, None], exponents[which]), tolerance)
            weights[which], multipliers[which] = solved["w"], solved["lam"]
            norm[which], gap[which], steps[which] = solved["norm"], solved["gap"], solved["steps"]
    for problem in np.flatnonzero(~(gap <= WORST_GAP)):
        _explain(int(problem), rows[problem], float(gap[problem]))
    return MaxMargin(weights / scale[:, None], multipliers / scale[:, None] ** 2, norm / scale, gap, steps)


class _Dual:
    """Newton's method in the multipliers and slacks, with w = grad of the dual objective: for p at most 2."""

    def __init__(self, rows: np.ndarray, p: np.ndarray) -> None:
        self.rows, self.p, self.q = rows, p[:, None], (p / (p - 1))[:, None]

    def keep(self, which: np.ndarray) -> None:
        self.rows, self.p, self.q = self.rows[which], self.p[which], self.q[which]

    def start(self) -> State:
        length = _norm(_up(self.rows, np.ones(self.rows.shape[:2])), self.q)
        lam = np.broadcast_to(self.rows.shape[1] / np.maximum(length, 1e-6) ** 2, self.rows.shape[:2])
        state = {"lam": lam.copy()}
        return state | {"s": np.maximum(_down(self.rows, self.weights(state)) - 1, 0.5)}

    def weights(self, state: State) -> np.ndarray:
        return _gradient(_up(self.rows, state["lam"]), self.q)

    def residuals(self, state: State) -> list[np.ndarray]:
        return [_down(self.rows, self.weights(state)) - 1 - state["s"]]

    def direction(self, state: State, centre: np.ndarray) -> State:
        lam, s, (r,) = state["lam"], state["s"], self.residuals(state)
        matrix = _congruence(self.rows, *_hessian(_up(self.rows, lam), self.q))
        _add_to_diagonal(matrix, s / lam)
        change = _solve(matrix, (centre - lam * s) / lam - r)
        return {"lam": change, "s": (centre - lam * s - s * change) / lam}


class _Primal(_Dual):
    """Newton's method in weights, multipliers and slacks: for p above 2."""

    def start(self) -> State:
        state = super().start()
        return state | {"w": super().weights(state)}

    def weights(self, state: State) -> np.ndarray:
        return state["w"] if "w" in state else super().weights(state)

    def residuals(self, state: State) -> list[np.ndarray]:
        pull = _gradient(state["w"], self.p) - _up(self.rows, state["lam"])
        return [_down(self.rows, state["w"]) - 1 - state["s"], pull]

    def direction(self, state: State, centre: np.ndarray) -> State:
        lam, s, (r, pull) = state["lam"], state["s"], self.residuals(state)
        diagonal, outer, factor = _hessian(state["w"], self.p)
        matrix = (self.rows * (lam / s)[..., None]).mT @ self.rows
        matrix += factor[..., None] * outer[:, :, None] * outer[:, None, :]
        # A dimension that no constraint uses has no curvature at zero.
        _add_to_diagonal(matrix, diagonal + 1e-16 * np.trace(matrix, axis1=1, axis2=2)[:, None])
        missing = (centre - lam * s - lam * r) / s
        change = _solve(matrix, _up(self.rows, missing) - pull)
        slack = _down(self.rows, change) + r
        return {"w": change, "lam": (centre - lam * s - lam * slack) / s, "s": slack}


def _interior_point(kernel: _Dual, tolerance: float) -> dict[str, np.ndarray]:
    """Follow the central path of all problems together; a finished problem drops out."""
    problems, count, dimension = kernel.rows.shape
    best = {"w": np.zeros((problems, dimension)), "lam": np.zeros((problems, count))}
    best |= {"norm": np.full(problems, np.inf), "gap": np.full(problems, np.inf), "steps": np.zeros(problems)}
    state, which, since = kernel.start(), np.arange(problems), np.zeros(problems, dtype=int)
    for step in range(MOST_STEPS):
        found = _certify(kernel, state)
        better, clearly = found["gap"] < best["gap"][which], found["gap"] < 0.9 * best["gap"][which]
        for name, value in found.items():
            best[name][which[better]] = value[better]
        best["steps"][which] = step
        since[which] = np.where(clearly | np.isinf(best["gap"][which]), 0, since[which] + 1)
        # Ten steps without a clearly better certificate: rounding.
        going = (best["gap"][which] > tolerance) & (since[which] < 10) & np.isfinite(state["lam"]).all(1)
        if not going.any():
            break
        if not going.all():
            which, state = which[going], {name: value[going] for name, value in state.items()}
            kernel.keep(going)
        centre = CENTRING * (state["lam"] * state["s"]).mean(1, keepdims=True)
        state = _move(kernel, state, kernel.direction(state, centre), centre)
    return best


def _move(kernel: _Dual, state: State, change: State, centre: np.ndarray) -> State:
    """Go along the direction, staying inside and halving each problem's step until its residuals fall."""
    length = np.ones_like(centre)
    for name in ("lam", "s"):
        with np.errstate(divide="ignore", invalid="ignore"):
            room = np.where(change[name] < 0, -state[name] / change[name], np.inf).min(1, keepdims=True)
        length = np.minimum(length, TO_BOUNDARY * room)
    before, farthest = _merit(kernel, state, centre), length
    for _ in range(12):
        moved = {name: value + length * change[name] for name, value in state.items()}
        worse = _merit(kernel, moved, centre) > (1 - 1e-4 * length[:, 0]) * before
        if not worse.any():
            return moved
        length = np.where(worse[:, None], length / 2, length)
    # Where the norm's derivative has a kink no short step helps; a long one leaves it.
    length = np.where(worse[:, None], farthest, length)
    return {name: value + length * change[name] for name, value in state.items()}


def _merit(kernel: _Dual, state: State, centre: np.ndarray) -> np.ndarray:
    parts = [*kernel.residuals(state), state["lam"] * state["s"] - centre]
    return np.sqrt(sum(np.square(part).sum(1) for part in parts))


def _certify(kernel: _Dual, state: State) -> dict[str, np.ndarray]:
    """Scale the weights to feasibility and the multipliers to the best bound they prove."""
    weights, lam = kernel.weights(state), state["lam"]
    margin = _down(kernel.rows, weights).min(1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        weights = np.where(margin > 0, weights / margin, 0.0)
        norm = np.where(margin[:, 0] > 0, _norm(weights, kernel.p)[:, 0], np.inf)
        bound = lam.sum(1) / _norm(_up(kernel.rows, lam), kernel.q)[:, 0]
        gap = np.where(np.isfinite(norm) & np.isfinite(bound), np.abs(1 - bound / norm), np.inf)
        lam = lam * (norm**2 / lam.sum(1))[:, None]
    return {"w": weights, "lam": lam, "norm": norm, "gap": gap}


def _explain(problem: int, rows: np.ndarray, gap: float) -> None:
    """Raise: with a proof where the problem is infeasible."""
    from scipy.optimize import nnls

    count, dimension = rows.shape
    scaled = rows / max(np.abs(rows).max(), np.finfo(float).tiny)
    system = np.concatenate([scaled.T, np.ones((1, count))])
    combination, residual = nnls(system, np.append(np.zeros(dimension), 1.0))
    if residual < 1e-9:
        combination = combination / combination.sum()
        raise InfeasibleError(problem, combination, float(np.linalg.norm(scaled.T @ combination)))
    raise RuntimeError(f"problem {problem} was solved to a gap of {gap:.1e} only; is it nearly infeasible, or p extreme?")


def _gradient(x: np.ndarray, r: np.ndarray) -> np.ndarray:
    """Return the gradient of half the squared r-norm."""
    length = _norm(x, r)
    return length * np.sign(x) * np.abs(x / length) ** (r - 1)


def _hessian(x: np.ndarray, r: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the Hessian of half the squared r-norm, r >= 2, as diagonal, vector and factor: diag + factor * vv'."""
    share = np.abs(x / _norm(x, r))
    return (r - 1) * share ** (r - 2), np.sign(x) * share ** (r - 1), 2 - r


def _congruence(rows: np.ndarray, diagonal: np.ndarray, outer: np.ndarray, factor: np.ndarray) -> np.ndarray:
    along = _down(rows, outer)
    return (rows * diagonal[:, None, :]) @ rows.mT + factor[..., None] * along[:, :, None] * along[:, None, :]


def _norm(x: np.ndarray, r: np.ndarray) -> np.ndarray:
    largest = np.maximum(np.abs(x).max(1, keepdims=True), np.finfo(float).tiny)
    return largest * (np.abs(x / largest) ** r).sum(1, keepdims=True) ** (1 / r)


def _up(rows: np.ndarray, lam: np.ndarray) -> np.ndarray:
    return (lam[:, None, :] @ rows)[:, 0]


def _down(rows: np.ndarray, w: np.ndarray) -> np.ndarray:
    return (rows @ w[..., None])[..., 0]


def _solve(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    return np.linalg.solve(matrix, right[..., None])[..., 0]


def _add_to_diagonal(matrix: np.ndarray, values: np.ndarray) -> None:
    at = np.arange(matrix.shape[1])
    matrix[:, at, at] += values


def _check(
    constraints: np.ndarray, p: float | Sequence[float] | np.ndarray, tolerance: float
) -> tuple[np.ndarray, np.ndarray]:
    rows = np.asarray(constraints, dtype=np.float64)
    if rows.ndim != 3 or 0 in rows.shape:
        raise ValueError(f"constraints: expected (problems, constraints, dimension), none zero, got shape {rows.shape}")
    if not np.isfinite(rows).all():
        raise ValueError(f"constraints: expected finite numbers, got {int((~np.isfinite(rows)).sum())} NaN or infinite")
    exponents = np.asarray(p, dtype=np.float64)
    if exponents.ndim and exponents.shape != rows.shape[:1]:
        raise ValueError(f"p: expected one number or one per problem ({len(rows)},), got shape {exponents.shape}")
    if not ((exponents > 1) & np.isfinite(exponents)).all():
        raise ValueError(f"p: expected finite numbers above 1, got {p!r}")
    if not 0 < tolerance <= WORST_GAP:
        raise ValueError(f"tolerance: expected a positive number of at most {WORST_GAP:g}, got {tolerance!r}")
    return rows, np.array(np.broadcast_to(exponents, rows.shape[:1]))
