"""Lemmas 12 to 15 and 26 for one seed and exponent: how close each comes to failing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnbook.core.rng import stream
from attnbook.mirror_descent import mirror
from attnbook.mirror_descent.mirror_descent import inequalities

if TYPE_CHECKING:
    from attnbook.mirror_descent.mirror_descent.experiments import Inequalities

EXTREME = 8  # worst-case pairs for p > 2
DIMS = {"norm_slack": ("end",), "ratio": ("form",), "sides": ("lemma", "end"), "identity": ()}


def closest(sizes: Inequalities, seed: int, p: float) -> dict[str, Any]:
    """Return how close each lemma comes to failing for one seed and exponent."""
    matrices = draw(sizes, seed)
    # One entry and a constant matrix attain the ends of Lemma 12.
    matrices[0], matrices[1] = np.eye(sizes.dimension) * (np.arange(sizes.dimension) == 0), 0.7
    norm, (low, high) = mirror.entrywise_norm(matrices, p), inequalities.norm_bounds(matrices, p)
    u, v = unit_pairs(sizes, seed, p)
    divergence = mirror.bregman_divergence(u, v, p)
    bounds = [inequalities.divergence_bound(u, v, p, sharp=sharp) for sharp in (False, True)]
    return {
        "norm_slack": [(1 - low / norm).min(), (high / norm - 1).min()],
        "ratio": [(divergence / bound).min() for bound in bounds],
        "sides": on_numbers(sizes, seed, p),
        "identity": np.abs(inequalities.three_point_error(u, v, mirror.normalised(matrices[: len(u)], p), p)).max(),
    }


def draw(sizes: Inequalities, seed: int) -> np.ndarray:
    """Return random matrices: plain ones, sparse ones, and ones whose entries span many scales."""
    rng, shape = stream(seed, "matrices"), (sizes.pairs, sizes.dimension, sizes.dimension)
    matrices, kind = rng.standard_normal(shape), np.arange(sizes.pairs) % 3
    kept = rng.random(shape) < 0.1
    kept[:, 0, 0] = True
    matrices[kind == 1] *= kept[kind == 1]
    matrices[kind == 2] *= 10 ** rng.uniform(-4, 0, shape)[kind == 2]
    return matrices


def unit_pairs(sizes: Inequalities, seed: int, p: float) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs of norm one: random ones at all distances, scaled by factors around one, and the worst ones."""
    rng, v = stream(seed, "pairs"), draw(sizes, seed)
    size = 10 ** rng.uniform(-3, 1, (sizes.pairs, 1, 1))
    other = mirror.normalised(v, p) + size * mirror.normalised(v[rng.permutation(sizes.pairs)], p)
    flipped = v * (1 + np.minimum(size, 1) * rng.choice([-1.0, 1.0], v.shape))
    u = np.where((np.arange(sizes.pairs) % 2 == 0)[:, None, None], other, flipped)
    signs = np.resize([1.0, -1.0], sizes.dimension**2) * (np.arange(sizes.dimension**2) < sizes.dimension**2 // 2 * 2)
    u[0], v[0] = 1 + 1e-3 * signs.reshape(v[0].shape), 1.0  # worst for p < 2: half of the entries pulled each way
    if p > 2:
        tiny = slice(1, EXTREME + 1)  # one tiny entry beside a large one, changed by what attains the best constant
        u[tiny], v[tiny] = 0.0, 0.0
        u[tiny, 0, 0] = v[tiny, 0, 0] = 1.0
        v[tiny, 0, 1] = np.geomspace(0.02, 0.3, EXTREME)
        u[tiny, 0, 1] = v[tiny, 0, 1] * (1 - mirror.extreme_change(p))
    kept = u.any(axis=(1, 2))  # a change by all of a sparse matrix leaves zero, which has no direction
    u, v = mirror.normalised(u[kept], p), mirror.normalised(v[kept], p)
    apart = mirror.entrywise_norm(u - v, p) > 1e-4  # others coincide but for rounding and say nothing
    return u[apart], v[apart]


def on_numbers(sizes: Inequalities, seed: int, p: float) -> list[list[float]]:
    """Return the least ratio of the middle to the left and of the right to the middle of Lemmas 14 and 15."""
    rng = stream(seed, "numbers")
    x = 10 ** rng.uniform(-3, 3, sizes.scalars)
    y = x / (1 + 10 ** rng.uniform(-6, 3, sizes.scalars))  # ratios from one and a millionth to a thousand
    sides = inequalities.power_bounds(x, y, p), inequalities.slope_bounds(x, y, p)
    return [[(middle / left).min(), (right / middle).min()] for left, middle, right in sides]
