"""The largest margin from inner products, against a general solver and by hand."""

from __future__ import annotations

import jaxtyping
import numpy as np
import pytest

from attnbook.core.kernel_margin import NotSeparableError, kernel_margin
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
