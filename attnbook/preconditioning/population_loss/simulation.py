"""Attention on Gaussian keys, simulated: nothing here uses the closed forms that it is compared with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from attnbook.preconditioning.data import Problem
from attnbook.preconditioning.population import excess_loss, spectral_factors, square_roots

MOMENTS = ("E exp(1 q)", "E exp(2 q)", "E exp(0.5 xᵀVx)", "E exp(1 xᵀVx)", "E exp(xᵀVx − q/2)")
BLOCK = 250_000  # draws at a time, which a cache holds
POINTS = ("a minimum", "another point")  # where the empirical loss is held against the population loss


def tilt_error(covariance: np.ndarray, tilt: float, draws: int, n_queries: int, rng: np.random.Generator) -> float:
    r"""Return the largest error of $\Sigma Vz$ against the weighted mean of many keys, over entries and queries."""
    factor, dimension = np.linalg.cholesky(covariance), len(covariance)
    key_query = np.linalg.inv(factor.T) @ _tilted(dimension, tilt, rng) @ np.linalg.inv(factor)
    directions = rng.standard_normal((n_queries, dimension))
    queries = 2 * directions / np.linalg.norm(directions, axis=1, keepdims=True) @ factor.T
    weighted, total = np.zeros_like(queries), np.zeros((n_queries, 1))
    for size in np.diff([*range(0, draws, BLOCK), draws]):
        keys = rng.standard_normal((size, dimension)) @ factor.T
        weights = np.exp(queries @ key_query.T @ keys.T)
        weighted += weights @ keys
        total += weights.sum(1, keepdims=True)
    return float(np.abs(weighted / total - queries @ key_query.T @ covariance).max())


def moments(dimension: int, tilt: float, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Return the moments, first as simulated and then as determinants, which are finite; white draws are general."""
    whitened, sums = _tilted(dimension, tilt, rng), np.zeros(len(MOMENTS))
    for size in np.diff([*range(0, draws, BLOCK), draws]):
        block = rng.standard_normal((size, dimension))
        moved = block @ whitened.T
        q, score = (moved * moved).sum(1), (block * moved).sum(1)
        sums += [np.exp(power).sum() for power in (q, 2 * q, 0.5 * score, score, score - q / 2)]
    one, gram, twice = np.eye(dimension), 2 * whitened.T @ whitened, whitened + whitened.T
    closed = [np.linalg.det(one - matrix) ** -0.5 for matrix in (gram, 2 * gram, twice / 2, twice)]
    return np.array([sums / draws, [*closed, 1 / abs(np.linalg.det(one - whitened))]])


def loss_gaps(problem: Problem, sizes: Sequence[int], draws: int, away: float, rng: np.random.Generator) -> np.ndarray:
    r"""Return the simulated $E L_n-L$, ``(points, sizes)``.

    All queries of a data set have the same expected loss, so one per data set is enough. The queries are given the
    covariance $\Sigma$ exactly, which removes most of the noise.
    """
    outputs, d = problem.true_map.shape
    covariance, true_map = torch.from_numpy(problem.covariance), torch.from_numpy(problem.true_map)
    root, inverse = square_roots(covariance)
    value, key_query, _ = spectral_factors(true_map, covariance)
    shift = torch.from_numpy(away * rng.standard_normal((outputs + d, d)))
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


def attend(keys: np.ndarray, key_query: np.ndarray) -> np.ndarray:
    """Return what the first key of each data set attends to, itself included; a row per data set."""
    scores = (keys @ (keys[:, 0] @ key_query.T)[:, :, None])[..., 0]
    return (torch.from_numpy(scores).softmax(1).numpy()[:, None] @ keys)[:, 0]


def _tilted(dimension: int, norm: float, rng: np.random.Generator) -> np.ndarray:
    r"""Draw $\tilde V$ with singular values from the norm down to half of it."""
    left, right = (np.linalg.qr(rng.standard_normal((dimension, dimension)))[0] for _ in range(2))
    return (left * np.linspace(norm, norm / 2, dimension)) @ right.T
