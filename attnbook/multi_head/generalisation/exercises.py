"""Checks of the exercises on generalisation. Each returns None for a right answer, else the likely mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.core.feedback import likely_mistake
from attnbook.core.rng import stream
from attnbook.multi_head import generalisation_bounds as theory

__all__ = ["CHECKS"]


def _left_out_gap(answer: Callable[..., Any]) -> str | None:
    """The estimate of the gap from the networks without one sample."""
    rng = stream(1, "exercise", "MH-GEN-1")
    full, reduced = rng.exponential(size=7), rng.exponential(size=(7, 7))
    got = np.asarray(float(answer(full.copy(), reduced.copy())))
    own = np.diag(reduced)
    right = np.asarray(own.mean() - full.mean())
    others = (reduced.sum() - own.sum()) / 42
    likely = {
        "left-out minus training loss, not the other way round": -right,
        "a network has not seen its own sample only: take the diagonal, not all samples": reduced.mean() - full.mean(),
        "those are the samples that the networks have seen": others - full.mean(),
        "this is the left-out loss; the training loss is to be subtracted": own.mean(),
        "signs cancel here: the gap is a mean of differences, not of their sizes": np.abs(own - full).mean(),
    }
    return None if np.allclose(got, right) else likely_mistake(got, right, likely)


def _unrolled(answer: Callable[..., Any]) -> str | None:
    """The recursion (22), unrolled from the common start."""
    rng = stream(1, "exercise", "MH-GEN-2")
    alpha, forcing = rng.random(5), rng.random(5)
    got = np.asarray(answer(alpha.copy(), forcing.copy()), dtype=float)
    if got.shape != (6,):
        return f"from 5 steps come 6 values, the first of them zero; got shape {got.shape}"
    right = theory.envelope(1 + alpha, forcing)
    likely = {
        "the factor is 1 + alpha, not alpha: the old distance stays": theory.envelope(alpha, forcing),
        "what is added in a step is stretched from the next step on, not at once": theory.envelope(
            1 + alpha, (1 + alpha) * forcing
        ),
        "the distances are to be added up along the way, with the factors": np.array([0.0, *np.cumsum(forcing)]),
        "every distance grows from the one before it; this is only what is added": np.array([0.0, *forcing]),
    }
    return None if np.allclose(got, right) else likely_mistake(got, right, likely)


CHECKS = {"MH-GEN-1": _left_out_gap, "MH-GEN-2": _unrolled}
