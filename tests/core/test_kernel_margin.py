"""The largest margin from inner products, against a general solver and by hand."""

from __future__ import annotations

import jaxtyping
import numpy as np
import pytest

from attnbook.core.kernel_margin import NotSeparableError, NotSolvedError, kernel_margin
from attnbook.core.max_margin import max_margin


def draw(n_samples: int, dimension: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((n_samples, dimension))
    labels = np.sign(features @ rng.standard_normal(dimension))
    return features, labels


@pytest.mark.parametrize(("n_samples", "dimension"), [(7, 11), (23, 5), (41, 113)])
def test_agrees_with_the_interior_point_method(n_samples: int, dimension: int) -> None:
    features, labels = draw(n_samples, dimension)
    found = kernel_margin(features @ features.T, labels)
    expected = 1 / max_margin((labels[:, None] * features)[None], 2.0).norm[0]
    assert found.margin == pytest.approx(expected, rel=1e-9)
    assert found.gap < 1e-9
    assert found.weights.min() >= 0
    assert found.weights.sum() == pytest.approx(1)


def test_the_weights_reach_the_margin_on_every_sample() -> None:
    features, labels = draw(19, 29)
    found = kernel_margin(features @ features.T, labels)
    rule = features.T @ (found.weights * labels)
    assert (labels * (features @ rule) / np.linalg.norm(rule)).min() == pytest.approx(found.margin, rel=1e-9)


def test_scaling_the_features_scales_the_margin() -> None:
    features, labels = draw(13, 17)
    gram = features @ features.T
    assert kernel_margin(1e-8 * gram, labels).margin == pytest.approx(1e-4 * kernel_margin(gram, labels).margin)


def test_one_sample_has_its_norm_as_margin() -> None:
    assert kernel_margin(np.array([[9.0]]), np.array([-1.0])).margin == pytest.approx(3)


def test_data_that_no_rule_separates_are_refused_with_a_proof() -> None:
    features, labels = np.array([[1.0], [2.0], [3.0]]), np.array([1.0, 1.0, -1.0])
    with pytest.raises(NotSeparableError, match="not separable") as found:
        kernel_margin(features @ features.T, labels)
    assert abs((found.value.combination * labels) @ features[:, 0]) < 1e-9


@pytest.mark.parametrize("squares", [(1e14, 1.0), (1e-14, 1.0, 1e14), (1.0, 1e20)])
def test_orthogonal_features_of_any_norms_have_the_margin_of_their_closed_form(squares) -> None:
    """The rule asks 1 / norm of each: the margin is one over the root of the sum of inverse squared norms."""
    found = kernel_margin(np.diag(squares), np.ones(len(squares)))
    assert found.margin == pytest.approx(1 / np.sqrt((1 / np.array(squares)).sum()), rel=1e-9)
    assert found.gap < 1e-6
    np.testing.assert_allclose(found.weights, (1 / np.array(squares)) / (1 / np.array(squares)).sum(), rtol=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_features_with_log_normal_norms_have_the_margin_of_the_general_solver(seed: int) -> None:
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((30, 40)) * np.exp(3 * rng.standard_normal((30, 1)))
    found = kernel_margin(features @ features.T, np.ones(30))
    assert found.margin == pytest.approx(1 / max_margin(features[None], 2.0).norm[0], rel=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_features_that_cancel_are_refused_whatever_their_norms(seed: int) -> None:
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((12, 20))
    features[-1] = -rng.uniform(0.1, 1, 11) @ features[:-1]
    features *= 10 ** rng.uniform(-4, 4, (12, 1))
    with pytest.raises(NotSeparableError) as found:
        kernel_margin(features @ features.T, np.ones(12))
    proof = found.value.combination
    assert proof.sum() == pytest.approx(1)
    assert np.linalg.norm(proof @ features) < 1e-7 * (proof @ np.linalg.norm(features, axis=1))


def test_features_that_nearly_cancel_come_with_the_gap_to_which_they_are_solved() -> None:
    """The margin is 1e-6: inner products in double precision know it to about 1e-4 of itself."""
    features = np.array([[1.0, 0.0, 1e-6], [-0.6, 0.8, 1e-6], [-0.6, -0.8, 1e-6]])
    with pytest.raises(NotSolvedError, match="gram: solved to a gap of") as caught:
        kernel_margin(features @ features.T, np.ones(3))
    assert 1e-6 < caught.value.found.gap < 1e-2
    assert caught.value.found.margin == pytest.approx(1e-6, rel=2 * caught.value.found.gap)


def test_a_feature_of_zero_is_its_own_proof() -> None:
    with pytest.raises(NotSeparableError, match="not separable") as found:
        kernel_margin(np.diag([1.0, 0.0]), np.array([1.0, -1.0]))
    assert found.value.combination.tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gram": np.eye(3)}, "gram|labels"),
        ({"gram": np.array([[1.0, 2.0], [0.0, 1.0]])}, "symmetric"),
        ({"gram": np.array([[1.0, 2.0], [2.0, 1.0]])}, "semi-definite"),
        ({"gram": np.full((2, 2), np.nan)}, "finite"),
        ({"gram": np.zeros((2, 2))}, "zero"),
        ({"labels": np.array([1.0, 0.5])}, "labels: expected 1 or -1, got 0.5"),
        ({"labels": np.array([])}, "labels"),
    ],
)
def test_bad_input_is_named(change: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises((ValueError, jaxtyping.TypeCheckError), match=message):
        kernel_margin(**({"gram": np.eye(2), "labels": np.array([1.0, -1.0])} | change))
