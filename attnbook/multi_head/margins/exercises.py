"""Checks of the exercises on margins. Each returns None for a right answer, else the likely mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.core.feedback import likely_mistake
from attnbook.core.rng import stream
from attnbook.multi_head import oracle
from attnbook.multi_head.data import Mixture, draw_patterns
from attnbook.multi_head.measures import needed_scale

__all__ = ["CHECKS"]


def oracle_key_query(answer: Callable[..., Any]) -> str | None:
    """Check the oracle key-query matrix."""
    patterns = draw_patterns(Mixture(5, 7, 3, pattern_norm=2.0), rng=stream(1, "exercise", "MH-ORACLE"))
    got = np.asarray(answer(patterns.label.copy(), patterns.other.copy()), dtype=float)
    if got.shape != (7, 7):
        return f"the matrix maps tokens to tokens, (7, 7), got {got.shape}"
    right = oracle.key_query(patterns)
    if np.allclose(got, right):
        return None
    own = patterns.label.T @ patterns.label
    likely = {
        "it is the transpose: queries stand on the left, and irrelevant queries look at relevant keys": right.T,
        "irrelevant queries get no signal: add the terms with the other patterns": own,
        "an irrelevant query cannot know the label: it has to look at both patterns": (
            own + np.outer(patterns.other.sum(0), patterns.label[0])
        ),
    }
    return likely_mistake(got, right, likely)


def scale_for_a_leak(answer: Callable[..., Any]) -> str | None:
    """Check the smallest scale that keeps one query's leak at a given share."""
    rng = stream(1, "exercise", "MH-SATURATE")
    cases = [(rng.uniform(0.5, 1.5, 5), 2, 0.1), (rng.uniform(0.1, 1.0, 9), 1, 0.01), (np.full(3, 0.5), 4, 0.3)]
    got = np.array([float(answer(gaps.copy(), k, leak)) for gaps, k, leak in cases])
    right = np.array([needed_scale(gaps[None], k, leak) for gaps, k, leak in cases])
    if np.allclose(got, right, rtol=1e-4, atol=1e-4):
        return None
    likely = {
        "the leak is a share of all attention: what is left for relevant keys is 1 - leak, not 1": np.array(
            [needed_scale(gaps[None], k, leak / (1 + leak)) for gaps, k, leak in cases]
        ),
        "each of the relevant keys gets attention, not one of them": np.array(
            [needed_scale(gaps[None], 1, leak) for gaps, _, leak in cases]
        ),
        "this is safe but not the smallest: it treats all keys as if they had the smallest gap": np.array(
            [needed_scale(np.full((1, len(gaps)), gaps.min()), k, leak) for gaps, k, leak in cases]
        ),
    }
    return likely_mistake(got, right, likely)


CHECKS = {"MH-ORACLE": oracle_key_query, "MH-SATURATE": scale_for_a_leak}
