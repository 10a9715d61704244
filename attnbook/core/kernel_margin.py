r"""The largest margin of a linear rule that is known through its inner products only.

Samples have features $f_i$ and labels $y_i$; with $K_{ij}=y_iy_j\langle f_i,f_j\rangle$ the margin is

.. math:: \max_{\|w\|=1}\min_iy_i\langle w,f_i\rangle=\min_{\lambda\ge0,\,\sum\lambda_i=1}\sqrt{\lambda^\top K\lambda}.

The right side is the distance of the origin from a polytope. Lawson and Hanson's active-set method for non-negative
least squares finds it exactly (least-distance programming), in finitely many steps, for features of any dimension.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

__all__ = ["KernelMargin", "NotSeparableError", "factors", "kernel_margin"]

# A gap larger than this is rounding that got out of hand.
WORST_GAP = 1e-6
# Margins below this times the largest norm of a feature: double precision cannot tell such inner products from zero.
SMALLEST = 1e-7


class NotSeparableError(ValueError):
    """No linear rule has a positive margin; carries the proof.

    Attributes:
        combination: Non-negative weights with sum 1 for which the labelled features cancel.
    """

    def __init__(self, combination: Float[np.ndarray, " samples"], length: float) -> None:
        self.combination = combination
        super().__init__(
            f"gram: not separable: a convex combination of {int((combination > 0).sum())} of the {len(combination)} "
            f"labelled features has length {length:.1e} of the largest, so no rule has a positive margin"
        )


@dataclass(frozen=True)
class KernelMargin:
    r"""The largest margin and its certificate.

    Attributes:
        margin: The margin that the rule $w\propto\sum_i\lambda_iy_if_i$ of unit norm has on the samples.
        weights: $\lambda\ge0$ with sum 1.
        gap: No rule of unit norm has a margin above ``margin / (1 - gap)``.
    """

    margin: float
    weights: Float[np.ndarray, " samples"]
    gap: float


def kernel_margin(gram: Float[np.ndarray, "samples samples"], labels: Float[np.ndarray, " samples"]) -> KernelMargin:
    r"""Return the largest margin for unit-norm rules through the origin.

    Args:
        gram: Inner products $\langle f_i,f_j\rangle$, symmetric and positive semi-definite.
        labels: 1 or -1.

    Returns:
        The margin with its certificate.

    Raises:
        NotSeparableError: If no rule has a margin above 1e-7 of the largest norm of a feature (a ``ValueError``).
        ValueError: If a shape does not fit, an entry is not finite, a label is not 1 or -1, or the matrix is not
            symmetric and positive semi-definite.
        RuntimeError: If rounding keeps the gap above one in a million.

    Example:
        >>> found = kernel_margin(np.array([[4.0, 0.0], [0.0, 4.0]]), np.array([1.0, -1.0]))
        >>> round(found.margin, 6), found.weights.round(6).tolist()
        (1.414214, [0.5, 0.5])
    """
    from scipy.optimize import nnls  # here, because a machine that only trains needs no scipy

    labelled = _check(gram, labels)
    largest = np.sqrt(labelled.diagonal().max())
    factor = factors(labelled[None] / largest**2)[0]
    # min |A u - b| over u >= 0, with a last row of ones: the residual is the nearest point, up to a factor.
    system = np.vstack([factor, np.ones(len(labelled))])
    solution, _ = nnls(system, np.append(np.zeros(len(factor)), 1.0), maxiter=100 * len(labelled))
    weights = solution / solution.sum()
    nearest = factor @ weights
    length = float(np.linalg.norm(nearest))
    if length < SMALLEST:
        raise NotSeparableError(weights, length)
    margin = float((factor.T @ nearest).min() / length)
    if margin < (1 - WORST_GAP) * length:
        raise RuntimeError(f"gram: solved to a gap of {1 - margin / length:.1e} only; is it nearly singular?")
    return KernelMargin(float(margin * largest), weights, max(0.0, 1 - margin / length))


def factors(grams: Float[np.ndarray, "problems samples samples"]) -> Float[np.ndarray, "problems samples samples"]:
    """Return matrices whose columns have these inner products.

    Raises:
        ValueError: If one is not positive semi-definite.
    """
    try:
        return np.linalg.cholesky(grams).swapaxes(1, 2)
    except np.linalg.LinAlgError:  # one is singular, or not a matrix of inner products
        values, vectors = np.linalg.eigh(grams)
    if (values[:, 0] < -1e-9 * np.maximum(1.0, values[:, -1])).any():
        raise ValueError(f"gram: expected a positive semi-definite matrix, got an eigenvalue of {values.min():.1e}")
    return np.sqrt(np.maximum(values, 0.0))[:, :, None] * vectors.swapaxes(1, 2)


def _check(gram: np.ndarray, labels: np.ndarray) -> np.ndarray:
    gram, labels = np.asarray(gram, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    if labels.ndim != 1 or not len(labels):
        raise ValueError(f"labels: expected (samples,), at least one, got shape {labels.shape}")
    if gram.shape != (len(labels), len(labels)):
        raise ValueError(f"gram: expected one row and column for each of {len(labels)} labels, got shape {gram.shape}")
    if not (np.abs(labels) == 1).all():
        raise ValueError(f"labels: expected 1 or -1, got {labels[np.abs(labels) != 1][0]}")
    if not np.isfinite(gram).all():
        raise ValueError(f"gram: expected finite numbers, got {int((~np.isfinite(gram)).sum())} NaN or infinite")
    difference, largest = np.abs(gram - gram.T).max(), np.abs(gram).max()
    if difference > 1e-8 * largest:
        raise ValueError(f"gram: expected a symmetric matrix, entries differ by {difference:.1e}")
    if gram.diagonal().max() <= 0:
        raise ValueError("gram: every feature is zero")
    return (gram + gram.T) / 2 * labels[:, None] * labels[None, :]
