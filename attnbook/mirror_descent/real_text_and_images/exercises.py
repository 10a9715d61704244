"""Checks of the exercises of the chapter. Each returns None for a right answer, else the likely mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.core.feedback import verdict
from attnbook.core.rng import stream


def effective_dimension(answer: Callable[..., Any]) -> str | None:
    """Check the effective dimension of several matrices together, each scaled by its largest entry."""
    rng = stream(1, "exercise", "MD-14")
    matrices = [scale * rng.standard_normal((4, 3)) ** 3 for scale in (1.0, 30.0)]

    def of(values: np.ndarray) -> np.ndarray:
        size = np.abs(values).ravel()
        return np.asarray(size.sum() ** 2 / (size.size * (size**2).sum()))

    scaled = [m / np.abs(m).max() for m in matrices]
    pooled = np.stack(scaled)
    right = of(pooled)
    likely = {
        "scale each matrix by its own largest entry first": of(np.stack(matrices)),
        "it is a share: divide by the number of entries": right * 24,
        "pool the entries of all matrices; do not average over matrices": np.mean([of(m) for m in scaled]),
        "the first norm is a sum of absolute values": pooled.sum() ** 2 / (24 * (pooled**2).sum()),
    }
    return verdict(answer([m.copy() for m in matrices]), right, likely, "one number for all matrices together")


def tuned_gain(answer: Callable[..., Any]) -> str | None:
    """Check the gain of one optimiser over another, each at the step size that validation chooses."""
    rng = stream(1, "exercise", "MD-15")
    validation = [rng.normal(0.8, 0.02, (4, 6)) for _ in range(2)]
    test = [v + rng.normal(0, 0.02, (4, 6)) for v in validation]
    best = [v.mean(axis=1).argmax() for v in validation]
    for one, row in zip(test, best, strict=True):
        one[row] -= 0.05  # so that a look at the test accuracies would choose another step size

    def judged(gain: np.ndarray, ddof: int = 1) -> np.ndarray:
        return np.array([gain.mean(), gain.std(ddof=ddof) / np.sqrt(6)])

    difference = test[0][best[0]] - test[1][best[1]]
    right = judged(difference)
    peeked = test[0][test[0].mean(axis=1).argmax()] - test[1][test[1].mean(axis=1).argmax()]
    own = np.array([t[v.argmax(axis=0), np.arange(6)] for t, v in zip(test, validation, strict=True)])
    apart = np.sqrt(sum(t[b].var(ddof=1) for t, b in zip(test, best, strict=True)) / 6)
    likely = {
        "choose the step size on validation, not on test": judged(peeked),
        "choose one step size for all seeds, by the mean over seeds": judged(own[0] - own[1]),
        "this is the standard deviation; divide by the root of the number of seeds": right * [1, np.sqrt(6)],
        "the deviation of a sample divides by one less: ddof=1": judged(difference, ddof=0),
        "equal seeds are paired: take differences first": np.array([difference.mean(), apart]),
    }
    got = answer(*[a.copy() for a in (*validation, *test)])
    return verdict(got, right, likely, "the mean gain and its standard error")


CHECKS = {"MD-14": effective_dimension, "MD-15": tuned_gain}
