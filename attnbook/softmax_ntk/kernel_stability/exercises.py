"""Checks of the exercises of this chapter. Each returns None for a right answer, else the likely mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.core.feedback import verdict
from attnbook.core.rng import stream
from attnbook.softmax_ntk.stability_bounds import rank_bound_of_signs


def first_order_change(answer: Callable[..., Any]) -> str | None:
    """Check the derivative of the exp kernel along a movement of all neurons, one output."""
    rng = stream(1, "exercise", "SN-7")
    weights, moves, x = rng.standard_normal((3, 8)), rng.standard_normal((3, 8)), rng.standard_normal((5, 3))
    neurons, along, products = np.exp(x @ weights), x @ moves, x @ x.T
    one, after = neurons * along, np.exp(x @ (weights + moves))
    half = one @ neurons.T
    right = products * (half + half.T) / 8
    likely = {
        "it is the average over neurons: divide by their number": 8 * right,
        "both factors move: the sum x_i + x_j belongs into the product with the move": products * half / 8,
        "the inner products of the inputs are missing": (half + half.T) / 8,
        "the sign is reversed": -right,
        "this is the change itself; the first order is wanted, linear in the move": products
        * (after @ after.T - neurons @ neurons.T) / 8,
        "the exponentials are missing": products * (along[:, None] + along[None]).mean(-1),
    }  # fmt: skip
    return verdict(answer(weights.copy(), moves.copy(), x.copy()), right, likely, "one number per pair of samples")


def rank_by_signs(answer: Callable[..., Any]) -> str | None:
    """Check the rank of the kernel of a paired network from its signs."""
    likely: dict[str, list[float]] = {}
    right, got = [], []
    for pairs, n, d in ((7, 11, 3), (13, 5, 2), (3, 17, 5)):  # samples and inputs
        rng = stream(pairs, "exercise", "SN-8")
        first = rng.choice([-1.0, 1.0], (2, pairs))
        signs = np.stack([first, -first], axis=2).reshape(2, 2 * pairs)
        right.append(rank_bound_of_signs(signs, n_samples=n, n_inputs=d))
        got.append(np.asarray(answer(signs.copy(), n, d), dtype=float))
        equal = int((first[0] == first[1]).sum())
        patterns = np.unique(first, axis=1, return_counts=True)[1]
        mistakes = {
            "this counts features only: look at the signs": min(2 * n, pairs * d),
            "a pattern and its negative give the same matrix: count them together": min(
                sum(min(n, d * c) for c in patterns), 2 * n
            ),
            "no pattern gives more than n: take the minimum": d * pairs,
            "the neurons of a pair have the same features: count pairs": min(n, 2 * d * equal)
            + min(n, 2 * d * (pairs - equal)),
        }  # fmt: skip
        for mistake, value in mistakes.items():
            likely.setdefault(mistake, []).append(value)
    return verdict(got, right, likely, "one number")


CHECKS = {"SN-7": first_order_change, "SN-8": rank_by_signs}
