r"""The largest margin of a linear rule that is known through its inner products only.

Samples have features $f_i$ and labels $y_i$; with $K_{ij}=y_iy_j\langle f_i,f_j\rangle$ the margin is

.. math:: \max_{\|w\|=1}\min_iy_i\langle w,f_i\rangle=\min_{\lambda\ge0,\,\sum\lambda_i=1}\sqrt{\lambda^\top K\lambda}.

The right side is the distance of the origin from a polytope. Lawson and Hanson's active-set method for non-negative
least squares finds it exactly (least-distance programming), in finitely many steps, for features of any dimension.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

__all__ = ["KernelMargin", "NotSeparableError", "NotSolvedError", "factors", "kernel_margin", "refuted"]

# A gap larger than this is rounding that got out of hand.
WORST_GAP = 1e-6
# Length of a combination of features of norm one: double precision cannot tell such inner products from zero.
SMALLEST = 1e-7


class NotSeparableError(ValueError):
    """No linear rule has a positive margin; carries the proof, which has been checked.

    Attributes:
        combination: Non-negative weights with sum 1 for which the labelled features cancel.
    """

    def __init__(self, combination: Float[np.ndarray, " samples"], length: float) -> None:
        self.combination = combination
        super().__init__(
            f"gram: not separable: a convex combination of {int((combination > 0).sum())} of the {len(combination)} "
            f"labelled features, scaled to norm one, has length {length:.1e}, so no rule has a positive margin"
        )


class NotSolvedError(RuntimeError):
    """Neither solved to the gap that is asked for nor proved to have no solution; carries the best that was found.

    Attributes:
        found: What would have been returned; its gap says how good it is.
    """

    def __init__(self, message: str, found: Any) -> None:
        self.found = found
        super().__init__(f"{message} What was found is in this error's attribute 'found'")


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
        NotSeparableError: If a convex combination of the labelled features, scaled to norm one, is shorter than 1e-7:
            then double precision knows no rule with a positive margin (a ``ValueError``).
        ValueError: If a shape does not fit, an entry is not finite, a label is not 1 or -1, or the matrix is not
            symmetric and positive semi-definite.
        NotSolvedError: If rounding keeps the gap above one in a million, and no combination is as short as that; what
            was found is its attribute ``found`` (a ``RuntimeError``).

    Example:
        >>> found = kernel_margin(np.array([[4.0, 0.0], [0.0, 4.0]]), np.array([1.0, -1.0]))
        >>> round(found.margin, 6), found.weights.round(6).tolist()
        (1.414214, [0.5, 0.5])
    """
    from scipy.optimize import nnls  # here, because a machine that only trains needs no scipy

    labelled = _check(gram, labels)
    norms = np.sqrt(labelled.diagonal())
    if not norms.all():
        raise NotSeparableError((norms == 0) / (norms == 0).sum(), 0.0)
    # Features of norm one must reach margins of at least the inverse norms.
    alike, asked = labelled / norms / norms[:, None], norms.min() / norms
    factor = factors(alike[None])[0]
    # min |A u - e| over u >= 0, with a last row of what is asked: the residual is the nearest point, up to a factor.
    system = np.vstack([factor, asked])
    solution, _ = nnls(system, np.append(np.zeros(len(factor)), 1.0), maxiter=100 * len(labelled))
    products = alike @ solution
    length = float(np.sqrt(max(0.0, solution @ products)))
    with np.errstate(divide="ignore", invalid="ignore"):
        margin, most = (products / asked).min() / length, length / (asked @ solution)
        gap = float(1 - margin / most)
    if not (gap <= WORST_GAP and length >= SMALLEST * solution.sum()):
        combination = refuted(factor.T, np.ones(len(labelled), dtype=bool), SMALLEST)
        if combination.any():
            length = float(np.linalg.norm(factor @ combination))
            raise NotSeparableError(combination / norms / (combination / norms).sum(), length)
    weights = solution / norms
    found = KernelMargin(float(margin * norms.min()), weights / weights.sum(), max(0.0, gap))
    if not gap <= WORST_GAP:
        raise NotSolvedError(f"gram: solved to a gap of {gap:.1e} only; is it nearly singular?", found)
    return found


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


def refuted(
    rows: Float[np.ndarray, "constraints dimension"],
    asks: Bool[np.ndarray, " constraints"],
    cancelled: float,
) -> Float[np.ndarray, " constraints"]:
    r"""Return the proof that no $w$ has $Aw\ge0$ and, where ``asks`` is true, $Aw>0$; zeros if there is none.

    Args:
        rows: $A$, of rows of length one or zero.
        asks: Where the right-hand side is positive; somewhere.
        cancelled: Length to which the rows must cancel.

    Returns:
        Non-negative multipliers whose combination of the rows is of at most this length. They are a convex combination
        of the rows that ask for something; the others are added.
    """
    from scipy.optimize import nnls

    nothing = np.zeros(len(rows))
    system = np.concatenate([rows.T, asks[None].astype(float)])
    try:
        combination, _ = nnls(system, np.append(np.zeros(rows.shape[1]), 1.0), maxiter=100 * len(rows))
    except RuntimeError:  # too many steps
        return nothing
    combination[combination < 1e-13 * combination.max()] = 0.0
    total = combination[asks].sum()
    holds = total > 0 and np.linalg.norm(combination @ rows) <= cancelled * total
    return combination / total if holds else nothing


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
    if gram.diagonal().min() < 0:
        raise ValueError(f"gram: expected no negative squared norm, got {gram.diagonal().min():.1e}")
    if gram.diagonal().max() == 0:
        raise ValueError("gram: every feature is zero")
    return (gram + gram.T) / 2 * labels[:, None] * labels[None, :]
