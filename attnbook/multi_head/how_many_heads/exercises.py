"""Checks of the exercises on the number of heads. Each returns None for a right answer, else the likely mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.core.feedback import verdict
from attnbook.multi_head.head_groups import one_head_step_sizes


def two_step_sizes(answer: Callable[..., Any]) -> str | None:
    """Check the step sizes of one head that trains as many do."""
    cases = [(0.5, 16, 0.5), (0.3, 9, 1.0), (2.0, 81, 0.75)]
    right = np.array([list(one_head_step_sizes(*case).values()) for case in cases])
    eta, heads, c = (np.array(column, dtype=float) for column in zip(*cases, strict=True))
    likely = {
        "the order is V first, then W": right[:, ::-1],
        "W's gradient is linear in U = V / H^(1-c): that is another factor": np.stack(
            [right[:, 0], eta * heads**-c], axis=1
        ),
        "V is H^(1-c) times U, so its steps are that much longer": np.stack([eta * heads**-c, right[:, 1]], axis=1),
        "right for c = 1/2 only: count the powers of H for a general c": np.stack([eta, eta / heads], axis=1),
    }
    return verdict([answer(*case) for case in cases], right, likely, "for each case the step size of V and that of W")


def alternating_labels(answer: Callable[..., Any]) -> str | None:
    """Check two heads that get three alternating labels right."""
    for z in (np.array([0.7, 1.4, 2.1]), np.array([0.5, 0.9, 2.3])):
        decoders, key_query = (np.asarray(part, dtype=float) for part in answer(z.copy()))
        if decoders.shape != (2, 2) or key_query.shape != (2,):
            return f"U of shape (2, 2) and W of shape (2,) are wanted, got {decoders.shape} and {key_query.shape}"
        # Of its two tokens the query 0 sees the mean, the query z a share by the softmax of 0 and W z^2.
        seen = np.stack([np.broadcast_to(z / 2, (2, 3)), z / (1 + np.exp(-key_query[:, None] * z**2))], axis=1)
        margins = np.array([1.0, -1.0, 1.0]) * np.einsum("hq,hqn->n", decoders, seen)
        if np.isclose(*key_query):
            return "both heads look at the same share of z, so that they are one; and one changes its sign once only"
        if (margins < 0).all():
            return "the sign: all three samples are on the wrong side"
        if not (margins > 0).all():
            return f"sample {margins.argmin() + 1} of z = {z} is on the wrong side"
    return None


CHECKS = {"MH-H1": two_step_sizes, "MH-H2": alternating_labels}
