"""The attention SVM: against other solvers, by hand, its certificate, and what it refuses and why."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from attnbook.core.max_margin import NotSolvedError, max_margin
from attnbook.mirror_descent import mirror
from attnbook.mirror_descent.attention_svm import (
    TokenConflictError,
    attention_constraints,
    attention_svm,
    locally_optimal,
)
from attnbook.mirror_descent.data import draw_problems, plane_tokens

SQUARE = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [0.4, 0.7]])
SMALL = draw_problems([0, 1], n_samples=5, n_tokens=3, dimension=7)
ACROSS = np.array([[[1.0, 0.0]]])


@pytest.mark.parametrize("p", [1.5, 2.0, 3.0])
def test_the_official_problem_has_the_solution_of_another_solver(p):
    """Six samples of eight tokens in ten dimensions; benchmarks/case_mirror_descent.py does it with cvxpy."""
    drawn = draw_problems([0])
    found = attention_svm(drawn.tokens, drawn.queries, drawn.best_tokens, p)
    rows = attention_constraints(drawn.tokens, drawn.queries, drawn.best_tokens)[0]
    other = minimize(
        lambda w: ((np.abs(w) ** p).sum() / p, np.sign(w) * np.abs(w) ** (p - 1)),
        np.linalg.pinv(rows) @ np.ones(len(rows)),
        jac=True,
        method="SLSQP",
        constraints={"type": "ineq", "fun": lambda w: rows @ w - 1, "jac": lambda w: rows},
        options={"ftol": 1e-12, "maxiter": 500},
    )
    assert other.success
    assert found.norm[0] == pytest.approx((other.fun * p) ** (1 / p), rel=1e-6)
    np.testing.assert_allclose(found.weight[0].ravel(), other.x, atol=1e-4 * np.abs(other.x).max())


@pytest.mark.parametrize("p", [1.1, 2.0, 5.0])
def test_one_constraint_has_a_closed_form_and_its_rival_is_the_support_token(p):
    problem = draw_problems([5], n_samples=1, n_tokens=2, dimension=3)
    found = attention_svm(problem.tokens, problem.queries, np.array([[1]]), p)
    constraint = np.outer(problem.tokens[0, 0, 1] - problem.tokens[0, 0, 0], problem.queries[0, 0])
    np.testing.assert_allclose(found.weight[0], mirror.single_constraint(constraint, p), rtol=1e-9, atol=1e-12)
    assert found.support.tolist() == [[[True, False]]]
    assert found.margins[0, 0, 1] == np.inf
    assert found.multipliers[0, 0].tolist() == pytest.approx([found.norm[0] ** 2, 0.0])


def test_local_optimality_by_hand():
    """A support token with a higher or an equal score breaks it, in any sample; one off the margin does not."""
    scores = np.array([[[1.0, 2.0, 0.0], [0.0, 3.0, 3.0]]] * 3)
    selected = np.array([[0, 1]] * 3)
    support = np.zeros((3, 2, 3), dtype=bool)
    support[0, 0, 1] = support[1, 1, 2] = support[2, 0, 2] = True
    assert locally_optimal(scores, selected, support).tolist() == [False, False, True]


def test_norms_decide_which_tokens_of_the_plane_are_locally_optimal():
    """Token B at p = 1.5, not at p = 3."""
    problem, selected = plane_tokens().repeated(2), np.array([[1], [1]])
    found = attention_svm(problem.tokens, problem.queries, selected, [1.5, 3.0])
    assert locally_optimal(problem.token_scores, selected, found.support).tolist() == [True, False]


def test_the_best_tokens_are_locally_optimal_whatever_the_norm():
    drawn = draw_problems(range(4))
    for p in (1.25, 2.0, 4.0):
        support = attention_svm(drawn.tokens, drawn.queries, drawn.best_tokens, p).support
        assert locally_optimal(drawn.token_scores, drawn.best_tokens, support).all()


def test_a_token_inside_the_others_cannot_be_selected_and_the_conflict_is_named():
    """The proof is a mixture of the corners that equals the token."""
    with pytest.raises(TokenConflictError, match=r"sample 0: token 4 above .*2.*") as caught:
        attention_svm(SQUARE[None, None], ACROSS, np.array([[4]]), 1.5)
    mixture = caught.value.conflict
    assert mixture.shape == (1, 5)
    assert mixture[0, 4] == 0
    np.testing.assert_allclose(mixture[0] @ SQUARE, SQUARE[4], atol=1e-9)


def test_two_samples_that_disagree_are_both_named():
    """Same tokens, same query, different choice: only the two of three samples that disagree are in the proof."""
    tokens = np.stack([SQUARE[:3], SQUARE[:3], SQUARE[1:4]])[None]
    queries = np.array([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]])
    with pytest.raises(TokenConflictError) as caught:
        attention_svm(tokens, queries, np.array([[0, 1, 0]]), 3.0)
    assert "sample 0: token 0 above 1; sample 1: token 1 above 0" in str(caught.value)
    assert not caught.value.conflict[2].any()


def test_a_duplicate_of_the_selected_token_is_named():
    tokens = SQUARE[[0, 1, 2, 1]][None, None].repeat(2, axis=0)
    tokens[0, 0, 3] = SQUARE[3]
    with pytest.raises(TokenConflictError, match=r"problem 1 .* duplicate.*token 1 above 3\)"):
        attention_svm(tokens, ACROSS.repeat(2, axis=0), np.array([[1], [1]]), 2.0)


def test_duplicates_among_the_others_do_no_harm():
    twice = SQUARE[[0, 1, 2, 3, 1]]
    once = attention_svm(SQUARE[None, None, :4], ACROSS, np.array([[0]]), 1.5)
    again = attention_svm(twice[None, None], ACROSS, np.array([[0]]), 1.5)
    np.testing.assert_allclose(again.weight, once.weight, atol=1e-6)
    assert again.support[0, 0].tolist() == [*once.support[0, 0].tolist(), True]


def test_a_zero_query_is_named():
    with pytest.raises(TokenConflictError, match="the query of sample 0 is zero"):
        attention_svm(SQUARE[None, None, :4], 0 * ACROSS, np.array([[0]]), 2.0)


@pytest.mark.parametrize("p", [1.3, 2.0, 3.0])
def test_the_margin_in_the_plane_is_the_dual_distance_to_the_others(p):
    """With one query (1, 0): the distance of the token to the hull of the others in the conjugate norm."""
    q, far = p / (p - 1), np.array([-2.0, -1.0])
    tokens = np.concatenate([far[None], SQUARE[:4]])
    found = attention_svm(tokens[None, None], ACROSS, np.array([[0]]), p)
    along = np.linspace(0, 1, 100_001)[:, None]
    edges = [a + along * (b - a) for a, b in ((SQUARE[0], SQUARE[1]), (SQUARE[0], SQUARE[3]))]
    distance = (np.abs(np.concatenate(edges) - far) ** q).sum(1).min() ** (1 / q)
    assert 1 / found.norm[0] == pytest.approx(distance, rel=1e-8)


def test_the_exact_method_and_the_interior_point_agree(monkeypatch):
    drawn = draw_problems(range(5), n_samples=3, n_tokens=5, dimension=7)
    exact = attention_svm(drawn.tokens, drawn.queries, drawn.best_tokens, 2.0)
    monkeypatch.setattr("scipy.optimize.nnls", _gives_up)
    other = attention_svm(drawn.tokens, drawn.queries, drawn.best_tokens, 2.0)
    np.testing.assert_allclose(exact.weight, other.weight, atol=1e-5)
    np.testing.assert_allclose(exact.norm, other.norm, rtol=1e-10)
    assert np.array_equal(exact.support, other.support)
    assert (exact.gap <= 1e-12).all()


def test_a_wrong_answer_of_the_exact_method_does_not_get_past_the_certificate(monkeypatch):
    rows = np.random.default_rng(3).standard_normal((2, 5, 11))
    right = max_margin(rows, 2.0)
    assert (right.steps == 0).all()
    monkeypatch.setattr("scipy.optimize.nnls", lambda *_, **__: (np.full(5, 0.2), 0.0))
    mended = max_margin(rows, 2.0)
    assert (mended.steps > 0).all()
    np.testing.assert_allclose(mended.norm, right.norm, rtol=1e-10)


@settings(max_examples=12, deadline=None)
@given(st.floats(1.2, 4.0), st.integers(0, 100), st.floats(1e-3, 1e3))
def test_the_solution_follows_when_problems_are_scaled_and_reordered(p, seed, factor):
    """Larger tokens need smaller weights; the order of samples and of tokens does not matter."""
    drawn = draw_problems([seed], n_samples=3, n_tokens=4, dimension=5)
    order, samples = np.array([2, 0, 3, 1]), np.array([1, 2, 0])
    tokens, queries = factor * drawn.tokens[:, samples][:, :, order], drawn.queries[:, samples]
    selected = np.argsort(order)[drawn.best_tokens[:, samples]]
    base = attention_svm(drawn.tokens, drawn.queries, drawn.best_tokens, p)
    other = attention_svm(tokens, queries, selected, p)
    np.testing.assert_allclose(factor * other.norm, base.norm, rtol=1e-9)
    np.testing.assert_allclose(factor * other.weight, base.weight, rtol=1e-4, atol=1e-5)


@settings(max_examples=12, deadline=None)
@given(st.sampled_from([1.25, 1.7, 2.0, 3.0]), st.integers(0, 100))
def test_the_certificate_holds_for_the_matrix_of_all_constraints(p, seed):
    """Feasible weights and a bound from the multipliers, both recomputed from constraints that are written out."""
    drawn = draw_problems([seed, seed + 1], n_samples=3, n_tokens=4, dimension=5)
    selected, q = drawn.best_tokens, p / (p - 1)
    found = attention_svm(drawn.tokens, drawn.queries, selected, p)
    for i in range(2):
        pull, total = np.zeros((5, 5)), 0.0
        for s in range(3):
            for t in set(range(4)) - {int(selected[i, s])}:
                row = np.outer(drawn.tokens[i, s, selected[i, s]] - drawn.tokens[i, s, t], drawn.queries[i, s])
                assert (row * found.weight[i]).sum() >= 1 - 1e-9
                pull += found.multipliers[i, s, t] * row
                total += found.multipliers[i, s, t]
        bound = total / (np.abs(pull) ** q).sum() ** (1 / q)
        assert (np.abs(found.weight[i]) ** p).sum() ** (1 / p) <= bound * (1 + 1e-9)


@pytest.mark.parametrize("p", [1.2, 2.0, 3.0])
def test_one_feature_in_other_units_leaves_the_problem_feasible(p):
    """The program of "Use it in your work" with one feature times 100; its certificate is computed again here."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        tokens = rng.standard_normal((1, 12, 6, 10))
        tokens[..., 3] *= 100
        selected, queries = rng.integers(6, size=(1, 12)), tokens[:, :, 0]
        found, q = attention_svm(tokens, queries, selected, p), p / (p - 1)
        rows = attention_constraints(tokens, queries, selected)[0]
        multipliers = found.multipliers[0][np.arange(6) != selected[0][:, None]]
        assert (rows @ found.weight[0].ravel() >= 1 - 1e-9).all()
        bound = multipliers.sum() / (np.abs(multipliers @ rows) ** q).sum() ** (1 / q)
        assert bound == pytest.approx((np.abs(found.weight) ** p).sum() ** (1 / p), rel=2e-8)


@pytest.mark.parametrize("p", [1.1, 1.25, 2.0, 3.0])
@pytest.mark.parametrize("length", [1e5, 1e9, 1e-5])
def test_support_tokens_are_found_whatever_the_lengths_of_their_rows(length, p):
    """Rows (length, 0), (0, 1) and (0, 2): the last is met with a margin of two and is no support."""
    tokens = np.array([[[[0.0, 0.0], [-length, 0.0], [0.0, -1.0], [0.0, -2.0]]]])
    found = attention_svm(tokens, ACROSS, np.array([[0]]), p)
    assert found.support.tolist() == [[[False, True, True, False]]]


def test_a_token_that_is_well_off_the_margin_is_no_support_beside_a_long_row():
    """By hand, p = 2: w = (0, 1), and the long row (1e5, 1.01) is met with a margin of 1.01."""
    tokens = np.array([[[[0.0, 0.0], [-1e5, -1.01], [0.0, -1.0]]]])
    found = attention_svm(tokens, ACROSS, np.array([[0]]), 2.0)
    np.testing.assert_allclose(found.margins[0, 0, 1:], [1.01, 1.0], atol=1e-9)
    assert found.support.tolist() == [[[False, False, True]]]


def test_samples_in_conflict_are_named_whatever_the_lengths_of_their_tokens():
    tokens = np.stack([SQUARE[:3], SQUARE[:3], SQUARE[1:4]])[None] * np.array([1.0, 1e7, 1e-7])[:, None, None]
    queries = np.array([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]])
    with pytest.raises(TokenConflictError) as caught:
        attention_svm(tokens, queries, np.array([[0, 1, 0]]), 3.0)
    assert "(sample 0: token 0 above 1; sample 1: token 1 above 0)" in str(caught.value)
    assert caught.value.conflict.sum() == pytest.approx(1)


def test_matrices_that_are_not_solved_well_enough_come_with_their_gaps(monkeypatch):
    monkeypatch.setattr("attnbook.core.interior_point.MOST_STEPS", 6)
    drawn = draw_problems([0])
    with pytest.raises(NotSolvedError) as caught:
        attention_svm(drawn.tokens, drawn.queries, drawn.best_tokens, 1.5)
    found = caught.value.found
    assert found.weight.shape == (1, 10, 10)
    assert found.margins.min() == pytest.approx(1)
    assert 1e-8 < found.gap[0] < 1


def _gives_up(*_, **__):
    raise RuntimeError


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"selected": np.array([[3, 0, 0, 0, 0]] * 2)}, "selected"),
        ({"selected": np.array([[-1, 0, 0, 0, 0]] * 2)}, "selected"),
        ({"p": 1.0}, "p: "),
        ({"p": np.inf}, "p: "),
        ({"tokens": np.full((2, 5, 3, 7), np.nan)}, "tokens"),
        ({"queries": np.full((2, 5, 7), np.inf)}, "queries"),
        ({"tokens": np.zeros((2, 5, 1, 7))}, "tokens"),
        ({"tokens": np.zeros((2, 5, 3, 7))}, "infeasible"),
    ],
)
def test_impossible_svms_are_refused_by_name(change, name):
    arguments = {
        "tokens": SMALL.tokens,
        "queries": SMALL.queries,
        "selected": np.zeros((2, 5), dtype=int),
        "p": 2.0,
    }
    with pytest.raises(ValueError, match=name):
        attention_svm(**(arguments | change))
