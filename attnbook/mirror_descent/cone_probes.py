r"""Matrices in a cone around a max-margin direction, pushed where they do most harm, and runs that start there.

The cone $S_{p,\mu}$ holds the matrices with $D_\psi(\bar W_{mm},\bar W)\le\mu$. Random perturbations hardly move the
few logits that matter; those that lower one gap between two tokens most, at a given $p$-norm, are the extremal ones of
Hölder's inequality. Here $p$ is one exponent above 1, ``center`` a unit matrix (the axis of the cone), and
``direction`` a unit perturbation; what is returned has norm one, too.
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

SIZES = (1e-9, 30.0)  # perturbations from the first to the second of these, relative to a unit direction
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
    $-\mathrm{sign}(A)|A|^{q-1}$, normalised. Sample and tokens are drawn with the seed of the problem; or $t$ is the
    selected token of its sample. For each problem there are ``count`` directions.
    """
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

    A divergence that no size reaches gives the largest size tried.
    """
    return farthest(center, direction, p, lambda unit: mirror.bregman_divergence(center, unit, p) <= divergence)


def farthest(
    center: Float[np.ndarray, "*#batch rows columns"],
    direction: Float[np.ndarray, "*batch rows columns"],
    p: float,
    inside: Callable[[Float[np.ndarray, "*batch rows columns"]], Bool[np.ndarray, "*batch"]],
) -> Float[np.ndarray, "*batch rows columns"]:
    r"""Return the last unit matrix $\propto\bar U+s\Delta$ of each ray that is inside, by bisection in $\log s$.

    Whether a matrix is inside should change once along a ray.
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


def second_choice(
    problems: Problems, p: float, *, largest: bool = False
) -> tuple[Int[np.ndarray, "problems samples"], Float[np.ndarray, " problems"]]:
    """Return the best tokens but for one sample's second best, such that the choice is locally optimal, and its slack.

    The slack is the margin, above one, of the nearest better token; NaN where no such choice exists, and the best
    tokens stand in its place. Of several such choices it is the first, or the one with the largest slack.
    """
    count, samples, _ = problems.token_scores.shape
    selected, index = np.repeat(problems.best_tokens[:, None], samples, axis=1), np.arange(samples)
    selected[:, index, index] = np.argsort(problems.token_scores, axis=2)[:, :, -2]
    tried, flat = problems.repeated(samples), selected.reshape(-1, samples)
    svm, scores = attention_svm(tried.tokens, tried.queries, flat, p), tried.token_scores
    better = scores > np.take_along_axis(scores, flat[..., None], axis=2)
    slack = (np.where(better, svm.margins, np.inf).min(axis=(1, 2)) - 1).reshape(count, samples)
    fits = np.asarray(locally_optimal(scores, flat, svm.support)).reshape(count, samples)
    most = (np.where(fits, slack, -np.inf) if largest else fits).argmax(axis=1)
    every, exists = np.arange(count), np.asarray(fits.any(axis=1))
    chosen = np.where(exists[:, None], selected[every, most], problems.best_tokens)
    return chosen, np.where(exists, slack[every, most], np.nan)


@dataclass(frozen=True)
class ConeStarts:
    """Runs about to start in a cone, one member each."""

    problems: Problems  #: The problem of each member
    ps: Float[np.ndarray, " members"]  #: The exponent of each member
    #: Tokens whose max-margin solution the run starts beside, ``(members, samples)``
    selected: Int[np.ndarray, "members samples"]
    #: Margin, above one, of the nearest better token; infinite for the best tokens, NaN for a second choice that does
    #: not exist
    slack: Float[np.ndarray, " members"]
    weight: Float[np.ndarray, "members d d"]  #: That solution
    norm: Float[np.ndarray, " members"]  #: Its norm
    start: Float[np.ndarray, "members d d"]  #: Initial matrices

    def divergence(self, path: Float[np.ndarray, "records members d d"]) -> Float[np.ndarray, "records members"]:
        """Return the divergence to the max-margin direction along the runs."""
        return mirror.direction_divergence(self.weight, path, self.ps)

    def relative_norm(self, path: Float[np.ndarray, "records members d d"]) -> Float[np.ndarray, "records members"]:
        """Return the norm over that of the max-margin solution along the runs."""
        return np.asarray(mirror.entrywise_norm(path, self.ps) / self.norm)

    def kept(self, weights: Float[np.ndarray, "members d d"]) -> Bool[np.ndarray, " members"]:
        """Return whether the selected token has the most attention in every sample."""
        attended = attention_weights(torch.from_numpy(weights), Batch.of(self.problems)).numpy().argmax(axis=-1)
        return (attended == self.selected).all(axis=1)


def cone_starts(
    ps: Sequence[float], seeds: Sequence[int], starts: Sequence[tuple[float, float]], *, largest: bool = False
) -> ConeStarts:
    """Return starts at given divergences and relative norms from max-margin solutions, of one problem per seed.

    Of two choices of tokens: the best, and :func:`second_choice`. The perturbation of a seed lowers one gap of a
    selected token as much as any of its norm. Runs are ordered by exponent, choice of tokens, start, seed.
    """
    one, parts = draw_problems(seeds), []
    for p in ps:
        for selected, slack in ((one.best_tokens, np.full(len(seeds), np.inf)), second_choice(one, p, largest=largest)):
            svm = attention_svm(one.tokens, one.queries, selected, p)
            ray, size = mirror.normalised(svm.weight, p), svm.norm[:, None, None]
            ways = extreme_directions(one, seeds, 1, p, selected=selected)[:, 0]
            for divergence, radius in starts:
                start = radius * size * at_divergence(ray, ways, p, divergence)
                parts.append((np.full(len(seeds), p), selected, slack, svm.weight, svm.norm, start))
    return ConeStarts(joined([one] * len(parts)), *map(np.concatenate, zip(*parts, strict=True)))
