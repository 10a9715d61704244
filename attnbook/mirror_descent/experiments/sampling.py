"""Samples from cones around max-margin solutions, and what Lemmas 19, 20 and 21 say about them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int

from attnbook.mirror_descent import cone, mirror
from attnbook.mirror_descent.attention import Batch, log_scaled_gradient
from attnbook.mirror_descent.attention_svm import AttentionSVM, attention_svm, locally_optimal
from attnbook.mirror_descent.cone_probes import at_divergence, extreme_directions, farthest
from attnbook.mirror_descent.data import Problems

__all__ = ["in_the_cone", "second_choice"]

# Perturbations of these sizes over the relative norm are added to those at the boundary (Lemma 21).
FRACTIONS = (1.0, 0.3)


def second_choice(problems: Problems, p: float) -> Int[np.ndarray, "problems samples"]:
    """Return the best tokens with one of them exchanged for the second best, such that the choice is locally optimal.

    Args:
        problems: The problems.
        p: One exponent above 1.

    Returns:
        Tokens; the best ones where no single exchange is locally optimal.

    Raises:
        ValueError: If such tokens cannot be selected by any matrix.
    """
    scores, best = problems.token_scores, problems.best_tokens
    count, samples, _ = scores.shape
    candidates = np.repeat(best[:, None], samples, axis=1)
    index = np.arange(samples)
    candidates[:, index, index] = np.argsort(scores, axis=2)[:, :, -2]
    flat, repeated = candidates.reshape(-1, samples), problems.repeated(samples)
    svm = attention_svm(repeated.tokens, repeated.queries, flat, p)
    fits = np.asarray(locally_optimal(repeated.token_scores, flat, svm.support)).reshape(count, samples)
    found = np.asarray(fits.any(axis=1))
    return np.where(found[:, None], candidates[np.arange(count), fits.argmax(axis=1)], best)


def in_the_cone(
    problems: Problems,
    selected: Int[np.ndarray, "problems samples"],
    seeds: Sequence[int],
    p: float,
    *,
    directions: int,
    tested: int,
    others: int,
    radii: Sequence[float],
    wide: float,
) -> dict[str, np.ndarray]:
    """Return the constants of the cone and the worst samples in it, problem by problem.

    Args:
        problems: The problems.
        selected: Selected token of each sample.
        seeds: Seed of each problem's perturbations.
        p: One exponent above 1.
        directions: Perturbations per problem.
        tested: How many of them are used for Lemmas 20 and 21.
        others: Second matrices of Lemma 20.
        radii: Relative norms.
        wide: Divergence of the wide cone.

    Returns:
        Arrays by name, as in :class:`~attnbook.mirror_descent.experiments.cone.Cone`; the first axis counts problems.

    Raises:
        ValueError: If the tokens cannot be selected by any matrix.
    """
    svm = attention_svm(problems.tokens, problems.queries, selected, p)
    center = mirror.normalised(svm.weight, p)
    delta = cone.separation(svm.margins, svm.support)
    pair = cone.largest_pair(problems.tokens, problems.queries, svm.norm, p)
    dimension = svm.weight.shape[-1]
    literal, sharp = (cone.guaranteed_divergence(delta, pair, dimension, p, sharp=s) for s in (False, True))
    ways = extreme_directions(problems, seeds, directions, p)
    slacks = [_gap_slacks(at_divergence(center[:, None], ways, p, mu[:, None]), svm, problems, selected, delta)
              for mu in (literal, sharp)]  # fmt: skip
    own_gaps = extreme_directions(problems, seeds, tested, p, selected=selected)
    narrow, broad = (_gradients(svm, center, problems, own_gaps, others, radii, p, mu)
                     for mu in (sharp, np.full_like(sharp, wide)))  # fmt: skip
    return {
        "delta": delta,
        "literal": literal,
        "sharp": sharp,
        "sampled": _first_violation(center, ways, svm, problems, selected, delta, p),
        "radius": cone.sufficient_radius(delta, pair, problems.token_scores, selected, svm.support),
        "locally_optimal": locally_optimal(problems.token_scores, selected, svm.support).astype(float),
        "slacks": np.stack([np.stack([part.min(axis=1) for part in s.values()], axis=-1) for s in slacks], axis=1),
        "not_positive": np.stack([narrow["not_positive"], broad["not_positive"]], axis=1),
        "log_least": narrow["log_least"],
        "ratio": np.stack([narrow["ratio"], broad["near"]], axis=1),
    }


def _gap_slacks(
    unit: np.ndarray, svm: AttentionSVM, problems: Problems, selected: np.ndarray, delta: np.ndarray
) -> dict[str, np.ndarray]:
    """Slacks of Lemma 19 of unit matrices ``(problems, directions, d, d)``, at the norm of the solution."""
    weights = unit * svm.norm[:, None, None, None]
    found = cone.gaps(weights, problems.tokens[:, None], problems.queries[:, None], selected[:, None])
    return cone.gap_slacks(found, svm.support[:, None], delta[:, None])


def _first_violation(
    center: np.ndarray,
    ways: np.ndarray,
    svm: AttentionSVM,
    problems: Problems,
    selected: np.ndarray,
    delta: np.ndarray,
    p: float,
) -> Float[np.ndarray, " problems"]:
    """Smallest divergence, over the perturbations, at which a part of Lemma 19 begins to fail."""

    def inside(unit: np.ndarray) -> np.ndarray:
        slacks = _gap_slacks(unit, svm, problems, selected, delta)
        return np.minimum(np.minimum(slacks["12a"], slacks["12b"]), slacks["12c"]) >= 0

    last = farthest(center[:, None], ways, p, inside)
    return mirror.bregman_divergence(center[:, None], last, p).min(axis=1)


def _gradients(
    svm: AttentionSVM,
    center: np.ndarray,
    problems: Problems,
    ways: np.ndarray,
    others: int,
    radii: Sequence[float],
    p: float,
    mu: np.ndarray,
) -> dict[str, np.ndarray]:
    """Lemmas 20 and 21 for matrices in the cone of divergence ``mu``, arrays ``(problems, radii)``."""
    edge = at_divergence(center[:, None], ways, p, mu[:, None])
    second = edge[:, :others] * svm.norm[:, None, None, None]
    columns = []
    for radius in radii:
        near = [np.minimum(1, fraction / radius / _distance(edge, center, p)) for fraction in FRACTIONS]
        moved = [center[:, None] + size[..., None, None] * (edge - center[:, None]) for size in near]
        unit = np.concatenate([edge, *(mirror.normalised(matrix, p) for matrix in moved)], axis=1)
        gradients, log_scale = _scaled_gradients(radius * unit * svm.norm[:, None, None, None], problems)
        products = -np.einsum("pwij,pvij->pwv", gradients, second)
        own = np.einsum("pwij,pwij->pw", gradients, unit)
        to_center = np.einsum("pwij,pij->pw", gradients, center)
        slack = np.where(to_center < 0, own / to_center - 1, np.inf)
        logs = np.log(np.where(products > 0, products, np.inf)) + log_scale[..., None]
        columns.append(
            {
                "not_positive": (products <= 0).sum(axis=(1, 2)).astype(float),
                "log_least": logs.min(axis=(1, 2)),
                "ratio": slack.max(axis=1),
                "near": slack[:, ways.shape[1] :].max(axis=1),
            }
        )
    return {name: np.stack([column[name] for column in columns], axis=1) for name in columns[0]}


def _distance(edge: np.ndarray, center: np.ndarray, p: float) -> np.ndarray:
    return mirror.entrywise_norm(edge - center[:, None], p)


def _scaled_gradients(weights: np.ndarray, problems: Problems) -> tuple[np.ndarray, np.ndarray]:
    """Scaled gradients ``(problems, matrices, d, d)`` and the logs of their scales."""
    count, matrices = weights.shape[:2]
    batch = Batch.of(problems.repeated(matrices))
    gradients, log_scale = log_scaled_gradient(torch.tensor(weights.reshape(-1, *weights.shape[2:])), batch)
    return gradients.numpy().reshape(weights.shape), log_scale.numpy().reshape(count, matrices)
