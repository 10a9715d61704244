"""Checks of the exercises of the chapter. Each returns None for a right answer, else the likely mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.linalg import sqrtm

from attnbook.core.feedback import likely_mistake
from attnbook.core.rng import stream


def key_query_gradient(answer: Callable[..., Any]) -> str | None:
    """Check the gradient of the empirical loss with respect to the key-query matrix."""
    rng = stream(1, "exercise", "PC-1")
    x, y = rng.standard_normal((7, 3)), rng.standard_normal((7, 5))
    value, key_query = rng.standard_normal((5, 3)), rng.standard_normal((3, 3))
    scores = np.exp(x @ key_query.T @ x.T)
    weights = scores / scores.sum(1, keepdims=True)
    attended = weights @ x
    back = (attended @ value.T - y) @ value / len(x)
    second = np.einsum("ij,ja,jb,ib->ia", weights, x, x, back)
    pulled = second - attended * (attended * back).sum(1, keepdims=True)
    right = pulled.T @ x
    got = np.asarray(answer(x, y, value, key_query))
    if got.shape != right.shape:
        return f"expected the shape of key_query, {right.shape}, got {got.shape}"
    if np.allclose(got, right):
        return None
    likely = {
        "the second moment is not yet a covariance: subtract s s^T": second.T @ x,
        "that is the transpose: which of x_i and x_j stands on the left of V?": right.T,
        "the sum over samples is right, now divide by their number": right * len(x),
        "the loss has a factor 1/2 in front": right * 2,
        "the sign is wrong": -right,
    }
    return likely_mistake(got, right, likely)


def spectral_start(answer: Callable[..., Any]) -> str | None:
    """Check a start that interpolates the least squares map and is balanced."""
    rng = stream(2, "exercise", "PC-2")
    x, y = rng.standard_normal((29, 3)) @ np.diag([2.0, 1.0, 0.5]), rng.standard_normal((29, 5))
    covariance = x.T @ x / len(x)
    least_squares = y.T @ x @ np.linalg.inv(x.T @ x)
    returned = answer(x.copy(), y.copy())
    shapes = tuple(np.shape(matrix) for matrix in returned)
    if shapes != ((5, 3), (3, 3)):
        return f"expected U and V of shapes (5, 3) and (3, 3), got {shapes}"
    value, key_query = (np.asarray(matrix) for matrix in returned)
    product = value @ covariance @ key_query
    if not np.allclose(product, least_squares):
        if np.allclose(value @ key_query, least_squares):
            return "U V is the least squares map; it should be U times the covariance times V"
        if np.allclose(value @ sqrtm(covariance) @ key_query, least_squares):
            return "U S^(1/2) V is the least squares map: one root of the covariance is missing"
        return "U times the covariance times V is not the least squares map"
    if not np.allclose(value.T @ value, key_query @ covariance @ key_query.T):
        return "the product is right, but U^T U differs from V S V^T: split D evenly, and take the SVD of A S^(1/2)"
    return None


CHECKS = {"PC-1": key_query_gradient, "PC-2": spectral_start}
