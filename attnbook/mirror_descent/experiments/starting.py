"""Starts at chosen places of the cones around max-margin solutions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from attnbook.mirror_descent import mirror
from attnbook.mirror_descent.attention_svm import attention_svm
from attnbook.mirror_descent.cone_probes import at_divergence, extreme_directions
from attnbook.mirror_descent.data import Problems, draw_problems, joined

__all__ = ["Started", "started"]


@dataclass(frozen=True)
class Started:
    """Runs about to start in a cone, one member each, ordered by exponent, start, seed.

    Attributes:
        problems: The problem of each member.
        ps: The exponent of each member.
        weight: The max-margin solution of its best tokens.
        norm: Norm of that solution.
        start: Its initial matrix.
    """

    problems: Problems
    ps: Float[np.ndarray, " members"]
    weight: Float[np.ndarray, "members d d"]
    norm: Float[np.ndarray, " members"]
    start: Float[np.ndarray, "members d d"]

    def divergence(self, path: Float[np.ndarray, "records members d d"]) -> Float[np.ndarray, "members records"]:
        """Return the divergence to the max-margin direction along the runs."""
        ray = np.broadcast_to(mirror.normalised(self.weight, self.ps), path.shape)
        return mirror.bregman_divergence(ray, mirror.normalised(path, self.ps), self.ps).T

    def relative_norm(self, path: Float[np.ndarray, "records members d d"]) -> Float[np.ndarray, "members records"]:
        """Return the norm over that of the max-margin solution along the runs."""
        return (mirror.entrywise_norm(path, self.ps) / self.norm).T


def started(ps: Sequence[float], seeds: Sequence[int], starts: Sequence[tuple[float, float]]) -> Started:
    """Return starts at given divergences and relative norms from the max-margin solution of the best tokens.

    The perturbation of a seed lowers one gap of a selected token as much as any of its norm.

    Args:
        ps: Exponents.
        seeds: One problem per seed.
        starts: Divergence and relative norm of each kind of start.

    Returns:
        The runs to be.

    Raises:
        ValueError: If the best tokens cannot be selected by any matrix.
    """
    one = draw_problems(seeds)
    initial, weights, norms = [], [], []
    for p in ps:
        svm = attention_svm(one.tokens, one.queries, one.best_tokens, p)
        center = mirror.normalised(svm.weight, p)
        ways = extreme_directions(one, seeds, 1, p, selected=one.best_tokens)[:, 0]
        size = svm.norm[:, None, None]
        initial += [radius * size * at_divergence(center, ways, p, divergence) for divergence, radius in starts]
        weights += [svm.weight] * len(starts)
        norms += [svm.norm] * len(starts)
    return Started(
        problems=joined([one] * (len(ps) * len(starts))),
        ps=np.repeat(np.asarray(ps, dtype=np.float64), len(starts) * len(seeds)),
        weight=np.concatenate(weights),
        norm=np.concatenate(norms),
        start=np.concatenate(initial),
    )
