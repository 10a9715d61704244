"""Checks of the exercises on margins. Each returns None for a right answer, else the likely mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.core.feedback import verdict
from attnbook.core.rng import stream
from attnbook.multi_head import oracle
from attnbook.multi_head.data import Mixture, draw_patterns


def oracle_key_query(answer: Callable[..., Any]) -> str | None:
    """Check the oracle key-query matrix."""
    patterns = draw_patterns(Mixture(5, 7, 3, pattern_norm=2.0), rng=stream(1, "exercise", "MH-ORACLE"))
    own, right = patterns.label.T @ patterns.label, oracle.key_query(patterns)
    likely = {
        "it is the transpose: queries stand on the left, and irrelevant queries look at relevant keys": right.T,
        "irrelevant queries get no signal: add the terms with the other patterns": own,
        "an irrelevant query cannot know the label: it has to look at both patterns": (
            own + np.outer(patterns.other.sum(0), patterns.label[0])
        ),
    }
    got = answer(patterns.label.copy(), patterns.other.copy())
    return verdict(got, right, likely, "a matrix that maps tokens to tokens", rtol=1e-4)


def scale_for_a_leak(answer: Callable[..., Any]) -> str | None:
    """Check the smallest scale that keeps one query's leak at a given share."""
    from scipy.optimize import brentq  # loaded where an equation is solved: it takes a second

    rng = stream(1, "exercise", "MH-SATURATE")
    cases = [(rng.uniform(0.5, 1.5, 5), 2, 0.1), (rng.uniform(0.1, 1.0, 9), 1, 0.01), (np.full(3, 0.5), 4, 0.3)]

    def smallest(gaps: np.ndarray, k: int, leak: float) -> float:
        return float(brentq(lambda scale: np.exp(-scale * gaps).sum() - k * leak / (1 - leak), 0, 1000))

    def scales(of: Callable[[np.ndarray, int, float], float]) -> np.ndarray:
        return np.array([float(of(gaps.copy(), k, leak)) for gaps, k, leak in cases])

    likely = {
        "the leak is a share of all attention: what is left for relevant keys is 1 - leak, not 1": scales(
            lambda gaps, k, leak: smallest(gaps, k, leak / (1 + leak))
        ),
        "each of the relevant keys gets attention, not one of them": scales(
            lambda gaps, _, leak: smallest(gaps, 1, leak)
        ),
        "this is safe but not the smallest: it treats all keys as if they had the smallest gap": scales(
            lambda gaps, k, leak: smallest(np.full(len(gaps), gaps.min()), k, leak)
        ),
    }
    return verdict(scales(answer), scales(smallest), likely, "one number", rtol=1e-4)


CHECKS = {"MH-ORACLE": oracle_key_query, "MH-SATURATE": scale_for_a_leak}
