"""Rows kept as factors: every product is that of the matrix they stand for, whatever the sizes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbook.core import interior_point
from attnbook.core.constraint_rows import DenseRows, OuterRows
from attnbook.core.max_margin import InfeasibleError, max_margin

SIZES = st.tuples(*[st.integers(1, 4)] * 5, st.integers(0, 1000))


def draw(problems, groups, members, d, e, seed):
    rng = np.random.default_rng(seed)
    outer = OuterRows(rng.standard_normal((problems, groups, members, d)), rng.standard_normal((problems, groups, e)))
    matrices = np.einsum("pgmd,pge->pgmde", outer.left, outer.right).reshape(problems, groups * members, d * e)
    return outer, DenseRows(matrices), rng


@settings(max_examples=25, deadline=None)
@given(SIZES)
def test_products_with_factors_are_those_of_the_matrix(sizes):
    outer, dense, rng = draw(*sizes)
    problems, count, dimension = dense.shape
    assert outer.shape == dense.shape
    w, lam = rng.standard_normal((problems, dimension)), rng.random((problems, count))
    weights, factor = rng.random((problems, dimension)), rng.random((problems, count)) + 0.5
    close = {"rtol": 1e-11, "atol": 1e-12}
    np.testing.assert_allclose(outer.down(w), np.einsum("pcd,pd->pc", dense.rows, w), **close)
    np.testing.assert_allclose(outer.up(lam), np.einsum("pcd,pc->pd", dense.rows, lam), **close)
    np.testing.assert_allclose(outer.gram(), np.einsum("pcd,pbd->pcb", dense.rows, dense.rows), **close)
    heavy = np.einsum("pcd,pd,pbd->pcb", dense.rows, weights, dense.rows)
    for rows in (outer, dense):
        np.testing.assert_allclose(np.tril(rows.lower_gram(weights)), np.tril(heavy), **close)
        assert np.isfinite(rows.lower_gram(weights)).all()
        np.testing.assert_allclose(rows.lengths(), np.linalg.norm(dense.rows, axis=2), **close)
        np.testing.assert_allclose(rows.scaled(factor).down(w), factor * dense.down(w), **close)
        np.testing.assert_allclose(rows[np.array([problems - 1])].up(lam[-1:]), dense.up(lam)[-1:], **close)
        np.testing.assert_allclose(rows.dense(0), dense.rows[0], **close)


@settings(max_examples=8, deadline=None)
@given(st.floats(1.15, 5.0), st.integers(0, 1000))
def test_solutions_do_not_depend_on_how_rows_are_kept(p, seed):
    outer, dense, _ = draw(2, 2, 3, 4, 5, seed)
    found, other = max_margin(outer, p), max_margin(dense.rows, p)
    np.testing.assert_allclose(found.norm, other.norm, rtol=1e-10)
    np.testing.assert_allclose(found.weights, other.weights, rtol=1e-5, atol=1e-6)


def test_a_wrong_system_costs_steps_but_never_the_certificate(monkeypatch):
    """Directions may be poor; what is returned is proven all the same."""
    outer, _, _ = draw(2, 2, 3, 4, 5, 7)
    right = max_margin(outer, 1.5)
    monkeypatch.setattr(OuterRows, "lower_gram", lambda self, weights: self.gram())
    mended = max_margin(outer, 1.5)
    np.testing.assert_allclose(mended.norm, right.norm, rtol=1e-7)
    assert mended.steps.max() > right.steps.max()


def test_systems_that_rounding_makes_indefinite_are_solved_without_cholesky():
    """Symmetric, known by its lower triangle alone, with eigenvalues 3 and -1."""
    lower = np.array([[[1.0, np.nan], [2.0, 1.0]], [[4.0, np.nan], [0.0, 1.0]], [[1.0, 0.0], [1.0, 1.0]]])
    found = interior_point._solve(lower, np.array([[3.0, 3.0], [4.0, 2.0], [1.0, 1.0]]))
    np.testing.assert_allclose(found[:2], [[1.0, 1.0], [1.0, 2.0]])
    assert np.isnan(found[2]).all()  # singular: this problem stops, the others go on


def test_infeasible_factors_are_refuted_with_a_proof():
    left = np.array([[[[1.0, 0.0], [0.0, 1.0]], [[-1.0, 0.0], [1.0, 1.0]]]])
    outer = OuterRows(left, np.ones((1, 2, 3)))
    with pytest.raises(InfeasibleError) as caught:
        max_margin(outer, 3.0)
    np.testing.assert_allclose(caught.value.combination @ outer.dense(0), 0.0, atol=1e-12)


@pytest.mark.parametrize(
    ("left", "right"),
    [((1, 2, 3, 4), (1, 3, 4)), ((1, 2, 3), (1, 2, 4)), ((1, 2, 0, 4), (1, 2, 4)), ((2, 2, 3, 4), (1, 2, 4))],
)
def test_factors_that_do_not_fit_are_refused(left, right):
    with pytest.raises((ValueError, TypeError), match=r"left|right"):
        OuterRows(np.ones(left), np.ones(right))


@pytest.mark.parametrize("name", ["left", "right"])
def test_factors_that_are_not_finite_are_refused_by_name(name):
    outer, _, _ = draw(1, 2, 3, 4, 5, 0)
    getattr(outer, name)[0, 0, 0] = np.inf
    with pytest.raises(ValueError, match=f"constraints.{name}: expected finite numbers"):
        max_margin(outer, 2.0)
