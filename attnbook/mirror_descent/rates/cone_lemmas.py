"""Lemmas 19, 20 and 21 at the boundary of cones, for matrices that are pushed where they do most harm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Int

from attnbook.mirror_descent import mirror
from attnbook.mirror_descent.attention import Batch, log_scaled_gradient
from attnbook.mirror_descent.attention_svm import AttentionSVM, attention_svm
from attnbook.mirror_descent.cone_probes import at_divergence, extreme_directions, farthest
from attnbook.mirror_descent.data import Problems
from attnbook.mirror_descent.rates import cone

if TYPE_CHECKING:
    from attnbook.mirror_descent.rates.experiments import Cone

FRACTIONS = (1.0, 0.3)  # sizes, over the relative norm, of perturbations that are added to those at the boundary


def in_the_cone(
    problems: Problems, selected: Int[np.ndarray, "problems samples"], seeds: Sequence[int], p: float, sizes: Cone
) -> dict[str, np.ndarray]:
    r"""Return the constants of the cone and the worst samples in it, problem by problem.

    ``violated`` is the smallest divergence at which a sample violates Lemma 19; ``slack`` and ``slack_sharp`` are those
    of its three parts at the edge of either cone. By norm in the sharper cone: the share ``not_positive`` of pairs that
    violate Lemma 20, the log of the least positive product, and the smallest $\pi$ that is ``needed`` in Lemma 21.
    """
    svm = attention_svm(problems.tokens, problems.queries, selected, p)
    ray = mirror.normalised(svm.weight, p)
    delta = cone.separation(svm.margins, svm.support)
    pair = cone.largest_pair(problems.tokens, problems.queries, svm.norm, p)
    literal, sharp = (
        cone.guaranteed_divergence(delta, pair, ray.shape[-1], p, sharp=sharper) for sharper in (False, True)
    )
    ways = extreme_directions(problems, seeds, sizes.directions, p)

    def slacks(unit: np.ndarray) -> np.ndarray:
        """Lemma 19 at the norm of the solution: ``(problems, directions, parts)``."""
        weights = unit * svm.norm[:, None, None, None]
        found = cone.gaps(weights, problems.tokens[:, None], problems.queries[:, None], selected[:, None])
        return np.stack(list(cone.gap_slacks(found, svm.support[:, None], delta[:, None]).values()), axis=-1)

    first = farthest(ray[:, None], ways, p, lambda unit: slacks(unit).min(axis=-1) >= 0)
    edges = [slacks(at_divergence(ray[:, None], ways, p, mu[:, None])).min(axis=1) for mu in (literal, sharp)]
    own = extreme_directions(problems, seeds, sizes.tested, p, selected=selected)
    edge = at_divergence(ray[:, None], own, p, sharp[:, None])
    return {
        "delta": delta,
        "pair": pair,
        "literal": literal,
        "sharp": sharp,
        "violated": mirror.bregman_divergence(ray[:, None], first, p).min(axis=1),
        "sufficient": cone.sufficient_radius(delta, pair, problems.token_scores, selected, svm.support),
        "slack": edges[0],
        "slack_sharp": edges[1],
        **_gradients(problems, svm, edge, p, sizes),
    }


def _gradients(problems: Problems, svm: AttentionSVM, edge: np.ndarray, p: float, sizes: Cone) -> dict[str, np.ndarray]:
    """Lemmas 20 and 21 for unit matrices at the edge of a cone and nearer the ray, arrays ``(problems, radii)``."""
    ray, norm = mirror.normalised(svm.weight, p), svm.norm
    distance = mirror.entrywise_norm(edge - ray[:, None], p)
    second = edge[:, : sizes.others] * norm[:, None, None, None]
    batch, columns = Batch.of(problems.repeated(edge.shape[1] * (1 + len(FRACTIONS)))), []
    for radius in sizes.radii:
        near = [np.minimum(1, fraction / radius / distance)[..., None, None] for fraction in FRACTIONS]
        moved = [mirror.normalised(ray[:, None] + size * (edge - ray[:, None]), p) for size in near]
        unit = np.concatenate([edge, *moved], axis=1)
        weights = (radius * unit * norm[:, None, None, None]).reshape(-1, *ray.shape[1:])
        scaled, log_scale = (part.numpy() for part in log_scaled_gradient(torch.from_numpy(weights), batch))
        gradients, logs = scaled.reshape(unit.shape), log_scale.reshape(unit.shape[:2])
        products = -np.einsum("pwij,pvij->pwv", gradients, second)
        along, to_ray = np.einsum("pwij,pwij->pw", gradients, unit), np.einsum("pwij,pij->pw", gradients, ray)
        columns.append(
            {
                "not_positive": (products <= 0).mean(axis=(1, 2)),
                "log_least": (np.log(np.where(products > 0, products, np.inf)) + logs[..., None]).min(axis=(1, 2)),
                "needed": np.where(to_ray < 0, along / to_ray - 1, np.inf).max(axis=1),  # pi of Lemma 21
            }
        )
    return {name: np.stack([column[name] for column in columns], axis=1) for name in columns[0]}
