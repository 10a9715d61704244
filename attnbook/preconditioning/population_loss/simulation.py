"""Attention on Gaussian keys, simulated: nothing here uses the closed forms that it is compared with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core.rng import to_tensor
from attnbook.preconditioning import assumptions
from attnbook.preconditioning.data import Problem
from attnbook.preconditioning.population import excess_loss, spectral_factors, square_roots

__all__ = ["MOMENTS", "POINTS", "attend", "attention_line", "loss_gaps", "simulated_moments", "tilt_error"]

NORMALISER_ORDERS = (1.0, 2.0)
# Smaller, because the tail is heavier
SCORE_ORDERS = (0.5, 1.0)
MOMENTS = (
    *(f"E exp({k:g} q)" for k in NORMALISER_ORDERS),
    *(f"E exp({k:g} xᵀVx)" for k in SCORE_ORDERS),
    "E exp(xᵀVx − q/2)",
)
"""What :func:`simulated_moments` returns."""
POINTS = ("a minimum", "another point")
"""Where the empirical loss is held against the population loss."""
# Draws at a time; keeps memory small.
BLOCK = 250_000


def tilt_error(
    covariance: Float[np.ndarray, "dimension dimension"],
    tilt: float,
    draws: int,
    *,
    n_queries: int,
    rng: np.random.Generator,
) -> float:
    r"""Return the largest error of $\Sigma Vz$ against the weighted mean of many keys, over entries and queries.

    Args:
        covariance: $\Sigma$.
        tilt: Norm of a random $\tilde V$.
        draws: Number of keys.
        n_queries: Number of queries $z$, each of length two in whitened coordinates.
        rng: Source of randomness.

    Returns:
        The error.
    """
    factor, dimension = np.linalg.cholesky(covariance), len(covariance)
    key_query = np.linalg.inv(factor.T) @ _tilted(dimension, tilt, rng) @ np.linalg.inv(factor)
    directions = rng.standard_normal((n_queries, dimension))
    queries = 2 * directions / np.linalg.norm(directions, axis=1, keepdims=True) @ factor.T
    weighted, total = np.zeros_like(queries), np.zeros((n_queries, 1))
    for block in _blocks(draws, dimension, rng):
        keys = block @ factor.T
        weights = np.exp(queries @ key_query.T @ keys.T)
        weighted += weights @ keys
        total += weights.sum(1, keepdims=True)
    return float(np.abs(weighted / total - queries @ key_query.T @ covariance).max())


def simulated_moments(
    dimension: int, tilt: float, draws: int, *, rng: np.random.Generator
) -> tuple[Float[np.ndarray, " moments"], Float[np.ndarray, " moments"], Float[np.ndarray, " moments"]]:
    r"""Return simulated moments and their closed forms; the covariance drops out, so the draws are white.

    Args:
        dimension: Number of inputs $d$.
        tilt: Norm of a random $\tilde V$.
        draws: Number of inputs drawn.
        rng: Source of randomness.

    Returns:
        The :data:`MOMENTS`, first as simulated and then as determinants; and 1 where the variance of a draw is finite,
        else 0.
    """
    whitened = _tilted(dimension, tilt, rng)
    sums = np.zeros(len(MOMENTS))
    for block in _blocks(draws, dimension, rng):
        moved = block @ whitened.T
        q, score = (moved * moved).sum(1), (block * moved).sum(1)
        powers = [*(k * q for k in NORMALISER_ORDERS), *(k * score for k in SCORE_ORDERS), score - q / 2]
        sums += [np.exp(power).sum() for power in powers]
    exact = to_tensor(whitened, dtype=torch.float64)
    closed, squares = (
        [
            *(float(assumptions.normaliser_moment(exact, times * k)) for k in NORMALISER_ORDERS),
            *(float(assumptions.score_moment(exact, times * k)) for k in SCORE_ORDERS),
            float(of_self(exact)),
        ]
        for times, of_self in ((1, assumptions.self_moment), (2, assumptions.self_square_moment))
    )
    return sums / draws, np.array(closed), np.isfinite(squares).astype(float)


def loss_gaps(
    problem: Problem, sizes: Sequence[int], draws: int, *, away: float, rng: np.random.Generator
) -> Float[np.ndarray, "points sizes"]:
    r"""Simulate $E L_n-L$ at the :data:`POINTS`.

    All queries of a data set have the same expected loss, so one query per data set is enough; noise in the labels
    adds $L^*$ to both losses and is left out. The queries are given the covariance $\Sigma$ exactly, which removes most
    of the noise.

    Args:
        problem: Where the data come from.
        sizes: Numbers of keys.
        draws: Data sets per number of keys.
        away: Standard deviation of each entry of the other point around the minimum, in whitened coordinates.
        rng: Source of randomness.

    Returns:
        The gaps.
    """
    outputs, d = problem.true_map.shape
    covariance, true_map = (to_tensor(a, dtype=torch.float64) for a in (problem.covariance, problem.true_map))
    root, inverse = square_roots(covariance)
    value, key_query, _ = spectral_factors(true_map, covariance)
    shift = to_tensor(away * rng.standard_normal((outputs + d, d)), dtype=torch.float64)
    points = [(value, key_query), (value + shift[:-d] @ inverse, key_query + inverse @ shift[-d:] @ inverse)]
    excess = [float(excess_loss(*point, covariance=covariance, true_map=true_map)) for point in points]
    gaps = np.zeros((len(points), len(sizes)))
    for at, n in enumerate(sizes):
        keys = rng.standard_normal((draws, n, d))
        own = keys[:, 0]
        keys[:, 0] = own @ np.linalg.inv(np.linalg.cholesky(own.T @ own / draws)).T  # exactly white
        keys = keys @ root.numpy()
        for which, (outer, inner) in enumerate(points):
            error = attend(keys, inner.numpy()) @ outer.numpy().T - keys[:, 0] @ problem.true_map.T
            gaps[which, at] = 0.5 * (error**2).sum(1).mean() - excess[which]
    return gaps


def attend(
    keys: Float[np.ndarray, "draws keys dimension"], key_query: Float[np.ndarray, "dimension dimension"]
) -> Float[np.ndarray, "draws dimension"]:
    """Return what the first key of each data set attends to, itself included.

    Args:
        keys: Data sets.
        key_query: $V$.

    Returns:
        Weighted means of the keys.
    """
    scores = (keys @ (keys[:, 0] @ key_query.T)[:, :, None])[..., 0]
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return (weights[:, None] @ keys)[:, 0] / weights.sum(1, keepdims=True)


def attention_line(
    queries: Float[np.ndarray, " queries"], keys: Float[np.ndarray, " keys"], key_query: float
) -> Float[np.ndarray, " queries"]:
    """Return what queries attend to in one dimension.

    Args:
        queries: Queries.
        keys: Keys.
        key_query: $V$, a number.

    Returns:
        Weighted means of the keys.

    Example:
        >>> attention_line(np.array([0.0, 9.0]), np.array([-1.0, 1.0]), 1.0).round(6)
        array([0., 1.])
    """
    scores = key_query * np.outer(queries, keys)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return weights @ keys / weights.sum(1)


def _tilted(dimension: int, norm: float, rng: np.random.Generator) -> np.ndarray:
    r"""Draw $\tilde V$ with singular values from the norm down to half of it."""
    left, right = (np.linalg.qr(rng.standard_normal((dimension, dimension)))[0] for _ in range(2))
    return (left * np.linspace(norm, norm / 2, dimension)) @ right.T


def _blocks(draws: int, dimension: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Draw white inputs, a block at a time."""
    for start in range(0, draws, BLOCK):
        yield rng.standard_normal((min(BLOCK, draws - start), dimension))
