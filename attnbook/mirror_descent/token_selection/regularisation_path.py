r"""The regularisation path: the matrix of smallest loss among those of a given norm, as the norm grows.

$W(R)\in\arg\min_{\|W\|_{p,p}\le R}\mathcal L(W)$ is searched on the sphere, as $W=RU/\|U\|_{p,p}$. The problem is not
convex, so that what a solver returns depends on where it starts. What is minimised is the logarithm of the excess
over the loss of perfect attention, written without cancellation, so that it has a slope at any radius.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from attnbook.mirror_descent import mirror
from attnbook.mirror_descent.attention_svm import attention_constraints
from attnbook.mirror_descent.data import Problems
from attnbook.mirror_descent.token_selection.objective import score_deficits


class Path(NamedTuple):
    """Minimisers along radii."""

    weights: Float[np.ndarray, "radii dimension dimension"]
    log_excess: Float[np.ndarray, " radii"]  # logarithm of the loss above that of perfect attention
    steepness: Float[np.ndarray, " radii"]  # its derivative by the log of the radius; negative where a larger one helps
    slope: Float[np.ndarray, " radii"]  # largest entry of its derivative along the sphere; zero at a stationary point


class _Sample(NamedTuple):
    """One problem as the search reads it, so that nothing is computed twice."""

    tokens: np.ndarray
    queries: np.ndarray
    deficits: np.ndarray
    best: np.ndarray

    @classmethod
    def of(cls, problems: Problems) -> _Sample:
        best = problems.token_scores[0].max(-1)
        return cls(problems.tokens[0], problems.queries[0], score_deficits(problems)[0], best)

    def log_excess(self, weights: np.ndarray) -> tuple[float, np.ndarray]:
        r"""Log and gradient; $\ell(a-\epsilon)-\ell(a)=\mathrm{log1p}(\mathrm{expm1}(\epsilon)/(1+e^a))$."""
        logits = (self.tokens @ (self.queries @ weights.T)[:, :, None])[..., 0]
        powers = np.exp(logits - logits.max(-1, keepdims=True))
        s = powers / powers.sum(-1, keepdims=True)
        lost = (s * self.deficits).sum(-1)
        excess = np.log1p(np.expm1(lost) / (1 + np.exp(self.best)))
        slopes = 1 / (1 + np.exp(self.best - lost))
        coefficients = s * (self.deficits - lost[:, None]) * slopes[:, None]
        gradient = (coefficients[:, None, :] @ self.tokens)[:, 0].T @ self.queries
        return float(np.log(excess.mean())), gradient / excess.sum()


def interpolant(problems: Problems) -> Float[np.ndarray, "dimension dimension"]:
    """Return the smallest matrix (Euclidean) that gives every other token a margin of one below the best."""
    dimension = problems.decoder.shape[1]
    rows = attention_constraints(problems.tokens, problems.queries, problems.best_tokens)[0]
    return (np.linalg.pinv(rows) @ np.ones(len(rows))).reshape(dimension, dimension)


def follow(
    problems: Problems,
    p: float,
    radii: Float[np.ndarray, " radii"],
    start: Float[np.ndarray, "dimension dimension"],
    *,
    most_steps: int,
) -> Path:
    """Search at the first radius from a direction, then at each from where the last search ended, by L-BFGS."""
    sample, weights, found = _Sample.of(problems), start, []
    for radius in map(float, radii):
        weights = _minimum(sample, p, radius, weights, most_steps)
        value, gradient = sample.log_excess(weights)
        slope = np.abs(_on_sphere(sample, p, radius, (weights / radius).ravel())[1]).max()
        found.append((weights, value, (gradient * weights).sum(), slope))
    return Path(*map(np.array, zip(*found, strict=True)))


def _minimum(sample: _Sample, p: float, radius: float, start: np.ndarray, most_steps: int) -> np.ndarray:
    from scipy.optimize import minimize  # here, because a machine that only trains needs no scipy

    options = {"maxiter": most_steps, "maxcor": 20, "ftol": 1e-11, "gtol": 1e-7}
    unit = mirror.normalised(start, p).ravel()
    ended = minimize(
        lambda flat: _on_sphere(sample, p, radius, flat), unit, jac=True, method="L-BFGS-B", options=options
    )
    return radius * mirror.normalised(ended.x.reshape(start.shape), p)


def _on_sphere(sample: _Sample, p: float, radius: float, flat: np.ndarray) -> tuple[float, np.ndarray]:
    """The logarithm at a point projected to the sphere, and its derivative by that point."""
    length = (np.abs(flat) ** p).sum() ** (1 / p)
    unit = flat / length
    dimension = sample.tokens.shape[-1]
    value, slope = sample.log_excess(radius * unit.reshape(dimension, dimension))
    gradient = slope.ravel()
    # The derivative of the norm is the mirror image of the direction.
    outwards = np.sign(unit) * np.abs(unit) ** (p - 1)
    return value, radius / length * (gradient - (gradient @ unit) * outwards)
