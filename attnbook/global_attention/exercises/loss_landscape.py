"""Checks of the exercises of this chapter. Each returns None for a right answer, else the likely mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.core.feedback import likely_mistake
from attnbook.core.rng import stream
from attnbook.global_attention.theory.regions import largest_region_count, region_bound
from attnbook.global_attention.theory.rescaling import hessian_scaling, least_penalty_factor

__all__ = ["CHECKS"]


def most_regions(answer: Callable[..., Any]) -> str | None:
    """Check the largest number of regions without biases."""
    sizes = ((5, 2), (7, 3), (11, 4))
    got = np.array([answer(*size) for size in sizes], dtype=float)
    right = np.array([largest_region_count(*size, biases=False) for size in sizes], dtype=float)
    if np.allclose(got, right):
        return None
    likely = {
        "this is the maximum with biases": np.array([largest_region_count(*size) for size in sizes], float),
        "the factor 2 is missing: each region has a mirror image": right / 2,
        "the sum stops before s_0: the last term has k = s_0 - 1": np.array(
            [2 * largest_region_count(n - 1, s) for n, s in sizes], float
        ),
        "this is the bound of Theorem 3, not the maximum": np.array([region_bound(*size) for size in sizes], float),
    }
    return likely_mistake(got, likely)


def rescaled_hessian(answer: Callable[..., Any]) -> str | None:
    """Check the Hessian at the image of a rescaling."""
    p, d, factors = 3, 2, (0.5, 4.0)
    half = stream(1, "exercise", "GA-L2").standard_normal((11, 11))
    hessian, scaling = half @ half.T, hessian_scaling(p, d, *factors)
    got = np.asarray(answer(hessian.copy(), p, d, *factors), dtype=float)
    if got.shape != (11, 11):
        return f"a Hessian is wanted, shape (11, 11), got {got.shape}"
    right = hessian * np.outer(scaling, scaling)
    if np.allclose(got, right):
        return None
    likely = {
        "the factors are upside down: where a weight grows, the same step changes the function less": hessian
        / np.outer(scaling, scaling),
        "D stands on one side only; a second derivative gets it twice": hessian * scaling[:, None],
        "mask and first layer are swapped: the first p entries belong to the mask": hessian
        * np.outer(*[np.repeat([1 / factors[1], 1 / factors[0], factors[0] * factors[1]], [p, p * d, d])] * 2),
    }
    return likely_mistake(got, likely)


def least_penalty(answer: Callable[..., Any]) -> str | None:
    """Check the least L2 penalty of both layers for a given mask factor."""
    rng = stream(1, "exercise", "GA-L3")
    hidden, decoder, factor = rng.standard_normal((3, 5)), rng.standard_normal((1, 3)), 0.2
    got = np.asarray(answer(hidden.copy(), decoder.copy(), factor), dtype=float)
    best = least_penalty_factor(hidden, decoder, factor)
    right = best**2 * np.square(hidden).sum() + np.square(decoder).sum() / (factor * best) ** 2
    if np.allclose(got, right):
        return None
    likely = {
        "this is where it is least; the penalty there is wanted": np.asarray(best),
        "a factor 2 is missing: both layers pay the same, so the sum is twice the product": right / 2,
        "the mask factor divides: a smaller mask makes the layers larger": right * factor**2,
        "this is the penalty with the first layer as it was; it may be rescaled too": np.square(hidden).sum()
        + np.square(decoder).sum() / factor**2,
        "the penalty is the sum of squares, not of norms": best * np.linalg.norm(hidden)
        + np.linalg.norm(decoder) / (factor * best),
    }
    return likely_mistake(got, likely)


CHECKS = {"GA-L1": most_regions, "GA-L2": rescaled_hessian, "GA-L3": least_penalty}
