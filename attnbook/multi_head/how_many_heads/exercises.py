"""Checks of the exercises on the number of heads. Each returns None for a right answer, else the likely mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.core.feedback import likely_mistake
from attnbook.core.rng import stream
from attnbook.multi_head.head_groups import one_head_step_sizes

__all__ = ["CHECKS"]


def two_step_sizes(answer: Callable[..., Any]) -> str | None:
    """Check the step sizes of one head that trains as many do."""
    cases = [(0.5, 16, 0.5), (0.3, 9, 1.0), (2.0, 81, 0.75)]
    got = np.array([[float(part) for part in answer(*case)] for case in cases])
    if got.shape != (3, 2):
        return f"two numbers are wanted, the step size of V and that of W, got {got.shape[1:]}"
    right = np.array([list(one_head_step_sizes(*case).values()) for case in cases])
    if np.allclose(got, right):
        return None
    eta, heads, c = (np.array(column, dtype=float) for column in zip(*cases, strict=True))
    likely = {
        "the order is V first, then W": right[:, ::-1],
        "W's gradient is linear in U = V / H^(1-c): that is another factor": np.stack(
            [right[:, 0], eta * heads**-c], axis=1
        ),
        "V is H^(1-c) times U, so its steps are that much longer": np.stack([eta * heads**-c, right[:, 1]], axis=1),
        "right for c = 1/2 only: count the powers of H for a general c": np.stack([eta, eta / heads], axis=1),
    }
    return likely_mistake(got, right, likely)


def attention_mass(answer: Callable[..., Any]) -> str | None:
    """Check the attention that falls on relevant tokens."""
    rng = stream(1, "exercise", "MH-H2")
    weights = rng.dirichlet(np.ones(5), (3, 5))
    relevant = rng.random((3, 5)).argsort(axis=1) < 2
    got = np.asarray(answer(weights.copy(), relevant.copy()), dtype=float)
    right = (weights * relevant[:, None, :]).sum(2).mean()
    if got.shape != ():
        return f"one number is wanted, the mean over samples and queries, got shape {got.shape}"
    if np.isclose(got, right):
        return None
    likely = {
        "this is what relevant tokens give, not what they get: queries are rows, keys are columns": (
            (weights * relevant[:, :, None]).sum(2).mean()
        ),
        "sum over the keys, then take the mean over queries and samples": (weights * relevant[:, None, :]).mean(),
    }
    return likely_mistake(got, right, likely)


CHECKS = {"MH-H1": two_step_sizes, "MH-H2": attention_mass}
