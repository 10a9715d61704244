"""Maximum margin in any norm: closed forms, an independent solver, certificates, and what is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize

from attnbook.core import interior_point
from attnbook.core import max_margin as solver
from attnbook.core.max_margin import InfeasibleError, NotSolvedError, max_margin

RNG = np.random.default_rng(0)
ROWS = RNG.standard_normal((3, 5, 11))
PS = (1.05, 1.1, 1.3, 1.7, 2.0, 2.3, 3.0, 5.0, 9.0)


def norm(x, r):
    return (np.abs(x) ** r).sum(-1) ** (1 / r)


@pytest.mark.parametrize("p", PS)
def test_one_constraint_has_its_closed_form(p):
    a, q = ROWS[0, 0], p / (p - 1)
    expected = np.sign(a) * np.abs(a) ** (q - 1) / (np.abs(a) ** q).sum()
    found = max_margin(a[None, None], p)
    np.testing.assert_allclose(found.weights[0], expected, rtol=1e-10, atol=1e-12)


def test_above_a_number_of_constraints_the_interior_point_method_solves_euclidean_problems(monkeypatch):
    exact = max_margin(ROWS, 2.0)
    monkeypatch.setattr(solver, "MOST_EXACT", ROWS.shape[1] - 1)
    other = max_margin(ROWS, 2.0)
    assert (exact.steps == 0).all()
    assert (other.steps > 0).all()
    np.testing.assert_allclose(other.norm, exact.norm, rtol=1e-10)


def test_two_constraints_in_the_plane_meet_in_the_vertex_by_hand():
    """w1 >= 1 and w2 >= 1: the solution is (1, 1) for every p; here p = 2."""
    found = max_margin(np.array([[[1.0, 0.0], [0.0, 1.0]]]), 2.0)
    np.testing.assert_allclose(found.weights[0], [1.0, 1.0], atol=1e-10)
    assert found.norm[0] == pytest.approx(np.sqrt(2), rel=1e-12)


@pytest.mark.parametrize("p", PS)
def test_solutions_carry_a_certificate_that_holds(p):
    """Recomputed here from weights and multipliers alone."""
    found, q = max_margin(ROWS, p), p / (p - 1)
    assert ((ROWS @ found.weights[..., None])[..., 0] >= 1 - 1e-12).all()
    assert (found.multipliers >= 0).all()
    bound = found.multipliers.sum(1) / norm((found.multipliers[:, None] @ ROWS)[:, 0], q)
    np.testing.assert_allclose(bound, norm(found.weights, p), rtol=1e-8)
    np.testing.assert_allclose(found.multipliers.sum(1), found.norm**2, rtol=1e-12)
    assert (found.gap <= 1e-11).all()


@pytest.mark.parametrize("p", [1.5, 2.0, 3.0])
def test_an_independent_solver_finds_the_same(p):
    """Sequential quadratic programming on the primal problem; its own accuracy limits the comparison."""
    for rows, weights in zip(ROWS, max_margin(ROWS, p).weights, strict=True):
        start = np.linalg.pinv(rows) @ np.ones(5)
        other = minimize(
            lambda w: (np.abs(w) ** p).sum(),
            start,
            constraints={"type": "ineq", "fun": lambda w, rows=rows: rows @ w - 1, "jac": lambda w, rows=rows: rows},
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 500},
        )
        np.testing.assert_allclose(weights, other.x, atol=3e-6)


@pytest.mark.parametrize("p", [1.03, 2.0, 10.0])
def test_the_norms_of_linear_programs_are_neighbours(p):
    """The solution's 1-norm and largest entry are at least those of two linear programs, nearly equal at the ends."""
    rows = ROWS[0]
    one = linprog(np.ones(22), A_ub=-np.hstack([rows, -rows]), b_ub=-np.ones(5)).fun
    top = linprog(
        np.append(np.zeros(11), 1.0),
        A_ub=np.vstack([np.hstack([-rows, np.zeros((5, 1))]), np.hstack([np.eye(11), -np.ones((11, 1))]),
                        np.hstack([-np.eye(11), -np.ones((11, 1))])]),
        b_ub=np.concatenate([-np.ones(5), np.zeros(22)]),
        bounds=[(None, None)] * 11 + [(0, None)],
    ).fun  # fmt: skip
    weights = max_margin(rows[None], p).weights[0]
    assert np.abs(weights).sum() >= one - 1e-9
    assert np.abs(weights).max() >= top - 1e-9
    if p == 1.03:
        assert np.abs(weights).sum() <= 1.05 * one
    if p == 10.0:
        assert np.abs(weights).max() <= 1.3 * top


def test_a_problem_does_not_depend_on_the_others():
    together = max_margin(ROWS, [1.2, 2.0, 3.7])
    for i, p in enumerate((1.2, 2.0, 3.7)):
        alone = max_margin(ROWS[i : i + 1], p)
        np.testing.assert_allclose(together.weights[i], alone.weights[0], rtol=1e-7, atol=1e-9)


@settings(max_examples=30, deadline=None)
@given(st.floats(1.1, 6.0), st.integers(0, 50), st.floats(1e-6, 1e6))
def test_scaling_the_constraints_scales_the_solution(p, seed, factor):
    rows = np.random.default_rng(seed).standard_normal((1, 3, 7))
    base, scaled = max_margin(rows, p), max_margin(rows * factor, p)
    np.testing.assert_allclose(scaled.norm * factor, base.norm, rtol=1e-8)


def test_more_constraints_than_dimensions_are_solved_where_feasible():
    direction = np.array([1.0, 0.5, -0.3])
    rows = RNG.standard_normal((200, 3))
    rows *= np.sign(rows @ direction)[:, None]
    found = max_margin(rows[None] + 0.1 * direction, 1.5)
    assert found.gap[0] <= 1e-8


def test_infeasible_constraints_are_refused_with_a_proof():
    rows = np.array([[1.0, 2.0, 0.0], [-2.0, -4.0, 0.0], [0.0, 1.0, 1.0]])
    with pytest.raises(InfeasibleError, match="constraints: problem 1 is infeasible") as caught:
        max_margin(np.stack([ROWS[0, :3, :3], rows]), 1.5)
    proof = caught.value.combination
    assert caught.value.problem == 1
    assert (proof >= 0).all()
    assert proof.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(proof @ rows, 0.0, atol=1e-9)


def test_a_row_of_zeros_is_infeasible():
    with pytest.raises(ValueError, match="infeasible"):
        max_margin(np.zeros((1, 2, 3)), 2.0)


@pytest.mark.parametrize(
    ("constraints", "p", "name"),
    [
        (np.ones((2, 3)), 2.0, "constraints"),
        (np.ones((1, 0, 3)), 2.0, "constraints"),
        (np.full((1, 2, 3), np.nan), 2.0, "constraints"),
        (ROWS, 1.0, "p: "),
        (ROWS, 0.5, "p: "),
        (ROWS, np.inf, "p: "),
        (ROWS, np.nan, "p: "),
        (ROWS, [2.0, 3.0], "p: "),
    ],
)
def test_impossible_arguments_are_refused_by_name(constraints, p, name):
    with pytest.raises((ValueError, TypeError), match=name):
        max_margin(constraints, p)


@pytest.mark.parametrize("p", [1.3, 2.0, 3.0])
def test_opposite_rows_are_refuted_although_their_system_becomes_singular(p):
    """Beside a feasible problem, which must not suffer."""
    row = np.array([1.0, 0.0, 0.0, 0.0])
    rows = np.stack([np.eye(4)[:3], np.stack([row, -row, np.eye(4)[3]])])
    with pytest.raises(InfeasibleError, match="problem 1") as caught:
        max_margin(rows, p)
    np.testing.assert_allclose(caught.value.combination, [0.5, 0.5, 0.0], atol=1e-9)


# Rows of very different lengths: the problem is that of rows of length one with other right-hand sides.


@pytest.mark.parametrize("p", [1.1, 1.25, 2.0, 3.0])
@pytest.mark.parametrize("length", [1e5, 1e9, 1e-9])
def test_long_and_short_rows_along_the_axes_are_solved(length, p):
    """w1 >= 1 / length and w2 >= 1, both tight; rounding alone moves a margin by about 1e-13 of the longest row."""
    rows = np.array([[length, 0.0], [0.0, 1.0]])
    found = max_margin(rows[None], p)
    assert found.gap[0] <= 1e-12
    rounding = 1e-12 * np.linalg.norm(rows, axis=1) * found.norm[0]
    np.testing.assert_array_less(np.abs(rows @ found.weights[0] - 1), 1e-6 + rounding)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from([1.1, 1.25, 2.0, 3.0]), st.integers(0, 10_000), st.floats(0.0, 6.0))
def test_feasible_problems_are_solved_whatever_the_lengths_of_their_rows(p, seed, spread):
    """A feasible direction is known; the certificate is computed again here, from rows of length one."""
    rng, q = np.random.default_rng(seed), p / (p - 1)
    count, dimension = rng.integers(2, 15, 2)
    inside = rng.standard_normal(dimension)
    rows = rng.standard_normal((count, dimension))
    rows *= np.sign(rows @ inside)[:, None]
    rows += 0.05 * inside / np.linalg.norm(inside)
    lengths = 10 ** rng.uniform(-spread, spread, count)
    rows *= (lengths / np.linalg.norm(rows, axis=1))[:, None]
    found = max_margin(rows[None], p)
    size, multipliers = found.norm[0], found.multipliers[0]
    assert (rows @ found.weights[0] >= 1 - 1e-12 - 1e-14 * lengths * size).all()
    assert norm(found.weights[0], p) == pytest.approx(size, rel=1e-9)
    assert multipliers.sum() / norm(multipliers @ rows, q) == pytest.approx(size, rel=2e-8)
    assert found.gap[0] <= 1e-8


@settings(max_examples=25, deadline=None)
@given(st.sampled_from([1.1, 1.25, 2.0, 3.0]), st.integers(0, 10_000), st.floats(0.0, 6.0))
def test_infeasible_problems_are_refuted_whatever_the_lengths_of_their_rows(p, seed, spread):
    """Some rows cancel by construction; the proof is checked here, against the lengths of the rows."""
    rng = np.random.default_rng(seed)
    count, dimension = rng.integers(2, 15, 2)
    rows = rng.standard_normal((count, dimension))
    rows[-1] = -rng.uniform(0.1, 1, count - 1) @ rows[:-1]
    rows *= 10 ** rng.uniform(-spread, spread, count)[:, None]
    with pytest.raises(InfeasibleError) as caught:
        max_margin(rows[None], p)
    proof = caught.value.combination
    assert (proof >= 0).all()
    assert proof.sum() == pytest.approx(1)
    assert np.linalg.norm(proof @ rows) <= 1e-12 * (proof @ np.linalg.norm(rows, axis=1))


@pytest.mark.parametrize("p", [1.5, 2.0, 3.0])
def test_long_rows_that_contradict_each_other_are_not_overlooked(p):
    """Beside a short one they ask for little; both cannot be had all the same."""
    with pytest.raises(InfeasibleError) as caught:
        max_margin(np.array([[[1e16, 0.0], [-1e16, 0.0], [0.0, 1.0]]]), p)
    np.testing.assert_allclose(caught.value.combination, [0.5, 0.5, 0.0])


@pytest.mark.parametrize("p", [1.25, 2.0, 3.0])
def test_rows_that_nearly_cancel_are_not_called_infeasible(p):
    """The solution is (0, 1e9); rounding may keep it from the gap that is asked for, never prove that it is none."""
    rows = np.array([[[1.0, 1e-9], [-1.0, 1e-9]]])
    try:
        found = max_margin(rows, p)
    except NotSolvedError as error:
        found = error.found
    assert found.norm[0] == pytest.approx(1e9, rel=1e-3)


def test_what_is_not_solved_well_enough_comes_with_its_gap(monkeypatch):
    monkeypatch.setattr(interior_point, "MOST_STEPS", 6)
    with pytest.raises(NotSolvedError, match=r"constraints: problem 0 was solved to a gap of .* only") as caught:
        max_margin(ROWS, [1.3, 2.0, 3.0])
    found, q = caught.value.found, 1.3 / 0.3
    assert 1e-8 < found.gap[0] < 0.1
    assert found.gap[1] <= 1e-12
    assert (ROWS @ found.weights[..., None] >= 1 - 1e-12).all()
    bound = found.multipliers[0].sum() / norm(found.multipliers[0] @ ROWS[0], q)
    assert bound / found.norm[0] == pytest.approx(1 - found.gap[0])


@pytest.mark.parametrize("length", [1e-200, 1e200])
def test_rows_whose_lengths_overflow_are_refused(length):
    with pytest.raises(ValueError, match=r"constraints: expected rows of lengths from .* row 1 of problem 0 has"):
        max_margin(np.array([[[1.0, 0.0], [0.0, length]]]), 2.0)
