r"""Primal-dual interior point method for the smallest $\|w\|_p$ with $Aw\ge b$, for many problems at once.

It maximises $t-\frac12\|w\|_p^2$ with $Aw\ge tb$, of which the smallest weights are $w/t$; it has a solution
whether or not there are weights at all. For $p\le2$ the unknowns are $t$ and the
multipliers, where the dual objective is twice differentiable, and for $p>2$ the weights, too; the Newton systems have
one row per constraint either way.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from attnbook.core.constraint_rows import Rows

__all__ = ["State", "certified", "entry_norm", "in_both", "in_multipliers"]

State: TypeAlias = dict[str, np.ndarray]
"""Name to array, each with a leading problem axis."""

MOST_STEPS = 100
CENTRING = 0.1
BOLDEST = 1e-4
# Curvature of the norm counts as at least this much: at zero entries, p > 2, it has none.
FLAT = 1e-10
TO_BOUNDARY = 0.9999
# A constraint is called tight when the relative excess of its margin over its right-hand side falls below.
TIGHT = 1e-7
# Products of rows of length one and weights of norm one: rounding, what can be told from it, and the violation that
# is forgiven where the right-hand side is zero.
ROUNDING = 1e-15
SEEN = 1e-13
FORGIVEN = 1e-10


def in_multipliers(rows: Rows, bound: np.ndarray, p: np.ndarray, tolerance: float) -> State:
    """Solve problems with exponents of at most 2.

    Args:
        rows: Constraints, of length one (or zero, with right-hand side zero).
        bound: Right-hand sides from 0 to 1, the largest of each problem 1, ``(problems, constraints)``.
        p: Exponents, ``(problems,)``.
        tolerance: Relative gap to stop at.

    Returns:
        ``w``, ``lam``, ``norm``, ``gap`` and ``steps`` of each problem, the best found; the gap tells how good it is.
    """
    return _interior_point(_Dual(rows, bound, p), tolerance)


def in_both(rows: Rows, bound: np.ndarray, p: np.ndarray, tolerance: float) -> State:
    """Solve problems with exponents above 2; see :func:`in_multipliers`."""
    return _interior_point(_Primal(rows, bound, p), tolerance)


def certified(state: State, bound: np.ndarray) -> State:
    """Scale weights to feasibility and multipliers to the best bound they prove.

    Args:
        state: ``w``, its norm ``w_norm`` and margins ``achieved``, ``lam`` and the dual norm ``pull_norm`` of its
            combination of the rows, of length one; norms are ``(problems, 1)``.
        bound: Right-hand sides, ``(problems, constraints)``.

    Returns:
        ``w``, ``lam``, ``norm`` and the relative ``gap``.
    """
    achieved, rounding = state["achieved"], ROUNDING * state["w_norm"]
    total = (bound * state["lam"]).sum(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        # Scaling cannot mend what rounding takes from small right-hand sides, nor a right-hand side of zero.
        margin = ((achieved + rounding) / bound).min(1, keepdims=True, where=bound > 0, initial=np.inf)
        fits = (achieved > np.where(bound > 0, 0.0, -FORGIVEN * state["w_norm"])).all(1, keepdims=True)
        margin = np.where(fits & (margin > 1e3 * rounding), margin, 0.0)
        norm = np.where(margin > 0, state["w_norm"] / margin, np.inf)[:, 0]
        proved = total / state["pull_norm"][:, 0]
        gap = np.where(np.isfinite(norm) & np.isfinite(proved), np.abs(1 - proved / norm), np.inf)
        weights = np.where(margin > 0, state["w"] / margin, 0.0)
        lam = state["lam"] * (norm**2 / total)[:, None]
    return {"w": weights, "lam": lam, "norm": norm, "gap": gap}


class _Dual:
    """Newton's method in t, multipliers and slacks, with w = grad of the dual objective: for p at most 2."""

    def __init__(self, rows: Rows, bound: np.ndarray, p: np.ndarray) -> None:
        self.rows, self.bound, self.p, self.q = rows, bound, p[:, None], (p / (p - 1))[:, None]
        # At p = 2 the curvature is the same everywhere.
        self.gram = rows.gram() if (p == 2).all() else None

    def keep(self, which: np.ndarray) -> None:
        self.rows, self.bound, self.p, self.q = self.rows[which], self.bound[which], self.p[which], self.q[which]
        self.gram = None if self.gram is None else self.gram[which]

    def start(self) -> State:
        lam = np.ones(self.rows.shape[:2]) / self.bound.sum(1, keepdims=True)
        found = self.look({"lam": lam, "s": np.zeros_like(lam), "t": np.zeros((len(lam), 1))})
        # What the rows achieve on average. They may cancel.
        t, size = found["pull_norm"] ** 2, np.maximum(found["pull_norm"], 1e-6 * lam.max(1, keepdims=True))
        return self.look(found | {"s": np.maximum(found["achieved"] - t * self.bound, size / 20), "t": t})

    def look(self, state: State) -> State:
        """Add what depends on the state: u = A'lam and its norm, w, Aw, and by how much the equations fail."""
        pull = self.rows.up(state["lam"])
        length = entry_norm(pull, self.q)
        share = np.abs(pull / np.maximum(length, np.finfo(float).tiny))
        unit = np.sign(pull) * share ** (self.q - 1)
        achieved = self.rows.down(length * unit)
        found = {"pull": pull, "pull_norm": length, "share": share, "unit": unit, "w": length * unit, "w_norm": length}
        return state | found | {"achieved": achieved, "short": achieved - state["t"] * self.bound - state["s"]}

    def residuals(self, state: State) -> list[np.ndarray]:
        return [state["short"]]

    def direction(self, state: State, centre: np.ndarray) -> State:
        lam, s = state["lam"], state["s"]
        if self.gram is None:
            # (q - 1) diag(share^(q - 2)) + (2 - q) y y' is the Hessian of half the squared q-norm.
            along = self.rows.down(state["unit"])
            matrix = self.rows.lower_gram((self.q - 1) * state["share"] ** (self.q - 2))
            matrix += ((2 - self.q) * along)[:, :, None] * along[:, None, :]
        else:
            matrix = self.gram.copy()
        return self.bordered(state, matrix, centre - lam * s, -state["short"])

    def bordered(self, state: State, matrix: np.ndarray, missing: np.ndarray, right: np.ndarray) -> State:
        """Solve for multipliers and t, whose equation is that the multipliers of the right-hand sides add up to 1."""
        lam, s, bound = state["lam"], state["s"], self.bound
        _add_to_diagonal(matrix, s / lam)
        columns = np.empty((*bound.shape, 2))
        columns[..., 0], columns[..., 1] = missing / lam + right, bound
        solution = _solve(matrix, columns)
        alone, per_t = solution[..., 0], solution[..., 1]
        left, total = 1 - (bound * (lam + alone)).sum(1, keepdims=True), (bound * per_t).sum(1, keepdims=True)
        change = alone + left / total * per_t
        return {"lam": change, "s": (missing - s * change) / lam, "t": left / total}


class _Primal(_Dual):
    """Newton's method in weights, t, multipliers and slacks: for p above 2."""

    def look(self, state: State) -> State:
        if "w" not in state:
            state = state | {"w": super().look(state)["w"]}
        w, pull = state["w"], self.rows.up(state["lam"])
        length = entry_norm(w, self.p)
        share = np.abs(np.divide(w, length, out=np.zeros_like(w), where=length != 0))  # rows that cancel end at zero
        unit = np.sign(w) * share ** (self.p - 1)
        found = {"pull": pull, "pull_norm": entry_norm(pull, self.q), "share": share, "unit": unit, "w_norm": length}
        achieved = self.rows.down(w)
        short = achieved - state["t"] * self.bound - state["s"]
        return state | found | {"achieved": achieved, "short": short, "torn": length * unit - pull}

    def residuals(self, state: State) -> list[np.ndarray]:
        return [state["short"], state["torn"]]

    def direction(self, state: State, centre: np.ndarray) -> State:
        # The inverse of the Hessian (p - 1) diag(share^(p - 2)) + (2 - p) y y' of half the squared p-norm.
        inverse = 1 / np.maximum((self.p - 1) * state["share"] ** (self.p - 2), FLAT)
        ray = state["w"] / state["w_norm"]
        share = (self.p - 2) / (self.p - 1)
        along = self.rows.down(ray)
        matrix = self.rows.lower_gram(inverse)
        matrix += (share * along)[:, :, None] * along[:, None, :]

        def solve_hessian(vector: np.ndarray) -> np.ndarray:
            return inverse * vector + share * ray * (ray * vector).sum(1, keepdims=True)

        right = self.rows.down(solve_hessian(state["torn"])) - state["short"]
        change = self.bordered(state, matrix, centre - state["lam"] * state["s"], right)
        return change | {"w": solve_hessian(self.rows.up(change["lam"]) - state["torn"])}


def _interior_point(kernel: _Dual, tolerance: float) -> dict[str, np.ndarray]:
    """Follow the central path of all problems together; a finished problem drops out."""
    problems, count, dimension = kernel.rows.shape
    best: State = {"w": np.zeros((problems, dimension)), "lam": np.zeros((problems, count))}
    best |= {"norm": np.full(problems, np.inf), "gap": np.full(problems, np.inf), "steps": np.zeros(problems)}
    state, which, since = kernel.start(), np.arange(problems), np.zeros(problems, dtype=int)
    centring, before = np.full((problems, 1), CENTRING), np.zeros((problems, count))
    for step in range(MOST_STEPS):
        found = certified(state, kernel.bound)
        better, clearly = found["gap"] < best["gap"][which], found["gap"] < 0.9 * best["gap"][which]
        better |= found["gap"] <= tolerance
        for name, value in found.items():
            best[name][which[better]] = value[better]
        best["steps"][which] = step
        since[which] = np.where(clearly | np.isinf(found["gap"]), 0, since[which] + 1)
        # Twenty steps without a clearly better certificate: rounding.
        solved, excess = best["gap"][which] <= tolerance, state["achieved"] - state["t"] * kernel.bound
        going = ~solved & (since[which] < 20)
        if solved.any():
            going |= solved & ~_settled(state, excess, before, kernel.bound)
        # Where the rows cancel, there are no weights.
        going &= state["pull_norm"][:, 0] > SEEN * state["lam"].sum(1)
        if not going.any():
            break
        if not going.all():
            which, centring, excess = which[going], centring[going], excess[going]
            state = {name: value[going] for name, value in state.items()}
            kernel.keep(going)
        # Not far below what the equations fail by: else multipliers and slacks vanish together.
        aim = state["lam"] * np.maximum(centring * state["s"], 1e-3 * np.abs(state["short"]))
        centre, before = aim.sum(1, keepdims=True) / count, excess
        state, length = _move(kernel, state, kernel.direction(state, centre), centre)
        # The farther a step went, the bolder the next.
        centring = np.clip((1 - length) ** 2, BOLDEST, CENTRING)
    return best


def _settled(state: State, excess: np.ndarray, before: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """Whether each constraint is tight or its excess moves no more: gaps say little of those that ask little."""
    least = np.maximum(TIGHT * state["t"] * bound, SEEN * state["w_norm"])
    return np.asarray(((excess <= least) | (np.abs(excess - before) <= 1e-3 * excess)).all(1))


def _move(kernel: _Dual, state: State, change: State, centre: np.ndarray) -> tuple[State, np.ndarray]:
    """Go along the direction, staying inside and halving each problem's step until its residuals fall."""
    length = np.ones_like(centre)
    for name in ("lam", "s"):
        # The largest relative loss of any entry.
        loss = (-change[name] / state[name]).max(1, keepdims=True)
        length = np.minimum(length, TO_BOUNDARY / np.maximum(loss, 1e-300))
    before, farthest, rounding = _merit(kernel, state, centre), length, ROUNDING * state["w_norm"][:, 0]
    for _ in range(12):
        moved = kernel.look({name: state[name] + length * step for name, step in change.items()})
        worse = _merit(kernel, moved, centre) > np.maximum((1 - 1e-4 * length[:, 0]) * before, rounding)
        if not worse.any():
            return moved, length
        length = np.where(worse[:, None], length / 2, length)
    # Where the norm's derivative has a kink no short step helps; a long one leaves it.
    length = np.where(worse[:, None], farthest, length)
    return kernel.look({name: state[name] + length * step for name, step in change.items()}), length


def _merit(kernel: _Dual, state: State, centre: np.ndarray) -> np.ndarray:
    parts = [*kernel.residuals(state), state["lam"] * state["s"] - centre]
    return np.sqrt(sum(np.einsum("pi,pi->p", part, part) for part in parts))


def entry_norm(x: np.ndarray, r: np.ndarray) -> np.ndarray:
    """Return the norm of each row, ``(problems, 1)``, without overflow; exponents ``(problems, 1)``."""
    largest = np.maximum(np.abs(x).max(1, keepdims=True), np.finfo(float).tiny)
    return largest * (np.abs(x / largest) ** r).sum(1, keepdims=True) ** (1 / r)


def _solve(lower: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Solve positive definite systems for columns, given the lower triangles; NaN where one is singular."""
    from scipy.linalg.lapack import dposv  # here, because a machine that only trains needs no scipy

    found = np.empty_like(right)
    for matrix, one, solution in zip(lower, right, found, strict=True):
        # LAPACK reads column by column: what is below the diagonal here is above it there.
        _, solution[:], failed = dposv(matrix.T, one)
        if failed:  # by rounding, or on the way to an infeasible problem's end
            whole = np.tril(matrix) + np.tril(matrix, -1).T
            try:
                solution[:] = np.linalg.solve(whole, one)
            except np.linalg.LinAlgError:
                solution[:] = np.nan
    return found


def _add_to_diagonal(matrix: np.ndarray, values: np.ndarray) -> None:
    matrix.reshape(len(matrix), -1)[:, :: matrix.shape[1] + 1] += values  # every so many entries of a matrix
