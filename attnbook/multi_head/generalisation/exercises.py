"""Checks of the exercises on generalisation. Each returns None for a right answer, else the likely mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.core.feedback import verdict
from attnbook.core.rng import stream
from attnbook.multi_head import generalisation_bounds as theory


def _left_out_gap(answer: Callable[..., Any]) -> str | None:
    """The estimate of the gap from the networks without one sample."""
    rng = stream(1, "exercise", "MH-GEN-1")
    full, reduced = rng.exponential(size=7), rng.exponential(size=(7, 7))
    own = np.diag(reduced)
    right = own.mean() - full.mean()
    others = (reduced.sum() - own.sum()) / 42
    likely = {
        "left-out minus training loss, not the other way round": -right,
        "a network has not seen its own sample only: take the diagonal, not all samples": reduced.mean() - full.mean(),
        "those are the samples that the networks have seen": others - full.mean(),
        "this is the left-out loss; the training loss is to be subtracted": own.mean(),
        "signs cancel here: the gap is a mean of differences, not of their sizes": np.abs(own - full).mean(),
    }
    return verdict(float(answer(full.copy(), reduced.copy())), right, likely, "one number")


def _unrolled(answer: Callable[..., Any]) -> str | None:
    """The recursion (22), unrolled from the common start."""
    rng = stream(1, "exercise", "MH-GEN-2")
    alpha, forcing = rng.random(5), rng.random(5)
    right, stretched = theory.envelope(1 + alpha, forcing), theory.envelope(1 + alpha, (1 + alpha) * forcing)
    likely = {
        "the factor is 1 + alpha, not alpha: the old distance stays": theory.envelope(alpha, forcing),
        "what is added in a step is stretched from the next step on, not at once": stretched,
        "the distances are to be added up along the way, with the factors": np.array([0.0, *np.cumsum(forcing)]),
        "every distance grows from the one before it; this is only what is added": np.array([0.0, *forcing]),
    }
    wanted = "from 5 steps, 6 values, the first of them zero,"
    return verdict(answer(alpha.copy(), forcing.copy()), right, likely, wanted)


CHECKS = {"MH-GEN-1": _left_out_gap, "MH-GEN-2": _unrolled}
