"""Checks of the exercises of this chapter. Each returns None for a right answer, else the likely mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.core.feedback import likely_mistake
from attnbook.core.rng import stream
from attnbook.softmax_ntk.stability_bounds import rank_bound_of_signs

__all__ = ["CHECKS"]


def first_order_change(answer: Callable[..., Any]) -> str | None:
    """Check the derivative of the exp kernel along a movement of all neurons, one output."""
    rng = stream(1, "exercise", "SN-7")
    weights, moves, x = rng.standard_normal((3, 8)), rng.standard_normal((3, 8)), rng.standard_normal((5, 3))
    got = np.asarray(answer(weights.copy(), moves.copy(), x.copy()), dtype=float)
    if got.shape != (5, 5):
        return f"one number per pair of samples is wanted, shape (5, 5), got {got.shape}"
    neurons, along, products = np.exp(x @ weights), x @ moves, x @ x.T
    one = neurons * along
    right = products * (one @ neurons.T + neurons @ one.T) / 8
    if np.allclose(got, right):
        return None
    both = np.exp(x @ (weights + moves)) @ np.exp(x @ (weights + moves)).T - neurons @ neurons.T
    likely = {
        "it is the average over neurons: divide by their number": 8 * right,
        "both factors move: the sum x_i + x_j belongs into the product with the move": products * (one @ neurons.T) / 8,
        "the inner products of the inputs are missing": (one @ neurons.T + neurons @ one.T) / 8,
        "the sign is reversed": -right,
        "this is the change itself; the first order is wanted, linear in the move": products * both / 8,
        "the exponentials are missing": products * (along[:, None] + along[None]).mean(-1),
    }
    return likely_mistake(got, right, likely)


def rank_by_signs(answer: Callable[..., Any]) -> str | None:
    """Check the rank of the kernel of a paired network from its signs."""
    likely: dict[str, list[float]] = {}
    right, got = [], []
    for pairs, n_samples, n_inputs in ((7, 11, 3), (13, 5, 2), (3, 17, 5)):
        rng = stream(pairs, "exercise", "SN-8")
        first = rng.choice([-1.0, 1.0], (2, pairs))
        signs = np.stack([first, -first], axis=2).reshape(2, 2 * pairs)
        right.append(float(rank_bound_of_signs(signs, n_samples=n_samples, n_inputs=n_inputs)))
        got.append(float(np.asarray(answer(signs.copy(), n_samples, n_inputs), dtype=float)))
        equal = int((first[0] == first[1]).sum())
        patterns = np.unique(first, axis=1, return_counts=True)[1]
        mistakes = {
            "this counts features only: look at the signs": min(2 * n_samples, pairs * n_inputs),
            "a pattern and its negative give the same matrix: count them together": min(
                sum(min(n_samples, n_inputs * c) for c in patterns), 2 * n_samples
            ),
            "no pattern gives more than n: take the minimum": n_inputs * pairs,
            "the neurons of a pair have the same features: count pairs": min(n_samples, 2 * n_inputs * equal)
            + min(n_samples, 2 * n_inputs * (pairs - equal)),
        }  # fmt: skip
        for mistake, value in mistakes.items():
            likely.setdefault(mistake, []).append(float(value))
    if np.allclose(got, right):
        return None
    return likely_mistake(np.array(got), right, likely)


CHECKS = {"SN-7": first_order_change, "SN-8": rank_by_signs}
