r"""Maximum margin in any norm: the smallest $\|w\|_p$ with $Aw\ge b$, for many problems at once; $b=1$ unless given.

With $q$ conjugate to $p$, any $\lambda\ge0$ proves $\|w\|_p\ge b^\top\lambda/\|A^\top\lambda\|_q$ for all
feasible $w$. So a pair $(w,\lambda)$ carries its own certificate, whatever method found it; and where no feasible $w$
exists, some $\lambda$ has $A^\top\lambda=0$ and $b^\top\lambda>0$ (Farkas), which proves that.

The method is a primal-dual interior point method on $\frac12\|w\|_p^2$. For $p\le2$ it works in $\lambda$, where the
dual objective is twice differentiable, and for $p>2$ in $(w,\lambda)$. At $p=2$ an exact active-set method comes first;
the same certificate decides whether its answer stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

from attnbook.core.kernel_margin import NotSeparableError, kernel_margin

__all__ = ["InfeasibleError", "MaxMargin", "max_margin"]

State: TypeAlias = dict[str, np.ndarray]

MOST_STEPS = 100
# Accepted where rounding keeps a problem from the tolerance asked for.
WORST_GAP = 1e-8
CENTRING = 0.1
BOLDEST = 1e-2
# Curvature of the norm counts as at least this much: at zero entries, p > 2, it has none.
FLAT = 1e-10
TO_BOUNDARY = 0.995
# A constraint counts as tight when it is met with less than this to spare.
TIGHT = 1e-4
# Relative violation forgiven where the right-hand side is zero.
ROUNDING = 1e-10


class InfeasibleError(ValueError):
    """No weights satisfy the constraints; carries the proof.

    Attributes:
        problem: Number of the problem.
        combination: Non-negative multipliers whose combination of the constraints is zero, while that of the right-hand
            sides is 1.
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
        weights: Solutions, ``(problems, dimension)``; feasible to rounding.
        multipliers: Dual solutions $\lambda\ge0$ scaled to $b^\top\lambda=\|w\|_p^2$, ``(problems,
            constraints)``.
        norm: $\|w\|_p$, ``(problems,)``; the margin of $w/\|w\|_p$ is its inverse.
        gap: Certificate: no feasible weights have a norm below ``(1 - gap) * norm``, ``(problems,)``.
        steps: Newton steps taken, ``(problems,)``; 0 where the active-set method was enough.
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
    right: Float[np.ndarray, "problems constraints"] | None = None,
    tolerance: float = 1e-12,
) -> MaxMargin:
    r"""Solve $\min_w\|w\|_p$ subject to $Aw\ge b$ for a stack of problems.

    Args:
        constraints: Rows $a$ of the constraints of each problem.
        p: Exponent of the norm, more than 1 and finite; one number, or one per problem. Between 1.03 and 10 the
            method has been tested; closer to 1 or far above, expect the ``RuntimeError`` below.
        right: Right-hand sides $b$, none negative, at least one of each problem positive; default ones.
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
    bound = np.ones((problems, count)) if right is None else _checked_right(right, rows)
    weights, multipliers = np.zeros((problems, dimension)), np.zeros((problems, count))
    norm, gap, steps = np.full(problems, np.inf), np.full(problems, np.inf), np.zeros(problems)
    # Rows of size one: the solution scales with their inverse.
    scale = np.linalg.norm(rows, axis=2).max(axis=1)
    exact = (exponents == 2) & (bound == 1).all(axis=1)
    for method, chosen in ((_active_set, exact), (_in_multipliers, exponents <= 2), (_in_both, exponents > 2)):
        which = np.flatnonzero(chosen & (scale > 0) & ~(gap <= tolerance))
        if which.size:
            solved = method(rows[which] / scale[which, None, None], bound[which], exponents[which], tolerance)
            weights[which], multipliers[which] = solved["w"], solved["lam"]
            norm[which], gap[which], steps[which] = solved["norm"], solved["gap"], solved["steps"]
    for problem in np.flatnonzero(~(gap <= WORST_GAP) & np.isfinite(gap)):
        own = slice(problem, problem + 1)
        corner = _corner(rows[own] / scale[own, None, None], bound[own], exponents[own], weights[own])
        if corner["gap"][0] <= WORST_GAP:
            weights[own], multipliers[own], norm[own], gap[own] = (corner[key] for key in ("w", "lam", "norm", "gap"))
    for problem in np.flatnonzero(~(gap <= WORST_GAP)):
        _explain(int(problem), rows[problem], bound[problem], float(gap[problem]))
    return MaxMargin(weights / scale[:, None], multipliers / scale[:, None] ** 2, norm / scale, gap, steps)


def _active_set(rows: np.ndarray, right: np.ndarray, p: np.ndarray, tolerance: float) -> State:
    """The Euclidean solution in finitely many exact steps, problem by problem; no certificate where rounding wins."""
    lam = np.zeros(rows.shape[:2])
    for own, one in zip(lam, rows, strict=True):
        # What this method gives up on, the interior point method solves or refutes.
        with suppress(NotSeparableError, RuntimeError):
            own[:] = kernel_margin(one @ one.T, np.ones(len(one))).weights
    w = _up(rows, lam)
    length = np.linalg.norm(w, axis=1, keepdims=True)
    found = _certify({"lam": lam, "w": w, "w_norm": length, "pull_norm": length, "achieved": _down(rows, w)}, right)
    return found | {"steps": np.zeros(len(rows))}


def _in_multipliers(rows: np.ndarray, right: np.ndarray, p: np.ndarray, tolerance: float) -> State:
    return _interior_point(_Dual(rows, right, p), tolerance)


def _in_both(rows: np.ndarray, right: np.ndarray, p: np.ndarray, tolerance: float) -> State:
    return _interior_point(_Primal(rows, right, p), tolerance)


class _Dual:
    """Newton's method in the multipliers and slacks, with w = grad of the dual objective: for p at most 2."""

    def __init__(self, rows: np.ndarray, right: np.ndarray, p: np.ndarray) -> None:
        self.rows, self.right, self.p, self.q = rows, right, p[:, None], (p / (p - 1))[:, None]
        # At p = 2 the curvature is the same everywhere.
        self.gram = rows @ rows.mT if (p == 2).all() else None

    def keep(self, which: np.ndarray) -> None:
        self.rows, self.right, self.p, self.q = self.rows[which], self.right[which], self.p[which], self.q[which]
        self.gram = None if self.gram is None else self.gram[which]

    def start(self) -> State:
        lam = np.ones(self.rows.shape[:2])
        length = np.maximum(_norm(_up(self.rows, lam), self.q), 1e-6)
        lam *= self.rows.shape[1] / length**2
        found = self.look({"lam": lam, "s": np.zeros_like(lam)})
        return self.look({"lam": lam, "s": np.maximum(found["achieved"] - self.right, 0.5)})

    def look(self, state: State) -> State:
        """Add what depends on the state: u = A'lam and its norm, w, Aw, and by how much the equations fail."""
        pull = _up(self.rows, state["lam"])
        length = _norm(pull, self.q)
        share = np.abs(pull / np.maximum(length, np.finfo(float).tiny))
        unit = np.sign(pull) * share ** (self.q - 1)
        achieved = _down(self.rows, length * unit)
        found = {"pull": pull, "pull_norm": length, "share": share, "unit": unit, "w": length * unit, "w_norm": length}
        return state | found | {"achieved": achieved, "short": achieved - self.right - state["s"]}

    def residuals(self, state: State) -> list[np.ndarray]:
        return [state["short"]]

    def direction(self, state: State, centre: np.ndarray) -> State:
        lam, s = state["lam"], state["s"]
        if self.gram is None:
            # (q - 1) diag(share^(q - 2)) + (2 - q) y y' is the Hessian of half the squared q-norm.
            along = _down(self.rows, state["unit"])
            matrix = (self.rows * ((self.q - 1) * state["share"] ** (self.q - 2))[:, None, :]) @ self.rows.mT
            matrix += (2 - self.q)[..., None] * along[:, :, None] * along[:, None, :]
        else:
            matrix = self.gram.copy()
        _add_to_diagonal(matrix, s / lam)
        missing = centre - lam * s
        change = _solve(matrix, missing / lam - state["short"])
        return {"lam": change, "s": (missing - s * change) / lam}


class _Primal(_Dual):
    """Newton's method in weights, multipliers and slacks: for p above 2."""

    def look(self, state: State) -> State:
        if "w" not in state:
            state = state | {"w": super().look(state)["w"]}
        w, pull = state["w"], _up(self.rows, state["lam"])
        length = _norm(w, self.p)
        share = np.abs(w / length)
        unit = np.sign(w) * share ** (self.p - 1)
        found = {"pull": pull, "pull_norm": _norm(pull, self.q), "share": share, "unit": unit, "w_norm": length}
        achieved = _down(self.rows, w)
        balance = {"achieved": achieved, "short": achieved - self.right - state["s"], "torn": length * unit - pull}
        return state | found | balance

    def residuals(self, state: State) -> list[np.ndarray]:
        return [state["short"], state["torn"]]

    def direction(self, state: State, centre: np.ndarray) -> State:
        lam, s = state["lam"], state["s"]
        # The inverse of the Hessian (p - 1) diag(share^(p - 2)) + (2 - p) y y' of half the squared p-norm.
        inverse = 1 / np.maximum((self.p - 1) * state["share"] ** (self.p - 2), FLAT)
        ray = state["w"] / state["w_norm"]
        share = (self.p - 2) / (self.p - 1)
        along = _down(self.rows, ray)
        matrix = (self.rows * inverse[:, None, :]) @ self.rows.mT
        matrix += share[..., None] * along[:, :, None] * along[:, None, :]
        _add_to_diagonal(matrix, s / lam)
        missing = centre - lam * s

        def solve_hessian(vector: np.ndarray) -> np.ndarray:
            return inverse * vector + share * ray * (ray * vector).sum(1, keepdims=True)

        right = missing / lam - state["short"] + _down(self.rows, solve_hessian(state["torn"]))
        change = _solve(matrix, right)
        moved = solve_hessian(_up(self.rows, change) - state["torn"])
        return {"w": moved, "lam": change, "s": (missing - s * change) / lam}


def _interior_point(kernel: _Dual, tolerance: float) -> dict[str, np.ndarray]:
    """Follow the central path of all problems together; a finished problem drops out."""
    problems, count, dimension = kernel.rows.shape
    best: State = {"w": np.zeros((problems, dimension)), "lam": np.zeros((problems, count))}
    best |= {"norm": np.full(problems, np.inf), "gap": np.full(problems, np.inf), "steps": np.zeros(problems)}
    state, which, since = kernel.start(), np.arange(problems), np.zeros(problems, dtype=int)
    centring = np.full((problems, 1), CENTRING)
    for step in range(MOST_STEPS):
        found = _certify(state, kernel.right)
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
            which, centring = which[going], centring[going]
            state = {name: value[going] for name, value in state.items()}
            kernel.keep(going)
        centre = centring * (state["lam"] * state["s"]).mean(1, keepdims=True)
        state, length = _move(kernel, state, kernel.direction(state, centre), centre)
        # The farther a step went, the bolder the next.
        centring = np.clip((1 - length) ** 2, BOLDEST, CENTRING)
    return best


def _move(kernel: _Dual, state: State, change: State, centre: np.ndarray) -> tuple[State, np.ndarray]:
    """Go along the direction, staying inside and halving each problem's step until its residuals fall."""
    length = np.ones_like(centre)
    for name in ("lam", "s"):
        # The largest relative loss of any entry.
        loss = (-change[name] / state[name]).max(1, keepdims=True)
        length = np.minimum(length, TO_BOUNDARY / np.maximum(loss, 1e-300))
    before, farthest = _merit(kernel, state, centre), length
    for _ in range(12):
        moved = kernel.look({name: state[name] + length * step for name, step in change.items()})
        worse = _merit(kernel, moved, centre) > (1 - 1e-4 * length[:, 0]) * before
        if not worse.any():
            return moved, length
        length = np.where(worse[:, None], length / 2, length)
    # Where the norm's derivative has a kink no short step helps; a long one leaves it.
    length = np.where(worse[:, None], farthest, length)
    return kernel.look({name: state[name] + length * step for name, step in change.items()}), length


def _merit(kernel: _Dual, state: State, centre: np.ndarray) -> np.ndarray:
    parts = [*kernel.residuals(state), state["lam"] * state["s"] - centre]
    return np.sqrt(sum(np.einsum("pi,pi->p", part, part) for part in parts))


def _certify(state: State, right: np.ndarray) -> State:
    """Scale the weights to feasibility and the multipliers to the best bound they prove."""
    asks = right > 0
    margin = (state["achieved"] / np.where(asks, right, 1.0)).min(1, keepdims=True, where=asks, initial=np.inf)
    # Scaling cannot mend a right-hand side of zero: there only rounding is forgiven.
    margin = np.where((state["achieved"] >= -ROUNDING * state["w_norm"]).all(1, keepdims=True), margin, 0.0)
    total = (right * state["lam"]).sum(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        norm = np.where(margin > 0, state["w_norm"] / margin, np.inf)[:, 0]
        bound = total / state["pull_norm"][:, 0]
        gap = np.where(np.isfinite(norm) & np.isfinite(bound), np.abs(1 - bound / norm), np.inf)
        weights = np.where(margin > 0, state["w"] / margin, 0.0)
        lam = state["lam"] * (norm**2 / total)[:, None]
    return {"w": weights, "lam": lam, "norm": norm, "gap": gap}


def _corner(rows: np.ndarray, right: np.ndarray, p: np.ndarray, near: np.ndarray) -> State:
    """Solve one problem on the constraints that are tight nearby: where many meet, no multipliers are preferred."""
    from scipy.optimize import nnls

    tight = _down(rows, near)[0] <= right[0] + TIGHT
    w = np.linalg.lstsq(rows[0, tight], right[0, tight], rcond=None)[0][None]
    length = _norm(w, p[:, None])
    pull = length * np.sign(w) * np.abs(w / length) ** (p[:, None] - 1)
    lam = np.zeros(right.shape)
    lam[0, tight] = nnls(rows[0, tight].T, pull[0])[0]
    q = (p / (p - 1))[:, None]
    state = {"lam": lam, "w": w, "w_norm": length, "achieved": _down(rows, w), "pull_norm": _norm(_up(rows, lam), q)}
    return _certify(state, right)


def _explain(problem: int, rows: np.ndarray, right: np.ndarray, gap: float) -> None:
    """Raise: with a proof where the problem is infeasible."""
    from scipy.optimize import nnls

    dimension = rows.shape[1]
    scaled = rows / max(np.abs(rows).max(), np.finfo(float).tiny)
    system = np.concatenate([scaled.T, right[None]])
    combination, residual = nnls(system, np.append(np.zeros(dimension), 1.0))
    if residual < 1e-9:
        combination[combination < 1e-12 * combination.max()] = 0.0
        raise InfeasibleError(problem, combination / (right @ combination))
    raise RuntimeError(
        f"problem {problem} was solved to a gap of {gap:.1e} only; is it nearly infeasible, or p extreme?"
    )


def _norm(x: np.ndarray, r: np.ndarray) -> np.ndarray:
    largest = np.maximum(np.abs(x).max(1, keepdims=True), np.finfo(float).tiny)
    return largest * (np.abs(x / largest) ** r).sum(1, keepdims=True) ** (1 / r)


def _up(rows: np.ndarray, lam: np.ndarray) -> np.ndarray:
    return (lam[:, None, :] @ rows)[:, 0]


def _down(rows: np.ndarray, w: np.ndarray) -> np.ndarray:
    return (rows @ w[..., None])[..., 0]


def _solve(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    try:
        return np.linalg.solve(matrix, right[..., None])[..., 0]
    except np.linalg.LinAlgError:  # some are singular: infeasible problems get there; they stop, the others go on
        regular = np.linalg.matrix_rank(matrix) == matrix.shape[1]
        found = np.full_like(right, np.nan)
        found[regular] = np.linalg.solve(matrix[regular], right[regular][..., None])[..., 0]
        return found


def _add_to_diagonal(matrix: np.ndarray, values: np.ndarray) -> None:
    at = np.arange(matrix.shape[1])
    matrix[:, at, at] += values


def _checked_right(right: np.ndarray, rows: np.ndarray) -> np.ndarray:
    bound = np.asarray(right, dtype=np.float64)
    if bound.shape != rows.shape[:2]:
        raise ValueError(f"right: expected one number per constraint {rows.shape[:2]}, got shape {bound.shape}")
    if not ((bound >= 0) & np.isfinite(bound)).all() or not (bound > 0).any(axis=1).all():
        raise ValueError(
            f"right: expected finite numbers of at least 0, one of each problem positive, got {bound.min()}"
        )
    return bound


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
