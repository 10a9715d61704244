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
from attnbook.mirror_descent.objective import score_deficits

__all__ = ["Path", "follow", "interpolant"]


class Path(NamedTuple):
    r"""Minimisers along radii.

    Attributes:
        weights: $W(R)$ as found, ``(radii, dimension, dimension)``.
        log_excess: $\log(\mathcal L(W(R))-\mathcal L_{opt})$, ``(radii,)``.
        steepness: Derivative of the logarithm of the excess by $\log R$, ``(radii,)``; negative where a larger radius
            helps.
        slope: Largest entry of the derivative along the sphere, as the search sees it, ``(radii,)``; near zero where a
            search ended at a stationary point and not at its last step.
    """

    weights: Float[np.ndarray, "radii dimension dimension"]
    log_excess: Float[np.ndarray, " radii"]
    steepness: Float[np.ndarray, " radii"]
    slope: Float[np.ndarray, " radii"]


class _Sample(NamedTuple):
    """One problem as the search reads it, so that nothing is computed twice."""

    tokens: np.ndarray
    queries: np.ndarray
    deficits: np.ndarray
    best: np.ndarray

    @classmethod
    def of(cls, problems: Problems) -> _Sample:
        if len(problems.tokens) != 1:
            raise ValueError(f"problems: expected a stack of one problem, got {len(problems.tokens)}")
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
    """Return the smallest matrix (Euclidean) that gives every other token a margin of one below the best.

    Args:
        problems: A stack of one problem.

    Returns:
        The matrix; least squares where no matrix has all margins equal to one.
    """
    dimension = problems.decoder.shape[1]
    rows = attention_constraints(problems.tokens, problems.queries, problems.best_tokens)[0]
    return (np.linalg.pinv(rows) @ np.ones(len(rows))).reshape(dimension, dimension)


def follow(
    problems: Problems,
    p: float,
    radii: Float[np.ndarray, " radii"],
    starts: Float[np.ndarray, "starts dimension dimension"],
    *,
    most_steps: int = 500,
) -> Path:
    """Follow a minimiser along radii: from the best of all starts at the first one, then from where the last one ended.

    Args:
        problems: A stack of one problem.
        p: Exponent of the norm, above 1.
        radii: Radii in the order of the walk; outwards and inwards can end in different minima.
        starts: Directions to start from at the first radius, none of them zero.
        most_steps: Most steps of L-BFGS per search; default 500.

    Returns:
        What was found.

    Raises:
        ValueError: If a radius is not above zero, a start is zero, or the exponent is not above 1.
    """
    exponent = float(mirror.check_exponents(p))
    if not ((radii > 0) & np.isfinite(radii)).all():
        raise ValueError(f"radii: expected finite numbers above 0, got {radii}")
    if not starts.any(axis=(1, 2)).all():
        raise ValueError("starts: expected matrices that are not zero, got a zero matrix")
    sample = _Sample.of(problems)
    found: list[np.ndarray] = []
    for radius in radii:
        tried = [_minimum(sample, exponent, float(radius), start, most_steps) for start in (found[-1:] or starts)]
        found.append(min(tried, key=lambda weights: sample.log_excess(weights)[0]))
    ends = [sample.log_excess(weights) for weights in found]
    steepness = [float((gradient * weights).sum()) for (_, gradient), weights in zip(ends, found, strict=True)]
    slopes = [
        float(np.abs(_on_sphere(sample, exponent, float(radius), (weights / radius).ravel())[1]).max())
        for radius, weights in zip(radii, found, strict=True)
    ]
    return Path(np.stack(found), np.array([value for value, _ in ends]), np.array(steepness), np.array(slopes))


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
