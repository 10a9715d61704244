r"""Matrices in a cone around a max-margin direction, pushed where they do most harm, and runs that start there.

The cone $S_{p,\mu}$ holds the matrices with $D_\psi(\bar W_{mm},\bar W)\le\mu$. Random perturbations hardly move the
few logits that matter; those that lower one gap between two tokens most, at a given $p$-norm, are the extremal ones of
Hölder's inequality.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from attnbook.core.rng import stream
from attnbook.mirror_descent import mirror
from attnbook.mirror_descent.attention import Batch, attention_weights
from attnbook.mirror_descent.attention_svm import attention_svm, locally_optimal
from attnbook.mirror_descent.data import Problems, draw_problems, joined

__all__ = ["ConeStarts", "at_divergence", "cone_starts", "extreme_directions", "farthest", "second_choice"]

# Perturbations from the first to the second of these sizes, relative to a unit direction.
SIZES = (1e-9, 30.0)
HALVINGS = 30


def extreme_directions(
    problems: Problems,
    seeds: Sequence[int],
    count: int,
    p: float,
    *,
    selected: Int[np.ndarray, "problems samples"] | None = None,
) -> Float[np.ndarray, "problems directions dimension dimension"]:
    r"""Return unit perturbations that lower one gap between two tokens as much as any of their norm.

    The gap of tokens $t$ and $\tau$ is $\langle A,W\rangle$ with $A=(X_{it}-X_{i\tau})z_i^\top$; the perturbation is
    $-\mathrm{sign}(A)|A|^{q-1}$, normalised. Sample and tokens are drawn at random; or $t$ is the
    selected token of its sample.

    Args:
        problems: The problems.
        seeds: Seed of each problem's draws.
        count: Directions per problem.
        p: One exponent above 1.
        selected: Selected token of each sample, whose gaps are lowered; default any two tokens.

    Returns:
        Matrices of norm one.

    Raises:
        ValueError: If there is not one seed per problem, or the exponent is not a finite number above 1.
    """
    if len(seeds) != len(problems.decoder):
        raise ValueError(f"seeds: expected one per problem, {len(problems.decoder)}, got {len(seeds)}")
    _, samples, tokens, _ = problems.tokens.shape
    found = []
    for problem, seed in enumerate(seeds):
        rng = stream(seed, "directions")
        sample = rng.integers(samples, size=count)
        one = rng.integers(tokens, size=count) if selected is None else selected[problem, sample]
        other = (one + rng.integers(1, tokens, size=count)) % tokens
        x = problems.tokens[problem, sample]
        difference = x[np.arange(count), one] - x[np.arange(count), other]
        found.append(difference[:, :, None] * problems.queries[problem, sample][:, None, :])
    # The single-constraint solution points to the matrix that raises the gap most.
    return -mirror.normalised(mirror.single_constraint(np.stack(found), p), p)


def at_divergence(
    center: Float[np.ndarray, "*#batch rows columns"],
    direction: Float[np.ndarray, "*batch rows columns"],
    p: float,
    divergence: float | Float[np.ndarray, "*#batch"],
) -> Float[np.ndarray, "*batch rows columns"]:
    r"""Return unit matrices $\bar W\propto\bar U+s\Delta$ at a given divergence $D_\psi(\bar U,\bar W)$, or just below.

    Args:
        center: Unit matrices $\bar U$, axis of the cone.
        direction: Unit perturbations $\Delta$.
        p: One exponent above 1.
        divergence: The divergence wanted, positive; what no size reaches gives the largest size tried.

    Returns:
        Matrices of norm one.

    Raises:
        ValueError: If a divergence is not positive, or the exponent is not a finite number above 1.
    """
    if not (np.asarray(divergence) > 0).all():
        raise ValueError(f"divergence: expected positive numbers, got {np.min(divergence)}")
    return farthest(center, direction, p, lambda unit: mirror.bregman_divergence(center, unit, p) <= divergence)


def farthest(
    center: Float[np.ndarray, "*#batch rows columns"],
    direction: Float[np.ndarray, "*batch rows columns"],
    p: float,
    inside: Callable[[Float[np.ndarray, "*batch rows columns"]], Bool[np.ndarray, "*batch"]],
) -> Float[np.ndarray, "*batch rows columns"]:
    r"""Return the last unit matrix $\propto\bar U+s\Delta$ of each ray that is inside, by bisection in $\log s$.

    Args:
        center: Unit matrices $\bar U$, inside.
        direction: Unit perturbations $\Delta$.
        p: One exponent above 1.
        inside: Unit matrices to whether each is inside; should change once along a ray.

    Returns:
        Matrices of norm one.

    Raises:
        ValueError: If the exponent is not a finite number above 1.
    """
    low = np.full(direction.shape[:-2], np.log(SIZES[0]))
    high = np.full(direction.shape[:-2], np.log(SIZES[1]))

    def unit(log_size: np.ndarray) -> np.ndarray:
        return mirror.normalised(center + np.exp(log_size)[..., None, None] * direction, p)

    for _ in range(HALVINGS):
        middle = (low + high) / 2
        within = inside(unit(middle))
        low, high = np.where(within, middle, low), np.where(within, high, middle)
    return unit(low)


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


@dataclass(frozen=True)
class ConeStarts:
    """Runs about to start in a cone, one member each.

    Attributes:
        problems: The problem of each member.
        ps: The exponent of each member.
        selected: Tokens whose max-margin solution the run starts beside, ``(members, samples)``.
        ray: Direction of that solution, normalised.
        norm: Norm of that solution.
        start: Initial matrices.
    """

    problems: Problems
    ps: Float[np.ndarray, " members"]
    selected: Int[np.ndarray, "members samples"]
    ray: Float[np.ndarray, "members d d"]
    norm: Float[np.ndarray, " members"]
    start: Float[np.ndarray, "members d d"]

    def divergence(self, path: Float[np.ndarray, "records members d d"]) -> Float[np.ndarray, "records members"]:
        """Return the divergence to the max-margin direction along the runs."""
        rays = np.broadcast_to(self.ray, path.shape)
        return mirror.bregman_divergence(rays, mirror.normalised(path, self.ps), self.ps)

    def relative_norm(self, path: Float[np.ndarray, "records members d d"]) -> Float[np.ndarray, "records members"]:
        """Return the norm over that of the max-margin solution along the runs."""
        return np.asarray(mirror.entrywise_norm(path, self.ps) / self.norm)

    def kept(self, weights: Float[np.ndarray, "members d d"]) -> Bool[np.ndarray, " members"]:
        """Return whether the selected token has the most attention in every sample."""
        attended = attention_weights(torch.tensor(weights), Batch.of(self.problems)).numpy().argmax(axis=-1)
        return (attended == self.selected).all(axis=1)


def cone_starts(ps: Sequence[float], seeds: Sequence[int], starts: Sequence[tuple[float, float]]) -> ConeStarts:
    """Return starts at given divergences and relative norms from max-margin solutions.

    Of two choices of tokens: the best, and :func:`second_choice`. The perturbation of a seed lowers one gap of a
    selected token as much as any of its norm.

    Args:
        ps: Exponents.
        seeds: One problem per seed.
        starts: Divergence and relative norm of each kind of start.

    Returns:
        The runs to be, ordered by exponent, choice of tokens, start, seed.

    Raises:
        ValueError: If the tokens cannot be selected by any matrix.
    """
    one, parts = draw_problems(seeds), []
    for p in ps:
        for selected in (one.best_tokens, second_choice(one, p)):
            svm = attention_svm(one.tokens, one.queries, selected, p)
            ray, size = mirror.normalised(svm.weight, p), svm.norm[:, None, None]
            ways = extreme_directions(one, seeds, 1, p, selected=selected)[:, 0]
            for divergence, radius in starts:
                start = radius * size * at_divergence(ray, ways, p, divergence)
                parts.append((np.full(len(seeds), p), selected, ray, svm.norm, start))
    return ConeStarts(joined([one] * len(parts)), *map(np.concatenate, zip(*parts, strict=True)))
